"""A thread that waits for the CPU device runs the small kernels itself that no worker has begun with."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from numba import cuda

import oxide
from oxide import Array, DisjointSlice, LaunchConfig, f32, h2d, i32, kernel, thread
from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu import streams as cpu_streams
from oxide.driver.cpu import workers as cpu_workers
from oxide.driver.cpu.streams import BlockRange, CpuStream, LoopFree, Point, Record, Task, ThreadPace, Wait
from oxide.driver.cpu.workers import WorkerScheduler
from oxide.driver.sanitizing import Tracking
from oxide.testing import use_driver
from tests.interrupting import interrupts, needs_calls

Ranges = list[tuple[int, int]]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No worker looks into the backlog until this is set. A test in which a thread waits for one fails."""
    arrived = threading.Event()
    waited_for: list[bool] = []
    deadline = threading.Timer(20, lambda: (waited_for.append(True), arrived.set()))
    deadline.start()
    serve = WorkerScheduler.serve

    def serve_later(scheduler: WorkerScheduler, worker: Any) -> None:
        arrived.wait()
        serve(scheduler, worker)

    monkeypatch.setattr(WorkerScheduler, "serve", serve_later)
    yield arrived
    deadline.cancel()
    arrived.set()
    assert not waited_for, "the thread that waits left to a worker what it was to run itself"


@contextmanager
def scheduler_of(threads: int = 1) -> Iterator[WorkerScheduler]:
    scheduler = WorkerScheduler(threads)
    try:
        yield scheduler
    finally:
        scheduler.close()


def launch(run: Callable[[int, int], object], total: int = 1, *, pace: ThreadPace | None = None) -> BlockRange:
    """A launch of a kernel without loops."""
    return BlockRange("launch small", run, total, LoopFree(run, pace or ThreadPace(), 1))


def names_into(names: list[str]) -> Callable[[int, int], object]:
    return lambda first, end: names.append(threading.current_thread().name)


def test_the_thread_that_waits_runs_a_kernel_that_no_worker_has_begun_with(held: threading.Event) -> None:
    names: list[str] = []
    with scheduler_of() as scheduler:
        stream = CpuStream(0)
        scheduler.submit(stream, launch(names_into(names)))
        scheduler.submit(stream, Task("brief", lambda: names.append("brief"), brief=True))
        scheduler.submit(stream, launch(names_into(names)))
        scheduler.synchronize(stream)
        assert names == ["MainThread", "brief", "MainThread"]
        assert not stream.items
        assert not stream.running
        held.set()


def test_it_runs_nothing_behind_what_it_waits_for(held: threading.Event) -> None:
    names: list[str] = []
    with scheduler_of() as scheduler:
        stream = CpuStream(0)
        point = Point(stream)
        scheduler.submit(stream, launch(names_into(names)))
        scheduler.submit(stream, Record(point))
        scheduler.submit(stream, launch(names_into(names)))
        scheduler.wait(point)
        assert names == ["MainThread"]
        held.set()
        scheduler.synchronize(stream)
        assert len(names) == 2


def test_the_main_thread_leaves_to_a_worker_what_may_run_for_long() -> None:
    names: list[str] = []
    items = [
        BlockRange("launch with loops", names_into(names), 1),
        Task("host function", lambda: names.append(threading.current_thread().name)),
        Task("sanitized launch", lambda: names.append(threading.current_thread().name), kernel=True),
    ]
    with scheduler_of() as scheduler:
        stream = CpuStream(0)
        for item in items:
            scheduler.submit(stream, item)
            scheduler.submit(stream, launch(lambda first, end: None))
            scheduler.synchronize(stream)
        assert names == ["oxide-cpu-1"] * 3


def test_another_thread_runs_any_kernel_and_no_host_function(held: threading.Event) -> None:
    names: list[str] = []
    with scheduler_of() as scheduler:
        stream = CpuStream(0)
        scheduler.submit(stream, BlockRange("launch with loops", names_into(names), 1))
        scheduler.submit(stream, Task("host function", lambda: names.append(threading.current_thread().name)))
        waiting = threading.Thread(target=scheduler.synchronize, args=(stream,), name="waiting")
        waiting.start()
        while not names:
            os.sched_yield()
        held.set()
        waiting.join()
        assert names == ["waiting", "oxide-cpu-1"]


