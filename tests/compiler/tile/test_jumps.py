"""``break``, ``continue`` and ``return``: a kernel does what Python does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxide import CompileError, d2h, f16, f32, full, h2d, i32, i64, tile, zeros


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


PATHS = {
    "a loop in a branch continues": """
        r = 0
        if n == 2:
            for i in range(3):
                if n > i:
                    continue
                r += 1""",
    "a loop in the other branch breaks": """
        r = 0
        if n == 3:
            r = 9
        else:
            k = 0
            while k < 10:
                k += 1
                if k == 5:
                    break
                r += k""",
    "a loop in a branch in a loop": """
        r = 0
        for i in range(4):
            if i != n:
                for j in tile.static_range(3):
                    if j == n:
                        break
                    r += 10 * i + j
                r += 100
            if r > 150:
                break""",
    "a return from a loop in a branch": """
        r = 1
        if n == 2:
            for i in range(3):
                if i == 1:
                    z.store(tile.full(4, 77, i64))
                    return
                r += 1
            r = 50
        r += 2""",
    "a constant number of iterations": """
        for i in range(3):
            v = i * n
        r = v""",
    "the counter": """
        for i in range(2, 9, 3):
            pass
        r = i""",
    "the counter, which had a value": """
        i = 7
        for i in range(n):
            pass
        r = i""",
    "the counter of a loop that breaks": """
        for i in range(5):
            if i == n:
                break
        r = i""",
    "the counter of an unrolled loop that breaks": """
        for i in tile.static_range(4):
            if i == n:
                break
        for _, (j, k) in ((0, (3, 4)), (1, (5, 6))):
            if j == n:
                break
        r = i * 100 + j * 10 + k""",
    "a break after the assignment": """
        for i in range(5):
            v = i + 10
            if i > n:
                break
        r = v""",
    "a break with the assignment": """
        k = 0
        while True:
            if k * k >= n:
                root = k
                break
            k += 1
        r = root""",
    "every branch in its loop": """
        if n > 1:
            for i in range(2):
                v = i
        else:
            for i in range(4):
                v = i + 100
        r = v""",
    "a loop in a loop": """
        for i in range(2):
            for j in range(3):
                v = i * n + j
            w = v
        r = w + j""",
    "a tuple of a number and what is known": """
        for i in range(3):
            v = (i * n, (7, i), "text")
        r = v[0] * 100 + v[1][0] * 10 + v[1][1]""",
    "a counter that is an outer variable of a loop": """
        i, r = 100, 0
        for k in range(n):
            for i in range(3):
                r += i
        r += i""",
}


def module_of(body: str, folder: Path) -> Any:
    """Returns a module with a tile kernel ``paths`` that stores the ``r`` of these statements."""
    file = folder / "paths.py"
    head = "from oxide import *\nfrom oxide import tile\n@tile.kernel\ndef paths(z: tile.Partition[i64, 1], n: i64):"
    file.write_text(f"{head}{body}\n        z.store(tile.zeros(4, i64) + r)\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("paths", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("name", PATHS)
def test_what_every_path_sets_is_known(name: str, tmp_path: Path) -> None:
    module = module_of(PATHS[name], tmp_path)
    plain = type("Words", (), {"static_range": range, "full": lambda _, x, __: x, "zeros": lambda *_: 0})
    for n in (-1, 0, 1, 2, 3, 7):
        expected = Kept()
        names = {**vars(module), "tile": plain}
        type(module.paths.function)(module.paths.function.__code__, names)(expected, n)
        found = d2h(module.paths(full(4, -5, i64).partition(4), n).first().unpartition()).sync()
        assert found.tolist() == [expected.value] * 4, n


@tile.kernel(stages=2)
def last_product(
    c: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2], x: tile.Tensor[f32, 1], most: i32
) -> None:
    for k in range(4):
        part = tile.mma(a.load((0, k), (32, 16)), b.load((k, 0), (16, 32)), tile.zeros((32, 32)))
        row = x.load((k,), (32,))
        if k == most:
            break
    c.store(part + row + k)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("most", [0, 2, 9])
def test_tiles_that_a_loop_sets(most: int) -> None:
    rng = np.random.default_rng(1)
    a, b, x = rng.integers(-9, 9, (32, 64)), rng.integers(-9, 9, (64, 32)), rng.integers(-9, 9, 128)
    c = zeros((32, 32)).partition((32, 32))
    given = h2d(a.astype(np.float16)), h2d(b.astype(np.float16)), h2d(x.astype(np.float32))
    found = d2h(last_product(c, *given, most).first().unpartition()).sync()
    k = min(most, 3)
    part = slice(16 * k, 16 * k + 16)
    np.testing.assert_array_equal(found, a[:, part] @ b[part] + x[32 * k : 32 * k + 32] + k)


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(n):\n            r = i",
        "while n > 0:\n            r = 1\n            n = n - 1",
        "for i in range(4):\n            if i == n:\n                break\n            r = i",
        "if n > 2:\n            for i in range(3):\n                r = i",
        "for r in range(n):\n            pass",
        "for i in range(3):\n            if i == n:\n                r = i",
    ],
)
def test_what_a_path_leaves_out_is_refused(body: str, tmp_path: Path) -> None:
    module = module_of(f"\n        {body}", tmp_path)
    with pytest.raises(CompileError, match="r is not defined here; a name that only one branch or a loop sets"):
        module.paths.specialize(z=4)


@tile.kernel
def leaves_out(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32) -> None:
    total = tile.zeros(4)
    for k in range(3):
        only_here = x.load((k,), (4,))
        if k == n:
            also = only_here + 1
            total += also
        total += only_here
    z.store(total)


def test_what_is_not_read_after_a_loop_takes_no_place() -> None:
    special = leaves_out.specialize(z=4).description.tile
    assert special is not None
    loops = [node for node in special.program.body.nodes if node.op == "for"]
    assert [cell.name for node in loops for cell in node.detail[1]] == ["total"]
