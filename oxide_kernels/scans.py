"""Running sums: ``inclusive_scan`` and ``exclusive_scan`` of any length.

Three steps, and the middle one is a scan itself: every block sums its tile; the tiles' sums are scanned; every block
scans its tile again, from the sum of those before it. The input is read twice and the result is the same at every run.
(In one pass, a block would have to wait for those before it: decoupled look-back. That needs blocks that run at the
same time, which neither CUDA nor the CPU device promises.)"""

from __future__ import annotations

from typing import Any

from oxide import DeviceBox, DeviceOperation, DisjointSlice, Slice, bool_, empty, f32, kernel, thread, unroll, zeros

from .cooperative import block_exclusive_sum, block_sum
from .operands import Operand, with_boxes

_BLOCK = 256
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


@kernel
def _sum_tiles(input: Slice[f32], sums: DisjointSlice[f32]) -> None:
    first, length = thread.block_idx.x * _TILE + thread.thread_idx.x, len(input)
    total = f32(0)
    for i in unroll(range(0, _TILE, _BLOCK)):
        if first + i < length:
            total += input[first + i]
    total = block_sum(total, f32)
    if thread.thread_idx.x == 0 and thread.block_idx.x < len(sums):
        sums.unchecked_mut[thread.block_idx.x] = total


@kernel(requires=("len(output) >= len(input)",))
def _scan_tiles(inclusive: bool_, input: Slice[f32], before: Slice[f32], output: DisjointSlice[f32]) -> None:
    """Four elements a thread and round; ``before`` has the sum of what comes before each tile."""
    length, out = len(input), output.unchecked_mut
    carry = before[thread.block_idx.x]
    vectors = input.is_aligned(4) and output.is_aligned(4)
    for i in range(0, _TILE, 4 * _BLOCK):
        at = thread.block_idx.x * _TILE + i + 4 * thread.thread_idx.x
        a, b, c, d = f32(0), f32(0), f32(0), f32(0)
        whole = vectors and at + 4 <= length
        if whole:
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
        mine = (a + b) + (c + d)
        start = carry + block_exclusive_sum(mine, f32)
        carry += block_sum(mine, f32)
        p, q, r, s = start, start + a, start + a + b, start + a + b + c
        if inclusive:
            p, q, r, s = q, r, s, start + a + b + c + d
        if whole:
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
