"""Arithmetic of each pair of scalar types, beside NumPy 2 (NEP 50), at and around the edges of the types."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import CompileError, h2d, zeros
from oxide.language.types import SCALARS

INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
FLOATS = ("f16", "f32", "f64")
ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder}
BITWISE = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}
COMPARISONS = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
EXTREMES = {"min": np.minimum, "max": np.maximum}


def made(source: str) -> Any:
    """Returns the kernel ``k`` of a source text."""
    name = f"<numbers {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    namespace: dict[str, Any] = {name: getattr(oxide, name) for name in oxide.__all__}
    exec(compile(source, name, "exec"), namespace)
    return namespace["k"]


def binary(first: str, second: str, result: str, expression: str) -> Any:
    """Returns a kernel that computes an expression of ``a`` and ``b`` for each element."""
    return made(
        f"""@kernel(block=128)
def k(x: Slice[{first}], y: Slice[{second}], z: DisjointSlice[{result}]):
    index = thread.index_1d()
    out = z.get_mut(index)
    if out is not None:
        a = x[index.get()]
        b = y[index.get()]
        out.value = {expression}
"""
    )


def edges(name: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Numbers of a type: its ends, those around 0, and random ones."""
    scalar = SCALARS[name]
    if scalar.kind == "b":
        return np.array([False, True])
    if scalar.kind == "f":
        plain = [0.0, -0.0, 0.5, -1.0, 2.0, 3.5, np.inf, -np.inf, np.nan, 1e4, -1e4]
        return np.concatenate([plain, rng.standard_normal(6)]).astype(scalar.dtype)
    low, high = scalar.limits
    plain = [low, low + 1, max(low, -1), 0, 1, 2, 7, high - 1, high]
    return np.concatenate([np.array(plain, scalar.dtype), rng.integers(low, high, 8, scalar.dtype, endpoint=True)])


def pairs(first: str, second: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng()
    a, b = edges(first, rng), edges(second, rng)
    return np.repeat(a, len(b)), np.tile(b, len(a))


def computed(k: Any, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], result: str) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = k(h2d(a), h2d(b), zeros(len(a), SCALARS[result])).last().to_host().sync()
    return found


def integer_result(first: str, second: str) -> np.dtype[Any] | None:
    """NumPy's common type, and None where kernels refuse it."""
    found = np.result_type(SCALARS[first].dtype, SCALARS[second].dtype)
    return found if found.kind in "iu" else None


def wide(dtype: np.dtype[Any]) -> str:
    """The type that shows whether a result wrapped in its own."""
    return "u64" if dtype == np.uint64 else "i64"


OFTEN = {"u32", "i64", "f16", "bool_"}


def cases(pairs: Iterable[tuple[str, str]]) -> list[Any]:
    """Returns pairs of types as parameters of a test. ``make test`` takes those of one type and those of ``OFTEN``."""
    return [
        pytest.param(*pair, id="-".join(pair), marks=() if pair[0] == pair[1] or {*pair} <= OFTEN else pytest.mark.slow)
        for pair in pairs
    ]


PAIRS = cases(itertools.combinations_with_replacement(INTEGERS, 2))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_integers_have_numpys_common_type_and_wrap_in_it(first: str, second: str) -> None:
    common = integer_result(first, second)
    a, b = pairs(first, second)
    if common is None:
        for symbol in (*ARITHMETIC, *BITWISE):
            with pytest.raises(CompileError, match=r"no integer type holds both; convert one, as in i64\(x\) or u64"):
                binary(first, second, "i64", f"a {symbol} b").ptx()
    else:
        for symbol, function in (ARITHMETIC | BITWISE).items():
            found = computed(binary(first, second, wide(common), f"a {symbol} b"), a, b, wide(common))
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(found, function(a, b), symbol)
        for name, function in EXTREMES.items():
            found = computed(binary(first, second, wide(common), f"{name}(a, b)"), a, b, wide(common))
            np.testing.assert_array_equal(found, function(a, b), name)
    for symbol in COMPARISONS:
        found = computed(binary(first, second, "bool_", f"a {symbol} b"), a, b, "bool_")
        expected = [eval(f"{int(one)} {symbol} {int(two)}") for one, two in zip(a, b, strict=True)]
        np.testing.assert_array_equal(found, expected, symbol)
    found = computed(binary(first, second, "f64", "a / b"), a, b, "f64")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, a.astype(np.float64) / b.astype(np.float64))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), list(itertools.product(("i8", "u8", "i32", "u32", "u64"), ("i8", "u64"))))
