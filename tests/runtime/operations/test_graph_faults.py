"""Launches of a graph in flight: each fault is raised by the launch that it happened in, and by no other."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxide
from oxide import (
    BoundsError,
    CudaGraph,
    DeviceLostError,
    DisjointSlice,
    DriverError,
    GraphError,
    Slice,
    d2h,
    dup,
    f32,
    h2d,
    i64,
    kernel,
    memcpy,
    thread,
    zeros,
)
from oxide.host.core import submit
from oxide.runtime.submission.submission import Submission
from oxide.testing import DelegatingDriver, FailingDriver, RecordingDriver, seeded_driver, step_driver, use_driver
from tests.choosing import examples

PAGE = 64
LAUNCHES = 1000


@kernel(block=1)
def visit(wrong: Slice[i64], x: Slice[f32], turn: DisjointSlice[i64]) -> None:
    """The launch number n reads ``x[wrong[n]]``, of which there is one element."""
    element = turn.get_mut(thread.index_1d())
    if element is not None:
        number = element.value
        element.value = number + 1
        if x[wrong[number]] != 0:
            element.value = 0


class Visits:
    """A graph whose launches fault where they are told to, each with an index of its own: 1000 and its number."""

    def __init__(self, wrong: Any) -> None:
        table = np.zeros(LAUNCHES, np.int64)
        for number in wrong:
            table[number] = 1000 + number
        self.turn = zeros(1, np.int64).sync()
        self.graph = visit(h2d(table).sync(), zeros(1).sync(), self.turn).graph()
        self.streams = [oxide.devices()[0].new_stream() for _ in range(3)]

    def launch(self, stream: int = 0) -> Submission[None]:
        return submit(self.graph.launch(), self.streams[stream])

    def turns(self) -> int:
        return int(d2h(self.turn).sync()[0])


def outcome(launch: Submission[None]) -> int | None:
    """The number of the launch that a fault names; None where there was none."""
    launch.mark.synchronize()
    try:
        launch.finish()
    except BoundsError as fault:
        found = fault.kernel, fault.parameter, fault.length, fault.index
    else:
        return None
    assert found[:3] == ("visit", "x", 1)
    return found[3] - 1000


@pytest.fixture(params=["the device", "steps", "seed 1", "seed 2"])
def any_driver(request: pytest.FixtureRequest) -> Iterator[None]:
    drivers: dict[str, Any] = {"steps": step_driver, "seed 1": lambda: step_driver(seed=1)}
    drivers["seed 2"] = lambda: seeded_driver(2)
    with use_driver(drivers[request.param]()) if request.param in drivers else nullcontext():
        yield


@pytest.mark.usefixtures("any_driver")
@pytest.mark.parametrize("streams", [1, 3])
def test_of_many_launches_in_flight_those_that_fault_say_so_and_no_others(streams: int) -> None:
    wrong = {0, 1, 17, PAGE - 1, PAGE, 100, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 199}
    visits = Visits(wrong)
    launches = [visits.launch(number % streams) for number in range(200)]
    outcomes = [outcome(launch) for launch in launches]
    assert outcomes == [number if number in wrong else None for number in range(200)]
    assert visits.turns() == 200


@pytest.mark.usefixtures("any_driver")
def test_a_fault_can_be_read_in_any_order_and_long_after() -> None:
    visits = Visits(range(3 * PAGE))
    first = visits.launch()
    later = [visits.launch() for _ in range(3 * PAGE - 1)]
    assert [outcome(launch) for launch in reversed(later)] == list(range(3 * PAGE - 1, 0, -1))
    del later
    for _ in range(3 * PAGE):
        visits.graph.launch().sync()
    assert outcome(first) == 0
    assert outcome(first) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("any_driver")
def test_the_fault_of_a_launch_that_is_abandoned_is_nobodys() -> None:
    visits = Visits({3, 4, 70, 71})
    launches: list[Submission[None] | None] = [visits.launch(number % 2) for number in range(100)]
    for number in (3, 70, 80):
        abandoned = launches[number]
        assert abandoned is not None
        abandoned.abandon()
        del abandoned
        launches[number] = None
    assert [outcome(launch) for launch in launches if launch is not None] == [
        number if number in (4, 71) else None for number in range(100) if number not in (3, 70, 80)
    ]
    launches.clear()
    gc.collect()
    oxide.reclaim.drain()
    assert [outcome(visits.launch()) for _ in range(2 * PAGE)] == [None] * 2 * PAGE


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), program=st.data())
def test_whatever_is_abandoned_waited_for_and_closed_each_launch_has_its_own_outcome(seed: int, program: Any) -> None:
    with use_driver(step_driver(seed=seed)) as driver:
        wrong = program.draw(st.sets(st.integers(0, 400), max_size=200))
        visits = Visits(wrong)
        launches: dict[int, Submission[None]] = {}
        number = 0
        for _ in range(program.draw(st.integers(1, 30))):
            match program.draw(st.sampled_from(["launch", "many", "abandon", "wait", "step", "drain"])):
                case "launch":
                    launches[number] = visits.launch(program.draw(st.integers(0, 2)))
                    number += 1
                case "many":
                    for _ in range(min(50, 400 - number)):
                        launches[number] = visits.launch(number % 3)
                        number += 1
                case "abandon" if launches:
                    launches.pop(program.draw(st.sampled_from(sorted(launches)))).abandon()
                case "wait" if launches:
                    waited = program.draw(st.sampled_from(sorted(launches)))
                    assert outcome(launches.pop(waited)) == (waited if waited in wrong else None)
                case "drain":
                    oxide.reclaim.drain()
                case _:
                    driver.step()
            if number >= 400:
                break
        visits.graph.close()
        for number, launch in launches.items():
            assert outcome(launch) == (number if number in wrong else None)


def test_two_threads_that_launch_one_graph_find_each_fault_once() -> None:
    wrong = set(range(0, 400, 7))
    visits = Visits(wrong)
    found: list[int] = []
    together = threading.Barrier(2)

    def work(stream: int) -> None:
        together.wait()
        for _ in range(10):
            launches = [visits.launch(stream) for _ in range(20)]
            found.extend(each for each in map(outcome, launches) if each is not None)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(2)]
    for running in threads:
        running.start()
    for running in threads:
        running.join()
    assert visits.turns() == 400
    assert sorted(found) == sorted(wrong)


# What a launch costs, and what becomes of the pages


def test_a_launch_is_one_call_and_a_page_of_launches_takes_two_more() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        visits = Visits({5})
        driver.clear()
        launches = [visits.launch() for _ in range(2 * PAGE + 1)]
        submitted = [call.method for call in driver.submissions if not call.method.endswith("_event")]
        page = ["fill", "fill", *["launch_graph"] * PAGE]
        assert submitted == [*page, *page, "fill", "fill", "launch_graph"]
        assert driver.count("allocate_host") == 3
        assert [outcome(launch) for launch in launches].count(None) == 2 * PAGE


def test_a_graph_without_kernels_reports_nothing() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        x, y = (h2d(np.full(2, number, np.float32)).sync() for number in range(2))
        graph = memcpy(y, x).graph()
        assert driver.count("report") == 0
        driver.clear()
        graph.launch().sync()
        assert (driver.count("fill"), driver.count("allocate_host")) == (0, 0)


def test_pages_are_used_again_and_clean_and_given_back_when_nothing_uses_them() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        visits = Visits(range(PAGE))
        visits.turns()
        driver.clear()
        assert [outcome(visits.launch()) for _ in range(4 * PAGE)] == [*range(PAGE), *[None] * 3 * PAGE]
        assert driver.count("allocate_host") == 1
        held = [visits.launch() for _ in range(2)]
        assert outcome(held.pop()) is None
        visits.graph.close()
        oxide.reclaim.drain()  # trims
        assert driver.outstanding()["host_allocations"] == 1
        assert outcome(held[0]) is None  # it can be read
        held.clear()
        gc.collect()
        oxide.reclaim.drain()
        assert driver.outstanding()["host_allocations"] == 0


def test_a_page_that_the_driver_does_not_take_back_is_tried_again() -> None:
    failing = FailingDriver(step_driver())
    with use_driver(RecordingDriver(failing)) as driver:
        pages = oxide.runtime.devices.runtime.current_runtime().fault_pages
        page = pages.acquire()
        del page
        failing.fail("free_host", InjectedError(1, "CUDA_ERROR_INVALID_VALUE"))
        with pytest.raises(InjectedError):
            pages.trim()
        pages.trim()
        pages.trim()
        assert driver.outstanding()["host_allocations"] == 0


# Failures


class InjectedError(DriverError):
    """What a failing driver raises in these tests."""


class Interrupting(DelegatingDriver):
    """Raises KeyboardInterrupt, once, when a graph's launch has been submitted."""

    due = False

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        result = super().invoke(method, *arguments, **keywords)
        if self.due and method == "launch_graph":
            self.due = False
            raise KeyboardInterrupt
        return result


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("before", [0, 5, PAGE])
@pytest.mark.parametrize(("method", "at"), [("allocate_host", 1), ("fill", 1), ("fill", 2), ("launch_graph", 1)])
def test_after_a_call_of_a_launch_failed_the_others_are_right(method: str, at: int, before: int, seed: int) -> None:
    failing = FailingDriver(step_driver(seed=seed))
    with use_driver(failing) as driver:
        wrong = {0, 3, PAGE - 1, PAGE, PAGE + 1, PAGE + 8}
        visits = Visits(wrong)
        launches = [visits.launch(number % 3) for number in range(before)]
        driver.fail(method, InjectedError(1, "CUDA_ERROR_INVALID_VALUE"), at=at)
        if before == 5 and method != "launch_graph":  # in the middle of a page there is no such call
            driver.forget()
        else:
            with pytest.raises(InjectedError):
                visits.launch(before % 3)
        launches += [visits.launch((number + 1) % 3) for number in range(before, before + 2 * PAGE)]
        assert [outcome(launch) for launch in launches] == [
            number if number in wrong else None for number in range(len(launches))
        ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("before", [0, 5])
def test_after_an_interrupt_in_a_launch_the_others_are_right(before: int, seed: int) -> None:
    interrupting = Interrupting(step_driver(seed=seed))
    with use_driver(interrupting):
        wrong = {0, 2, 3, 5, 6, 8}
        visits = Visits(wrong)
        launches = [visits.launch(number % 3) for number in range(before)]
        interrupting.due = True
        with pytest.raises(KeyboardInterrupt):
            visits.launch(before % 3)  # it runs, and nobody learns of its fault
        launches += [visits.launch((number + 2) % 3) for number in range(before, before + 2 * PAGE)]
        numbers = [number for number in range(before + 2 * PAGE + 1) if number != before]
        assert [outcome(launch) for launch in launches] == [number if number in wrong else None for number in numbers]


def test_on_a_lost_device_launches_are_refused_and_nothing_waits() -> None:
    failing = FailingDriver(step_driver())
    with use_driver(failing):
        visits = Visits({0})
        visits.launch()
        failing.fail("launch_graph", DeviceLostError("the context is gone"))
        with pytest.raises(DeviceLostError):
            visits.launch()
        with pytest.raises(DeviceLostError):
            visits.launch()
        visits.graph.close()
        del visits
        gc.collect()
        oxide.reclaim.drain()


def test_a_capture_that_cannot_report_leaves_no_graph_and_no_memory() -> None:
    failing = FailingDriver(step_driver())
    with use_driver(RecordingDriver(failing)) as driver:
        wrong, x, turn = h2d(np.zeros(4, np.int64)).sync(), zeros(1).sync(), zeros(1, np.int64).sync()
        gc.collect()
        oxide.reclaim.drain()
        before = {name: driver.outstanding()[name] for name in ("allocations", "host_allocations", "graphs")}
        failing.fail("report", InjectedError(1, "CUDA_ERROR_INVALID_VALUE"))
        with pytest.raises(InjectedError):
            visit(wrong, x, turn).graph()
        driver.clear()
        gc.collect()
        oxide.reclaim.drain()
        assert {name: driver.outstanding()[name] for name in before} == before
        visit(wrong, x, turn).graph().launch().sync()
        assert int(d2h(turn).sync()[0]) == 1


@pytest.mark.usefixtures("any_driver")
def test_a_scope_whose_first_operation_failed_reports_the_faults_of_the_others() -> None:
    wrong, x, turn = h2d(np.array([0, 9])).sync(), zeros(1).sync(), zeros(1, np.int64).sync()
    with CudaGraph.scope(oxide.devices()[0].new_stream()) as scope:
        with pytest.raises(GraphError):
            scope.record(visit(wrong, x, turn).and_then(lambda boxes: dup(boxes[2])))
        scope.record(visit(wrong, x, turn))
    scope.graph.launch().sync()
    with pytest.raises(BoundsError):
        scope.graph.launch().sync()


def test_the_fault_of_an_update_and_of_the_launch_behind_it_are_told_apart() -> None:
    with use_driver(step_driver()):
        visits = Visits({1})
        wrong, x, turn = h2d(np.array([5])).sync(), zeros(1).sync(), zeros(1, np.int64).sync()
        visits.graph.update(visit(wrong, x, turn))
        first, second, third = (visits.launch() for _ in range(3))
        first.mark.synchronize()
        with pytest.raises(BoundsError) as caught:
            first.finish()
        assert caught.value.index == 5
        assert (outcome(second), outcome(third)) == (1, None)
        with suppress(BoundsError):
            visits.graph.stream.synchronize()


def test_a_fault_keeps_its_page_no_longer_than_whoever_holds_it() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        visits = Visits(range(LAUNCHES))
        gc.disable()
        try:
            driver.clear()
            for number in range(5 * PAGE):
                with pytest.raises(BoundsError, match=rf"x\[{1000 + number}\]"):
                    visits.graph.launch().sync()
            assert driver.count("allocate_host") == 1
        finally:
            gc.enable()


def test_records_that_the_driver_does_not_take_back_are_given_back_by_the_next_drain() -> None:
    with use_driver(FailingDriver(step_driver())) as driver:
        stream = oxide.devices()[0].new_stream()
        wrong, x, turn = zeros(1200, oxide.i64).sync(), zeros(1).sync(), zeros(1, oxide.i64).sync()
        for _ in range(1200):  # more records than one block has
            visit(wrong, x, turn).async_on(stream)
        stream.synchronize()
        del wrong, x, turn
        for number in range(1, 6):
            driver.fail("free_host", oxide.DeviceError("injected"), at=number)
            with suppress(oxide.DeviceError):
                oxide.reclaim.drain()
            driver.forget()
        oxide.reclaim.drain()
        assert driver.inner.live_allocations.host_bytes == 0  # type: ignore[attr-defined]
