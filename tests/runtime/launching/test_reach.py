"""Launches that would leave something out: too few threads for an output, and no dynamic shared memory."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any, Literal

import numpy as np
import pytest

from oxide import (
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    DynamicSharedArray,
    Kernel,
    LaunchConfig,
    LaunchError,
    RowMajorTiles,
    Slice,
    Slice2,
    Tiles,
    d2h,
    f32,
    h2d,
    i64,
    kernel,
    thread,
    value,
    zeros,
)


def one_each(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = f32(1)


def four_each(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
    tile = y.get_mut(thread.index_1d())
    if tile is not None:
        tile[0] = f32(1)


def of_a_matrix(y: DisjointSlice[f32], width: i64) -> None:
    index = thread.index_2d(width)
    if index is not None:
        element = y.get_mut(index)
        if element is not None:
            element.value = f32(1)


def in_rows(y: DisjointSlice[f32, RowMajorTiles[Literal[2], Literal[2]]], width: i64) -> None:
    index = thread.index_2d(width)
    if index is not None:
        tile = y.get_mut(index)
        if tile is not None:
            tile[0, 0] = f32(1)


def freely(y: DisjointSlice[f32]) -> None:
    index = thread.index_1d().get()
    for i in range(index, len(y), 32):
        y.unchecked_mut[i] = f32(1)


def warned(launch: Any) -> list[str]:
    """Returns the warnings of building and running a launch."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        launch().sync()
    assert all(entry.filename == __file__ for entry in caught)
    return [str(entry.message) for entry in caught]


def too_few(kernel_name: str, reached: int, shape: tuple[int, ...], instead: str) -> str:
    return (
        f"kernel {kernel_name}: the launch's threads reach {reached} of the {math.prod(shape)} elements of parameter "
        f"y, of shape {shape}, and the others are not written. Launch it with LaunchConfig.{instead}, or declare "
        "@kernel(partial=True) if that is meant"
    )


def in_elements(kernel_name: str, reached: int, size: int) -> str:
    return too_few(kernel_name, reached, (size,), f"for_num_elems({size}, 32)")


def in_a_matrix(y: DisjointSlice2[f32]) -> None:
    element = y.get_mut(thread.index_2d(y.shape[1]))
    if element is not None:
        element.value = f32(1)


def in_tiles_of_a_matrix(y: DisjointSlice2[f32, RowMajorTiles[Literal[2], Literal[4]]]) -> None:
    tile = y.get_mut(thread.index_2d(y.shape[1]))
    if tile is not None:
        for i in range(2):
            for j in range(4):
                tile[i, j] = f32(1)


def of_a_constant_width(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_2d(16))
    if element is not None:
        element.value = f32(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "grid", "block", "shape", "instead", "rest"),
    [
        (one_each, 1, 32, (33,), "for_num_elems(33, 32)", ()),
        (one_each, 2, 33, (67,), "for_num_elems(67, 33)", ()),
        (four_each, 1, 32, (129,), "for_num_elems(33, 32)", ()),
        (of_a_matrix, (1, 1), (8, 4), (5, 8), "for_shape((5, 8), (8, 4))", (8,)),
        (of_a_matrix, (1, 1), (8, 4), (3, 9), "for_shape((3, 9), (8, 4))", (9,)),
        (in_rows, (1, 1), (8, 4), (9, 16), "for_shape((5, 8), (8, 4))", (16,)),
        (in_a_matrix, (2, 1), (16, 16), (30, 10), "for_shape((30, 10), (16, 16))", ()),
        (in_a_matrix, 1, 256, (5, 8), "for_shape((5, 8))", ()),
        (in_a_matrix, (1, 1), (8, 4), (4, 9), "for_shape((4, 9), (8, 4))", ()),
        (in_tiles_of_a_matrix, (1, 1), (1, 8), (8, 8), "for_shape((4, 2), (1, 8))", ()),
        (of_a_constant_width, (1, 1), (8, 4), (30,), "for_shape((2, 16), (8, 4))", ()),
    ],
)
def test_the_first_launch_with_too_few_threads_warns(
    function: Any, grid: Any, block: Any, shape: Any, instead: str, rest: tuple[Any, ...]
) -> None:
    made: Kernel = kernel(function)
    whole = made[eval(f"LaunchConfig.{instead}")]
    box = zeros(shape).sync()
    for _ in range(2):
        assert warned(lambda: whole(box, *rest)) == []
    written = d2h(box).sync() > 0
    box = zeros(shape).sync()
    (said,) = warned(lambda: made[grid, block](box, *rest))
    reached = int(np.sum(d2h(box).sync()))
    if function in (four_each, in_rows):  # which write one element of a tile
        reached = 128
    else:
        assert written.all()
    assert said == too_few(function.__name__, reached, shape, instead)
    assert warned(lambda: made[grid, block](box, *rest)) == []


