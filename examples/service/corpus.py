"""The searched texts: their vectors on the device, and the search for the nearest ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    LaunchConfig,
    Slice,
    d2h,
    device,
    empty,
    f32,
    full,
    h2d,
    i32,
    kernel,
    thread,
    zip,
)
from oxide_kernels import matvec

GROUP = 512
"""The number of scores in a group. A launch finds the best scores of each group."""

MOST = 64
"""The most results of a search. So a launch keeps at most an eighth of each full group."""

_NONE = 2**31 - 1


@device
def known(score: f32) -> f32:
    """Returns the score; -inf if it is a NaN."""
    return score if score == score else f32(-math.inf)


@kernel(partial=True)  # the last group may have fewer scores than k
def best_of_groups(
    k: i32,
    scores: Slice[f32],
    numbers: Slice[i32],
    best: DisjointSlice[f32],
    best_numbers: DisjointSlice[i32],
) -> None:
    """Writes the ``k`` best scores of each group of 512, in order, and their numbers. Of equal scores, the score with
    the lower number is better. A NaN counts as -inf: no comparison with a NaN is true, so two threads would get the
    same rank and write the same element."""
    i = thread.index_1d().get()
    if i < len(scores):
        first = i // GROUP * GROUP
        mine, number = known(scores[i]), numbers[i]
        rank = 0
        for other in range(first, min(first + GROUP, len(scores))):
            theirs = known(scores[other])
            if theirs > mine or (theirs == mine and numbers[other] < number):
                rank += 1
        if rank < k:
            best.scatter[i // GROUP * k + rank] = mine
            best_numbers.scatter[i // GROUP * k + rank] = number


def top_k(scores: DeviceBox, k: int) -> DeviceOperation[tuple[NDArray[np.float32], NDArray[np.int32]]]:
    """Returns the operation that yields the ``k`` greatest scores and their numbers, in descending order, on the host.
    Of equal scores, the first counts as greater. Raises ``ValueError`` unless k is from 1 to 64 and at most the number
    of scores."""
    if not 1 <= k <= min(MOST, scores.size):
        raise ValueError(f"k is {k}; it must be from 1 to {min(MOST, scores.size)}")

    def reduce(scores: DeviceBox, numbers: DeviceBox) -> DeviceOperation[tuple[DeviceBox, DeviceBox]]:
        groups = math.ceil(scores.size / GROUP)
        launch = best_of_groups[LaunchConfig.for_num_elems(scores.size)]
        reduced = zip(full(groups * k, -math.inf), full(groups * k, _NONE, np.int32)).and_then(
            lambda boxes: launch(k, scores, numbers, *boxes).map(lambda done: (done[3], done[4]))
        )
        return reduced if groups == 1 else reduced.and_then(lambda boxes: reduce(*boxes))

    numbers = h2d(np.arange(scores.size, dtype=np.int32))
    return numbers.and_then(lambda numbers: reduce(scores, numbers)).and_then(
        lambda boxes: zip(d2h(boxes[0]), d2h(boxes[1]))
    )


@final
class Corpus:
    """Texts, and a matrix on the device with a row for the vector of each text."""

    def __init__(self, texts: Sequence[str], vectors: DeviceBox) -> None:
        self.texts = texts
        self._vectors = vectors

    def search(
        self, vector: NDArray[np.float32], k: int
    ) -> DeviceOperation[tuple[NDArray[np.float32], NDArray[np.int32]]]:
        """Returns the operation that yields the scores and the numbers of the ``k`` nearest texts."""
        rows, width = self._vectors.shape
        return (
            empty(rows)
            .and_then(lambda scores: matvec(rows, width, self._vectors, h2d(vector), scores))
            .last()
            .and_then(lambda scores: top_k(scores, min(k, len(self.texts))))
        )
