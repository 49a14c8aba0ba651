"""User code never sees a host array that is not filled: what waits for host data, what does not, and how a run ends
there."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import oxide
from oxide import (
    BoundsError,
    CudaGraph,
    DeviceError,
    DeviceOperation,
    DisjointSlice,
    ExecutionContext,
    GraphError,
    OrderingError,
    Slice,
    as_completed,
    d2h,
    dup,
    empty,
    f32,
    gather,
    h2d,
    i64,
    kernel,
    memcpy,
    pinned_empty,
    planned,
    prepare,
    spawn,
    thread,
    value,
    with_context,
    zeros,
)
from oxide.compiler.ir.llvm import host_target
from oxide.driver.cpu import CpuDriver
from oxide.runtime.devices.runtime import current_runtime
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver

ONES = np.ones(8, np.float32)


@kernel(block=32)
def double(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = 2.0 * x[index.get()]


@kernel(block=32)
def shift(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get() + i64(8)]


def doubled(array: Any = ONES) -> DeviceOperation[Any]:
    return h2d(array).and_then(lambda box: double(box, empty(len(array))).last())


def total(array: Any) -> float:
    return float(np.sum(array))


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """So that no run stops to compile, which takes a thread that no test waits for."""
    for target in {oxide.devices()[0].info.target, host_target()}:  # the driver that steps is the CPU's
        double.specialize().code(target)


@pytest.fixture
def driver() -> Iterator[Any]:
    """A device that does nothing until it is told to. Tasks park at once."""
    with use_driver(step_driver(2), completion="callback") as driver:
        yield driver


Stage = Callable[[DeviceOperation[Any], Callable[[Any], Any]], DeviceOperation[Any]]
STAGES: dict[str, Stage] = {
    "map": lambda op, see: op.map(see),
    "inspect": lambda op, see: op.inspect(see),
    "and_then": lambda op, see: op.and_then(lambda array: (see(array), value(array))[1]),
    "and_then_with_context": lambda op, see: op.and_then_with_context(lambda _, array: (see(array), value(array))[1]),
    "of a zip": lambda op, see: oxide.zip(value(1), op, value(2)).map(lambda parts: see(parts[1])),
    "of shared": lambda op, see: op.shared().map(see),
    "of unzip": lambda op, see: oxide.zip(op, value(3)).unzip(2)[0].map(see),
    "of an Arc": lambda op, see: op.arc().map(lambda arc: see(arc.value)),
    "of an operation in a function": lambda op, see: value(1).and_then(lambda _: op).map(see),
    "in a function": lambda op, see: value(1).and_then(lambda _: op.map(see)),
    "of with_context": lambda op, see: with_context(lambda _: op).map(see),
    "of planned": lambda op, see: planned(op).map(see),
    "in planned": lambda op, see: planned(op.map(see)),
    "in fused": lambda op, see: op.map(see).fused(),
    "on another device": lambda op, see: op.on(1).map(see),
}


@pytest.mark.parametrize("stage", list(STAGES))
@pytest.mark.parametrize("copied", [lambda op: op.and_then(d2h), lambda op: op.to_host(), lambda op: d2h(op)])
def test_a_function_behind_a_copy_is_called_when_the_array_is_filled(stage: str, copied: Any, driver: Any) -> None:
    seen: list[float] = []
    operation = STAGES[stage](copied(doubled()), lambda array: seen.append(total(array)))
    operation.sync()
    assert seen == [16.0]

    async def main() -> None:
        seen.clear()
        operation = STAGES[stage](copied(doubled()), lambda array: seen.append(total(array)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_await, operation)
            await wait_all_tasks_blocked()
            assert seen == []  # the task waits, and the loop runs others
            driver.run_until_idle()
            await wait_all_tasks_blocked()
            assert seen == [16.0]
            driver.run_until_idle()

    trio.run(main)


async def _await(awaitable: Any) -> Any:
    return await awaitable


def run_only(driver: Any, *timelines: Any) -> None:
    """Lets the device do the work of these streams, and the calls that wake their tasks."""
    handles = [handle for each in timelines for handle in (each.handle, each._watcher) if handle is not None]
    while any(driver.step(handle) for handle in handles):
        pass


async def stepped(driver: Any, awaitable: Any) -> Any:
    """Awaits while the device works."""

    async def step() -> None:
        while True:
            await trio.sleep(0)
            driver.step()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(step)
        found = await awaitable
        nursery.cancel_scope.cancel()
    return found


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("far", [False, True])
def test_copies_themselves_do_not_wait(stores: bool, far: bool) -> None:
    """Neither the task nor the thread does; the device's streams wait for each other."""
    with use_driver(RecordingDriver(step_driver(2))) as driver:
        stage = functools.partial(memcpy, zeros(8).sync()) if stores else h2d
        array = doubled().and_then(d2h)
        source = oxide.zip(value(1), array.on(1)).last() if far else array
        future = source.and_then(stage).and_then(dup).and_then(d2h).into_future()
        assert future.start() is None  # all is submitted, and the device has done nothing
        assert driver.count("copy_to_host") == 2
        near = future.stream._timeline.handle
        while driver.step(near):
            pass

        np.testing.assert_array_equal(trio.run(stepped, driver, future), 2 * ONES)


