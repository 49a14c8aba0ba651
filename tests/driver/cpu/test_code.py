"""Kernels on the CPU device: loading, launching, and what is refused."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide.driver.base import Code, Dim3, Target
from oxide.driver.cpu import CpuDriver
from oxide.errors import DriverError
from tests.driver.conftest import Compile, Gate

COPY_LAUNCH = """
define void @copy_launch(ptr %launch, i64 %first, i64 %end) {
  %params.field = getelementptr i8, ptr %launch, i64 32
  %params = load ptr, ptr %params.field
  %out = load ptr, ptr %params
  call void @llvm.memcpy.p0.p0.i64(ptr %out, ptr %launch, i64 32, i1 false)
  %range = getelementptr i8, ptr %out, i64 32
  store i64 %first, ptr %range
  %range.end = getelementptr i8, ptr %out, i64 40
  store i64 %end, ptr %range.end
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

# Block 0 takes its time, so that the rest is worth a second worker; each of the rest waits for another to arrive.
MEET = """
define void @meet(ptr %launch, i64 %first, i64 %end) {
entry:
  %params.field = getelementptr i8, ptr %launch, i64 32
  %params = load ptr, ptr %params.field
  %arrived = load ptr, ptr %params
  %missed = getelementptr i32, ptr %arrived, i64 1
  br label %block
block:
  %b = phi i64 [ %first, %entry ], [ %b.next, %next ]
  %is.first = icmp eq i64 %b, 0
  br i1 %is.first, label %slow, label %arrive
slow:
  %i = phi i64 [ 0, %block ], [ %i.next, %slow ]
  %ignored = load volatile i32, ptr %arrived
  %i.next = add i64 %i, 1
  %again = icmp slt i64 %i.next, 10000000
  br i1 %again, label %slow, label %next
arrive:
  %before = atomicrmw add ptr %arrived, i32 1 seq_cst
  br label %wait
wait:
  %w = phi i64 [ 0, %arrive ], [ %w.next, %wait.more ]
  %count = load atomic volatile i32, ptr %arrived seq_cst, align 4
  %met = icmp sge i32 %count, 2
  br i1 %met, label %next, label %wait.more
wait.more:
  %w.next = add i64 %w, 1
  %patient = icmp slt i64 %w.next, 5000000000
  br i1 %patient, label %wait, label %give.up
give.up:
  %old = atomicrmw add ptr %missed, i32 1 seq_cst
  br label %next
next:
  %b.next = add i64 %b, 1
  %more = icmp slt i64 %b.next, %end
  br i1 %more, label %block, label %exit
exit:
  ret void
}
"""

CALL_LIBM = """
declare double @cos(double)
define void @call_libm(ptr %launch, i64 %first, i64 %end) {
  %params.field = getelementptr i8, ptr %launch, i64 32
  %params = load ptr, ptr %params.field
  %out = load ptr, ptr %params
  %x = load double, ptr %out
  %y = call double @cos(double %x)
  store double %y, ptr %out
  ret void
}
"""


def run_count_blocks(driver: CpuDriver, code: Code, grid: Dim3, spins: int) -> list[int]:
    """How often each block ran."""
    blocks = grid[0] * grid[1] * grid[2]
    stream = driver.create_stream(0)
    function = driver.load(0, code)
    counts = driver.allocate(blocks * 4, stream)
    driver.fill(counts, bytes(4), blocks, stream)
    driver.launch(function, grid, (1, 1, 1), 0, struct.pack("<Qq", counts, spins), stream)
    driver.synchronize_stream(stream)
    result = list((ctypes.c_uint32 * blocks).from_address(counts))
    driver.free(counts, stream)
    return result


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(1, 12)] * 3), st.integers(0, 20_000), st.integers(1, 4))
def test_every_block_runs_exactly_once(count_blocks: Code, grid: Dim3, spins: int, threads: int) -> None:
    driver = CpuDriver(threads=threads)
    assert set(run_count_blocks(driver, count_blocks, grid, spins)) == {1}
    driver.close()


