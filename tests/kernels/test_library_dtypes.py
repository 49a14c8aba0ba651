"""The kernel library's other dtypes, against NumPy; ``test_library.py`` has the sizes, in float32."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import oxide_kernels as library
from oxide import ArgumentError, BoundsError, d2h, f32, h2d, zeros
from oxide_kernels import ops
from tests.kernels.references import ACTIVATIONS, Array, layer_norm, rms_norm, softmax

SIZE = 70_003  # several blocks, vectors in turns, and a rest

BF16 = ml_dtypes.bfloat16
FLOATS = (np.float16, BF16, np.float64)
FLOATS8 = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
INTEGERS = (np.int32, np.uint32, np.int64, np.uint64)
ERRORS = {np.float16: 1e-3, BF16: 8e-3, np.float32: 2e-6, np.float64: 1e-13}


def stored(values: Array, dtype: Any) -> Array:
    """Numbers as a kernel takes them."""
    return values.astype(dtype)


def exact(values: Array, dtype: Any) -> Array:
    """What such elements are, in float64; integers as they are."""
    return values.astype(np.float64) if dtype in FLOATS else values


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    random = np.random.default_rng(seed + math.prod(shape))
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return stored(random.standard_normal(shape), dtype)


def assert_close(found: Array, expected: Array, dtype: Any, factor: float = 1) -> None:
    found = exact(found, dtype)
    assert found.shape == expected.shape
    error, scale = np.linalg.norm(found - expected), np.linalg.norm(expected)
    assert error <= factor * ERRORS[dtype] * scale, f"off by {error / scale:.2e} of the norm"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_every_float_equal_numpys(name: str, dtype: Any) -> None:
    x = numbers(dtype, 4099)
    expected = ACTIVATIONS[name](exact(x, dtype))
    assert_close(d2h(getattr(ops, name)(h2d(x))).sync(), expected, dtype)
    piece = h2d(x).sync().split(2049)[1]  # which begins in the middle of a vector
    assert_close(d2h(getattr(ops, name)(piece)).sync(), expected[2049:4098], dtype)


def test_narrow_floats_are_rounded_once() -> None:
    x = np.arange(0x0400, 0x7BFF, 7, dtype=np.uint16).view(np.float16)
    with np.errstate(over="ignore"):
        expected = (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float16)
    found = d2h(ops.sigmoid(h2d(x))).sync()
    assert np.mean(found == expected) > 0.99
    assert np.abs(found.view(np.int16) - expected.view(np.int16)).max() <= 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_axpy_of_every_float_equals_numpys(dtype: Any) -> None:
    x, y = numbers(dtype, SIZE, seed=1), numbers(dtype, SIZE, seed=2)
    expected = 2.5 * exact(x, dtype) + exact(y, dtype)
    assert_close(d2h(ops.axpy(2.5, h2d(x), h2d(y))).sync(), expected, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 33, SIZE])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_and_products_of_every_float_equal_numpys(dtype: Any, size: int) -> None:
    x, y = numbers(dtype, size, seed=1), numbers(dtype, size, seed=2)
    wide, other = exact(x, dtype), exact(y, dtype)
    total, product = d2h(ops.reduce_sum(h2d(x))).sync(), d2h(ops.dot(h2d(x), h2d(y))).sync()
    assert total.dtype == product.dtype == x.dtype
    scale = ERRORS[dtype] * max(1.0, math.sqrt(size))
    assert abs(exact(total, dtype) - wide.sum()) <= scale + ERRORS[dtype] * abs(wide.sum())
    assert abs(exact(product, dtype) - wide @ other) <= scale + ERRORS[dtype] * abs(wide @ other)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 33, SIZE])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_sums_and_products_of_integers_are_as_wide_as_numpys(dtype: Any, size: int) -> None:
    x, y = numbers(dtype, size, seed=1), numbers(dtype, size, seed=2)
    wide = np.int64 if np.dtype(dtype).kind == "i" else np.uint64
    total, product = d2h(ops.reduce_sum(h2d(x))).sync(), d2h(ops.dot(h2d(x), h2d(y))).sync()
    assert total.dtype == product.dtype == wide
    assert total == x.sum()
    assert product == (x.astype(wide) * y.astype(wide)).sum()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 33, SIZE])
@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.uint64], ids=str)
def test_the_greatest_and_its_place_are_numpys_at_ties_infinities_and_nan_too(dtype: Any, size: int) -> None:
    x = numbers(dtype, size)
    wide = exact(x, dtype)
    greatest = d2h(ops.reduce_max(h2d(x))).sync()
    assert greatest.dtype == x.dtype
    assert exact(greatest, dtype) == wide.max()
    assert d2h(ops.argmax(h2d(x))).sync() == wide.argmax()
    x[:] = x.min() if dtype in INTEGERS else stored(np.full(size, -np.inf), dtype)
    assert d2h(ops.reduce_max(h2d(x))).sync() == x[0]
    assert d2h(ops.argmax(h2d(x))).sync() == 0
    if dtype not in INTEGERS:
        x[size // 2 :] = stored(np.full(1, np.nan), dtype)
        assert np.isnan(exact(d2h(ops.reduce_max(h2d(x))).sync(), dtype))
        assert d2h(ops.argmax(h2d(x))).sync() == size // 2


# A row is a part of a warp's, a warp's, a block's, or walked over: f64 changes over at half the width.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        *((dtype, width) for dtype in FLOATS for width in (33, 128)),
        *((np.float64, width) for width in (512, 513, 1003, 1024, 2052, 20_000)),
    ],
)
def test_softmax_and_norms_of_every_float_equal_numpys(dtype: Any, width: int) -> None:
    x, weight, bias = numbers(dtype, 5, width), numbers(dtype, width, seed=1), numbers(dtype, width, seed=2)
    wide = exact(x, dtype)
    assert_close(d2h(ops.softmax(h2d(x))).sync(), softmax(wide), dtype)
    layer = layer_norm(wide, exact(weight, dtype), exact(bias, dtype), 1e-3)
    assert_close(d2h(ops.layer_norm(h2d(x), h2d(weight), h2d(bias), 1e-3)).sync(), layer, dtype)
    assert_close(d2h(ops.rms_norm(h2d(x), h2d(weight), 1e-3)).sync(), rms_norm(wide, exact(weight, dtype), 1e-3), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("m", "n"), [(31, 33), (9, 4096)])
def test_matvec_of_every_float_equals_numpys(dtype: Any, m: int, n: int) -> None:
    matrix, vector = numbers(dtype, m, n), numbers(dtype, n)
    assert_close(d2h(ops.matvec(h2d(matrix), h2d(vector))).sync(), exact(matrix, dtype) @ exact(vector, dtype), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_integers_of_every_width_are_counted_as_numpy_counts_them(dtype: Any) -> None:
    values = np.random.default_rng(7).integers(0, 200, 5001).astype(dtype)
    found = d2h(ops.histogram(h2d(values), 256)).sync()
    np.testing.assert_array_equal(found, np.bincount(values.astype(np.int64), minlength=256))


@pytest.mark.parametrize("bins", [10, 5000])
def test_a_negative_value_has_no_bin(bins: int) -> None:
    with pytest.raises(BoundsError, match="counts") as caught:
        ops.histogram(h2d(np.array([1, -3], np.int32)), bins).sync()
    assert caught.value.index == -3


MOVED = (np.int8, np.uint8, np.int16, np.uint16, np.float16, BF16, *FLOATS8, *INTEGERS, np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", MOVED)
def test_transpose_and_gather_move_elements_of_every_width(dtype: Any) -> None:
    x = np.random.default_rng(5).integers(0, 256, (101, 67 * np.dtype(dtype).itemsize)).astype(np.uint8).view(dtype)
    x = np.where(np.isnan(x), x.dtype.type(0), x)
    np.testing.assert_array_equal(d2h(ops.transpose(h2d(x))).sync(), x.T)
    indices = np.random.default_rng(6).integers(0, 101, (5, 7))
    for kind in (np.int32, np.int64):
        np.testing.assert_array_equal(d2h(ops.gather(h2d(x), h2d(indices.astype(kind)))).sync(), x[indices])


def test_an_index_of_64_bits_that_no_row_has() -> None:
    with pytest.raises(BoundsError, match="table"):
        ops.gather(zeros((4, 8)), h2d(np.array([2**40]))).sync()


@pytest.mark.parametrize(
    ("operation", "names"),
    [
        (ops.relu, "f16, bf16, f32, f64"),
        (ops.softmax, "f16, bf16, f32, f64"),
        (ops.reduce_sum, "f16, bf16, f32, f64, i32, u32, i64, u64"),
        (ops.argmax, "f16, bf16, f32, f64, i32, u32, i64, u64"),
    ],
)
def test_other_dtypes_are_refused_with_those_that_there_are(operation: Any, names: str) -> None:
    with pytest.raises(ArgumentError, match=rf"input is Slice\[T\], and T is one of {names}; the argument is i8"):
        operation(zeros(8, np.int8)).sync()


def test_outputs_of_other_dtypes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="reduce_sum: the output is int32, and of an input of int32 it is int64"):
        library.reduce_sum(zeros(8, np.int32), zeros(1, np.int32)).sync()
    with pytest.raises(ArgumentError, match="reduce_max: the output is float32, and of an input of float64 it is"):
        library.reduce_max(zeros(8, np.float64), zeros(1)).sync()
    with pytest.raises(
        ArgumentError, match=r"must agree on T, but input has f64 and output has f32; convert one of them"
    ):
        library.relu(zeros(8, np.float64), zeros(8)).sync()
    with pytest.raises(ArgumentError, match=r"must agree on T, but a has f32 and b has f64"):
        ops.dot(zeros(8), zeros(8, np.float64)).sync()


def test_a_generic_kernel_of_the_library_is_inspected_by_its_types() -> None:
    assert ".visible .entry relu" in library.relu.specialize(T=f32).ptx()