def test_an_upload_of_an_array_that_the_host_must_read_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_PINNED_LIMIT", "0")  # so that results are in ordinary memory
    with use_driver(step_driver(seed=1)):
        operation = doubled().and_then(d2h).and_then(h2d).and_then(d2h)
        np.testing.assert_array_equal(operation.sync(), 2 * ONES)


def test_only_copies_of_a_functions_own_source_hold_it_up(driver: Any) -> None:
    seen: list[Any] = []

    async def main() -> None:
        far = doubled().and_then(d2h).on(1)
        near = h2d(ONES).map(lambda box: seen.append(box.shape))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_await, oxide.zip(doubled().and_then(d2h), far, near))
            await wait_all_tasks_blocked()
            assert seen == [(8,)]
            driver.run_until_idle()

    trio.run(main)


def test_a_wait_on_one_device_does_not_wait_for_another(driver: Any) -> None:
    seen: list[Any] = []
    parts = oxide.zip(doubled().and_then(d2h).on(1), doubled().and_then(d2h).map(seen.append))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_await, parts)
            await wait_all_tasks_blocked()
            run_only(driver, *oxide.devices()[0]._timelines)
            await wait_all_tasks_blocked()
            assert len(seen) == 1
            driver.run_until_idle()

    trio.run(main)


def test_a_shared_result_is_waited_for_by_each_of_its_consumers(driver: Any) -> None:
    """The first consumer has submitted the copy; another, on another stream, waits for it, too."""
    seen: list[float] = []
    shared = doubled().and_then(d2h).shared()
    first, second = (oxide.devices()[0].new_stream() for _ in range(2))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            shared.async_on(first)
            nursery.start_soon(_await, shared.map(lambda array: seen.append(total(array))).schedule(On(second)))
            await wait_all_tasks_blocked()
            assert seen == []
            run_only(driver, first._timeline, second._timeline)
            await wait_all_tasks_blocked()
            assert seen == [16.0]
            driver.run_until_idle()
        assert await stepped(driver, shared.map(total)) == 16.0
        first.synchronize()

    trio.run(main)


class On:
    """A policy that picks one stream."""

    def __init__(self, stream: oxide.Stream) -> None:
        self.stream = stream

    def next_stream(self, device: oxide.Device) -> oxide.Stream:
        return self.stream


def test_a_shared_source_that_stops_is_continued_by_whoever_is_left(driver: Any) -> None:
    calls: list[float] = []
    shared = doubled().and_then(d2h).map(lambda array: (calls.append(total(array)), total(array))[1]).shared()

    async def main() -> None:
        found: list[Any] = []

        async def consume(scope: trio.CancelScope) -> None:
            with scope:
                found.append(await shared)

        scopes = [trio.CancelScope() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for scope in scopes:
                nursery.start_soon(consume, scope)
            await wait_all_tasks_blocked()
            scopes[0].cancel()  # perhaps the one that has begun the source
            scopes[1].cancel()
            await wait_all_tasks_blocked()
            driver.run_until_idle()
            await wait_all_tasks_blocked()
            driver.run_until_idle()
        assert found == [16.0]
        assert calls == [16.0]

    trio.run(main)


def test_a_blocking_run_continues_a_shared_source_that_a_task_of_its_loop_has_begun(driver: Any) -> None:
    shared = doubled().and_then(d2h).map(total).shared()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_await, shared)
            await wait_all_tasks_blocked()
            with pytest.warns(RuntimeWarning, match="blocks the trio event loop"):
                assert shared.sync() == 16.0  # no task could continue it meanwhile

    trio.run(main)


