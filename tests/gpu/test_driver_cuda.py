"""The CUDA driver on a real device. Kernels are PTX written here, so that nothing of the compiler is under test.

Streams are held back by a ``gate`` kernel that spins on a word of page-locked memory until the test opens it, so order
and asynchrony are observed without a sleep. A gate gives up by itself after ten seconds and says so.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from oxide.driver.base import Code, Target
from oxide.driver.cuda.probe import available, unavailable_reason
from oxide.errors import DeviceError, DriverError, OutOfMemoryError

if TYPE_CHECKING:
    from oxide.driver.cuda.driver import CudaDriver

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason=f"no CUDA device: {unavailable_reason()}"),
]

GATE_TIMEOUT_NS = 10_000_000_000
GATE_OPENED = 1

PTX = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry null() { ret; }

.visible .entry trap_() { trap; }

.visible .entry gate(.param .u64 flag, .param .u64 timeout, .param .u64 status)
{
    .reg .pred %p;
    .reg .u32 %r<3>;
    .reg .u64 %d<7>;
    ld.param.u64 %d1, [flag];
    ld.param.u64 %d2, [timeout];
    ld.param.u64 %d3, [status];
    mov.u64 %d4, %globaltimer;
AGAIN:
    ld.volatile.u32 %r1, [%d1];
    setp.ne.u32 %p, %r1, 0;
    @%p bra OPEN;
    mov.u64 %d5, %globaltimer;
    sub.u64 %d6, %d5, %d4;
    setp.lt.u64 %p, %d6, %d2;
    @%p bra AGAIN;
    mov.u32 %r2, 2;
    bra DONE;
OPEN:
    mov.u32 %r2, 1;
DONE:
    st.volatile.u32 [%d3], %r2;
    membar.sys;
    ret;
}

.visible .entry spin(.param .u64 duration)
{
    .reg .pred %p;
    .reg .u64 %d<5>;
    ld.param.u64 %d1, [duration];
    mov.u64 %d2, %globaltimer;
AGAIN:
    mov.u64 %d3, %globaltimer;
    sub.u64 %d4, %d3, %d2;
    setp.lt.u64 %p, %d4, %d1;
    @%p bra AGAIN;
    ret;
}

.visible .entry store(.param .u64 address, .param .u64 value)
{
    .reg .u64 %d<3>;
    ld.param.u64 %d1, [address];
    ld.param.u64 %d2, [value];
    st.volatile.u64 [%d1], %d2;
    membar.sys;
    ret;
}

.visible .entry add(.param .u64 address, .param .u32 count, .param .u32 amount)
{
    .reg .pred %p;
    .reg .u32 %r<8>;
    .reg .u64 %d<4>;
    ld.param.u64 %d1, [address];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [amount];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p, %r6, %r1;
    @%p bra DONE;
    mul.wide.u32 %d2, %r6, 4;
    add.u64 %d3, %d1, %d2;
    ld.u32 %r7, [%d3];
    add.u32 %r7, %r7, %r2;
    st.u32 [%d3], %r7;
DONE:
    ret;
}

.visible .entry fields(
    .param .u8 a, .param .u16 b, .param .u32 c, .param .u64 out, .param .f32 x, .param .f64 y)
{
    .reg .u32 %r<4>;
    .reg .u64 %d<2>;
    .reg .f32 %f1;
    .reg .f64 %e1;
    ld.param.u8 %r1, [a];
    ld.param.u16 %r2, [b];
    ld.param.u32 %r3, [c];
    ld.param.u64 %d1, [out];
    ld.param.f32 %f1, [x];
    ld.param.f64 %e1, [y];
    st.u32 [%d1], %r1;
    st.u32 [%d1+4], %r2;
    st.u32 [%d1+8], %r3;
    st.f32 [%d1+12], %f1;
    st.f64 [%d1+16], %e1;
    ret;
}

.extern .shared .align 4 .b8 dynamic[];
.visible .entry last_shared_word(.param .u64 out, .param .u32 nbytes, .param .u32 value)
{
    .reg .u32 %r<6>;
    .reg .u64 %d1;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [nbytes];
    ld.param.u32 %r2, [value];
    mov.u32 %r3, dynamic;
    add.u32 %r4, %r3, %r1;
    st.volatile.shared.u32 [%r4+-4], %r2;
    bar.sync 0;
    ld.volatile.shared.u32 %r5, [%r4+-4];
    st.u32 [%d1], %r5;
    ret;
}
"""

