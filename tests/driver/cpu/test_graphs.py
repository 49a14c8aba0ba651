"""Graphs and copies between devices, as the CPU driver does them."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any

import pytest

from oxide.driver.base import Code
from oxide.driver.cpu import CpuDriver
from oxide.errors import DriverError


def words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint32 * count).from_address(address))


def recorded_items(graph: Any) -> int:
    return sum(len(part.items) for part in graph._parts)


def test_a_capture_records_launches_copies_and_fills_and_each_launch_runs_them_in_order(
    driver: CpuDriver, count_blocks: Code
) -> None:
    stream = driver.create_stream(0)
    function = driver.load(0, count_blocks)
    counts, copy = driver.allocate(400, stream), driver.allocate(400, stream)
    host = driver.allocate_host(400)
    driver.fill(counts, b"\0", 400, stream)
    driver.begin_capture(stream)
    driver.fill(copy, b"\7\0\0\0", 100, stream)
    driver.launch(function, (100, 1, 1), (1, 1, 1), 0, struct.pack("@Qq", counts, 1), stream)
    driver.copy_on_device(copy, counts, 200, stream)
    driver.copy_to_host(host, copy, 400, stream)
    graph = driver.end_capture(stream)
    driver.synchronize_stream(stream)
    assert words(counts, 100) == [0] * 100
    for turn in range(1, 4):
        driver.launch_graph(graph, stream)
        driver.synchronize_stream(stream)
        assert words(host, 100) == [turn] * 50 + [7] * 50
    driver.destroy_graph(graph)
    with pytest.raises(DriverError, match=r"is not a graph to use: it was destroyed") as caught:
        driver.launch_graph(graph, stream)
    assert caught.value.name == "CUDA_ERROR_INVALID_HANDLE"


def test_two_launches_in_flight_each_run_every_block(driver: CpuDriver, count_blocks: Code) -> None:
    streams = [driver.create_stream(0) for _ in range(2)]
    counts = driver.allocate(4 * 1000, streams[0])
    driver.fill(counts, b"\0", 4000, streams[0])
    driver.synchronize_stream(streams[0])
    driver.begin_capture(streams[0])
    params = struct.pack("@Qq", counts, 100)
    driver.launch(driver.load(0, count_blocks), (1000, 1, 1), (1, 1, 1), 0, params, streams[0])
    graph = driver.end_capture(streams[0])
    for _ in range(5):
        for stream in streams:
            driver.launch_graph(graph, stream)
    for stream in streams:
        driver.synchronize_stream(stream)
    assert words(counts, 1000) == [10] * 1000


def test_a_capturing_stream_refuses_what_a_graph_cannot_hold(steps: CpuDriver) -> None:
    stream, other = steps.create_stream(0), steps.create_stream(0)
    event = steps.create_event(0, timing=False)
    address = steps.allocate(64, stream)
    steps.begin_capture(stream)
    graph = None
    for refused in (
        lambda: steps.synchronize_stream(stream),
        lambda: steps.query_stream(stream),
        lambda: steps.record_event(event, stream),
        lambda: steps.wait_event(stream, event),
        lambda: steps.allocate(64, stream),
        lambda: steps.free(address, stream),
        lambda: steps.launch_host_function(lambda: None, stream),
        lambda: steps.launch_native_host_function(1, 0, stream),
        lambda: steps.begin_capture(stream),
    ):
        with pytest.raises(DriverError, match="is in a capture, which takes launches, copies and fills only") as caught:
            refused()
        assert (caught.value.code, caught.value.name) == (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
    steps.fill(address, b"\1", 64, other)  # other streams are as ever
    steps.synchronize_stream(other)
    graph = steps.end_capture(stream)
    assert recorded_items(graph) == 0
    steps.synchronize_stream(stream)
    with pytest.raises(DriverError, match="where none was begun"):
        steps.end_capture(stream)


def test_an_error_of_a_captured_call_is_raised_by_the_call_and_leaves_the_capture_whole(steps: CpuDriver) -> None:
    stream = steps.create_stream(0)
    address = steps.allocate(4, stream)
    steps.begin_capture(stream)
    with pytest.raises(DriverError, match="does not lie in one live allocation"):
        steps.fill(address, b"\1", 5, stream)
    steps.fill(address, b"\1", 4, stream)
    graph = steps.end_capture(stream)
    steps.launch_graph(graph, stream)
    steps.synchronize_stream(stream)
    assert words(address, 1) == [0x01010101]


def test_a_graph_runs_on_its_own_device_only(steps: CpuDriver) -> None:
    one, other = steps.create_stream(0), steps.create_stream(1)
    steps.begin_capture(one)
    graph = steps.end_capture(one)
    with pytest.raises(DriverError, match="of another device; launch it on cpu:0"):
        steps.launch_graph(graph, other)


def test_threads_capture_on_streams_of_their_own(driver: CpuDriver) -> None:
    barrier = threading.Barrier(2)
    found = {}

    def capture(value: bytes) -> None:
        stream = driver.create_stream(0)
        address = driver.allocate(4, stream)
        barrier.wait()
        driver.begin_capture(stream)
        driver.fill(address, value, 4, stream)
        barrier.wait()
        driver.fill(address + 1, value, 1, stream)
        graph = driver.end_capture(stream)
        driver.launch_graph(graph, stream)
        driver.synchronize_stream(stream)
        found[value] = (recorded_items(graph), words(address, 1))

    threads = [threading.Thread(target=capture, args=(value,)) for value in (b"\1", b"\2")]
    for running in threads:
        running.start()
    for running in threads:
        running.join()
    assert found == {b"\1": (2, [0x01010101]), b"\2": (2, [0x02020202])}


def test_a_copy_between_devices_checks_each_end_on_its_own_device(steps: CpuDriver) -> None:
    streams = [steps.create_stream(device) for device in (0, 1)]
    here, there = (steps.allocate(8, stream) for stream in streams)
    steps.fill(here, b"\5", 8, streams[0])
    steps.synchronize_stream(streams[0])
    steps.copy_peer(there, 1, here, 0, 8, streams[1])
    steps.synchronize_stream(streams[1])
    assert words(there, 2) == [0x05050505] * 2
    with pytest.raises(DriverError, match=r"the destination of a copy between devices.*cpu:0"):
        steps.copy_peer(there, 0, here, 0, 8, streams[0])
    with pytest.raises(DriverError, match=r"the source of a copy between devices.*cpu:1"):
        steps.copy_peer(there, 1, here, 1, 8, streams[0])
    with pytest.raises(DriverError, match="device 2 was asked for"):
        steps.copy_peer(there, 2, here, 0, 8, streams[0])


def capture_diamond(driver: CpuDriver, stream: Any) -> tuple[Any, int, int]:
    """0 fills a with 1, 1 copies it to b, 2 fills c with 2 beside them, and 3 copies b and c to the host."""
    a, b, c = (driver.allocate(4, stream) for _ in range(3))
    host = driver.allocate_host(8)
    driver.begin_capture(stream)
    driver.capture_after(stream, ())
    driver.fill(a, b"\1\0\0\0", 1, stream)
    driver.copy_on_device(b, a, 4, stream)
    driver.capture_after(stream, ())
    driver.fill(c, b"\2\0\0\0", 1, stream)
    driver.capture_after(stream, (0, 1))
    driver.copy_to_host(host, b, 4, stream)
    driver.copy_to_host(host + 4, c, 4, stream)
    return driver.end_capture(stream), host, c


@pytest.mark.parametrize("seed", range(20))
def test_parts_run_after_the_parts_they_name_in_any_order_beside_others(seed: int) -> None:
    driver = CpuDriver(step=True, seed=seed)
    stream = driver.create_stream(0)
    graph, host, c = capture_diamond(driver, stream)
    driver.fill(c, b"\7\0\0\0", 1, stream)  # before the launch, and so before each of its parts
    driver.launch_graph(graph, stream)
    driver.copy_to_host(host + 4, c, 4, stream)  # after it
    driver.run_until_idle()
    assert words(host, 2) == [1, 2]
    driver.destroy_graph(graph)
    driver.close()


def test_independent_parts_are_runnable_at_the_same_time(steps: CpuDriver) -> None:
    stream = steps.create_stream(0)
    graph, _, _ = capture_diamond(steps, stream)
    steps.run_until_idle()
    steps.launch_graph(graph, stream)
    steps.step(stream)  # the launch begins
    steps.step(stream)  # its second lane
    assert len(steps.pending()) == 2
    steps.run_until_idle()
    assert not steps.pending()


def test_a_part_after_one_that_has_not_begun_is_refused(steps: CpuDriver) -> None:
    stream = steps.create_stream(0)
    with pytest.raises(DriverError, match="where none was begun"):
        steps.capture_after(stream, ())
    steps.begin_capture(stream)
    steps.capture_after(stream, ())
    with pytest.raises(DriverError, match=r"after the parts \(1,\), and 1 have begun"):
        steps.capture_after(stream, (1,))
    steps.destroy_graph(steps.end_capture(stream))
