"""Sharing memory with libraries that have streams of their own, played by the CPU device under the name of CUDA."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import d2h, from_cuda_array_interface, from_dlpack, h2d
from oxide.runtime.devices.runtime import current_runtime
from oxide.testing import DelegatingDriver, step_driver, use_driver
from tests.interop.capsules import Exporter


class Foreign(DelegatingDriver):
    """Looks like CUDA: another library's streams are known by number, 1 is the default stream."""

    def __init__(self, devices: int = 1) -> None:
        super().__init__(step_driver(devices))
        self.name = "cuda"
        self.theirs = {number: self.inner.create_stream(0) for number in (1, 77)}

    def foreign_stream(self, device: int, address: int) -> Any:
        return self.theirs[address]

    def put(self, number: int, work: Any) -> None:
        """Another library submits work to its stream."""
        self.inner.launch_host_function(work, self.theirs[number])


class Described:
    """Another library's array, being written on its stream 77."""

    def __init__(self, array: Any, stream: int | None = 77, read_only: bool = False) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, read_only),
            "strides": None,
            "stream": stream,
            "version": 3,
        }


class OnCuda:
    """A box as another library holds it: it makes the consumer's stream wait for its own stream 77."""

    def __init__(self, array: Any, driver: Foreign) -> None:
        self.array = array
        self.driver = driver

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int, max_version: tuple[int, int] | None = None) -> Any:
        (ours,) = [t.handle for t in oxide.devices()[0]._timelines if t.handle.number == stream]
        event = self.driver.inner.create_event(0, timing=False)
        self.driver.inner.record_event(event, self.driver.theirs[77])
        self.driver.inner.wait_event(ours, event)
        return Exporter(self.array.ctypes.data, self.array.shape, dtype=(2, 64, 1), device=(2, 0)).capsule()


def run(driver: Any, stream: Any) -> None:
    while driver.step(stream):
        pass


@pytest.mark.parametrize(("asked", "number"), [(77, 77), (1, 1), (None, 1)])
def test_the_consumers_stream_waits_for_the_uses_of_an_exported_box(asked: int | None, number: int) -> None:
    with use_driver(Foreign()) as driver:
        stream = oxide.devices()[0].new_stream()
        box = h2d(np.arange(4.0)).async_on(stream)
        memory = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_double * 4).from_address(box.ptr))
        seen: list[Any] = []
        assert box.__dlpack_device__() == (2, 0)
        capsule = box.__dlpack__(stream=asked, max_version=(1, 0))
        driver.put(number, lambda: seen.append(memory.copy()))
        run(driver, driver.theirs[number])
        assert not seen
        stream.synchronize()
        run(driver, driver.theirs[number])
        np.testing.assert_array_equal(seen[0], np.arange(4.0))
        del capsule


def test_no_synchronisation_is_inserted_where_the_consumer_wants_none_and_stream_0_is_refused() -> None:
    with use_driver(Foreign()):
        box = h2d(np.arange(4.0)).async_on(oxide.devices()[0].new_stream())
        del_me = box.__dlpack__(stream=-1)
        with pytest.raises(BufferError, match="ambiguous"):
            box.__dlpack__(stream=0)
        del del_me


def test_the_interface_of_a_box_names_the_stream_to_wait_for_while_something_is_pending() -> None:
    with use_driver(Foreign()):
        stream, reader = (oxide.devices()[0].new_stream() for _ in range(2))
        box = h2d(np.arange(4.0)).async_on(stream)
        assert box.__cuda_array_interface__["stream"] == stream.handle
        d2h(box).async_on(reader)
        stream.synchronize()
        reader.synchronize()
        assert box.__cuda_array_interface__["stream"] is None


