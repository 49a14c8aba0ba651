"""``u64`` with a signed integer is ``i64`` wherever the two meet; comparisons compare the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, Slice, device, i8, i32, i64, kernel, thread, u64
from tests.compiler.native_runner import run

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


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize(("first", "second"), [(i64, u64), (u64, i64), (i32, u64), (u64, i8)])
def test_an_operation_on_both_is_exact_and_gives_an_index(
    operation: Callable[[Any, Any], Any], first: Any, second: Any
) -> None:
    f = device(operation)

    @kernel
    def apply(a: first, b: second, x: Slice[i64], c: DisjointSlice[i64]) -> None:
        element = c.get_mut(thread.index_1d())
        if element is not None:
            index = f(a, b)
            element.value = index
            if index >= 0 and index < len(x):
                element.value = x[index] - 100

    x = np.arange(100, 110)
    for a, b in ((7, 3), (3, 7), (LARGE if first in (i64, u64) else 100, LARGE - 1 if second is i64 else 5)):
        c = np.zeros(1, np.int64)
        run(apply, 1, a, b, x, c)
        expected = operation(a, b)
        assert int(c[0]) == (expected + 2**63) % 2**64 - 2**63, (a, b)


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
