"""Kernels and programs that are traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import trio

import oxide
from oxide import DeviceOperation, DisjointSlice, LaunchConfig, Slice, f32, h2d, i32, kernel, thread

SIZE = 1000
ONES = np.ones(SIZE, np.float32)
CONFIG = LaunchConfig.for_num_elems(SIZE)


@kernel
def add(a: Slice[f32], b: Slice[f32], c: DisjointSlice[f32]) -> None:
    idx = thread.index_1d()
    element = c.get_mut(idx)
    if element is not None:
        i = idx.get()
        element.value = a[i] + b[i]


@kernel
def reads_outside(a: Slice[f32], c: DisjointSlice[f32]) -> None:
    element = c.get_mut(thread.index_1d())
    if element is not None:
        element.value = a[5000]


@kernel(block=32)
def count_down(n: DisjointSlice[i32]) -> None:
    element = n.get_mut(thread.index_1d())
    if element is not None:
        element.value -= i32(1)


def sum_of(a: Any, b: Any) -> DeviceOperation[Any]:
    """Returns an operation that adds two arrays of the host on the device and copies the sum back."""
    inputs = oxide.zip(h2d(a), h2d(b), oxide.zeros(a.size))
    return inputs.and_then(lambda boxes: add[CONFIG](*boxes)).last().and_then(oxide.d2h)


async def concurrent_sums(count: int) -> None:
    """Runs ``count`` sums at once, each in a task."""

    async def one(number: int) -> None:
        total = await sum_of(ONES, ONES * number)
        assert (total == 1 + number).all()

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(one, number, name=f"sum {number}")
