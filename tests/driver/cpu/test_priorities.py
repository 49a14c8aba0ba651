"""Streams of high priority on the CPU device: what goes first, and what a priority does not change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu import workers as cpu_workers
from oxide.driver.cpu.streams import BlockRange, CpuStream, Point, Record, Task, Wait
from oxide.driver.cpu.workers import WorkerScheduler
from oxide.testing import step_driver
from tests.choosing import examples

A_BLOCK_NS = 1_000_000  # more than a chunk, so that chunks are single blocks


class Stage:
    """A scheduler whose threads run one at a time, each to its next pause, as the test says.

    A thread pauses inside each task and each chunk of blocks, and where it rests. Time passes only inside them.
    """

    def __init__(self, threads: int) -> None:
        self.workers: list[Player] = []
        self.now = 0
        self.threads = threads
        self.inside: dict[Player, Work] = {}  # the tasks and kernels that threads are in
        self.trace: list[str] = []
        self.works: dict[CpuStream, list[Work | Wait | Record]] = {}
        self.scheduler = WorkerScheduler(threads)

    def stream(self, *, high: bool = False) -> CpuStream:
        stream = CpuStream(0, high=high)
        self.works[stream] = []
        return stream

    def kernel(self, stream: CpuStream, name: str, blocks: int) -> None:
        work = Work(self, stream, name, blocks)
        self._submit(stream, work, BlockRange(name, work.run_blocks, blocks))

    def task(self, stream: CpuStream, name: str) -> None:
        work = Work(self, stream, name, 1)
        self._submit(stream, work, Task(name, partial(work.run_blocks, 0, 1)))

    def record(self, stream: CpuStream) -> Point:
        record = Record(Point(stream))
        self._submit(stream, record, record)
        return record.point

    def wait(self, stream: CpuStream, point: Point) -> None:
        wait = Wait(point)
        self._submit(stream, wait, wait)

    def _submit(self, stream: CpuStream, model: Work | Wait | Record, item: Any) -> None:
        self.works[stream].append(model)
        self.scheduler.submit(stream, item)

    def ready(self) -> list[Player]:
        """The threads that are not asleep."""
        return [worker for worker in self.workers if worker.awake]

    def play(self, turns: int = 1_000_000) -> None:
        """Lets the first thread that is not asleep run to its next pause, again and again."""
        while turns and (ready := self.ready()):
            ready[0].step()
            turns -= 1

    def round(self) -> None:
        """Lets each thread that is not asleep run to its next pause."""
        assert self.ready()
        for worker in self.ready():
            worker.step()

    def begins(self, work: Work) -> None:
        """Checks what always holds as a task or a chunk begins."""
        if work.stream.high:
            return
        for stream, items in self.works.items():
            if stream.high:
                assert _next_work(items) is None, f"{work.name} begins before {_next_work(items)}, which is ready"
        kernels = [other for other in self.inside.values() if other.is_kernel]
        if work.is_kernel and any(other.stream.high for other in kernels):
            assert len(kernels) < self.threads, f"{work.name} takes a thread from a kernel of high priority"

    def end(self) -> None:
        while ready := self.ready():
            ready[0].advance()
        for worker in self.workers:
            worker.ended = True
            worker.advance()
            worker.thread.join()


def _next_work(items: list[Any]) -> Work | None:
    """The first work of a stream that has not ended, if it has not begun although it is ready."""
    for item in items:
        if isinstance(item, Wait) and not item.point.passed:
            return None
        if isinstance(item, Work) and not item.over:
            return None if item.begun else item
    return None


class Work:
    """A task, or a kernel of so many blocks, that notes when it begins, what runs and whether all has run."""

    def __init__(self, stage: Stage, stream: CpuStream, name: str, blocks: int) -> None:
        self.stage, self.stream, self.name = stage, stream, name
        self.is_kernel = blocks > 1
        self.left = set(range(blocks))
        self.running = 0
        self.begun = False

    @property
    def over(self) -> bool:
        return not self.left and not self.running

    def run_blocks(self, first: int, end: int) -> None:
        before = [item for item in self.stage.works[self.stream] if isinstance(item, Work)]
        assert all(item.over for item in before[: before.index(self)]), f"{self.name} begins before its turn"
        self.stage.begins(self)
        self.begun = True
        self.running += 1
        self.stage.trace.append(self.name)
        assert {*range(first, end)} <= self.left, "a block runs twice"
        self.left -= {*range(first, end)}
        player = next(each for each in self.stage.workers if each.thread is threading.current_thread())
        self.stage.inside[player] = self
        player.pause()
        self.stage.now += A_BLOCK_NS * (end - first)
        self.running -= 1
        del self.stage.inside[player]

    def __repr__(self) -> str:
        return self.name


class Player:
    """A worker of a ``Stage``, and its own ``wake``."""

    def __init__(self, stage: Stage, scheduler: WorkerScheduler, _number: int) -> None:
        self.scheduler = scheduler
        self.ended = False
        self.awake = True
        self.error: BaseException | None = None
        self._woken = False
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.wake = self
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        stage.workers.append(self)

    def advance(self) -> None:
        self._go.release()
        assert self._paused.acquire(timeout=60), "a thread waits for something that no other thread can bring about"

    def step(self) -> None:
        self.advance()
        for error in self.scheduler.failures.values():
            raise error

    def pause(self) -> None:
        self._paused.release()
        self._go.acquire()

    def acquire(self) -> None:
        self.awake = self._woken
        self.pause()
        self._woken = False

    def release(self) -> None:
        self._woken = self.awake = True

    def _run(self) -> None:
        self._go.acquire()
        self.scheduler.enter(self)  # type: ignore[arg-type]
        while not self.ended:
            self.scheduler.serve(self)  # type: ignore[arg-type]
            self.acquire()
        self.scheduler.leave(self)  # type: ignore[arg-type]
        self._paused.release()


@contextmanager
def staged(threads: int) -> Iterator[Stage]:
    stage = Stage(threads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_workers, "_Worker", partial(Player, stage))
        patch.setattr(cpu_workers, "perf_counter_ns", lambda: stage.now)
        try:
            yield stage
        finally:
            stage.end()


def test_a_kernel_of_high_priority_overtakes_the_blocks_of_a_long_kernel_that_have_not_begun() -> None:
    with staged(threads=1) as stage:
        normal, high = stage.stream(), stage.stream(high=True)
        stage.kernel(normal, "n", 6)
        stage.play(3)
        stage.kernel(high, "h", 3)
        stage.task(high, "t")
        stage.play()
        assert "".join(stage.trace) == "nnnhhhtnnn"


def test_a_kernel_of_high_priority_takes_all_threads_and_gives_them_back() -> None:
    with staged(threads=3) as stage:
        normal, high = stage.stream(), stage.stream(high=True)
        stage.kernel(normal, "n", 30)
        while len(stage.inside) < 3:
            stage.round()
        stage.kernel(high, "h", 30)
        for _ in range(6):
            stage.round()
        assert [work.stream for work in stage.inside.values()] == [high] * 3
        stage.play()
        assert stage.trace.count("n") == stage.trace.count("h") == 30


def test_a_kernel_of_high_priority_on_one_thread_leaves_the_others_to_a_normal_kernel() -> None:
    with staged(threads=2) as stage:
        normal, high, other = stage.stream(), stage.stream(high=True), stage.stream(high=True)
        stage.kernel(normal, "n", 20)
        stage.play(2)
        stage.kernel(high, "h", 30)
        stage.kernel(other, "long", 2)
        while {work.stream for work in stage.inside.values()} != {high, other}:
            stage.round()
        long = [worker for worker, work in stage.inside.items() if work.stream is other]
        while ready := [worker for worker in stage.ready() if worker not in long]:
            ready[0].step()
        assert [stage.trace.count(name) for name in ("n", "h", "long")] == [20, 30, 1]


def test_a_stream_of_high_priority_that_waits_for_a_normal_one_holds_it_up_in_nothing() -> None:
    with staged(threads=1) as stage:
        normal, high = stage.stream(), stage.stream(high=True)
        stage.kernel(normal, "n", 4)
        stage.play(2)
        stage.wait(high, stage.record(normal))
        stage.kernel(high, "h", 2)
        stage.task(normal, "t")
        stage.play()
        assert "".join(stage.trace) == "nnnnhht"


def test_a_host_function_of_high_priority_that_blocks_holds_up_no_other_stream() -> None:
    driver = CpuDriver(threads=1)
    normal, high = driver.create_stream(0), driver.create_stream(0, "high")
    begun, release = threading.Event(), threading.Event()
    driver.launch_host_function(lambda: (begun.set(), release.wait()), high)  # type: ignore[arg-type, return-value]
    assert begun.wait(10)
    driver.launch_host_function(release.set, normal)
    driver.synchronize_stream(high)
    driver.close()


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), threads=st.integers(1, 3))
def test_any_schedule_runs_everything_once_and_in_order_and_high_priority_first(data: Any, threads: int) -> None:
    with staged(threads) as stage:
        streams = [stage.stream(), stage.stream(), stage.stream(high=True), stage.stream(high=True)]
        points = [stage.record(streams[0])]
        for number in range(data.draw(st.integers(1, 40), label="turns")):
            ready = stage.ready()
            actions = ["kernel", "task", "record", "wait", *["step"] * (8 if ready else 0)]
            stream = data.draw(st.sampled_from(streams), label="stream")
            match data.draw(st.sampled_from(actions), label="action"):
                case "kernel":
                    stage.kernel(stream, f"{number}", data.draw(st.integers(2, 9), label="blocks"))
                case "task":
                    stage.task(stream, f"{number}")
                case "record":
                    points.append(stage.record(stream))
                case "wait":
                    stage.wait(stream, data.draw(st.sampled_from(points), label="point"))
                case "step":
                    data.draw(st.sampled_from(ready), label="thread").step()
        while ready := stage.ready():
            data.draw(st.sampled_from(ready), label="thread").step()
        left = [work for items in stage.works.values() for work in items if isinstance(work, Work) and not work.over]
        assert not left
        assert all(point.passed for point in points)


def host_functions(driver: CpuDriver, priorities: list[Any]) -> tuple[list[int], list[CpuStream]]:
    ran: list[int] = []
    streams = [driver.create_stream(0, priority) for priority in priorities]
    for number, stream in enumerate(streams):
        for turn in range(2):
            driver.launch_host_function(partial(ran.append, 10 * turn + number), stream)
    return ran, streams


def test_steps_run_the_items_of_high_priority_first_and_otherwise_in_the_order_of_submission() -> None:
    driver = step_driver()
    ran, streams = host_functions(driver, ["normal", "high", "normal", "high"])
    assert driver.pending() == (streams[1], streams[3], streams[0], streams[2])
    driver.run_until_idle()
    assert ran == [1, 11, 3, 13, 0, 10, 2, 12]
    driver.close()


def test_a_step_runs_normal_items_that_one_of_high_priority_waits_for() -> None:
    driver = step_driver()
    normal, high = driver.create_stream(0), driver.create_stream(0, "high")
    event, ran = driver.create_event(0, timing=False), list[str]()
    driver.launch_host_function(partial(ran.append, "first"), normal)
    driver.record_event(event, normal)
    driver.launch_host_function(partial(ran.append, "last"), normal)
    driver.wait_event(high, event)
    driver.launch_host_function(partial(ran.append, "high"), high)
    driver.synchronize_stream(high)
    assert ran == ["first", "high"]
    driver.close()
    assert ran == ["first", "high", "last"]


@pytest.mark.parametrize("make", [partial(step_driver, 1), lambda seed: CpuDriver(seed=seed)], ids=["step", "driven"])
def test_a_seed_also_draws_schedules_in_which_a_normal_stream_goes_first(make: Callable[..., CpuDriver]) -> None:
    first = set()
    for seed in range(20):
        driver = make(seed=seed)
        ran, streams = host_functions(driver, ["normal", "high"])
        for stream in streams:
            driver.synchronize_stream(stream)
        driver.close()
        assert sorted(ran) == [0, 1, 10, 11]
        first.add(ran[0])
    assert first == {0, 1}
