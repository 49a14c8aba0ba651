"""Integers to the power of integers: Python's numbers modulo 2**64, and no silent 0 for a negative constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import CompileError, DisjointSlice, Slice, f32, f64, i8, i32, i64, kernel, u8, u32, u64
from tests.compiler.native_runner import run

BASES = (-(2**63), -(2**31), -3, -2, -1, 0, 1, 2, 3, 10, 2**31, 2**32, 2**63 - 1)
EXPONENTS = (0, 1, 2, 3, 63, 64, 65_536, 65_537, 70_000, 2**62, 2**63 - 1)
NEGATIVE = (-1, -2, -3, -70_000, -(2**63) + 1, -(2**63))


def expected(base: int, exponent: int) -> int:
    if exponent >= 0:
        return pow(base, exponent, 2**64)
    return int(base in (1, -1)) * (base if exponent % 2 else 1) % 2**64


def power(base: Any, exponent: Any) -> Any:
    @kernel
    def apply(a: Slice[base], b: Slice[exponent], y: DisjointSlice[u64]) -> None:
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
def test_a_power_of_integers_is_pythons_modulo_2_to_the_64(base: Any, exponent: Any) -> None:
    pairs = [(a, b) for a in held(base, BASES) for b in held(exponent, (*EXPONENTS, *NEGATIVE, 2**63, 2**64 - 1))]
    a = np.array([pair[0] for pair in pairs], base.dtype)
    b = np.array([pair[1] for pair in pairs], exponent.dtype)
    y = np.zeros(3 * len(pairs), np.uint64)
    run(power(base, exponent), 1, a, b, y)
    for number, pair in enumerate(pairs):
        assert list(map(int, y[3 * number : 3 * number + 3])) == [expected(*pair)] * 3, pair


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


@pytest.mark.parametrize("written", ["n ** -2", "pow(n, -2)", "u ** -2", "10 ** k"])
def test_a_negative_constant_power_of_an_integer_is_a_compile_error(written: str, tmp_path: Any) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(
        "from oxide import *\n@kernel\ndef wrong(n: i64, u: u8, y: DisjointSlice[f64]):\n    k = -2\n"
        f"    y.unchecked_mut[0] = {written}\n"
    )
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(
        CompileError, match=r"an integer to the power of -2 is a fraction; .* f64\(x\) \*\* -2"
    ) as caught:
        names["wrong"].specialize()
    assert "wrong.py:5: " in str(caught.value)
