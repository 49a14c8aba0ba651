"""Read views: what they give, where they are None, and what stops a program that does not look."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.views_kernels import sgemm_views
from oxide import DisjointSlice, MatrixView, Slice, device, f32, i64, kernel, thread, u32, zip_exact
from oxide.compiler.kernel.kernel import Kernel
from oxide.errors import BoundsError, CompileError, KernelAssertionError
from oxide_kernels import sgemm_naive
from tests.choosing import examples
from tests.compiler.assembler import assembled, needs_ptxas
from tests.compiler.bounds.test_loop_ptx import hot_loop, operations
from tests.compiler.native_runner import fault_of, run, run_blocks


def product(views: Kernel, m: int, n: int, k: int) -> None:
    random = np.random.default_rng(m * 10_007 + n * 101 + k)
    a, b, c = (random.standard_normal(size).astype(np.float32) for size in (m * k, k * n, m * n))
    expected = 0.5 * a.reshape(m, k).astype(np.float64) @ b.reshape(k, n) + 2.0 * c.reshape(m, n)
    grid = (max(1, -(-n // 8)), max(1, -(-m // 8)), 1)
    record = run_blocks(views, grid, (8, 8, 1), m, n, k, 0.5, a, b, 2.0, c)
    assert fault_of(views, record) is None
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    assert np.abs(c.reshape(m, n) - expected).max(initial=0) / scale < 1e-5


@kernel
def sgemm_by_index(
    m: u32, n: u32, k: u32, alpha: f32, a: Slice[f32], b: Slice[f32], beta: f32, c: DisjointSlice[f32]
) -> None:
    index = thread.index_2d(n)
    row = MatrixView(a, k).row(thread.index_2d_row(), k)
    column = MatrixView(b, n).col(thread.index_2d_col(), k)
    if index is not None and row is not None and column is not None:
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


@needs_ptxas
def test_the_product_over_views_takes_no_more_registers_than_the_unchecked_one() -> None:
    def registers(each: Kernel) -> int:
        notes = assembled(each.ptx())
        assert " 0 bytes spill stores" in notes
        return int(re.search(r"Used (\d+) registers", notes)[1])  # type: ignore[index]

    assert registers(sgemm_views) <= registers(kernel(unchecked=True)(sgemm_naive.function))


@kernel
def sum_row(i: i64, k: i64, stride: i64, a: Slice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        row = MatrixView(a, stride).row(i, k)
        if row is not None:
            total = i64(0)
            for x in row:
                total = total * 31 + x
            element.value = total


@kernel
def sum_column(j: i64, k: i64, stride: i64, a: Slice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        column = MatrixView(a, stride).col(j, k)
        if column is not None:
            total = i64(0)
            for x in column:
                total = total * 31 + x
            element.value = total


@kernel
def sum_tile(row: i64, col: i64, rows: i64, cols: i64, stride: i64, a: Slice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        tile = MatrixView(a, stride).tile(row, col, rows, cols)
        if tile is not None:
            total = i64(0)
            for one in tile:
                for x in one:
                    total = total * 31 + x
            element.value = total


@kernel
def sum_tile_by_index(
    row: i64, col: i64, rows: i64, cols: i64, stride: i64, a: Slice[i64], out: DisjointSlice[i64]
) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        tile = MatrixView(a, stride).tile(row, col, rows, cols)
        if tile is not None:
            total = i64(0)
            height, width = tile.shape
            for i in range(height):
                for j in range(width):
                    total = total * 31 + tile[i, j]
            element.value = total


def expected_tile(row: int, col: int, rows: int, cols: int, stride: int, a: list[int]) -> int:
    """Over whole numbers: -1 where the tile is None, else its elements' hash."""
    inside = row >= 0 and rows >= 0 and col >= 0 and cols >= 0 and col + cols <= stride
    if not inside or (rows > 0 and (row + rows - 1) * stride + col + cols > len(a)):
        return -1
    total = 0
    for i in range(rows if cols else 0):
        for x in a[(row + i) * stride + col : (row + i) * stride + col + cols]:
            total = (total * 31 + x) % 2**64
    return total - 2**64 if total >= 2**63 else total


