"""What a ``Batcher`` promises to a caller, one promise a test."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import oxide
from oxide import (
    BoundsError,
    DeviceLostError,
    DeviceOperation,
    NoEventLoopError,
    OperationCancelledError,
    OutOfMemoryError,
    StreamPoolRoundRobin,
    d2h,
    h2d,
    memcpy,
    value,
    with_context,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.serving import Batcher, BatcherClosedError, BatchReport, Overloaded
from oxide.testing import RecordingDriver, step_driver, use_driver
from tests.runtime.awaiting.conftest import run_asyncio
from tests.serving.schedules import UNDECIDED, Asked, PoisonError, asking
from tests.serving.schedules import run as look_up

Runner = Callable[[Callable[[], Awaitable[Any]]], Any]


class Recorded:
    """A function for a ``Batcher`` that keeps the batches that it was given. ``-n`` is a request that fails."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, requests: list[int]) -> DeviceOperation[list[int]]:
        self.batches.append(list(requests))
        for request in requests:
            if request < 0:
                raise PoisonError(request)
        return value([10 * request for request in requests])


async def all_of(batcher: Batcher[Any, Any], *requests: Any, **keywords: Any) -> list[Any]:
    """Calls the batcher from a task for each request, and returns the results and errors."""
    outcomes: list[Any] = [None] * len(requests)

    async def ask(number: int) -> None:
        try:
            outcomes[number] = await batcher(requests[number], **keywords)
        except Exception as error:
            outcomes[number] = error

    if "trio" in sys.modules and trio.lowlevel.in_trio_run():
        async with trio.open_nursery() as nursery:
            for number in range(len(requests)):
                nursery.start_soon(ask, number)
                await trio.testing.wait_all_tasks_blocked()  # so that they arrive in order
    else:
        await asyncio.gather(*[ask(number) for number in range(len(requests))])
    return outcomes


def in_mock_time(main: Callable[[], Awaitable[Any]]) -> Any:
    return trio.run(main, clock=MockClock(autojump_threshold=0))


# Batches


def test_requests_of_several_tasks_are_one_batch(run: Runner) -> None:
    recorded = Recorded()

    async def main() -> list[Any]:
        async with Batcher(recorded, max_batch=3, max_wait=100) as batcher:
            return await all_of(batcher, 1, 2, 3, 4, 5, 6)

    assert run(main) == [10, 20, 30, 40, 50, 60]
    assert recorded.batches == [[1, 2, 3], [4, 5, 6]]


def test_rows_of_an_array_are_results(run: Runner) -> None:
    async def main() -> Any:
        async with Batcher(lambda rows: d2h(h2d(np.stack(rows))), max_batch=2, max_wait=60) as batcher:
            return await all_of(batcher, np.arange(3.0), np.arange(3.0) + 1)

    np.testing.assert_array_equal(run(main), [[0, 1, 2], [1, 2, 3]])


def test_a_batch_begins_when_its_first_request_has_waited() -> None:
    recorded = Recorded()

    async def main() -> None:
        async with Batcher(recorded, max_wait=3) as batcher, trio.open_nursery() as nursery:
            nursery.start_soon(batcher, 1)
            await trio.sleep(2)
            nursery.start_soon(batcher, 2)
            await trio.sleep(0.9)
            assert not recorded.batches
            await trio.sleep(0.2)
            assert recorded.batches == [[1, 2]]

    in_mock_time(main)


def test_a_lone_request_without_a_wait_is_run_at_once() -> None:
    async def main() -> None:
        async with Batcher(Recorded(), max_wait=0) as batcher:
            assert await batcher(7) == 70
            assert trio.current_time() == began

    began = 0.0

    async def timed() -> None:
        nonlocal began
        began = trio.current_time()
        await main()

    in_mock_time(timed)


def test_the_sum_of_costs_bounds_a_batch(run: Runner) -> None:
    recorded = Recorded()

    async def main() -> None:
        async with Batcher(recorded, cost=lambda number: number, max_cost=6, max_wait=0.01) as batcher:
            await all_of(batcher, 1, 2, 3, 4, 3)
            with pytest.raises(ValueError, match=r"from 0 to max_cost=6, and cost\(request\) returned 7"):
                await batcher(7)

    run(main)
    assert recorded.batches == [[1, 2, 3], [4], [3]]


def test_requests_of_a_higher_priority_come_first() -> None:
    recorded = Recorded()

    async def main() -> None:
        async with Batcher(recorded, max_batch=2, max_wait=1) as batcher, trio.open_nursery() as nursery:
            batcher._max_in_flight = 0  # so that all are queued before the first batch
            for number, priority in enumerate([0, 0, 2, 1, 0]):

                async def ask(number: int = number, priority: int = priority) -> None:
                    await batcher(number, priority=priority)

                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
            batcher._max_in_flight = 1
            batcher._pump()

    in_mock_time(main)
    assert recorded.batches == [[2, 3], [0, 1], [4]]


