"""``matvec``: a matrix-vector product, whose time is the time of reading the matrix at full memory bandwidth."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    Kernel,
    SharedArray,
    Slice,
    bf16,
    f16,
    f32,
    f64,
    kernel,
    thread,
    u32,
    unroll,
    warp,
)

from .accumulators import accumulator
from .operand_checks import require_apart, require_integers
from .operands import Operand, with_boxes

T = TypeVar("T", f16, bf16, f32, f64)

_BLOCK = 256
_WARPS = _BLOCK // 32


def matvec(m: int, n: int, matrix: Operand, vector: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output = matrix @ vector``: ``matrix`` is m×n, row-major. Yields the five arguments. The three boxes
    must have the same dtype: f16, bf16, f32 or f64. f16 and bf16 are summed in f32.

    For rows of up to 2048 elements, a warp computes the product of a row; for longer rows, a block does. Neighbouring
    threads read neighbouring elements. Raises ``LaunchError`` for an operand that is too small, and ``ArgumentError``
    for an operand of another dtype, or if the output shares memory with another operand.
    """
    require_integers("matvec", m=m, n=n)

    def product(matrix: DeviceBox, vector: DeviceBox, output: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        require_apart("matvec", output, matrix=matrix, vector=vector)
        nbytes = min(16, 4 * matrix.dtype.itemsize)
        vectors = n % 4 == 0 and matrix.ptr % nbytes == 0 and vector.ptr % nbytes == 0
        threads = 32 if n <= 2048 else _BLOCK
        blocks = max(1, -(-m // (_BLOCK // threads)))
        return _rows_of(threads, vectors, accumulator(matrix.dtype))[blocks, _BLOCK](m, n, matrix, vector, output)

    return with_boxes(product, matrix, vector, output)


@functools.cache
def _rows_of(threads: int, vectors: bool, wide: Any) -> Kernel:
    """Returns the kernel in which ``threads`` threads compute the product of a row, in the type ``wide``. If
    ``vectors`` is true, the kernel loads four elements at a time: the addresses of each row and of the parameter
    ``vector`` must then be multiples of the size of four elements, or of 16 bytes for f64."""

    @kernel(
        requires=("len(matrix) >= m * n", "len(vector) >= n", "len(output) >= m"),
        unchecked=vectors,  # the launch has also checked the vectors' addresses
    )
    def matvec(m: u32, n: u32, matrix: Slice[T], vector: Slice[T], output: DisjointSlice[T]) -> None:
        row = thread.block_idx.x * (_BLOCK // threads) + thread.thread_idx.x // threads
        if row >= m:
            return
        t, start, width = thread.thread_idx.x % threads, row * n, n
        a, b, c, d = wide(0), wide(0), wide(0), wide(0)
        if vectors:
            for i in range(4 * t, width, 4 * threads):
                m0, m1, m2, m3 = matrix.unchecked.load4(start + i)
                v0, v1, v2, v3 = vector.unchecked.load4(i)
                a += wide(m0) * v0
                b += wide(m1) * v1
                c += wide(m2) * v2
                d += wide(m3) * v3
        else:
            for i in range(t, width, threads):
                a += wide(matrix.unchecked[start + i]) * vector.unchecked[i]
        total = (a + b) + (c + d)
        for step in unroll(range(5)):
            total += warp.shuffle_xor(total, 16 >> step)
        if threads > 32:
            of_warps = SharedArray(_WARPS, wide)
            if t % 32 == 0:
                of_warps[t // 32] = total
            thread.sync_threads()
            total = wide(0)
            for number in unroll(range(_WARPS)):
                total += of_warps[number]
        if t == 0:
            output.unchecked_mut[row] = total

    return matvec
