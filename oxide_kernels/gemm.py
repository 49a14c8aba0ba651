"""``sgemm_tiled``: an optimised f32 matrix product for matrices of every size.

A block computes a tile of ``c``. It walks along ``k``, sixteen columns of ``a`` and sixteen rows of ``b`` at a time.
While it multiplies one step's columns and rows from shared memory, it loads the next step's columns and rows from
global memory into registers. It then stores these registers to the other half of a double buffer, so there is one
barrier a step.

A thread keeps its 8×8 elements of the tile in registers. For each of the sixteen columns it reads 8 numbers of ``a``
and 8 of ``b``, as four vectors, for 64 multiply-adds. (In small tiles a thread has 8×4 elements.) Both the 8 rows and
the 8 columns of a thread are two separate groups of four. So the lanes of a warp, 4 rows by 8 columns of such groups,
read neighbouring vectors, without bank conflicts in shared memory. For the same reason the tile of ``a`` is stored
transposed, with its rows padded by four elements.

The loops contain no checks. Indices of shared memory are remainders, which the compiler proves to be in bounds. Global
memory is read unchecked: rows and columns are clamped or tested, and the launch has checked the matrices' sizes. The
elements of ``c`` that a thread writes follow from its index, and no two threads write the same element.

The scheme is CUTLASS's for single precision. Measured on one H100, float32, TFLOPS:

- n = 4096: 44.8 (with steps of 8: 40.7); cuBLAS 51.2
- n = 1000, which has too few tiles of 128×128 for the device: 19.1 with tiles of 128×128, 27.2 with 64×64, 28.7 with
  32×64; cuBLAS 38.7
"""

from __future__ import annotations

import functools
from typing import Any

from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    Kernel,
    LaunchConfig,
    LocalArray,
    SharedArray,
    Slice,
    bool_,
    device,
    f32,
    i64,
    kernel,
    thread,
    u32,
    unroll,
)

from .operand_checks import require_apart, require_integers
from .operands import Operand, with_boxes

STEP = 16
"""The number of columns of ``a`` and rows of ``b`` that are multiplied between two barriers."""