def test_raw_copies_to_the_host_are_waited_for(driver: Any) -> None:
    array = pinned_empty(8)
    array[:] = 0
    box = doubled().sync()

    def copied(context: ExecutionContext) -> DeviceOperation[Any]:
        context.memcpy_async(array, box, box.nbytes)
        return value(array)

    assert with_context(copied).map(total).sync() == 16.0


def test_an_execute_that_runs_its_parts_itself_blocks_at_host_data(driver: Any) -> None:
    class Own(DeviceOperation[float]):
        def execute(self, context: ExecutionContext) -> float:
            return doubled().and_then(d2h).map(total).run(context) + 1

    assert trio.run(stepped, driver, Own()) == 17.0


# Ends


def test_a_run_that_is_cancelled_at_a_wait_submits_nothing_more() -> None:
    with use_driver(RecordingDriver(step_driver()), completion="callback") as driver:
        before, after = zeros(8).sync(), zeros(8).sync()
        called: list[Any] = []

        def store(array: Any) -> DeviceOperation[Any]:
            called.append(array)
            return memcpy(after, array)

        operation = doubled().and_then(lambda box: memcpy(before, box)).and_then(d2h).and_then(store)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_await, operation)
                await wait_all_tasks_blocked()
                driver.clear()
                nursery.cancel_scope.cancel()

        trio.run(main)
        copies = driver.count("copy_to_device", "launch", "copy_on_device", "copy_to_host")
        driver.run_until_idle()
        assert copies == 0
        assert called == []
        # All of what lies before the wait has been done, as it writes a box of the program's.
        np.testing.assert_array_equal(d2h(before).sync(), 2 * ONES)
        np.testing.assert_array_equal(d2h(after).sync(), 0 * ONES)
        gc.collect()
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == 2
        assert current_runtime().reclaimer.awaited() == 0


def test_a_future_that_was_cancelled_at_a_wait_goes_on_when_it_is_awaited_again(driver: Any) -> None:
    async def main() -> None:
        future = doubled().and_then(d2h).map(total).into_future()
        for _ in range(2):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_await, future)
                    await wait_all_tasks_blocked()
                    scope.cancel()
        assert await stepped(driver, future) == 16.0
        assert await future == 16.0

    trio.run(main)


def test_a_future_that_is_dropped_at_a_wait_leaves_nothing(driver: Any) -> None:
    async def main() -> None:
        future = doubled().and_then(d2h).map(total).into_future()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_await, future)
                await wait_all_tasks_blocked()
                scope.cancel()

    trio.run(main)
    gc.collect()
    oxide.reclaim.drain()
    assert driver.live_allocations.device_count == 0
    assert current_runtime().reclaimer.awaited() == 0


def test_a_fault_before_the_copy_is_raised_and_the_function_is_not_called(driver: Any) -> None:
    called: list[Any] = []

    def faulting() -> DeviceOperation[Any]:
        broken = h2d(ONES).and_then(lambda box: shift(box, zeros(8)).last())
        return oxide.zip(value(1), broken.and_then(d2h).map(called.append))

    with pytest.raises(BoundsError) as raised:
        faulting().sync()
    assert not any("map" in note for note in raised.value.__notes__)
    assert any("and_then" in note for note in raised.value.__notes__)

    async def main() -> None:
        with pytest.RaisesGroup(BoundsError):
            await stepped(driver, faulting())

    trio.run(main)
    assert called == []
    assert doubled().and_then(d2h).map(total).sync() == 16.0


def test_an_error_of_the_function_names_its_stage(driver: Any) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        oxide.zip(value(1), doubled().and_then(d2h).map(lambda array: total(array) / 0)).sync()
    notes = "\n".join(raised.value.__notes__)
    assert "in stage 4 of a chain, map(" in notes
    assert "in part 2 of a zip of 2" in notes


