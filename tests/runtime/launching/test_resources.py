"""``Kernel.resources()``: what the driver is asked, and what is said where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import DeviceError, DisjointSlice, KernelResources, LaunchError, Slice, f32, f64, h2d, kernel, thread
from oxide.testing import DelegatingDriver, RecordingDriver, step_driver, use_driver
from oxide_kernels import relu


@kernel(block=(16, 8))
def double(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] * f32(2)


without_block = kernel(double.function)

FOUND = KernelResources(
    registers=40,
    local_bytes=16,
    spill_bytes=8,
    shared_bytes=1024,
    constant_bytes=0,
    max_threads_per_block=1024,
    block=128,
    dynamic_shared_bytes=512,
    blocks_per_multiprocessor=12,
    occupancy=0.75,
)


class Gpu(DelegatingDriver):
    """A step driver that has resources to tell of."""

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return FOUND if method == "resources" else super().invoke(method, *arguments, **keywords)


@pytest.fixture
def gpu() -> Any:
    with use_driver(RecordingDriver(Gpu(step_driver()))) as driver:
        yield driver


def test_the_driver_is_asked_about_the_loaded_kernel_and_the_block(gpu: RecordingDriver) -> None:
    assert double.resources(shared_mem_bytes=512) is FOUND
    (load,) = [call for call in gpu.calls if call.method == "load"]
    (asked,) = [call for call in gpu.calls if call.method == "resources"]
    function, code, threads, shared = asked.arguments
    assert function is load.result
    assert code is load.arguments[1]
    assert (threads, shared) == (16 * 8, 512)
    assert not gpu.submissions


def test_the_block_is_the_one_asked_for_or_the_kernels_own_or_256_threads(gpu: RecordingDriver) -> None:
    double.resources()
    double.resources(32)
    double.resources((4, 4, 4))
    without_block.resources()
    threads = [call.arguments[2] for call in gpu.calls if call.method == "resources"]
    assert threads == [128, 32, 64, 256]


def test_a_generic_kernel_is_asked_about_for_float32(gpu: RecordingDriver) -> None:
    assert relu.resources() is FOUND
    relu.specialize(T=f32).resources()
    assert gpu.count("load") == 1
    relu.specialize(T=f64).resources()
    assert gpu.count("load") == 2


def test_a_launch_after_the_question_loads_nothing_again(gpu: RecordingDriver) -> None:
    double.resources()
    x = np.arange(5, dtype=np.float32)
    with pytest.raises(LaunchError):
        double[1, (16, 8)](h2d(x), h2d(x))
    assert double[1, 16](h2d(x), h2d(x)).last().to_host().sync().tolist() == (2 * x).tolist()
    assert gpu.count("load") == 1


@pytest.mark.parametrize("block", [2048, (1, 2, 3, 4), (32, 64), "wide"])
def test_a_block_that_no_launch_can_have_is_refused(gpu: RecordingDriver, block: Any) -> None:
    with pytest.raises(LaunchError, match="block"):
        double.resources(block)
    assert not gpu.count("resources")


def test_the_cpu_device_says_that_it_has_no_such_resources() -> None:
    with (
        use_driver(step_driver()),
        pytest.raises(DeviceError, match=r"kernel double: resources were asked for on cpu:0.*OXIDE_DEVICE=cuda"),
    ):
        double.resources()


def test_spills_are_read_off_the_assemblers_log() -> None:
    pytest.importorskip("cuda.bindings.driver")
    from oxide.driver.cuda.modules import spill_bytes

    log = """ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    64 bytes stack frame, 72 bytes spill stores, 88 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 64 bytes cumulative stack size
"""
    assert spill_bytes(log) == 72
    assert spill_bytes(log.replace("72", "0")) == 0
    assert spill_bytes("ptxas info : Used 32 registers\n") is None
