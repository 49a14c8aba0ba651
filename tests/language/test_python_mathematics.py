"""The functions of ``math`` that are written in Python in the compiler: whole numbers, tuples, spacing of floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide import CompileError, DisjointSlice, Slice, d2h, f32, f64, h2d, i32, i64, kernel, thread, u64, zeros
from tests.elementwise import binary, run, unary

LARGEST = {i64: 2**63 - 1, u64: 2**64 - 1}
NUMBERS = {i64: st.integers(-(2**63), 2**63 - 1), u64: st.integers(0, 2**64 - 1)}
SMALL = st.one_of(st.integers(0, 80), st.integers(0, 2**40))
ROOTS = st.integers(0, 2**32 - 1).flatmap(lambda root: st.sampled_from((root**2, root**2 + 2 * root, root**2 + root)))
compiled_once = settings(deadline=None, max_examples=60)


PAIRS = {(name, kind): binary(getattr(math, name), kind) for name in ("gcd", "lcm", "comb", "perm") for kind in LARGEST}
SINGLES = {(name, kind): unary(getattr(math, name), kind) for name in ("isqrt", "factorial") for kind in LARGEST}
ULPS = {kind: unary(math.ulp, kind) for kind in (f32, f64)}


def wrapped(number: int, kind: Any) -> int:
    number %= 2**64
    return number if kind is u64 or number < 2**63 else number - 2**64


def within(function: Callable[..., int], kind: Any) -> Callable[..., int]:
    return lambda *numbers: 0 if min(numbers) < 0 else min(function(*numbers), LARGEST[kind])


def arrays(kind: Any, pairs: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    return [np.array(column, kind.dtype) for column in zip(*pairs, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGEST, ids=str)
@pytest.mark.parametrize("name", ["gcd", "lcm"])
@compiled_once
@given(data=st.data())
def test_divisors_and_multiples_are_pythons_modulo_two_to_the_64(name: str, kind: Any, data: st.DataObject) -> None:
    numbers = st.one_of(NUMBERS[kind], st.sampled_from((0, 1, LARGEST[kind], LARGEST[kind] - 1)), st.integers(0, 99))
    pairs = [*data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=70)), (0, 0), (0, 6), (6, 0)]
    pairs += [(-(2**63), 0), (-(2**63), -(2**63)), (-4, 6)] if kind is i64 else []
    expected = [wrapped(getattr(math, name)(*pair), kind) for pair in pairs]
    assert run(PAIRS[name, kind], *arrays(kind, pairs)).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGEST, ids=str)
@pytest.mark.parametrize("name", ["comb", "perm"])
@compiled_once
@given(data=st.data())
def test_counts_are_exact_while_they_fit_and_the_greatest_number_after(
    name: str, kind: Any, data: st.DataObject
) -> None:
    # Python's own is slow for many choices of many.
    few = st.tuples(SMALL, st.integers(0, 80))
    most = st.tuples(st.integers(60, 90), st.integers(20, 70))
    pairs = [*data.draw(st.lists(st.one_of(few, most), min_size=1, max_size=70)), (0, 0), (3, 4), (61, 30), (67, 33)]
    pairs += [(2**62, 1), (2**32, 2), (LARGEST[kind], 1)]
    pairs += [(-1, 0), (5, -1), (-(2**63), 3)] if kind is i64 else []
    expected = [within(getattr(math, name), kind)(*pair) for pair in pairs]
    assert run(PAIRS[name, kind], *arrays(kind, pairs)).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGEST, ids=str)
@compiled_once
@given(data=st.data())
def test_the_whole_root_is_exact(kind: Any, data: st.DataObject) -> None:
    numbers = st.one_of(NUMBERS[kind], ROOTS).filter(lambda number: number <= LARGEST[kind])
    given_numbers = [*data.draw(st.lists(numbers, min_size=1, max_size=70)), 0, 1, 2, 3, 4, LARGEST[kind], 2**52 + 1]
    expected = [within(math.isqrt, kind)(number) for number in given_numbers]
    assert run(SINGLES["isqrt", kind], np.array(given_numbers, kind.dtype)).tolist() == expected


@pytest.mark.parametrize("kind", LARGEST, ids=str)
def test_factorials_to_the_largest_that_fits(kind: Any) -> None:
    numbers = [*range(30), 10**9, LARGEST[kind], *((-1,) if kind is i64 else ())]
    expected = [within(lambda n: math.factorial(min(n, 40)), kind)(number) for number in numbers]
    assert run(SINGLES["factorial", kind], np.array(numbers, kind.dtype)).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ULPS, ids=str)
def test_the_spacing_of_floats_is_numpys(kind: Any) -> None:
    largest = np.finfo(kind.dtype).max
    x = np.array([0.0, -0.0, 1.0, -1.5, 3e30, 1e-40, largest, -largest, np.inf, -np.inf, np.nan], kind.dtype)
    found = run(ULPS[kind], x)
    special = np.isinf(x) | (np.abs(x) == largest)
    expected = np.spacing(np.abs(np.where(special, 1, x)).astype(kind.dtype))
    expected[np.isinf(x)] = np.inf
    expected[np.abs(x) == largest] = largest - np.nextafter(largest, kind.dtype.type(0))
    assert np.array_equal(found, expected, equal_nan=True)


@kernel(block=64)
def compare(a: Slice[f64], b: Slice[f64], relative: f64, absolute: f64, y: DisjointSlice[i32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        p, q = a[i.get()], b[i.get()]
        found = i32(math.isclose(p, q))
        found += i32(2) * i32(math.isclose(p, q, rel_tol=relative))
        found += i32(4) * i32(math.isclose(p, q, abs_tol=absolute))
        found += i32(8) * i32(math.isclose(p, q, abs_tol=absolute, rel_tol=relative))
        element.value = found


@compiled_once
@given(data=st.data())
def test_closeness_is_pythons(data: st.DataObject) -> None:
    base = st.floats(allow_nan=True, allow_infinity=True)
    factor = st.sampled_from((1.0, 1 + 1e-9, 1 - 1e-9, 1 + 2e-9, 1.01, 0.5, -1.0))
    pairs = data.draw(st.lists(st.tuples(base, factor).map(lambda each: (each[0], each[0] * each[1])), min_size=1))
    relative, absolute = data.draw(st.tuples(st.floats(0, 1), st.floats(0, 1e300)))
    inputs = [np.array(column) for column in zip(*pairs, strict=True)]
    found = compare(*map(h2d, inputs), relative, absolute, zeros(len(pairs), i32)).last().and_then(d2h).sync()
    for number, (p, q) in zip(found, pairs, strict=True):
        ways: list[dict[str, float]] = [{}, {"rel_tol": relative}, {"abs_tol": absolute}]
        ways.append({"rel_tol": relative, "abs_tol": absolute})
        assert number == sum(2**place * math.isclose(p, q, **way) for place, way in enumerate(ways))


@kernel(block=64)
def lengths(p: tuple[f64, f64, f64], q: tuple[f64, f32, i32], x: Slice[f64], y: DisjointSlice[f64]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        v = x[i.get()]
        element.value = math.dist(p, q) + math.hypot(v, p[0], p[1]) + math.hypot(v, 1.0, 2, q[1])
        if v > 0.0:
            element.value = math.dist((v,), (p[2],)) + math.prod(p) * math.prod((2, v))


def test_lengths_and_products_of_tuples() -> None:
    rng = np.random.default_rng(7)
    p, q = tuple(rng.standard_normal(3)), (1e200, 0.5, -7)
    x = np.concatenate([rng.standard_normal(33) * 10.0 ** rng.integers(-5, 5, 33), [1e250, -1e250]])
    found = lengths(p, q, h2d(x), zeros(x.size, f64)).last().and_then(d2h).sync()
    expected = [
        abs(v - p[2]) + math.prod(p) * 2 * v
        if v > 0
        else math.dist(p, q) + math.hypot(v, p[0], p[1]) + math.hypot(v, 1, 2, q[1])
        for v in x
    ]
    assert np.all(np.abs(found / expected - 1) < 1e-14)


@pytest.mark.skipif(not hasattr(math, "sumprod"), reason="math.sumprod is of Python 3.12")
def test_a_sum_of_products_over_tuples() -> None:
    @kernel
    def dot(p: tuple[f64, i32], q: tuple[i32, f64], y: DisjointSlice[f64]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = math.sumprod(p, q)  # type: ignore[attr-defined, unused-ignore]

    assert dot[1, 1]((1.5, 3), (4, 0.25), zeros(1, f64)).last().and_then(d2h).sync()[0] == 6.75


def refused_sum(x: f64, y: DisjointSlice[f64]) -> None:
    total = math.fsum((x, x))  # noqa: F841


def refused_float(x: f64, y: DisjointSlice[f64]) -> None:
    divisor = math.gcd(x, 1)  # type: ignore[arg-type]  # noqa: F841


def refused_lengths(x: f64, y: DisjointSlice[f64]) -> None:
    distance = math.dist((x, x), (x,))  # noqa: F841


def refused_position(x: f64, y: DisjointSlice[f64]) -> None:
    close = math.isclose(x, x, 0.5)  # type: ignore[call-arg]  # noqa: F841


def refused_count(x: i64, y: DisjointSlice[f64]) -> None:
    ways = math.perm(x)  # noqa: F841


def refused_start(x: f64, y: DisjointSlice[f64]) -> None:
    product = math.prod((x, x), start=2.0)  # noqa: F841


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (refused_sum, "math.fsum keeps a list of sums, which kernels cannot: add in f64"),
        (refused_float, r"math.gcd takes integers, not f64; convert it, as in i64\(x\)"),
        (
            refused_lengths,
            r"math.dist takes two tuples of numbers, of one length, not tuple\[f64, f64\] and tuple\[f64\]",
        ),
        (refused_position, "math.isclose takes two numbers, and rel_tol and abs_tol by name"),
        (refused_count, "math.perm takes 2 integers in a kernel, not 1"),
        (refused_start, "math.prod takes its arguments by position in a kernel"),
    ],
)
def test_what_has_no_meaning_in_a_kernel_is_refused_with_a_sentence(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(CompileError, match=problem):
        kernel(function).specialize()
