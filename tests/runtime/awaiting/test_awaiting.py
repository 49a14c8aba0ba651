"""Awaiting: submitted at the first await, always a checkpoint, cancellable at once, no thread waiting."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import oxide
from oxide import DeviceOperation, as_completed, d2h, devices, gather, h2d, spawn, value, with_context, zeros
from oxide.driver.cpu import CpuDriver
from oxide.runtime.awaiting.future import FutureState
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver
from tests.on_stream import On
from tests.runtime.awaiting.conftest import Runner, run_asyncio

MODES = ("adaptive", "poll", "callback")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[Any]:
    oxide.init_device_contexts(completion=request.param)
    yield request.param
    oxide.init_device_contexts()


def gate(event: threading.Event) -> DeviceOperation[str]:
    """An operation whose stream stands still until ``event`` is set."""

    def wait(context: oxide.ExecutionContext) -> DeviceOperation[str]:
        context.stream.launch_host_function(event.wait)  # type: ignore[arg-type]
        return value("through")

    return with_context(wait)


async def step_until(driver: Any, done: Callable[[], bool]) -> None:
    while not done():
        driver.step()
        await trio.lowlevel.checkpoint()


# Laziness


def test_building_and_into_future_submit_nothing_and_the_first_await_does() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        operation = oxide.zip(h2d(np.ones(5)), zeros(5)).and_then(lambda t: d2h(t[0])).arc().map(lambda a: a.value)
        future = operation.into_future()
        assert future.state is FutureState.IDLE
        assert driver.submissions == []

        async def main() -> Any:
            return await future

        np.testing.assert_array_equal(trio.run(main), np.ones(5))
        assert future.state.name == "COMPLETE"
        assert driver.count("copy_to_device") == driver.count("copy_to_host") == 1


def test_a_future_is_submitted_once_however_often_it_is_awaited(run: Runner) -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:

        async def main() -> None:
            future = h2d(np.ones(5)).into_future()
            assert await future is await future

        run(main)
        assert driver.count("copy_to_device") == 1


def test_a_task_that_is_cancelled_already_submits_nothing() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:

        async def main() -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await h2d(np.ones(5))
            assert scope.cancelled_caught

        trio.run(main)
        assert driver.submissions == []


# Completion


def test_results_arrive_in_every_mode_under_both_loops(run: Runner, mode: str) -> None:
    arrays = [np.random.default_rng(i).random(100 + i) for i in range(30)]

    async def main() -> None:
        for array in arrays:
            np.testing.assert_array_equal(await h2d(array).to_host(), array)
        results = await gather(*[h2d(array).to_host() for array in arrays])
        for result, array in zip(results, arrays, strict=True):
            np.testing.assert_array_equal(result, array)

    run(main)


def test_awaiting_is_a_checkpoint_even_when_there_is_nothing_to_do(mode: str) -> None:
    async def main() -> None:
        future = value(1).into_future()
        for awaited in (value(1), future, future, gather(), gather(value(1))):
            with trio.testing.assert_checkpoints():
                await awaited

    trio.run(main)


def test_other_tasks_run_while_one_awaits(run: Runner, mode: str) -> None:
    opened = threading.Event()
    order: list[str] = []

    async def waiter() -> None:
        order.append(await gate(opened))

    async def opener(sleep: Callable[[float], Awaitable[None]]) -> None:
        for _ in range(5):
            await sleep(0)
        order.append("opening")
        opened.set()

    async def under_trio() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter)
            nursery.start_soon(opener, trio.sleep)

    async def under_asyncio() -> None:
        await asyncio.gather(waiter(), opener(asyncio.sleep))

    run(under_trio if run is trio.run else under_asyncio)
    assert order == ["opening", "through"]


@pytest.mark.slow
def test_a_parked_wait_uses_no_processor_time_of_its_thread(run: Runner) -> None:
    """The device is busy for half a second, and the loop's thread sleeps; ``test_no_thread_waits`` is about others."""
    opened = threading.Event()
    timer = threading.Timer(0.5, opened.set)

    async def main() -> float:
        timer.start()
        before = time.thread_time()
        await gate(opened)
        return time.thread_time() - before

    assert run(main) < 0.1
    timer.join()


def test_many_operations_in_flight_on_many_streams_all_complete(mode: str) -> None:
    async def main() -> None:
        done = 0

        async def one(number: int) -> None:
            nonlocal done
            result = await h2d(np.array([number])).to_host()
            assert result[0] == number
            done += 1

        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon(one, number)
        assert done == 500

    trio.run(main)