def sgemm_tiled(
    m: int, n: int, k: int, alpha: float, a: Operand, b: Operand, beta: float, c: Operand
) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``c = alpha * a @ b + beta * c``, float32: ``a`` is m×k, ``b`` k×n, ``c`` m×n, all row-major.

    The matrices are boxes, or operations that yield them. The operation yields the eight arguments. With a ``beta`` of
    0, ``c`` is not read and may be uninitialised. The kernel is fastest if k and n are multiples of four. Raises
    ``LaunchError`` for a matrix that is too small, and ``ArgumentError`` for a matrix of another dtype or if ``c``
    shares memory with ``a`` or ``b``.
    """
    require_integers("sgemm_tiled", m=m, n=n, k=k)

    def product(a: DeviceBox, b: DeviceBox, c: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        require_apart("sgemm_tiled", c, a=a, b=b)
        vectors = k % 4 == 0 and n % 4 == 0 and all(matrix.ptr % 16 == 0 for matrix in (a, b, c))
        large = -(-m // 128) * -(-n // 128) >= _ENOUGH_TILES
        tile_m, tile_n, threads = (128, 128, 256) if large else (32, 64, 64)
        across, down = max(1, -(-n // tile_n)), max(1, -(-m // tile_m))
        swapped = down > _MOST_BLOCKS
        config = LaunchConfig((down, across) if swapped else (across, down), threads)
        size = i64 if max(m, n, k) > 0xFFFFFFFF else u32
        return kernel_of(large, vectors, swapped, size)[config](m, n, k, alpha, a, b, beta, c)

    return with_boxes(product, a, b, c)


_ENOUGH_TILES = 200
"""The least number of 128×128 tiles for which such tiles are used; for fewer, smaller tiles are used. A large GPU
computes two tiles at once in each of its more than 100 multiprocessors."""

_MOST_BLOCKS = 65535
"""The most blocks that a grid may have along y."""


@functools.cache
def kernel_of(large: bool, vectors: bool, swapped: bool = False, size: Any = u32) -> Kernel:
    """Returns the kernel of ``sgemm_tiled`` for large or small tiles. The other arguments are those of ``tiled``."""
    return tiled(128, 128, 8, vectors, swapped, size) if large else tiled(32, 64, 4, vectors, swapped, size)


def tiled(tile_m: int, tile_n: int, thread_n: int, vectors: bool, swapped: bool, size: Any, step: int = STEP) -> Kernel:
    """Returns the kernel for tiles of ``tile_m`` by ``tile_n`` elements. A thread computes 8 by ``thread_n`` of these
    elements.

    With ``vectors`` all rows must begin at a multiple of 16 bytes. The grid's x counts the tiles along a row, and its y
    the tiles along a column. ``swapped`` exchanges x and y, for results with more rows of tiles than a grid may have
    blocks along y. ``size`` is the integer type of ``m``, ``n`` and ``k``. ``step`` is the number of columns of ``a``
    that are multiplied between two barriers.
    """
    warp_m, warp_n = 32, 8 * thread_n
    warps_n = tile_n // warp_n
    threads = tile_m // warp_m * warps_n * 32
    pitch = tile_m + 4
    a_quads, b_quads = tile_m * step // (4 * threads), tile_n * step // (4 * threads)
    quads_of_a, quads_of_b = step // 4, tile_n // 4  # in a row

    @device
    def first_row() -> i64:
        """Returns the first row of the block's tile."""
        return thread.block_idx.x * tile_m if swapped else thread.block_idx.y * tile_m

    @device
    def first_col() -> i64:
        """Returns the first column of the block's tile."""
        return thread.block_idx.y * tile_n if swapped else thread.block_idx.x * tile_n

    @device
    def fetch(
        number: i64,
        m: i64,
        n: i64,
        k: i64,
        a: Slice[f32],
        b: Slice[f32],
        a_next: LocalArray[f32],
        b_next: LocalArray[f32],
    ) -> None:
        """Loads this thread's part of the columns of ``a`` and the rows of ``b`` for step ``number`` from global memory
        into registers. Elements past the end of ``k`` are 0. For a row outside ``a``, the last row is loaded, because
        its products are not stored.
        """
        t = thread.thread_idx.x % threads
        for q in unroll(range(a_quads)):
            quad = t + q * threads
            row = min(first_row() + quad // quads_of_a, m - 1)
            col = number * step + quad % quads_of_a * 4
            a_next[q, 0], a_next[q, 1], a_next[q, 2], a_next[q, 3] = four(a, row, col, k, vectors)
        for q in unroll(range(b_quads)):
            quad = t + q * threads
            row = number * step + quad // quads_of_b
            col = first_col() + quad % quads_of_b * 4
            b_next[q, 0], b_next[q, 1], b_next[q, 2], b_next[q, 3] = four(b, row, col, n if row < k else 0, vectors)

    @device
    def put(
        half: i64,
        a_next: LocalArray[f32],
        b_next: LocalArray[f32],
        a_tile: SharedArray[f32],
        b_tile: SharedArray[f32],
    ) -> None:
        """Stores the registers that ``fetch`` filled in half ``half`` of the double buffer in shared memory."""
        t = thread.thread_idx.x % threads
        for q in unroll(range(a_quads)):
            quad = t + q * threads
            for j in unroll(range(4)):
                a_tile[half, quad % quads_of_a * 4 + j, quad // quads_of_a] = a_next[q, j]
        for q in unroll(range(b_quads)):
            quad = t + q * threads
            place = (half, quad // quads_of_b, quad % quads_of_b * 4)
            b_tile.store4(place, b_next[q, 0], b_next[q, 1], b_next[q, 2], b_next[q, 3])

    @kernel(
        block=threads,
        max_registers=128,
        requires=("len(a) >= m * k", "len(b) >= k * n", "len(c) >= m * n"),
        unchecked=vectors,  # the launch has also checked the vectors' addresses
    )
    def sgemm_tiled(
        m: size,
        n: size,
        k: size,
        alpha: f32,
        a: Slice[f32],
        b: Slice[f32],
        beta: f32,
        c: DisjointSlice[f32],
    ) -> None:
        a_tile = SharedArray((2, step, pitch), f32)
        b_tile = SharedArray((2, step, tile_n), f32)
        a_next = LocalArray((a_quads, 4), f32)
        b_next = LocalArray((b_quads, 4), f32)
        x = LocalArray(8, f32)
        y = LocalArray(thread_n, f32)
        products = LocalArray((8, thread_n), f32)
        if first_row() >= m or first_col() >= n:
            return
        lane, warp_number = thread.thread_idx.x % 32, thread.thread_idx.x % threads // 32
        row = warp_number // warps_n * warp_m + lane // 8 * 4
        col = warp_number % warps_n * warp_n + lane % 8 * 4
        for i in unroll(range(8)):
            for j in unroll(range(thread_n)):
                products[i, j] = f32(0)
        fetch(0, m, n, k, a, b, a_next, b_next)
        put(0, a_next, b_next, a_tile, b_tile)
        thread.sync_threads()
        steps = (i64(k) + (step - 1)) // step
        for number in range(steps):
            half = number & 1
            if number + 1 < steps:
                fetch(number + 1, m, n, k, a, b, a_next, b_next)
            for kk in unroll(range(step)):
                for i in unroll(range(0, 8, 4)):
                    x[i], x[i + 1], x[i + 2], x[i + 3] = a_tile.load4((half, kk, row + i * 4))
                for j in unroll(range(0, thread_n, 4)):
                    y[j], y[j + 1], y[j + 2], y[j + 3] = b_tile.load4((half, kk, col + j * 8))
                for i in unroll(range(8)):
                    for j in unroll(range(thread_n)):
                        products[i, j] += x[i] * y[j]
            if number + 1 < steps:
                put(1 - half, a_next, b_next, a_tile, b_tile)
                thread.sync_threads()
        for i in unroll(range(8)):
            c_row = first_row() + row + i // 4 * 16 + i % 4
            for j in unroll(range(0, thread_n, 4)):
                c_col = first_col() + col + j * 8
                if c_row < m:
                    p0, p1, p2, p3 = products[i, j], products[i, j + 1], products[i, j + 2], products[i, j + 3]
                    store_four(c, c_row * n + c_col, n - c_col, alpha, beta, p0, p1, p2, p3, vectors)

    return sgemm_tiled


@device
def four(a: Slice[f32], row: i64, col: i64, width: i64, vectors: bool_) -> tuple[f32, f32, f32, f32]:
    """Returns four elements of a row of length ``width``, from column ``col`` on, with 0 for elements past the row's
    end."""
    at = row * width + col
    r0, r1, r2, r3 = f32(0), f32(0), f32(0), f32(0)
    if vectors:
        if col < width:
            r0, r1, r2, r3 = a.unchecked.load4(at)
    else:
        if col < width:
            r0 = a.unchecked[at]
        if col + 1 < width:
            r1 = a.unchecked[at + 1]
        if col + 2 < width:
            r2 = a.unchecked[at + 2]
        if col + 3 < width:
            r3 = a.unchecked[at + 3]
    return r0, r1, r2, r3


@device
def store_four(
    c: DisjointSlice[f32],
    at: i64,
    left: i64,
    alpha: f32,
    beta: f32,
    p0: f32,
    p1: f32,
    p2: f32,
    p3: f32,
    vectors: bool_,
) -> None:
    """Stores ``alpha * p + beta * c`` in up to four elements of a row, from index ``at`` of ``c`` on. ``left`` is the
    number of elements from there to the row's end."""
    out = c.unchecked_mut
    if vectors:
        if left > 0:
            if beta == 0:
                out.store4(at, alpha * p0, alpha * p1, alpha * p2, alpha * p3)
            else:
                c0, c1, c2, c3 = out.load4(at)
                out.store4(
                    at, alpha * p0 + beta * c0, alpha * p1 + beta * c1, alpha * p2 + beta * c2, alpha * p3 + beta * c3
                )
    else:
        if left > 0:
            store_one(c, at, alpha * p0, beta)
        if left > 1:
            store_one(c, at + 1, alpha * p1, beta)
        if left > 2:
            store_one(c, at + 2, alpha * p2, beta)
        if left > 3:
            store_one(c, at + 3, alpha * p3, beta)


@device
def store_one(c: DisjointSlice[f32], at: i64, product: f32, beta: f32) -> None:
    """Stores ``product + beta * c`` in element ``at`` of ``c``."""
    if beta == 0:
        c.unchecked_mut[at] = product
    else:
        c.unchecked_mut[at] = product + beta * c.unchecked_mut[at]
