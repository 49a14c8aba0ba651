"""The matrix product on Hopper's tensor cores: copies by TMA, products by ``wgmma``.

There are at most as many blocks as multiprocessors. A block has three warpgroups and computes tiles of the result, one
after another. One thread of the third warpgroup, the producer, keeps a ring of buffers in shared memory filled: each
buffer takes the next 128 bytes along k of ``a`` and ``b``, for one tile after another. A buffer has two barriers: one
is passed when the copies have arrived, the other when the buffer has been read. The other two warpgroups multiply in
one of two ways:

- In turns ("ping-pong"): each warpgroup computes every second tile, 64 rows high. While one warpgroup multiplies, the
  other stores its tile, so the tensor cores do not wait for stores. Two more barriers, one for each warpgroup, hold a
  warpgroup back until the other has begun the last products of its tile. Otherwise the warpgroup would wait at a
  buffer's barrier and could fall more than one phase behind, and a wait sees only whether the phase's number is even.
- Together ("cooperative"): both warpgroups compute one tile of 128 rows, 64 rows each. A buffer then serves twice as
  many multiplications. In an ``exact`` form, the sum of each buffer's products is added to the total outside of the
  tensor cores: one warpgroup multiplies while the other adds.

Tiles are numbered in groups of ``_GROUP_ROWS`` rows, so that tiles that are computed at the same time share rows and
columns, and the L2 cache holds their operands. TMA fills the parts of a tile that are outside of the matrices with
zeros, and the epilogue does not store these parts. Results of 16 bits are written to shared memory, from where TMA
stores them. Their bias is read while the last products of a tile are computed: later reads would delay the end of the
tile, and the end of the last tile is the end of the launch.

The kernels are unchecked: all indices follow from constants and from the matrices' sizes, which the host compares. The
schemes are those of CUTLASS's persistent, warp-specialised kernels.
"""

from __future__ import annotations

import functools
from typing import Any

from oxide import (
    DisjointSlice2,
    Kernel,
    LocalArray,
    Slice,
    bf16,
    bool_,
    device,
    i64,
    kernel,
    tensor,
    thread,
    u32,
    unroll,
    warp,
)

from .mma_products import Form, bias_reader, factor_of, finisher, with_epilogues
from .wgmma_buffers import buffers_of
from .wgmma_plans import Plan

THREADS = 384
_GROUP_ROWS = 2048
"""The number of rows of the result in a group. The tiles of a group are computed column by column."""
_SHARED_BYTES = 224 * 1024
"""The bytes of a block's buffers. The rest of the shared memory is for the barriers."""