def test_a_shift_has_the_type_of_its_left_operand(first: str, second: str) -> None:
    a, b = pairs(first, second)
    result = wide(SCALARS[first].dtype)
    bits = SCALARS[first].bits
    for symbol in ("<<", ">>"):
        found = computed(binary(first, second, result, f"a {symbol} b"), a, b, result)
        expected = []
        for one, two in zip(a.tolist(), b.tolist(), strict=True):
            if 0 <= two < bits:
                value = one << two if symbol == "<<" else one >> two
            else:
                value = -1 if symbol == ">>" and one < 0 else 0
            expected.append(SCALARS[first](np.array(value % 2**64, np.uint64).astype(SCALARS[first].dtype)))
        np.testing.assert_array_equal(found, np.array(expected, SCALARS[first].dtype), symbol)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_a_power_has_the_type_of_its_base(name: str) -> None:
    a, b = pairs(name, "i16")
    result = wide(SCALARS[name].dtype)
    found = computed(binary(name, "i16", result, "a ** b"), a, b, result)
    expected = [0 if two < 0 else pow(int(one), int(two), 2**64) for one, two in zip(a, b, strict=True)]
    np.testing.assert_array_equal(found, np.array(expected, np.uint64).astype(SCALARS[name].dtype))
    found = computed(binary(name, "i16", result, "a ** 3"), a, b, result)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, a**3)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_signs_keep_the_type(name: str) -> None:
    a, b = pairs(name, "u8")
    result = wide(SCALARS[name].dtype)
    for text, expected in (("-a", np.negative(a)), ("abs(a)", np.abs(a)), ("~a", ~a), ("+a", a)):
        np.testing.assert_array_equal(computed(binary(name, "u8", result, text), a, b, result), expected, text)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_a_literal_takes_the_type_that_it_meets(name: str) -> None:
    a, b = pairs(name, "u8")
    low, high = SCALARS[name].limits
    result = wide(SCALARS[name].dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(computed(binary(name, "u8", result, "a * 3 + 1"), a, b, result), a * 3 + 1)
    for value in (low - 1, high + 1):
        if not -(2**63) <= value < 2**64:
            continue
        with pytest.raises(CompileError, match=rf"{value} does not fit in {name}, which holds {low} to {high}"):
            binary(name, "u8", result, f"a + {value}").ptx()
        for symbol in COMPARISONS:
            found = computed(binary(name, "u8", "bool_", f"a {symbol} {value}"), a, b, "bool_")
            expected = [eval(f"{int(each)} {symbol} {value}") for each in a]
            np.testing.assert_array_equal(found, expected, f"{symbol} {value}")
    found = computed(binary(name, "u8", result, "1 << a"), a, b, result)
    bits = SCALARS[name].bits
    expected = [SCALARS[name](1 << int(each)) if 0 <= each < bits else SCALARS[name](0) for each in a]
    np.testing.assert_array_equal(found, np.array(expected, SCALARS[name].dtype))


MIXED = cases(itertools.product(FLOATS, (*INTEGERS, "bool_")))


@pytest.mark.parametrize(("real", "whole"), MIXED)
def test_floats_with_integers(real: str, whole: str) -> None:
    """NumPy's common type, but that narrow floats keep theirs."""
    a, b = pairs(real, whole)
    common = np.dtype(np.float16) if real == "f16" else np.result_type(a, b)
    result = f"f{8 * common.itemsize}"
    for symbol in ("+", "-", "*", "/"):
        found = computed(binary(real, whole, "f64", f"a {symbol} b"), a, b, "f64")
        with np.errstate(all="ignore"):
            expected = eval(f"x {symbol} y", {"x": a.astype(common), "y": b.astype(common)})
        np.testing.assert_array_equal(found, expected, f"{symbol} in {result}")


def test_bools() -> None:
    a, b = pairs("bool_", "bool_")
    for symbol, function in BITWISE.items():
        np.testing.assert_array_equal(
            computed(binary("bool_", "bool_", "bool_", f"a {symbol} b"), a, b, "bool_"), function(a, b)
        )
    np.testing.assert_array_equal(computed(binary("bool_", "bool_", "bool_", "~a"), a, b, "bool_"), ~a)
    for name, function in EXTREMES.items():
        found = computed(binary("bool_", "bool_", "bool_", f"{name}(a, b)"), a, b, "bool_")
        np.testing.assert_array_equal(found, function(a, b))
    for symbol in ARITHMETIC:
        with pytest.raises(
            CompileError, match=r"of bools: write &, \| or \^ for logic, or convert to count, as in i32"
        ):
            binary("bool_", "bool_", "i64", f"a {symbol} b").ptx()
    for name in INTEGERS:
        a, b = pairs("bool_", name)
        result = wide(SCALARS[name].dtype)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(computed(binary("bool_", name, result, "a + b"), a, b, result), a + b)
