"""``DisjointSlice.scatter``: writes at computed indices, with bounds that are always checked."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

import numpy as np
import pytest

from oxide import (
    AtomicSlice,
    BoundsError,
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    Kernel,
    SanitizerError,
    Slice,
    Tiles,
    d2h,
    f32,
    f64,
    h2d,
    i8,
    i64,
    kernel,
    thread,
    u16,
    zeros,
)
from tests.compiler.sanitizer.sanitized import BOTH, on_the_cpu_device

T = TypeVar("T", i8, u16, i64, f32, f64)

SIZES = (0, 1, 31, 33, 1000003)


@kernel(block=128)
def put(order: Slice[i64], x: Slice[T], y: DisjointSlice[T]) -> None:
    i = thread.index_1d().get()
    if i < len(x):
        y.scatter[order[i]] = x[i]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint16, np.int64])
def test_a_permutation_lands_where_its_indices_say(size: int, dtype: Any) -> None:
    rng = np.random.default_rng(size)
    order = rng.permutation(size)
    x = rng.integers(0, 100, size).astype(dtype)
    expected = np.empty_like(x)
    expected[order] = x
    result = d2h(put(h2d(order), h2d(x), zeros(size, dtype)).last()).sync()
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("index", [-1, 40, 2**62, -(2**63)])
def test_an_index_outside_is_a_fault_and_writes_nothing(index: int) -> None:
    order = np.arange(40)
    order[7] = index
    y = zeros(40).sync()
    with pytest.raises(BoundsError) as caught:
        put(h2d(order), h2d(np.ones(40, np.float32)), y).sync()
    error = caught.value
    assert (error.parameter, error.index, error.length, error.thread) == ("y", index, 40, (7, 0, 0))
    np.testing.assert_array_equal(d2h(y).sync(), np.arange(40) != 7)


@kernel(block=64)
def put_into_tiles(order: Slice[i64], x: Slice[f32], y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
    for part in range(4):
        i = thread.index_1d().get() * 4 + part
        if i < len(x):
            y.scatter[order[i]] = x[i]


def test_an_output_with_a_layout_has_it_too() -> None:
    order, x = np.random.default_rng(1).permutation(101), np.arange(101, dtype=np.float32)
    result = d2h(put_into_tiles(h2d(order), h2d(x), zeros(101)).last()).sync()
    np.testing.assert_array_equal(result[order], x)


@kernel(block=64)
def put_into_a_matrix(rows: Slice[i64], cols: Slice[i64], x: Slice[f32], y: DisjointSlice2[f32]) -> None:
    i = thread.index_1d().get()
    if i < len(x):
        y.scatter[rows[i], cols[i]] = x[i]


def test_a_matrix_is_written_by_row_and_column_each_within_its_axis() -> None:
    rng = np.random.default_rng(2)
    order = rng.permutation(7 * 33)
    rows, cols = order // 33, order % 33
    x = rng.random(7 * 33, np.float32)
    result = d2h(put_into_a_matrix(h2d(rows), h2d(cols), h2d(x), zeros((7, 33))).last()).sync()
    np.testing.assert_array_equal(result[rows, cols], x)
    cols[5] = 33  # the next row's first element, if it were flat
    with pytest.raises(BoundsError) as caught:
        put_into_a_matrix(h2d(rows), h2d(cols), h2d(x), zeros((7, 33))).sync()
    assert (caught.value.axis, caught.value.index, caught.value.length) == (1, 33, 33)
    assert (caught.value.indices, caught.value.shape) == ((rows[5], 33), (7, 33))


@on_the_cpu_device
def test_two_threads_on_one_element_are_a_race() -> None:
    sanitized = kernel(block=128, sanitize=BOTH)(put.function)
    x = h2d(np.ones(4, np.float32)).sync()
    sanitized(h2d(np.array([1, 2, 3, 0])), x, zeros(4)).sync()
    with pytest.raises(SanitizerError, match=r"a write to y .* in a race") as caught:
        sanitized(h2d(np.array([1, 2, 3, 2])), x, zeros(4)).sync()
    assert caught.value.kind == "race"
    assert caught.value.other is not None


def test_a_scatter_needs_no_thread_for_each_element(recwarn: pytest.WarningsRecorder) -> None:
    put[1, 32](h2d(np.arange(3)), h2d(np.ones(3, np.float32)), zeros(1000)).sync()
    assert not [warning for warning in recwarn if "not written" in str(warning.message)]


def reads(order: Slice[i64], y: DisjointSlice[f32]) -> None:
    y.scatter[order[0]] += 1.0  # type: ignore[index]


def takes_a_thread_index(order: Slice[i64], y: DisjointSlice[f32]) -> None:
    y.scatter[thread.index_1d()] = 1.0  # type: ignore[index]


def reads_a_matrix(order: Slice[i64], y: DisjointSlice2[f32]) -> None:
    y.scatter[order[0], 0] += 1.0  # type: ignore[index]


def takes_a_float(order: Slice[i64], y: DisjointSlice[f32]) -> None:
    y.scatter[0.5] = 1.0  # type: ignore[index]


def loses_a_fraction(x: Slice[f32], y: DisjointSlice[i64]) -> None:
    y.scatter[0] = x[0]  # type: ignore[assignment]


def writes_an_input(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    x.scatter[0] = y.dtype(1)  # type: ignore[attr-defined]


def scatters_atomically(y: AtomicSlice[f32]) -> None:
    y.scatter[0] = 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (reads, "y.scatter[…] is only written: the element may be another thread's"),
        (reads_a_matrix, "y.scatter[…] is only written: the element may be another thread's"),
        (takes_a_thread_index, "y.scatter[…] takes an integer, not a ThreadIndex: y.get_mut(index) is its element"),
        (takes_a_float, "y.scatter[…] takes an integer, not f64; convert the index, as in i64(…)"),
        (loses_a_fraction, "the element is i64 and "),
        (writes_an_input, "x is a Slice[f32], which is read-only; declare an output as DisjointSlice[…]"),
        (scatters_atomically, "scatter"),
    ],
)
def test_what_a_scatter_does_not_take_is_a_compile_error(function: Any, said: str) -> None:
    with pytest.raises(CompileError, match=re.escape(said)):
        made: Kernel = kernel(function)
        made.specialize()
