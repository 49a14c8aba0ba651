"""Work of a cancelled await that nobody can see is not done; whatever can be seen is done as a whole."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import oxide
from oxide import Arc, DisjointSlice, Slice, Stream, as_completed, d2h, devices, f32, gather, h2d, kernel, thread, zeros
from oxide.driver.cpu.code import CpuFunction
from oxide.driver.cpu.streams import BlockRange
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.submission import staging
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver
from tests.on_stream import On

pytestmark = pytest.mark.skipif(
    os.environ.get("OXIDE_DEVICE") == "cuda", reason="a GPU takes nothing back from a stream"
)
ONES = np.ones(8, np.float32)


@kernel(block=8)
def double(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] * f32(2)


@kernel(block=8, sanitize="memory")
def doubled_with_care(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] * f32(2)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A growing list: one entry for each range of blocks that the device has begun."""
    begun: list[int] = []
    bind = CpuFunction.bind

    def watched(self: CpuFunction, *arguments: Any) -> Callable[[int, int], None]:
        run = bind(self, *arguments)

        def count(first: int, end: int) -> None:
            begun.append(end - first)
            run(first, end)

        return count

    def launch(self: CpuFunction, *arguments: Any) -> BlockRange:
        *bound, blocks = arguments
        return BlockRange("launch", self.bind(*bound), blocks)

    monkeypatch.setattr(CpuFunction, "bind", watched)
    monkeypatch.setattr(CpuFunction, "launch", launch)  # which does not bind kernels without loops
    return begun


@pytest.fixture
def driver() -> Iterator[Any]:
    with use_driver(RecordingDriver(step_driver(2)), completion="callback") as driver:
        load()
        yield driver


def load() -> None:
    """Has the kernel loaded, which an awaiting task would have done by a thread, while the mock clock goes on; and
    forgets that it was run."""
    for number in range(len(devices())):
        doubled().on(number).sync()
    driver: Any = current_runtime().driver
    if isinstance(driver, RecordingDriver):
        driver.clear()


def doubled(x: Any = ONES) -> oxide.DeviceOperation[Any]:
    return double(h2d(x), zeros(8)).last()


def give_up(*awaitables: Any) -> None:
    """Awaits each in a task of its own, all of which are cancelled while the device has begun nothing; then lets the
    loop turn."""

    async def main() -> None:
        async def wait(awaitable: Any) -> None:
            await awaitable

        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                for awaitable in awaitables:
                    nursery.start_soon(wait, awaitable)
        await wait_all_tasks_blocked()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    sweep()


def sweep() -> None:
    """Gives back all that was dropped: one sweep has 2 ms, which a busy machine may take away."""
    while not current_runtime().reclaimer.sweep():
        pass


def test_kernels_of_a_cancelled_await_that_have_not_started_never_run(driver: Any, launched: list[int]) -> None:
    before = oxide.statistics()
    give_up(*[doubled().to_host() for _ in range(8)])
    assert driver.count("launch") == 8
    driver.run_until_idle()
    assert launched == []
    oxide.reclaim.drain()
    assert (driver.live_allocations.device_count, driver.live_allocations.host_count) == (0, 0)
    seen = oxide.statistics()
    assert (seen.submitted - before.submitted, seen.cancelled, seen.in_flight) == (8, 8, 0)


def test_they_are_dropped_in_the_loops_next_turn_with_no_submission_after(driver: Any, launched: list[int]) -> None:
    async def main() -> None:
        with trio.move_on_after(1):
            await doubled()
        await wait_all_tasks_blocked()
        driver.run_until_idle()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert driver.count("launch") == 1
    assert launched == []


def test_a_cancelled_asyncio_task_that_is_held_drops_its_work(driver: Any, launched: list[int]) -> None:
    async def main() -> None:
        async def request() -> Any:
            return await doubled().to_host()

        tasks = [asyncio.create_task(request()) for _ in range(3)]
        while driver.count("launch") < 3:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        sweep()
        driver.run_until_idle()

    asyncio.run(main())
    assert launched == []


def test_work_that_follows_on_the_same_stream_is_done_and_in_order(driver: Any, launched: list[int]) -> None:
    stream = devices()[0].new_stream()
    give_up(doubled().schedule(On(stream)))
    sweep()  # what was scheduled was the argument's until here
    np.testing.assert_array_equal(doubled().to_host().sync_on(stream), 2 * ONES)
    assert launched == [1]


def test_what_writes_a_box_of_the_callers_is_done_as_a_whole(driver: Any, launched: list[int]) -> None:
    y = zeros(8).sync()
    give_up(double(h2d(ONES), zeros(8)).last().and_then(lambda box: double(box, y)))
    driver.run_until_idle()
    assert launched == [1, 1]
    np.testing.assert_array_equal(d2h(y).sync(), 4 * ONES)


