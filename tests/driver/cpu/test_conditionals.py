"""Conditionals in graphs, as the CPU driver runs them: which body runs and how often, with parts, nested, and beside
other streams."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest

from oxide.driver.base import Code
from oxide.driver.cpu import CpuDriver, streams, workers
from oxide.driver.cpu import graph as graph_module
from oxide.driver.cpu import steps as steps_module
from oxide.driver.sanitizing import Tracking
from oxide.errors import DeviceLostError, DriverError
from tests.interrupting import interrupts, needs_calls


def words(address: int, count: int) -> list[int]:
    return list((ctypes.c_int32 * count).from_address(address))


def write(address: int, *values: int) -> None:
    (ctypes.c_int32 * len(values)).from_address(address)[:] = values


KINDS: dict[str, Callable[[], CpuDriver]] = {
    "workers": lambda: CpuDriver(2, threads=4),
    "steps": lambda: CpuDriver(2, step=True),
    "steps, seed 1": lambda: CpuDriver(2, step=True, seed=1),
    "seed 2": lambda: CpuDriver(2, seed=2),
}


@pytest.fixture(params=KINDS)
def any_driver(request: pytest.FixtureRequest) -> Iterator[CpuDriver]:
    driver = KINDS[request.param]()
    yield driver
    driver.close()


def chosen(driver: CpuDriver, kind: Any, flag: int, stream: Any, target: int) -> Any:
    """A graph that writes 1 to ``target`` in the first body and 2 in the second, and 9 behind it after either."""
    driver.begin_capture(stream)
    bodies = driver.begin_conditional(stream, kind, flag, 0)
    for number, body in enumerate(bodies):
        driver.fill(target, bytes([number + 1, 0, 0, 0]), 1, body)
    driver.end_conditional(stream)
    driver.fill(target + 4, b"\t\0\0\0", 1, stream)
    return driver.end_capture(stream)


def test_each_launch_runs_the_body_that_the_flag_chooses(any_driver: CpuDriver) -> None:
    stream = any_driver.create_stream(0)
    flag, target = any_driver.allocate(4, stream), any_driver.allocate(8, stream)
    for kind, otherwise in (("if", 0), ("if-else", 2)):
        graph = chosen(any_driver, kind, flag, stream, target)
        for value in (1, 0, -1, 7, 0):
            write(flag, value)
            write(target, 0, 0)
            any_driver.launch_graph(graph, stream)
            any_driver.synchronize_stream(stream)
            assert words(target, 2) == [1 if value else otherwise, 9]


def counted_down(driver: CpuDriver, stream: Any, count_blocks: Code, counts: int, *, branches: bool, stop: int) -> Any:
    """A graph whose loop takes the head off a row of flags until that is 0, and counts iterations in ``counts[20]``."""
    function = driver.load(0, count_blocks)
    driver.begin_capture(stream)
    (body,) = driver.begin_conditional(stream, "while", counts, stop)
    if branches:
        driver.capture_after(body, ())
    driver.launch(function, (1, 1, 1), (1, 1, 1), 0, struct.pack("@Qq", counts + 80, 1), body)
    if branches:
        driver.capture_after(body, ())
    driver.copy_on_device(counts, counts + 4, 40, body)
    if branches:
        driver.capture_after(body, (0, 1))
    driver.copy_on_device(counts + 84, counts + 80, 4, body)
    driver.end_conditional(stream)
    driver.copy_on_device(counts + 88, counts + 84, 4, stream)
    return driver.end_capture(stream)


@pytest.mark.parametrize("branches", [False, True])
def test_a_loop_runs_as_often_as_its_flag_asks_for(any_driver: CpuDriver, count_blocks: Code, branches: bool) -> None:
    stream = any_driver.create_stream(0)
    counts = any_driver.allocate(96, stream)
    any_driver.synchronize_stream(stream)
    graph = counted_down(any_driver, stream, count_blocks, counts, branches=branches, stop=0)
    for times in (0, 1, 9, 3):
        write(counts, *[number < times for number in range(24)])
        write(counts + 80, 0, 0, 0, 0)
        any_driver.launch_graph(graph, stream)
        any_driver.synchronize_stream(stream)
        assert words(counts + 80, 3) == [times, times, times]


def test_a_claimed_fault_record_ends_a_loop(any_driver: CpuDriver, count_blocks: Code) -> None:
    stream = any_driver.create_stream(0)
    counts = any_driver.allocate(96, stream)
    any_driver.synchronize_stream(stream)
    graph = counted_down(any_driver, stream, count_blocks, counts, branches=False, stop=counts + 84)
    write(counts, *[1] * 20, 0, 0, 0, 0)
    any_driver.launch_graph(graph, stream)
    any_driver.synchronize_stream(stream)
    assert words(counts + 80, 1) == [1]  # the body itself claimed it


def test_loops_in_loops_and_choices_in_them(any_driver: CpuDriver, count_blocks: Code) -> None:
    stream = any_driver.create_stream(0)
    memory = any_driver.allocate(400, stream)
    any_driver.synchronize_stream(stream)
    outer, inner, rows, counter, odd = memory, memory + 40, memory + 80, memory + 200, memory + 300
    function = any_driver.load(0, count_blocks)
    any_driver.begin_capture(stream)
    (body,) = any_driver.begin_conditional(stream, "while", outer, 0)
    any_driver.copy_on_device(inner, rows, 40, body)  # two ones, then zeros
    (again,) = any_driver.begin_conditional(body, "while", inner, 0)
    any_driver.launch(function, (1, 1, 1), (1, 1, 1), 0, struct.pack("@Qq", counter, 1), again)
    any_driver.copy_on_device(inner, inner + 4, 36, again)
    (last,) = any_driver.begin_conditional(again, "if", inner, 0)
    any_driver.launch(function, (1, 1, 1), (1, 1, 1), 0, struct.pack("@Qq", odd, 1), last)
    any_driver.end_conditional(again)
    any_driver.end_conditional(body)
    any_driver.copy_on_device(outer, outer + 4, 36, body)
    any_driver.end_conditional(stream)
    graph = any_driver.end_capture(stream)
    for times in (3, 0, 1):
        write(memory, *[0] * 100)
        write(outer, *[1] * times)
        write(rows, 1, 1)
        any_driver.launch_graph(graph, stream)
        any_driver.synchronize_stream(stream)
        assert words(counter, 1) == [2 * times]
        assert words(odd, 1) == [times]


def test_each_item_of_each_iteration_is_a_step_and_other_streams_run_in_between(
    count_blocks: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracking, "wanted", False)  # a sanitized kernel of an earlier test adds an item to each launch
    with_steps = CpuDriver(1, step=True)
    stream, other = with_steps.create_stream(0), with_steps.create_stream(0)
    counts = with_steps.allocate(96, stream)
    graph = counted_down(with_steps, stream, count_blocks, counts, branches=False, stop=0)
    write(counts, 1, 1, 1, 0, *[0] * 20)
    with_steps.launch_graph(graph, stream)
    seen = []
    while with_steps.step(stream):
        with_steps.fill(counts + 92, b"\1", 1, other)
        assert with_steps.step(other)
        seen.append(words(counts + 80, 1)[0])
    # the flag, then three items, three times over; the flag, which is 0; the copy behind the loop
    assert seen == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3]
    with_steps.close()


def test_an_endless_loop_holds_up_no_other_stream_and_ends_when_its_flag_is_taken_away(count_blocks: Code) -> None:
    driver = CpuDriver(1, threads=2)
    stream, other = driver.create_stream(0), driver.create_stream(0)
    flag, counter = driver.allocate(4, stream), driver.allocate(4, stream)
    write(flag, 1)
    write(counter, 0)
    driver.synchronize_stream(stream)
    driver.begin_capture(stream)
    (body,) = driver.begin_conditional(stream, "while", flag, 0)
    driver.begin_conditional(body, "if", counter, 0)
    driver.end_conditional(body)
    driver.end_conditional(stream)
    graph = driver.end_capture(stream)
    driver.launch_graph(graph, stream)
    done = threading.Event()
    for _ in range(100):
        driver.fill(counter, b"\0", 4, other)
        driver.synchronize_stream(other)
    assert not driver.query_stream(stream)
    driver.launch_host_function(done.set, other)
    assert done.wait(60)
    driver.fill(flag, b"\0", 4, other)
    driver.synchronize_stream(stream)
    driver.close()


def test_what_a_conditional_cannot_be_is_refused_and_the_capture_can_be_ended(steps: CpuDriver) -> None:
    stream = steps.create_stream(0)
    flag = steps.allocate(4, stream)
    with pytest.raises(DriverError, match="where no capture was begun"):
        steps.begin_conditional(stream, "if", flag, 0)
    steps.begin_capture(stream)
    with pytest.raises(DriverError, match="where none was begun"):
        steps.end_conditional(stream)
    with pytest.raises(DriverError, match=r"the flag of a conditional, .*does not lie in one live allocation"):
        steps.begin_conditional(stream, "if", flag + 4, 0)
    with pytest.raises(DriverError, match="the fault record of a conditional, "):
        steps.begin_conditional(stream, "while", flag, flag + 4)
    steps.begin_conditional(stream, "while", flag, 0)
    for refused in (
        lambda: steps.fill(flag, b"\0", 4, stream),
        lambda: steps.capture_after(stream, ()),
        lambda: steps.begin_conditional(stream, "if", flag, 0),
    ):
        with pytest.raises(DriverError, match="whose bodies have streams of their own; end the conditional first"):
            refused()
    with pytest.raises(DriverError, match="whose body is empty would never end"):
        steps.end_conditional(stream)
    steps.begin_conditional(stream, "if", flag, 0)
    with pytest.raises(DriverError, match="inside its conditional") as caught:
        steps.end_capture(stream)
    assert (caught.value.code, caught.value.name) == (904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED")
    steps.synchronize_stream(stream)  # it is usable
    assert steps.conditionals(1) is None
    with pytest.raises(DriverError, match="device 2 was asked for"):
        steps.conditionals(2)


# Interrupts


def is_scheduling(code: CodeType) -> bool:
    return code.co_filename in (workers.__file__, steps_module.__file__, streams.__file__, graph_module.__file__)


@needs_calls
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("branches", [False, True])
def test_an_interrupted_submission_of_a_loop_runs_it_once_or_not_at_all(
    kind: str, branches: bool, count_blocks: Code
) -> None:
    driver = KINDS[kind]()
    stream = driver.create_stream(0)
    counts = driver.allocate(96, stream)
    driver.synchronize_stream(stream)
    graph = counted_down(driver, stream, count_blocks, counts, branches=branches, stop=0)
    for interrupt in interrupts(is_scheduling, more_than=1):
        write(counts, 1, 1, 1, *[0] * 21)
        with interrupt:
            driver.launch_graph(graph, stream)
        driver.synchronize_stream(stream)
        assert words(counts + 80, 2) in ([0, 0], [3, 3])
    driver.close()


@pytest.mark.slow
@needs_calls
@pytest.mark.parametrize("kind", ["steps", "steps, seed 1"])
@pytest.mark.parametrize("branches", [False, True])
def test_interrupted_steps_of_a_loop_are_made_again(kind: str, branches: bool, count_blocks: Code) -> None:
    driver = KINDS[kind]()
    stream = driver.create_stream(0)
    counts = driver.allocate(96, stream)
    graph = counted_down(driver, stream, count_blocks, counts, branches=branches, stop=0)
    driver.run_until_idle()
    for interrupt in interrupts(lambda code: code.co_name in UNFOLDING, more_than=10):
        write(counts, 1, 1, 1, *[0] * 21)
        driver.launch_graph(graph, stream)
        with interrupt:
            driver.run_until_idle()
        driver.run_until_idle()
        assert words(counts + 80, 3) == [3, 3, 3]
    driver.close()


UNFOLDING = ("_unfold", "_begin", "further", "items", "unfold")
"""The functions that loops add to a step; an interrupted kernel takes the device with it."""


@needs_calls
@pytest.mark.parametrize("branches", [False, True])
def test_an_interrupted_wait_for_a_loop_leaves_it_to_the_workers(branches: bool, count_blocks: Code) -> None:
    driver = KINDS["workers"]()
    stream = driver.create_stream(0)
    counts = driver.allocate(96, stream)
    driver.synchronize_stream(stream)
    graph = counted_down(driver, stream, count_blocks, counts, branches=branches, stop=0)
    steps = 0
    for _ in range(100):  # often the workers take most of the loop, and leave few steps to the thread that waits
        ended = 0
        for interrupt in interrupts(is_scheduling, more_than=-1):
            write(counts, 1, 1, 1, *[0] * 21)
            driver.launch_graph(graph, stream)
            with interrupt:
                driver.synchronize_stream(stream)
            driver.synchronize_stream(stream)
            assert words(counts + 80, 3) == [3, 3, 3]
            ended += interrupt.ended
        steps = max(steps, ended)
        if steps > 5:
            break
    assert steps > 5
    driver.close()


def endless_loop(driver: CpuDriver) -> tuple[Any, Any, int, int]:
    """A graph whose loop counts for ever, its stream, and the addresses of its flag and of a number that it sets."""
    stream = driver.create_stream(0)
    flag, begun = driver.allocate(4, stream), driver.allocate(8, stream)
    driver.synchronize_stream(stream)
    write(flag, 1)
    write(begun, 0, 1)
    driver.begin_capture(stream)
    (body,) = driver.begin_conditional(stream, "while", flag, 0)
    driver.copy_on_device(begun, begun + 4, 4, body)
    driver.end_conditional(stream)
    return driver.end_capture(stream), stream, flag, begun


def press_once_it_runs(begun: int, over: threading.Event) -> None:
    while not words(begun, 1)[0]:
        os.sched_yield()
    while not over.wait(0.05):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.parametrize("kind", KINDS)
def test_control_c_ends_the_wait_for_an_endless_loop(kind: str) -> None:
    driver = KINDS[kind]()
    graph, stream, flag, begun = endless_loop(driver)
    driver.launch_graph(graph, stream)
    over = threading.Event()
    pressing = threading.Thread(target=press_once_it_runs, args=(begun, over))
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            try:
                driver.synchronize_stream(stream)
            finally:
                over.set()
    finally:
        pressing.join()
    if kind == "workers":
        assert not driver.query_stream(stream)
        write(flag, 0)  # it goes on, like a kernel, until its flag says otherwise
        driver.synchronize_stream(stream)
    else:
        with pytest.raises(DeviceLostError, match="a loop on cpu:0 was ended by KeyboardInterrupt"):
            driver.synchronize_stream(stream)
    driver.close()
