"""CUDA graphs on a real GPU: the driver's capture, replay under real asynchrony, and what must not disturb it."""

from __future__ import annotations

import gc
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio
from cuda.bindings import driver as bindings

import oxide
from examples.async_mlp import pipeline
from oxide import (
    BoundsError,
    CudaGraph,
    DeviceBox,
    DisjointSlice,
    Slice,
    d2h,
    dup,
    f32,
    full,
    h2d,
    i64,
    kernel,
    memcpy,
    thread,
    value,
    zeros,
)
from oxide.driver.cuda.driver import CudaDriver
from oxide.errors import DriverError
from oxide.testing import RecordingDriver, use_driver
from tests.gpu.slow_kernel import slow_add


@kernel(block=256)
def pick(where: Slice[i64], x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """y[i] = x[where[i]]"""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[where[index.get()]]


SLOW = 10_000_000  # about 30 ms


@pytest.fixture(scope="module")
def driver() -> Iterator[CudaDriver]:
    driver = CudaDriver()
    yield driver
    driver.close()


def box_of(*numbers: float) -> DeviceBox:
    return h2d(np.array(numbers, np.float32)).sync()


# The driver


def test_a_captured_stream_runs_nothing_and_the_graph_runs_all_of_it(driver: CudaDriver) -> None:
    stream = driver.create_stream(0)
    device, host = driver.allocate(4096, stream), driver.allocate_host(4096)
    words = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint32 * 1024).from_address(host))
    words[:] = 5
    driver.fill(device, b"\0", 4096, stream)
    driver.synchronize_stream(stream)
    driver.begin_capture(stream)
    driver.fill(device, struct.pack("=I", 7), 512, stream)
    driver.fill(device + 2048, struct.pack("=Q", 9), 128, stream)  # the 8-byte fill is a kernel
    driver.copy_on_device(device + 3072, device, 1024, stream)
    driver.copy_to_host(host, device, 4096, stream)
    graph = driver.end_capture(stream)
    driver.synchronize_stream(stream)
    assert set(words) == {5}
    for _ in range(3):
        words[:] = 5
        bindings.cuCtxSetCurrent(None)  # as on a thread that never used CUDA
        driver.launch_graph(graph, stream)
        driver.synchronize_stream(stream)
        assert list(words[:512]) == [7] * 512
        assert list(words[512:768]) == [9, 0] * 128
        assert list(words[768:]) == [7] * 256
    driver.destroy_graph(graph)
    driver.free(device, stream)
    driver.synchronize_stream(stream)
    driver.free_host(host)
    driver.destroy_stream(stream)


def test_a_capture_that_went_wrong_leaves_the_stream_usable(driver: CudaDriver) -> None:
    stream = driver.create_stream(0)
    driver.begin_capture(stream)
    with pytest.raises(DriverError):
        driver.synchronize_stream(stream)
    with pytest.raises(DriverError, match="cuStreamEndCapture"):
        driver.end_capture(stream)
    driver.synchronize_stream(stream)
    driver.begin_capture(stream)
    driver.destroy_graph(driver.end_capture(stream))  # an empty one
    driver.destroy_stream(stream)


# Replay


def test_replaying_a_batch_of_the_example_gives_the_results_of_running_it_and_creates_nothing() -> None:
    rng = np.random.default_rng(0)
    batch = rng.random((64, 64), np.float32)
    with use_driver(RecordingDriver(CudaDriver())) as driver:
        w0 = h2d(rng.random((64, 64), np.float32)).arc().sync()
        w1 = h2d(rng.random(64, np.float32)).arc().sync()
        operation = pipeline.mlp(batch, w0, w1)
        graph = operation.graph()
        graph.launch().sync()
        result = graph.take_output()
        for number in range(300):
            rng.random(out=batch, dtype=np.float32)
            expected = operation.sync().copy()
            driver.clear()
            graph.launch().sync()
            np.testing.assert_array_equal(result, expected)
            if number >= 10:
                created = {"allocate", "allocate_host", "create_event", "create_stream"}
                assert not created & {call.method for call in driver.calls}
        graph.close()
        del result


