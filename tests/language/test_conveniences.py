"""What Python people type: ``enumerate``, ``zip``, ``reversed``, loops over arrays, ``match``, ``:=``, f-strings,
default values and NumPy's functions. Each is compared with Python's own run of the same function."""

# ruff: noqa: B007, B905, UP031 (the kernels show what people type)

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxide
from oxide import (
    CompileError,
    DisjointSlice,
    Kernel,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
    bool_,
    d2h,
    device,
    f32,
    f64,
    h2d,
    i8,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u32,
    zeros,
)
from oxide.compiler.check.numpy_functions import NUMPY

WEIGHTS = np.array([3, -1, 4, 1, 5])


@device
def enumerates(x: Slice[i64]) -> i64:
    total = 0
    for i, value in enumerate(x):
        total = total * 3 + i * value
    for i, value in enumerate(x, 1):
        total = total * 3 + i * value
    for i, value in enumerate(x, start=-2):
        total = total * 3 + i * value
    for i, step in enumerate(range(7, 1, -2)):
        total = total * 3 + i * step
    for pair in enumerate(WEIGHTS):
        total = total * 3 + pair[0] - pair[1]
    return total


@device
def zips(x: Slice[i64]) -> i64:
    total = 0
    for value, weight in zip(x, WEIGHTS):
        total = total * 3 + value * weight
    for i, (value, weight) in enumerate(zip(x, WEIGHTS)):
        total = total * 3 + value * weight + i
    for i, j, k in zip(range(9), range(3, 30, 4), range(5, -9, -3)):
        total = total * 3 + i + j * k
    for each in zip(x, x):
        total += each[0] - 2 * each[1]
    return total


@device
def goes_backwards(x: Slice[i64]) -> i64:
    total = 0
    for value in reversed(x):
        total = total * 3 + value
    for i in reversed(range(4)):
        total = total * 3 + i
    for i in reversed(range(3, 11, 4)):
        total = total * 3 + i
    for i in reversed(range(11, 3, -3)):
        total = total * 3 + i
    for i in reversed(range(5, 5)):
        total += 1000
    for i in reversed(range(len(x), -3, -1)):
        total = total * 3 + i
    for i, value in enumerate(reversed(WEIGHTS)):
        total = total * 3 + i * value
    return total


@device
def loops_over_arrays(x: Slice[i64]) -> i64:
    total = 0
    for value in x:
        if value == 3:
            continue
        if value > 90:
            break
        total = total * 3 + value
    else:
        total += 100000
    for weight in WEIGHTS:
        total = total * 3 + weight
    return total


@device
def matches(x: Slice[i64]) -> i64:
    total = 0
    for value in x:
        match value:
            case 0:
                total += 1
            case 1 | 2 | -3:
                total += 20
            case 5 if len(x) > 4:
                total += 300
            case _ if value > 50:
                total += 4000
            case other:
                total += other * 10000
        match value % 2 == 0:
            case True:
                total += 7
    return total


