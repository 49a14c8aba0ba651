"""Integers to the power of integers: Python's numbers modulo 2 to the base's width, and 0 for a negative exponent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, Slice, f32, f64, i8, i32, i64, kernel, u8, u32, u64
from tests.compiler.native_runner import run

BASES = (-(2**63), -(2**31), -3, -2, -1, 0, 1, 2, 3, 10, 2**31, 2**32, 2**63 - 1)
EXPONENTS = (0, 1, 2, 3, 63, 64, 65_536, 65_537, 70_000, 2**62, 2**63 - 1)
NEGATIVE = (-1, -2, -3, -70_000, -(2**63) + 1, -(2**63))


def expected(base: int, exponent: int) -> int:
    return pow(base, exponent, 2**64) if exponent >= 0 else 0


def power(base: Any, exponent: Any) -> Any:
    @kernel
    def apply(a: Slice[base], b: Slice[exponent], y: DisjointSlice[base]) -> None:
        for i in range(len(a)):
            n = a[i]
            n **= b[i]
            y.unchecked_mut[3 * i] = a[i] ** b[i]
            y.unchecked_mut[3 * i + 1] = n
            y.unchecked_mut[3 * i + 2] = pow(a[i], b[i])

    return apply


def held(scalar: Any, numbers: Any) -> list[int]:
    info = np.iinfo(scalar.dtype)
    return [number for number in numbers if info.min <= number <= info.max]


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [i64, u64, i32, u32, i8, u8])
@pytest.mark.parametrize("base", [i64, u64, i32, u8])
def test_a_power_of_integers_is_pythons_modulo_2_to_the_width_of_the_base(base: Any, exponent: Any) -> None:
    pairs = [(a, b) for a in held(base, BASES) for b in held(exponent, (*EXPONENTS, *NEGATIVE, 2**63, 2**64 - 1))]
    a = np.array([pair[0] for pair in pairs], base.dtype)
    b = np.array([pair[1] for pair in pairs], exponent.dtype)
    y = np.zeros(3 * len(pairs), base.dtype)
    run(power(base, exponent), 1, a, b, y)
    for number, pair in enumerate(pairs):
        wrapped = np.uint64(expected(*pair)).astype(base.dtype)
        assert y[3 * number : 3 * number + 3].tolist() == [int(wrapped)] * 3, pair


def test_a_large_constant_exponent_wraps_too() -> None:
    @kernel
    def apply(a: i64, y: DisjointSlice[i64]) -> None:
        y.unchecked_mut[0] = a**70_000
        y.unchecked_mut[1] = a**5

    y = np.zeros(2, np.int64)
    run(apply, 1, 3, y)
    assert [int(each) % 2**64 for each in y] == [pow(3, 70_000, 2**64), 3**5]


def test_a_float_to_the_power_of_an_unsigned_integer_is_a_float() -> None:
    @kernel
    def apply(a: f64, b: f32, n: u64, m: u8, y: DisjointSlice[f64]) -> None:
        y.unchecked_mut[0] = a**n
        y.unchecked_mut[1] = b**m
        y.unchecked_mut[2] = a**-2

    y = np.zeros(3)
    run(apply, 1, -1.5, 0.5, 3, 4, y)
    assert list(y) == pytest.approx([-(1.5**3), 0.5**4, 1.5**-2])


def test_a_negative_constant_power_of_an_integer_is_0() -> None:
    @kernel
    def apply(n: i64, u: u8, y: DisjointSlice[f64]) -> None:
        k = -2
        y.unchecked_mut[0] = n**-2
        y.unchecked_mut[1] = pow(n, -2)
        y.unchecked_mut[2] = u**-2
        y.unchecked_mut[3] = n**k
        y.unchecked_mut[4] = f64(n) ** -2

    for n, u in ((1, 1), (10, 10)):
        y = np.ones(5)
        run(apply, 1, n, u, y)
        assert list(y) == [0, 0, 0, 0, n**-2]
