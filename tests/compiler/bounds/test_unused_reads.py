"""A fault ends its thread whether anything needs the value that it asked for or not.

Nothing needs any value that these kernels read, and LLVM would drop the reads, with the branches behind their checks.
"""

# ruff: noqa: F841

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from numba import cuda

from oxide import (
    Array,
    AtomicSlice,
    BoundsError,
    DisjointSlice,
    KernelAssertionError,
    LocalArray,
    RowMajorTiles,
    SharedArray,
    Slice,
    Slice2,
    Tiles,
    d2h,
    device,
    f16,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    zip_exact,
)
from oxide.compiler.kernel.kernel import Kernel
from tests.compiler.native_runner import fault_of, run_blocks


@kernel
def a_read(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    unused = x[i]
    y.unchecked_mut[0] = 7


@kernel
def a_read_times_zero(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    unused = x[0] + x[i] * 0
    y.unchecked_mut[0] = 7


@device
def read_by(x, i):  # type: ignore[no-untyped-def]
    return x[i]


@kernel
def a_read_of_a_device_function(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    unused = read_by(x, i)
    y.unchecked_mut[0] = 7


@kernel
def a_vector(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    unused = x.load4(i)
    y.unchecked_mut[0] = 7


@kernel
def a_vector_that_is_not_aligned(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    unused = x.load4(i % 2 + 1)
    other = x.load4(i % 2 + 2)
    y.unchecked_mut[0] = 7


@kernel
def an_element_of_a_view(i: i64, x: Slice2[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    view = x.row(0)
    if view is not None:
        unused = view[i]
    y.unchecked_mut[0] = 7


@kernel
def the_second_axis_of_a_view(i: i64, x: Slice2[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    tile = x.tile(0, 0, 2, 2)
    if tile is not None:
        unused = tile[0, i]
    y.unchecked_mut[0] = 7


@kernel
def the_length_of_no_view(i: i64, x: Slice2[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    unused = len(x.row(i))  # type: ignore[arg-type]
    y.unchecked_mut[0] = 7


@kernel
def views_of_two_lengths(i: i64, x: Slice2[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    one, other = x.row(0), x.col(0)
    if one is not None and other is not None:
        for a, b in zip_exact(one, other):
            unused = a + b
    y.unchecked_mut[0] = 7


@kernel
def a_reference_to_nothing(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    unused = no.get_mut(thread.index_1d()).value  # type: ignore[union-attr]
    y.unchecked_mut[0] = 7


@kernel
def a_write_to_nothing(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    no.get_mut(thread.index_1d()).value = i32(i)  # type: ignore[union-attr]
    y.unchecked_mut[0] = 7


@kernel
def an_element_of_no_tile(i: i64, x: Slice[i32], no: DisjointSlice[i32, Tiles(4)], y: DisjointSlice[i32]) -> None:
    unused = no.get_mut(thread.index_1d())[0]  # type: ignore[index]
    y.unchecked_mut[0] = 7


@kernel
def the_shape_of_no_tile(
    i: i64, x: Slice[i32], no: DisjointSlice[i32, RowMajorTiles(2, 2)], y: DisjointSlice[i32]
) -> None:
    unused = no.get_remainder(thread.index_2d(2)).shape  # type: ignore[union-attr]
    y.unchecked_mut[0] = 7


@kernel
def a_loop(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    for place in range(i):
        unused = x[place]
    y.unchecked_mut[0] = 7


@kernel
def nested_loops(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    for place in range(i):
        for within in range(i):
            unused = x[place + within]
    y.unchecked_mut[0] = 7


@kernel
def an_endless_loop(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    place = i64(0)
    while place != i:
        unused = x[place]
        place += 1
    y.unchecked_mut[0] = 7


@kernel
def an_array_of_the_threads_own(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    own = LocalArray(4, i32)
    unused = own[i]
    y.unchecked_mut[0] = 7


@kernel
def a_read_beside_halves(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    half = f16(i % 3)
    unused = x[i]
    y.unchecked_mut[0] = 7 + i32(half)


@kernel
def a_read_beside_a_print(i: i64, x: Slice[i32], no: DisjointSlice[i32], y: DisjointSlice[i32]) -> None:
    unused = x[i]
    if i < 0:
        print("never")
    y.unchecked_mut[0] = 7


FAULTY = [
    a_read,
    a_read_times_zero,
    a_read_of_a_device_function,
    a_vector,
    a_vector_that_is_not_aligned,
    an_element_of_a_view,
    the_second_axis_of_a_view,
    the_length_of_no_view,
    views_of_two_lengths,
    a_reference_to_nothing,
    a_write_to_nothing,
    an_element_of_no_tile,
    the_shape_of_no_tile,
    a_loop,
    nested_loops,
    an_endless_loop,
    an_array_of_the_threads_own,
    a_read_beside_halves,
    a_read_beside_a_print,
]
_FAR = 2**40  # rounds of a loop that nobody would see the end of


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(), ("memory",), ("race",)], ids=lambda kinds: kinds[0] if kinds else "plain")
@pytest.mark.parametrize("faulty", FAULTY, ids=lambda faulty: faulty.name)
def test_the_thread_ends_at_its_fault(faulty: Kernel, kinds: tuple[str, ...]) -> None:
    if kinds and os.environ.get("OXIDE_DEVICE") == "cuda":
        pytest.skip("the sanitizer is the CPU device's")
    each = Kernel(faulty.function, sanitize=kinds, names=globals()) if kinds else faulty
    x, y = np.arange(8, dtype=np.int32).reshape(4, 2), np.zeros(1, np.int32)
    record = run_blocks(each, (1, 1, 1), (1, 1, 1), _FAR, x, np.zeros(0, np.int32), y)
    fault = fault_of(each, record)
    assert isinstance(fault, BoundsError | KernelAssertionError)
    assert y[0] == 0, "the thread went on"


@kernel(block=64)
def its_neighbour(x: Slice[i32], y: DisjointSlice[i32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        unused = x[index.get() + 1]
        element.value = 7


@kernel(block=64)
def rows(n: i64, x: Slice[i32], y: DisjointSlice[i32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        for place in range(n):
            unused = x[index.get() * n + place]
        element.value = 7


def test_of_many_threads_those_end_that_fault() -> None:
    y = np.zeros(1000, np.int32)
    record = run_blocks(its_neighbour, (16, 1, 1), (64, 1, 1), np.zeros(901, np.int32), y)
    assert isinstance(fault_of(its_neighbour, record), BoundsError)
    np.testing.assert_array_equal(y, np.repeat([7, 0], [900, 100]))
    y[:] = 0
    record = run_blocks(rows, (16, 1, 1), (64, 1, 1), 3, np.zeros(2701, np.int32), y)
    assert isinstance(fault_of(rows, record), BoundsError)
    np.testing.assert_array_equal(y, np.repeat([7, 0], [900, 100]))


def test_a_read_that_nothing_needs_leaves_no_loop_behind_its_check() -> None:
    """What is checked before a loop with nothing else in it is all that the fast version does."""
    assert [check.place for check in rows.checks() if check.parameter == "x"] == ["hoisted"]
    assert rows.ptx().count("ld.global") <= 1, "only the checked copy may load"


@cuda.jit  # type: ignore[untyped-decorator]
def down(x, i):  # type: ignore[no-untyped-def]
    unused = x[i]
    return 1 if i <= 9 else down(x, i - 1)


def test_a_fault_in_a_function_that_calls_itself_ends_the_thread_too() -> None:
    @kernel
    def descending(x: Slice[i64], y: Array[i64, 1]) -> None:  # type: ignore[valid-type]
        y[0] = down(x, 12)

    y = h2d(np.zeros(1, np.int64)).sync()
    with pytest.raises(BoundsError, match=r"x\[12\] is outside x, which has 4 elements"):
        descending[1, 1](h2d(np.zeros(4, np.int64)), y).sync()
    assert d2h(y).sync()[0] == 0


@kernel
def among_atomics(x: Slice[i32], counts: AtomicSlice[i32], y: DisjointSlice[i32]) -> None:
    unused = x[9]
    old = counts.fetch_add(9, 1)
    y.unchecked_mut[0] = 7 + old


@kernel
def in_shared_memory(x: Slice[i32], counts: AtomicSlice[i32], y: DisjointSlice[i32]) -> None:
    tile = SharedArray(8, i32)
    unused = tile[len(x)]
    y.unchecked_mut[0] = 7


@pytest.mark.parametrize("each", [among_atomics, in_shared_memory], ids=lambda each: each.name)
def test_where_threads_may_wait_for_one_another_they_go_on(each: Kernel) -> None:
    x, y = np.zeros(8, np.int32), np.zeros(1, np.int32)
    fault: Any = fault_of(each, run_blocks(each, (1, 1, 1), (1, 1, 1), x, np.zeros(8, np.int32), y))
    assert isinstance(fault, BoundsError)
    assert y[0] == 7
