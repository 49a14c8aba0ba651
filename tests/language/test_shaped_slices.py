"""Slices of two and three axes: the right element, a check for each axis, and what a launch and a kernel refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np
import pytest

from oxide import (
    AtomicSlice2,
    AtomicSlice3,
    DisjointSlice,
    DisjointSlice2,
    DisjointSlice3,
    RowMajorTiles,
    SharedArray,
    Slice,
    Slice2,
    Slice3,
    Tiles,
    d2h,
    device,
    dup,
    f32,
    f64,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u32,
    zeros,
)
from oxide.errors import ArgumentError, BoundsError, CompileError, LaunchError, SanitizerError
from tests.compiler.bounds.test_loop_ptx import hot_loop, operations

T = TypeVar("T", f32, f64)
SHAPES = [(0, 0), (0, 5), (5, 0), (1, 1), (31, 33), (33, 31), (1, 1000), (257, 130)]


def uniform(*shape: int, seed: int = 1, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@kernel(block=(16, 16))
def gemm(alpha: f32, a: Slice2[f32], b: Slice2[f32], beta: f32, c: DisjointSlice2[f32]) -> None:
    c_idx = thread.index_2d(c.shape[1])
    if c_idx is not None:
        c_elem = c.get_mut(c_idx)
        if c_elem is not None:
            row = thread.index_2d_row()
            col = thread.index_2d_col()
            acc = f32(0.0)
            for i in range(a.shape[1]):
                acc += a[row, i] * b[i, col]
            c_elem.value = alpha * acc + beta * c_elem.value


@kernel
def flat_gemm(
    m: u32, n: u32, k: u32, alpha: f32, a: Slice[f32], b: Slice[f32], beta: f32, c: DisjointSlice[f32]
) -> None:
    row = thread.index_2d_row()
    col = thread.index_2d_col()
    c_idx = thread.index_2d(n)
    if c_idx is not None and row < m:
        acc = f32(0.0)
        for i in range(k):
            acc += a[row * k + i] * b[i * n + col]
        c_elem = c.get_mut(c_idx)
        if c_elem is not None:
            c_elem.value = alpha * acc + beta * c_elem.value


@pytest.mark.parametrize("size", [(0, 0, 0), (1, 1, 1), (3, 0, 2), (31, 33, 31), (33, 31, 1), (130, 65, 257)])
def test_a_matrix_product_equals_numpys(size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b, c = uniform(m, k), uniform(k, n, seed=2), uniform(m, n, seed=3)
    result = gemm(1.5, h2d(a), h2d(b), 0.5, h2d(c)).last().to_host().sync()
    wanted = 1.5 * a.astype(np.float64) @ b.astype(np.float64) + 0.5 * c
    assert result.shape == (m, n)
    scale = np.abs(wanted).max() if wanted.size else 1.0
    assert not wanted.size or np.abs(result - wanted).max() / scale < 1e-5


def test_the_product_s_inner_loop_is_that_of_the_flat_form() -> None:
    assert operations(hot_loop(gemm.ptx())) == operations(hot_loop(flat_gemm.ptx()))
    assert any("ld.global.v4" in line or "ld.global.nc.v4" in line for line in hot_loop(gemm.ptx()))
    assert {check.place for check in gemm.checks()} == {"proved", "hoisted"}
    axes = {(check.parameter, check.axis) for check in gemm.checks()}
    assert axes == {(each, axis) for each in "abc" for axis in (0, 1)}


@kernel(block=(8, 8))
def copied(row: i64, col: i64, x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    index = thread.index_2d(y.shape[1])
    if index is not None:
        element = y.get_mut(index)
        if element is not None:
            element.value = x[thread.index_2d_row() + row, thread.index_2d_col() + col]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_thread_has_the_element_of_its_row_and_column(shape: tuple[int, int]) -> None:
    x = uniform(*shape)
    assert np.array_equal(copied(0, 0, h2d(x), zeros(shape)).last().to_host().sync(), x)


@pytest.mark.parametrize(
    ("row", "col", "axis", "index", "length"),
    [
        (1, 0, 0, 5, 5),
        (-1, 0, 0, -1, 5),
        (0, 1, 1, 7, 7),
        (0, -1, 1, -1, 7),
        (2**40, 0, 0, None, 5),
        (9, 9, 0, None, 5),
    ],
)
def test_an_index_outside_its_axis_is_a_fault_that_names_the_axis(
    row: int, col: int, axis: int, index: int | None, length: int
) -> None:
    with pytest.raises(BoundsError) as caught:
        copied(row, col, h2d(uniform(5, 7)), zeros((5, 7))).sync()
    fault = caught.value
    assert (fault.kernel, fault.parameter, fault.axis, fault.length) == ("copied", "x", axis, length)
    x, y = (fault.block[n] * (8, 8)[n] + fault.thread[n] for n in (0, 1))
    assert (fault.indices, fault.shape) == ((y + row, x + col), (5, 7))
    assert fault.index == fault.indices[axis]
    assert f" elements ({list(fault.indices)} of shape (5, 7)); block " in str(fault)
    if index is not None:
        assert fault.index == index
        assert f"index {index} of axis {axis} is outside x, whose axis {axis} has {length} elements" in str(fault)


def test_a_column_past_the_width_is_no_element_of_the_next_row() -> None:
    x = uniform(4, 4)
    with pytest.raises(BoundsError) as caught:
        copied(0, 1, h2d(x), zeros((3, 4))).sync()  # in a flat slice, x[0 * 4 + 4] would be x[1, 0]
    assert caught.value.axis == 1


@kernel(block=64)
def turned(x: Slice3[f64], y: DisjointSlice3[f64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        place = index.get()
        k = place % y.shape[2]
        rest = place // y.shape[2]
        element.value = x[k, rest % y.shape[1], rest // y.shape[1]]


@pytest.mark.parametrize("shape", [(0, 3, 2), (1, 1, 1), (3, 5, 7), (31, 2, 33)])
def test_three_axes_are_read_and_written(shape: tuple[int, int, int]) -> None:
    x = uniform(*shape, dtype=np.float64)
    result = turned(h2d(x), zeros(shape[::-1], f64)).last().to_host().sync()
    assert np.array_equal(result, x.transpose(2, 1, 0))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_each_of_three_axes_is_checked(axis: int) -> None:
    shape = [3, 5, 7]
    shape[axis] -= 1
    with pytest.raises(BoundsError) as caught:
        turned(h2d(uniform(*shape, dtype=np.float64)), zeros((7, 5, 3), f64)).sync()
    fault = caught.value
    assert (fault.axis, fault.index, fault.length) == (axis, shape[axis], shape[axis])
    place = fault.block[0] * 64 + fault.thread[0]
    assert fault.indices == (place % 3, place // 3 % 5, place // 15)
    assert fault.shape == tuple(shape)


@kernel(block=64)
def histogram(keys: Slice2[i32], counts: AtomicSlice2[i32], bumps: AtomicSlice3[i32]) -> None:
    index = thread.index_1d().get()
    if index < len(keys):
        counts.fetch_add((keys[index, 0], keys[index, 1]), 1)
        bumps.fetch_max((keys[index, 1], 0, keys[index, 0]), i32(index))


def test_atomics_take_an_index_for_each_axis() -> None:
    keys = np.random.default_rng(5).integers(0, 6, (1000, 2)).astype(np.int32)
    _, counts, bumps = histogram[16, 64](h2d(keys), zeros((6, 6), i32), zeros((6, 1, 6), i32)).sync()
    wanted = np.zeros((6, 6), np.int32)
    last = np.zeros((6, 1, 6), np.int32)
    for number, (first, second) in enumerate(keys.tolist()):
        wanted[first, second] += 1
        last[second, 0, first] = max(last[second, 0, first], number)
    assert np.array_equal(d2h(counts).sync(), wanted)
    assert np.array_equal(d2h(bumps).sync(), last)


def test_an_atomic_outside_its_axis_changes_nothing() -> None:
    keys = np.array([[0, 6]], np.int32)
    counts = zeros((7, 6), i32).sync()
    with pytest.raises(BoundsError) as caught:
        histogram[1, 64](h2d(keys), counts, zeros((6, 1, 6), i32)).sync()
    assert (caught.value.parameter, caught.value.axis) == ("counts", 1)
    assert (caught.value.indices, caught.value.shape) == ((0, 6), (7, 6))
    assert not d2h(counts).sync().any()


@kernel(block=(4, 4))
def doubled_tiles(x: Slice2[f32], y: DisjointSlice2[f32, RowMajorTiles[Literal[2], Literal[4]]]) -> None:
    index = thread.index_2d(y.shape[1])
    if index is not None:
        row, col = thread.index_2d_row() * 2, thread.index_2d_col() * 4
        tile = y.get_mut(index)
        if tile is not None:
            for i in range(2):
                for j in range(4):
                    tile[i, j] = x[row + i, col + j] * f32(2)
        rest = y.get_remainder(index)
        if rest is not None:
            for i in range(rest.shape[0]):
                for j in range(rest.shape[1]):
                    rest[i, j] = x[row + i, col + j] * f32(2)


@kernel(block=32)
def doubled_fours(x: Slice[f32], y: DisjointSlice2[f32, Tiles[Literal[4]]]) -> None:
    index = thread.index_1d()
    tile = y.get_mut(index)
    if tile is not None:
        for j in range(4):
            tile[j] = x[index.get() * 4 + j] * f32(2)
    rest = y.get_remainder(index)
    if rest is not None:
        for j in range(len(rest)):
            rest[j] = x[index.get() * 4 + j] * f32(2)


@pytest.mark.parametrize("launch", [doubled_tiles, doubled_fours])
@pytest.mark.parametrize("shape", [*SHAPES, (6, 8)])
def test_a_layout_gives_each_thread_a_tile_of_the_matrix(launch: Any, shape: tuple[int, int]) -> None:
    x = uniform(*shape)
    assert np.array_equal(launch(h2d(x), zeros(shape)).last().to_host().sync(), 2 * x)


@kernel(block=32)
def generic_sums(x: Slice2[T], sums: DisjointSlice[T]) -> None:
    index = thread.index_1d()
    element = sums.get_mut(index)
    if element is not None:
        total = x.dtype(0)
        for j in range(x.shape[1]):
            total += x[index.get(), j]
        element.value = total


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_generic_kernel_takes_a_matrix_of_either_type(dtype: Any) -> None:
    x = uniform(33, 31, dtype=dtype)
    sums = generic_sums(h2d(x), h2d(np.zeros(33, dtype))).last().to_host().sync()
    assert sums.dtype == dtype
    assert np.allclose(sums, x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-4)


@device
def row_sum(x: Slice2[f32], row: i64) -> f32:
    total = f32(0)
    for j in range(x.shape[1]):
        total += x[row, j]
    return total


@device
def column_of_width(y: DisjointSlice2[f32]) -> Any:
    return thread.index_2d(y.shape[1])


@kernel(block=(8, 8))
def through_device_functions(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    index = column_of_width(y)
    if index is not None:
        element = y.get_mut(index)
        if element is not None:
            element.value = row_sum(x, thread.index_2d_row())


def test_device_functions_take_matrices_and_their_widths() -> None:
    x = uniform(9, 11)
    y = through_device_functions(h2d(x), zeros((9, 3))).last().to_host().sync()
    assert np.allclose(y, np.repeat(x.sum(1)[:, None], 3, 1), atol=1e-5)


@kernel(block=32)
def flat_reads(x: Slice2[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    row = x.row(index.get())
    if element is not None and row is not None:
        total = f32(0)
        for value in row:
            total += value
        element.value = total + x.flat[0] + x.unchecked[0, 1]


def test_the_flat_form_has_elements_and_unchecked_reads_have_both_indices() -> None:
    x = uniform(33, 31)
    y = flat_reads(h2d(x), zeros(33)).last().to_host().sync()
    assert np.allclose(y, x.sum(1) + x[0, 0] + x[0, 1], atol=1e-4)


@kernel(block=32)
def unchecked_writes(y: DisjointSlice2[f32]) -> None:
    index = thread.index_1d().get()
    if index < y.shape[0]:
        for j in range(y.shape[1]):
            y.unchecked_mut[index, j] = f32(index * 100 + j)


def test_unchecked_writes_reach_the_element_of_both_indices() -> None:
    y = unchecked_writes[2, 32](zeros((33, 5))).first().to_host().sync()
    assert np.array_equal(y, np.arange(33)[:, None] * 100 + np.arange(5))


@kernel(block=(8, 8), requires=("x.shape[1] == y.shape[0]", "len(x) == y.shape[1]"), deny_checks=True)
def transposed(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    index = thread.index_2d(y.shape[1])
    if index is not None:
        element = y.get_mut(index)
        if element is not None:
            element.value = x[thread.index_2d_col(), thread.index_2d_row()]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_contract_about_axes_proves_the_checks(shape: tuple[int, int]) -> None:
    x = uniform(*shape)
    assert {check.place for check in transposed.checks()} == {"proved"}
    result = transposed(h2d(x).sync(), zeros(shape[::-1]).sync()).last().to_host().sync()
    assert np.array_equal(result, x.T)


@pytest.mark.parametrize("given", [lambda op: op, lambda op: op.sync()])
def test_a_launch_checks_a_contract_about_axes(given: Callable[[Any], Any]) -> None:
    with pytest.raises(LaunchError, match=re.escape("requires x.shape[1] == y.shape[0], but x.shape[1] is 7")):
        transposed(given(zeros((5, 7))), given(zeros((6, 5))))
    with pytest.raises(LaunchError, match=re.escape("requires x.shape[0] == y.shape[1]")):
        transposed(given(zeros((5, 7))), given(zeros((7, 6))))


@pytest.mark.parametrize("given", [lambda op: op, lambda op: op.sync()])
@pytest.mark.parametrize("shape", [(35,), (5, 7, 1), ()])
def test_a_box_with_other_axes_is_refused(given: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"parameter x: .*Slice2\[f32\] takes one of 2 axes"):
        copied(0, 0, given(zeros(shape)), zeros((5, 7)))
    with pytest.raises(ArgumentError, match=r"parameter y: .*DisjointSlice2\[f32\] takes one of 2 axes"):
        copied(0, 0, zeros((5, 7)), given(zeros(shape)))


def test_a_strided_view_is_refused_and_its_copy_taken() -> None:
    x = uniform(7, 5)
    view = h2d(x).sync().T
    with pytest.raises(ArgumentError, match=r"strided view.*Slice2\[f32\] takes contiguous memory"):
        copied(0, 0, view, zeros((5, 7)))
    assert np.array_equal(copied(0, 0, dup(view), zeros((5, 7))).last().to_host().sync(), x.T)


def test_a_flat_slice_takes_a_matrix_as_before() -> None:
    x = uniform(8, 4)
    assert np.array_equal(doubled_fours(h2d(x), zeros((8, 4))).last().to_host().sync(), 2 * x)


@kernel(block=(8, 8))
def two_outputs(x: Slice2[f32], y: DisjointSlice2[f32], z: DisjointSlice2[f32]) -> None:
    index = thread.index_2d(y.shape[1])
    if index is not None:
        first, second = y.get_mut(index), z.get_mut(index)
        if first is not None:
            first.value = f32(1)
        if second is not None:
            second.value = f32(2)


def test_one_index_opens_outputs_of_different_shapes_each_within_its_own() -> None:
    _, y, z = two_outputs[(2, 2), (8, 8)](zeros((1, 1)), zeros((9, 11)), zeros((11, 3))).sync()
    assert d2h(y).sync().all()
    wanted = np.full((11, 3), 2)
    assert np.array_equal(d2h(z).sync(), wanted)


def test_outputs_of_one_memory_have_the_same_rows() -> None:
    whole = zeros((6, 4)).sync()
    two_outputs(zeros((1, 1)), whole, whole).sync()
    with pytest.raises(ArgumentError, match="share memory"):
        two_outputs(zeros((1, 1)), whole, whole.reshape(4, 6))


def test_the_annotation_with_a_number_of_axes_is_the_same() -> None:
    @kernel(block=(8, 8))
    def by_number(x: Slice[f32, 2], y: DisjointSlice[f32, 2]):  # type: ignore[no-untyped-def, type-arg, misc]
        index = thread.index_2d(y.shape[1])
        if index is not None:
            element = y.get_mut(index)
            if element is not None:
                element.value = x[thread.index_2d_row(), thread.index_2d_col()]

    assert [parameter.annotation for parameter in by_number.parameters] == ["Slice2[f32]", "DisjointSlice2[f32]"]
    x = uniform(9, 5)
    assert np.array_equal(by_number(h2d(x), zeros((9, 5))).last().to_host().sync(), x)


def refused(function: Callable[..., None], problem: str) -> None:
    with pytest.raises(CompileError, match=re.escape(problem)):
        kernel(function).ptx()


def test_a_kernel_is_refused_for_a_wrong_use() -> None:
    def one_index(x: Slice2[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[0]  # type: ignore[index]

    def a_float(x: Slice2[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[0, 1 / 2]  # type: ignore[index]

    def write_to_input(x: Slice2[f32]) -> None:
        x[0, 0] = f32(1)  # type: ignore[index]

    def write_by_integers(y: DisjointSlice2[f32]) -> None:
        y[0, 0] = f32(1)  # type: ignore[index]

    def read_of_atomic(y: AtomicSlice2[f32]) -> None:
        y[0, 0] = f32(1)  # type: ignore[index]

    def flat_output(y: DisjointSlice2[f32]) -> None:
        y.flat.get_mut(thread.index_1d())  # type: ignore[attr-defined]

    def rows_and_columns_of_three(y: DisjointSlice3[f32]) -> None:
        index = thread.index_2d(y.shape[1])
        if index is not None:
            y.get_mut(index)

    def a_width_of_its_own(y: DisjointSlice2[f32]) -> None:
        index = thread.index_2d(y.shape[thread.index_2d_row()])  # type: ignore[misc]
        if index is not None:
            y.get_mut(index)

    refused(one_index, "x is a Slice2[f32], which has 2 axes, and the index 1")
    refused(a_float, "x[…] takes integers, not f64")
    refused(write_to_input, "x is a Slice2[f32], which is read-only")
    refused(write_by_integers, "y is a DisjointSlice2[f32], which has no [...]")
    refused(read_of_atomic, "y is an AtomicSlice2, which has no [...]")
    refused(flat_output, "y is a DisjointSlice2[f32], which has no .flat")
    refused(
        rows_and_columns_of_three,
        "y is a DisjointSlice3[f32]: take its ThreadIndex from thread.index_3d() or thread.index_1d()",
    )
    refused(a_width_of_its_own, "which may differ between threads")


def test_an_annotation_or_a_contract_of_axes_that_do_not_exist_is_refused() -> None:
    def six(x: Slice[f32, 6]) -> None: ...  # type: ignore[type-arg]

    def tiles_of_three(x: DisjointSlice3[f32, RowMajorTiles(2, 2)]) -> None: ...  # type: ignore[valid-type]

    refused(six, "every slice its number of axes, 1 to 5, an AtomicSlice up to 3")
    refused(tiles_of_three, "RowMajorTiles are of a matrix, and this slice has 3 axes")

    def contracted(x: Slice2[f32], y: Slice[f32]) -> None: ...

    with pytest.raises(CompileError, match=re.escape("takes x.shape[2]; x has the axes 0 to 1")):
        kernel(requires=("x.shape[2] > 0",))(contracted)
    with pytest.raises(CompileError, match=re.escape("takes the shape of y, which has no axes to choose from")):
        kernel(requires=("y.shape[0] > 0",))(contracted)


@kernel(block=32, sanitize=("memory",))
def past_the_matrix(x: Slice2[f32], y: DisjointSlice[f32], row: i64) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x.unchecked[row, 0]


def test_the_sanitizer_knows_where_a_matrix_ends(device: str) -> None:
    if device == "cuda":
        pytest.skip("the sanitizer is the CPU device's")
    x = h2d(uniform(5, 7)).sync()
    assert d2h(past_the_matrix(x, zeros(1), 4).sync()[1]).sync()[0] == d2h(x).sync()[4, 0]
    with pytest.raises(SanitizerError) as caught:
        past_the_matrix(x, zeros(1), 5).sync()
    assert (caught.value.kind, caught.value.what, caught.value.offset) == ("out-of-bounds", "x", 5 * 7 * 4)


@kernel(block=(16, 16))
def transposed_by_tiles(x: Slice2[f32], y: DisjointSlice2[f32], past: i64) -> None:
    tile = SharedArray((16, 17), f32)
    i, j = thread.thread_idx.y, thread.thread_idx.x
    row, col = thread.block_idx.x * 16 + i, thread.block_idx.y * 16 + j
    if row < x.shape[0] and col < x.shape[1]:
        tile[i, j] = x[row, col + past]
    thread.sync_threads()
    index = thread.index_2d(y.shape[1])
    if index is not None:
        element = y.get_mut(index)
        if element is not None:
            element.value = tile[j, i]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_kernel_with_barriers_transposes(shape: tuple[int, int]) -> None:
    x = uniform(*shape)
    y = transposed_by_tiles(h2d(x), zeros(shape[::-1]), 0).unzip()[1].to_host().sync()
    assert np.array_equal(y, x.T)


def test_where_threads_meet_a_thread_past_an_axis_goes_on_with_zero() -> None:
    x, y = uniform(20, 5), zeros((5, 20)).sync()
    with pytest.raises(BoundsError) as caught:
        transposed_by_tiles(h2d(x), y, 1).sync()
    assert (caught.value.axis, caught.value.index, caught.value.length) == (1, 5, 5)
    assert caught.value.shape == (20, 5)
    assert 0 <= caught.value.indices[0] < 20
    assert caught.value.indices[1] == 5
    wanted = np.zeros((5, 20), np.float32)
    wanted[:4] = x[:, 1:].T
    assert np.array_equal(d2h(y).sync(), wanted)


def test_a_graph_launches_it() -> None:
    x = uniform(9, 11)
    graph = copied(0, 0, h2d(x).sync(), zeros((9, 11)).sync()).last().graph()
    graph.launch().sync()
    assert np.array_equal(d2h(graph.take_output()).sync(), x)
