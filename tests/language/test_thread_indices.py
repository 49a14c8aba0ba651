"""``thread.index_2d()`` without a width and ``thread.index_3d()``: a thread's place along each axis of an output."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from oxide import (
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    DisjointSlice3,
    LaunchConfig,
    LaunchError,
    RowMajorTiles,
    Slice2,
    Slice3,
    ThreadIndex,
    Tiles,
    d2h,
    device,
    dup,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    zeros,
)
from oxide.errors import BoundsError


@kernel(block=(16, 16))
def numbered(y: DisjointSlice2[i64]) -> None:
    index = thread.index_2d()
    element = y.get_mut(index)
    if element is not None:
        element.value = i64(index.row * 1000 + index.column)


@kernel(block=(8, 4, 2))
def in_planes(x: Slice3[f32], y: DisjointSlice3[f32]) -> None:
    index = thread.index_3d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.plane, index.row, index.column] + f32(index.plane * 100 + index.row * 10 + index.column)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (1, 1), (31, 33), (1, 300), (130, 17)])
def test_a_thread_has_the_element_at_its_row_and_column(shape: tuple[int, int]) -> None:
    rows, columns = np.indices(shape)
    found = numbered(zeros(shape, i64)).first().and_then(d2h).sync()
    np.testing.assert_array_equal(found, rows * 1000 + columns)


@pytest.mark.parametrize("shape", [(0, 1, 2), (1, 1, 1), (3, 5, 9), (7, 2, 33)])
def test_a_thread_has_the_element_at_its_plane_row_and_column(shape: tuple[int, int, int]) -> None:
    planes, rows, columns = np.indices(shape)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    found = in_planes(h2d(x), zeros(shape)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(found, x + (planes * 100 + rows * 10 + columns).astype(np.float32))


def test_it_needs_no_width_and_does_not_meet_one() -> None:
    @kernel
    def both(w: i32, y: DisjointSlice[f32], z: DisjointSlice2[f32]) -> None:
        flat, index = thread.index_2d(w), thread.index_2d()
        if flat is not None:
            element = y.get_mut(flat)
            if element is not None:
                element.value = f32(flat.row * 10 + flat.column)
        other = z.get_mut(index)
        if other is not None:
            other.value = f32(index.row * 10 + index.column)

    _, y, z = both[2, (8, 8)](4, zeros(12), zeros((3, 4))).sync()
    expected = [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]
    np.testing.assert_array_equal(d2h(y).sync().reshape(3, 4), expected)
    np.testing.assert_array_equal(d2h(z).sync(), expected)


def test_it_is_never_none_and_a_device_function_takes_it() -> None:
    @device
    def set_to(y: Any, index: ThreadIndex, there: i32) -> None:
        if index is not None and there == 1:
            element = y.get_mut(index)
            if element is not None:
                element.value = 2.0

    @kernel(block=(4, 4))
    def fill(y: DisjointSlice2[f32]) -> None:
        index = thread.index_2d()
        set_to(y, index, 1 if index is not None else 0)

    np.testing.assert_array_equal(fill(zeros((3, 7))).first().and_then(d2h).sync(), np.full((3, 7), 2))


def test_tiles_of_a_matrix_need_no_width_but_numbered_ones_do() -> None:
    @kernel(block=(4, 4))
    def tiled(y: DisjointSlice2[f32, RowMajorTiles[Literal[2], Literal[4]]]) -> None:
        index = thread.index_2d()
        tile = y.get_mut(index)
        if tile is not None:
            for i in range(2):
                for j in range(4):
                    tile[i, j] = f32(index.row * 10 + index.column)
        rest = y.get_remainder(index)
        if rest is not None:
            rows, columns = rest.shape
            for i in range(rows):
                for j in range(columns):
                    rest[i, j] = f32(-1)

    rows, columns = np.indices((5, 9))
    expected = rows // 2 * 10 + columns // 4
    expected[4:], expected[:, 8:] = -1, -1
    np.testing.assert_array_equal(tiled(zeros((5, 9))).first().and_then(d2h).sync(), expected)

    @kernel(block=(4, 4))
    def numbered_tiles(y: DisjointSlice2[f32, Tiles[Literal[4]]]) -> None:
        tile = y.get_mut(thread.index_2d())
        if tile is not None:
            tile[0] = 1.0

    with pytest.raises(CompileError, match=r"whose tiles are numbered: take its ThreadIndex from thread.index_1d\(\)"):
        numbered_tiles.llvm_ir()


def flat(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_2d())
    if element is not None:
        element.value = f32(1)


def rectangles(y: DisjointSlice[f32, RowMajorTiles[Literal[2], Literal[2]]]) -> None:
    tile = y.get_mut(thread.index_2d())
    if tile is not None:
        tile[0, 0] = 1.0


def of_three(y: DisjointSlice3[f32]) -> None:
    element = y.get_mut(thread.index_2d())
    if element is not None:
        element.value = f32(1)


def of_two(y: DisjointSlice2[f32]) -> None:
    element = y.get_mut(thread.index_3d())
    if element is not None:
        element.value = f32(1)


def its_number(y: DisjointSlice2[i64]) -> None:
    index = thread.index_2d()
    element = y.get_mut(index)
    if element is not None:
        element.value = index.get()


def a_plane(y: DisjointSlice2[i64]) -> None:
    index = thread.index_2d()
    element = y.get_mut(index)
    if element is not None:
        element.value = index.plane


def a_row_of_one_axis(y: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = index.row


def one_or_the_other(y: DisjointSlice2[f32], flag: i32) -> None:
    index = thread.index_2d() if flag > 0 else thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = f32(1)


def an_argument(y: DisjointSlice3[f32]) -> None:
    element = y.get_mut(thread.index_3d(4))  # type: ignore[call-arg]
    if element is not None:
        element.value = f32(1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (flat, r"y is a DisjointSlice\[f32\]: take its ThreadIndex from thread.index_1d\(\), or as a matrix from "),
        (rectangles, r"whose tiles have a row and a column: take its ThreadIndex from thread.index_2d\(width\)"),
        (of_three, r"y is a DisjointSlice3\[f32\]: take its ThreadIndex from thread.index_3d\(\) or thread.index_1d"),
        (of_two, r"y is a DisjointSlice2\[f32\]: take its ThreadIndex from thread.index_2d\(\) or thread.index_1d"),
        (its_number, r"thread.index_2d\(\) has no number for .get\(\): use index.row, index.column, or give index_2d"),
        (a_plane, r"an index of thread.index_2d\(\) has no .plane: thread.index_3d\(\) gives an index of three axes"),
        (a_row_of_one_axis, r"an index of thread.index_1d\(\) has no .row, but a number, index.get\(\)"),
        (
            one_or_the_other,
            r"is ThreadIndex( of index_2d\(\))? in one place and ThreadIndex( of index_2d\(\))? in another",
        ),
        (an_argument, r"thread.index_3d\(\) takes no arguments; the call has 1"),
    ],
)
def test_what_has_no_meaning_is_refused_in_words(wrong: Callable[..., Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        kernel(wrong).llvm_ir()


def test_a_launch_with_further_axes_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"uses thread.index_2d\(\), which needs a launch with z of 1"):
        numbered[(1, 1, 2), (4, 4)](zeros((4, 4), i64)).sync()


def test_a_grid_follows_from_the_output_even_from_a_block_along_x() -> None:
    @kernel(block=32)
    def fill(y: DisjointSlice3[f32]) -> None:
        element = y.get_mut(thread.index_3d())
        if element is not None:
            element.value = f32(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(fill(zeros((3, 4, 70))).first().and_then(d2h).sync(), np.ones((3, 4, 70)))


@pytest.mark.parametrize(
    ("grid", "block", "reached", "instead"),
    [
        ((1, 1), (16, 16), 160, "LaunchConfig.for_shape((30, 10), (16, 16))"),
        (1, 512, 10, "LaunchConfig.for_shape((30, 10))"),
        ((1, 2), (8, 16), 240, "LaunchConfig.for_shape((30, 10), (8, 16))"),
    ],
)
def test_a_launch_that_leaves_out_rows_or_columns_warns(grid: Any, block: Any, reached: int, instead: str) -> None:
    said = f"the launch's threads reach {reached} of the 300 elements of parameter y, of shape (30, 10)"
    fresh = kernel(numbered.function)
    with pytest.warns(RuntimeWarning, match=re.escape(said)) as found:
        fresh[grid, block](zeros((30, 10), i64)).sync()
    assert instead in str(found[0].message)


def test_a_launch_that_leaves_out_planes_warns() -> None:
    fresh = kernel(in_planes.function)
    x = zeros((5, 4, 3)).sync()
    message = r"reach 36 of the 60 elements of parameter y.* Launch it with LaunchConfig.for_shape\(\(5, 4, 3\)"
    with pytest.warns(RuntimeWarning, match=message):
        fresh[(1, 1, 3), (4, 4)](x, dup(x)).sync()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh[LaunchConfig.for_shape((5, 4, 3), (4, 4, 2))](x, dup(x)).sync()


def test_reading_by_row_and_column_is_checked() -> None:
    @kernel(block=(4, 4))
    def shifted(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        index = thread.index_2d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[index.row, index.column + 1]

    with pytest.raises(BoundsError, match=r"index 4 of axis 1 is outside x"):
        shifted(zeros((1, 4)), zeros((1, 4))).sync()


def test_using_an_element_outside_is_a_fault_that_names_the_axis() -> None:
    @kernel
    def careless(y: DisjointSlice3[f32]) -> None:
        y.get_mut(thread.index_3d()).value = 1.0  # type: ignore[union-attr]

    with pytest.raises(BoundsError) as fault:
        careless[(1, 1, 2), (2, 2)](zeros((1, 2, 2))).sync()
    assert (fault.value.axis, fault.value.index, fault.value.length) == (0, 1, 1)
    assert fault.value.shape == (1, 2, 2)


def test_interpreted_it_is_the_same() -> None:
    boxes = zeros((5, 6), i64).sync(), zeros((2, 3, 4)).sync(), zeros((2, 3, 4)).sync()
    (found,) = numbered.interpret(boxes[0]).sync()
    np.testing.assert_array_equal(d2h(found).sync(), d2h(numbered(zeros((5, 6), i64)).first()).sync())
    _, found = in_planes.interpret(boxes[1], boxes[2]).sync()
    np.testing.assert_array_equal(d2h(found).sync(), d2h(in_planes(zeros((2, 3, 4)), zeros((2, 3, 4))).last()).sync())


def test_such_kernels_are_fused() -> None:
    @kernel(block=(16, 16))
    def doubled(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        index = thread.index_2d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[index.row, index.column] * 2

    x = np.random.default_rng(2).standard_normal((20, 30)).astype(np.float32)
    twice = doubled(h2d(x), zeros((20, 30))).last().and_then(lambda box: doubled(box, zeros((20, 30))).last())
    fused = twice.fused()
    assert fused.explain().startswith("launches: 2 -> 1")
    np.testing.assert_array_equal(d2h(fused).sync(), 4 * x)