def test_a_matrix_of_another_shape_is_measured_again() -> None:
    launch = kernel(in_a_matrix)[LaunchConfig((2, 1), (16, 16))]
    wide, tall = zeros((10, 30)).sync(), zeros((30, 10)).sync()
    for _ in range(3):
        assert warned(lambda: launch(wide)) == []
    assert warned(lambda: launch(tall)) == [too_few("in_a_matrix", 160, (30, 10), "for_shape((30, 10), (16, 16))")]


def test_a_shape_has_whole_blocks_along_both_axes() -> None:
    assert LaunchConfig.for_shape((30, 10)) == LaunchConfig((1, 2), (16, 16))
    assert LaunchConfig.for_shape((5, 70), (32, 8)) == LaunchConfig((3, 1), (32, 8))
    assert LaunchConfig.for_shape((0, np.int64(3))) == LaunchConfig((1, 1), (16, 16))
    assert LaunchConfig.for_shape((5, 30, 10), (8, 8, 4)) == LaunchConfig((2, 4, 2), (8, 8, 4))
    assert LaunchConfig.for_shape((5, 30, 10)) == LaunchConfig((1, 2, 5), (16, 16))
    for wrong in ((3,), (3, 4, 5, 6), 7, (3, -1), (2.0, 3), (True, 3)):
        with pytest.raises(LaunchError, match=r"\(planes, rows, columns\), integers of 0"):
            LaunchConfig.for_shape(wrong)  # type: ignore[arg-type]


def test_a_launch_configuration_that_is_kept_is_measured_against_each_output() -> None:
    made: Kernel = kernel(one_each)
    launch = made[LaunchConfig(1, 32)]
    small, large = zeros(20).sync(), zeros(100).sync()
    for _ in range(3):
        assert warned(lambda: launch(small)) == []
    assert warned(lambda: launch(large)) == [in_elements("one_each", 32, 100)]


def test_an_output_that_an_operation_yields_is_measured_too() -> None:
    made: Kernel = kernel(one_each)
    assert warned(lambda: made[1, 32](zeros(100))) == [in_elements("one_each", 32, 100)]
    late: Kernel = kernel(one_each)
    box = zeros(100).sync()
    assert warned(lambda: late[1, 32](value(0).and_then(lambda _: value(box)))) == [in_elements("one_each", 32, 100)]