@functools.cache
def kernel_of(form: Form, plan: Plan, stacked: bool = False, even_rows: bool = False) -> Kernel:
    """Returns the kernel of a form. It computes ``c = activation(alpha * a @ b + beta * c + bias)``. Its parameters are
    those of ``mma_products``' kernel. The plan must not be in parts.

    A launch has blocks of ``THREADS`` threads, in any number of clusters. ``a`` and ``b`` have two axes or, with
    ``stacked``, three. A single product takes two axes, because tensor maps of two axes are faster. Rows begin at
    multiples of 16 bytes, and the layout of the operands follows the rules of ``buffers_of``. With ``even_rows`` the
    rows of ``c`` also begin at multiples of 16 bytes. If k is 0, nothing is stored.
    """
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
    tile_n, together, blocks = plan.width, plan.together, plan.cluster
    high_of_cluster, tile_m, group_of_rows = plan.high, plan.high // blocks, _GROUP_ROWS // plan.high
    # Together, each warp has two buffers for its rows of the result, so that it need not wait for its previous copy. In
    # turns, beside five buffers of operands there is memory for only one. The other warpgroup multiplies while the warp
    # waits.
    narrow = even_rows and out_dtype.dtype.itemsize == 2 and tile_n >= 64
    spare = 2 if together else 1
    c_count = 8 * spare if narrow else 1
    ring_bytes = _SHARED_BYTES - c_count * 16 * 128
    buffers = buffers_of(form, tile_m, tile_n, ring_bytes, blocks=blocks, stacked=stacked)
    array: Any = buffers.array
    depth, halves, stages = buffers.depth, buffers.halves, buffers.stages
    a_count, b_count, a_rows, b_rows = buffers.a_count, buffers.b_count, buffers.a_rows, buffers.b_rows
    fetch, multiply, release = buffers.fetch, buffers.multiply, buffers.release
    # The bias is read early only if registers are left for it: not with the exact gelu of f32 results, or scales of
    # rows and columns.
    early = form.bias is not None and narrow and form.scales != "each"
    # Each of the two warpgroups has half of every tile, or every second tile.
    turns, readers = (1, 2) if together else (2, 1)
    pairs = tile_n // 4

    @device
    def place_of(number: u32, tiles: u32, down: u32, across: u32) -> tuple[i64, i64, i64]:
        """Returns the product to which the tiles with number ``number`` of a cluster belong, and the row and the column
        at which they begin. Computes in 32 bits, because a division of 64 bits takes as long as a step."""
        product = number // tiles if stacked else 0
        number = number - product * tiles
        group = number // (group_of_rows * across)
        within, above = number - group * (group_of_rows * across), group * group_of_rows
        rows = max(min(down - above, group_of_rows), 1)
        column = within // rows
        return product, i64(above + within - column * rows) * high_of_cluster, i64(column) * tile_n

    @device
    def read_biases(biases: Any, bias: Any, total: Any, col: i64, whole: bool_) -> None:
        """Reads the bias of a thread's columns in a whole tile, two neighbours at a time. The last products of the tile
        hide the time of these reads, and the registers that the loop along k needed are free by then."""
        for i in unroll(range(pairs // 2)):
            if early and whole:
                one, two = bias.load2(col + total.column(4 * i))
                biases[i, 0], biases[i, 1] = one, two
            else:
                biases[i, 0], biases[i, 1] = wide(0), wide(0)

    @device
    def store_tiles(
        total: Any,
        c_tiles: Any,
        tile: i64,
        alpha: wide,
        scales: Any,
        bias: Any,
        biases: Any,
        beta: wide,
        c: Any,
        top: i64,
        col: i64,
    ) -> None:
        """Stores a warp's 16 rows of a whole tile, 64 columns at a time. The copy engine copies them from shared memory
        while the warp continues. If the warp has two buffers, it uses them alternately, also from one tile to the
        next."""
        number = thread.thread_idx.x // 32 % 8 * spare
        leads = thread.thread_idx.x % 32 == 0
        for part in unroll(range(tile_n // 64)):
            piece, rounded = tensor.Accumulator((16, 64), wide), tensor.Accumulator((16, 64), out_dtype)
            for i in unroll(range(32)):
                row, column = top + total.row(32 * part + i), col + total.column(32 * part + i)
                added = biases[8 * part + i // 4, i % 2] if early else bias_at(bias, column)
                one = total[32 * part + i]
                piece[i] = finished(one, alpha, scales, added, beta, c, row, column)
            tensor.convert(rounded, piece)  # one instruction for two elements
            if leads:
                tensor.wait_stores(spare - 1, True)
            warp.sync()
            buffer = number + (tile * (tile_n // 64) + part) % spare
            tensor.stmatrix(c_tiles, (buffer, 0, 0), rounded)
            tensor.fence_stores()
            warp.sync()
            if leads:
                tensor.store_tile(c.unchecked_mut, (top, col + part * 64), c_tiles, buffer)
                tensor.commit_stores()

    @device
    def store_pairs(total: Any, alpha: wide, scales: Any, bias: Any, beta: wide, c: Any, top: i64, col: i64) -> None:
        """Stores a warp's 16 rows of a whole tile, two elements at a time. For elements of 32 bits, four lanes write 32
        neighbouring bytes."""
        out = c.unchecked_mut
        for i in unroll(range(0, 2 * pairs, 2)):
            row, column = top + total.row(i), col + total.column(i)
            out.store2(
                (row, column),
                finished(total[i], alpha, scales, bias_at(bias, column), beta, c, row, column),
                finished(total[i + 1], alpha, scales, bias_at(bias, column + 1), beta, c, row, column + 1),
            )

    @device
    def store_elements(
        total: Any, alpha: wide, scales: Any, bias: Any, beta: wide, c: Any, top: i64, end: i64, col: i64
    ) -> None:
        """Stores a warp's elements of a tile, except for elements outside of the result. ``end`` is the first row of
        ``c`` after the product's rows."""
        out = c.unchecked_mut
        for i in unroll(range(2 * pairs)):
            row, column = top + total.row(i), col + total.column(i)
            if row < end and column < c.shape[1]:
                added = bias_at(bias, column)
                out[row, column] = finished(total[i], alpha, scales, added, beta, c, row, column)

    @kernel(block=THREADS, unchecked=True, cluster=blocks if blocks > 1 else None)
    def wgmma_product(
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
        if blocks == 1:  # with clusters, an early begin of the next kernel cost a third of the speed
            thread.launch_dependents()
        a_tiles = tensor.SharedTiles(a_count, (a_rows, depth), a_type)
        b_tiles = tensor.SharedTiles(b_count, (b_rows, depth), b_type)
        c_tiles = tensor.SharedTiles(c_count, (16, 64), out_dtype if narrow else bf16)
        full, empty = tensor.Barrier(stages, 1), tensor.Barrier(stages, readers * blocks)
        order = tensor.Barrier(2, 1)
        k = a.shape[-2] if a_turned else a.shape[-1] // halves
        down, across = (m + (high_of_cluster - 1)) // high_of_cluster, (c.shape[1] + (tile_n - 1)) // tile_n
        tiles = down * across
        numbers = tiles * (c.shape[0] // m)
        steps = (k + (depth - 1)) // depth
        group = thread.thread_idx.x // 128
        # The loops over tiles use while, because a range with a step would take a division.
        cluster, clusters, lower = thread.block_idx.x // blocks, thread.grid_dim.x // blocks, 0
        if blocks > 1:
            lower = tensor.cluster.rank() * tile_m
            tensor.cluster.meet()  # now the other blocks have made their barriers
        if group == 2:
            tensor.decrease_registers(40)
            if thread.thread_idx.x < 288 and warp.elect():
                product, row, col = place_of(cluster, u32(tiles), u32(down), across)
                thread.wait_dependencies()
                stage, turn = 0, 0  # the buffer, and how often the whole ring has been used
                number = cluster
                while number < numbers:
                    for step in range(steps):
                        empty.wait(stage, turn - 1)
                        fetch(stage, step * depth, product, row + lower, col, a, b, a_tiles, b_tiles, full)
                        over = stage == stages - 1
                        stage, turn = stage + 1 - over * stages, turn + over
                    number += clusters
                    product, row, col = place_of(number, u32(tiles), u32(down), across)
            else:
                thread.wait_dependencies()
        else:
            tensor.increase_registers(232)
            thread.wait_dependencies()
            leads = thread.thread_idx.x % 128 == 0
            first = 0 if together else group
            half = group if together else 0
            before, tile, used = 0, 0, steps * first  # used: the number of buffers that were used before this tile
            number = cluster + first * clusters
            while number < numbers and steps > 0:  # steps > 0: spares code that clears the sums for 0 steps
                product, row, col = place_of(number, u32(tiles), u32(down), across)
                above, row = product * m, row + lower
                stage, turn = used % stages, used // stages
                total = tensor.Accumulator((16, tile_n), accumulator)
                biases = LocalArray((pairs // 2, 2), wide)
                whole = col + tile_n <= c.shape[1] and (not early or bias.is_aligned(2))
                if not together:
                    order.wait(group, tile + group - 1)
                if promotes:
                    for _ in range(steps):
                        some = tensor.Accumulator((16, tile_n), accumulator)
                        full.wait(stage, turn)
                        multiply(some, stage, half, a_tiles, b_tiles)
                        tensor.wait_wgmma(some, 0)
                        release(stage, empty)
                        for i in unroll(range(2 * pairs)):
                            total[i] += some[i]
                        over = stage == stages - 1
                        stage, turn = stage + 1 - over * stages, turn + over
                    if leads and not together:
                        order.arrive(1 - group)
                    read_biases(biases, bias, total, col, whole)
                else:
                    for step in range(steps):
                        full.wait(stage, turn)
                        multiply(total, stage, half, a_tiles, b_tiles)
                        tensor.wait_wgmma(total, 1)
                        if step > 0:
                            release(before, empty)
                        before = stage
                        over = stage == stages - 1
                        stage, turn = stage + 1 - over * stages, turn + over
                    if leads and not together:
                        order.arrive(1 - group)
                    read_biases(biases, bias, total, col, whole)
                    tensor.wait_wgmma(total, 0)
                    release(before, empty)
                number, tile, used = number + turns * clusters, tile + 1, used + turns * steps
                top = above + row + half * 64 + thread.thread_idx.x // 32 % 4 * 16
                inside = row + tile_m <= m and whole
                scales = a_scale, b_scale
                by = factor(alpha, scales)
                if narrow:
                    if inside:
                        store_tiles(total, c_tiles, tile, by, scales, bias, biases, beta, c, top, col)
                    else:
                        store_elements(total, by, scales, bias, beta, c, top, above + m, col)
                elif inside and c.is_aligned(2):
                    store_pairs(total, by, scales, bias, beta, c, top, col)
                else:
                    store_elements(total, by, scales, bias, beta, c, top, above + m, col)
            if narrow:
                tensor.wait_stores(0, True)
        if blocks > 1:
            tensor.cluster.meet()  # no block ends before the others have arrived at its barriers

    return with_epilogues(wgmma_product, form, lambda other: kernel_of(other, plan, stacked, even_rows))
