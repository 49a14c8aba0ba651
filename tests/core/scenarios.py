"""What programs do with the core, in small: each scenario is a call that makes objects of several of its types, and
drops them. Some fail, at every stage of a run. ``leaks.py`` runs them again and again, ``no_memory.py`` without
memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import trio

import oxide
from oxide import DisjointSlice, DriverError, OxideError, Slice, d2h, f32, h2d, kernel, thread, zeros
from oxide.driver.cpu import CpuDriver
from oxide.host import core
from oxide.testing import FailingDriver, use_driver


class Refused(Exception):
    """The error of a scenario's own functions."""


@kernel(block=32)
def bump(x: DisjointSlice[f32], by: f32) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value + by


@kernel(block=32)
def out_of_bounds(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[thread.index_1d().get() + 40]


def new_box() -> oxide.DeviceBox:
    return h2d(np.ones(32, np.float32)).sync()


def refuse(*_: Any) -> Any:
    raise Refused


def build_and_drop() -> None:
    operation: Any = oxide.value(1)
    for _ in range(20):
        operation = operation.map(lambda result: result)
    bump(new_box(), 1.0).consume()
    operation.consume()
    oxide.zip(oxide.value(1), oxide.value(2)).consume()


def unused() -> None:
    """Objects that are dropped unused, and warned of."""
    oxide.value(1).map(lambda result: result)
    bump(new_box(), 1.0)
    oxide.value(1).into_future()
    gc.collect()


def launches() -> None:
    box = new_box()
    for each in range(12):  # more than a report has records
        bump(box, float(each)).sync()
    bump(oxide.Arc(box), 1.0).sync()
    bump(h2d(np.ones(32, np.float32)), 1.0).sync()  # not bound before it runs
    launch = bump(box, 2.0)
    launch.sync()
    launch.sync()


def wrong_launches() -> None:
    for arguments in ((), (1, 2), (new_box(), "x"), (new_box(), 1.0, 2), (None, 1.0)):
        with contextlib.suppress(OxideError, TypeError, ValueError):
            bump(*arguments).sync()
    with contextlib.suppress(OxideError, TypeError, ValueError):
        bump[(0, 32)](new_box(), 1.0)


def chains() -> None:
    box = new_box()
    (found,) = oxide.value(box).and_then(lambda held: bump(held, 1.0)).map(lambda made: made[:1]).sync()
    assert found is box
    oxide.value(1).and_then(lambda one: oxide.zip(oxide.value(one), bump(box, 1.0))).sync()
    oxide.with_context(lambda context: oxide.value(context.device)).sync()
    parts = oxide.unzip(oxide.zip(bump(box, 1.0), oxide.value(2)), 2)
    assert oxide.zip(*parts).map(lambda pair: pair[1]).sync() == 2


def transfers() -> None:
    array = np.arange(64, dtype=np.float32)
    assert (h2d(array).and_then(d2h).sync() == array).all()
    zeros(16).and_then(lambda box: bump(box, 1.0)).sync()
    h2d(np.zeros((4, 4), np.float64).T).and_then(d2h).map(lambda found: found.sum()).sync()


def streams() -> None:
    device, box = oxide.devices()[0], new_box()
    one, other = device.new_stream(), device.new_stream()
    bump(box, 1.0).async_on(one)
    bump(box, 1.0).async_on(other)
    bump(box, 1.0).sync_on(one)
    one.synchronize()
    other.synchronize()


def failing_stages() -> None:
    box = new_box()
    for operation in (
        oxide.value(1).map(refuse),
        oxide.value(1).and_then(refuse),
        oxide.value(1).and_then(lambda one: one),  # no operation
        bump(box, 1.0).map(refuse),
        oxide.zip(bump(box, 1.0), oxide.value(1).map(refuse)),
        oxide.unzip(oxide.value(1), 2)[1],
        oxide.value(1).and_then(lambda _: bump(box, 1.0).map(refuse)),
    ):
        with contextlib.suppress(Refused, OxideError, TypeError, ValueError):
            operation.sync()


def faults() -> None:
    with contextlib.suppress(OxideError):
        out_of_bounds(new_box(), new_box()).sync()
    box = new_box()
    with contextlib.suppress(OxideError):
        oxide.zip(*(bump(box, 1.0) for _ in range(9)), out_of_bounds(box, new_box())).sync()


def graphs() -> None:
    box = new_box()
    graph = bump(box, 1.0).graph()
    for _ in range(3):
        graph.launch().sync()
    graph.launch().async_on(oxide.devices()[0].new_stream())
    failing = out_of_bounds(box, new_box()).graph()
    with contextlib.suppress(OxideError):
        failing.launch().sync()


def shared() -> None:
    one = oxide.shared(bump(new_box(), 1.0))
    oxide.zip(one, one.map(lambda result: result)).sync()
    failing = oxide.shared(oxide.value(1).map(refuse))
    with contextlib.suppress(Refused):
        oxide.zip(failing, failing).sync()


async def _awaits() -> None:
    box = new_box()
    await bump(box, 1.0)
    assert await oxide.value(1).map(lambda one: one + 1) == 2
    with contextlib.suppress(Refused):
        await oxide.value(1).map(refuse)
    with contextlib.suppress(OxideError):
        await out_of_bounds(box, new_box())
    future = bump(box, 1.0).into_future()
    await future


async def _cancelled() -> None:
    with trio.move_on_after(0):
        await bump(new_box(), 1.0)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(_awaits)
        nursery.cancel_scope.cancel()


def awaits_under_trio() -> None:
    trio.run(_awaits)


def awaits_under_asyncio() -> None:
    asyncio.run(_awaits())


def cancelled_awaits() -> None:
    trio.run(_cancelled)


def failing_driver() -> None:
    """A failure at each of the driver's first calls."""
    with use_driver(FailingDriver(CpuDriver(1))) as driver:
        for number in range(1, 16):
            driver.fail_call(number, DriverError(999, "CUDA_ERROR_UNKNOWN", "no"))
            with contextlib.suppress(OxideError):
                h2d(np.ones(32, np.float32)).and_then(lambda box: bump(box, 1.0)).map(lambda made: made[0]).sync()
        driver._failures.clear()


def threads() -> None:
    """Two threads that start one future, and use one stream."""
    stream = oxide.devices()[0].new_stream()
    future = bump(new_box(), 1.0).into_future()
    ready = threading.Barrier(2)

    def work() -> None:
        ready.wait()
        with contextlib.suppress(OxideError):
            future.start()
        for _ in range(3):
            bump(new_box(), 1.0).sync_on(stream)

    both = [threading.Thread(target=work) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()


def core_alone() -> None:
    """Calls of the core by themselves."""
    stream = oxide.devices()[0].new_stream()
    box = new_box()
    core.submit(bump(box, 1.0), stream)  # and dropped
    core.run_blocking(bump(box, 1.0), stream)
    core.submit_at_once(bump(box, 1.0), stream, "call").abandon()
    stream.synchronize()


SCENARIOS: dict[str, Callable[[], None]] = {
    found.__name__: found
    for found in (
        build_and_drop, unused, launches, wrong_launches, chains, transfers, streams, failing_stages, faults, graphs,
        shared, awaits_under_trio, awaits_under_asyncio, cancelled_awaits, threads, core_alone, failing_driver,
    )
}  # fmt: skip


def settle() -> None:
    """Waits until the device is past everything that was dropped, and collects."""
    for _ in range(2):
        gc.collect()
        oxide.reclaim.drain()
        for timeline in (timeline for device in oxide.devices() for timeline in device._timelines):
            timeline.note_passed(timeline.mark().position)  # else a stream keeps a few dozen marks
    gc.collect()
