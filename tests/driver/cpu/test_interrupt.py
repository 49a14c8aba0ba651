"""Ctrl-C under a seed and in step mode: the wait for a kernel ends, and with it the device."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from numba import cuda

from oxide import Array, DeviceLostError, LaunchConfig, d2h, h2d, i32, kernel
from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu.steps import run_interruptibly
from oxide.driver.cpu.streams import BlockRange
from oxide.testing import failing_seed, seeded_driver, step_driver, use_driver

Interrupted = tuple[Callable[[int, int], None], list[tuple[int, int]]]


@pytest.fixture
def endless() -> Iterator[Interrupted]:
    """In a kernel's place: presses Ctrl-C at its first block and then does not return. And the ranges it was given."""
    released, ranges = threading.Event(), []

    def run(first: int, end: int) -> None:
        ranges.append((first, end))
        press_until(released)

    yield run, ranges
    released.set()
    join_kernels()


def join_kernels() -> None:
    """What runs in the next test runs alone."""
    for thread in threading.enumerate():
        if thread.name == "oxide kernel":
            thread.join()


def press_until(over: threading.Event) -> None:
    """A signal that comes just when the main thread begins to wait for a lock is looked at after the wait, or when
    there is another one: so Python does, and so people press again."""
    press_control_c()
    while not over.wait(5):
        press_control_c()


def press_control_c() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


@pytest.mark.parametrize(
    "make", [step_driver, partial(step_driver, seed=1), partial(seeded_driver, 1)], ids=["step", "both", "seed"]
)
def test_control_c_ends_the_wait_for_a_kernel_and_the_device(
    make: Callable[[], CpuDriver], endless: Interrupted
) -> None:
    driver, (run, ranges) = make(), endless
    stream, other, event = driver.create_stream(0), driver.create_stream(0), driver.create_event(0, timing=False)
    host = driver.allocate_host(64)
    driver._scheduler.submit(stream, BlockRange("launch endless", run, 100))
    driver.record_event(event, stream)
    with pytest.raises(KeyboardInterrupt):
        driver.synchronize_stream(stream)
    assert len(ranges) == 1  # of up to a hundred: no other is begun
    for ask in (driver.synchronize_event, driver.query_event):
        with pytest.raises(DeviceLostError, match="a kernel on cpu:0 was ended by KeyboardInterrupt"):
            ask(event)
    with pytest.raises(DeviceLostError):
        driver.synchronize_stream(other)
    given_back: list[int] = []
    driver._host._give_back = given_back.append  # type: ignore[assignment]
    driver.free_host(host)
    driver.close()
    assert driver._host.in_use_for_ever
    assert not given_back  # the kernel may write there yet


def test_control_c_as_the_kernel_ends_costs_no_device() -> None:
    def once_it_has_ended(number: int, frame: object) -> None:
        join_kernels()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, once_it_has_ended)
    try:
        driver, ran = step_driver(), []
        stream = driver.create_stream(0)
        driver._scheduler.submit(stream, BlockRange("launch brief", lambda first, end: press_control_c(), 1))
        with pytest.raises(KeyboardInterrupt):
            driver.synchronize_stream(stream)
    finally:
        signal.signal(signal.SIGINT, before)
    driver.launch_host_function(lambda: ran.append(True), stream)
    driver.synchronize_stream(stream)
    assert ran == [True]
    driver.close()


def test_what_a_call_raises_reaches_whoever_waits_and_ends_the_calls() -> None:
    made: list[int] = []

    def fails() -> None:
        raise ValueError("broken inside")

    with pytest.raises(ValueError, match="broken inside"):
        run_interruptibly([lambda: made.append(1), fails, lambda: made.append(2)])
    assert made == [1]


def test_without_more_threads_the_waiting_one_makes_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    made: list[int] = []
    run_interruptibly([lambda: made.append(threading.get_ident())])
    assert made == [threading.get_ident()]


@kernel
def wait_for_flag(o: Array[i32, 1]) -> None:
    cuda.atomic.exch(o, 1, 1)
    while cuda.atomic.add(o, 0, 0) == 0:
        pass


@pytest.mark.parametrize("run", [failing_seed, lambda program: on(step_driver(), program)], ids=["seeds", "step"])
def test_control_c_ends_a_program_with_an_endless_kernel(run: Callable[[Callable[[], None]], object]) -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def program() -> None:
        box = h2d(np.zeros(2, np.int32)).sync()
        seen.append(box.host_view())
        over = threading.Event()
        pressing = threading.Thread(target=press_once_it_runs, args=(seen[0], over))
        pressing.start()
        try:
            wait_for_flag[LaunchConfig(1, 1)](box).last().and_then(d2h).sync()
        finally:
            over.set()
            pressing.join()

    with pytest.raises(KeyboardInterrupt):
        run(program)
    seen[0][0] = 1  # the kernel runs on, on memory that is there for as long as it is looked at
    join_kernels()


def press_once_it_runs(memory: np.ndarray[Any, Any], over: threading.Event) -> None:
    while not memory[1]:
        os.sched_yield()
    press_until(over)


def on(driver: CpuDriver, program: Callable[[], None]) -> None:
    with use_driver(driver):
        program()
    driver.close()
