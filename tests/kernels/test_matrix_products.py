"""``matmul``: every dtype, layout and epilogue against float64, at sizes on both sides of the tiles' edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oxide_kernels as library
from oxide import ArgumentError, DeviceBox, bf16, d2h, dup, f8e4m3, f8e5m2, f16, f32, f64, h2d, i8, i32, u8, zeros
from oxide_kernels import data_movement, matrix_products, mma_products, ops
from tests.compiler.assembler import assembled, needs_ptxas
from tests.kernels.references import ACTIVATIONS, Array
from tests.kernels.test_library_dtypes import BF16, exact, stored
from tests.pairs import every_pair

SIZES = (0, 1, 15, 16, 17, 129)
UNITS = {np.float16: 2**-11, BF16: 2**-8, np.float32: 2**-24, np.float64: 2**-53}
"""The greatest relative error of a number that is rounded to a dtype."""
LEAST = 2**-25
"""The greatest error of a small number that is rounded to f16."""


def numbers(dtype: Any, *shape: int) -> Array:
    random = np.random.default_rng([*shape, len(str(dtype))])
    if dtype in (np.int8, np.uint8):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return stored(random.standard_normal(shape), dtype)


def placed(matrix: Array, turned: bool) -> DeviceBox:
    """Returns a box with the matrix's elements, row after row, or as a view column after column."""
    return h2d(np.ascontiguousarray(matrix.T)).sync().T if turned else h2d(matrix).sync()


def assert_product(found: Array, a: Array, b: Array, dtype: Any, *, operands: float = 0.0, out: Any = None) -> None:
    """Compares a product with float64's. ``operands`` bounds the relative error of a product of two elements; sums of
    floats are made in f32, or in f64."""
    left, right = exact(a, dtype).astype(np.float64), exact(b, dtype).astype(np.float64)
    expected = left @ right
    if dtype in (np.int8, np.uint8):
        np.testing.assert_array_equal(found, expected)
        return
    out = dtype if out is None else out
    sizes = np.abs(left) @ np.abs(right)
    sums = 2 * max(a.shape[1], 1) * (2**-53 if dtype is np.float64 else 2**-24)
    found = exact(found, out)
    assert found.shape == expected.shape
    bound = (operands + sums) * sizes + 1.01 * UNITS[out] * np.abs(expected) + (LEAST if out is np.float16 else 0)
    assert (np.abs(found - expected) <= bound).all()


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("n", [1, 15, 17, 129])
@pytest.mark.parametrize("k", SIZES)
def test_products_of_every_size_are_those_of_numpy(m: int, n: int, k: int) -> None:
    a, b = numbers(np.float16, m, k), numbers(np.float16, k, n)
    assert_product(d2h(ops.matmul(h2d(a), placed(b, True))).sync(), a, b, np.float16)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "a_turned", "b_turned"),
    [
        *[(np.float16, a_turned, b_turned) for a_turned in (False, True) for b_turned in (False, True)],
        *[(dtype, turned, turned) for dtype in (np.float32, np.float64, np.int8) for turned in (False, True)],
        (BF16, False, True),
        (np.uint8, False, True),
    ],
)
def test_the_dtypes_in_the_four_layouts(dtype: Any, a_turned: bool, b_turned: bool) -> None:
    for m, n, k in ((17, 15, 33), (129, 65, 130), (3, 1, 7)):
        a, b = numbers(dtype, m, k), numbers(dtype, k, n)
        found = d2h(ops.matmul(placed(a, a_turned), placed(b, b_turned))).sync()
        assert found.dtype == (np.int32 if dtype in (np.int8, np.uint8) else a.dtype)
        assert_product(found, a, b, dtype, operands=2**-10 * 1.01 if dtype is np.float32 else 0.0)


@pytest.mark.nightly
def test_an_i8_goes_with_a_u8() -> None:
    a, b = numbers(np.int8, 18, 70), numbers(np.uint8, 70, 9)
    np.testing.assert_array_equal(d2h(ops.matmul(h2d(a), placed(b, True))).sync(), a.astype(int) @ b.astype(int))


