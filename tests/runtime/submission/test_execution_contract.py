"""What the users of cuda-async count on: execute once, error delivery, allocation, completion under odd wake-ups."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import oxide
from oxide import DeviceOperation, as_completed, d2h, dup, gather, h2d, spawn, unzip, value, with_context, zeros
from oxide.driver.cpu import CpuDriver
from oxide.runtime.awaiting.completion import Reactor
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver

# Execute once


def counted(runs: list[str], name: str, result: Any) -> DeviceOperation[Any]:
    return value(None).and_then(lambda _: runs.append(name) or value(result))


def test_a_diamond_runs_each_leaf_once_whichever_branch_comes_first() -> None:
    for order in ((0, 1), (1, 0)):
        runs: list[str] = []
        branches = unzip(oxide.zip(counted(runs, "a", 10), counted(runs, "b", 20)))
        follow = [branches[0].map(lambda x: x + 1), branches[1].map(lambda x: x + 2)]
        assert [follow[index].sync() for index in order] == [(11, 22)[index] for index in order]
        assert oxide.zip(*follow).sync() == (11, 22)
        assert runs == ["a", "b"]


def test_a_shared_operation_zipped_with_itself_runs_once() -> None:
    runs: list[str] = []
    source = counted(runs, "source", object()).shared()
    a, b, c = oxide.zip(source, source, source.map(lambda x: x)).sync()
    assert a is b is c
    assert runs == ["source"]


def test_a_failed_source_runs_once_and_every_task_gets_its_error() -> None:
    runs: list[int] = []

    def fail(_: object) -> DeviceOperation[int]:
        runs.append(1)
        raise ZeroDivisionError("once")

    source = value(1).and_then(fail).shared()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            handles = [spawn(nursery, source, errors="handle") for _ in range(10)]
        for handle in handles:
            with pytest.raises(ZeroDivisionError, match="once"):
                await handle

    trio.run(main)
    assert runs == [1]


def test_a_consumer_that_is_cancelled_takes_nothing_from_the_others() -> None:
    with use_driver(step_driver(), completion="callback") as driver:
        source = h2d(np.arange(5.0)).to_host().shared()
        results: list[Any] = []

        async def consume() -> None:
            results.append(await source)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as first:
                    async with trio.open_nursery() as impatient:
                        impatient.start_soon(consume)
                        await trio.testing.wait_all_tasks_blocked()
                        for _ in range(3):
                            nursery.start_soon(consume)
                        await trio.testing.wait_all_tasks_blocked()
                        first.cancel()
                assert results == []
                gc.collect()
                while len(results) < 3:
                    driver.step()
                    await trio.lowlevel.checkpoint()

        trio.run(main)
        for result in results:
            np.testing.assert_array_equal(result, np.arange(5.0))


# Error delivery


def test_an_error_says_which_stage_of_which_operation_and_where_its_function_is() -> None:
    def wrong(_: object) -> DeviceOperation[int]:
        raise ZeroDivisionError

    chain = h2d(np.ones(3)).map(lambda box: box).and_then(wrong).map(lambda x: x)
    with pytest.raises(ZeroDivisionError) as caught:
        oxide.zip(value(1), chain).sync()
    notes = caught.value.__notes__
    assert notes[0].startswith("in stage 3 of a chain, and_then(")
    assert "wrong at " in notes[0]
    assert f"{__file__}:{wrong.__code__.co_firstlineno}" in notes[0]
    assert notes[1] == "in part 2 of a zip of 2"
    assert len(notes) == 2


def test_an_error_of_the_driver_names_the_operation_and_a_function_of_with_context_its_place() -> None:
    with use_driver(FailingDriver(CpuDriver())) as driver:
        driver.fail("fill", oxide.DriverError(1, "CUDA_ERROR_INVALID_VALUE", "injected"))
        with pytest.raises(oxide.DriverError) as caught:
            value(7).and_then(lambda _: zeros(7)).sync()
        assert caught.value.__notes__[0] == "in <oxide operation full of 7 float32>"
        assert caught.value.__notes__[1].startswith("in stage 2 of a chain, and_then(")

        def broken(_: oxide.ExecutionContext) -> DeviceOperation[int]:
            raise ValueError

        with pytest.raises(ValueError) as found:
            with_context(broken).sync()
        assert "in with_context(" in found.value.__notes__[0]
        assert "broken at " in found.value.__notes__[0]


def test_a_failed_future_gives_its_error_at_every_await_and_submits_nothing_again() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:

        async def main() -> None:
            future = zeros(3).map(lambda _: 1 // 0).into_future()
            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    await future

        trio.run(main)
        assert driver.count("fill") == 1


# Allocation


def test_memory_that_was_dropped_is_used_again_and_none_is_handed_out_twice() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        stream = oxide.devices()[0].new_stream()
        for _ in range(100):
            boxes = [zeros(1000).async_on(stream) for _ in range(5)]
            spans = sorted((box.ptr, box.ptr + box.nbytes) for box in boxes)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
            del boxes
        stream.synchronize()
        oxide.reclaim.drain()
        assert driver.outstanding()["allocations"] == 0


# Completion


def test_spurious_wake_ups_end_no_wait_early() -> None:
    with use_driver(step_driver(), completion="callback") as driver:

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                handle = spawn(nursery, h2d(np.arange(4.0)).to_host())
                await trio.testing.wait_all_tasks_blocked()
                reactor: Reactor = oxide.runtime.awaiting.completion.reactor_of(
                    oxide.runtime.loop.event_loops.current_loop()
                )
                for _ in range(5):
                    reactor._alarm.ring()
                    reactor._look(oxide.runtime.loop.event_loops.current_loop())
                    await trio.testing.wait_all_tasks_blocked()
                    assert not handle.done()
                while not handle.done():
                    driver.step()
                    await trio.lowlevel.checkpoint()
            np.testing.assert_array_equal(await handle, np.arange(4.0))

        trio.run(main)


def test_a_wake_up_that_never_comes_is_made_up_for() -> None:
    """A lost CUDA device calls nobody back; here one callback is swallowed."""

    class Silent(RecordingDriver.__base__):  # type: ignore[misc]
        def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
            if method == "launch_native_host_function":
                return None
            return super().invoke(method, *arguments, **keywords)

    with use_driver(Silent(CpuDriver()), completion="callback"):

        async def main() -> None:
            opened = threading.Event()

            def hold(context: oxide.ExecutionContext) -> DeviceOperation[int]:
                context.stream.launch_host_function(opened.wait)  # type: ignore[arg-type]
                return value(5)

            async with trio.open_nursery() as nursery:
                handle = spawn(nursery, with_context(hold))
                await trio.testing.wait_all_tasks_blocked()
                opened.set()
                with trio.fail_after(5):
                    assert await handle == 5

        trio.run(main)


# Cancellation


def test_a_timeout_inside_gather_and_as_completed_returns_at_once_and_gives_no_partial_result() -> None:
    with use_driver(step_driver(), completion="callback") as driver:

        async def all_of_them() -> None:
            await gather(*[h2d(np.ones(10)).to_host() for _ in range(5)])
            raise AssertionError("nothing has run")

        async def as_they_come() -> None:
            async for _ in as_completed([h2d(np.ones(10)).to_host() for _ in range(5)], limit=2):
                raise AssertionError("nothing has run")

        async def main() -> None:
            for wait in (all_of_them, as_they_come):
                with trio.move_on_after(30) as scope:
                    await wait()
                assert scope.cancelled_caught
            gc.collect()
            assert driver.live_allocations.device_count == 7

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == 0


def test_a_nursery_that_collapses_takes_its_operations_along() -> None:
    with use_driver(step_driver(), completion="callback") as driver:
        box = h2d(np.zeros(4)).sync()

        async def wait() -> None:
            await dup(box)

        async def main() -> None:
            with pytest.raises(ExceptionGroup) as caught:
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(wait)
                    await trio.testing.wait_all_tasks_blocked()
                    raise KeyError("collapse")
            assert caught.group_contains(KeyError)
            assert len(caught.value.exceptions) == 1

        trio.run(main)
        gc.collect()
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == 1


def test_asyncio_tasks_are_cancelled_in_gather_and_as_completed_and_the_others_go_on() -> None:
    async def main() -> None:
        opened = threading.Event()

        def hold(context: oxide.ExecutionContext) -> DeviceOperation[int]:
            context.stream.launch_host_function(opened.wait)  # type: ignore[arg-type]
            return value(5)

        async def iterate() -> list[int]:
            return [result async for result in as_completed([with_context(hold)])]

        held = asyncio.ensure_future(iterate())
        together = asyncio.ensure_future(gather(with_context(hold), value(1)))  # type: ignore[arg-type]
        stays = asyncio.ensure_future(iterate())
        for _ in range(10):
            await asyncio.sleep(0)
        for task in (held, together):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        opened.set()
        assert await asyncio.wait_for(stays, 10) == [5]
        assert (await d2h(await h2d(np.ones(3)))).sum() == 3

    asyncio.run(main())