def test_no_more_batches_are_in_flight_than_allowed() -> None:
    async def main() -> None:
        with use_driver(step_driver(), completion="callback") as driver:
            async with (
                Batcher(lambda rows: d2h(h2d(np.array(rows))), max_batch=1, max_in_flight=2) as batcher,
                trio.open_nursery() as nursery,
            ):
                for number in range(5):
                    nursery.start_soon(batcher, number)
                await wait_all_tasks_blocked()
                now = batcher.statistics()
                assert (now.batches_in_flight, now.running, now.queued) == (2, 2, 3)
                while batcher.statistics().answered < 5:
                    driver.run_until_idle()
                    await wait_all_tasks_blocked()

    in_mock_time(main)


def test_the_policy_picks_the_stream_of_a_batch(run: Runner) -> None:
    pool = StreamPoolRoundRobin(1)
    seen = []

    def run_batch(requests: list[int]) -> DeviceOperation[list[int]]:
        return with_context(lambda context: value([seen.append(context.stream)] * len(requests)))  # type: ignore[func-returns-value]

    async def main() -> None:
        async with Batcher(run_batch, policy=pool, max_wait=0) as batcher:
            await batcher(1)

    run(main)
    from oxide import devices

    assert seen == [pool.next_stream(devices()[0])]


# Context variables


def test_the_run_sees_the_batchers_variables_and_contexts_those_of_each_request(run: Runner) -> None:
    seen: list[tuple[int, list[int]]] = []
    batcher: Batcher[int, int]

    def note(requests: list[int]) -> list[int]:
        seen.append((asking.get(), [context.run(asking.get) for context in batcher.contexts()]))
        if requests[0] < 0:
            raise PoisonError(requests[0])
        return requests

    async def ask(number: int) -> None:
        asking.set(abs(number))
        with suppress(PoisonError):
            assert await batcher(number) == number

    async def main() -> None:
        nonlocal batcher
        asking.set(1000)  # while the block is entered
        batcher = Batcher(lambda requests: value(note(requests)).map(note), max_batch=4, max_wait=60, reruns=9)
        async with batcher:
            asking.set(2000)
            if run is trio.run:
                async with trio.open_nursery() as nursery:
                    for number in (-1, 2, 3, 4):
                        nursery.start_soon(ask, number)
                        await wait_all_tasks_blocked()
            else:
                await asyncio.gather(*map(ask, (-1, 2, 3, 4)))
            with pytest.raises(RuntimeError, match=r"batcher\.contexts\(\) is for the function of the batcher"):
                batcher.contexts()

    run(main)
    of_runs = [[1, 2, 3, 4], [1, 2], [1], [2], [2], [3, 4], [3, 4]]
    assert seen == [(1000, numbers) for numbers in of_runs]


def test_the_contexts_are_those_of_the_batcher_that_runs(run: Runner) -> None:
    outer: Batcher[int, int] = Batcher(value)

    def run_batch(requests: list[int]) -> Any:
        with pytest.raises(RuntimeError):
            outer.contexts()
        return value(requests)

    async def main() -> None:
        async with outer, Batcher(run_batch, max_wait=0) as inner:
            assert await inner(1) == 1

    run(main)


# Keys and priorities


def test_requests_of_different_keys_are_in_different_batches_and_a_full_one_waits_for_no_other() -> None:
    recorded = Recorded()

    async def main() -> None:
        batcher = Batcher(recorded, key=lambda number: number % 3, max_batch=2, max_wait=5)
        async with batcher, trio.open_nursery() as nursery:
            for number, at in ((3, 0), (1, 1), (2, 2), (4, 3), (7, 4)):
                await trio.sleep_until(began + at)
                nursery.start_soon(batcher, number)
            await trio.sleep_until(began + 4.5)
            assert recorded.batches == [[1, 4]]
            await trio.sleep_until(began + 5.5)
            assert recorded.batches == [[1, 4], [3]]
            await trio.sleep_until(began + 7.5)
            assert recorded.batches == [[1, 4], [3], [2]]
            await trio.sleep_until(began + 9.5)
            assert recorded.batches == [[1, 4], [3], [2], [7]]

    began = 0.0

    async def timed() -> None:
        nonlocal began
        began = trio.current_time()
        await main()

    in_mock_time(timed)


def test_a_key_that_waits_for_memory_holds_up_no_other_key() -> None:
    batches = []

    def run_batch(requests: list[int]) -> DeviceOperation[Any]:
        batches.append(list(requests))
        if batches.count([-2]) == 1 and requests == [-2]:
            raise OutOfMemoryError("full")
        return d2h(h2d(np.array(requests)))

    async def main() -> None:
        with use_driver(step_driver(), completion="callback") as driver:
            options: dict[str, Any] = {"key": lambda number: number < 0, "max_batch": 1, "max_in_flight": 3}
            async with Batcher(run_batch, **options) as batcher, trio.open_nursery() as nursery:
                for number in (1, -2, -3, 4):
                    nursery.start_soon(batcher, number)
                    await wait_all_tasks_blocked()
                assert batches == [[1], [-2], [4]]  # -3 would take the memory for which -2 waits
                while batcher.statistics().answered < 4:
                    driver.run_until_idle()
                    await wait_all_tasks_blocked()

    in_mock_time(main)


def test_a_key_that_is_not_hashable_is_refused(run: Runner) -> None:
    async def main() -> None:
        async with Batcher(Recorded(), key=lambda number: [number]) as batcher:  # type: ignore[arg-type, return-value]
            with pytest.raises(TypeError, match=r"must be hashable, and key\(request\) returned \[1\]: unhashable"):
                await batcher(1)
        assert batcher.statistics().accepted == 0

    run(main)


