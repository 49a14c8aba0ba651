"""Tuples and NamedTuples as kernel arguments: what a kernel may say of them, and what a launch refuses."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide import (
    Arc,
    ArgumentError,
    CompileError,
    CudaGraph,
    DisjointSlice,
    LaunchError,
    Slice,
    bf16,
    bool_,
    d2h,
    device,
    f16,
    f32,
    f64,
    h2d,
    i8,
    i16,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u16,
    u32,
    u64,
    value,
    zeros,
)
from oxide.compiler.cache.fingerprint import fingerprint


class Size(NamedTuple):
    rows: i32
    cols: u32


class Integers(NamedTuple):
    a: i8
    b: i16
    c: i32
    d: i64
    e: u8
    f: u16
    g: u32
    h: u64


class Settings(NamedTuple):
    size: Size
    scale: f32
    offset: f64
    negate: bool_
    half: f16
    brain: bf16
    pair: tuple[i8, f64]


class Reversed(NamedTuple):
    cols: u32
    rows: i32


Untyped = collections.namedtuple("Untyped", "rows cols")


@kernel
def spread(integers: Integers, out: DisjointSlice[f64]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        n = i.get()
        a, b, c, d, e, _f, _g, _h = integers
        if n == 0:
            element.value = a
        elif n == 1:
            element.value = b
        elif n == 2:
            element.value = c
        elif n == 3:
            element.value = d
        elif n == 4:
            element.value = e
        elif n == 5:
            element.value = integers.f
        elif n == 6:
            element.value = integers[6]
        elif n == 7:
            element.value = integers[-1]
        else:
            element.value = len(integers)


@device
def scaled(settings: Settings, number: f64) -> f64:
    scaled = settings.offset + settings.scale * number
    if settings.negate:
        scaled = -scaled
    return scaled


@kernel
def fill(settings: Settings, out: DisjointSlice[f64]) -> None:
    index = thread.index_2d(settings.size.cols)
    if index is not None and thread.index_2d_row() < settings.size.rows:
        element = out.get_mut(index)
        if element is not None:
            small, wide = settings.pair
            extra = f64(f32(settings.half)) + f64(f32(settings.brain)) + small * wide
            element.value = scaled(settings, f64(index.get())) + extra


@kernel(block=128)
def affine(line: tuple[f32, f32], x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = line[0] * x[i.get()] + line[1]


@kernel(block=64, requires=("len(x) >= size.rows * size.cols", "inner[1].rows > 0"))
def sum_rows(size: Size, inner: tuple[i32, Size], x: Slice[f64], y: DisjointSlice[f64]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None and i.get() < size.rows:
        total = f64(0)
        for j in range(size.cols):
            total += x[i.get() * size.cols + j]
        element.value = total


SETTINGS = Settings(Size(5, 7), 0.5, 100.25, True, 1.5, 3.0, (-2, 0.25))


@settings(deadline=None, max_examples=40)  # the first one compiles
@given(
    st.tuples(
        *(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)),
        *(st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64)),
    )
)
def test_every_integer_type_arrives_in_a_tuple_whole(numbers: tuple[int, ...]) -> None:
    found = spread[1, 9](Integers(*numbers), zeros(9, f64)).last().and_then(d2h).sync()
    assert np.array_equal(found, np.array([*numbers, 8], np.float64))


def test_floats_bools_halves_and_inner_tuples_arrive_and_a_field_is_a_width() -> None:
    found = fill[(1, 2), (8, 4)](SETTINGS, zeros(35, f64)).last().and_then(d2h).sync()
    assert np.array_equal(found, -(100.25 + 0.5 * np.arange(35)) + 1.5 + 3.0 - 0.5)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 1025])
def test_a_plain_tuple_is_taken_at_every_launch_anew(size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    box = h2d(x).sync()
    for line in ((2.0, 1.0), (np.float32(0.5), 3), (-1, np.int64(4))):
        found = affine(line, box, zeros(size)).last().and_then(d2h).sync()
        expected = np.float64(line[0]) * x + np.float64(line[1])
        assert np.all(np.abs(found - expected) <= 1e-6 * (np.abs(expected) + 1))


def test_a_plain_tuple_is_taken_for_a_named_one_but_another_named_tuple_is_not() -> None:
    x, y = h2d(np.ones(6)).sync(), zeros(2, f64).sync()
    assert np.array_equal(sum_rows((2, 3), (0, (1, 1)), x, y).last().and_then(d2h).sync(), [3.0, 3.0])
    with pytest.raises(ArgumentError, match=r"size is Size, the argument is Reversed\(.*; pass Size\(rows=…, cols=…\)"):
        sum_rows(Reversed(3, 2), (0, (1, 1)), x, y)


def test_the_launch_yields_the_tuple_that_it_was_given() -> None:
    line = (1.0, 2.0)
    assert affine(line, zeros(3), zeros(3)).first().sync() is line


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ((1.0,), r" is tuple\[f32, f32\], the argument is \(1.0,\), of length 1; pass 2 elements"),
        ([1.0, 2.0], r" is tuple\[f32, f32\], the argument is \[1.0, 2.0\] \(list\); pass a tuple"),
        (3.0, r"the argument is 3.0 \(float\); pass a tuple"),
        (("1", 2.0), r"\[0\] is f32, the argument is '1' \(str\); pass a number"),
        ((1.0, 1e39), r"\[1\] is f32, the argument is 1e\+39 \(float\); f32 holds"),
    ],
)
def test_a_wrong_tuple_is_refused_by_kernel_parameter_and_element(argument: Any, text: str) -> None:
    x, y = zeros(3).sync(), zeros(3).sync()
    with pytest.raises(LaunchError, match="kernel affine: parameter line.*" + text):
        affine(argument, x, y)
    with pytest.raises(ArgumentError, match=text):
        affine(value(argument), x, y).sync()


@pytest.mark.parametrize(
    ("given_settings", "text"),
    [
        (SETTINGS._replace(size=Size(1, -1)), r"settings.size.cols is u32, the argument is -1"),
        (SETTINGS._replace(pair=(128, 0.0)), r"settings.pair\[0\] is i8, the argument is 128"),
        (SETTINGS._replace(negate=1), r"settings.negate is bool_, the argument is 1"),  # type: ignore[arg-type]
        (SETTINGS._replace(half=1e6), r"settings.half is f16, .*magnitudes up to 65504"),
        (SETTINGS._replace(size=3), r"settings.size is Size, the argument is 3"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_field_is_refused_by_its_name(given_settings: Settings, text: str) -> None:
    with pytest.raises(LaunchError, match=text):
        fill[1, 1](given_settings, zeros(1, f64).sync())


def test_a_buffer_is_no_tuple() -> None:
    with pytest.raises(
        ArgumentError, match=r"parameter line: expected tuple\[f32, f32\], got an operation that yields"
    ):
        affine(zeros(2), zeros(3), zeros(3))
    with pytest.raises(ArgumentError, match=r"line\[0\] is f32"):
        affine((zeros(1).sync(), 1.0), zeros(3), zeros(3))


def test_an_operation_yields_the_tuple_when_it_runs() -> None:
    launches = affine(value((2.0, 1.0)), h2d(np.ones(5, np.float32)), zeros(5)).last().and_then(d2h)
    assert np.array_equal(launches.sync(), np.full(5, 3.0))
    assert np.array_equal(launches.sync(), np.full(5, 3.0))


def test_a_graph_replays_the_numbers_of_its_capture() -> None:
    x, y = Arc(h2d(np.arange(4, dtype=np.float32)).sync()), Arc(zeros(4).sync())
    graph: CudaGraph[Any] = affine((2.0, 1.0), x, y).graph()
    graph.launch().sync()
    assert np.array_equal(d2h(y).sync(), [1.0, 3.0, 5.0, 7.0])


def test_contracts_name_elements_and_prove_accesses() -> None:
    assert {check.place for check in sum_rows.checks()} == {"proved"}
    x, y = h2d(np.ones(6)).sync(), zeros(2, f64).sync()
    assert np.array_equal(sum_rows(Size(2, 3), (0, Size(1, 1)), x, y).last().and_then(d2h).sync(), [3.0, 3.0])
    text = r"requires len\(x\) >= size.rows \* size.cols, but len\(x\) is 6, size.rows \* size.cols is 8 "
    with pytest.raises(LaunchError, match=text):
        sum_rows(Size(2, 4), (0, Size(1, 1)), x, y)
    with pytest.raises(LaunchError, match=r"requires inner\[1\].rows > 0, but inner\[1\].rows is 0"):
        sum_rows(Size(2, 3), (0, Size(0, 1)), x, y)
    with pytest.raises(LaunchError, match=text):
        sum_rows(value(Size(2, 4)), value((0, Size(1, 1))), x, y).sync()


@pytest.mark.parametrize(
    ("contract", "problem"),
    [
        ("size.depth > 1", "names size.depth, but size has size.rows, size.cols"),
        ("size > 1", "uses size, a whole tuple; name one of its numbers"),
        ("len(size) > 1", "takes the length of size, which is no slice"),
        ("size[2] > 1", r"names size\[2\], but size has size.rows, size.cols"),
        ("line[0] > 1", r"uses line\[0\], a f32; contracts are about integers"),
    ],
)
def test_a_contract_about_what_a_tuple_has_not_is_refused(contract: str, problem: str) -> None:
    with pytest.raises(CompileError, match=problem):

        @kernel(requires=(contract,))
        def wrong(size: Size, line: tuple[f32, i32], y: DisjointSlice[f32]) -> None: ...


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (tuple, "size is a tuple of any length; the length is part of a kernel's code"),
        (tuple[f32, ...], "size is a tuple of any length"),
        (tuple[()], "size is an empty tuple"),
        (tuple[f32, int], r"size\[1\] is annotated int; the elements of a tuple are scalars"),
        (tuple[Slice[f32], f32], r"size\[0\] is annotated Slice; the elements of a tuple are scalars"),
        (tuple[tuple[f32, str], f32], r"size\[0\]\[1\] is annotated str"),
        (Untyped, "size.rows has no annotation; the elements of a tuple are scalars"),
    ],
)
def test_a_tuple_that_no_kernel_takes_is_refused_where_it_is_declared(annotation: Any, problem: str) -> None:
    def wrong(size: Any) -> None: ...

    wrong.__annotations__ = {"size": annotation}
    with pytest.raises(CompileError, match=problem):
        kernel(wrong)


def unknown_field(size: Size, y: DisjointSlice[f32]) -> None:
    depth = size.depth  # type: ignore[attr-defined]  # noqa: F841


def outside(size: Size, y: DisjointSlice[f32]) -> None:
    depth = size[2]  # type: ignore[misc]  # noqa: F841


def by_variable(size: Size, y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = size[thread.index_1d().get()]


def assigned(size: Size, y: DisjointSlice[f32]) -> None:
    size.rows = 1  # type: ignore[misc]


def unpacked_wrongly(size: Size, y: DisjointSlice[f32]) -> None:
    _a, _b, _c = size  # type: ignore[misc]


def two_widths(size: Size, y: DisjointSlice[f32]) -> None:
    first = thread.index_2d(size.rows)  # noqa: F841
    second = thread.index_2d(size.cols)  # noqa: F841


def whole_width(size: Size, y: DisjointSlice[f32]) -> None:
    index = thread.index_2d(size)  # type: ignore[call-overload]  # noqa: F841


def reassigned_width(size: Size, y: DisjointSlice[f32]) -> None:
    size = Size(1, thread.index_2d_row())
    index = thread.index_2d(size.cols)  # noqa: F841


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (unknown_field, "size.depth: size is a Size, which has rows, cols"),
        (outside, r"size\[2\]: size is a Size, which has \[0\], \[1\]"),
        (by_variable, "a tuple in a kernel is indexed with a constant"),
        (assigned, "size.rows: size is a parameter, and its elements do not change"),
        (unpacked_wrongly, "size has 2 elements, and here it becomes 3"),
        (two_widths, "called with width size.cols here and size.rows elsewhere"),
        (whole_width, "the width of thread.index_2d is size, which may differ"),
        (reassigned_width, "the width of thread.index_2d is size.cols, which may differ"),
    ],
)
def test_what_a_kernel_cannot_say_of_a_tuple_is_a_compile_error_at_its_line(
    function: Callable[..., Any], problem: str
) -> None:
    with pytest.raises(CompileError, match=problem):
        kernel(function).specialize()


@kernel
def one_width(size: Size, y: DisjointSlice[f32]) -> None:
    first = thread.index_2d(size.cols)
    second = thread.index_2d(size[1])
    if first is not None and second is not None:
        element = y.get_mut(second)
        if element is not None:
            element.value = first.get()


def test_a_field_and_its_index_are_one_width() -> None:
    assert np.array_equal(one_width[1, (3, 2)](Size(2, 3), zeros(6)).last().and_then(d2h).sync(), np.arange(6))


def test_the_compiled_code_is_kept_by_the_fields_and_their_types() -> None:
    def first(size: Any) -> None: ...

    kinds: list[Any] = [Size, Reversed, tuple[i32, u32], tuple[i32, i32], tuple[i32, u32, u32], tuple[tuple[i32, u32]]]
    found = set()
    for kind in kinds:
        first.__annotations__ = {"size": kind}
        made = kernel(first)
        found.add(fingerprint(made.description, made.specialize().parameters))
    assert len(found) == len(kinds)


def test_a_kernel_shows_its_tuples_as_they_are_written() -> None:
    assert repr(sum_rows).startswith("<kernel sum_rows(size: Size, inner: tuple[i32, Size], x: Slice[f64]")
    assert sum_rows.ptx().count(".param .u32 sum_rows_param_") == 5