EDGES = [
    0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, -1, -2, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**61, 2**62, 2**63 - 1, -(2**63),
    1 - 2**63, 2**63 // 3, 2**64 // 3 - 2**63,
]  # fmt: skip
# A number of rows that may be large must be of empty rows or none at all, or the loop over them would not end.
number = st.one_of(st.integers(-2, 7), st.sampled_from(EDGES))


@settings(max_examples=examples(400), deadline=None)
@given(number, number, number, number, number, st.sampled_from([0, 1, 5, 12, 13, 24]))
def test_a_view_is_none_just_where_it_would_not_be_inside(
    row: int, col: int, rows: int, cols: int, stride: int, length: int
) -> None:
    a = np.arange(1, length + 1, dtype=np.int64)

    def found(kernel: Kernel, *args: int) -> int:
        out = np.zeros(1, np.int64)
        record = run_blocks(kernel, (1, 1, 1), (1, 1, 1), *args, a, out)
        assert fault_of(kernel, record) is None
        return int(out[0])

    elements = a.tolist()
    if rows < 1000 or cols != 0:
        assert found(sum_tile, row, col, rows, cols, stride) == expected_tile(row, col, rows, cols, stride, elements)
        assert found(sum_tile_by_index, row, col, rows, cols, stride) == expected_tile(
            row, col, rows, cols, stride, elements
        )
    assert found(sum_row, row, cols, stride) == expected_tile(row, 0, 1, cols, stride, elements)
    assert found(sum_column, col, rows, stride) == expected_tile(0, col, rows, 1, stride, elements)


@device
def dot(x: Any, y: Any) -> Any:
    total = i64(0)
    for p, q in zip_exact(x, y):
        total += p * q
    return total


