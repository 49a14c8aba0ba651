"""Tiled products, transposes, shuffles and histograms on blocks of every size from 1 to 1024.

Reductions, scans, extremes and broadcasts are in ``test_cooperative.py``. Sizes are small and odd: one launch a size.
"""

from __future__ import annotations

import math

import numpy as np

from oxide import (
    AtomicSlice,
    DisjointSlice,
    LaunchConfig,
    SharedArray,
    Slice,
    atomic,
    d2h,
    f32,
    h2d,
    i64,
    kernel,
    thread,
    u32,
    warp,
    zeros,
)
from oxide_kernels.cooperative import lanes_in_warp, linear_thread, threads_in_block

RANDOM = np.random.default_rng(3)
DEPTH = 4
TILE = 1024 * DEPTH
BINS = 37


def shape_of(threads: int) -> tuple[int, int]:
    """The most square block of so many threads."""
    rows = max(rows for rows in range(1, math.isqrt(threads) + 1) if threads % rows == 0)
    return threads // rows, rows


@kernel
def tiled_product(m: u32, n: u32, k: u32, a: Slice[f32], b: Slice[f32], c: DisjointSlice[f32]) -> None:
    """``c = a @ b`` with tiles of the block's rows and columns, DEPTH deep, in shared memory."""
    a_tile = SharedArray(TILE, f32)
    b_tile = SharedArray(TILE, f32)
    rows, columns = thread.block_dim.y, thread.block_dim.x
    first_row, first_column = thread.block_idx.y * rows, thread.block_idx.x * columns
    acc = f32(0)
    for first in range(0, k, DEPTH):
        i = linear_thread()
        while i < rows * DEPTH:
            row, depth = first_row + i // DEPTH, first + i % DEPTH
            a_tile[i] = a[row * k + depth] if row < m and depth < k else f32(0)
            i += threads_in_block()
        i = linear_thread()
        while i < columns * DEPTH:
            depth, column = first + i // columns, first_column + i % columns
            b_tile[i] = b[depth * n + column] if depth < k and column < n else f32(0)
            i += threads_in_block()
        thread.sync_threads()
        for depth in range(DEPTH):
            acc += a_tile[thread.thread_idx.y * DEPTH + depth] * b_tile[depth * columns + thread.thread_idx.x]
        thread.sync_threads()
    index = thread.index_2d(n)
    if index is not None and thread.index_2d_row() < m:
        element = c.get_mut(index)
        if element is not None:
            element.value = acc


@kernel
def transpose(m: u32, n: u32, x: Slice[i64], y: DisjointSlice[i64]) -> None:
    """``y = x.T``, ``x`` being n×m: read by columns of the block, written by its rows, neighbours beside neighbours."""
    tile = SharedArray(1024, i64)
    rows, columns = thread.block_dim.y, thread.block_dim.x
    t = linear_thread()
    x_row, x_column = thread.block_idx.x * columns + t // rows, thread.block_idx.y * rows + t % rows
    if x_row < n and x_column < m:
        tile[t] = x[x_row * m + x_column]
    thread.sync_threads()
    index = thread.index_2d(n)
    if index is not None and thread.index_2d_row() < m:
        element = y.get_mut(index)
        if element is not None:
            element.value = tile[thread.thread_idx.x * rows + thread.thread_idx.y]


@kernel
def shuffles(distance: u32, x: Slice[i64], y: DisjointSlice[i64]) -> None:
    """Each lane's value, and twice, thrice, five times those of the lanes above, below, and across it, if there are."""
    index = thread.index_1d()
    value, lane, lanes = x[index.get()], warp.lane_id(), lanes_in_warp()
    above, below = warp.shuffle_down(value, distance), warp.shuffle_up(value, distance)
    across, first = warp.shuffle_xor(value, distance), warp.shuffle(value, 0)
    total = value + 7 * first
    if lane + distance < lanes:
        total += 2 * above
    if lane >= distance:
        total += 3 * below
    if (lane ^ distance) < lanes:
        total += 5 * across
    element = y.get_mut(index)
    if element is not None:
        element.value = total


@kernel
def histogram(values: Slice[u32], counts: AtomicSlice[u32]) -> None:
    bins = SharedArray(BINS, u32)
    t = thread.thread_idx.x
    for each in range(t, BINS, thread.block_dim.x):
        bins[each] = 0
    thread.sync_threads()
    i = thread.index_1d().get()
    if i < len(values):
        bins.fetch_add(values[i], 1, scope=atomic.BLOCK)
    thread.sync_threads()
    for each in range(t, BINS, thread.block_dim.x):
        counts.fetch_add(each, bins[each])


def test_a_tiled_product_on_blocks_of_every_size() -> None:
    for threads in range(1, 1025):
        columns, rows = shape_of(threads)
        m, n, k = rows + 1, columns + 1, 7
        a, b = RANDOM.standard_normal((m, k), dtype=np.float32), RANDOM.standard_normal((k, n), dtype=np.float32)
        launch = tiled_product[LaunchConfig((2, 2), (columns, rows))](m, n, k, h2d(a), h2d(b), zeros((m, n)))
        expected = a.astype(np.float64) @ b
        np.testing.assert_allclose(
            launch.last().and_then(d2h).sync(), expected, 1e-4, 1e-4, err_msg=f"{threads} threads"
        )


def test_a_transpose_through_shared_memory_on_blocks_of_every_size() -> None:
    for threads in range(1, 1025):
        columns, rows = shape_of(threads)
        m, n = 2 * rows - 1, columns + 1
        x = RANDOM.integers(-1000, 1000, (n, m))
        launch = transpose[LaunchConfig((2, 2), (columns, rows))](m, n, h2d(x), zeros((m, n), i64))
        np.testing.assert_array_equal(launch.last().and_then(d2h).sync(), x.T, f"{threads} threads")


def test_shuffles_on_blocks_of_every_size() -> None:
    for threads in range(1, 1025):
        distance = 1 + threads % 31
        x = RANDOM.integers(-1000, 1000, threads)
        result = shuffles[1, threads](distance, h2d(x), zeros(threads, i64)).last().and_then(d2h).sync()
        np.testing.assert_array_equal(result, shuffled(x, distance), f"{threads} threads")


def shuffled(x: np.ndarray, distance: int) -> np.ndarray:
    places = np.arange(x.size)
    first = places // 32 * 32
    last = np.minimum(first + 32, x.size)
    total = x + 7 * x[first]
    for factor, source in (
        (2, places + distance),
        (3, places - distance),
        (5, first + (places - first ^ distance)),
    ):
        there = (source >= first) & (source < last)
        total += np.where(there, factor * x[np.where(there, source, 0)], 0)
    return total


def test_a_histogram_on_blocks_of_every_size() -> None:
    for threads in range(1, 1025):
        values = RANDOM.integers(0, BINS, 2 * threads - threads % 3 - 1, dtype=np.uint32)
        if values.size:
            counts = histogram[2, threads](h2d(values), zeros(BINS, u32)).last().and_then(d2h).sync()
            np.testing.assert_array_equal(counts, np.bincount(values, minlength=BINS), f"{threads} threads")