def test_an_arc_that_a_run_writes_is_written(driver: Any, launched: list[int]) -> None:
    weight = Arc(zeros(8).sync())
    give_up(double(h2d(ONES), weight))
    driver.run_until_idle()
    np.testing.assert_array_equal(d2h(weight).sync(), 2 * ONES)


def test_a_box_of_the_callers_that_is_only_read_keeps_nothing(driver: Any, launched: list[int]) -> None:
    x = h2d(ONES).sync()
    give_up(double(x, zeros(8)))
    driver.run_until_idle()
    assert launched == []


def test_what_a_function_has_put_aside_is_filled(driver: Any, launched: list[int]) -> None:
    aside: list[Any] = []
    give_up(doubled().inspect(aside.append))
    driver.run_until_idle()
    assert launched == [1]
    np.testing.assert_array_equal(d2h(aside[0]).sync(), 2 * ONES)


def test_a_function_that_waits_for_host_data_is_not_called_and_what_it_waits_for_is_not_done(
    driver: Any, launched: list[int]
) -> None:
    aside: list[Any] = []
    give_up(doubled().to_host().inspect(aside.append))
    driver.run_until_idle()
    assert launched == []
    assert aside == []


def test_what_was_put_aside_and_dropped_before_the_device_came_to_it_is_not_done(
    driver: Any, launched: list[int]
) -> None:
    aside: list[Any] = []
    give_up(doubled().inspect(aside.append).to_host())
    aside.clear()
    sweep()
    driver.run_until_idle()
    assert launched == []


def test_a_future_that_is_held_can_be_awaited_again(driver: Any, launched: list[int]) -> None:
    future = doubled().to_host().into_future()
    give_up(future)
    other = doubled().into_future()
    give_up(other)
    del other
    sweep()
    driver.run_until_idle()
    assert launched == [1]

    async def main() -> Any:
        return await future

    np.testing.assert_array_equal(trio.run(main), 2 * ONES)


def test_a_future_that_is_awaited_twice_and_cancelled_once_is_finished(driver: Any, launched: list[int]) -> None:
    future = doubled().to_host().into_future()
    results = []

    async def main() -> None:
        async def wait() -> None:
            results.append(await future)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with trio.move_on_after(1):
                await gather(future, doubled())
            await wait_all_tasks_blocked()
            driver.run_until_idle()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    np.testing.assert_array_equal(results, [2 * ONES])


def test_what_another_run_has_used_is_done(driver: Any, launched: list[int]) -> None:
    aside: list[Any] = []
    give_up(doubled().inspect(aside.append))
    result = d2h(aside.pop()).async_on(devices()[0].new_stream())
    sweep()
    driver.run_until_idle()
    np.testing.assert_array_equal(result, 2 * ONES)


def test_the_source_of_a_shared_operation_is_done_for_the_others(driver: Any, launched: list[int]) -> None:
    source = doubled().shared()
    give_up(double(source, zeros(8)))
    np.testing.assert_array_equal(source.to_host().sync(), 2 * ONES)
    assert launched == [1]


def test_a_shared_operation_that_uses_what_the_run_made_keeps_all_of_it(driver: Any) -> None:
    made: list[oxide.DeviceOperation[Any]] = []

    def share(box: Any) -> oxide.DeviceOperation[Any]:
        made.append(double(box, zeros(8)).last().shared())
        return made[0]

    give_up(doubled().and_then(share).map(lambda box: None))
    np.testing.assert_array_equal(made[0].to_host().sync(), 4 * ONES)


def test_a_graph_that_a_cancelled_run_launches_is_run(driver: Any, launched: list[int]) -> None:
    x, y = h2d(ONES).sync(), zeros(8).sync()
    graph = double(x, y).graph()
    give_up(doubled().and_then(lambda box: graph.launch()))
    driver.run_until_idle()
    assert launched == [1, 1]
    np.testing.assert_array_equal(d2h(y).sync(), 2 * ONES)


def test_host_functions_of_the_programs_are_called(driver: Any, launched: list[int]) -> None:
    called: list[str] = []

    def call(context: oxide.ExecutionContext) -> oxide.DeviceOperation[Any]:
        context.stream.launch_host_function(lambda: called.append("called"))
        return doubled()

    give_up(oxide.with_context(call))
    driver.run_until_idle()
    assert (called, launched) == (["called"], [])


def test_what_waits_for_a_dropped_run_goes_on(driver: Any, launched: list[int]) -> None:
    device = devices()[0]
    one, other = device.new_stream(), device.new_stream()
    x = h2d(ONES).sync()
    give_up(double(x, zeros(8)).schedule(On(one)))
    sweep()  # what was scheduled was the argument's until here
    oxide.memcpy(x, 5 * ONES).async_on(other)  # after the read that is never made
    event = one.record_event()
    driver.run_until_idle()
    assert event.query()
    assert launched == []
    np.testing.assert_array_equal(d2h(x).sync(), 5 * ONES)


