"""The encoder's kernels in f16, for tensor cores: few of them for each layer, as launches are what a small batch waits
for.

A matrix has a row for each token, as in ``kernels``. Between two kernels a layer's sums are not normalised: whichever
kernel multiplies them next normalises its rows in shared memory first, and the blocks of the first columns store the
normalised rows, which are added again later. Sums of products, norms and softmax are computed in f32.

The indices follow from constants and from sizes that the host compares, so the kernels of products and attention are
unchecked. Attention assumes finite numbers: a NaN of a sequence reaches its neighbours of the same 64 rows.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from oxide import (
    DisjointSlice2,
    Kernel,
    LaunchConfig,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
    bool_,
    device,
    f16,
    f32,
    i32,
    i64,
    kernel,
    tensor,
    thread,
    unroll,
    warp,
)
from oxide_kernels import online_softmax
from oxide_kernels.activations import gelu_of
from oxide_kernels.cooperative import block_sum

from .kernels import HEAD

MOST_WIDTH = 768
"""The widest rows that are normalised in shared memory, next to a tile of weights."""

QUERIES = 64
"""The queries of a block of ``attend``, 16 for each warp, and the keys that it multiplies at a time."""

ATTEND_THREADS = 128
POOL_WARPS = 8

_PER_COPY = 8
"""The elements of an asynchronous copy, 16 bytes, and of the padding of a row in shared memory: it puts the eight rows
of an ``ldmatrix`` into different banks."""
_INNER = 16
"""The products that an instruction adds."""
_STEP = 128
"""The products of a stage of a long row."""
_STAGES = 3
_LANES = 4
"""The threads that normalise a row."""
WARP_ROWS = 16
_ACROSS = 2
"""The warps next to one another in a tile: each computes 16 rows and half of the columns."""


class Tile(NamedTuple):
    """The tile of a product that a block computes."""

    rows: int
    columns: int

    @property
    def threads(self) -> int:
        """Returns the number of threads: four for each row."""
        return self.rows * _LANES


TILES = (Tile(64, 64), Tile(32, 32), Tile(32, 16))
_ENOUGH_BLOCKS = 132
"""The blocks that a large GPU runs at once, one on each multiprocessor."""


def tile_of(rows: int, columns: int) -> Tile:
    """Returns the largest tile of which there are enough to occupy a GPU, otherwise the smallest one."""
    for tile in TILES:
        if -(-rows // tile.rows) * -(-columns // tile.columns) >= _ENOUGH_BLOCKS:
            return tile
    return TILES[-1]


def config_of(tile: Tile, rows: int, columns: int) -> LaunchConfig:
    """Returns the launch of a product with so many rows and columns."""
    return LaunchConfig(max(1, -(-rows // tile.rows) * -(-columns // tile.columns)), tile.threads)


@device
def fetch(array: Any, across: i64, threads: i64, source: Any, first: i64, column: i64, rows: i64) -> None:
    """Begins the copies of ``rows`` rows of a matrix, ``across`` columns wide. What is outside becomes zeros."""
    copies = across // _PER_COPY
    for number in range(i64(thread.thread_idx.x), rows * copies, threads):
        down, right = number // copies, number % copies * _PER_COPY
        tensor.copy_async(array, (down, right), source, (first + down, column + right), _PER_COPY)


@functools.cache
def normalised_product(inputs: int, tile: Tile, with_gelu: bool) -> Kernel:
    """Returns the kernel for ``c = x @ b.T + bias``, or gelu of it, where ``x`` is the layer norm of the rows of ``a``.
    It also writes ``x``. A row of ``a`` has ``inputs`` elements, a multiple of 32 of at most 768."""
    rows, columns = tile
    threads, warp_columns = tile.threads, columns // _ACROSS
    pitch = inputs + _PER_COPY
    each = inputs // _LANES // 4
    group = math.gcd(each, 4)

    @device
    def normalise(a_tile: Any, weights: Any, first: i64, epsilon: f32, stores: bool_, x: Any) -> None:
        """Normalises the rows in shared memory. Four threads share a row, each with every fourth vector of four.
        ``weights`` has a row of factors and a row of summands."""
        row, lane = i64(thread.thread_idx.x) // _LANES, i64(thread.thread_idx.x) % _LANES
        total = f32(0)
        for i in unroll(range(each)):
            p, q, r, s = a_tile.load4((row, 4 * (i * _LANES + lane)))
            total += (f32(p) + f32(q)) + (f32(r) + f32(s))
        total += warp.shuffle_xor(total, 1)
        total += warp.shuffle_xor(total, 2)
        mean = total / f32(inputs)
        squares = f32(0)
        for i in unroll(range(each)):
            p, q, r, s = a_tile.load4((row, 4 * (i * _LANES + lane)))
            dp, dq, dr, ds = f32(p) - mean, f32(q) - mean, f32(r) - mean, f32(s) - mean
            squares += (dp * dp + dq * dq) + (dr * dr + ds * ds)
        squares += warp.shuffle_xor(squares, 1)
        squares += warp.shuffle_xor(squares, 2)
        factor = f32(1) / math.sqrt(squares / f32(inputs) + epsilon)
        inside = stores and first + row < x.shape[0]
        # All of a group is read before any of it is written, so that one read does not wait for another.
        held = LocalArray(4 * group, f16)
        for begin in unroll(range(0, each, group)):
            for i in unroll(range(group)):
                column = 4 * ((begin + i) * _LANES + lane)
                p, q, r, s = a_tile.load4((row, column))
                wp, wq, wr, ws = weights.load4((0, column))
                bp, bq, br, bs = weights.load4((1, column))
                held[4 * i] = f16((f32(p) - mean) * factor * f32(wp) + f32(bp))
                held[4 * i + 1] = f16((f32(q) - mean) * factor * f32(wq) + f32(bq))
                held[4 * i + 2] = f16((f32(r) - mean) * factor * f32(wr) + f32(br))
                held[4 * i + 3] = f16((f32(s) - mean) * factor * f32(ws) + f32(bs))
            for i in unroll(range(group)):
                column = 4 * ((begin + i) * _LANES + lane)
                a_tile.store4((row, column), held[4 * i], held[4 * i + 1], held[4 * i + 2], held[4 * i + 3])
            if inside:
                for i in unroll(range(group)):
                    at = first + row, 4 * ((begin + i) * _LANES + lane)
                    x.unchecked_mut.store4(at, held[4 * i], held[4 * i + 1], held[4 * i + 2], held[4 * i + 3])

    @kernel(block=threads, unchecked=True)
    def multiply_normalised(
        a: Slice2[f16],
        scale: Slice[f16],
        shift: Slice[f16],
        epsilon: f32,
        b: Slice2[f16],
        bias: Slice[f16],
        x: DisjointSlice2[f16],
        c: DisjointSlice2[f16],
    ) -> None:
        a_tile, b_tile = SharedArray((rows, pitch), f16), SharedArray((columns, pitch), f16)
        weights = SharedArray((2, pitch), f16)
        across = (c.shape[1] + (columns - 1)) // columns
        block = i64(thread.block_idx.x)
        first, column = block // across * rows, block % across * columns
        if first >= c.shape[0]:
            return
        fetch(a_tile, inputs, threads, a, first, 0, rows)
        for part in range(i64(thread.thread_idx.x) * _PER_COPY, inputs, threads * _PER_COPY):
            tensor.copy_async(weights, (0, part), scale, part, _PER_COPY)
            tensor.copy_async(weights, (1, part), shift, part, _PER_COPY)
        tensor.commit()
        fetch(b_tile, inputs, threads, b, column, 0, columns)
        tensor.commit()
        number = i64(thread.thread_idx.x // 32)
        own, right = number // _ACROSS * WARP_ROWS, number % _ACROSS * warp_columns
        # Two sums, so that an instruction does not wait for the one before. One begins with the bias, which is read
        # while the copies are on their way.
        total = tensor.Accumulator((WARP_ROWS, warp_columns), f32)
        other = tensor.Accumulator((WARP_ROWS, warp_columns), f32)
        for i in unroll(range(0, len(total), 2)):
            s = column + right + total.column(i)
            if s < c.shape[1]:  # the columns are even, and s too
                one, two = bias.load2(s)
                total[i], total[i + 1] = f32(one), f32(two)
        tensor.wait(1)
        thread.sync_threads()  # all rows of a are there
        normalise(a_tile, weights, first, epsilon, column == 0, x)
        tensor.wait(0)
        thread.sync_threads()  # the rows are normalised, and b is there
        left = tensor.FragmentA((WARP_ROWS, _INNER), f16)
        top = tensor.FragmentB((_INNER, warp_columns), f16)
        for k in unroll(range(0, inputs, 2 * _INNER)):
            tensor.ldmatrix(left, a_tile, (own, k))
            tensor.ldmatrix(top, b_tile, (right, k), transposed=True)
            tensor.mma(total, left, top)
            tensor.ldmatrix(left, a_tile, (own, k + _INNER))
            tensor.ldmatrix(top, b_tile, (right, k + _INNER), transposed=True)
            tensor.mma(other, left, top)
        for i in unroll(range(0, len(total), 2)):
            r, s = first + own + total.row(i), column + right + total.column(i)
            if r < c.shape[0] and s < c.shape[1]:
                one, two = total[i] + other[i], total[i + 1] + other[i + 1]
                if with_gelu:
                    c.unchecked_mut.store2((r, s), f16(gelu_of(one)), f16(gelu_of(two)))
                else:
                    c.unchecked_mut.store2((r, s), f16(one), f16(two))

    return multiply_normalised


@functools.cache
def added_product(tile: Tile) -> Kernel:
    """Returns the kernel for ``c = a @ b.T + bias + x``. A row of ``a`` has a multiple of 8 elements."""
    rows, columns = tile
    threads, warp_columns = tile.threads, columns // _ACROSS
    pitch = _STEP + _PER_COPY

    @device
    def fetch_stage(slot: i64, k: i64, a: Any, b: Any, first: i64, column: i64, a_tiles: Any, b_tiles: Any) -> None:
        """Begins the copies of a stage."""
        for number in unroll(range(rows * _STEP // _PER_COPY // threads)):
            part = i64(thread.thread_idx.x) + number * threads
            down, right = part // (_STEP // _PER_COPY), part % (_STEP // _PER_COPY) * _PER_COPY
            tensor.copy_async(a_tiles, (slot, down, right), a, (first + down, k + right), _PER_COPY)
        for number in unroll(range(columns * _STEP // _PER_COPY // threads)):
            part = i64(thread.thread_idx.x) + number * threads
            down, right = part // (_STEP // _PER_COPY), part % (_STEP // _PER_COPY) * _PER_COPY
            tensor.copy_async(b_tiles, (slot, down, right), b, (column + down, k + right), _PER_COPY)

    @kernel(block=threads, unchecked=True)
    def multiply_and_add(
        a: Slice2[f16], b: Slice2[f16], bias: Slice[f16], x: Slice2[f16], c: DisjointSlice2[f16]
    ) -> None:
        a_tiles = SharedArray((_STAGES, rows, pitch), f16)
        b_tiles = SharedArray((_STAGES, columns, pitch), f16)
        across = (c.shape[1] + (columns - 1)) // columns
        block = i64(thread.block_idx.x)
        first, column = block // across * rows, block % across * columns
        if first >= c.shape[0]:
            return
        number = i64(thread.thread_idx.x // 32)
        own, right = number // _ACROSS * WARP_ROWS, number % _ACROSS * warp_columns
        total = tensor.Accumulator((WARP_ROWS, warp_columns), f32)
        other = tensor.Accumulator((WARP_ROWS, warp_columns), f32)
        left = tensor.FragmentA((WARP_ROWS, _INNER), f16)
        top = tensor.FragmentB((_INNER, warp_columns), f16)
        for stage in unroll(range(_STAGES - 1)):
            fetch_stage(stage, stage * _STEP, a, b, first, column, a_tiles, b_tiles)
            tensor.commit()
        # The sums begin with what is added to them, which is read while the copies are on their way.
        for i in unroll(range(0, len(total), 2)):
            r, s = first + own + total.row(i), column + right + total.column(i)
            if r < c.shape[0] and s < c.shape[1]:  # the columns are even, and s too
                one, two = bias.load2(s)
                before, after = x.load2((r, s))
                total[i], total[i + 1] = f32(one) + f32(before), f32(two) + f32(after)
        slot, free = 0, _STAGES - 1
        for k in range(0, a.shape[1], _STEP):
            tensor.wait(_STAGES - 2)
            thread.sync_threads()  # all have the stage, and all have read the one that is filled next
            fetch_stage(free, k + (_STAGES - 1) * _STEP, a, b, first, column, a_tiles, b_tiles)
            tensor.commit()
            for part in unroll(range(0, _STEP, 2 * _INNER)):
                tensor.ldmatrix(left, a_tiles, (slot, own, part))
                tensor.ldmatrix(top, b_tiles, (slot, right, part), transposed=True)
                tensor.mma(total, left, top)
                tensor.ldmatrix(left, a_tiles, (slot, own, part + _INNER))
                tensor.ldmatrix(top, b_tiles, (slot, right, part + _INNER), transposed=True)
                tensor.mma(other, left, top)
            free = slot
            slot = slot + 1 if slot + 1 < _STAGES else 0
        tensor.wait(0)
        for i in unroll(range(0, len(total), 2)):
            r, s = first + own + total.row(i), column + right + total.column(i)
            if r < c.shape[0] and s < c.shape[1]:
                c.unchecked_mut.store2((r, s), f16(total[i] + other[i]), f16(total[i + 1] + other[i + 1]))

    return multiply_and_add


@kernel(block=ATTEND_THREADS, unchecked=True)
def attend(products: Slice2[f16], tokens: Slice2[i32], scale: f32, rows: DisjointSlice2[f16]) -> None:
    """Computes the attention of each token to the tokens of its sequence, with the operands of ``kernels.attend``.

    A block computes one head of 64 rows, whichever sequences they are of. It walks along the keys of all these
    sequences, 64 at a time, and a warp leaves out what none of its 16 rows sees.
    """
    pitch = HEAD + _PER_COPY
    q_tile = SharedArray((QUERIES, pitch), f16)
    k_tile = SharedArray((QUERIES, pitch), f16)
    v_tile = SharedArray((QUERIES, pitch), f16)
    greatest, sums, kept = LocalArray(2, f32), LocalArray(2, f32), LocalArray(2, f32)
    begins, ends = LocalArray(2, i64), LocalArray(2, i64)
    width = rows.shape[1]
    count, heads = rows.shape[0], width // HEAD
    head, first = i64(thread.block_idx.x) % heads, i64(thread.block_idx.x) // heads * QUERIES
    if first >= count:
        return
    begin, end = i64(tokens[2, first]), i64(tokens[3, min(first + QUERIES, count) - 1])
    own = first + i64(thread.thread_idx.x // 32) * WARP_ROWS
    own_begin, own_end = begin, begin
    if own < count:
        own_begin, own_end = i64(tokens[2, own]), i64(tokens[3, min(own + WARP_ROWS, count) - 1])
    factor = scale * f32(online_softmax.LOG2_E)
    o = tensor.Accumulator((16, HEAD), f32)
    for half in unroll(range(2)):
        row = own + o.row(2 * half)
        begins[half], ends[half] = 0, 0
        if row < count:
            begins[half], ends[half] = i64(tokens[2, row]), i64(tokens[3, row])
    online_softmax.begin(greatest, sums)
    fetch(q_tile, HEAD, ATTEND_THREADS, products, first, head * HEAD, QUERIES)
    for key in range(begin, end, QUERIES):
        fetch(k_tile, HEAD, ATTEND_THREADS, products, key, width + head * HEAD, QUERIES)
        fetch(v_tile, HEAD, ATTEND_THREADS, products, key, 2 * width + head * HEAD, QUERIES)
        tensor.commit()
        tensor.wait(0)
        thread.sync_threads()  # all copies are there
        if key < own_end and key + QUERIES > own_begin:
            s = tensor.Accumulator((16, QUERIES), f32)
            x, y = tensor.FragmentA((16, _INNER), f16), tensor.FragmentB((_INNER, QUERIES), f16)
            for d in unroll(range(0, HEAD, _INNER)):
                tensor.ldmatrix(x, q_tile, (own - first, d))
                tensor.ldmatrix(y, k_tile, (0, d), transposed=True)
                tensor.mma(s, x, y)
            for i in unroll(range(len(s))):
                column = key + s.column(i)
                if column < begins[i % 4 // 2] or column >= ends[i % 4 // 2]:
                    s[i] = f32(-math.inf)
            p = tensor.FragmentA((16, QUERIES), f16)
            online_softmax.weigh(s, greatest, sums, kept, factor)
            tensor.convert(p, s)
            online_softmax.rescale(o, kept)
            z, part = tensor.FragmentB((_INNER, HEAD), f16), tensor.FragmentA((16, _INNER), f16)
            for number in unroll(range(QUERIES // _INNER)):
                for i in unroll(range(8)):
                    part[i] = p[8 * number + i]
                tensor.ldmatrix(z, v_tile, (number * _INNER, 0))
                tensor.mma(o, part, z)
        thread.sync_threads()  # all have read the keys and the values
    online_softmax.shares(sums, kept)
    for i in unroll(range(0, len(o), 2)):
        row, share = own + o.row(i), kept[i % 4 // 2]
        if row < count:
            rows.unchecked_mut.store2((row, head * HEAD + o.column(i)), f16(o[i] * share), f16(o[i + 1] * share))


@kernel
def look_up(words: Slice2[f16], places: Slice2[f16], tokens: Slice2[i32], rows: DisjointSlice2[f16]) -> None:
    """Computes ``rows[t] = words[word of t] + places[place of t]``: a thread computes two columns. ``tokens`` is that
    of ``kernels.look_up``."""
    pieces = rows.shape[1] // 2
    at = thread.index_1d().get()
    t, column = at // pieces, at % pieces * 2
    if t < rows.shape[0]:
        word, place = tokens[0, t], tokens[1, t]
        for j in unroll(range(2)):
            rows.scatter[t, column + j] = f16(f32(words[word, column + j]) + f32(places[place, column + j]))


@functools.cache
def pool_of(width: int) -> Kernel:
    """Returns the kernel for the layer norm of each row, the mean of each sequence's rows, and the division of that by
    its Euclidean length, or by 1e-12 if that is greater. A row has ``width`` elements, a multiple of 32."""
    each, threads = width // 32, 32 * POOL_WARPS

    @kernel(block=threads, unchecked=True)
    def pool(
        rows: Slice2[f16],
        scale: Slice[f16],
        shift: Slice[f16],
        epsilon: f32,
        sequences: Slice2[i32],
        units: DisjointSlice2[f32],
    ) -> None:
        # A block computes a sequence, and its warps take the rows in turn.
        parts = SharedArray((POOL_WARPS, width), f32)
        held, sums = LocalArray(each, f32), LocalArray(each, f32)
        s, t = i64(thread.block_idx.x), i64(thread.thread_idx.x)
        if s >= units.shape[0]:
            return
        own, lane = t // 32, t % 32
        first, end = i64(sequences[0, s]), i64(sequences[1, s])
        for j in unroll(range(each)):
            sums[j] = f32(0)
        for row in range(first + own, end, POOL_WARPS):
            total, squares = f32(0), f32(0)
            for j in unroll(range(each)):
                held[j] = f32(rows[row, lane + 32 * j])
                total += held[j]
            mean = warp.reduce_add(total) / f32(width)
            for j in unroll(range(each)):
                held[j] -= mean
                squares += held[j] * held[j]
            factor = f32(1) / math.sqrt(warp.reduce_add(squares) / f32(width) + epsilon)
            for j in unroll(range(each)):
                sums[j] += held[j] * factor
        for j in unroll(range(each)):
            parts[own, lane + 32 * j] = sums[j]
        thread.sync_threads()
        squares = f32(0)
        for column in range(t, width, threads):
            total = f32(0)
            for number in unroll(range(POOL_WARPS)):
                total += parts[number, column]
            total = total / f32(end - first) * f32(scale[column]) + f32(shift[column])
            parts[0, column] = total
            squares += total * total
        length = f32(1) / max(math.sqrt(block_sum(squares, f32)), f32(1e-12))
        for column in range(t, width, threads):
            units.unchecked_mut[s, column] = parts[0, column] * length

    return pool
