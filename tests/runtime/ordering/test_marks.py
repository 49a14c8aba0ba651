"""Marks: what is said of a point in a stream, and when an event has to be recorded for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import oxide
from oxide import DisjointSlice, Slice, Stream, d2h, f32, h2d, kernel, memcpy, thread, value, with_context, zeros
from oxide.driver.cpu import CpuDriver
from oxide.errors import DriverError
from oxide.runtime.ordering.timeline import Mark
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver


def marks(stream: Stream) -> list[Mark]:
    return list(stream._timeline._marks)


def test_work_that_is_waited_for_before_more_follows_takes_no_event() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        stream = oxide.devices()[0].new_stream()
        box = zeros(33).sync_on(stream)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                handle = oxide.spawn(nursery, d2h(box).schedule(oxide.SingleStream()))
                await trio.testing.wait_all_tasks_blocked()
                driver.run_until_idle()
                np.testing.assert_array_equal(await handle, np.ones(33))

        memcpy(box, np.ones(33, np.float32)).sync_on(stream)
        driver.clear()
        trio.run(main)
        assert driver.count("record_event") == 1  # for the callback: the device took longer than the loop waits

    with use_driver(RecordingDriver(CpuDriver()), completion="poll") as quick:
        box = zeros(33).sync()
        quick.clear()

        async def again() -> None:
            for _ in range(3):
                await memcpy(box, np.ones(33, np.float32))

        trio.run(again)
        assert quick.count("query_stream") >= 3
        assert quick.count("record_event") == 0


@pytest.mark.parametrize(
    "follow",
    [
        lambda stream: zeros(4).async_on(stream),
        lambda stream: stream.launch_host_function(lambda: None),
        lambda stream: stream.wait(oxide.devices()[0].new_stream().record_event()),
    ],
    ids=["operation", "host function", "wait"],
)
def test_what_follows_leaves_the_end_of_what_was_before_where_it_was(follow: Callable[[Stream], Any]) -> None:
    with use_driver(step_driver()) as driver:
        stream = oxide.devices()[0].new_stream()
        first = zeros(4).async_on(stream)
        (mark,) = marks(stream)
        assert mark.event is None
        follow(stream)
        assert mark.event is not None
        while not driver.query_event(mark.event):
            assert not mark.passed()
            driver.step()
        assert mark.passed()
        assert not stream.query()  # what follows is still to come
        driver.run_until_idle()
        assert first.shape == (4,)


def test_a_stream_that_another_library_knows_has_an_event_for_each_mark() -> None:
    with use_driver(step_driver()) as driver:
        stream = oxide.devices()[0].new_stream()
        value(1).async_on(stream)
        assert marks(stream)[-1].event is None
        with_context(lambda context: value(context.stream.handle)).async_on(stream)
        assert [mark.event is None for mark in marks(stream)] == [False, False]
        driver.run_until_idle()


def test_a_thread_waits_for_its_operation_and_not_for_what_is_submitted_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with use_driver(CpuDriver()) as driver:
        stream, done = oxide.devices()[0].new_stream(), threading.Event()
        wait = driver.synchronize_event

        def after_another_thread_has_submitted(event: Any) -> None:
            other = threading.Thread(target=lambda: stream.launch_host_function(lambda: done.wait(60) and None))
            other.start()
            other.join()
            wait(event)

        monkeypatch.setattr(driver, "synchronize_event", after_another_thread_has_submitted)
        zeros(4).sync_on(stream)
        assert not stream.query()
        done.set()
        stream.synchronize()


def test_synchronising_a_stream_is_seen_by_who_asks_later() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        stream, other = oxide.devices()[0].new_stream(), oxide.devices()[0].new_stream()
        box = h2d(np.ones(31)).async_on(stream)
        stream.synchronize()
        driver.clear()
        d2h(box).async_on(other)
        d2h(box).async_on(stream)
        assert driver.count("wait_event", "record_event", "query_event", "query_stream") == 0
        driver.run_until_idle()


def test_an_event_that_cannot_be_recorded_refuses_what_follows_and_not_what_was_before() -> None:
    with use_driver(FailingDriver(step_driver())) as driver:
        stream = oxide.devices()[0].new_stream()
        first = d2h(h2d(np.arange(5.0)).async_on(stream)).async_on(stream)
        driver.fail("record_event", DriverError(999, "CUDA_ERROR_UNKNOWN", "injected"))
        free = len(oxide.devices()[0].spare_events)
        with pytest.raises(DriverError, match="injected"):
            zeros(4).async_on(stream)
        assert len(oxide.devices()[0].spare_events) == free + 1  # the event that was made is not lost
        stream.synchronize()
        np.testing.assert_array_equal(first, np.arange(5.0))
        zeros(4).sync_on(stream)


@given(st.lists(st.sampled_from(["submit", "submit beside", "wait", "step", "ask", "host", "name"]), max_size=40))
def test_a_mark_is_passed_when_its_work_has_run_and_not_before(actions: list[str]) -> None:
    """Whatever is done between: no mark is said to be passed while work before it is outstanding, and none is denied
    once its stream has run dry."""
    with use_driver(step_driver()) as driver:
        stream, beside = oxide.devices()[0].new_stream(), oxide.devices()[0].new_stream()
        ran: list[int] = []
        known: list[tuple[Mark, int, list[int]]] = []
        submitted = {stream: 0, beside: 0}
        done: dict[Stream, list[int]] = {stream: [], beside: []}
        boxes = []
        for action in actions:
            if action in ("submit", "submit beside"):
                on = stream if action == "submit" else beside
                submitted[on] += 1
                number = submitted[on]
                on.launch_host_function(lambda on=on, number=number: done[on].append(number))  # type: ignore[misc]
                boxes.append(zeros(1).async_on(on))
                known.append((marks(on)[-1], number, done[on]))
            elif action == "wait":
                beside.join(stream)
            elif action == "host":
                stream.launch_host_function(lambda: ran.append(1))
            elif action == "name":
                _ = stream.handle
            elif action == "step":
                driver.step()
            for mark, number, finished in known:
                if mark.passed():
                    assert number in finished
        driver.run_until_idle()
        assert all(mark.passed() for mark, _, _ in known)


def test_threads_that_share_a_stream_lose_no_operation_and_no_error() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns in the middle of everything
    try:
        with use_driver(CpuDriver()):
            stream, errors = oxide.devices()[0].new_stream(), []

            def submit() -> None:
                try:
                    for number in range(400):
                        zeros(4).async_on(stream)
                        if number % 10 == 0:
                            stream.query()
                except Exception as error:
                    errors.append(error)

            workers = [threading.Thread(target=submit) for _ in range(8)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            stream.synchronize()
            counted = oxide.statistics()
            assert not errors
            assert (counted.submitted, counted.completed, counted.cancelled) == (3200, 3200, 0)
    finally:
        sys.setswitchinterval(interval)


@kernel(block=32)
def pick(table: Slice[f32], x: DisjointSlice[f32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = table[100]


def test_of_several_operations_that_failed_the_first_is_raised_and_says_how_many_there_were() -> None:
    stream, table = oxide.devices()[0].new_stream(), zeros(4).sync()
    kept = [pick(table, zeros(4)).async_on(stream) for _ in range(4)]
    with pytest.raises(oxide.BoundsError) as raised:
        stream.synchronize()
    assert "3 more operations on the stream failed" in raised.value.__notes__
    stream.synchronize()
    assert len(kept) == 4


def test_what_is_no_stream_is_not_joined() -> None:
    stream, other = oxide.devices()[0].new_stream(), oxide.devices()[0].new_stream()
    for wrong in (3, other.record_event()):
        with pytest.raises(TypeError, match="a stream joins a Stream, not"):
            stream.join(wrong)  # type: ignore[arg-type]


def test_a_stream_asks_after_few_of_what_async_on_submitted_and_lets_go_of_what_is_over() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        stream = oxide.devices()[0].new_stream()
        loose = stream._loose._submissions

        def asked(number: int) -> int:
            before = driver.count("query_event", "query_stream")
            for _ in range(number):
                zeros(1).async_on(stream)
            return driver.count("query_event", "query_stream") - before

        asked(100)  # none of which is over
        assert len(loose) == 100
        assert asked(100) <= 4 * 100 / 8
        driver.inner.run_until_idle()  # type: ignore[attr-defined]
        asked(8)
        assert len(loose) <= 16
        stream.synchronize()
        assert not stream._loose._submissions
        asked(5)
        driver.inner.run_until_idle()  # type: ignore[attr-defined]
        asked(8)
        assert len(stream._loose._submissions) <= 16


def test_a_stream_that_only_serves_as_a_branch_forgets_its_marks() -> None:
    """No thread ever waits for one of them: a run ends with the stream that waits for the branch."""
    with use_driver(CpuDriver()):
        table = zeros(101).sync()
        pair = oxide.planned(oxide.zip(pick(table, zeros(1)), pick(table, zeros(1))))
        for _ in range(300):
            pair.sync()
        assert max(len(timeline._marks) for timeline in oxide.devices()[0].timelines) <= 70


def test_a_stream_that_another_joins_again_and_again_forgets_its_marks() -> None:
    with use_driver(CpuDriver()):
        stream, other = oxide.devices()[0].new_stream(), oxide.devices()[0].new_stream()
        for _ in range(300):
            other.launch_host_function(lambda: None)
            stream.join(other)
            stream.synchronize()
        assert len(marks(other)) <= 70
