"""The matrix product on Hopper's tensor cores: copies by TMA, products by ``wgmma``.

A block has three warpgroups and computes tiles of 128 by ``tile_n`` elements, one after another: there are at most as
many blocks as multiprocessors. One thread of the third warpgroup, the producer, keeps a ring of buffers in shared
memory filled with the next 128 bytes of the rows of ``a`` and ``b``, also with those of the next tile while the others
store this one. Each of the other two warpgroups multiplies 64 of the tile's rows. A buffer has two barriers: one is
passed when its copies have arrived, the other when both warpgroups have read it.

Tiles that are computed at the same time share rows and columns: they are numbered in groups of ``GROUP`` rows of tiles,
so that the L2 cache holds their operands. TMA fills with zeros what a tile has outside of the matrices, and the end of
the computation leaves it out. Results of 16 bits go through shared memory to whole lines of 128 bytes.

The indices follow from constants and from the matrices' sizes, which the host compares; so the kernels are unchecked.
The scheme is that of CUTLASS's persistent, warp-specialised kernels. Measured on one H100 beside cuBLAS, bf16, as a
ratio: 0.95 at n = 2048, 0.99 at 4096, 1.01 at 8192. Storing each pair of elements from the registers instead of whole
lines: 0.74, 0.88, 0.96. Groups of 8 rows of tiles instead of 16: 0.95, 0.97, 1.01. A 32×4096 by 4096×4096 product: 0.74
in four parts of k and as its transpose, 0.29 with tiles of 128 rows. f32 by three products, n = 4096: 116 TFLOPS, and
110 with tiles of 192 columns, whose sums do not all fit the registers.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

from oxide import (
    DisjointSlice2,
    Kernel,
    SharedArray,
    Slice,
    Slice3,
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

from .mma_products import Form, factor_of, finisher

TILE_M = 128
THREADS = 384
GROUP = 16
"""The number of rows of tiles that are computed together."""

WIDTHS = (256, 192, 128, 64, 32)
"""The widths of tiles that ``kernel_of`` takes."""

_ROW_BYTES = 128
_PANEL = 64
_STAGES = {256: 4, 192: 4, 128: 6, 64: 8, 32: 9}
_SPLIT_STAGES = {128: 3, 64: 4, 32: 4}
"""The buffers of operands that are split in two."""
_PART = {256: 64, 192: 64, 128: 64, 64: 64, 32: 32}
"""The columns of the result that go through shared memory at once."""


def depth_of(form: Form) -> int:
    """Returns the products that a buffer holds for each element of a tile."""
    return _ROW_BYTES // int(form.a.dtype.itemsize)


def widths_of(form: Form) -> tuple[int, ...]:
    """Returns the widths of tiles of a form. Sums that are made apart from the instructions' take registers too: with
    wider tiles there would be too few."""
    return tuple(_SPLIT_STAGES) if form.exact and form.a is f32 else WIDTHS[1:] if form.exact else WIDTHS


def tiles_of(products: int, m: int, n: int, width: int) -> int:
    """Returns the number of tiles of so many m×n results."""
    return products * -(-m // TILE_M) * -(-n // width)


class Plan(NamedTuple):
    """The tiles of a product, and the order in which they are computed."""

    width: int
    """The width of tiles."""
    parts: int = 1
    """The parts of k, whose sums another kernel adds."""
    swapped: bool = False
    """True if the transpose is computed, so that the columns of the result are the rows of a tile."""

    @property
    def whole(self) -> bool:
        """True if a tile's sums are the result's."""
        return self.parts == 1 and not self.swapped


def plan_of(form: Form, products: int, m: int, n: int, k: int, multiprocessors: int) -> Plan:
    """Returns the plan with which products take least time.

    A step of 128 bytes of each row takes a time in proportion to the width plus 96, as narrow tiles wait for their
    copies: 457 TFLOPS with 128 columns and 582 with 256. The end of a tile takes as long as about six steps. A unit is
    2.2 ns. The sums of parts take 1400 units to launch, and their bytes through the L2 cache."""
    steps = -(-k // depth_of(form))

    def cost(plan: Plan) -> float:
        high, wide = (n, m) if plan.swapped else (m, n)
        tiles = plan.parts * tiles_of(products, high, wide, plan.width)
        computed = -(-tiles // multiprocessors) * (-(-steps // plan.parts) * (plan.width + 96) + 6 * plan.width)
        return computed + (0 if plan.whole else 1400 + plan.parts * m * n * 8 / 6700)

    plans = [Plan(width) for width in widths_of(form)]
    if products == 1 and form.accumulator is f32:
        parts = (each for each in (1, 2, 4, 8, 16) if each <= steps)
        plans += itertools.starmap(Plan, itertools.product(widths_of(form), parts, (False, True)))
    return min(plans, key=cost)


@functools.cache
def kernel_of(form: Form, tile_n: int, in_parts: bool = False, swapped: bool = False) -> Kernel:
    """Returns the kernel of a form, for ``activation(alpha * a @ b + beta * c + bias)``, with ``mma_products``'
    parameters.

    It runs blocks of ``THREADS`` threads, any number of them. The rows of ``a`` and ``b`` begin at multiples of 16
    bytes. Operands of 8 or 32 bits are in the order of their products: ``a`` as it is and ``b`` turned. An ``exact``
    form of f32 takes operands of ``layout.split``.

    With ``in_parts`` there is one product, and the matrices of ``c`` are the sums of as many parts of k. With
    ``swapped`` the operands and ``c`` are those of the transpose: ``c`` is then stored by columns.
    """
    # mypy takes a name as a type if it is declared as Any.
    a_type: Any = form.a
    b_type: Any = form.b
    out_dtype: Any = form.output
    bias_type: Any = form.bias_type
    scale_type: Any = form.scale_type
    wide: Any = form.wide
    accumulator: Any = form.accumulator
    finished, factor = finisher(form), factor_of(form)
    promotes, splits = form.exact, form.exact and a_type is f32
    rounds = a_type is f32 and not splits
    depth, parts_of_k = depth_of(form), 2 if splits else 1
    a_turned, b_turned = form.a_turned, form.b_turned
    b_by_rows = not b_turned
    stages, part = (_SPLIT_STAGES if splits else _STAGES)[tile_n], _PART[tile_n]
    # A tile with rows of products is made of panels of 64 elements.
    a_panels, a_rows = (TILE_M // _PANEL, depth) if a_turned else (1, TILE_M)
    b_panels, b_rows = (1, tile_n) if b_turned else (-(-tile_n // _PANEL), depth)
    a_each, b_each = a_panels * parts_of_k, b_panels * parts_of_k
    a_count, b_count = stages * a_each, stages * b_each
    stage_bytes = (a_each * a_rows + b_each * b_rows) * _ROW_BYTES
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
        stage: i64, first: i64, product: i64, row: i64, col: i64, a: Any, b: Any, a_tiles: Any, b_tiles: Any, full: Any
    ) -> None:
        """Begins the copies of a buffer's columns of a and rows of b, from ``first`` on."""
        full.expect(stage, stage_bytes)
        of_a, of_b = min(product, a.shape[0] - 1), min(product, b.shape[0] - 1)
        if splits:
            for half in unroll(range(2)):
                at = first + half * (a.shape[2] // 2)
                tensor.load_tile(a_tiles, 2 * stage + half, a, (of_a, row, at), full, stage)
                tensor.load_tile(b_tiles, 2 * stage + half, b, (of_b, col, at), full, stage)
            return
        if a_turned:
            for panel in unroll(range(a_panels)):
                at = (of_a, first, row + panel * _PANEL)
                tensor.load_tile(a_tiles, stage * a_panels + panel, a, at, full, stage)
        else:
            tensor.load_tile(a_tiles, stage, a, (of_a, row, first), full, stage, tf32=rounds)
        if b_turned:
            tensor.load_tile(b_tiles, stage, b, (of_b, col, first), full, stage, tf32=rounds)
        else:
            for panel in unroll(range(b_panels)):
                at = (of_b, first, col + panel * _PANEL)
                tensor.load_tile(b_tiles, stage * b_panels + panel, b, at, full, stage)

    @device
    def multiply(total: Any, stage: i64, group: i64, a_tiles: Any, b_tiles: Any) -> None:
        """Begins a warpgroup's products of one buffer. The sums of a form that promotes begin with them."""
        if splits:  # the product of the small parts is below f32's precision
            tensor.wgmma(total, a_tiles, (2 * stage + 1, group * 64), b_tiles, 2 * stage, add=False)
            tensor.wgmma(total, a_tiles, (2 * stage, group * 64), b_tiles, 2 * stage + 1)
            tensor.wgmma(total, a_tiles, (2 * stage, group * 64), b_tiles, 2 * stage)
        elif promotes:
            tensor.wgmma(total, a_tiles, (stage, group * 64), b_tiles, stage, add=False)
        elif a_turned:
            tensor.wgmma(total, a_tiles, (stage * a_panels + group, 0), b_tiles, stage * b_panels, True, b_by_rows)
        else:
            tensor.wgmma(total, a_tiles, (stage, group * 64), b_tiles, stage * b_panels, False, b_by_rows)

    @device
    def store_lines(total: Any, lines: Any, alpha: wide, scales: Any, bias: Any, c: Any, top: i64, col: i64) -> None:
        """Stores a warp's 16 rows of a whole tile: through shared memory, in lines."""
        out = c.unchecked_mut
        lane = i64(thread.thread_idx.x % 32)
        own = i64(thread.thread_idx.x // 32 % 8) * 16
        for number in unroll(range(parts)):
            piece = tensor.Accumulator((16, part), out_dtype)
            for i in unroll(range(2 * part_pairs)):
                column = col + total.column(2 * number * part_pairs + i)
                row = top + total.row(2 * number * part_pairs + i)
                piece[i] = out_dtype(
                    finished(total[2 * number * part_pairs + i], alpha, scales, bias, wide(0), c, row, column)
                )
            tensor.stmatrix(lines, (own, 0), piece)
            warp.sync()
            for i in unroll(range(reads)):
                r, s = rows_at_once * i + lane // lanes_a_row, lane % lanes_a_row * 4
                x, y, z, w = lines.load4((own + r, s))
                out.store4((top + r, col + number * part + s), x, y, z, w)
            warp.sync()

    @device
    def store_pairs(total: Any, alpha: wide, scales: Any, bias: Any, beta: wide, c: Any, top: i64, col: i64) -> None:
        """Stores a warp's 16 rows of a whole tile, two elements of 32 bits at a time: four lanes write 32 bytes."""
        out = c.unchecked_mut
        for i in unroll(range(0, 2 * pairs, 2)):
            row, column = top + total.row(i), col + total.column(i)
            out.store2(
                (row, column),
                out_dtype(finished(total[i], alpha, scales, bias, beta, c, row, column)),
                out_dtype(finished(total[i + 1], alpha, scales, bias, beta, c, row, column + 1)),
            )

    @device
    def store_columns(total: Any, c: Any, top: i64, high: i64, col: i64, above: i64, wide: i64) -> None:
        """Stores a warp's sums as a part of the transpose. Eight lanes write 32 bytes of a row of ``c``."""
        out = c.unchecked_mut
        for i in unroll(range(2 * pairs)):
            row, column = top + total.row(i), col + total.column(i)
            if row < high and column < wide:
                out[above + column, row] = total[i]

    @device
    def store_elements(
        total: Any, alpha: wide, scales: Any, bias: Any, beta: wide, c: Any, top: i64, end: i64, col: i64
    ) -> None:
        """Stores those of a warp's elements that are inside a result with the rows before ``end``."""
        out = c.unchecked_mut
        for i in unroll(range(2 * pairs)):
            row, column = top + total.row(i), col + total.column(i)
            if row < end and column < c.shape[1]:
                out[row, column] = out_dtype(finished(total[i], alpha, scales, bias, beta, c, row, column))

    @kernel(block=THREADS, unchecked=True)
    def wgmma_product(
        alpha: wide,
        a: Slice3[a_type],
        b: Slice3[b_type],
        a_scale: Slice[scale_type],
        b_scale: Slice[scale_type],
        bias: Slice[bias_type],
        beta: wide,
        m: i64,
        c: DisjointSlice2[out_dtype],
    ) -> None:
        a_tiles = tensor.SharedTiles(a_count, (a_rows, depth), a_type)
        b_tiles = tensor.SharedTiles(b_count, (b_rows, depth), b_type)
        full = tensor.Barrier(stages, 1)
        empty = tensor.Barrier(stages, 2)
        k = a.shape[1] if a_turned else a.shape[2] // parts_of_k
        high, n = (c.shape[1], m) if swapped else (m, c.shape[1])
        down, across = (high + (TILE_M - 1)) // TILE_M, (n + (tile_n - 1)) // tile_n
        tiles, products = down * across, c.shape[0] // m
        numbers = tiles * products
        steps = (k + (depth - 1)) // depth
        if in_parts:
            steps = i64((u32(steps) + u32(products) - u32(1)) // u32(products))
        group = thread.thread_idx.x // 128
        stage, turn = 0, 0  # the buffer, and how often all have been used
        if group == 2:
            tensor.decrease_registers(40)
            if thread.thread_idx.x == 256:
                for number in range(thread.block_idx.x, numbers, thread.grid_dim.x):
                    product = i64(u32(number) // u32(tiles))
                    row, col = tile_at(u32(number) % u32(tiles), u32(down), u32(across))
                    begin = product * steps if in_parts else 0
                    for step in range(steps):
                        empty.wait(stage, turn - 1)
                        fetch(stage, (begin + step) * depth, product, row, col, a, b, a_tiles, b_tiles, full)
                        over = i64(stage == stages - 1)
                        stage, turn = stage + 1 - over * stages, turn + over
        else:
            tensor.increase_registers(232)
            leads = thread.thread_idx.x % 128 == 0
            before = 0
            for number in range(thread.block_idx.x, numbers, thread.grid_dim.x):
                above = i64(u32(number) // u32(tiles)) * m
                row, col = tile_at(u32(number) % u32(tiles), u32(down), u32(across))
                total = tensor.Accumulator((16, tile_n), accumulator)
                if promotes:
                    for _ in range(steps):
                        some = tensor.Accumulator((16, tile_n), accumulator)
                        full.wait(stage, turn)
                        multiply(some, stage, group % 2, a_tiles, b_tiles)
                        tensor.wait_wgmma(some, 0)
                        if leads:
                            empty.arrive(stage)
                        for i in unroll(range(2 * pairs)):
                            total[i] += some[i]
                        over = i64(stage == stages - 1)
                        stage, turn = stage + 1 - over * stages, turn + over
                elif steps > 0:  # or zeros would join the sums before the wait, and ptxas serialise wgmma
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
                top = above + row + i64(thread.thread_idx.x // 32 % 8) * 16
                inside = row + TILE_M <= m and col + tile_n <= n
                scales = a_scale, b_scale
                by = factor(alpha, scales)
                if swapped:
                    store_columns(total, c, top - above, high, col, above, n)
                elif narrow:
                    lines = SharedArray((TILE_M, pitch), out_dtype)
                    if inside and beta == wide(0) and c.is_aligned(4):
                        store_lines(total, lines, by, scales, bias, c, top, col)
                    else:
                        store_elements(total, by, scales, bias, beta, c, top, above + m, col)
                elif inside and c.is_aligned(2):
                    store_pairs(total, by, scales, bias, beta, c, top, col)
                else:
                    store_elements(total, by, scales, bias, beta, c, top, above + m, col)

    return wgmma_product
