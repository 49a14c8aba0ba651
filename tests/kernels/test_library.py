"""The kernel library against NumPy in float64: every kernel, at sizes around those of warps, blocks and vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import oxide_kernels as library
from oxide import ArgumentError, BoundsError, LaunchError, d2h, f32, h2d, i64, u32, zeros
from oxide_kernels import gemm, ops
from tests.kernels.references import ACTIVATIONS, layer_norm, rms_norm, softmax

SIZES = (0, 1, 31, 32, 33, 1025, 1_000_003)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape, np.float32)


def assert_close(found: Any, expected: Any, relative: float) -> None:
    """``found`` is ``expected`` within ``relative`` of its norm, and is finite where that is."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    error, scale = np.linalg.norm(found - expected), np.linalg.norm(expected)
    assert error <= relative * scale or error == 0, f"off by {error / (scale or 1):.2e} of the norm"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_numpys_in_place_too(name: str, size: int) -> None:
    x = random(size)
    kernel = getattr(library, name)
    expected = ACTIVATIONS[name](x.astype(np.float64))
    box = h2d(x).sync()
    assert_close(kernel(box, zeros(size)).last().and_then(d2h).sync(), expected, 1e-6)
    assert_close(d2h(kernel(box, box).last()).sync(), expected, 1e-6)  # in place


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_a_piece_that_begins_in_the_middle_of_a_vector(name: str) -> None:
    x = random(103)
    _, piece, _ = h2d(x).sync().split(51)
    result = zeros(103).sync().split(51)[1]
    found = d2h(getattr(library, name)(piece, result).last()).sync()
    assert_close(found, ACTIVATIONS[name](x[51:102].astype(np.float64)), 1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_nan_and_do_not_overflow(name: str) -> None:
    x = np.array([np.nan, -200, 200, 0, -np.inf], np.float32)
    found = d2h(getattr(ops, name)(h2d(x))).sync()
    assert np.isnan(found[0])
    assert np.isfinite(found[1:4]).all()


def test_an_input_that_is_shorter_than_the_output_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"relu requires len\(input\) == len\(output\)"):
        library.relu(h2d(random(5)), zeros(9)).sync()


@pytest.mark.parametrize("size", SIZES)
def test_axpy_equals_numpys(size: int) -> None:
    x, y = random(size), random(size)[::-1].copy()
    expected = 2.5 * x.astype(np.float64) + y
    assert_close(d2h(library.axpy(2.5, h2d(x), h2d(y)).last()).sync(), expected, 1e-6)
    assert_close(d2h(ops.axpy(2.5, h2d(x), h2d(y))).sync(), expected, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_sums_and_products_equal_numpys(size: int) -> None:
    x, y = random(size), random(size)[::-1].copy()
    scale = max(1.0, math.sqrt(size))  # what the sums of so many random numbers are like
    assert abs(d2h(ops.reduce_sum(h2d(x))).sync() - x.sum(dtype=np.float64)) <= 2e-6 * scale
    assert abs(d2h(ops.dot(h2d(x), h2d(y))).sync() - x.astype(np.float64) @ y) <= 2e-6 * scale
    given = library.reduce_sum(h2d(x), zeros(1)).last().and_then(d2h).sync()
    assert given.shape == (1,)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES[1:])
