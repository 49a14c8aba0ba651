"""Runs in another library's memory, on a stream of its own: here the library is NumPy, and the stream a CPU stream that
runs nothing before it is told to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from oxide import (
    BoundsError,
    DeviceBox,
    DisjointSlice,
    GraphError,
    LaunchConfig,
    Slice,
    d2h,
    devices,
    dup,
    empty,
    f32,
    h2d,
    kernel,
    thread,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.errors import DeviceError
from oxide.host.core import run_blocking
from oxide.runtime.devices.fault_records import StandingReport
from oxide.runtime.ordering.stream import Stream
from oxide.runtime.ordering.timeline import Timeline
from oxide.runtime.submission.lending import Lender, submit_lent
from oxide.testing import FailingDriver, step_driver, use_driver


@kernel(block=64, partial=True)
def shifted(x: Slice[f32], by: f32, y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + by


class Memory(np.ndarray[Any, Any]):
    """An array that can be referred to weakly."""


class Library:
    """A library with an allocator and a stream."""

    def __init__(self, driver: CpuDriver) -> None:
        self.device = devices()[0]
        self.made: list[Callable[[], Memory | None]] = []
        self.blocks: list[Any] = []
        handle = self.device.driver.create_stream(0)
        self.stream = Stream(self.device, timeline=Timeline(self.device, handle))
        self.report = StandingReport(self.device.runtime.fault_records)
        self.functions: dict[int, object] = {}
        self.driver = driver

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, object]:
        block = np.full(shape, 99, dtype)
        self.blocks.append(block)  # work in flight may still use what was given back, as on a GPU
        memory = block.view(Memory)
        self.made.append(weakref.ref(memory))
        self.device.driver.adopt(memory.ctypes.data, memory.nbytes)  # the test's driver checks ranges, a GPU does not
        return memory.ctypes.data, memory

    def lender(self) -> Lender:
        return Lender(self.allocate, self.report, self.functions)

    def submit(self, operation: Any, lender: Lender | None = None, *, captures: bool = False) -> Any:
        return submit_lent(operation, self.stream, lender or self.lender(), captures)

    def alive(self) -> int:
        return sum(reference() is not None for reference in self.made)


@pytest.fixture
def library() -> Iterator[Library]:
    with use_driver(step_driver()) as driver:
        yield Library(driver)


def launched(library: Library, x: Any, n: int) -> Any:
    return shifted[LaunchConfig.for_num_elems(n)](x, 1.0, empty(n)).last()


def test_operations_allocate_the_librarys_memory(library: Library) -> None:
    x = h2d(np.arange(5, dtype=np.float32)).sync()
    lender = library.lender()
    result = library.submit(launched(library, x, 5), lender)
    assert library.alive() == 1
    memory = library.made[0]()
    assert memory is not None
    assert result._allocation is lender.made[0]
    assert memory.tolist() == [99] * 5  # nothing has run, and nothing waited
    library.driver.run_until_idle()
    assert memory.tolist() == [1, 2, 3, 4, 5]


def test_memory_that_nothing_refers_to_is_given_back_at_once(library: Library) -> None:
    x = h2d(np.arange(5, dtype=np.float32)).sync()
    gc.collect()
    gc.disable()
    try:
        lender = library.lender()
        result = library.submit(launched(library, x, 5).and_then(lambda box: launched(library, box, 5)), lender)
        assert library.alive() == 2
        del result
        lender.give_back()
        assert library.alive() == 0  # before the device has run anything: the library orders its reuse
    finally:
        gc.enable()


def test_a_box_that_is_still_referred_to_keeps_its_memory_until_its_last_use(library: Library) -> None:
    x = h2d(np.arange(5, dtype=np.float32)).sync()
    lender = library.lender()
    result = library.submit(launched(library, x, 5), lender)
    lender.give_back()
    assert d2h(result).sync().tolist() == [1, 2, 3, 4, 5]  # on another stream, after the library's work
    later = dup(result).async_on(devices()[0].new_stream())
    del result
    assert library.alive() == 1
    library.driver.run_until_idle()
    del later
    devices()[0].runtime.reclaimer.drain()
    assert library.alive() == 0


def test_boxes_from_outside_are_ordered_with_the_librarys_stream(library: Library) -> None:
    stream = devices()[0].new_stream()
    x = zeros(5).async_on(stream)
    shifted[1, 64](x, 4.0, x).async_on(stream)
    result = library.submit(launched(library, x, 5))
    shifted[1, 64](x, 100.0, x).async_on(stream)
    assert d2h(result).sync().tolist() == [5] * 5
    assert d2h(x).sync().tolist() == [104] * 5


def test_a_fault_is_kept_until_it_is_raised_and_the_next_one_too(library: Library) -> None:
    x = h2d(np.zeros(3, np.float32)).sync()
    for _ in range(2):
        library.submit(launched(library, x, 5))
        assert not library.report.claimed()
        library.driver.run_until_idle()
        assert library.report.claimed()
        with pytest.raises(BoundsError, match="shifted") as caught:
            library.report.raise_fault()
        assert caught.value.index in (3, 4)
        assert not library.report.claimed()
    library.report.raise_fault()


def test_a_kernel_stays_loaded_when_its_program_drops_it(library: Library) -> None:
    x = h2d(np.zeros(3, np.float32)).sync()
    library.submit(launched(library, x, 3))
    assert len(library.functions) == 1
    library.submit(launched(library, x, 3))
    assert len(library.functions) == 1


def test_work_that_must_be_kept_is_kept_and_cannot_be_captured(library: Library) -> None:
    array = np.arange(5, dtype=np.float32)
    upload = h2d(array).and_then(lambda box: launched(library, box, 5))
    with pytest.raises(GraphError, match="cannot be captured by another library"):
        library.submit(upload, captures=True)
    library.driver.run_until_idle()
    lender = library.lender()
    result = library.submit(upload, lender)
    library.stream.synchronize()
    assert d2h(result).sync().tolist() == [1, 2, 3, 4, 5]


def test_a_run_that_is_waited_for_uses_the_memory_too() -> None:
    with use_driver(CpuDriver()) as driver:
        library = Library(driver)
        lender = Lender(library.allocate, None, {})
        x = h2d(np.arange(5, dtype=np.float32)).sync()
        result = run_blocking(launched(library, x, 5).and_then(dup), library.stream, lender)
        memory = library.made[-1]()
        assert memory is not None
        assert memory.tolist() == [1, 2, 3, 4, 5]
        box: DeviceBox = result
        assert box._allocation is lender.made[-1]


def test_memory_of_a_failed_run_is_given_back_once_its_work_is_over(library: Library) -> None:
    x = h2d(np.zeros(3, np.float32)).sync()
    with use_driver(FailingDriver(CpuDriver())) as driver:
        failing = Library(driver)  # type: ignore[arg-type]
        y = h2d(np.zeros(3, np.float32)).sync()
        operation = launched(failing, y, 3).and_then(lambda box: launched(failing, box, 3))
        failing.submit(launched(failing, y, 3))
        driver.fail("launch", DeviceError("refused"), at=2)
        with pytest.raises(DeviceError, match="refused"):
            failing.submit(operation)
        failing.stream.synchronize()
        gc.collect()
        failing.device.runtime.reclaimer.drain()
        assert failing.alive() == 0
    del x
