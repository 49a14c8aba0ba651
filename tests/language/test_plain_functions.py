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
