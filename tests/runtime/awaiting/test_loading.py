"""New kernels are compiled and loaded beside the event loop that awaits their launch, and in place elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import DisjointSlice, Slice, d2h, f32, gather, h2d, kernel, thread, value, zeros
from oxide.driver.cpu import CpuDriver
from oxide.errors import DriverError
from oxide.runtime.awaiting import loading as runtime_loading
from oxide.testing import DelegatingDriver, use_driver
from tests.runtime.waiting import until

X = np.arange(7, dtype=np.float32)


def new_kernel() -> Any:
    """A kernel that has never been launched."""

    @kernel(block=32)
    def twice(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = f32(2.0) * x[index.get()]

    return twice


class Loading(DelegatingDriver):
    """Notes the threads that load, and holds or fails them."""

    def __init__(self) -> None:
        super().__init__(CpuDriver())
        self.threads: list[threading.Thread] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.failures = 0

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if method == "load":
            self.threads.append(threading.current_thread())
            self.go_on.wait()
            if self.failures:
                self.failures -= 1
                raise DriverError(1, "CUDA_ERROR_INVALID_VALUE", "no room for code")
        return super().invoke(method, *arguments, **keywords)


@contextmanager
def loading() -> Iterator[Loading]:
    with use_driver(Loading()) as driver:
        try:
            yield driver
        finally:
            driver.go_on.set()


@pytest.fixture(autouse=True)
def nothing_new() -> None:
    """Other tests may have built launches and copies that they never ran."""
    runtime_loading.forget_announced()


def launch(twice: Any) -> oxide.DeviceOperation[Any]:
    return twice(h2d(X), zeros(len(X))).last().and_then(d2h)


def test_a_launch_that_was_built_is_loaded_while_the_loop_goes_on() -> None:
    async def main() -> None:
        driver.go_on.clear()
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                np.testing.assert_array_equal(await launch(new_kernel()), 2 * X)

            nursery.start_soon(wait)
            await until(lambda: driver.threads)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            driver.go_on.set()

    with loading() as driver:
        trio.run(main)
        assert [thread is threading.main_thread() for thread in driver.threads] == [False]


def test_asyncio_tasks_and_gather_load_beside_as_well() -> None:
    async def main() -> None:
        twice = new_kernel()
        for result in await gather(launch(twice), launch(twice)):
            np.testing.assert_array_equal(result, 2 * X)

    with loading() as driver:
        asyncio.run(main())
        assert [thread is threading.main_thread() for thread in driver.threads] == [False]


def test_many_tasks_that_need_a_kernel_wait_for_one_load_and_none_blocks_the_loop() -> None:
    async def main() -> None:
        driver.go_on.clear()
        twice, done = new_kernel(), 0

        async def one() -> None:
            nonlocal done
            np.testing.assert_array_equal(await launch(twice), 2 * X)
            done += 1

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(one)
            await until(lambda: driver.threads)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert done == 0
            driver.go_on.set()
        assert done == 50

    with loading() as driver:
        trio.run(main)
        assert len(driver.threads) == 1


def test_loops_in_other_threads_wait_for_the_load_without_standing_still() -> None:
    async def main(twice: Any) -> None:
        np.testing.assert_array_equal(await launch(twice), 2 * X)

    with loading() as driver:
        twice = new_kernel()
        threads = [threading.Thread(target=trio.run, args=(main, twice)) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(driver.threads) == 1


def test_a_task_that_is_cancelled_during_the_load_returns_at_once_and_the_next_gets_its_result() -> None:
    async def main() -> None:
        driver.go_on.clear()
        twice = new_kernel()
        with trio.move_on_after(0.01) as scope:
            await launch(twice)
        assert scope.cancelled_caught
        driver.go_on.set()
        np.testing.assert_array_equal(await launch(twice), 2 * X)

    with loading() as driver:
        trio.run(main)


def test_a_load_that_fails_beside_is_tried_again_by_the_launch_and_raised_there() -> None:
    async def main() -> None:
        twice = new_kernel()
        driver.failures = 2
        with pytest.raises(DriverError, match="no room for code"):
            await launch(twice)
        np.testing.assert_array_equal(await launch(twice), 2 * X)

    with loading() as driver:
        trio.run(main)
        assert len(driver.threads) == 3


def test_what_is_loaded_already_starts_no_thread() -> None:
    async def main() -> None:
        np.testing.assert_array_equal(await launch(twice), 2 * X)
        assert await value(3) == 3

    with loading() as driver:
        twice = new_kernel()
        launch(twice).sync()
        before = threading.active_count()
        trio.run(main)
        assert driver.threads == [threading.main_thread()]
        assert threading.active_count() <= before


def test_kernels_that_were_only_looked_at_are_not_loaded() -> None:
    async def main() -> None:
        assert "entry" in looked_at.ptx()
        assert await value(3) == 3

    with loading() as driver:
        looked_at = new_kernel()
        trio.run(main)
        assert not driver.threads
