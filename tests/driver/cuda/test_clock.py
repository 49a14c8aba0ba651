"""CUDA's clocks without a GPU: a module stands in for CUPTI and notes what it is asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from oxide.driver.base import Span
from oxide.driver.cpu import CpuDriver
from oxide.driver.cuda import clock as cuda_clock
from oxide.driver.cuda.clock import CuptiClock, new_clock
from oxide.driver.event_clock import EventClock
from oxide.errors import DeviceError
from oxide.testing import RecordingDriver

KINDS = {"CONCURRENT_KERNEL": 10, "MEMCPY": 1, "MEMCPY2": 22, "MEMSET": 2, "EXTERNAL_CORRELATION": 39, "DRIVER": 4}
OURS, THEIRS = 3, 4  # external kinds
CALLS = 807
OFFSET = 5_000_000_000
STREAM: Any = SimpleNamespace(device=0)


class FakeCupti:
    """Stands for ``cupti.cupti``. A record that a test makes is delivered by the next flush."""

    ActivityKind = SimpleNamespace(**KINDS)
    ExternalCorrelationKind = SimpleNamespace(CUSTOM0=OURS)

    def __init__(self) -> None:
        self.enabled: set[int] = set()
        self.calls = set(range(1, CALLS))  # those that are recorded while DRIVER is enabled
        self.pushed: list[int] = []
        self.flushes: list[int] = []
        self.waiting: list[Any] = []
        self.registered = 0
        self.refuses = ""

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        self.registered += 1
        assert requested() == (cuda_clock._BUFFER_BYTES, 0)
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def activity_enable_driver_api(self, call: int, enable: int) -> None:
        if call >= CALLS:
            raise RuntimeError("CUPTI_ERROR_INVALID_PARAMETER")
        (self.calls.add if enable else self.calls.discard)(call)

    def activity_push_external_correlation_id(self, kind: int, number: int) -> None:
        assert kind == OURS
        self.pushed.append(number)

    def activity_pop_external_correlation_id(self, kind: int) -> int:
        return self.pushed.pop()

    def activity_flush_all(self, flag: int) -> None:
        self.flushes.append(flag)
        records, self.waiting = self.waiting, []
        self.completed(records)
        for record in records:  # as CUPTI's buffer, which is used again
            vars(record).clear()

    def get_timestamp(self) -> int:
        return time.perf_counter_ns() - OFFSET

    def correlate(self, correlation: int, token: int, kind: int = OURS) -> None:
        self.waiting.append(SimpleNamespace(kind=39, correlation_id=correlation, external_kind=kind, external_id=token))

    def work(self, kind: str, correlation: int, start: int, end: int, **fields: Any) -> None:
        self.waiting.append(
            SimpleNamespace(kind=KINDS[kind], correlation_id=correlation, start=start, end=end, **fields)
        )


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    fake = FakeCupti()
    monkeypatch.setitem(sys.modules, "cupti", SimpleNamespace(cupti=fake))
    monkeypatch.setitem(sys.modules, "cupti.cupti", fake)  # type: ignore[arg-type]
    monkeypatch.delenv(cuda_clock.VARIABLE, raising=False)
    yield fake
    assert not cuda_clock._receivers


def measured(clock: CuptiClock) -> int:
    token = clock.begin(STREAM)
    clock.end(token, STREAM)
    return token


def close_to(spans: list[Span] | None, *expected: tuple[int, int, str]) -> bool:
    found = spans or []
    return [span.name for span in found] == [name for _, _, name in expected] and all(
        abs(span.begun - begun - OFFSET) < 10_000_000 and span.ended - span.begun == ended - begun
        for span, (begun, ended, _) in zip(found, expected, strict=True)
    )


def test_a_kernel_is_found_by_the_number_pushed_before_its_launch(cupti: FakeCupti) -> None:
    clock = CuptiClock(cupti, lambda: None)
    token = clock.begin(STREAM)
    assert cupti.pushed == [token]
    clock.end(token, STREAM)
    assert cupti.pushed == []
    other = measured(clock)
    assert clock.spans(token) is None
    cupti.correlate(71, token)
    cupti.correlate(72, other)
    cupti.work("CONCURRENT_KERNEL", 72, 5000, 9000, name="relu")
    cupti.work("CONCURRENT_KERNEL", 71, 1000, 4000, name="add")
    cupti.waiting.append(SimpleNamespace(kind=KINDS["DRIVER"], correlation_id=71, start=1, end=2))
    clock.collect(final=False)
    assert close_to(clock.spans(token), (1000, 4000, "add"))
    assert close_to(clock.spans(other), (5000, 9000, "relu"))
    assert clock.spans(token) is None
    clock.close()


@pytest.mark.parametrize("kind", ["MEMCPY", "MEMCPY2", "MEMSET"])
def test_copies_and_fills_are_found(cupti: FakeCupti, kind: str) -> None:
    clock = CuptiClock(cupti, lambda: None)
    token = measured(clock)
    cupti.correlate(5, token)
    cupti.work(kind, 5, 100, 200)
    clock.collect(final=True)
    assert close_to(clock.spans(token), (100, 200, ""))
    assert cupti.flushes == [1]
    clock.close()


def test_the_kernels_of_a_graph_have_one_number_and_come_in_order(cupti: FakeCupti) -> None:
    clock = CuptiClock(cupti, lambda: None)
    token = measured(clock)
    cupti.correlate(9, token)
    cupti.work("CONCURRENT_KERNEL", 9, 3000, 4000, name="second")
    cupti.work("CONCURRENT_KERNEL", 9, 1000, 2000, name="first")
    clock.collect(final=True)
    assert close_to(clock.spans(token), (1000, 2000, "first"), (3000, 4000, "second"))
    clock.close()


def test_work_that_comes_before_its_number_is_kept_for_one_flush(cupti: FakeCupti) -> None:
    clock = CuptiClock(cupti, lambda: None)
    token = measured(clock)
    cupti.work("CONCURRENT_KERNEL", 9, 1000, 2000, name="add")
    clock.collect(final=False)
    assert clock.spans(token) is None
    cupti.correlate(9, token)
    clock.collect(final=False)
    assert close_to(clock.spans(token), (1000, 2000, "add"))
    clock.close()


def test_the_work_of_other_libraries_is_forgotten(cupti: FakeCupti) -> None:
    clock = CuptiClock(cupti, lambda: None)
    for number in range(10):
        cupti.work("CONCURRENT_KERNEL", number, 1000, 2000, name="theirs")
        cupti.correlate(number, 1, kind=THEIRS)
        clock.collect(final=False)
    clock.collect(final=False)
    clock.collect(final=False)
    assert not clock._early
    assert not clock._earlier
    assert not clock._tokens
    clock.close()


def test_used_tokens_leave_nothing_behind(cupti: FakeCupti) -> None:
    clock = CuptiClock(cupti, lambda: None)
    for number in range(10):
        token = measured(clock)
        cupti.correlate(number, token)
        cupti.work("CONCURRENT_KERNEL", number, 1000, 2000, name="add")
        clock.collect(final=False)
        if number % 2:
            clock.forget(token)
        else:
            assert clock.spans(token)
    assert not clock._tokens
    assert not clock._correlations
    assert not clock._spans
    clock.close()


def test_a_record_that_was_forced_out_while_it_ran_counts_for_nothing(cupti: FakeCupti) -> None:
    clock = CuptiClock(cupti, lambda: None)
    token = measured(clock)
    cupti.correlate(9, token)
    cupti.work("CONCURRENT_KERNEL", 9, 1000, 0, name="add")
    clock.collect(final=True)
    assert clock.spans(token) is None
    clock.close()


def test_everything_is_disabled_at_the_end_and_callbacks_are_registered_once(cupti: FakeCupti) -> None:
    ended = []
    for number in range(2):
        clock = CuptiClock(cupti, lambda: ended.append(True))
        assert cupti.enabled == set(KINDS.values())
        assert cupti.calls == set(cuda_clock._CALLS.values())
        clock.close()
        assert cupti.enabled == set()
        assert len(ended) == number + 1
    assert cupti.registered == 1


def test_cupti_is_taken_where_it_works(cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = object()
    chosen = new_clock(driver, lambda: None)
    assert isinstance(chosen, CuptiClock)
    chosen.close()
    monkeypatch.setenv(cuda_clock.VARIABLE, "events")
    assert isinstance(new_clock(driver, lambda: None), EventClock)


def test_events_are_taken_where_cupti_does_not_work(cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = object()
    cupti.refuses = "another profiler has it"
    assert isinstance(new_clock(driver, lambda: None), EventClock)
    monkeypatch.setenv(cuda_clock.VARIABLE, "cupti")
    with pytest.raises(DeviceError, match=r"CUPTI does not work here \(RuntimeError: another profiler has it\)"):
        new_clock(driver, lambda: None)


def test_events_are_taken_where_cupti_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = object()
    monkeypatch.delenv(cuda_clock.VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "cupti.cupti", None)
    assert isinstance(new_clock(driver, lambda: None), EventClock)


def test_the_clock_of_events_knows_the_devices_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda_clock.VARIABLE, "events")
    cpu = CpuDriver(threads=1)
    driver = RecordingDriver(cpu)
    clock = new_clock(driver, lambda: None, [0])
    assert driver.count("create_event") > 0
    clock.close()
    cpu.close()


def test_another_clock_than_these_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda_clock.VARIABLE, "sundial")
    with pytest.raises(DeviceError, match="OXIDE_TRACE_CLOCK is 'sundial'; it must be events or cupti"):
        new_clock(object(), lambda: None)  # type: ignore[arg-type]
