"""Memory that is nobody's and in flight: drain waits for it, and an allocation that finds no room does, for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import oxide
from oxide import d2h, devices, full, reclaim, zeros
from oxide.driver.cpu import CpuDriver
from oxide.errors import OutOfMemoryError
from oxide.runtime.awaiting.future import FutureState
from oxide.runtime.memory import allocation as room
from oxide.serving import Batcher
from oxide.testing import DelegatingDriver, step_driver, use_driver
from tests.runtime.faulting_launches import VECTOR, product

MIB = 1 << 20


class Full(DelegatingDriver):
    """Room for 10 MiB. An allocation that is refused opens the gate, if that is asked for."""

    def __init__(self) -> None:
        super().__init__(CpuDriver())
        self.gate = threading.Event()
        self.opens_gate = True
        self.refused = 0

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        try:
            return super().invoke(method, *arguments, **keywords)
        except OutOfMemoryError:
            self.refused += 1
            if self.opens_gate:
                self.gate.set()
            raise

    def gated_stream(self) -> oxide.Stream:
        stream = devices()[0].new_stream()
        stream.launch_host_function(lambda: self.gate.wait(30) and None)
        return stream


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Full]:
    monkeypatch.setenv("OXIDE_CPU_MEMORY", str(10 * MIB))
    with use_driver(Full()) as driver:
        try:
            yield driver
        finally:
            driver.gate.set()


def test_an_allocation_waits_for_a_box_that_was_dropped_in_flight(driver: Full) -> None:
    stream, box = driver.gated_stream(), zeros(6 * MIB, "u1").sync()
    d2h(box).async_on(stream)
    del box
    assert zeros(6 * MIB, "u1").sync().nbytes == 6 * MIB
    assert driver.refused


def test_an_allocation_waits_for_results_of_async_on_that_were_dropped(driver: Full) -> None:
    stream = driver.gated_stream()
    zeros(6 * MIB, "u1").async_on(stream)
    assert zeros(6 * MIB, "u1").sync().nbytes == 6 * MIB
    assert driver.refused


def test_an_allocation_waits_for_work_whose_task_was_cancelled(driver: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LOOP_PATIENCE_SECONDS", 30.0)

    async def main() -> None:
        await cancel_work_behind(driver.gated_stream())
        assert (await zeros(6 * MIB, "u1")).nbytes == 6 * MIB

    trio.run(main)
    assert driver.refused


async def cancel_work_behind(stream: oxide.Stream) -> None:
    """Cancels an await of an operation that holds 6 MiB until the work on ``stream`` has ended."""
    policy = oxide.SingleStream()
    policy.next_stream(devices()[0]).join(stream)
    futures = [zeros(6 * MIB, "u1").schedule(policy)]

    async def wait() -> None:
        await futures[0]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        while futures[0].state is not FutureState.EXECUTING:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


def test_an_event_loop_waits_for_a_share_of_a_turn_and_collects_young_garbage(
    driver: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.opens_gate = False
    generations: list[int] = []
    monkeypatch.setattr(room.gc, "collect", generations.append)
    naps: list[float] = []
    monkeypatch.setattr(room.time, "sleep", naps.append)

    async def main() -> None:
        await cancel_work_behind(driver.gated_stream())
        with pytest.raises(OutOfMemoryError, match=r"0\.002 s of waiting for dropped work did not see its end"):
            await zeros(6 * MIB, "u1")

    trio.run(main)
    assert generations == [1]
    assert set(naps) == {0.0}  # other threads run, and the loop is not kept


def test_a_batcher_waits_for_dropped_work_while_its_loop_goes_on(driver: Full) -> None:
    driver.opens_gate = False
    answers: list[int] = []

    async def main() -> None:
        await cancel_work_behind(driver.gated_stream())

        async def ask() -> None:
            answers.append(await batcher(6 * MIB))

        async with (
            Batcher(lambda sizes: zeros(sizes[0], "u1").map(lambda box: [box.nbytes]), max_wait=0) as batcher,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(ask)
            while not driver.refused:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not answers
            driver.gate.set()
        assert batcher.statistics().reruns == 1

    trio.run(main)
    assert answers == [6 * MIB]


def test_work_that_waits_for_this_thread_is_given_up_and_the_message_says_so(
    driver: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PATIENCE_SECONDS", 0.02)
    driver.opens_gate = False
    stream, box = driver.gated_stream(), zeros(6 * MIB, "u1").sync()
    d2h(box).async_on(stream)
    del box
    with pytest.raises(OutOfMemoryError, match=r"0\.02 s of waiting for dropped work did not see its end.*cpu:0 holds"):
        zeros(6 * MIB, "u1").sync()
    driver.gate.set()
    monkeypatch.setattr(room, "PATIENCE_SECONDS", 30.0)
    assert zeros(6 * MIB, "u1").sync().nbytes == 6 * MIB


def test_where_nothing_was_dropped_the_error_comes_at_once(driver: Full) -> None:
    held = zeros(6 * MIB, "u1").sync()
    busy = driver.gated_stream()
    with pytest.raises(OutOfMemoryError) as raised:
        zeros(6 * MIB, "u1").sync()
    assert "waiting" not in str(raised.value)
    assert driver.refused == 2
    assert held.nbytes == 6 * MIB
    del busy


def test_work_on_another_device_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_CPU_MEMORY", str(10 * MIB))
    monkeypatch.setenv("OXIDE_CPU_DEVICES", "2")
    gate = threading.Event()
    with use_driver(CpuDriver(devices=2)):
        try:
            held = zeros(6 * MIB, "u1").sync()
            stream = devices()[1].new_stream()
            stream.launch_host_function(lambda: gate.wait(30) and None)
            zeros(6 * MIB, "u1").async_on(stream)
            with pytest.raises(OutOfMemoryError) as raised:
                zeros(6 * MIB, "u1").sync()
            assert "waiting" not in str(raised.value)
            assert held.nbytes
        finally:
            gate.set()


def test_drain_waits_for_what_async_on_submitted_and_gives_its_memory_back() -> None:
    with use_driver(step_driver()) as driver:
        stream = devices()[0].new_stream()
        for number in range(20):
            full(MIB, number).async_on(stream)
        reclaim.drain()
        assert driver.live_allocations.device_count == 0
        kept = full(1000, 7).async_on(stream)
        reclaim.drain()
        np.testing.assert_array_equal(d2h(kept).sync(), 7)


def test_drain_leaves_an_error_of_async_on_to_synchronize() -> None:
    stream = devices()[0].new_stream()
    product(VECTOR[:-1]).async_on(stream)
    product(VECTOR).async_on(stream)
    reclaim.drain()
    with pytest.raises(oxide.BoundsError):
        stream.synchronize()
    stream.synchronize()


@pytest.mark.parametrize("shape", [(2**62, 2), (2**63 - 1,), (2**62, 2**62)])
def test_more_bytes_than_there_are_addresses_are_out_of_memory(shape: tuple[int, ...]) -> None:
    stream = oxide.devices()[0].new_stream()
    for make in (zeros(shape), oxide.empty(shape)):
        with pytest.raises(OutOfMemoryError, match="no memory is as large"):
            make.sync_on(stream)
