"""Elementwise application of any function: ``map_`` over one buffer, ``zip_map`` over two.

The function is a lambda, a ``def`` or a ``@device`` function. The values that it captures are passed to the kernel, so
``map_(lambda x: x * factor, x, out)`` is compiled once for all factors. The function takes elements of the inputs'
types and returns an element of the output's type. The types may differ. They are integers of 8 to 64 bits, f32 and f64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from oxide import DisjointSlice, Slice, f32, f64, i8, i16, i32, i64, kernel, thread, u8, u16, u32, u64

A = TypeVar("A", i8, i16, i32, i64, u8, u16, u32, u64, f32, f64)
B = TypeVar("B", i8, i16, i32, i64, u8, u16, u32, u64, f32, f64)
C = TypeVar("C", i8, i16, i32, i64, u8, u16, u32, u64, f32, f64)


@kernel(block=256, requires=("len(x) == len(out)",))
def map_(f: Callable[[A], C], x: Slice[A], out: DisjointSlice[C]) -> None:
    """Computes ``out[i] = f(x[i])`` for each element of ``out``. ``out`` may be ``x``.

    The launch raises ``LaunchError`` unless ``x`` has as many elements as ``out``. The name is Python's.
    """
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = f(x[index.get()])


@kernel(block=256, requires=("len(x) == len(out)", "len(y) == len(out)"))
def zip_map(f: Callable[[A, B], C], x: Slice[A], y: Slice[B], out: DisjointSlice[C]) -> None:
    """Computes ``out[i] = f(x[i], y[i])`` for each element of ``out``. ``out`` may be ``x`` or ``y``.

    The launch raises ``LaunchError`` unless each input has as many elements as ``out``.
    """
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = f(x[index.get()], y[index.get()])
