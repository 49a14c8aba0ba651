"""Annotations of device functions: arguments and results are converted to them, or refused."""

# ruff: noqa: F841, RET503 (the kernels here are wrong on purpose)

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, Slice, device, f32, f64, i32, i64, kernel, thread, u8
from oxide.errors import CompileError
from tests.compiler.check.test_compile_errors import refuse
from tests.compiler.native_runner import run


@device
def half(n: i32) -> i32:
    return n // 2


@device
def as_double(x: f64) -> f64:
    return x / 3


@device
def narrowed(x) -> f32:  # type: ignore[no-untyped-def]
    return x


@device
def truncated(n: i32) -> i32:
    return n / 2  # type: ignore[return-value]


@device
def too_large(n: i32) -> u8:
    return 300


@device
def first(a: Slice[f32], scale: f32) -> f32:
    return a[0] * scale


@device
def on_one_path(n: i32) -> f32:  # type: ignore[return]
    if n > 3:
        return 1.0


def test_an_argument_is_converted_to_the_annotation() -> None:
    @kernel
    def convert(n: i64, x: f32, c: DisjointSlice[f64]) -> None:
        e = c.get_mut(thread.index_1d())
        if e is not None:
            if e.value == 0.0:
                e.value = half(n)
            elif e.value == 1.0:
                e.value = as_double(n)
            elif e.value == 2.0:
                e.value = as_double(x=x)
            else:
                e.value = half(True)

    c = np.arange(4, dtype=np.float64)
    run(convert, 4, 2**32 + 7, 0.5, c)
    np.testing.assert_array_equal(c, [3, (2**32 + 7) / 3, 0.5 / 3, 0])


def test_a_result_is_converted_to_the_annotation() -> None:
    @kernel
    def convert(x: f64, c: DisjointSlice[f64]) -> None:
        e = c.get_mut(thread.index_1d())
        if e is not None:
            e.value = narrowed(x)

    c = np.zeros(1)
    run(convert, 1, 0.1, c)
    assert c[0] == np.float64(np.float32(0.1))


def test_a_parameter_without_an_annotation_is_generic() -> None:
    @kernel
    def convert(n: i32, x: f64, c: DisjointSlice[f32]) -> None:
        e = c.get_mut(thread.index_1d())
        if e is not None:
            e.value = narrowed(x) + narrowed(n)

    c = np.zeros(1, np.float32)
    run(convert, 1, 2, 0.25, c)
    assert c[0] == 2.25


def test_an_argument_that_the_annotation_does_not_take_is_refused_at_the_call() -> None:
    def fraction(c: DisjointSlice[f32]) -> None:
        x = half(3.7)  # type: ignore[arg-type]  # here

    def a_slice(a: Slice[f32]) -> None:
        x = half(a)  # type: ignore[arg-type]  # here

    def wrong_element(a: Slice[i32]) -> None:
        x = first(a, 1.0)  # here

    def an_output(c: DisjointSlice[f32]) -> None:
        x = first(c, 1.0)  # type: ignore[arg-type]  # here

    refuse(fraction, r"half: parameter n is i32 and the value is f64; convert it, as in i32\(x\)")
    refuse(a_slice, r"half: parameter n is i32 and the value is Slice\[f32\] a")
    refuse(wrong_element, r"first: parameter a is Slice\[f32\] and the value is Slice\[i32\] a")
    refuse(an_output, r"first: parameter a is Slice\[f32\] and the value is DisjointSlice\[f32\] c")


@pytest.mark.parametrize(
    ("function", "offset", "reason"),
    [
        (truncated, 2, r"truncated is declared to return i32 and the value is f64; convert it, as in i32\(x\)"),
        (too_large, 2, r"too_large is declared to return u8 and the value is 300, which does not fit"),
        (
            on_one_path,
            2,
            "the function is declared to return f32 and a path returns None; return a value on every path",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_result_that_the_annotation_does_not_take_is_refused_at_the_return(
    function: Any, offset: int, reason: str
) -> None:
    @kernel
    def call(n: i32) -> None:
        x = function(n)

    with pytest.raises(CompileError, match=reason) as raised:
        call.specialize()
    line = inspect.getsourcelines(function.function)[1] + offset
    assert str(raised.value).startswith(f"{__file__}:{line}: ")


def test_annotations_that_kernels_do_not_know_are_refused_at_the_definition() -> None:
    with pytest.raises(CompileError, match="device function plain: parameter n is annotated int; annotate it as a"):

        @device
        def plain(n: int) -> None:
            pass


def test_an_annotation_may_name_a_local_of_the_place_of_definition() -> None:
    element = f64

    @device
    def widened(x: element) -> element:
        return x

    assert widened.annotations["x"].scalar is f64
