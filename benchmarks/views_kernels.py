"""The kernels of the view benchmark: in a file of their own, as the compiler reads their source."""

from oxide import DisjointSlice, MatrixView, Slice, f32, kernel, thread, u32, zip_exact


@kernel
def sgemm_views(
    m: u32, n: u32, k: u32, alpha: f32, a: Slice[f32], b: Slice[f32], beta: f32, c: DisjointSlice[f32]
) -> None:
    """``c = alpha * a @ b + beta * c``, a thread an element, over a row of ``a`` and a column of ``b``."""
    index = thread.index_2d(n)
    row = MatrixView(a, k).row(thread.index_2d_row(), k)
    column = MatrixView(b, n).col(thread.index_2d_col(), k)
    if index is not None and row is not None and column is not None:
        total = f32(0.0)
        for x, y in zip_exact(row, column):
            total += x * y
        element = c.get_mut(index)
        if element is not None:
            element.value = alpha * total + beta * element.value
