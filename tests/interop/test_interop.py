"""Memory shared with other libraries on the CPU device, NumPy standing for all of them. Streams: tests/gpu."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import DeviceBox, d2h, from_dlpack, h2d, memcpy
from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu.allocator import Heap
from oxide.host.core import FORM
from oxide.interop import dlpack
from oxide.testing import step_driver, use_driver
from tests.interop.capsules import Exporter


@pytest.fixture(autouse=True)
def on_the_cpu_device(device: str) -> None:
    if device == "cuda":
        pytest.skip("NumPy shares no memory with a GPU")


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 3)])
def test_numpy_takes_a_box_without_a_copy_and_oxide_an_array(shape: tuple[int, ...], dtype: str) -> None:
    data = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    box = h2d(data).sync()
    array = np.from_dlpack(box)
    assert (array.dtype, array.shape) == (data.dtype, shape)
    np.testing.assert_array_equal(array, data)
    assert not data.size or array.ctypes.data == box.ptr
    back = from_dlpack(array)
    assert (back.shape, back.dtype, back.ptr) == (shape, data.dtype, box.ptr)
    np.testing.assert_array_equal(d2h(back).sync(), data)


def test_importing_many_arrays_looks_through_none_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a look through all that were imported, 2000 took 107 µs each and not 11."""
    looks: list[object] = []
    monkeypatch.setattr(Heap, "_in_adopted", lambda *looked: looks.append(looked))
    dlpack._deleter_at.cache_clear()
    with use_driver(CpuDriver(1)):
        arrays = [np.full(4, number, np.float32) for number in range(20)]
        boxes = [from_dlpack(array) for array in arrays]
        assert [box.ptr for box in boxes] == [array.ctypes.data for array in arrays]
        gone = [weakref.ref(array) for array in arrays]
        del arrays, boxes
        gc.collect()
        oxide.reclaim.drain()
        assert not any(array() is not None for array in gone)
    assert not looks
    assert dlpack._deleter_at.cache_info().misses == 1  # NumPy's, for all of them


def test_an_exported_box_lives_as_long_as_what_was_made_of_it() -> None:
    with use_driver(CpuDriver()) as driver:
        array = np.from_dlpack(h2d(np.arange(1000.0)).sync())
        gc.collect()
        oxide.reclaim.drain()
        np.testing.assert_array_equal(array, np.arange(1000.0))
        assert driver.live_allocations.device_count == 1
        del array
        gc.collect()
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == 0


def test_a_capsule_that_nobody_took_lets_go() -> None:
    capsule = h2d(np.arange(10.0)).sync().__dlpack__()
    assert len(dlpack._exported) == 1
    del capsule
    oxide.reclaim.collect()
    assert not dlpack._exported


@pytest.mark.skipif(FORM == "Python", reason="the core's twin releases it in Python, and may lose the exception")
def test_an_exception_on_whose_way_an_exported_array_is_dropped_is_kept() -> None:
    box = h2d(np.arange(10.0)).sync()

    def fail(array: object) -> None:
        raise KeyError("the program's own")

    for take in (np.from_dlpack, lambda box: box.__dlpack__()):
        with pytest.raises(KeyError, match="the program's own"):
            print(take(box), fail(box))
    oxide.reclaim.collect()
    assert not dlpack._exported


def test_an_array_made_of_a_box_may_outlive_oxides_modules() -> None:
    program = """
import sys
import numpy as np
import oxide
array = np.from_dlpack(oxide.h2d(np.arange(4.0)).sync())
sys.excepthook = lambda *_: print(array)  # which the interpreter has until its end
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONMALLOC": "debug"},  # which overwrites what is freed
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_exporting_waits_for_the_writes_before() -> None:
    with use_driver(step_driver()):
        box = h2d(np.arange(10.0)).async_on(oxide.devices()[0].new_stream())
        np.testing.assert_array_equal(np.from_dlpack(box), np.arange(10.0))


def test_an_imported_array_is_kept_until_the_device_is_past_its_last_use() -> None:
    with use_driver(step_driver()) as driver:

        class Array(np.ndarray):  # type: ignore[type-arg]
            """An array that can be watched."""

        array = np.arange(1000.0).view(Array)
        gone = weakref.ref(array)
        stream = oxide.devices()[0].new_stream()
        box = from_dlpack(array)
        copy = d2h(box).async_on(stream)
        del array, box
        gc.collect()
        oxide.value(1).sync()  # sweeps
        assert gone() is not None
        stream.synchronize()
        np.testing.assert_array_equal(copy, np.arange(1000.0))
        gc.collect()
        oxide.reclaim.drain()
        assert gone() is None
        assert driver.live_allocations.device_count == 0


@pytest.mark.parametrize("dropped", ["unused", "used"])
@pytest.mark.parametrize("made", ["from_dlpack", "from_raw_parts"])
def test_a_box_that_no_run_uses_releases_its_array_when_it_is_dropped(made: str, dropped: str) -> None:
    """And not when a later operation runs, which may never come."""
    array = np.ones(16, np.float32)
    gone = weakref.ref(array)
    if made == "from_dlpack":
        box = from_dlpack(array)
    else:
        box = DeviceBox.from_raw_parts(array.ctypes.data, 16, np.float32, owner=array)
    del array
    part = box[2:6]
    if dropped == "used":
        d2h(box).sync()
    del box
    assert gone() is not None
    np.testing.assert_array_equal(d2h(part).sync(), np.ones(4))
    del part
    assert gone() is None


def test_importing_again_and_again_leaves_nothing_of_the_boxes_that_were_dropped() -> None:
    with use_driver(CpuDriver()) as driver:
        for _ in range(50):
            from_dlpack(np.ones(16))
            assert len(driver._heaps[0]._adopted) <= 2
        assert len(oxide.reclaim.dropped) <= 2


def test_a_taken_capsule_ends_at_once_and_its_tensor_with_the_box() -> None:
    """A capsule that is kept would end behind the tensor, in garbage with its library's functions behind these."""
    memory = np.arange(4, dtype=np.float32)
    exporter = Exporter(memory.ctypes.data)
    with use_driver(CpuDriver(1)):
        box = from_dlpack(exporter)
        assert (exporter.capsules, exporter.deleted) == (0, 0)
        del box
        gc.collect()
        oxide.reclaim.drain()
        assert (exporter.capsules, exporter.deleted) == (0, 1)


