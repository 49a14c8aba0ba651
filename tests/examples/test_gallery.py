"""The gallery's programs compute what NumPy does in float64, print a line, and are as short as they say."""

from __future__ import annotations

import ast
import importlib
import io
import math
import re
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.gallery import (
    __main__ as listing,
)
from examples.gallery import (
    game_of_life,
    heat_equation,
    julia,
    matrix_product,
    monte_carlo,
    mpm88,
    nbody,
    raymarch,
    sum_reduction,
    vector_addition,
    wave,
)
from oxide import d2h, h2d, zeros
from oxide.compiler.primitives.random_numbers import philox

FOLDER = Path(listing.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("__"))


def error(got: Any, wanted: Any) -> float:
    """The largest difference, relative to the largest number."""
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 31, 1025])
def test_vector_addition(n: int) -> None:
    a, b = np.random.default_rng(n).standard_normal((2, n))
    c = vector_addition.add(h2d(a), h2d(b), zeros(n, a.dtype)).last().and_then(d2h).sync()
    assert np.array_equal(c, a + b)


@pytest.mark.parametrize(("n", "steps"), [(1, 3), (2, 0), (33, 20), (301, 21)])
def test_heat_equation(n: int, steps: int) -> None:
    rod = np.random.default_rng(n).random(n)
    wanted = rod.copy()
    for _ in range(steps):
        around = np.pad(wanted, 1)
        wanted = wanted + 0.25 * (around[:-2] - 2 * wanted + around[2:])
    assert error(heat_equation.solve(rod, steps), wanted) < 1e-13


@pytest.mark.parametrize("size", [(1, 1, 1), (5, 23, 7), (33, 17, 31), (16, 32, 16)])
def test_matrix_product(size: tuple[int, int, int]) -> None:
    m, k, n = size
    random = np.random.default_rng(m)
    a, b = random.random((m, k), np.float32), random.random((k, n), np.float32)
    assert error(matrix_product.product(a, b), a.astype(np.float64) @ b.astype(np.float64)) < 1e-6


@pytest.mark.parametrize("n", [1, 31, 256, 257, 10_001])
def test_sum_reduction(n: int) -> None:
    data = np.random.default_rng(n).integers(-(2**40), 2**40, n)
    assert sum_reduction.total(data) == data.sum()


def test_monte_carlo() -> None:
    samples = np.array([philox((7, 0), (i, 0, 0, 0))[0] >> 8 for i in range(10_001)]) * 2.0**-24
    assert 0 <= samples.min() < 0.001
    assert 0.999 < samples.max() < 1
    assert abs(np.corrcoef(samples[:-1], samples[1:])[0, 1]) < 0.03
    drawn = monte_carlo.evaluate(lambda x: x, 7, 0.0, 1.0, zeros(10_001)).last().and_then(d2h).sync()
    assert np.array_equal(drawn, samples)
    wanted = (1 / (1 + 2 * samples)).mean() * 2
    assert abs(monte_carlo.integral(lambda x: 1 / x, 1, 3, 10_001, seed=7) / wanted - 1) < 1e-5
    assert abs(monte_carlo.integral(lambda x: 1 / x, 1, 2, 100_001) - math.log(2)) < 2e-3
    assert abs(monte_carlo.integral(lambda x: x * x, 0, 1, 100_001) - 1 / 3) < 5e-3


def test_julia() -> None:
    n, t = 31, 0.7
    row, col = np.mgrid[:n, : 2 * n]
    z = 2 * (col / n - 1) + 2j * (row / n - 0.5)
    iterations = np.zeros(z.shape, int)
    for _ in range(50):
        going = np.abs(z) < 20
        iterations += going
        z = np.where(going, z * z - 0.8 + 0.2j * math.cos(t), z)
    got = julia.picture(n, t)
    assert 0.01 < (iterations == 50).mean() < 0.5, "some points stay, most escape"
    # An orbit is chaotic, so that a point next to the set may escape a few iterations sooner or later in float32.
    assert (np.abs(got - (1 - 0.02 * iterations)) < 1e-6).mean() > 0.98


