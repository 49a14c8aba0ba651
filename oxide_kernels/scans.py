"""Prefix sums: ``inclusive_scan`` and ``exclusive_scan`` of any length, in one pass over memory.

Each block scans one tile and needs the sum of all tiles before it. It computes this sum by decoupled look-back (Merrill
and Garland, *Single-pass Parallel Prefix Scan with Decoupled Look-back*, 2016). A block publishes the sum of its own
tile as soon as it is known. Then the block goes back over the earlier tiles and adds up their published sums, until it
reaches a tile with a published complete sum: the sum of all elements from the beginning of the input to that tile's
end. Finally the block publishes the complete sum of its own tile.

A published sum is a 64-bit word, written and read by one atomic operation: 32 bits are a flag, and 32 bits are the sum.
A sum of 64 bits takes two such words, which are valid if their flags agree. A reader needs no memory but these words,
so relaxed ordering is enough.

**Why it terminates.** Blocks wait for other blocks. A wait for a block that has not begun may never end, with CUDA and
on the CPU device. So the number of a block's tile is not the block's index: the block takes the next number from an
atomic counter when it begins to run. When a block has a number, all blocks with lower numbers have begun too. On a GPU
a block that has begun stays on the device, and its warps make progress while others spin. On the CPU device a worker,
which is a thread of the operating system, runs a block to its end before it takes another block, and a waiting worker
yields to other threads. Tile 0 waits for no tile, and tile n only for lower tiles, each of which publishes its sum
before it waits. So by induction all blocks end, in any order. If one worker runs all blocks, as with ``OXIDE_SEED`` or
under the sanitizer, all lower tiles are finished when a block begins, and no block waits. No thread leaves before its
block has published its sums: the kernel's ``requires`` ensures that all accesses are in bounds, so no check can fail.

**Reproducibility.** The number of tiles over which a block looks back depends on timing, and so does the order in which
the sums of tiles are added. The last bits of float sums may differ from run to run, as with ``torch.cumsum`` and CUB.
Sums of integers are the same in every run.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from oxide import (
    AtomicSlice,
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    Kernel,
    LocalArray,
    SharedArray,
    Slice,
    bf16,
    bool_,
    device,
    f16,
    f32,
    f64,
    i32,
    i64,
    intrinsics,
    kernel,
    thread,
    u32,
    u64,
    unroll,
    warp,
    zeros,
)

from .accumulators import accumulator
from .operand_checks import called, require_apart, require_same_shape
from .operands import Operand, with_boxes

T = TypeVar("T", f16, bf16, f32, f64, i32, u32, i64, u64)

_BLOCK = 256
_VECTORS = {4: 6, 8: 4}
"""Maps the bytes of the accumulator to the number of four-element vectors that a thread holds. On an H100, 2**25
elements of f32 take 127 µs with six vectors and 136 µs with four; torch takes 133 µs. 2**24 elements of f64 take 145 µs
with four vectors and 149 µs with six."""

_PART, _WHOLE = 1, 2
"""The flags of a published sum: ``_PART`` for the sum of the tile alone, ``_WHOLE`` for the complete sum, of the tile
and all tiles before it. The flag is 0 until a sum is published."""


def inclusive_scan(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output[i] = input[0] + … + input[i]``. Yields input and output, which may be the same box.

    Both must have the same dtype: f16, bf16, f32, f64, i32, u32, i64 or u64. Integers wrap; f16 and bf16 are summed in
    f32 and rounded at the end. Raises ``ValueError`` if the shapes differ, and ``ArgumentError`` for other dtypes and
    if the output overlaps the input without being the same memory.
    """
    return with_boxes(lambda x, result: _scan("inclusive_scan", x, result, True), input, output)