PTX_LARGE_PARAMETERS = b"""
.version 8.1
.target sm_70
.address_size 64

.visible .entry last_of_many(.param .u64 out, .param .align 8 .b8 many[8192])
{
    .reg .u64 %d<3>;
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [many+8184];
    st.u64 [%d1], %d2;
    ret;
}
"""

ONE = (1, 1, 1)


class Bench:
    """The driver with one stream, page-locked words that kernels can reach, and the kernels above."""

    def __init__(self, driver: CudaDriver) -> None:
        self.driver = driver
        self.stream = driver.create_stream(0)
        self.target = driver.device_info(0).target
        self.words = driver.allocate_host(1 << 16)
        # Loading waits for the device, so a test that holds a stream back could not load any more.
        entries = re.findall(r"\.entry (\w+)", PTX.decode())
        self._kernels = {entry: driver.load(0, Code(self.target, entry, PTX)) for entry in entries}
        self._next_word = 0

    def word(self) -> ctypes.c_uint64:
        """A word of page-locked memory, zero, that no other call was given."""
        word = ctypes.c_uint64.from_address(self.words + 8 * self._next_word)
        word.value = 0
        self._next_word += 1
        return word

    def kernel(self, entry: str) -> Any:
        return self._kernels[entry]

    def launch(self, entry: str, params: bytes = b"", stream: Any = None, grid: Any = ONE, block: Any = ONE) -> None:
        self.driver.launch(self.kernel(entry), grid, block, 0, params, stream or self.stream)

    def store(self, word: ctypes.c_uint64, value: int, stream: Any = None) -> None:
        self.launch("store", struct.pack("@QQ", ctypes.addressof(word), value), stream)

    def close_gate(self, stream: Any = None) -> Gate:
        return Gate(self, stream or self.stream)

    def upload(self, data: bytes) -> int:
        """Device memory with these bytes, there once this returns."""
        address = self.driver.allocate(len(data), self.stream)
        staging = self.driver.allocate_host(len(data))
        ctypes.memmove(staging, data, len(data))
        self.driver.copy_to_device(address, staging, len(data), self.stream)
        self.driver.synchronize_stream(self.stream)
        self.driver.free_host(staging)
        return address

    def download(self, address: int, nbytes: int) -> bytes:
        staging = self.driver.allocate_host(nbytes)
        self.driver.copy_to_host(staging, address, nbytes, self.stream)
        self.driver.synchronize_stream(self.stream)
        data = ctypes.string_at(staging, nbytes)
        self.driver.free_host(staging)
        return data


class Gate:
    """Holds a stream back until ``open``."""

    def __init__(self, bench: Bench, stream: Any) -> None:
        self._flag = bench.word()
        self._status = bench.word()
        addresses = ctypes.addressof(self._flag), GATE_TIMEOUT_NS, ctypes.addressof(self._status)
        bench.launch("gate", struct.pack("@QQQ", *addresses), stream)

    def open(self) -> None:
        self._flag.value = 1

    @property
    def was_opened(self) -> bool:
        """Whether the kernel saw the gate open, and did not give up. Ask after synchronising."""
        return self._status.value == GATE_OPENED


@pytest.fixture(scope="module")
def driver() -> Iterator[CudaDriver]:
    from oxide.driver.cuda.driver import CudaDriver

    driver = CudaDriver()
    yield driver
    driver.close()


@pytest.fixture
def bench(driver: CudaDriver) -> Iterator[Bench]:
    bench = Bench(driver)
    yield bench
    driver.synchronize_stream(bench.stream)
    driver.destroy_stream(bench.stream)
    driver.free_host(bench.words)


# Devices


def test_the_device_says_what_it_is(driver: CudaDriver) -> None:
    info = driver.device_info(0)

    assert info.name
    assert info.target.kind == "ptx"
    assert info.target.arch.startswith("sm_")
    assert info.multiprocessors > 0
    assert info.memory > 1 << 30
    assert info.max_threads_per_block >= 1024
    assert info.max_block[2] >= 64
    assert info.max_grid[0] >= 2**31 - 1


