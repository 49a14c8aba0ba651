"""Tile kernels on a GPU: tensor cores, pipelines and registers at sizes that a simulation does not reach."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from examples.tiles import attention, gemm, layer_norm, softmax
from oxide import bf16, d2h, f16, f32, h2d, tile, zeros

RNG = np.random.default_rng(5)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def error(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


OPTIONS = [(8, 4, (128, 256), 64), (8, 3, (128, 256), 64), (4, 4, (128, 128), 64), (4, 2, (64, 256), 128),
           (8, 1, (128, 128), 64), (8, 3, (256, 128), 64), (4, 5, (64, 64), 32)]  # fmt: skip


@pytest.mark.parametrize(("warps", "stages", "tiles", "bk"), OPTIONS)
@pytest.mark.parametrize(("m", "n", "k"), [(1024, 1024, 1024), (1000, 776, 520), (333, 257, 1111), (128, 256, 64)])
def test_products(warps: int, stages: int, tiles: tuple[int, int], bk: int, m: int, n: int, k: int) -> None:
    kernel = tile.kernel(warps=warps, stages=stages)(gemm.matmul.function)
    a, b = numbers(m, k).astype(np.dtype(bf16)), numbers(k, n).astype(np.dtype(bf16))
    around = h2d(np.full((m + 2, n), 3, np.float32).astype(np.dtype(bf16))).sync()
    kernel(around[1 : m + 1].partition(tiles), h2d(a), h2d(b), bk).sync()
    whole = d2h(around).sync().astype(np.float64)
    assert (whole[[0, -1]] == 3).all()
    assert error(whole[1:-1], a.astype(np.float64) @ b.astype(np.float64)) < 4e-3


def test_a_product_many_times_gives_the_same_bits() -> None:
    a, b = numbers(2048, 2048).astype(np.dtype(bf16)), numbers(2048, 2048).astype(np.dtype(bf16))
    left, right = h2d(a).sync(), h2d(b).sync()
    first = d2h(gemm.apply(left, right)).sync()
    for _ in range(50):
        assert (d2h(gemm.apply(left, right)).sync().view(np.uint16) == first.view(np.uint16)).all()


@pytest.mark.parametrize(("warps", "stages", "rows", "bn"), [(8, 2, 128, 64), (8, 3, 128, 128), (4, 2, 64, 64)])
@pytest.mark.parametrize("width", [64, 128])
def test_attention(warps: int, stages: int, rows: int, bn: int, width: int) -> None:
    kernel = tile.kernel(warps=warps, stages=stages, fastmath=True)(attention.attention.function)
    q, k, v = (numbers(3, 512, width).astype(np.dtype(bf16)) for _ in range(3))
    flat = [h2d(each.reshape(-1, width)).sync() for each in (q, k, v)]
    out = zeros((3 * 512, width), bf16).sync()
    kernel(out.partition((rows, width)), *flat, 512, math.log2(math.e) / math.sqrt(width), bn).sync()
    found = d2h(out).sync().astype(np.float64).reshape(q.shape)
    assert error(found, attention.reference(q, k, v)) < 8e-3


@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("shape", [(1000, 128), (999, 1000), (50, 8192), (7, 33)])
def test_rows(warps: int, shape: tuple[int, int]) -> None:
    x, weight, bias = numbers(*shape), numbers(shape[1]), numbers(shape[1])
    wide = x.astype(np.float64)
    tiles = softmax.rows_of(shape[1])
    one = tile.kernel(warps=warps)(softmax.softmax.function)
    y = one(zeros(shape).partition(tiles), h2d(x)).first().unpartition().to_host().sync()
    e = np.exp(wide - wide.max(1, keepdims=True))
    assert error(y, e / e.sum(1, keepdims=True)) < 1e-6
    two = tile.kernel(warps=warps)(layer_norm.layer_norm.function)
    y = two(zeros(shape).partition(tiles), h2d(x), h2d(weight), h2d(bias)).first().unpartition().to_host().sync()
    normed = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    assert error(y, normed * weight + bias) < 1e-5


def test_resources_have_no_spills() -> None:
    found = gemm.matmul.resources(c=gemm.TILE)
    assert found.registers <= 255
    assert not found.spill_bytes


@tile.kernel(warps=4, stages=3)
def turned(c: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2]) -> None:
    row, column = c.index
    acc = tile.zeros(c.tile_shape)
    for k in range(tile.cdiv(a.shape[0], 64)):
        acc = tile.mma(a.load((k, row), (64, c.tile_shape[0])).T, b.load((column, k), (c.tile_shape[1], 64)).T, acc)
    c.store(acc)


@pytest.mark.parametrize(("m", "n", "k"), [(512, 512, 512), (100, 72, 200)])
def test_transposed_operands(m: int, n: int, k: int) -> None:
    a, b = numbers(k, m).astype(np.float16), numbers(n, k).astype(np.float16)
    found = turned(zeros((m, n)).partition((64, 128)), h2d(a), h2d(b)).first().unpartition().to_host().sync()
    assert error(found, a.T.astype(np.float64) @ b.T.astype(np.float64)) < 1e-6


def test_a_tuned_product_is_right() -> None:
    candidates: list[dict[str, Any]] = [{"bk": 64, "stages": 3}, {"bk": 64, "stages": 4}, {"bk": 128, "stages": 2}]
    a, b = numbers(1024, 512).astype(np.dtype(bf16)), numbers(512, 768).astype(np.dtype(bf16))
    c = zeros((1024, 768), bf16).sync()
    left, right = h2d(a).sync(), h2d(b).sync()
    found = gemm.matmul.tune(candidates, c.partition(gemm.TILE), left, right)
    assert all(isinstance(seconds, float) for _, seconds in found.measured)
    gemm.matmul(c.partition(gemm.TILE), left, right).sync()
    assert error(d2h(c).sync().astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)) < 4e-3
