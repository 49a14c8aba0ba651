"""libdevice's functions that round in a given direction, against fractions: every bit must be right."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice

from oxide import kernel
from tests.numba_cuda.launching import launch

Pair = tuple[Any, Any]


@kernel
def doubles(x, y, z, out):
    i = cuda.grid(1)
    if i < x.size:
        a, b, c = x[i], y[i], z[i]
        out[i, 0], out[i, 1], out[i, 2] = libdevice.dadd_rd(a, b), libdevice.dadd_ru(a, b), libdevice.dadd_rz(a, b)
        out[i, 3], out[i, 4], out[i, 5] = libdevice.dmul_rd(a, b), libdevice.dmul_ru(a, b), libdevice.dmul_rz(a, b)
        out[i, 6], out[i, 7], out[i, 8] = libdevice.ddiv_rd(a, b), libdevice.ddiv_ru(a, b), libdevice.ddiv_rz(a, b)
        out[i, 9], out[i, 10], out[i, 11] = (
            libdevice.fma_rd(a, b, c),
            libdevice.fma_ru(a, b, c),
            libdevice.fma_rz(a, b, c),
        )
        out[i, 12], out[i, 13], out[i, 14] = libdevice.dsqrt_rd(a), libdevice.dsqrt_ru(a), libdevice.dsqrt_rz(a)
        out[i, 15], out[i, 16], out[i, 17] = libdevice.drcp_rd(a), libdevice.drcp_ru(a), libdevice.drcp_rz(a)
        out[i, 18], out[i, 19], out[i, 20] = libdevice.fma_rn(a, b, c), libdevice.dsqrt_rn(a), libdevice.drcp_rn(a)


@kernel
def floats(x, y, z, out):
    i = cuda.grid(1)
    if i < x.size:
        a, b, c = x[i], y[i], z[i]
        out[i, 0], out[i, 1], out[i, 2] = libdevice.fadd_rd(a, b), libdevice.fadd_ru(a, b), libdevice.fadd_rz(a, b)
        out[i, 3], out[i, 4], out[i, 5] = libdevice.fmul_rd(a, b), libdevice.fmul_ru(a, b), libdevice.fmul_rz(a, b)
        out[i, 6], out[i, 7], out[i, 8] = libdevice.fdiv_rd(a, b), libdevice.fdiv_ru(a, b), libdevice.fdiv_rz(a, b)
        out[i, 9] = libdevice.fmaf_rd(a, b, c)
        out[i, 10], out[i, 11] = libdevice.fmaf_ru(a, b, c), libdevice.fmaf_rz(a, b, c)
        out[i, 12], out[i, 13], out[i, 14] = libdevice.fsqrt_rd(a), libdevice.fsqrt_ru(a), libdevice.fsqrt_rz(a)
        out[i, 15], out[i, 16], out[i, 17] = libdevice.frcp_rd(a), libdevice.frcp_ru(a), libdevice.frcp_rz(a)
        out[i, 18], out[i, 19], out[i, 20] = libdevice.fmaf_rn(a, b, c), libdevice.fsqrt_rn(a), libdevice.frcp_rn(a)
        out[i, 21], out[i, 22], out[i, 23] = libdevice.fsub_rd(a, b), libdevice.fsub_ru(a, b), libdevice.fsub_rz(a, b)
        out[i, 24] = libdevice.frsqrt_rn(a)


def numbers(dtype: Any, count: int, seed: int) -> Any:
    """All exponents alike, subnormal and almost infinite ones among them; and pairs that nearly cancel."""
    random, information = np.random.default_rng(seed), np.finfo(dtype)
    bits = random.integers(0, 2**information.bits, count, np.uint64).astype(f"u{information.bits // 8}")
    found = bits.view(dtype)
    edges = [0.0, -0.0, 1.0, -1.0, 3.0, information.max, -information.max, information.smallest_subnormal]
    edges += [-information.smallest_subnormal, information.tiny, 1 + information.eps, 1 - information.eps / 2]
    near = np.array([1 + k * information.eps for k in random.integers(0, 2**20, count)], dtype)
    found = np.concatenate(
        [np.where(np.isfinite(found), found, dtype(0.1)), random.choice(np.array(edges, dtype), count)]
    )
    return random.permutation(np.concatenate([found, near, random.normal(size=count).astype(dtype)]))


def nearest(exact: Fraction, dtype: Any) -> Any:
    """Of a fraction that is not 0: ties do not come up where this decides."""
    below, above = enclosing(exact, dtype)
    if not np.isfinite(below) or not np.isfinite(above):
        return None  # too close to the largest number to say without more
    down, up = exact - Fraction(float(below)), Fraction(float(above)) - exact
    return None if down == up and down else below if down < up else above


def enclosing(exact: Fraction, dtype: Any) -> Pair:
    """The largest number that is not above ``exact``, and the smallest that is not below it."""
    infinity, largest = dtype(np.inf), float(np.finfo(dtype).max)
    if exact > largest:
        return dtype(largest), infinity
    if exact < -largest:
        return -infinity, dtype(-largest)
    close = np.clip(dtype(float(exact)), dtype(-largest), dtype(largest))
    while Fraction(float(close)) > exact:
        close = np.nextafter(close, -infinity)
    while close < largest and Fraction(float(np.nextafter(close, infinity))) <= exact:
        close = np.nextafter(close, infinity)
    return close, close if Fraction(float(close)) == exact else np.nextafter(close, infinity)


def root(value: float, dtype: Any) -> Pair:
    """The numbers around a square root."""
    close, infinity = dtype(math.sqrt(value)), dtype(np.inf)
    while Fraction(float(close)) ** 2 > Fraction(float(value)):
        close = np.nextafter(close, -infinity)
    while Fraction(float(np.nextafter(close, infinity))) ** 2 <= Fraction(float(value)):
        close = np.nextafter(close, infinity)
    return close, close if Fraction(float(close)) ** 2 == Fraction(float(value)) else np.nextafter(close, infinity)


def check(found: Any, exact: Fraction, dtype: Any, what: str) -> None:
    """Three results, of the directions down, up and to zero."""
    below, above = enclosing(exact, dtype)
    toward_zero = below if exact > 0 else above
    assert [*found] == [below, above, toward_zero], (what, float(found[0]), exact)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "dtype", "columns"), [(doubles, np.float64, 21), (floats, np.float32, 25)])
def test_arithmetic_in_every_direction(function: Any, dtype: Any, columns: int) -> None:
    x, y, z = (numbers(dtype, 300, seed) for seed in (1, 2, 3))
    with np.errstate(over="ignore"):
        z[::3] = -(x[::3] * y[::3])  # what is left of a fused multiply-add then is what the product lost
    z = np.where(np.isfinite(z), z, dtype(2.5))
    *_, out = launch(function, -(-len(x) // 64), 64, x, y, z, np.zeros((len(x), columns), dtype))
    for i in range(len(x)):
        a, b, c = (Fraction(float(value[i])) for value in (x, y, z))
        cases: list[tuple[int, Callable[[], Fraction], str]] = [
            (0, lambda a=a, b=b: a + b, "add"), (3, lambda a=a, b=b: a * b, "mul"), (6, lambda a=a, b=b: a / b, "div"),
            (9, lambda a=a, b=b, c=c: a * b + c, "fma"), (15, lambda a=a: 1 / a, "rcp"),
        ]  # fmt: skip
        cases += [(21, lambda a=a, b=b: a - b, "sub")] if dtype is np.float32 else []
        for first, compute, what in cases:
            if (what == "div" and not b) or (what == "rcp" and not a):
                continue
            exact = compute()
            if exact:
                check(out[i, first : first + 3], exact, dtype, f"{what} {x[i]!r} {y[i]!r} {z[i]!r}")
            rounded = nearest(exact, dtype) if what in ("fma", "rcp") and exact else None
            if rounded is not None:
                assert out[i, 18 if what == "fma" else 20] == rounded
        if a > 0:
            below, above = root(x[i], dtype)
            assert [*out[i, 12:15]] == [below, above, below], x[i]
            assert out[i, 19] == np.sqrt(x[i])


@pytest.mark.parametrize(("function", "dtype", "columns"), [(doubles, np.float64, 21), (floats, np.float32, 25)])
def test_zeros_and_what_is_no_number(function: Any, dtype: Any, columns: int) -> None:
    inf, nan = np.inf, np.nan
    given = [(2.25, -2.25), (0.0, 0.0), (-0.0, -0.0), (0.0, -0.0), (1.0, 0.0), (-1.0, 0.0), (1.0, -0.0), (inf, 4.0)]
    given += [(-inf, 4.0), (inf, -inf), (inf, inf), (nan, 1.0), (1.0, nan), (0.0, inf), (-0.0, inf), (4.0, inf)]
    x, y = np.array(given, dtype).T.copy()
    *_, out = launch(function, 1, len(x), x, y, np.zeros_like(x), np.zeros((len(x), columns), dtype))
    with np.errstate(all="ignore"):
        total, product, quotient, root = x + y, x * y, x / y, np.sqrt(x)
    down = np.where((total == 0) & ~((x == 0) & (y == 0) & ~np.signbit(x) & ~np.signbit(y)), dtype(-0.0), total)
    expected = [down, total, total, *[product] * 3, *[quotient] * 3]
    for column, values in [*enumerate(expected), *((column, root) for column in (12, 13, 14))]:
        np.testing.assert_array_equal(out[:, column], values, err_msg=str(column))
        number = ~np.isnan(values)
        np.testing.assert_array_equal(np.signbit(out[number, column]), np.signbit(values[number]), err_msg=str(column))


def test_the_reciprocal_of_a_root_is_the_nearest_float() -> None:
    x = np.abs(numbers(np.float32, 3000, 4))
    x = x[x > 0]
    *_, out = launch(floats, -(-len(x) // 64), 64, x, x, x, np.zeros((len(x), 25), np.float32))
    for value, found in zip(x, out[:, 24], strict=True):
        below, above = (
            (Fraction(float(found)) + Fraction(float(np.nextafter(found, np.float32(way))))) / 2
            for way in (-np.inf, np.inf)
        )
        assert below**2 * Fraction(float(value)) < 1 < above**2 * Fraction(float(value)), value


@kernel
def conversions(x, whole, singles, pairs):
    i = cuda.grid(1)
    if i < x.size:
        d, n = x[i], whole[i]
        s = np.int32(n & 0xFFFFFFFF)
        singles[i, 0] = libdevice.double2float_rd(d)
        singles[i, 1] = libdevice.double2float_ru(d)
        singles[i, 2] = libdevice.double2float_rz(d)
        singles[i, 3], singles[i, 4], singles[i, 5] = (
            libdevice.ll2float_rd(n),
            libdevice.ll2float_ru(n),
            libdevice.ll2float_rz(n),
        )
        singles[i, 6], singles[i, 7], singles[i, 8] = (
            libdevice.ull2float_rd(n),
            libdevice.ull2float_ru(n),
            libdevice.ull2float_rz(n),
        )
        singles[i, 9], singles[i, 10], singles[i, 11] = (
            libdevice.int2float_rd(s),
            libdevice.int2float_ru(s),
            libdevice.int2float_rz(s),
        )
        singles[i, 12], singles[i, 13], singles[i, 14] = (
            libdevice.uint2float_rd(s),
            libdevice.uint2float_ru(s),
            libdevice.uint2float_rz(s),
        )
        pairs[i, 0], pairs[i, 1], pairs[i, 2] = (
            libdevice.ll2double_rd(n),
            libdevice.ll2double_ru(n),
            libdevice.ll2double_rz(n),
        )
        pairs[i, 3], pairs[i, 4], pairs[i, 5] = (
            libdevice.ull2double_rd(n),
            libdevice.ull2double_ru(n),
            libdevice.ull2double_rz(n),
        )


def test_conversions_in_every_direction() -> None:
    random = np.random.default_rng(5)
    x = np.concatenate([numbers(np.float64, 200, 6), numbers(np.float32, 200, 7).astype(np.float64) * (1 + 2.0**-30)])
    whole = random.integers(-(2**63), 2**63, len(x), np.int64) >> random.integers(0, 64, len(x))
    whole[:6] = 0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1
    count = len(x)
    *_, singles, pairs = launch(
        conversions, -(-count // 64), 64, x, whole, np.zeros((count, 15), np.float32), np.zeros((count, 6))
    )
    for i in range(count):
        n = int(whole[i])
        low = n & 0xFFFFFFFF
        signed = low - 2**32 if low >= 2**31 else low
        exact = [Fraction(float(x[i])), *map(Fraction, (n, n % 2**64, signed, low))]
        for number, value in enumerate(exact):
            check(singles[i, 3 * number :][:3], value, np.float32, f"to float, {number}, {value}")
        for number, value in enumerate(exact[1:3]):
            check(pairs[i, 3 * number :][:3], value, np.float64, f"to double, {number}, {value}")
    assert not np.signbit(singles[whole == 0][:, 3:]).any()
    assert not np.signbit(pairs[whole == 0]).any()