@device
def assigns_in_expressions(x: Slice[i64]) -> i64:
    total = 0
    i = -1
    while (i := i + 1) < len(x):
        if (value := x[i]) == 2:
            continue
        total = total * 3 + value
        if value > 0 and (half := value // 2) > 3 and (rest := half - 3) != 5:
            total += half * rest
        elif (less := value - 1) < 0:
            total -= less
        else:
            total += 1
        total += (n := 1) + (n := n + 1) * 10 + n * 100
        total += (m := 3) if value > 5 else (m := 4)
        total += m
    else:
        total += 17
    return total


@device
def with_defaults(a: Any, b: Any = 2, c: i64 = 5, d: f32 = 0.5) -> Any:
    return a * b + c, i64(d * 2)


@device
def takes_defaults(x: Slice[i64]) -> i64:
    total = 0
    for value in x:
        first, second = with_defaults(value)
        third, fourth = with_defaults(value, c=value)
        fifth, sixth = with_defaults(value, 3, d=1.5)
        total = total * 3 + first + second + third * fourth + fifth * sixth
    return total


FUNCTIONS_OF_X: list[Any] = [
    enumerates,
    zips,
    goes_backwards,
    loops_over_arrays,
    matches,
    assigns_in_expressions,
    takes_defaults,
]


def kernel_of(function: Any) -> Kernel:
    @kernel(block=32)
    def apply(x: Slice[i64], y: DisjointSlice[i64]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = function(x)

    return apply


KERNELS = {function: kernel_of(function) for function in FUNCTIONS_OF_X}


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS_OF_X, ids=lambda function: function.__name__)
@settings(max_examples=40, deadline=None)
@given(x=st.lists(st.one_of(st.integers(-4, 9), st.integers(-100, 100)), max_size=9))
def test_a_kernel_does_what_python_does(function: Any, x: list[int]) -> None:
    values = np.array(x, np.int64)
    result = d2h(KERNELS[function](h2d(values), zeros(33, i64)).last()).sync()
    assert set(result.tolist()) == {int(function(x))}


def test_the_checks_of_such_loops_are_proved_or_hoisted() -> None:
    for function in (enumerates, zips, goes_backwards, loops_over_arrays):
        assert {check.place for check in KERNELS[function].checks()} <= {"proved", "hoisted"}, function


def test_shared_and_local_arrays_and_rows_are_looped_over() -> None:
    @kernel(block=4)
    def sums(x: Slice[f32], m: Slice2[f32], y: DisjointSlice[f32]) -> None:
        tile, own = SharedArray(4, f32), LocalArray(4, f32)
        t = thread.thread_idx.x
        tile[t] = x[t]
        thread.sync_threads()
        for i, value in enumerate(tile):
            own[i] = value * f32(i)
        total = f32(0)
        for value in own:
            total += value
        row = m.row(1)
        if row is not None:
            for i, value in enumerate(row):
                total += f32(100 * (i + 1)) * value
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = total

    x = np.array([1, 2, 3, 4], np.float32)
    result = d2h(sums(h2d(x), h2d(x.reshape(2, 2)), zeros(4)).last()).sync()
    assert result.tolist() == [2 + 6 + 12 + 300 + 800] * 4


def test_names_of_the_program_keep_their_meaning() -> None:
    @device
    def enumerate(n: i64) -> i64:
        return n + 1

    @kernel(block=32)
    def own(y: DisjointSlice[i64]) -> None:
        element = y.get_mut(thread.index_1d())
        total = 0
        for i in range(enumerate(i64(3))):
            total += i
        _1 = 5
        for i, j in zip(range(2), range(2)):
            total += i * j * _1
        if element is not None:
            element.value = total

    assert d2h(own(zeros(1, i64)).last()).sync().tolist() == [6 + 5]


def test_a_fault_in_a_loop_over_an_array_has_its_own_line() -> None:
    @kernel(block=1)
    def beyond(x: Slice[i64], y: DisjointSlice[i64]) -> None:
        total = 0
        for i, value in enumerate(x):
            total += x[i + value]
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = total

    with pytest.raises(oxide.BoundsError) as caught:
        beyond(h2d(np.array([0, 1, 0])), zeros(1, i64)).sync()
        beyond(h2d(np.array([0, 1, 9])), zeros(1, i64)).sync()
    assert caught.value.index == 11
    assert "total += x[i + value]" in linecache.getline(__file__, caught.value.line)


# print


def printed(capfd: pytest.CaptureFixture[str], show: Kernel, *arguments: Any) -> str:
    capfd.readouterr()
    show[1, 1](*arguments).sync()
    return capfd.readouterr().out


X, N, U, B = 0.1, -42, 255, True


def test_an_f_string_prints_what_python_prints(capfd: pytest.CaptureFixture[str]) -> None:
    @kernel
    def show(x: f64, n: i32, u: u32) -> None:
        print(f"x = {x:.3f}|{x:8.2e}|{x:<10g}|{x:+.1f}|{x:010.4f}|")
        print(f"n {n} {n:d} {n:6d}|{n:<6}|{n:06}|{n=}|{n:e}|{{}} 100% {u:x} {u:#X} {u:o}")
        print("a", f"{n + 1}", u, f"{n > 3} {x > 0}")

    x, n, u = X, N, U
    assert printed(capfd, show, x, n, u).splitlines() == [
        f"x = {x:.3f}|{x:8.2e}|{x:<10g}|{x:+.1f}|{x:010.4f}|",
        f"n {n} {n:d} {n:6d}|{n:<6}|{n:06}|{n=}|{n:e}|{{}} 100% {u:x} {u:#X} {u:o}",
        f"a {n + 1} {u} {n > 3} {x > 0}",
    ]


def test_percents_print_what_python_prints(capfd: pytest.CaptureFixture[str]) -> None:
    @kernel
    def show(x: f64, n: i32) -> None:
        print("x is %g, %5.2f%% %d|%-6d|%06d|%x" % (x, x, n, n, n, 77))
        print("%g" % x, n)

    x, n = X, N
    expected = ["x is %g, %5.2f%% %d|%-6d|%06d|%x" % (x, x, n, n, n, 77), "%g %d" % (x, n)]
    assert printed(capfd, show, x, n).splitlines() == expected


def test_a_float_without_a_format_is_printed_as_print_does(capfd: pytest.CaptureFixture[str]) -> None:
    @kernel
    def show(x: f32) -> None:
        print("x", x)
        print(f"x {x}")

    first, second = printed(capfd, show, 0.5).splitlines()
    assert first == second == "x 0.500000"


def of_a_float(x: f32) -> None:
    print(f"{x:d}")


def of_a_precision(x: f32) -> None:
    print(f"{x:.3}")


def of_an_integer(n: i32) -> None:
    print(f"{n:.3d}")


def in_the_middle(n: i32) -> None:
    print(f"{n:^8}")


def of_a_computed_width(n: i32) -> None:
    print(f"{n:{n}}")


def of_too_few(n: i32) -> None:
    print("%d %d" % n)  # type: ignore[str-format]


def kept(n: i32) -> None:
    text = f"{n}"
    print(text)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (of_a_float, "print in a kernel: {:d}: d takes an integer, not f32"),
        (of_a_precision, "print in a kernel: {:.3}: a precision needs e, f or g behind it, as in {x:.3g}"),
        (of_an_integer, "print in a kernel: {:.3d}: an integer, i32, has no precision"),
        (in_the_middle, "a specification is a width, a precision and one of d o x e f g, as in {x:8.3f}"),
        (of_a_computed_width, "strings are not supported in kernels"),
        (of_too_few, "strings are not supported in kernels"),
        (kept, "strings are not supported in kernels"),
    ],
)
def test_a_format_that_there_is_not_is_refused(function: Any, said: str) -> None:
    with pytest.raises(CompileError, match=re.escape(said)):
        kernel(function).specialize()


