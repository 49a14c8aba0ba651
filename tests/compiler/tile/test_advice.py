"""What the errors of tile kernels advise: it gives the numbers of the function that is missing, and speaks of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import ArgumentError, bf16, bool_, d2h, f16, f32, f64, h2d, i32, tile, value, zeros
from oxide.language.tile import instead

HALVES = np.arange(-9, 10) / 2
NEAR = [0.49999997, -0.49999997, 0.50000006, 1e-10, -1e-10, 8388609, 8388607.5, 4194303.5, -4194304.5]
NEAR += [2.0**52 - 0.5, 2.0**53 - 1, np.nextafter(0.5, 0), 1e30, -1e30, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("kind", [f16, bf16, f32, f64], ids=lambda kind: kind.name)
def test_round_and_rint_are_to_even(kind: Any) -> None:
    assert instead("round") == instead("rint")
    advice = "where(x - f > 0.5, f + 1, where(x - f < 0.5, f, 2 * floor(f / 2 + 0.5)))"
    assert instead("round") == f"; use f = floor(x) and {advice}"

    @tile.kernel
    def rounded(z: tile.Partition[kind, 1], given: tile.Tensor[kind, 1]):
        x = tile.load_like(given, z)
        f = tile.floor(x)
        z.store(tile.where(x - f > 0.5, f + 1, tile.where(x - f < 0.5, f, 2 * tile.floor(f / 2 + 0.5))))

    with np.errstate(over="ignore"):
        x = np.concatenate([HALVES, NEAR, np.random.default_rng(1).uniform(-3000, 3000, 500)]).astype(kind.dtype)
    found = d2h(rounded(zeros(len(x), kind).partition(len(x)), h2d(x)).first().unpartition()).sync()
    np.testing.assert_array_equal(found.astype(float), np.rint(x.astype(float)).astype(kind.dtype).astype(float))


def test_a_product_of_signed_numbers_and_zeros() -> None:
    assert instead("prod") == instead("cumprod") == "; multiply in a loop, as in p *= x.load((i, j), (rows, 1))"

    @tile.kernel
    def product(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2]):
        i, _ = z.index
        rows, _ = z.tile_shape
        p = tile.ones((rows, 1))
        for j in range(x.shape[1]):
            p *= x.load((i, j), (rows, 1))
        z.store(p)

    x = np.array([[1, -2, 3], [0, -5, 2], [-1, -1, -0.5], [4, 0.25, 8]], np.float32)
    found = d2h(product(zeros((4, 1)).partition((2, 1)), h2d(x)).first().unpartition()).sync()
    np.testing.assert_array_equal(found[:, 0], x.prod(1))


def test_a_variance_and_truth_values() -> None:
    assert instead("var") == "; divide the sum of the squares of x - mean by the length"
    assert instead("any") == "; use max(x != 0)"
    assert instead("all") == "; use min(x != 0)"
    assert instead("logical_and") == "; use & of bools, as in (x != 0) & (y != 0)"

    @tile.kernel
    def variance(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]):
        v = tile.load_like(x, z)
        mean = tile.sum(v) / 8
        z.store(tile.sum((v - mean) * (v - mean)) / 8 + tile.zeros(8))

    @tile.kernel
    def truth(z: tile.Partition[bool_, 1], x: tile.Tensor[i32, 1], y: tile.Tensor[i32, 1]):
        a, b = tile.load_like(x, z), tile.load_like(y, z)
        z.store(((a != 0) & (b != 0)) ^ (max(a != 0) & min(b != 0)))

    x = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.float32)
    found = d2h(variance(zeros(8).partition(8), h2d(x)).first().unpartition()).sync()
    assert found[0] == pytest.approx(x.var())
    a, b = np.array([0, 1, 2, 0], np.int32), np.array([4, 2, 1, 0], np.int32)
    for given in (b, b | 8):
        whole = bool(a.any()) and bool(given.all())
        result = d2h(truth(zeros(4, bool_).partition(4), h2d(a), h2d(given)).first().unpartition()).sync()
        np.testing.assert_array_equal(result, np.logical_and(a, given) ^ whole)


@tile.kernel
def three(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], t: tile.Target[f32, 2]):
    z.store(tile.load_like(x, z))


def test_a_tensor_is_called_a_tensor() -> None:
    assert [each.annotation for each in three.specialize(z=(4, 4)).parameters] == [
        "tile.Partition[f32, 2]",
        "tile.Tensor[f32, 2]",
        "tile.Target[f32, 2]",
    ]

    def refused(problem: str, *arguments: Any) -> None:
        with pytest.raises(ArgumentError) as caught:
            three(*arguments).sync()
        assert problem in str(caught.value)
        assert "Slice" not in str(caught.value)
        assert "Array" not in str(caught.value)

    box: Any = zeros((8, 96)).sync()
    view, whole, other = box[:, 32:64], zeros((8, 32)).sync(), zeros((8, 8)).sync()
    contiguous = "takes contiguous memory; dup(view) makes a contiguous box"
    refused(f"tile.Tensor[f32, 2] {contiguous}", whole.partition((4, 32)), view, other)
    refused(f"tile.Target[f32, 2] {contiguous}", whole.partition((4, 32)), whole, view)
    refused(f"tile.Partition[f32, 2] {contiguous}", view.partition((4, 32)), whole, other)
    late = value(0).and_then(lambda _: value(view))
    refused(f"tile.Tensor[f32, 2] {contiguous}", whole.partition((4, 32)), late, other)
