"""Kernels and functions that the tests of ``oxide.torch`` make operators of, on the CPU and on a GPU."""

from __future__ import annotations

from typing import TypeVar

from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    DisjointSlice2,
    LaunchConfig,
    Slice,
    Slice2,
    empty,
    f32,
    f64,
    kernel,
    thread,
)

T = TypeVar("T", f32, f64)


@kernel(block=128)
def scale(x: Slice[T], s: T, y: DisjointSlice[T]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] * s


@kernel
def product(a: Slice2[f64], b: Slice2[f64], c: DisjointSlice2[f64]) -> None:
    index = thread.index_2d(c.shape[1])
    element = c.get_mut(index) if index is not None else None
    if element is not None:
        total = f64(0.0)
        for k in range(a.shape[1]):
            total += a[thread.index_2d_row(), k] * b[k, thread.index_2d_col()]
        element.value = total


@kernel(block=64)
def reaches_too_far(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get() + 1]


def multiply(a: DeviceBox, b: DeviceBox) -> DeviceOperation[DeviceBox]:
    rows, columns = a.shape[0], b.shape[1]
    return product[LaunchConfig.for_shape((rows, columns), (8, 8))](a, b, empty((rows, columns), f64)).last()


def scaled_twice(x: DeviceBox, s: float = 2.0) -> DeviceOperation[DeviceBox]:
    once = scale(x, s, empty(x.shape, x.dtype)).last()
    return once.and_then(lambda box: scale(box, s, empty(x.shape, x.dtype)).last())
