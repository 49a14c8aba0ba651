"""DLPack tensors and array interfaces that cannot be: each is refused with its reason, and nothing is read of it."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import oxide
from oxide import d2h, from_cuda_array_interface, from_dlpack, h2d, reclaim
from oxide.driver.cpu import CpuDriver
from oxide.interop.dlpack import MOST_AXES
from oxide.testing import use_driver
from tests.interop.capsules import Exporter
from tests.interop.test_interop_streams import Described, Foreign

MEMORY = np.arange(64, dtype=np.float32)
START = MEMORY.ctypes.data
LARGEST = 2**63 - 1

IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "no memory for elements": ({"data": 0}, r"address is 0, and it has elements: its shape is \(4,\)"),
    "no memory, with an offset": ({"data": 0, "byte_offset": START}, "address is 0"),
    "a negative size": ({"shape": (4, -1)}, r"shape is \(4, -1\), and a size is 0 or more"),
    "the least size": ({"shape": (-(2**63),)}, "a size is 0 or more"),
    "more bytes than memory": ({"shape": (2**40, 2**40)}, r"beyond the 2\*\*63 - 1 bytes"),
    "more bytes by the elements' size": ({"shape": (2**62,)}, "with 4 bytes an element"),
    "none, of sizes beyond memory": ({"data": 0, "shape": (0, 2**40, 2**40)}, "beyond"),
    "axes below none": ({"ndim": -1}, "has -1 axes; 0 to 64"),
    "the least number of axes": ({"ndim": -(2**31)}, "axes; 0 to 64"),
    "axes beyond NumPy's": ({"shape": (1,) * 65}, "has 65 axes"),
    "axes that nobody wrote": ({"ndim": 100_000}, "has 100000 axes"),
    "axes without sizes": ({"shape": None, "ndim": 2}, "2 axes, and the address of its shape is 0"),
    "no bits": ({"dtype": (2, 0, 1)}, r"type code 2 \(float\), 0 bits, 1 lanes"),
    "odd bits": ({"dtype": (0, 7, 1)}, r"type code 0 \(int\), 7 bits"),
    "a width that NumPy has not": ({"dtype": (0, 24, 1)}, "24 bits"),
    "a wide bool": ({"dtype": (6, 32, 1)}, r"\(bool\), 32 bits"),
    "a wide bfloat": ({"dtype": (4, 32, 1)}, r"\(bfloat\), 32 bits"),
    "floats that are not IEEE's": ({"dtype": (2, 128, 1)}, "128 bits"),
    "an 8-bit float": ({"dtype": (11, 8, 1)}, r"type code 11 \(float8_e4m3fnuz\)"),
    "no lanes": ({"dtype": (2, 32, 0)}, "0 lanes"),
    "vectors": ({"dtype": (2, 32, 4)}, "4 lanes"),
    "a handle": ({"dtype": (3, 64, 1)}, "opaque handle"),
    "another device than announced": ({"device": (2, 0)}, r"device \(2, 0\), and .* says \(1, 0\)"),
    "the end of the address space": ({"data": 2**64 - 16}, "does not lie where"),
    "an offset beyond it": ({"byte_offset": 2**64 - 1}, "does not lie where"),
    "the first page": ({"data": 64}, "does not lie where"),
    "an address that no page has": ({"data": 2**60}, "does not lie where"),
    "strides beyond it": ({"shape": (4, 2), "strides": (LARGEST, 1)}, "does not lie where"),
    "strides below it": ({"shape": (4, 2), "strides": (-LARGEST - 1, 1)}, "does not lie where"),
    "between two elements": ({"byte_offset": 2}, f"begins at address {START + 2:#x}, and float32 elements lie at mult"),
    "one element for all": ({"strides": (0,)}, r"share memory, as its shape is \(4,\) and its strides are \(0,\)"),
    "sliding windows": ({"shape": (4, 4), "strides": (1, 1)}, "share memory"),
    "a window that turns back": ({"shape": (4, 4), "strides": (3, -1), "byte_offset": 64}, "share memory"),
    "a version to come": ({"version": (2, 0)}, "version 2.0; version 1 is understood"),
    "a version that never was": ({"version": (0, 8)}, "version 0.8"),
    "read-only": ({"flags": 1}, "read-only"),
    "read-only and copied": ({"flags": 3}, "read-only"),
    "a capsule used before": ({"version": None, "name": b"used_dltensor"}, "taken before, used_dltensor"),
    "a capsule of something else": ({"name": b"other"}, "no DLPack capsule, but PyCapsule"),
    "devices that are none": ({"announced": None}, "__dlpack_device__ gave None; it must be a pair of ints"),
    "three numbers for a device": ({"announced": (1, 0, 0)}, "a pair of ints"),
    "a device by name": ({"announced": ("cpu", 0)}, "a pair of ints"),
}


@pytest.fixture(autouse=True)
def on_the_cpu_device(device: str) -> None:
    if device == "cuda":
        pytest.skip("the capsules are of host memory")


def refusal(exporter: Exporter) -> str:
    """What is said of a tensor that is refused. What it holds is let go once."""
    message = ""
    try:
        from_dlpack(exporter)
    except BufferError as error:
        message = str(error)
    reclaim.drain()
    given = exporter.announced == (1, 0) and exporter._name.startswith(b"dltensor")
    assert exporter.deleted == given  # by the capsule's end, as nothing took it
    return message


@pytest.mark.parametrize("version", [(1, 0), None], ids=["versioned", "unversioned"])
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_tensor_is_refused_and_let_go_once(case: str, version: Any) -> None:
    fields, message = IMPOSSIBLE[case]
    if version is None and not {"version", "flags", "name"}.isdisjoint(fields):
        pytest.skip("of versioned tensors")
    exporter = Exporter(**{"data": START, "version": version, **fields})
    assert re.search(message, refusal(exporter))


DANGEROUS = [case for case, (fields, _) in IMPOSSIBLE.items() if not {"data", "ndim"}.isdisjoint(fields)]


def test_the_tensors_that_ended_the_process_do_not() -> None:
    """What was imported was read by d2h."""
    program = f"""