def test_declared_work_of_another_librarys_keeps_the_run(driver: Any, launched: list[int]) -> None:
    def declare(context: oxide.ExecutionContext, box: Any) -> oxide.DeviceOperation[Any]:
        context.reads(box)
        return oxide.value(None)

    give_up(doubled().and_then_with_context(declare))
    driver.run_until_idle()
    assert launched == [1]


def test_a_placed_part_is_dropped_with_the_whole(driver: Any, launched: list[int]) -> None:
    give_up(oxide.zip(doubled(), doubled().on(1)))
    driver.run_until_idle()
    assert driver.count("launch") == 2
    assert launched == []


def test_sanitized_kernels_are_dropped_too(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    doubled_with_care(h2d(ONES), zeros(8)).sync()
    give_up(doubled_with_care(h2d(ONES), zeros(8)))
    from oxide.driver.cpu import streams as cpu_streams

    tasks = [item for stream in driver.pending() for item in stream.items if isinstance(item, cpu_streams.Task)]
    kernels = [task for task in tasks if task.kernel]
    assert kernels
    assert all(map(cpu_streams.is_dropped, kernels))


def test_a_large_upload_is_neither_staged_nor_copied(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.ones(staging.SMALL_BYTES, np.float32)
    give_up(h2d(array))
    array[:] = 7  # would be seen in the slots
    driver.run_until_idle()
    assert driver.live_allocations.device_count == 0
    gc.collect()
    result = h2d(array).to_host().sync()
    np.testing.assert_array_equal(result, array)


def test_a_download_through_the_ring_is_made_as_who_holds_it_cannot_be_told(driver: Any, launched: list[int]) -> None:
    oxide.reclaim.drain()
    current_runtime().pinned.limit = 0
    give_up(doubled().to_host())
    driver.run_until_idle()
    assert launched == [1]


@pytest.mark.parametrize("together", [gather, lambda *operations: as_completed(operations).__anext__()])
def test_the_rest_of_many_is_dropped_when_one_fails(
    together: Any, launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_driver(FailingDriver(step_driver()), completion="callback") as driver:
        load()
        launched.clear()

        async def main() -> None:
            operations = [doubled() for _ in range(4)]
            driver.fail("launch", oxide.LaunchError("refused"), at=4)
            with pytest.raises(oxide.LaunchError, match="refused"):
                await together(*operations)

        trio.run(main)
        gc.collect()
        sweep()
        driver.run_until_idle()
        assert launched == []


def test_sync_and_async_on_are_never_dropped(driver: Any, launched: list[int]) -> None:
    stream: Stream = devices()[0].new_stream()
    doubled().async_on(stream)
    del stream
    gc.collect()
    sweep()
    driver.run_until_idle()
    assert launched == [1]


def chain(depth: int, keep: set[int], held: list[tuple[Any, float]]) -> oxide.DeviceOperation[Any]:
    """Doubles ones ``depth`` times; the boxes after those in ``keep`` are put aside with what they should hold."""
    operation: oxide.DeviceOperation[Any] = h2d(ONES)
    for level in range(1, depth + 1):
        operation = operation.and_then(lambda box: double(box, zeros(8)).last())
        if level in keep:
            operation = operation.inspect(partial(_put_aside, held, 2.0**level))
    return operation


def _put_aside(held: list[tuple[Any, float]], expected: float, box: Any) -> None:
    held.append((box, expected))


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_cancelled_at_random_leave_what_is_held_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    held: list[tuple[Any, float]] = []

    async def request(operation: Any, scope: trio.CancelScope) -> None:
        with scope:
            await operation

    async def main(driver: Any) -> None:
        scopes: list[trio.CancelScope] = []
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                depth = int(rng.integers(1, 5))
                keep = {int(level) for level in rng.integers(1, depth + 1, rng.integers(0, 3))}
                scopes.append(trio.CancelScope())
                nursery.start_soon(request, chain(depth, keep, held), scopes[-1])
            await wait_all_tasks_blocked()
            for scope in scopes:
                if rng.random() < 0.7:
                    scope.cancel()
                    for _ in range(int(rng.integers(0, 4))):
                        driver.step()
            await wait_all_tasks_blocked()
            driver.run_until_idle()
            nursery.cancel_scope.cancel()

    with use_driver(step_driver(2, seed=seed), completion="callback") as driver:
        load()
        trio.run(main, driver)
        for box, expected in held:
            np.testing.assert_array_equal(d2h(box).sync(), expected * ONES)
        del box
        held.clear()
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == 0
