"""A kernel's first launch beside a long one: the driver loads it when the device is idle, and the loop goes on."""

from __future__ import annotations

import time

import numpy as np
import trio

import oxide
from oxide import DisjointSlice, Slice, d2h, f32, h2d, kernel, thread, zeros
from tests.runtime.loop.test_no_thread_waits import spin


def test_the_first_launch_of_a_kernel_beside_a_long_one_does_not_stop_the_loop() -> None:
    @kernel(block=32)
    def thrice(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = f32(3.0) * x[index.get()]

    x = np.arange(100, dtype=np.float32)
    stream = oxide.devices()[0].new_stream()
    spin(1000, zeros(1)).sync_on(stream)
    stalls: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await trio.sleep(0)
            now = time.perf_counter()
            stalls.append(now - last)
            last = now

    async def main() -> None:
        np.testing.assert_array_equal(await h2d(x).to_host(), x)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            operation = thrice(h2d(x), zeros(len(x))).last().and_then(d2h)  # typed here, on the loop
            await trio.sleep(0.01)
            stalls.clear()
            spin(60_000_000, zeros(1)).async_on(stream)
            assert not stream.query()
            np.testing.assert_array_equal(await operation, 3 * x)
            nursery.cancel_scope.cancel()

    trio.run(main)
    stream.synchronize()
    print(f"longest stall {max(stalls) * 1e3:.1f} ms")
    assert max(stalls) < 0.1  # the long kernel takes far longer; the compiler takes the interpreter's lock in turns