@pytest.mark.parametrize(("ageing", "answered_after"), [(1.0, 1.0), (3, 3.0), (math.inf, None)])
def test_a_request_that_waits_long_comes_before_new_ones_of_a_higher_priority(
    ageing: float, answered_after: float | None
) -> None:
    """Twelve callers keep a queue of urgent requests before a device that takes a tenth of a second for four."""
    took: float | None = None

    async def main() -> None:
        async def urgent() -> None:
            while True:
                await batcher(1, priority=1)

        async def patient() -> None:
            nonlocal took
            await trio.sleep(0.05)
            began = trio.current_time()
            with trio.move_on_after(20):
                await batcher(0)
                took = trio.current_time() - began
            nursery.cancel_scope.cancel()

        with use_driver(step_driver(), completion="callback") as driver:
            options: dict[str, Any] = {"max_batch": 4, "max_in_flight": 1, "ageing": ageing}
            async with (
                Batcher(lambda rows: d2h(h2d(np.array(rows))), **options) as batcher,
                trio.open_nursery() as nursery,
            ):
                for _ in range(12):
                    nursery.start_soon(urgent)
                nursery.start_soon(patient)
                while True:
                    await trio.sleep(0.1)
                    driver.run_until_idle()

    in_mock_time(main)
    if answered_after is None:
        assert took is None
    else:
        assert took is not None
        assert answered_after <= took < answered_after + 1


# The queue


def test_a_full_queue_refuses_at_once_and_takes_the_next_after_room_is_made() -> None:
    recorded = Recorded()

    async def main() -> None:
        async with Batcher(recorded, max_queue=2, max_wait=5) as batcher, trio.open_nursery() as nursery:
            nursery.start_soon(batcher, 1)
            nursery.start_soon(batcher, 2)
            await wait_all_tasks_blocked()
            with pytest.raises(Overloaded, match=r"queue is full: 2 requests wait \(max_queue=2\)"):
                await batcher(3)
            await trio.sleep(6)
            assert await batcher(4) == 40
        assert batcher.statistics().rejected == 1

    in_mock_time(main)
    assert [sorted(batch) for batch in recorded.batches] == [[1, 2], [4]]


def test_a_full_queue_makes_calls_wait_if_asked_to() -> None:
    recorded = Recorded()

    async def main() -> None:
        batcher = Batcher(recorded, max_batch=2, max_queue=2, max_wait=5, when_full="wait")
        batcher._max_in_flight = 0
        async with batcher, trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(batcher, number)
            await wait_all_tasks_blocked()
            now = batcher.statistics()
            assert (now.queued, now.waiting_for_room, now.rejected) == (2, 3, 0)
            batcher._max_in_flight = 1
            batcher._pump()

    in_mock_time(main)
    assert sorted(number for batch in recorded.batches for number in batch) == [0, 1, 2, 3, 4]


def test_a_cancelled_request_is_not_run() -> None:
    recorded = Recorded()

    async def main() -> None:
        async with Batcher(recorded, max_wait=2) as batcher, trio.open_nursery() as nursery:
            nursery.start_soon(batcher, 1)
            with trio.move_on_after(1) as scope:
                await batcher(2)
            assert scope.cancelled_caught
        assert batcher.statistics()[:4] == (2, 1, 0, 1)

    in_mock_time(main)
    assert recorded.batches == [[1]]


def test_a_request_past_its_timeout_is_not_run(run: Runner) -> None:
    recorded = Recorded()

    async def main() -> None:
        async with Batcher(recorded, max_batch=2, max_wait=60) as batcher:
            with pytest.raises(TimeoutError, match=r"did not answer the request within 0\.01 s"):
                await batcher(1, timeout=0.01)
            assert await all_of(batcher, 2, 3, timeout=60) == [20, 30]
        assert batcher.statistics().timed_out == 1
        assert batcher.statistics().cancelled == 0

    run(main)
    assert recorded.batches == [[2, 3]]


def test_a_cancelled_asyncio_task_leaves_the_queue() -> None:
    recorded = Recorded()

    async def main() -> None:
        async with Batcher(recorded, max_batch=2, max_wait=60) as batcher:
            task = asyncio.create_task(batcher(1))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert await all_of(batcher, 2, 3) == [20, 30]

    asyncio.run(main())
    assert recorded.batches == [[2, 3]]


@pytest.mark.parametrize("times", range(5))
def test_a_batch_whose_callers_leave_before_its_task_began_leaves_no_trace(run: Runner, times: int) -> None:
    """Under asyncio a task that is cancelled before its first step runs none of its code."""

    async def trio_main() -> None:
        async with Batcher(Recorded(), max_batch=1, max_in_flight=1) as batcher:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(batcher, 1)
                    for _ in range(times):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert await batcher(2) == 20

    async def asyncio_main() -> None:
        async with Batcher(Recorded(), max_batch=1, max_in_flight=1) as batcher:
            task = asyncio.create_task(batcher(1))
            for _ in range(times):
                await asyncio.sleep(0)
            task.cancel()
            assert await batcher(2) == 20

    run(trio_main if run is trio.run else asyncio_main)


