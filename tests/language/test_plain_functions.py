"""Python functions without ``@device`` that kernels call, functions defined in a kernel, and lambdas."""

from __future__ import annotations

import colorsys
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oxide import CompileError, DisjointSlice, Slice, d2h, device, f32, h2d, i32, kernel, thread, u8, zeros
from oxide.compiler.cache.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

X = np.linspace(-2, 2, 9, dtype=np.float32)
SLOPE = 0.5


def leaky(x: Any) -> Any:
    return x if x > 0 else SLOPE * x


def wrapped(x: u8) -> u8:
    return x + u8(1)


def annotated_for_the_host(x: float, rows: Sequence[int] | None = 0, *, shift: int = 1) -> Any:  # type: ignore[assignment]
    return leaky(x) + shift


def endless(x: Any) -> Any:
    return endless(x)


def ping(x: Any) -> Any:
    return pong(x)


def pong(x: Any) -> Any:
    return ping(x)


def of_any_number(*x: Any) -> Any:
    return x[0]


def a_list(x: Any) -> Any:
    return [x]


def wide(width: Any) -> Any:
    return thread.index_2d(width + 1)


@device
def applied(f: Any, x: Any) -> Any:
    return f(x)


def values(made: Any, x: Any = X, *more: Any) -> Any:
    """Returns what a kernel with a block of its own writes, compiled and interpreted."""
    compiled = made(h2d(x), zeros(len(x)), *more).sync()[1]
    interpreted = made.interpret(h2d(x), zeros(len(x)), *more).sync()[1]
    np.testing.assert_array_equal(d2h(compiled).sync(), d2h(interpreted).sync())
    return d2h(compiled).sync()


