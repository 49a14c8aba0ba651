"""A thread compiles what a run needs, while the loop goes on. With OXIDE_COMPILE=error the run is refused."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import (
    ArgumentError,
    CompileError,
    DeviceOperation,
    DisjointSlice,
    Slice,
    as_completed,
    d2h,
    empty,
    f32,
    gather,
    h2d,
    i32,
    kernel,
    planned,
    prepare,
    spawn,
    thread,
    tile,
    value,
    while_loop,
    zeros,
)
from oxide.compiler.kernel import specialization
from oxide.compiler.kernel.specialization import Specialization
from oxide.driver.cpu import CpuDriver
from oxide.runtime.awaiting import loading
from oxide.runtime.operations.operation import BoxSpec
from oxide.testing import RecordingDriver, use_driver
from tests.runtime.waiting import until

Runner = Callable[[Callable[[], Awaitable[Any]]], Any]

X = np.arange(8, dtype=np.float32)


class Compiling:
    """Notes the threads that compile, and holds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        self.go_on = threading.Event()
        self.go_on.set()
        for holder, name in ((specialization, "_front_end"), (Specialization, "_compile")):
            monkeypatch.setattr(holder, name, self._noted(getattr(holder, name)))

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **keywords: Any) -> Any:
            self.threads.append(threading.current_thread())
            self.go_on.wait()
            return function(*arguments, **keywords)

        return noted

    @property
    def in_place(self) -> int:
        """How much was compiled for the main thread, while it waited."""
        return [thread.name for thread in self.threads].count("oxide compiler")


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiling]:
    monkeypatch.setenv("OXIDE_CACHE", "0")
    loading.forget_announced()
    made = Compiling(monkeypatch)
    with use_driver(RecordingDriver(CpuDriver())):
        yield made
        made.go_on.set()


def new_kernel(factor: float = 2.0) -> Any:
    """A kernel that has never been compiled."""

    @kernel(block=32)
    def times(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = f32(factor) * x[index.get()]

    return times


def new_tile_kernel() -> Any:
    @tile.kernel
    def times(y: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]) -> None:
        y.store(tile.load_like(x, y) * 2.0)

    return times


def in_a_function(times: Any) -> DeviceOperation[Any]:
    return h2d(X).and_then(lambda box: times(box, empty(8)).last()).and_then(d2h)


def of_operations(times: Any) -> DeviceOperation[Any]:
    return times(h2d(X), zeros(8)).last().and_then(d2h)


def of_boxes_in_a_function(times: Any) -> DeviceOperation[Any]:
    both = oxide.zip(h2d(X), zeros(8))
    return both.and_then(lambda boxes: times(*boxes)).map(lambda boxes: boxes[1]).to_host()


def of_tiles(times: Any) -> DeviceOperation[Any]:
    return h2d(X).and_then(lambda x: new_tile_kernel()(zeros(8).partition(4), x)).first().unpartition().to_host()


def of_tiles_of_operations(times: Any) -> DeviceOperation[Any]:
    return new_tile_kernel()(zeros(8).partition(4), h2d(X)).first().unpartition().to_host()


def in_a_fused_operation(times: Any) -> DeviceOperation[Any]:
    other = new_kernel(1.0)
    chain = h2d(X).and_then(lambda box: times(box, empty(8)).last()).and_then(lambda box: other(box, empty(8)).last())
    return chain.and_then(d2h).fused()


def in_a_plan(times: Any) -> DeviceOperation[Any]:
    return planned(in_a_function(times))


def in_a_shared_operation(times: Any) -> DeviceOperation[Any]:
    return in_a_function(times).shared().map(lambda array: array)


def on_a_device(times: Any) -> DeviceOperation[Any]:
    return in_a_function(times).on(0)


WAYS = [in_a_function, of_operations, of_boxes_in_a_function, of_tiles, of_tiles_of_operations, in_a_fused_operation,
        in_a_plan, in_a_shared_operation, on_a_device]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_thread_compiles_what_an_await_needs_while_the_loop_goes_on(way: Any, compiling: Compiling) -> None:
    async def main() -> None:
        compiling.go_on.clear()
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    np.testing.assert_array_equal(await way(new_kernel()), 2 * X)

            nursery.start_soon(wait)
            await until(lambda: compiling.threads)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            compiling.go_on.set()

    trio.run(main)
    assert compiling.threads
    assert compiling.in_place == 0