def test_a_callback_is_submitted_only_for_the_first_mark_of_a_stream() -> None:
    with use_driver(RecordingDriver(step_driver()), policy=oxide.SingleStream(), completion="callback") as driver:

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                handles = [spawn(nursery, h2d(np.ones(3))) for _ in range(50)]
                await trio.testing.wait_all_tasks_blocked()
                # One for each task that parked before all that had: trio's order is random, 4.5 of 50 on average.
                assert 1 <= driver.count("launch_native_host_function") < 25
                await step_until(driver, lambda: all(handle.done() for handle in handles))

        trio.run(main)
        assert driver.count("launch_native_host_function") < 50


@pytest.mark.parametrize("completion", MODES)
def test_streams_that_finish_out_of_order_wake_their_own_tasks(completion: Any) -> None:
    with use_driver(step_driver(), completion=completion) as driver:
        slow, quick = (oxide.devices()[0].new_stream() for _ in range(2))

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                late = spawn(nursery, h2d(np.ones(3)).schedule(On(slow)))
                early = spawn(nursery, h2d(np.ones(4)).schedule(On(quick)))
                while not early.done():
                    for handle in driver.pending():
                        if handle is not slow._timeline.handle:
                            driver.step(handle)
                    await trio.lowlevel.checkpoint()
                assert not late.done()
                await step_until(driver, late.done)

        trio.run(main)


def test_several_loops_in_several_threads_share_the_runtime(mode: str) -> None:
    failures: list[BaseException] = []

    def work(run: Runner) -> None:
        async def main() -> None:
            for number in range(50):
                result = await h2d(np.full(10, number)).to_host()
                assert result[0] == number

        try:
            run(main)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(runner,)) for runner in (trio.run, run_asyncio) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_awaiting_outside_any_loop_is_refused_before_anything_is_submitted() -> None:
    async def main() -> None:
        await h2d(np.ones(3))

    with use_driver(RecordingDriver(CpuDriver())) as driver:
        with pytest.raises(oxide.NoEventLoopError, match=r"trio\.run or asyncio\.run, or call op\.sync"):
            main().send(None)
        assert driver.submissions == []
    np.testing.assert_array_equal(h2d(np.ones(3)).to_host().sync(), np.ones(3))


def test_sync_inside_a_loop_warns_that_it_blocks(run: Runner) -> None:
    async def main() -> int:
        with pytest.warns(RuntimeWarning, match=r"^sync\(\) blocks the (trio|asyncio) event loop") as caught:
            result = value(1).sync()
        assert caught[0].filename == __file__
        with pytest.warns(RuntimeWarning, match=r"^sync_on\(stream\) blocks the (trio|asyncio) event loop") as caught:
            result += value(1).sync_on(oxide.devices()[0].new_stream())
        assert caught[0].filename == __file__
        return result

    assert run(main) == 2


# Cancellation


@pytest.mark.parametrize("completion", MODES)
def test_a_cancelled_await_returns_at_once_and_keeps_its_memory_until_the_device_is_past_it(completion: Any) -> None:
    with use_driver(RecordingDriver(step_driver()), completion=completion) as driver:
        addresses: list[oxide.DeviceBox] = []

        async def main() -> None:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_await, h2d(np.ones(1000)).inspect(addresses.append).to_host())
                    await trio.testing.wait_all_tasks_blocked() if completion == "callback" else await checkpoints(50)
                    scope.cancel()
            assert scope.cancelled_caught
            gc.collect()
            assert driver.live_allocations.device_count == 1
            assert driver.count("free_host") == 0
            (address,) = [box.ptr for box in addresses]
            addresses.clear()
            # Other work does not get the memory, whatever has been asked of the driver by now.
            other = [h2d(np.full(1000, 7.0)).async_on(oxide.devices()[0].new_stream()) for _ in range(3)]
            assert driver.live_allocations.device_count == 4
            assert address not in [box.ptr for box in other]

        trio.run(main)
        oxide.reclaim.drain()
        live = driver.live_allocations
        assert (live.device_count, live.host_count) == (0, 0)


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("completion", MODES)
def test_a_cancellation_while_the_loop_takes_its_turn_leaves_the_result_that_is_there(
    completion: Any, done: bool
) -> None:
    with use_driver(step_driver(), completion=completion) as driver:
        results: list[Any] = []

        class Device(trio.abc.Instrument):
            def before_io_wait(self, timeout: float) -> None:  # in each turn of the loop
                if done:
                    driver.run_until_idle()

        async def main() -> None:
            with trio.CancelScope() as scope:
                results.append(await h2d(np.arange(3.0)).inspect(lambda _: scope.cancel()).to_host())
                assert scope.cancel_called
                await trio.lowlevel.checkpoint()  # is where it is heard
                results.append("not reached")
            assert scope.cancelled_caught

        trio.run(main, instruments=[Device()])
        driver.run_until_idle()
        oxide.reclaim.drain()
        assert [result.tolist() for result in results] == ([[0.0, 1.0, 2.0]] if done else [])
        assert driver.live_allocations.device_count == 0


