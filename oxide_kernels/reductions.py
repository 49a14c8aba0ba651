"""Reductions to one number: ``reduce_sum``, ``reduce_max``, ``argmax``, ``dot``.

Each function takes two launches. In the first, up to 1056 blocks, enough to fill the device, share the input, and each
stores a partial result. In the second, a single block combines the partial results, always in the same order. So a
result is the same in every run. A float sum is nearly as exact as a pairwise sum, because each thread adds up only a
short part of the input.

Elements are f16, bf16, f32, f64, i32, u32, i64 or u64. Sums and dot products are computed in f32, or in f64 for f64.
Integers are added in i64 or u64, and the result has this dtype, as in NumPy. For floats, the result has the elements'
dtype: for f16 and bf16 it is rounded at the end. An output is a box of one element; any other box raises
``ValueError``.
"""

# The launches choose the type of sums by that of the elements; mypy tries every pair of the two.
# mypy: disable-error-code="assignment"

from __future__ import annotations

import functools
import math
from typing import Any, TypeVar

import numpy as np

from oxide import (
    ArgumentError,
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    Kernel,
    SharedArray,
    Slice,
    bf16,
    bool_,
    device,
    empty,
    f16,
    f32,
    f64,
    i32,
    i64,
    kernel,
    thread,
    u32,
    u64,
    unroll,
    warp,
    zip,
)

from .accumulators import accumulator, total, total_dtype
from .cooperative import block_sum
from .operand_checks import called, require_one_element, require_same_shape
from .operands import Operand, box_of, with_boxes

T = TypeVar("T", f16, bf16, f32, f64, i32, u32, i64, u64)
A = TypeVar("A", f32, f64, i32, u32, i64, u64)
"""The type of the blocks' partial results."""

BLOCK = 256
_LAST_BLOCK = 1024
_MOST_BLOCKS = 1056


