"""Attention on Hopper's tensor cores: copies by TMA, products by ``wgmma``.

A block has three warpgroups and computes 128 queries of one head. One thread of the third, the producer, keeps two
buffers for keys and two for values filled, ``STEP`` tokens each. Each of the other two warpgroups computes 64 queries.
A buffer has two barriers: one is passed when its copies have arrived, the other when both warpgroups have read it.

A warpgroup keeps its tensor cores at work during the softmax: it begins the scores of the next keys, then the product
of the present weights and values, and computes the next exponentials while that product is on its way. The weights are
a left operand in registers. The scheme is that of FlashAttention 3 (Shah et al., 2024).

A tile of values has ``STEP`` tokens of one head, so the number of keys is a multiple of ``STEP``: a weight of 0 would
not keep another head's NaN out of the sums. The indices follow from constants and from sizes that the host compares, so
the kernels are unchecked.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from oxide import (
    DisjointSlice2,
    Kernel,
    LocalArray,
    Slice2,
    device,
    f32,
    i32,
    i64,
    kernel,
    tensor,
    thread,
    unroll,
)

from . import online_softmax

QUERIES = 128
"""The queries of a block."""
STEP = 128
"""The keys of a tile."""
THREADS = 384
WIDTHS = (64, 128)
"""The head sizes."""

_PANEL = 64
_STAGES = 2


@functools.cache
def kernel_of(dtype: Any, width: int, causal: bool, aligned: bool) -> Kernel:
    """Returns the kernel for a head size. ``q``, ``k``, ``v`` and ``out`` are matrices whose rows are the tokens of one
    head after another. ``keys`` is a multiple of ``STEP``. With ``aligned``, ``keys - queries`` is a multiple too: then
    only the last tile of keys that a causal block reads has keys that a query does not see."""
    panels = width // _PANEL
    tile_bytes = STEP * width * 2
    scores, held = STEP // 2, width // 2
    all_hidden = causal and not aligned

    @device
    def fetch(tiles: Any, source: Any, row: i64, full: Any, stage: i64) -> None:
        """Begins the copies of one tile of keys or values."""
        full.expect(stage, tile_bytes)
        for panel in unroll(range(panels)):
            tensor.load_tile(tiles, stage * panels + panel, source, (row, panel * _PANEL), full, stage)

    @device
    def score(s: Any, q_tiles: Any, k_tiles: Any, own: i64, stage: i64) -> None:
        """Begins the products of a warpgroup's queries and a tile of keys."""
        tensor.wgmma(s, q_tiles, (0, own), k_tiles, stage * panels, add=False)
        for panel in unroll(range(1, panels)):
            tensor.wgmma(s, q_tiles, (panel, own), k_tiles, stage * panels + panel)

    @device
    def hide(s: Any, row: i64, begin: i64, shift: i64) -> None:
        """Sets the scores of keys that a query does not see to -inf. The warp's first score has this row and key."""
        if begin + (STEP - 1) > row + shift:
            last = i32(max(row + shift - begin, -STEP))  # that the warp's first query sees
            for i in unroll(range(scores)):
                if i32(s.column(i)) > last + i32(s.row(i)):
                    s[i] = f32(-math.inf)

    @kernel(block=THREADS, unchecked=True)
    def attention(
        q: Slice2[dtype],
        k: Slice2[dtype],
        v: Slice2[dtype],
        heads: i64,
        kv_heads: i64,
        queries: i64,
        keys: i64,
        scale: f32,
        out: DisjointSlice2[dtype],
    ) -> None:
        q_tiles = tensor.SharedTiles(panels, (QUERIES, _PANEL), dtype)
        k_tiles = tensor.SharedTiles(_STAGES * panels, (STEP, _PANEL), dtype)
        v_tiles = tensor.SharedTiles(_STAGES * panels, (STEP, _PANEL), dtype)
        ready = tensor.Barrier(1, 1)
        full_k, full_v = tensor.Barrier(_STAGES, 1), tensor.Barrier(_STAGES, 1)
        empty_k, empty_v = tensor.Barrier(_STAGES, 2), tensor.Barrier(_STAGES, 2)
        tiles = (queries + (QUERIES - 1)) // QUERIES
        pair = i64(thread.block_idx.x) // tiles
        # The last queries see most keys: their blocks begin first.
        first = (tiles - 1 - i64(thread.block_idx.x) % tiles) * QUERIES
        query_base = pair * queries
        key_base = (pair // heads * kv_heads + pair % heads // (heads // kv_heads)) * keys
        shift = keys - queries
        end = min(keys, min(first + QUERIES, queries) + shift) if causal else keys
        count = max((end + (STEP - 1)) // STEP, 0)
        group = thread.thread_idx.x // 128
        if group == 2:
            tensor.decrease_registers(24)
            if thread.thread_idx.x == 256:
                ready.expect(0, QUERIES * width * 2)
                for panel in unroll(range(panels)):
                    tensor.load_tile(q_tiles, panel, q, (query_base + first, panel * _PANEL), ready, 0)
                for number in range(count):
                    stage, turn = number % _STAGES, number // _STAGES
                    token = key_base + (count - 1 - number) * STEP  # from the last tile to the first
                    empty_k.wait(stage, turn - 1)
                    fetch(k_tiles, k, token, full_k, stage)
                    empty_v.wait(stage, turn - 1)
                    fetch(v_tiles, v, token, full_v, stage)
        else:
            tensor.increase_registers(240)
            own = i64(group % 2) * 64
            leads = thread.thread_idx.x % 128 == 0
            row = first + own + i64(thread.thread_idx.x // 32 % 4) * 16
            factor = scale * f32(online_softmax.LOG2_E)
            greatest, sums, kept = LocalArray(2, f32), LocalArray(2, f32), LocalArray(2, f32)
            o = tensor.Accumulator((16, width), f32)
            online_softmax.begin(greatest, sums)
            ready.wait(0, 0)
            if count > 0:
                p = tensor.FragmentA((16, STEP), dtype)
                s = tensor.Accumulator((16, STEP), f32)
                full_k.wait(0, 0)
                score(s, q_tiles, k_tiles, own, 0)
                tensor.wait_wgmma(s, 0)
                if leads:
                    empty_k.arrive(0)
                if causal:
                    hide(s, row, (count - 1) * STEP, shift)
                online_softmax.weigh(s, greatest, sums, kept, factor)
                tensor.convert(p, s)
                for number in range(1, count):
                    stage, turn = number % _STAGES, number // _STAGES
                    before, before_turn = (number - 1) % _STAGES, (number - 1) // _STAGES
                    t = tensor.Accumulator((16, STEP), f32)
                    full_k.wait(stage, turn)
                    score(t, q_tiles, k_tiles, own, stage)
                    full_v.wait(before, before_turn)
                    tensor.wgmma(o, p, None, v_tiles, before * panels, b_transposed=True)
                    tensor.wait_wgmma(t, 1)
                    if leads:
                        empty_k.arrive(stage)
                    if all_hidden:
                        hide(t, row, (count - 1 - number) * STEP, shift)
                    online_softmax.weigh(t, greatest, sums, kept, factor)
                    tensor.wait_wgmma(o, 0)
                    if leads:
                        empty_v.arrive(before)
                    online_softmax.rescale(o, kept)
                    tensor.convert(p, t)
                full_v.wait((count - 1) % _STAGES, (count - 1) // _STAGES)
                tensor.wgmma(o, p, None, v_tiles, (count - 1) % _STAGES * panels, b_transposed=True)
                tensor.wait_wgmma(o, 0)
            online_softmax.shares(sums, kept)
            to = out.unchecked_mut
            for i in unroll(range(0, held, 2)):
                query, share = row + o.row(i), kept[i % 4 // 2]
                if query < queries:
                    to.store2((query_base + query, o.column(i)), dtype(o[i] * share), dtype(o[i + 1] * share))

    return attention
