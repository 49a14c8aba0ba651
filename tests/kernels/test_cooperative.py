"""Sums, scans, extremes and broadcasts over a block, tiled products and transposes: right for blocks of every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    DisjointSlice,
    Kernel,
    LaunchConfig,
    SharedArray,
    Slice,
    d2h,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u32,
    zeros,
)
from oxide_kernels import (
    block_broadcast,
    block_exclusive_scan,
    block_exclusive_sum,
    block_inclusive_scan,
    block_inclusive_sum,
    block_max,
    block_min,
    block_reduce,
    block_sum,
    warp_exclusive_scan,
    warp_inclusive_scan,
    warp_reduce,
)
from tests.kernels.references import IDENTITY, compose

RANDOM = np.random.default_rng(11)
BLOCKS = 2


def given_by(function: Any) -> Kernel:
    """Of a function of a value and its type: what it gives each thread."""

    @kernel
    def apply(x: Slice[i64], y: DisjointSlice[i64]) -> None:
        index = thread.index_1d()
        value = function(x[index.get()], i64)
        element = y.get_mut(index)
        if element is not None:
            element.value = value

    return apply


@kernel
def spans(x: Slice[i64], y: DisjointSlice[i64]) -> None:
    """The greatest, less the least, plus the last."""
    index = thread.index_1d()
    value = x[index.get()]
    result = block_max(value, i64) - block_min(value, i64) + block_broadcast(value, thread.block_dim.x - 1, i64)
    element = y.get_mut(index)
    if element is not None:
        element.value = result


def with_an_operator(reduce: Any, inclusive_scan: Any, exclusive_scan: Any) -> Kernel:
    """Of a warp's functions or of a block's: what they give each thread."""

    @kernel
    def apply(
        op: Callable[[u32, u32], u32],
        identity: u32,
        x: Slice[u32],
        reduced: DisjointSlice[u32],
        through: DisjointSlice[u32],
        before: DisjointSlice[u32],
    ) -> None:
        index = thread.index_1d()
        value = x[index.get()]
        total = reduce(op, value)
        inclusive = inclusive_scan(op, value)
        exclusive = exclusive_scan(op, value, identity)
        a, b, c = reduced.get_mut(index), through.get_mut(index), before.get_mut(index)
        if a is not None and b is not None and c is not None:
            a.value = total
            b.value = inclusive
            c.value = exclusive

    return apply


IN_BLOCKS = with_an_operator(block_reduce, block_inclusive_scan, block_exclusive_scan)
IN_WARPS = with_an_operator(warp_reduce, warp_inclusive_scan, warp_exclusive_scan)


def scanned(x: Any, group: int) -> tuple[Any, Any, Any]:
    """The three results over groups of so many neighbours."""
    reduced, through, before = (np.empty_like(x) for _ in range(3))
    for first in range(0, x.size, group):
        total = IDENTITY
        for place in range(first, min(first + group, x.size)):
            before[place] = total
            total = int(compose(total, int(x[place])))
            through[place] = total
        reduced[first : first + group] = total
    return reduced, through, before


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 31, 32, 33, 63, 65, 100, 512, 1000, 1023, 1024])
def test_any_associative_operator_is_reduced_and_scanned_in_the_order_of_the_threads(threads: int) -> None:
    x = RANDOM.integers(0, 2**32, BLOCKS * threads, dtype=np.uint32)
    outputs = [zeros(x.size, np.uint32) for _ in range(3)]
    boxes = IN_BLOCKS[BLOCKS, threads](compose, IDENTITY, h2d(x), *outputs).sync()[3:]
    for box, expected in zip(boxes, scanned(x, threads), strict=True):
        np.testing.assert_array_equal(d2h(box).sync(), expected)
    x = x[:threads]
    outputs = [zeros(x.size, np.uint32) for _ in range(3)]
    boxes = IN_WARPS[1, threads](compose, IDENTITY, h2d(x), *outputs).sync()[3:]
    for box, expected in zip(boxes, scanned(x, 32), strict=True):
        np.testing.assert_array_equal(d2h(box).sync(), expected)


def test_an_operator_may_capture_numbers() -> None:
    @kernel
    def reduced(op: Callable[[f32, f32], f32], x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        total = block_reduce(op, x[index.get()])
        element = y.get_mut(index)
        if element is not None:
            element.value = total

    x = RANDOM.random(100, dtype=np.float32)
    for limit in (np.float32(0.5), np.float32(0.25)):
        launch = reduced[1, 100](lambda a, b: min(max(a, b), limit), h2d(x), zeros(100))  # noqa: B023 - meant
        np.testing.assert_array_equal(d2h(launch.sync()[2]).sync(), [min(x.max(), limit)] * 100)


EXPECTED: dict[str, tuple[Kernel, Callable[[Any], Any]]] = {
    "sum": (given_by(block_sum), lambda x: np.repeat(x.sum(1, keepdims=True), x.shape[1], 1)),
    "inclusive sum": (given_by(block_inclusive_sum), lambda x: x.cumsum(1)),
    "exclusive sum": (given_by(block_exclusive_sum), lambda x: x.cumsum(1) - x),
    "span": (spans, lambda x: np.repeat((x.max(1) - x.min(1) + x[:, -1])[:, None], x.shape[1], 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_blocks_of_every_size_from_1_to_1024(name: str) -> None:
    function, expected = EXPECTED[name]
    for threads in range(1, 1025):
        x = RANDOM.integers(-1000, 1000, (BLOCKS, threads))
        got = function[BLOCKS, threads](h2d(x.reshape(-1)), zeros(x.size, np.int64)).last().and_then(d2h).sync()
        np.testing.assert_array_equal(got.reshape(x.shape), expected(x), f"{threads} threads")


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (16, 16, 16), (33, 17, 50), (100, 70, 64)])
def test_a_tiled_product_is_right_for_any_shape(m: int, n: int, k: int) -> None:
    a, b = RANDOM.standard_normal((m, k)).astype(np.float32), RANDOM.standard_normal((k, n)).astype(np.float32)
    config = LaunchConfig((-(-n // TILE), -(-m // TILE)), (TILE, TILE))
    got = sgemm_shared[config](m, n, k, h2d(a), h2d(b), zeros((m, n))).last().and_then(d2h).sync()
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
