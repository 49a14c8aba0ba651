"""``prepare`` compiles, loads and captures in a thread, and what a loop compiles itself it is warned of, once."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import CompileError, DisjointSlice, Slice, d2h, f32, h2d, kernel, memcpy, prepare, thread, zeros
from oxide.driver.cpu import CpuDriver
from oxide.runtime.awaiting import loading
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.submission import staging
from oxide.testing import RecordingDriver, use_driver
from oxide_kernels import relu
from tests.runtime.awaiting.conftest import Runner
from tests.runtime.awaiting.test_loading import Loading
from tests.runtime.waiting import until

X = np.arange(7, dtype=np.float32)


@pytest.fixture(autouse=True)
def nothing_new() -> None:
    loading.forget_announced()


@pytest.fixture
def driver() -> Iterator[Loading]:
    with use_driver(Loading()) as driver:
        try:
            yield driver
        finally:
            driver.go_on.set()


def new_kernel() -> Any:
    """A kernel that has never been launched."""

    @kernel(block=32)
    def thrice(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = f32(3.0) * x[index.get()]

    return thrice


def in_threads(driver: Loading) -> int:
    """How many kernels were loaded, none of them by this thread."""
    assert threading.current_thread() not in driver.threads
    return len(driver.threads)


def test_a_kernel_is_compiled_and_loaded_in_a_thread(run: Runner, driver: Loading) -> None:
    thrice = new_kernel()

    async def main() -> Any:
        await prepare(thrice)
        assert thrice.only is not None
        assert in_threads(driver) == 1
        return await thrice(h2d(X), zeros(7)).last().and_then(d2h)

    np.testing.assert_array_equal(run(main), 3 * X)
    assert in_threads(driver) == 1


def test_the_loop_goes_on_meanwhile(driver: Loading) -> None:
    async def main() -> None:
        driver.go_on.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prepare, new_kernel())
            await until(lambda: driver.threads)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            driver.go_on.set()

    trio.run(main)


def test_an_operation_is_captured_and_not_run(run: Runner) -> None:
    """The kernel is launched inside a function of ``and_then``, where awaiting would load it on the loop."""
    thrice = new_kernel()
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        operation = h2d(X).and_then(lambda box: thrice(box, zeros(7))).last().and_then(d2h)

        async def main() -> Any:
            await prepare(operation)
            assert driver.count("load") == 1
            assert driver.count("launch", "fill", "copy_to_device", "copy_to_host") == 0
            oxide.reclaim.drain()
            assert driver.outstanding()["allocations"] == 0
            return await operation

        np.testing.assert_array_equal(run(main), 3 * X)
        assert driver.count("load") == 1


def test_a_function_is_called_in_the_thread_and_builds_there(run: Runner, driver: Loading) -> None:
    thrice, built = new_kernel(), list[threading.Thread]()

    def build() -> Any:
        built.append(threading.current_thread())
        return thrice(h2d(X), zeros(7)).last()

    async def main() -> None:
        await prepare(build, lambda: relu.specialize(T=f32))

    run(main)
    assert built != [threading.current_thread()]
    assert in_threads(driver) == 2


def test_an_operation_on_another_device_is_prepared_there() -> None:
    thrice = new_kernel()
    with use_driver(RecordingDriver(CpuDriver(2))) as driver:
        trio.run(prepare, thrice(h2d(X), zeros(7)).on(1))
        (load,) = [call for call in driver.calls if call.method == "load"]
        assert load.arguments[0] == 1


def test_what_large_copies_and_numbers_need_is_made(run: Runner) -> None:
    with use_driver(CpuDriver()):
        large = np.ones(staging.SMALL_BYTES, np.float32)
        operation = oxide.zip(h2d(large), oxide.arange(staging.SMALL_BYTES))

        async def main() -> None:
            await prepare(operation)

        run(main)
        assert current_runtime().default_device.staging.prepared
        assert operation._parts[1]._numbers.made  # type: ignore[attr-defined]


def test_an_error_of_compiling_is_raised_with_the_kernels_name(run: Runner) -> None:
    @kernel(block=32)
    def wrong(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[index.get()].nothing  # type: ignore[attr-defined]

    async def main() -> None:
        with pytest.raises(CompileError, match="f32 has no") as caught:
            await prepare(wrong)
        assert caught.value.__notes__ == ["when oxide.prepare prepared kernel wrong"]

    run(main)


def test_a_cancelled_prepare_is_left_at_once_and_can_be_called_again(driver: Loading) -> None:
    thrice = new_kernel()

    async def main() -> None:
        driver.go_on.clear()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(prepare, thrice)
                await until(lambda: driver.threads)
                scope.cancel()
        assert scope.cancelled_caught
        driver.go_on.set()
        await prepare(thrice)

    trio.run(main)
    assert in_threads(driver) == 1


def test_what_cannot_be_prepared_is_refused_by_name() -> None:
    box = zeros(7).sync()

    async def main() -> None:
        with pytest.raises(TypeError, match=r"oxide\.prepare takes kernels, operations, or functions .*, not int"):
            await prepare(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"a function given to oxide\.prepare returned int"):
            await prepare(lambda: 3)  # type: ignore[arg-type, return-value]
        with pytest.raises(oxide.ArgumentError, match=r"oxide\.prepare\(relu\): the kernel is generic"):
            await prepare(relu)
        with pytest.raises(oxide.GraphError, match=r"oxide\.prepare cannot capture .*: memcpy from a host array"):
            await prepare(memcpy(box, X))

    trio.run(main)
    with pytest.raises(oxide.NoEventLoopError):
        prepare(new_kernel()).send(None)


# The warning


@pytest.fixture
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the shortest compilation took long."""
    monkeypatch.setenv("OXIDE_CACHE", "0")
    monkeypatch.setattr(loading, "_MOST_SECONDS", 0.0)


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in caught if "oxide.prepare" in str(warning.message)]


def test_what_a_loop_compiles_is_warned_of_every_time_with_the_remedy(run: Runner, unwarned: None) -> None:
    x, y = h2d(X).sync(), zeros(7).sync()

    async def main() -> None:
        new_kernel()(x, y).consume()
        new_kernel()(x, y).consume()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(main)
    loop = "trio" if run is trio.run else "asyncio"
    messages = told(caught)
    assert len(messages) == 2
    for message in messages:
        assert f"compiling kernel thrice kept the {loop} event loop for " in message
        assert "await oxide.prepare(thrice)" in message
    for warning in caught:
        assert (warning.category, warning.filename) == (RuntimeWarning, __file__)


def test_machine_code_that_a_run_needs_is_made_in_a_thread(run: Runner, unwarned: None) -> None:
    thrice = new_kernel()
    thrice.specialize()

    async def main() -> None:
        await h2d(X).and_then(lambda box: thrice(box, zeros(7)))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(main)
    assert told(caught) == []


def test_what_is_compiled_elsewhere_or_at_once_is_not_warned_of(
    run: Runner, unwarned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    thrice = new_kernel()
    x, y = h2d(X).sync(), zeros(7).sync()

    async def main() -> None:
        await prepare(thrice)
        await thrice(h2d(X), zeros(7))
        await new_kernel()(h2d(X), zeros(7))  # in the run: operations are its arguments
        monkeypatch.setattr(loading, "_MOST_SECONDS", 1e9)
        new_kernel()(x, y).consume()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(main)
        monkeypatch.setattr(loading, "_MOST_SECONDS", 0.0)
        new_kernel()(h2d(X), zeros(7)).consume()
    assert told(caught) == []
