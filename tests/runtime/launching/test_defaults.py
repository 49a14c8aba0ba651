"""Parameters with defaults, and None as an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from numba import cuda

from oxide import ArgumentError, Array, DisjointSlice, Slice, d2h, f32, h2d, i32, i64, kernel, thread, value, zeros
from oxide.driver.cpu import CpuDriver
from oxide.testing import RecordingDriver, use_driver

T = TypeVar("T", f32, i64)


class Shift(NamedTuple):
    before: f32
    after: f32


SHIFT = Shift(1.0, 2.0)


@kernel(block=32)
def scaled(x: Slice[f32], y: DisjointSlice[f32], alpha: f32 = 2.0, beta: i32 = 1) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = alpha * x[thread.index_1d().get()] + f32(beta)


@kernel(block=32)
def generic(y: DisjointSlice[T], factor: T = 3, f: Callable[[T], T] = lambda v: v + 1, shift: Shift = SHIFT) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = f(factor) + element.value


@cuda.jit
def numbas(out, x=None, factor=3, shift=0.5):
    i = cuda.grid(1)
    if i < out.size:
        if x is None:
            out[i] = factor * shift
        else:
            out[i] = x[i] * factor


adopted = kernel(numbas)
X = np.arange(4, dtype=np.float32)


def filled(launch: Any, place: int) -> Any:
    return d2h(launch.sync()[place]).sync()


@pytest.mark.parametrize(
    ("given", "named", "expected", "rest"),
    [
        ((), {}, 2 * X + 1, (2.0, 1)),
        ((3,), {}, 3 * X + 1, (3, 1)),
        ((3, 5), {}, 3 * X + 5, (3, 5)),
        ((), {"beta": 5}, 2 * X + 5, (2.0, 5)),
        ((4.0,), {"beta": 5}, 4 * X + 5, (4.0, 5)),
        ((value(4.0),), {}, 4 * X + 1, (4.0, 1)),
    ],
)
def test_a_launch_passes_the_defaults_it_leaves_out_and_yields_them(
    given: Any, named: Any, expected: Any, rest: Any
) -> None:
    x, y = h2d(X).sync(), zeros(4).sync()
    result = scaled(x, y, *given, **named).sync()
    np.testing.assert_array_equal(d2h(y).sync(), expected)
    assert result == (x, y, *rest)
    result = scaled(y=y, x=x, **dict(zip(("alpha", "beta"), given, strict=False)), **named).sync()
    assert result == (x, y, *rest)


def test_defaults_decide_types_as_arguments_do() -> None:
    for dtype in (np.float32, np.int64):
        np.testing.assert_array_equal(filled(generic(zeros(3, dtype)), 0), np.full(3, 4, dtype))
    np.testing.assert_array_equal(filled(generic(zeros(3), f=lambda v: v * v), 0), np.full(3, 9))
    specialized = adopted.specialize(out=Array[f32, 1])
    assert [parameter.annotation for parameter in specialized.parameters] == [
        "Array[float32, 1]",
        "None",
        "int64",
        "float64",
    ]
    assert adopted.specialize(out=Array[f32, 1], x=Array[f32, 1], factor=i32).ptx()
    assert adopted.specialize(out=Array[f32, 1], x=None) is specialized


@pytest.mark.parametrize("made", [adopted, kernel(numbas.py_func)], ids=["adopted", "kernel"])
def test_none_prunes_the_branches_that_it_rules_out(made: Any) -> None:
    x = h2d(X).sync()
    for given, expected, rest in (
        ((), np.full(4, 1.5), (None, 3, 0.5)),
        ((None, 5), np.full(4, 2.5), (None, 5, 0.5)),
        ((x,), 3 * X, (x, 3, 0.5)),
        ((x, 2), 2 * X, (x, 2, 0.5)),
    ):
        out = zeros(4).sync()
        result = made[1, 4](out, *given).sync()
        np.testing.assert_array_equal(d2h(out).sync(), expected)
        assert result == (out, *rest)
    assert "ld.param" in made.specialize(out=Array[f32, 1], x=None, factor=i64, shift=i64).ptx()


def test_none_is_an_element_of_a_tuple_too() -> None:
    @kernel
    def second(out, pair=(None, 2)):  # type: ignore[no-untyped-def]
        out[0] = pair[1]

    assert filled(second[1, 1](zeros(1)), 0)[0] == 2
    assert filled(second[1, 1](zeros(1), (None, 7)), 0)[0] == 7


def test_what_is_wrong_with_an_argument_or_a_default_is_told_before_anything_is_submitted() -> None:
    @kernel
    def with_array(out, table=X):  # type: ignore[no-untyped-def]
        out[0] = table[1]

    with use_driver(RecordingDriver(CpuDriver())) as driver:
        box = zeros(4).sync()
        driver.clear()
        for build, message in (
            (lambda: scaled(box), "kernel scaled: parameter y is missing; it takes x, y, alpha, beta"),
            (lambda: scaled(box, box, 1, 2, 3), "kernel scaled takes 4 arguments .* got 5"),
            (lambda: scaled(box, box, None), "kernel scaled: parameter alpha is f32, the argument is None"),
            (
                lambda: scaled(None, box),
                "kernel scaled, parameter x: expected a device buffer of float32, got NoneType",
            ),
            (lambda: adopted[1, 1](), "kernel numbas: parameter out is missing"),
            (lambda: with_array[1, 1](box), "kernel with_array, parameter table: a NumPy array, .* h2d"),
        ):
            with pytest.raises(ArgumentError, match=message):
                build()  # type: ignore[no-untyped-call]
        assert driver.submissions == []
        assert filled(with_array[1, 1](box, h2d(X)), 0)[0] == 1
