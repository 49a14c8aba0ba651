"""Functions as kernel arguments: lambdas, local functions and device functions, and the numbers that they capture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

import oxide
from oxide import (
    ArgumentError,
    CompileError,
    DisjointSlice,
    LaunchConfig,
    SharedArray,
    Slice,
    device,
    f32,
    f64,
    h2d,
    i32,
    kernel,
    thread,
    zeros,
)

T = TypeVar("T", f32, f64, i32)
SIZES = (1, 33, 1025)
OFFSET = 10
WIDTH = 4


@kernel(block=128)
def apply(f: Callable[[T], T], x: Slice[T], y: DisjointSlice[T]) -> None:
    idx = thread.index_1d()
    elem = y.get_mut(idx)
    if elem is not None:
        elem.value = f(x[idx.get()])


@device
def apply_twice(g: Any, x: Any) -> Any:
    return g(g(x))


@kernel(block=128)
def twice(f: Callable[[f64], f64], x: Slice[f64], y: DisjointSlice[f64]) -> None:
    idx = thread.index_1d()
    elem = y.get_mut(idx)
    if elem is not None:
        elem.value = apply_twice(f, x[idx.get()])


@kernel(block=128)
def untyped(f: Callable[..., Any], x: Slice[f32], y: DisjointSlice[f32]) -> None:
    idx = thread.index_1d()
    elem = y.get_mut(idx)
    if elem is not None:
        elem.value = f(x[idx.get()], idx.get())


@kernel
def transpose_with(f: Callable[[Any], Any], x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = f(0)
    if index is not None:
        elem = y.get_mut(index)
        if elem is not None:
            elem.value = x[thread.index_2d_row() * WIDTH + thread.index_2d_col()]


@device
def square(x: f64) -> f64:
    return x * x


@device
def times_width(x: Any) -> Any:
    tile = SharedArray(WIDTH, f32)
    tile[0] = f32(0)
    return x * f32(len(tile))


def run(launch: Any) -> Any:
    return oxide.d2h(launch.sync()[-1]).sync()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_a_lambda_is_applied_to_each_element(dtype: Any, size: int) -> None:
    x = (np.random.default_rng(size).standard_normal(size) * 100).astype(dtype)
    result = run(apply(lambda v: v + v, h2d(x), zeros(size, dtype)))
    np.testing.assert_allclose(result, 2 * x.astype(np.float64), rtol=1e-6)


def test_a_captured_number_changes_without_another_compilation() -> None:
    x = h2d(np.arange(5.0)).sync()
    fresh = kernel(block=128)(apply.function)
    found = []
    for factor in (2.0, -3.5, 0.25):
        launch = fresh(lambda v: v * factor, x, zeros(5, f64))  # noqa: B023 - meant
        found.append(launch._specialization)
        np.testing.assert_array_equal(run(launch), np.arange(5.0) * factor)
    assert len(set(found)) == 1
    factor = np.float32(2)
    launch = fresh(lambda v: v * factor, x, zeros(5, f64))
    np.testing.assert_array_equal(run(launch), np.arange(5.0) * 2)
    assert launch._specialization.parameters[0].lifted.parts[0].annotation == "f32"


def test_a_launch_runs_again_with_what_was_captured_when_it_was_built() -> None:
    factor = 2.0
    launch = apply(lambda v: v * factor, h2d(np.ones(2)).sync(), zeros(2, f64).sync())
    factor = 5.0
    assert run(launch).tolist() == [2, 2]
    assert run(launch).tolist() == [2, 2]


def test_what_is_captured_is_read_when_the_launch_is_built_though_another_argument_is_an_operation() -> None:
    x = h2d(np.arange(3.0)).sync()
    launches = [apply(lambda v: v * factor, x, zeros(3, f64)) for factor in (2.0, 3.0)]  # noqa: B023 - meant
    assert [run(launch).tolist() for launch in launches] == [[0, 2, 4], [0, 3, 6]]
    shift: Any = 1.0
    launch = apply(lambda v: v + shift, x, zeros(3, f64))
    shift = None  # no number at all by the time it runs
    assert run(launch).tolist() == [1, 2, 3]


def test_a_kernel_with_a_contract_reads_what_is_captured_when_the_launch_is_built() -> None:
    contracted = kernel(block=128, requires=("len(x) >= len(y)",))(apply.function)
    boxes = h2d(np.arange(3.0)).sync(), zeros(3, f64).sync()
    factor = 2.0
    launch = contracted(lambda v: v * factor, *boxes)
    factor = 5.0
    assert run(launch).tolist() == [0, 2, 4]


def test_a_number_in_an_array_without_axes_is_read_when_the_launch_is_built() -> None:
    @kernel(block=32)
    def filled(value: f64, y: DisjointSlice[f64]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = value

    number = np.array(2.0)
    launch = filled(number, zeros(2, f64))
    number[...] = 7.0
    assert run(launch).tolist() == [2, 2]


def test_a_number_of_the_module_is_what_it_is_at_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = h2d(np.ones(2)).sync()
    for offset in (10, 20):
        monkeypatch.setitem(globals(), "OFFSET", offset)
        assert run(apply(lambda v: v + OFFSET, x, zeros(2, f64))).tolist() == [1 + offset] * 2


def test_local_functions_capture_several_numbers_of_several_types() -> None:
    scale, flag, shift = np.float32(3), True, 7

    def local(v: Any) -> Any:
        if flag:
            return v * scale
        return v - shift

    x = h2d(np.arange(4.0)).sync()
    assert run(apply(local, x, zeros(4, f64))).tolist() == [0, 3, 6, 9]
    flag = False
    assert run(apply(local, x, zeros(4, f64))).tolist() == [-7, -6, -5, -4]


def test_a_default_value_counts_as_captured() -> None:
    x = h2d(np.arange(3.0)).sync()
    functions = [lambda v, power=power: v * power for power in (1.0, 2.0)]
    results = [run(apply(function, x, zeros(3, f64))).tolist() for function in functions]
    assert results == [[0, 1, 2], [0, 2, 4]]


def test_two_lambdas_on_one_line_are_told_apart() -> None:
    x = h2d(np.arange(3.0)).sync()
    add, subtract = (lambda v: v + 1), (lambda v: v - 1)
    assert run(apply(add, x, zeros(3, f64))).tolist() == [1, 2, 3]
    assert run(apply(subtract, x, zeros(3, f64))).tolist() == [-1, 0, 1]


def test_a_lambda_may_use_modules_and_device_functions() -> None:
    x = np.array([0.0, 4.0, 9.0])
    assert run(apply(lambda v: square(math.sqrt(v)) + square(v), h2d(x), zeros(3, f64))).tolist() == [0, 20, 90]


def test_a_device_function_is_an_argument_too_and_its_module_s_numbers_are_constants() -> None:
    assert run(apply(square, h2d(np.arange(3.0)), zeros(3, f64))).tolist() == [0, 1, 4]
    assert run(apply(times_width, h2d(np.ones(3, np.float32)), zeros(3, f32))).tolist() == [4, 4, 4]


def test_a_function_is_handed_on_to_device_functions() -> None:
    step = 3.0
    assert run(twice(lambda v: v * step, h2d(np.arange(3.0)), zeros(3, f64))).tolist() == [0, 9, 18]
    step = 2.0
    assert run(twice(lambda v: v * step, h2d(np.arange(3.0)), zeros(3, f64))).tolist() == [0, 4, 8]
    assert run(twice(square, h2d(np.arange(3.0)), zeros(3, f64))).tolist() == [0, 1, 16]


def test_without_types_in_the_annotation_the_function_decides() -> None:
    assert run(untyped(lambda v, i: v + i, h2d(np.ones(3, np.float32)), zeros(3, f32))).tolist() == [1, 2, 3]


def test_arguments_and_results_are_converted_to_the_annotation_s_types() -> None:
    half = 0.5
    x = h2d(np.arange(3, dtype=np.int32)).sync()
    with pytest.raises(CompileError, match=r"<lambda> is declared to return i32 and the value is f64"):
        apply(lambda v: v * half, x, zeros(3, i32))
    assert run(apply(lambda v: i32(v * half), x, zeros(3, i32))).tolist() == [0, 0, 1]


def test_a_captured_number_may_be_the_width_of_a_matrix() -> None:
    width = 3
    x = h2d(np.arange(8, dtype=np.float32)).sync()
    launch = transpose_with[LaunchConfig((1, 1), (4, 2))](lambda _: thread.index_2d(width), x, zeros(6, f32))
    assert launch._specialization.needs.index_2d
    assert run(launch).tolist() == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("value", [[1.0], "text", np.ones(3), None, np.clongdouble(1)])
def test_what_no_kernel_can_capture_is_refused_by_its_name(value: Any) -> None:
    weights = value
    with pytest.raises(ArgumentError, match=r"parameter f is Callable\[\[T\], T\].*<lambda> at .*:\d+ uses weights, a"):
        apply(lambda v: v * weights, h2d(np.arange(3.0)), zeros(3, f64))


def test_what_a_function_cannot_capture_is_to_be_a_parameter() -> None:
    table = [1.0]
    message = "uses table, a list, where it may use numbers, device functions and modules; give the kernel a parameter"
    with pytest.raises(ArgumentError, match=message):
        apply(lambda v: v * table[0], h2d(np.arange(3.0)), zeros(3, f64))


def test_a_variable_without_a_value_yet_is_refused() -> None:
    function: Any = lambda v: v * later  # noqa: E731
    with pytest.raises(ArgumentError, match="uses later, which has no value yet"):
        apply(function, h2d(np.arange(3.0)), zeros(3, f64))
    later = 1.0
    assert run(apply(function, h2d(np.arange(3.0)), zeros(3, f64))).tolist() == [0, 1, 2]
    later = 2**70
    with pytest.raises(ArgumentError, match=r"parameter f\.later is i64.*i64 holds"):
        apply(function, h2d(np.arange(3.0)), zeros(3, f64))


def test_the_number_of_parameters_must_fit() -> None:
    with pytest.raises(ArgumentError, match=r"has parameters \(a, b\)"):
        apply(lambda a, b: a + b, h2d(np.arange(3.0)), zeros(3, f64))
    with pytest.raises(ArgumentError, match=r"parameters with \*"):
        apply(lambda *a: a, h2d(np.arange(3.0)), zeros(3, f64))


def test_no_function_for_a_function_parameter_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"parameter f is Callable\[\[T\], T\], the argument is float 2.0; pass a f"
    ):
        apply(2.0, h2d(np.arange(3.0)), zeros(3, f64))


def helper(x: Any) -> Any:
    return x


def test_the_function_may_call_a_function_of_the_module() -> None:
    y = apply(lambda v: helper(v) + 1, h2d(np.arange(3.0)), zeros(3, f64)).last()
    assert y.to_host().sync().tolist() == [1, 2, 3]


def test_mistakes_inside_the_function_are_compile_errors_at_their_place() -> None:
    x, y = h2d(np.arange(3.0)).sync(), zeros(3, f64).sync()
    with pytest.raises(CompileError, match=r"test_function_arguments\.py:\d+: statistics.mean is an ordinary Python f"):
        apply(lambda v: statistics.mean(v), x, y)
    with pytest.raises(CompileError, match="unknown_name is not defined"):
        apply(lambda v: v + unknown_name, x, y)  # type: ignore[name-defined]  # noqa: F821
    built: Any = eval("lambda v: v")
    with pytest.raises(CompileError, match="the source of <lambda> cannot be read"):
        apply(built, x, y)


def test_a_function_that_was_passed_is_only_called_or_passed_on() -> None:
    @kernel(block=32)
    def stored(f: Callable[[f32], f32], y: DisjointSlice[f32]) -> None:
        g = f
        elem = y.get_mut(thread.index_1d())
        if elem is not None:
            elem.value = g(f32(1))

    with pytest.raises(CompileError, match="f is a function: it can only be called, or passed to a device function"):
        stored(lambda v: v, zeros(3, f32))


def test_an_annotation_that_is_no_function_of_scalars_is_refused() -> None:
    with pytest.raises(CompileError, match="a function takes and returns scalars"):

        @kernel
        def wrong(f: Callable[[Slice[f32]], f32], y: DisjointSlice[f32]) -> None: ...


def test_asking_names_the_function_by_its_parameter() -> None:
    assert ".entry apply" in apply.specialize(T=f32, f=lambda v: v).ptx()
    with pytest.raises(ArgumentError, match=r"generic in T, f; say what f is, as in apply\.specialize\("):
        apply.specialize(T=f32)
    with pytest.raises(ArgumentError, match="f is 3; give a function"):
        apply.specialize(T=f32, f=3)
