"""A process that is sent Ctrl-C at random moments as it works: ``python -m tests.interrupted_child MODE NUMBER SEED``.

Each interrupt must be raised once, out of the work; then nothing may be in flight after ``drain()``, and the next
operation is right. ``tests.interrupting`` starts such processes and looks at what they print.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import trio

import oxide
from oxide import (
    Arc,
    CudaGraph,
    DisjointSlice,
    Slice,
    as_completed,
    d2h,
    f32,
    gather,
    h2d,
    kernel,
    memcpy,
    thread,
    zeros,
)
from oxide.runtime.devices.runtime import current_runtime

LONGEST_DELAY = 8e-3
LOST_AFTER = 20.0

ONES = np.ones(512, np.float32)
LARGE = np.ones(200_000, np.float32)


@kernel(block=64)
def bump(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + f32(1.0)


class Alarm:
    """Sends this process SIGINT after a while, from a timer of the system's: no thread of Python's takes part."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        event = (ctypes.c_int * 16)()  # struct sigevent: a value of two words, the signal, and 0 for SIGEV_SIGNAL
        event[2] = signal.SIGINT
        self._timer = ctypes.c_void_p()
        self._settime = libc.timer_settime
        assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(self._timer)) == 0  # CLOCK_MONOTONIC

    def arm(self, seconds: float) -> None:
        """0 disarms it."""
        nanoseconds = int(seconds * 1e9)
        times = (ctypes.c_long * 4)(0, 0, nanoseconds // 10**9, nanoseconds % 10**9)
        assert self._settime(self._timer, 0, ctypes.byref(times), None) == 0


class Holder:
    """Something in a cycle, which the garbage collector drops at a moment of its own."""

    def __init__(self, held: object) -> None:
        self.itself, self.held = self, held


def sync_work() -> None:
    box = h2d(ONES).sync()
    shared = Arc(box).clone()
    target = zeros(512).sync()
    bump(box, target).sync()
    Holder((shared, target))
    np.from_dlpack(box)
    check(target)
    h2d(LARGE).and_then(d2h).sync()


def check(box: oxide.DeviceBox) -> None:
    found = d2h(box).sync()
    if not np.array_equal(found, ONES + 1):
        raise AssertionError(f"{found} is wrong")


class Graphs:
    """One graph for a while, and then another."""

    def __init__(self) -> None:
        self.stream = oxide.devices()[0].new_stream()
        self.target: Any = None
        self.graph: CudaGraph[Any] | None = None
        self.launches = 0

    def work(self) -> None:
        if self.graph is None or self.launches % 20 == 0:
            self.source, self.target = h2d(ONES).sync_on(self.stream), zeros(512).sync_on(self.stream)
            self.graph = bump(self.source, self.target).graph_on(self.stream)
        self.launches += 1
        self.graph.update(memcpy(self.source, ONES))
        self.graph.launch().async_on(self.stream)
        self.graph.launch().sync()
        check(self.target)


class Loose:
    """``async_on`` to two streams, which are dropped now and then."""

    def __init__(self) -> None:
        self.runs = 0

    def work(self) -> None:
        if self.runs % 30 == 0:
            self.streams = [oxide.devices()[0].new_stream() for _ in range(2)]
        self.runs += 1
        first, second = self.streams
        box = h2d(ONES).async_on(first)
        target = zeros(512).async_on(second)
        bump(box, target).async_on(second)
        d2h(target).async_on(first)
        Holder(box)
        first.record_event()
        if self.runs % 8 == 0:
            second.synchronize()
            check(target)


async def together() -> None:
    box, target = await gather(h2d(ONES), zeros(512))
    await bump(box, target)
    Holder(Arc(target).clone())
    check_found(await d2h(target))
    async for found in as_completed([h2d(ONES).and_then(d2h) for _ in range(4)], limit=2):
        assert found.sum() == 512
    future = h2d(LARGE).into_future()
    await future


def check_found(found: Any) -> None:
    if not np.array_equal(found, ONES + 1):
        raise AssertionError(f"{found} is wrong")


async def for_ever(work: Callable[[], Awaitable[None]], alarm: Alarm, delay: float) -> None:
    alarm.arm(delay)
    until = time.perf_counter() + LOST_AFTER
    while time.perf_counter() < until:
        await work()


@trio.lowlevel.enable_ki_protection
async def under_trio() -> None:
    """Opens a nursery where no interrupt is raised: trio's own ``async with`` would not stand it."""

    async def cancelled() -> None:
        with trio.move_on_after(1e-4):
            await together()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancelled)
        handle = oxide.spawn(nursery, h2d(ONES).and_then(d2h))
        await trio.lowlevel.disable_ki_protection(together)()
    await handle


async def under_asyncio() -> None:
    task = asyncio.ensure_future(together())
    await asyncio.sleep(0)
    task.cancel()
    await together()
    await asyncio.gather(task, return_exceptions=True)


def run_for_ever(work: Callable[[], None], alarm: Alarm, delay: float) -> None:
    alarm.arm(delay)
    until = time.perf_counter() + LOST_AFTER
    while time.perf_counter() < until:
        work()


def only_interrupts(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(only_interrupts, error.exceptions))
    return isinstance(error, KeyboardInterrupt)


def main(mode: str, number: int, seed: int) -> None:
    alarm, draws = Alarm(), random.Random(seed)
    runs: dict[str, Callable[[float], None]] = {
        "sync": lambda delay: run_for_ever(sync_work, alarm, delay),
        "graph": lambda delay: run_for_ever(Graphs().work, alarm, delay),
        "async_on": lambda delay: run_for_ever(Loose().work, alarm, delay),
        "trio": lambda delay: trio.run(for_ever, under_trio, alarm, delay),
        "asyncio": lambda delay: asyncio.run(for_ever(under_asyncio, alarm, delay)),
    }
    sync_work()  # compiles
    Graphs().work()
    trio.run(under_trio)
    for raised in range(number):
        if raised % 5 == 0:
            gc.collect()
        try:
            runs[mode](draws.uniform(1e-5, LONGEST_DELAY))
        except BaseException as error:
            if not only_interrupts(error):
                raise
        else:
            sys.exit(f"interrupt {raised} was lost")
        oxide.reclaim.drain()
        runtime, counts = current_runtime(), oxide.statistics()
        if counts.in_flight or any(runtime.reclaimer.pending()) or not runtime.reclaimer.idle:
            sys.exit(f"after interrupt {raised}: {counts.in_flight} in flight, pending {runtime.reclaimer.pending()}")
        sync_work()
    print("interrupted", number)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
