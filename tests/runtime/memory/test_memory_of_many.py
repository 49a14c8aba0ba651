"""What each of many operations costs while a gather runs them, in Python's memory and in page-locked memory."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import DisjointSlice, DriverError, LaunchError, d2h, f32, gather, h2d, kernel, thread, zeros
from oxide.runtime.devices.runtime import current_runtime
from oxide.testing import FailingDriver, seeded_driver, step_driver, use_driver

MANY = 2000
X = np.ones(4, np.float32)


@kernel(block=32)
def fill_with_ones(y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = 1


def round_trip() -> Any:
    return h2d(X).and_then(d2h)


def launch() -> Any:
    return fill_with_ones(zeros(4)).last().to_host()


@pytest.mark.slow
@pytest.mark.parametrize(("build", "most"), [(round_trip, 2200), (launch, 2900)])
def test_what_an_operation_of_a_gather_costs(build: Any, most: int) -> None:
    """Its result included; on a device whose work is done by when it is asked."""
    peak = 0

    async def main() -> Any:
        return await gather(*[build() for _ in range(MANY)])

    with use_driver(seeded_driver(0)) as driver:
        trio.run(main)  # so that tables of the device that grow with the largest number in flight have grown
        gc.collect()
        tracemalloc.start()
        try:
            results = trio.run(main)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        np.testing.assert_array_equal(results, np.ones((MANY, 4)))
        assert peak / MANY < most
        assert driver.live_allocations.host_bytes / MANY < 400


def test_small_page_locked_buffers_share_a_page_and_give_it_back_whole() -> None:
    with use_driver(step_driver()) as driver:
        pool = current_runtime().pinned
        buffers = [pool.acquire(200) for _ in range(17)]
        assert len({buffer.address // 256 for buffer in buffers}) == 17
        assert driver.live_allocations.host_count == 2
        last = buffers.pop()
        buffers.clear()
        pool.trim()
        assert driver.live_allocations.host_count == 1
        assert "256 bytes in use by arrays and copies, 3.75 KiB pooled" in pool.describe()
        last.array((200,), np.dtype(np.uint8))[:] = 1
        del last
        pool.trim()
        assert driver.live_allocations.host_count == 0
        assert pool.free_bytes == 0


def test_a_page_that_the_driver_refuses_to_take_back_stays() -> None:
    with use_driver(FailingDriver(step_driver())) as driver:
        pool = current_runtime().pinned
        del [pool.acquire(200)][0]
        driver.fail("free_host", DriverError(999, "CUDA_ERROR_UNKNOWN"))
        with pytest.raises(DriverError):
            pool.trim()
        assert pool.free_bytes == 4096
        pool.trim()
        assert pool.free_bytes == 0


def test_a_gather_raises_the_first_error_that_it_finds_and_submits_no_more() -> None:
    with use_driver(FailingDriver(seeded_driver(0))) as driver:
        launch().sync()
        driver.fail("launch", LaunchError("refused"), at=40)

        async def main() -> None:
            with pytest.raises(LaunchError, match="refused"):
                await gather(*[launch() for _ in range(100)])

        before = oxide.statistics().submitted
        trio.run(main)
        assert oxide.statistics().submitted == before + 39
