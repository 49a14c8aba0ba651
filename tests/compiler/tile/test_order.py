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


@pytest.mark.slow
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


@pytest.mark.slow
def test_elements_gathered_before_and_after_an_atomic_operation() -> None:
    x = np.arange(N, dtype=np.float32)
    z, t = raised(zeros(N).partition(16), h2d(x)).sync()
    np.testing.assert_array_equal(d2h(z.box).sync(), (2 * x + 1) * 100 + x)
    np.testing.assert_array_equal(d2h(t).sync(), 2 * x + 1)


@tile.kernel
def reversed_in_place(grid: tile.Partition[f32, 1], t: tile.Target[f32, 1]) -> None:
    i = tile.arange(64)
    tile.scatter(t, i, tile.gather(t, 63 - i))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_variables_change_places(n: int) -> None:
    x = np.arange(1, 17, dtype=np.float32)
    a, b, c, *_ = turned(*[zeros(16).partition(16) for _ in range(3)], h2d(x), n).sync()
    p, q, r = x, x * 2, np.cumsum(x)
    for _ in range(n):
        p, q, r = q, np.cumsum(r), p
    for found, expected in zip((a, b, c), (p, q, r), strict=True):
        np.testing.assert_array_equal(d2h(found.box).sync(), expected)


@tile.kernel
def taken_in_a_branch(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32) -> None:
    v = tile.load_like(x, z)
    t = tile.zeros(z.tile_shape)
    if n > 0:
        z.store(tile.full(z.tile_shape, 7.0))
        t = v
    z.store(t)


@tile.kernel
def taken_in_a_loop(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32) -> None:
    v = tile.load_like(x, z)
    t = tile.zeros(z.tile_shape)
    for _ in range(n):
        z.store(tile.full(z.tile_shape, 7.0))
        t = v
    z.store(t)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [taken_in_a_branch, taken_in_a_loop], ids=lambda k: str(k.name))
def test_a_variable_takes_a_value_loaded_before_what_is_written_in_the_body(kernel: Any) -> None:
    box = h2d(np.arange(N, dtype=np.float32)).sync()
    kernel(box.partition(16), box, 2).sync()
    np.testing.assert_array_equal(d2h(box).sync(), np.arange(N))


@tile.kernel
def first_to_all(z: tile.Partition[f32, 1]) -> None:
    s = tile.gather(z, 0)
    z.store(tile.zeros(z.tile_shape) + s + 1)


@tile.kernel
def turned_round(z: tile.Partition[f32, 1]) -> None:
    v = tile.gather(z, 255 - tile.arange(256))
    z.store(v * v + v)


@tile.kernel
def kept_elsewhere(z: tile.Partition[f32, 1], w: tile.Partition[f32, 1]) -> None:
    v = tile.gather(z, 255 - tile.arange(256))
    z.store(tile.zeros(z.tile_shape))
    w.store(v)


@pytest.mark.slow
def test_all_threads_have_read_an_element_before_one_writes_it() -> None:
    x = np.arange(256, dtype=np.float32)
    z = h2d(x + 3).sync()
    first_to_all(z.partition(256)).sync()
    np.testing.assert_array_equal(d2h(z).sync(), np.full(256, 4))
    z = h2d(x).sync()
    turned_round(z.partition(256)).sync()
    np.testing.assert_array_equal(d2h(z).sync(), x[::-1] * x[::-1] + x[::-1])
    z, w = h2d(x).sync(), zeros(256).sync()
    kept_elsewhere(z.partition(256), w.partition(256)).sync()
    np.testing.assert_array_equal(d2h(w).sync(), x[::-1])
    assert not d2h(z).sync().any()


@tile.kernel
def sorted_rows_by_matrix(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], y: tile.Tensor[f32, 2]) -> None:
    rows = tile.sort(x.load((0, 0), (8, 12)), axis=1)
    z.store(tile.mma(rows, y.load((0, 0), (12, 8)), tile.zeros((8, 8))))


@pytest.mark.slow
def test_the_product_of_a_sorted_tile() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(-9, 9, (8, 12)).astype(np.float32), rng.integers(-9, 9, (12, 8)).astype(np.float32)
    z, *_ = sorted_rows_by_matrix(zeros((8, 8)).partition((8, 8)), h2d(x), h2d(y)).sync()
    np.testing.assert_array_equal(d2h(z.box).sync(), np.sort(x, 1) @ y)


@tile.kernel
def while_a_flag(z: tile.Partition[i32, 1], n: i32) -> None:
    going = n > 0
    k = i32(0)
    while going:
        k += 1
        going = k < n
    z.store(tile.full(z.tile_shape, k, i32))


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_variable_is_the_condition_of_a_loop(n: int) -> None:
    z, *_ = while_a_flag(zeros(4, i32).partition(4), n).sync()
    assert (d2h(z.box).sync() == n).all()


@tile.kernel
def chosen(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32, m: i32) -> None:
    most = tile.max(tile.load_like(x, z))
    a = most or 5.0
    b = most and 7.0
    c = n or m
    d = n and m
    e = (n > 0 and m > 0) or (n > 5 and True)
    f = False or n or 3
    found = tile.where(e, 1.0, 0.0) * 100000 + a * 1000 + b * 100 + c * 10 + d + f * 0.125 + tile.zeros(z.tile_shape)
    z.store(found.astype(f32))


@pytest.mark.parametrize(("most", "n", "m"), [(0, 0, 0), (3, 0, 2), (3, 2, 0), (0, 4, 3), (2, 6, 0)])
def test_and_and_or_give_their_operands_as_pythons_do(most: int, n: int, m: int) -> None:
    x = np.zeros(4, np.float32)
    x[2] = most
    z, *_ = chosen(zeros(4).partition(4), h2d(x), n, m).sync()
    e = (n > 0 and m > 0) or (n > 5 and True)
    expected = e * 100000 + (most or 5.0) * 1000 + (most and 7.0) * 100 + (n or m) * 10 + (n and m) + (n or 3) * 0.125
    np.testing.assert_array_equal(d2h(z.box).sync(), np.full(4, expected))


@tile.kernel
def last_of_the_unrolled(z: tile.Partition[i32, 1], n: i32) -> None:
    j = 0
    for j in (0, 1, 2):
        j = j + 10
        if n == 0:
            break
    z.store(tile.full(z.tile_shape, j, i32))


@pytest.mark.parametrize(("n", "last"), [(0, 10), (1, 12)])
def test_the_target_of_an_unrolled_loop_that_the_device_ends_has_its_last_value_after_it(n: int, last: int) -> None:
    z, _ = last_of_the_unrolled(zeros(4, i32).partition(4), n).sync()
    np.testing.assert_array_equal(d2h(z.box).sync(), np.full(4, last))
