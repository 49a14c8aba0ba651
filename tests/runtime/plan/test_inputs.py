"""Declared inputs of graphs, and several instances of one graph."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    BoundsError,
    CudaGraph,
    DeviceError,
    DisjointSlice,
    GraphError,
    Slice,
    d2h,
    devices,
    f32,
    f64,
    h2d,
    i64,
    kernel,
    thread,
    zeros,
)
from oxide.runtime.submission import staging
from oxide.testing import FailingDriver, step_driver, use_driver

SIZES = (0, 1, 31, 33, 1000003)


@kernel(block=256)
def plus(x: Slice[f32], y: Slice[f32], z: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = z.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + y[index.get()]


@kernel(block=64)
def shifted(x: Slice[f32], by: i64, y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get() + by]


def sum_of(x: Any, y: Any, size: int) -> Any:
    return plus(x, y, zeros(size)).last()


def random(size: Any, dtype: Any = np.float32) -> Any:
    return np.random.default_rng().standard_normal(size).astype(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_a_launch_takes_arrays_boxes_and_operations_in_order_of_declaration(size: int) -> None:
    y = oxide.input(size)  # declared first, used second
    x = oxide.input(size)
    graph = oxide.zip(x, y).and_then(lambda boxes: plus(boxes[0], boxes[1], zeros(size))).last().graph()
    result = graph.take_output()
    assert result is not None
    a, b = random(size), random(size)
    for given in ((b, a), (h2d(b).sync(), a), (h2d(b), h2d(a).arc()), (h2d(b).arc().sync(), h2d(a).sync())):
        graph.launch(*given).sync()
        np.testing.assert_array_equal(d2h(result).sync(), a + b)
    graph.launch(a, zeros(size)).sync()
    np.testing.assert_array_equal(d2h(result).sync(), a)


def test_an_input_that_is_used_twice_is_one_input() -> None:
    x = oxide.input(100)
    graph = oxide.zip(x, x).and_then(lambda boxes: plus(boxes[0], boxes[1], zeros(100))).last().to_host().graph()
    a = random(100)
    graph.launch(a).sync()
    np.testing.assert_array_equal(graph.take_output(), a + a)


def test_a_strided_array_and_one_of_three_axes_are_taken() -> None:
    x = oxide.input((3, 50, 40), f64)
    graph = x.to_host().graph()
    a = random((40, 50, 3), np.float64).T
    graph.launch(a).sync()
    np.testing.assert_array_equal(graph.take_output(), a)


def test_an_input_is_of_use_only_in_a_graph() -> None:
    x = oxide.input(3, f64)
    assert repr(x) == "<oxide input 3 float64>"
    with pytest.raises(
        GraphError, match=r"<oxide input 3 float64> has no value outside a graph: capture the operation"
    ):
        x.sync()
    flag = h2d(np.ones(1, np.int32)).sync()
    for operation in (x.fused(), oxide.planned(x), oxide.cond(flag, x.map(lambda _: None))):
        with pytest.raises(GraphError, match="has no value outside a graph"):
            operation.sync()
        with pytest.raises(GraphError, match="has no value outside a graph"):
            oxide.planned(operation).fused().sync()
        operation.graph().launch(np.zeros(3)).sync()
    assert "streams" in x.explain()
    scope = CudaGraph.scope(devices()[0].new_stream())
    with pytest.raises(GraphError, match=r"cannot be allocated inside CudaGraph\.scope"), scope:
        scope.record(oxide.input(3))


@pytest.mark.parametrize(
    ("shape", "dtype", "error"), [(-1, f32, ValueError), ("x", f32, TypeError), (3, "O", TypeError)]
)
def test_a_declaration_that_no_box_can_have_is_refused(shape: Any, dtype: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="input"):
        oxide.input(shape, dtype)


def test_wrong_arguments_are_refused_before_anything_is_submitted() -> None:
    with use_driver(step_driver()) as driver:
        graph = oxide.input((4, 5)).graph()
        driver.run_until_idle()
        array = np.zeros((4, 5), np.float32)
        box: Any = zeros((4, 5)).sync()
        for arguments, error, words in (
            ((), TypeError, r"graph\.launch takes 1 argument, one for each of its inputs \(4x5 float32\), got 0"),
            ((array, array), TypeError, r"takes 1 argument, .* got 2"),
            ((array.astype(np.float64),), TypeError, r"input 0, 4x5 float32, takes float32, not float64: convert"),
            ((array.T,), ValueError, r"input 0, 4x5 float32, has shape \(4, 5\), and was given one of \(5, 4\)"),
            ((box.reshape(20),), ValueError, r"has shape \(4, 5\), and was given one of \(20,\)"),
            ((zeros((5, 4)),), ValueError, r"has shape \(4, 5\), and was given one of \(5, 4\)"),
            ((3,), TypeError, r"takes an array or a box, not int 3"),
            (([1.0],), TypeError, r"takes an array or a box, not list"),
        ):
            with pytest.raises(error, match=words):
                graph.launch(*arguments)
        assert not driver.pending()
        with pytest.raises(TypeError, match=r"takes 0 arguments, one for each of its inputs, got 1"):
            zeros(3).graph().launch(array)


def test_what_an_operation_yields_is_checked_when_it_has_run() -> None:
    graph = oxide.input(4).graph()
    with pytest.raises(ValueError, match=r"has shape \(4,\), and was given one of \(5,\)"):
        graph.launch(oxide.value(None).and_then(lambda _: zeros(5))).sync()
    with pytest.raises(TypeError, match="takes an operation that yields a box, not ndarray"):
        graph.launch(oxide.value(None).map(lambda _: np.zeros(4, np.float32))).sync()


def test_a_box_of_another_device_is_refused() -> None:
    with use_driver(step_driver(2)):
        graph = oxide.input(4).graph()
        with pytest.raises(DeviceError, match=r"input 0, 4 float32: the box is on cpu:1, and the graph runs on cpu:0"):
            graph.launch(zeros(4).on(1).sync())


@pytest.mark.slow
@pytest.mark.parametrize("count", [7, 70_001, 1_200_007])
@pytest.mark.parametrize("seed", range(5))
def test_instances_in_flight_have_buffers_of_their_own(count: int, seed: int) -> None:
    with use_driver(step_driver(seed=seed)) as driver:
        x = oxide.input(count)
        instances = sum_of(x, x, count).graph().instances(3)
        streams = [devices()[0].new_stream() for _ in range(2)]
        arrays = [np.full(count, number, np.float32) for number in range(7)]
        results = [
            instances.launch(array).and_then(d2h).async_on(streams[number % 2]) for number, array in enumerate(arrays)
        ]
        driver.run_until_idle()
        for stream in streams:
            stream.synchronize()
        for array, result in zip(arrays, results, strict=True):
            np.testing.assert_array_equal(result, 2 * array)


def runs_alone(driver: Any, stream: oxide.Stream) -> bool:
    """Whether all work of a stream can run before any other stream goes on."""
    handle = stream._timeline.handle
    while handle in driver.pending():
        driver.step(handle)
    return stream.query()


def test_launches_of_instances_may_overlap_and_those_of_one_graph_may_not() -> None:
    with use_driver(step_driver()) as driver:
        x = oxide.input(100)
        instances = sum_of(x, x, 100).graph().instances(2)
        one, other = (devices()[0].new_stream() for _ in range(2))
        driver.run_until_idle()
        a = np.ones(100, np.float32)
        instances.launch(a).async_on(one)
        instances.launch(a).async_on(other)
        assert runs_alone(driver, other)
        driver.run_until_idle()
        instances[0].launch(a).async_on(one)
        instances[0].launch(a).async_on(other)
        assert not runs_alone(driver, other)
        driver.run_until_idle()


def test_instances_are_a_sequence_of_graphs_and_take_turns() -> None:
    x = oxide.input(10)
    graph = sum_of(x, x, 10).graph()
    with graph.instances(3) as instances:
        assert (len(instances), instances[0], next(iter(instances))) == (3, graph, graph)
        assert repr(instances) == f"<oxide.GraphInstances 3 of {graph!r}>"
        array = random(10)
        boxes = [instances.launch(array).sync() for _ in range(4)]
        assert boxes[0] is boxes[3]
        assert len({box.ptr for box in boxes}) == 3
        np.testing.assert_array_equal(d2h(boxes[1]).sync(), array + array)
        operation = instances.launch(array)
        assert operation.sync() is boxes[1]
        assert operation.sync() is boxes[2]
    assert graph.closed
    with pytest.raises(GraphError, match="the graph was closed"):
        operation.sync()


def test_instances_are_refused_where_they_cannot_be_made() -> None:
    graph = zeros(3).graph()
    for wrong, error in ((0, ValueError), (True, TypeError), (1.5, TypeError)):
        with pytest.raises(error, match=r"instances\("):
            graph.instances(wrong)  # type: ignore[arg-type]
    box = zeros(3).sync()
    with CudaGraph.scope(devices()[0].new_stream()) as scope:
        scope.record(d2h(box))
    with pytest.raises(GraphError, match="a graph that a scope recorded cannot be captured again"):
        scope.graph.instances(2)
    graph.take_output()
    with pytest.raises(GraphError, match="instances: the graph's output was taken before"):
        graph.instances(2)
    graph.close()
    with pytest.raises(GraphError, match="the graph was closed"):
        graph.instances(2)


def test_a_fault_of_an_instance_is_raised_by_its_own_launch() -> None:
    x = oxide.input(64)
    instances = shifted(x, 9, zeros(64)).graph().instances(2)
    good = shifted(x, 0, zeros(64)).graph()
    array = random(64)
    for _ in range(3):
        with pytest.raises(BoundsError, match="shifted"):
            instances.launch(array).sync()
        good.launch(array).sync()


def test_threads_that_launch_one_graph_do_not_mix_their_inputs() -> None:
    count = 70_001
    x, y = oxide.input(count), oxide.input(count)
    graph = sum_of(x, y, count).to_host().graph()
    graph.launch(np.zeros(count, np.float32), np.zeros(count, np.float32)).sync()
    result = graph.take_output()
    wrong: list[float] = []
    turn = threading.Lock()

    def work(number: int) -> None:
        array = np.full(count, number, np.float32)
        for _ in range(20):
            with turn:  # the output belongs to one launch at a time
                graph.launch(array, array).sync()
                if set(result) != {2.0 * number}:
                    wrong.append(number)
            graph.launch(array, array).sync()

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    # A launch outside the lock may write the output of one inside it, but never a sum of two threads' inputs.
    assert set(result) <= {2.0, 4.0}
    assert all(number in (1, 2) for number in wrong)


@pytest.mark.parametrize("method", ["copy_to_device", "launch_graph", "fill", "launch_native_host_function"])
@pytest.mark.parametrize("count", [100, 300_001])
def test_a_failed_call_of_a_launch_leaves_the_graph_usable_and_leaks_nothing(
    method: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "SHARED_BYTES", 0)
    with use_driver(FailingDriver(step_driver())) as failing:
        x = oxide.input(count)
        graph = sum_of(x, x, count).graph()
        result = graph.take_output()
        assert result is not None
        array = random(count)
        failing.fail(method, DeviceError("refused"))
        with suppress(DeviceError):  # not every size makes every call
            graph.launch(array).sync()
        failing.forget()
        graph.launch(array).sync()
        np.testing.assert_array_equal(d2h(result).sync(), array + array)
        del graph, result
        gc.collect()
        oxide.reclaim.drain()
        live = failing.inner.live_allocations
        assert (live.device_count, live.host_count) == (0, 0)


def test_a_picture_of_a_recipe_shows_its_inputs() -> None:
    x = oxide.input((4, 5))
    titles = [node.title for node in plus(x, x, zeros((4, 5))).picture().nodes]
    assert titles.count("input") == 1
    launched = x.graph().launch(np.zeros((4, 5), np.float32)).picture()
    assert sorted(node.title for node in launched.nodes) == ["array", "launch of a graph"]


def test_an_input_is_read_before_another_is_filled() -> None:
    """The launch's sources are the graph's own inputs, as in a recurrence that keeps two results."""
    now, before = oxide.input(4), oxide.input(4)
    graph = (
        oxide.zip(now, before)
        .and_then(lambda both: oxide.zip(plus(both[0], both[1], zeros(4)).last(), oxide.value(both[0])))
        .graph()
    )
    following, last = graph.take_output()
    graph.launch(np.ones(4, np.float32), np.zeros(4, np.float32)).sync()
    found = [float(d2h(following).sync()[0])]
    for _ in range(5):
        graph.launch(following, last).sync()
        found.append(float(d2h(following).sync()[0]))
    assert found == [1, 2, 3, 5, 8, 13]
