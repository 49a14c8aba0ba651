"""One number out of many: ``reduce_sum``, ``reduce_max``, ``argmax``, ``dot``.

Each takes two launches: blocks that fill the device walk over the input together and leave a part each, and one more block
combines the parts, always in the same order. So a result is the same at every run, and a float sum is nearly as exact as
one in pairs, as each thread's is short.
"""

from __future__ import annotations

from typing import Any

from oxide import DeviceBox, DeviceOperation, DisjointSlice, Slice, empty, f32, kernel, thread, unroll

from .cooperative import block_sum
from .operands import Operand, with_boxes

BLOCK = 256
_MOST_BLOCKS = 1056


def reduce_sum(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """``output[0] =`` the sum of ``input``, float32; 0 of none. Yields input and output."""
    return _in_two(_partial_sums, _sum_of_partials, input, output)


def _in_two(parts: Any, whole: Any, input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    def both(x: DeviceBox, result: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        blocks = max(1, min(_MOST_BLOCKS, -(-x.size // (BLOCK * 16))))
        return (
            empty(blocks, x.dtype)
            .and_then(lambda scratch: parts[blocks, BLOCK](x, scratch))
            .and_then(lambda done: whole[1, 1024](done[1], result))
            .map(lambda done: (x, result))
        )

    return with_boxes(both, input, output)


@kernel
def _partial_sums(input: Slice[f32], parts: DisjointSlice[f32]) -> None:
    first, stride = thread.index_1d().get(), thread.grid_dim.x * BLOCK
    s0, s1, s2, s3 = f32(0), f32(0), f32(0), f32(0)
    done = 0
    if input.is_aligned(4):
        # Four vectors at a time, so that their ways from memory overlap.
        vectors = len(input) // 4
        rounds = vectors // (4 * stride)
        for turn in range(rounds):
            for i in unroll(range(4)):
                a, b, c, d = input.unchecked.load4(4 * (first + (4 * turn + i) * stride))
                s0 += a
                s1 += b
                s2 += c
                s3 += d
        done = 16 * rounds * stride
    for i in range(done + first, len(input), stride):
        s0 += input[i]
    total = block_sum((s0 + s1) + (s2 + s3), f32)
    if thread.thread_idx.x == 0:
        parts.unchecked_mut[thread.block_idx.x] = total


@kernel
def _sum_of_partials(parts: Slice[f32], output: DisjointSlice[f32]) -> None:
    total = f32(0)
    for i in range(thread.thread_idx.x, len(parts), thread.block_dim.x):
        total += parts[i]
    total = block_sum(total, f32)
    index = thread.index_1d()
    if index.get() == 0:
        result = output.get_mut(index)
        if result is not None:
            result.value = total
