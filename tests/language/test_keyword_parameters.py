"""Parameters after ``*``, in kernels and in device functions: their arguments are given by name."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pytest

from oxide import (
    ArgumentError,
    CompileError,
    DisjointSlice,
    Slice,
    d2h,
    device,
    f32,
    f64,
    h2d,
    i32,
    kernel,
    thread,
    value,
    zeros,
)

T = TypeVar("T", f32, f64)
X = np.arange(5, dtype=np.float32)


@device
def blend(a: f32, b: f32, *, part: f32, shift: f32 = 1.0) -> f32:
    return a * part + b * (f32(1) - part) + shift


@kernel(block=32)
def mixed(x: Slice[f32], y: DisjointSlice[f32], factor: f32 = 2.0, *, part: f32, shift: i32 = 3) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = blend(x[index.get()] * factor, f32(1), part=part) + blend(f32(0), f32(shift), shift=0, part=0)


@kernel(block=32)
def generic(y: DisjointSlice[T], *, factor: T) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = factor


def test_arguments_are_given_by_name_and_defaults_hold() -> None:
    results = mixed(h2d(X), zeros(5), part=0.25).sync()
    assert results[2:] == (2.0, 0.25, 3)
    np.testing.assert_array_equal(d2h(results[1]).sync(), X * 2 * 0.25 + 0.75 + 1 + 3)
    results = mixed(h2d(X), zeros(5), 4.0, shift=-1, part=0.5).sync()
    np.testing.assert_array_equal(d2h(results[1]).sync(), X * 4 * 0.5 + 0.5 + 1 - 1)
    for _ in range(3):
        y = generic(zeros(3), factor=1.5).first()
        np.testing.assert_array_equal(y.to_host().sync(), np.full(3, 1.5))


def test_one_given_by_position_or_left_out_is_refused() -> None:
    box = zeros(5).sync()
    for _ in range(2):
        with pytest.raises(
            ArgumentError, match=r"mixed takes 3 arguments by position, got 4: give part by name, as pa"
        ):
            mixed(box, box, 2.0, 0.5)
        with pytest.raises(ArgumentError, match="kernel mixed: parameter part is missing"):
            mixed(box, box)
        with pytest.raises(
            ArgumentError, match=r"kernel generic takes 1 arguments? by position, got 2: give factor by"
        ):
            generic(box, 2.0)
        assert generic(zeros(3), factor=2.0).sync()[1] == 2.0


def test_an_argument_may_be_an_operation_and_a_launch_be_deferred_or_interpreted() -> None:
    y = mixed[1, 32](h2d(X), value(0).and_then(lambda _: zeros(5)), part=value(0.25)).sync()[1]
    expected = X * 2 * 0.25 + 0.75 + 1 + 3
    np.testing.assert_array_equal(d2h(y).sync(), expected)
    np.testing.assert_array_equal(d2h(mixed.interpret(h2d(X), zeros(5), part=0.25).sync()[1]).sync(), expected)
    fresh = kernel(block=32, configs=[{"block": 64}, {"block": 32}])(generic.function)
    assert fresh(zeros(3), factor=2.0).sync()[1] == 2.0
    assert fresh.with_config({"block": 64}, (zeros(3), 2.0)).sync()[1] == 2.0


def too_many(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = blend(1.0, 2.0, 0.5)  # type: ignore[call-arg]


def too_few(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = blend(1.0, 2.0)  # type: ignore[call-arg]


def unknown(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = blend(1.0, 2.0, part=0.5, bias=1.0)  # type: ignore[call-arg]


def by_position_only(y: DisjointSlice[f32], a: f32, /) -> None:
    pass


def untyped(y, *, a):  # type: ignore[no-untyped-def]
    pass


def of_any_number(y: DisjointSlice[f32], *a: f32) -> None:
    pass


TAKES = r"blend takes \(a, b, \*, part, shift=1.0\); the call does not match"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (too_many, TAKES),
        (too_few, TAKES),
        (unknown, TAKES),
        (by_position_only, "parameter y must be an ordinary one, without /"),
        (of_any_number, r"parameter a must be an ordinary one, without /, and none of \*args"),
        (untyped, "parameter a is given by name alone, as those of typed kernels may be: annotate it"),
    ],
)
def test_wrong_parameters_and_calls_are_refused_in_words(wrong: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        kernel(wrong).llvm_ir()


def test_on_the_host_a_device_function_is_a_python_function() -> None:
    assert blend(1.0, 3.0, part=0.5) == 3.0
    with pytest.raises(TypeError):
        blend(1.0, 3.0, 0.5)  # type: ignore[call-arg]
