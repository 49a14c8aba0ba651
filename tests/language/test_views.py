"""Read views: what they give, where they are None, and what stops a program that does not look."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.views_kernels import sgemm_views
from oxide import DisjointSlice, Slice, Slice2, device, f32, i64, kernel, thread, u32, zip_exact
from oxide.compiler.kernel.kernel import Kernel
from oxide.errors import BoundsError, CompileError, KernelAssertionError
from oxide_kernels import sgemm_naive
from tests.choosing import examples
from tests.compiler.bounds.test_loop_ptx import hot_loop, operations
from tests.compiler.native_runner import fault_of, run, run_blocks


def product(views: Kernel, m: int, n: int, k: int) -> None:
    random = np.random.default_rng(m * 10_007 + n * 101 + k)
    a, b, c = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    expected = 0.5 * a.astype(np.float64) @ b + 2.0 * c
    grid = (max(1, -(-n // 8)), max(1, -(-m // 8)), 1)
    record = run_blocks(views, grid, (8, 8, 1), m, n, k, 0.5, a, b, 2.0, c)
    assert fault_of(views, record) is None
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    assert np.abs(c - expected).max(initial=0) / scale < 1e-5


@kernel
def sgemm_by_index(
    m: u32, n: u32, k: u32, alpha: f32, a: Slice2[f32], b: Slice2[f32], beta: f32, c: DisjointSlice[f32]
) -> None:
    index = thread.index_2d(n)
    row, column = a.row(thread.index_2d_row()), b.col(thread.index_2d_col())
    if index is not None and row is not None and column is not None and len(row) == len(column):
        total = f32(0.0)
        for i in range(len(row)):
            total += row[i] * column[i]
        element = c.get_mut(index)
        if element is not None:
            element.value = alpha * total + beta * element.value


@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 13, 5), (17, 9, 33), (3, 5, 0), (16, 16, 16)])
@pytest.mark.parametrize("views", [sgemm_views, sgemm_by_index], ids=lambda each: each.name)
def test_a_matrix_product_over_views_is_that_of_numpy(views: Kernel, sizes: tuple[int, int, int]) -> None:
    product(views, *sizes)


@pytest.mark.parametrize("views", [sgemm_views, sgemm_by_index], ids=lambda each: each.name)
def test_the_loop_over_views_is_that_of_the_unchecked_kernel(views: Kernel) -> None:
    hot = hot_loop(views.ptx())
    plain = hot_loop(kernel(unchecked=True)(sgemm_naive.function).ptx())
    assert operations(hot) == operations(plain)
    assert sum("ld.global.v4" in line for line in hot) >= 1
    assert all(check.place == "proved" for check in views.checks())


@kernel
def sum_row(i: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        row = a.row(i)
        if row is not None:
            total = i64(0)
            for x in row:
                total = total * 31 + x
            element.value = total


@kernel
def sum_column(j: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        column = a.col(j)
        if column is not None:
            total = i64(0)
            for x in column:
                total = total * 31 + x
            element.value = total


@kernel
def sum_tile(row: i64, col: i64, rows: i64, cols: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        tile = a.tile(row, col, rows, cols)
        if tile is not None:
            total = i64(0)
            for one in tile:
                for x in one:
                    total = total * 31 + x
            element.value = total


@kernel
def sum_tile_by_index(row: i64, col: i64, rows: i64, cols: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        tile = a.tile(row, col, rows, cols)
        if tile is not None:
            total = i64(0)
            height, width = tile.shape
            for i in range(height):
                for j in range(width):
                    total = total * 31 + tile[i, j]
            element.value = total


def expected_tile(row: int, col: int, rows: int, cols: int, a: np.ndarray[Any, Any]) -> int:
    """Over whole numbers: -1 where the tile is None, else its elements' hash."""
    if min(row, col, rows, cols) < 0 or row + rows > a.shape[0] or col + cols > a.shape[1]:
        return -1
    total = 0
    for x in a[row : row + rows, col : col + cols].ravel().tolist():
        total = (total * 31 + x) % 2**64
    return total - 2**64 if total >= 2**63 else total


EDGES = [
    0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, -1, -2, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**61, 2**62, 2**63 - 1, -(2**63),
    1 - 2**63, 2**63 // 3, 2**64 // 3 - 2**63,
]  # fmt: skip
number = st.one_of(st.integers(-2, 7), st.sampled_from(EDGES))


@settings(max_examples=examples(400), deadline=None)
@given(number, number, number, number, st.sampled_from([(0, 0), (0, 5), (5, 0), (1, 1), (3, 4), (6, 2)]))
def test_a_view_is_none_just_where_it_would_not_be_inside(
    row: int, col: int, rows: int, cols: int, shape: tuple[int, int]
) -> None:
    height, width = shape
    a = np.arange(1, height * width + 1, dtype=np.int64).reshape(shape)

    def found(kernel: Kernel, *args: int) -> int:
        out = np.zeros(1, np.int64)
        record = run_blocks(kernel, (1, 1, 1), (1, 1, 1), *args, a, out)
        assert fault_of(kernel, record) is None
        return int(out[0])

    assert found(sum_tile, row, col, rows, cols) == expected_tile(row, col, rows, cols, a)
    assert found(sum_tile_by_index, row, col, rows, cols) == expected_tile(row, col, rows, cols, a)
    assert found(sum_row, row) == expected_tile(row, 0, 1, width, a)
    assert found(sum_column, col) == expected_tile(0, col, height, 1, a)


