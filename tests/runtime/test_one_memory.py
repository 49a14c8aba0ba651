"""Several boxes on one memory, through other libraries: ordered as one."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, d2h, devices, f32, from_dlpack, kernel, reclaim, thread, zeros
from oxide.driver.cpu import CpuDriver
from oxide.testing import step_driver, use_driver


@kernel(block=64)
def increment(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value + f32(1)


def two_boxes(way: str) -> tuple[Any, Any]:
    if way == "exported":
        box = zeros(4).sync()
        return box, from_dlpack(box)
    if way == "by numpy":
        box = zeros(4).sync()
        return box, from_dlpack(np.asarray(box))
    array = np.zeros(4, np.float32)
    if way == "a part first":
        part = from_dlpack(array[1:3])
        return from_dlpack(array), part
    if way == "a part":
        return from_dlpack(array), from_dlpack(array[1:3])
    if way == "overlapping":
        return from_dlpack(array[:3]), from_dlpack(array[1:])
    return from_dlpack(array), from_dlpack(array)


WAYS = ["exported", "by numpy", "twice", "a part", "a part first", "overlapping"]


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_through_one_box_waits_for_a_write_through_another(way: str) -> None:
    with use_driver(step_driver()) as driver:
        first, second = two_boxes(way)
        writer, reader = devices()[0].new_stream(), devices()[0].new_stream()
        increment(first).async_on(writer)
        result = d2h(second).async_on(reader)
        while driver.step(reader._timeline.handle):  # as far as it can go
            pass
        reader.synchronize()
        inner = result[: first.size - 1] if way == "overlapping" else result
        assert set(inner) == {1.0}


@pytest.mark.parametrize("way", WAYS)
def test_the_memory_is_kept_while_one_of_the_boxes_is_and_goes_with_the_last(way: str) -> None:
    driver = CpuDriver(1)
    with use_driver(driver):
        first, second = two_boxes(way)
        increment(first).sync()
        expected = d2h(second).sync().tolist()
        del first
        gc.collect()
        reclaim.drain()
        assert d2h(second).sync().tolist() == expected
        del second
        gc.collect()
        reclaim.drain()
        assert driver.live_allocations.device_count == 0
    driver.close()


def test_an_array_over_boxes_that_were_imported_one_by_one_is_refused() -> None:
    with use_driver(step_driver()):
        array = np.zeros(8, np.float32)
        parts = [from_dlpack(array[:4]), from_dlpack(array[4:])]
        with pytest.raises(BufferError, match="import the whole array first"):
            from_dlpack(array)
        del parts
        assert from_dlpack(array).size == 8


def test_many_imports_that_were_dropped_are_forgotten() -> None:
    with use_driver(step_driver()):
        ranges = devices()[0].runtime.shared_ranges
        for _ in range(1000):
            from_dlpack(np.zeros(4))
        assert len(ranges._starts) <= 130
        array = np.zeros(4)
        assert from_dlpack(array).ptr == from_dlpack(array).ptr == array.ctypes.data