def test_every_block_runs_exactly_once_in_step_mode(steps: CpuDriver, count_blocks: Code) -> None:
    assert set(run_count_blocks(steps, count_blocks, (7, 5, 3), 0)) == {1}


def test_a_large_kernel_has_its_blocks_run_on_several_threads(driver: CpuDriver, compile_ir: Compile) -> None:
    stream = driver.create_stream(0)
    function = driver.load(0, compile_ir(MEET, "meet"))
    counts = driver.allocate(8, stream)
    for _ in range(3):
        driver.fill(counts, bytes(4), 2, stream)
        driver.launch(function, (3, 1, 1), (1, 1, 1), 0, struct.pack("<Q", counts), stream)
        driver.synchronize_stream(stream)
        arrived, missed = (ctypes.c_uint32 * 2).from_address(counts)
        assert (arrived, missed) == (2, 0)


def test_work_after_a_kernel_on_several_threads_waits_for_all_its_blocks(driver: CpuDriver, count_blocks: Code) -> None:
    stream, blocks = driver.create_stream(0), 200
    function = driver.load(0, count_blocks)
    counts = driver.allocate(blocks * 4, stream)
    seen: list[int] = []
    driver.fill(counts, bytes(4), blocks, stream)
    for _ in range(10):
        driver.launch(function, (blocks, 1, 1), (1, 1, 1), 0, struct.pack("<Qq", counts, 20_000), stream)
        driver.launch_host_function(lambda: seen.append(sum((ctypes.c_uint32 * blocks).from_address(counts))), stream)
    driver.synchronize_stream(stream)
    assert seen == [blocks * launches for launches in range(1, 11)]


def test_the_kernel_gets_the_launch_as_it_was_asked_for(driver: CpuDriver, compile_ir: Compile) -> None:
    stream = driver.create_stream(0)
    function = driver.load(0, compile_ir(COPY_LAUNCH, "copy_launch"))
    out = driver.allocate(48, stream)
    driver.launch(function, (1, 1, 1), (8, 4, 2), 4096, struct.pack("<Q", out), stream)
    driver.synchronize_stream(stream)
    assert struct.unpack("<8I2q", ctypes.string_at(out, 48)) == (1, 1, 1, 8, 4, 2, 4096, 0, 0, 1)


def test_launching_returns_before_the_kernel_ends_and_the_kernel_holds_no_gil(
    driver: CpuDriver, wait_for_flag: Code
) -> None:
    stream, event = driver.create_stream(0), driver.create_event(0, timing=False)
    flag = driver.allocate_host(4)
    word = ctypes.c_uint32.from_address(flag)
    word.value = 0
    driver.launch(driver.load(0, wait_for_flag), (1, 1, 1), (1, 1, 1), 0, struct.pack("<Q", flag), stream)
    driver.record_event(event, stream)
    assert not driver.query_event(event)
    assert not driver.query_stream(stream)
    word.value = 1
    driver.synchronize_event(event)
    assert driver.query_event(event)


def test_code_stays_while_a_launch_needs_it(driver: CpuDriver, count_blocks: Code) -> None:
    stream, gate = driver.create_stream(0), Gate()
    counts = driver.allocate(4, stream)
    driver.fill(counts, bytes(4), 1, stream)
    driver.launch_host_function(gate, stream)
    function = driver.load(0, count_blocks)
    driver.launch(function, (1, 1, 1), (1, 1, 1), 0, struct.pack("<Qq", counts, 0), stream)
    del function
    gate.release.set()
    driver.synchronize_stream(stream)
    assert ctypes.c_uint32.from_address(counts).value == 1


def test_a_kernel_may_call_the_c_library(driver: CpuDriver, compile_ir: Compile) -> None:
    stream = driver.create_stream(0)
    function = driver.load(0, compile_ir(CALL_LIBM, "call_libm"))
    out = driver.allocate(8, stream)
    driver.fill(out, struct.pack("<d", 0.0), 1, stream)
    driver.launch(function, (1, 1, 1), (1, 1, 1), 0, struct.pack("<Q", out), stream)
    driver.synchronize_stream(stream)
    assert ctypes.c_double.from_address(out).value == 1.0