def test_asyncio_tasks_do_so_too(run: Runner, compiling: Compiling) -> None:
    async def main() -> None:
        times = new_kernel()
        for result in await gather(in_a_function(times), of_operations(times)):
            np.testing.assert_array_equal(result, 2 * X)

    run(main)
    assert compiling.in_place == 0
    assert len(compiling.threads) == 2  # types and machine code, once each


@pytest.mark.parametrize("way", ["gather", "as_completed", "spawn"])
def test_several_runs_wait_for_one_compilation(way: str, compiling: Compiling) -> None:
    times = new_kernel()

    async def main() -> None:
        operations = [in_a_function(times) for _ in range(10)]
        if way == "gather":
            found = list(await gather(*operations))
        elif way == "as_completed":
            found = [each async for each in as_completed(operations)]
        else:
            async with trio.open_nursery() as nursery:
                handles = [spawn(nursery, operation) for operation in operations]
            found = [await handle for handle in handles]
        np.testing.assert_array_equal(found, [2 * X] * 10)

    trio.run(main)
    assert len(compiling.threads) == 2
    assert compiling.in_place == 0


def test_functions_of_a_run_that_stops_to_compile_are_called_once(compiling: Compiling) -> None:
    calls: list[int] = []
    times = new_kernel()

    def launched(box: Any) -> DeviceOperation[Any]:
        calls.append(1)
        return times(box, empty(8)).last()

    async def main() -> None:
        for way in (lambda op: op, planned, lambda op: op.fused()):
            calls.clear()
            np.testing.assert_array_equal(await way(h2d(X).and_then(launched).to_host()), 2 * X)
            assert calls == [1]

    trio.run(main)


def test_a_run_that_is_cancelled_while_it_compiles_submits_nothing_more(compiling: Compiling) -> None:
    driver: Any = oxide.devices()[0].driver
    times = new_kernel()

    async def main() -> None:
        compiling.go_on.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_await, in_a_function(times))
            await until(lambda: compiling.threads)
            driver.clear()
            nursery.cancel_scope.cancel()
        assert driver.count("launch") == 0
        compiling.go_on.set()
        np.testing.assert_array_equal(await in_a_function(times), 2 * X)

    trio.run(main)


async def _await(awaitable: Any) -> None:
    await awaitable


def test_a_run_that_stopped_to_compile_and_was_cancelled_may_be_awaited_again(compiling: Compiling) -> None:
    async def main() -> None:
        compiling.go_on.clear()
        future = in_a_function(new_kernel()).into_future()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_await, future)
            await until(lambda: compiling.threads)
            nursery.cancel_scope.cancel()
        compiling.go_on.set()
        np.testing.assert_array_equal(await future, 2 * X)

    trio.run(main)