def test_an_unknown_device_is_refused_with_the_number_that_there_are(driver: CudaDriver) -> None:
    with pytest.raises(DeviceError, match=f"there (is|are) {driver.device_count()}"):
        driver.create_stream(driver.device_count())
    with pytest.raises(DeviceError):
        driver.device_info(-1)


# Streams and events


def test_submitting_returns_before_the_work_has_run(bench: Bench) -> None:
    event = bench.driver.create_event(0, timing=False)
    gate = bench.close_gate()
    bench.driver.record_event(event, bench.stream)

    running = bench.driver.query_stream(bench.stream), bench.driver.query_event(event)
    gate.open()
    bench.driver.synchronize_event(event)

    assert running == (False, False)
    assert gate.was_opened
    assert bench.driver.query_event(event)
    assert bench.driver.query_stream(bench.stream)
    bench.driver.destroy_event(event)


def test_an_event_that_was_never_recorded_has_been_passed(bench: Bench) -> None:
    event = bench.driver.create_event(0, timing=False)

    assert bench.driver.query_event(event)
    bench.driver.destroy_event(event)


def test_waiting_for_an_event_orders_two_streams(bench: Bench) -> None:
    other = bench.driver.create_stream(0)
    event = bench.driver.create_event(0, timing=False)
    word = bench.word()
    gate = bench.close_gate()
    bench.store(word, 1)
    bench.driver.record_event(event, bench.stream)
    bench.driver.wait_event(other, event)
    bench.store(word, 2, other)

    held_back = not bench.driver.query_stream(other)
    gate.open()
    bench.driver.synchronize_stream(other)

    assert held_back
    assert word.value == 2
    bench.driver.destroy_event(event)
    bench.driver.destroy_stream(other)


def test_streams_without_a_wait_do_not_hold_each_other_back(bench: Bench) -> None:
    other = bench.driver.create_stream(0)
    word = bench.word()
    gate = bench.close_gate()

    bench.store(word, 5, other)
    bench.driver.synchronize_stream(other)
    first_still_held = not bench.driver.query_stream(bench.stream)
    gate.open()

    assert word.value == 5
    assert first_still_held
    bench.driver.destroy_stream(other)


def test_a_wait_keeps_its_point_when_the_event_is_recorded_again(bench: Bench) -> None:
    other = bench.driver.create_stream(0)
    event = bench.driver.create_event(0, timing=False)
    bench.driver.record_event(event, bench.stream)
    bench.driver.wait_event(other, event)
    gate = bench.close_gate()
    bench.driver.record_event(event, bench.stream)

    bench.driver.synchronize_stream(other)
    still_closed = not bench.driver.query_event(event)
    gate.open()

    assert still_closed
    bench.driver.synchronize_event(event)
    bench.driver.destroy_event(event)
    bench.driver.destroy_stream(other)


def test_a_destroyed_stream_still_runs_what_it_holds(bench: Bench) -> None:
    other = bench.driver.create_stream(0)
    event = bench.driver.create_event(0, timing=False)
    word = bench.word()
    gate = bench.close_gate(other)
    bench.store(word, 9, other)
    bench.driver.record_event(event, other)

    bench.driver.destroy_stream(other)
    gate.open()
    bench.driver.synchronize_event(event)

    assert word.value == 9
    bench.driver.destroy_event(event)


def test_timed_events_measure_the_kernel_between_them(bench: Bench) -> None:
    start = bench.driver.create_event(0, timing=True)
    end = bench.driver.create_event(0, timing=True)
    bench.launch("null")
    bench.driver.record_event(start, bench.stream)
    bench.launch("spin", struct.pack("@Q", 5_000_000))
    bench.driver.record_event(end, bench.stream)
    bench.driver.synchronize_event(end)

    assert 4.9 < bench.driver.elapsed_ms(start, end) < 100
    bench.driver.destroy_event(start)
    bench.driver.destroy_event(end)