async def _await(operation: Awaitable[Any]) -> None:
    await operation


async def checkpoints(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


def test_cancelled_work_is_swept_by_its_own_callback_with_nothing_else_running() -> None:
    with use_driver(RecordingDriver(step_driver()), completion="callback") as driver:

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_await, h2d(np.ones(10)))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            gc.collect()
            driver.run_until_idle()  # the device finishes; its callback wakes the loop
            while driver.count("free") == 0:
                await trio.sleep(0)
            driver.run_until_idle()

        trio.run(main)
        assert driver.live_allocations.device_count == 0


def test_cancelling_one_of_two_tasks_that_await_a_future_leaves_the_other_its_result() -> None:
    with use_driver(step_driver(), completion="callback") as driver:

        async def main() -> None:
            future = h2d(np.arange(3.0)).to_host().into_future()
            results: list[Any] = []

            async def wait() -> None:
                results.append(await future)

            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as inner:
                        inner.start_soon(wait)
                        nursery.start_soon(wait)
                        await trio.testing.wait_all_tasks_blocked()
                        scope.cancel()
                await step_until(driver, lambda: bool(results))
            np.testing.assert_array_equal(results[0], np.arange(3.0))

        trio.run(main)


def test_a_future_whose_await_was_cancelled_can_be_awaited_again() -> None:
    with use_driver(step_driver(), completion="callback") as driver:

        async def main() -> None:
            future = h2d(np.arange(3.0)).to_host().into_future()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_await, future)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            async with trio.open_nursery() as nursery:
                handle = spawn(nursery, future)
                await step_until(driver, handle.done)
            np.testing.assert_array_equal(await handle, np.arange(3.0))

        trio.run(main)


def test_asyncio_cancellation_and_timeouts_work() -> None:
    opened = threading.Event()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(gate(opened)), 0.01)
        opened.set()
        assert await value(5) == 5

    asyncio.run(main())


def test_dropping_a_future_in_flight_keeps_its_memory_until_the_device_is_past_it() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        future = h2d(np.ones(100)).into_future()
        future.start()
        del future
        gc.collect()
        value(1).schedule(On(devices()[0].new_stream())).start()  # sweeps, and runs nothing
        assert driver.live_allocations.device_count == 1
        oxide.reclaim.drain()
        live = driver.live_allocations
        assert (live.device_count, live.host_count) == (0, 0)


# Many at once


def test_gather_submits_all_before_it_waits_and_keeps_the_order() -> None:
    with use_driver(RecordingDriver(step_driver()), completion="callback") as driver:

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                results: list[Any] = []

                async def collect() -> None:
                    results.append(await gather(*[h2d(np.full(4, i)).to_host() for i in range(6)]))

                nursery.start_soon(collect)
                await trio.testing.wait_all_tasks_blocked()
                assert driver.count("copy_to_device") == 6
                await step_until(driver, lambda: bool(results))
            assert [int(r[0]) for r in results[0]] == list(range(6))

        trio.run(main)