def test_uses_that_were_declared_before_a_wait_end_there(driver: Any) -> None:
    box = zeros(8).sync()
    memory = box.host_view()

    def declared(context: ExecutionContext, _: Any) -> DeviceOperation[Any]:
        context.writes(box)
        context.stream.launch_host_function(lambda: memory.fill(3.0))
        return d2h(box)

    async def main() -> None:
        operation = value(1).and_then_with_context(declared).map(total)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_await, operation)
                await wait_all_tasks_blocked()
                scope.cancel()

    trio.run(main)
    driver.run_until_idle()
    np.testing.assert_array_equal(d2h(box).sync(), 3 * ONES)  # and not: the use is still being submitted


@pytest.mark.parametrize("at", range(1, 30))
def test_a_failure_at_any_driver_call_is_one_error_and_leaks_nothing(at: int) -> None:
    def operation() -> DeviceOperation[Any]:
        once = doubled().and_then(d2h).map(lambda array: array + 1).shared()
        return (
            oxide.zip(once.and_then(h2d), once.on(1)).map(lambda both: d2h(both[0])).and_then(lambda op: op).map(total)
        )

    with use_driver(FailingDriver(step_driver(2, seed=at))) as failing:
        operation().sync()
        failing.fail_call(at, DeviceError("refused"))
        with suppress(DeviceError):
            operation().sync()
        failing.forget()
        assert operation().sync() == 24.0
        gc.collect()
        oxide.reclaim.drain()
        live = failing.inner.live_allocations
        assert (live.device_count, live.host_count) == (0, 0)


def test_an_error_while_a_thread_waits_leaves_nothing_of_parts_on_other_devices() -> None:
    with use_driver(FailingDriver(step_driver(2))) as failing:
        parts = oxide.zip(doubled().on(1), doubled().and_then(d2h).map(total).on(1))
        failing.fail("synchronize_event", DeviceError("refused"))
        with pytest.raises(DeviceError, match="refused"):
            parts.sync()
        failing.forget()
        assert parts.last().sync() == 16.0
        gc.collect()
        oxide.reclaim.drain()
        live = failing.inner.live_allocations
        assert (live.device_count, live.host_count) == (0, 0)


# Several at once


@pytest.mark.parametrize("way", ["gather", "as_completed", "spawn"])
def test_what_follows_a_wait_is_submitted_as_soon_as_its_own_data_is_there(way: str, driver: Any) -> None:
    """And not only when the runs before it are done."""
    streams = [oxide.devices()[0].new_stream() for _ in range(2)]
    called: list[int] = []

    def run(number: int) -> Any:
        def again(array: Any) -> DeviceOperation[Any]:
            called.append(number)
            return doubled(array)

        return doubled().and_then(d2h).and_then(again).and_then(d2h).map(total).schedule(On(streams[number]))

    async def main() -> None:
        found: list[float] = []

        async def all_of_them() -> None:
            futures = [run(number) for number in range(2)]
            if way == "gather":
                found.extend(await gather(*futures))
            elif way == "as_completed":
                found.extend([each async for each in as_completed(futures)])
            else:
                async with trio.open_nursery() as inner:
                    handles = [spawn(inner, future) for future in futures]
                    found.extend([await handle for handle in handles])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(all_of_them)
            await wait_all_tasks_blocked()
            run_only(driver, streams[1]._timeline)
            await wait_all_tasks_blocked()
            assert called == [1]
            for _ in range(3):
                driver.run_until_idle()
                await wait_all_tasks_blocked()
        assert called == [1, 0]
        assert found == [32.0, 32.0]

    trio.run(main)


def test_as_completed_counts_a_run_that_waits_for_data_as_one_in_flight(driver: Any) -> None:
    begun: list[int] = []

    def run(number: int) -> DeviceOperation[int]:
        return value(number).inspect(begun.append).and_then(lambda _: doubled().and_then(d2h).map(lambda _: number))

    async def main() -> None:
        found: dict[int, None] = {}

        async def all_of_them() -> None:
            async for each in as_completed((run(number) for number in range(5)), limit=2):
                found[each] = None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(all_of_them)
            await wait_all_tasks_blocked()
            assert begun == [0, 1]
            while len(found) < 5:
                driver.run_until_idle()
                await wait_all_tasks_blocked()
        assert sorted(found) == [0, 1, 2, 3, 4]

    trio.run(main)


