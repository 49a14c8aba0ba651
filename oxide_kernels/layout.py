"""Elements moved about: ``transpose`` and ``gather``."""

from __future__ import annotations

from oxide import DisjointSlice, SharedArray, Slice, f32, i32, i64, kernel, thread, u32, unroll


@kernel(
    block=(32, 8), items_per_thread=(1, 4), requires=("len(input) >= rows * columns", "len(output) >= rows * columns")
)
def transpose(rows: u32, columns: u32, input: Slice[f32], output: DisjointSlice[f32]) -> None:
    """``output[c, r] = input[r, c]``, float32: ``input`` is rows×columns, ``output`` columns×rows, both row-major.

    A block turns a tile of 32×32 over in shared memory, so that a warp reads and writes whole lines of memory; a row of
    the tile is one element longer, so that its columns lie in different banks."""
    tile = SharedArray((32, 33), f32)
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
def gather(width: u32, table: Slice[f32], indices: Slice[i32], output: DisjointSlice[f32]) -> None:
    """``output[i] = table[indices[i]]`` for rows of ``width`` float32, an embedding lookup: ``table`` is a matrix of
    such rows, ``output`` has as many as there are ``indices``. An index that is no row of the table is a
    ``BoundsError``."""
    index = thread.index_1d()
    element = output.get_mut(index)
    if element is not None and width > 0:
        row, column = index.get() // width, index.get() % width
        element.value = table[i64(indices[row]) * width + column]
