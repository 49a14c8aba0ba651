"""The fault of an access of several axes: it has the index and the length of each, whichever axis is outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    DisjointSlice,
    DisjointSlice2,
    Kernel,
    LocalArray,
    Slice2,
    Slice3,
    device,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u8,
    unroll,
    zeros,
)
from oxide.driver.records import FAULT
from oxide.errors import BoundsError
from oxide_kernels import sgemm_2d
from tests.compiler.bounds.test_loop_ptx import hot_loop
from tests.compiler.sanitizer.sanitized import BOTH, on_the_cpu_device


@kernel
def at_place(i: i64, j: i64, k: i64, x: Slice3[i32], y: DisjointSlice[i32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[i, j, k]


@kernel
def in_nested_loops(rows: i64, cols: i64, x: Slice2[i32], y: DisjointSlice[i32]) -> None:
    element = y.get_mut(thread.index_1d())
    total = i32(0)
    for i in range(rows):
        for j in range(cols):
            total += x[i, j]
    if element is not None:
        element.value = total


@kernel
def unrolled(cols: i64, x: Slice2[i32], y: DisjointSlice[i32]) -> None:
    element = y.get_mut(thread.index_1d())
    total = i32(0)
    for i in unroll(range(4)):
        for j in range(cols):
            total += x[i, j]
    if element is not None:
        element.value = total


@kernel
def under_a_test(cols: i64, x: Slice2[i32], y: DisjointSlice[i32]) -> None:
    element = y.get_mut(thread.index_1d())
    total = i32(0)
    for j in range(cols):
        if x[0, j % 2] == 0:
            total += x[1, j]
    if element is not None:
        element.value = total


@kernel
def narrow_indices(i: u8, j: i32, x: Slice2[i32], y: DisjointSlice[i32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[i, j]


@device
def element_of(x: Slice2[i32], i: i64, j: i64) -> i32:
    return x[j, i]


@kernel
def by_a_function(i: i64, j: i64, x: Slice2[i32], y: DisjointSlice[i32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = element_of(x, i, j)


LEAST, GREATEST = -(2**63), 2**63 - 1


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", [(), pytest.param(BOTH, marks=on_the_cpu_device)], ids=str)
@pytest.mark.parametrize(
    ("kernel_", "given", "shape", "axis", "indices"),
    [
        (at_place, (3, 9, -1), (3, 4, 5), 0, (3, 9, -1)),
        (at_place, (2, 4, -1), (3, 4, 5), 1, (2, 4, -1)),
        (at_place, (2, 3, LEAST), (3, 4, 5), 2, (2, 3, LEAST)),
        (at_place, (0, GREATEST, 2), (3, 4, 5), 1, (0, GREATEST, 2)),
        (at_place, (0, 0, 0), (3, 0, 5), 1, (0, 0, 0)),
        (in_nested_loops, (4, 5), (4, 3), 1, (0, 3)),
        (in_nested_loops, (5, 3), (4, 3), 0, (4, 0)),
        (unrolled, (3,), (2, 3), 0, (2, 0)),
        (unrolled, (4,), (4, 3), 1, (0, 3)),
        (under_a_test, (4,), (1, 8), 0, (1, 0)),
        (under_a_test, (4,), (2, 3), 1, (1, 3)),
        (narrow_indices, (255, -2), (2, 3), 0, (255, -2)),
        (narrow_indices, (1, -2), (2, 3), 1, (1, -2)),
        (by_a_function, (7, 1), (2, 3), 1, (1, 7)),
        (by_a_function, (7, -1), (2, 3), 0, (-1, 7)),
    ],
)
def test_a_fault_has_the_indices_of_all_axes(
    kernel_: Kernel, given: tuple[int, ...], shape: tuple[int, ...], axis: int, indices: tuple[int, ...], sanitize: Any
) -> None:
    k = kernel(sanitize=sanitize)(kernel_.function) if sanitize else kernel_
    with pytest.raises(BoundsError) as caught:
        k[1, 1](*given, h2d(np.zeros(shape, np.int32)), zeros(1, i32)).sync()
    fault = caught.value
    assert (fault.axis, fault.indices, fault.shape) == (axis, indices, shape)
    assert (fault.index, fault.length) == (indices[axis], shape[axis])
    assert str(fault).startswith(
        f"kernel {k.__name__}: index {indices[axis]} of axis {axis} is outside x, whose axis {axis} has {shape[axis]} "
        f"elements ({list(indices)} of shape {shape}); block (0, 0, 0), thread (0, 0, 0), at "
    )


def test_a_flat_slice_and_a_flat_place_have_one_index() -> None:
    @kernel
    def flat(i: i64, x: Slice2[i32], y: DisjointSlice[i32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x.flat[i]

    with pytest.raises(BoundsError, match=r"x\[6\] is outside x, which has 6 elements; block") as caught:
        flat[1, 1](6, h2d(np.zeros((2, 3), np.int32)), zeros(1, i32)).sync()
    assert (caught.value.axis, caught.value.indices, caught.value.shape) == (None, (6,), (6,))


def test_the_place_of_an_output_that_is_none_has_a_row_and_a_column() -> None:
    @kernel(block=(4, 4), partial=True)
    def untested(y: DisjointSlice2[i32]) -> None:
        y.get_mut(thread.index_2d(y.shape[1])).value = i32(1)  # type: ignore[union-attr, arg-type]

    with pytest.raises(BoundsError) as caught:
        untested[(1, 1), (1, 4)](zeros((3, 5), i32)).sync()
    assert (caught.value.axis, caught.value.indices, caught.value.shape) == (0, (3, 0), (3, 5))


def test_a_kernel_in_a_graph_reports_all_axes() -> None:
    x, y = h2d(np.zeros((2, 3, 4), np.int32)).sync(), zeros(1, i32).sync()
    with at_place[1, 1](1, 2, 4, x, y).graph() as graph, pytest.raises(BoundsError) as caught:
        graph.launch().sync()
    assert (caught.value.axis, caught.value.indices, caught.value.shape) == (2, (1, 2, 4), (2, 3, 4))


@kernel
def in_a_view(i: i64, j: i64, x: Slice2[i32], y: DisjointSlice[i32]) -> None:
    element = y.get_mut(thread.index_1d())
    tile = x.tile(1, 1, 2, 3)
    if element is not None and tile is not None:
        element.value = tile[i, j]


@kernel
def in_a_local_array(i: i64, j: i64, x: Slice2[i32], y: DisjointSlice[i32]) -> None:
    element = y.get_mut(thread.index_1d())
    table = LocalArray((2, 3), i32)
    table[0, 0] = x[0, 0]
    if element is not None:
        element.value = table[i, j]


@pytest.mark.parametrize(
    ("kernel_", "what"), [(in_a_view, "a tile of x"), (in_a_local_array, "LocalArray((2, 3), i32)")]
)
@pytest.mark.parametrize(("i", "j", "axis"), [(2, -5, 0), (-1, 1, 0), (1, 3, 1), (1, -(2**63), 1)])
def test_tiles_of_views_and_local_arrays_report_all_axes(kernel_: Kernel, what: str, i: int, j: int, axis: int) -> None:
    with pytest.raises(BoundsError) as caught:
        kernel_[1, 1](i, j, h2d(np.zeros((4, 4), np.int32)), zeros(1, i32)).sync()
    fault = caught.value
    assert (fault.parameter, fault.axis, fault.indices, fault.shape) == (what, axis, (i, j), (2, 3))


def test_the_loop_of_a_product_knows_nothing_of_the_fault_record() -> None:
    text = sgemm_2d.ptx(cc=(9, 0))
    stores = [f"+{FAULT.offset(field)}]" for field in ("other_indices[0]", "other_lengths[0]")]
    assert all(store in text for store in stores)
    assert not [line for line in hot_loop(text) if line.startswith(("st.", "atom."))]
