"""Vectors of numbers: ``axpy``."""

from __future__ import annotations

from oxide import DisjointSlice, Slice, f32, kernel, thread


@kernel(block=256, items_per_thread=4)
def axpy(a: f32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """``y = a * x + y``, float32; ``x`` is at least as long as ``y``. BLAS's name."""
    first, length, out = 4 * thread.index_1d().get(), len(y), y.unchecked_mut
    if first + 4 <= length and x.is_aligned(4) and y.is_aligned(4):
        x0, x1, x2, x3 = x.load4(first)
        y0, y1, y2, y3 = out.load4(first)
        out.store4(first, a * x0 + y0, a * x1 + y1, a * x2 + y2, a * x3 + y3)
    else:
        for i in range(first, min(first + 4, length)):
            out[i] = a * x[i] + out[i]
