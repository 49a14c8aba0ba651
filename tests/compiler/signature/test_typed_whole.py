"""A kernel annotates every parameter, or none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
from numba import cuda

from oxide import (
    Array,
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    SharedArray,
    Slice,
    Slice2,
    d2h,
    f32,
    h2d,
    i32,
    kernel,
    thread,
    u32,
    zeros,
)

T = TypeVar("T", f32, i32)


def read(x, y: DisjointSlice[f32]) -> None:  # type: ignore[no-untyped-def]
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[3] + x[4]


def read_by_rows(y: DisjointSlice[f32], x) -> None:  # type: ignore[no-untyped-def]
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[0, 1]


def measured(y: DisjointSlice[f32], x) -> None:  # type: ignore[no-untyped-def]
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = f32(len(x))


def output(y: Slice[f32], x) -> None:  # type: ignore[no-untyped-def]
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = y[0]


def written(y: Slice[f32], x) -> None:  # type: ignore[no-untyped-def]
    x[0, 1] = y[0]


def called(x, y: DisjointSlice[f32]) -> None:  # type: ignore[no-untyped-def]
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x(1.0)


def number(x, y: DisjointSlice[f32]) -> None:  # type: ignore[no-untyped-def]
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x + 1.0


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (read, "x is read by index: annotate it as Slice[f32], or as Array[f32, 1], which is not checked"),
        (read_by_rows, "x is read by index: annotate it as Slice2[f32], or as Array[f32, 2], which is not checked"),
        (measured, "x is read by index: annotate it as Slice[f32]"),
        (output, "x is an output: annotate it as DisjointSlice[f32]"),
        (written, "x is written by index: annotate it as Array[f32, 2], or make it a DisjointSlice2[f32]"),
        (called, "x is called: annotate it as Callable"),
        (number, "x is a number here: annotate it as a scalar, as in x: i32 or x: f32"),
    ],
)
def test_a_forgotten_annotation_is_refused_by_name_with_what_the_source_says(function: Any, advice: str) -> None:
    line = function.__code__.co_firstlineno
    message = (
        f"kernel {function.__name__}: parameter x has no annotation, and others have one: annotate every parameter"
    )
    with pytest.raises(CompileError, match=rf"test_typed_whole\.py:{line}: {re.escape(message)}.*{re.escape(advice)}"):
        kernel(function)


def test_a_kernel_without_source_is_refused_too() -> None:
    namespace: dict[str, Any] = {"f32": f32}
    exec("def k(x: f32, y):\n    pass\n", namespace)
    with pytest.raises(CompileError, match=r"parameter y has no annotation.*y may be a scalar, as in i32, a slice"):
        kernel(namespace["k"])


def test_each_kind_of_annotation_counts() -> None:
    @kernel(block=32)
    def typed(
        f: Callable[[f32], f32], pair: tuple[f32, i32], x: Slice[T], raw: Array[f32, 1], y: DisjointSlice[f32]
    ) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = f(pair[0] + f32(x[index.get()])) + raw[-1]

    x = h2d(np.arange(5, dtype=np.int32))
    *_, y = typed(lambda v: v * 2.0, (1.0, 2), x, h2d(np.full(3, 7, np.float32)), zeros(5)).sync()
    np.testing.assert_array_equal(d2h(y).sync(), 2 * (np.arange(5) + 1) + 7)


def test_a_kernel_without_parameters_is_typed() -> None:
    @kernel
    def nothing() -> None:
        tile = SharedArray(4, u32)
        tile[0] = u32(2) ** 31 + u32(2) ** 31
        assert tile[0] == 0

    nothing[1, 1]().sync()


def test_arrays_in_a_typed_kernel_are_those_of_numba_cuda_with_numpys_numbers() -> None:
    @kernel
    def parts(x: Array[u32, 2], out: Array[u32, 1]) -> None:
        row = x[1, 1:]
        total = u32(0)
        for value in row:
            total += value
        out[cuda.threadIdx.x] = total + x[-1, -1] * x[0, 0]
        out[1:][0] = x.size
        if x[0, 0] + x[0, 1] == 0:
            out[2] = row.shape[0]

    x = np.array([[2**32 - 1, 1, 5], [2, 3, 4]], np.uint32)
    _, out = parts[1, 1](h2d(x), zeros(3, u32)).sync()
    np.testing.assert_array_equal(d2h(out).sync(), [3, 6, 2])


def test_a_parameter_without_annotation_keeps_numbas_rule_of_numbers() -> None:
    @kernel
    def total(x, out):  # type: ignore[no-untyped-def]
        out[0] = x[0] + x[1]

    x = np.array([2**32 - 1, 1], np.uint32)
    _, out = total[1, 1](h2d(x), zeros(1, np.uint64)).sync()
    assert d2h(out).sync()[0] == 2**32


def test_slices_of_a_checked_slice_stay_refused_beside_an_array() -> None:
    @kernel
    def sliced(raw: Array[f32, 1], x: Slice[f32], m: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        part = x[1:3]  # type: ignore[index]
        y.unchecked_mut[0, 0] = part[0] + m[0, 0]  # type: ignore[index]

    with pytest.raises(CompileError, match=r"x\[…\] takes an integer, not slice"):
        sliced.ptx()