@pytest.mark.parametrize("dropped", ["in the runtime", "with the runtime"])
def test_an_exporter_that_nobody_keeps_is_there_until_its_tensor_is_let_go(dropped: str) -> None:
    memory = np.arange(4, dtype=np.float32)
    with use_driver(CpuDriver(1)):
        exporter = Exporter(memory.ctypes.data)
        gone = weakref.ref(exporter)
        box = from_dlpack(exporter)
        del exporter
        gc.collect()
        assert gone() is not None
        np.testing.assert_array_equal(d2h(box).sync(), memory)
        if dropped == "in the runtime":
            del box
            gc.collect()
            oxide.reclaim.drain()
            assert gone() is None
    if dropped == "with the runtime":
        del box
        oxide.reclaim.collect()  # into the queue of a runtime that nobody has
        gc.collect()
        assert gone() is None


def test_the_device_writes_into_the_imported_array() -> None:
    array = np.zeros(8)
    box = from_dlpack(array)
    memcpy(box, h2d(np.arange(8.0)).sync()).sync()
    np.testing.assert_array_equal(array, np.arange(8.0))
    memcpy(box.split(4)[1], h2d(np.ones(4)).sync()).sync()
    np.testing.assert_array_equal(array[4:], np.ones(4))
    again = from_dlpack(array)
    del box
    gc.collect()
    oxide.reclaim.drain()
    d2h(again).sync()  # one import ended, the other has not


@pytest.mark.parametrize(
    ("thing", "error", "message"),
    [
        (lambda: 3, TypeError, "__dlpack__"),
        (lambda: _Elsewhere(), oxide.DeviceError, "h2d"),
    ],
)
def test_what_cannot_be_shared_is_refused(thing: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_dlpack(thing())


class _Elsewhere:
    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("asked before its device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 7, 0


def steps(array: Any) -> list[int]:
    """The strides that say something."""
    return [stride for size, stride in zip(array.shape, array.strides, strict=True) if size > 1]


@pytest.mark.parametrize(
    "index", [np.s_[::2], np.s_[:, 1], np.s_[::-1, 2:], np.s_[..., ::-3], np.s_[1:2, :, 3], np.s_[:, :0]]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_of_any_order_is_a_box_and_a_box_an_array_of_its_strides(index: Any, order: Any) -> None:
    array = np.asarray(np.arange(60.0).reshape(3, 4, 5), order=order)[index]
    box = from_dlpack(array)
    assert (box.shape, box.size, box.nbytes, box.ndim) == (array.shape, array.size, array.nbytes, array.ndim)
    np.testing.assert_array_equal(d2h(box).sync(), array)
    for back in (np.from_dlpack(box), box.host_view()):
        np.testing.assert_array_equal(back, array)
        assert not array.size or (back.ctypes.data, steps(back)) == (array.ctypes.data, steps(array))
    assert not array.size or steps(box) == steps(array)
    again = from_dlpack(np.from_dlpack(box))
    np.testing.assert_array_equal(d2h(again.T).sync(), array.T)
    memcpy(box, np.ones(array.shape)).sync()
    assert bool((array == 1).all())


def test_a_read_only_array_is_not_imported() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    with pytest.raises(BufferError):
        from_dlpack(array)


def test_a_box_refuses_streams_copies_and_devices_that_make_no_sense() -> None:
    box = h2d(np.arange(3.0)).sync()
    assert box.__dlpack_device__() == (1, 0)
    for arguments in ({"stream": 5}, {"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            box.__dlpack__(**arguments)  # type: ignore[arg-type]
    for name in ("max_version", "dl_device"):
        for wrong in ("x", 1, (1,), (1, "0")):
            with pytest.raises(TypeError, match=f"__dlpack__: {name} is .*; it must be a tuple of two ints, or None"):
                box.__dlpack__(**{name: wrong})  # type: ignore[arg-type]
    assert not hasattr(box, "__cuda_array_interface__")
    with pytest.raises(oxide.DeviceError, match="OXIDE_DEVICE=cuda"):
        oxide.from_cuda_array_interface(_Described())
    with pytest.raises(TypeError, match="interface"):
        oxide.from_cuda_array_interface(np.ones(3))


class _Described:
    __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (256, False), "version": 3}  # noqa: RUF012
