"""The completion policy: how long waits lasted is learned for each stream, and bounds what the next one polls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import oxide
from oxide.driver.cpu import CpuDriver
from oxide.runtime.awaiting import completion
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.loop.pace import POLL_SECONDS, SPIN_SECONDS, Pace
from oxide.testing import RecordingDriver, step_driver, use_driver
from tests.on_stream import On


def test_a_stream_that_was_never_waited_on_polls_with_the_whole_budget_and_does_not_spin() -> None:
    assert Pace().budget() == POLL_SECONDS
    assert Pace().spin_budget == 0


def test_short_waits_make_a_stream_spin_and_long_ones_make_it_park_at_once() -> None:
    pace = Pace()
    for _ in range(4):
        pace.learn(5e-6, 5e-6, parked=False)
    assert pace.spin_budget == SPIN_SECONDS
    for _ in range(2):
        pace.learn(0.1, 0, parked=True)
    assert pace.budget() == pace.spin_budget == 0
    for _ in range(3):  # parked short waits: what parking costs is taken off
        pace.learn(45e-6, 0, parked=True)
    assert pace.budget() > 0


def test_one_wait_in_sixteen_polls_though_the_stream_parks_since_its_work_may_have_become_short() -> None:
    pace = Pace()
    for _ in range(5):
        pace.learn(1, 0, parked=True)
    assert [pace.budget() for _ in range(32)] == 2 * ([0] * 15 + [POLL_SECONDS])


@given(st.lists(st.tuples(st.floats(0, 3600), st.booleans())))
def test_no_history_lets_a_wait_poll_or_spin_for_longer_than_the_bounds(history: list[tuple[float, bool]]) -> None:
    pace = Pace()
    for seconds, parked in history:
        pace.learn(seconds, 0, parked=parked)
        assert 0 <= pace.spin_budget <= SPIN_SECONDS
        assert 0 <= pace.poll_budget <= pace.budget() <= POLL_SECONDS
    assert pace.waits == len(history)
    assert pace.parked == sum(parked for _, parked in history)


@given(st.floats(0, 3600))
def test_whatever_came_before_is_forgotten_within_a_few_waits(seconds: float) -> None:
    pace = Pace()
    for _ in range(10):
        pace.learn(seconds, 0, parked=False)
    for _ in range(5):
        pace.learn(0, 0, parked=False)
    assert pace.spin_budget == SPIN_SECONDS


def queries_before_parking(driver: RecordingDriver, expected: float) -> int:
    """Awaits an operation on a stream whose waits are taken to last ``expected``; steps the device once the task
    sleeps. How often the event was asked before the callback was submitted."""
    stream = oxide.devices()[0].new_stream()
    stream._timeline.pace.expected = expected

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            handle = oxide.spawn(nursery, oxide.zeros(4).schedule(On(stream)))
            await trio.testing.wait_all_tasks_blocked()
            driver.run_until_idle()
            await handle

    trio.run(main)
    methods = [call.method for call in driver.calls]
    asked = methods[: methods.index("launch_native_host_function")]
    return asked.count("query_event") + asked.count("query_stream")


def test_a_wait_on_a_stream_of_long_work_parks_after_one_look() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        assert queries_before_parking(driver, 2 * POLL_SECONDS) == 1


def test_a_wait_on_a_stream_of_short_work_spins_then_polls_until_its_budget_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter(range(10**9))
    monkeypatch.setattr(completion.time, "perf_counter", lambda: next(ticks) * 1e-6)  # a µs a look
    with use_driver(RecordingDriver(step_driver())) as driver:
        # The budget is twice the expected 4 µs and the 10 µs that a wait may spin.
        assert 10 <= queries_before_parking(driver, 4e-6) <= 20


def test_spinning_gives_way_to_other_tasks_once_its_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**9))
    monkeypatch.setattr(completion.time, "perf_counter", lambda: next(ticks) * 1e-6)
    turns = 0
    with use_driver(RecordingDriver(step_driver())) as driver:
        stream = oxide.devices()[0].new_stream()
        stream._timeline.pace.expected = 5e-6

        async def other() -> None:
            nonlocal turns
            for _ in range(5):
                turns += 1
                await trio.lowlevel.checkpoint()
            driver.run_until_idle()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other)
                await oxide.zeros(4).schedule(On(stream))

        trio.run(main)
    assert turns == 5


def test_time_that_other_tasks_take_between_two_looks_does_not_count_as_polling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1e-6
        return now

    monkeypatch.setattr(completion.time, "perf_counter", clock)
    with use_driver(step_driver()) as driver:
        stream = oxide.devices()[0].new_stream()

        async def busy() -> None:
            nonlocal now
            for _ in range(3):
                now += 1.0
                await trio.lowlevel.checkpoint()
            driver.run_until_idle()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(busy)
                await oxide.zeros(4).schedule(On(stream))

        trio.run(main)
        assert now > 3
        assert oxide.statistics().polling_seconds <= POLL_SECONDS


def test_statistics_count_what_was_submitted_completed_and_cancelled() -> None:
    with use_driver(step_driver()) as driver:
        before = oxide.statistics()
        assert (before.submitted, before.completed, before.cancelled, before.in_flight) == (0, 0, 0, 0)
        oxide.zeros(8).sync()
        pending = oxide.zeros(8).into_future()
        pending.start()
        assert oxide.statistics().in_flight == 1
        del pending
        driver.run_until_idle()
        after = oxide.statistics()
        assert (after.submitted, after.completed, after.cancelled, after.in_flight) == (2, 1, 1, 0)


def completed_and_cancelled() -> tuple[int, int, int]:
    seen = oxide.statistics()
    return seen.completed, seen.cancelled, seen.in_flight


@pytest.mark.parametrize("look", ["synchronize", "query"])
def test_runs_that_an_event_shows_to_be_over_count_as_completed_although_nobody_asked_for_them(look: str) -> None:
    with use_driver(step_driver()) as driver:
        stream = oxide.devices()[0].new_stream()
        for _ in range(8):
            oxide.zeros(4).async_on(stream)
        event = stream.record_event()
        assert completed_and_cancelled() == (0, 0, 8)
        driver.run_until_idle()
        getattr(event, look)()
        assert completed_and_cancelled() == (8, 0, 0)
        del stream  # with its results: they were over before
        oxide.reclaim.drain()
        assert completed_and_cancelled() == (8, 0, 0)


def test_updates_of_a_graph_whose_launch_is_over_count_as_completed() -> None:
    with use_driver(CpuDriver()):
        box = oxide.zeros(4).sync()
        graph = oxide.dup(box).graph()
        for _ in range(4):
            graph.update(oxide.memcpy(box, np.ones(4, np.float32)))
            graph.launch().sync_on(graph.stream)
        assert completed_and_cancelled() == (9, 0, 0)
        del graph
        oxide.reclaim.drain()
        assert completed_and_cancelled() == (9, 0, 0)


class Table(dict[Any, Any]):
    """The submissions that are held. Calls a function once, as one of them has just been taken out."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.functions = [function]

    def pop(self, *arguments: Any) -> Any:
        taken = super().pop(*arguments)
        while self.functions:
            self.functions.pop()()
        return taken


