"""Very many operations: resident memory stays flat, nothing is left, and the loop stays responsive.

``OXIDE_TEST_OPERATIONS`` sets how many the soak runs (20 000 otherwise; 1 000 000 takes some minutes on a CPU).
"""

from __future__ import annotations

import gc
import os
import threading
import time

import numpy as np
import pytest
import trio
import trio.testing

import oxide
from oxide import DeviceOperation, ExecutionContext, h2d, value, with_context
from oxide.driver.cpu import CpuDriver
from oxide.runtime.devices.runtime import current_runtime
from oxide.testing import use_driver
from tests.runtime.waiting import until

OPERATIONS = int(os.environ.get("OXIDE_TEST_OPERATIONS", "20000"))
WARM_UP = 1000
TASKS = 20
GROWTH_BYTES = 8 << 20


def resident() -> int:
    """The process's resident memory in bytes."""
    with open("/proc/self/statm", encoding="ascii") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.nightly
def test_operations_without_end_one_in_ten_cancelled_leave_memory_as_it_was(device: str) -> None:
    rng = np.random.default_rng(0)
    batch = np.arange(64, dtype=np.float32)
    live = current_runtime().default_device.live
    before = set(live)  # what tests in other files left to the garbage collector is none of this one's business
    done = cancelled = 0
    readings: list[int] = []

    async def one(impatient: bool, checkpoints: int) -> None:
        nonlocal done, cancelled
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def wait() -> None:
                    result = await h2d(batch).to_host()
                    assert result[-1] == 63
                    nursery.cancel_scope.cancel()

                nursery.start_soon(wait)
                if impatient:
                    for _ in range(checkpoints):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
        cancelled += scope.cancelled_caught
        done += 1

    async def worker() -> None:
        while done < OPERATIONS:
            await one(rng.random() < 0.1, int(rng.integers(0, 4)))
            if done % 1000 == 0:
                readings.append(resident())

    async def main() -> None:
        while done < WARM_UP:
            await one(done % 10 == 0, done % 4)
        gc.collect()
        readings.append(resident())
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(worker)

    trio.run(main)
    gc.collect()
    oxide.reclaim.drain()
    runtime = current_runtime()
    assert runtime.reclaimer.pending() == (0, 0, 0, 0)
    assert not set(live) - before
    assert cancelled > done / 40
    growth = max(readings[-5:]) - readings[0]
    print(f"{done} operations, {cancelled} cancelled, resident {readings[0] >> 20} MiB, growth {growth >> 10} KiB")
    assert growth < GROWTH_BYTES


def test_ten_thousand_operations_in_flight_are_awaited_by_as_many_tasks_without_a_stall() -> None:
    count = 10_000
    gc.collect()
    with use_driver(CpuDriver()):
        opened = threading.Event()
        submitted = finished = 0
        stalls: list[float] = []

        def held(_: ExecutionContext) -> DeviceOperation[None]:
            nonlocal submitted
            submitted += 1
            return value(None)

        async def one() -> None:
            nonlocal finished
            await with_context(held)
            finished += 1

        async def tick() -> None:
            # Processor time of the loop's thread: what others do with the machine is not the loop's stall.
            last = time.thread_time()
            while True:
                await trio.sleep(0)
                now = time.thread_time()
                stalls.append(now - last)
                last = now

        async def main() -> None:
            policy = current_runtime().policy
            for _ in range(4):  # every stream of the policy stands still until all have been submitted
                policy.next_stream(oxide.devices()[0]).launch_host_function(opened.wait)  # type: ignore[arg-type]
            async with trio.open_nursery() as nursery:
                for _ in range(count // 100):
                    for _ in range(100):
                        nursery.start_soon(one)
                    await trio.lowlevel.checkpoint()
                while submitted < count:
                    await trio.lowlevel.checkpoint()
                assert finished == 0
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(tick)
                opened.set()
                await until(lambda: finished == count)
                nursery.cancel_scope.cancel()

        gc.disable()  # its pauses, with 10 000 tasks alive, are the interpreter's
        try:
            trio.run(main)
        finally:
            gc.enable()
    assert finished == count
    print(f"longest stall {max(stalls) * 1e3:.1f} ms")
    assert max(stalls) < 0.05