def test_a_running_batch_without_callers_is_dropped_and_others_are_not() -> None:
    async def main() -> None:
        with use_driver(RecordingDriver(step_driver()), completion="callback") as driver:
            async with (
                Batcher(lambda rows: d2h(h2d(np.array(rows))), max_batch=2, max_in_flight=2) as batcher,
                trio.open_nursery() as nursery,
            ):
                kept: list[Any] = []

                async def keep() -> None:
                    kept.append(await batcher(3))

                scopes = []

                async def leave(number: int) -> None:
                    with trio.CancelScope() as scope:
                        scopes.append(scope)
                        await batcher(number)

                for ask in (lambda: leave(1), lambda: leave(2), keep, lambda: leave(4)):
                    nursery.start_soon(ask)
                    await wait_all_tasks_blocked()
                assert batcher.statistics().batches_in_flight == 2
                for scope in scopes:
                    scope.cancel()
                await wait_all_tasks_blocked()
                now = batcher.statistics()
                assert (now.batches_in_flight, now.running, now.cancelled) == (2, 1, 3)
                driver.inner.run_until_idle()
                await wait_all_tasks_blocked()
                assert kept == [3]
                assert batcher.statistics().batches_in_flight == 0

    in_mock_time(main)


class Writes:
    """A function for a ``Batcher`` whose batches write a box of the caller: nothing of their work is dropped. After the
    upload, ``-n`` raises."""

    def __init__(self) -> None:
        self._box = zeros(1, np.int64).sync()
        self.batches: list[list[int]] = []

    def __call__(self, requests: list[int]) -> DeviceOperation[Any]:
        self.batches.append(list(requests))
        return memcpy(self._box, np.array(requests)).map(lambda _: self._answers(requests))

    def _answers(self, requests: list[int]) -> list[int]:
        if requests[0] < 0:
            raise PoisonError(requests[0])
        return [10 * request for request in requests]


async def answers(batcher: Batcher[Any, Any], driver: CpuDriver, *requests: int) -> list[Any]:
    """Returns the results of the requests. Lets the device work meanwhile."""
    outcomes: list[Any] = []

    async def ask() -> None:
        outcomes.extend(await all_of(batcher, *requests))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while not outcomes:
            driver.run_until_idle()
            await wait_all_tasks_blocked()
    return outcomes


def with_writes(
    main: Callable[[Writes, Any], Awaitable[None]], run: Callable[[Callable[[], Awaitable[Any]]], Any] | None = None
) -> None:
    """Runs ``main`` on a driver that steps and records, by default in mock time."""
    with use_driver(RecordingDriver(step_driver()), completion="callback") as driver:
        writes = Writes()  # before the loop begins, as it blocks
        driver.clear()
        (run or in_mock_time)(lambda: main(writes, driver))


def test_a_batch_whose_callers_have_gone_keeps_its_place_until_the_device_is_past_it() -> None:
    async def main(writes: Writes, driver: Any) -> None:
        async with Batcher(writes, max_batch=1, max_in_flight=2, max_wait=0) as batcher:
            for number in range(5):
                with pytest.raises(TimeoutError):
                    await batcher(number, timeout=1)
            assert (writes.batches, batcher.statistics().batches_in_flight) == ([[0], [1]], 2)
            assert await answers(batcher, driver.inner, 7, 8) == [70, 80]
        assert writes.batches == [[0], [1], [7], [8]]

    with_writes(main)


def test_a_batch_of_cancelled_asyncio_tasks_keeps_its_place() -> None:
    async def main(writes: Writes, driver: Any) -> None:
        async with Batcher(writes, max_batch=1, max_in_flight=1, max_wait=0) as batcher:
            first = asyncio.create_task(batcher(1))
            while not driver.submissions:
                await asyncio.sleep(0)
            first.cancel()
            second = asyncio.create_task(batcher(2))
            for _ in range(50):
                await asyncio.sleep(0)
            assert (writes.batches, batcher.statistics().batches_in_flight) == ([[1]], 1)
            while not second.done():
                driver.inner.run_until_idle()
                await asyncio.sleep(0)
            assert second.result() == 20

    with_writes(main, run_asyncio)


def test_a_batch_whose_submission_failed_keeps_its_place_until_the_device_is_past_it() -> None:
    async def main(writes: Writes, driver: Any) -> None:
        async with Batcher(writes, max_batch=1, max_in_flight=1, max_wait=0) as batcher:
            with pytest.raises(PoisonError):
                await batcher(-1)  # at once
            with pytest.raises(TimeoutError):
                await batcher(2, timeout=1)
            assert (writes.batches, batcher.statistics().batches_in_flight) == ([[-1]], 1)
            assert await answers(batcher, driver.inner, 3) == [30]

    with_writes(main)


def test_the_end_of_the_block_does_not_wait_for_work_that_nobody_waits_for() -> None:
    async def main(writes: Writes, driver: Any) -> None:
        async with Batcher(writes, max_batch=1, max_in_flight=1, max_wait=0) as batcher:
            with pytest.raises(TimeoutError):
                await batcher(1, timeout=1)
            assert batcher.statistics().batches_in_flight == 1
        assert batcher.statistics().batches_in_flight == 0
        assert driver.inner.step()  # the work is still to do

    with_writes(main)


# Errors