def test_the_greatest_and_its_place(size: int) -> None:
    x = random(size)
    assert d2h(ops.reduce_max(h2d(x))).sync() == x.max()
    assert d2h(ops.argmax(h2d(x))).sync() == x.argmax()
    x[:] = -np.inf
    assert d2h(ops.reduce_max(h2d(x))).sync() == -np.inf
    assert d2h(ops.argmax(h2d(x))).sync() == 0
    x[size // 3] = x[size - 1] = 7  # the first of equals
    assert d2h(ops.argmax(h2d(x))).sync() == size // 3
    x[size // 2] = x[size - 1] = np.nan
    assert np.isnan(d2h(ops.reduce_max(h2d(x))).sync())
    assert d2h(ops.argmax(h2d(x))).sync() == x.argmax()


@pytest.mark.parametrize("operation", [ops.reduce_max, ops.argmax])
def test_nothing_has_no_greatest(operation: Any) -> None:
    with pytest.raises(ValueError, match="has no elements"):
        operation(zeros(0)).sync()
    with pytest.raises(ValueError, match="has no elements"):
        operation(zeros(0).sync()).sync()


def test_a_product_of_vectors_of_two_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dot: b has shape \(4,\), and a \(3,\)"):
        ops.dot(h2d(random(3)), h2d(random(4))).sync()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_running_sums_equal_numpys(size: int) -> None:
    x = random(size)
    through = x.cumsum(dtype=np.float64)
    assert_close(d2h(ops.inclusive_scan(h2d(x))).sync(), through, 2e-6)
    assert_close(d2h(ops.exclusive_scan(h2d(x))).sync(), through - x, 2e-6)
    box = h2d(x).sync()
    assert_close(d2h(library.inclusive_scan(box, box).last()).sync(), through, 2e-6)


@pytest.mark.nightly
def test_running_sums_of_enough_elements_for_three_levels() -> None:
    x = np.ones(4096 * 4097 + 5, np.float32)
    x[1::2] = -1
    np.testing.assert_array_equal(d2h(ops.inclusive_scan(h2d(x))).sync(), x.cumsum())


def test_running_sums_need_room() -> None:
    with pytest.raises(ValueError, match=r"inclusive_scan: output has shape \(4,\), and input \(5,\)"):
        library.inclusive_scan(h2d(random(5)), zeros(4)).sync()


# Each takes another way: part of a warp, a vector a thread, a block, rows that begin between vectors, two passes.
WIDTHS = (1, 33, 128, 1025, 4096, 33_000)


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_softmax_equals_numpys_with_huge_numbers_too(width: int) -> None:
    x = 5 * random(5, width)
    x[1] = 300  # whose exponential no float32 holds
    x[2, 1:] = -np.inf
    expected = softmax(x.astype(np.float64))
    found = d2h(ops.softmax(h2d(x))).sync()
    assert_close(found, expected, 2e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    box = h2d(x).sync()
    assert_close(d2h(library.softmax(box, box).last()).sync(), expected, 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_equal_numpys(width: int) -> None:
    x, weight, bias = 3 * random(5, width) + 10, random(width), random(width)[::-1].copy()
    exact = x.astype(np.float64)
    expected = layer_norm(exact, weight, bias, 1e-3)
    assert_close(d2h(ops.layer_norm(h2d(x), h2d(weight), h2d(bias), 1e-3)).sync(), expected, 2e-5)
    assert_close(d2h(ops.rms_norm(h2d(x), h2d(weight))).sync(), rms_norm(exact, weight), 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(0, 7), (7, 0), (0, 0), (3,), (2, 3, 4)])
def test_rows_are_the_last_axis_whatever_the_shape(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    assert_close(d2h(ops.softmax(h2d(x))).sync(), softmax(x.astype(np.float64)), 2e-6)


def test_rows_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="both need the same"):
        library.softmax(h2d(random(3, 4)), zeros((4, 3))).sync()
    with pytest.raises(ValueError, match="weight has 5 elements, and a row of the input has 4"):
        ops.rms_norm(h2d(random(3, 4)), zeros(5)).sync()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (31, 33), (32, 64), (1025, 7), (1009, 991)])
def test_transpose_equals_numpys(shape: tuple[int, int]) -> None:
    x = random(*shape)
    np.testing.assert_array_equal(d2h(ops.transpose(h2d(x))).sync(), x.T)
    rows, columns = shape
    result = library.transpose(rows, columns, h2d(x), zeros((columns, rows))).last()
    np.testing.assert_array_equal(d2h(result).sync(), x.T)


@pytest.mark.parametrize("count", [0, 1, 33, 1025])
@pytest.mark.parametrize("width", [1, 32, 77])
def test_gather_takes_the_rows_that_numpy_takes(count: int, width: int) -> None:
    table = random(19, width)
    indices = np.random.default_rng(count).integers(0, 19, count).astype(np.int32)
    np.testing.assert_array_equal(d2h(ops.gather(h2d(table), h2d(indices))).sync(), table[indices])


def test_gather_of_a_row_that_the_table_has_not() -> None:
    for index in (4, -1):
        with pytest.raises(BoundsError, match="table"):
            ops.gather(h2d(random(4, 8)), h2d(np.array([1, index], np.int32))).sync()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bins", [1, 100, 5000])
def test_histogram_counts_as_numpy_does(size: int, bins: int) -> None:
    values = np.random.default_rng(size).integers(0, bins, size).astype(np.uint32)
    expected = np.bincount(values, minlength=bins)
    np.testing.assert_array_equal(d2h(ops.histogram(h2d(values), bins)).sync(), expected)
    counts = h2d(np.full(bins, 3, np.uint32))
    np.testing.assert_array_equal(d2h(library.histogram(h2d(values), counts).last()).sync(), expected + 3)


@pytest.mark.parametrize("bins", [10, 5000])
def test_a_value_without_a_bin_is_a_fault(bins: int) -> None:
    with pytest.raises(BoundsError, match="counts"):
        ops.histogram(h2d(np.array([1, bins], np.uint32)), bins).sync()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "n"), [(0, 3), (3, 0), (1, 1), (31, 33), (1000, 256), (33, 2049), (9, 8192), (2, 100_003)]
)
def test_matvec_equals_numpys(m: int, n: int) -> None:
    matrix, vector = random(m, n), random(n)
    assert_close(d2h(ops.matvec(h2d(matrix), h2d(vector))).sync(), matrix.astype(np.float64) @ vector, 2e-6)


