"""However much there is to submit, to wake or to give back, the runtime takes a bounded part of each of a loop's turns.

A turn is what a trio loop runs between two looks at its files and timers. Where a step of ours costs time on a GPU, the
test makes it cost processor time, and counts how many steps one turn holds.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import trio
import trio.testing

import oxide
from oxide import DeviceOperation, ExecutionContext, as_completed, gather, value, with_context, zeros
from oxide.driver.cpu import CpuDriver
from oxide.host.core import current_turn
from oxide.runtime.awaiting.completion import WAKE_AT_ONCE
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.loop.pace import SHARE_SECONDS
from oxide.testing import DelegatingDriver, RecordingDriver, step_driver, use_driver
from tests.runtime.waiting import until

COST = 0.3e-3
AFFORDED = int(SHARE_SECONDS / COST) + 1  # steps of that cost in one share


def burn(seconds: float = COST) -> None:
    """Takes time, as a driver's call does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Turns(trio.abc.Instrument):
    """Counts what happens in each of a loop's turns."""

    def __init__(self) -> None:
        self.steps = 0
        self.most = 0

    def before_io_wait(self, timeout: float) -> None:
        self.most = max(self.most, self.steps)
        self.steps = 0


class Costly(DelegatingDriver):
    """A driver one of whose methods takes time."""

    def __init__(self, inner: Any, method: str, turns: Turns) -> None:
        super().__init__(inner)
        self._method = method
        self._turns = turns

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if method == self._method:
            burn()
            self._turns.steps += 1
        return super().invoke(method, *arguments, **keywords)


def costly(turns: Turns) -> DeviceOperation[None]:
    """An operation that takes the host a while to submit."""

    def submit(_: ExecutionContext) -> DeviceOperation[None]:
        burn()
        turns.steps += 1
        return value(None)

    return with_context(submit)


@contextmanager
def streams_held() -> Iterator[Callable[[], None]]:
    """Nothing that is submitted inside ends before the function given is called."""
    opened = threading.Event()
    try:
        for _ in range(4):  # the policy's streams
            stream = current_runtime().policy.next_stream(oxide.devices()[0])
            stream.launch_host_function(opened.wait)  # type: ignore[arg-type]
        yield opened.set
    finally:
        opened.set()


def test_tasks_that_submit_at_once_share_out_over_the_loops_turns() -> None:
    turns, results = Turns(), list[None]()

    async def one() -> None:
        results.append(await costly(turns))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(one)

    with use_driver(CpuDriver()):
        trio.run(main, instruments=[turns])
    assert len(results) == 200
    assert turns.most <= 3 * AFFORDED  # those in line, and those who come past them
    assert turns.most >= 2


def test_gather_and_as_completed_submit_in_shares() -> None:
    for run in (gathered, completed):
        turns = Turns()
        with use_driver(CpuDriver()):
            assert trio.run(run, [costly(turns) for _ in range(100)], instruments=[turns]) == 100
        assert turns.most <= 3 * AFFORDED


async def gathered(operations: list[DeviceOperation[Any]]) -> int:
    return len(await gather(*operations))


async def completed(operations: list[DeviceOperation[Any]]) -> int:
    return len([result async for result in as_completed(operations)])


def test_a_cancelled_wait_for_a_turn_submits_nothing() -> None:
    turns = Turns()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(gathered, [costly(turns)])
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await gathered([costly(turns)])  # the line is not stuck

    with use_driver(CpuDriver()):
        trio.run(main)
    assert turns.steps <= 3 * AFFORDED


def test_one_task_after_the_other_never_waits_in_line() -> None:
    turns = Turns()

    async def main() -> int:
        before = current_turn().number
        for _ in range(50):
            await costly(turns)
        return current_turn().number - before

    with use_driver(CpuDriver(), completion="poll"):
        assert trio.run(main) >= 50  # each came back from the loop, which ended its turn
        assert not current_turn().used_up


