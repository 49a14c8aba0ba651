"""Simple kernels of dense linear algebra: one thread computes each element of the result."""

from __future__ import annotations

from oxide import DisjointSlice, DisjointSlice2, Slice, Slice2, f32, kernel, thread, u32


@kernel
def sgemm_naive(
    m: u32, n: u32, k: u32, alpha: f32, a: Slice[f32], b: Slice[f32], beta: f32, c: DisjointSlice[f32]
) -> None:
    """Computes ``c = alpha * a @ b + beta * c``, float32: ``a`` is m×k, ``b`` k×n, ``c`` m×n, all row-major. With a
    ``beta`` of 0, ``c`` is not read, as in BLAS.

    Launch at least n threads in x and m in y.
    """
    row = thread.index_2d_row()
    col = thread.index_2d_col()
    c_idx = thread.index_2d(n)
    if c_idx is not None and row < m:
        acc = 0.0
        for i in range(k):
            acc += a[row * k + i] * b[i * n + col]
        c_elem = c.get_mut(c_idx)
        if c_elem is not None:
            c_elem.value = alpha * acc if beta == 0 else alpha * acc + beta * c_elem.value


@kernel(block=256)
def matvec_naive(m: u32, n: u32, mat: Slice[f32], vec_in: Slice[f32], vec_out: DisjointSlice[f32]) -> None:
    """Computes ``vec_out = mat @ vec_in``, float32: ``mat`` is m×n, row-major. Each thread computes one element of
    ``vec_out``: launch at least m threads."""
    idx = thread.index_1d()
    row = idx.get()
    if row < m:
        acc = 0.0
        for i in range(n):
            acc += mat[row * n + i] * vec_in[i]
        out_elem = vec_out.get_mut(idx)
        if out_elem is not None:
            out_elem.value = acc


@kernel
def sgemm_2d(alpha: f32, a: Slice2[f32], b: Slice2[f32], beta: f32, c: DisjointSlice2[f32]) -> None:
    """Computes ``c = alpha * a @ b + beta * c``, float32. The sizes come from the arrays' shapes. With a ``beta`` of 0,
    ``c`` is not read, as in BLAS.

    Launch at least as many threads in x as ``c`` has columns, and at least as many in y as ``c`` has rows.
    """
    row = thread.index_2d_row()
    col = thread.index_2d_col()
    c_idx = thread.index_2d(c.shape[1])
    if c_idx is not None and row < c.shape[0]:
        acc = 0.0
        for i in range(a.shape[1]):
            acc += a[row, i] * b[i, col]
        c_elem = c.get_mut(c_idx)
        if c_elem is not None:
            c_elem.value = alpha * acc if beta == 0 else alpha * acc + beta * c_elem.value


@kernel(block=256)
def matvec_2d(mat: Slice2[f32], vec_in: Slice[f32], vec_out: DisjointSlice[f32]) -> None:
    """Computes ``vec_out = mat @ vec_in``, float32. Each thread computes one element of ``vec_out``: launch at least
    ``len(vec_out)`` threads."""
    idx = thread.index_1d()
    row = idx.get()
    if row < len(vec_out):
        acc = 0.0
        for i in range(mat.shape[1]):
            acc += mat[row, i] * vec_in[i]
        out_elem = vec_out.get_mut(idx)
        if out_elem is not None:
            out_elem.value = acc