def test_an_error_in_gather_is_raised_and_nothing_is_left(run: Runner) -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:

        async def main() -> None:
            with pytest.raises(ZeroDivisionError):
                await gather(h2d(np.ones(9)), value(0).map(lambda x: 1 // x), h2d(np.ones(9)))

        run(main)
        gc.collect()
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == 0


def test_as_completed_has_at_most_limit_in_flight_and_yields_all() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:

        async def main() -> None:
            seen: set[int] = set()
            async with trio.open_nursery() as nursery:

                async def consume() -> None:
                    async for result in as_completed([h2d(np.full(3, i)).to_host() for i in range(20)], limit=4):
                        seen.add(int(result[0]))
                        assert driver.count("copy_to_device") - len(seen) < 4
                    nursery.cancel_scope.cancel()

                nursery.start_soon(consume)
                await step_until(driver, lambda: False)
            assert seen == set(range(20))

        trio.run(main)


def test_as_completed_yields_the_first_to_finish_first(run: Runner) -> None:
    opened = threading.Event()

    async def main() -> list[str]:
        results = []
        async for result in as_completed([gate(opened), value("at once")]):
            results.append(result)
            opened.set()
        return results

    assert run(main) == ["at once", "through"]


def test_as_completed_refuses_a_limit_that_is_none() -> None:
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="limit"):
            as_completed([], limit=wrong)  # type: ignore[arg-type]


def failing() -> oxide.DeviceOperation[int]:
    return value(0).map(lambda x: 1 // x)


def test_a_join_handle_gives_the_result_or_raises_the_error() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            good = spawn(nursery, value(5))
            bad = spawn(nursery, failing(), errors="handle")
        assert await good == 5
        assert await good == 5
        with pytest.raises(ZeroDivisionError):
            await bad

    trio.run(main)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("fails", [failing, lambda: failing().into_future(), lambda: faulting()])
def test_an_error_is_raised_in_the_nursery_whether_or_not_the_handle_is_held(held: bool, fails: Any) -> None:
    kind = (ZeroDivisionError, oxide.BoundsError)

    async def main() -> None:
        handles = []
        ended: list[str] = []

        async def sibling() -> None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                ended.append("cancelled")
                raise

        with pytest.raises(ExceptionGroup) as caught:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sibling)
                handle = spawn(nursery, fails())
                if held:
                    handles.append(handle)
                del handle
        (error,) = caught.value.exceptions
        assert isinstance(error, kind)
        assert ended == ["cancelled"]
        for each in handles:
            for _ in range(2):
                with pytest.raises(kind) as again:
                    await each
                assert again.value is error

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the error was seen: no handle complains of it
        trio.run(main)


@oxide.kernel(block=64)
def shift_left(x: oxide.Slice[oxide.f32], y: oxide.DisjointSlice[oxide.f32]) -> None:
    index = oxide.thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get() + 1]


def faulting() -> oxide.DeviceOperation[Any]:
    return shift_left(oxide.zeros(64), oxide.zeros(64)).last().and_then(oxide.d2h)


def test_the_others_of_a_nursery_are_cancelled_and_their_handles_say_so() -> None:
    async def main() -> None:
        with pytest.raises(ExceptionGroup):
            async with trio.open_nursery() as nursery:
                other = spawn(nursery, gate(opened))
                await trio.testing.wait_all_tasks_blocked()
                spawn(nursery, failing())
        with pytest.raises(oxide.OperationCancelledError):
            await other

    opened = threading.Event()
    try:
        trio.run(main)
    finally:
        opened.set()


def test_whoever_awaits_the_handle_inside_the_nursery_gets_the_error_too() -> None:
    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with trio.open_nursery() as nursery:
                with pytest.raises(ZeroDivisionError):
                    await spawn(nursery, failing())
        assert caught.group_contains(ZeroDivisionError)

    trio.run(main)


def test_with_errors_for_the_handle_the_nursery_goes_on() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            handle = spawn(nursery, faulting(), errors="handle")
            with pytest.raises(oxide.BoundsError):
                await handle
            await trio.lowlevel.checkpoint()  # nothing was cancelled
            for wrong in ("task", None, 3):
                with pytest.raises(ValueError, match=r"spawn\(errors="):
                    spawn(nursery, value(1), errors=wrong)  # type: ignore[arg-type]

    trio.run(main)


def test_with_errors_for_the_handle_an_error_whose_handle_was_thrown_away_is_raised_in_the_nursery() -> None:
    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with trio.open_nursery() as nursery:
                spawn(nursery, failing(), errors="handle")
        assert caught.group_contains(ZeroDivisionError)

    trio.run(main)


def test_with_errors_for_the_handle_one_that_is_never_awaited_warns() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            handle = spawn(nursery, failing(), errors="handle")
        with pytest.warns(RuntimeWarning, match="never awaited.*ZeroDivisionError"):
            del handle

    trio.run(main)


def test_a_handle_whose_nursery_was_cancelled_says_so() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            handle = spawn(nursery, value(1))
            nursery.cancel_scope.cancel()
        with pytest.raises(oxide.OperationCancelledError):
            await handle

    trio.run(main)


def test_spawn_and_gather_refuse_what_is_no_operation() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with pytest.raises(TypeError, match=r"value\(x\)"):
                spawn(nursery, 3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="gather takes operations"):
            await gather(3)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(TypeError, match="nursery"):
                spawn("nursery", value(1))  # type: ignore[arg-type]

    trio.run(main)