@device
def dot(x: Any, y: Any) -> Any:
    total = i64(0)
    for p, q in zip_exact(x, y):
        total += p * q
    return total


@kernel
def dot_of(a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        x, y = a.row(0), a.col(0)
        if x is not None and y is not None:
            element.value = dot(x, y)


def test_views_go_through_device_functions_and_zip_side_by_side() -> None:
    a = np.arange(16, dtype=np.int64).reshape(4, 4)
    out = np.zeros(1, np.int64)
    run(dot_of, 1, a, out)
    assert out[0] == (a[0] * a[:, 0]).sum()


def test_a_zip_of_different_lengths_is_a_fault_and_ends_the_thread() -> None:
    a = np.arange(20, dtype=np.int64).reshape(5, 4)
    out = np.full(1, 7, np.int64)
    with pytest.raises(KernelAssertionError, match="zip_exact got views of different lengths") as raised:
        run(dot_of, 1, a, out)
    assert out[0] == 7, "the thread went on"
    assert raised.value.file == __file__


@kernel
def zip_of_four(m: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    w, x, y, z = m.row(0), m.row(1), m.col(1), m.col(2)
    if element is not None and w is not None and x is not None and y is not None and z is not None:
        total = i64(0)
        for p, q, r in zip_exact(w, x, y):
            total += p * q * r
        for p, q, r, s in zip_exact(w, x, y, z):
            total += p * q * r * s
        element.value = total


def test_three_and_four_views_zip_too() -> None:
    m = np.arange(1, 10, dtype=np.int64).reshape(3, 3)
    out = np.zeros(1, np.int64)
    run(zip_of_four, 1, m, out)
    assert out[0] == (m[0] * m[1] * m[:, 1]).sum() + (m[0] * m[1] * m[:, 1] * m[:, 2]).sum()


@kernel
def element_of_row(i: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    row = a.row(1)
    if element is not None and row is not None:
        element.value = row[i]


@kernel
def element_of_tile(i: i64, j: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    tile = a.tile(1, 1, 2, 3)
    if element is not None and tile is not None:
        element.value = tile[i, j] + 100 * len(tile)


def test_any_other_index_of_a_view_is_checked() -> None:
    a = np.arange(16, dtype=np.int64).reshape(4, 4)
    out = np.zeros(1, np.int64)
    for i in range(4):
        run(element_of_row, 1, i, a, out)
        assert out[0] == 4 + i
    for i in (4, -1, 2**63 - 1):
        with pytest.raises(BoundsError, match=rf"a view of a\[{i}\] is outside a view of a, which has 4 elements"):
            run(element_of_row, 1, i, a, out)
    run(element_of_tile, 1, 1, 2, a, out)
    assert out[0] == 211
    for i, j, text in (
        (2, 0, "index 2 of axis 0 is outside a tile of a"),
        (0, 3, "index 3 of axis 1 is outside a tile of a"),
    ):
        with pytest.raises(BoundsError, match=re.escape(text)):
            run(element_of_tile, 1, i, j, a, out)


@kernel
def last_of_two(which: i64, a: Slice2[i64], b: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    view = a.row(0)
    if which > 0:
        view = b.col(1)
    if element is not None and view is not None:
        element.value = view[1]


def test_one_name_may_be_a_row_here_and_a_column_there() -> None:
    a, b = (np.arange(first, first + 4, dtype=np.int64).reshape(2, 2) for first in (0, 10))
    out = np.zeros(1, np.int64)
    run(last_of_two, 1, 0, a, b, out)
    assert out[0] == 1
    run(last_of_two, 1, 1, a, b, out)
    assert out[0] == 13


def refused(body: Any, text: str) -> None:
    with pytest.raises(CompileError, match=text) as raised:
        kernel(body).specialize()
    assert str(raised.value).startswith(f"{__file__}:")


def test_what_a_view_cannot_be_made_of_is_a_compile_error() -> None:
    def write(a: Slice2[f32]) -> None:
        row = a.row(0)
        if row is not None:
            row[0] = 1.0  # type: ignore[index]

    def zip_of_one(a: Slice2[f32]) -> None:
        row = a.row(0)
        for _x in zip_exact(row):  # type: ignore[call-overload]
            pass

    def zip_of_slices(a: Slice[f32]) -> None:
        for _x, _y in zip_exact(a, a):  # type: ignore[call-overload]
            pass

    def over_an_integer(a: Slice[f32]) -> None:
        count = len(a)
        for _x in count:  # type: ignore[attr-defined]
            pass

    refused(write, "a view of a is read-only")
    refused(zip_of_one, "zip_exact takes two to four views")
    refused(zip_of_slices, r"zip_exact takes rows and columns, as a\.row\(i\) of a Slice2, not Slice")
    refused(
        over_an_integer,
        r"a for loop in a kernel goes over range\(\.\.\.\), a Slice, a view, enumerate, zip, reversed or "
        r"zip_exact\(\.\.\.\), not over i64",
    )
