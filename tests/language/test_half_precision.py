"""``f16`` and ``bf16`` in kernels: each operation rounded once, conversions, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from oxide import (
    AtomicSlice,
    DisjointSlice,
    Kernel,
    LaunchConfig,
    Slice,
    bf16,
    d2h,
    device,
    f16,
    f32,
    f64,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    zeros,
)
from oxide.errors import ArgumentError, CompileError
from tests.elementwise import run, unary

SIZES = (0, 1, 31, 32, 33, 1025, 1_000_003)


def to_bits(values: Any, dtype: Any) -> np.ndarray:
    """float64 numbers as the storage of f16 or bf16, rounded to nearest, ties to even."""
    if dtype is f16:
        return np.asarray(values, np.float64).astype(np.float16)
    wide = np.asarray(values, np.float64)
    fraction, exponent = np.frexp(wide)
    step = np.maximum(exponent, -125) - 8
    with np.errstate(over="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(fraction, exponent - step)), step).astype(np.float32)
    return (rounded.view(np.uint32) >> 16).astype(np.uint16)


def to_numbers(stored: np.ndarray, dtype: Any) -> np.ndarray:
    if dtype is f16:
        return stored.astype(np.float64)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def arithmetic(dtype: Any) -> Kernel:
    @kernel(block=128)
    def compute(
        a: Slice[dtype],  # type: ignore[valid-type]
        b: Slice[dtype],  # type: ignore[valid-type]
        total: DisjointSlice[dtype],  # type: ignore[valid-type]
        product: DisjointSlice[dtype],  # type: ignore[valid-type]
        quotient: DisjointSlice[dtype],  # type: ignore[valid-type]
    ) -> None:
        i = thread.index_1d()
        first, second, third = total.get_mut(i), product.get_mut(i), quotient.get_mut(i)
        if first is not None and second is not None and third is not None:
            x, y = a[i.get()], b[i.get()]
            first.value = x - y
            second.value = x * y
            third.value = x / y

    return compute


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_arithmetic_is_rounded_once(dtype: Any, size: int) -> None:
    random = np.random.default_rng(size)
    a, b = (to_bits(random.uniform(0.25, 4, size), dtype) for _ in range(2))
    outs = [zeros(size, a.dtype) for _ in range(3)]
    found = arithmetic(dtype)(h2d(a), h2d(b), *outs).sync()[2:]
    x, y = to_numbers(a, dtype), to_numbers(b, dtype)
    for box, expected in zip(found, (x - y, x * y, x / y), strict=True):
        assert np.array_equal(to_numbers(d2h(box).sync(), dtype), to_numbers(to_bits(expected, dtype), dtype))


def converting(source: Any, target: Any) -> Kernel:
    return unary(target, source, target)


@pytest.mark.slow
@pytest.mark.parametrize("source", [f32, f64], ids=str)
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_every_number_converts_there_and_back_and_rounding_is_to_nearest_even(dtype: Any, source: Any) -> None:
    stored = np.arange(2**16, dtype=np.uint16)
    stored = stored.view(np.float16) if dtype is f16 else stored
    numbers = to_numbers(stored, dtype)
    wide = run(converting(dtype, source), stored, dtype=source)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(wide, numbers.astype(source.dtype), equal_nan=True)
    finite = numbers[np.isfinite(numbers)]
    between = (np.sort(finite)[:-1] + np.sort(finite)[1:]) / 2  # ties
    values = np.concatenate([finite, between, between * (1 + 2.0**-40), between * (1 - 2.0**-40)]).astype(source.dtype)
    found = run(converting(source, dtype), values, dtype=stored.dtype)
    expected = to_bits(values.astype(np.float64), dtype)
    assert np.array_equal(to_numbers(found, dtype), to_numbers(expected, dtype))


def test_what_is_too_large_becomes_infinite_and_a_nan_stays_one() -> None:
    values = np.array([1e6, -1e6, np.inf, np.nan, 65519.0, 65520.0, 1e-9], np.float64)
    found = run(converting(f64, f16), values, dtype=np.float16)
    with np.errstate(over="ignore"):
        assert np.array_equal(found, values.astype(np.float16), equal_nan=True)
    values = np.array([1e39, np.nan, -np.inf, 3.4e38], np.float64)
    bits = run(converting(f64, bf16), values, dtype=np.uint16)
    assert np.array_equal(to_numbers(bits, bf16), [np.inf, np.nan, -np.inf, np.inf], equal_nan=True)


@kernel(block=64)
def scaled(alpha: f16, x: Slice[f16], y: DisjointSlice[f16], z: DisjointSlice[f32], n: DisjointSlice[i32]) -> None:
    i = thread.index_1d()
    a, b, c = y.get_mut(i), z.get_mut(i), n.get_mut(i)
    if a is not None and b is not None and c is not None:
        v = x[i.get()]
        largest = max(v, alpha)
        if v < 0.5:
            largest = -abs(v)
        a.value = largest + 1
        b.value = v * f32(0.1)
        c.value = i32(v)


def test_mixed_operations_take_the_wider_type_and_comparisons_compare_numbers() -> None:
    x = np.random.default_rng(3).uniform(-4, 4, 1025).astype(np.float16)
    boxes = scaled(1.5, h2d(x), zeros(1025, np.float16), zeros(1025), zeros(1025, np.int32)).sync()[2:]
    y, z, n = (d2h(box).sync() for box in boxes)
    assert np.array_equal(y, np.where(x < 0.5, -np.abs(x), np.maximum(x, np.float16(1.5))) + np.float16(1))
    assert np.array_equal(z, x.astype(np.float32) * np.float32(0.1))
    assert np.array_equal(n, x.astype(np.int32))


def exponentials(dtype: Any) -> Kernel:
    @kernel(block=128)
    def compute(x: Slice[dtype], y: DisjointSlice[dtype]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = math.exp(x[i.get()])

    return compute


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_mathematics_gives_the_type_it_is_given(dtype: Any) -> None:
    x = to_bits(np.random.default_rng(4).uniform(-5, 5, 1025), dtype)
    found = to_numbers(exponentials(dtype)(h2d(x), zeros(1025, x.dtype)).last().and_then(d2h).sync(), dtype)
    assert np.allclose(found, np.exp(to_numbers(x, dtype)), rtol=2.0**-11 if dtype is f16 else 2.0**-8)


def summing(dtype: Any) -> Kernel:
    @kernel
    def add(x: Slice[dtype], sums: AtomicSlice[dtype]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d().get()
        if i < len(x):
            sums.fetch_add(i % 3, x[i])

    return add


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_an_extreme_of_three_or_more_has_their_type(dtype: Any) -> None:
    @kernel(block=64)
    def products(x: Slice[dtype], y: DisjointSlice[f64]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            v = x[i.get()]
            element.value = f64(max(v, v, v) * min(v, v, 1000, v))  # of that type, the product is rounded to it

    x = to_bits([43.84, -2.3, 0.1, 1.0], dtype)
    numbers = to_numbers(x, dtype)
    expected = to_numbers(to_bits(numbers * numbers, dtype), dtype)
    assert np.any(expected != numbers * numbers)
    np.testing.assert_array_equal(run(products, x, dtype=np.float64), expected)


@device
def declared_f16(x: f32) -> f16:
    return x


@device
def declared_f32(x: f16) -> f32:
    return x


@device
def declared_f16_of_an_integer(n: i32) -> f16:
    return n


def test_a_functions_result_is_converted_from_half_precision_and_to_it() -> None:
    @kernel(block=64)
    def through(x: Slice[f32], y: DisjointSlice[f64]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            v = declared_f16(x[i.get()])
            element.value = f64(declared_f32(v) * declared_f32(v)) + f64(declared_f16_of_an_integer(2049) * f16(1))

    x = np.array([43.84, 2.3], np.float32)
    wide = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(run(through, x, dtype=np.float64), (wide * wide).astype(np.float64) + 2048)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_atomic_sums_lose_no_addend(dtype: Any) -> None:
    x = to_bits(np.ones(255), dtype)
    sums = summing(dtype)[LaunchConfig.for_num_elems(255)](h2d(x), zeros(3, x.dtype)).last().and_then(d2h).sync()
    assert to_numbers(sums, dtype).tolist() == [85, 85, 85]


def test_other_atomic_methods_of_half_precision_are_refused() -> None:
    @kernel
    def largest(sums: AtomicSlice[f16]) -> None:
        sums.fetch_max(0, f16(1.0))

    with pytest.raises(CompileError, match=r"sums has elements of f16, which have only \.fetch_add"):
        largest.specialize()


def test_scalar_arguments_are_rounded_and_those_that_do_not_fit_are_refused() -> None:
    @kernel(block=32)
    def put(a: f16, b: bf16, y: DisjointSlice[f64], z: DisjointSlice[f64]) -> None:
        i = thread.index_1d()
        first, second = y.get_mut(i), z.get_mut(i)
        if first is not None and second is not None:
            first.value = a
            second.value = b

    for number in (0.1, -3.00390625, 1e-7, 0.0, -0.0, -1e-300, 1, True, np.float32(0.3), math.inf, 1e-40):
        y, z = (d2h(box).sync()[0] for box in put(number, number, zeros(1, f64), zeros(1, f64)).sync()[2:])
        assert y == float(np.float16(number))
        assert math.copysign(1, number) == math.copysign(1, y) == math.copysign(1, z)
        assert z == to_numbers(to_bits([float(number)] if math.isfinite(number) else [], bf16), bf16).sum() or (
            math.isinf(number) and z == number
        )
    with pytest.raises(ArgumentError, match="f16 holds magnitudes up to 65504"):
        put(70000.0, 1.0, zeros(1, f64), zeros(1, f64))
    with pytest.raises(ArgumentError, match="bf16 holds magnitudes"):
        put(1.0, 1e39, zeros(1, f64), zeros(1, f64))
    with pytest.raises(ArgumentError, match="pass a number"):
        put("1", 1.0, zeros(1, f64), zeros(1, f64))


def test_the_gpu_converts_and_adds_atomically_with_its_own_instructions() -> None:
    assert "cvt.rn.f16.f32" in converting(f32, f16).ptx()
    assert "cvt.rn.bf16.f32" in converting(f32, bf16).ptx()
    assert "bf16" not in converting(f32, bf16).ptx(cc=(7, 5))
    assert "add.noftz.f16" in summing(f16).ptx()
    assert ".cas." in summing(bf16).ptx()


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_the_spacing_of_numbers_is_to_the_next_away_from_zero(dtype: Any) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    stored = bits.view(np.float16) if dtype is f16 else bits
    found = to_numbers(run(unary(math.ulp, dtype), stored), dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(to_numbers(stored, dtype))
        ordered = size[: 2**15]  # of positive numbers the bits are in order
        step = np.diff(ordered, append=math.nan)
    largest = np.flatnonzero(np.isfinite(ordered))[-1]
    step[largest] = step[largest - 1]
    step[largest + 1 :] = ordered[largest + 1 :]
    np.testing.assert_array_equal(found, np.tile(step, 2))


def test_an_f16_that_nothing_needs_leaves_nothing_undefined() -> None:
    @kernel(block=32)
    def unused(n: i64, y: DisjointSlice[f64]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            f16(n)
            element.value = f64(n)

    assert d2h(unused(3, zeros(2, f64)).sync()[1]).sync().tolist() == [3.0, 3.0]
    assert ".entry" in unused.ptx(cc=(9, 0))
