"""The threads of the CPU device: who may hold up whom, and what happens when things go wrong."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import deque
from functools import partial
from itertools import pairwise

import pytest

from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu import workers as cpu_workers
from oxide.driver.cpu.streams import BlockRange, CpuStream, Item, Point, Record, Task, Wait
from oxide.driver.cpu.workers import WorkerScheduler
from oxide.errors import DriverError
from tests.driver.conftest import Gate


def test_blocked_host_functions_hold_up_no_other_stream(driver: CpuDriver) -> None:
    gate, ran = Gate(), threading.Event()
    blocked = [driver.create_stream(0) for _ in range(10)]
    for stream in blocked:
        driver.launch_host_function(gate, stream)
    free = driver.create_stream(0)
    driver.launch_host_function(ran.set, free)
    driver.synchronize_stream(free)
    assert ran.is_set()
    assert not any(driver.query_stream(stream) for stream in blocked)
    gate.release.set()
    for stream in blocked:
        driver.synchronize_stream(stream)


def test_streams_that_wait_for_an_event_cost_no_thread(driver: CpuDriver) -> None:
    gate = Gate()
    source, event = driver.create_stream(0), driver.create_event(0, timing=False)
    driver.launch_host_function(gate, source)
    driver.record_event(event, source)
    assert gate.started.wait(10)
    before = threading.active_count()
    waiting = [driver.create_stream(0) for _ in range(50)]
    ran: list[int] = []
    for number, stream in enumerate(waiting):
        driver.wait_event(stream, event)
        driver.launch_host_function(partial(ran.append, number), stream)
    assert threading.active_count() == before
    gate.release.set()
    for stream in waiting:
        driver.synchronize_stream(stream)
    assert sorted(ran) == list(range(50))


def test_any_thread_may_submit_to_any_stream(driver: CpuDriver) -> None:
    streams = [driver.create_stream(0) for _ in range(3)]
    events = [driver.create_event(0, timing=False) for _ in range(3)]
    ran: list[list[tuple[int, int]]] = [[] for _ in streams]

    def submit(submitter: int) -> None:
        for turn in range(300):
            at = (submitter + turn) % 3
            driver.launch_host_function(partial(ran[at].append, (submitter, turn)), streams[at])
            driver.record_event(events[at], streams[at])
            driver.wait_event(streams[turn % 3], events[(turn + submitter) % 3])
            driver.free(driver.allocate(64, streams[at]), streams[at])
            if turn % 50 == 0:
                driver.synchronize_stream(streams[at])

    submitters = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in submitters:
        thread.start()
    for thread in submitters:
        thread.join()
    for stream in streams:
        driver.synchronize_stream(stream)
    assert sum(map(len, ran)) == 1200
    for log in ran:
        for submitter in range(4):
            turns = [turn for who, turn in log if who == submitter]
            assert turns == sorted(turns)
    assert driver.live_allocations.device_count == 0


def test_work_one_after_another_reuses_one_thread(driver: CpuDriver) -> None:
    threads: set[str] = set()
    stream = driver.create_stream(0)
    for _ in range(100):
        driver.launch_host_function(lambda: threads.add(threading.current_thread().name), stream)
    driver.synchronize_stream(stream)
    assert threads == {"oxide-cpu-1"}


def test_closing_ends_the_threads() -> None:
    before = set(threading.enumerate())
    driver, gate = CpuDriver(), Gate()
    streams = [driver.create_stream(0) for _ in range(5)]
    for stream in streams:
        driver.launch_host_function(gate, stream)
    started = set(threading.enumerate()) - before
    assert len(started) == 5
    assert all(thread.daemon for thread in started)
    gate.release.set()
    driver.close()
    assert set(threading.enumerate()) == before


def test_a_driver_dropped_without_close_runs_its_work_and_ends_its_threads() -> None:
    before = set(threading.enumerate())
    driver, gate, ran = CpuDriver(), Gate(), threading.Event()
    stream, other = driver.create_stream(0), driver.create_stream(0)
    driver.launch_host_function(gate, stream)
    driver.launch_host_function(ran.set, stream)
    driver.launch_host_function(print, other)
    driver.synchronize_stream(other)
    started = set(threading.enumerate()) - before
    assert len(started) == 2
    del driver
    gc.collect()
    gate.release.set()
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()
    assert ran.is_set()


def test_a_host_function_that_closes_its_driver_is_refused(driver: CpuDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append(args.exc_value.name))
    stream = driver.create_stream(0)
    driver.launch_host_function(driver.close, stream)
    driver.synchronize_stream(stream)
    assert reported == ["CUDA_ERROR_NOT_PERMITTED"]
    driver.launch_host_function(print, stream)


def test_a_chain_of_events_over_many_streams_needs_no_deep_recursion() -> None:
    scheduler, release = WorkerScheduler(threads=1), threading.Event()
    streams = [CpuStream(0) for _ in range(3000)]
    scheduler.submit(streams[0], Task("wait", release.wait))
    for before, after in pairwise(streams):
        point = Point()
        scheduler.submit(before, Record(point))
        scheduler.submit(after, Wait(point))
    release.set()
    scheduler.synchronize(streams[-1])
    assert not scheduler.failures
    scheduler.close()


def test_work_submitted_by_a_finalizer_inside_the_scheduler_is_not_lost() -> None:
    # The garbage collector may run a finalizer at any allocation, so also while this thread holds the
    # scheduler's lock. A point's waiters are called just there.
    scheduler, stream, other, ran = WorkerScheduler(threads=1), CpuStream(0), CpuStream(0), threading.Event()
    point = Point()
    point.waiters.append(lambda: scheduler.submit(other, Task("free", ran.set, brief=True)))
    point.waiters.append(lambda: scheduler.submit(stream, Task("free", lambda: None, brief=True)))
    scheduler.submit(stream, Record(point))
    scheduler.synchronize(stream)
    scheduler.synchronize(other)
    assert ran.is_set()
    scheduler.close()


def test_work_submitted_by_a_finalizer_as_its_stream_turns_idle_is_not_lost() -> None:
    scheduler, stream, ran = WorkerScheduler(threads=1), CpuStream(0), threading.Event()
    collections = iter([Task("free", ran.set)])

    class Items(deque[Item]):
        """A finalizer runs at the moment when the scheduler has just found the stream empty."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            for task in () if found else collections:
                scheduler.submit(stream, task)
            return found

    stream.items = Items()
    scheduler.submit(stream, Record(Point()))
    assert ran.wait(10)
    scheduler.close()


