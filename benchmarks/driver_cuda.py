"""What each call of the CUDA driver costs, beside the calls it could be made of instead.

    python -m benchmarks.driver_cuda [--output FILE]

Prints a table and writes JSON. Submission is timed in batches with the device drained in between, so that a full queue
is never what is measured; the contenders of a group take turns, batch by batch. Figures are microseconds a call: the
median batch and the quickest.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import platform
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda.core as core
from cuda.bindings import driver as bindings

from benchmarks import record
from benchmarks.native_loop import PackedParameters
from oxide.driver.base import Code
from oxide.driver.cuda.driver import CudaDriver

PTX = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry slices(.param .u64 a, .param .u64 a_length, .param .u64 b, .param .u64 b_length,
                       .param .u64 c, .param .u64 c_length) { ret; }
"""
PARAMS = struct.pack("@6Q", 4096, 1, 4096, 1, 4096, 1)
ONE = (1, 1, 1)
BATCH = 200
BATCHES = 40

Call = Callable[[], Any]


class Bench:
    """The driver, a stream, an event and a kernel, and the figures so far."""

    def __init__(self) -> None:
        self.driver = CudaDriver()
        self.stream = self.driver.create_stream(0)
        self.event = self.driver.create_event(0, timing=False)
        self.code = Code(self.driver.device_info(0).target, "slices", PTX)
        self.kernel = self.driver.load(0, self.code)
        self.figures: dict[str, dict[str, dict[str, float]]] = {}

    def compare(self, group: str, calls: dict[str, Call], batch: int = BATCH, batches: int = BATCHES) -> None:
        """Times calls that only submit, in batches that alternate between the contenders."""
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for index in range(batches + 2):
            for name, call in calls.items():
                self.driver.synchronize_stream(self.stream)
                start = time.perf_counter()
                for _ in range(batch):
                    call()
                elapsed = (time.perf_counter() - start) / batch * 1e6
                if index >= 2:
                    samples[name].append(elapsed)
        self.driver.synchronize_stream(self.stream)
        self._keep(group, samples)

    def latency(self, group: str, calls: dict[str, Call], repeats: int = 2000) -> None:
        """Times calls that return when the device is done, each by itself."""
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for index in range(repeats + 50):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                elapsed = (time.perf_counter() - start) * 1e6
                if index >= 50:
                    samples[name].append(elapsed)
        self._keep(group, samples)

    def _keep(self, group: str, samples: dict[str, list[float]]) -> None:
        print(group)
        self.figures[group] = {}
        for name, values in samples.items():
            figure = {"median_us": round(statistics.median(values), 3), "best_us": round(min(values), 3)}
            self.figures[group][name] = figure
            print(f"  {name:<58}{figure['median_us']:>12.2f}{figure['best_us']:>12.2f}")


def measure_launch(bench: Bench) -> None:
    driver, stream, kernel = bench.driver, bench.stream, bench.kernel
    packet = PackedParameters(PARAMS)
    values = (ctypes.c_uint64 * 6).from_buffer_copy(PARAMS)
    pointers = (ctypes.c_void_p * 6)(*(ctypes.addressof(values) + 8 * i for i in range(6)))
    address = ctypes.addressof(pointers)
    core.Device(0).set_current()
    core_stream = stream.core
    core_kernel = core.ObjectCode.from_ptx(PTX).get_kernel("slices")
    core_config = core.LaunchConfig(grid=1, block=1)
    core_arguments = struct.unpack("@6Q", PARAMS)
    handle, queue = kernel.handle, stream.handle
    bench.compare(
        "launch, three slices",
        {
            "oxide driver.launch": lambda: driver.launch(kernel, ONE, ONE, 0, PARAMS, stream),
            "cuLaunchKernel, extra packed before": lambda: bindings.cuLaunchKernel(
                handle, 1, 1, 1, 1, 1, 1, 0, queue, 0, packet.address
            ),
            "cuLaunchKernel, pointer array made before": lambda: bindings.cuLaunchKernel(
                handle, 1, 1, 1, 1, 1, 1, 0, queue, address, 0
            ),
            "cuda.core launch": lambda: core.launch(core_stream, core_config, core_kernel, *core_arguments),
        },
    )