@pytest.mark.parametrize("shape", [(3, 3), (17, 31), (33, 16)])
def test_game_of_life(shape: tuple[int, int]) -> None:
    world = np.random.default_rng(3).integers(0, 2, shape).astype(np.int32)
    wanted = world.copy()
    for _ in range(5):
        shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
        around = sum(np.roll(wanted, shift, (0, 1)) for shift in shifts)
        wanted = ((around == 3) | ((around == 2) & (wanted == 1))).astype(np.int32)
    assert np.array_equal(game_of_life.play(world, 5), wanted)


@pytest.mark.parametrize("n", [1, 33, 101])
def test_nbody(n: int) -> None:
    start = nbody.galaxy(n)
    pos, vel = (each.astype(np.float64) for each in start)
    for _ in range(5):
        apart = pos[None] - pos[:, None]
        force = (apart / ((apart**2).sum(-1) + 1e-5)[..., None] ** 1.5).sum(1)
        vel = vel + 1e-4 * force
        pos = pos + 1e-4 * vel
    got = nbody.simulate(*start, steps=5, dt=1e-4)
    assert error(got[0], pos) < 1e-5
    assert error(got[1], vel) < 1e-5


def test_wave() -> None:
    rows, cols, steps, dt = 25, 33, 40, 1 / 60
    before, now = np.zeros((2, rows, cols))
    row, col = np.mgrid[:rows, :cols]
    for step in range(steps):
        x, y = cols / 2 + math.sin(step * dt) * cols / 3, rows / 2 + math.cos(step * dt) * rows / 3
        under = (col - x) ** 2 + (row - y) ** 2 < (rows / 12) ** 2
        before[under] = now[under] = -0.5
        around = np.pad(now, 1, mode="edge")
        laplacian = around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:] - 4 * now
        later = 2 * now - before + dt * dt * (laplacian / 0.1**2 - 0.2 * (now - before))
        before, now = now, later
    assert error(wave.simulate(rows, cols, steps, dt=dt, damping=0.2), now) < 1e-4


def rendered(rows: int, cols: int, eye: tuple[float, float, float]) -> Any:
    """The picture of ``raymarch`` in float64."""

    def unit(v: Any) -> Any:
        return v / np.linalg.norm(v, axis=-1, keepdims=True)

    def distance(p: Any) -> Any:
        ball = np.linalg.norm(p - (0, 0.75, 0), axis=-1) - 0.75
        out = np.abs(p) - (1, 0.5, 0.5)
        box = np.linalg.norm(np.maximum(out, 0), axis=-1) + np.minimum(out.max(-1), 0)
        return np.minimum(np.maximum(-ball, box), p[..., 1] + 1)

    _, right, up, ahead = map(np.array, raymarch.camera(eye, (0.0, 0.0, 0.0)))
    row, col = np.mgrid[:rows, :cols][..., None]
    ray = unit(right * (2 * col - cols) / rows + up * (2 * row - rows) / rows + 2 * ahead)
    t = np.zeros((rows, cols))
    for _ in range(128):
        d = distance(eye + ray * t[..., None])
        t += d
    p = eye + ray * t[..., None]
    steps = 1e-3 * np.eye(3)
    normal = unit(np.stack([distance(p + e) - distance(p - e) for e in steps], -1))
    light = unit(np.array([0.6, 0.4, 0.5]))
    half = unit(light - ray)
    went, share, past = np.zeros(t.shape), np.ones(t.shape), np.zeros(t.shape, bool)
    for _ in range(64):
        near = distance(p + light * went[..., None])
        went += np.clip(near, 1e-4, 2)
        h = np.clip(4 * near / went, 0, 1)
        share = np.minimum(share, h * h * (3 - 2 * h))
        past |= went > 8
    share[past] = 1
    specular = np.clip((normal * half).sum(-1), 0, 1) ** 80
    fresnel = 0.04 + 0.96 * np.clip(1 - half @ light, 0, 1) ** 5
    shade = 2 * ((normal @ light) * (1 - fresnel) + 10 * specular * fresnel) * share
    colour = np.clip(np.maximum(shade[..., None] * (0.85, 0.9, 0.95), 0) ** 2.2, 0, 1)
    return np.where((d < 0.01)[..., None], colour, (0.6, 0.675, 0.75))


