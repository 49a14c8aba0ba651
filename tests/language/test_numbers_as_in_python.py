"""What kernels compute from numbers where it is easy to differ from Python: decimals, extremes, the ends of types."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide import (
    DisjointSlice,
    Kernel,
    Slice,
    d2h,
    f16,
    f32,
    f64,
    h2d,
    i8,
    i16,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u16,
    u32,
    u64,
    zeros,
)
from tests.elementwise import binary, run, unary

MANY = settings(deadline=None, max_examples=40)


ROUNDED = {dtype: binary(round, dtype, i32) for dtype in (f32, f64)}
ROUNDED_FAST = binary(round, f64, i32, fastmath=True)


def bits(values: Any) -> list[Any]:
    """Numbers that are equal only if their signs are, a zero's too."""
    return [(float(value), math.copysign(1, value)) if value == value else "nan" for value in values]


def check_rounding(k: Kernel, dtype: Any, x: Any, digits: Any) -> None:
    x = np.array(x, dtype.dtype)
    found = run(k, x, np.array(digits, np.int32))
    expected = []
    for value, places in zip(x, digits, strict=True):
        try:
            expected.append(dtype.dtype.type(round(float(value), int(places))))
        except OverflowError:
            expected.append(math.copysign(math.inf, value))
    assert bits(found) == bits(expected)


@pytest.mark.slow
@pytest.mark.parametrize("k", [ROUNDED[f64], ROUNDED_FAST], ids=["exact", "fastmath"])
def test_decimals_are_rounded_as_python_rounds_them(k: Kernel) -> None:
    random = np.random.default_rng(5)
    x = [0.1, 1e5, 1e22, 1e19, -0.05, 0.15, 25.775, 2.675, 0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7e308]
    x += [25, 35, 50, 150, -250, 2**52 + 0.5, 2**51 + 0.25, 2**53 + 2, 1e15 + 0.3, 9007199254740993, 4503599627370497.5]
    x += random.uniform(-1000, 1000, 500).tolist() + random.uniform(-100, 100, 500).round(3).tolist()
    x += (random.integers(-2000, 2000, 500) / 8).tolist() + random.integers(-(10**6), 10**6, 300).tolist()
    x += (random.integers(-2000, 2000, 300) * 10.0 ** random.integers(-20, 20, 300)).tolist()
    pairs = list(itertools.product(x, (0, 1, 2, 3, 5, 15, 20, 22, -1, -2, -3, -5, -22)))
    check_rounding(k, f64, *zip(*pairs, strict=True))


@MANY
@given(st.lists(st.tuples(st.floats(), st.integers(-22, 22)), min_size=1, max_size=100))
def test_any_float_is_rounded_to_up_to_22_decimals_exactly(pairs: Any) -> None:
    check_rounding(ROUNDED[f64], f64, *zip(*pairs, strict=True))


@MANY
@given(st.lists(st.tuples(st.floats(width=32), st.integers(-22, 22)), min_size=1, max_size=100))
def test_an_f32_is_rounded_by_the_number_that_it_is(pairs: Any) -> None:
    check_rounding(ROUNDED[f32], f32, *zip(*pairs, strict=True))


def test_far_decimals_change_nothing_and_far_tens_leave_a_zero() -> None:
    x = [1.5, -1.5, 1e300, 3e-9, math.inf, math.nan, 0.0]
    check_rounding(ROUNDED[f64], f64, x, [400] * len(x))
    check_rounding(ROUNDED[f64], f64, x, [-400] * len(x))
    check_rounding(ROUNDED[f64], f64, x, [2**31 - 1] * len(x))
    check_rounding(ROUNDED[f64], f64, x, [-(2**31)] * len(x))
    # Past 22 the power of ten is no float, and the last digit may be another.
    near = run(ROUNDED[f64], np.array([1.23456e-28]), np.array([30], np.int32))
    assert abs(near[0] - 1.23e-28) < 1e-43


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_a_float_that_no_i64_holds_is_rounded_to_the_nearest_that_there_is(dtype: Any) -> None:
    x = np.array([1e19, -1e19, 2.0**63, -(2.0**63), math.inf, -math.inf, math.nan, -2.5, 3.5], dtype.dtype)
    expected = [2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 0, -2, 4]
    assert run(unary(round, dtype, i64), x, dtype=np.int64).tolist() == expected


