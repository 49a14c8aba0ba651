"""Several boxes on one memory, through other libraries: ordered as one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    d2h,
    devices,
    f32,
    from_dlpack,
    kernel,
    memcpy,
    reclaim,
    thread,
    value,
    with_context,
    zeros,
)
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
        return box, from_dlpack(box.host_view())
    array = np.zeros(4, np.float32)
    if way == "a part first":
        part = from_dlpack(array[1:3])
        return from_dlpack(array), part
    if way == "every second first":
        part = from_dlpack(array[::2])
        return from_dlpack(array), part
    if way == "backwards":
        return from_dlpack(array), from_dlpack(array[::-1])
    if way == "a part":
        return from_dlpack(array), from_dlpack(array[1:3])
    if way == "overlapping":
        return from_dlpack(array[:3]), from_dlpack(array[1:])
    return from_dlpack(array), from_dlpack(array)


WAYS = [
    "exported", "by numpy", "twice", "a part", "a part first", "overlapping", "every second first", "backwards"
]  # fmt: skip


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


FLIGHTS: dict[str, Callable[[DeviceBox], DeviceOperation[Any]]] = {
    "a launch": increment,
    "a chain": lambda box: value(box).and_then(increment),
    "a zip": lambda box: oxide.zip(increment(box), value(1)),
    "a function": lambda box: with_context(lambda _: increment(box)),
    "a copy": lambda box: memcpy(box, np.ones(4, np.float32)),
}


@pytest.mark.parametrize("flight", FLIGHTS)
def test_an_array_that_is_imported_again_while_its_first_box_is_gone_is_known_for_what_it_is(flight: str) -> None:
    with use_driver(step_driver()) as driver:
        array = np.zeros(4, np.float32)
        writer, reader = devices()[0].new_stream(), devices()[0].new_stream()
        FLIGHTS[flight](from_dlpack(array)).map(lambda _: None).async_on(writer)
        gc.collect()
        result = d2h(from_dlpack(array)).async_on(reader)
        while driver.step(reader._timeline.handle):  # as far as it can go
            pass
        reader.synchronize()
        assert set(result) == {1.0}


def test_an_array_that_a_graph_uses_is_known_for_what_it_is_when_its_box_is_gone() -> None:
    with use_driver(step_driver()) as driver:
        array = np.zeros(4, np.float32)
        writer, reader = devices()[0].new_stream(), devices()[0].new_stream()
        graph = increment(from_dlpack(array)).map(lambda _: None).graph_on(writer)
        gc.collect()
        graph.launch().async_on(writer)
        result = d2h(from_dlpack(array)).async_on(reader)
        while driver.step(reader._timeline.handle):
            pass
        reader.synchronize()
        assert set(result) == {1.0}


@pytest.mark.parametrize("flight", FLIGHTS)
def test_what_is_held_for_an_import_in_flight_goes_when_it_is_over(flight: str) -> None:
    driver = CpuDriver(1)
    with use_driver(driver):
        array = np.zeros(4, np.float32)
        for _ in range(3):
            FLIGHTS[flight](from_dlpack(array)).map(lambda _: None).sync()
        gc.collect()
        reclaim.drain()
        ranges = devices()[0].runtime.shared_ranges
        assert ranges.overlapping(array.ctypes.data, array.nbytes) == []
        assert driver.live_allocations.device_count == 0
    driver.close()