@pytest.mark.parametrize("kind", ["interface", "dlpack"])
def test_uses_of_an_imported_array_wait_for_its_librarys_stream(kind: str) -> None:
    with use_driver(Foreign()) as driver:
        array = np.zeros(4)
        driver.put(77, lambda: array.fill(5.0))
        box = from_cuda_array_interface(Described(array)) if kind == "interface" else from_dlpack(OnCuda(array, driver))
        assert box.ptr == array.ctypes.data
        stream = oxide.devices()[0].new_stream()
        result = d2h(box).async_on(stream)
        run(driver, stream._timeline.handle)
        stream.synchronize()
        np.testing.assert_array_equal(result, np.full(4, 5.0))


class TheirStream:
    """What CuPy 14 makes of a stream by ``Stream.from_external``; ``ExternalStream(number)`` is deprecated there."""

    def __init__(self, stream: Any) -> None:
        version, self.number = stream.__cuda_stream__()
        assert (type(version), version, type(self.number)) == (int, 0, int)
        self.keeps = stream


def test_another_library_takes_the_stream_of_a_chain_by_the_cuda_stream_protocol() -> None:
    with use_driver(Foreign()) as driver:
        seen: list[Any] = []

        def put(context: Any) -> Any:
            context.writes(box)
            theirs = TheirStream(context.stream)
            assert theirs.number == context.stream.handle
            (stream,) = [t.handle for t in oxide.devices()[0]._timelines if t.handle.number == theirs.number]
            driver.inner.launch_host_function(lambda: seen.append(memory.copy()), stream)
            return oxide.value(box)

        box = h2d(np.arange(4.0)).sync()
        memory = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_double * 4).from_address(box.ptr))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            oxide.with_context(put).sync()
        np.testing.assert_array_equal(seen[0], np.arange(4.0))


def test_a_stream_of_the_cpu_device_is_no_cuda_stream() -> None:
    with use_driver(step_driver()):
        assert not hasattr(oxide.devices()[0].new_stream(), "__cuda_stream__")


def test_an_exported_box_is_freed_after_what_the_default_stream_holds() -> None:
    with use_driver(Foreign()) as driver:
        home = oxide.devices()[0].new_stream()
        box = h2d(np.arange(4.0)).sync_on(home)
        memory = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_double * 4).from_address(box.ptr))
        seen: list[Any] = []
        capsule = box.__dlpack__(stream=1)
        driver.put(1, lambda: seen.append(memory.copy()))
        del capsule, box
        gc.collect()
        current_runtime().reclaimer.sweep()
        run(driver, home._timeline.handle)
        assert driver.live_allocations.device_count == 1
        oxide.reclaim.drain()
        np.testing.assert_array_equal(seen[0], np.arange(4.0))  # not the bytes that freed memory is poisoned with
        assert driver.live_allocations.device_count == 0


def test_interfaces_that_a_box_cannot_stand_for_are_refused() -> None:
    with use_driver(Foreign()):
        with pytest.raises(BufferError, match="written"):
            from_cuda_array_interface(Described(np.zeros(3), stream=None, read_only=True))
        strided = np.arange(6.0).reshape(2, 3).T
        described = Described(strided, stream=None)
        described.__cuda_array_interface__["strides"] = strided.strides
        box = from_cuda_array_interface(described)
        assert (box.ptr, box.shape, box.strides) == (strided.ctypes.data, (3, 2), strided.strides)
        assert box.__cuda_array_interface__["strides"] == strided.strides
        np.testing.assert_array_equal(d2h(box).sync(), strided)
        assert from_cuda_array_interface(Described(np.zeros((0, 3)), stream=None)).shape == (0, 3)


def test_an_array_of_another_library_is_ordered_on_the_stream_of_its_first_use() -> None:
    from oxide.interop.sharing import on_interface

    with use_driver(Foreign()) as driver:
        stream = oxide.devices()[0].new_stream()
        array = np.zeros(4)
        driver.put(77, lambda: np.copyto(array, np.arange(4.0)))
        box = on_interface(Described(array), stream._timeline)
        inserted = current_runtime().counters.waits_inserted.value
        copy = d2h(box).async_on(stream)
        assert current_runtime().counters.waits_inserted.value == inserted
        run(driver, driver.theirs[77])
        stream.synchronize()
        np.testing.assert_array_equal(copy, np.arange(4.0))