def test_launches_in_flight_have_the_inputs_of_their_submissions() -> None:
    streams = [oxide.devices()[0].new_stream() for _ in range(4)]
    x = np.zeros(1000, np.float32)
    graph = oxide.zip(h2d(x), zeros(1000)).and_then(lambda b: slow_add(SLOW // 100, *b)).last().and_then(dup).graph()
    output = graph.take_output()
    results = []
    for number in range(40):
        x[:] = number
        graph.launch().async_on(streams[number % 4])
        results.append(d2h(output).async_on(streams[(number + 1) % 4]))
    for stream in streams:
        stream.synchronize()
    for number, result in enumerate(results):
        np.testing.assert_allclose(result, np.full(1000, number), rtol=1e-2)


def test_updates_come_before_the_launches_that_follow_on_any_stream() -> None:
    x, y = zeros(1000).sync(), zeros(1000).sync()
    graph = memcpy(y, x).graph()
    results = []
    for number in range(100):
        if number % 10 == 0:
            graph.update(slow_add(SLOW // 10, full(1000, 0.0), x))
        graph.update(memcpy(x, np.full(1000, number, np.float32)))
        stream = oxide.devices()[0].new_stream()
        results.append((stream, graph.launch().and_then(lambda _: d2h(y)).async_on(stream)))
    for number, (stream, result) in enumerate(results):
        stream.synchronize()
        np.testing.assert_array_equal(result, np.full(1000, number))


def test_a_graph_dropped_while_it_runs_runs_to_its_end_with_its_memory() -> None:
    with use_driver(RecordingDriver(CudaDriver())) as driver:
        y = zeros(1000).sync()
        stream = oxide.devices()[0].new_stream()
        graph: CudaGraph[Any] | None = (
            h2d(np.full(1000, 3, np.float32)).and_then(lambda x: slow_add(SLOW * 30, x, y)).graph()
        )
        assert graph is not None
        graph.launch().async_on(stream)
        graph.close()
        graph = None
        gc.collect()
        assert not stream.query()
        others = [h2d(np.full(1000, -1, np.float32)).async_on(oxide.devices()[0].new_stream()) for _ in range(50)]
        assert stream.query() or driver.count("destroy_graph") == 0
        stream.synchronize()
        np.testing.assert_allclose(d2h(y).sync(), np.full(1000, 3), rtol=1e-1)
        del others
        gc.collect()
        oxide.reclaim.drain()
        assert driver.count("destroy_graph") == 1


def test_each_launchs_fault_is_its_own() -> None:
    where, x, y = h2d(np.array([0, 1])).sync(), box_of(5, 6), box_of(0, 0)
    graph = pick(where, x, y).graph()
    outcomes: list[Any] = []

    async def main() -> None:
        futures = []
        for places in ([1, 0], [0, 2], [1, 1], [-1, 0]):
            graph.update(memcpy(where, np.array(places)))
            future = graph.launch().into_future()
            future.start()
            futures.append(future)
        for future in futures:
            try:
                outcomes.append(await future)
            except BoundsError as fault:
                outcomes.append(fault.index)

    trio.run(main)
    assert outcomes == [None, 2, None, -1]


# Beside other work


def test_captures_on_two_threads_and_work_on_a_third_do_not_disturb_each_other() -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                stream = oxide.devices()[0].new_stream()
                result = h2d(np.full(1 << (number % 18), number)).to_host().sync_on(stream)
                assert (result == number).all()
                if number % 20 == 0:
                    oxide.reclaim.drain()  # frees, page-locked memory too
        except BaseException as error:
            errors.append(error)

    def capture(number: int) -> None:
        try:
            for _ in range(100):
                x, y = box_of(number), box_of(0)
                with CudaGraph.scope(oxide.devices()[0].new_stream()) as s:
                    for _ in range(5):
                        s.record(slow_add(10, x, y))
                graph = zeros(4).and_then(dup).graph()
                graph.launch().sync()
                s.graph.launch().sync()
                np.testing.assert_allclose(d2h(y).sync(), [5 * number], rtol=1e-2)
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    capturing = [threading.Thread(target=capture, args=(number,)) for number in (1, 2)]
    for running in capturing:
        running.start()
    for running in capturing:
        running.join()
    stop.set()
    worker.join()
    assert not errors


def test_an_empty_graph_and_one_of_values_launch() -> None:
    with CudaGraph.scope(oxide.devices()[0].new_stream()) as s:
        assert s.record(value(42)) == 42
    for _ in range(10):
        s.graph.launch().sync()