def test_an_error_after_a_wait_ends_gather_and_the_others_submit_nothing_more(driver: Any) -> None:
    called: list[int] = []

    def fails(_: Any) -> Any:
        raise KeyError("no")

    async def main() -> None:
        streams = [oxide.devices()[0].new_stream() for _ in range(2)]
        late = doubled().and_then(d2h).map(called.append).schedule(On(streams[0]))
        bad = doubled().and_then(d2h).map(fails).schedule(On(streams[1]))

        async def together() -> None:
            with pytest.raises(KeyError):
                await gather(late, bad)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(together)
            await wait_all_tasks_blocked()
            run_only(driver, streams[1]._timeline)
            await wait_all_tasks_blocked()
        driver.run_until_idle()
        assert called == []

    trio.run(main)


# Captures


@pytest.mark.parametrize("stage", [name for name in STAGES if name not in ("of shared", "on another device")])
def test_a_capture_refuses_a_function_behind_a_copy(stage: str) -> None:
    seen: list[Any] = []
    operation = STAGES[stage](doubled().and_then(d2h), seen.append)
    with pytest.raises(GraphError, match=r"comes behind a copy to the host.*graph\.launch\(\)\.map\(f\)"):
        operation.graph()
    assert seen == []


def test_a_capture_waits_for_a_shared_result_that_was_copied_before(driver: Any) -> None:
    shared = doubled().and_then(d2h).shared()
    graph = shared.map(total).graph()  # the source runs outside of the graph
    assert graph.take_output() == 16.0


def test_a_capture_refuses_an_upload_of_what_the_graph_itself_downloads() -> None:
    with pytest.raises(GraphError, match=r"and_then\(h2d.*cannot be captured"):
        doubled().and_then(d2h).and_then(h2d).graph()


def test_a_scope_refuses_a_function_behind_a_copy_and_goes_on() -> None:
    x, y = h2d(ONES).sync(), zeros(8).sync()
    with CudaGraph.scope(oxide.devices()[0].new_stream()) as scope:
        with pytest.raises(GraphError, match=r"graph\.launch\(\)\.map\(f\)"):
            scope.record(double(x, y).last().and_then(d2h).map(total))
        found = scope.record(double(x, y).last().and_then(d2h))
        assert np.isnan(found).all()  # poison, until a launch has filled it
    assert scope.graph.launch().map(lambda _: total(found)).sync() == 16.0


def test_functions_after_a_launch_of_a_graph_see_its_arrays(driver: Any) -> None:
    x = np.ones(8, np.float32)
    with h2d(x).and_then(d2h).graph() as graph:
        outputs: list[Any] = []

        def output(_: object) -> float:
            if not outputs:
                outputs.append(graph.take_output())
            return total(outputs[0])

        for number in range(3):
            x[:] = number
            assert graph.launch().map(output).sync() == 8.0 * number
    with h2d(x).and_then(d2h).graph().instances(2) as instances:
        assert [instances.launch().map(total).sync() for _ in range(3)] == [16.0, 16.0, 16.0]


def test_the_host_arrays_of_a_graph_are_taken_once_a_launch_has_completed(driver: Any) -> None:
    graph = oxide.zip(doubled(), doubled().and_then(d2h)).graph()
    with pytest.raises(GraphError, match="take_output: the output has host arrays, and no launch has filled them yet"):
        graph.take_output()
    stream = oxide.devices()[0].new_stream()
    graph.launch().async_on(stream)
    with pytest.raises(GraphError, match="take_output: the output has host arrays"):
        graph.take_output()
    stream.synchronize()
    _, array = graph.take_output()
    np.testing.assert_array_equal(array, 2 * ONES)


def test_boxes_are_taken_at_once_though_the_graph_fills_host_arrays_too() -> None:
    graph = oxide.zip(doubled().and_then(d2h), doubled()).last().graph()
    box = graph.take_output()
    graph.launch().sync()
    np.testing.assert_array_equal(d2h(box).sync(), 2 * ONES)


