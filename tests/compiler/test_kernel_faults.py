"""An access outside a slice fills the fault record and touches nothing else."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from oxide import BoundsError, DisjointSlice, Slice, device, f32, i32, i64, kernel, thread, u64
from oxide.compiler.source.faults import RECORD, read_fault
from tests.compiler.native_runner import fault_of, run, run_blocks


@kernel
def read_at(i: i64, x: Slice[i32], y: DisjointSlice[i32]):  # type: ignore[no-untyped-def]
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[i] + 1


READ_LINE = inspect.getsourcelines(read_at.function)[1] + 4


@pytest.mark.parametrize("index", [-1, 5, 6, 2**31, 2**32, 2**63 - 1, -(2**63), -(2**32) + 1])
def test_an_index_outside_ends_the_thread_and_is_reported_exactly(index: int) -> None:
    x, y = np.arange(10, 15, dtype=np.int32), np.zeros(1, np.int32)
    record = run_blocks(read_at, (1, 1, 1), (1, 1, 1), index, x, y)
    assert y[0] == 0
    fault = fault_of(read_at, record)
    assert isinstance(fault, BoundsError)
    assert (fault.kernel, fault.parameter, fault.index, fault.length) == ("read_at", "x", index, 5)
    assert (fault.block, fault.thread) == ((0, 0, 0), (0, 0, 0))
    assert (fault.file, fault.line) == (__file__, READ_LINE)
    assert record["kernel_id"][0] == read_at.specialize().kernel_id


@pytest.mark.parametrize("index", [0, 4])
def test_an_index_inside_leaves_the_record_alone(index: int) -> None:
    x, y = np.arange(10, 15, dtype=np.int32), np.zeros(1, np.int32)
    record = run_blocks(read_at, (1, 1, 1), (1, 1, 1), index, x, y)
    assert record.tobytes() == bytes(RECORD.itemsize)
    assert y[0] == 11 + index


def test_a_slice_of_no_elements_has_no_index() -> None:
    record = run_blocks(read_at, (1, 1, 1), (1, 1, 1), 0, np.zeros(0, np.int32), np.zeros(1, np.int32))
    fault = fault_of(read_at, record)
    assert fault is not None
    assert (fault.index, fault.length) == (0, 0)


def test_a_u64_index_over_the_signed_range_is_a_fault() -> None:
    @kernel
    def read_far(i: u64, x: Slice[i32], y: DisjointSlice[i32]):  # type: ignore[no-untyped-def]
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[i]

    record = run_blocks(read_far, (1, 1, 1), (1, 1, 1), 2**63 + 1, np.ones(4, np.int32), np.zeros(1, np.int32))
    fault = fault_of(read_far, record)
    assert fault is not None
    assert fault.index == 2**63 + 1 - 2**64


def test_the_first_fault_of_a_launch_is_kept_with_its_block_and_thread() -> None:
    @kernel
    def shifted(x: Slice[f32], y: DisjointSlice[f32]):  # type: ignore[no-untyped-def]
        index = thread.index_2d(6)
        if index is not None:
            element = y.get_mut(index)
            if element is not None:
                element.value = x[index.get() + 2]

    x, y = np.arange(24, dtype=np.float32), np.full(24, -1, np.float32)
    record = run_blocks(shifted, (3, 2, 1), (2, 2, 1), x, y)
    fault = fault_of(shifted, record)
    assert fault is not None
    assert (fault.index, fault.length, fault.block, fault.thread) == (24, 24, (2, 1, 0), (0, 1, 0))
    np.testing.assert_array_equal(y, [*range(2, 24), -1, -1])


def test_the_value_of_a_reference_to_nothing_is_a_fault_and_writes_nothing() -> None:
    @kernel
    def careless(y: DisjointSlice[f32]):  # type: ignore[no-untyped-def]
        element = y.get_mut(thread.index_1d())
        element.value = element.value + 1  # type: ignore[union-attr]

    memory = np.zeros(8, np.float32)
    with pytest.raises(BoundsError, match=r"kernel careless: y\[3\] is outside y, which has 3 elements"):
        run(careless, 8, memory[:3], block=8)
    np.testing.assert_array_equal(memory, [1, 1, 1, 0, 0, 0, 0, 0])


def test_a_fault_in_a_device_function_names_the_kernels_parameter_and_the_functions_line() -> None:
    @device
    def fetch(a, i):  # type: ignore[no-untyped-def]
        return a[i]

    @kernel
    def through(left: Slice[f32], right: Slice[f32], y: DisjointSlice[f32]):  # type: ignore[no-untyped-def]
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = fetch(left, index.get()) + fetch(right, index.get())

    with pytest.raises(BoundsError) as raised:
        run(through, 4, np.zeros(4, np.float32), np.zeros(2, np.float32), np.zeros(4, np.float32))
    assert (raised.value.parameter, raised.value.index) == ("right", 2)
    assert raised.value.line == inspect.getsourcelines(fetch.function)[1] + 2


def test_an_unchecked_kernel_reports_nothing(device: str) -> None:
    if device == "cuda":
        pytest.skip("it reads past the end of an array in host memory")

    @kernel(unchecked=True)
    def read_past(x: Slice[i32], y: DisjointSlice[i32]):  # type: ignore[no-untyped-def]
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[2]

    memory, y = np.arange(4, dtype=np.int32), np.zeros(1, np.int32)
    record = run_blocks(read_past, (1, 1, 1), (1, 1, 1), memory[:2], y)
    assert fault_of(read_past, record) is None
    assert y[0] == 2


def test_a_kernel_runs_without_a_fault_record() -> None:
    special = read_at.specialize()
    assert special.pack([5, (0, 0), (0, 0)], 0)[-8:] == bytes(8)


def test_the_record_is_a_multiple_of_8_bytes_and_an_unclaimed_one_is_no_fault() -> None:
    assert RECORD.itemsize % 8 == 0  # Driver.report copies words
    assert read_fault(np.zeros(1, RECORD), "k", ()) is None
    assert read_fault(np.zeros((), RECORD), "k", ()) is None


def test_sites_are_numbered_densely_in_each_kernel() -> None:
    sites: Any = read_at.specialize().sites
    assert [site.parameter for site in sites] == ["y", "x"]


def test_fastmath_does_not_let_a_nan_pass_the_checks() -> None:
    @kernel(fastmath=True)
    def by_float(f: Slice[f32], x: Slice[i32], y: DisjointSlice[i32]):  # type: ignore[no-untyped-def]
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[i64(f[index.get()] / f[0] * f32(1e30))]

    f = np.array([np.nan, np.inf, 1, -1], np.float32)
    y = np.full(4, -1, np.int32)
    run_blocks(by_float, (1, 1, 1), (4, 1, 1), f, np.array([7], np.int32), y)
    np.testing.assert_array_equal(y, 7)  # NaN becomes index 0
    f[0] = 1
    record = run_blocks(by_float, (1, 1, 1), (4, 1, 1), f, np.array([7], np.int32), y)
    fault = fault_of(by_float, record)
    assert fault is not None
    assert fault.index > 2**62
    np.testing.assert_array_equal(y, 7)


@kernel
def searching(x: Slice[i32], y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        place = i64(0)
        while x[place] == 0:
            place += 1
        element.value = place


@kernel
def summing(n: i64, x: Slice[i32], y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        total = i64(0)
        for place in range(n):
            total += x[place]
        element.value = total


@kernel
def meeting(x: Slice[i32], y: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    value = x[index.get()]
    thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = i64(value) + 1


def test_a_loop_that_leaves_its_slice_ends_with_the_fault() -> None:
    x, y = np.zeros(8, np.int32), np.full(1, -1, np.int64)
    for each, numbers in ((searching, ()), (summing, (2**62,))):
        fault = fault_of(each, run_blocks(each, (1, 1, 1), (1, 1, 1), *numbers, x, y))
        assert isinstance(fault, BoundsError)
        assert (fault.parameter, fault.index, fault.length) == ("x", 8, 8)
        assert y[0] == -1, "the thread went on"


def test_a_thread_that_others_wait_for_reads_zero_and_goes_on() -> None:
    x, y = np.full(1, 4, np.int32), np.full(2, -1, np.int64)
    fault = fault_of(meeting, run_blocks(meeting, (1, 1, 1), (2, 1, 1), x, y))
    assert isinstance(fault, BoundsError)
    np.testing.assert_array_equal(y, [5, 1])
