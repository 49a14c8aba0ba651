"""``matmul_packed``: f32 matrix products for CPUs. The right matrix is packed once, such as the weights of a network.

A thread computes a tile of 6 rows and 32 columns of the result and keeps it in registers: on a CPU with AVX-512, in
twelve vectors. For each column of ``a`` it reads 6 elements of this column and 32 neighbouring elements of ``b``.
``pack`` stores the columns of ``b`` in panels of 32, so that these reads of ``b`` follow one another in memory. LLVM
vectorises the unrolled loops. The scheme is BLIS's (Van Zee and van de Geijn, 2015), without the packing of ``a``.

No index is checked in the kernel: the host has compared the shapes, and the indices of rows are clamped.

Measured on two cores of an AMD EPYC (AVX-512), 4096×384 by 384×1536, in GFLOPS: 297 with tiles of 4×32, 348 with 5×32,
372 with 6×32. In the same runs NumPy's OpenBLAS reached 223 to 239. ``sgemm_tiled``, whose tiles are made for GPUs,
reaches 40. With a test around each store, or with the bias added at the end, LLVM does not vectorise the loops, and
tiles of all three sizes reach only 16.

On a GPU the result is correct, but the kernel is slow. Use ``matmul`` or ``sgemm_tiled`` there.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxide import (
    ArgumentError,
    DeviceBox,
    DeviceOperation,
    DisjointSlice2,
    Kernel,
    LaunchConfig,
    LocalArray,
    Slice,
    Slice2,
    Slice3,
    f32,
    i64,
    kernel,
    thread,
    unroll,
    value,
)
from oxide import zip as both

from .operand_checks import require_apart
from .operands import Operand, with_boxes

PANEL = 32
"""The number of columns of a panel."""

_ROWS = 6
"""The number of rows of a thread's tile."""

_THREADS = 4
"""The number of threads of a block: few, so that small products have a block for each core."""


def pack(b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns a copy of the matrix ``b``, k×n, in the layout that ``matmul_packed`` reads: an array of shape (ceil(n /
    32), k, 32).

    Panel p has the 32 columns from number 32·p on. The last panel is filled up with zeros. Raises ``ArgumentError`` for
    another dtype than float32, and ``ValueError`` unless ``b`` has two axes.
    """
    if b.dtype != np.float32:
        raise ArgumentError(f"pack takes a matrix of float32, not {b.dtype}")
    if b.ndim != 2:
        raise ValueError(f"pack takes a matrix of two axes, not an array of shape {b.shape}")
    k, n = b.shape
    panels = -(-n // PANEL)
    padded = np.zeros((k, panels * PANEL), np.float32)
    padded[:, :n] = b
    return np.ascontiguousarray(padded.reshape(k, panels, PANEL).transpose(1, 0, 2))


def matmul_packed(a: Operand, b: Operand, c: Operand, *, bias: Operand | None = None) -> DeviceOperation[Any]:
    """Computes ``c = a @ b + bias``, float32. ``a`` is m×k, ``c`` is m×n, and ``b`` is a k×n matrix in the layout that
    ``pack`` returns.

    The operands are boxes, or operations that yield them. ``bias`` has n elements. Yields ``c``. Raises ``ValueError``
    for shapes that do not match, ``ArgumentError`` for another dtype, for a view that is not contiguous, and if ``c``
    shares memory with an operand.
    """

    def product(a: DeviceBox, b: DeviceBox, c: DeviceBox, *more: DeviceBox) -> DeviceOperation[Any]:
        for name, box in (("a", a), ("b", b), ("c", c), *zip(("bias",), more, strict=False)):
            if box.dtype != np.float32 or not box.is_contiguous:
                form = "" if box.is_contiguous else ", a view that is not contiguous"
                raise ArgumentError(f"matmul_packed: {name} is of {box.dtype}{form}; give a contiguous box of float32")
        if len(a.shape) != 2 or len(c.shape) != 2 or c.shape[0] != a.shape[0]:
            raise ValueError(f"matmul_packed: a has shape {a.shape} and c {c.shape}; they are m×k and m×n")
        (m, k), n = a.shape, c.shape[1]
        panels = -(-n // PANEL)
        if b.shape != (panels, k, PANEL):
            raise ValueError(
                f"matmul_packed: b has shape {b.shape}; for a of {a.shape} and c of {c.shape} it is "
                f"{(panels, k, PANEL)}, as pack makes it"
            )
        if more and more[0].shape != (n,):
            raise ValueError(f"matmul_packed: the bias has shape {more[0].shape}; for c of {c.shape} it is {(n,)}")
        require_apart("matmul_packed", c, None, a=a, b=b, **dict(zip(("bias",), more, strict=False)))
        launches: list[DeviceOperation[Any]] = [value(None)]
        for first, count, ragged in ((0, n // PANEL, False), (n // PANEL, int(n % PANEL > 0), True)):
            tiles = -(-m // _ROWS) * count
            if tiles:
                launch = _kernel(bool(more), ragged)[LaunchConfig(-(-tiles // _THREADS), _THREADS)]
                launches.append(launch(first, count, a, b, more[0] if more else a.reshape(m * k), c))
        return both(*launches).map(lambda _: c)

    return with_boxes(product, a, b, c, *(() if bias is None else (bias,)))


@functools.cache
def _kernel(has_bias: bool, ragged: bool) -> Kernel:
    """Returns the kernel for ``count`` panels from ``first_panel`` on. A ``ragged`` kernel is for a last panel of fewer
    than 32 columns. It tests each column, which keeps LLVM from vectorising the loops."""

    @kernel(unchecked=True, partial=True)  # the whole panels and the last one are two launches
    def matmul_packed(
        first_panel: i64, count: i64, a: Slice2[f32], b: Slice3[f32], bias: Slice[f32], c: DisjointSlice2[f32]
    ) -> None:
        tile = thread.index_1d().get()
        m, n, k = c.shape[0], c.shape[1], a.shape[1]
        row, panel = tile // count * _ROWS, first_panel + tile % count
        if row >= m:
            return
        first = panel * PANEL
        total = LocalArray((_ROWS, PANEL), f32)
        # The sums begin with the bias. If it were added at the end, LLVM would not vectorise the loops.
        for i in unroll(range(_ROWS)):
            for j in unroll(range(PANEL)):
                if has_bias:
                    total[i, j] = bias[min(first + j, n - 1) if ragged else first + j]
                else:
                    total[i, j] = 0.0
        for p in range(k):
            for i in unroll(range(_ROWS)):
                x = a.unchecked[min(row + i, m - 1), p]
                for j in unroll(range(PANEL)):
                    total[i, j] += x * b.unchecked[panel, p, j]
        # For a row past the end, the thread has computed the last row again, and stores the same numbers in the last
        # row again.
        for i in unroll(range(_ROWS)):
            for j in unroll(range(PANEL)):
                if not ragged or first + j < n:
                    c.scatter[min(row + i, m - 1), first + j] = total[i, j]

    return matmul_packed
