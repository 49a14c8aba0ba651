"""Output tiles: each element in one thread's tile, none outside, free constant positions, and what stops the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide import (
    DisjointSlice,
    MatrixTileRef,
    RowMajorTiles,
    Slice,
    Tiles,
    d2h,
    device,
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
from oxide.compiler.kernel.kernel import Kernel
from oxide.errors import ArgumentError, BoundsError, CompileError, LaunchError
from tests.compiler.assembler import assembled, needs_ptxas
from tests.compiler.bounds.test_loop_ptx import hot_loop
from tests.compiler.native_runner import fault_of, run_blocks

INTEGER_COMPARISON = re.compile(r"setp\.\w+\.[bsu]\d")  # those of a tile's numbers are of floats


@kernel(block=64)
def relu_by_four(x: Slice[f32], y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
    index = thread.index_1d()
    first = index.get() * 4
    tile = y.get_mut(index)
    if tile is not None:
        for j in range(4):
            tile[j] = max(x[first + j], f32(0.0))
    rest = y.get_remainder(index)
    if rest is not None:
        for j in range(len(rest)):
            rest[j] = max(x[first + j], f32(0.0))


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 255, 256, 257, 1001])
def test_the_grid_follows_from_the_tiled_output_and_the_remainder_is_written(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    launch = relu_by_four(h2d(x), zeros(n))
    y = launch.last().to_host().sync()
    assert np.array_equal(y, np.maximum(x, 0))


def test_a_tiled_output_has_a_thread_a_tile() -> None:
    for n, blocks in ((0, 1), (1, 1), (256, 1), (257, 2), (512, 2), (513, 3)):
        launch = relu_by_four(zeros(n).sync(), zeros(n).sync())
        assert launch._config.grid == (blocks, 1, 1)  # type: ignore[attr-defined]
        launch.sync()


@kernel
def count_by_three(out: DisjointSlice[i32, Tiles[Literal[3]]]) -> None:
    index = thread.index_1d()
    tile = out.get_mut(index)
    if tile is not None:
        for j in range(len(tile)):
            tile[j] += 1
    rest = out.get_remainder(index)
    if rest is not None:
        for j in range(len(rest)):
            rest[j] += 100


@given(st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_every_element_is_in_just_one_tile_or_remainder(n: int) -> None:
    out = np.zeros(n, np.int32)
    record = run_blocks(count_by_three, (2, 1, 1), (32, 1, 1), out)
    assert fault_of(count_by_three, record) is None
    whole = n // 3 * 3
    assert np.array_equal(out, [1] * whole + [100] * (n - whole))


@kernel
def count_tiles_of_matrix(width: u32, out: DisjointSlice[i32, RowMajorTiles[Literal[2], Literal[3]]]) -> None:
    index = thread.index_2d(width)
    if index is not None:
        tile = out.get_mut(index)
        if tile is not None:
            for i in range(2):
                for j in range(3):
                    tile[i, j] += 1
        rest = out.get_remainder(index)
        if rest is not None:
            rows, cols = rest.shape
            for i in range(rows):
                for j in range(cols):
                    rest[i, j] += 100


@given(st.integers(0, 9), st.integers(0, 14), st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_every_element_of_a_matrix_is_in_just_one_tile_or_remainder(height: int, width: int, more: int) -> None:
    more = min(more, max(0, width - 1))
    out = np.zeros(height * width + more, np.int32)
    record = run_blocks(count_tiles_of_matrix, (2, 2, 1), (3, 3, 1), width, out)
    assert fault_of(count_tiles_of_matrix, record) is None
    expected = np.full((height, width), 100)
    expected[: height // 2 * 2, : width // 3 * 3] = 1
    assert np.array_equal(out[: height * width].reshape(height, width), expected)
    assert not out[height * width :].any(), "a row that is cut short has no tile"


@kernel(block=(4, 2))
def numbers(width: u32, out: DisjointSlice[f64, RowMajorTiles[Literal[2], Literal[2]]]) -> None:
    index = thread.index_2d(width)
    if index is not None:
        row, col = thread.index_2d_row() * 2, thread.index_2d_col() * 2
        number_tile(out.get_mut(index), row, col, width)
        number_tile(out.get_remainder(index), row, col, width)


@device
def number_tile(tile: MatrixTileRef[float] | None, row: i64, col: i64, width: u32) -> None:
    if tile is not None:
        for i in range(tile.shape[0]):
            for j in range(tile.shape[1]):
                tile[i, j] = (row + i) * width + col + j


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (7, 9), (8, 16), (17, 3)])
def test_the_grid_of_a_matrix_of_tiles_follows_from_its_shape(shape: tuple[int, int]) -> None:
    result = numbers(shape[1], zeros(shape, f64)).last().to_host().sync()
    assert np.array_equal(result, np.arange(shape[0] * shape[1], dtype=np.float64).reshape(shape))


def test_no_grid_follows_from_a_layout_that_the_shape_or_block_does_not_fit() -> None:
    with pytest.raises(LaunchError, match="no grid follows from an output of shape"):
        numbers(4, zeros(16, f64))
    flat = kernel(block=(4, 2))(relu_by_four.function)
    with pytest.raises(LaunchError, match="no grid follows from an output of shape"):
        flat(zeros((4, 4)), zeros((4, 4)))


@kernel
def rows_past_everything(width: i64, out: DisjointSlice[i32, RowMajorTiles[Literal[65536], Literal[1]]]) -> None:
    index = thread.index_2d(width)
    if index is not None:
        tile = out.get_mut(index)
        if tile is not None:
            tile[65535, 0] = 1


# The first width times this many rows of tiles is 1 modulo 2**48: 2**16 times that is 2**16 again in 64 bits.
ROWS, WIDTH = next((rows, width) for rows in range(4097, 2**16, 2) if (width := pow(rows, -1, 2**48)) < 2**36)


@pytest.mark.parametrize("width", [WIDTH, 2**35, 2**36 - 1, 2**36, 2**47, 2**63 - 1, -1])
def test_products_of_rows_and_widths_that_would_wrap_give_none(width: int) -> None:
    out = np.zeros(70_000, np.int32)
    record = run_blocks(rows_past_everything, (1, ROWS, 1), (1, 1, 1), width, out)
    assert fault_of(rows_past_everything, record) is None
    assert not out.any()
    run_blocks(rows_past_everything, (1, 3, 1), (1, 1, 1), 1, out)
    assert out.sum() == 1
    assert out[65535] == 1


def vector_accesses(ptx: str) -> list[str]:
    return re.findall(r"(?:ld|st)\.global\.(?:v\d\.)?b\d+", ptx)


@kernel
def clip_by_four(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
    tile = y.get_mut(thread.index_1d())
    if tile is not None:
        for j in range(4):
            tile[j] = max(tile[j], f32(0.0))


@kernel
def clip_rows(y: DisjointSlice[f32, RowMajorTiles[Literal[2], Literal[4]]]) -> None:
    index = thread.index_2d(1024)
    if index is not None:
        tile = y.get_mut(index)
        if tile is not None:
            for i in range(2):
                for j in range(4):
                    tile[i, j] = max(tile[i, j], f32(0.0))


def test_a_tile_moves_by_vectors_where_its_alignment_is_known() -> None:
    assert vector_accesses(clip_by_four.ptx()) == ["ld.global.v4.b32", "st.global.v4.b32"]
    assert vector_accesses(clip_rows.ptx()) == ["ld.global.v4.b32", "st.global.v4.b32"] * 2
    odd = count_by_three.ptx()
    assert not [access for access in vector_accesses(odd) if ".v4." in access], "12 bytes are no multiple of 16"


def test_constant_and_counted_positions_cost_nothing() -> None:
    for tiled in (clip_by_four, clip_rows):
        assert {check.place for check in tiled.checks()} == {"proved"}
        assert "atom." not in tiled.ptx(), "no check is left that could fail"
        assert len(INTEGER_COMPARISON.findall(tiled.ptx())) <= 5


@needs_ptxas
@pytest.mark.parametrize("each", [relu_by_four, count_by_three, count_tiles_of_matrix, numbers, clip_rows])
def test_the_assembler_takes_the_ptx_and_spills_nothing(each: Kernel) -> None:
    assert " 0 bytes spill stores" in assembled(each.ptx())


@kernel
def at(j: i64, y: DisjointSlice[i32, Tiles[Literal[4]]]) -> None:
    tile = y.get_mut(thread.index_1d())
    if tile is not None:
        tile[j] = 1


@kernel
def at_place(i: i64, j: i64, y: DisjointSlice[i32, RowMajorTiles[Literal[2], Literal[4]]]) -> None:
    index = thread.index_2d(8)
    if index is not None:
        tile = y.get_mut(index)
        if tile is not None:
            tile[i, j] = 1


@kernel
def in_rest(j: i64, y: DisjointSlice[i32, Tiles[Literal[4]]]) -> None:
    rest = y.get_remainder(thread.index_1d())
    if rest is not None:
        rest[j] = 1


@kernel
def untested(y: DisjointSlice[i32, Tiles[Literal[4]]]) -> None:
    y.get_mut(thread.index_1d())[0] = 1  # type: ignore[index]


@kernel
def untested_rest(y: DisjointSlice[i32, Tiles[Literal[4]]]) -> None:
    rest = y.get_remainder(thread.index_1d())
    rest[0] = len(rest)  # type: ignore[index, arg-type]


def faulty(each: Kernel, size: int, *args: int) -> tuple[Any, np.ndarray[Any, Any]]:
    out = np.zeros(size, np.int32)
    return fault_of(each, run_blocks(each, (1, 1, 1), (1, 1, 1), *args, out)), out


@pytest.mark.parametrize("j", [4, -1, 2**63 - 1, -(2**63)])
def test_a_variable_position_is_checked_against_the_tile(j: int) -> None:
    fault, out = faulty(at, 8, j)
    assert isinstance(fault, BoundsError)
    assert (fault.parameter, fault.index, fault.length) == ("a tile of y", j, 4)
    assert not out.any(), "the next thread's tile, too, is untouched"
    fault, out = faulty(at_place, 16, 1, j)
    assert isinstance(fault, BoundsError)
    assert (fault.parameter, fault.axis, fault.index, fault.length) == ("a tile of y", 1, j, 4)
    assert (fault.indices, fault.shape) == ((1, j), (2, 4))
    assert not out.any()


def test_a_position_in_a_remainder_is_checked_against_what_there_is() -> None:
    fault, out = faulty(in_rest, 3, 2)
    assert fault is None
    assert out.tolist() == [0, 0, 1]
    fault, out = faulty(in_rest, 3, 3)
    assert (fault.parameter, fault.index, fault.length) == ("a remainder of y", 3, 3)
    assert not out.any()


def test_a_tile_used_without_a_look_is_a_fault() -> None:
    fault, out = faulty(untested, 3)
    assert (fault.parameter, fault.index, fault.length) == ("the tiles of y", 0, 0)
    assert not out.any()
    fault, out = faulty(untested_rest, 4)
    assert (fault.parameter, fault.index, fault.length) == ("a remainder of y", 0, 0)
    assert not out.any()


def refused(body: Callable[..., None], text: str) -> None:
    with pytest.raises(CompileError, match=text) as raised:
        kernel(body).specialize()
    assert str(raised.value).startswith(f"{__file__}:")


def test_what_a_tile_does_not_allow_is_a_compile_error() -> None:
    def past_the_tile(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
        tile = y.get_mut(thread.index_1d())
        if tile is not None:
            tile[4] = 1.0

    def read_before_it(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
        tile = y.get_mut(thread.index_1d())
        if tile is not None:
            tile[-1] += 1.0

    def past_a_row(y: DisjointSlice[f32, RowMajorTiles[Literal[2], Literal[4]]]) -> None:
        index = thread.index_2d(8)
        if index is not None:
            tile = y.get_mut(index)
            if tile is not None:
                tile[1, 4] = 1.0

    def one_number_of_two(y: DisjointSlice[f32, RowMajorTiles[Literal[2], Literal[4]]]) -> None:
        index = thread.index_2d(8)
        if index is not None:
            tile = y.get_mut(index)
            if tile is not None:
                tile[1] = 1.0  # type: ignore[index]

    def integer_index(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
        y.get_mut(3)  # type: ignore[call-overload]

    def brackets(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
        y[0] = 1.0  # type: ignore[index]

    def index_1d_of_a_matrix(y: DisjointSlice[f32, RowMajorTiles[Literal[2], Literal[4]]]) -> None:
        y.get_mut(thread.index_1d())

    def own_width(y: DisjointSlice[f32, RowMajorTiles[Literal[2], Literal[4]]]) -> None:
        y.get_mut(thread.index_2d(thread.index_2d_row() + 5))  # type: ignore[call-overload]

    def plain_remainder(y: DisjointSlice[f32]) -> None:
        y.get_remainder(thread.index_1d())  # type: ignore[misc]

    def float_position(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
        tile = y.get_mut(thread.index_1d())
        if tile is not None:
            tile[0.5] = 1.0  # type: ignore[index]

    def float_in_integer(y: DisjointSlice[i32, Tiles[Literal[4]]]) -> None:
        tile = y.get_mut(thread.index_1d())
        if tile is not None:
            tile[0] = 1.5  # type: ignore[assignment]

    refused(past_the_tile, "position 4 is outside a tile of y: a tile is 4, and positions begin at 0")
    refused(read_before_it, "position -1 is outside a tile of y")
    refused(past_a_row, r"position \(1, 4\) is outside a tile of y: a tile is \(2, 4\)")
    refused(one_number_of_two, "a tile of y has 2 axes, and the index 1")
    refused(integer_index, "y.get_mut takes a ThreadIndex, not i64")
    refused(brackets, r"y is a DisjointSlice\[f32, Tiles\(4\)\], which has no \[...\]")
    refused(index_1d_of_a_matrix, r"take its ThreadIndex from thread.index_2d\(width\)")
    refused(own_width, "may differ between threads")
    refused(plain_remainder, "only an output with a layout, as Tiles")
    refused(float_position, "an index of a tile of y is an integer, not f64")
    refused(float_in_integer, "the element is i32 and the value is f64")


def test_layouts_are_read_from_annotations() -> None:
    def plain(y: DisjointSlice[f32, Tiles(4)]) -> None:  # type: ignore[valid-type]
        pass

    def two(y: DisjointSlice[f32, RowMajorTiles(2, 4)]) -> None:  # type: ignore[valid-type]
        pass

    assert kernel(plain).parameters[0].annotation == "DisjointSlice[f32, Tiles(4)]"
    assert kernel(two).parameters[0].annotation == "DisjointSlice[f32, RowMajorTiles(2, 4)]"
    assert Tiles[Literal[4]] == Tiles(4)  # type: ignore[comparison-overlap]
    assert RowMajorTiles[Literal[2], Literal[4]] == RowMajorTiles(2, 4)  # type: ignore[comparison-overlap]

    def on_an_input(x: Slice[f32, Tiles(4)]) -> None:  # type: ignore[type-arg, valid-type]
        pass

    def no_layout(x: DisjointSlice[f32, 6]) -> None:  # type: ignore[valid-type]
        pass

    with pytest.raises(CompileError):
        kernel(on_an_input)
    with pytest.raises(CompileError, match=r"takes a layout, Tiles\(n\) or RowMajorTiles\(r, c\)"):
        kernel(no_layout)
    for size in (0, -1, 2.0, True, 2**16 + 1):
        with pytest.raises(TypeError, match="a tile's side is a whole number from 1 to 65536"):
            Tiles(size)  # type: ignore[arg-type]


@device
def clear(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
    tile = y.get_mut(thread.index_1d())
    if tile is not None:
        for j in range(4):
            tile[j] = 0.0


def test_a_device_function_takes_just_the_layout_that_it_declares() -> None:
    def fits(y: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
        clear(y)

    def other_layout(y: DisjointSlice[f32, Tiles[Literal[2]]]) -> None:
        clear(y)  # type: ignore[arg-type]

    y = np.ones(9, np.float32)
    run_blocks(kernel(fits), (1, 1, 1), (8, 1, 1), y)
    assert y.tolist() == [0] * 8 + [1]
    refused(other_layout, r"parameter y is DisjointSlice\[f32, Tiles\(4\)\] and the value is")


def test_a_piece_that_begins_in_the_middle_of_a_vector_is_refused() -> None:
    whole = zeros(64).sync()
    odd, even = whole.split(2)[1], whole.split(4)[1]
    with pytest.raises(ArgumentError, match=r"no multiple of 16.*partition a box at multiples of a tile"):
        relu_by_four(zeros(odd.size), odd)
    relu_by_four(zeros(even.size), even).sync()


def test_the_hot_loop_over_a_remainder_is_free_of_checks() -> None:
    assert not [line for line in hot_loop(relu_by_four.ptx()) if "call" in line or "trap" in line]


def test_a_kernel_may_read_neighbours_in_a_loop_and_write_tiles() -> None:
    @kernel
    def greatest_of_each(x: Slice[f32], y: DisjointSlice[f32, Tiles[Literal[8]]]) -> None:
        index = thread.index_1d()
        tile = y.get_mut(index)
        if tile is not None:
            greatest = x[0]
            for j in range(64):
                greatest = max(greatest, x[j])
            for j in range(8):
                tile[j] = greatest

    x = np.random.default_rng(5).standard_normal(64).astype(np.float32)
    _, y = greatest_of_each[1, 4](h2d(x), zeros(32)).sync()
    np.testing.assert_array_equal(d2h(y).sync(), np.full(32, x.max()))
