"""Foreign kernels: launches of PTX, cubins and CUDA C++ as operations. Here a driver stands in for CUDA's: it takes the
PTX for the names and parameters, and runs native code of the same parameters."""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import (
    Arc,
    ArgumentError,
    CompileError,
    DeviceBox,
    DisjointSlice,
    In,
    InOut,
    LaunchConfig,
    LaunchError,
    Out,
    Slice,
    d2h,
    f32,
    h2d,
    i32,
    kernel,
    thread,
    value,
    with_context,
    zeros,
)
from oxide.driver.base import BINARY_MAGIC, Code
from oxide.driver.cpu import CpuDriver
from oxide.driver.ptx_parameters import KernelParameter, entries, kernel_parameters
from oxide.interop.foreign import _number_bytes
from oxide.testing import DelegatingDriver, FailingDriver, RecordingDriver, step_driver, use_driver
from oxide_kernels import relu

RANDOM = np.random.default_rng(26)

PTX = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry scaled(
    .param .u64 x, .param .u64 nx, .param .f32 factor, .param .u64 .ptr .global .align 4 y, .param .u64 ny,
    .param .u64 fault)
{ ret; }
.visible .entry _Z5otherPf(.param .u64 x) { ret; }
"""


@kernel
def scaled(x: Slice[f32], factor: f32, y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = factor * x[index.get()]


@dataclass
class Loaded:
    """The result of loading foreign code, by the driver protocol."""

    kernels: dict[str, Any]
    parameters: dict[str, Any]


class StandIn(DelegatingDriver):
    """A CUDA driver for the runtime, on the CPU: its foreign code is ``scaled``."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.name = "cuda"
        self.loads = 0

    def load(self, device: int, code: Code) -> Any:
        if not code.foreign:
            return super().load(device, code)
        self.loads += 1
        native = scaled.specialize().code(code.target)
        ptx = PTX if code.is_binary else code.image.decode()
        parameters = {name: kernel_parameters(ptx, name) for name in entries(ptx)}
        if code.is_binary:
            parameters = {name: tuple(replace(p, kind="bits") for p in each) for name, each in parameters.items()}
        return Loaded(dict.fromkeys(entries(ptx), self.invoke("load", device, native)), parameters)


@pytest.fixture
def cuda() -> Iterator[StandIn]:
    with use_driver(StandIn(CpuDriver())) as driver:
        yield driver


