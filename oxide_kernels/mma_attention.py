"""Attention on tensor cores by ``mma``, for GPUs since compute capability 8.0.

A block has four warps and computes 64 queries of one head, 16 in each warp. It walks along the keys, 64 keys at a time,
or 32 for head sizes above 128. In each step a warp computes the scores of its queries (``S = Q @ K.T``) and the
exponentials of the scores relative to the greatest score so far (``P``), and adds ``P @ V`` to the output in its
registers. When a greater score appears, the output and the sum of exponentials are rescaled to be relative to it: this
is the online softmax. So no matrix of scores is ever in memory.

The queries, one step's keys and one step's values are in shared memory. While a block multiplies by the keys, the
values arrive; while it multiplies by the values, the next keys arrive. The registers of the scores have the layout of a
left operand, so ``P`` need not be moved between lanes.

In a tile, tokens after the end of the sequence are copied as zeros, and the scores of such keys become -inf. So nothing
of a neighbouring sequence can enter the sums, not even a NaN. The scheme is that of FlashAttention 2 (Dao, 2023). The
kernels are unchecked: their indices follow from constants, from sizes that the host has checked against the boxes'
shapes, and from lengths of sequences that the kernel clamps.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from oxide import (
    DisjointSlice2,
    Kernel,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
    bool_,
    device,
    f32,
    i32,
    i64,
    intrinsics,
    kernel,
    tensor,
    thread,
    unroll,
)

from . import online_softmax

QUERIES = 64
"""The number of queries of a block."""
THREADS = 128
MOST_WIDTH = 256
"""The greatest head size."""

_PER_COPY = 8
"""The number of elements of an asynchronous copy, which has 16 bytes."""
_INNER = 16
"""The number of positions along k that one instruction multiplies."""


class Form(NamedTuple):
    """The constants of a kernel: all properties of a call of ``attention`` except for the scale and the sizes of
    batches, heads and sequences."""

    dtype: Any
    """The type of the elements, f16 or bf16."""
    width: int
    """The head size, rounded up to a multiple of 16."""
    causal: bool
    mask: Any
    """The type of the mask's elements, bool_ or f32, or None without a mask."""
    lengths: bool
    """True if the number of keys is given for each batch."""
    packed: bool
    """True if sequences of different lengths follow one another along the first axis."""
    pairs: bool
    """True if each pair of the output's columns 2i and 2i + 1 can be stored as a vector: its address is a multiple of
    its size."""


