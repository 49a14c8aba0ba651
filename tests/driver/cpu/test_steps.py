"""Step mode: nothing runs until it is told to, and what runs then is what was asked for."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu.steps import StepScheduler
from oxide.driver.cpu.streams import BlockRange, CpuStream, Task
from oxide.errors import DeviceError, DriverError
from oxide.testing import step_driver
from tests.driver.conftest import Gate


def test_nothing_runs_until_a_step(steps: CpuDriver) -> None:
    threads = threading.active_count()
    stream, event = steps.create_stream(0), steps.create_event(0, timing=False)
    ran: list[object] = []
    steps.record_event(event, stream)
    address = steps.allocate(16, stream)
    steps.free(address, stream)
    steps.launch_host_function(partial(ran.append, 1), stream)
    assert not steps.query_event(event)
    assert not steps.query_stream(stream)
    assert steps.live_allocations.device_bytes == 16
    assert threading.active_count() == threads

    assert steps.step()
    assert steps.query_event(event)
    assert steps.live_allocations.device_bytes == 16
    assert steps.step()
    assert steps.live_allocations.device_bytes == 0
    assert (steps.step(), ran) == (True, [1])
    assert steps.query_stream(stream)
    assert not steps.step()


def test_a_step_runs_what_was_submitted_first_or_what_the_stream_named_holds(steps: CpuDriver) -> None:
    first, second, idle = (steps.create_stream(0) for _ in range(3))
    ran: list[str] = []
    for name, stream in (("a", first), ("b", second), ("c", second), ("d", first)):
        steps.launch_host_function(partial(ran.append, name), stream)
    assert steps.pending() == (first, second)
    assert not steps.step(idle)
    assert steps.step(second)
    assert steps.pending() == (first, second)
    steps.step()
    steps.step()
    steps.step()
    assert ran == ["b", "a", "c", "d"]
    assert steps.pending() == ()


def test_a_stream_that_waits_for_an_event_is_not_pending(steps: CpuDriver) -> None:
    source, waiting, event = steps.create_stream(0), steps.create_stream(0), steps.create_event(0, timing=False)
    steps.record_event(event, source)
    steps.wait_event(waiting, event)
    assert steps.pending() == (source,)
    assert not steps.step(waiting)
    steps.step(source)
    assert steps.pending() == (waiting,)


def test_synchronizing_runs_until_the_point_and_no_further(steps: CpuDriver) -> None:
    stream, event = steps.create_stream(0), steps.create_event(0, timing=False)
    ran: list[object] = []
    steps.launch_host_function(partial(ran.append, "before"), stream)
    steps.record_event(event, stream)
    steps.launch_host_function(partial(ran.append, "after"), stream)
    steps.synchronize_event(event)
    assert ran == ["before"]
    steps.synchronize_stream(stream)
    assert ran == ["before", "after"]


def test_a_synchronize_waits_for_the_step_that_another_thread_is_in(
    steps: CpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, gate = steps.create_stream(0), Gate()
    ran: list[bool] = []

    def function() -> None:
        gate()
        ran.append(True)

    steps.launch_host_function(function, stream)
    stepping = threading.Thread(target=steps.step)
    stepping.start()
    assert gate.started.wait(10)
    progress = steps._steps()._progress
    wait = progress.wait

    def release_and_wait() -> bool:
        gate.release.set()
        return wait()

    monkeypatch.setattr(progress, "wait", release_and_wait)
    steps.synchronize_stream(stream)
    assert ran == [True]
    stepping.join()


def run_with_seed(seed: int) -> list[tuple[int, int]]:
    driver = step_driver(seed=seed)
    ran: list[tuple[int, int]] = []
    streams = [driver.create_stream(0) for _ in range(3)]
    for turn in range(4):
        for number, stream in enumerate(streams):
            driver.launch_host_function(partial(ran.append, (number, turn)), stream)
    driver.close()
    return ran


def test_a_seed_makes_a_schedule_and_makes_it_again() -> None:
    schedules = [run_with_seed(seed) for seed in range(20)]
    assert schedules == [run_with_seed(seed) for seed in range(20)]
    assert len({tuple(schedule) for schedule in schedules}) > 10


def test_stepping_is_for_step_mode(driver: CpuDriver) -> None:
    for call in (driver.step, driver.pending, driver.run_until_idle):
        with pytest.raises(DriverError, match="step=True"):
            call()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"devices": 0}, "0 devices"),
        ({"devices": -2}, "-2 devices"),
        ({"devices": 10**8}, "100000000 devices"),
        ({"devices": 10**5000}, "an int of 16610 bits devices"),
        ({"threads": 0}, "0 threads"),
    ],
    ids=["none", "negative", "a slip", "long", "no thread"],
)
def test_a_driver_has_a_device_and_a_thread_and_not_millions(arguments: dict[str, int], found: str) -> None:
    with pytest.raises(DeviceError, match=rf"a CPU driver with {found} was asked for; it has 1 to 4096 \("):
        CpuDriver(**arguments)  # type: ignore[arg-type]


def test_work_that_fails_fails_the_device_and_the_stream_goes_on() -> None:
    scheduler, stream, ran = StepScheduler(None), CpuStream(0), []

    def fails(first: int, end: int) -> None:
        raise ValueError("broken inside")

    scheduler.submit(stream, BlockRange("kernel", fails, 1))
    scheduler.submit(stream, Task("after", lambda: ran.append(True)))
    scheduler.run_until_idle()
    assert ran == [True]
    with pytest.raises(DriverError, match="broken inside"):
        scheduler.raise_failure(0)
    scheduler.raise_failure(1)


def test_closing_runs_what_is_queued() -> None:
    driver, ran = step_driver(), []
    driver.launch_host_function(lambda: ran.append(True), driver.create_stream(0))
    driver.close()
    assert ran == [True]
