"""Running sums: ``inclusive_scan`` and ``exclusive_scan`` of any length.

Three steps, and the middle one is a scan itself: every block sums its tile; the tiles' sums are scanned; every block
scans its tile again, from the sum of those before it. The input is read twice and the result is the same at every run.
(In one pass, a block would have to wait for those before it: decoupled look-back. That needs blocks that run at the
same time, which neither CUDA nor the CPU device promises.)"""

from __future__ import annotations

from typing import Any

from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    LocalArray,
    SharedArray,
    Slice,
    bool_,
    device,
    empty,
    f32,
    i64,
    kernel,
    thread,
    unroll,
    warp,
    zeros,
)

from .cooperative import block_sum
from .operands import Operand, with_boxes

_BLOCK = 256
_WARPS = _BLOCK // 32
_TILE = 16 * _BLOCK


def inclusive_scan(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """``output[i] = input[0] + … + input[i]``, float32. Yields input and output, which may be the same box.

    Raises ``LaunchError`` for an output that is shorter than the input, ``ArgumentError`` for another dtype.
    """
    return with_boxes(lambda x, result: _scan(x, result, True), input, output)


def exclusive_scan(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """``output[i] = input[0] + … + input[i - 1]``, 0 for the first; the rest as of ``inclusive_scan``."""
    return with_boxes(lambda x, result: _scan(x, result, False), input, output)


def _scan(x: DeviceBox, result: DeviceBox, inclusive: bool) -> DeviceOperation[tuple[Any, ...]]:
    tiles = max(1, -(-x.size // _TILE))
    if tiles == 1:
        whole = zeros(1).and_then(lambda before: _scan_tiles[1, _BLOCK](inclusive, x, before, result))
        return whole.map(lambda done: (x, result))
    return (
        empty(tiles)
        .and_then(lambda sums: _sum_tiles[tiles, _BLOCK](x, sums))
        .and_then(lambda done: _scan(done[1], done[1], False))
        .and_then(lambda done: _scan_tiles[tiles, _BLOCK](inclusive, x, done[1], result))
        .map(lambda done: (x, result))
    )


@device
def four_of(input: Slice[f32], at: i64, vectors: bool_) -> tuple[f32, f32, f32, f32]:
    """The four elements from ``at``, 0 where there are none."""
    length = len(input)
    a, b, c, d = f32(0), f32(0), f32(0), f32(0)
    if vectors and at + 4 <= length:
        a, b, c, d = input.unchecked.load4(at)
    else:
        if at < length:
            a = input[at]
        if at + 1 < length:
            b = input[at + 1]
        if at + 2 < length:
            c = input[at + 2]
        if at + 3 < length:
            d = input[at + 3]
    return a, b, c, d


@device
def place_in_tile(part: i64) -> i64:
    """Where the ``part``-th four of this thread's elements begin. Those of a warp are neighbours."""
    t = thread.thread_idx.x % _BLOCK
    return thread.block_idx.x * _TILE + (t // 32 * 4 + part) * 128 + t % 32 * 4


@kernel
def _sum_tiles(input: Slice[f32], sums: DisjointSlice[f32]) -> None:
    total = f32(0)
    vectors = input.is_aligned(4)
    for part in unroll(range(4)):
        a, b, c, d = four_of(input, place_in_tile(part), vectors)
        total += (a + b) + (c + d)
    total = block_sum(total, f32)
    if thread.thread_idx.x == 0 and thread.block_idx.x < len(sums):
        sums.unchecked_mut[thread.block_idx.x] = total


@kernel(requires=("len(output) >= len(input)",))
def _scan_tiles(inclusive: bool_, input: Slice[f32], before: Slice[f32], output: DisjointSlice[f32]) -> None:
    """``before`` has the sum of what comes before each tile. Warps scan their elements by shuffles, then they meet."""
    of_warps = SharedArray(_WARPS, f32)
    x = LocalArray((4, 4), f32)
    starts = LocalArray(4, f32)
    vectors = input.is_aligned(4) and output.is_aligned(4)
    lane, warp_number = thread.thread_idx.x % 32, thread.thread_idx.x % _BLOCK // 32
    of_warp = f32(0)
    for part in unroll(range(4)):
        a, b, c, d = four_of(input, place_in_tile(part), vectors)
        x[part, 0], x[part, 1], x[part, 2], x[part, 3] = a, a + b, a + b + c, a + b + c + d
        through = x[part, 3]
        for step in unroll(range(5)):
            below = warp.shuffle_up(through, 1 << step)
            if lane >= 1 << step:
                through += below
        below = warp.shuffle_up(through, 1)
        starts[part] = of_warp + below if lane > 0 else of_warp
        of_warp += warp.shuffle(through, 31)
    if lane == 0:
        of_warps[warp_number] = of_warp
    thread.sync_threads()
    start = before[thread.block_idx.x]
    for number in unroll(range(_WARPS)):
        if number < warp_number:
            start += of_warps[number]
    length, out = len(input), output.unchecked_mut
    for part in unroll(range(4)):
        at, base = place_in_tile(part), start + starts[part]
        p, q, r, s = base, base + x[part, 0], base + x[part, 1], base + x[part, 2]
        if inclusive:
            p, q, r, s = q, r, s, base + x[part, 3]
        if vectors and at + 4 <= length:
            out.store4(at, p, q, r, s)
        else:
            if at < length:
                out[at] = p
            if at + 1 < length:
                out[at + 1] = q
            if at + 2 < length:
                out[at + 2] = r
            if at + 3 < length:
                out[at + 3] = s