def test_the_time_between_events_that_were_not_passed_is_refused_with_the_drivers_code(bench: Bench) -> None:
    start, end = (bench.driver.create_event(0, timing=True) for _ in range(2))
    gate = bench.close_gate()
    bench.driver.record_event(start, bench.stream)
    bench.driver.record_event(end, bench.stream)

    with pytest.raises(DriverError, match="cuEventElapsedTime") as caught:
        bench.driver.elapsed_ms(start, end)
    assert caught.value.name == "CUDA_ERROR_NOT_READY"
    gate.open()
    bench.driver.synchronize_stream(bench.stream)
    assert bench.driver.elapsed_ms(start, end) >= 0
    for event in (start, end):
        bench.driver.destroy_event(event)


def test_a_stream_of_high_priority_has_the_greatest_that_the_device_has(bench: Bench) -> None:
    from cuda.bindings import driver as bindings

    high = bench.driver.create_stream(0, "high")
    _, least, greatest = bindings.cuCtxGetStreamPriorityRange()

    assert bindings.cuStreamGetPriority(high.handle)[1] == greatest
    assert bindings.cuStreamGetPriority(bench.stream.handle)[1] == least
    bench.driver.destroy_stream(high)


def test_a_kernel_of_high_priority_overtakes_the_blocks_of_a_long_kernel_that_have_not_begun(bench: Bench) -> None:
    from cuda.bindings import driver as bindings

    if bindings.cuCtxGetStreamPriorityRange()[1:] == (0, 0):
        pytest.skip("the device has no priorities of streams")
    high = bench.driver.create_stream(0, "high")
    begun, normal_end, high_end = (bench.driver.create_event(0, timing=True) for _ in range(3))
    word = bench.word()
    gate = bench.close_gate()
    bench.driver.record_event(begun, bench.stream)
    # 400 times as many blocks as are resident at once, each of half a millisecond
    blocks = 400 * 2 * bench.driver.device_info(0).multiprocessors
    bench.launch("spin", struct.pack("@Q", 500_000), grid=(blocks, 1, 1), block=(1024, 1, 1))
    bench.driver.record_event(normal_end, bench.stream)
    bench.driver.wait_event(high, begun)
    bench.launch("spin", struct.pack("@Q", 5_000_000), high)  # the long kernel fills the device meanwhile
    bench.store(word, 1, high)
    bench.driver.record_event(high_end, high)

    gate.open()  # all is submitted: the order is the device's
    bench.driver.synchronize_event(normal_end)
    bench.driver.synchronize_event(high_end)

    assert gate.was_opened
    assert word.value == 1
    assert bench.driver.elapsed_ms(begun, high_end) < bench.driver.elapsed_ms(begun, normal_end) / 2
    for event in (begun, normal_end, high_end):
        bench.driver.destroy_event(event)
    bench.driver.destroy_stream(high)


@pytest.mark.parametrize("call", ["synchronize_stream", "synchronize_event"])
def test_synchronising_lets_other_python_threads_run(bench: Bench, call: str) -> None:
    event = bench.driver.create_event(0, timing=False)
    gate = bench.close_gate()
    bench.driver.record_event(event, bench.stream)
    opener = threading.Thread(target=gate.open)

    opener.start()
    if call == "synchronize_stream":
        bench.driver.synchronize_stream(bench.stream)
    else:
        bench.driver.synchronize_event(event)
    opener.join()

    assert gate.was_opened
    bench.driver.destroy_event(event)


def test_the_stream_address_is_what_other_libraries_take(bench: Bench) -> None:
    from cuda.bindings import driver as bindings

    gate = bench.close_gate()

    (error,) = bindings.cuStreamQuery(bindings.CUstream(bench.driver.stream_address(bench.stream)))
    gate.open()

    assert error == bindings.CUresult.CUDA_ERROR_NOT_READY


# Memory