@kernel
def dot_of(x_length: i64, y_length: i64, a: Slice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        x = MatrixView(a, 6).row(0, x_length)
        y = MatrixView(a, 6).col(0, y_length)
        if x is not None and y is not None:
            element.value = dot(x, y)


def test_views_go_through_device_functions_and_zip_side_by_side() -> None:
    a = np.arange(36, dtype=np.int64)
    out = np.zeros(1, np.int64)
    run(dot_of, 1, 4, 4, a, out)
    assert out[0] == (a[:4] * a[:24:6]).sum()


def test_a_zip_of_different_lengths_is_a_fault_and_ends_the_thread() -> None:
    a = np.arange(36, dtype=np.int64)
    out = np.full(1, 7, np.int64)
    with pytest.raises(KernelAssertionError, match="zip_exact got views of different lengths") as raised:
        run(dot_of, 1, 4, 5, a, out)
    assert out[0] == 7, "the thread went on"
    assert raised.value.file == __file__


@kernel
def zip_of_four(a: Slice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    m = MatrixView(a, 3)
    w, x, y, z = m.row(0, 3), m.row(1, 3), m.col(1, 3), m.col(2, 3)
    if element is not None and w is not None and x is not None and y is not None and z is not None:
        total = i64(0)
        for p, q, r in zip_exact(w, x, y):
            total += p * q * r
        for p, q, r, s in zip_exact(w, x, y, z):
            total += p * q * r * s
        element.value = total


def test_three_and_four_views_zip_too() -> None:
    a = np.arange(1, 10, dtype=np.int64)
    m = a.reshape(3, 3)
    out = np.zeros(1, np.int64)
    run(zip_of_four, 1, a, out)
    assert out[0] == (m[0] * m[1] * m[:, 1]).sum() + (m[0] * m[1] * m[:, 1] * m[:, 2]).sum()


@kernel
def row_untested(i: i64, k: i64, stride: i64, a: Slice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        total = i64(0)
        for x in MatrixView(a, stride).row(i, k):  # type: ignore[union-attr]
            total += x
        element.value = total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "parameter", "index", "length"),
    [
        ((2, 4, 5), "a", 13, 13),
        ((-3, 4, 5), "a", -3, 13),
        ((2**62, 4, 5), "a", 2**63 - 1, 13),
        ((2**60, 4, 5), "a", 5 * 2**60 + 3, 13),
        ((0, 6, 5), "a row of a", 5, 5),
        ((0, -2, 5), "a row of a", -2, 5),
        ((0, 1, -5), "a row of a", 0, 0),
    ],
)
def test_a_view_used_without_a_look_is_a_fault_that_says_what_was_outside(
    row: tuple[int, int, int], parameter: str, index: int, length: int
) -> None:
    out = np.full(1, 7, np.int64)
    with pytest.raises(BoundsError) as raised:
        run(row_untested, 1, *row, np.ones(13, np.int64), out)
    assert (raised.value.parameter, raised.value.index, raised.value.length) == (parameter, index, length)
    assert out[0] == 7, "the thread went on"


@kernel
def element_of_row(i: i64, a: Slice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    row = MatrixView(a, 4).row(1, 3)
    if element is not None and row is not None:
        element.value = row[i]


@kernel
def element_of_tile(i: i64, j: i64, a: Slice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    tile = MatrixView(a, 4).tile(1, 1, 2, 3)
    if element is not None and tile is not None:
        element.value = tile[i, j] + 100 * len(tile)


def test_any_other_index_of_a_view_is_checked() -> None:
    a = np.arange(16, dtype=np.int64)
    out = np.zeros(1, np.int64)
    for i in range(3):
        run(element_of_row, 1, i, a, out)
        assert out[0] == 4 + i
    for i in (3, -1, 2**63 - 1):
        with pytest.raises(BoundsError, match=rf"a view of a\[{i}\] is outside a view of a, which has 3 elements"):
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
def last_of_two(which: i64, a: Slice[i64], b: Slice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    view = MatrixView(a, 2).row(0, 2)
    if which > 0:
        view = MatrixView(b, 2).col(1, 2)
    if element is not None and view is not None:
        element.value = view[1]


def test_one_name_may_be_a_row_here_and_a_column_there() -> None:
    a, b = np.arange(4, dtype=np.int64), np.arange(10, 14, dtype=np.int64)
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
    def of_an_output(c: DisjointSlice[f32]) -> None:
        MatrixView(c, 3)  # type: ignore[arg-type]

    def float_stride(a: Slice[f32]) -> None:
        MatrixView(a, 1.5)  # type: ignore[arg-type]

    def float_row(a: Slice[f32]) -> None:
        MatrixView(a, 3).row(0.5, 3)  # type: ignore[arg-type]

    def too_few(a: Slice[f32]) -> None:
        MatrixView(a, 3).tile(0, 0, 3)  # type: ignore[call-arg]

    def write(a: Slice[f32]) -> None:
        row = MatrixView(a, 3).row(0, 3)
        if row is not None:
            row[0] = 1.0  # type: ignore[index]

    def zip_of_one(a: Slice[f32]) -> None:
        row = MatrixView(a, 3).row(0, 3)
        for _x in zip_exact(row):  # type: ignore[call-overload]
            pass

    def zip_of_slices(a: Slice[f32]) -> None:
        for _x, _y in zip_exact(a, a):  # type: ignore[call-overload]
            pass

    def over_an_integer(a: Slice[f32]) -> None:
        count = len(a)
        for _x in count:  # type: ignore[attr-defined]
            pass

    refused(of_an_output, r"MatrixView takes a Slice to read from, not DisjointSlice\[f32\]")
    refused(float_stride, "the stride of a MatrixView is an integer, not f64")
    refused(float_row, "what row of a MatrixView takes is an integer, not f64")
    refused(too_few, "tile of a MatrixView takes row, col, rows, cols")
    refused(write, "a view of a is read-only")
    refused(zip_of_one, "zip_exact takes two to four views")
    refused(zip_of_slices, r"zip_exact takes rows and columns, as a\.row\(i\) of a Slice2 or a MatrixView, not Slice")
    refused(
        over_an_integer,
        r"a for loop in a kernel goes over range\(\.\.\.\), a Slice, a view, enumerate, zip, reversed or "
        r"zip_exact\(\.\.\.\), not over i64",
    )
