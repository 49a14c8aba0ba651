"""Sums, scans, extremes and broadcasts over a block, tiled products and transposes: right for blocks of every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oxide
from oxide import DisjointSlice, LaunchConfig, SharedArray, Slice, d2h, f32, h2d, i32, i64, kernel, thread, u32, zeros
from oxide_kernels import (
    block_broadcast,
    block_exclusive_sum,
    block_inclusive_sum,
    block_max,
    block_min,
    block_sum,
)

RANDOM = np.random.default_rng(11)
BLOCKS = 2


@kernel
def sums(x: Slice[i64], y: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    value = block_sum(x[index.get()], i64)
    element = y.get_mut(index)
    if element is not None:
        element.value = value


@kernel
def scans(x: Slice[i64], y: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    value = block_inclusive_sum(x[index.get()], i64)
    element = y.get_mut(index)
    if element is not None:
        element.value = value


@kernel
def exclusive_scans(x: Slice[i64], y: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    value = block_exclusive_sum(x[index.get()], i64)
    element = y.get_mut(index)
    if element is not None:
        element.value = value


@kernel
def spans(x: Slice[i64], y: DisjointSlice[i64]) -> None:
    """The greatest, less the least, plus the last."""
    index = thread.index_1d()
    value = x[index.get()]
    result = block_max(value, i64) - block_min(value, i64) + block_broadcast(value, thread.block_dim.x - 1, i64)
    element = y.get_mut(index)
    if element is not None:
        element.value = result


EXPECTED: list[tuple[Any, Any]] = [
    (sums, lambda x: np.repeat(x.sum(1, keepdims=True), x.shape[1], 1)),
    (scans, lambda x: x.cumsum(1)),
    (exclusive_scans, lambda x: x.cumsum(1) - x),
    (spans, lambda x: np.repeat((x.max(1) - x.min(1) + x[:, -1])[:, None], x.shape[1], 1)),
]


@pytest.mark.parametrize(("kernel", "expected"), EXPECTED, ids=lambda value: getattr(value, "name", ""))
def test_blocks_of_every_size_from_1_to_1024(kernel: Any, expected: Any) -> None:
    for threads in range(1, 1025):
        x = RANDOM.integers(-1000, 1000, (BLOCKS, threads))
        got = kernel[BLOCKS, threads](h2d(x.reshape(-1)), zeros(x.size, np.int64)).last().and_then(d2h).sync()
        np.testing.assert_array_equal(got.reshape(x.shape), expected(x), f"{threads} threads")


@pytest.mark.parametrize("name", ["i32", "u32", "u64", "f32", "f64"])
def test_every_type_of_value_is_summed_and_scanned(name: str) -> None:
    scalar = getattr(oxide, name)

    @kernel
    def both(x: Slice[scalar], total: DisjointSlice[scalar], through: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        index = thread.index_1d()
        value = x[index.get()]
        a, b = block_sum(value, scalar), block_inclusive_sum(value, scalar)
        element, running = total.get_mut(index), through.get_mut(index)
        if element is not None and running is not None:
            element.value = a
            running.value = b

    x = RANDOM.integers(0, 100, 300).astype(scalar.dtype)
    boxes = both[3, 100](h2d(x), zeros(300, scalar.dtype), zeros(300, scalar.dtype)).sync()[1:]
    total, through = (d2h(box).sync().reshape(3, 100) for box in boxes)
    blocks = x.reshape(3, 100)
    np.testing.assert_array_equal(total, np.repeat(blocks.sum(1)[:, None], 100, 1))
    np.testing.assert_array_equal(through, blocks.cumsum(1))


def test_a_block_of_three_axes_is_summed_too() -> None:
    @kernel
    def total_of(y: DisjointSlice[i32]) -> None:
        total = block_sum(i32(1), i32)
        index = thread.index_2d(6)
        if index is not None:
            element = y.get_mut(index)
            if element is not None:
                element.value = total

    np.testing.assert_array_equal(total_of[1, (6, 17)](zeros(102, np.int32)).last().and_then(d2h).sync(), [102] * 102)


TILE = 16


@kernel
def sgemm_shared(m: u32, n: u32, k: u32, a: Slice[f32], b: Slice[f32], c: DisjointSlice[f32]) -> None:
    """``c = a @ b``, a tile of each at a time in shared memory; any m, n and k."""
    a_tile = SharedArray((TILE, TILE), f32)
    b_tile = SharedArray((TILE, TILE), f32)
    tx, ty = thread.thread_idx.x, thread.thread_idx.y
    row, column = thread.index_2d_row(), thread.index_2d_col()
    acc = f32(0)
    for first in range(0, k, TILE):
        a_tile[ty, tx] = f32(0)
        b_tile[ty, tx] = f32(0)
        if row < m and first + tx < k:
            a_tile[ty, tx] = a[row * k + first + tx]
        if column < n and first + ty < k:
            b_tile[ty, tx] = b[(first + ty) * n + column]
        thread.sync_threads()
        for i in range(TILE):
            acc += a_tile[ty, i] * b_tile[i, tx]
        thread.sync_threads()
    index = thread.index_2d(n)
    if index is not None and row < m:
        element = c.get_mut(index)
        if element is not None:
            element.value = acc


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (16, 16, 16), (33, 17, 50), (100, 70, 64)])
def test_a_tiled_product_is_right_for_any_shape(m: int, n: int, k: int) -> None:
    a, b = RANDOM.standard_normal((m, k)).astype(np.float32), RANDOM.standard_normal((k, n)).astype(np.float32)
    config = LaunchConfig((-(-n // TILE), -(-m // TILE)), (TILE, TILE))
    got = sgemm_shared[config](m, n, k, h2d(a), h2d(b), zeros((m, n))).last().and_then(d2h).sync()
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
