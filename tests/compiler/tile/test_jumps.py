"""``break``, ``continue`` and ``return``: a kernel does what Python does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import f32, h2d, i32, tile, zeros


@tile.kernel
def steps_to_one(z: tile.Partition[i32, 1], x: tile.Tensor[i32, 1], most: i32) -> None:
    n = tile.load_like(x, z)
    steps = tile.zeros(z.tile_shape, i32)
    k = 0
    while True:
        if tile.max(n) <= 1:
            break
        k += 1
        if k > most:
            break
        steps += (n > 1).astype(i32)
        n = tile.where(n > 1, tile.where(n % 2 == 0, n // 2, 3 * n + 1), n)
    z.store(steps)


@pytest.mark.slow
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("most", [0, 3, 200])
def test_a_loop_without_a_condition_ends_by_break(most: int) -> None:
    x = np.arange(1, 100, dtype=np.int32)
    found = steps_to_one(zeros(99, i32).partition(32), h2d(x), most).first().unpartition().to_host().sync()
    n, expected = x.copy(), np.zeros_like(x)
    for _ in range(most):
        expected += n > 1
        n = np.where(n > 1, np.where(n % 2 == 0, n // 2, 3 * n + 1), n)
    np.testing.assert_array_equal(found, expected)


def jumping(z: Any, n: Any, t: Any) -> None:
    if n < 0:
        return
    for i in range(n):
        if i % 3 == 0:
            continue
        if i > 7:
            if i > 8:
                t += 100
            break
        t += 1
        for j in range(4):
            if j == 2:
                break
            t += 10
            if i == 5:
                if j == 1:
                    z.store(t)
                    return
                t += 3
        while t > 0:
            t -= 1
            if t < 5:
                continue
            if t > 3:
                break
            t -= 1
        t = t + 0.5
    for j in (0, 1, 2, 3, 4):
        if j == 3:
            break
        if n == j:
            break
        if j == 1:
            continue
        t += 1000
    z.store(t)


@tile.function
def first_multiple(n: Any, of: Any) -> Any:
    found = -1
    for i in range(1, n):
        if i % of == 0:
            found = i
            break
    return found


@tile.kernel
def jumps(z: tile.Partition[f32, 1], n: i32) -> None:
    t = tile.zeros(z.tile_shape)
    if n < 0:
        return
    for i in range(n):
        if i % 3 == 0:
            continue
        if i > 7:
            if i > 8:
                t += 100
            break
        t += 1
        for j in range(4):
            if j == 2:
                break
            t += 10
            if i == 5:
                if j == 1:
                    z.store(t)
                    return
                t += 3
        while tile.max(t) > 0:
            t -= 1
            if tile.max(t) < 5:
                continue
            if tile.max(t) > 3:
                break
            t -= 1
        t = t + 0.5
    for j in (0, 1, 2, 3, 4):
        if j == 3:
            break
        if n == j:
            break
        if j == 1:
            continue
        t += 1000
    z.store(t)


class Kept:
    value = 0.0

    def store(self, value: float) -> None:
        self.value = value


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("n", [-1, 0, 1, 2, 3, 4, 5, 6, 7, 9, 12])
def test_jumps_out_of_branches_and_nested_loops(n: int) -> None:
    expected = Kept()
    jumping(expected, n, 0.0)
    found = jumps(zeros(5).partition(4), n).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(found, np.full(5, expected.value, np.float32))


@tile.kernel
def searching(z: tile.Partition[i32, 1], n: i32, of: i32) -> None:
    z.store(tile.full(z.tile_shape, first_multiple(n, of), i32))


@pytest.mark.parametrize(("n", "of", "expected"), [(10, 3, 3), (10, 12, -1), (0, 1, -1)])
def test_a_function_may_break(n: int, of: int, expected: int) -> None:
    assert (searching(zeros(4, i32).partition(4), n, of).first().unpartition().to_host().sync() == expected).all()


@tile.kernel
def multiplied(c: tile.Partition[f32, 2], a: tile.Tensor[f32, 2], b: tile.Tensor[f32, 2], most: i32) -> None:
    acc = tile.zeros(c.tile_shape)
    for k in range(tile.cdiv(a.shape[1], 16)):
        if k == most:
            break
        acc = tile.mma(a.load((c.index[0], k), (16, 16)), b.load((k, c.index[1]), (16, 16)), acc)
    c.store(acc)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("most", [0, 1, 2, 9])
def test_a_loop_of_products_may_end_early(most: int) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-9, 9, (2, 64, 64)).astype(np.float32)
    found = multiplied(zeros((64, 64)).partition((16, 16)), h2d(a), h2d(b), most).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(found, a[:, : 16 * most] @ b[: 16 * most])
