"""Loops of three shapes, for the cost of bounds checks: a step known at run time, a nest, a count down."""

from __future__ import annotations

from oxide import DisjointSlice, Slice, f32, i64, kernel, thread, u32


@kernel(block=256)
def strided_squares(n: u32, stride: i64, x: Slice[f32], sums: DisjointSlice[f32]) -> None:
    """``sums[i]`` is the sum of the squares of ``x[i]``, ``x[i + stride]``, … under ``n``: a grid-stride loop."""
    index = thread.index_1d()
    total = sums.get_mut(index)
    if total is not None:
        acc = f32(0.0)
        for j in range(index.get(), n, stride):
            acc += x[j] * x[j]
        total.value = acc


@kernel
def window_sums(size: u32, height: u32, width: u32, image: Slice[f32], out: DisjointSlice[f32]) -> None:
    """The sum of the ``size``×``size`` window of a padded image at each element: ``image`` has ``width + size``
    columns and ``height + size`` rows, ``out`` is ``height``×``width``."""
    row = thread.index_2d_row()
    column = thread.index_2d_col()
    index = thread.index_2d(width)
    if index is not None and row < height:
        acc = f32(0.0)
        for y in range(size):
            for x in range(size):
                acc += image[(row + y) * (width + size) + column + x]
        element = out.get_mut(index)
        if element is not None:
            element.value = acc


@kernel(block=256)
def horner(terms: u32, coefficients: Slice[f32], x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """``y = coefficients[0] + coefficients[1] * x + …``, from the highest power down."""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        at = x[index.get()]
        acc = f32(0.0)
        for power in range(i64(terms) - 1, -1, -1):
            acc = acc * at + coefficients[power]
        element.value = acc