def test_prepare_compiles_up_to_the_function_and_does_not_call_it(driver: Any) -> None:
    called: list[Any] = []

    @kernel(block=32)
    def triple(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = 3.0 * x[index.get()]

    def tripled() -> DeviceOperation[Any]:
        return h2d(ONES).and_then(lambda box: triple(box, empty(8)).last())

    # The second part is rehearsed, though the result of the first is not known.
    operation = oxide.zip(doubled().and_then(d2h).map(called.append), tripled().and_then(d2h)).map(called.append)

    async def main() -> None:
        await prepare(operation)

    trio.run(main)
    assert called == []
    assert oxide.devices()[0].loaded.get(triple.specialize().reference) is not None


def test_explain_tells_what_is_known_before_the_function() -> None:
    text = doubled().and_then(lambda box: double(box, empty(8)).last()).and_then(d2h).map(total).explain()
    assert text.startswith("launches: 2 -> 1")


def test_a_plan_is_carried_out_before_the_function_and_each_function_is_called_once() -> None:
    seen: list[Any] = []

    def chain() -> DeviceOperation[Any]:
        return doubled().and_then(lambda box: double(box, empty(8)).last())

    operation = (
        value(1)
        .inspect(seen.append)
        .and_then(lambda _: chain())
        .and_then(d2h)
        .map(total)
        .inspect(seen.append)
        .and_then(lambda number: oxide.full(8, number))
        .and_then(lambda box: double(box, empty(8)).last())
        .and_then(d2h)
    )
    with use_driver(RecordingDriver(step_driver())) as driver:
        for way in (operation.fused(), planned(operation)):
            seen.clear()
            driver.clear()
            np.testing.assert_array_equal(way.sync(), np.full(8, 64, np.float32))
            assert seen == [1, 32.0]
            assert driver.count("launch") == (2 if way is not None and driver.count("launch") == 2 else 3)


def test_the_part_of_a_fused_operation_before_the_function_is_fused() -> None:
    operation = doubled().and_then(lambda box: double(box, empty(8)).last()).and_then(d2h).map(total).fused()
    with use_driver(RecordingDriver(step_driver())) as driver:
        assert operation.sync() == 32.0
        assert driver.count("launch") == 1


# Without a wait


@pytest.mark.parametrize("call", ["async_on", "update"])
def test_a_call_that_does_not_wait_refuses_a_function_behind_a_copy_before_anything_is_submitted(call: str) -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        box = zeros(8).sync()
        stream, graph = oxide.devices()[0].new_stream(), double(box, box).graph()
        shared = doubled().and_then(d2h).shared()
        operations = [
            doubled().and_then(d2h).map(total),
            memcpy(box, ONES).and_then(d2h).inspect(total).and_then(h2d),
            oxide.zip(memcpy(box, ONES), doubled().to_host()).and_then(lambda both: value(both)),
            oxide.zip(value(1), d2h(doubled()).map(total)).first(),
            shared.map(total),
            d2h(box).graph().launch().map(lambda _: 1),
            value(1).and_then(lambda _: doubled()).to_host().on(0).and_then_with_context(lambda _, array: value(array)),
        ]
        for operation in operations:
            driver.clear()
            with pytest.raises(OrderingError, match=r"comes behind a copy to the host, and \S+ does not wait"):
                operation.async_on(stream) if call == "async_on" else graph.update(operation)
            assert driver.submissions == []
        np.testing.assert_array_equal(d2h(box).sync(), 0 * ONES)
        assert shared.map(total).sync() == 16.0  # what was refused is as it was


def test_a_copy_that_only_a_function_reveals_is_refused_before_the_next_function_is_called() -> None:
    called: list[Any] = []
    operation = doubled().and_then(lambda box: d2h(box)).map(called.append)
    with pytest.raises(OrderingError, match="async_on does not wait"):
        operation.async_on(oxide.devices()[0].new_stream())
    assert called == []


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16])
@pytest.mark.parametrize("form", ["array", "zip", "Arc", "planned"])
def test_an_array_that_async_on_hands_out_is_poison_until_the_stream_is_synchronised(dtype: Any, form: str) -> None:
    data = np.arange(3, dtype=dtype)
    operation: DeviceOperation[Any] = h2d(data).and_then(d2h)
    if form == "zip":
        operation = oxide.zip(operation, value(1))
    elif form == "Arc":
        operation = operation.arc()
    elif form == "planned":
        operation = planned(operation)
    stream = oxide.devices()[0].new_stream()
    for submit in (lambda: operation.async_on(stream), lambda: value(0).graph_on(stream).update(operation)):
        result = submit()
        array = result[0] if form == "zip" else result.value if form == "Arc" else result
        while not stream.query():
            pass
        assert array.tobytes() == b"\xff" * array.nbytes  # though the device is done: the program does not know it
        stream.synchronize()
        np.testing.assert_array_equal(array, data)


