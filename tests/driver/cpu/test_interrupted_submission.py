"""Ctrl-C at any place of a submission to the CPU device: what was submitted runs, once, and so does what follows."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import CodeType

import pytest

from oxide.driver.cpu import CpuDriver, allocator
from oxide.driver.cpu import driver as cpu
from oxide.driver.cpu import steps as cpu_steps
from oxide.driver.cpu import streams as cpu_streams
from oxide.driver.cpu import workers as cpu_workers
from oxide.driver.cpu.steps import StepScheduler
from oxide.driver.cpu.streams import CpuStream, Point, Record, Scheduler, Task, Wait
from oxide.driver.cpu.workers import WorkerScheduler
from tests.interrupting import interrupts, needs_calls


def is_scheduling(code: CodeType) -> bool:
    return code.co_filename in (cpu_workers.__file__, cpu_streams.__file__, cpu_steps.__file__)


class Program:
    """Submits numbered tasks to one stream, and knows which of them have been submitted and which have run."""

    def __init__(self, scheduler: Scheduler, *, high: bool) -> None:
        self.scheduler, self.stream = scheduler, CpuStream(0, high=high)
        self.points = [Point(), Point()]
        self.begun: list[int] = []
        self.submitted: list[int] = []
        self.ran: list[int] = []

    def submit(self, number: int, *, brief: bool = True) -> None:
        self.begun.append(number)
        self.scheduler.submit(self.stream, Task(f"task {number}", lambda: self.ran.append(number), brief=brief))
        self.submitted.append(number)

    def brief(self) -> None:
        for number in range(3):
            self.submit(number)

    def by_workers(self) -> None:
        for number in range(3):
            self.submit(number, brief=False)
            self.scheduler.submit(self.stream, Record(Point()))

    def behind_points(self) -> None:
        for point in self.points:
            self.scheduler.submit(self.stream, Wait(point))
        self.submit(0)
        self.submit(1)
        self.pass_points()
        self.submit(2)

    def by_finalisers(self) -> None:
        """As where the garbage collector has them free memory, while the scheduler is at work."""
        for number in range(2):
            self.points[0].waiters.append(partial(self._once, number))
        self.pass_points()
        self.submit(2)

    def _once(self, number: int) -> None:
        if number not in self.begun:
            self.submit(number)

    def step_by_step(self) -> None:
        self.behind_points()
        assert isinstance(self.scheduler, StepScheduler)
        self.scheduler.run_until_idle()

    def pass_points(self) -> None:
        for point in self.points:
            self.scheduler.submit(CpuStream(0), Record(point))


@pytest.mark.slow
@needs_calls
@pytest.mark.parametrize("high", [False, True], ids=["normal", "high"])
@pytest.mark.parametrize(
    ("run", "make"),
    [
        *[
            (run, partial(WorkerScheduler, 1))
            for run in (Program.brief, Program.by_workers, Program.behind_points, Program.by_finalisers)
        ],
        (Program.step_by_step, partial(StepScheduler, None)),
    ],
)
def test_what_was_submitted_runs_once_and_what_follows_runs(
    run: Callable[[Program], None], make: Callable[[], Scheduler], high: bool
) -> None:
    for interrupt in interrupts(is_scheduling, more_than=20):
        program = Program(make(), high=high)
        with interrupt:
            run(program)
        program.pass_points()
        program.submit(8)
        program.submit(9, brief=False)
        program.scheduler.synchronize(program.stream)
        assert program.ran == sorted(set(program.ran)), interrupt.at
        assert {*program.submitted} <= {*program.ran} <= {*program.begun}, interrupt.at
        assert not program.stream.running, interrupt.at
        assert not program.scheduler.failures, interrupt.at
        program.scheduler.close()


@needs_calls
def test_whoever_waits_for_a_point_is_told_of_it() -> None:
    for interrupt in interrupts(is_scheduling, more_than=5):
        scheduler, point, told = WorkerScheduler(threads=1), Point(), set[int]()
        point.waiters.extend(partial(told.add, waiter) for waiter in range(3))
        with interrupt:
            scheduler.submit(CpuStream(0), Record(point))
        if point.passed:
            assert told == {0, 1, 2}, interrupt.at
        scheduler.close()


@needs_calls
def test_memory_copied_filled_and_freed_under_interrupts_is_as_it_is_without() -> None:
    files = [module.__file__ for module in (cpu, allocator, cpu_streams, cpu_workers)]
    given_back: Counter[int] = Counter()
    for interrupt in interrupts(lambda code: code.co_filename in files, more_than=20):
        driver = CpuDriver(threads=1)
        stream, host = driver.create_stream(0), driver.allocate_host(64)
        first, second = (driver.allocate(64, stream) for _ in range(2))
        given_back.clear()

        def give_back(address: int, free: Callable[[int], None] = driver._heaps[0]._give_back) -> None:
            given_back[address] += 1
            free(address)

        driver._heaps[0]._give_back = give_back  # type: ignore[assignment]
        done: list[str] = []
        with interrupt:
            driver.fill(first, b"\1", 64, stream)
            done.append("fill")
            driver.copy_on_device(second, first, 64, stream)
            done.append("copy")
            driver.free(first, stream)
            done.append("free")
        driver.synchronize_stream(stream)
        driver.copy_to_host(host, second, 64, stream)
        driver.synchronize_stream(stream)
        if "copy" in done:
            assert ctypes.string_at(host, 64) == b"\1" * 64, interrupt.at
        assert given_back[first] == 1 or "free" not in done, interrupt.at
        assert max(given_back.values(), default=0) <= 1, interrupt.at
        driver.close()
    assert len(done) == 3