def asked(number: int, kind: str = "good") -> Asked:
    return Asked(number, kind, 0, 0, None, None)


def test_a_request_that_faults_fails_alone(run: Runner) -> None:
    async def main() -> list[Any]:
        async with Batcher(look_up, max_batch=8, max_wait=60, reruns=10) as batcher:
            requests = [asked(number, "fault" if number in (2, 5) else "good") for number in range(8)]
            return await all_of(batcher, *requests)

    outcomes = run(main)
    for number, outcome in enumerate(outcomes):
        if number in (2, 5):
            assert isinstance(outcome, BoundsError)
            assert outcome.index == -1 - number
        else:
            assert outcome == number**2


def test_a_run_that_raises_is_repeated_by_halves(run: Runner) -> None:
    recorded = Recorded()

    async def main() -> list[Any]:
        async with Batcher(recorded, max_batch=4, max_wait=60) as batcher:
            outcomes = await all_of(batcher, 1, -2, 3, 4)
        assert batcher.statistics().reruns == 4
        return outcomes

    outcomes = run(main)
    assert [outcomes[0], *outcomes[2:]] == [10, 30, 40]
    assert isinstance(outcomes[1], PoisonError)
    assert recorded.batches == [[1, -2, 3, 4], [1, -2], [1], [-2], [3, 4]]


def test_one_request_of_64_that_fails_is_found_alone_in_12_reruns(run: Runner) -> None:
    async def main(poison: int) -> None:
        recorded = Recorded()
        requests = [-1 if number == poison else number for number in range(64)]
        async with Batcher(recorded, max_batch=64, max_wait=60) as batcher:
            outcomes = await all_of(batcher, *requests)
        assert isinstance(outcomes.pop(poison), PoisonError)
        assert outcomes == [10 * number for number in range(64) if number != poison]
        assert batcher.statistics().reruns == 12

    for poison in (0, 21, 63):
        run(lambda poison=poison: main(poison))  # type: ignore[misc]


def test_a_batch_in_which_all_fail_costs_few_runs_and_the_errors_say_so(run: Runner) -> None:
    recorded = Recorded()

    async def main() -> list[Any]:
        async with Batcher(recorded, max_batch=64, max_wait=60) as batcher:
            outcomes = await all_of(batcher, *range(-64, 0))
        assert batcher.statistics().reruns == 12
        return outcomes

    outcomes = run(main)
    assert len(recorded.batches) == 13
    assert {len(batch) for batch in recorded.batches} >= {64, 32, 16}
    own = {batch[0] for batch in recorded.batches if len(batch) == 1}  # those that failed alone
    for request, outcome in zip(range(-64, 0), outcomes, strict=True):
        assert isinstance(outcome, PoisonError)
        notes = getattr(outcome, "__notes__", [])
        if request in own:
            assert (outcome.args, notes) == ((request,), [])
        else:
            assert notes == [f"{UNDECIDED}: the batch was run again 12 times, the most that reruns= allows"]


def test_where_the_reruns_do_not_suffice_most_of_those_that_can_be_answered_are(run: Runner) -> None:
    async def main(*poison: int) -> int:
        requests = [-1 if number in poison else number for number in range(64)]
        async with Batcher(Recorded(), max_batch=64, max_wait=60) as batcher:
            outcomes = await all_of(batcher, *requests)
        assert batcher.statistics().reruns == 12
        return sum(isinstance(outcome, int) for outcome in outcomes)

    for poison in ((0, 63), (0, 1), (17, 40), (31, 32)):
        assert run(lambda poison=poison: main(*poison)) >= 40  # type: ignore[misc]


def test_with_reruns_0_no_request_is_run_twice(run: Runner) -> None:
    recorded = Recorded()

    def run_batch(requests: list[int]) -> DeviceOperation[list[int]]:
        if 7 in requests:
            recorded.batches.append(requests)
            raise OutOfMemoryError("full")
        return recorded(requests)

    async def main() -> list[Any]:
        async with Batcher(run_batch, max_batch=4, max_wait=60, reruns=0) as batcher:
            outcomes = await all_of(batcher, 1, -2, 3, 4, 5, 6, 7, 8)
        assert batcher.statistics().reruns == 0
        return outcomes

    outcomes = run(main)
    assert recorded.batches == [[1, -2, 3, 4], [5, 6, 7, 8]]
    for outcome in outcomes[:4]:
        assert outcome.args == (-2,)
        assert outcome.__notes__ == [f"{UNDECIDED}: the batch is not run again (reruns=0)"]
        assert outcome.__traceback__.tb_next.tb_next.tb_next.tb_next is not None  # down to the line that raised it
    assert [type(outcome) for outcome in outcomes[4:8]] == [OutOfMemoryError] * 4


def test_an_error_that_is_kept_while_parts_are_run_again_holds_no_boxes(run: Runner) -> None:
    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    def run_batch(requests: list[int]) -> DeviceOperation[list[int]]:
        assert [one() for one in held] == [None] * len(held)
        here = Held()
        if len(requests) > 1:  # the caller of a request that fails alone has its error
            held.append(weakref.ref(here))
        try:
            raise PoisonError(requests)
        except PoisonError as error:
            raise ValueError(requests) from error

    async def main() -> list[Any]:
        async with Batcher(run_batch, max_batch=4, max_wait=60) as batcher:
            return await all_of(batcher, 1, 2, 3, 4)

    assert [type(outcome) for outcome in run(main)] == [ValueError] * 4
    assert len(held) == 3


