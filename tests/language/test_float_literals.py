"""Literals take the type that they meet, by NumPy 2's rule (NEP 50): every float type and literal against NumPy.

A kernel stores each value as an f64, so the value shows how precisely it was computed."""

from __future__ import annotations

import linecache
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import oxide
from oxide import (
    DisjointSlice,
    Kernel,
    Slice,
    d2h,
    device,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u32,
    zeros,
)
from oxide.__main__ import main
from oxide.compiler.source.faults import Widening
from oxide_kernels import map_

DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
NARROW = {"bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
EPSILON = 1e-3
THIRD = 1 / 3
COUNT = 3
LITERALS = (
    "0.1",
    "-2.7",
    "3",
    "-7",
    "EPSILON",
    "THIRD",
    "COUNT",
    "math.pi",
    "np.e",
    "(0.1 * 3)",
    "(2.5 ** 0.5)",
    "warp.SIZE",
    "(COUNT + COUNT)",
    "(-COUNT * 2 + 1)",
    "(COUNT / 2)",
    "(warp.SIZE // COUNT)",
    "(x if COUNT > 3 else 0.1)",  # of which only the literal counts
)
EXACT = ("x + L", "L - x", "x * L", "L / x", "x / L", "-(x * L)", "x * L * L", "abs(x * L)")
ROUNDED = ("x // L", "x % L", "x ** L", "L ** x", "math.hypot(x, L)", "math.atan2(L, x)", "np.arctan2(L, x)")
COMPARED = ("x < L", "x <= L", "L > x", "L == x", "x != L")
_made = 0


def body(*lines: str, name: str) -> Kernel:
    """Returns a kernel that stores ``out`` as an f64. The lines assign it from ``x``, an element of type ``name``."""
    global _made
    _made += 1
    source = "\n".join(
        [
            "@kernel(block=64)",
            f"def stores(xs: Slice[{name}], out_: DisjointSlice[f64], n: i64) -> None:",
            "    index = thread.index_1d()",
            "    element = out_.get_mut(index)",
            "    if element is not None:",
            "        x = xs[index.get()]",
            *(f"        {line}" for line in lines),
            "        element.value = f64(out)",
            "",
        ]
    )
    file = f"<a kernel of test_float_literals {_made}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = {**vars(oxide), **globals()}
    exec(compile(source, file, "exec", dont_inherit=True), names)
    made: Kernel = names["stores"]
    return made


def run(made: Kernel, x: Any, n: int = 5) -> Any:
    return d2h(made(h2d(x), zeros(x.size, np.float64), n).sync()[1]).sync()


def run_each(expressions: Sequence[str], x: Any, name: str) -> list[Any]:
    """Returns the results of expressions, which one kernel computes: that of number ``n``. A variable of an
    expression's type is converted to that of all of them without loss."""
    lines = []
    for number, expression in enumerate(expressions):
        condition = (
            f"if n == {number}" if not number else f"elif n == {number}" if number + 1 < len(expressions) else "else"
        )
        lines += [f"{condition}:", f"    out = {expression}"]
    made = body(*lines, name=name)
    return [run(made, x, number) for number in range(len(expressions))]


def numbers(name: str) -> Any:
    return np.random.default_rng(len(name)).uniform(0.3, 4, 33).astype(DTYPES[name])


def of_numpy(expression: str, x: Any, **names: Any) -> Any:
    with np.errstate(all="ignore"):
        return eval(expression, {**vars(oxide), **globals(), "x": x, **names})


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("literal", LITERALS)
def test_a_literal_takes_the_type_of_the_float_that_it_meets(name: str, literal: str) -> None:
    x = numbers(name)
    wanted = np.result_type(x.dtype, eval(literal, {**vars(oxide), **globals()}))
    assert wanted == x.dtype  # NumPy's rule: a Python number is weak
    written = [expression.replace("L", literal) for expression in EXACT]
    for each, found in zip(written, run_each(written, x, name), strict=True):
        expected = of_numpy(each, x)
        assert expected.dtype == wanted
        np.testing.assert_array_equal(found, expected.astype(np.float64), each)


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
def test_the_result_of_any_operation_with_a_literal_has_that_type(name: str) -> None:
    x = numbers(name)
    written = [expression.replace("L", literal) for expression in ROUNDED for literal in ("0.1", "3")]
    for each, found in zip(written, run_each(written, x, name), strict=True):
        np.testing.assert_array_equal(found.astype(x.dtype).astype(np.float64), found, each)
        numpys = each.replace("math.hypot", "np.hypot").replace("math.atan2", "np.arctan2")
        expected = of_numpy(numpys, x)
        np.testing.assert_allclose(found, expected.astype(np.float64), rtol=4 * np.finfo(x.dtype).eps, err_msg=each)


@pytest.mark.parametrize("name", DTYPES)
def test_a_comparison_is_made_in_the_type_that_the_literal_meets(name: str) -> None:
    exact = DTYPES[name](0.1)  # not 0.1 in a narrower type, and equal to it there
    x = np.array([exact, np.nextafter(exact, DTYPES[name](0)), np.nextafter(exact, DTYPES[name](1))], DTYPES[name])
    written = [expression.replace("L", "0.1") for expression in COMPARED]
    for each, found in zip(written, run_each([f"1 if {each} else 0" for each in written], x, name), strict=True):
        np.testing.assert_array_equal(found, of_numpy(each, x), each)


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(
    "lines",
    [
        ("total = 0.0", "for i in range(n):", "    total += x * 0.1", "out = total"),
        ("total = 0", "for i in range(n):", "    total += x * 0.1", "out = total"),
        ("total = 0.1", "i = 0", "while i < n:", "    total = total * x", "    i += 1", "out = total"),
        ("best = -1.0", "for i in range(n):", "    best = max(best, x - 0.1)", "out = best"),
        ("scale = 0.1", "out = x * scale"),
        ("scale = 0.1 if n > 3 else 0.2", "out = x * scale"),
        ("scale = 0.2", "if n > 3:", "    scale = 0.1", "out = x * scale"),
        ("a, b = 0.1, x", "out = a * b"),
        ("pair = (0.1, x)", "out = pair[0] * pair[1]"),
        ("out = min(x, 0.7, 3)",),
        ("out = (0.1 + 0.2) * x",),
        ("out = 0.1 if x > 100.0 else x * 0.1",),
        ("out = x", "out *= 0.1", "out += 0.3", "out /= 3"),
        ("room = LocalArray(2, type(x)) if False else LocalArray(2, NAME)", "room[0] = 0.1", "out = room[0] * x"),
        ("out = scaled(x, 0.1)",),
        ("out = scaled(x)",),
        ("out = third() * x",),
        ("count = 3", "count += COUNT", "out = x * count"),
        ("count = 2", "more = count * COUNT - 1", "if n > 3:", "    out = x / more", "else:", "    out = x"),
    ],
)
def test_the_type_follows_variables_calls_and_loops(name: str, lines: tuple[str, ...]) -> None:
    """Compares with the same lines in Python over NumPy's scalars, which round after every operation too."""
    x = numbers(name)
    if "LocalArray" in lines[0]:
        lines = (f"room = LocalArray(2, {name})", *lines[1:])
        expected = [float(DTYPES[name](0.1) * each) for each in x]
    else:
        expected = []
        for each in x:
            scope = {**globals(), "x": each, "n": 5, "scaled": scaled.function, "third": third.function}
            exec("\n".join(lines), scope)
            expected.append(float(DTYPES[name](scope["out"])))
    made = body(*lines, name=name)
    np.testing.assert_array_equal(run(kernel(block=64, fma=False)(made.function), x), expected)


@device
def scaled(x, factor=0.1):  # type: ignore[no-untyped-def]
    return x * factor


@device
def third() -> Any:
    return 1.0 / 3


def test_literals_alone_have_the_precision_of_python() -> None:
    x = numbers("f32")
    for written in ("0.1 + 0.2", "math.sqrt(2.0) / 3", "math.pi * 3", "0.1", "1.0 / n", "max(0.1, 0.2)"):
        expected = eval(written, {**globals(), "n": 5})
        assert (run(body(f"out = {written}", name="f32"), x) == expected).all(), written
    # Rounded once, where they meet the narrower type.
    expected = np.float32(math.sqrt(2.0) / 3) * x
    np.testing.assert_array_equal(run(body("out = math.sqrt(2.0) / 3 * x", name="f32"), x), expected.astype(float))


def test_a_wider_number_still_widens() -> None:
    x = numbers("f32")
    for written in ("x * f64(0.1)", "x * np.float64(0.1)", "x * n * 0.1", "0.1 * n * x"):
        if "np." in written:
            continue
        names = {**globals(), "x": x.astype(np.float64), "n": 5, "f64": np.float64}
        np.testing.assert_allclose(run(body(f"out = {written}", name="f32"), x), eval(written, names), rtol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_a_literal_takes_the_narrow_type_that_it_meets(name: str) -> None:
    x = np.random.default_rng(2).uniform(0.3, 4, 33).astype(np.float32).astype(NARROW[name])
    for literal in ("3", "-7", "COUNT", "0.1", "-2.7", "THIRD", "math.pi"):
        number = eval(literal, {**vars(oxide), **globals()})
        # NumPy's rule for Python floats covers its own types only: with those of ml_dtypes they give a float32.
        assert (x * number).dtype == (x.dtype if type(number) is int else np.float32)
        found = run_each([expression.replace("L", literal) for expression in EXACT], x, name)
        for expression, each in zip(EXACT, found, strict=True):
            expected = of_numpy(expression.replace("L", "L_"), x, L_=x.dtype.type(number))
            assert expected.dtype == x.dtype
            np.testing.assert_array_equal(each, expected.astype(np.float64), f"{expression}, L = {literal}")


def test_a_bf16_stays_one() -> None:
    x = (np.random.default_rng(1).uniform(1, 2, 33).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    found = run(body("total = 0.0", "for i in range(n):", "    total += 0.1 * x", "out = total", name="bf16"), x)
    assert not (found.astype(np.float32).view(np.uint32) & 0xFFFF).any()
    wide = (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    np.testing.assert_allclose(found, wide * 0.5, rtol=0.03)


@kernel(block=64)
def nbody(position: Slice[f32], mass: Slice[f32], force: DisjointSlice[f32], softening: f32) -> None:
    index = thread.index_1d()
    element = force.get_mut(index)
    if element is not None:
        here = position[index.get()]
        total = 0.0
        for j in range(len(mass)):
            away = position[j] - here
            squared = away * away + softening * softening + 1e-9
            total += mass[j] * away / (squared * math.sqrt(squared))
        element.value = 0.5 * total


@kernel(block=64)
def attention(q: Slice[f32], k: Slice[f32], v: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        here = q[index.get()]
        largest, weight, total = -math.inf, 0.0, 0.0
        for j in range(len(k)):
            score = here * k[j] * 0.125
            larger = max(largest, score)
            kept, share = math.exp(largest - larger), math.exp(score - larger)
            weight = weight * kept + share
            total = total * kept + share * v[j]
            largest = larger
        element.value = total / weight


@pytest.mark.parametrize("made", [nbody, attention])
def test_kernels_without_conversions_have_no_f64_instruction(made: Kernel) -> None:
    assert ".f64" not in made.ptx(cc=(9, 0))


def test_they_are_right() -> None:
    random = np.random.default_rng(3)
    for n in (1, 31, 33, 1003):
        q, k, v = (random.standard_normal(n).astype(np.float32) for _ in range(3))
        scores = 0.125 * q.astype(np.float64)[:, None] * k
        weights = np.exp(scores - scores.max(1, keepdims=True))
        expected = (weights * v).sum(1) / weights.sum(1)
        found = attention(h2d(q), h2d(k), h2d(v), zeros(n)).last().to_host().sync()
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 1e-5
        away = q.astype(np.float64)[None, :] - q.astype(np.float64)[:, None]
        squared = away**2 + 0.25 + 1e-9
        expected = 0.5 * (np.abs(v) * away / squared**1.5).sum(1)
        found = d2h(nbody(h2d(q), h2d(np.abs(v)), zeros(n), 0.5).sync()[2]).sync()
        assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)


def test_an_integer_literal_takes_the_type_of_the_integer_that_it_meets() -> None:
    @kernel(block=32)
    def narrow(x: Slice[i32], y: DisjointSlice[i64], n: u32) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[index.get()] * 3 + n

    x = np.full(3, 2**31 - 1, np.int32)
    found = d2h(narrow(h2d(x), zeros(3, np.int64), 1).sync()[1]).sync()
    assert found.tolist() == (x * 3 + np.uint32(1)).tolist() == [2**31 - 2] * 3


BIG = 2**62
NOTHING = 0


def test_arithmetic_of_integers_without_a_type_is_that_of_64_bits() -> None:
    shift = 70

    @kernel(block=32)
    def computed(y: DisjointSlice[i64]) -> None:
        row = thread.index_1d().get()
        if row == 0:
            y.scatter[0] = BIG + BIG
            y.scatter[1] = COUNT // NOTHING + COUNT % NOTHING
            y.scatter[2] = COUNT << shift
            y.scatter[3] = BIG * 5 >> 60
            y.scatter[4] = -COUNT % 5 + (~COUNT & 7) + COUNT**4
            i = 0
            while i < COUNT:
                i = i + COUNT - 2
            y.scatter[5] = i - 2 * COUNT

    found = d2h(computed(zeros(6, np.int64)).last()).sync()
    assert found.tolist() == [-(2**63), 0, 0, 4, 2 + 4 + 81, -3]


def test_a_typed_integer_of_64_bits_widens_an_f32() -> None:
    x = numbers("f32")
    found = run(body("out = (n + 4 * COUNT) * x", name="f32"), x)
    np.testing.assert_array_equal(found, 17 * x.astype(np.float64))


@pytest.mark.parametrize(
    "lines",
    [
        ("count = 2", "for i in range(n):", "    count = count + COUNT", "out = count * x"),
        ("count = 2 if n < 100 else COUNT", "if n > 3:", "    count += 15", "out = count * x"),
    ],
)
def test_a_variable_that_holds_python_integers_takes_the_type_of_the_float_that_it_meets(
    lines: tuple[str, ...],
) -> None:
    x = numbers("f32")
    np.testing.assert_array_equal(run(body(*lines, name="f32"), x), (17 * x).astype(np.float64))


def test_checks_list_arithmetic_that_is_wider_than_an_operand() -> None:
    made = body(
        "wide = x * n",
        "wide += widened(x, n)",
        "wide = max(wide, math.atan2(x, f64(2)))",
        "out = wide if x < f64(3) else 0.5 * wide + 2 * x * 0.1",
        name="f32",
    )
    found = [str(check) for check in made.checks() if isinstance(check, Widening)]
    (line,) = [n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text == "    return x / n"]
    assert found == [
        f"line {line}: f32 / i64 is computed in f64; convert to stay in f32",  # in another file
        "line 7: f32 * i64 is computed in f64; convert to stay in f32",
        "line 9: atan2(f32, f64) is computed in f64; convert to stay in f32",
        "line 10: f32 < f64 is computed in f64; convert to stay in f32",
        "line 10: f64 + f32 is computed in f64; convert to stay in f32",
    ]
    again = kernel(block=64)(made.function)  # from the cache, and its device function from an earlier kernel
    assert [str(check) for check in again.checks() if isinstance(check, Widening)] == found


@device
def widened(x: Any, n: i64) -> Any:
    return x / n


def test_the_inspector_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{__name__}:widens"]) == 0
    assert "f32 * i64 is computed in f64; convert to stay in f32" in capsys.readouterr().out


@kernel(block=64)
def widens(x: Slice[f32], n: i64, y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[0] * n


def test_adopted_kernels_keep_numbas_rule() -> None:
    def doubled(x, y):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < y.size:
            y[i] = x[i] * 0.1

    x = numbers("f32")
    found = kernel(doubled)[1, 64](h2d(x), zeros(x.size, np.float64)).sync()[1]
    np.testing.assert_array_equal(d2h(found).sync(), x.astype(np.float64) * 0.1)


def test_a_captured_python_float_takes_the_type_that_it_meets() -> None:
    x, tenth = numbers("f32"), 0.1
    for captured in (tenth, np.float64(tenth)):
        found = d2h(map_(_times(captured), h2d(x), zeros(x.size, np.float64)).last()).sync()
        np.testing.assert_array_equal(found, (x * captured).astype(np.float64))


def _times(by: Any) -> Any:
    return lambda v: v * by
