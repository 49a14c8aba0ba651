"""The kernel library at the edges: masked rows, grids beyond CUDA's limit along y, and numbers far out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import oxide_kernels as library
from oxide import d2h, f32, f64, h2d, i64, u32, zeros
from oxide_kernels import data_movement, gemm, map_, ops
from oxide_kernels.activations import gelu_for_bf16, gelu_for_f16
from tests.kernels.references import softmax

WIDTHS = (1, 31, 128, 1025, 8192, 32_768, 32_769, 40_000)  # each way through softmax, on both sides of the widest


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_softmax_of_masked_rows(width: int, dtype: Any) -> None:
    x = np.random.default_rng(width).standard_normal((6, width)).astype(dtype)
    x[0, : width // 2] = -np.inf
    x[1, width // 2 + 1 :] = -np.inf
    x[2, :-1] = -np.inf
    x[3, 1:] = -np.inf
    x[4, : (width - 1) // 1024 * 1024] = -np.inf  # whole threads of nothing else
    x[5, np.random.default_rng(1).random(width) < 0.9] = -np.inf
    x[5, -1] = 300
    found = d2h(ops.softmax(h2d(x))).sync()
    expected = softmax(x.astype(np.float64))
    assert np.linalg.norm(found - expected) <= 2e-6 * np.linalg.norm(expected)
    assert (found[x == -np.inf] == 0).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_softmax_is_nan_where_torchs_is(width: int) -> None:
    x = np.full((4, width), -np.inf, np.float32)
    x[1, width // 3] = np.nan  # the only other element
    x[2] = 1
    x[2, width - 1] = np.inf
    x[3] = 1
    x[3, 0] = np.nan
    found = d2h(ops.softmax(h2d(x))).sync()
    assert np.isnan(found[[0, 1, 3]]).all()
    assert np.isnan(found[2, width - 1])


def test_a_transpose_of_more_columns_than_a_grid_has_rows() -> None:
    columns = 32 * 65_535 + 1
    x = np.arange(columns, dtype=np.uint32)
    for shape in ((1, columns), (columns, 1)):
        np.testing.assert_array_equal(d2h(ops.transpose(h2d(x.reshape(shape)))).sync(), x.reshape(shape).T)


@pytest.mark.parametrize("size", [u32, i64])
@pytest.mark.parametrize("shape", [(3, 0), (1, 33), (70, 45), (5, 1025), (129, 64)])
def test_transposes_with_the_columns_along_x(shape: tuple[int, int], size: Any) -> None:
    (rows, columns), x = shape, np.random.default_rng(4).standard_normal(shape, np.float32)
    grid = (max(1, -(-columns // 32)), max(1, -(-rows // 32)))
    turned = data_movement.turning(True, size)[grid, (32, 8)](rows, columns, h2d(x), zeros((columns, rows))).last()
    np.testing.assert_array_equal(d2h(turned).sync(), x.T)


@pytest.mark.nightly
def test_a_product_of_more_rows_than_a_grid_has() -> None:
    a = np.random.default_rng(2).standard_normal((128 * 65_535 + 1, 1), np.float32)
    found = d2h(ops.sgemm_tiled(h2d(a), h2d(np.full((1, 1), 3, np.float32)))).sync()
    np.testing.assert_array_equal(found, 3 * a)


@pytest.mark.slow
@pytest.mark.parametrize("size", [u32, i64])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (130, 131, 13), (257, 128, 20), (5, 7, 0), (300, 36, 52)])
def test_products_with_the_rows_along_x(
    m: int, n: int, k: int, large: bool, size: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "_ENOUGH_TILES", 0 if large else 10**9)
    monkeypatch.setattr(gemm, "_MOST_BLOCKS", 0)
    ask = gemm.kernel_of
    monkeypatch.setattr(gemm, "kernel_of", lambda large, vectors, swapped, _: ask(large, vectors, swapped, size))
    random = np.random.default_rng(m)
    a, b, c = (random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
    expected = 1.5 * a.astype(np.float64) @ b - 0.5 * c.astype(np.float64)
    found = d2h(library.sgemm_tiled(m, n, k, 1.5, h2d(a), h2d(b), -0.5, h2d(c)).last()).sync()
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)


def test_the_usual_products_and_transposes_have_their_usual_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = gemm.kernel_of
    monkeypatch.setattr(gemm, "kernel_of", lambda *choice: asked.append(choice) or ask(*choice))
    ops.sgemm_tiled(zeros((4, 4)), zeros((4, 4))).sync()
    assert asked == [(False, True, False, u32)]


def test_squares_that_no_float32_holds_are_infinite_as_torchs_are() -> None:
    x, ones = np.full((2, 8), 1e20, np.float32), h2d(np.ones(8, np.float32)).sync()
    x[1] = 1
    np.testing.assert_array_equal(d2h(ops.rms_norm(h2d(x), ones)).sync()[0], np.zeros(8))
    assert d2h(ops.rms_norm(h2d(x), ones)).sync()[1] == pytest.approx(np.ones(8), rel=1e-4)
    spread = h2d(np.array([1e20, -1e20] * 4, np.float32).reshape(1, 8))
    np.testing.assert_array_equal(d2h(ops.layer_norm(spread, ones, ones)).sync(), np.ones((1, 8)))
    exact = d2h(ops.rms_norm(h2d(x.astype(np.float64)), h2d(np.ones(8)))).sync()
    np.testing.assert_allclose(exact, np.ones((2, 8)), rtol=1e-4)


def test_activations_far_out_are_what_torchs_are() -> None:
    x = np.array([-np.inf, -88.8, np.inf], np.float32)
    for name in ("silu", "gelu"):
        found = d2h(getattr(ops, name)(h2d(x))).sync()
        assert np.isnan(found[0])
        assert found[1] == 0
        assert found[2] == np.inf


def test_a_beta_of_0_reads_no_c() -> None:
    a, nan = np.ones((3, 3), np.float32), np.full((3, 3), np.nan, np.float32)
    config = ((1, 1), (16, 16))
    for gemm_ in (library.sgemm_naive[config], library.sgemm_tiled):
        found = d2h(gemm_(3, 3, 3, 2.0, h2d(a), h2d(a), 0.0, h2d(nan)).last()).sync()
        np.testing.assert_array_equal(found, np.full((3, 3), 6))


def test_a_row_of_a_table_may_have_no_elements() -> None:
    indices = h2d(np.zeros(3, np.int32))
    assert d2h(ops.gather(zeros((5, 0)), indices)).sync().shape == (3, 0)
    assert d2h(ops.gather(zeros((5, 2), f64.dtype), indices)).sync().tolist() == [[0, 0]] * 3
    assert f32.dtype == np.float32


@pytest.mark.parametrize(
    ("gelu", "absolute", "relative"), [(gelu_for_f16, 2.5e-5, 1e-4), (gelu_for_bf16, 1e-4, 1.2e-3)]
)
def test_the_gelu_for_16_bits_is_as_near_as_it_says(gelu: Any, absolute: float, relative: float) -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), [-1e38, -100, -27.5, 0, 27.5, 1e38]]).astype(np.float32)
    found = d2h(map_(gelu, h2d(x), zeros(len(x), np.float32)).last()).sync().astype(np.float64)
    # The probability by its complement: no digits are lost in the left tail.
    exact = x * np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x.tolist()])
    error = np.abs(found - exact)
    assert np.all(error <= absolute * np.abs(x))
    near = x >= -3
    assert np.all(error[near] <= relative * np.abs(exact[near]))
    assert found[-1] == np.float32(1e38)
    assert np.isnan(d2h(map_(gelu, h2d(np.float32([np.nan])), zeros(1, np.float32)).last()).sync())