def test_a_batch_that_waits_for_memory_holds_none() -> None:
    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    def run_batch(requests: list[int]) -> DeviceOperation[Any]:
        if requests == [2] and not held:
            here = Held()
            held.append(weakref.ref(here))
            raise OutOfMemoryError("full")
        return d2h(h2d(np.array(requests)))

    async def main() -> None:
        with use_driver(step_driver(), completion="callback") as driver:
            async with Batcher(run_batch, max_batch=1) as batcher, trio.open_nursery() as nursery:
                nursery.start_soon(batcher, 1)
                await wait_all_tasks_blocked()
                nursery.start_soon(batcher, 2)
                await wait_all_tasks_blocked()
                assert held[0]() is None
                while batcher.statistics().answered < 2:
                    driver.run_until_idle()
                    await wait_all_tasks_blocked()

    in_mock_time(main)


def test_a_result_that_is_an_exception_is_raised_to_its_caller(run: Runner) -> None:
    async def main() -> list[Any]:
        async with Batcher(look_up, max_batch=3, max_wait=60) as batcher:
            outcomes = await all_of(batcher, asked(1), asked(2, "returned"), asked(3))
        assert batcher.statistics().reruns == 0
        return outcomes

    outcomes = run(main)
    assert outcomes[0::2] == [1, 9]
    assert isinstance(outcomes[1], PoisonError)


def test_an_error_that_several_requests_share_keeps_its_traceback_short(run: Runner) -> None:
    def lose(requests: list[int]) -> Any:
        raise DeviceLostError("gone")

    async def main() -> list[Any]:
        async with Batcher(lose, max_batch=20, max_wait=60) as batcher:
            outcomes = await all_of(batcher, *range(20))
        assert batcher.statistics().batches == 1  # a lost device is not tried again
        return outcomes

    outcomes = run(main)
    assert {str(outcome) for outcome in outcomes} == {"gone"}
    depth, trace = 0, outcomes[0].__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 10


@pytest.mark.parametrize(
    ("run_batch", "words"),
    [
        (lambda requests: value([1]), "got 2 requests, and its operation yields 1 results"),
        (lambda requests: value(None), "yields NoneType; it must yield a list, a tuple or an array"),
        (lambda requests: value(np.float64(3)), "yields float64; it must yield a list"),
        (lambda requests: value("ab"), "yields str; it must yield a list"),
        (lambda requests: value({0: "a", 1: "b"}), "yields dict; it must yield a list"),
        (lambda requests: h2d(np.zeros(2)), "it must yield results on the host: end it with d2h"),
        (lambda requests: [1, 2], r"returned list; it must return an operation .* value\(results\) makes one"),
    ],
)
def test_a_wrong_run_is_said_to_all_and_not_repeated(run: Runner, run_batch: Any, words: str) -> None:
    called = []

    def counted(requests: list[int]) -> Any:
        called.append(len(requests))
        return run_batch(requests)

    async def main() -> list[Any]:
        async with Batcher(counted, max_batch=2, max_wait=60) as batcher:
            return await all_of(batcher, 1, 2)

    for error in run(main):
        with pytest.raises(TypeError, match=words):
            raise error
    assert called == [2]


def test_an_async_run_is_refused_with_what_to_write(run: Runner) -> None:
    async def run_batch(requests: list[int]) -> list[int]:
        return requests

    async def main() -> None:
        async with Batcher(run_batch) as batcher:  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"the coroutine .*run_batch; it must be an ordinary function that"):
                await batcher(1)

    run(main)


@pytest.mark.filterwarnings("ignore:.* was never run:RuntimeWarning")  # what the coroutine would have awaited
def test_a_run_that_returns_gathers_coroutine_is_told_of_zip(run: Runner) -> None:
    async def main() -> None:
        async with Batcher(lambda requests: oxide.gather(*map(value, requests))) as batcher:  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"the coroutine gather; .* zip makes one where gather awaits them"):
                await batcher(1)
        async with Batcher(lambda requests: oxide.zip(*map(value, requests))) as batcher:
            assert await batcher(1) == 1

    run(main)


def test_a_batch_too_large_for_the_memory_is_halved(run: Runner) -> None:
    recorded = Recorded()

    def run_batch(requests: list[int]) -> DeviceOperation[list[int]]:
        if len(requests) > 2:
            recorded.batches.append(requests)
            raise OutOfMemoryError("full")
        return recorded(requests)

    async def main() -> list[Any]:
        async with Batcher(run_batch, max_batch=8, max_wait=60) as batcher:
            return await all_of(batcher, *range(8))

    assert run(main) == [10 * number for number in range(8)]
    assert [len(batch) for batch in recorded.batches] == [8, 4, 2, 2, 4, 2, 2]