def test_of_thousands_that_end_together_a_turn_wakes_some() -> None:
    turns = Turns()

    async def one() -> None:
        await value(None)
        turns.steps += 1

    async def main() -> None:
        with streams_held() as let_go:
            async with trio.open_nursery() as nursery:
                for _ in range(30):
                    for _ in range(100):
                        nursery.start_soon(one)
                    await trio.lowlevel.checkpoint()
                while len(nursery.child_tasks) > current_runtime().reclaimer.pending()[0]:
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked()
                let_go()

    with use_driver(CpuDriver(), completion="callback"):
        trio.run(main, instruments=[turns])
    assert turns.most <= 2 * WAKE_AT_ONCE


def test_the_end_of_thousands_is_found_with_few_questions_to_the_driver() -> None:
    driver = RecordingDriver(step_driver())
    with use_driver(driver):
        stream = oxide.devices()[0].new_stream()
        futures = [value(n).async_on(stream) for n in range(3000)]
        marks = list(stream._timeline._marks)
        driver.run_until_idle()
        driver.clear()
        assert all(mark.passed() for mark in marks)
        assert driver.count("query_event", "query_stream") < 100
        assert len(futures) == 3000


def test_where_one_of_thousands_has_ended_two_questions_tell() -> None:
    driver = RecordingDriver(step_driver())
    with use_driver(driver):
        stream = oxide.devices()[0].new_stream()
        for n in range(3000):
            value(n).async_on(stream)
        marks = list(stream._timeline._marks)
        while not driver.inner.query_event(marks[0].event):
            driver.step()
        driver.clear()
        assert marks[0].passed()
        assert not marks[1].passed()
        assert driver.count("query_event", "query_stream") <= 3


def test_as_completed_asks_about_the_first_of_each_stream_only() -> None:
    count = 2000
    driver = RecordingDriver(CpuDriver())
    with use_driver(driver):
        assert trio.run(completed, [value(n) for n in range(count)]) == count
        assert driver.count("query_event", "query_stream") < 5 * count


def test_as_completed_yields_every_result_once_whatever_was_started_before() -> None:
    async def main() -> list[int]:
        early = [value(n).into_future() for n in range(20)]
        for future in early[::3]:
            await future
        for future in early[1::3]:
            future.start()
        later = [value(n) for n in range(20, 40)]
        return [result async for result in as_completed([*later, *reversed(early)], limit=7)]

    with use_driver(CpuDriver()):
        assert sorted(trio.run(main)) == list(range(40))


def test_a_sweep_takes_its_share_and_the_next_ones_go_on() -> None:
    turns = Turns()
    with use_driver(Costly(CpuDriver(), "free", turns)):
        boxes = [zeros(1).sync() for _ in range(100)]
        gc.disable()
        try:
            boxes.clear()
            turns.steps = 0
            reclaimer = current_runtime().reclaimer
            assert not reclaimer.sweep()
            assert turns.steps <= AFFORDED + 1  # the clock is read before an item, and the item handled anyway
            while not reclaimer.sweep():
                pass
            assert turns.steps == 100
        finally:
            gc.enable()


def test_what_a_sweep_left_is_given_back_in_the_loops_next_turns() -> None:
    turns = Turns()

    async def main() -> None:
        boxes = await gather(*[zeros(1) for _ in range(100)])
        del boxes
        with streams_held() as let_go:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(gathered, [value(None)])
                await trio.testing.wait_all_tasks_blocked()
                let_go()
        await until(lambda: current_runtime().reclaimer.idle)

    with use_driver(Costly(CpuDriver(), "free", turns), completion="callback"):
        trio.run(main, instruments=[turns])
    assert turns.most <= 3 * AFFORDED


def test_results_are_right_when_thousands_are_gathered() -> None:
    count = 2000
    numbers = np.arange(count)

    async def main() -> tuple[Any, ...]:
        return await gather(*[value(int(n)).map(lambda n: n * n) for n in numbers])

    with use_driver(CpuDriver()):
        np.testing.assert_array_equal(trio.run(main), numbers**2)
