"""Who sweeps: one thread at a time, and none waits for its turn. Ctrl-C in a sweep leaves the next one its work."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from types import CodeType
from typing import Any

import numpy as np
import pytest

from oxide.driver.cpu import CpuDriver
from oxide.runtime.devices.runtime import Device, current_runtime
from oxide.runtime.loop.pace import SHARE_SECONDS
from oxide.runtime.memory import reclaim
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.ordering.timeline import Timeline
from oxide.testing import use_driver
from tests.driver.conftest import Gate
from tests.interrupting import interrupts, needs_calls

TAKEN = ("free", "disown", "destroy_event", "destroy_graph")


class Kept:
    """What nobody uses once the device is past some work. Says when it goes."""

    def __init__(self, went: Callable[[], object]) -> None:
        self._went = went

    def __del__(self) -> None:
        self._went()


def sweep(reclaimer: reclaim.Reclaimer) -> None:
    """As often as it takes: on a busy machine the time of one is over before it has begun."""
    while not reclaimer.sweep():
        pass


@pytest.fixture
def device() -> Iterator[Device]:
    driver = CpuDriver(threads=1)
    with use_driver(driver):
        yield current_runtime().default_device
    driver.close()


def is_sweeping(code: CodeType) -> bool:
    return code.co_filename == reclaim.__file__


def drop_memory(home: Timeline, uses: Iterable[tuple[Timeline, int]] = ()) -> None:
    """Leaves the reclaimer memory that was allocated on ``home`` and read elsewhere since."""
    allocation = Allocation(home, 64)
    allocation.obtain()
    allocation.reads.update(uses)


def drop_two_of_each(device: Device, went: Callable[[], object]) -> int:
    """Leaves the reclaimer work of every kind; how many things."""
    driver, reclaimer = device.driver, device.runtime.reclaimer
    home, *others = (device.take_timeline() for _ in range(3))
    array = np.ones(4)
    for _ in range(2):
        uses = tuple((timeline, timeline.advance()) for timeline in others)
        drop_memory(home)
        drop_memory(home, uses)  # behind others: on a stream beside them
        driver.adopt(array.ctypes.data, array.nbytes)
        written = home, home.advance()
        Allocation.of_another_library(
            home, array.ctypes.data, array.shape, array.dtype, Kept(went), written, array.nbytes
        )
        reclaimer.retire_event(driver.create_event(device.id, timing=False))
        driver.begin_capture(home.handle)
        reclaimer.retire_graph(driver.end_capture(home.handle))
        reclaimer.strand(home, [Kept(went)])
        mark = home.mark()
        reclaimer.hold(mark, [Kept(went)])
        reclaimer.abandon((mark, None))
    device.spare_timelines.extend([home, *others])
    return 6


def count_what_is_taken(driver: Any, patch: pytest.MonkeyPatch) -> Counter[str]:
    taken: Counter[str] = Counter()

    def counted(name: str, take: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            taken[name] += 1
            take(*arguments)

        return call

    for name in TAKEN:
        patch.setattr(driver, name, counted(name, getattr(driver, name)))
    return taken


@needs_calls
@pytest.mark.parametrize("run", ["sweep", "make_room", "drain"])
def test_an_interrupt_at_any_place_of_a_sweep_leaves_its_work_to_the_next(
    run: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    reclaimer = device.runtime.reclaimer
    calls: dict[str, Callable[[], object]] = {
        "sweep": reclaimer.sweep,
        "make_room": lambda: reclaimer.make_room(device),
        "drain": reclaimer.drain,
    }
    taken = count_what_is_taken(device.driver, monkeypatch)
    for interrupt in interrupts(is_sweeping, more_than=50):
        taken.clear()
        went: list[bool] = []
        dropped = drop_two_of_each(device, lambda went=went: went.append(True))
        with interrupt:
            calls[run]()
        assert not reclaimer._turn.locked(), interrupt.at
        reclaimer.drain()
        assert len(went) == dropped, interrupt.at
        assert taken == {"free": 4, "disown": 2, "destroy_event": 2, "destroy_graph": 2}, interrupt.at
        assert reclaimer.pending() == (0, 0, 0, 0), interrupt.at
        assert device.driver.live_allocations.device_count == 0, interrupt.at  # type: ignore[attr-defined]


def test_a_sweep_waits_for_no_other_thread_s_nor_for_its_own_thread_s(device: Device) -> None:
    reclaimer, timeline = device.runtime.reclaimer, device.take_timeline()
    gate, answers = Gate(), []

    def finalise() -> None:
        answers.extend([reclaimer.sweep(), reclaimer.make_room(device)])
        gate()

    reclaimer.strand(timeline, [Kept(finalise)])
    sweeping = threading.Thread(target=reclaimer.sweep)
    sweeping.start()
    assert gate.started.wait(60)
    assert answers == [True, True]
    drop_memory(timeline)
    sweep(reclaimer)
    assert reclaimer.make_room(device)  # there may be more before long
    assert not reclaimer.idle
    draining = threading.Thread(target=reclaimer.drain)
    draining.start()
    gate.release.set()
    draining.join()
    sweeping.join()
    assert reclaimer.idle
    assert not reclaimer.make_room(device)


def test_what_is_dropped_while_a_thread_waits_for_the_device_is_given_back_at_once(device: Device) -> None:
    reclaimer, driver = device.runtime.reclaimer, device.driver
    busy, free, gate, waits = device.take_timeline(), device.take_timeline(), Gate(), threading.Event()
    driver.launch_host_function(gate, busy.handle)
    busy.driver = Told(driver, waits)  # type: ignore[assignment]
    reclaimer.strand(busy, [])
    draining = threading.Thread(target=reclaimer.drain)
    draining.start()
    try:
        assert waits.wait(60)
        drop_memory(free)
        sweep(reclaimer)
        assert reclaimer.pending()[2] == 0
    finally:
        gate.release.set()  # or the fixture's end waits for it
    draining.join()


def test_sweeps_that_are_late_from_the_start_free_everything_in_the_end(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes something from every queue, were its time over before it began."""
    reclaimer, seconds, went = device.runtime.reclaimer, count(), []
    dropped = drop_two_of_each(device, lambda: went.append(True))
    for timeline in device.timelines:
        timeline.synchronize()
    monkeypatch.setattr(reclaim.time, "perf_counter", lambda: float(next(seconds)))  # a second from look to look
    sweeps = 0
    while not reclaimer.idle and sweeps < 20:
        reclaimer.sweep()
        sweeps += 1
    assert reclaimer.idle
    assert sweeps >= 4  # four pieces of memory, one a sweep
    assert len(went) == dropped
    reclaimer.drain()
    assert device.driver.live_allocations.device_count == 0  # type: ignore[attr-defined]


def test_memory_is_freed_beside_a_collector_that_takes_all_of_a_sweep_s_time(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    reclaimer, timeline, clock, later = device.runtime.reclaimer, device.take_timeline(), time.perf_counter, [0.0]

    def collector() -> None:
        later[0] += 2 * SHARE_SECONDS

    monkeypatch.setattr(reclaim.time, "perf_counter", lambda: clock() + later[0])
    reclaim.collectors.append(collector)
    try:
        for _ in range(3):
            drop_memory(timeline)
        assert [reclaimer.sweep() for _ in range(3)] == [False, False, True]
        assert reclaimer.idle
        assert later[0] == 6 * SHARE_SECONDS
    finally:
        reclaim.collectors.remove(collector)


class Told:
    """A driver that says when a thread begins to wait for a stream."""

    def __init__(self, driver: Any, waits: threading.Event) -> None:
        self._driver, self._waits = driver, waits

    def __getattr__(self, name: str) -> Any:
        if name == "synchronize_stream":
            self._waits.set()
        return getattr(self._driver, name)
