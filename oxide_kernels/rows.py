"""Rows of a matrix, each by itself: ``softmax``, ``layer_norm`` and ``rms_norm``.

Each element is read once and written once, and what comes between happens in registers: a row of up to 1024 elements
belongs to a warp, one of up to 32768 to a block, and a thread holds up to 32 of them, as eight vectors. A wider row is
walked over once for each sum and once more to write it.

A row is the last axis of the input; the other axes are rows. The sums are those of the textbook, in two steps: first
the mean or the greatest, then the squares or the exponentials of the distances from it, which loses nothing to
cancellation. The exponentials are the GPU's fast ones: right to some 1e-6 of each at distances that count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    Kernel,
    LocalArray,
    SharedArray,
    Slice,
    device,
    f32,
    fast,
    i64,
    kernel,
    thread,
    unroll,
    warp,
)

from .cooperative import block_sum
from .operands import Operand, with_boxes

_INPUT_AND_OUTPUT = ("len(input) >= rows * width", "len(output) >= rows * width")

_REGISTERS = 64
"""So many that a thread's elements stay in them, and a multiprocessor has enough rows in flight."""

_WARPS = 4
"""How many rows a block takes, where a row is a warp's."""


def softmax(input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """``output = exp(input - max) / sum(exp(input - max))`` over each row, float32. Yields input and output.

    The two have the same shape and may be the same box. Raises ``ValueError`` for other shapes.
    """

    def rows(x: DeviceBox, y: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        count, width = _shape("softmax", x, y)
        launched = _launch(_softmax, _softmax_wide, count, width, (x, y), (x, y))
        return launched.map(lambda done: (x, y))

    return with_boxes(rows, input, output)


def layer_norm(
    input: Operand, weight: Operand, bias: Operand, output: Operand, eps: float = 1e-5
) -> DeviceOperation[tuple[Any, ...]]:
    """``output = (input - mean) / sqrt(variance + eps) * weight + bias`` over each row, float32; the variance is that
    of all elements, divided by their number. Yields input, weight, bias and output.

    Output and input have the same shape and may be the same box; weight and bias have the length of a row. Raises
    ``ValueError`` for other shapes.
    """

    def rows(x: DeviceBox, w: DeviceBox, b: DeviceBox, y: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        count, width = _shape("layer_norm", x, y, weight=w, bias=b)
        launched = _launch(_layer_norm, _layer_norm_wide, count, width, (eps, x, w, b, y), (x, w, b, y))
        return launched.map(lambda done: (x, w, b, y))

    return with_boxes(rows, input, weight, bias, output)


def rms_norm(input: Operand, weight: Operand, output: Operand, eps: float = 1e-5) -> DeviceOperation[tuple[Any, ...]]:
    """``output = input / sqrt(mean(input**2) + eps) * weight`` over each row, float32. Yields input, weight and output.

    Shapes and errors are those of ``layer_norm``.
    """

    def rows(x: DeviceBox, w: DeviceBox, y: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        count, width = _shape("rms_norm", x, y, weight=w)
        return _launch(_rms_norm, _rms_norm_wide, count, width, (eps, x, w, y), (x, w, y)).map(lambda done: (x, w, y))

    return with_boxes(rows, input, weight, output)


def _shape(name: str, x: DeviceBox, y: DeviceBox, **of_a_row: DeviceBox) -> tuple[int, int]:
    """How many rows there are, and how wide they are."""
    if not x.shape or x.shape != y.shape:
        raise ValueError(
            f"{name}: input has shape {x.shape} and output {y.shape}; both need the same, of an axis or more"
        )
    width = x.shape[-1]
    for parameter, box in of_a_row.items():
        if box.size != width:
            raise ValueError(f"{name}: {parameter} has {box.size} elements, and a row of the input has {width}")
    return math.prod(x.shape[:-1]), width


def _launch(
    narrow: Callable[[int, int, bool], Kernel],
    wide: Callable[[], Kernel],
    rows: int,
    width: int,
    arguments: tuple[Any, ...],
    boxes: tuple[DeviceBox, ...],
) -> DeviceOperation[tuple[Any, ...]]:
    """The launch of the kernel that suits rows of this width."""
    aligned = width % 4 == 0 and all(box.ptr % 16 == 0 for box in boxes)
    for threads in (32, 256, 1024):
        if width <= 32 * threads:
            held = max(1, -(-width // (4 * threads)))
            per_block = _WARPS if threads == 32 else 1
            grid, block = max(1, -(-rows // per_block)), threads * per_block
            return narrow(threads, held, aligned)[grid, block](rows, width, *arguments)
    return wide()[max(1, rows), 1024](rows, width, *arguments)


def _tools(threads: int, held: int, aligned: bool) -> tuple[Any, ...]:
    """Device functions for rows that belong to ``threads`` threads, each of which holds ``held`` times four elements:
    neighbours, to be moved as vectors, if the rows are ``aligned``."""

    @device
    def row() -> i64:
        """This thread's row."""
        return thread.block_idx.x * _WARPS + thread.thread_idx.x // 32 if threads == 32 else thread.block_idx.x

    @device
    def column(vector: i64, place: i64) -> i64:
        """Where one of the elements that this thread holds is in its row."""
        t = thread.thread_idx.x % threads
        return 4 * (vector * threads + t) + place if aligned else (4 * vector + place) * threads + t

    @device
    def load(values: Slice[f32], start: i64, width: i64, vector: i64, fill: f32) -> tuple[f32, f32, f32, f32]:
        """One vector of the row that begins at ``start``, and ``fill`` where the row has no more."""
        a, b, c, d = fill, fill, fill, fill
        if aligned:
            if column(vector, 0) < width:
                a, b, c, d = values.unchecked.load4(start + column(vector, 0))
        else:
            if column(vector, 0) < width:
                a = values.unchecked[start + column(vector, 0)]
            if column(vector, 1) < width:
                b = values.unchecked[start + column(vector, 1)]
            if column(vector, 2) < width:
                c = values.unchecked[start + column(vector, 2)]
            if column(vector, 3) < width:
                d = values.unchecked[start + column(vector, 3)]
        return a, b, c, d

    @device
    def store(values: DisjointSlice[f32], start: i64, width: i64, vector: i64, a: f32, b: f32, c: f32, d: f32) -> None:
        """Writes what ``load`` reads."""
        out = values.unchecked_mut
        if aligned:
            if column(vector, 0) < width:
                out.store4(start + column(vector, 0), a, b, c, d)
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
    def total(value: f32, of_warps: SharedArray[f32]) -> f32:
        """The sum over the row's threads, in each of them. ``of_warps`` is an array of 32 that nothing else uses."""
        for step in unroll(range(5)):
            value += warp.shuffle_xor(value, 16 >> step)
        if threads > 32:
            if thread.thread_idx.x % 32 == 0:
                of_warps[thread.thread_idx.x % threads // 32] = value
            thread.sync_threads()
            value = f32(0)
            for number in unroll(range(threads // 32)):
                value += of_warps[number]
        return value

    @device
    def greatest(value: f32, of_warps: SharedArray[f32]) -> f32:
        """The greatest over the row's threads, in each of them; ``of_warps`` as for ``total``."""
        for step in unroll(range(5)):
            value = max(value, warp.shuffle_xor(value, 16 >> step))
        if threads > 32:
            if thread.thread_idx.x % 32 == 0:
                of_warps[thread.thread_idx.x % threads // 32] = value
            thread.sync_threads()
            value = of_warps[0]
            for number in unroll(range(1, threads // 32)):
                value = max(value, of_warps[number])
        return value

    return row, column, load, store, total, greatest


@functools.cache
def _softmax(threads: int, held: int, aligned: bool) -> Kernel:
    row, _, load, store, total, greatest = _tools(threads, held, aligned)

    @kernel(max_registers=_REGISTERS, unchecked=aligned, requires=_INPUT_AND_OUTPUT)
    def softmax(rows: i64, width: i64, input: Slice[f32], output: DisjointSlice[f32]) -> None:
        if row() >= rows:
            return
        start = row() * width
        x = LocalArray((held, 4), f32)
        most = f32(-math.inf)
        for v in unroll(range(held)):
            x[v, 0], x[v, 1], x[v, 2], x[v, 3] = load(input, start, width, v, f32(-math.inf))
            most = max(most, max(max(x[v, 0], x[v, 1]), max(x[v, 2], x[v, 3])))
        most = greatest(most, SharedArray(32, f32))
        weight = f32(0)
        for v in unroll(range(held)):
            for j in unroll(range(4)):
                x[v, j] = fast.exp(x[v, j] - most)
                weight += x[v, j]
        factor = f32(1) / total(weight, SharedArray(32, f32))
        for v in unroll(range(held)):
            store(output, start, width, v, x[v, 0] * factor, x[v, 1] * factor, x[v, 2] * factor, x[v, 3] * factor)

    return softmax


@functools.cache
def _layer_norm(threads: int, held: int, aligned: bool) -> Kernel:
    row, column, load, store, total, _ = _tools(threads, held, aligned)

    @kernel(
        max_registers=_REGISTERS,
        unchecked=aligned,
        requires=(*_INPUT_AND_OUTPUT, "len(weight) >= width", "len(bias) >= width"),
    )
    def layer_norm(
        rows: i64,
        width: i64,
        eps: f32,
        input: Slice[f32],
        weight: Slice[f32],
        bias: Slice[f32],
        output: DisjointSlice[f32],
    ) -> None:
        if row() >= rows:
            return
        start = row() * width
        x = LocalArray((held, 4), f32)
        sums = f32(0)
        for v in unroll(range(held)):
            x[v, 0], x[v, 1], x[v, 2], x[v, 3] = load(input, start, width, v, f32(0))
            sums += (x[v, 0] + x[v, 1]) + (x[v, 2] + x[v, 3])
        mean = total(sums, SharedArray(32, f32)) / f32(width)
        squares = f32(0)
        for v in unroll(range(held)):
            for j in unroll(range(4)):
                x[v, j] -= mean
                squares += x[v, j] * x[v, j] if column(v, j) < width else f32(0)
        factor = f32(1) / math.sqrt(total(squares, SharedArray(32, f32)) / f32(width) + eps)
        for v in unroll(range(held)):
            w0, w1, w2, w3 = load(weight, 0, width, v, f32(0))
            b0, b1, b2, b3 = load(bias, 0, width, v, f32(0))
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
def _rms_norm(threads: int, held: int, aligned: bool) -> Kernel:
    row, _, load, store, total, _ = _tools(threads, held, aligned)

    @kernel(max_registers=_REGISTERS, unchecked=aligned, requires=(*_INPUT_AND_OUTPUT, "len(weight) >= width"))
    def rms_norm(
        rows: i64, width: i64, eps: f32, input: Slice[f32], weight: Slice[f32], output: DisjointSlice[f32]
    ) -> None:
        if row() >= rows:
            return
        start = row() * width
        x = LocalArray((held, 4), f32)
        squares = f32(0)
        for v in unroll(range(held)):
            x[v, 0], x[v, 1], x[v, 2], x[v, 3] = load(input, start, width, v, f32(0))
            for j in unroll(range(4)):
                squares += x[v, j] * x[v, j]
        factor = f32(1) / math.sqrt(total(squares, SharedArray(32, f32)) / f32(width) + eps)
        for v in unroll(range(held)):
            w0, w1, w2, w3 = load(weight, 0, width, v, f32(0))
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


# Rows that are too wide to be held


@functools.cache
def _softmax_wide() -> Kernel:
    @kernel(requires=_INPUT_AND_OUTPUT)
    def softmax(rows: i64, width: i64, input: Slice[f32], output: DisjointSlice[f32]) -> None:
        start, t, threads = thread.block_idx.x * width, thread.thread_idx.x, thread.block_dim.x
        if thread.block_idx.x >= rows:
            return
        # The sum is of exponentials of the distance from the greatest so far: a greater one scales it down.
        most, weight = f32(-math.inf), f32(0)
        for i in range(t, width, threads):
            x = input.unchecked[start + i]
            if x > most:
                weight = weight * fast.exp(most - x)
                most = x
            weight += fast.exp(x - most)
        # A thread with nothing but -inf has no distance to speak of: it counts as 0, unless all are like it.
        of_row = greatest_wide(most)
        if most < of_row:
            weight = f32(0) if most == f32(-math.inf) else weight * fast.exp(most - of_row)
        factor = f32(1) / block_sum(weight, f32)
        out = output.unchecked_mut
        for i in range(t, width, threads):
            out[start + i] = fast.exp(input.unchecked[start + i] - of_row) * factor

    return softmax


@functools.cache
def _layer_norm_wide() -> Kernel:
    @kernel(requires=(*_INPUT_AND_OUTPUT, "len(weight) >= width", "len(bias) >= width"))
    def layer_norm(
        rows: i64,
        width: i64,
        eps: f32,
        input: Slice[f32],
        weight: Slice[f32],
        bias: Slice[f32],
        output: DisjointSlice[f32],
    ) -> None:
        start, t, threads = thread.block_idx.x * width, thread.thread_idx.x, thread.block_dim.x
        if thread.block_idx.x >= rows:
            return
        sums = f32(0)
        for i in range(t, width, threads):
            sums += input.unchecked[start + i]
        mean = block_sum(sums, f32) / f32(width)
        squares = f32(0)
        for i in range(t, width, threads):
            distance = input.unchecked[start + i] - mean
            squares += distance * distance
        factor = f32(1) / math.sqrt(block_sum(squares, f32) / f32(width) + eps)
        out = output.unchecked_mut
        for i in range(t, width, threads):
            out[start + i] = (input.unchecked[start + i] - mean) * factor * weight[i] + bias[i]

    return layer_norm


@functools.cache
def _rms_norm_wide() -> Kernel:
    @kernel(requires=(*_INPUT_AND_OUTPUT, "len(weight) >= width"))
    def rms_norm(
        rows: i64, width: i64, eps: f32, input: Slice[f32], weight: Slice[f32], output: DisjointSlice[f32]
    ) -> None:
        start, t, threads = thread.block_idx.x * width, thread.thread_idx.x, thread.block_dim.x
        if thread.block_idx.x >= rows:
            return
        squares = f32(0)
        for i in range(t, width, threads):
            squares += input.unchecked[start + i] * input.unchecked[start + i]
        factor = f32(1) / math.sqrt(block_sum(squares, f32) / f32(width) + eps)
        out = output.unchecked_mut
        for i in range(t, width, threads):
            out[start + i] = input.unchecked[start + i] * factor * weight[i]

    return rms_norm


@device
def greatest_wide(value: f32) -> f32:
    """The greatest of the block's 1024 values, in each thread."""
    of_warps = SharedArray(32, f32)
    in_warp = warp.reduce_max(value)
    if thread.thread_idx.x % 32 == 0:
        of_warps[thread.thread_idx.x // 32 % 32] = in_warp
    thread.sync_threads()
    value = of_warps[0]
    for number in unroll(range(1, 32)):
        value = max(value, of_warps[number])
    return value