import oxide
from tests.interop.capsules import Exporter
from tests.interop.test_hostile_capsules import IMPOSSIBLE, START
for case in {DANGEROUS!r}:
    try:
        oxide.d2h(oxide.from_dlpack(Exporter(**{{"data": START, **IMPOSSIBLE[case][0]}}))).sync()
    except BufferError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["refused"] * len(DANGEROUS)), done.stderr


POSSIBLE: dict[str, tuple[dict[str, Any], np.ndarray[Any, Any]]] = {
    "a vector": ({}, MEMORY[:4]),
    "no axes": ({"shape": ()}, MEMORY[0]),
    "no axes, and no address of sizes": ({"shape": None, "ndim": 0}, MEMORY[0]),
    "an offset": ({"byte_offset": 8}, MEMORY[2:6]),
    "nothing, nowhere": ({"data": 0, "shape": (3, 0)}, np.empty((3, 0), np.float32)),
    "nothing, with strides of anything": ({"shape": (0, 2), "strides": (LARGEST, -7)}, np.empty((0, 2), np.float32)),
    "64 axes": ({"shape": (1,) * MOST_AXES}, MEMORY[0].reshape((1,) * MOST_AXES)),
    "an axis of one with any stride": ({"shape": (2, 1, 2), "strides": (2, -LARGEST, 1)}, MEMORY[:4].reshape(2, 1, 2)),
    "rows with gaps": ({"shape": (3, 2), "strides": (8, 1)}, MEMORY[:24].reshape(3, 8)[:, :2]),
    "Fortran order": ({"shape": (3, 2), "strides": (1, 3)}, MEMORY[:6].reshape(2, 3).T),
    "backwards": ({"strides": (-2,), "byte_offset": 32}, MEMORY[8:0:-2]),
    "bfloat16": ({"dtype": (4, 16, 1)}, MEMORY[:2].view(ml_dtypes.bfloat16)),
    "bools": ({"dtype": (6, 8, 1)}, MEMORY[:1].view(np.bool_)),
    "no deleter": ({"deleter": False}, MEMORY[:4]),
    "a flag for what is copied": ({"flags": 2}, MEMORY[:4]),
    "a version that adds something": ({"version": (1, 7)}, MEMORY[:4]),
}


