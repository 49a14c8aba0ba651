"""The matrix product of f16 and bf16 on Hopper's tensor cores: copies by TMA, products by ``wgmma``.

A block has three warpgroups and computes tiles of 128 by ``tile_n`` elements, one after another: there are at most as
many blocks as multiprocessors. One thread of the third warpgroup, the producer, keeps a ring of buffers in shared
memory filled with the next 64 columns of ``a`` and rows of ``b``, also with those of the next tile while the others
store this one. Each of the other two warpgroups multiplies 64 of the tile's rows. A buffer has two barriers: one is
passed when its copies have arrived, the other when both warpgroups have read it.

Tiles that are computed at the same time share rows and columns: they are numbered in groups of ``GROUP`` rows of tiles,
so that the L2 cache holds their operands. TMA fills with zeros what a tile has outside of the matrices, and the end of
the computation leaves it out. Results of 16 bits go through shared memory to whole lines of 128 bytes.

The indices follow from constants and from the matrices' sizes, which the host compares; so the kernels are unchecked.
The scheme is that of CUTLASS's persistent, warp-specialised kernels. Measured on one H100 beside cuBLAS, bf16, as a
ratio: 0.97 at n = 2048, 0.99 at 4096, 1.01 at 8192. Storing each pair of elements from the registers instead of whole
lines: 0.74, 0.88, 0.96. Groups of 8 rows of tiles instead of 16: 0.95, 0.97, 1.01.
"""

from __future__ import annotations

import functools
from typing import Any

from oxide import (
    DisjointSlice2,
    Kernel,
    SharedArray,
    Slice,
    Slice2,
    device,
    f32,
    i64,
    kernel,
    tensor,
    thread,
    u32,
    unroll,
    warp,
)

from .mma_products import Form, finisher

TILE_M = 128
THREADS = 384
GROUP = 16
"""The number of rows of tiles that are computed together."""

WIDTHS = (256, 192, 128, 64, 32)
"""The widths of tiles that ``kernel_of`` takes."""

_DEPTH = 64
_PANEL = 64
_STAGES = {256: 4, 192: 4, 128: 6, 64: 8, 32: 9}
_PART = {256: 64, 192: 64, 128: 64, 64: 64, 32: 32}
"""The columns of the result that go through shared memory at once."""


