"""``Layout``: sequences of different lengths in one matrix, a row for each token, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from oxide import DeviceBox, DeviceOperation, h2d


@final
class Layout:
    """Describes which row is which token, in int32 arrays for the device.

    ``tokens`` is 4×t: the word of each token, its place in its sequence, and the first row and the end of its sequence.
    ``sequences`` is 2×s: the first row and the end of each sequence. Both are views of one array, so that one copy
    uploads them.
    """

    def __init__(self, tokens: int, sequences: int) -> None:
        """Makes a layout with room for ``tokens`` tokens and ``sequences`` sequences, filled with sequences of one
        token."""
        self._numbers = np.zeros(4 * tokens + 2 * sequences, np.int32)
        self.tokens = self._numbers[: 4 * tokens].reshape(4, tokens)
        self.sequences = self._numbers[4 * tokens :].reshape(2, sequences)
        self.fill([])

    def fill(self, texts: Sequence[NDArray[np.int32]]) -> None:
        """Writes the sequences, given by their words, one after another. Fills the rest with sequences of one token,
        whose results have no meaning. Raises ``ValueError`` if there is no room for the sequences."""
        lengths = [len(text) for text in texts]
        used, room = sum(lengths), self.tokens.shape[1]
        if used > room or len(texts) > self.sequences.shape[1]:
            raise ValueError(
                f"{len(texts)} sequences of {used} tokens do not fit a layout of {self.sequences.shape[1]} sequences "
                f"and {room} tokens"
            )
        ends = np.cumsum([0, *lengths], dtype=np.int32)
        words, places, first, end = self.tokens
        words[used:], places[used:] = 0, 0
        first[used:], end[used:] = np.arange(used, room), np.arange(used, room) + 1
        if texts:
            words[:used] = np.concatenate(texts)
            places[:used] = np.concatenate([np.arange(length) for length in lengths])
            first[:used], end[:used] = np.repeat(ends[:-1], lengths), np.repeat(ends[1:], lengths)
        self.sequences[0], self.sequences[1] = 0, 1
        self.sequences[:, : len(texts)] = ends[:-1], ends[1:]

    def upload(self) -> DeviceOperation[tuple[DeviceBox, DeviceBox]]:
        """Returns the operation that yields ``tokens`` and ``sequences`` on the device. The operation reads the arrays
        when it runs."""
        split, shapes = self.tokens.size, (self.tokens.shape, self.sequences.shape)
        return h2d(self._numbers).map(lambda box: (box[:split].reshape(*shapes[0]), box[split:].reshape(*shapes[1])))
