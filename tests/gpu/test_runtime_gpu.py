"""The runtime on a real GPU: what only real asynchrony shows."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import d2h, gather, h2d, ones, spawn, zeros
from oxide.driver.cuda.driver import CudaDriver
from oxide.testing import RecordingDriver, use_driver
from tests.gpu.slow_kernel import slow_add
from tests.on_stream import On

TURNS = 600_000_000  # about 1.5 s: a collection of garbage in a large process takes a good part of a second


def test_a_task_cancelled_while_its_kernel_runs_returns_at_once_and_its_memory_stays() -> None:
    with use_driver(RecordingDriver(CudaDriver()), completion="callback") as driver:
        slow_add(1, ones(10), zeros(10)).sync()
        oxide.reclaim.drain()
        before = driver.outstanding()

        async def main() -> None:
            x, y = await h2d(np.full(1000, 3, np.float32)), await zeros(1000)
            pointers = {x.ptr, y.ptr}
            stream = oxide.devices()[0].new_stream()
            start = time.perf_counter()
            with trio.move_on_after(0.02) as scope:
                await slow_add(TURNS, x, y).schedule(On(stream))
            assert scope.cancelled_caught
            assert time.perf_counter() - start < 0.1
            assert not stream.query()  # the kernel runs
            del x, y
            gc.collect()
            others = [await h2d(np.full(1000, -1, np.float32)) for _ in range(50)]
            assert not stream.query()
            assert pointers.isdisjoint(box.ptr for box in others)
            del others
            while not stream.query():
                await trio.sleep(0.01)

        trio.run(main)
        gc.collect()
        oxide.reclaim.drain()
        after = driver.outstanding()
        assert after["allocations"] == before["allocations"]
        assert after["host_allocations"] == before["host_allocations"] == 0


def test_work_on_other_streams_waits_for_the_kernel_that_writes_its_input() -> None:
    streams = [oxide.devices()[0].new_stream() for _ in range(3)]
    for _ in range(5):
        x = h2d(np.arange(1000, dtype=np.float32)).async_on(streams[0])
        y = slow_add(2_000_000, x, zeros(1000)).last().async_on(streams[0])
        z = slow_add(2_000_000, y, ones(1000)).last().async_on(streams[1])
        result = d2h(z).async_on(streams[2])
        del x, y, z
        gc.collect()
        for stream in reversed(streams):
            stream.synchronize()
        np.testing.assert_allclose(result, np.arange(1000) + 1, rtol=1e-2)


def test_a_fault_on_one_stream_leaves_the_context_and_other_streams_alone() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            good = spawn(nursery, slow_add(5_000_000, ones(1000), zeros(1000)).last().to_host())
            bad = [spawn(nursery, slow_add(1, ones(999), zeros(1000)), errors="handle") for _ in range(20)]
        np.testing.assert_allclose(await good, np.ones(1000), rtol=1e-2)
        for handle in bad:
            with pytest.raises(oxide.BoundsError) as caught:
                await handle
            assert (caught.value.parameter, caught.value.index, caught.value.length) == ("x", 999, 999)
            assert (caught.value.block, caught.value.thread) == ((3, 0, 0), (231, 0, 0))
        np.testing.assert_array_equal(await h2d(np.ones(5)).to_host(), np.ones(5))

    trio.run(main)


@pytest.mark.parametrize("completion", ["adaptive", "poll", "callback"])
def test_a_thousand_operations_in_every_mode(completion: Any) -> None:
    oxide.init_device_contexts(completion=completion)
    try:

        async def main() -> None:
            for start in range(0, 1000, 100):
                results = await gather(*[h2d(np.full(100, i, np.float32)).to_host() for i in range(start, start + 100)])
                assert [int(r[0]) for r in results] == list(range(start, start + 100))

        trio.run(main)
    finally:
        oxide.init_device_contexts()


def test_a_cuda_array_interface_is_the_boxs_memory() -> None:
    cupy = pytest.importorskip("cupy")
    box = h2d(np.arange(10, dtype=np.float32)).sync()
    np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(box)), np.arange(10))


def test_large_copies_and_odd_sizes() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 31, 33, 1000003, 1 << 24):
        array = rng.random(size, np.float32)
        np.testing.assert_array_equal(h2d(array).to_host().sync(), array)
