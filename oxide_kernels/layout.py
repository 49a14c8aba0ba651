"""Elements moved about: ``transpose`` and ``gather``, of any dtype of numbers."""

from __future__ import annotations

from typing import TypeVar

from oxide import (
    DisjointSlice,
    SharedArray,
    Slice,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u16,
    u32,
    u64,
    unroll,
)

T = TypeVar("T", i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64)
I = TypeVar("I", i32, i64)  # noqa: E741 - what an index is called


@kernel(
    block=(32, 8), items_per_thread=(1, 4), requires=("len(input) >= rows * columns", "len(output) >= rows * columns")
)
def transpose(rows: u32, columns: u32, input: Slice[T], output: DisjointSlice[T]) -> None:
    """``output[c, r] = input[r, c]``: ``input`` is rows×columns, ``output`` columns×rows, both row-major. Of any dtype
    of 8 to 64 bits; bf16 goes as the u16 that hold it.

    A block turns a tile of 32×32 over in shared memory, so that a warp reads and writes whole lines of memory; a row of
    the tile is one element longer, so that its columns lie in different banks."""
    tile = SharedArray((32, 33), input.dtype)
    x, y = thread.thread_idx.x % 32, thread.thread_idx.y % 8
    row, column = thread.block_idx.x * 32, thread.block_idx.y * 32
    out = output.unchecked_mut
    for i in unroll(range(0, 32, 8)):
        if row + y + i < rows and column + x < columns:
            tile[y + i, x] = input.unchecked[(row + y + i) * columns + column + x]
    thread.sync_threads()
    for i in unroll(range(0, 32, 8)):
        if column + y + i < columns and row + x < rows:
            out[(column + y + i) * rows + row + x] = tile[x, y + i]


@kernel(block=256)
def gather(width: u32, table: Slice[T], indices: Slice[I], output: DisjointSlice[T]) -> None:
    """``output[i] = table[indices[i]]`` for rows of ``width`` elements, an embedding lookup: ``table`` is a matrix of
    such rows, ``output`` has as many as there are ``indices``, i32 or i64. Elements are of any dtype of 8 to 64 bits.
    An index that is no row of the table is a ``BoundsError``."""
    index = thread.index_1d()
    element = output.get_mut(index)
    if element is not None and width > 0:
        row, column = index.get() // width, index.get() % width
        element.value = table[i64(indices[row]) * width + column]