def measure_context(bench: Bench) -> None:
    context = bench.stream.context.handle
    expected = int(context)
    bench.compare(
        "making the context current",
        {
            "cuCtxSetCurrent": lambda: bindings.cuCtxSetCurrent(context),
            "cuCtxGetCurrent and a comparison": lambda: int(bindings.cuCtxGetCurrent()[1]) == expected,
            "cuda.core Device.set_current": core.Device(0).set_current,
        },
    )


def measure_events(bench: Bench) -> None:
    driver, stream, event = bench.driver, bench.stream, bench.event
    core_device = core.Device(0)
    core_device.set_current()
    core_event = core_device.create_event()
    core_stream = stream.core
    bench.compare(
        "event: create and destroy",
        {
            "oxide create_event, destroy_event": lambda: driver.destroy_event(driver.create_event(0, timing=False)),
            "cuda.core Device.create_event, close": lambda: core_device.create_event().close(),
        },
    )
    bench.compare(
        "event: record",
        {
            "oxide record_event": lambda: driver.record_event(event, stream),
            "cuda.core Stream.record": lambda: core_stream.record(core_event),
        },
    )
    driver.synchronize_stream(stream)
    bench.compare(
        "event: query",
        {"oxide query_event": lambda: driver.query_event(event), "cuda.core Event.is_done": lambda: core_event.is_done},
    )
    bench.compare(
        "event: wait",
        {
            "oxide wait_event": lambda: driver.wait_event(stream, event),
            "cuda.core Stream.wait": lambda: core_stream.wait(core_event),
        },
    )


