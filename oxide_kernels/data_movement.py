"""Data movement: ``transpose`` and ``gather``, for integers and real floats of 8 to 64 bits. ``widened`` and ``split``
make the copies of matrices that ``matmul`` needs: ``widened`` pads rows, and ``split`` splits an f32 matrix into two of
tf32."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    DisjointSlice2,
    Kernel,
    SharedArray,
    Slice,
    Slice2,
    bf16,
    empty,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    kernel,
    tensor,
    thread,
    u8,
    u16,
    u32,
    u64,
    unroll,
)

from .operand_checks import require_apart, require_integers
from .operands import Operand, with_boxes

T = TypeVar("T", i8, i16, i32, i64, u8, u16, u32, u64, f8e4m3, f8e5m2, f16, bf16, f32, f64)
I = TypeVar("I", i32, i64)  # noqa: E741 - the usual name of an index

_MOST_BLOCKS = 65535
"""The most blocks that a grid may have along y."""


def transpose(rows: int, columns: int, input: Operand, output: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output[c, r] = input[r, c]``: ``input`` is rows×columns, ``output`` columns×rows, both row-major. The
    elements are integers or real floats of 8 to 64 bits. Yields the four arguments.

    Raises ``LaunchError`` for a box that is too small, and ``ArgumentError`` for other dtypes and for boxes that share
    memory: a matrix cannot be transposed in place.
    """
    require_integers("transpose", rows=rows, columns=columns)

    def turned(x: DeviceBox, y: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        require_apart("transpose", y, input=x)
        down, across = max(1, -(-rows // 32)), max(1, -(-columns // 32))
        swapped = across > _MOST_BLOCKS
        turn = turning(swapped, i64 if max(rows, columns) > 0xFFFFFFFF else u32)
        return turn[(across, down) if swapped else (down, across), (32, 8)](rows, columns, x, y)

    return with_boxes(turned, input, output)


@functools.cache
def turning(swapped: bool, size: Any) -> Kernel:
    """Returns the kernel of ``transpose``. ``size`` is the integer type of the kernel's parameters ``rows`` and
    ``columns``. Blocks along x cover the rows of the input, and blocks along y its columns; ``swapped`` exchanges x and
    y. A grid has at most 65535 blocks along y. A matrix that needs more blocks along both axes does not fit into any
    memory.

    A block transposes a tile of 32×32 elements in shared memory, so that a warp reads and writes whole lines of memory.
    A row of the tile has one extra element, so that the elements of a column lie in different banks.
    """

    @kernel(block=(32, 8), requires=("len(input) >= rows * columns", "len(output) >= rows * columns"))
    def transpose(
        rows: size,
        columns: size,
        input: Slice[T],
        output: DisjointSlice[T],
    ) -> None:
        tile = SharedArray((32, 33), input.dtype)
        x, y = thread.thread_idx.x % 32, thread.thread_idx.y % 8
        row = thread.block_idx.y * 32 if swapped else thread.block_idx.x * 32
        column = thread.block_idx.x * 32 if swapped else thread.block_idx.y * 32
        out = output.unchecked_mut
        for i in unroll(range(0, 32, 8)):
            if row + y + i < rows and column + x < columns:
                tile[y + i, x] = input.unchecked[(row + y + i) * columns + column + x]
        thread.sync_threads()
        for i in unroll(range(0, 32, 8)):
            if column + y + i < columns and row + x < rows:
                out[(column + y + i) * rows + row + x] = tile[x, y + i]

    return transpose


def widened(x: DeviceBox, multiple: int) -> DeviceOperation[DeviceBox]:
    """Returns the operation that yields a copy of a matrix with rows padded by zeros. The length of the padded rows is
    a multiple of ``multiple`` elements, and ``multiple`` must be a multiple of 4. The elements have 8 to 32 bits."""
    rows, columns = x.shape

    def copied(y: DeviceBox) -> DeviceOperation[DeviceBox]:
        return widen[max(rows, 1), 128](x, y).last()

    return empty((rows, -(-columns // multiple) * multiple), x.dtype).and_then(copied)


N = TypeVar("N", i8, u8, f8e4m3, f8e5m2, f16, bf16, f32)


@kernel(block=128, unchecked=True)  # the loop and the conditions keep the indices below the shapes
def widen(x: Slice2[N], y: DisjointSlice2[N]) -> None:
    """Copies a row of ``x`` to ``y`` in each block, and fills the rest of the row with zeros. A thread copies four
    elements at a time."""
    out, row = y.unchecked_mut, thread.block_idx.x
    if row < x.shape[0]:
        for column in range(4 * thread.thread_idx.x, y.shape[1], 512):
            if column + 4 <= x.shape[1] and x.is_aligned(4):
                a, b, c, d = x.load4((row, column))
                out.store4((row, column), a, b, c, d)
            else:
                for i in unroll(range(4)):
                    out[row, column + i] = x[row, column + i] if column + i < x.shape[1] else x.dtype(0)


def split(x: DeviceBox) -> DeviceOperation[DeviceBox]:
    """Returns the operation that splits a matrix of f32 into two matrices of tf32. Their sum is nearly the given
    matrix. The yielded box has the two matrices side by side, each with rows padded by zeros to a multiple of 32
    elements."""
    rows, columns = x.shape
    width = -(-columns // 32) * 32
    return empty((rows, 2 * width), f32).and_then(lambda y: split_rows[max(rows, 1), 128](x, y).last())


@kernel(block=128, unchecked=True)  # the loop and the condition keep the indices below the shapes
def split_rows(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    """Splits one row in each block."""
    out, row, width = y.unchecked_mut, thread.block_idx.x, y.shape[1] // 2
    if row < x.shape[0]:
        for column in range(thread.thread_idx.x, width, 128):
            given = x[row, column] if column < x.shape[1] else f32(0)
            upper = tensor.tf32(given)
            out[row, column] = upper
            out[row, width + column] = tensor.tf32(given - upper)


@kernel(block=256, requires=("len(output) == len(indices) * width",))
def gather(width: u32, table: Slice[T], indices: Slice[I], output: DisjointSlice[T]) -> None:
    """Computes ``output[i] = table[indices[i]]``, an embedding lookup. ``table`` and ``output`` are matrices with rows
    of ``width`` elements. The elements are integers or real floats of 8 to 64 bits, and the indices are i32 or i64. The
    launch raises ``LaunchError`` unless ``output`` has as many rows as there are indices. An index that is not the
    number of a row of the table raises ``BoundsError``."""
    index = thread.index_1d()
    element = output.get_mut(index)
    if element is not None and width > 0:
        row, column = index.get() // width, index.get() % width
        element.value = table[indices[row] * width + column]