# Multiples of the tile and not; rows that begin at a multiple of a vector and not; steps that end early; nothing.
SHAPES = [
    (1, 1, 1),
    (0, 5, 5),
    (5, 0, 5),
    (5, 7, 0),
    (128, 128, 16),
    (100, 36, 52),
    (130, 131, 13),
    (257, 129, 1),
    (33, 260, 100),
]


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("beta", [0.0, -0.5])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_sgemm_tiled_equals_numpys(
    m: int, n: int, k: int, beta: float, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "_ENOUGH_TILES", 0 if large else 10**9)
    a, b, c = random(m, k), random(k, n), random(m, n)
    expected = 1.5 * a.astype(np.float64) @ b.astype(np.float64) + beta * c
    if beta == 0:
        c[:] = np.nan  # not read
    found = library.sgemm_tiled(m, n, k, 1.5, h2d(a), h2d(b), beta, h2d(c)).last().and_then(d2h).sync()
    assert_close(found, expected, 1e-6)


def test_sgemm_tiled_of_a_size_that_takes_large_tiles_by_itself() -> None:
    a, b = random(1800, 20), random(20, 1801)
    assert_close(d2h(ops.sgemm_tiled(h2d(a), h2d(b), 2.0)).sync(), 2.0 * a.astype(np.float64) @ b, 1e-6)


@pytest.mark.nightly
def test_sgemm_tiled_of_matrices_that_begin_in_the_middle_of_a_vector() -> None:
    a, b = random(64, 64), random(64, 64)
    left, right, result = (
        h2d(np.concatenate([np.zeros(4097, np.float32), matrix.ravel(), np.zeros(1, np.float32)])).sync().split(4097)[1]
        for matrix in (a, b, np.zeros((64, 64), np.float32))
    )
    assert left.ptr % 16 == 4
    found = library.sgemm_tiled(64, 64, 64, 1.0, left, right, 0.0, result).last().and_then(d2h).sync()
    assert_close(found[:4096].reshape(64, 64), a.astype(np.float64) @ b, 1e-6)


def test_matrices_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="have no product"):
        ops.sgemm_tiled(h2d(random(3, 4)), h2d(random(3, 4))).sync()
    with pytest.raises(LaunchError, match=r"requires len\(b\) >= k \* n"):
        library.sgemm_tiled(3, 3, 4, 1.0, h2d(random(3, 4)), h2d(random(3, 3)), 0.0, zeros((3, 3))).sync()
    with pytest.raises(ValueError, match="does not go with a vector"):
        ops.matvec(h2d(random(3, 4)), h2d(random(3))).sync()
    with pytest.raises(ArgumentError):
        library.sgemm_tiled(1, 1, 1, 1.0, zeros(1, i64), zeros(1), 0.0, zeros(1)).sync()


def test_an_operand_is_a_box_an_arc_or_an_operation() -> None:
    x = random(40)
    for operand in (h2d(x), h2d(x).sync(), h2d(x).arc().sync()):
        assert_close(d2h(ops.relu(operand)).sync(), np.maximum(x, 0), 0)
    with pytest.raises(TypeError, match="h2d copies a host array to the device"):
        ops.relu(x)  # type: ignore[arg-type]


def test_operations_nest_and_run_again() -> None:
    x = random(6, 50)
    operation = d2h(ops.softmax(ops.relu(h2d(x))))
    powers = np.exp(np.maximum(x, 0).astype(np.float64))
    for _ in range(2):
        assert_close(operation.sync(), powers / powers.sum(1, keepdims=True), 2e-6)


def test_operations_are_captured_into_a_graph() -> None:
    x = random(3000)
    with ops.reduce_sum(h2d(x)).graph() as graph:
        for _ in range(2):
            graph.launch().sync()
        assert abs(d2h(graph.take_output()).sync() - x.sum(dtype=np.float64)) < 1e-3


def test_the_names_and_dtypes_of_what_the_library_makes() -> None:
    assert d2h(ops.argmax(h2d(random(3)))).sync().dtype == np.dtype(i64.dtype)  # type: ignore[attr-defined]
    assert d2h(ops.histogram(h2d(np.zeros(3, np.uint32)), 2)).sync().dtype == np.dtype(u32.dtype)  # type: ignore[attr-defined]
    assert d2h(ops.softmax(h2d(random(3)))).sync().dtype == np.dtype(f32.dtype)  # type: ignore[attr-defined]
    assert set(library.__all__) <= set(dir(library))
