"""Errors that name what to write instead, and loops and guards that used to be refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from oxide import (
    AtomicSlice2,
    AtomicSlice3,
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    LaunchConfig,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
    Slice3,
    bool_,
    d2h,
    device,
    f32,
    h2d,
    i32,
    kernel,
    thread,
    zeros,
)


def strict(a: Slice[f32]) -> None:
    for _x, _y in zip(a, a, strict=True):
        pass


def guarded_as(n: i32) -> None:
    match n:
        case (1 | 2) as m if m > 1:
            pass


def two_indices(a: Slice[f32]) -> None:
    a[0, 1]  # type: ignore[index]


def index_twice(a: Slice2[f32]) -> None:
    a[0][1]  # type: ignore[index]


def index_thrice(a: Slice3[f32]) -> None:
    a[0, 1][2]  # type: ignore[index]


def a_row(a: Slice2[f32]) -> None:
    a[0, :]  # type: ignore[index]


def a_column(a: Slice2[f32]) -> None:
    a[:, 3]  # type: ignore[index]


def a_part(a: Slice2[f32]) -> None:
    a[1:3, 2:4]  # type: ignore[index]


def named_width(a: Slice2[f32], out: DisjointSlice2[f32]) -> None:
    _rows, cols = out.shape
    thread.index_2d(cols)


def over_a_tuple(n: i32) -> None:
    for _each in (n, 5, 6):
        pass


def over_rows(a: Slice2[f32]) -> None:
    for _row in a:  # type: ignore[attr-defined]
        pass


@device
def total(values: Any) -> Any:
    result = f32(0)
    for each in values:
        result += each
    return result


def untyped(a: Slice[f32]) -> None:
    total(a)


LOOPS = "a for loop in a kernel goes over range(...), a Slice, a view, enumerate, zip, reversed or zip_exact(...)"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (strict, "zip(..., strict=True) is not supported in kernels: zip_exact(a, b) goes over views of equal lengths"),
        (guarded_as, "a guard after a case with as is not supported in kernels"),
        (two_indices, "a has one axis: declare a matrix as Slice2[f32]"),
        (index_twice, "a is a Slice2[f32], whose axes share one index: write a[0, 1]"),
        (index_thrice, "a is a Slice3[f32], whose axes share one index: write a[0, 1, 2]"),
        (a_row, "a[0, :] is not supported in kernels: a.row(0) is a view of the row"),
        (a_column, "a[:, 3] is not supported in kernels: a.col(3) is a view of the column"),
        (a_part, "a.tile(row, col, rows, cols) is a view of a part"),
        (named_width, "a constant, or out.shape[1] written in the call"),
        (over_a_tuple, f"{LOOPS}, not over a tuple; write the body of the loop for each, or store them in a Local"),
        (over_rows, f"{LOOPS}; over rows, write: for i in range(a.shape[0]), and a[i, j]"),
        (untyped, f"{LOOPS}, not over a (Slice[f32]); write: for i in range(len(values)), and values[i]"),
    ],
)
def test_an_error_names_what_to_write(function: Any, said: str) -> None:
    with pytest.raises(CompileError, match=re.escape(said)):
        kernel(function).specialize()


@pytest.mark.parametrize("kind", [Slice2, Slice3, AtomicSlice2, AtomicSlice3])
def test_a_slice_of_more_axes_takes_no_number_of_axes(kind: Any) -> None:
    name = kind.__name__
    with pytest.raises(TypeError, match=re.escape(f"{name} takes the elements' type alone: write {name}[f32]")):
        kind[f32, 2]


@kernel
def sums(a: Slice2[f32], b: Slice[f32], y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        whole = f32(0)
        for each in a.flat:
            whole += each
        flat, other = a.flat, b
        for each in flat:
            whole += f32(10) * each
        for each in other:
            whole += f32(100) * each
            other = b
        element.value = whole


def test_a_loop_goes_over_flat_and_over_a_name_of_a_slice() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.float32)
    result = d2h(sums[LaunchConfig(1, 32)](h2d(a), h2d(b), zeros(1)).last()).sync()
    assert result.tolist() == [11 * a.sum() + 100 * b.sum()]


@kernel
def guarded(x: Slice[i32], y: DisjointSlice[i32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        match x[index.get()]:
            case 0:
                result = i32(-1)
            case n if n > 5:
                result = n * i32(2)
            case n if n < 3:
                result = n
            case m:
                result = m + i32(100)
        element.value = result


def test_a_guard_reads_the_name_that_its_case_binds() -> None:
    x = np.array([0, 1, 2, 3, 5, 6, 9, -4], np.int32)
    result = d2h(guarded[LaunchConfig(1, 32)](h2d(x), zeros(8, i32)).last()).sync()
    assert result.tolist() == [-1, 1, 2, 103, 105, 12, 18, -4]


@kernel
def flags(x: Slice[f32], y: DisjointSlice[i32]) -> None:
    own, shared = LocalArray(2, bool_), SharedArray((2, 4), bool_)
    index = thread.index_1d()
    place = i32(thread.thread_idx.x)
    own[1] = x[place] > 0
    shared[1, place] = own[1]
    thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = i32(1) if shared[1, i32(3) - place] else i32(0)


def test_shared_and_local_arrays_hold_bools() -> None:
    x = np.array([1, -1, -1, 2], np.float32)
    result = d2h(flags[LaunchConfig(1, 4)](h2d(x), zeros(4, i32)).last()).sync()
    assert result.tolist() == [1, 0, 0, 1]
