"""The tile examples compute what NumPy does in float64, at odd sizes, and print a line."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from examples.tiles import add, attention, gemm, kmeans, layer_norm, softmax, stencil, topk
from oxide import bf16, d2h, h2d, zeros

RNG = np.random.default_rng(11)
NAMES = ["add", "softmax", "layer_norm", "gemm", "attention", "stencil", "kmeans", "topk"]


def numbers(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def error(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_main_prints_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"examples.tiles.{name}").main()
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.startswith(name.replace("_", " ").replace("kmeans", "k-means"))


def test_add() -> None:
    assert trio.run(add.run) == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (33, 31), (3, 128), (7, 1000), (2, 8192)])
def test_rows(shape: tuple[int, int]) -> None:
    x = numbers(*shape)
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert error(softmax.apply(x).sync(), wide / wide.sum(1, keepdims=True)) < 1e-6
    if shape[1] > 1:
        weight, bias = numbers(shape[1]), numbers(shape[1])
        wide = x.astype(np.float64)
        normed = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
        assert error(layer_norm.apply(x, weight, bias).sync(), normed * weight + bias) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (33, 31, 100), (130, 260, 65), (64, 64, 0)])
def test_gemm(m: int, n: int, k: int) -> None:
    a, b = numbers(m, k).astype(np.dtype(bf16)), numbers(k, n).astype(np.dtype(bf16))
    found = d2h(gemm.apply(h2d(a).sync(), h2d(b).sync(), (64, 64))).sync().astype(np.float64)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(found - expected) <= 4e-3 * np.linalg.norm(expected)
    a, b = a.astype(np.float32), b.astype(np.float32)
    c = gemm.matmul_f32(zeros((m, n)).partition((60, 64)), h2d(a), h2d(b), 64).first().unpartition()
    assert np.linalg.norm(c.to_host().sync() - expected) <= 1e-5 * np.linalg.norm(expected)


def test_attention() -> None:
    q, k, v = (numbers(2, 128, 64).astype(np.dtype(bf16)) for _ in range(3))
    boxes = [h2d(each).sync() for each in (q, k, v)]
    assert error(d2h(attention.apply(*boxes)).sync().astype(np.float64), attention.reference(q, k, v)) < 8e-3
    with pytest.raises(ValueError, match="100 tokens are no multiple of 128 queries"):
        attention.apply(*(zeros((2, 100, 64), bf16).sync() for _ in range(3)))


@pytest.mark.parametrize("shape", [(1, 1), (17, 65), (33, 31)])
def test_stencil(shape: tuple[int, int]) -> None:
    grid = numbers(*shape)
    for steps in (1, 3):
        found = stencil.apply(grid, steps).sync()
        assert np.abs(found - stencil.reference(grid, steps)).max() < 1e-6


def test_kmeans() -> None:
    points, centres = numbers(333, 5), numbers(7, 5)
    nearest, sums, counts = kmeans.apply(points, centres)
    expected = ((points[:, None].astype(np.float64) - centres) ** 2).sum(2).argmin(1)
    np.testing.assert_array_equal(nearest, expected)
    np.testing.assert_array_equal(counts, np.bincount(expected, minlength=7))
    added = np.zeros((7, 5))
    np.add.at(added, expected, points)
    assert error(sums, added) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "k"), [((1, 1), 1), ((33, 31), 4), ((5, 300), 8)])
def test_topk(shape: tuple[int, int], k: int) -> None:
    x = numbers(*shape)
    values, columns = topk.apply(x, k)
    expected = np.argsort(-x, 1, kind="stable")[:, :k]
    np.testing.assert_array_equal(columns, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))
