"""No integer type holds a ``u64`` and a signed integer: arithmetic of both is refused, and comparisons compare the
numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxide import CompileError, DisjointSlice, Slice, device, i8, i32, i64, kernel, thread, u32, u64
from tests.compiler.native_runner import run
from tests.kernels.test_numbers import binary

REFUSED = r"no integer type holds both; convert one, as in i64\(x\) or u64\(x\)|a variable has one type; convert one"
LARGE = 2**53 + 1  # no float64


def in_place(a, b):  # type: ignore[no-untyped-def]
    total = a
    total += b
    total *= b
    total -= b
    return total


def a_local_of_both(a, b):  # type: ignore[no-untyped-def]
    if a < b:
        larger = b
    else:
        larger = a
    return larger


def either(a, b):  # type: ignore[no-untyped-def]
    return a if a > b else b


def add(a, b):  # type: ignore[no-untyped-def]
    return a + b


def subtract(a, b):  # type: ignore[no-untyped-def]
    return a - b


def multiply(a, b):  # type: ignore[no-untyped-def]
    return a * b


def floor_divide(a, b):  # type: ignore[no-untyped-def]
    return a // b


def remainder(a, b):  # type: ignore[no-untyped-def]
    return a % b


def bits(a, b):  # type: ignore[no-untyped-def]
    return (a & b) + (a | b) + (a ^ b)


def extremes(a, b):  # type: ignore[no-untyped-def]
    return max(a, b) - min(a, b)


def shift(a, b):  # type: ignore[no-untyped-def]
    return (a << (b % 5)) + (a >> (b % 5))


OPERATIONS = (
    add, subtract, multiply, floor_divide, remainder, bits, extremes, shift, in_place, a_local_of_both, either,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize(("first", "second"), [(i64, u64), (u64, i64), (i32, u64), (u64, i8)])
def test_an_operation_on_both_converted_is_exact_and_gives_an_index(
    operation: Callable[[Any, Any], Any], first: Any, second: Any
) -> None:
    f = device(operation)

    @kernel
    def apply(a: first, b: second, x: Slice[i64], c: DisjointSlice[i64]) -> None:
        element = c.get_mut(thread.index_1d())
        if element is not None:
            index = f(i64(a), i64(b))
            element.value = index
            if index >= 0 and index < len(x):
                element.value = x[index] - 100

    x = np.arange(100, 110)
    for a, b in ((7, 3), (3, 7), (LARGE if first in (i64, u64) else 100, LARGE - 1 if second is i64 else 5)):
        c = np.zeros(1, np.int64)
        run(apply, 1, a, b, x, c)
        expected = operation(a, b)
        assert int(c[0]) == (expected + 2**63) % 2**64 - 2**63, (a, b)


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each is not shift], ids=lambda function: function.__name__
)
def test_an_operation_on_both_is_refused(operation: Callable[[Any, Any], Any]) -> None:
    f = device(operation)

    @kernel
    def apply(a: i64, b: u64, c: DisjointSlice[i64]) -> None:
        element = c.get_mut(thread.index_1d())
        if element is not None:
            element.value = f(a, b)

    with pytest.raises(CompileError, match=REFUSED):
        apply.specialize()


def test_comparisons_compare_the_numbers() -> None:
    def compare(a, b):  # type: ignore[no-untyped-def]
        result = 0
        if a < b:
            result += 1
        if a <= b:
            result += 2
        if a > b:
            result += 4
        if a >= b:
            result += 8
        if a == b:
            result += 16
        if a != b:
            result += 32
        return result

    f = device(compare)

    @kernel
    def apply(a: i64, b: u64, c: DisjointSlice[i64]) -> None:
        index = thread.index_1d()
        element = c.get_mut(index)
        if element is not None:
            element.value = f(a, b) if index.get() == 0 else f(b, a)

    for a in (-(2**63), -1, 0, 2**53, LARGE, 2**63 - 1):
        for b in (0, 1, 2**53, LARGE, 2**63 - 1, 2**63, 2**64 - 1):
            c = np.zeros(2, np.int64)
            run(apply, 2, a, b, c)
            assert list(c) == [compare(a, b), compare(b, a)], (a, b)


EDGES = (0, 1, 2, 9, 10, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 5, 2**64 - 1)


def python_divides(a: int, b: int) -> tuple[int, int]:
    return divmod(a, b) if b else (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("constant", [1, 7, 10, 2**32, 2**63 - 1])
def test_a_u64_divided_by_a_constant_is_a_u64(constant: int) -> None:
    @kernel
    def apply(x: Slice[u64], y: DisjointSlice[u64]) -> None:
        n = x[0]
        quotient, remainder = n, n
        quotient //= constant
        remainder %= constant
        both = divmod(n, constant)
        y.unchecked_mut[0] = n // constant
        y.unchecked_mut[1] = n % constant
        y.unchecked_mut[2] = quotient
        y.unchecked_mut[3] = remainder
        y.unchecked_mut[4] = both[0]
        y.unchecked_mut[5] = both[1]
        y.unchecked_mut[6] = constant // n
        y.unchecked_mut[7] = constant % n
        y.unchecked_mut[8] = u64(n // constant > n - n)  # a u64: a quotient from 2**63 on is no negative number
        y.unchecked_mut[9] = u64(divmod(n, constant)[0] > n - n)

    for n in EDGES:
        y = np.zeros(10, np.uint64)
        run(apply, 1, np.array([n], np.uint64), y)
        expected = divmod(n, constant) * 3 + python_divides(constant, n) + (int(n >= constant),) * 2
        assert tuple(map(int, y)) == expected, n


def test_a_difference_of_unsigned_numbers_wraps_unless_one_is_converted() -> None:
    @kernel
    def apply(n: u32, m: u32, y: DisjointSlice[i64]) -> None:
        y.unchecked_mut[0] = max(n - m, 0)
        y.unchecked_mut[1] = min(n - m, 5)
        y.unchecked_mut[2] = max(i64(n) - m, 0)
        y.unchecked_mut[3] = min(i64(n) - m, 5)

    for n, m in ((3, 5), (5, 3), (0, 2**32 - 1), (2**32 - 1, 0)):
        y = np.zeros(4, np.int64)
        run(apply, 1, n, m, y)
        wrapped = (n - m) % 2**32
        assert list(y) == [wrapped, min(wrapped, 5), max(n - m, 0), min(n - m, 5)]


@pytest.mark.parametrize("signed", ["i8", "i32", "i64"])
def test_a_u64_and_a_signed_integer_are_not_divided(signed: str) -> None:
    for written in ("a // b", "a % b", "b // a", "b % a", "divmod(a, b)[0]", "b // len(x)"):
        with pytest.raises(CompileError, match=REFUSED):
            binary(signed, "u64", "i64", written).specialize()


def test_a_negative_divisor_does_not_fit_in_a_u64() -> None:
    for written in ("a // -3", "a % -3", "min(a, -3)"):
        with pytest.raises(CompileError, match="-3 does not fit in u64, which holds 0 to 18446744073709551615"):
            binary("u64", "u64", "i64", written).specialize()
