"""The matrix product on Hopper's tensor cores for results with few tiles: several blocks compute one tile.

A product with few tiles and a large k would leave most multiprocessors idle, and each step would wait for the one
before it. So a cluster of blocks computes a tile of 64 rows. Each block multiplies for a range of k. In a block, two
warpgroups alternate in the steps along k, and one thread of the third warpgroup fills the ring of buffers, as in
``wgmma_products``. At the end, each block stores its partial sums of the tile in its shared memory. Each block finishes
some of the tile's rows: it reads the partial sums of these rows from all blocks, adds them, and computes the epilogue.

The scheme is called split-k. Here it takes no device memory and no second kernel.
"""

from __future__ import annotations

import functools
from typing import Any

from oxide import DisjointSlice2, Kernel, SharedArray, Slice, i64, kernel, tensor, thread, u32, unroll, warp

from .mma_products import Form, bias_reader, factor_of, finisher, with_epilogues
from .wgmma_buffers import buffers_of
from .wgmma_plans import Plan
from .wgmma_products import THREADS

_SHARED_BYTES = 216 * 1024
"""The approximate bytes of a block's buffers and sums."""


def kernel_of(form: Form, plan: Plan, stacked: bool = False) -> Kernel:
    """Returns the kernel of a form for a plan in parts. Its parameters are those of ``wgmma_products``' kernel.

    A launch has blocks of ``THREADS`` threads, ``plan.parts`` blocks for each tile. If the plan is swapped, the kernel
    computes the transpose of the product: ``a`` is the transpose of the original b, and ``b`` is the transpose of the
    original a. ``c`` is passed as it is, not transposed.
    """
    return _kernel_of(form, plan.width, plan.parts, plan.swapped, stacked)