# Default values


def test_a_default_value_follows_the_rules_of_an_argument() -> None:
    def kernel_with(default: Any, kind: Any) -> Kernel:
        @device
        def second(a: Any, b: kind = default) -> Any:
            return b

        @kernel(block=32)
        def apply(y: DisjointSlice[f64]) -> None:
            element = y.get_mut(thread.index_1d())
            if element is not None:
                element.value = f64(second(1))

        return apply

    for default, kind, expected in (
        (3, f32, 3.0),
        (0.1, f32, float(np.float32(0.1))),
        (True, bool_, 1.0),
        (-7, i8, -7),
    ):
        assert d2h(kernel_with(default, kind)(zeros(1, f64)).last()).sync().tolist() == [expected]
    refused: list[Any] = [
        (300, u8, "parameter b is u8 and the value is 300, which does not fit"),
        (2.5, i32, "parameter b is i32 and the value is f64; convert it, as in i32(x)"),
        ("text", i32, "b='text': a default value in a kernel is a number"),
    ]
    for default, kind, said in refused:
        with pytest.raises(CompileError, match=re.escape(said)):
            kernel_with(default, kind).specialize()


def test_a_call_without_an_argument_that_has_no_default_is_refused() -> None:
    @kernel
    def wrong(x: Slice[i64]) -> None:
        with_defaults(b=3)  # type: ignore[call-arg]

    with pytest.raises(CompileError, match=r"with_defaults takes \(a, b=2, c=5, d=0.5\); the call does not match"):
        wrong.specialize()


# NumPy's functions

RNG = np.random.default_rng(5)
EDGES = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.5, -0.5, 1.5, 2.5, -1.5, 3.25]
OF_THREE = {"clip", "where"}
OF_TWO = {"arctan2", "copysign", "fmod", "hypot", "nextafter", "maximum", "minimum", "fmax", "fmin", "ldexp"}


@pytest.mark.slow
@pytest.mark.parametrize("scalar", [f32, f64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", sorted(function.__name__ for function in NUMPY))
def test_a_function_of_numpy_gives_what_numpy_gives(name: str, scalar: Any) -> None:
    of_truth = name.startswith("is")
    given = {"where": "a > b, a, c", "ldexp": "a, i32(3)"}.get(name, "a, b, c" if name in OF_THREE else "a")
    given = "a, b" if name in OF_TWO - {"ldexp"} else given
    result = bool_ if of_truth else scalar
    source = f"""def apply(x: Slice[{scalar}], y: Slice[{scalar}], z: Slice[{scalar}], out: DisjointSlice[{result}]):
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        a, b, c = x[index.get()], y[index.get()], z[index.get()]
        element.value = np.{name}({given})
"""
    file = f"<np.{name} {scalar}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names: dict[str, Any] = {**globals()}
    exec(compile(source, file, "exec", dont_inherit=True), names)
    made: Kernel = kernel(block=64)(names["apply"])
    dtype = scalar.dtype
    a = np.array([*EDGES, *RNG.normal(size=20) * 3], dtype)
    b, c = RNG.permutation(a), np.full_like(a, 0.7)
    got = d2h(made(h2d(a), h2d(b), h2d(c), zeros(len(a), result)).last()).sync()
    function: Callable[..., Any] = getattr(np, name)
    with np.errstate(all="ignore"):
        expected = function(*eval(f"({given},)", {"a": a, "b": b, "c": c, "i32": np.int32}))
    assert got.dtype == expected.dtype
    relative, absolute = (1e-6, 1e-7) if scalar is f32 else (1e-13, 1e-15)
    np.testing.assert_allclose(got, expected, relative, absolute)


def test_a_function_imported_from_numpy_is_known_by_what_it_is() -> None:
    root = np.sqrt

    @kernel(block=32)
    def apply(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = root(x[index.get()])

    x = np.array([1, 4, 9], np.float32)
    assert d2h(apply(h2d(x), zeros(3)).last()).sync().tolist() == [1, 2, 3]