# Errors of the driver


@pytest.mark.parametrize("method", ["query_stream", "wait_event", "launch_native_host_function", "record_event"])
def test_a_driver_error_while_waiting_reaches_the_awaiting_task_and_the_runtime_goes_on(
    run: Runner, method: str
) -> None:
    with use_driver(FailingDriver(CpuDriver()), completion="callback") as driver:

        async def main() -> None:
            opened = threading.Event()
            driver.fail(method, oxide.DriverError(999, "CUDA_ERROR_UNKNOWN", "injected"))
            timer = threading.Timer(0.05, opened.set)
            timer.start()
            with pytest.raises(oxide.DriverError, match="injected"):
                await gate(opened).map(lambda _: np.ones(3)).and_then(h2d)
            timer.join()
            np.testing.assert_array_equal(await h2d(np.ones(3)).to_host(), np.ones(3))

        run(main)
        gc.collect()
        oxide.reclaim.drain()
        live = driver.live_allocations
        assert (live.device_count, live.host_count) == (0, 0)


def test_an_interrupt_inside_a_function_ends_the_future_with_it() -> None:
    def interrupted(_: object) -> DeviceOperation[None]:
        raise KeyboardInterrupt("pressed")

    async def main() -> None:
        future = value(1).and_then(interrupted).into_future()
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt, match="pressed"):
                await future
        assert future.state is FutureState.COMPLETE

    trio.run(main)


def test_a_future_that_is_given_twice_gives_the_same_result_twice() -> None:
    async def main() -> None:
        future = h2d(np.arange(5)).into_future()
        first, second = await gather(future, future)
        assert first is second
        again = h2d(np.arange(5)).into_future()
        results = [result async for result in as_completed([again, again])]
        assert len(results) == 2
        assert results[0] is results[1]

    trio.run(main)


def test_a_future_awaited_by_loops_in_several_threads_runs_once() -> None:
    runs, results = [], []

    def count(_: object) -> DeviceOperation[list[int]]:
        runs.append(1)
        return value([1])

    future = with_context(count).into_future()

    async def main() -> None:
        results.append(await future)

    threads = [threading.Thread(target=trio.run, args=(main,)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(runs) == 1
    assert all(result is results[0] for result in results)


def test_a_loop_that_ends_with_tasks_in_line_leaves_the_next_one_its_turns() -> None:
    def slow(_: object) -> DeviceOperation[None]:
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        return value(None)

    async def one() -> None:
        await with_context(slow)

    async def collapses() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(one)
            await trio.lowlevel.checkpoint()
            raise RuntimeError("the nursery collapses")

    async def goes_on() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(one)

    with pytest.raises(ExceptionGroup):
        trio.run(collapses)
    trio.run(goes_on)


@pytest.mark.parametrize("answer", [None, 7, "stream"])
def test_a_policy_that_picks_no_stream_is_refused_and_one_that_fails_is_heard(answer: object) -> None:
    class Picks:
        def next_stream(self, device: object) -> object:
            return answer

    class Fails:
        def next_stream(self, device: object) -> object:
            raise LookupError("no stream is free")

    with pytest.raises(TypeError, match="a Stream is needed"):
        value(1).schedule(Picks())  # type: ignore[arg-type]
    with pytest.raises(LookupError, match="no stream is free"):
        value(1).schedule(Fails())  # type: ignore[arg-type]


def test_a_loop_that_awaits_what_another_thread_is_submitting_gets_its_result() -> None:
    entered, awaited, results = threading.Event(), threading.Event(), []

    def slow(_: object) -> DeviceOperation[str]:
        entered.set()
        awaited.wait()
        for _ in range(1000):
            time.sleep(0)  # the other thread goes on as far as it can
        return value("once")

    future = with_context(slow).into_future()

    async def first() -> None:
        results.append(await future)

    async def second() -> None:
        awaited.set()
        results.append(await future)

    thread = threading.Thread(target=trio.run, args=(first,))
    thread.start()
    entered.wait()
    trio.run(second)
    thread.join()
    assert results == ["once", "once"]


def test_of_two_loops_one_inside_the_other_the_inner_one_awaits() -> None:
    async def get() -> int:
        return (await h2d(np.ones(5)).to_host()).sum()

    async def run_asyncio() -> int:
        return asyncio.run(get())

    async def run_trio() -> int:
        return trio.run(get)

    assert trio.run(run_asyncio) == 5
    assert asyncio.run(run_trio()) == 5
