"""Kernels with type variables: the arguments of a launch decide, each choice is compiled once."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import oxide
from oxide import (
    ArgumentError,
    AtomicSlice,
    CompileError,
    DisjointSlice,
    LaunchConfig,
    SharedArray,
    Slice,
    f32,
    f64,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u32,
    zeros,
)
from oxide_kernels import axpy, gather, relu

T = TypeVar("T", f32, f64, i32)
Anything = TypeVar("Anything")
Single = TypeVar("Single", f32, i32)
Word = TypeVar("Word", i32, u32)
SIZES = (1, 33, 1025)


@kernel(block=128)
def scale(factor: T, x: Slice[T], y: DisjointSlice[T]) -> None:
    idx = thread.index_1d()
    elem = y.get_mut(idx)
    if elem is not None:
        elem.value = factor * x[idx.get()]


@kernel(block=32)
def size_of(value: Anything, out: DisjointSlice[f64]) -> None:
    elem = out.get_mut(thread.index_1d())
    if elem is not None:
        elem.value = value


@kernel(block=32)
def constrained(value: Single, out: DisjointSlice[f64]) -> None:
    elem = out.get_mut(thread.index_1d())
    if elem is not None:
        elem.value = value


@kernel(block=64)
def sum_up(x: Slice[Word], total: AtomicSlice[Word], out: DisjointSlice[u8]) -> None:
    idx = thread.index_1d()
    elem = out.get_mut(idx)
    if elem is not None:
        total.fetch_add(0, x[idx.get()])
        elem.value = u8(1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_the_buffers_decide_what_a_type_variable_is(dtype: Any, size: int) -> None:
    x = (np.random.default_rng(size).standard_normal(size) * 100).astype(dtype)
    _, _, y = scale(3, h2d(x), zeros(size, dtype)).sync()
    result = oxide.d2h(y).sync()
    assert result.dtype == dtype
    expected = x.astype(np.float64) * 3
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_each_choice_of_types_is_compiled_once() -> None:
    fresh = kernel(block=128)(scale.function)
    boxes = {dtype: (h2d(np.ones(4, dtype)).sync(), zeros(4, dtype).sync()) for dtype in (np.float32, np.int32)}
    launches = [fresh(2, *boxes[dtype]) for dtype in (np.float32, np.int32, np.float32, np.int32)]
    found = {launch._specialization for launch in launches}
    oxide.zip(*launches).sync()
    assert len(found) == 2
    assert {special.parameters[1].annotation for special in found} == {"Slice[f32]", "Slice[i32]"}
    assert len({special.kernel_id for special in found}) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (3, "i64"),
        (3.5, "f64"),
        (True, "bool_"),
        (np.float32(2.5), "f32"),
        (np.uint8(200), "u8"),
        (np.array(7.0), "f64"),
    ],
)
def test_a_variable_that_only_scalars_have_takes_the_type_of_the_value(value: Any, name: str) -> None:
    launch = size_of(value, zeros(1, f64))
    assert launch._specialization.parameters[0].annotation == name
    _, out = launch.sync()
    assert oxide.d2h(out).sync()[0] == float(value)


def test_a_plain_number_takes_the_one_constraint_of_its_kind() -> None:
    for value, name in ((1.5, "f32"), (3, "i32"), (np.int32(4), "i32")):
        launch = constrained(value, zeros(1, f64))
        assert launch._specialization.parameters[0].annotation == name
        assert oxide.d2h(launch.sync()[1]).sync()[0] == value
    with pytest.raises(ArgumentError, match=r"parameter value is Single, and Single is one of f32, i32; .*float64|f64"):
        constrained(np.float64(1.5), zeros(1, f64))
    with pytest.raises(ArgumentError, match="the argument is a Python bool"):
        constrained(True, zeros(1, f64))


def test_a_float_for_an_integer_variable_is_refused_as_for_a_fixed_integer() -> None:
    with pytest.raises(ArgumentError, match=r"parameter factor is i32, the argument is 1\.5"):
        scale(1.5, zeros(3, i32), zeros(3, i32))


def test_buffers_that_disagree_are_refused_and_both_are_named() -> None:
    with pytest.raises(
        ArgumentError, match=r"parameters x \(Slice\[T\]\) and y \(DisjointSlice\[T\]\) must agree on T, but x has f32"
    ):
        scale(2, zeros(3, f32), zeros(3, f64))


def test_a_dtype_outside_the_constraints_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"parameter x is Slice\[T\], and T is one of f32, f64, i32; .* is u8; convert it first"
    ):
        scale(2, zeros(3, u8), zeros(3, u8))


def test_what_no_parameter_takes_is_explained_as_for_a_fixed_type() -> None:
    with pytest.raises(ArgumentError, match=r"expected a device buffer of T, got a NumPy array.*h2d"):
        scale(2, np.ones(3), zeros(3, f64))
    with pytest.raises(ArgumentError, match="parameter factor is T, the argument is str 'two'; pass a number"):
        scale("two", zeros(3, f64), zeros(3, f64))
    with pytest.raises(ArgumentError, match=r"takes 3 arguments \(factor, x, y\), got 2"):
        scale(2, zeros(3, f64))


def test_an_operation_that_says_nothing_of_its_result_needs_another_buffer_to_decide() -> None:
    unknown, other = (zeros(3, f32).map(lambda box: box) for _ in range(2))
    with pytest.raises(ArgumentError, match=r"T is the type of parameter x.*and_then"):
        scale[1, 32](2, unknown, other)
    ones = oxide.ones(3, f32).map(lambda box: box)
    _, _, y = scale(2, ones, zeros(3, f32)).sync()
    assert oxide.d2h(y).sync().tolist() == [2, 2, 2]
    wrong = oxide.ones(3, f64).map(lambda box: box)
    with pytest.raises(ArgumentError, match="expected a device buffer of float32, got a box of float64"):
        scale(2, wrong, zeros(3, f32)).sync()


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_atomic_slices_are_generic_too(dtype: Any) -> None:
    x = np.arange(100, dtype=dtype)
    _, total, _ = sum_up(h2d(x), zeros(1, dtype), zeros(100, u8)).sync()
    assert oxide.d2h(total).sync().tolist() == [4950]


@kernel(block=128, requires=("len(x) >= n + 1", "n >= 0"))
def shifted(n: i64, factor: T, x: Slice[T], y: DisjointSlice[T]) -> None:
    idx = thread.index_1d()
    elem = y.get_mut(idx)
    if elem is not None and idx.get() < n:
        elem.value = factor * x[idx.get() + 1]


def test_generic_kernels_have_contracts() -> None:
    for dtype in (np.float32, np.int32):
        launch = shifted(4, 2, h2d(np.arange(5, dtype=dtype)), zeros(5, dtype))
        assert oxide.d2h(launch.last()).sync().tolist() == [2, 4, 6, 8, 0]
    with pytest.raises(oxide.LaunchError, match=r"len\(x\) >= n \+ 1"):
        shifted(5, 2, h2d(np.arange(5.0)), zeros(5, f64))
    with pytest.raises(CompileError, match="uses factor, a T; contracts are about integers"):
        kernel(requires=("factor > 0",))(shifted.function)


def test_types_of_values_are_there_for_zeros_and_shared_arrays() -> None:
    @kernel(block=32)
    def through_shared(x: Slice[T], y: DisjointSlice[T]) -> None:
        idx = thread.index_1d()
        tile = SharedArray(32, type(x[0]))
        tile[thread.thread_idx.x] = x[idx.get()] + type(x[0])(1)
        elem = y.get_mut(idx)
        if elem is not None:
            elem.value = tile[thread.thread_idx.x]

    for dtype in (np.float64, np.int32):
        result = oxide.d2h(through_shared(h2d(np.arange(32, dtype=dtype)), zeros(32, dtype)).last()).sync()
        assert result.dtype == dtype
        assert result.tolist() == list(range(1, 33))


FloatFirst, NoFloat = TypeVar("FloatFirst", f64, f32), TypeVar("NoFloat", i64, i32)


@kernel(block=32)
def widened(x: Slice[FloatFirst], y: DisjointSlice[NoFloat]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = i64(x[0])


@kernel(block=32)
def applied(f: Callable[[NoFloat], FloatFirst], x: Slice[NoFloat], y: DisjointSlice[FloatFirst]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = f(x[index.get()])


def test_a_kernel_that_is_asked_without_types_shows_f32_or_the_first_that_is_possible() -> None:
    special = widened.specialize(FloatFirst=f32, NoFloat=i64)
    assert widened.example() is special
    assert widened.ptx() == special.ptx()
    assert widened.llvm_ir() == special.llvm_ir()
    assert widened.native_asm() == special.native_asm()
    assert widened.checks() == special.checks()
    assert widened.example(FloatFirst=f64) is widened.specialize(FloatFirst=f64, NoFloat=i64)
    with pytest.raises(ArgumentError, match="has no type variable U"):
        widened.example(U=f32)


def test_a_function_is_not_chosen_for_a_kernel_that_is_asked() -> None:
    with pytest.raises(ArgumentError, match=r"applied is generic in .*say what f is"):
        applied.ptx()

    def half(x: Any) -> Any:
        return x / 2

    assert ".f32" in applied.example(f=half).ptx()


def test_the_kernels_of_the_library_show_themselves() -> None:
    for each in (relu, axpy, gather):
        assert each.ptx().startswith("//")
        assert each.llvm_ir()
        assert each.native_asm()
        assert isinstance(each.checks(), tuple)


def test_specializing_a_generic_kernel_needs_its_types() -> None:
    assert ".f64" in scale.specialize(T=f64).ptx()
    assert "double" in scale.specialize(T=f64).llvm_ir()
    assert scale.specialize(T=f32) is scale.specialize(T=f32)
    assert scale.specialize(T=f32).native_asm()
    assert scale.specialize(T=f32).checks()
    with pytest.raises(ArgumentError, match=r"scale is generic in T; say what T is, as in scale\.specialize\(T=f32\)"):
        scale.specialize()
    with pytest.raises(ArgumentError, match="has no type variable U; it takes T"):
        scale.specialize(U=f32)
    with pytest.raises(ArgumentError, match="T is 3; give a scalar type"):
        scale.specialize(T=3)
    with pytest.raises(ArgumentError, match="T is one of f32, f64, i32; the argument is i64"):
        scale.specialize(T=i64)


def test_a_variable_that_can_be_no_machine_type_is_refused_where_the_kernel_is_defined() -> None:
    bound = TypeVar("bound", bound=float)
    python = TypeVar("python", int, float)
    for variable, problem in ((bound, "has a bound"), (python, "may be int")):

        def body(x: Any, y: DisjointSlice[f32]) -> None: ...

        body.__annotations__["x"] = Slice[variable]  # type: ignore[valid-type]
        with pytest.raises(CompileError, match=problem):
            kernel(body)


def test_a_graph_of_a_generic_kernel_runs_its_own_choice() -> None:
    source = h2d(np.full(4, 3, np.int32)).sync()
    graph = scale[LaunchConfig(1, 32)](2, source, zeros(4, i32)).graph()
    output = graph.take_output()
    assert output is not None
    graph.launch().sync()
    assert oxide.d2h(output[2]).sync().tolist() == [6] * 4


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is Python 3.12's")
def test_type_parameters_in_brackets_are_type_variables(tmp_path: Path) -> None:
    for future in ("from __future__ import annotations\n", ""):
        path = tmp_path / f"brackets_{bool(future)}.py"
        path.write_text(
            future
            + textwrap.dedent(
                """
                from oxide import DisjointSlice, Slice, f32, f64, kernel, thread

                @kernel(block=128)
                def scale[T: (f32, f64)](factor: T, x: Slice[T], y: DisjointSlice[T]) -> None:
                    idx = thread.index_1d()
                    elem = y.get_mut(idx)
                    if elem is not None:
                        elem.value = factor * x[idx.get()]
                """
            )
        )
        names: dict[str, Any] = {}
        exec(compile(path.read_text(), str(path), "exec"), names)
        _, _, y = names["scale"](2.0, h2d(np.ones(3)), zeros(3, f64)).sync()
        assert oxide.d2h(y).sync().tolist() == [2, 2, 2]