@pytest.mark.parametrize("case", POSSIBLE)
def test_a_tensor_that_can_be_is_a_box_and_let_go_once(case: str) -> None:
    fields, expected = POSSIBLE[case]
    exporter = Exporter(**{"data": START, **fields})
    driver = CpuDriver(1)
    with use_driver(driver):
        box = from_dlpack(exporter)
        np.testing.assert_array_equal(d2h(box).sync(), expected)
        if box.dtype != ml_dtypes.bfloat16:  # NumPy takes only its own types
            np.testing.assert_array_equal(np.from_dlpack(box), expected)
        assert exporter.deleted == 0
        del box
        gc.collect()
        reclaim.drain()
        assert exporter.deleted == bool(exporter.managed.deleter)
        assert driver.live_allocations.device_count == 0
    driver.close()


SIZES = st.one_of(st.integers(0, 5), st.sampled_from([-1, 2**31, 2**62, LARGEST, -LARGEST - 1]))
STRIDES = st.one_of(st.integers(-12, 12), st.sampled_from([0, LARGEST, -LARGEST - 1]))
DTYPES = st.one_of(
    st.sampled_from([(0, 8, 1), (0, 64, 1), (1, 16, 1), (2, 32, 1), (5, 64, 1), (6, 8, 1)]),
    st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 3)),
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(SIZES, STRIDES), max_size=4),
    st.integers(0, 64),
    DTYPES,
    st.sampled_from([None, -1, 65, 2**31 - 1]),
    st.booleans(),
    st.sampled_from([(1, 0), None]),
)
@example([(1, LARGEST)], 0, (0, 64, 1), None, True, (1, 0))
def test_any_tensor_is_refused_or_what_numpy_sees(
    axes: list[tuple[int, int]], at: int, dtype: Any, ndim: int | None, strided: bool, version: Any
) -> None:
    memory = np.random.default_rng(3).integers(0, 2, 1024, np.uint8)
    shape, strides = [size for size, _ in axes], [stride for _, stride in axes]
    exporter = Exporter(
        memory.ctypes.data + 512,
        shape,
        strides if strided else None,
        ndim=ndim,
        dtype=dtype,
        byte_offset=at,
        version=version,
    )
    try:
        box = from_dlpack(exporter)
    except BufferError:
        box = None
    else:
        assert box.shape == tuple(shape)
        low, high = box._span()
        if box.size and memory.ctypes.data <= low and high <= memory.ctypes.data + 1024:
            # NumPy refuses strides beyond 2**63 bytes, also of an axis with one element, which has no next.
            steps = [0 if size == 1 else stride * box.dtype.itemsize for size, stride in axes] if strided else None
            seen = np.ndarray(box.shape, box.dtype, memory.data, 512 + at, steps)
            np.testing.assert_array_equal(box.host_view(), seen)
            np.testing.assert_array_equal(d2h(box).sync(), seen)
    del box
    reclaim.drain()
    assert exporter.deleted == 1


class Failing:
    """An exporter that fails, or gives what is no capsule."""

    def __init__(self, dlpack: Callable[..., Any], device: Callable[[], Any] = lambda: (1, 0)) -> None:
        self._dlpack, self._device = dlpack, device

    def __dlpack_device__(self) -> Any:
        return self._device()

    def __dlpack__(self, **_: Any) -> Any:
        return self._dlpack()


def raises(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("exporter", "message"),
    [
        (Failing(lambda: None), "gave no DLPack capsule, but NoneType"),
        (Failing(lambda: 3), "gave no DLPack capsule, but int"),
        (Failing(raises(RuntimeError("no memory left"))), "__dlpack__ failed: RuntimeError: no memory left"),
        (Failing(raises(TypeError("of another kind"))), "__dlpack__ failed: TypeError: of another kind"),
        (Failing(raises(BufferError("not today"))), "not today"),
        (Failing(lambda: None, raises(ValueError("nowhere"))), "__dlpack_device__ failed: ValueError: nowhere"),
        (np.ndarray, "__dlpack_device__ failed: TypeError"),
    ],
)
def test_an_exporter_that_fails_is_a_refusal_with_its_reason(exporter: Any, message: str) -> None:
    with pytest.raises(BufferError, match=message):
        from_dlpack(exporter)


def test_a_capsule_is_taken_once() -> None:
    exporter = Exporter(START)
    capsule = exporter.capsule()
    again = Failing(lambda: capsule)
    box = from_dlpack(again)
    with pytest.raises(BufferError, match="taken before, used_dltensor_versioned"):
        from_dlpack(again)
    del box
    gc.collect()
    reclaim.drain()
    assert exporter.deleted == 1