def width_of(m: int, n: int, k: int, multiprocessors: int) -> int:
    """Returns the width of tiles with which a product takes least time.

    A step of 64 products takes a time in proportion to the width plus 96, as narrow tiles wait for their copies: 457
    TFLOPS with 128 columns and 582 with 256. The end of a tile takes as long as about six steps."""

    def cost(width: int) -> float:
        tiles = -(-m // TILE_M) * -(-n // width)
        steps = -(-k // _DEPTH)
        return -(-tiles // multiprocessors) * (steps * (width + 96) + 6 * width)

    return min(WIDTHS, key=cost)


@functools.cache
def kernel_of(form: Form, tile_n: int) -> Kernel:
    """Returns the kernel of a form with f16 or bf16 operands, for ``activation(alpha * a @ b + beta * c + bias)``.

    Its parameters are alpha, a, b, the bias if the form has one, beta and c. It runs blocks of ``THREADS`` threads, any
    number of them. The rows of ``a`` and ``b`` begin at multiples of 16 bytes.
    """
    # mypy takes a name as a type if it is declared as Any.
    dtype: Any = form.a
    out_dtype: Any = form.output
    bias_type: Any = form.bias
    wide: Any = form.wide
    finished = finisher(form)
    a_turned, b_turned = form.a_turned, form.b_turned
    b_by_rows = not b_turned
    stages, part = _STAGES[tile_n], _PART[tile_n]
    # A tile with rows of products is made of panels of 64 elements.
    a_panels, a_rows = (TILE_M // _PANEL, _DEPTH) if a_turned else (1, TILE_M)
    b_panels, b_rows = (1, tile_n) if b_turned else (-(-tile_n // _PANEL), _DEPTH)
    a_count, b_count = stages * a_panels, stages * b_panels
    stage_bytes = (a_panels * a_rows + b_panels * b_rows) * _DEPTH * 2
    narrow = out_dtype.dtype.itemsize == 2
    pitch, parts, part_pairs, pairs = part + 8, tile_n // part, part // 4, tile_n // 4
    lanes_a_row = part // 4
    rows_at_once = 32 // lanes_a_row
    reads = 16 // rows_at_once

    @device
    def tile_at(number: u32, down: u32, across: u32) -> tuple[i64, i64]:
        """Returns the first row and column of a tile."""
        group = number // (GROUP * across)
        within = number - group * (GROUP * across)
        rows = max(min(down - group * GROUP, u32(GROUP)), u32(1))
        return i64(group * GROUP + within % rows) * TILE_M, i64(within // rows) * tile_n

    @device
    def fetch(
        stage: i64, first: i64, row: i64, col: i64, a: Any, b: Any, a_tiles: Any, b_tiles: Any, full: Any
    ) -> None:
        """Begins the copies of 64 columns of a and rows of b, from ``first`` on."""
        full.expect(stage, stage_bytes)
        if a_turned:
            for panel in unroll(range(a_panels)):
                at = (first, row + panel * _PANEL)
                tensor.load_tile(a_tiles, stage * a_panels + panel, a, at, full, stage)
        else:
            tensor.load_tile(a_tiles, stage, a, (row, first), full, stage)
        if b_turned:
            tensor.load_tile(b_tiles, stage, b, (col, first), full, stage)
        else:
            for panel in unroll(range(b_panels)):
                at = (first, col + panel * _PANEL)
                tensor.load_tile(b_tiles, stage * b_panels + panel, b, at, full, stage)

    @device
    def multiply(total: Any, stage: i64, group: i64, a_tiles: Any, b_tiles: Any) -> None:
        """Begins a warpgroup's products of one buffer."""
        if a_turned:
            tensor.wgmma(total, a_tiles, (stage * a_panels + group, 0), b_tiles, stage * b_panels, True, b_by_rows)
        else:
            tensor.wgmma(total, a_tiles, (stage, group * 64), b_tiles, stage * b_panels, False, b_by_rows)

    @device
    def store_lines(total: Any, lines: Any, alpha: wide, bias: Any, c: Any, top: i64, col: i64) -> None:
        """Stores a warp's 16 rows of a whole tile: through shared memory, in lines."""
        out = c.unchecked_mut
        lane = i64(thread.thread_idx.x % 32)
        own = i64(thread.thread_idx.x // 32 % 8) * 16
        for number in unroll(range(parts)):
            piece = tensor.Accumulator((16, part), out_dtype)
            for i in unroll(range(2 * part_pairs)):
                column = col + total.column(2 * number * part_pairs + i)
                piece[i] = out_dtype(finished(total[2 * number * part_pairs + i], alpha, bias, wide(0), c, top, column))
            tensor.stmatrix(lines, (own, 0), piece)
            warp.sync()
            for i in unroll(range(reads)):
                r, s = rows_at_once * i + lane // lanes_a_row, lane % lanes_a_row * 4
                x, y, z, w = lines.load4((own + r, s))
                out.store4((top + r, col + number * part + s), x, y, z, w)
            warp.sync()

    @device
    def store_elements(total: Any, alpha: wide, bias: Any, beta: wide, c: Any, top: i64, col: i64) -> None:
        """Stores those of a warp's elements that are inside the result."""
        out = c.unchecked_mut
        for i in unroll(range(2 * pairs)):
            row, column = top + total.row(i), col + total.column(i)
            if row < c.shape[0] and column < c.shape[1]:
                out[row, column] = out_dtype(finished(total[i], alpha, bias, beta, c, row, column))

    @device
    def run(alpha: wide, a: Any, b: Any, bias: Any, beta: wide, c: Any) -> None:
        """Computes this block's tiles."""
        a_tiles = tensor.SharedTiles(a_count, (a_rows, 64), dtype)
        b_tiles = tensor.SharedTiles(b_count, (b_rows, 64), dtype)
        full = tensor.Barrier(stages, 1)
        empty = tensor.Barrier(stages, 2)
        m, n = c.shape
        k = a.shape[0] if a_turned else a.shape[1]
        down, across = (m + (TILE_M - 1)) // TILE_M, (n + (tile_n - 1)) // tile_n
        steps = (k + (_DEPTH - 1)) // _DEPTH
        group = thread.thread_idx.x // 128
        stage, turn = 0, 0  # the buffer, and how often all have been used
        if group == 2:
            tensor.decrease_registers(40)
            if thread.thread_idx.x == 256:
                for number in range(thread.block_idx.x, down * across, thread.grid_dim.x):
                    row, col = tile_at(u32(number), u32(down), u32(across))
                    for step in range(steps):
                        empty.wait(stage, turn - 1)
                        fetch(stage, step * _DEPTH, row, col, a, b, a_tiles, b_tiles, full)
                        over = i64(stage == stages - 1)
                        stage, turn = stage + 1 - over * stages, turn + over
        else:
            tensor.increase_registers(232)
            leads = thread.thread_idx.x % 128 == 0
            before = 0
            for number in range(thread.block_idx.x, down * across, thread.grid_dim.x):
                row, col = tile_at(u32(number), u32(down), u32(across))
                total = tensor.Accumulator((16, tile_n), f32)
                if steps > 0:  # without the test, zeros would join the sums before the wait, and ptxas serialise wgmma
                    for step in range(steps):
                        full.wait(stage, turn)
                        multiply(total, stage, group % 2, a_tiles, b_tiles)
                        tensor.wait_wgmma(total, 1)
                        if leads and step > 0:
                            empty.arrive(before)
                        before = stage
                        over = i64(stage == stages - 1)
                        stage, turn = stage + 1 - over * stages, turn + over
                    tensor.wait_wgmma(total, 0)
                    if leads:
                        empty.arrive(before)
                top = row + i64(thread.thread_idx.x // 32 % 8) * 16
                inside = beta == wide(0) and row + TILE_M <= m and col + tile_n <= n
                if narrow:
                    lines = SharedArray((TILE_M, pitch), out_dtype)
                    if inside and c.is_aligned(4):
                        store_lines(total, lines, alpha, bias, c, top, col)
                    else:
                        store_elements(total, alpha, bias, beta, c, top, col)
                else:
                    store_elements(total, alpha, bias, beta, c, top, col)

    if form.bias is not None:

        @kernel(block=THREADS, unchecked=True)
        def wgmma_product(
            alpha: wide,
            a: Slice2[dtype],
            b: Slice2[dtype],
            bias: Slice[bias_type],
            beta: wide,
            c: DisjointSlice2[out_dtype],
        ) -> None:
            run(alpha, a, b, bias, beta, c)

    else:

        @kernel(block=THREADS, unchecked=True)
        def wgmma_product(
            alpha: wide, a: Slice2[dtype], b: Slice2[dtype], beta: wide, c: DisjointSlice2[out_dtype]
        ) -> None:
            run(alpha, a, b, 0, beta, c)

    return wgmma_product
