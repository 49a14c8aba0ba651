"""The matrix product of f16 and bf16 on Hopper's tensor cores: copies by TMA, products by ``wgmma``.

A block has three warpgroups and computes tiles of 128 by ``tile_n`` elements, one after another: there are as many
blocks as multiprocessors. One thread of the third warpgroup, the producer, keeps a ring of buffers in shared memory
filled with the next 64 columns of ``a`` and rows of ``b``, also those of the next tile while the others store this one.
Each of the other two warpgroups multiplies 64 of the tile's rows. A buffer's two barriers say that it is full, by the
bytes of its copies, and that it is empty, by an arrival of each of the two.

Tiles that run at the same time share rows and columns: they are numbered in groups of ``GROUP`` rows of tiles, so that
the L2 cache has what they read. What a tile has outside of the matrices is zeros, by TMA, and is not stored.

The scheme is that of CUTLASS's persistent warp-specialised kernels.
"""

from __future__ import annotations

import functools
from typing import Any

from oxide import DisjointSlice2, Kernel, Slice2, device, f32, i64, kernel, tensor, thread, u32, unroll

TILE_M = 128
DEPTH = 64
GROUP = 8
THREADS = 384


@functools.cache
def product_kernel(
    dtype: Any, out_dtype: Any, tile_n: int = 256, a_transposed: bool = False, b_transposed: bool = True
) -> Kernel:
    """Returns the kernel ``c = a @ b`` for operands of ``dtype``, launched with ``THREADS`` threads a block.

    ``a`` is m×k, or k×m if ``a_transposed``; ``b`` is n×k if ``b_transposed``, else k×n; ``c`` is m×n of ``out_dtype``.
    The rows of ``a`` and ``b`` begin at multiples of 16 bytes, and those of ``c`` at multiples of two elements.
    """
    stages = 4 if tile_n == 256 else 6
    a_panels, b_panels = TILE_M // 64 if a_transposed else 1, 1 if b_transposed else tile_n // 64
    a_rows, b_rows = DEPTH if a_transposed else TILE_M, tile_n if b_transposed else DEPTH
    a_tiles_count, b_tiles_count = stages * a_panels, stages * b_panels
    stage_bytes = (TILE_M + tile_n) * DEPTH * 2
    accumulators = tile_n // 2
    by_rows = not b_transposed
    pairs = accumulators // 2

    @device
    def tile_at(number: u32, tiles_m: u32, tiles_n: u32) -> tuple[i64, i64]:
        """Returns the first row and column of a tile."""
        group = number // (GROUP * tiles_n)
        within = number - group * (GROUP * tiles_n)
        rows = min(tiles_m - group * GROUP, u32(GROUP))
        return i64(group * GROUP + within % rows) * TILE_M, i64(within // rows) * tile_n

    @kernel(block=THREADS, partial=True)
    def warpgroup_gemm(a: Slice2[dtype], b: Slice2[dtype], c: DisjointSlice2[out_dtype]) -> None:
        a_tiles = tensor.SharedTiles(a_tiles_count, (a_rows, 64), dtype)
        b_tiles = tensor.SharedTiles(b_tiles_count, (b_rows, 64), dtype)
        full = tensor.Barrier(stages, 1)
        empty = tensor.Barrier(stages, 2)
        m, n = c.shape
        k = a.shape[0] if a_transposed else a.shape[1]
        tiles_m, tiles_n = (m + TILE_M - 1) // TILE_M, (n + tile_n - 1) // tile_n
        steps = (k + DEPTH - 1) // DEPTH
        group = thread.thread_idx.x // 128
        done = 0
        if group == 2:
            tensor.decrease_registers(40)
            if thread.thread_idx.x == 256:
                for number in range(thread.block_idx.x, tiles_m * tiles_n, thread.grid_dim.x):
                    row, col = tile_at(u32(number), u32(tiles_m), u32(tiles_n))
                    for step in range(steps):
                        stage = done % stages
                        empty.wait(stage, done // stages - 1)
                        full.expect(stage, stage_bytes)
                        if a_transposed:
                            for panel in unroll(range(a_panels)):
                                at = (step * DEPTH, row + panel * 64)
                                tensor.load_tile(a_tiles, stage * a_panels + panel, a, at, full, stage)
                        else:
                            tensor.load_tile(a_tiles, stage, a, (row, step * DEPTH), full, stage)
                        if b_transposed:
                            tensor.load_tile(b_tiles, stage, b, (col, step * DEPTH), full, stage)
                        else:
                            for panel in unroll(range(b_panels)):
                                at = (step * DEPTH, col + panel * 64)
                                tensor.load_tile(b_tiles, stage * b_panels + panel, b, at, full, stage)
                        done += 1
        else:
            tensor.increase_registers(232)
            leads = thread.thread_idx.x % 128 == 0
            out = c.unchecked_mut
            for number in range(thread.block_idx.x, tiles_m * tiles_n, thread.grid_dim.x):
                row, col = tile_at(u32(number), u32(tiles_m), u32(tiles_n))
                total = tensor.Accumulator((16, tile_n), f32)
                for step in range(steps):
                    stage = done % stages
                    full.wait(stage, done // stages)
                    if a_transposed:
                        tensor.wgmma(
                            total, a_tiles, (stage * a_panels + group % 2, 0), b_tiles, stage * b_panels, True, by_rows
                        )
                    else:
                        tensor.wgmma(total, a_tiles, (stage, group % 2 * 64), b_tiles, stage * b_panels, False, by_rows)
                    tensor.wait_wgmma(total, 1)
                    if leads and step > 0:
                        empty.arrive((done - 1) % stages)
                    done += 1
                tensor.wait_wgmma(total, 0)
                if leads and steps > 0:
                    empty.arrive((done - 1) % stages)
                top = row + thread.thread_idx.x // 32 * 16
                if row + TILE_M <= m and col + tile_n <= n and c.is_aligned(2):
                    for pair in unroll(range(pairs)):
                        at = (top + total.row(2 * pair), col + total.column(2 * pair))
                        out.store2(at, out_dtype(total[2 * pair]), out_dtype(total[2 * pair + 1]))
                else:
                    for pair in unroll(range(pairs)):
                        r, s = top + total.row(2 * pair), col + total.column(2 * pair)
                        if r < m and s < n:
                            out[r, s] = out_dtype(total[2 * pair])
                        if r < m and s + 1 < n:
                            out[r, s + 1] = out_dtype(total[2 * pair + 1])

    return warpgroup_gemm