def test_a_run_whose_result_another_thread_has_is_counted() -> None:
    seen = list[tuple[int, int, int]]()

    def ask() -> None:
        future.outcome()
        seen.append(completed_and_cancelled())

    def let_the_other_ask_first() -> None:
        other.start()
        other.join(0.1)  # it may have to wait for this thread

    with use_driver(step_driver()) as driver:
        current_runtime().reclaimer._in_flight = Table(let_the_other_ask_first)
        future = oxide.zeros(8).into_future()
        future.start()
        driver.run_until_idle()
        assert future.submission is not None
        assert future.submission.mark.passed()
        other = threading.Thread(target=ask)
        future.outcome()
        other.join()
        assert seen == [(1, 0, 0)]


def test_statistics_tell_waits_that_were_needed_from_those_that_were_not() -> None:
    with use_driver(step_driver()) as driver:
        one, other, third = (oxide.devices()[0].new_stream() for _ in range(3))
        box = oxide.h2d(np.ones(4, np.float32)).async_on(one)
        oxide.d2h(box).async_on(other)  # on its way: needs a wait
        assert (oxide.statistics().waits_inserted, oxide.statistics().waits_avoided) == (1, 0)
        oxide.d2h(box).async_on(other)  # ordered after it already
        assert (oxide.statistics().waits_inserted, oxide.statistics().waits_avoided) == (1, 1)
        driver.run_until_idle()
        one.synchronize()
        other.synchronize()
        oxide.d2h(box).async_on(third)
        assert oxide.statistics().waits_avoided + oxide.statistics().waits_inserted == 3


def test_statistics_show_each_streams_learned_budget_and_the_pools() -> None:
    with use_driver(step_driver(), policy=oxide.SingleStream(), completion="poll"):
        result = oxide.h2d(np.ones(4, np.float32)).to_host().sync()
        del result
        oxide.statistics()
        shown = oxide.statistics()
        (stream,) = shown.streams
        assert (stream.device, stream.waits, stream.parked) == ("cpu:0", 0, 0)
        assert stream.poll_budget_us == pytest.approx(POLL_SECONDS * 1e6)
        assert shown.streams_made == 1
        assert shown.pinned_bytes_free >= 4096


def test_counters_are_exact_when_several_threads_count() -> None:
    from oxide.runtime.devices.runtime import Counter

    counter = Counter()
    threads = [threading.Thread(target=lambda: [counter.add() for _ in range(10_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 40_000
    assert counter.value == 40_000  # reading does not count


def test_a_gather_finds_the_end_of_many_operations_with_few_questions_to_the_driver() -> None:
    with use_driver(RecordingDriver(step_driver()), policy=oxide.SingleStream()) as driver:

        async def main() -> None:
            async with trio.open_nursery() as nursery:

                async def run() -> None:
                    await oxide.gather(*[oxide.zeros(4) for _ in range(256)])

                nursery.start_soon(run)
                await trio.testing.wait_all_tasks_blocked()
                driver.run_until_idle()
                driver.clear()

        trio.run(main)
        assert driver.count("query_event", "query_stream") < 64


def test_a_gather_of_finished_operations_still_gives_other_tasks_their_turns() -> None:
    turns = 0
    with use_driver(step_driver(), policy=oxide.SingleStream()) as driver:

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async def main() -> None:
            futures = [oxide.zeros(4).into_future() for _ in range(64)]
            for future in futures:
                future.start()
            driver.run_until_idle()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other)
                await oxide.gather(*futures)
                nursery.cancel_scope.cancel()

        trio.run(main)
    assert turns >= 64 // 16 - 1