def reduce_sum(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output[0] = sum(input)``, which is 0 if the input is empty. The output is i64 for signed and u64 for
    unsigned integers, otherwise of the input's dtype. Yields input and output. Raises ``ArgumentError`` for any other
    dtype."""

    def both(x: DeviceBox, result: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        _check("reduce_sum", x, result, total_dtype(x.dtype))
        return _in_two(_partial_sums, _sum_of_partials, total(x.dtype), x, result)

    return with_boxes(both, input, output)


def reduce_max(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output[0] = max(input)``, which is NaN if any element is NaN. The output has the input's dtype. Yields
    input and output.

    Raises ``ValueError`` for an empty input, which has no greatest element, and for an output of more or fewer elements
    than one, and ``ArgumentError`` if the output has another dtype.
    """

    def both(x: DeviceBox, result: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        _check("reduce_max", x, result, x.dtype)
        wide = accumulator(x.dtype)
        return _in_two(*_maxima(wide), wide, x, result)

    return with_boxes(both, _not_empty("reduce_max", input), output)


def argmax(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output[0] =`` the index of the first greatest element of ``input``, an i64. A NaN counts as the
    greatest, as in NumPy. Yields input and output.

    Raises ``ValueError`` for an empty input, which has no greatest element, and for an output of more or fewer elements
    than one, and ``ArgumentError`` if the output is not of i64.
    """

    def both(x: DeviceBox, result: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        _check("argmax", x, result, np.dtype(np.int64))
        blocks = _blocks(x)
        return (
            zip(empty(blocks, accumulator(x.dtype)), empty(blocks, i64))
            .and_then(lambda scratch: _partial_argmax[blocks, BLOCK](x, *scratch))
            .and_then(lambda done: _argmax_of_partials[1, BLOCK](done[1], done[2], result))
            .map(lambda done: (x, result))
        )

    return with_boxes(both, _not_empty("argmax", input), output)


def dot(a: Operand, b: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output[0] = sum(a[i] * b[i])``. The output must have the dtype that ``reduce_sum`` requires for an
    input like ``a``. Yields the three boxes. Raises ``ValueError`` if the shapes differ, ``ArgumentError`` if the
    dtypes differ."""

    def both(x: DeviceBox, y: DeviceBox, result: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        require_same_shape("dot", a=x, b=y)
        _check("dot", x, result, total_dtype(x.dtype))
        blocks = _blocks(x)
        return (
            empty(blocks, total(x.dtype))
            .and_then(lambda scratch: _partial_dots[blocks, BLOCK](x, y, scratch))
            .and_then(lambda done: _sum_of_partials[1, _LAST_BLOCK](done[2], result))
            .map(lambda done: (x, y, result))
        )

    return with_boxes(both, a, b, output)


def _not_empty(name: str, input: Operand) -> Operand:
    def check(box: DeviceBox) -> DeviceBox:
        if box.size == 0:
            raise ValueError(f"{name}: the input has no elements, so none of them is the greatest")
        return box

    return input.map(lambda found: check(box_of(found))) if isinstance(input, DeviceOperation) else check(box_of(input))


def _blocks(x: DeviceBox) -> int:
    return max(1, min(_MOST_BLOCKS, -(-x.size // (BLOCK * 16))))


def _check(name: str, x: DeviceBox, result: DeviceBox, dtype: np.dtype[Any]) -> None:
    require_one_element(name, result)
    if result.dtype != dtype:
        raise ArgumentError(
            f"{name}: the output is {result.dtype}, and of an input of {x.dtype} it is {dtype}; make it with "
            f"zeros((), np.{dtype})"
        )


def _in_two(parts: Kernel, whole: Kernel, wide: Any, x: DeviceBox, result: DeviceBox) -> DeviceOperation[Any]:
    blocks = _blocks(x)
    return (
        empty(blocks, wide)
        .and_then(lambda scratch: parts[blocks, BLOCK](x, scratch))
        .and_then(lambda done: whole[1, _LAST_BLOCK](done[1], result))
        .map(lambda done: (x, result))
    )


@kernel
@called("reduce_sum")
def _partial_sums(input: Slice[T], parts: DisjointSlice[A]) -> None:
    first, stride = thread.index_1d().get(), thread.grid_dim.x * BLOCK
    s0, s1, s2, s3 = parts.dtype(0), parts.dtype(0), parts.dtype(0), parts.dtype(0)
    done = 0
    if input.is_aligned(4):
        # Each round reads four vectors, so that their loads overlap.
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
    total = block_sum((s0 + s1) + (s2 + s3), parts.dtype)
    if thread.thread_idx.x == 0:
        parts.unchecked_mut[thread.block_idx.x] = total


@kernel
@called("reduce_sum")
def _sum_of_partials(parts: Slice[A], output: DisjointSlice[T]) -> None:
    total = parts.dtype(0)
    for i in range(thread.thread_idx.x, len(parts), thread.block_dim.x):
        total += parts[i]
    total = block_sum(total, parts.dtype)
    index = thread.index_1d()
    if index.get() == 0:
        result = output.get_mut(index)
        if result is not None:
            result.value = total


@kernel(requires=("len(a) == len(b)",))
@called("dot")
def _partial_dots(a: Slice[T], b: Slice[T], parts: DisjointSlice[A]) -> None:
    first, stride = thread.index_1d().get(), thread.grid_dim.x * BLOCK
    s0, s1, s2, s3 = parts.dtype(0), parts.dtype(0), parts.dtype(0), parts.dtype(0)
    done = 0
    if a.is_aligned(4) and b.is_aligned(4):
        rounds = len(a) // 4 // (2 * stride)
        for turn in range(rounds):
            for i in unroll(range(2)):
                at = 4 * (first + (2 * turn + i) * stride)
                a0, a1, a2, a3 = a.unchecked.load4(at)
                b0, b1, b2, b3 = b.unchecked.load4(at)
                s0 += parts.dtype(a0) * b0
                s1 += parts.dtype(a1) * b1
                s2 += parts.dtype(a2) * b2
                s3 += parts.dtype(a3) * b3
        done = 8 * rounds * stride
    for i in range(done + first, len(a), stride):
        s0 += parts.dtype(a[i]) * b[i]
    total = block_sum((s0 + s1) + (s2 + s3), parts.dtype)
    if thread.thread_idx.x == 0:
        parts.unchecked_mut[thread.block_idx.x] = total


@functools.cache
def _maxima(wide: Any) -> tuple[Kernel, Kernel]:
    """Returns the two kernels of ``reduce_max``. Their partial results have the type ``wide``."""
    least = -math.inf if wide in (f32, f64) else int(np.iinfo(wide.dtype).min)
    invalid = math.nan if wide in (f32, f64) else 0

    @device
    def block_greatest(value: A, some_nan: bool_) -> Any:
        """Returns, in every thread, the greatest of the block's values, or NaN if ``some_nan`` is true in any
        thread."""
        of_warps = SharedArray(32, wide)
        in_warp = warp.reduce_max(value)
        if warp.lane_id() == 0:
            of_warps[warp.warp_id()] = in_warp
        some_nan = thread.sync_threads_or(some_nan)
        greatest = of_warps[0]
        for number in range(1, thread.block_dim.x // 32):
            if of_warps[number] > greatest:
                greatest = of_warps[number]
        return wide(invalid) if some_nan else greatest

    @kernel
    @called("reduce_max")
    def _partial_maxima(input: Slice[T], parts: DisjointSlice[A]) -> None:
        first, stride = thread.index_1d().get(), thread.grid_dim.x * BLOCK
        greatest, some_nan = wide(least), False
        done = 0
        if input.is_aligned(4):
            rounds = len(input) // 4 // (4 * stride)
            for turn in range(rounds):
                for i in unroll(range(4)):
                    p, q, r, s = input.unchecked.load4(4 * (first + (4 * turn + i) * stride))
                    a, b, c, d = wide(p), wide(q), wide(r), wide(s)
                    some_nan = some_nan or a != a or b != b or c != c or d != d
                    greatest = max(max(max(a, b), max(c, d)), greatest)
            done = 16 * rounds * stride
        for i in range(done + first, len(input), stride):
            a = wide(input[i])
            some_nan = some_nan or a != a
            if a > greatest:
                greatest = a
        greatest = block_greatest(greatest, some_nan)
        if thread.thread_idx.x == 0:
            parts.unchecked_mut[thread.block_idx.x] = greatest

    @kernel
    @called("reduce_max")
    def _max_of_partials(parts: Slice[A], output: DisjointSlice[T]) -> None:
        greatest, some_nan = wide(least), False
        for i in range(thread.thread_idx.x, len(parts), thread.block_dim.x):
            some_nan = some_nan or parts[i] != parts[i]
            if parts[i] > greatest:
                greatest = parts[i]
        greatest = block_greatest(greatest, some_nan)
        index = thread.index_1d()
        if index.get() == 0:
            result = output.get_mut(index)
            if result is not None:
                result.value = greatest

    return _partial_maxima, _max_of_partials


@device
def beats(x: A, at: i64, y: A, other: i64) -> bool_:
    """Returns whether the element ``x`` at index ``at`` comes before ``y`` at index ``other`` for ``argmax``: it is
    greater, or it is equal and has the lower index. A NaN counts as greater than any number and as equal to another
    NaN."""
    if x != x:
        return y == y or at < other
    return x > y or (x == y and at < other)


@device
def block_first_greatest(value: A, at: i64) -> tuple[A, i64]:
    """Returns the greatest of the block's values, and the index ``at`` that was passed with it. If several threads pass
    the greatest value, returns the least of their indices. The block must have ``BLOCK`` threads."""
    values, places = SharedArray(BLOCK, type(value)), SharedArray(BLOCK, i64)
    t = thread.thread_idx.x
    values[t] = value
    places[t] = at
    half = BLOCK // 2
    while half > 0:
        thread.sync_threads()
        if t < half and beats(values[t + half], places[t + half], values[t], places[t]):
            values[t] = values[t + half]
            places[t] = places[t + half]
        half = half // 2
    thread.sync_threads()
    return values[0], places[0]


@kernel
@called("argmax")
def _partial_argmax(input: Slice[T], values: DisjointSlice[A], places: DisjointSlice[i64]) -> None:
    first = thread.index_1d().get()
    place = min(first, len(input) - 1)
    greatest = values.dtype(input[place])
    for i in range(first, len(input), thread.grid_dim.x * BLOCK):
        value = values.dtype(input[i])
        if beats(value, i, greatest, place):
            greatest = value
            place = i
    greatest, place = block_first_greatest(greatest, place)
    if thread.thread_idx.x == 0:
        values.unchecked_mut[thread.block_idx.x] = greatest
        places.unchecked_mut[thread.block_idx.x] = place


@kernel
@called("argmax")
def _argmax_of_partials(values: Slice[A], places: Slice[i64], output: DisjointSlice[i64]) -> None:
    first = min(thread.thread_idx.x, len(values) - 1)
    greatest, place = values[first], places[first]
    for i in range(thread.thread_idx.x, len(values), BLOCK):
        if beats(values[i], places[i], greatest, place):
            greatest = values[i]
            place = places[i]
    greatest, place = block_first_greatest(greatest, place)
    index = thread.index_1d()
    if index.get() == 0:
        result = output.get_mut(index)
        if result is not None:
            result.value = place
