"""A web service over sentence embeddings: Starlette on Hypercorn's trio worker, batches by ``oxide.serving``.

    python -m examples.service            (or: make serve)

``POST /embed`` and ``POST /search`` take JSON, and ``/`` is a page to search with. ``/healthz`` says that the process
lives, ``/readyz`` that it takes requests, ``/metrics`` has Prometheus' text. It needs the extra ``service``, and for
the real model the extra ``embeddings``; ``--model hashing`` needs no download.
"""
