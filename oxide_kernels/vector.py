"""Vectors of numbers: ``axpy``."""

from __future__ import annotations

from typing import TypeVar

from oxide import DisjointSlice, Slice, bf16, f16, f32, f64, kernel, thread

from .accumulators import widen

T = TypeVar("T", f16, bf16, f32, f64)


@kernel(block=256, items_per_thread=4, requires=("len(x) == len(y)",))
def axpy(a: T, x: Slice[T], y: DisjointSlice[T]) -> None:
    """Computes ``y = a * x + y``, for f16, bf16, f32 or f64. Raises ``LaunchError`` unless ``x`` is as long as ``y``.
    f16 and bf16 are rounded once, at the end. ``a`` has the elements' type. The name is BLAS's."""
    first, length, out, factor = 4 * thread.index_1d().get(), len(y), y.unchecked_mut, widen(a)
    if first + 4 <= length and x.is_aligned(4) and y.is_aligned(4):
        x0, x1, x2, x3 = x.load4(first)
        y0, y1, y2, y3 = out.load4(first)
        out.store4(first, factor * x0 + y0, factor * x1 + y1, factor * x2 + y2, factor * x3 + y3)
    else:
        for i in range(first, min(first + 4, length)):
            out[i] = factor * x[i] + out[i]


@kernel(block=256, requires=("len(x) == len(y)",))
def _axpy_each(a: T, x: Slice[T], y: DisjointSlice[T]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = widen(a) * x[index.get()] + element.value


axpy.each = _axpy_each
