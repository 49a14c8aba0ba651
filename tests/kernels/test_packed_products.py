"""``matmul_packed``: products by a packed matrix, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import ArgumentError, d2h, full, h2d, zeros
from oxide_kernels import matmul_packed, pack

SIZES = [
    (0, 3, 4),
    (1, 1, 1),
    (3, 0, 5),
    (5, 4, 0),
    (6, 32, 7),
    (7, 33, 31),
    (31, 64, 33),
    (100, 130, 384),
    (13, 31, 9),
]


def close(found: Any, expected: Any) -> bool:
    return bool(np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected))


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_product_is_numpys(m: int, n: int, k: int, with_bias: bool) -> None:
    rng = np.random.default_rng(m + n + k)
    a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32)
    c = full((m, n), np.nan).sync()
    product = matmul_packed(h2d(a), h2d(pack(b)), c, bias=h2d(bias) if with_bias else None)
    assert product.sync() is c
    expected = a.astype(np.float64) @ b.astype(np.float64) + (bias if with_bias else 0)
    assert close(d2h(c).sync(), expected)


def test_nothing_is_written_past_the_product() -> None:
    whole = full((20, 33), 7.0).sync()
    rows = whole[4:11]
    matmul_packed(h2d(np.ones((7, 5), np.float32)), h2d(pack(np.ones((5, 33), np.float32))), rows).sync()
    expected = np.full((20, 33), 7.0)
    expected[4:11] = 5
    np.testing.assert_array_equal(d2h(whole).sync(), expected)


def test_panels_have_32_columns_and_end_with_zeros() -> None:
    b = np.arange(2 * 40, dtype=np.float32).reshape(2, 40)
    packed = pack(b)
    assert packed.shape == (2, 2, 32)
    np.testing.assert_array_equal(packed[0], b[:, :32])
    np.testing.assert_array_equal(packed[1], np.pad(b[:, 32:], ((0, 0), (0, 24))))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((4, 3), (1, 3, 32), (5, 6)), r"a has shape \(4, 3\) and c \(5, 6\); they are m×k and m×n"),
        (((4, 3), (1, 2, 32), (4, 6)), r"b has shape \(1, 2, 32\); .* it is \(1, 3, 32\), as pack makes it"),
        (((4, 3), (3, 6), (4, 6)), r"b has shape \(3, 6\)"),
        (((12,), (1, 3, 32), (4, 6)), r"a has shape \(12,\)"),
    ],
)
def test_shapes_that_do_not_match_are_refused(shapes: Any, words: str) -> None:
    a, b, c = (zeros(shape).sync() for shape in shapes)
    with pytest.raises(ValueError, match=words):
        matmul_packed(a, b, c)


def test_other_dtypes_views_and_shared_memory_are_refused() -> None:
    a, b, c = zeros((4, 4)).sync(), h2d(pack(np.zeros((4, 4), np.float32))).sync(), zeros((4, 4)).sync()
    with pytest.raises(ArgumentError, match="a is of float64; give a contiguous box of float32"):
        matmul_packed(zeros((4, 4), np.float64).sync(), b, c)
    with pytest.raises(ArgumentError, match="a is of float32, a view that is not contiguous"):
        matmul_packed(a.T, b, c)
    with pytest.raises(ArgumentError, match="shares memory"):
        matmul_packed(a, b, a)
    with pytest.raises(ValueError, match=r"the bias has shape \(3,\); for c of \(4, 4\) it is \(4,\)"):
        matmul_packed(a, b, c, bias=zeros(3).sync())
    with pytest.raises(ArgumentError, match="pack takes a matrix of float32, not float64"):
        pack(np.zeros((3, 3)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a matrix of two axes, not an array of shape \(3,\)"):
        pack(np.zeros(3, np.float32))


def test_the_bias_may_not_be_a_part_of_the_product() -> None:
    c = zeros((8, 32)).sync()
    a, b = h2d(np.ones((8, 4), np.float32)), h2d(pack(np.ones((4, 32), np.float32)))
    with pytest.raises(ArgumentError, match="shares memory with bias"):
        matmul_packed(a, b, c, bias=c[0]).sync()