@pytest.mark.slow
@pytest.mark.parametrize("eye", [(-1.25, 1.0, 2.0), (-1.8, 1.2, -1.5)], ids=["the light behind", "a highlight"])
def test_raymarch(eye: tuple[float, float, float]) -> None:
    got, wanted = raymarch.picture(27, 45, eye), rendered(27, 45, eye)
    assert len(np.unique(wanted.round(3))) > 100, "a picture"
    apart = np.abs(got - wanted).max(-1)
    assert np.median(apart) < 1e-5
    assert (apart < 2e-4).mean() > 0.995, "at an edge a ray in float32 may meet another face"


def jelly(x: Any, v: Any, steps: int) -> tuple[Any, Any, Any]:
    """The simulation of ``mpm88`` in float64."""
    n, dt, mass, stiffness = mpm88.N, mpm88.DT, mpm88.MASS, mpm88.STIFFNESS
    c, volume = np.zeros((len(x), 2, 2)), np.ones(len(x))
    cells = np.arange(n)
    for _ in range(steps):
        base = (x * n - 0.5).astype(int)
        f = x * n - base
        w = np.stack([0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2])
        stress = -dt * 4 * stiffness * mpm88.VOLUME * (volume - 1) * n * n
        affine = stress[:, None, None] * np.eye(2) + mass * c
        grid, grid_mass = np.zeros((n, n, 2)), np.zeros((n, n))
        around = [
            (a, b, (w[a, :, 0] * w[b, :, 1])[:, None], (np.array([a, b]) - f) / n) for a in range(3) for b in range(3)
        ]
        for a, b, weight, away in around:
            at = base[:, 0] + a, base[:, 1] + b
            np.add.at(grid, at, weight * (mass * v + np.einsum("pij,pj->pi", affine, away)))
            np.add.at(grid_mass, at, weight[:, 0] * mass)
        grid /= np.where(grid_mass > 0, grid_mass, 1)[..., None]
        grid[..., 1] -= dt * mpm88.GRAVITY
        for axis in (0, 1):
            speed = np.moveaxis(grid[..., axis], axis, 0)
            first, last = cells < mpm88.BOUND, cells > n - mpm88.BOUND
            speed[first] = np.maximum(speed[first], 0)
            speed[last] = np.minimum(speed[last], 0)
        v, c = np.zeros_like(v), np.zeros_like(c)
        for a, b, weight, away in around:
            here = weight * grid[base[:, 0] + a, base[:, 1] + b]
            v += here
            c += 4 * n * n * here[:, :, None] * away[:, None, :]
        x = x + dt * v
        volume *= 1 + dt * np.trace(c, axis1=1, axis2=2)
    return x, v, volume


def test_mpm88() -> None:
    random = np.random.default_rng(1)
    x = np.float32(0.03 + 0.1 * random.random((501, 2)))  # next to two walls, so that it hits them
    v = np.float32(random.standard_normal((501, 2)) - (1, 3))
    wanted = jelly(x.astype(np.float64), v.astype(np.float64), 60)
    got = mpm88.simulate(x, v, 60)
    assert np.abs(wanted[2] - 1).max() > 0.01, "it is pressed together"
    for mine, right, tolerance in zip(got, wanted, (1e-4, 1e-3, 1e-4), strict=True):
        assert error(mine, right) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_main_prints_a_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"examples.gallery.{name}").main()
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1
    assert "nan" not in printed
    assert re.search(r"\d", printed)


def test_the_listing_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    listing.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2].removeprefix("examples.gallery.") for line in lines] == NAMES
    assert len(NAMES) >= 10
    assert all(len(line) < 160 and line.endswith(".") for line in lines)


def code_lines(source: str) -> int:
    """The number of lines that hold code: no comments, docstrings and blank lines."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            documentation |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documentation)


def test_code_lines_are_counted() -> None:
    source = '"""A\nb."""\n\nx = 1  # one\n# no\ny = (\n    2\n)\ndef f():\n    """A."""\n    return """\n"""\n'
    assert code_lines(source) == 1 + 3 + 1 + 2


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_at_most_1_3_times_as_long_as_its_original(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    stated = re.search(r"^Original: .*, (\d+) lines\.$", ast.get_docstring(ast.parse(source)) or "", re.MULTILINE)
    assert stated, "the docstring names the original and its lines"
    assert code_lines(source) <= 1.3 * int(stated[1])
