"""Rows, columns, tiles and vectors of slices of several axes: their elements, their faults by axis, and their cost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    AtomicSlice2,
    DisjointSlice,
    DisjointSlice2,
    DisjointSlice3,
    Slice,
    Slice2,
    Slice3,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    zeros,
    zip_exact,
)
from oxide.compiler.kernel.kernel import Kernel
from oxide.errors import BoundsError, CompileError, KernelAssertionError
from tests.compiler.assembler import assembled, needs_ptxas
from tests.compiler.bounds.test_loop_ptx import hot_loop, operations

SHAPES = [(0, 0), (0, 5), (5, 0), (1, 1), (31, 33), (33, 31), (1, 1000)]


def uniform(*shape: int, seed: int = 1, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Rows, columns and tiles


@kernel(block=(16, 16))
def product(a: Slice2[f32], b: Slice2[f32], c: DisjointSlice2[f32]) -> None:
    index = thread.index_2d(c.shape[1])
    row, column = a.row(thread.index_2d_row()), b.col(thread.index_2d_col())
    if index is not None and row is not None and column is not None:
        total = f32(0.0)
        for x, y in zip_exact(row, column):
            total += x * y
        element = c.get_mut(index)
        if element is not None:
            element.value = total


@kernel(block=(16, 16), unchecked=True)
def flat_product(a: Slice2[f32], b: Slice2[f32], c: DisjointSlice2[f32]) -> None:
    index = thread.index_2d(c.shape[1])
    row, column = thread.index_2d_row(), thread.index_2d_col()
    if index is not None and row < a.shape[0] and column < b.shape[1]:
        total = f32(0.0)
        for i in range(a.shape[1]):
            total += a.flat[row * a.shape[1] + i] * b.flat[i * b.shape[1] + column]
        element = c.get_mut(index)
        if element is not None:
            element.value = total


@pytest.mark.parametrize("size", [(0, 0, 0), (1, 1, 1), (3, 0, 2), (31, 33, 31), (33, 31, 1), (130, 65, 257)])
def test_a_product_of_rows_and_columns_is_numpys(size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b = uniform(m, k), uniform(k, n, seed=2)
    result = product(h2d(a), h2d(b), zeros((m, n))).last().to_host().sync()
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(result - wanted).max(initial=0) / max(1.0, np.abs(wanted).max(initial=0)) < 1e-5


def test_matrices_that_do_not_fit_are_a_fault_of_the_zip() -> None:
    with pytest.raises(KernelAssertionError, match="zip_exact got views of different lengths"):
        product(h2d(uniform(4, 5)), h2d(uniform(6, 4)), zeros((4, 4))).sync()


def test_the_loop_over_a_row_and_a_column_is_that_of_the_unchecked_one() -> None:
    hot, flat = hot_loop(product.ptx()), hot_loop(flat_product.ptx())
    assert operations(hot) == operations(flat)
    assert sum("ld.global.v4" in line for line in hot) >= 1
    assert not any("call" in line or "atom" in line for line in hot)
    assert {check.place for check in product.checks()} == {"proved"}


@needs_ptxas
def test_rows_and_columns_take_no_more_registers_than_unchecked_indices() -> None:
    def registers(each: Kernel) -> int:
        return int(re.search(r"Used (\d+) registers", assembled(each.ptx()))[1])  # type: ignore[index]

    assert registers(product) <= registers(flat_product)


@kernel
def hash_of_row(i: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
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
def hash_of_column(j: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        column = a.col(j)
        if column is not None:
            total = i64(0)
            for at in range(len(column)):
                total = total * 31 + column[at]
            element.value = total


@kernel
def hash_of_tile(row: i64, col: i64, rows: i64, cols: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = -1
        tile = a.tile(row, col, rows, cols)
        if tile is not None:
            total = i64(0)
            for line in tile:
                for x in line:
                    total = total * 31 + x
            element.value = total


def hashed(elements: Any) -> int:
    total = 0
    for x in elements.ravel().tolist():
        total = (total * 31 + x) % 2**64
    return total - 2**64 if total >= 2**63 else total


def given(each: Kernel, a: Any, *args: int) -> int:
    return int(each[1, 1](*args, h2d(a), zeros(1, i64)).last().to_host().sync()[0])


EDGES = [-(2**63), -(2**32), -1, 0, 1, 3, 4, 5, 6, 7, 2**31, 2**32, 2**62, 2**63 - 1]


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (5, 7)])
def test_a_row_or_column_is_none_just_where_it_does_not_exist(shape: tuple[int, int]) -> None:
    a = np.arange(1, shape[0] * shape[1] + 1, dtype=np.int64).reshape(shape)
    for at in EDGES:
        assert given(hash_of_row, a, at) == (hashed(a[at]) if 0 <= at < shape[0] else -1)
        assert given(hash_of_column, a, at) == (hashed(a[:, at]) if 0 <= at < shape[1] else -1)


def test_a_tile_is_none_just_where_an_element_would_be_outside_its_axis() -> None:
    a = np.arange(1, 36, dtype=np.int64).reshape(5, 7)
    random = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        row, col, rows, cols = (int(random.choice([*range(5)] * 6 + EDGES)) for _ in range(4))
        fits = min(row, col, rows, cols) >= 0 and row + rows <= 5 and col + cols <= 7
        inside += fits
        wanted = hashed(a[row : row + rows, col : col + cols]) if fits else -1
        assert given(hash_of_tile, a, row, col, rows, cols) == wanted, (row, col, rows, cols)
    assert 30 < inside < 170
    assert given(hash_of_tile, a, 1, 5, 2, 3) == -1, "past the width, and inside the memory"


@kernel
def used_untested(part: i32, i: i64, j: i64, rows: i64, cols: i64, a: Slice2[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        total = i64(0)
        if part == 0:
            for x in a.row(i):  # type: ignore[union-attr]
                total += x
        elif part == 1:
            for x in a.col(j):  # type: ignore[union-attr]
                total += x
        else:
            for line in a.tile(i, j, rows, cols):  # type: ignore[union-attr]
                total += len(line)
        element.value = total


@pytest.mark.parametrize(
    ("args", "axis", "index", "length"),
    [
        ((0, 5, 0, 0, 0), 0, 5, 5),
        ((0, -3, 0, 0, 0), 0, -3, 5),
        ((0, 2**62, 0, 0, 0), 0, 2**62, 5),
        ((1, 0, 7, 0, 0), 1, 7, 7),
        ((1, 0, -1, 0, 0), 1, -1, 7),
        ((2, 4, 0, 2, 7), 0, 5, 5),
        ((2, 0, 5, 5, 3), 1, 7, 7),
        ((2, 0, 0, 5, -2), 1, -2, 7),
        ((2, -9, 0, 2, 1), 0, -9, 5),
        ((2, 2**63 - 1, 0, 2**63 - 1, 1), 0, 2**63 - 1, 5),
    ],
)
def test_a_view_used_without_a_test_is_a_fault_that_names_the_axis(
    args: tuple[int, ...], axis: int, index: int, length: int
) -> None:
    with pytest.raises(BoundsError) as raised:
        used_untested[1, 1](*args, h2d(np.ones((5, 7), np.int64)), zeros(1, i64)).sync()
    fault = raised.value
    assert (fault.parameter, fault.axis, fault.index, fault.length) == ("a", axis, index, length)
    assert f"index {index} of axis {axis} is outside a, whose axis {axis} has {length} elements" in str(fault)


# Vectors


@kernel(block=(8, 8))
def copied_by_fours(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    row, col = thread.index_2d_row(), 4 * thread.index_2d_col()
    rows, cols = y.shape
    if row < rows and col < cols:
        if col + 4 <= cols and x.is_aligned(4) and y.is_aligned(4):
            a, b, c, d = x.load4((row, col))
            y.unchecked_mut.store4((row, col), a, b, c, d)
        else:
            for j in range(col, min(col + 4, cols)):
                y.unchecked_mut[row, j] = x[row, j]


@kernel
def moved_by_fours(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    row, col = thread.index_2d_row(), 4 * thread.index_2d_col()
    if row < x.shape[0] and col + 4 <= x.shape[1] and x.is_aligned(4) and y.is_aligned(4):
        a, b, c, d = x.load4((row, col))
        y.unchecked_mut.store4((row, col), a, b, c, d)


@kernel
def flat_moved_by_fours(rows: i64, cols: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    row, col = thread.index_2d_row(), 4 * thread.index_2d_col()
    if row < rows and col + 4 <= cols and x.is_aligned(4) and y.is_aligned(4):
        a, b, c, d = x.unchecked.load4(row * cols + col)
        y.unchecked_mut.store4(row * cols + col, a, b, c, d)


@pytest.mark.parametrize("shape", [*SHAPES, (31, 32), (3, 1000)])
def test_a_matrix_is_copied_by_vectors_within_its_rows(shape: tuple[int, int]) -> None:
    x = uniform(*shape)
    grid = (max(1, -(-shape[1] // 32)), max(1, -(-shape[0] // 8)))
    assert np.array_equal(copied_by_fours[grid, (8, 8)](h2d(x), zeros(shape)).last().to_host().sync(), x)


def faults(ptx: str) -> int:
    """The number of places that may record a fault."""
    return ptx.count("atom.relaxed.gpu.global.cas")


def test_after_is_aligned_a_vector_is_one_instruction_and_its_address_needs_no_check() -> None:
    ptx = copied_by_fours.ptx()
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx
    assert faults(moved_by_fours.ptx()) == 0
    assert faults(flat_moved_by_fours.ptx()) > 0, "nothing says that a row's length is a multiple"


@kernel
def sums_by_fours(x: Slice2[f32], y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        row = thread.index_1d().get()
        total = f32(0.0)
        for j in range(0, x.shape[1], 4):
            a, b, c, d = x.load4((row, j))
            total += a + b + c + d
        element.value = total


@kernel
def flat_sums_by_fours(n: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        row = thread.index_1d().get()
        total = f32(0.0)
        for j in range(0, n, 4):
            a, b, c, d = x.load4(row * n + j)
            total += a + b + c + d
        element.value = total


def test_a_loop_of_vectors_is_that_of_the_flat_form() -> None:
    hot, flat = hot_loop(sums_by_fours.ptx()), hot_loop(flat_sums_by_fours.ptx())
    assert operations(hot) == operations(flat)
    assert any("ld.global.v4" in line for line in hot)
    assert not any("atom" in line for line in hot)
    assert {check.place for check in sums_by_fours.checks() if check.parameter == "x"} == {"hoisted"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["i32", "i64", "u8", "f32", "f64"])
@pytest.mark.parametrize("count", [2, 4])
def test_every_type_and_both_lengths_with_two_and_three_axes(name: str, count: int) -> None:
    scalar = getattr(oxide, name)

    @kernel(block=32)
    def four(
        x: Slice2[scalar],  # type: ignore[valid-type]
        z: Slice3[scalar],  # type: ignore[valid-type]
        y: DisjointSlice2[scalar],  # type: ignore[valid-type]
        w: DisjointSlice3[scalar],  # type: ignore[valid-type]
    ) -> None:
        row = thread.index_1d().get()
        if row < x.shape[0] and x.is_aligned(4) and z.is_aligned(4) and y.is_aligned(4) and w.is_aligned(4):
            a, b, c, d = x.load4((row, 4))
            e, f, g, h = z.load4((row, 1, 0))
            y.unchecked_mut.store4((row, 0), d, c, b, a)
            a, b, c, d = x.unchecked.streaming.load4((row, 0))
            y.unchecked_mut.streaming.store4((row, 4), d, c, b, a)
            w.unchecked_mut.store4((row, 1, 4), e, f, g, h)
            w.unchecked_mut.store4((row, 0, 0), z.unchecked[row, 0, 0], f, g, h)

    @kernel(block=32)
    def two(
        x: Slice2[scalar],  # type: ignore[valid-type]
        z: Slice3[scalar],  # type: ignore[valid-type]
        y: DisjointSlice2[scalar],  # type: ignore[valid-type]
        w: DisjointSlice3[scalar],  # type: ignore[valid-type]
    ) -> None:
        row = thread.index_1d().get()
        if row < x.shape[0] and y.is_aligned(2):
            for j in range(0, 8, 2):
                a, b = x.load2((row, j))
                y.unchecked_mut.store2((row, j), b, a)
                e, f = z.unchecked.load2((row, j // 4, j % 4))
                w.unchecked_mut.store2((row, 1 - j // 4, j % 4), e, f)

    random = np.random.default_rng(1)
    x = random.integers(0, 200, (33, 8)).astype(scalar.dtype)
    z = random.integers(0, 200, (33, 2, 4 if count == 2 else 8)).astype(scalar.dtype)
    launch = (four if count == 4 else two)[2, 32]
    _, _, y, w = launch(h2d(x), h2d(z), zeros(x.shape, x.dtype), zeros(z.shape, z.dtype)).sync()
    got, three = (oxide.d2h(box).sync() for box in (y, w))
    wanted = np.zeros_like(z)
    if count == 4:
        assert np.array_equal(got, x[:, ::-1])
        wanted[:, 1, 4:] = z[:, 1, :4]
        wanted[:, 0, 0], wanted[:, 0, 1:4] = z[:, 0, 0], z[:, 1, 1:4]
    else:
        assert np.array_equal(got, x.reshape(33, 4, 2)[:, :, ::-1].reshape(33, 8))
        wanted = z[:, ::-1]
    assert np.array_equal(three, wanted)


@kernel
def one_vector(row: i64, col: i64, x: Slice2[f32], y: DisjointSlice[f32]) -> None:
    y.unchecked_mut[0] = x.load4((row, col))[2]


@kernel
def one_vector_of_three(i: i64, j: i64, k: i64, x: Slice3[f32], y: DisjointSlice[f32]) -> None:
    y.unchecked_mut[0] = x.load2((i, j, k))[1]


@pytest.mark.parametrize(
    ("at", "axis", "index"),
    [((0, 8), 1, 11), ((1, 12), 1, 12), ((3, 0), 0, 3), ((-1, 0), 0, -1), ((0, -4), 1, -4), ((0, 2**62), 1, 2**62)],
)
def test_a_vector_that_leaves_its_row_is_a_fault_that_names_the_axis(
    at: tuple[int, int], axis: int, index: int
) -> None:
    x = uniform(3, 10)
    with pytest.raises(BoundsError) as raised:
        one_vector[1, 1](*at, h2d(x), zeros(1)).sync()
    fault = raised.value
    assert (fault.parameter, fault.axis, fault.index, fault.length) == ("x", axis, index, (3, 10)[axis])
    assert fault.file == __file__


@pytest.mark.parametrize(("at", "axis", "index"), [((2, 0, 0), 0, 2), ((0, 3, 0), 1, 3), ((0, 0, 4), 2, 5)])
def test_each_of_three_axes_is_checked(at: tuple[int, int, int], axis: int, index: int) -> None:
    with pytest.raises(BoundsError) as raised:
        one_vector_of_three[1, 1](*at, h2d(uniform(2, 3, 5)), zeros(1)).sync()
    assert (raised.value.axis, raised.value.index, raised.value.length) == (axis, index, (2, 3, 5)[axis])


def test_the_address_decides_as_in_a_flat_slice() -> None:
    x = uniform(5, 6)
    with pytest.raises(KernelAssertionError, match=r"x\.load4\(…\) needs an address that is a multiple of 16 bytes"):
        one_vector[1, 1](1, 0, h2d(x), zeros(1)).sync()  # the second row begins after six elements
    for row, col in ((0, 0), (1, 2), (2, 0), (4, 0)):
        assert one_vector[1, 1](row, col, h2d(x), zeros(1)).last().to_host().sync()[0] == x[row, col + 2]


@kernel
def asked(x: Slice2[f32], z: DisjointSlice3[f32], y: DisjointSlice[i32]) -> None:
    y.unchecked_mut[0] = i32(x.is_aligned(2))
    y.unchecked_mut[1] = i32(x.is_aligned(4))
    y.unchecked_mut[2] = i32(z.is_aligned(2))
    y.unchecked_mut[3] = i32(z.is_aligned(4))


@pytest.mark.parametrize(("width", "answers"), [(8, [1, 1]), (6, [1, 0]), (7, [0, 0])])
def test_a_matrix_is_aligned_if_every_row_is(width: int, answers: list[int]) -> None:
    got = asked[1, 1](zeros((3, width)), zeros((2, 3, width)), zeros(4, i32)).last().to_host().sync()
    assert got.tolist() == answers * 2


def test_a_piece_that_begins_in_the_middle_of_a_vector_is_not_aligned() -> None:
    piece = zeros(10).sync()[2:].reshape(2, 4)
    assert asked[1, 1](piece, zeros((1, 1, 4)), zeros(4, i32)).last().to_host().sync().tolist() == [1, 0, 1, 1]
    with pytest.raises(KernelAssertionError, match=r"x\.load4"):
        one_vector[1, 1](0, 0, piece, zeros(1)).sync()


@kernel
def stored_at(row: i64, col: i64, y: DisjointSlice2[f32]) -> None:
    y.unchecked_mut.store2((row, col), f32(1), f32(2))


def test_an_unchecked_vector_has_its_address_checked() -> None:
    y = zeros((3, 4)).sync()
    stored_at[1, 1](1, 2, y).sync()
    with pytest.raises(KernelAssertionError, match=r"y\.store2\(…\) needs an address that is a multiple of 8 bytes"):
        stored_at[1, 1](1, 1, y).sync()
    wanted = np.zeros((3, 4), np.float32)
    wanted[1, 2:] = 1, 2
    assert np.array_equal(oxide.d2h(y).sync(), wanted)


# What is refused


def refused(function: Callable[..., None], problem: str) -> None:
    with pytest.raises(CompileError, match=re.escape(problem)) as raised:
        kernel(function).specialize()
    assert str(raised.value).startswith(f"{__file__}:")


def test_a_wrong_view_or_vector_is_a_compile_error() -> None:
    def row_of_an_output(c: DisjointSlice2[f32]) -> None:
        c.row(0)  # type: ignore[attr-defined]

    def row_of_three(a: Slice3[f32]) -> None:
        a.row(0)  # type: ignore[attr-defined]

    def float_column(a: Slice2[f32]) -> None:
        a.col(0.5)  # type: ignore[arg-type]

    def tile_of_three(a: Slice2[f32]) -> None:
        a.tile(0, 0, 3)  # type: ignore[call-arg]

    def row_with_a_length(a: Slice2[f32]) -> None:
        a.row(0, 3)  # type: ignore[call-arg]

    def written(a: Slice2[f32]) -> None:
        row = a.row(0)
        if row is not None:
            row[0] = f32(1)  # type: ignore[index]

    def flat_index(a: Slice2[f32], y: DisjointSlice[f32]) -> None:
        y.unchecked_mut[0] = a.load4(0)[0]  # type: ignore[arg-type]

    def three_indices(a: Slice2[f32], y: DisjointSlice[f32]) -> None:
        y.unchecked_mut[0] = a.load4((0, 0, 0))[0]  # type: ignore[arg-type]

    def stored_to_an_input(a: Slice2[f32]) -> None:
        a.store2((0, 0), f32(1), f32(2))  # type: ignore[attr-defined]

    def output_by_integers(c: DisjointSlice2[f32]) -> None:
        c.store2((0, 0), f32(1), f32(2))  # type: ignore[attr-defined]

    def atomic_vector(c: AtomicSlice2[f32]) -> None:
        c.load2((0, 0))  # type: ignore[attr-defined]

    def streamed_element(a: Slice2[f32], y: DisjointSlice[f32]) -> None:
        y.unchecked_mut[0] = a.unchecked.streaming[0, 0]  # type: ignore[index]

    def streamed_store(a: DisjointSlice2[f32]) -> None:
        a.unchecked_mut.streaming[0, 0] = f32(1)  # type: ignore[index]

    refused(row_of_an_output, "c is a DisjointSlice2[f32], which has no .row: only a Slice2 has")
    refused(row_of_three, "a is a Slice3[f32], which has no .row: only a Slice2 has")
    refused(float_column, "what col of a takes is an integer, not f64")
    refused(tile_of_three, "tile of a takes row, col, rows, cols")
    refused(row_with_a_length, "row of a takes i, by position")
    refused(written, "a view of a is read-only")
    refused(flat_index, "a is a Slice2[f32], which has 2 axes, and the index 1")
    refused(three_indices, "a is a Slice2[f32], which has 2 axes, and the index 3")
    refused(stored_to_an_input, "a is a Slice2[f32], which is read-only; declare an output as DisjointSlice2[…]")
    refused(output_by_integers, "c is a DisjointSlice2[f32], which has no .store2: another thread could use")
    refused(atomic_vector, "load2")
    refused(streamed_element, "a is a StreamingSlice2[f32] here, which has vectors only, as load4((i, j))")
    refused(streamed_store, "a is a StreamingMutSlice2[f32] here, which has vectors only")