def measure_memory(bench: Bench) -> None:
    driver, stream = bench.driver, bench.stream
    nbytes = 1 << 20
    core_resource = core.DeviceMemoryResource(0)
    core_stream = stream.core

    def core_allocation() -> None:
        core_resource.allocate(nbytes, stream=core_stream).close(core_stream)

    bench.compare(
        "memory: allocate and free 1 MiB",
        {
            "oxide allocate, free": lambda: driver.free(driver.allocate(nbytes, stream), stream),
            "cuda.core DeviceMemoryResource": core_allocation,
        },
    )
    device, other, host = driver.allocate(nbytes, stream), driver.allocate(nbytes, stream), driver.allocate_host(nbytes)
    bench.compare(
        "memory: submit a copy or a fill of 1 KiB",
        {
            "oxide copy_to_device": lambda: driver.copy_to_device(device, host, 1024, stream),
            "cuMemcpyHtoDAsync": lambda: bindings.cuMemcpyHtoDAsync(device, host, 1024, stream.handle),
            "oxide copy_to_host": lambda: driver.copy_to_host(host, device, 1024, stream),
            "cuMemcpyDtoHAsync": lambda: bindings.cuMemcpyDtoHAsync(host, device, 1024, stream.handle),
            "oxide copy_on_device": lambda: driver.copy_on_device(other, device, 1024, stream),
            "cuMemcpyDtoDAsync": lambda: bindings.cuMemcpyDtoDAsync(other, device, 1024, stream.handle),
            "oxide fill, 4-byte pattern": lambda: driver.fill(device, b"\x01\x02\x03\x04", 256, stream),
            "cuMemsetD32Async": lambda: bindings.cuMemsetD32Async(device, 0x04030201, 256, stream.handle),
            "oxide fill, 8-byte pattern": lambda: driver.fill(device, b"\x01\x02\x03\x04\x05\x06\x07\x08", 128, stream),
        },
    )
    large = 64 << 20
    target = driver.allocate(large, stream)

    def filled(pattern: bytes) -> Call:
        def call() -> None:
            driver.fill(target, pattern, large // len(pattern), stream)
            driver.synchronize_stream(stream)

        return call

    bench.latency(
        "memory: fill 64 MiB and synchronise",
        {
            "1-byte pattern": filled(b"\x01"),
            "4-byte pattern": filled(b"\x01\x02\x03\x04"),
            "8-byte pattern, equal halves": filled(b"\x01\x02\x03\x04" * 2),
            "8-byte pattern": filled(b"\x01\x02\x03\x04\x05\x06\x07\x08"),
        },
        repeats=50,
    )
    bench.latency(
        "memory: page-locked, allocate and free 1 MiB",
        {"oxide allocate_host, free_host": lambda: driver.free_host(driver.allocate_host(nbytes))},
        repeats=200,
    )
    for address in (device, other, target):
        driver.free(address, stream)
    driver.free_host(host)


def measure_completion(bench: Bench) -> None:
    driver, stream, event, kernel = bench.driver, bench.stream, bench.event, bench.kernel
    libc = ctypes.CDLL(None)
    semaphore = ctypes.create_string_buffer(32)
    libc.sem_init(semaphore, 0, 0)
    post = ctypes.cast(libc.sem_post, ctypes.c_void_p).value or 0
    address = ctypes.addressof(semaphore)

    def synchronised() -> None:
        driver.launch(kernel, ONE, ONE, 0, PARAMS, stream)
        driver.synchronize_stream(stream)

    def polled() -> None:
        driver.launch(kernel, ONE, ONE, 0, PARAMS, stream)
        driver.record_event(event, stream)
        while not driver.query_event(event):
            pass

    def native() -> None:
        driver.launch(kernel, ONE, ONE, 0, PARAMS, stream)
        driver.launch_native_host_function(post, address, stream)
        libc.sem_wait(semaphore)

    def python() -> None:
        driver.launch(kernel, ONE, ONE, 0, PARAMS, stream)
        driver.launch_host_function(lambda: libc.sem_post(semaphore), stream)
        libc.sem_wait(semaphore)

    bench.latency(
        "completion: empty kernel, launch to observed",
        {
            "synchronize_stream": synchronised,
            "query_event in a loop": polled,
            "native host function posts a semaphore": native,
            "Python host function posts a semaphore": python,
        },
    )
    bench.compare(
        "host function: submit",
        {
            "oxide launch_native_host_function": lambda: driver.launch_native_host_function(post, address, stream),
            "oxide launch_host_function": lambda: driver.launch_host_function(_nothing, stream),
        },
        batch=50,
    )


def measure_load(bench: Bench) -> None:
    driver, code = bench.driver, bench.code
    bench.latency("code: load an empty kernel from PTX", {"oxide load": lambda: driver.load(0, code)}, repeats=50)


def describe(bench: Bench) -> dict[str, Any]:
    info = bench.driver.device_info(0)
    return {
        "device": info.name,
        "arch": info.target.arch,
        "ptx": info.target.features,
        "cuda_driver_version": bindings.cuDriverGetVersion()[1],
        "driver": _kernel_module_version(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in ("cuda-bindings", "cuda-core", "numpy")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.driver_cuda", description="What each driver call costs."
    )
    parser.add_argument("--output", type=Path, help="the JSON file (benchmarks/results/driver-<device>.json)")
    options = parser.parse_args()
    bench = Bench()
    output = options.output or record.path_of("driver", bench.driver.device_info(0).name, "cuda")
    print(f"{'µs a call':<60}{'median':>12}{'best':>12}")
    for measure in (
        measure_context,
        measure_launch,
        measure_events,
        measure_memory,
        measure_completion,
        measure_load,
    ):
        measure(bench)
    output.write_text(json.dumps({**describe(bench), "figures": bench.figures}, indent=2) + "\n")
    bench.driver.close()


def _nothing() -> None:
    pass


def _kernel_module_version() -> str:
    path = Path("/proc/driver/nvidia/version")
    if not path.exists():
        return "unknown"
    words = path.read_text().splitlines()[0].split()
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "unknown")


if __name__ == "__main__":
    main()
