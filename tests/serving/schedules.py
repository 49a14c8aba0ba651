"""Random schedules of a batcher, under a mock clock and a driver that steps: arrivals, cancellations, timeouts, faults.

``python -m tests.serving.schedules 10000`` runs that many; a seed runs the same schedule again.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio
from trio.testing import MockClock

from oxide import (
    BoundsError,
    DeviceOperation,
    DisjointSlice,
    DriverError,
    OperationCancelledError,
    OutOfMemoryError,
    Slice,
    d2h,
    h2d,
    i64,
    kernel,
    thread,
    zeros,
)
from oxide.serving import Batcher, BatcherClosedError, Overloaded
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver

TABLE = 1000
UNDECIDED = "the error of a run of several requests, and so perhaps of another one of them"
asking: ContextVar[int] = ContextVar("asking", default=-1)
"""The number of the request for which a task asks."""


@kernel
def look_up(table: Slice[i64], keys: Slice[i64], values: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    element = values.get_mut(index)
    if element is not None:
        element.value = table[keys[index.get()]]


class PoisonError(Exception):
    """The error of one request, which only this request may get."""


@dataclass(frozen=True)
class Asked:
    """A request of a schedule."""

    number: int
    kind: str  # "good"; how it is poisoned: "fault", "raise", "returned"
    arrives: float
    priority: int
    timeout: float | None
    cancelled_after: float | None


def run(requests: list[Asked]) -> DeviceOperation[Any]:
    """Looks up each number in a table of squares. Poison makes it raise, makes the kernel fault, or is an error in the
    result."""
    for asked in requests:
        if asked.kind == "raise":
            raise PoisonError(asked.number)
    keys = np.array([-1 - asked.number if asked.kind == "fault" else asked.number for asked in requests], np.int64)
    returned = [PoisonError(asked.number) if asked.kind == "returned" else None for asked in requests]
    squares = look_up[1, 32](h2d(np.arange(TABLE) ** 2), h2d(keys), zeros(len(keys), np.int64)).last().and_then(d2h)
    return squares.map(lambda values: Answers(values, returned))


class Answers:
    """The results of a batch, read when the device is done."""

    def __init__(self, values: Any, errors: list[PoisonError | None]) -> None:
        self._values = values
        self._errors = errors

    def __len__(self) -> int:
        return len(self._errors)

    def __getitem__(self, number: int) -> Any:
        return self._errors[number] or int(self._values[number])


class Schedule:
    """One random schedule, checked as it runs."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        moments = [draw.choice([0, 0, 1, 2, 5]) for _ in range(4)]
        self.asked = [
            Asked(
                number=number,
                kind=draw.choice(["good"] * 6 + ["fault", "raise", "returned"]),
                arrives=draw.choice(moments),
                priority=draw.choice([0, 0, 0, 1, -1]),
                timeout=draw.choice([None] * 7 + [0, 1, 4]),
                cancelled_after=draw.choice([None] * 7 + [0, 1, 3]),
            )
            for number in range(draw.randrange(1, 12))
        ]
        self.when_full: Any = draw.choice(["raise", "wait"])
        self.arguments: dict[str, Any] = {
            "max_batch": draw.randrange(1, 6),
            "max_wait": draw.choice([0, 0.5, 2]),
            "max_queue": draw.randrange(1, 8),
            "when_full": self.when_full,
            "max_in_flight": draw.randrange(1, 4),
        }
        if draw.random() < 0.3:
            self.arguments |= {"cost": lambda asked: 1 + asked.number % 3, "max_cost": draw.randrange(3, 7)}
        self.keys = draw.choice([1, 1, 2, 3])
        self.reruns = draw.choice([None, 0, 1, 3, 100, 100])
        self.arguments |= {"key": self.key, "reruns": self.reruns, "ageing": draw.choice([0.5, 1.0, float("inf")])}
        self.ends = draw.choice(["well", "well", "well", "by an error", "by a cancellation"])
        self.leaves_at = draw.choice([0, 1, 6, 6, 20])
        self.failing_call = draw.randrange(1, 60) if draw.random() < 0.3 else 0
        self.failure = draw.choice(["CUDA_ERROR_UNKNOWN", "CUDA_ERROR_OUT_OF_MEMORY"])
        self.outcomes: dict[int, list[Any]] = {asked.number: [] for asked in self.asked}
        self.runs = Counter[int]()  # of each request
        self.batcher: Batcher[Asked, int]

    def key(self, asked: Asked) -> int:
        return asked.number % self.keys

    def run(self, requests: list[Asked]) -> DeviceOperation[Any]:
        assert len({self.key(asked) for asked in requests}) == 1
        assert [context[asking] for context in self.batcher.contexts()] == [asked.number for asked in requests]
        assert asking.get() == -1
        for asked in requests:
            self.runs[asked.number] += 1
        return run(requests)

    async def main(self, driver: Any) -> None:
        """Runs the schedule: the requests' tasks outlive the batcher's block, so that each sees how it ends."""
        async with trio.open_nursery() as outer:
            device = await outer.start(self.step, driver)
            async with trio.open_nursery() as requests:
                scope = trio.CancelScope(deadline=trio.current_time() + self.leaves_at)
                if self.ends != "by a cancellation":
                    scope.deadline = float("inf")
                with scope:
                    try:
                        self.batcher = batcher = Batcher(self.run, **self.arguments)
                        async with batcher:
                            for asked in self.asked:
                                requests.start_soon(self.ask, batcher, asked)
                            await trio.sleep(self.leaves_at)
                            if self.ends == "by an error":
                                raise ZeroDivisionError
                    except ZeroDivisionError:
                        assert self.ends == "by an error"
            device.cancel()
        self.check(batcher)

    async def step(self, driver: Any, task_status: Any) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            while True:
                await trio.sleep(self.draw.choice([0.01, 0.1, 1]))
                for _ in range(self.draw.choice([1, 3, 20])):
                    driver.step()

    async def ask(self, batcher: Batcher[Asked, int], asked: Asked) -> None:
        await trio.sleep(asked.arrives)
        asking.set(asked.number)
        heard = self.outcomes[asked.number]
        with trio.CancelScope() as scope:
            if asked.cancelled_after is not None:
                scope.deadline = trio.current_time() + asked.cancelled_after
            try:
                heard.append(await batcher(asked, priority=asked.priority, timeout=asked.timeout))
            except Exception as error:
                heard.append(error)
        if scope.cancelled_caught:
            heard.append("cancelled")

    def check(self, batcher: Batcher[Asked, int]) -> None:
        """Each request has exactly one outcome, and it is one that this request may have."""
        for asked in self.asked:
            heard = self.outcomes[asked.number]
            assert len(heard) == 1, (asked, heard)
            assert self.may_hear(asked, heard[0]), (asked, heard[0])
            assert self.reruns != 0 or self.runs[asked.number] <= 1, asked
        statistics = batcher.statistics()
        assert statistics.queued == statistics.running == statistics.batches_in_flight == 0
        ended = statistics.answered + statistics.failed + statistics.cancelled + statistics.timed_out
        assert statistics.accepted == ended, statistics
        assert statistics.answered == sum(isinstance(heard[0], int) for heard in self.outcomes.values())

    def may_hear(self, asked: Asked, heard: Any) -> bool:
        if any(UNDECIDED in note for note in getattr(heard, "__notes__", ())):
            return self.reruns != 100 and len(self.asked) > 1 and not isinstance(heard, TimeoutError)
        if heard == "cancelled":
            return asked.cancelled_after is not None
        if isinstance(heard, TimeoutError):
            return asked.timeout is not None
        if isinstance(heard, Overloaded):
            return self.when_full == "raise"
        if isinstance(heard, OperationCancelledError):
            return self.ends != "well"
        if isinstance(heard, BatcherClosedError):
            return asked.arrives >= self.leaves_at
        if isinstance(heard, (DriverError, OutOfMemoryError)):
            return bool(self.failing_call)
        if isinstance(heard, BoundsError):
            return asked.kind == "fault" and heard.index == -1 - asked.number
        if isinstance(heard, PoisonError):
            return asked.kind in ("raise", "returned") and heard.args == (asked.number,)
        return asked.kind == "good" and heard == asked.number**2


