"""The CPU device's clock: the threads that run work note its times."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from oxide.driver.cpu import CpuDriver
from oxide.errors import DeviceError
from oxide.testing import step_driver


@pytest.fixture
def driver() -> Iterator[CpuDriver]:
    cpu = CpuDriver(threads=2)
    yield cpu
    cpu.close()


def test_the_time_is_that_of_the_work_and_not_of_its_wait(driver: CpuDriver) -> None:
    clock = driver.clock()
    stream = driver.create_stream(0)
    gate = threading.Event()
    driver.launch_host_function(lambda: gate_opened(gate), stream)
    token = clock.begin(stream)
    driver.launch_host_function(lambda: time.sleep(0.002), stream)
    clock.end(token, stream)
    assert clock.spans(token) is None
    opened = time.perf_counter_ns()
    gate.set()
    driver.synchronize_stream(stream)
    (span,) = clock.spans(token) or []
    assert opened <= span.begun
    assert span.ended - span.begun >= 2_000_000
    assert span.ended <= time.perf_counter_ns()
    clock.close()


def gate_opened(gate: threading.Event) -> None:
    assert gate.wait(60)


def test_each_launch_of_a_graph_has_times_of_its_own() -> None:
    driver = step_driver()
    clock = driver.clock()
    stream = driver.create_stream(0)
    memory = driver.allocate(1024, stream)
    driver.begin_capture(stream)
    for _ in range(3):
        driver.fill(memory, b"\1", 1024, stream)
    graph = driver.end_capture(stream)
    tokens = []
    for _ in range(2):
        tokens.append(clock.begin(stream))
        driver.launch_graph(graph, stream)
        clock.end(tokens[-1], stream)
    driver.run_until_idle()
    first, second = (clock.spans(token) or [] for token in tokens)
    assert len(first) == len(second) == 3
    assert first[-1].ended <= second[0].begun
    clock.close()
    driver.close()


def test_what_another_thread_submits_is_not_measured(driver: CpuDriver) -> None:
    clock = driver.clock()
    stream = driver.create_stream(0)
    token = clock.begin(stream)
    other = threading.Thread(target=driver.launch_host_function, args=(lambda: None, stream))
    other.start()
    other.join()
    clock.end(token, stream)
    driver.synchronize_stream(stream)
    assert clock.spans(token) == []
    clock.close()


def test_dropped_work_has_no_times() -> None:
    driver = step_driver()
    clock = driver.clock()
    stream = driver.create_stream(0)

    class Run:
        dropped = False

    run = Run()
    token = clock.begin(stream)
    driver.for_run(run).launch_host_function(lambda: None, stream)
    clock.end(token, stream)
    run.dropped = True
    driver.run_until_idle()
    assert clock.spans(token) is None
    clock.close()
    driver.close()


def test_a_driver_has_one_clock_at_a_time(driver: CpuDriver) -> None:
    clock = driver.clock()
    with pytest.raises(DeviceError, match="has a clock already"):
        driver.clock()
    clock.close()
    driver.clock().close()
