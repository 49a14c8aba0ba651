"""shared() used by several threads and event loops at once; errors that several consumers get."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from oxide import DeviceOperation, as_completed, d2h, gather, h2d, spawn, value, zeros
from oxide.host.core import current_turn

BOUND = 20  # seconds, for what must not hang


class Source:
    """A shared operation whose source stays in its function until ``open``."""

    def __init__(self, result: Callable[[], DeviceOperation[Any]] = lambda: h2d(np.arange(4.0))) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.calls = 0
        self._result = result
        self.shared = value(0).and_then(self._load).shared()
        self._thread = threading.Thread(target=self.shared.sync, daemon=True)

    def _load(self, _: object) -> DeviceOperation[Any]:
        self.calls += 1
        self.entered.set()
        assert self.open.wait(BOUND)
        return self._result()

    def run_in_a_thread(self) -> None:
        self._thread.start()
        assert self.entered.wait(BOUND)

    def end(self) -> None:
        self.open.set()
        self._thread.join(BOUND)
        assert not self._thread.is_alive()


def test_a_task_that_needs_a_source_that_another_thread_runs_lets_its_loop_go_on() -> None:
    source = Source()
    source.run_in_a_thread()
    ends: list[Any] = []

    async def consume(how: Callable[[], Any]) -> None:
        ends.append(await how())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, lambda: source.shared)
            nursery.start_soon(consume, lambda: source.shared.and_then(d2h))
            nursery.start_soon(consume, lambda: gather(value(1), source.shared))
            nursery.start_soon(consume, lambda: spawn(nursery, source.shared))
            nursery.start_soon(consume, lambda: as_completed([source.shared]).__anext__())
            await trio.testing.wait_all_tasks_blocked()
            assert ends == []  # and this loop runs
            source.end()
        assert len(ends) == 5
        assert source.calls == 1

    trio.run(main)


def test_a_source_that_needs_the_loop_that_awaits_it_is_no_deadlock() -> None:
    async def load() -> Any:
        await entered.wait()
        return np.arange(4.0)

    def ask(_: object) -> DeviceOperation[Any]:
        started.set()
        return h2d(trio.from_thread.run(load))

    async def main() -> None:
        shared = value(0).and_then(ask).shared()
        with trio.fail_after(BOUND):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, shared.sync)
                await trio.to_thread.run_sync(started.wait, BOUND)
                nursery.start_soon(awaited, shared)
                await trio.testing.wait_all_tasks_blocked()
                entered.set()

    async def awaited(shared: DeviceOperation[Any]) -> None:
        assert list(await shared.and_then(d2h)) == [0, 1, 2, 3]

    started, entered = threading.Event(), trio.Event()
    trio.run(main)


@pytest.mark.parametrize(
    "consume",
    [
        lambda shared: shared.into_future(),
        lambda shared: gather(shared),
        lambda shared: as_completed([shared]).__anext__(),
    ],
    ids=["await", "gather", "as_completed"],
)
def test_a_loop_that_goes_on_in_another_thread_while_a_task_waits_to_submit_is_kept_by_nobody(
    consume: Callable[[DeviceOperation[Any]], Any],
) -> None:
    source = Source()
    source.run_in_a_thread()
    loop = asyncio.new_event_loop()
    ended: list[bool] = []

    async def awaited() -> None:
        await consume(source.shared)

    async def main(task: asyncio.Task[None]) -> None:
        for _ in range(100):  # the loop runs while another thread runs the source
            await asyncio.sleep(0)
        assert not task.done()
        source.end()
        await task
        ended.append(True)

    turn = current_turn()
    try:
        turn.spent = 1.0  # so that the task waits for another turn
        task = loop.create_task(awaited())
        loop.call_soon(loop.stop)
        loop.run_forever()
        other = threading.Thread(target=lambda: loop.run_until_complete(main(task)), daemon=True)
        other.start()
        other.join(BOUND)
        assert ended
        assert not turn.gives_up
    finally:
        turn.next()
        source.open.set()
    loop.close()


def test_waiting_for_another_threads_source_can_be_cancelled_and_awaited_again() -> None:
    source = Source()
    source.run_in_a_thread()

    async def main() -> None:
        future = source.shared.into_future()
        with trio.move_on_after(0.01) as scope:
            await future
        assert scope.cancelled_caught
        source.end()
        assert list(await d2h(await future)) == [0, 1, 2, 3]

    trio.run(main)
    assert source.calls == 1


def test_asyncio_waits_for_another_threads_source_without_blocking() -> None:
    source = Source()
    source.run_in_a_thread()

    async def main() -> None:
        async def consume() -> Any:
            return await source.shared.and_then(d2h)

        task = asyncio.create_task(consume())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        source.end()
        assert list(await task) == [0, 1, 2, 3]

    asyncio.run(main())


def test_a_thread_waits_for_another_threads_source_and_gets_its_result_or_its_error() -> None:
    def fail() -> DeviceOperation[Any]:
        raise KeyError("no such thing")

    for source, expected in ((Source(), [0, 1, 2, 3]), (Source(fail), "no such thing")):
        outcomes: list[Any] = []

        def consume(source: Source = source, outcomes: list[Any] = outcomes) -> None:
            try:
                outcomes.append(list(d2h(source.shared).sync()))
            except KeyError as error:
                outcomes.append(error.args[0])

        first, second = (threading.Thread(target=consume, daemon=True) for _ in range(2))
        first.start()
        assert source.entered.wait(BOUND)
        second.start()
        source.open.set()
        for thread in (first, second):
            thread.join(BOUND)
            assert not thread.is_alive()
        assert outcomes == [expected, expected]
        assert source.calls == 1


def test_two_shared_operations_that_use_each_other_on_two_threads_end_with_an_error() -> None:
    meet = threading.Barrier(2, timeout=BOUND)
    passed: set[int] = set()
    operations: list[DeviceOperation[Any]] = []

    def uses(other: int) -> Callable[[Any], DeviceOperation[Any]]:
        def function(_: object) -> DeviceOperation[Any]:
            if other not in passed:  # once each
                passed.add(other)
                meet.wait()
            return operations[other]

        return function

    operations += [value(0).and_then(uses(1)).shared(), value(0).and_then(uses(0)).shared()]
    errors: list[str] = []

    def run(operation: DeviceOperation[Any]) -> None:
        try:
            operation.sync()
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run, args=(operation,), daemon=True) for operation in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive()
    assert len(errors) == 2
    assert "shared operations wait for each other" in errors[0]


@pytest.mark.parametrize("kind", ["future", "shared", "handle"])
def test_an_error_that_is_raised_again_and_again_keeps_the_traceback_of_its_first_raising(kind: str) -> None:
    lengths = set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            operation: DeviceOperation[Any] = zeros(1).map(lambda _: 1 // 0)
            if kind == "future":
                thing: Any = operation.into_future()
            else:
                thing = operation.shared() if kind == "shared" else spawn(nursery, operation, errors="handle")
            for _ in range(20):
                try:
                    await thing
                except ZeroDivisionError as error:
                    lengths.add(len(traceback.extract_tb(error.__traceback__)))
                    last = error
            assert traceback.extract_tb(last.__traceback__)[-1].line is not None
            assert "1 // 0" in str(traceback.extract_tb(last.__traceback__)[-1].line)

    trio.run(main)
    assert len(lengths) == 1 or max(lengths) - min(lengths) < 3


def test_an_operation_that_raises_stop_async_iteration_does_not_end_as_completed_silently() -> None:
    def stop(_: object) -> DeviceOperation[Any]:
        raise StopAsyncIteration

    async def main() -> None:
        seen = 0
        with pytest.raises(RuntimeError, match="raised StopAsyncIteration"):
            async for result in as_completed([value(1), value(2).and_then(stop), value(3)], limit=1):
                seen = result
        assert seen == 1

    trio.run(main)
