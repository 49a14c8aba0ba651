"""The clock of events, on the CPU device: its events have times too."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from oxide.driver import event_clock
from oxide.driver.base import Driver, StreamHandle
from oxide.driver.cpu import CpuDriver
from oxide.driver.event_clock import EventClock
from oxide.errors import DeviceError
from oxide.testing import DelegatingDriver, FailingDriver, RecordingDriver, step_driver


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    cpu = CpuDriver(2, threads=1)
    yield RecordingDriver(cpu)
    cpu.close()


@pytest.fixture
def stepped() -> Iterator[RecordingDriver]:
    """A driver on which nothing runs until a test steps it."""
    cpu = step_driver()
    yield RecordingDriver(cpu)
    cpu.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the pools so small that a few submissions empty them."""
    monkeypatch.setattr(event_clock, "_POOL", 4)
    monkeypatch.setattr(event_clock, "_BATCH", 2)


def new_clock(driver: Driver, devices: Iterable[int] = ()) -> EventClock:
    return EventClock(driver, lambda stream: stream.device, lambda: None, devices)


def submit(clock: EventClock, driver: Driver, stream: StreamHandle, work: Callable[[], None] = lambda: None) -> Any:
    token = clock.begin(stream)
    driver.launch_host_function(work, stream)
    clock.end(token, stream)
    return token


def test_spans_are_in_the_hosts_time_and_in_order(driver: RecordingDriver) -> None:
    clock = new_clock(driver)
    stream = driver.create_stream(0)
    began = time.perf_counter_ns()
    tokens = [submit(clock, driver, stream, lambda: time.sleep(0.002)) for _ in range(3)]
    driver.synchronize_stream(stream)
    over = time.perf_counter_ns()
    clock.collect(final=True)
    spans = [span for token in tokens for span in clock.spans(token) or []]
    assert len(spans) == 3
    for span in spans:
        assert span.ended - span.begun >= 2_000_000
    for before, after in itertools.pairwise(spans):
        assert before.ended <= after.begun
    slack = 1_000_000  # the base is between two readings of the host's clock, which a busy machine makes far apart
    assert began - slack <= spans[0].begun
    assert spans[-1].ended <= over + slack
    clock.close()


def test_work_has_spans_once_its_stream_has_passed_it(stepped: RecordingDriver) -> None:
    clock = new_clock(stepped)
    stream = stepped.create_stream(0)
    tokens = [submit(clock, stepped, stream) for _ in range(7)]
    assert clock.spans(tokens[0]) is None
    for done in range(1, len(tokens) + 1):
        for _ in range(3):  # two events and the work between them
            assert stepped.step(stream)
        stepped.clear()
        clock.collect(final=False)
        spans = [clock.spans(token) for token in tokens]
        assert [span is not None for span in spans] == [number < done for number in range(len(tokens))]
        assert stepped.count("query_event") <= 4
    assert not stepped.step(stream)
    clock.close()


def test_one_query_says_that_a_stream_has_passed_everything(driver: RecordingDriver) -> None:
    clock = new_clock(driver)
    streams = [driver.create_stream(0), driver.create_stream(0), driver.create_stream(1)]
    tokens = [submit(clock, driver, stream) for _ in range(50) for stream in streams]
    for stream in streams:
        driver.synchronize_stream(stream)
    driver.clear()
    clock.collect(final=True)
    assert driver.count("query_event") == len(streams)
    assert all(clock.spans(token) is not None for token in tokens)
    clock.close()


@pytest.mark.usefixtures("small")
def test_a_long_run_needs_no_more_events_than_the_pool_has(driver: RecordingDriver) -> None:
    clock = new_clock(driver)
    streams = [driver.create_stream(0), driver.create_stream(0)]
    tokens = []
    for _ in range(20):
        for stream in streams:
            tokens.append(submit(clock, driver, stream))
            driver.synchronize_stream(stream)
    assert driver.outstanding()["events"] == 2 * 4 + 1
    clock.collect(final=True)
    assert all(clock.spans(token) is not None for token in tokens)
    clock.close()
    assert driver.outstanding()["events"] == 0
    assert driver.outstanding()["streams"] == 2


@pytest.mark.usefixtures("small")
def test_the_pool_grows_by_batches_while_the_device_is_behind(stepped: RecordingDriver) -> None:
    clock = new_clock(stepped)
    stream = stepped.create_stream(0)
    tokens = [submit(clock, stepped, stream) for _ in range(9)]
    pairs = stepped.outstanding()["events"] // 2
    assert pairs == 4 + 3 * 2
    stepped.synchronize_stream(stream)
    tokens += [submit(clock, stepped, stream) for _ in range(pairs - 2)]
    assert stepped.outstanding()["events"] // 2 == pairs
    stepped.synchronize_stream(stream)
    clock.collect(final=True)
    spans = [span for token in tokens for span in clock.spans(token) or []]
    assert len(spans) == len(tokens)
    assert all(before.ended <= after.begun for before, after in itertools.pairwise(spans))
    clock.close()
    assert stepped.outstanding()["events"] == 0


