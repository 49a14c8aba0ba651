"""The kernels of the view benchmark: in a file of their own, as the compiler reads their source."""

from typing import Literal

from oxide import DisjointSlice, Slice2, Tiles, f32, kernel, thread, u32, zip_exact


@kernel
def sgemm_views(
    m: u32, n: u32, k: u32, alpha: f32, a: Slice2[f32], b: Slice2[f32], beta: f32, c: DisjointSlice[f32]
) -> None:
    """``c = alpha * a @ b + beta * c``, a thread an element, over a row of ``a`` and a column of ``b``."""
    index = thread.index_2d(n)
    row, column = a.row(thread.index_2d_row()), b.col(thread.index_2d_col())
    if index is not None and row is not None and column is not None:
        total = f32(0.0)
        for x, y in zip_exact(row, column):
            total += x * y
        element = c.get_mut(index)
        if element is not None:
            element.value = alpha * total + beta * element.value


@kernel(block=256)
def relu_by_four(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
    """In place, a thread four elements."""
    index = thread.index_1d()
    tile = y.get_mut(index)
    if tile is not None:
        for j in range(4):
            tile[j] = max(tile[j], f32(0.0))
    rest = y.get_remainder(index)
    if rest is not None:
        for j in range(len(rest)):
            rest[j] = max(rest[j], f32(0.0))


@kernel(block=256)
def relu_by_one(y: DisjointSlice[f32]) -> None:
    """In place, a thread an element."""
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = max(element.value, f32(0.0))