def test_a_function_of_the_module_is_called_as_a_device_function() -> None:
    @kernel(block=32)
    def activated(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = leaky(x[i.get()]) + applied(leaky, x[i.get()])

    np.testing.assert_array_equal(values(activated), 2 * np.where(X > 0, X, X / 2))
    assert ".f64" not in activated.ptx()
    assert leaky(-2) == -1.0


def test_its_annotations_are_used_if_they_are_oxides() -> None:
    @kernel(block=32)
    def annotated(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = f32(wrapped(255)) + annotated_for_the_host(x[i.get()], shift=3)

    np.testing.assert_array_equal(values(annotated), np.where(X > 0, X, X / 2) + 3)


def test_one_that_is_made_later_counts_with_its_own_source_and_variables() -> None:
    def shifted(by: float) -> Any:
        return lambda_of_def(by)

    def lambda_of_def(by: float) -> Any:
        def add(x: Any) -> Any:
            return x + by

        return add

    for by in (1.0, 2.0):
        add = shifted(by)

        @kernel(block=32)
        def shift(x: Slice[f32], y: DisjointSlice[f32]) -> None:
            i = thread.index_1d()
            element = y.get_mut(i)
            if element is not None:
                element.value = add(x[i.get()])  # noqa: B023

        np.testing.assert_array_equal(values(shift), X + np.float32(by))


def calls_endless(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = endless(f32(1))


def calls_ping(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = ping(f32(1))


def calls_one_of_any_number(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = of_any_number(f32(1))


def calls_one_with_a_list(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = a_list(f32(1))


def calls_with_too_few(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = leaky()  # type: ignore[call-arg]


def stores_one(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    f = leaky
    if element is not None:
        element.value = f(f32(1))


def calls_one_of_the_standard_library(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = colorsys.rgb_to_hsv(0.5, 0.5, 0.5)[0]


def has_another_width(width: i32, y: DisjointSlice[f32]) -> None:
    index = wide(width)
    if index is not None:
        element = y.get_mut(index)
        if element is not None:
            element.value = f32(1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (calls_endless, "endless calls itself; recursion is not supported in kernels"),
        (calls_ping, "ping calls itself; recursion is not supported in kernels"),
        (calls_one_of_any_number, r"of_any_number: \*args, \*\*kwargs and / are not supported in kernels"),
        (calls_one_with_a_list, r"test_plain_functions.py:\d+: a list is not supported in kernels"),
        (calls_with_too_few, r"leaky takes \(x\); the call does not match"),
        (stores_one, "leaky can only be called in a kernel, not stored or passed"),
        (calls_one_of_the_standard_library, "colorsys.rgb_to_hsv is an ordinary Python function"),
        (has_another_width, r"the width of thread.index_2d is width \+ 1, which may differ between threads"),
    ],
)
def test_what_a_kernel_cannot_call_is_refused_in_words(wrong: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        kernel(wrong).llvm_ir()


def test_the_cache_knows_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel(block=32)
    def activated(y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = leaky(f32(-1))

    special = activated.specialize()
    before = fingerprint(special.description, special.parameters)
    assert fingerprint(special.description, special.parameters) == before
    monkeypatch.setattr(sys.modules[__name__], "SLOPE", 0.25)
    assert fingerprint(special.description, special.parameters) != before


# Functions in kernels


def test_a_function_in_a_kernel_reads_the_kernels_variables_when_it_is_called() -> None:
    @kernel(block=32)
    def polynomial(x: Slice[f32], y: DisjointSlice[f32], a: f32) -> None:
        i = thread.index_1d()
        total = f32(0)

        def term(k: Any, scale: Any = 1) -> Any:
            """Returns a term of the sum."""
            value = x[i.get()] + total
            return a * value * k * scale

        element = y.get_mut(i)
        if element is not None:
            for k in range(3):
                total += term(f32(k), scale=2)
            double = lambda v: v + total  # noqa: E731
            element.value = double(total) + (lambda: a)()  # type: ignore[no-untyped-call]

    expected = np.zeros_like(X)
    for k in range(3):
        expected += np.float32(3) * (X + expected) * k * 2
    np.testing.assert_array_equal(values(polynomial, X, 3.0), expected + expected + 3)


def test_one_calls_another_and_is_passed_on_if_it_captures_nothing() -> None:
    @kernel(block=32)
    def composed(x: Slice[f32], y: DisjointSlice[f32], a: f32) -> None:
        i = thread.index_1d()

        def scaled(v: Any) -> Any:
            return a * v

        def twice(v: f32) -> Any:
            return scaled(scaled(leaky(v)))

        def plain(v: Any) -> Any:
            def inner(w: Any) -> Any:
                return w + v

            return inner(1) * 2

        def of_three(v: Any) -> Any:
            def inner(w: Any) -> Any:
                return scaled(w)

            return inner(v)

        element = y.get_mut(i)
        if element is not None:
            element.value = twice(x[i.get()]) + applied(plain, x[i.get()]) + applied(lambda v: v * v, x[i.get()])
            element.value += of_three(x[i.get()])

    found = values(composed, X, 2.0)
    np.testing.assert_allclose(found, 4 * np.where(X > 0, X, X / 2) + (X + 1) * 2 + X * X + 2 * X, rtol=1e-6)
    assert ".f64" not in composed.ptx()


def test_its_annotations_are_those_of_a_device_function() -> None:
    @kernel(block=32)
    def wrapping(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        def next_byte(v: u8) -> u8:
            return v + u8(1)

        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = f32(next_byte(255)) + x[0]

    np.testing.assert_array_equal(values(wrapping), np.full(9, -2))


def test_a_device_function_defines_functions_too() -> None:
    @device
    def outer(v: Any, by: f32) -> Any:
        def shifted(w: Any) -> Any:
            return w + by

        return shifted(shifted(v))

    @kernel(block=32)
    def shift(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = outer(x[i.get()], 0.5)

    np.testing.assert_array_equal(values(shift), X + 1)


def nested(body: str, parameters: str = "y: DisjointSlice[f32], a: f32", tmp: list[int] = []) -> Any:  # noqa: B006
    """Makes a kernel of a text, whose lines a caret may point at."""
    import linecache

    tmp.append(1)
    name = f"<nested {len(tmp)}>"
    text = f"def wrong({parameters}):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    names = dict(globals())
    exec(compile(text, name, "exec", dont_inherit=True), names)
    return kernel(names["wrong"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def f(v):\n    return f(v)\nf(a)", "f calls itself; recursion is not supported in kernels"),
        ("def f(v):\n    return g(v)\ndef g(v):\n    return f(v)\nf(a)", "calls itself; recursion is not supported"),
        ("f(a)\ndef f(v):\n    return v", "f is a function that is used before this line or outside this block"),
        ("if a > 0:\n    def f(v):\n        return v\nf(a)", "used before this line or outside this block"),
        ("def f(v):\n    return v\nf = 3", "f is a function here and is bound once more: use another name"),
        ("def f(v, k=a):\n    return v\nf(a)", "a default value of a function in a kernel is a number"),
        ("def f(*v):\n    return v\nf(a)", r"a function in a kernel has ordinary parameters, without \* and /"),
        ("@staticmethod\ndef f(v):\n    return v\nf(a)", "a function in a kernel has no decorator but @device"),
        ("b = a\napplied(lambda v: v * b, a)", "this lambda uses b of the function around it, and such a function can"),
        ("def f(v):\n    return v * a\ng = f", "f uses a of the function around it, and such a function can only be"),
        ("def f(v):\n    return v\ng = f", "f can only be called in a kernel, not stored or passed"),
        ("def f(v):\n    return v * a\ndef g(a):\n    return f(a)\ng(a)", "has another variable of that name: rename"),
        ("def f(v):\n    return v\nf(a, a)", r"f takes \(v\); the call does not match"),
        ("def f(v, w):\n    return v * a\nf(a)", r"f takes \(v, w\); the call does not match"),
        ("def f(v):\n    nonlocal a\n    a = v\nf(a)", "nonlocal is not supported in kernels"),
        ("def f(v):\n    return b\nf(a)\nb = a", "b is read here before it is assigned"),
        ("b = [lambda: a]", "a list is not supported in kernels"),
        (
            "b = (lambda: a) if a > 0 else (lambda: 1)",
            "a lambda in a kernel is called, named by an assignment or passed",
        ),
    ],
)
def test_functions_that_cannot_be_had_in_kernels_are_refused_in_words(body: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        nested(body).llvm_ir()


def test_the_error_in_a_nested_function_is_at_its_line() -> None:
    with pytest.raises(CompileError) as error:
        nested("def f(v):\n    w = v\n    return undefined + w\nf(a)").llvm_ir()
    assert str(error.value).splitlines() == [
        str(error.value).splitlines()[0],
        "    return undefined + w",
        "           ^",
    ]
    assert ":4: undefined is not defined" in str(error.value)