def test_code_that_this_device_cannot_run_is_refused(driver: CpuDriver, count_blocks: Code) -> None:
    with pytest.raises(DriverError, match="compiled for ptx") as caught:
        driver.load(0, replace(count_blocks, target=Target("ptx", "sm_90")))
    assert caught.value.code == 200
    for image in (b"", b"no object file", count_blocks.image[:64], count_blocks.image[: len(count_blocks.image) // 2]):
        with pytest.raises(DriverError, match="no object file of this machine") as caught:
            driver.load(0, replace(count_blocks, image=image))
        assert caught.value.code == 200
    with pytest.raises(DriverError, match="exports no function of that name") as caught:
        driver.load(0, replace(count_blocks, entry="elsewhere"))
    assert caught.value.code == 500


def test_code_that_calls_what_is_nowhere_is_refused(driver: CpuDriver, compile_ir: Compile) -> None:
    """LLVM's loader had it call address 0."""
    calls = "declare void @nowhere()\ndefine void @run() {\n  call void @nowhere()\n  ret void\n}"
    with pytest.raises(DriverError, match="run calls nowhere, which is in no library") as caught:
        driver.load(0, compile_ir(calls, "run"))
    assert caught.value.code == 500


@pytest.mark.parametrize(
    ("grid", "block", "shared_bytes", "found"),
    [
        ((0, 1, 1), (1, 1, 1), 0, r"grid of \(0, 1, 1\)"),
        ((1, 65536, 1), (1, 1, 1), 0, r"grid of \(1, 65536, 1\)"),
        ((2**31, 1, 1), (1, 1, 1), 0, "grid of"),
        ((1, 1, 1), (1, 1, 65), 0, r"block of \(1, 1, 65\)"),
        ((1, 1, 1), (2048, 1, 1), 0, r"block of \(2048, 1, 1\)"),
        ((1, 1, 1), (32, 33, 1), 0, "1056 threads; the most is 1024"),
        ((1, 1, 1), (1, 1, 1), -1, "-1 bytes of dynamic shared memory"),
    ],
)
def test_a_launch_beyond_the_limits_is_refused(
    driver: CpuDriver, count_blocks: Code, grid: Dim3, block: Dim3, shared_bytes: int, found: str
) -> None:
    stream = driver.create_stream(0)
    with pytest.raises(DriverError, match=found) as caught:
        driver.launch(driver.load(0, count_blocks), grid, block, shared_bytes, b"", stream)
    assert caught.value.code == 1
    assert driver.query_stream(stream)


def test_a_kernel_runs_only_on_the_device_it_was_loaded_on(driver: CpuDriver, count_blocks: Code) -> None:
    function = driver.load(0, count_blocks)
    with pytest.raises(DriverError, match="load the kernel on cpu:1"):
        driver.launch(function, (1, 1, 1), (1, 1, 1), 0, bytes(16), driver.create_stream(1))


def test_a_device_has_the_limits_of_a_cuda_device_and_a_native_target(driver: CpuDriver) -> None:
    info = driver.device_info(1)
    assert (info.max_threads_per_block, info.max_block, info.max_grid[1:]) == (1024, (1024, 1024, 64), (65535, 65535))
    assert info.target.kind == "native"
    assert info.target.arch
    assert info.memory > 2**28
    assert info.name


def test_a_native_host_function_gets_its_argument_in_stream_order(driver: CpuDriver) -> None:
    stream, ran = driver.create_stream(0), []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda argument: ran.append(argument))
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    driver.launch_host_function(lambda: ran.append("before"), stream)
    driver.launch_native_host_function(address, 1234, stream)
    driver.synchronize_stream(stream)
    assert ran == ["before", 1234]
    with pytest.raises(DriverError, match="address 0"):
        driver.launch_native_host_function(0, 1234, stream)