def test_a_second_output_that_is_larger_than_the_first_is_measured() -> None:
    @kernel(block=32)
    def both(x: DisjointSlice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        first, second = x.get_mut(index), y.get_mut(index)
        if first is not None:
            first.value = f32(1)
        if second is not None:
            second.value = f32(1)

    x, y = zeros(40).sync(), zeros(70).sync()
    assert warned(lambda: both(x, x[:0])) == []
    assert warned(lambda: both(x, y)) == [in_elements("both", 64, 70)]


def test_a_kernel_that_means_it_says_so() -> None:
    made: Kernel = kernel(partial=True)(one_each)
    box = zeros(100).sync()
    assert warned(lambda: made[1, 32](box)) == []
    np.testing.assert_array_equal(d2h(box).sync(), np.arange(100) < 32)


def test_threads_that_write_where_they_like_are_not_counted() -> None:
    made: Kernel = kernel(freely)
    box = zeros(100).sync()
    assert warned(lambda: made[1, 32](box)) == []
    assert d2h(box).sync().all()


def test_under_the_sanitizer_each_such_launch_warns(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cuda":
        pytest.skip("the sanitizer is the CPU device's")
    box = zeros(100).sync()
    sanitized: Kernel = kernel(one_each)
    monkeypatch.setenv("OXIDE_SANITIZE", "memory")
    for _ in range(2):
        assert in_elements("one_each", 32, 100) in warned(lambda: sanitized[1, 32](box))


@kernel(block=32)
def through_shared_memory(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    room = DynamicSharedArray(f32)
    if index.get() < len(x):
        room[thread.thread_idx.x] = x[index.get()]
    element = y.get_mut(index)
    if element is not None:
        element.value = room[thread.thread_idx.x]


def test_a_launch_without_the_dynamic_shared_memory_of_its_kernel_is_refused() -> None:
    x, y = h2d(np.arange(40, dtype=np.float32)).sync(), zeros(40).sync()
    wanted = (
        "kernel through_shared_memory uses dynamic shared memory, and the launch gives it none: write "
        "through_shared_memory[LaunchConfig((2, 1, 1), (32, 1, 1), shared_mem_bytes=…)](…)"
    )
    for launch in (through_shared_memory, through_shared_memory[2, 32], through_shared_memory[LaunchConfig(2, 32)]):
        with pytest.raises(LaunchError, match=f"^{re.escape(wanted)}$"):
            launch(x, y)
    launched = through_shared_memory[LaunchConfig(2, 32, shared_mem_bytes=128)](x, y)
    np.testing.assert_array_equal(d2h(launched.last()).sync(), np.arange(40))


# The width of index_2d


def of_width(y: DisjointSlice2[f32], width: i64) -> None:
    element = y.get_mut(thread.index_2d(width))
    if element is not None:
        element.value = f32(1)


def of_another(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    element = y.get_mut(thread.index_2d(x.shape[0]))
    if element is not None:
        element.value = f32(1)


def of_eleven(y: DisjointSlice2[f32]) -> None:
    element = y.get_mut(thread.index_2d(11))
    if element is not None:
        element.value = f32(1)


def tiles_of_width(y: DisjointSlice2[f32, RowMajorTiles[Literal[2], Literal[4]]], width: i64) -> None:
    index = thread.index_2d(width)
    tile = y.get_mut(index)
    if tile is not None:
        for i in range(2):
            for j in range(4):
                tile[i, j] = f32(1)


def of_several(x: DisjointSlice2[f32], y: DisjointSlice2[f32], width: i64) -> None:
    index = thread.index_2d(width)
    first, second = x.get_mut(index), y.get_mut(index)
    if first is not None:
        first.value = f32(1)
    if second is not None:
        second.value = f32(1)


def refused(launch: Any, *texts: str) -> None:
    with pytest.raises(LaunchError) as caught:
        launch()
    for text in ("the width of thread.index_2d is ", *texts):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("function", "shape", "right", "wrong", "shown"),
    [
        (of_width, (10, 11), (11,), (10,), "width, which is 10"),
        (of_width, (10, 11), (11,), (12,), "width, which is 12"),
        (of_width, (2, 5), (5,), (2,), "width, which is 2"),
        (of_width, (30, 40), (40,), (30,), "width, which is 30"),
        (tiles_of_width, (8, 8), (8,), (4,), "width, which is 4"),
    ],
)
def test_a_width_that_is_not_the_number_of_columns_is_refused(
    function: Any, shape: tuple[int, int], right: tuple[int], wrong: tuple[int], shown: str
) -> None:
    made: Kernel = kernel(block=(16, 16))(function)
    text = f"{shown}, and parameter y, of shape {shape}, has {shape[1]} columns"
    for _ in range(2):
        assert d2h(made(zeros(shape), *right).first()).sync().all()
        refused(lambda: made(zeros(shape), *wrong), text)
        box = zeros(shape).sync()
        refused(lambda: made[(2, 2), (16, 16)](box, *wrong), text)  # noqa: B023 - called in this turn
        late = value(0).and_then(lambda _: value(box))  # noqa: B023 - called in this turn
        refused(lambda: made(late, *wrong).sync(), text)  # noqa: B023 - called in this turn
        refused(lambda: made(box, value(wrong[0])).sync(), text)  # noqa: B023 - called in this turn
    meant: Kernel = kernel(block=(16, 16), partial=True)(function)
    assert meant(zeros(shape), *wrong).first().to_host().sync().any()


def test_a_width_that_is_a_constant_or_the_shape_of_another_slice() -> None:
    made: Kernel = kernel(block=(16, 16))(of_another)
    assert d2h(made(zeros((11, 3)), zeros((10, 11))).last()).sync().all()
    refused(
        lambda: made(zeros((10, 3)), zeros((10, 11))),
        "x.shape[0], which is 10",
        "has 11 columns: the threads from column 10 on",
    )
    constant: Kernel = kernel(block=(16, 16))(of_eleven)
    assert d2h(constant(zeros((10, 11))).first()).sync().all()
    refused(lambda: constant(zeros((11, 10))), "thread.index_2d is 11, and", "has 10 columns; use y.shape[1]")


def test_the_width_of_several_outputs_is_that_of_the_widest() -> None:
    made: Kernel = kernel(block=(16, 16))(of_several)
    for width in (11, 5):
        assert all(d2h(each).sync().all() for each in made(zeros((10, width)), zeros((10, 16 - width)), 11).sync()[:2])
    refused(lambda: made(zeros((10, 11)), zeros((10, 5)), 5), "width, which is 5, and parameter x, of shape (10, 11)")
    refused(lambda: made(zeros((10, 5)), zeros((10, 11)), 12), "width, which is 12, and parameter y")


def test_a_width_for_an_output_of_one_axis_and_for_threads_that_write_where_they_like_is_free() -> None:
    @kernel(block=(16, 16))
    def scattered(y: DisjointSlice2[f32], z: DisjointSlice[f32]) -> None:
        element = z.get_mut(thread.index_2d(y.shape[0]))
        if element is not None:
            element.value = f32(1)
            if thread.index_2d_col() == 0:
                for j in range(y.shape[1]):
                    y.scatter[thread.index_2d_row(), j] = f32(1)

    one: Kernel = kernel(block=(16, 16))(of_a_matrix)
    assert d2h(one[(1, 1), (16, 16)](zeros((10, 11)), 10).first()).sync().all()
    y, z = scattered[(1, 2), (16, 16)](zeros((10, 11)), zeros(100)).sync()
    assert d2h(y).sync().all()
    assert d2h(z).sync().all()


def test_the_number_of_the_outputs_rows_as_its_width_is_a_compile_error() -> None:
    def crosswise(y: DisjointSlice2[f32]) -> None:
        index = thread.index_2d(y.shape[0])
        if index is not None:
            element = y.get_mut(index)
            if element is not None:
                element.value = f32(1)

    wrong = (
        "the width of thread.index_2d is y.shape[0], the number of rows of y: the threads of further columns have no "
        "index; use y.shape[1], or declare @kernel(partial=True) if that is meant"
    )
    made: Kernel = kernel(block=(16, 16))(crosswise)
    meant: Kernel = kernel(block=(16, 16), partial=True)(crosswise)
    assert d2h(meant(zeros((10, 11))).first()).sync().sum() == 100
    for _ in range(2):
        with pytest.raises(CompileError, match=re.escape(wrong)):
            made(zeros((10, 10)))