@pytest.mark.parametrize("way", [in_a_function, of_operations])
def test_an_error_of_the_compilation_is_the_runs_and_names_the_kernel(way: Any, compiling: Compiling) -> None:
    @kernel(block=32)
    def wrong(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        y[0] = x[0]  # type: ignore[index]

    async def main() -> None:
        with pytest.raises(CompileError, match="y is a DisjointSlice") as raised:
            await way(wrong)
        assert any("<oxide launch of wrong>" in note for note in raised.value.__notes__)

    trio.run(main)
    with pytest.raises(CompileError, match="y is a DisjointSlice"):
        of_operations(wrong)  # outside of a loop, as ever: when the launch is built


def test_arguments_are_checked_when_the_launch_is_built(compiling: Compiling) -> None:
    times = new_kernel()

    async def main() -> None:
        with pytest.raises(ArgumentError, match=r"kernel times takes 2 arguments \(x, y\), got 1"):
            times(h2d(X))
        with pytest.raises(ArgumentError, match="kernel times, parameter y: expected a device buffer of float32"):
            times(h2d(X), zeros(8, np.float64))
        with pytest.raises(ArgumentError, match="a NumPy array, which is in host memory"):
            times(X, zeros(8))

        def too_few(box: Any) -> Any:
            return times(box)

        with pytest.raises(ArgumentError, match="got 1"):
            await h2d(X).and_then(too_few)

    trio.run(main)
    assert compiling.threads == []


def test_a_launch_that_is_not_compiled_is_an_operation_like_any_other(compiling: Compiling) -> None:
    times, other = new_kernel(), new_kernel(3.0)

    async def main() -> None:
        launch = times(h2d(X), zeros(8))
        assert repr(launch) == "<oxide launch of times>"
        assert launch.spec() == (BoxSpec((8,), np.dtype(np.float32)),) * 2
        _, doubled = launch.unzip()
        tripled = other(doubled, zeros(8))  # its argument is known to be a box of f32
        assert tripled.picture().nodes
        assert compiling.threads == []
        np.testing.assert_array_equal(await tripled.last().to_host(), 6 * X)
        assert launch.specialization is times.specialize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.testing.assert_array_equal(other(h2d(X), zeros(8)).last().to_host().sync(), 3 * X)
            graph = new_kernel(4.0)(h2d(X), zeros(8)).last().to_host().graph()
            graph.launch().sync()
        np.testing.assert_array_equal(graph.take_output(), 4 * X)

    trio.run(main)


def test_a_launch_of_boxes_on_a_loops_thread_is_compiled_where_it_stands(compiling: Compiling) -> None:
    x, y = h2d(X).sync(), zeros(8).sync()

    async def main() -> None:
        launch = new_kernel()(x, y)
        assert compiling.in_place == 1
        np.testing.assert_array_equal(await launch.last().to_host(), 2 * X)
        assert compiling.in_place == 1  # the machine code is made beside the loop

    trio.run(main)


def test_the_body_of_a_loop_is_compiled_and_its_functions_are_called_once(compiling: Compiling) -> None:
    calls: list[int] = []

    @kernel(block=1)
    def count_down(n: DisjointSlice[i32]) -> None:
        element = n.get_mut(thread.index_1d())
        if element is not None:
            element.value -= i32(1)

    def body(flag: Any) -> DeviceOperation[Any]:
        calls.append(1)
        return count_down(flag)

    async def main() -> None:
        flag = await h2d(np.array([3], np.int32))
        await while_loop(flag, value(flag).and_then(body))
        assert (await d2h(flag))[0] == 0

    trio.run(main)
    assert compiling.in_place == 0
    assert calls == [1]


# OXIDE_COMPILE=error


@pytest.mark.parametrize("way", [in_a_function, of_operations, in_a_plan, in_a_shared_operation])
def test_compiling_in_a_run_is_refused_where_that_is_asked_for(
    way: Any, compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OXIDE_COMPILE", "error")
    times = new_kernel()

    async def main() -> None:
        operation = way(times)
        refused = r"kernel times\(x: Slice\[f32\], y: DisjointSlice\[f32\]\) would be compiled in a run.*oxide\.prepare"
        with pytest.raises(CompileError, match=refused):
            await operation
        assert compiling.threads == []
        await prepare(times)
        assert compiling.threads
        np.testing.assert_array_equal(await way(times), 2 * X)

    trio.run(main)
    assert compiling.in_place == 0


def test_compiling_on_a_loops_thread_is_refused_where_that_is_asked_for(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OXIDE_COMPILE", "error")
    x, y = h2d(X).sync(), zeros(8).sync()
    times = new_kernel()

    async def main() -> None:
        refused = (
            r"kernel times\(x: Slice\[f32\], y: DisjointSlice\[f32\]\) would be compiled on the thread of the trio"
        )
        with pytest.raises(CompileError, match=refused):
            times(x, y)
        await prepare(lambda: times(x, y))
        np.testing.assert_array_equal(await times(x, y).last().to_host(), 2 * X)

    trio.run(main)
    np.testing.assert_array_equal(new_kernel()(x, y).last().to_host().sync(), 2 * X)  # no loop would stall


def test_machine_code_that_is_missing_is_refused_too(compiling: Compiling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_COMPILE", "error")
    times = new_kernel()
    times.specialize()

    async def main() -> None:
        with pytest.raises(CompileError, match="would be compiled in a run that a task awaits"):
            await in_a_function(times)

    trio.run(main)


def test_only_error_can_be_asked_for(compiling: Compiling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_COMPILE", "never")
    with pytest.raises(oxide.DeviceError, match="OXIDE_COMPILE='never': error is needed"):
        of_operations(new_kernel())


def test_the_loop_is_not_stopped_by_the_garbage_of_a_compilation(compiling: Compiling) -> None:
    """A collection of all objects of a compilation took a quarter of a second."""
    import gc

    old: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] > 0:
            old.append(info["generation"])

    async def main() -> None:
        await in_a_function(new_kernel())

    gc.collect()
    gc.callbacks.append(note)
    try:
        trio.run(main)
    finally:
        gc.callbacks.remove(note)
    assert 2 not in old