def test_the_events_of_devices_in_use_are_made_with_the_clock(driver: RecordingDriver) -> None:
    clock = new_clock(driver, devices=[1])
    stream = driver.create_stream(1)
    driver.clear()
    submit(clock, driver, stream)
    assert driver.count("create_event") == 0
    submit(clock, driver, driver.create_stream(0))
    assert driver.count("create_event") > 0
    clock.close()


def test_a_device_that_refuses_events_leaves_none_behind(driver: RecordingDriver) -> None:
    failing = FailingDriver(driver)
    for method, at in (("record_event", 2), ("create_event", 1), ("create_event", 8), ("create_event", 9)):
        failing.fail(method, DeviceError("no more events"), at=at)
        clock = new_clock(failing, devices=[0])
        assert (driver.outstanding()["events"], driver.outstanding()["streams"]) == (0, 0)
        failing.fail(method, DeviceError("no more events"), at=at)
        stream = failing.create_stream(0)
        with pytest.raises(DeviceError, match="no more events"):
            clock.begin(stream)
        assert (driver.outstanding()["events"], driver.outstanding()["streams"]) == (0, 1)
        driver.destroy_stream(stream)
        clock.close()


class Finalising(DelegatingDriver):
    """A driver that submits work in the middle of ``elapsed_ms``, as the garbage collector may."""

    work: Callable[[], object] | None = None

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if method == "elapsed_ms" and self.work is not None:
            work, self.work = self.work, None
            work()
        return super().invoke(method, *arguments, **keywords)


@pytest.mark.usefixtures("small")
def test_work_may_be_submitted_while_times_are_read(driver: RecordingDriver) -> None:
    finalising = Finalising(driver)
    clock = new_clock(finalising)
    stream = finalising.create_stream(0)
    tokens = [submit(clock, finalising, stream) for _ in range(4)]
    driver.synchronize_stream(stream)
    finalising.work = lambda: tokens.append(submit(clock, finalising, stream))
    clock.collect(final=False)
    assert len(tokens) == 5
    driver.synchronize_stream(stream)
    clock.collect(final=True)
    assert all(clock.spans(token) is not None for token in tokens)
    clock.close()
    assert driver.outstanding()["events"] == 0


def test_submissions_whose_events_are_mixed_have_times_later(stepped: RecordingDriver) -> None:
    clock = new_clock(stepped)
    stream = stepped.create_stream(0)
    one, other = clock.begin(stream), clock.begin(stream)
    clock.end(one, stream)  # its second event stands before the other's
    clock.end(other, stream)
    one.lane.pending.rotate(1)  # as if the second thread had been interrupted before it noted its submission
    for _ in range(3):
        assert stepped.step(stream)
    clock.collect(final=False)
    assert (clock.spans(one), clock.spans(other)) == (None, None)
    stepped.synchronize_stream(stream)
    clock.collect(final=False)
    assert clock.spans(one)
    assert clock.spans(other)
    clock.close()


def test_a_new_base_replaces_an_old_one_and_times_go_on(
    driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_clock, "_BASE_NS", 0)
    clock = new_clock(driver)
    stream = driver.create_stream(0)
    last = 0
    for _ in range(10):
        token = clock.begin(stream)
        clock.end(token, stream)
        driver.synchronize_stream(stream)
        clock.collect(final=False)
        (span,) = clock.spans(token) or []
        assert span.begun > last
        last = span.begun
        assert abs(time.perf_counter_ns() - span.begun) < 1_000_000_000
    clock.close()
    assert driver.outstanding()["events"] == 0


@pytest.mark.usefixtures("small")
def test_a_token_that_is_given_up_returns_its_events(driver: RecordingDriver) -> None:
    clock = new_clock(driver)
    stream = driver.create_stream(0)
    for ended in [False, True] * 5:
        token = clock.begin(stream)
        if ended:
            clock.end(token, stream)
        clock.forget(token)
        assert clock.spans(token) is None
    assert driver.outstanding()["events"] == 2 * 4 + 1
    clock.close()
    assert driver.outstanding()["events"] == 0


def test_a_refused_event_costs_the_times_and_nothing_else(driver: RecordingDriver) -> None:
    failing = FailingDriver(driver)
    clock = new_clock(failing)
    stream = failing.create_stream(0)
    clock.forget(clock.begin(stream))
    failing.fail("record_event", DeviceError("no more events"))
    with pytest.raises(DeviceError, match="no more events"):
        clock.begin(stream)
    failing.fail("record_event", DeviceError("no more events"), at=2)
    without, with_times = submit(clock, failing, stream), submit(clock, failing, stream)
    driver.synchronize_stream(stream)
    clock.collect(final=True)
    assert clock.spans(without) is None
    assert clock.spans(with_times)
    clock.forget(without)
    clock.close()
    assert driver.outstanding()["events"] == 0


def test_a_lost_device_has_no_times(driver: RecordingDriver) -> None:
    failing = FailingDriver(driver)
    clock = new_clock(failing)
    stream = failing.create_stream(0)
    token = submit(clock, failing, stream)
    driver.synchronize_stream(stream)
    for method in ("query_event", "elapsed_ms"):
        failing.fail(method, DeviceError("the device is lost"))
        clock.collect(final=True)
        assert clock.spans(token) is None
    clock.forget(token)
    clock.close()
    assert driver.outstanding()["events"] == 0