@contextmanager
def stepping() -> Iterator[Any]:
    """Installs a driver that steps, records what is outstanding, and fails when told."""
    driver = FailingDriver(RecordingDriver(step_driver()))
    with use_driver(driver, completion="callback"):
        run([Asked(1, "good", 0, 0, None, None)]).sync()  # compiled and loaded, which else a thread would do
        yield driver
    driver.close()


def play(seed: int, driver: Any) -> list[str]:
    """Runs the schedule of a seed and returns the types of the outcomes. Raises ``AssertionError`` with the seed if it
    finds a mistake."""
    schedule = Schedule(seed)
    if schedule.failing_call:
        driver.fail_call(schedule.failing_call, DriverError(1, schedule.failure))
    try:
        trio.run(schedule.main, driver, clock=MockClock(autojump_threshold=0))
    except BaseException as error:
        error.add_note(f"schedule {seed}")
        raise
    finally:
        driver.forget()
        driver.clear()
    return [type(heard[0]).__name__ for heard in schedule.outcomes.values()]


if __name__ == "__main__":
    os.environ["OXIDE_DEVICE"] = "cpu"
    with stepping() as stepped:
        for number in range(int(sys.argv[1])):
            play(number, stepped)
    print(f"{sys.argv[1]} schedules: every request had one outcome, its own")
