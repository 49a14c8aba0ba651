"""An embedder without weights: a text is the set of its words, hashed into 64 columns. For tests and first looks."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from examples.embeddings.kernels import to_unit_length
from oxide import DeviceBox, DeviceOperation, LaunchConfig, d2h, empty, h2d
from oxide.serving import Bucket, Buckets

Tokens = NDArray[np.int32]
Vectors = NDArray[np.float32]


class Embeds(Protocol):
    """The interface of the service's models. ``examples.embeddings.Embedder`` has it, too."""

    @property
    def dimension(self) -> int:
        """Returns the number of elements of a vector."""

    def tokenise(self, texts: Sequence[str]) -> list[Tokens]:
        """Returns the tokens of each text."""

    def encode(self, texts: Sequence[Tokens]) -> DeviceOperation[Vectors]:
        """Returns the operation that yields a row of unit length for each text."""

    def buckets_up_to(self, max_texts: int, max_tokens: int) -> Buckets[Tokens, Vectors]:
        """Returns the buckets for batches of at most ``max_texts`` texts and ``max_tokens`` tokens."""


@final
class HashingEmbedder:
    """A model without weights: texts that share words get vectors that are close."""

    dimension = 64

    def tokenise(self, texts: Sequence[str]) -> list[Tokens]:
        """Returns the tokens of each text: the column of each word, which is the same in every process."""
        words = [re.findall(r"\w+", text.lower()) for text in texts]
        return [np.array([zlib.crc32(word.encode()) % self.dimension for word in each], np.int32) for each in words]

    def encode(self, texts: Sequence[Tokens]) -> DeviceOperation[Vectors]:
        """Returns the operation that normalises the counts of the words on the device."""
        counts = np.zeros((len(texts), self.dimension), np.float32)
        self._count(counts, texts)
        return self._normalised(counts).and_then(d2h)

    def buckets_up_to(self, max_texts: int, max_tokens: int) -> Buckets[Tokens, Vectors]:
        """Returns buckets with a graph for each power of two of texts."""
        limit = max_texts.bit_length() + 1
        return Buckets(lambda texts: 1 << (len(texts) - 1).bit_length(), self.bucket, limit=limit)

    def bucket(self, texts: int) -> Bucket[Tokens, Vectors]:
        """Returns the bucket for batches of at most ``texts`` texts."""
        counts = np.zeros((texts, self.dimension), np.float32)
        return Bucket(
            self._normalised(counts),
            lambda given: self._count(counts, given),
            lambda rows, given: d2h(rows[: len(given)]),
        )

    def _count(self, counts: Vectors, texts: Sequence[Tokens]) -> None:
        counts[:] = 0
        for row, text in zip(counts, texts, strict=False):
            row += np.bincount(text, minlength=self.dimension)

    def _normalised(self, counts: Vectors) -> DeviceOperation[DeviceBox]:
        launch = to_unit_length[LaunchConfig.for_num_elems(len(counts), 8)]
        return empty(counts.shape).and_then(lambda units: launch(h2d(counts), units)).last()
