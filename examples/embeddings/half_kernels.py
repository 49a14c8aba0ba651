"""The encoder's own kernels in f16: attention for tensor cores, the look-up of words, and the mean of each sequence.

A matrix has a row for each token, as in ``kernels``. Sums, norms and softmax are computed in f32.

The indices follow from constants and from sizes that the host compares. So the kernels of attention and of the mean are
unchecked. Attention assumes finite numbers: a NaN in a sequence spreads to the other sequences in the same block of 64
rows.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from oxide import (
    DisjointSlice2,
    Kernel,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
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
from oxide_kernels.cooperative import block_sum

from .kernels import HEAD

MOST_WIDTH = 768
"""The largest width of a row in ``pool``: a warp keeps a row and a sum of rows in registers."""

QUERIES = 64
"""The number of queries of a block of ``attend``, 16 for each warp. Also the number of keys that it multiplies at a
time."""

ATTEND_THREADS = 128
POOL_WARPS = 8

_PER_COPY = 8
"""The number of elements of an asynchronous copy, 16 bytes. A row in shared memory has as many elements of padding,
which puts the eight rows of an ``ldmatrix`` into different banks."""
_INNER = 16
"""The inner dimension of an ``mma`` instruction: the number of products that it adds for each element."""
_WARP_ROWS = 16


@device
def fetch(array: Any, source: Any, first: i64, column: i64) -> None:
    """Begins the copies of 64 rows of a head. Elements outside of the matrix become zeros."""
    copies = HEAD // _PER_COPY
    for number in range(thread.thread_idx.x, QUERIES * copies, ATTEND_THREADS):
        down, right = number // copies, number % copies * _PER_COPY
        tensor.copy_async(array, (down, right), source, (first + down, column + right), _PER_COPY)


@kernel(block=ATTEND_THREADS, unchecked=True)
def attend(products: Slice2[f16], tokens: Slice2[i32], scale: f32, rows: DisjointSlice2[f16]) -> None:
    """Computes the attention of each token to the tokens of its sequence, with the operands of ``kernels.attend``.

    A block computes one head of 64 rows, which may belong to several sequences. It iterates over the keys of all these
    sequences, 64 at a time. A warp skips the keys that belong to none of the sequences of its 16 rows.
    """
    pitch = HEAD + _PER_COPY
    q_tile = SharedArray((QUERIES, pitch), f16)
    k_tile = SharedArray((QUERIES, pitch), f16)
    v_tile = SharedArray((QUERIES, pitch), f16)
    greatest, sums, kept = LocalArray(2, f32), LocalArray(2, f32), LocalArray(2, f32)
    begins, ends = LocalArray(2, i64), LocalArray(2, i64)
    width = rows.shape[1]
    count, heads = rows.shape[0], width // HEAD
    head, first = thread.block_idx.x % heads, thread.block_idx.x // heads * QUERIES
    if first >= count:
        return
    begin, end = tokens[2, first], tokens[3, min(first + QUERIES, count) - 1]
    own = first + thread.thread_idx.x // 32 * _WARP_ROWS
    own_begin, own_end = begin, begin
    if own < count:
        own_begin, own_end = tokens[2, own], tokens[3, min(own + _WARP_ROWS, count) - 1]
    factor = scale * f32(online_softmax.LOG2_E)
    o = tensor.Accumulator((16, HEAD), f32)
    for half in unroll(range(2)):
        row = own + o.row(2 * half)
        begins[half], ends[half] = 0, 0
        if row < count:
            begins[half], ends[half] = tokens[2, row], tokens[3, row]
    online_softmax.begin(greatest, sums)
    fetch(q_tile, products, first, head * HEAD)
    for key in range(begin, end, QUERIES):
        fetch(k_tile, products, key, width + head * HEAD)
        fetch(v_tile, products, key, 2 * width + head * HEAD)
        tensor.commit()
        tensor.wait(0)
        thread.sync_threads()  # all copies have arrived
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
        thread.sync_threads()  # all threads have read the keys and the values
    online_softmax.shares(sums, kept)
    for i in unroll(range(0, len(o), 2)):
        row, share = own + o.row(i), kept[i % 4 // 2]
        if row < count:
            rows.unchecked_mut.store2((row, head * HEAD + o.column(i)), f16(o[i] * share), f16(o[i + 1] * share))


@kernel
def look_up(words: Slice2[f16], places: Slice2[f16], tokens: Slice2[i32], rows: DisjointSlice2[f16]) -> None:
    """Computes ``rows[t] = words[word of t] + places[place of t]``: a thread computes two columns. ``tokens`` is as in
    ``kernels.look_up``."""
    pieces = rows.shape[1] // 2
    at = thread.index_1d().get()
    t, column = at // pieces, at % pieces * 2
    if t < rows.shape[0]:
        word, place = tokens[0, t], tokens[1, t]
        for j in unroll(range(2)):
            rows.scatter[t, column + j] = f16(f32(words[word, column + j]) + f32(places[place, column + j]))


@functools.cache
def pool_of(width: int) -> Kernel:
    """Returns a kernel that computes the layer norm of each row, then the mean of each sequence's rows, and divides the
    mean by its Euclidean length, or by 1e-12 if the length is smaller. A row has ``width`` elements, a multiple of
    32."""
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
        # A block computes one sequence. Its warps take the rows in turn.
        parts = SharedArray((POOL_WARPS, width), f32)
        held, sums = LocalArray(each, f32), LocalArray(each, f32)
        s, t = thread.block_idx.x, thread.thread_idx.x
        if s >= units.shape[0]:
            return
        own, lane = t // 32, t % 32
        first, end = sequences[0, s], sequences[1, s]
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