def launched(x: Any, y: Any, n: int, factor: Any = 3.0) -> Any:
    foreign = oxide.module(PTX)["scaled"]
    return foreign[LaunchConfig.for_num_elems(n)](In(x), n, factor, Out(y), n, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("n", [1, 33, 1003])
def test_a_launch_takes_boxes_arcs_and_operations_and_yields_them(n: int) -> None:
    data = RANDOM.standard_normal(n).astype(np.float32)
    x, y = h2d(data).sync(), zeros(n).arc().sync()
    result = launched(x, y, n, f32(0.5)).sync()
    assert result == (x, n, f32(0.5), y, n, 0)
    np.testing.assert_array_equal(d2h(y).sync(), data * np.float32(0.5))
    by_operations = launched(h2d(data), zeros(n), n, 2).unzip()[3].and_then(d2h)
    np.testing.assert_array_equal(by_operations.sync(), data * 2)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("how", ["await", "graph", "planned", "fused"])
def test_it_runs_between_two_kernels_of_oxide(how: str) -> None:
    n = 501
    data = RANDOM.standard_normal(n).astype(np.float32)

    def chain() -> Any:
        up = h2d(data).and_then(lambda box: relu(box, zeros(n)).last())
        middle = up.and_then(lambda box: launched(box, zeros(n), n, -1.5)).map(lambda result: result[3])
        return middle.and_then(lambda box: scaled[LaunchConfig.for_num_elems(n)](box, 2.0, zeros(n)).last()).and_then(
            d2h
        )

    if how == "await":

        async def main() -> Any:
            return await chain()

        result = trio.run(main)
    elif how == "graph":
        with chain().graph(fuse=True) as graph:
            for _ in range(2):
                data[:] = RANDOM.standard_normal(n)
                graph.launch().sync()
            result = graph.take_output()
    else:
        result = (oxide.planned(chain()) if how == "planned" else chain().fused()).sync()
    np.testing.assert_array_equal(result, np.maximum(data, 0) * np.float32(-1.5) * 2)


def test_launches_on_two_streams_are_ordered_by_what_they_declare() -> None:
    with use_driver(StandIn(step_driver())) as driver:
        first, second = (oxide.devices()[0].new_stream() for _ in range(2))
        x, y, z = (zeros(4).sync() for _ in range(3))
        oxide.memcpy(x, np.full(4, 3, np.float32)).async_on(first)
        launched(x, y, 4, 2.0).async_on(second)
        foreign = oxide.module(PTX)["scaled"]
        foreign[1, 32](In(y), 4, 5.0, Out(z), 4, 0).async_on(first)
        while driver.inner.step(second._timeline.handle):
            pass
        first.synchronize()
        second.synchronize()
        assert d2h(z).sync().tolist() == [30.0] * 4


@pytest.mark.usefixtures("cuda")
def test_in_out_says_both_and_a_pointer_is_taken_too() -> None:
    def make(ctx: Any) -> Any:
        pointer = ctx.malloc_async(64)
        ctx.memcpy_async(pointer, np.arange(16, dtype=np.float32), 64)
        return value(pointer)

    pointer = with_context(make).sync()
    foreign = oxide.module(PTX.encode())["scaled"]
    foreign[1, 32](InOut(pointer), 16, 2.0, InOut(pointer), 16, 0).sync()
    box = DeviceBox.from_raw_parts(pointer, 16, f32)
    assert d2h(box).sync().tolist() == [2.0 * number for number in range(16)]


def test_a_module_is_loaded_once_for_all_its_kernels(cuda: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "code.ptx"
    path.write_text(PTX)
    found = oxide.module(path)
    assert found.names == ["scaled", "_Z5otherPf"]
    assert found["other"].name == "_Z5otherPf"
    for _ in range(3):
        found["scaled"][1, 32](In(zeros(4)), 4, 1.0, Out(zeros(4)), 4, 0).sync()
    assert cuda.loads == 1


@pytest.mark.usefixtures("cuda")
def test_a_binary_whose_parameters_are_known_once_it_is_loaded() -> None:
    found = oxide.module(BINARY_MAGIC[0] + b"rest")
    x, y = h2d(np.arange(4, dtype=np.float32)).sync(), zeros(4).sync()
    found["scaled"][1, 32](In(x), 4, 2.0, Out(y), 4, 0).sync()
    assert d2h(y).sync().tolist() == [0, 2, 4, 6]
    with pytest.raises(LaunchError, match="no kernel 'gone'; there are: scaled, _Z5otherPf"):
        found["gone"][1, 32](In(x)).sync()
    with pytest.raises(ArgumentError, match="takes 6 arguments, got 1"):
        found["scaled"][1, 32](In(x)).sync()
    with pytest.raises(TypeError, match="options are for CUDA C"):
        oxide.module(BINARY_MAGIC[1] + b"rest", {"std": "c++20"})


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda x: (In(x),), "kernel scaled takes 6 arguments, got 1"),
        (lambda x: (x, 4, 1.0, Out(x), 4, 0), "argument 1 .* wrap it in In, Out or InOut"),
        (lambda x: (np.zeros(4), 4, 1.0, Out(x), 4, 0), r"argument 1 .* pass h2d\(array\)"),
        (lambda x: ("x", 4, 1.0, Out(x), 4, 0), "argument 1 is 'x'"),
        (lambda x: (In(x), 4, In(x), Out(x), 4, 0), "argument 3 is In.*a number of floating point of 4 bytes"),
        (lambda x: (In(x), 4, np.float64(1), Out(x), 4, 0), r"argument 3 .* of type float64; .*f32\(1.0\)"),
        (lambda x: (In(x), 4, i32(1), Out(x), 4, 0), "argument 3 .* of type int32"),
        (lambda x: (In(x), 4, 1e300, Out(x), 4, 0), "argument 3 is 1e.300"),
        (lambda x: (In(x), 4.5, 1.0, Out(x), 4, 0), "argument 2 is 4.5, of type float; .*an integer of 8 bytes"),
        (lambda x: (In(x), 2**64, 1.0, Out(x), 4, 0), "argument 2 .* of type int"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_when_the_launch_is_built(arguments: Any, message: str) -> None:
    x = zeros(4).sync()
    with pytest.raises(ArgumentError, match=message):
        oxide.module(PTX)["scaled"][1, 32](*arguments(x))


@pytest.mark.usefixtures("cuda")
def test_wrong_declarations_configurations_and_names_are_refused() -> None:
    box = zeros((4, 4)).sync()
    with pytest.raises(ArgumentError, match=r"In takes a DeviceBox.*not ndarray; h2d"):
        In(np.zeros(4))
    with pytest.raises(ArgumentError, match=r"Out: the box of shape \(4,\) is a strided view"):
        Out(box[:, 0])
    foreign = oxide.module(PTX)["scaled"]
    with pytest.raises(LaunchError, match="kernel scaled: the brackets take"):
        foreign[1]
    with pytest.raises(LaunchError, match="without a grid and block"):
        foreign(In(box))
    with pytest.raises(KeyError, match="no kernel 'scale'; there are: scaled, _Z5otherPf"):
        oxide.module(PTX)["scale"]
    with pytest.raises(ArgumentError, match=r"argument 1, In takes .* not tuple; pick one"):
        launched(launched(box, box, 16), box, 16).sync()


def test_memory_of_another_device_is_refused() -> None:
    with use_driver(StandIn(CpuDriver(2))):
        here, there = (device.new_stream() for device in oxide.devices())
        x = zeros(4).sync_on(there)
        with pytest.raises(oxide.DeviceError, match="kernel scaled, argument 1: the box is on cuda:1"):
            launched(x, zeros(4), 4).sync_on(here)


def test_the_cpu_device_refuses_with_the_kernels_name() -> None:
    with use_driver(CpuDriver()):
        x = zeros(4).sync()
        with pytest.raises(LaunchError, match=r"kernel scaled is foreign code for CUDA devices, .* cpu devices"):
            launched(x, x, 4)
        source = oxide.module('extern "C" __global__ void f() {}')
        with pytest.raises(LaunchError, match="kernel f is foreign code for CUDA devices"):
            source["f"][1, 1]()


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (3, TypeError, "the source is 3"),
        ("  ", ValueError, "is empty"),
        ("kernels.cu", TypeError, r"pass pathlib.Path\('kernels.cu'\)"),
        (b"\xff\xfe\xfd", TypeError, "neither text nor"),
        (b"abc", TypeError, "3 bytes are neither PTX nor a cubin nor a fatbin"),
    ],
)
def test_a_source_that_is_none_is_refused(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        oxide.module(source)


@pytest.mark.usefixtures("cuda")
def test_cuda_cpp_without_nvrtc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    core = pytest.importorskip("cuda.core")

    class DynamicLibNotFoundError(RuntimeError):
        """The error of cuda.pathfinder for a missing library."""

    def program(*_: object) -> None:
        raise DynamicLibNotFoundError("Failure finding libnvrtc.so")

    monkeypatch.setattr(core, "Program", program)
    with pytest.raises(CompileError, match=r"NVRTC, which is not installed: .*oxide-gpu\[nvrtc\]"):
        oxide.module('extern "C" __global__ void f() {}')["f"]
    with pytest.raises(TypeError, match=r"fields of cuda.core's ProgramOptions"):
        oxide.module('extern "C" __global__ void f() {}', {"no_such_option": 1})["f"]


class Program:
    """Stands in for cuda.core's."""

    def __init__(self, source: str, kind: str, options: Any) -> None:
        self.source = source
        assert kind == "c++"
        assert options.std == "c++20"

    def compile(self, kind: str) -> Any:
        if "undefined" in self.source:
            raise RuntimeError("NVRTC_ERROR_COMPILATION: identifier undefined")
        return SimpleNamespace(code=PTX.encode() + b"\0" if kind == "ptx" else BINARY_MAGIC[0])

    def close(self) -> None:
        """Does nothing."""


def test_cuda_cpp_is_compiled_once_and_its_ptx_tells_the_parameters(
    cuda: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest.importorskip("cuda.core"), "Program", Program)
    found = oxide.module("__global__ void scaled();", {"std": "c++20"})
    x = h2d(np.arange(4, dtype=np.float32)).sync()
    for factor in (2, 3.0):  # an int too is passed as the parameter's type
        y = found["scaled"][1, 32](In(x), 4, factor, Out(zeros(4)), 4, 0).sync()[3]
        assert d2h(y).sync().tolist() == [factor * number for number in range(4)]
    assert cuda.loads == 1
    with pytest.raises(ArgumentError, match="takes 6 arguments, got 1"):
        found["scaled"][1, 32](In(x))
    with pytest.raises(CompileError, match="refused by NVRTC: NVRTC_ERROR_COMPILATION: identifier undefined"):
        oxide.module("undefined", {"std": "c++20"})["f"]


def test_numbers_take_the_type_of_the_parameter() -> None:
    integer, number, bits = (KernelParameter(0, 4, kind) for kind in ("integer", "float", "bits"))  # type: ignore[arg-type]
    assert _number_bytes(integer, -1) == _number_bytes(integer, 2**32 - 1) == b"\xff" * 4
    assert _number_bytes(number, 2) == _number_bytes(number, 2.0) == struct.pack("<f", 2.0)
    assert _number_bytes(bits, 2) == struct.pack("<i", 2)
    assert _number_bytes(bits, 2.0) == _number_bytes(bits, f32(2.0)) == struct.pack("<f", 2.0)
    assert _number_bytes(KernelParameter(0, 2, "bits"), oxide.bf16(1.0)) == b"\x80\x3f"
    assert _number_bytes(KernelParameter(0, 1, "integer"), True) == b"\x01"
    structure = np.array((1, 2.0), np.dtype([("a", "i4"), ("b", "f8")], align=True))[()]
    assert _number_bytes(KernelParameter(0, 16, "bits"), structure) == structure.tobytes()
    assert _number_bytes(KernelParameter(0, 16, "bits"), 1) is None
    assert _number_bytes(number, float("inf")) == struct.pack("<f", float("inf"))


def test_a_failure_at_any_driver_call_leaves_nothing() -> None:
    data = RANDOM.standard_normal(33).astype(np.float32)

    def run() -> Any:
        return launched(h2d(data), zeros(33), 33, 2.0).unzip()[3].and_then(d2h).sync()

    with use_driver(RecordingDriver(StandIn(CpuDriver()))) as driver:
        np.testing.assert_array_equal(run(), data * 2)
        calls = len(driver.calls)
    failures = 0
    for number in range(1, calls + 1):
        recording = RecordingDriver(StandIn(CpuDriver()))
        failing = FailingDriver(recording)
        with use_driver(failing):
            injected = oxide.DriverError(999, "CUDA_ERROR_UNKNOWN", f"injected at call {number}")
            failing.fail_call(number, injected)
            try:
                run()
            except oxide.DriverError as error:
                assert error is injected  # noqa: PT017
                failures += 1
            failing.forget()
            np.testing.assert_array_equal(run(), data * 2)
            del injected
            gc.collect()
            oxide.reclaim.drain()
            assert recording.outstanding()["allocations"] == recording.outstanding()["host_allocations"] == 0
    assert failures > calls // 2


def test_an_arc_is_passed_on() -> None:
    with use_driver(StandIn(CpuDriver())):
        shared = Arc(zeros(4).sync())
        assert launched(shared, zeros(4), 4).sync()[0] is shared
