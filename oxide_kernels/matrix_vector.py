"""``matvec``: a matrix times a vector, as fast as the matrix can be read."""

from __future__ import annotations

import functools
from typing import Any

from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    Kernel,
    SharedArray,
    Slice,
    f32,
    i64,
    kernel,
    thread,
    u32,
    unroll,
    warp,
)

from .operands import Operand, with_boxes

_BLOCK = 256
_WARPS = _BLOCK // 32


def matvec(m: int, n: int, matrix: Operand, vector: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """``output = matrix @ vector``, float32: ``matrix`` is m×n, row-major. Yields the five arguments.

    A row is a warp's or, if it is longer than 2048, a block's, whose threads read neighbours. Raises ``LaunchError``
    for an operand that is too small, ``ArgumentError`` for one of another type."""

    def product(matrix: DeviceBox, vector: DeviceBox, output: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        vectors = n % 4 == 0 and matrix.ptr % 16 == 0 and vector.ptr % 16 == 0
        threads = 32 if n <= 2048 else _BLOCK
        blocks = max(1, -(-m // (_BLOCK // threads)))
        return _rows_of(threads, vectors)[blocks, _BLOCK](m, n, matrix, vector, output)

    return with_boxes(product, matrix, vector, output)


@functools.cache
def _rows_of(threads: int, vectors: bool) -> Kernel:
    """The kernel whose rows belong to ``threads`` threads; with ``vectors`` they begin at a multiple of 16 bytes."""

    @kernel(
        requires=("len(matrix) >= m * n", "len(vector) >= n", "len(output) >= m"),
        unchecked=vectors,  # the addresses of vectors too: the launch has looked at them
    )
    def matvec(m: u32, n: u32, matrix: Slice[f32], vector: Slice[f32], output: DisjointSlice[f32]) -> None:
        row = thread.block_idx.x * (_BLOCK // threads) + thread.thread_idx.x // threads
        if row >= m:
            return
        t, start, width = thread.thread_idx.x % threads, row * n, i64(n)
        a, b, c, d = f32(0), f32(0), f32(0), f32(0)
        if vectors:
            for i in range(4 * t, width, 4 * threads):
                m0, m1, m2, m3 = matrix.unchecked.load4(start + i)
                v0, v1, v2, v3 = vector.unchecked.load4(i)
                a += m0 * v0
                b += m1 * v1
                c += m2 * v2
                d += m3 * v3
        else:
            for i in range(t, width, threads):
                a += matrix.unchecked[start + i] * vector.unchecked[i]
        total = (a + b) + (c + d)
        for step in unroll(range(5)):
            total += warp.shuffle_xor(total, 16 >> step)
        if threads > 32:
            of_warps = SharedArray(_WARPS, f32)
            if t % 32 == 0:
                of_warps[t // 32] = total
            thread.sync_threads()
            total = f32(0)
            for number in unroll(range(_WARPS)):
                total += of_warps[number]
        if t == 0:
            output.unchecked_mut[row] = total

    return matvec