def test_a_tensor_is_let_go_where_no_stream_is_to_be_had_for_it() -> None:
    class NoStream:
        def next_stream(self, device: Any) -> Any:
            raise RuntimeError("no stream")

    driver = CpuDriver(1)
    with use_driver(driver, policy=NoStream()):
        exporter = Exporter(START)
        with pytest.raises(RuntimeError, match="no stream"):
            from_dlpack(exporter)
        gc.collect()
        assert exporter.deleted == 1
        assert not driver._heaps[0]._adopted
    driver.close()


def test_what_dlpack_has_no_type_for_is_not_exported() -> None:
    with pytest.raises(BufferError, match="DLPack has no type for"):
        h2d(np.zeros(3, np.longdouble)).sync().__dlpack__()


INTERFACES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no memory for elements": ({"data": (0, False)}, BufferError, "address is 0"),
    "a negative size": ({"shape": (-4,)}, BufferError, "a size is 0 or more"),
    "sizes that are no integers": ({"shape": (4.0,)}, BufferError, "shape is"),
    "no shape": ({"shape": None}, BufferError, "shape is None; the interface has a tuple of 64 ints"),
    "axes beyond NumPy's": ({"shape": (1,) * 65}, BufferError, "64 ints"),
    "more bytes than memory": ({"shape": (2**40, 2**40)}, BufferError, "beyond"),
    "an address that is none": ({"data": ("here", False)}, BufferError, "data is"),
    "a negative address": ({"data": (-8, False)}, BufferError, "data is"),
    "only an address": ({"data": 4096}, BufferError, "data is 4096"),
    "no type": ({"typestr": None}, BufferError, "typestr is None"),
    "a type that is none": ({"typestr": "<x9"}, BufferError, "typestr is"),
    "elements of no bytes": ({"typestr": "|S0"}, BufferError, "typestr is"),
    "bytes of no type": ({"typestr": "|V3"}, TypeError, "V3 is not supported"),
    "the other byte order": ({"typestr": ">f8"}, TypeError, "is not supported"),
    "Python objects": ({"typestr": "|O"}, TypeError, "is not supported"),
    "strides of other axes": ({"strides": (8, 8)}, BufferError, "as many ints as the shape, 1"),
    "strides that are no integers": ({"strides": ("8",)}, BufferError, "strides is"),
    "strides between elements": ({"strides": (12,)}, BufferError, "multiples of an element's 8"),
    "one element for all": ({"strides": (0,)}, BufferError, "share memory"),
    "a mask": ({"mask": object()}, BufferError, "no mask"),
    "stream 0": ({"stream": 0}, BufferError, "stream is 0; the interface has None or a stream's number"),
    "a stream by name": ({"stream": "default"}, BufferError, "stream is"),
}


@pytest.mark.parametrize("case", INTERFACES)
def test_an_array_interface_that_cannot_be_is_refused(case: str) -> None:
    fields, error, message = INTERFACES[case]
    described = Described(np.zeros(4), stream=None)
    described.__cuda_array_interface__.update(fields)
    with use_driver(Foreign()), pytest.raises(error, match=message):
        from_cuda_array_interface(described)


@pytest.mark.parametrize("stream", [-2, -(2**70)])
def test_a_stream_that_is_none_is_refused_by_an_export(stream: int) -> None:
    with use_driver(Foreign()):
        box = h2d(np.zeros(4)).sync()
        with pytest.raises(BufferError, match="is none; pass -1"):
            box.__dlpack__(stream=stream)
        with pytest.raises(TypeError, match="stream is 'default'; it must be a stream's number"):
            box.__dlpack__(stream="default")  # type: ignore[arg-type]


def test_memory_on_another_device_than_its_array_says_is_refused() -> None:
    driver = Foreign(2)
    with use_driver(driver):
        box = h2d(MEMORY).sync()
        exporter = Exporter(box.ptr, device=(2, 1), announced=(2, 1))
        with pytest.raises(BufferError, match="memory is on cuda:0, and it says that it is on cuda:1"):
            from_dlpack(exporter)
        with pytest.raises(oxide.DeviceError, match="there is no device -1"):
            from_dlpack(Exporter(box.ptr, device=(2, -1), announced=(2, -1)))
        gc.collect()
        assert exporter.deleted == 1
        assert not any(heap._adopted for heap in driver.inner._heaps)
