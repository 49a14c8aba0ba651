"""Kernels that assert, which the tests of several files launch."""

from __future__ import annotations

from typing import Any

from oxide import DisjointSlice, Slice, device, f32, i32, i64, kernel, thread, u32


@kernel
def square_roots(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        assert x[index.get()] >= f32(0.0), "x must not be negative"
        element.value = x[index.get()] * f32(2.0)


@kernel
def positive(n: i32, y: DisjointSlice[f32]) -> None:
    assert n > 0
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = f32(n)


@device
def checked(n: Any) -> Any:
    assert n < 3, "n is too large"
    return n + 1


@kernel
def calls(n: i64, y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = checked(n)


@kernel
def summed(n: u32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        acc = f32(0.0)
        for i in range(n):
            acc += x[i]
            assert acc < f32(100.0), "the sum is too large"
        element.value = acc


@kernel
def computed(n: i32, y: DisjointSlice[f32]) -> None:
    assert n > 0, n
