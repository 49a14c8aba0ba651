"""An embedder without weights: a text is the set of its words, hashed into 64 columns. For tests and first looks."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from examples.embeddings.kernels import to_unit_length
from oxide import DeviceOperation, LaunchConfig, d2h, empty, h2d

Tokens = NDArray[np.int32]
Vectors = NDArray[np.float32]


class Embeds(Protocol):
    """What the service needs of a model; ``examples.embeddings.Embedder`` is one."""

    @property
    def dimension(self) -> int:
        """Returns the number of elements of a vector."""

    def tokenise(self, texts: Sequence[str]) -> list[Tokens]:
        """Returns the tokens of each text."""

    def encode(self, texts: Sequence[Tokens]) -> DeviceOperation[Vectors]:
        """Returns the operation that yields a row of unit length for each text."""


@final
class HashingEmbedder:
    """Texts that share words have near vectors."""

    dimension = 64

    def tokenise(self, texts: Sequence[str]) -> list[Tokens]:
        """Returns a column for each word, the same in every process."""
        words = [re.findall(r"\w+", text.lower()) for text in texts]
        return [np.array([zlib.crc32(word.encode()) % self.dimension for word in each], np.int32) for each in words]

    def encode(self, texts: Sequence[Tokens]) -> DeviceOperation[Vectors]:
        """Returns the operation that normalises the counts of the words on the device."""
        counts = np.stack([np.bincount(text, minlength=self.dimension) for text in texts]).astype(np.float32)
        launch = to_unit_length[LaunchConfig.for_num_elems(len(counts), 8)]
        return empty(counts.shape).and_then(lambda units: launch(h2d(counts), units)).last().and_then(d2h)