def test_work_that_fails_in_a_worker_fails_its_device_and_no_other() -> None:
    driver = CpuDriver(2)
    stream, other, event = driver.create_stream(0), driver.create_stream(1), driver.create_event(0, timing=False)
    ran = threading.Event()

    def fails() -> None:
        raise ValueError("broken inside")

    driver._scheduler.submit(stream, Task("fails", fails))
    driver.record_event(event, stream)
    driver.launch_host_function(ran.set, stream)
    for observe in (
        partial(driver.synchronize_stream, stream),
        partial(driver.query_stream, stream),
        partial(driver.synchronize_event, event),
        partial(driver.query_event, event),
    ):
        with pytest.raises(DriverError, match=r"LAUNCH_FAILED.*ValueError: broken inside") as caught:
            observe()
        assert caught.value.code == 719
        assert isinstance(caught.value.__cause__, ValueError)
    assert ran.is_set()
    driver.synchronize_stream(other)
    driver.close()


def test_without_a_thread_to_be_had_the_thread_that_waits_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = CpuDriver()
    stream = driver.create_stream(0)
    ran: list[threading.Thread] = []

    class NoThread(cpu_workers._Worker):  # type: ignore[misc]
        def __init__(self, *arguments: object) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(cpu_workers, "_Worker", NoThread)
        for _ in range(2):
            driver.launch_host_function(lambda: ran.append(threading.current_thread()), stream)
        assert not driver.query_stream(stream)
        driver.synchronize_stream(stream)
        driver.launch_host_function(lambda: ran.append(threading.current_thread()), stream)
        driver.close()
    assert ran == [threading.current_thread()] * 3


class Wanted:
    """A run that can be dropped."""

    dropped = False


def test_work_that_was_dropped_is_not_begun_and_its_stream_goes_on() -> None:
    scheduler, stream, run = WorkerScheduler(2), CpuStream(0), Wanted()
    gate, ran = Gate(), list[str]()
    point = Point()
    dropped = Task("dropped", lambda: ran.append("dropped"))
    blocks = BlockRange("dropped blocks", lambda first, end: ran.append("blocks"), 100)
    dropped.droppable = blocks.droppable = run
    for item in (Task("gate", gate), dropped, blocks, Record(point), Task("next", lambda: ran.append("next"))):
        scheduler.submit(stream, item)
    assert gate.started.wait(10)
    run.dropped = True
    gate.release.set()
    scheduler.synchronize(stream)
    assert point.passed
    assert ran == ["next"]
    scheduler.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_that_is_dropped_as_it_runs_begins_no_more_blocks(threads: int) -> None:
    scheduler, stream, run = WorkerScheduler(threads), CpuStream(0), Wanted()
    ran: list[int] = []
    total = 1000

    def blocks_run(first: int, end: int) -> None:
        ran.append(end - first)
        run.dropped = True

    blocks = BlockRange("kernel", blocks_run, total)
    blocks.nanoseconds_per_block = 1e6  # so that one worker never takes all of them at once
    blocks.droppable = run
    scheduler.submit(stream, blocks)
    scheduler.synchronize(stream)
    assert len(ran) <= threads
    scheduler.close()


def test_a_query_in_vain_keeps_its_core_and_lets_go_of_the_gil_now_and_then(
    driver: CpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[str] = []
    monkeypatch.setattr(os, "sched_yield", lambda: given_up.append("core"))
    monkeypatch.setattr("oxide.driver.cpu.driver.sleep", lambda seconds: given_up.append("GIL"), raising=False)
    gate = Gate()
    stream, event = driver.create_stream(0), driver.create_event(0, timing=False)
    driver.launch_host_function(gate, stream)
    driver.record_event(event, stream)
    assert gate.started.wait(10)
    for _ in range(32):
        assert not driver.query_event(event)
        assert not driver.query_stream(stream)
    assert given_up == ["GIL"] * 4
    gate.release.set()
    driver.synchronize_stream(stream)