@functools.cache
def _kernel_of(form: Form, tile_n: int, parts: int, swapped: bool, stacked: bool) -> Kernel:
    # mypy takes a name as a type if it is declared as Any.
    a_type: Any = form.a
    b_type: Any = form.b
    out_dtype: Any = form.output
    bias_type: Any = form.bias_type
    scale_type: Any = form.scale_type
    wide: Any = form.wide
    accumulator: Any = form.accumulator
    finished, factor, bias_at = finisher(form), factor_of(form), bias_reader(form)
    promotes, a_turned = form.exact, form.a_turned
    tile_m = 64
    # The sums have the layout of c, so that neighbouring threads finish elements that are neighbours in both.
    sum_rows, pitch = (tile_n, tile_m + 8) if swapped else (tile_m, tile_n + 8)
    ring_bytes = _SHARED_BYTES - 2 * sum_rows * pitch * 4
    buffers = buffers_of(form, tile_m, tile_n, ring_bytes, stacked=stacked, even=True)
    array: Any = buffers.array
    depth, halves, stages = buffers.depth, buffers.halves, buffers.stages
    a_count, b_count, a_rows, b_rows = buffers.a_count, buffers.b_count, buffers.a_rows, buffers.b_rows
    fetch, multiply, release = buffers.fetch, buffers.multiply, buffers.release
    own_rows = tile_m // parts
    own_elements, length = own_rows * tile_n, tile_n // 2
    elements_a_thread = -(-own_elements // THREADS)

    @kernel(block=THREADS, unchecked=True, cluster=parts if parts > 1 else None)
    def wgmma_split_product(
        alpha: wide,
        a: array[a_type],
        b: array[b_type],
        a_scale: Slice[scale_type],
        b_scale: Slice[scale_type],
        bias: Slice[bias_type],
        beta: wide,
        m: i64,
        c: DisjointSlice2[out_dtype],
    ) -> None:
        if parts == 1:  # with clusters, an early begin of the next kernel cost a third of the speed
            thread.launch_dependents()
        a_tiles = tensor.SharedTiles(a_count, (a_rows, depth), a_type)
        b_tiles = tensor.SharedTiles(b_count, (b_rows, depth), b_type)
        sums = SharedArray((2, sum_rows, pitch), accumulator)
        full, empty = tensor.Barrier(stages, 1), tensor.Barrier(stages, 1)
        k = a.shape[-2] if a_turned else a.shape[-1] // halves
        high, across = (c.shape[1], m) if swapped else (m, c.shape[1])
        down = u32((high + (tile_m - 1)) // tile_m)
        tiles = down * u32((across + (tile_n - 1)) // tile_n)
        rank = tensor.cluster.rank() if parts > 1 else 0
        number = thread.block_idx.x // parts
        product, number = number // tiles, number % tiles
        row, col = number % down * tile_m, number // down * tile_n
        steps = (k + (depth - 1)) // depth
        each = (u32(steps) + (parts - 1)) // parts
        begin = rank * each
        count = min(each, steps - begin)
        group = thread.thread_idx.x // 128
        thread.wait_dependencies()
        if group == 2:
            if thread.thread_idx.x < 288 and warp.elect():
                stage, turn = 0, 0  # the buffer, and how often the whole ring has been used
                for step in range(count):
                    empty.wait(stage, turn - 1)
                    fetch(stage, (begin + step) * depth, product, row, col, a, b, a_tiles, b_tiles, full)
                    over = stage == stages - 1
                    stage, turn = stage + 1 - over * stages, turn + over
        else:
            total = tensor.Accumulator((16, tile_n), accumulator)
            stage, turn, before = group, 0, group
            if promotes:
                for _ in range(group, count, 2):
                    some = tensor.Accumulator((16, tile_n), accumulator)
                    full.wait(stage, turn)
                    multiply(some, stage, 0, a_tiles, b_tiles)
                    tensor.wait_wgmma(some, 0)
                    release(stage, empty)
                    for i in unroll(range(length)):
                        total[i] += some[i]
                    over = stage >= stages - 2
                    stage, turn = stage + 2 - over * stages, turn + over
            elif count > group:  # otherwise zeros join the sums before the wait, and ptxas serialises wgmma
                for step in range(group, count, 2):
                    full.wait(stage, turn)
                    multiply(total, stage, 0, a_tiles, b_tiles)
                    tensor.wait_wgmma(total, 1)
                    if step > group:
                        release(before, empty)
                    before = stage
                    over = stage >= stages - 2
                    stage, turn = stage + 2 - over * stages, turn + over
                tensor.wait_wgmma(total, 0)
            top = thread.thread_idx.x // 32 % 4 * 16
            for i in unroll(range(length)):
                r, s = top + total.row(i), total.column(i)
                if swapped:
                    sums[group, s, r] = total[i]
                else:
                    sums[group, r, s] = total[i]
        if parts > 1:
            tensor.cluster.sync()
        else:
            thread.sync_threads()
        out, scales = c.unchecked_mut, (a_scale, b_scale)
        by, above = factor(alpha, scales), product * m
        for number in unroll(range(elements_a_thread)):
            element = number * THREADS + thread.thread_idx.x
            if swapped:
                r, s = element // own_rows, rank * own_rows + element % own_rows
                i, j = col + r, row + s
            else:
                r, s = rank * own_rows + element // tile_n, element % tile_n
                i, j = row + r, col + s
            if element < own_elements and i < m and j < c.shape[1]:
                found = accumulator(0)
                for part in unroll(range(parts)):
                    theirs = tensor.cluster.remote(sums, part) if parts > 1 else sums
                    found += theirs[0, r, s] + theirs[1, r, s]
                out[above + i, j] = finished(found, by, scales, bias_at(bias, j), beta, c, above + i, j)
        if parts > 1:
            tensor.cluster.meet()  # no block ends before the others have read its sums

    def other(form: Form) -> Kernel:
        return _kernel_of(form, tile_n, parts, swapped, stacked)

    return with_epilogues(wgmma_split_product, form, other)