def test_a_batch_without_memory_waits_for_the_batch_before_it() -> None:
    in_use = []
    batches = []

    def run_batch(requests: list[int]) -> DeviceOperation[Any]:
        batches.append(list(requests))
        if in_use:
            raise OutOfMemoryError("full")
        in_use.append(1)
        return d2h(h2d(np.array(requests)))

    async def main() -> list[Any]:
        with use_driver(step_driver(), completion="callback") as driver:
            outcomes: list[Any] = []

            async def ask(batcher: Any, number: int) -> None:
                outcomes.append(await batcher(number))

            def release(report: BatchReport) -> None:
                if report.error is None:
                    in_use.clear()

            options: dict[str, Any] = {"max_batch": 1, "max_in_flight": 2, "on_batch": release}
            async with Batcher(run_batch, **options) as batcher, trio.open_nursery() as nursery:
                for number in (1, 2, 3, 4):
                    nursery.start_soon(ask, batcher, number)
                    await wait_all_tasks_blocked()
                assert batches == [[1], [2]]
                assert not outcomes
                while len(outcomes) < 4:
                    driver.run_until_idle()
                    await wait_all_tasks_blocked()
            return outcomes

    assert sorted(in_mock_time(main)) == [1, 2, 3, 4]
    assert batches[:3] == [[1], [2], [2]]  # a later batch takes no memory from one that waits for it


# The block


def test_the_end_of_the_block_answers_all_without_the_wait() -> None:
    recorded = Recorded()
    outcomes: list[int] = []

    async def main() -> None:
        async def ask(number: int) -> None:
            outcomes.append(await batcher(number))

        async with trio.open_nursery() as nursery:
            async with Batcher(recorded, max_batch=2, max_wait=1000, max_in_flight=1) as batcher:
                for number in (1, 2, 3):
                    nursery.start_soon(ask, number)
                    await wait_all_tasks_blocked()
            with pytest.raises(BatcherClosedError, match="has ended, and it takes no more"):
                await batcher(4)

    trio.run(main, clock=MockClock())  # its time stands still
    assert sorted(outcomes) == [10, 20, 30]
    assert recorded.batches == [[1, 2], [3]]


def test_an_exception_in_the_block_is_raised_as_it_is_and_ends_the_requests(run: Runner) -> None:
    async def trio_main() -> Any:
        outcomes: list[Any] = []

        async def ask() -> None:
            try:
                await batcher(1)
            except OperationCancelledError as error:
                outcomes.append(error)

        async with trio.open_nursery() as nursery:
            with pytest.raises(ZeroDivisionError):
                async with Batcher(Recorded(), max_wait=100) as batcher:
                    nursery.start_soon(ask)
                    await wait_all_tasks_blocked()
                    raise ZeroDivisionError
        return outcomes[0]

    async def asyncio_main() -> Any:
        with pytest.raises(ZeroDivisionError):
            async with Batcher(Recorded(), max_wait=100) as batcher:
                task = asyncio.create_task(batcher(1))
                await asyncio.sleep(0)
                raise ZeroDivisionError
        return (await asyncio.gather(task, return_exceptions=True))[0]

    outcome = run(trio_main if run is trio.run else asyncio_main)
    assert isinstance(outcome, OperationCancelledError)
    assert "the batcher's block ended by an exception or a cancellation" in str(outcome)


def test_a_cancelled_drain_of_asyncio_ends_the_requests() -> None:
    async def main() -> None:
        with use_driver(step_driver(), completion="callback"):
            asked: list[asyncio.Task[Any]] = []

            async def serve() -> None:
                async with Batcher(lambda rows: d2h(h2d(np.array(rows))), max_batch=1, max_in_flight=1) as batcher:
                    asked.extend(asyncio.create_task(batcher(number)) for number in range(3))
                    await asyncio.sleep(0.01)

            task = asyncio.create_task(serve())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [OperationCancelledError] * 3

    asyncio.run(main())


def test_calls_where_no_batcher_runs_are_refused(run: Runner) -> None:
    batcher = Batcher(Recorded())

    async def main() -> None:
        with pytest.raises(BatcherClosedError, match="has not begun: call it inside `async with Batcher"):
            await batcher(1)
        async with batcher:
            assert await batcher(1) == 10
        with pytest.raises(BatcherClosedError):
            await batcher(1)
        with pytest.raises(RuntimeError, match="entered once"):
            async with batcher:
                pass
        other = Batcher(Recorded())
        async with other:
            with pytest.raises(RuntimeError, match="outside the event loop in which its block was entered"):
                await trio.to_thread.run_sync(trio.run, other, 1) if run is trio.run else await asyncio.to_thread(
                    lambda: asyncio.run(other(1))
                )

    run(main)
    with pytest.raises(NoEventLoopError):
        Batcher(Recorded()).__aenter__().send(None)


# What is seen from outside


def test_each_run_is_reported(run: Runner) -> None:
    reports: list[BatchReport] = []

    async def main() -> None:
        options: dict[str, Any] = {"max_batch": 2, "max_wait": 60, "cost": lambda _: 2, "max_cost": 9}
        async with Batcher(look_up, on_batch=reports.append, **options) as batcher:
            await all_of(batcher, asked(1), asked(2, "fault"))

    run(main)
    assert [(report.size, report.cost, type(report.error)) for report in reports] == [
        (2, 4.0, BoundsError),
        (1, 2.0, type(None)),
        (1, 2.0, BoundsError),
    ]
    assert [report.device_seconds is None for report in reports] == [True, False, True]
    assert all(0 <= (report.device_seconds or 0) <= report.seconds for report in reports)