@functools.cache
def kernel_of(form: Form) -> Kernel:
    """Returns the kernel of a form.

    Each row of the kernel's matrices ``q``, ``k``, ``v`` and ``out`` belongs to one head of one token. ``mask`` holds
    matrices of ``queries`` by ``keys`` elements. ``mask_batch`` and ``mask_head`` are the distances, in elements, from
    one batch's matrix to the next batch's, and from one head's to the next head's. ``lengths`` tells how many keys each
    batch has. In a packed form it instead has the index of the first token of each sequence and, as its last element,
    the end of the last sequence. If the form has no mask or no lengths, any box of the operands' type is passed
    instead.
    """
    # mypy takes a name as a type if it is declared as Any.
    dtype: Any = form.dtype
    mask_type: Any = form.mask or dtype
    lengths_type: Any = i32 if form.lengths or form.packed else dtype
    width, causal, packed, pairs, has_lengths = form.width, form.causal, form.packed, form.pairs, form.lengths
    has_mask, of_truth = form.mask is not None, form.mask is bool_
    step = 64 if width <= 128 else 32
    pitch = width + _PER_COPY
    copies_a_row = width // _PER_COPY
    scores, held = step // 2, width // 2

    @device
    def fetch(count: i64, tile: Any, source: Any, first: i64, end: i64, base: i64, stride: i64) -> None:
        """Begins to copy ``count`` tokens of a sequence, from ``first`` on. Tokens from ``end`` on are copied as
        zeros."""
        t = thread.thread_idx.x % THREADS
        for turn in range(count * copies_a_row // THREADS):
            number = t + turn * THREADS
            row, column = number // copies_a_row, number % copies_a_row * _PER_COPY
            token = first + row
            at = base + token * stride if token < end else source.shape[0]
            tensor.copy_async(tile, (row, column), source, (at, column), _PER_COPY)

    @device
    def mask_out(
        s: Any, mask: Any, scale: f32, matrix: i64, row: i64, first: i64, queries: i64, keys: i64, end: i64, shift: i64
    ) -> None:
        """Applies the mask to a warp's scores. The warp's first score is that of query ``row`` and key ``first``.
        Scores of keys that a query does not see become -inf. A mask of f32 numbers is added to the scaled scores."""
        for i in unroll(range(scores)):
            query, key = row + s.row(i), first + s.column(i)
            seen = key < end
            if causal:
                seen = seen and key <= query + shift
            if has_mask:  # noqa: SIM102 - a condition of its own leaves the branch out of other forms
                if seen and query < queries:
                    if of_truth:
                        seen = bool(mask[matrix + query * keys + key])
                    else:
                        s[i] = intrinsics.fma(s[i], scale, f32(mask[matrix + query * keys + key]))
            if not seen:
                s[i] = f32(-math.inf)

    @device
    def place(
        lengths: Any, heads: i64, kv_heads: i64, queries: i64, keys: i64
    ) -> tuple[i64, i64, i64, i64, i64, i64, i64]:
        """Returns the block's batch, head and first query, the numbers of queries and of keys, and the rows of ``q``
        and ``k`` at which the sequence begins. If the block has no work, the first query is not less than the number of
        queries."""
        block = thread.block_idx.x
        batch, head, first, query_end, key_end, query_base, key_base = 0, 0, 0, 0, 0, 0, 0
        if packed:
            head, number = block % heads, block // heads
            for sequence in range(len(lengths) - 1):
                begin = min(max(lengths[sequence], 0), queries)
                end = min(max(lengths[sequence + 1], begin), queries)
                tiles = (end - begin + (QUERIES - 1)) // QUERIES
                if number >= 0 and number < tiles:
                    first, query_end, key_end = number * QUERIES, end - begin, end - begin
                    query_base = begin * heads + head
                    key_base = begin * kv_heads + head // (heads // kv_heads)
                number -= tiles
        else:
            tiles = max((queries + (QUERIES - 1)) // QUERIES, 1)
            pair, number = block // tiles, block % tiles
            batch, head = pair // heads, pair % heads
            # The last queries see the most keys, so their blocks begin first.
            first = (tiles - 1 - number) * QUERIES
            query_end, key_end = queries, keys
            if has_lengths:
                key_end = min(max(lengths[batch], 0), keys)
            query_base = pair * queries
            key_base = (batch * kv_heads + head // (heads // kv_heads)) * keys
        return batch, head, first, query_end, key_end, query_base, key_base

    @kernel(block=THREADS, unchecked=True)
    def attention(
        q: Slice2[dtype],
        k: Slice2[dtype],
        v: Slice2[dtype],
        mask: Slice[mask_type],
        mask_batch: i64,
        mask_head: i64,
        lengths: Slice[lengths_type],
        heads: i64,
        kv_heads: i64,
        queries: i64,
        keys: i64,
        scale: f32,
        out: DisjointSlice2[dtype],
    ) -> None:
        q_tile = SharedArray((QUERIES, pitch), dtype)
        k_tile = SharedArray((step, pitch), dtype)
        v_tile = SharedArray((step, pitch), dtype)
        greatest, sums, kept = LocalArray(2, f32), LocalArray(2, f32), LocalArray(2, f32)
        batch, head, first, query_end, key_end, query_base, key_base = place(lengths, heads, kv_heads, queries, keys)
        query_stride, key_stride = (heads, kv_heads) if packed else (1, 1)
        if first >= query_end or out.shape[0] == 0:
            return
        own = thread.thread_idx.x % THREADS // 32 * 16
        shift = 0 if packed else keys - queries
        end = min(key_end, min(first + QUERIES, query_end) + shift) if causal else key_end
        matrix = batch * mask_batch + head * mask_head
        # A mask of f32 numbers is added to scores that are scaled already.
        factor = f32(online_softmax.LOG2_E) if has_mask and not of_truth else scale * f32(online_softmax.LOG2_E)
        o = tensor.Accumulator((16, width), f32)
        online_softmax.begin(greatest, sums)
        fetch(QUERIES, q_tile, q, first, query_end, query_base, query_stride)
        fetch(step, k_tile, k, 0, end, key_base, key_stride)
        tensor.commit()
        for begin in range(0, end, step):
            tensor.wait(0)
            thread.sync_threads()  # all threads see the keys, and have read the previous values
            fetch(step, v_tile, v, begin, end, key_base, key_stride)
            tensor.commit()
            s = tensor.Accumulator((16, step), f32)
            x, y = tensor.FragmentA((16, _INNER), dtype), tensor.FragmentB((_INNER, step), dtype)
            for d in unroll(range(0, width, _INNER)):
                tensor.ldmatrix(x, q_tile, (own, d))
                tensor.ldmatrix(y, k_tile, (0, d), transposed=True)
                tensor.mma(s, x, y)
            thread.sync_threads()  # all threads have read the keys
            if begin + step < end:
                fetch(step, k_tile, k, begin + step, end, key_base, key_stride)
            tensor.commit()
            at_edge = begin + step > end or (causal and begin + step - 1 > first + own + shift)
            if has_mask or at_edge:
                mask_out(s, mask, scale, matrix, first + own, begin, queries, keys, end, shift)
            p = tensor.FragmentA((16, step), dtype)
            online_softmax.weigh(s, greatest, sums, kept, factor)
            tensor.convert(p, s)
            online_softmax.rescale(o, kept)
            tensor.wait(1)
            thread.sync_threads()  # all threads see the values
            z, part = tensor.FragmentB((_INNER, width), dtype), tensor.FragmentA((16, _INNER), dtype)
            for number in unroll(range(step // _INNER)):
                for i in unroll(range(8)):
                    part[i] = p[8 * number + i]
                tensor.ldmatrix(z, v_tile, (number * _INNER, 0))
                tensor.mma(o, part, z)
        tensor.wait(0)
        online_softmax.shares(sums, kept)
        to = out.unchecked_mut
        for i in unroll(range(0, held, 2)):
            query, column = first + own + o.row(i), o.column(i)
            if query < query_end and column < out.shape[1]:
                row, share = query_base + query * query_stride, kept[i % 4 // 2]
                left, right = o[i] * share, o[i + 1] * share
                if pairs:
                    to.store2((row, column), left, right)
                else:
                    to[row, column] = left
                    if column + 1 < out.shape[1]:
                        to[row, column + 1] = right

    return attention
