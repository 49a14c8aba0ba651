"""Memory of the CPU device: what is counted, what is refused, and that copies and fills are what they say."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu.allocator import Heap
from oxide.driver.cpu.stream_tasks import BRIEF_BYTES
from oxide.errors import DeviceError, DriverError, OutOfMemoryError
from tests.driver.conftest import Gate


def test_memory_is_aligned_counted_and_apart(driver: CpuDriver) -> None:
    stream = driver.create_stream(0)
    sizes = [1, 7, 256, 257, 100_000]
    addresses = [driver.allocate(size, stream) for size in sizes]
    assert all(address % 256 == 0 for address in addresses)
    spans = sorted(zip(addresses, sizes, strict=True))
    assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))
    assert (driver.live_allocations.device_bytes, driver.live_allocations.device_count) == (sum(sizes), len(sizes))
    host = driver.allocate_host(1000)
    assert (driver.live_allocations.host_bytes, driver.live_allocations.host_count) == (1000, 1)
    driver.free_host(host)
    for address in addresses:
        driver.free(address, stream)
    assert driver.live_allocations.device_count == driver.live_allocations.host_count == 0


def test_memory_is_given_back_when_the_stream_gets_there_and_not_before(driver: CpuDriver) -> None:
    stream, gate = driver.create_stream(0), Gate()
    address = driver.allocate(100, stream)
    driver.launch_host_function(gate, stream)
    driver.free(address, stream)
    assert driver.live_allocations.device_bytes == 100
    gate.release.set()
    driver.synchronize_stream(stream)
    assert driver.live_allocations.device_bytes == 0


def test_memory_that_is_not_there_to_free_is_refused(driver: CpuDriver) -> None:
    stream, other = driver.create_stream(0), driver.create_stream(1)
    address, host = driver.allocate(100, stream), driver.allocate_host(100)
    refused: list[Callable[[], None]] = [
        lambda: driver.free(address + 4, stream),
        lambda: driver.free(address, other),
        lambda: driver.free(host, stream),
        lambda: driver.free_host(address),
        lambda: driver.free(0, stream),
    ]
    driver.free(driver.allocate(16, stream), stream)
    for free in refused:
        with pytest.raises(DriverError, match=r"INVALID_VALUE.*not a live allocation"):
            free()
    driver.free(address, stream)
    driver.free_host(host)
    with pytest.raises(DriverError, match="freed before"):
        driver.free(address, stream)
    with pytest.raises(DriverError, match="freed before"):
        driver.free_host(host)


def test_a_second_free_is_refused_while_the_first_is_still_queued(steps: CpuDriver) -> None:
    stream = steps.create_stream(0)
    address = steps.allocate(100, stream)
    steps.free(address, stream)
    with pytest.raises(DriverError, match="freed before"):
        steps.free(address, stream)
    with pytest.raises(DriverError, match="does not lie in one live allocation"):
        steps.fill(address, b"\0", 100, stream)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_an_allocation_of_no_bytes_is_refused(driver: CpuDriver, nbytes: int) -> None:
    with pytest.raises(DriverError, match=f"an allocation of {nbytes} bytes"):
        driver.allocate(nbytes, driver.create_stream(0))


def test_a_device_holds_as_much_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_CPU_MEMORY", "1000")
    driver = CpuDriver(2)
    stream, other = driver.create_stream(0), driver.create_stream(1)
    first = driver.allocate(600, stream)
    with pytest.raises(OutOfMemoryError, match="no room for 401 bytes: 600 of its 1000 bytes"):
        driver.allocate(401, stream)
    driver.allocate(1000, other)
    driver.free(first, stream)
    driver.allocate(1000, stream)
    assert driver.device_info(0).memory == 1000
    driver.close()
    monkeypatch.setenv("OXIDE_CPU_MEMORY", "much")
    with pytest.raises(DeviceError, match="OXIDE_CPU_MEMORY='much'"):
        CpuDriver()


@pytest.mark.parametrize("nbytes", [2**62, 2**63 - 1, 2**70])
def test_more_than_the_system_has_is_out_of_memory(driver: CpuDriver, nbytes: int) -> None:
    with pytest.raises(OutOfMemoryError, match=f"the system gave no memory for {nbytes} bytes"):
        driver.allocate_host(nbytes)
    with pytest.raises(OutOfMemoryError, match="no room"):
        driver.allocate(nbytes, driver.create_stream(0))
    assert driver.live_allocations.host_bytes == driver.live_allocations.device_bytes == 0


@pytest.mark.parametrize("nbytes", [1, 4096, BRIEF_BYTES, BRIEF_BYTES + 1, 3_000_001])
def test_bytes_go_to_the_device_across_devices_and_back(driver: CpuDriver, nbytes: int) -> None:
    stream, other = driver.create_stream(0), driver.create_stream(1)
    source, result = driver.allocate_host(nbytes), driver.allocate_host(nbytes)
    near, far = driver.allocate(nbytes, stream), driver.allocate(nbytes, other)
    data = bytes(i * 7 % 251 for i in range(nbytes))
    ctypes.memmove(source, data, nbytes)
    event = driver.create_event(0, timing=False)
    driver.copy_to_device(near, source, nbytes, stream)
    driver.copy_on_device(far, near, nbytes, stream)
    driver.record_event(event, stream)
    driver.wait_event(other, event)
    driver.copy_to_host(result, far, nbytes, other)
    driver.synchronize_stream(other)
    assert ctypes.string_at(result, nbytes) == data


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 4, 8, 16]).flatmap(lambda n: st.binary(min_size=n, max_size=n)), st.integers(1, 200_000))
def test_a_fill_writes_the_pattern_and_nothing_else(pattern: bytes, count: int) -> None:
    driver = CpuDriver()
    stream, nbytes = driver.create_stream(0), len(pattern) * count
    address = driver.allocate(nbytes + 16, stream)
    driver.fill(address, b"\xa5", nbytes + 16, stream)
    driver.fill(address + 8, pattern, count, stream)
    driver.synchronize_stream(stream)
    assert ctypes.string_at(address, nbytes + 16) == b"\xa5" * 8 + pattern * count + b"\xa5" * 8
    driver.close()


def test_a_copy_or_fill_outside_one_allocation_is_refused(driver: CpuDriver) -> None:
    stream, other = driver.create_stream(0), driver.create_stream(1)
    near, far, host = driver.allocate(64, stream), driver.allocate(64, other), driver.allocate_host(64)
    refused: list[Callable[[], None]] = [
        lambda: driver.copy_to_device(near, host, 65, stream),
        lambda: driver.copy_to_device(near + 60, host, 5, stream),
        lambda: driver.copy_to_device(near, host + 60, 5, stream),
        lambda: driver.copy_to_device(near - 1, host, 4, stream),
        lambda: driver.copy_to_device(far, host, 64, stream),
        lambda: driver.copy_to_device(host, near, 64, stream),
        lambda: driver.copy_to_host(host, far, 64, stream),
        lambda: driver.copy_to_host(host, near, 0, stream),
        lambda: driver.copy_on_device(near, host, 64, stream),
        lambda: driver.copy_on_device(near, far, 65, stream),
        lambda: driver.fill(near, b"\0", 65, stream),
        lambda: driver.fill(far, b"\0", 64, stream),
        lambda: driver.fill(near, b"\0", 0, stream),
        lambda: driver.fill(near, b"\0\0\0", 1, stream),
        lambda: driver.fill(near + 2, b"\0\0\0\0", 1, stream),
    ]
    for call in refused:
        with pytest.raises(DriverError) as caught:
            call()
        assert (caught.value.code, caught.value.name) == (1, "CUDA_ERROR_INVALID_VALUE")
    driver.copy_to_device(near + 60, host + 60, 4, stream)
    driver.copy_on_device(near + 1, far + 1, 63, stream)


def test_step_mode_poisons_new_memory(steps: CpuDriver) -> None:
    stream = steps.create_stream(0)
    address = steps.allocate(100, stream)
    assert ctypes.string_at(address, 100) == b"\xff" * 100


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=30))
def test_the_heap_knows_exactly_which_ranges_are_live(actions: list[tuple[bool, int]]) -> None:
    heap = Heap("a heap", None, poison=False)
    live: dict[int, int] = {}
    for allocate, size in actions:
        if allocate or not live:
            live[heap.allocate(size)] = size
        else:
            address = sorted(live)[size % len(live)]
            del live[address]
            retirement = heap.retire(address)
            assert not heap.contains(address, 1)
            heap.release(retirement)
        for address, nbytes in live.items():
            inside = nbytes // 2
            assert heap.contains(address, nbytes)
            assert heap.contains(address + inside, nbytes - inside)
            assert not heap.contains(address + inside, nbytes - inside + 1)
            assert not heap.contains(address + nbytes, 1)
    assert heap.held == (sum(live.values()), len(live))
    for address in live:
        heap.release(heap.retire(address))
    assert heap.held == (0, 0)


def test_what_lies_behind_a_small_block_belongs_to_nobody_as_on_a_gpu() -> None:
    heap = Heap("a heap", None, poison=False)
    usable = ctypes.CDLL(None).malloc_usable_size
    usable.restype, usable.argtypes = ctypes.c_size_t, (ctypes.c_void_p,)
    addresses = {nbytes: heap.allocate(nbytes) for nbytes in (1, 4, 255, 256, 257)}
    sizes = {nbytes: usable(address) for nbytes, address in addresses.items()}
    for address in addresses.values():
        heap.release(heap.retire(address))
    assert all(room >= -(-nbytes // 256) * 256 for nbytes, room in sizes.items())