SPECIAL = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.5]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, f32, f64], ids=str)
@pytest.mark.parametrize("function", [min, max])
def test_extremes_of_two_and_three_are_pythons_with_nans_and_zeros_too(function: Any, dtype: Any) -> None:
    @kernel(block=64)
    def extremes(a: Slice[dtype], b: Slice[dtype], two: DisjointSlice[dtype], three: DisjointSlice[dtype]) -> None:
        i = thread.index_1d()
        x, y = a[i.get()], b[i.get()]
        of_two, of_three = two.get_mut(i), three.get_mut(i)
        if of_two is not None and of_three is not None:
            of_two.value = function(x, y)
            of_three.value = function(x, y, x)

    a, b = (np.array(column, dtype.dtype) for column in zip(*itertools.product(SPECIAL, SPECIAL), strict=True))
    boxes = extremes(h2d(a), h2d(b), zeros(a.size, a.dtype), zeros(a.size, a.dtype)).sync()
    for box, expected in zip(boxes[2:], (map(function, a, b), map(function, a, b, a)), strict=True):
        assert bits(d2h(box).sync()) == bits(expected)


def test_extremes_of_floats_of_two_widths_are_of_the_wider() -> None:
    @kernel(block=64)
    def mixed(a: Slice[f32], b: Slice[f64], y: DisjointSlice[f64]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = max(a[i.get()], min(b[i.get()], a[i.get()]))

    a, b = np.array([1.5, math.nan, 3], np.float32), np.array([0.1, 2.0, math.nan])
    found = mixed(h2d(a), h2d(b), zeros(3, f64)).last().and_then(d2h).sync()
    assert bits(found) == bits([max(x, min(y, x)) for x, y in zip(a.astype(float), b, strict=True)])


def test_in_numba_cudas_kernels_an_extreme_of_a_nan_and_a_number_is_the_number() -> None:
    @kernel
    def extremes(a, y):  # type: ignore[no-untyped-def]
        y[0] = max(a[0], a[1])
        y[1] = min(a[0], a[1])

    assert extremes[1, 1](h2d(np.array([math.nan, 2.0])), zeros(2, f64)).last().and_then(d2h).sync().tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [i32, i64], ids=str)
def test_the_quotient_of_the_least_integer_and_minus_one_wraps_and_its_remainder_is_0(dtype: Any) -> None:
    @kernel(block=64)
    def divide(
        a: Slice[dtype], b: Slice[dtype], y: DisjointSlice[i64], remainder: DisjointSlice[i64], both: DisjointSlice[i64]
    ) -> None:
        i = thread.index_1d()
        x, n = a[i.get()], b[i.get()]
        element, left, sums = y.get_mut(i), remainder.get_mut(i), both.get_mut(i)
        if element is not None and left is not None and sums is not None:
            element.value = x // n
            left.value = x % n
            quotient, rest = divmod(x, n)
            sums.value = quotient ^ rest

    least = int(np.iinfo(dtype.dtype).min)
    numbers = [least, least + 1, -7, -1, 0, 1, 7, -least - 1]
    pairs = list(itertools.product(numbers, numbers))
    a, b = (np.array(column, dtype.dtype) for column in zip(*pairs, strict=True))
    boxes = divide(h2d(a), h2d(b), *(zeros(a.size, np.int64) for _ in range(3))).sync()
    quotient, remainder, both = (d2h(box).sync().tolist() for box in boxes[2:])
    wrapped = [(x // n - least) % (-2 * least) + least if n else 0 for x, n in pairs]
    assert quotient == wrapped
    assert remainder == [x % n if n else 0 for x, n in pairs]
    assert both == [q ^ r for q, r in zip(wrapped, remainder, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("source", [f16, f32, f64], ids=str)
@pytest.mark.parametrize("target", [i8, u8, i16, u16, i32, u32, i64, u64], ids=str)
def test_a_float_that_an_integer_type_does_not_hold_is_the_nearest_that_it_holds(target: Any, source: Any) -> None:
    x = np.array([300.0, -1.0, -0.9, 127.9, -129.5, 5e9, -5e9, 3e19, -3e19, math.inf, -math.inf, math.nan], float)
    with np.errstate(over="ignore"):
        x = x.astype(source.dtype)
    limits = np.iinfo(target.dtype)
    expected = []
    for value in x.tolist():
        low, high = int(limits.min), int(limits.max)
        expected.append(0 if value != value else high if value > high else low if value < low else int(value))
    assert run(unary(target, source, target), x, dtype=target.dtype).tolist() == expected