@pytest.mark.nightly
def test_high_precision_keeps_the_digits_that_tf32_drops() -> None:
    a, b = numbers(np.float32, 33, 40), numbers(np.float32, 40, 17)
    found = d2h(ops.matmul(h2d(a), h2d(b), precision="high")).sync()
    assert_product(found, a, b, np.float32, operands=2**-21)
    rough = d2h(ops.matmul(h2d(a), h2d(b), precision="tf32")).sync()
    expected = a.astype(np.float64) @ b
    assert np.abs(found - expected).max() < np.abs(rough - expected).max() / 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "scales", "way"),
    every_pair(
        [(f8e4m3, f8e4m3), (f8e5m2, f8e5m2), (f8e4m3, f8e5m2)],
        (None, "one", "each"),
        [(False, None), (True, "high"), (True, "fast")],
    ),
    ids=str,
)
def test_floats_of_8_bits_and_their_scales(kinds: Any, scales: str | None, way: tuple[bool, Any]) -> None:
    turned, precision = way
    random = np.random.default_rng(8)
    for m, n, k in ((17, 15, 33), (129, 65, 130), (1, 9, 4), (3, 1, 300), (5, 0, 2), (2, 3, 0)):
        a, b = (
            random.standard_normal(each).astype(kind.dtype) for each, kind in zip(((m, k), (k, n)), kinds, strict=True)
        )
        by = [random.random(1 if scales == "one" else length).astype(np.float32) + 0.5 for length in (m, n)]
        more = {} if scales is None else {"a_scale": h2d(by[0]), "b_scale": h2d(by[1])}
        left, right = a.astype(np.float64), b.astype(np.float64)
        factors = 1 if scales is None else by[0][:, None] * by[1]
        boxes = placed(a, turned), placed(b, turned)
        found = d2h(ops.matmul(*boxes, out_dtype=f32, precision=precision, **more)).sync()
        bound = (k * 2**-13 + 2**-22) * (np.abs(left) @ np.abs(right)) * factors
        assert (np.abs(found - left @ right * factors) <= bound).all()
    assert ops.matmul(h2d(a), h2d(b)).sync().dtype == BF16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stacks", "kind", "turned"),
    every_pair(
        [(3, 3), (3, None), (None, 3), (3, 1), (1, 3), (1, 1), (0, 0), (0, None)],
        (np.float16, np.float32, np.int8, f8e4m3.dtype),
        (False, True),
    ),
    ids=str,
)
def test_stacks_of_matrices(stacks: tuple[int | None, int | None], kind: Any, turned: bool) -> None:
    random, count = np.random.default_rng(4), max(each for each in stacks if each is not None)
    bias = numbers(np.float16, 40) if kind is np.float16 else None
    for m, k, n in ((70, 33, 40), (5, 1, 40)):
        a, b = (
            random.integers(-3, 4, sides if stack is None else (stack, *sides)).astype(kind)
            for stack, sides in zip(stacks, ((m, k), (k, n)), strict=True)
        )
        expected = a.astype(np.float64) @ b.astype(np.float64) + (0 if bias is None else bias)
        given = [
            h2d(np.ascontiguousarray(x.swapaxes(-1, -2))).sync().mT if turns else h2d(x).sync()
            for x, turns in ((a, turned), (b, not turned))
        ]
        found = d2h(ops.matmul(*given, bias=None if bias is None else h2d(bias))).sync()
        assert found.shape == (count, m, n)
        assert np.abs(found.astype(np.float64) - expected).max(initial=0) <= np.abs(expected).max(initial=0) / 256


@pytest.mark.nightly
def test_a_nan_of_one_matrix_of_a_stack_stays_in_its_product() -> None:
    a, b = numbers(np.float16, 2, 20, 9), numbers(np.float16, 2, 9, 24)
    a[1], b[1] = np.nan, np.nan
    for turned in (False, True):
        given = [h2d(np.ascontiguousarray(x.swapaxes(1, 2))).sync().mT if turned else h2d(x).sync() for x in (a, b)]
        found = d2h(ops.matmul(*given)).sync()
        assert np.isfinite(found[0]).all()
        assert np.isnan(found[1]).all()