def test_a_test_that_steps_the_device_finds_poison_until_the_device_fills_the_array(driver: Any) -> None:
    stream = oxide.devices()[0].new_stream()
    array = doubled().and_then(d2h).async_on(stream)
    assert np.isnan(array).all()
    driver.run_until_idle()
    np.testing.assert_array_equal(array, 2 * ONES)
    stream.synchronize()
    np.testing.assert_array_equal(array, 2 * ONES)


def test_a_synchronize_of_another_thread_fills_no_array_whose_copy_it_has_not_waited_for() -> None:
    with use_driver(CpuDriver()):
        stream, data = oxide.devices()[0].new_stream(), np.arange(3.0)
        gates = [threading.Event() for _ in range(2)]
        stream.launch_host_function(lambda: gates[0].wait(60) and None)
        position = stream._timeline.advance()  # as another thread's synchronize() has it, which waits now
        stream.launch_host_function(lambda: gates[1].wait(60) and None)
        array = h2d(data).and_then(d2h).async_on(stream)
        gates[0].set()
        stream._loose.call_functions(position)
        assert np.isnan(array).all()
        gates[1].set()
        stream.synchronize()
        np.testing.assert_array_equal(array, data)


def test_a_synchronize_waits_until_that_of_another_thread_has_filled_its_arrays() -> None:
    with use_driver(CpuDriver()):
        stream = oxide.devices()[0].new_stream()
        begun, go_on, order = threading.Event(), threading.Event(), []

        def fill() -> None:
            begun.set()
            go_on.wait(60)
            order.append("filled")

        stream._when_synchronized(fill)
        first = threading.Thread(target=stream.synchronize)
        first.start()
        begun.wait(60)
        second = threading.Thread(target=lambda: (stream.synchronize(), order.append("synchronised")))
        second.start()
        second.join(0.05)
        assert second.is_alive()
        go_on.set()
        first.join()
        second.join()
        assert order == ["filled", "synchronised"]


def test_threads_that_share_a_stream_find_their_arrays_filled() -> None:
    with use_driver(CpuDriver()):
        stream, data, wrong = oxide.devices()[0].new_stream(), np.arange(50.0), []

        def work() -> None:
            for _ in range(200):
                array = d2h(h2d(data).async_on(stream)).async_on(stream)
                stream.synchronize()
                if not np.array_equal(array, data):
                    wrong.append(array.copy())

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_what_was_not_copied_by_the_run_is_handed_out_as_it_is() -> None:
    stream = oxide.devices()[0].new_stream()
    array = np.arange(3.0)
    first, second = oxide.zip(value(array), h2d(array).and_then(d2h).and_then(h2d)).async_on(stream)
    assert first is array
    np.testing.assert_array_equal(d2h(second).sync(), array)


@pytest.mark.parametrize("run", [trio.run, lambda main: asyncio.run(main())])
def test_it_holds_on_a_device_with_threads(run: Any) -> None:
    with use_driver(CpuDriver()):

        async def main() -> None:
            for number in range(50):
                array = np.full(50_000, number, np.float32)
                assert await h2d(array).and_then(d2h).map(lambda found: float(found.mean())) == number

        run(main)


def test_an_asyncio_task_that_is_cancelled_at_a_wait_submits_nothing_more(driver: Any) -> None:
    called: list[Any] = []

    async def main() -> None:
        task = asyncio.create_task(_await(doubled().and_then(d2h).map(called.append)))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    driver.run_until_idle()
    assert called == []