@pytest.mark.parametrize("nbytes", [1, 3, 256, 4097, 1 << 20])
def test_bytes_survive_the_way_to_the_device_across_it_and_back(bench: Bench, nbytes: int) -> None:
    data = bytes(i * 37 % 251 for i in range(nbytes))
    first = bench.upload(data)
    second = bench.driver.allocate(nbytes, bench.stream)

    bench.driver.copy_on_device(second, first, nbytes, bench.stream)

    assert first % 256 == second % 256 == 0
    assert bench.download(second, nbytes) == data
    bench.driver.free(first, bench.stream)
    bench.driver.free(second, bench.stream)


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 70_001])
@pytest.mark.parametrize(
    "pattern",
    [b"\x7f", b"\1\2", b"\1\2\3\4", b"\1\2\3\4" * 2, b"\1\2\3\4\5\6\7\xf8", b"\5\6\7\xf8" * 4, bytes(range(16))],
)
def test_a_fill_writes_the_pattern_and_nothing_beside_it(bench: Bench, pattern: bytes, count: int) -> None:
    nbytes = len(pattern) * count
    address = bench.upload(b"\xee" * (nbytes + 16))

    bench.driver.fill(address + 8, pattern, count, bench.stream)

    assert bench.download(address, nbytes + 16) == b"\xee" * 8 + pattern * count + b"\xee" * 8
    bench.driver.free(address, bench.stream)


def test_a_kernel_reaches_page_locked_memory_at_its_host_address(bench: Bench) -> None:
    word = bench.word()

    bench.store(word, 0x0123456789ABCDEF)
    bench.driver.synchronize_stream(bench.stream)

    assert word.value == 0x0123456789ABCDEF


def test_memory_freed_in_flight_is_there_until_the_stream_has_passed(bench: Bench) -> None:
    data = bytes(range(256)) * 16
    source = bench.upload(data)
    staging = bench.driver.allocate_host(len(data))
    gate = bench.close_gate()
    bench.driver.copy_to_host(staging, source, len(data), bench.stream)
    bench.driver.free(source, bench.stream)
    other = bench.driver.create_stream(0)
    overwritten = [bench.driver.allocate(len(data), other) for _ in range(64)]
    for address in overwritten:
        bench.driver.fill(address, b"\x00", len(data), other)
    bench.driver.synchronize_stream(other)

    gate.open()
    bench.driver.synchronize_stream(bench.stream)

    assert source not in overwritten
    assert ctypes.string_at(staging, len(data)) == data
    for address in overwritten:
        bench.driver.free(address, other)
    bench.driver.free_host(staging)
    bench.driver.destroy_stream(other)


def test_an_allocation_that_does_not_fit_says_what_was_asked_and_what_there_is(bench: Bench) -> None:
    asked = 1 << 46

    with pytest.raises(OutOfMemoryError, match=rf"{asked} bytes were asked for on CUDA device 0, which has \d+ of"):
        bench.driver.allocate(asked, bench.stream)

    address = bench.driver.allocate(1 << 20, bench.stream)
    bench.driver.free(address, bench.stream)


def test_host_memory_that_does_not_fit_is_out_of_memory(bench: Bench) -> None:
    with pytest.raises(OutOfMemoryError, match="page-locked"):
        bench.driver.allocate_host(1 << 46)


# Code


def test_parameters_of_every_size_arrive(bench: Bench) -> None:
    out = bench.upload(bytes(24))

    bench.launch("fields", struct.pack("@BHIQfd", 200, 60_000, 4_000_000_000, out, 1.5, -2.25))

    assert struct.unpack("@IIIfd", bench.download(out, 24)) == (200, 60_000, 4_000_000_000, 1.5, -2.25)
    bench.driver.free(out, bench.stream)


def test_parameters_of_eight_kibibytes_arrive(bench: Bench) -> None:
    kernel = bench.driver.load(0, Code(bench.target, "last_of_many", PTX_LARGE_PARAMETERS))
    word = bench.word()
    params = struct.pack("@Q", ctypes.addressof(word)) + bytes(8184) + struct.pack("@Q", 77)

    bench.driver.launch(kernel, ONE, ONE, 0, params, bench.stream)
    bench.driver.synchronize_stream(bench.stream)

    assert word.value == 77


def test_every_thread_of_the_grid_runs(bench: Bench) -> None:
    count = 1000
    address = bench.upload(bytes(4 * count))

    for _ in range(3):
        bench.launch("add", struct.pack("@QII", address, count, 5), grid=(8, 1, 1), block=(128, 1, 1))

    assert struct.unpack(f"@{count}I", bench.download(address, 4 * count)) == (15,) * count
    bench.driver.free(address, bench.stream)