@pytest.mark.nightly
def test_scales_of_integers_and_of_f16() -> None:
    a, b = numbers(np.int8, 18, 70), numbers(np.int8, 70, 9)
    by_row, by_column = numbers(np.float32, 18), numbers(np.float32, 9)
    found = d2h(ops.matmul(h2d(a), h2d(b), a_scale=h2d(by_row), b_scale=h2d(by_column[None]), out_dtype=f32)).sync()
    expected = a.astype(np.float64) @ b * by_row[:, None] * by_column
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)
    a, b = numbers(np.float16, 1, 70), numbers(np.float16, 70, 9)
    found = d2h(ops.matmul(h2d(a), h2d(b), a_scale=h2d(by_row[:1]), b_scale=h2d(by_column), out_dtype=f32)).sync()
    expected = a.astype(np.float64) @ b * by_row[:1, None] * by_column
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 31), (4, 32), (2, 33), (5, 1111)])
def test_a_split_number_is_the_sum_of_two_of_tf32(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(2).standard_normal(shape, dtype=np.float32)
    y = data_movement.split(h2d(x).sync()).and_then(d2h).sync()
    width = -(-shape[1] // 32) * 32
    assert y.shape == (shape[0], 2 * width)
    upper, lower = y[:, : shape[1]], y[:, width : width + shape[1]]
    assert not (y.view(np.uint32) & 0x1FFF).any()
    assert not y[:, shape[1] : width].any()
    assert not y[:, width + shape[1] :].any()
    assert (np.abs(upper.astype(float) + lower - x) <= 2.0**-22 * np.abs(x)).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_large_tiles_give_the_same_numbers(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rows and columns beyond the matrix too: those of f16 are pairs."""
    monkeypatch.setattr(matrix_products, "_ENOUGH_TILES", 0)
    for m, n, k in ((130, 258, 37), (128, 128, 96)):
        a, b = numbers(dtype, m, k), numbers(dtype, k, n)
        assert_product(d2h(ops.matmul(h2d(a), h2d(b))).sync(), a, b, dtype)


def test_more_tiles_than_a_group_has_are_each_computed_once() -> None:
    m, n, k = (mma_products.GROUP + 3) * 64 - 5, 2 * 64 + 2, 3
    a, b = numbers(np.float16, m, k), numbers(np.float16, k, n)
    assert_product(d2h(ops.matmul(h2d(a), h2d(b))).sync(), a, b, np.float16)


def test_matrices_that_begin_in_the_middle_of_a_vector() -> None:
    """Their rows take the copies of single elements, also where they have the lengths of vectors."""
    a, b = numbers(np.float16, 32, 32), numbers(np.float16, 32, 16)
    pieces = [
        h2d(np.concatenate([np.zeros(1, np.float16), each.ravel()])).sync()[1:].reshape(each.shape)
        for each in (a, b, np.zeros((32, 16), np.float16))
    ]
    assert pieces[0].ptr % 16 == 2
    library.matmul(*pieces).sync()
    assert_product(d2h(pieces[2]).sync(), a, b, np.float16)


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "out"), [("relu", np.float32), ("gelu", np.float16), ("silu", BF16)])
def test_the_epilogue_scales_adds_and_activates(activation: str, out: Any) -> None:
    a, b, c = numbers(np.float16, 19, 40), numbers(np.float16, 40, 22), numbers(out, 19, 22)
    bias = numbers(np.float32, 22)
    box = h2d(c).sync()
    made = library.matmul(h2d(a), h2d(b), box, alpha=0.5, beta=-2.0, bias=h2d(bias), activation=activation)
    assert made.sync()[2] is box
    before = 0.5 * (a.astype(np.float64) @ b) - 2.0 * exact(c, out) + bias
    expected = ACTIVATIONS[activation](before)
    error = np.abs(exact(d2h(box).sync(), out) - expected)
    assert (error <= 1.01 * UNITS[out] * np.abs(expected) + 1e-5).all()


def test_without_beta_c_is_not_read() -> None:
    a, b = numbers(np.float32, 5, 6), numbers(np.float32, 6, 7)
    c = h2d(np.full((5, 7), np.nan, np.float32)).sync()
    library.matmul(h2d(a), h2d(b), c).sync()
    assert_product(d2h(c).sync(), a, b, np.float32, operands=2**-10 * 1.01)


@pytest.mark.nightly
def test_integers_wrap_and_are_scaled_to_floats() -> None:
    a, b = numbers(np.int8, 20, 30), numbers(np.int8, 30, 5)
    whole = a.astype(np.int64) @ b.astype(np.int64)
    c = np.full((20, 5), 2**31 - 1, np.int32)
    box = h2d(c).sync()
    library.matmul(h2d(a), h2d(b), box, alpha=3, beta=2, bias=h2d(np.arange(5, dtype=np.int32))).sync()
    expected = (3 * whole + 2 * c.astype(np.int64) + np.arange(5)).astype(np.int32)
    np.testing.assert_array_equal(d2h(box).sync(), expected)
    floats = d2h(ops.matmul(h2d(a), h2d(b), out_dtype=f32)).sync()
    np.testing.assert_array_equal(floats, whole.astype(np.float32))


def test_a_product_is_recorded_in_a_graph() -> None:
    a, b = numbers(np.float16, 40, 24), numbers(np.float16, 24, 33)
    left, right = h2d(a).sync(), placed(b, True)
    output = zeros((40, 33), np.float16).sync()
    graph = library.matmul(left, right, output).graph()
    graph.launch().sync()
    assert_product(d2h(output).sync(), a, b, np.float16)


def test_operations_are_operands() -> None:
    a, b = numbers(np.float16, 4, 5), numbers(np.float16, 5, 3)
    bias = np.ones(3, np.float16)
    found = d2h(ops.matmul(ops.matmul(h2d(a), h2d(b)), h2d(np.eye(3, dtype=np.float16)), bias=h2d(bias))).sync()
    np.testing.assert_allclose(found, a.astype(np.float64) @ b + 1, rtol=4e-3, atol=4e-3)


def halves() -> Any:
    return zeros((4, 4), f16)


def singles() -> Any:
    return zeros((4, 4), f32)


@pytest.mark.parametrize(
    ("product", "error", "told"),
    [
        (lambda: ops.matmul(zeros((3, 4)), zeros((3, 4))), ValueError, r"shapes \(3, 4\) and \(3, 4\) have no product"),
        (lambda: ops.matmul(zeros(4), zeros((4, 4))), ValueError, r"shapes \(4,\) and \(4, 4\) have no product"),
        (
            lambda: ops.matmul(halves(), singles()),
            ArgumentError,
            "a has dtype f16 and b f32; both are f16, bf16, f32 or",
        ),
        (lambda: ops.matmul(zeros((4, 4), i32), zeros((4, 4), i32)), ArgumentError, "a has dtype i32 and b i32"),
        (
            lambda: ops.matmul(halves(), halves(), out_dtype=f64),
            ArgumentError,
            "c has dtype f64, and .* give f16, bf16 or",
        ),
        (
            lambda: ops.matmul(halves(), halves(), out_dtype="f32"),
            ArgumentError,
            "out_dtype is 'f32'; here it is one of .*f16.*f32",
        ),
        (
            lambda: ops.matmul(halves(), halves(), precision="high"),
            ArgumentError,
            "precision is 'high' for matrices of f16",
        ),
        (lambda: ops.matmul(singles(), singles(), precision="f16"), ArgumentError, "precision is 'f16'"),
        (
            lambda: ops.matmul(singles(), singles(), precision="fast"),
            ArgumentError,
            "precision is 'fast' for matrices of f32",
        ),
        (lambda: ops.matmul(singles(), singles(), a_scale=zeros(1)), ArgumentError, "b_scale is missing"),
        (
            lambda: ops.matmul(singles(), singles(), a_scale=zeros(1), b_scale=zeros(1, f64)),
            ArgumentError,
            "b_scale has dtype f64",
        ),
        (
            lambda: ops.matmul(singles(), singles(), a_scale=zeros(3), b_scale=zeros(1)),
            ValueError,
            r"a_scale has shape \(3,\); it has one element, or 4",
        ),
        (
            lambda: ops.matmul(singles(), singles(), a_scale=zeros((2, 2)), b_scale=zeros(4)),
            ValueError,
            r"a_scale has shape \(2, 2\)",
        ),
        (
            lambda: ops.matmul(singles(), singles(), a_scale=zeros(4), b_scale=zeros(1)),
            ArgumentError,
            "one scale has one element, and the other more",
        ),
        (
            lambda: ops.matmul(zeros((4, 4), i8), zeros((4, 4), i8), a_scale=zeros(1), b_scale=zeros(1)),
            ArgumentError,
            "scales are multiplied in f32, and matrices of i8 with a result of i32",
        ),
        (
            lambda: ops.matmul(singles(), singles(), activation="tanh"),
            ArgumentError,
            "'tanh'; it is relu, gelu or silu or",
        ),
        (lambda: ops.matmul(singles(), singles(), zeros(3)), ValueError, r"the bias has shape \(3,\); .* shape \(4,\)"),
        (
            lambda: ops.matmul(singles(), singles(), zeros(4, f64)),
            ArgumentError,
            "bias has dtype f64; .* f16, bf16 or f32",
        ),
        (
            lambda: ops.matmul(zeros((4, 4), i8), zeros((4, 4), u8), activation="gelu"),
            ArgumentError,
            "gelu of integers is no integer",
        ),
        (
            lambda: library.matmul(singles(), singles(), zeros((4, 5))),
            ValueError,
            r"c has shape \(4, 5\), and the product",
        ),
        (
            lambda: library.matmul(halves(), halves(), zeros((4, 4), f16).map(lambda c: c.T)),
            ArgumentError,
            "c is a view",
        ),
        (
            lambda: ops.matmul(zeros((4, 8)).map(lambda a: a[:, ::2]), singles()),
            ArgumentError,
            r"a is a view .* dup\(view",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(product: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=f"matmul: .*{told}"):
        product().sync()


def test_an_output_on_an_operands_memory_is_refused() -> None:
    box = zeros((4, 4), f16).sync()
    for a, b in ((box, dup(box).sync()), (dup(box).sync(), box.T)):
        with pytest.raises(ArgumentError, match=r"matmul: the output .* shares memory with"):
            library.matmul(a, b, box)


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kinds", [(f16, f16), (bf16, f32), (f32, f32), (f64, f64), (i8, i32)], ids=str)
def test_a_gpus_kernels_keep_all_in_registers(kinds: tuple[Any, Any], large: bool) -> None:
    operand, output = kinds
    for turned in (False, True):
        form = mma_products.Form(
            a=operand,
            b=operand,
            output=output,
            bias=None,
            a_turned=turned,
            b_turned=not turned,
            activation=None,
            exact=operand is f32,
            pairs=True,
            large=large,
        )
        ptx = mma_products.kernel_of(form).ptx((8, 0))
        assert "mma.sync" in ptx
        assert "0 bytes spill stores, 0 bytes spill loads" in assembled(ptx, (8, 0))


@pytest.mark.parametrize("multiple", [8, 64])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 8), (33, 31), (5, 513), (70, 1024), (2, 1111)])
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f8e4m3, i8])
def test_rows_are_made_longer_with_zeros(shape: tuple[int, int], multiple: int, dtype: Any) -> None:
    rows, columns = shape
    given = (10 * np.random.default_rng(rows).standard_normal((rows + 1, columns))).astype(dtype.dtype)
    for box in (h2d(given[:rows]).sync(), h2d(given).sync()[1:]):  # the second may begin in the middle of a vector
        copy = data_movement.widened(box, multiple).and_then(d2h).sync()
        width = -(-columns // multiple) * multiple
        expected = np.zeros((rows, width), dtype.dtype)
        expected[:, :columns] = d2h(box).sync()
        assert copy.shape == (rows, width)
        assert copy.tobytes() == expected.tobytes()


@pytest.mark.nightly
@pytest.mark.parametrize("shape", [(333, 777, 111), (2048, 2304, 100), (65, 40, 1000)])
def test_rows_that_the_copy_engine_cannot_read(shape: tuple[int, int, int]) -> None:
    """On Hopper such matrices are copied first."""
    m, n, k = shape
    a, b = numbers(np.float16, m, k), numbers(np.float16, k, n)
    bias = numbers(np.float16, n)
    for turned in (False, True):
        found = d2h(ops.matmul(placed(a, turned), placed(b, not turned), bias=h2d(bias))).sync()
        expected = a.astype(np.float64) @ b.astype(np.float64) + bias
        assert np.linalg.norm(found - expected) <= 1e-3 * np.linalg.norm(expected)