def test_a_kernel_that_turns_out_to_be_long_goes_to_the_workers_after_its_first_block(
    monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    clock = count(0, 100_000).__next__  # 0.1 ms from one look to the next
    monkeypatch.setattr(cpu_workers, "perf_counter_ns", clock)
    ran: list[tuple[str, int, int]] = []
    told = threading.Event()

    def run(first: int, end: int) -> None:
        ran.append((threading.current_thread().name, first, end))
        told.set()

    with scheduler_of(threads=2) as scheduler:
        stream = CpuStream(0)
        scheduler.submit(stream, launch(run, 40))
        releasing = threading.Thread(target=lambda: (told.wait(), held.set()))
        releasing.start()
        scheduler.synchronize(stream)
        releasing.join()
    assert ran[0] == ("MainThread", 0, 1)
    assert all(name.startswith("oxide-cpu-") for name, _, _ in ran[1:])
    assert sorted(block for _, first, end in ran for block in range(first, end)) == list(range(40))


def test_a_kernel_that_was_long_before_goes_to_the_workers_at_once() -> None:
    names: list[str] = []
    pace = ThreadPace()
    pace.learn(1e6, exact=True)
    with scheduler_of() as scheduler:
        stream = CpuStream(0)
        scheduler.submit(stream, launch(names_into(names), 2, pace=pace))
        scheduler.synchronize(stream)
        assert {*names} == {"oxide-cpu-1"}
    assert pace.nanoseconds < 1e6  # it was short this time


def test_a_pace_is_taken_for_longer_only_where_nothing_else_is_in_it() -> None:
    pace = ThreadPace()
    learned = []
    for nanoseconds, exact in ((5.0, False), (7.0, False), (3.0, False), (9.0, True), (10.0, False)):
        pace.learn(nanoseconds, exact=exact)
        learned.append(pace.nanoseconds)
    assert learned == [5, 5, 3, 9, 9]


def test_a_kernel_is_run_with_the_gil_held_only_where_its_last_launch_was_short(
    monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    times = [0]
    monkeypatch.setattr(cpu_workers, "perf_counter_ns", lambda: times.pop(0))
    calls: list[str] = []
    pace = ThreadPace()
    with scheduler_of() as scheduler:
        stream = CpuStream(0)
        for took in (1_000, 1_000, 30_000, 30_000, 1_000, 1_000):
            times[:] = 0, took
            small = LoopFree(lambda first, end: calls.append("held"), pace, 1)
            scheduler.submit(stream, BlockRange("launch", lambda first, end: calls.append("released"), 1, small))
            scheduler.synchronize(stream)
        held.set()
    assert calls == ["released", "held", "held", "released", "released", "held"]


def test_a_hundred_launches_and_waits_call_one_worker(held: threading.Event) -> None:
    ran: Ranges = []
    with scheduler_of() as scheduler:
        stream = CpuStream(0)
        for _ in range(100):
            scheduler.submit(stream, launch(lambda first, end: ran.append((first, end))))
            scheduler.synchronize(stream)
        assert ran == [(0, 1)] * 100
        assert scheduler._started == 1
        held.set()


def test_streams_that_wait_for_workers_get_one_each_while_another_is_on_its_way(held: threading.Event) -> None:
    """The worker that was called for what the main thread ran itself counts for one stream, and for one only."""
    both = threading.Barrier(3)
    with scheduler_of() as scheduler:
        own, *streams = (CpuStream(0) for _ in range(3))
        scheduler.submit(own, launch(lambda first, end: None))
        scheduler.synchronize(own)
        for stream in streams:
            scheduler.submit(stream, Task("meets the other", both.wait))
        held.set()
        both.wait(10)
        for stream in streams:
            scheduler.synchronize(stream)
        assert scheduler._started == 2


def test_a_stream_that_is_held_back_goes_on_behind_the_other_stream(held: threading.Event) -> None:
    ran: list[str] = []
    with scheduler_of() as scheduler:
        first, second = CpuStream(0), CpuStream(0)
        point = Point(first)
        scheduler.submit(first, Task("host function", lambda: ran.append("first")))
        scheduler.submit(first, Record(point))
        scheduler.submit(second, Wait(point))
        scheduler.submit(second, launch(lambda begin, end: ran.append("second")))
        held.set()
        scheduler.synchronize(second)
        assert ran == ["first", "second"]


def test_what_a_kernel_fails_with_on_another_thread_fails_the_device(held: threading.Event) -> None:
    def fails(first: int, end: int) -> None:
        raise ValueError("broken inside")

    with scheduler_of() as scheduler:
        stream = CpuStream(0)
        scheduler.submit(stream, BlockRange("launch", fails, 1))
        waiting = threading.Thread(target=scheduler.synchronize, args=(stream,))
        waiting.start()
        waiting.join()
        assert isinstance(scheduler.failures[0], ValueError)
        held.set()


# Ctrl-C


def is_scheduling(code: Any) -> bool:
    return code.co_filename in (cpu_workers.__file__, cpu_streams.__file__)


def note_blocks(ran: list[object], first: int, end: int) -> None:
    ran.extend(range(first, end))


@needs_calls
def test_an_interrupted_wait_leaves_the_stream_with_all_its_work() -> None:
    for interrupt in interrupts(is_scheduling, more_than=20):
        scheduler, stream = WorkerScheduler(1), CpuStream(0)
        ran: list[object] = []
        submitted = []
        run = partial(note_blocks, ran)
        with interrupt:
            for number in range(2):
                scheduler.submit(stream, launch(run, 3))
                submitted.append(number)
                scheduler.submit(stream, Task("brief", partial(ran.append, "brief"), brief=True))
                scheduler.synchronize(stream)
        scheduler.submit(stream, Task("last", partial(ran.append, "last")))
        scheduler.synchronize(stream)
        blocks = [block for block in ran if isinstance(block, int)]
        assert blocks in ([0, 1, 2] * len(submitted), [0, 1, 2] * (len(submitted) + 1)), interrupt.at
        assert ran[-1] == "last", interrupt.at
        assert not stream.running, interrupt.at
        assert not scheduler._busy, interrupt.at
        assert not scheduler.failures, interrupt.at
        scheduler.close()


def test_control_c_inside_of_a_kernel_is_raised_behind_it_and_its_blocks_run_once(held: threading.Event) -> None:
    """The signal comes while the kernel runs, here as C's ``raise`` is its first block."""
    raise_signal = partial(
        ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)(("raise", ctypes.CDLL(None))),
        signal.SIGINT,
    )
    more: Ranges = []
    with scheduler_of() as scheduler:
        stream = CpuStream(0)
        interrupted = launch(raise_signal, 2)
        scheduler.submit(stream, interrupted)
        with pytest.raises(KeyboardInterrupt):
            scheduler.synchronize(stream)
        assert interrupted.next == 1
        interrupted.run = lambda first, end: more.append((first, end))
        held.set()
        scheduler.synchronize(stream)
        assert more == [(1, 2)]


@kernel
def wait_for_flag(o: Array[i32, 1]) -> None:
    cuda.atomic.exch(o, 1, 1)
    while cuda.atomic.add(o, 0, 0) == 0:
        pass


def test_control_c_ends_the_main_threads_wait_for_an_endless_kernel_that_was_short_before() -> None:
    flags = np.ones(2, np.int32)
    with use_driver(CpuDriver()):
        box = oxide.from_dlpack(flags)
        for _ in range(3):
            wait_for_flag[1, 1](box).sync()
        flags[:] = 0
        main = threading.main_thread().ident
        assert main is not None

        def press() -> None:
            while not flags[1]:
                os.sched_yield()
            while not ended.wait(0.05):
                signal.pthread_kill(main, signal.SIGINT)

        ended = threading.Event()
        pressing = threading.Thread(target=press)
        pressing.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                try:
                    wait_for_flag[1, 1](box).sync()
                finally:
                    ended.set()
        finally:
            pressing.join()
            flags[0] = 1


# Whole launches


@kernel
def ones(out: DisjointSlice[f32]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = f32(1)


@pytest.mark.parametrize("run", ["sync", "synchronize", "sync_on"])
def test_a_launch_and_its_wait_take_no_other_thread(
    run: str, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracking, "wanted", False)  # a test of the sanitizer's may have left it on
    driver = CpuDriver()
    with use_driver(driver):
        stream = oxide.devices()[0].new_stream()
        box = h2d(np.zeros(32, np.float32)).sync_on(stream)
        operation = ones[LaunchConfig(1, 32)](box)
        if run == "sync":
            operation.sync()
        elif run == "sync_on":
            operation.sync_on(stream)
        else:
            operation.async_on(stream)
            stream.synchronize()
        np.testing.assert_array_equal(box.host_view(), 1)
        held.set()
    driver.close()