def exclusive_scan(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output[i] = input[0] + … + input[i - 1]``; ``output[0]`` is 0. The dtypes, the yielded boxes and the
    errors are those of ``inclusive_scan``."""
    return with_boxes(lambda x, result: _scan("exclusive_scan", x, result, False), input, output)


def _scan(name: str, x: DeviceBox, result: DeviceBox, inclusive: bool) -> DeviceOperation[tuple[Any, ...]]:
    require_same_shape(name, input=x, output=result)
    require_apart(name, result, "input", input=x)
    wide = accumulator(x.dtype)
    itemsize = wide.dtype.itemsize
    tiles = max(1, -(-x.size // (4 * _VECTORS[itemsize] * _BLOCK)))
    told = zeros(1 + itemsize // 4 * tiles, u64)
    return told.and_then(lambda told: _single_pass(wide, name)[tiles, _BLOCK](inclusive, x, told, result)).map(
        lambda done: (x, result)
    )


@functools.cache
def _single_pass(wide: Any, name: str) -> Kernel:
    """Returns the kernel of the function ``name`` that accumulates in the type ``wide``. In the kernel's parameter
    ``told``, ``told[0]`` is the number of the next tile that a block takes, and the other elements are the published
    words of sums. All elements must be 0 before the launch."""
    tell, listen = _words(wide)
    block, vectors = _BLOCK, _VECTORS[wide.dtype.itemsize]
    warps, tile_size = block // 32, 4 * vectors * block

    @device
    def sum_before(told: AtomicSlice[u64], tile: i64, lane: i64, of_tile: Any) -> Any:
        """Returns the sum of all tiles before ``tile``. One warp of the block makes the call. It first publishes the
        tile's own sum, ``of_tile``, and at the end the complete sum."""
        if lane == 0:
            tell(told, tile, _PART, of_tile)
        found = wide(0)
        last = tile - 1
        searching = True
        while searching:
            # Each lane reads the sum of one earlier tile, lane 0 that of the nearest. A lane for which no tile is left
            # takes 0 as a complete sum.
            flag, value = _WHOLE, wide(0)
            if last - lane >= 0:
                flag, value = listen(told, last - lane)
                while flag == 0:
                    thread.nanosleep(20)
                    flag, value = listen(told, last - lane)
            nearest = intrinsics.ffs(warp.ballot(flag == _WHOLE))
            if nearest > 0 and lane >= nearest:
                value = wide(0)
            for step in unroll(range(5)):
                value += warp.shuffle_xor(value, 16 >> step)
            found += value
            searching = nearest == 0
            last -= 32
        if lane == 0:
            tell(told, tile, _WHOLE, found + of_tile)
        return found

    @kernel(requires=("len(output) >= len(input)",))
    @called(name)
    def scan(inclusive: bool_, input: Slice[T], told: AtomicSlice[u64], output: DisjointSlice[T]) -> None:
        number, of_warps, before = SharedArray(1, i64), SharedArray(warps, wide), SharedArray(1, wide)
        x, starts = LocalArray((vectors, 4), wide), LocalArray(vectors, wide)
        t = thread.thread_idx.x % block
        lane, warp_number = t % 32, t // 32
        if t == 0:
            number[0] = told.fetch_add(0, 1)
        thread.sync_threads()
        tile = number[0]

        # A thread's vectors are 128 elements apart, so that the lanes of a warp read neighbouring vectors.
        first, length = tile * tile_size + warp_number * (128 * vectors) + lane * 4, len(input)
        by_fours = (tile + 1) * tile_size <= length and input.is_aligned(4) and output.is_aligned(4)
        if by_fours:
            for v in unroll(range(vectors)):
                a, b, c, d = input.unchecked.streaming.load4(first + 128 * v)
                x[v, 0], x[v, 1], x[v, 2], x[v, 3] = a, b, c, d
        else:
            for v in unroll(range(vectors)):
                for j in unroll(range(4)):
                    at = first + 128 * v + j
                    x[v, j] = input.unchecked[at] if at < length else 0

        of_warp = wide(0)
        for v in unroll(range(vectors)):
            for j in unroll(range(1, 4)):
                x[v, j] = x[v, j - 1] + x[v, j]
            through = x[v, 3]
            for step in unroll(range(5)):
                below = warp.shuffle_up(through, 1 << step)
                if lane >= 1 << step:
                    through = through + below
            below = warp.shuffle_up(through, 1)
            starts[v] = of_warp + below if lane > 0 else of_warp
            of_warp = of_warp + warp.shuffle(through, 31)
        if lane == 0:
            of_warps[warp_number] = of_warp
        thread.sync_threads()
        start, of_tile = wide(0), wide(0)
        for w in unroll(range(warps)):
            if w == warp_number:
                start = of_tile
            of_tile = of_tile + of_warps[w]
        if warp_number == 0:
            found = sum_before(told, tile, lane, of_tile)
            if lane == 0:
                before[0] = found
        thread.sync_threads()

        start = start + before[0]
        out = output.unchecked_mut
        for v in unroll(range(vectors)):
            at, base = first + 128 * v, start + starts[v]
            p, q, r, s = base, base + x[v, 0], base + x[v, 1], base + x[v, 2]
            if inclusive:
                p, q, r, s = q, r, s, base + x[v, 3]
            if by_fours:
                out.streaming.store4(at, p, q, r, s)
            else:
                if at < length:
                    out[at] = p
                if at + 1 < length:
                    out[at + 1] = q
                if at + 2 < length:
                    out[at + 2] = r
                if at + 3 < length:
                    out[at + 3] = s

    return scan


def _words(wide: Any) -> tuple[Any, Any]:
    """Returns two device functions: ``tell`` publishes a tile's flag and its sum, of the type ``wide``; ``listen``
    reads both."""
    one, unsigned, floating = wide.dtype.itemsize == 4, u32 if wide.dtype.itemsize == 4 else u64, wide in (f32, f64)

    @device
    def bits_of_float(value: Any) -> u64:
        return intrinsics.to_bits(value)

    @device
    def bits_of_integer(value: Any) -> u64:
        return unsigned(value)

    @device
    def float_of_bits(bits: u64) -> Any:
        return intrinsics.from_bits(unsigned(bits))

    @device
    def integer_of_bits(bits: u64) -> Any:
        return wide(bits)

    to_bits, of_bits = (bits_of_float, float_of_bits) if floating else (bits_of_integer, integer_of_bits)

    @device
    def tell(told: AtomicSlice[u64], tile: i64, flag: i64, value: Any) -> None:
        bits, marked = to_bits(value), u64(flag) << 32
        if one:
            told.store(1 + tile, marked | bits)
        else:
            told.store(1 + 2 * tile, marked | (bits & 0xFFFFFFFF))
            told.store(2 + 2 * tile, marked | (bits >> 32))

    @device
    def listen(told: AtomicSlice[u64], tile: i64) -> tuple[i64, Any]:
        """Returns the flag and the sum that a tile has published. The flag is 0 if the tile has published no sum yet,
        or if the two words that were read belong to different sums."""
        if one:
            word = told.load(1 + tile)
            return word >> 32, of_bits(word & 0xFFFFFFFF)
        low, high = told.load(1 + 2 * tile), told.load(2 + 2 * tile)
        flag = low >> 32 if low >> 32 == high >> 32 else 0
        return flag, of_bits((low & 0xFFFFFFFF) | (high << 32))

    return tell, listen