def test_an_error_of_the_hook_goes_to_the_unraisable_hook(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)

    def fail(report: BatchReport) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with Batcher(Recorded(), on_batch=fail) as batcher:
            assert await batcher(1) == 10

    run(main)
    assert [one.exc_type for one in ignored] == [ZeroDivisionError]


def test_statistics_count_every_request(run: Runner) -> None:
    async def main() -> Any:
        async with Batcher(look_up, max_batch=3, max_wait=60) as batcher:
            await all_of(batcher, asked(1), asked(2, "raise"), asked(3))
        return batcher.statistics()

    found = run(main)
    assert (found.accepted, found.answered, found.failed, found.batches, found.reruns) == (3, 2, 1, 5, 4)
    assert found.batch_sizes == {1: 3, 2: 1, 3: 1}
    assert 0 < found.wait_p50 <= found.wait_p99 < found.latency_p99 < 60
    assert 0 <= found.device_p50 <= found.device_p99 < 60


def test_metrics_are_prometheus_text(run: Runner) -> None:
    async def main() -> str:
        async with Batcher(Recorded(), max_batch=6, name='a "b"') as batcher:
            await all_of(batcher, 1, 2, 3)
            return batcher.metrics()

    found: dict[str, float] = {}
    for line in run(main).splitlines():
        if not line.startswith("#"):
            sample, _, number = line.rpartition(" ")
            found[sample.replace(r'batcher="a \"b\""', "")] = float(number)
    assert found['oxide_batcher_requests_total{,outcome="answered"}'] == 3
    sizes = [found[f'oxide_batcher_batch_size_bucket{{,le="{bound}"}}'] for bound in (1, 2, 4, 6, "+Inf")]
    assert sizes == sorted(sizes)
    assert sizes[-1] == found["oxide_batcher_batch_size_count{}"]
    assert found["oxide_batcher_batch_size_sum{}"] == 3
    assert found["oxide_batcher_latency_seconds_count{}"] == 3
    assert 0 < found['oxide_batcher_latency_seconds{,quantile="0.99"}'] < 60


def test_an_answered_request_is_kept_by_nobody(run: Runner) -> None:
    class Request:
        pass

    def run_batch(requests: list[Any]) -> DeviceOperation[list[Any]]:
        return value([PoisonError() if number % 2 else number for number in range(len(requests))])

    async def main() -> list[Any]:
        async with Batcher(run_batch, max_batch=4, max_wait=60) as batcher:
            requests = [Request() for _ in range(8)]
            gone = [weakref.ref(request) for request in requests]
            await all_of(batcher, *requests)
            del requests
            gc.collect()
            return [one() for one in gone]

    assert run(main) == [None] * 8


# Arguments


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"run": 3}, TypeError, "takes a function of a list of requests, or Buckets, not int"),
        ({"max_batch": 0}, ValueError, r"max_batch=0\): it must be an integer of 1 or more"),
        ({"max_batch": True}, ValueError, "max_batch=True"),
        ({"max_queue": 1.5}, ValueError, "max_queue=1.5"),
        ({"max_in_flight": -1}, ValueError, "max_in_flight=-1"),
        ({"max_wait": -0.1}, ValueError, r"max_wait=-0.1\): it must be a number of 0 or more"),
        ({"max_wait": float("nan")}, ValueError, "max_wait=nan"),
        ({"max_wait": "1"}, ValueError, "max_wait='1'"),
        ({"when_full": "drop"}, ValueError, "when_full='drop'"),
        ({"cost": len}, ValueError, "cost and max_cost together"),
        ({"max_cost": 3}, ValueError, "cost and max_cost together"),
        ({"cost": 3, "max_cost": 3}, TypeError, "takes a function of a request, not int"),
        ({"key": 3}, TypeError, r"Batcher\(key=…\) takes a function of a request, not int"),
        ({"reruns": -1}, ValueError, r"reruns=-1\): it must be an integer of 0 or more, or None"),
        ({"reruns": True}, ValueError, r"reruns=True\)"),
        ({"reruns": 1.0}, ValueError, r"reruns=1\.0\)"),
        ({"ageing": 0}, ValueError, r"ageing=0\): it must be a number of seconds above 0, or math\.inf"),
        ({"ageing": float("nan")}, ValueError, "ageing=nan"),
        ({"ageing": "1"}, ValueError, "ageing='1'"),
        ({"policy": 3}, TypeError, r"a method next_stream\(device\), not int"),
        ({"on_batch": 3}, TypeError, "takes a function of a report, not int"),
        ({"on_batch": trio.sleep}, TypeError, "takes an ordinary function, not an async one"),
        ({"name": 3}, TypeError, r"Batcher\(name=…\) takes a str, not int"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Batcher(**{"run": Recorded(), **arguments})


def test_wrong_arguments_of_a_call_are_refused(run: Runner) -> None:
    async def main() -> None:
        async with Batcher(Recorded()) as batcher:
            with pytest.raises(ValueError, match="a number of seconds of 0 or more, not -1"):
                await batcher(1, timeout=-1)
            with pytest.raises(TypeError, match="a request's priority is an integer, not str"):
                await batcher(1, priority="high")  # type: ignore[arg-type]
        assert batcher.statistics().accepted == 0

    run(main)
