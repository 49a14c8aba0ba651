"""Attention on Hopper's tensor cores: copies by TMA, products by ``wgmma``.

A block computes tiles of queries of one head, one tile after another. Two or three of its warpgroups compute 64 queries
each (``groups_of``). One thread of the last warpgroup, the producer, keeps two buffers filled with keys and two with
values. Each buffer holds ``STEP`` tokens. While the other warpgroups store a tile, the producer already fetches the
tokens for the next tile. A buffer has two barriers: one is passed when its copies have arrived, the other when all
computing warpgroups have read it.

A warpgroup keeps the tensor cores busy during the softmax. It first begins the products for the scores of the next
keys, then the product of the present weights (the exponentials of scores) and values. While this second product runs,
it computes the weights of the next keys. The weights are a left operand in registers. The scheme is that of
FlashAttention 3 (Shah et al., 2024).

A tile of keys or values contains no tokens of the next head: the copy engine fills the rest of the tile with zeros, and
the scores of these positions are set to -inf. So a NaN of another head does not enter the sums.

The indices follow from constants and from sizes that the host compares, so the kernels are unchecked. Measured on one
H100, bf16, in TFLOPS, for shapes (batch, heads, tokens, head size):

- (2, 16, 8192, 128): 663; with steps of 64 keys 502.
- (4, 16, 2048, 128), causal: 443; with one tile for each block 365.
- These two shapes, in a slower kernel that converts elements one by one, whose ``exp2`` handles denormals, and whose
  ``wgmma`` adds the scores to zeros: 566 and 358.
- (4, 32, 4096, 64): 463; with two computing warpgroups instead of three 432, with three buffers instead of two 449.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from oxide import (
    DisjointSlice2,
    Kernel,
    LaunchConfig,
    LocalArray,
    Slice2,
    Slice3,
    device,
    f32,
    i32,
    i64,
    kernel,
    tensor,
    thread,
    u32,
    unroll,
)

from . import online_softmax

STEP = 128
"""The number of keys in a tile."""
WIDTHS = (64, 128)
"""The head sizes for which there is a kernel."""

_PANEL = 64
_STAGES = 2


def groups_of(width: int) -> int:
    """Returns the number of warpgroups of a block that compute 64 queries each. With heads of 64 there are enough
    registers for three such warpgroups, so that one more can multiply while the others compute exponentials."""
    return 3 if width == 64 else 2


def config_of(width: int, queries: int, heads: int, causal: bool, multiprocessors: int) -> LaunchConfig:
    """Returns the launch configuration for ``queries`` queries in each of ``heads`` heads. ``heads`` counts the heads
    of all batches. There is one block for each multiprocessor, but not more than there are tiles. A causal kernel
    instead has one block for every two tiles of a head."""
    tiles, threads = -(-queries // (64 * groups_of(width))), 128 * (groups_of(width) + 1)
    return LaunchConfig(-(-tiles // 2) * heads if causal else min(tiles * heads, multiprocessors), threads)


@functools.cache
def kernel_of(dtype: Any, width: int, causal: bool, aligned: bool) -> Kernel:
    """Returns the kernel for a head size. ``q`` and ``out`` are matrices with a row for each token: first all tokens of
    one head, then those of the next. ``k`` and ``v`` have an axis for the heads. ``aligned`` means that ``keys -
    queries`` is a multiple of ``STEP``. A causal kernel that is ``aligned`` and computes ``STEP`` queries in a block
    needs to hide scores only in the last tile of keys that the block reads."""
    panels = width // _PANEL
    tile_bytes = STEP * width * 2
    scores, held = STEP // 2, width // 2
    groups = groups_of(width)
    block_queries, threads = 64 * groups, 128 * (groups + 1)
    producer, consumers = (40, 232) if groups == 2 else (32, 160)
    all_hidden = causal and (not aligned or block_queries != STEP)

    @device
    def fetch(tiles: Any, source: Any, head: i64, row: i64, full: Any, stage: i64) -> None:
        """Begins the copies of one tile of keys or values to buffer ``stage``."""
        full.expect(stage, tile_bytes)
        for panel in unroll(range(panels)):
            tensor.load_tile(tiles, stage * panels + panel, source, (head, row, panel * _PANEL), full, stage)

    @device
    def score(s: Any, q_tiles: Any, k_tiles: Any, own: i64, stage: i64) -> None:
        """Begins the products of a warpgroup's queries and the tile of keys in buffer ``stage``."""
        tensor.wgmma(s, q_tiles, (0, own), k_tiles, stage * panels, add=False)
        for panel in unroll(range(1, panels)):
            tensor.wgmma(s, q_tiles, (panel, own), k_tiles, stage * panels + panel)

    @device
    def hide(s: Any, begin: i32, limit: i32) -> None:
        """Sets the scores of keys that a query does not see to -inf. The tile begins with key number ``begin``, and the
        warp's first query sees the keys up to number ``limit``. Both numbers have 32 bits, because numbers of 64 bits
        would take too many registers."""
        if begin + (STEP - 1) > limit:
            last = max(limit - begin, -STEP)  # the last column that the warp's first query sees
            for i in unroll(range(scores)):
                if i32(s.column(i)) > last + i32(s.row(i)):
                    s[i] = f32(-math.inf)

    @device
    def hide_end(s: Any, begin: i64, keys: i64) -> None:
        """Sets the scores of keys beyond the head's last key to -inf."""
        if begin + STEP > keys:
            left = i32(keys - begin)
            for i in unroll(range(scores)):
                if i32(s.column(i)) >= left:
                    s[i] = f32(-math.inf)

    @device
    def tile_at(number: u32, tiles: u32, blocks: u32) -> tuple[u32, i64]:
        """Returns the head, counted over all batches, and the first query of a block's tile ``number``. If the block
        has no such tile, the number of the returned query is at least the number of queries.

        A block of a causal kernel computes two tiles of a head: first a late tile, whose queries see many keys, then an
        early tile, whose queries see few. So all blocks have nearly equal work.
        """
        if causal:
            half = (tiles + 1) // 2
            second = number >= blocks
            within = number - blocks if second else number
            pair, place = within // half, within % half
            tile = place if second else tiles - 1 - place
            none = second and 2 * place + 1 == tiles
            return pair, i64(tiles if none else tile) * block_queries
        return number // tiles, i64(number % tiles) * block_queries

    @device
    def tiles_of_keys(first: i64, queries: i64, keys: i64) -> i64:
        """Returns the number of tiles of keys from which at least one query of the block's tile sees a key."""
        end = keys
        if causal:
            end = max(min(first + block_queries, queries) + keys - queries, 0)
        return (end + (STEP - 1)) // STEP

    @kernel(block=threads, unchecked=True)
    def attention(
        q: Slice2[dtype],
        k: Slice3[dtype],
        v: Slice3[dtype],
        batches: u32,
        heads: u32,
        kv_heads: u32,
        queries: i64,
        keys: i64,
        scale: f32,
        out: DisjointSlice2[dtype],
    ) -> None:
        q_tiles = tensor.SharedTiles(panels, (block_queries, _PANEL), dtype)
        k_tiles = tensor.SharedTiles(_STAGES * panels, (STEP, _PANEL), dtype)
        v_tiles = tensor.SharedTiles(_STAGES * panels, (STEP, _PANEL), dtype)
        full_q, empty_q = tensor.Barrier(1, 1), tensor.Barrier(1, groups)
        full_k, full_v = tensor.Barrier(_STAGES, 1), tensor.Barrier(_STAGES, 1)
        empty_k, empty_v = tensor.Barrier(_STAGES, groups), tensor.Barrier(_STAGES, groups)
        blocks = thread.grid_dim.x
        tiles = (u32(queries) + (block_queries - 1)) // block_queries
        numbers = 2 * blocks if causal else tiles * heads * batches
        heads_of_one = heads // kv_heads
        group = thread.thread_idx.x // 128
        done, used = 0, u32(0)  # the numbers of tiles of queries and of tiles of keys so far
        if group == groups:
            tensor.decrease_registers(producer)
            if thread.thread_idx.x == 128 * groups:
                for number in range(thread.block_idx.x, numbers, blocks):
                    pair, first = tile_at(number, tiles, blocks)
                    if first < queries:
                        kv_head = pair // heads * kv_heads + pair % heads // heads_of_one
                        empty_q.wait(0, done - 1)
                        full_q.expect(0, block_queries * width * 2)
                        for panel in unroll(range(panels)):
                            tensor.load_tile(q_tiles, panel, q, (pair * queries + first, panel * _PANEL), full_q, 0)
                        count = tiles_of_keys(first, queries, keys)
                        for left in range(count - 1, -1, -1):  # from the last tile to the first
                            stage, turn = i64(used % _STAGES), i64(used // _STAGES)
                            empty_k.wait(stage, turn - 1)
                            fetch(k_tiles, k, kv_head, left * STEP, full_k, stage)
                            empty_v.wait(stage, turn - 1)
                            fetch(v_tiles, v, kv_head, left * STEP, full_v, stage)
                            used += 1
                        done += 1
        else:
            tensor.increase_registers(consumers)
            own = group * 64
            leads = thread.thread_idx.x % 128 == 0
            factor = scale * f32(online_softmax.LOG2_E)
            greatest, sums, kept = LocalArray(2, f32), LocalArray(2, f32), LocalArray(2, f32)
            shift = keys - queries
            for number in range(thread.block_idx.x, numbers, blocks):
                pair, first = tile_at(number, tiles, blocks)
                if first < queries:
                    row = first + own + thread.thread_idx.x // 32 % 4 * 16
                    count = tiles_of_keys(first, queries, keys)
                    limit = i32(row + shift)
                    o = tensor.Accumulator((16, width), f32)
                    online_softmax.begin(greatest, sums)
                    full_q.wait(0, done)
                    if count > 0:
                        p = tensor.FragmentA((16, STEP), dtype)
                        s = tensor.Accumulator((16, STEP), f32)
                        before, before_turn = i64(used % _STAGES), i64(used // _STAGES)
                        full_k.wait(before, before_turn)
                        score(s, q_tiles, k_tiles, own, before)
                        tensor.wait_wgmma(s, 0)
                        if leads:
                            empty_k.arrive(before)
                        if causal:
                            hide(s, (count - 1) * STEP, limit)
                        else:
                            hide_end(s, (count - 1) * STEP, keys)
                        online_softmax.weigh(s, greatest, sums, kept, factor)
                        tensor.convert(p, s)
                        for left in range(count - 2, -1, -1):
                            used += 1
                            stage, turn = i64(used % _STAGES), i64(used // _STAGES)
                            t = tensor.Accumulator((16, STEP), f32)
                            full_k.wait(stage, turn)
                            score(t, q_tiles, k_tiles, own, stage)
                            full_v.wait(before, before_turn)
                            tensor.wgmma(o, p, None, v_tiles, before * panels, b_transposed=True)
                            tensor.wait_wgmma(t, 1)
                            if leads:
                                empty_k.arrive(stage)
                            if all_hidden:
                                hide(t, left * STEP, limit)
                            online_softmax.weigh(t, greatest, sums, kept, factor)
                            tensor.wait_wgmma(o, 0)
                            if leads:
                                empty_v.arrive(before)
                            online_softmax.rescale(o, kept)
                            tensor.convert(p, t)
                            before, before_turn = stage, turn
                        if leads:
                            empty_q.arrive(0)
                        full_v.wait(before, before_turn)
                        tensor.wgmma(o, p, None, v_tiles, before * panels, b_transposed=True)
                        tensor.wait_wgmma(o, 0)
                        if leads:
                            empty_v.arrive(before)
                        used += 1
                    elif leads:
                        empty_q.arrive(0)
                    done += 1
                    online_softmax.shares(sums, kept)
                    to = out.unchecked_mut
                    for i in unroll(range(0, held, 2)):
                        query, share = row + o.row(i), kept[i % 4 // 2]
                        if query < queries:
                            to.store2((pair * queries + query, o.column(i)), o[i] * share, o[i + 1] * share)

    return attention
