"""The clock of events, on the CPU device: its events have times too."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from oxide.driver import event_clock
from oxide.driver.cpu import CpuDriver
from oxide.driver.event_clock import EventClock
from oxide.errors import DeviceError
from oxide.testing import FailingDriver, RecordingDriver


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    cpu = CpuDriver(2, threads=1)
    yield RecordingDriver(cpu)
    cpu.close()


def new_clock(driver: RecordingDriver | FailingDriver) -> EventClock:
    return EventClock(driver, lambda stream: stream.device, lambda: None)


def test_spans_are_in_the_hosts_time_and_in_order(driver: RecordingDriver) -> None:
    clock = new_clock(driver)
    stream = driver.create_stream(0)
    began = time.perf_counter_ns()
    tokens = []
    for _ in range(3):
        token = clock.begin(stream)
        driver.launch_host_function(lambda: time.sleep(0.002), stream)
        clock.end(token, stream)
        tokens.append(token)
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


def test_work_that_runs_has_no_spans_yet(driver: RecordingDriver) -> None:
    from oxide.testing import step_driver

    stepped = RecordingDriver(step_driver())
    clock = new_clock(stepped)
    stream = stepped.create_stream(0)
    token = clock.begin(stream)
    stepped.launch_host_function(lambda: None, stream)
    clock.end(token, stream)
    assert clock.spans(token) is None
    stepped.synchronize_stream(stream)
    assert clock.spans(token) is not None
    clock.close()
    stepped.close()


def test_events_are_used_again_and_destroyed_at_the_end(driver: RecordingDriver) -> None:
    clock = new_clock(driver)
    stream = driver.create_stream(1)
    for _ in range(20):
        token = clock.begin(stream)
        clock.end(token, stream)
        driver.synchronize_stream(stream)
        assert clock.spans(token) is not None
    assert driver.outstanding()["events"] <= 3
    clock.close()
    assert driver.outstanding()["events"] == 0
    assert driver.outstanding()["streams"] == 1


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
        (span,) = clock.spans(token) or []
        assert span.begun > last
        last = span.begun
        assert abs(time.perf_counter_ns() - span.begun) < 1_000_000_000
    clock.close()
    assert driver.outstanding()["events"] == 0


def test_a_token_that_is_given_up_returns_its_events(driver: RecordingDriver) -> None:
    clock = new_clock(driver)
    stream = driver.create_stream(0)
    for _ in range(5):
        clock.forget(clock.begin(stream))
    assert driver.outstanding()["events"] <= 3
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
    clock.close()
    assert driver.outstanding()["events"] == 0
