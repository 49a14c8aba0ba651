"""A value is that of the place where the program defines it, whatever is written between there and its use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import d2h, f32, h2d, i32, tile, zeros

pytestmark = pytest.mark.usefixtures("code")
N = 40


@tile.function
def own_places(z: Any) -> Any:
    return z.index[0] * z.tile_shape[0] + tile.arange(z.tile_shape[0])


@tile.kernel
def replaced(z: tile.Partition[f32, 1], t: tile.Target[f32, 1]) -> None:
    i = own_places(z)
    before = tile.gather(t, i, mask=i < z.shape[0])
    tile.scatter(t, i, tile.full(z.tile_shape, 7.0), mask=i < z.shape[0])
    z.store(before)


def test_elements_gathered_before_a_scatter_are_the_old_ones() -> None:
    x = np.arange(N, dtype=np.float32)
    z, t = replaced(zeros(N).partition(16), h2d(x)).sync()
    np.testing.assert_array_equal(d2h(z.box).sync(), x)
    np.testing.assert_array_equal(d2h(t).sync(), np.full(N, 7))


@tile.kernel
def raised(z: tile.Partition[f32, 1], t: tile.Target[f32, 1]) -> None:
    i = own_places(z)
    before = tile.gather(t, i, mask=i < z.shape[0])
    tile.atomic_add(t, i, before + 1, mask=i < z.shape[0])
    z.store(tile.gather(t, i, mask=i < z.shape[0]) * 100 + before)


def test_elements_gathered_before_and_after_an_atomic_operation() -> None:
    x = np.arange(N, dtype=np.float32)
    z, t = raised(zeros(N).partition(16), h2d(x)).sync()
    np.testing.assert_array_equal(d2h(z.box).sync(), (2 * x + 1) * 100 + x)
    np.testing.assert_array_equal(d2h(t).sync(), 2 * x + 1)


@tile.kernel
def reversed_in_place(grid: tile.Partition[f32, 1], t: tile.Target[f32, 1]) -> None:
    i = tile.arange(64)
    tile.scatter(t, i, tile.gather(t, 63 - i))


def test_a_scatter_reads_all_of_its_values_first() -> None:
    x = np.arange(64, dtype=np.float32)
    _, t = reversed_in_place(zeros(1).partition(1), h2d(x)).sync()
    np.testing.assert_array_equal(d2h(t).sync(), x[::-1])


@tile.kernel
def stored_in_a_branch(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32) -> None:
    v = tile.load_like(x, z)
    if n > 0:
        z.store(v * 0)
    z.store(v + 1)


@tile.kernel
def stored_in_a_loop(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32) -> None:
    v = tile.load_like(x, z)
    for _ in range(n):
        z.store(tile.full(z.tile_shape, 3.0))
    z.store(v + 1)


@tile.kernel
def stored_while(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32) -> None:
    v = tile.load_like(x, z)
    k = 0
    while k < n:
        if k > 0:
            tile.scatter(z, own_places(z), tile.zeros(z.tile_shape), mask=own_places(z) < z.shape[0])
        k += 1
    z.store(v + 1)


@pytest.mark.parametrize("kernel", [stored_in_a_branch, stored_in_a_loop, stored_while], ids=lambda k: str(k.name))
@pytest.mark.parametrize("n", [0, 2])
def test_values_loaded_before_a_branch_or_a_loop_that_writes_them(kernel: Any, n: int) -> None:
    box = h2d(np.arange(N, dtype=np.float32)).sync()
    kernel(box.partition(16), box, n).sync()
    np.testing.assert_array_equal(d2h(box).sync(), np.arange(N) + 1)


@tile.kernel
def running_sums(y: tile.Target[f32, 2], x: tile.Partition[f32, 2], wide: tile.Constant[int]) -> None:
    high = x.tile_shape[0]
    carry = tile.zeros((high, 1))
    rows = (x.index[0] * high + tile.arange(high))[:, None]
    for k in range(tile.cdiv(x.shape[1], wide)):
        columns = (k * wide + tile.arange(wide))[None, :]
        inside = (rows < x.shape[0]) & (columns < x.shape[1])
        v = tile.gather(x, (rows, columns), mask=inside)
        tile.scatter(y, (rows, columns), v.cumsum(axis=1) + carry, mask=inside)
        carry += v.sum(axis=1, keepdims=True)


def test_the_partition_that_gives_the_grid_can_be_gathered_from() -> None:
    x = np.random.default_rng(1).integers(-9, 9, (9, 60)).astype(np.float32)
    y, _, _ = running_sums(zeros(x.shape), h2d(x).sync().partition((4, 64)), 16).sync()
    np.testing.assert_array_equal(d2h(y).sync(), np.cumsum(x, axis=1))


@tile.kernel
def kept_before_the_last(z: tile.Partition[f32, 1], w: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32) -> None:
    now = x.load(0, 16)
    before = x.load(0, 16) * 0
    for _ in range(n):
        new = tile.cumsum(now)
        old = now
        now = new
        before = old
    z.store(now)
    w.store(before)


@tile.kernel
def kept_before_the_first(z: tile.Partition[f32, 1], w: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32) -> None:
    before = x.load(0, 16) * 0
    now = x.load(0, 16)
    for _ in range(n):
        before = now
        now = tile.cumsum(now)
    z.store(now)
    w.store(before)


@pytest.mark.parametrize("kernel", [kept_before_the_last, kept_before_the_first], ids=lambda k: str(k.name))
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_a_variable_takes_the_old_value_of_another(kernel: Any, n: int) -> None:
    x = np.arange(1, 17, dtype=np.float32)
    z, w, *_ = kernel(zeros(16).partition(16), zeros(16).partition(16), h2d(x), n).sync()
    before, now = x * 0, x
    for _ in range(n):
        before, now = now, np.cumsum(now)
    np.testing.assert_array_equal(d2h(z.box).sync(), now)
    np.testing.assert_array_equal(d2h(w.box).sync(), before)


@tile.kernel
def turned(
    a: tile.Partition[f32, 1], b: tile.Partition[f32, 1], c: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32
) -> None:
    p, q, r = x.load(0, 16), x.load(0, 16) * 2, tile.cumsum(x.load(0, 16))
    for _ in range(n):
        p, q, r = q, tile.cumsum(r), p
    a.store(p)
    b.store(q)
    c.store(r)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_variables_change_places(n: int) -> None:
    x = np.arange(1, 17, dtype=np.float32)
    a, b, c, *_ = turned(*[zeros(16).partition(16) for _ in range(3)], h2d(x), n).sync()
    p, q, r = x, x * 2, np.cumsum(x)
    for _ in range(n):
        p, q, r = q, np.cumsum(r), p
    for found, expected in zip((a, b, c), (p, q, r), strict=True):
        np.testing.assert_array_equal(d2h(found.box).sync(), expected)
