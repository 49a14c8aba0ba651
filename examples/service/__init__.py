"""A web service over sentence embeddings: Starlette on Hypercorn's trio worker, batches by ``oxide.serving``.

    python -m examples.service            (or: make serve)

``POST /embed`` and ``POST /search`` take JSON, and ``/`` is a page for searching. ``/healthz`` says whether the process
is alive, ``/readyz`` whether it takes requests, and ``/metrics`` has the metrics in Prometheus' format. The service
needs the extra ``service``, and for the real model the extra ``embeddings``; ``--model hashing`` needs no download.
"""
