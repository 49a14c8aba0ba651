"""What a graph's launches and updates read from host arrays, and whose fault an update's is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    BoundsError,
    DisjointSlice,
    Slice,
    d2h,
    devices,
    dup,
    f32,
    h2d,
    i64,
    kernel,
    memcpy,
    pinned_empty,
    thread,
    zeros,
)
from oxide.testing import step_driver, use_driver


@kernel(block=64)
def shifted(x: Slice[f32], by: i64, y: DisjointSlice[f32]) -> None:
    """y[i] = x[i + by]"""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get() + by]


def plain(count: int) -> Any:
    return np.zeros(count, np.float32)


@pytest.mark.parametrize("make", [plain, pinned_empty])
@pytest.mark.parametrize("count", [7, 300_001, 1_200_007])
def test_launches_in_flight_each_read_the_array_of_their_submission(make: Any, count: int) -> None:
    with use_driver(step_driver()) as driver:
        x = make(count)
        x[:] = -1
        graph = h2d(x).graph()
        box = graph.take_output()
        assert box is not None
        stream = devices()[0].new_stream()
        results = []
        for number in range(4):
            x[:] = number
            results.append(graph.launch().and_then(lambda _: d2h(box)).async_on(stream))
        x[:] = -1
        driver.run_until_idle()
        stream.synchronize()
        assert [(float(result.min()), float(result.max())) for result in results] == [(k, k) for k in range(4)]


def test_a_strided_array_is_read_at_submission_too() -> None:
    with use_driver(step_driver()) as driver:
        x = np.arange(200_000, dtype=np.float32).reshape(400, 500).T
        expected = x.copy()
        graph = h2d(x).graph()
        box = graph.take_output()
        assert box is not None
        result = graph.launch().and_then(lambda _: d2h(box)).async_on(graph.stream)
        x[:] = 0
        driver.run_until_idle()
        graph.stream.synchronize()
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("make", [plain, pinned_empty])
@pytest.mark.parametrize("count", [7, 300_001])
def test_an_update_has_read_its_array_when_it_returns(make: Any, count: int) -> None:
    with use_driver(step_driver()) as driver:
        box = zeros(count).sync()
        graph = d2h(box).graph()
        graph.launch().sync()
        output = graph.take_output()
        x = make(count)
        x[:] = 3
        graph.update(memcpy(box, x))
        x[:] = 4
        driver.run_until_idle()
        graph.launch().sync()
        assert set(output) == {3}


def test_a_fault_of_an_update_is_raised_by_the_next_launch_once() -> None:
    box, source = zeros(64).sync(), zeros(64).sync()
    graph = d2h(box).graph()
    graph.update(shifted(source, 0, box))
    graph.launch().sync()
    graph.update(shifted(source, 9, box))
    with pytest.raises(BoundsError):
        graph.launch().sync()
    graph.launch().sync()
    with pytest.raises(BoundsError):
        graph.stream.synchronize()


def test_a_fault_of_an_update_outlives_a_launch_that_came_to_nothing() -> None:
    box, source = zeros(64).sync(), zeros(64).sync()
    graph = dup(box).graph()
    graph.update(shifted(source, 9, box))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            graph.launch().and_then(lambda _: 1 / 0).sync()  # type: ignore[arg-type, return-value]
    with pytest.raises(BoundsError):
        graph.launch().sync()
    graph.launch().sync()


def test_a_fault_of_an_update_that_touches_nothing_of_the_graph_is_not_missed() -> None:
    with use_driver(step_driver(seed=3)):
        box, other, source = [zeros(64).sync() for _ in range(3)]
        graph = d2h(box).graph()
        stream = devices()[0].new_stream()
        graph.update(shifted(source, 9, other))
        with pytest.raises(BoundsError):
            graph.launch().sync_on(stream)


def test_an_update_takes_an_operation() -> None:
    graph = zeros(3).graph()
    with pytest.raises(TypeError, match=r"graph\.update takes an operation, not int; memcpy\(box, array\)"):
        graph.update(3)  # type: ignore[arg-type]


def test_updates_that_launch_the_graph_pass_no_reports_on_and_on() -> None:
    with use_driver(step_driver()) as driver:
        x = zeros(64).sync()
        graph = shifted(x, 0, zeros(64)).graph()
        for _ in range(20):
            graph.update(graph.launch())
        assert len(graph._updates) == 1
        assert len(graph._updates[0][0].faults) <= 4
        driver.run_until_idle()