def test_launches_from_many_threads_do_not_mix_their_parameters(bench: Bench) -> None:
    words = [bench.word() for _ in range(200)]
    streams = [bench.driver.create_stream(0) for _ in range(4)]

    def submit(lane: int) -> None:
        for index in range(lane, len(words), len(streams)):
            bench.store(words[index], index + 1, streams[lane])

    threads = [threading.Thread(target=submit, args=(lane,)) for lane in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in streams:
        bench.driver.synchronize_stream(stream)
        bench.driver.destroy_stream(stream)

    assert [word.value for word in words] == list(range(1, len(words) + 1))


@pytest.mark.parametrize("nbytes", [4096, 48 * 1024, 64 * 1024, 96 * 1024])
def test_dynamic_shared_memory_beyond_48_kibibytes_is_opted_in_to(bench: Bench, nbytes: int) -> None:
    word = bench.word()
    kernel = bench.kernel("last_shared_word")
    params = struct.pack("@QII", ctypes.addressof(word), nbytes, 1234)

    bench.driver.launch(kernel, ONE, ONE, nbytes, params, bench.stream)
    bench.driver.synchronize_stream(bench.stream)

    assert word.value == 1234


def test_more_shared_memory_than_the_device_has_is_refused_with_the_limit(bench: Bench) -> None:
    kernel = bench.kernel("last_shared_word")

    with pytest.raises(DriverError, match=r"launched with 16777216 bytes of dynamic shared memory; .* \d+ at most"):
        bench.driver.launch(kernel, ONE, ONE, 1 << 24, bytes(16), bench.stream)


def test_a_launch_that_the_device_cannot_run_is_refused_and_names_the_kernel(bench: Bench) -> None:
    with pytest.raises(DriverError, match=r"cuLaunchKernel\(null, grid=\(1, 1, 1\), block=\(4096, 1, 1\)"):
        bench.launch("null", block=(4096, 1, 1))

    bench.launch("null")
    bench.driver.synchronize_stream(bench.stream)


def test_ptx_that_does_not_assemble_fails_with_the_assemblers_message(bench: Bench) -> None:
    broken = PTX.replace(b"add.u64 %d3, %d1, %d2;", b"frobnicate.u64 %d3, %d1;")

    with pytest.raises(DriverError, match="frobnicate"):
        bench.driver.load(0, Code(bench.target, "add", broken))


def test_ptx_newer_than_the_driver_says_so_and_what_to_do(bench: Bench) -> None:
    newer = PTX.replace(b".version 7.0", b".version 99.0")

    with pytest.raises(DriverError, match="update the driver") as caught:
        bench.driver.load(0, Code(bench.target, "add", newer))

    assert caught.value.name == "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"


def test_a_missing_entry_is_named(bench: Bench) -> None:
    with pytest.raises(DriverError, match="no_such_kernel") as caught:
        bench.driver.load(0, Code(bench.target, "no_such_kernel", PTX))

    assert caught.value.name == "CUDA_ERROR_NOT_FOUND"


def test_code_for_a_cpu_is_refused(bench: Bench) -> None:
    with pytest.raises(DriverError, match="compiled as native code for x86-64"):
        bench.driver.load(0, Code(Target("native", "x86-64"), "axpy", b"\x7fELF"))


def test_parameters_that_are_too_short_are_refused_with_both_sizes(bench: Bench) -> None:
    with pytest.raises(DriverError, match=r"kernel add was launched with 15 bytes of parameters, and takes 16"):
        bench.launch("add", bytes(15))


def test_a_function_dropped_while_its_kernel_runs_waits_for_nothing_and_lets_it_finish(bench: Bench) -> None:
    word, flag, status = bench.word(), bench.word(), bench.word()
    store = bench.driver.load(0, Code(bench.target, "store", PTX))
    gate = bench.driver.load(0, Code(bench.target, "gate", PTX))
    params = struct.pack("@QQQ", ctypes.addressof(flag), GATE_TIMEOUT_NS, ctypes.addressof(status))
    bench.driver.launch(gate, ONE, ONE, 0, params, bench.stream)
    bench.driver.launch(store, ONE, ONE, 0, struct.pack("@QQ", ctypes.addressof(word), 3), bench.stream)

    del gate, store
    gc.collect()
    flag.value = 1
    bench.driver.synchronize_stream(bench.stream)

    assert (word.value, status.value) == (3, GATE_OPENED)


# Host functions


def test_host_functions_run_in_stream_order_and_not_on_the_submitting_thread(bench: Bench) -> None:
    word = bench.word()
    seen: list[tuple[int, bool]] = []
    here = threading.get_ident()
    gate = bench.close_gate()
    for value in range(5):
        bench.store(word, value)
        bench.driver.launch_host_function(
            lambda: seen.append((word.value, threading.get_ident() == here)), bench.stream
        )

    before = list(seen)
    gate.open()
    bench.driver.synchronize_stream(bench.stream)

    assert before == []
    assert seen == [(value, False) for value in range(5)]


def test_what_a_host_function_raises_reaches_the_unraisable_hook_and_the_stream_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[SimpleNamespace] = []
    monkeypatch.setattr(sys, "unraisablehook", caught.append)
    word = bench.word()

    def fail() -> None:
        raise LookupError("from the host function")

    bench.driver.launch_host_function(fail, bench.stream)
    bench.store(word, 4)
    bench.driver.synchronize_stream(bench.stream)

    assert [type(each.exc_value) for each in caught] == [LookupError]
    assert word.value == 4


def test_a_native_host_function_runs_while_python_holds_the_gil(bench: Bench) -> None:
    # A PyDLL keeps the GIL during the call, so sem_timedwait succeeds only if nothing on the way to sem_post needs it.
    libc = ctypes.PyDLL(None)
    semaphore = ctypes.create_string_buffer(32)
    libc.sem_init(semaphore, 0, 0)
    post = ctypes.cast(libc.sem_post, ctypes.c_void_p).value
    assert post is not None

    bench.driver.launch_native_host_function(post, ctypes.addressof(semaphore), bench.stream)
    now = ctypes.create_string_buffer(16)
    libc.clock_gettime(0, now)
    seconds, nanoseconds = struct.unpack("@qq", now.raw)
    result = libc.sem_timedwait(semaphore, struct.pack("@qq", seconds + 5, nanoseconds))
    bench.driver.synchronize_stream(bench.stream)

    assert result == 0


# Threads and contexts


def exercise(bench: Bench, after_each_call: Any = lambda: None) -> None:
    """Every method that submits, with ``after_each_call`` between them."""
    driver, word = bench.driver, bench.word()
    steps = after_each_call
    stream = driver.create_stream(0)
    steps()
    event = driver.create_event(0, timing=False)
    steps()
    host = driver.allocate_host(64)
    steps()
    first = driver.allocate(64, stream)
    steps()
    second = driver.allocate(64, stream)
    steps()
    driver.fill(first, b"\x05", 64, stream)
    steps()
    driver.copy_on_device(second, first, 64, stream)
    steps()
    driver.copy_to_host(host, second, 64, stream)
    steps()
    driver.copy_to_device(first, host, 64, stream)
    steps()
    kernel = driver.load(0, Code(bench.target, "store", PTX))
    steps()
    driver.launch(kernel, ONE, ONE, 0, struct.pack("@QQ", ctypes.addressof(word), 6), stream)
    steps()
    driver.launch_host_function(lambda: None, stream)
    steps()
    driver.record_event(event, stream)
    steps()
    driver.wait_event(bench.stream, event)
    steps()
    driver.query_event(event)
    driver.query_stream(stream)
    steps()
    driver.synchronize_event(event)
    steps()
    driver.free(first, stream)
    steps()
    driver.free(second, stream)
    steps()
    driver.synchronize_stream(stream)
    steps()
    assert ctypes.string_at(host, 64) == b"\x05" * 64
    assert word.value == 6
    driver.free_host(host)
    steps()
    driver.destroy_event(event)
    steps()
    driver.destroy_stream(stream)


def test_every_method_works_on_a_thread_that_never_saw_cuda(bench: Bench) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            exercise(bench)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert errors == []


def test_every_method_works_after_another_library_took_the_context_away(bench: Bench) -> None:
    from cuda.bindings import driver as bindings

    exercise(bench, after_each_call=lambda: bindings.cuCtxSetCurrent(bindings.CUcontext(0)))


def test_every_method_works_after_another_library_made_its_own_context_current(bench: Bench) -> None:
    from cuda.bindings import driver as bindings

    error, foreign = bindings.cuCtxCreate(None, 0, 0)
    assert error == bindings.CUresult.CUDA_SUCCESS

    exercise(bench, after_each_call=lambda: bindings.cuCtxSetCurrent(foreign))

    bindings.cuCtxDestroy(foreign)


# Ends


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    prelude = (
        "import struct\nfrom oxide.driver.base import Code\nfrom oxide.driver.cuda.driver import CudaDriver\n"
        f"PTX = {PTX!r}\n"
    )
    return subprocess.run([sys.executable, "-c", prelude + program], capture_output=True, text=True, timeout=120)


OPEN = """
driver = CudaDriver()
stream = driver.create_stream(0)
def load(entry):
    return driver.load(0, Code(driver.device_info(0).target, entry, PTX))
"""


@pytest.mark.parametrize(
    ("launch", "name"),
    [
        ("driver.launch(load('store'), (1,1,1), (1,1,1), 0, struct.pack('@QQ', 16, 1), stream)", "ILLEGAL_ADDRESS"),
        ("driver.launch(load('trap_'), (1,1,1), (1,1,1), 0, b'', stream)", "LAUNCH_FAILED"),
    ],
)
def test_a_kernel_that_breaks_the_context_is_a_lost_device_in_every_call_that_observes_it(
    launch: str, name: str
) -> None:
    # In a process of its own: nothing on this device works there afterwards.
    program = f"""
from oxide.errors import DeviceLostError
event = driver.create_event(0, timing=False)
{launch}
for observe in (
    lambda: driver.synchronize_stream(stream),
    lambda: driver.record_event(event, stream),
    lambda: driver.query_event(event),
    lambda: driver.query_stream(stream),
    lambda: driver.allocate(64, stream),
    lambda: driver.create_event(0, timing=False),
):
    try:
        observe()
    except DeviceLostError as error:
        print(error.__cause__.name)
driver.close()
"""

    ended = run_python(OPEN + program)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [f"CUDA_ERROR_{name}"] * 6


def test_the_interpreter_exits_cleanly_with_work_and_host_functions_in_flight() -> None:
    program = """
driver.launch(load('spin'), (1,1,1), (1,1,1), 0, struct.pack('@Q', 300_000_000), stream)
driver.launch_host_function(lambda: print('ran', flush=True), stream)
driver.allocate(1 << 20, stream)
driver.create_event(0, timing=False)
"""

    ended = run_python(OPEN + program)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ran\n", "")


def test_a_closed_driver_waited_for_its_work_and_may_be_closed_again() -> None:
    program = """
driver.launch(load('spin'), (1,1,1), (1,1,1), 0, struct.pack('@Q', 100_000_000), stream)
driver.launch_host_function(lambda: print('ran', flush=True), stream)
driver.close()
print('closed', flush=True)
driver.close()
"""

    ended = run_python(OPEN + program)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ran\nclosed\n", "")


def bytes_in_use() -> int:
    from cuda.bindings import driver

    _, pool = driver.cuDeviceGetDefaultMemPool(0)
    error, used = driver.cuMemPoolGetAttribute(pool, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    assert not error
    return int(used)


def test_a_freed_block_is_used_again_on_its_stream_and_given_back_when_the_stream_is_waited_for(bench: Bench) -> None:
    driver, other = bench.driver, bench.driver.create_stream(0)
    driver.synchronize_stream(bench.stream)
    before = bytes_in_use()
    first = driver.allocate(4096, bench.stream)
    driver.free(first, bench.stream)
    elsewhere = driver.allocate(4096, other)
    assert elsewhere != first
    assert driver.allocate(4096, bench.stream) == first
    driver.free(first, bench.stream)
    driver.free(elsewhere, other)

    driver.synchronize_stream(bench.stream)
    driver.destroy_stream(other)

    assert bytes_in_use() == before


def test_a_block_freed_twice_is_refused(bench: Bench) -> None:
    address = bench.driver.allocate(4096, bench.stream)
    bench.driver.free(address, bench.stream)
    with pytest.raises(DriverError):
        bench.driver.synchronize_stream(bench.stream)
        bench.driver.free(address, bench.stream)
        bench.driver.synchronize_stream(bench.stream)
