"""``python -m examples.why_slow [first|fused|overlapped|halved] [--rows 4096] [--columns 1024] [--batches 32]``: brings
the rows of batches of vectors to unit length, in the form of one step of the chapter "Why is it slow?".

Prints the time of a batch, whose result is dropped at once, and the largest error of the first batches beside float64.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

import oxide
from oxide import (
    DeviceOperation,
    DisjointSlice,
    DisjointSlice2,
    LaunchConfig,
    Slice,
    Slice2,
    d2h,
    empty,
    f16,
    f32,
    h2d,
    kernel,
    pinned_empty,
    thread,
    tile,
)

Array = NDArray[Any]
Use = Callable[[int, Array], None]
"""A function that takes the number and the result of a batch."""
TASKS = 4


@kernel(block=128)
def row_lengths(x: Slice2[f32], lengths: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    length = lengths.get_mut(index)
    if length is not None:
        total = f32(0)
        for column in range(x.shape[1]):
            total += x[index.get(), column] * x[index.get(), column]
        length.value = math.sqrt(total)


@kernel
def divide_rows(x: Slice2[f32], lengths: Slice[f32], y: DisjointSlice2[f32]) -> None:
    index = thread.index_2d(y.shape[1])
    if index is not None:
        element = y.get_mut(index)
        if element is not None:
            row = thread.index_2d_row()
            element.value = x[row, thread.index_2d_col()] / lengths[row]


@tile.kernel
def unit_rows(y: tile.Partition2[f32], x: tile.Tensor2[f32]) -> None:
    v = tile.load_like(x, y)
    y.store(v / tile.sqrt(tile.sum(v * v, axis=1, keepdims=True)))


@tile.kernel
def unit_rows_f16(y: tile.Partition2[f16], x: tile.Tensor2[f32]) -> None:
    v = tile.load_like(x, y)
    y.store(v / tile.sqrt(tile.sum(v * v, axis=1, keepdims=True)))


def first(batches: list[Array], use: Use) -> None:
    """Runs two thread kernels, and waits after each step."""
    for number, batch in enumerate(batches):
        rows, columns = batch.shape
        x = h2d(batch).sync()
        lengths = empty(rows, f32).sync()
        row_lengths(x, lengths).sync()
        y = empty((rows, columns), f32).sync()
        divide_rows[LaunchConfig.for_shape((rows, columns))](x, lengths, y).sync()
        use(number, d2h(y).sync())


def of_rows(batch: Array, dtype: Any = f32) -> DeviceOperation[Array]:
    """Returns the operation that yields the batch with its rows scaled to unit length. A program of the tile kernel
    computes whole rows."""
    rows, columns = batch.shape
    shape = max(1, 4096 >> (columns - 1).bit_length()), 1 << (columns - 1).bit_length()
    program = unit_rows if dtype is f32 else unit_rows_f16
    return program(empty((rows, columns), dtype).partition(shape), h2d(batch)).first().unpartition().to_host()


def fused(batches: list[Array], use: Use) -> None:
    """Runs one tile kernel, which reads and writes each element once."""
    for number, batch in enumerate(batches):
        use(number, of_rows(batch).sync())


async def _by_tasks(batches: list[Array], use: Use, dtype: Any) -> None:
    await oxide.prepare(functools.partial(of_rows, batches[0], dtype))
    numbers = iter(range(len(batches)))

    async def take() -> None:
        for number in numbers:
            use(number, await of_rows(batches[number], dtype))

    async with trio.open_nursery() as nursery:
        for _ in range(TASKS):
            nursery.start_soon(take)


def overlapped(batches: list[Array], use: Use) -> None:
    """Distributes the batches over several tasks, so that copies in both directions and kernels run at the same
    time."""
    trio.run(_by_tasks, batches, use, f32)


def halved(batches: list[Array], use: Use) -> None:
    """Does as ``overlapped``, with results in f16, so that half as many bytes are copied to the host."""
    trio.run(_by_tasks, batches, use, f16)


STEPS: dict[str, Callable[[list[Array], Use], None]] = {
    "first": first,
    "fused": fused,
    "overlapped": overlapped,
    "halved": halved,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.why_slow", description=__doc__)
    parser.add_argument("step", nargs="?", choices=STEPS, default="first")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=32)
    given = parser.parse_args()
    random = np.random.default_rng(1)
    batches = []
    for _ in range(given.batches):
        # Page-locked from the third step on, so that the device copies the batches itself.
        place = pinned_empty if given.step in ("overlapped", "halved") else np.empty
        batch = place((given.rows, given.columns), np.float32)
        random.standard_normal(out=batch, dtype=np.float32)
        batches.append(batch)
    step = STEPS[given.step]
    errors = []

    def compare(number: int, found: Array) -> None:
        wide = batches[number].astype(np.float64)
        expected = wide / np.linalg.norm(wide, axis=1, keepdims=True)
        errors.append(float(np.linalg.norm(found - expected) / np.linalg.norm(expected)))

    step(batches[:TASKS], compare)  # compiles the kernels
    begun = time.perf_counter()
    step(batches, lambda _number, _found: None)
    seconds = time.perf_counter() - begun
    print(f"{given.step}: {1e3 * seconds / given.batches:.3f} ms a batch, relative error {max(errors):.0e}")


if __name__ == "__main__":
    main()
