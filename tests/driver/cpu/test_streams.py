"""Streams and events of the CPU device: what comes after what, and who sees it."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide.driver.base import Driver
from oxide.driver.cpu import CpuDriver
from oxide.errors import DeviceError, DriverError
from tests.choosing import examples
from tests.driver.conftest import Gate

STREAMS, EVENTS = 3, 3

streams = st.integers(0, STREAMS - 1)
events = st.integers(0, EVENTS - 1)
programs = st.lists(
    st.one_of(
        st.tuples(st.just("host"), streams, st.just(0)),
        st.tuples(st.just("record"), streams, events),
        st.tuples(st.just("wait"), streams, events),
        st.tuples(st.just("memory"), streams, st.just(0)),
        st.tuples(st.just("step"), st.integers(0, 3), st.just(0)),
    ),
    max_size=30,
)


class Model:
    """Submits a program and knows, of each host function, which others must have run before it."""

    def __init__(self, driver: CpuDriver) -> None:
        self.driver = driver
        self.streams = [driver.create_stream(index % driver.device_count()) for index in range(STREAMS)]
        self.events = [[driver.create_event(d, timing=False) for _ in range(EVENTS)] for d in range(2)]
        self.ran: list[int] = []
        self.before: list[set[int]] = []
        self.clocks: list[set[int]] = [set() for _ in range(STREAMS)]
        self.points: dict[tuple[int, int], set[int]] = {}

    def submit(self, operation: str, s: int, e: int) -> None:
        stream, device = self.streams[s], s % 2
        if operation == "host":
            number = len(self.before)
            self.before.append(set(self.clocks[s]))
            self.clocks[s].add(number)
            self.driver.launch_host_function(partial(self.ran.append, number), stream)
        elif operation == "record":
            self.points[device, e] = set(self.clocks[s])
            self.driver.record_event(self.events[device][e], stream)
        elif operation == "wait":
            # Of the device after the stream's, so that most waits are for another device.
            self.clocks[s] |= self.points.get((1 - device, e), set())
            self.driver.wait_event(stream, self.events[1 - device][e])
        elif operation == "memory":
            self.driver.free(self.driver.allocate(64, stream), stream)

    def check_events(self) -> None:
        for (device, e), point in self.points.items():
            if self.driver.query_event(self.events[device][e]):
                assert point <= set(self.ran)

    def check_order(self) -> None:
        assert sorted(self.ran) == list(range(len(self.before)))
        for number, before in enumerate(self.before):
            assert before <= set(self.ran[: self.ran.index(number)])


@settings(max_examples=examples(300), deadline=None)
@given(programs, st.none() | st.integers(0, 2**32))
def test_every_schedule_keeps_stream_order_and_event_waits(program: list[tuple[str, int, int]], seed: int) -> None:
    driver = CpuDriver(2, step=True, seed=seed)
    model = Model(driver)
    for operation, s, e in program:
        if operation == "step":
            for _ in range(s):
                driver.step()
        else:
            model.submit(operation, s, e)
        model.check_events()
    driver.run_until_idle()
    model.check_order()
    assert all(driver.query_stream(stream) for stream in model.streams)
    assert driver.live_allocations.device_count == 0
    driver.close()


@settings(max_examples=examples(150), deadline=None)
@given(programs)
def test_threads_keep_stream_order_and_event_waits(program: list[tuple[str, int, int]]) -> None:
    driver = CpuDriver(2)
    model = Model(driver)
    for operation, s, e in program:
        if operation != "step":
            model.submit(operation, s, e)
        model.check_events()
    for stream in model.streams:
        driver.synchronize_stream(stream)
        assert driver.query_stream(stream)
    model.check_order()
    driver.close()


def test_a_stream_waits_for_the_point_the_event_had_when_the_wait_was_submitted(steps: CpuDriver) -> None:
    first, second, waiting = (steps.create_stream(0) for _ in range(3))
    event = steps.create_event(0, timing=False)
    ran: list[str] = []
    steps.launch_host_function(partial(ran.append, "first"), first)
    steps.record_event(event, first)
    steps.wait_event(waiting, event)
    steps.launch_host_function(partial(ran.append, "waiting"), waiting)
    steps.launch_host_function(partial(ran.append, "second"), second)
    steps.record_event(event, second)

    assert waiting not in steps.pending()
    while steps.step(first):
        pass
    while steps.step(waiting):
        pass

    assert ran == ["first", "waiting"]
    assert not steps.query_event(event)


def test_an_event_never_recorded_is_passed_and_holds_nobody_back(driver: CpuDriver) -> None:
    stream, event = driver.create_stream(0), driver.create_event(1, timing=False)
    assert driver.query_event(event)
    driver.synchronize_event(event)
    driver.wait_event(stream, event)
    assert driver.query_stream(stream)


def test_destroying_a_stream_and_an_event_lets_their_work_run(steps: CpuDriver) -> None:
    stream, other = steps.create_stream(0), steps.create_stream(1)
    event = steps.create_event(0, timing=False)
    ran: list[str] = []
    steps.launch_host_function(partial(ran.append, "before"), stream)
    steps.record_event(event, stream)
    steps.wait_event(other, event)
    steps.launch_host_function(partial(ran.append, "after"), other)
    steps.destroy_stream(stream)
    steps.destroy_event(event)
    steps.run_until_idle()
    assert ran == ["before", "after"]


def test_elapsed_time_is_that_between_the_two_passings(driver: CpuDriver) -> None:
    stream = driver.create_stream(0)
    start, end = (driver.create_event(0, timing=True) for _ in range(2))
    gate = Gate()
    driver.launch_host_function(gate, stream)
    driver.record_event(start, stream)
    with pytest.raises(DriverError, match="NOT_READY"):
        driver.elapsed_ms(start, start)
    gate.release.set()
    driver.launch_host_function(lambda: None, stream)
    driver.record_event(end, stream)
    driver.synchronize_event(end)
    assert driver.elapsed_ms(start, end) > 0
    assert driver.elapsed_ms(end, start) == -driver.elapsed_ms(start, end)


def test_elapsed_time_needs_timing_events_that_were_recorded(driver: CpuDriver) -> None:
    stream = driver.create_stream(0)
    timed, untimed = driver.create_event(0, timing=True), driver.create_event(0, timing=False)
    with pytest.raises(DriverError, match="never recorded"):
        driver.elapsed_ms(timed, timed)
    driver.record_event(untimed, stream)
    with pytest.raises(DriverError, match="timing=True"):
        driver.elapsed_ms(untimed, untimed)


def test_a_destroyed_or_foreign_handle_is_refused(driver: CpuDriver) -> None:
    stream, event = driver.create_stream(0), driver.create_event(0, timing=False)
    driver.destroy_stream(stream)
    driver.destroy_event(event)
    refused: list[Callable[[], object]] = [
        lambda: driver.query_stream(stream),
        lambda: driver.synchronize_stream(stream),
        lambda: driver.destroy_stream(stream),
        lambda: driver.launch_host_function(print, stream),
        lambda: driver.allocate(16, stream),
        lambda: driver.query_event(event),
        lambda: driver.synchronize_event(event),
        lambda: driver.destroy_event(event),
        lambda: driver.record_event(event, driver.create_stream(0)),
        lambda: driver.wait_event(driver.create_stream(0), event),
        lambda: driver.query_stream(7),  # type: ignore[arg-type]
    ]
    for call in refused:
        with pytest.raises(DriverError) as caught:
            call()
        assert (caught.value.code, caught.value.name) == (400, "CUDA_ERROR_INVALID_HANDLE")


def test_an_event_is_recorded_on_its_own_device_only(driver: CpuDriver) -> None:
    event = driver.create_event(0, timing=False)
    with pytest.raises(DriverError, match="another device"):
        driver.record_event(event, driver.create_stream(1))


def test_what_a_host_function_raises_is_reported_and_the_stream_goes_on(
    driver: CpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append(args.exc_value))
    stream, ran = driver.create_stream(0), []

    def fails() -> None:
        raise LookupError("nothing there")

    driver.launch_host_function(fails, stream)
    driver.launch_host_function(lambda: ran.append(True), stream)
    driver.synchronize_stream(stream)
    assert ran == [True]
    assert [type(error) for error in reported] == [LookupError]
    reported.clear()


def test_a_host_function_that_has_run_keeps_nothing_alive(driver: CpuDriver) -> None:
    class Payload:
        pass

    stream, payload, gone = driver.create_stream(0), Payload(), threading.Event()
    weakref.finalize(payload, gone.set)
    driver.launch_host_function(lambda kept=payload: None, stream)  # type: ignore[misc]
    del payload
    driver.synchronize_stream(stream)
    gc.collect()
    assert gone.wait(10)


def test_a_host_function_that_waits_for_its_own_stream_is_refused(
    driver: CpuDriver, steps: CpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append(args.exc_value.name))
    for device in (driver, steps):
        stream = device.create_stream(0)
        device.launch_host_function(partial(device.synchronize_stream, stream), stream)
        device.synchronize_stream(stream)
    assert reported == ["CUDA_ERROR_NOT_PERMITTED", "CUDA_ERROR_ILLEGAL_STATE"]


def test_synchronizing_can_be_interrupted(driver: CpuDriver) -> None:
    stream, gate = driver.create_stream(0), Gate()
    driver.launch_host_function(gate, stream)

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def synchronize_until_interrupted() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        driver.synchronize_stream(stream)

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            synchronize_until_interrupted()
    finally:
        signal.signal(signal.SIGALRM, previous)
    gate.release.set()
    driver.synchronize_stream(stream)


def test_devices_are_counted_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OXIDE_CPU_DEVICES", raising=False)
    assert CpuDriver().device_count() == 1
    monkeypatch.setenv("OXIDE_CPU_DEVICES", "3")
    assert CpuDriver().device_count() == 3
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("OXIDE_CPU_DEVICES", wrong)
        with pytest.raises(DeviceError, match="OXIDE_CPU_DEVICES"):
            CpuDriver()


def test_threads_are_counted_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_CPU_THREADS", "3")
    assert CpuDriver()._threads == 3
    assert CpuDriver(threads=2)._threads == 2
    monkeypatch.setenv("OXIDE_CPU_THREADS", "0")
    with pytest.raises(DeviceError, match="OXIDE_CPU_THREADS='0': a whole number of 1 or more is needed"):
        CpuDriver()


def test_an_unknown_device_is_refused(driver: CpuDriver) -> None:
    for call in (driver.create_stream, driver.device_info, partial(driver.create_event, timing=False)):
        for device in (-1, 2):
            with pytest.raises(DriverError, match=f"device {device} .* there are 2") as caught:
                call(device)
            assert caught.value.code == 101


def test_a_closed_driver_takes_no_work_and_lets_things_be_given_back() -> None:
    driver = CpuDriver()
    stream, event = driver.create_stream(0), driver.create_event(0, timing=False)
    address, host = driver.allocate(64, stream), driver.allocate_host(64)
    ran: list[int] = []
    for number in range(20):
        driver.launch_host_function(partial(ran.append, number), stream)
    driver.close()
    driver.close()
    assert ran == list(range(20))
    driver.free(address, stream)
    driver.free_host(host)
    assert driver.live_allocations.device_bytes == driver.live_allocations.host_bytes == 0
    driver.destroy_event(event)
    with pytest.raises(DriverError, match="DEINITIALIZED"):
        driver.launch_host_function(print, stream)
    with pytest.raises(DriverError, match="DEINITIALIZED"):
        driver.allocate(64, stream)
    driver.destroy_stream(stream)


def test_the_interpreter_ends_with_work_queued_and_a_host_function_that_never_returns() -> None:
    program = """
import threading
from oxide.driver.cpu import CpuDriver
driver = CpuDriver()
stream, started = driver.create_stream(0), threading.Event()
driver.launch_host_function(lambda: (started.set(), threading.Event().wait()), stream)
for _ in range(100):
    driver.launch_host_function(print, stream)
started.wait()
print("end")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "end\n"
    assert ended.stderr == ""


def test_a_driver_that_has_run_no_kernel_has_loaded_no_llvmlite() -> None:
    program = """
import sys
from oxide.driver.cpu import CpuDriver
driver = CpuDriver()
driver.synchronize_stream(driver.create_stream(0))
loaded = {"llvmlite", "numba", "trio", "cuda"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_the_cpu_driver_is_a_driver_to_a_type_checker(driver: CpuDriver) -> None:
    as_protocol: Driver = driver
    assert as_protocol.name == "cpu"
