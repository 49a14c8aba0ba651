"""Row-wise functions of a matrix: ``softmax``, ``layer_norm`` and ``rms_norm``.

A row of up to 32768 elements is read once, computed in registers and written once. Up to 32 threads of a warp compute a
row of up to 1024 elements, and a block computes a wider row. A thread holds up to 32 elements, in eight vectors of
four. For f64 the limits are half as large: 16384, 512 and 16 elements. A row that is too wide for registers is read
once for each sum that is computed over it, and once more when the results are written.

A row runs along the last axis of the input, and the other axes enumerate the rows. To avoid overflow and cancellation,
``softmax`` first computes the greatest element and then sums the exponentials of the differences from it, both at once
for a row that is too wide for registers (an online softmax). ``layer_norm`` first computes the mean and then sums the
squares of the differences from the mean. f16, bf16 and f32 are computed in f32, with the GPU's fast exponentials. Their
relative error is about 1e-6, except for exponentials that are negligible in the sum. f64 uses the exact exponentials.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

from oxide import (
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
    fast,
    i64,
    intrinsics,
    kernel,
    thread,
    unroll,
    warp,
)

from .accumulators import accumulator
from .cooperative import block_sum
from .operand_checks import require_apart, require_same_shape
from .operands import Operand, with_boxes

T = TypeVar("T", f16, bf16, f32, f64)
E = TypeVar("E", f32, f64)

_INPUT_AND_OUTPUT = ("len(input) >= rows * width", "len(output) >= rows * width")

_REGISTERS = 64
"""The most registers of a thread. They are enough for a thread's elements, and few enough for a multiprocessor to work
on many rows at once."""

_Form: TypeAlias = Literal["whole", "aligned", "any"]
"""The form of rows. "aligned": a row consists of whole vectors, and each vector's address is a multiple of its size.
"whole": aligned, and the row has exactly as many elements as its threads hold, so that no column needs a check. "any":
all other rows."""

_THREADS = ((8, 1), (16, 1), (32, 8), (256, 8), (1024, 8))
"""Pairs of the number of threads for a row, and the most vectors of four elements that each of these threads may hold.
The first pair whose threads can hold a row is used. For f64 a thread holds half as many vectors, but at least one."""


def _block(threads: int, held: int) -> int:
    """Returns the number of threads of a block, for rows of ``threads`` threads that hold ``held`` vectors each. If a
    row has more than 32 threads, they are the whole block, because they add through shared memory. Otherwise a block
    computes several rows. Threads that hold one vector finish soon, so their blocks have 512 threads, and fewer blocks
    are started: softmax over rows of 128 takes 178.9 µs instead of 179.9 on an H100, where a copy takes 179.5."""
    return threads if threads > 32 else 512 if held == 1 else 128


def softmax(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output = exp(input - max) / sum(exp(input - max))`` over each row. Yields input and output.

    Input and output must have the same shape and the same dtype, f16, bf16, f32 or f64, and may be the same box. The
    result for an element of -inf, as masks use, is 0. A row of only -inf becomes NaN, and so does a row with a NaN or
    an inf, as in torch. Raises ``ValueError`` if the shapes differ, and ``ArgumentError`` for other dtypes and if the
    output overlaps the input without being the same memory.
    """

    def rows(x: DeviceBox, y: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        require_same_shape("softmax", input=x, output=y)
        count, width = shape_of("softmax", x)
        require_apart("softmax", y, "input", input=x)
        launched = _launch(_softmax, _softmax_wide, count, width, (x, y), (x, y))
        return launched.map(lambda done: (x, y))

    return with_boxes(rows, input, output)


def layer_norm(
    input: Operand, weight: Operand, bias: Operand, output: Operand, eps: float = 1e-5
) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output = (input - mean) / sqrt(variance + eps) * weight + bias`` over each row. The variance is the
    mean of the squared deviations from the row's mean, without Bessel's correction. Yields input, weight, bias and
    output.

    Output and input must have the same shape and may be the same box. Weight and bias must have as many elements as a
    row. All four must have the same dtype, f16, bf16, f32 or f64. A deviation beyond about 1e19 has an infinite square
    in f32, and the row's result is then the bias alone, as in torch. Raises ``ValueError`` for other shapes, and
    ``ArgumentError`` for other dtypes, for an output that shares memory with weight or bias, and for an output that
    overlaps the input without being the same memory.
    """

    def rows(x: DeviceBox, w: DeviceBox, b: DeviceBox, y: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        require_same_shape("layer_norm", input=x, output=y)
        count, width = shape_of("layer_norm", x, weight=w, bias=b)
        require_apart("layer_norm", y, "input", input=x, weight=w, bias=b)
        launched = _launch(
            _layer_norm, _layer_norm_wide, count, width, (accumulator(x.dtype)(eps), x, w, b, y), (x, w, b, y)
        )
        return launched.map(lambda done: (x, w, b, y))

    return with_boxes(rows, input, weight, bias, output)


def rms_norm(input: Operand, weight: Operand, output: Operand, eps: float = 1e-5) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output = input / sqrt(mean(input**2) + eps) * weight`` over each row. Yields input, weight and output.

    Shapes, dtypes and errors are those of ``layer_norm``. If the sum of a row's squares is infinite, the row's result
    is 0, as in torch.
    """

    def rows(x: DeviceBox, w: DeviceBox, y: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        require_same_shape("rms_norm", input=x, output=y)
        count, width = shape_of("rms_norm", x, weight=w)
        require_apart("rms_norm", y, "input", input=x, weight=w)
        return _launch(_rms_norm, _rms_norm_wide, count, width, (accumulator(x.dtype)(eps), x, w, y), (x, w, y)).map(
            lambda done: (x, w, y)
        )

    return with_boxes(rows, input, weight, output)


def shape_of(name: str, x: DeviceBox, **of_a_row: DeviceBox) -> tuple[int, int]:
    """Returns the number of rows and their width. Raises ``ValueError`` if the input has no axes, or if a box in
    ``of_a_row`` does not have exactly as many elements as a row."""
    if not x.shape:
        raise ValueError(f"{name}: input has no axes, so no rows; give it one")
    width = x.shape[-1]
    for parameter, box in of_a_row.items():
        if box.size != width:
            raise ValueError(f"{name}: {parameter} has {box.size} elements, and a row of the input has {width}")
    return math.prod(x.shape[:-1]), width


def _launch(
    narrow: Callable[[int, int, _Form, Any], Kernel],
    walking: Callable[[Any], Kernel],
    rows: int,
    width: int,
    arguments: tuple[Any, ...],
    boxes: tuple[DeviceBox, ...],
) -> DeviceOperation[tuple[Any, ...]]:
    """Launches a kernel for rows. If a row fits into registers, ``narrow`` makes the kernel. Otherwise ``walking``
    makes a kernel that reads each row several times."""
    itemsize, wide = boxes[0].dtype.itemsize, accumulator(boxes[0].dtype)
    aligned = width % 4 == 0 and all(box.ptr % min(16, 4 * itemsize) == 0 for box in boxes)
    for threads, most in _THREADS:
        held = max(1, -(-width // (4 * threads)))
        if held <= max(1, 4 * most // wide.dtype.itemsize):
            block = _block(threads, held)
            grid = max(1, -(-rows // (block // threads)))
            form: _Form = "whole" if aligned and width == 4 * threads * held else "aligned" if aligned else "any"
            return narrow(threads, held, form, wide)[grid, block](rows, width, *arguments)
    return walking(wide)[max(1, rows), 1024](rows, width, *arguments)


def _tools(threads: int, held: int, form: _Form, wide: Any) -> tuple[Any, ...]:
    """Returns the device functions ``row``, ``column``, ``load``, ``store``, ``total`` and ``greatest`` for rows that
    ``threads`` threads share. Each thread holds ``held`` groups of four elements. The elements of a group are
    neighbours, loaded and stored as a vector. If ``form`` is "any", they are instead ``threads`` columns apart, and are
    loaded and stored one by one."""
    aligned, whole = form != "any", form == "whole"
    in_block, steps = _block(threads, held) // threads, min(threads, 32).bit_length() - 1

    @device
    def row() -> i64:
        """Returns this thread's row."""
        return thread.block_idx.x * in_block + thread.thread_idx.x // threads if in_block > 1 else thread.block_idx.x

    @device
    def column(vector: i64, place: i64) -> i64:
        """Returns the column of element ``place`` in this thread's group ``vector``."""
        t = thread.thread_idx.x % threads
        return 4 * (vector * threads + t) + place if aligned else (4 * vector + place) * threads + t

    @device
    def load(values: Slice[T], start: i64, width: i64, vector: i64, fill: Any, once: bool_) -> Any:
        """Loads group ``vector`` of the row that begins at ``start``, with ``fill`` for elements past the row's end.
        ``once`` must be a constant: True if the row is not read again."""
        a, b, c, d = fill, fill, fill, fill
        if aligned:
            if whole or column(vector, 0) < width:
                if once:
                    p, q, r, s = values.unchecked.streaming.load4(start + column(vector, 0))
                else:
                    p, q, r, s = values.unchecked.load4(start + column(vector, 0))
                a, b, c, d = wide(p), wide(q), wide(r), wide(s)
        else:
            if column(vector, 0) < width:
                a = wide(values.unchecked[start + column(vector, 0)])
            if column(vector, 1) < width:
                b = wide(values.unchecked[start + column(vector, 1)])
            if column(vector, 2) < width:
                c = wide(values.unchecked[start + column(vector, 2)])
            if column(vector, 3) < width:
                d = wide(values.unchecked[start + column(vector, 3)])
        return a, b, c, d

    @device
    def store(values: DisjointSlice[T], start: i64, width: i64, vector: i64, a: Any, b: Any, c: Any, d: Any) -> None:
        """Stores ``a``, ``b``, ``c`` and ``d`` as group ``vector`` of the row that begins at ``start``, in the columns
        that ``load`` reads for this group. Elements past the row's end are not stored."""
        out = values.unchecked_mut
        if aligned:
            if whole or column(vector, 0) < width:
                out.streaming.store4(start + column(vector, 0), a, b, c, d)
        else:
            if column(vector, 0) < width:
                out[start + column(vector, 0)] = a
            if column(vector, 1) < width:
                out[start + column(vector, 1)] = b
            if column(vector, 2) < width:
                out[start + column(vector, 2)] = c
            if column(vector, 3) < width:
                out[start + column(vector, 3)] = d

    @device
    def total(value: Any, of_warps: SharedArray[Any]) -> Any:
        """Returns, in each of the row's threads, the sum of their values. ``of_warps`` is an array of 32 elements that
        nothing else uses."""
        for step in unroll(range(steps)):
            value += warp.shuffle_xor(value, 1 << (steps - 1 - step))
        if threads > 32:
            if thread.thread_idx.x % 32 == 0:
                of_warps[thread.thread_idx.x % threads // 32] = value
            thread.sync_threads()
            value = wide(0)
            for number in unroll(range(threads // 32)):
                value += of_warps[number]
        return value

    @device
    def greatest(value: Any, of_warps: SharedArray[Any]) -> Any:
        """Returns, in each of the row's threads, the greatest of their values. ``of_warps`` is as for ``total``."""
        for step in unroll(range(steps)):
            value = intrinsics.fmax(value, warp.shuffle_xor(value, 1 << (steps - 1 - step)))
        if threads > 32:
            if thread.thread_idx.x % 32 == 0:
                of_warps[thread.thread_idx.x % threads // 32] = value
            thread.sync_threads()
            value = of_warps[0]
            for number in unroll(range(1, threads // 32)):
                value = intrinsics.fmax(value, of_warps[number])
        return value

    return row, column, load, store, total, greatest


def _exponential(wide: Any) -> Callable[[Any], Any]:
    return fast.exp if wide is f32 else math.exp


@functools.cache
def _softmax(threads: int, held: int, form: _Form, wide: Any) -> Kernel:
    row, _, load, store, total, greatest = _tools(threads, held, form, wide)
    exponential = _exponential(wide)

    @kernel(max_registers=_REGISTERS, unchecked=form != "any", requires=_INPUT_AND_OUTPUT)
    def softmax(rows: i64, width: i64, input: Slice[T], output: DisjointSlice[T]) -> None:
        if row() >= rows:
            return
        start = row() * width
        x = LocalArray((held, 4), wide)
        most = wide(-math.inf)
        for v in unroll(range(held)):
            x[v, 0], x[v, 1], x[v, 2], x[v, 3] = load(input, start, width, v, wide(-math.inf), True)
        for v in unroll(range(held)):
            first, second = intrinsics.fmax(x[v, 0], x[v, 1]), intrinsics.fmax(x[v, 2], x[v, 3])
            most = intrinsics.fmax(most, intrinsics.fmax(first, second))
        most = greatest(most, SharedArray(32, wide))
        weight = wide(0)
        for v in unroll(range(held)):
            for j in unroll(range(4)):
                x[v, j] = exponential(x[v, j] - most)
                weight += x[v, j]
        factor = wide(1) / total(weight, SharedArray(32, wide))
        for v in unroll(range(held)):
            store(output, start, width, v, x[v, 0] * factor, x[v, 1] * factor, x[v, 2] * factor, x[v, 3] * factor)

    return softmax


@functools.cache
def _layer_norm(threads: int, held: int, form: _Form, wide: Any) -> Kernel:
    row, column, load, store, total, _ = _tools(threads, held, form, wide)
    whole = form == "whole"

    @kernel(
        max_registers=_REGISTERS,
        unchecked=form != "any",
        requires=(*_INPUT_AND_OUTPUT, "len(weight) >= width", "len(bias) >= width"),
    )
    def layer_norm(
        rows: i64,
        width: i64,
        eps: E,
        input: Slice[T],
        weight: Slice[T],
        bias: Slice[T],
        output: DisjointSlice[T],
    ) -> None:
        if row() >= rows:
            return
        start = row() * width
        x = LocalArray((held, 4), wide)
        sums = wide(0)
        for v in unroll(range(held)):
            x[v, 0], x[v, 1], x[v, 2], x[v, 3] = load(input, start, width, v, wide(0), True)
        for v in unroll(range(held)):
            sums += (x[v, 0] + x[v, 1]) + (x[v, 2] + x[v, 3])
        mean = total(sums, SharedArray(32, wide)) / wide(width)
        squares = wide(0)
        for v in unroll(range(held)):
            for j in unroll(range(4)):
                x[v, j] -= mean
                squares += x[v, j] * x[v, j] if whole or column(v, j) < width else wide(0)
        factor = wide(1) / math.sqrt(total(squares, SharedArray(32, wide)) / wide(width) + eps)
        for v in unroll(range(held)):
            w0, w1, w2, w3 = load(weight, 0, width, v, wide(0), False)
            b0, b1, b2, b3 = load(bias, 0, width, v, wide(0), False)
            store(
                output,
                start,
                width,
                v,
                x[v, 0] * factor * w0 + b0,
                x[v, 1] * factor * w1 + b1,
                x[v, 2] * factor * w2 + b2,
                x[v, 3] * factor * w3 + b3,
            )

    return layer_norm


@functools.cache
def _rms_norm(threads: int, held: int, form: _Form, wide: Any) -> Kernel:
    row, _, load, store, total, _ = _tools(threads, held, form, wide)

    @kernel(max_registers=_REGISTERS, unchecked=form != "any", requires=(*_INPUT_AND_OUTPUT, "len(weight) >= width"))
    def rms_norm(rows: i64, width: i64, eps: E, input: Slice[T], weight: Slice[T], output: DisjointSlice[T]) -> None:
        if row() >= rows:
            return
        start = row() * width
        x = LocalArray((held, 4), wide)
        squares = wide(0)
        for v in unroll(range(held)):
            x[v, 0], x[v, 1], x[v, 2], x[v, 3] = load(input, start, width, v, wide(0), True)
        for v in unroll(range(held)):
            for j in unroll(range(4)):
                squares += x[v, j] * x[v, j]
        factor = wide(1) / math.sqrt(total(squares, SharedArray(32, wide)) / wide(width) + eps)
        for v in unroll(range(held)):
            w0, w1, w2, w3 = load(weight, 0, width, v, wide(0), False)
            store(
                output,
                start,
                width,
                v,
                x[v, 0] * factor * w0,
                x[v, 1] * factor * w1,
                x[v, 2] * factor * w2,
                x[v, 3] * factor * w3,
            )

    return rms_norm


# Rows too wide for registers


@functools.cache
def _softmax_wide(wide: Any) -> Kernel:
    exponential = _exponential(wide)

    @kernel(requires=_INPUT_AND_OUTPUT)
    def softmax(rows: i64, width: i64, input: Slice[T], output: DisjointSlice[T]) -> None:
        start, t, threads = thread.block_idx.x * width, thread.thread_idx.x, thread.block_dim.x
        if thread.block_idx.x >= rows:
            return
        # An online softmax: the exponentials in the sum are relative to the greatest element so far, and a new greatest
        # element scales the sum down.
        most, weight = wide(-math.inf), wide(0)
        for i in range(t, width, threads):
            x = wide(input.unchecked[start + i])
            if x > most:
                weight = weight * exponential(most - x)
                most = x
            # An element of -inf adds 0. It is skipped, because its difference from the greatest element is NaN until a
            # greater element has been seen.
            if x != wide(-math.inf):
                weight += exponential(x - most)
        of_row = greatest_wide(most)
        if most < of_row:
            weight = weight * exponential(most - of_row)
        factor = wide(1) / block_sum(weight, wide)
        out = output.unchecked_mut
        for i in range(t, width, threads):
            out[start + i] = exponential(input.unchecked[start + i] - of_row) * factor

    return softmax


@functools.cache
def _layer_norm_wide(wide: Any) -> Kernel:
    @kernel(requires=(*_INPUT_AND_OUTPUT, "len(weight) >= width", "len(bias) >= width"))
    def layer_norm(
        rows: i64,
        width: i64,
        eps: E,
        input: Slice[T],
        weight: Slice[T],
        bias: Slice[T],
        output: DisjointSlice[T],
    ) -> None:
        start, t, threads = thread.block_idx.x * width, thread.thread_idx.x, thread.block_dim.x
        if thread.block_idx.x >= rows:
            return
        sums = wide(0)
        for i in range(t, width, threads):
            sums += input.unchecked[start + i]
        mean = block_sum(sums, wide) / wide(width)
        squares = wide(0)
        for i in range(t, width, threads):
            distance = input.unchecked[start + i] - mean
            squares += distance * distance
        factor = wide(1) / math.sqrt(block_sum(squares, wide) / wide(width) + eps)
        out = output.unchecked_mut
        for i in range(t, width, threads):
            out[start + i] = (input.unchecked[start + i] - mean) * factor * weight[i] + bias[i]

    return layer_norm


@functools.cache
def _rms_norm_wide(wide: Any) -> Kernel:
    @kernel(requires=(*_INPUT_AND_OUTPUT, "len(weight) >= width"))
    def rms_norm(rows: i64, width: i64, eps: E, input: Slice[T], weight: Slice[T], output: DisjointSlice[T]) -> None:
        start, t, threads = thread.block_idx.x * width, thread.thread_idx.x, thread.block_dim.x
        if thread.block_idx.x >= rows:
            return
        squares = wide(0)
        for i in range(t, width, threads):
            x = wide(input.unchecked[start + i])
            squares += x * x
        factor = wide(1) / math.sqrt(block_sum(squares, wide) / wide(width) + eps)
        out = output.unchecked_mut
        for i in range(t, width, threads):
            out[start + i] = input.unchecked[start + i] * factor * weight[i]

    return rms_norm


@device
def greatest_wide(value: Any) -> Any:
    """Returns the greatest of the block's 1024 values, in each thread."""
    of_warps = SharedArray(32, type(value))
    in_warp = warp.reduce_max(value)
    if thread.thread_idx.x % 32 == 0:
        of_warps[thread.thread_idx.x // 32 % 32] = in_warp
    thread.sync_threads()
    value = of_warps[0]
    for number in unroll(range(1, 32)):
        value = intrinsics.fmax(value, of_warps[number])
    return value
