"""CUDA graphs: capture, launch, update, what is refused, what lives how long, whose fault is whose."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import oxide
from oxide import (
    BoundsError,
    CudaGraph,
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    DriverError,
    GraphError,
    Slice,
    Stream,
    d2h,
    dup,
    f32,
    h2d,
    i64,
    kernel,
    memcpy,
    thread,
    value,
    with_context,
    zeros,
)
from oxide.host.core import submit
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver

NO_LAUNCH = frozenset({"allocate", "allocate_host", "create_stream", "create_event", "begin_capture", "end_capture"})


@kernel(block=64)
def scale_add(factor: f32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """y = factor * y + x"""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = factor * element.value + x[index.get()]


@kernel(block=64)
def pick(where: Slice[i64], x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """y[i] = x[where[i]]"""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[where[index.get()]]


@pytest.fixture(params=["threads", "steps"])
def recording(request: pytest.FixtureRequest) -> Iterator[RecordingDriver]:
    from oxide.driver.cpu import CpuDriver

    inner = CpuDriver(2, threads=2) if request.param == "threads" else step_driver(2)
    with use_driver(RecordingDriver(inner)) as driver:
        yield driver


def box_of(*numbers: float) -> DeviceBox:
    return h2d(np.array(numbers, np.float32)).sync()


def numbers(box: DeviceBox) -> list[float]:
    return [float(x) for x in d2h(box).sync()]


def accumulate(x: DeviceBox, y: DeviceBox, factor: float = 1.0) -> DeviceOperation[Any]:
    added: DeviceOperation[Any] = scale_add(factor, x, y).last()
    return added


# Capture and replay


def test_capturing_runs_nothing_and_each_launch_runs_all_of_it(recording: RecordingDriver) -> None:
    x, y = box_of(1, 2, 3), box_of(0, 0, 0)
    graph = accumulate(x, y).graph()
    assert numbers(y) == [0, 0, 0]
    graph.launch().sync()
    assert numbers(y) == [1, 2, 3]
    launch = graph.launch()
    launch.sync()
    launch.sync()  # an operation like any other: it may be run again
    assert numbers(y) == [3, 6, 9]


def test_a_launch_is_one_call_of_the_driver_whatever_the_graph_holds(recording: RecordingDriver) -> None:
    x, y = box_of(1), box_of(0)
    op: DeviceOperation[Any] = value(y)
    for _ in range(10):
        op = op.and_then(lambda y: accumulate(x, y))
    graph = op.graph()
    recording.clear()
    graph.launch().sync()
    assert (recording.count("launch_graph"), recording.count("launch")) == (1, 0)
    assert numbers(y) == [10]


def test_the_output_is_the_operations_result_and_is_taken_once(recording: RecordingDriver) -> None:
    x, y = box_of(1, 2), box_of(5, 5)
    graph = scale_add(2.0, x, y).graph()
    output = graph.take_output()
    assert output[1] is x
    assert output[2] is y
    with pytest.raises(GraphError, match="take_output: the graph's output was taken before; keep what the first call"):
        graph.take_output()
    graph.launch().sync()
    assert numbers(output[2]) == [11, 12]


def test_boxes_made_in_a_captured_operation_belong_to_the_graph(recording: RecordingDriver) -> None:
    x = box_of(1, 2)
    graph = zeros(2).and_then(lambda y: accumulate(x, y)).and_then(dup).graph()
    result = graph.take_output()
    assert result is not None
    graph.launch().sync()
    graph.launch().sync()  # zeroed again, not accumulated
    assert numbers(result) == [1, 2]


def test_h2d_reads_its_array_at_each_launch_and_d2h_fills_the_same_one(recording: RecordingDriver) -> None:
    x = np.array([1, 2, 3], np.float32)
    graph = h2d(x).and_then(lambda box: accumulate(box, box)).and_then(d2h).graph()
    graph.launch().sync()
    result = graph.take_output()
    for _ in range(3):
        graph.launch().sync()
        np.testing.assert_array_equal(result, 2 * x)
        x += 1


def test_launches_in_flight_each_have_the_input_of_their_submission() -> None:
    with use_driver(step_driver(seed=3)):
        streams = [oxide.devices()[0].new_stream() for _ in range(4)]
        x = np.zeros(2, np.float32)
        graph = h2d(x).and_then(dup).graph()
        output = graph.take_output()
        assert output is not None
        results = []
        for number in range(8):
            x[:] = number
            graph.launch().async_on(streams[number % 4])
            results.append(d2h(output).async_on(streams[(number + 1) % 4]))
        for stream in streams:
            stream.synchronize()
        assert [list(result) for result in results] == [[n, n] for n in range(8)]


def test_a_launch_is_an_operation_to_combine_and_await(recording: RecordingDriver) -> None:
    x, y = box_of(1), box_of(0)
    graph = accumulate(x, y).graph()

    async def main() -> None:
        result = await graph.launch().and_then(lambda _: graph.launch()).and_then(lambda _: d2h(y))
        assert list(result) == [2]
        both = await oxide.gather(graph.launch(), graph.launch())
        assert both == (None, None)

    if _steps_only(recording):  # nobody steps for an event loop
        graph.launch().and_then(lambda _: graph.launch()).sync()
        assert numbers(y) == [2]
    else:
        trio.run(main)
        assert numbers(y) == [4]


def _steps_only(driver: RecordingDriver) -> bool:
    try:
        driver.pending()
    except DriverError:
        return False
    return True


def test_fills_copies_and_launches_of_every_kind_replay() -> None:
    rng = np.random.default_rng(0)
    x = rng.random(100_000, np.float32)  # copies beyond what is copied at once, grids of many blocks
    source = h2d(x).sync()

    def build(ones: DeviceBox) -> DeviceOperation[Any]:
        return dup(source).and_then(lambda copy: accumulate(ones, copy, 2.0)).and_then(d2h)

    graph = oxide.full(100_000, 1.5).and_then(build).graph()
    graph.launch().sync()
    result = graph.take_output()
    for _ in range(3):
        graph.launch().sync()
        np.testing.assert_allclose(result, 2.0 * x.astype(np.float64) + 1.5, rtol=1e-6)
        assert result is not None
        result[:] = 0


def test_functions_are_called_once_at_the_capture() -> None:
    calls = []
    x, y = box_of(1), box_of(0)
    graph = value(y).inspect(lambda _: calls.append(1)).and_then(lambda y: accumulate(x, y)).graph()
    for _ in range(3):
        graph.launch().sync()
    assert calls == [1]


def test_a_shared_operation_runs_once_and_outside_of_the_graph() -> None:
    x, y = box_of(1), box_of(0)
    once = accumulate(x, y).shared()
    graph = once.and_then(lambda y: accumulate(y, y)).graph()
    assert numbers(y) == [1]
    graph.launch().sync()
    graph.launch().sync()
    assert numbers(y) == [4]


@pytest.mark.parametrize("known", [True, False])
def test_what_an_unzip_comes_from_is_part_of_the_graph(known: bool) -> None:
    x = np.array([1, 2], np.float32)
    pair = oxide.zip(h2d(x), oxide.full(2, 10.0))
    left, right = pair.unzip() if known else pair.map(lambda both: both).unzip(2)
    operation = accumulate(left, right).to_host()
    graphs = [operation.graph() for _ in range(2)]
    for graph in graphs:
        graph.launch().sync()
    results = [graph.take_output() for graph in graphs]
    for number in range(3):
        for graph, result in zip(graphs, results, strict=True):
            x[:] = number + 1, number + 2
            graph.launch().sync()
            np.testing.assert_array_equal(result, [number + 11, number + 12])
    x[:] = 3
    np.testing.assert_array_equal(operation.sync(), [13, 13])
    graph = operation.graph()
    x[:] = 4
    graph.launch().sync()
    result = graph.take_output()
    np.testing.assert_array_equal(result, [16, 16])  # what was run before the capture is as it was


def test_an_unzip_of_a_scope_is_recorded_again_if_what_used_it_first_failed() -> None:
    x, y, z = box_of(1, 2), box_of(0, 0), box_of(0, 0)
    left, right = oxide.zip(memcpy(y, x), memcpy(z, x)).unzip()
    with CudaGraph.scope(oxide.devices()[0].new_stream()) as scope:
        with pytest.raises(ZeroDivisionError):
            scope.record(left.map(lambda _: 1 // 0))
        assert scope.record(left) is y
        assert scope.record(right) is z
    memcpy(x, np.array([5, 6], np.float32)).sync()
    scope.graph.launch().sync()
    assert (numbers(y), numbers(z)) == ([5, 6], [5, 6])


# Update


def test_an_update_runs_on_the_graphs_stream_before_the_launches_that_follow(recording: RecordingDriver) -> None:
    x, y = box_of(0, 0), box_of(0, 0)
    stream = oxide.devices()[0].new_stream()
    graph = memcpy(y, x).graph_on(stream)
    assert graph.stream is stream
    results = []
    for number in range(5):
        assert graph.update(memcpy(x, np.full(2, number, np.float32))) is x
        results.append(graph.launch().and_then(lambda _: d2h(y)).sync())  # on the policy's streams, one after the other
    assert [list(result) for result in results] == [[n, n] for n in range(5)]


def test_a_fault_of_an_update_is_raised_when_the_graphs_stream_is_synchronized() -> None:
    where, x, y = h2d(np.array([9])).sync(), box_of(1, 2), box_of(0)
    graph = memcpy(y, y).graph()
    graph.update(pick(where, x, y))
    with pytest.raises(BoundsError):
        graph.stream.synchronize()


def test_changing_inputs_give_the_results_of_running_it_with_no_allocation() -> None:
    with use_driver(RecordingDriver(step_driver(seed=1))) as driver:
        x, y = box_of(*[0.0] * 64), box_of(*[0.0] * 64)
        graph = zeros(64).and_then(lambda t: accumulate(x, t)).and_then(lambda t: memcpy(y, t)).and_then(d2h).graph()
        graph.launch().sync()
        result = graph.take_output()

        def one(number: int) -> None:
            array = np.full(64, number, np.float32)
            graph.update(memcpy(x, array))
            graph.launch().sync()
            np.testing.assert_array_equal(result, array)

        for number in range(20):
            one(number)
        driver.clear()
        for number in range(300):
            one(number)
        assert {method: driver.count(method) for method in NO_LAUNCH if driver.count(method)} == {}
        assert driver.count("free") == driver.count("free_host") == 0


# Ordering


def test_a_launch_waits_for_the_writes_of_what_it_reads_and_for_the_reads_of_what_it_writes() -> None:
    with use_driver(step_driver()) as driver:
        one, two, three = (oxide.devices()[0].new_stream() for _ in range(3))
        x, y = box_of(0), box_of(7)
        graph = memcpy(y, x).graph()
        before = d2h(y).async_on(one)
        memcpy(x, np.array([5], np.float32)).async_on(two)
        graph.launch().async_on(three)
        after = d2h(y).async_on(one)
        memcpy(x, np.array([6], np.float32)).async_on(two)
        while driver.step(three._timeline.handle) or driver.step(two._timeline.handle):
            pass  # as far as they can before the first stream has begun
        for stream in (three, two, one):
            stream.synchronize()
        assert (list(before), list(after), numbers(x)) == ([7], [5], [6])


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), program=st.data())
def test_random_programs_with_graphs_equal_their_sequential_meaning(seed: int, program: Any) -> None:
    with use_driver(step_driver(seed=seed)) as driver:
        streams = [oxide.devices()[0].new_stream() for _ in range(3)]
        boxes = [box_of(n, n) for n in range(3)]
        model = [np.full(2, n, np.float64) for n in range(3)]
        graphs = {
            (to, origin): memcpy(boxes[to], boxes[origin]).graph_on(streams[to])
            for to in range(3)
            for origin in range(3)
            if to != origin
        }
        reads = []
        for step in range(program.draw(st.integers(1, 15))):
            stream = program.draw(st.sampled_from(streams))
            match program.draw(st.sampled_from(["launch", "launch", "write", "add", "read", "step", "close"])):
                case "launch" if graphs:
                    to, origin = pair = program.draw(st.sampled_from(sorted(graphs)))
                    graphs[pair].launch().async_on(stream)
                    model[to] = model[origin].copy()
                case "close" if graphs:
                    graphs.pop(program.draw(st.sampled_from(sorted(graphs)))).close()
                case "write":
                    number = program.draw(st.integers(0, 2))
                    memcpy(boxes[number], np.full(2, 10 + step, np.float32)).async_on(stream)
                    model[number] = np.full(2, 10.0 + step)
                case "add":
                    accumulate(boxes[0], boxes[1]).async_on(stream)
                    model[1] = model[0] + model[1]
                case "read":
                    number = program.draw(st.integers(0, 2))
                    reads.append((d2h(boxes[number]).async_on(stream), model[number].copy()))
                case _:
                    driver.step()
        for stream in streams:
            stream.synchronize()
        for found, expected in reads:
            np.testing.assert_array_equal(found, expected)
        for box, expected in zip(boxes, model, strict=True):
            np.testing.assert_array_equal(numbers(box), expected)


# Scopes


def test_a_scope_records_operations_in_order_and_runs_none(recording: RecordingDriver) -> None:
    x, y = box_of(1), box_of(0)
    stream = oxide.devices()[0].new_stream()
    with CudaGraph.scope(stream) as s:
        assert s.record(value(42)) == 42
        assert s.record(accumulate(x, y)) is y
        s.record(accumulate(y, y))
        result = s.record(d2h(y))
        recording.clear()
    assert recording.count("launch_graph") == 0
    assert numbers(y) == [0]
    for expected in (2, 6, 14):
        s.graph.launch().sync_on(stream)
        assert list(result) == [expected]
    assert s.graph.take_output() is None


def test_an_empty_scope_is_a_graph_that_does_nothing(recording: RecordingDriver) -> None:
    with CudaGraph.scope(oxide.devices()[0].new_stream()) as s:
        pass
    for _ in range(10):
        s.graph.launch().sync()


@pytest.mark.parametrize("make", [lambda: zeros(4), lambda: h2d(np.ones(3)), lambda: dup(box_of(1)), lambda: zeros(0)])
def test_a_scope_refuses_what_allocates_and_says_why(make: Callable[[], DeviceOperation[Any]]) -> None:
    op = make()
    refused = pytest.raises(GraphError, match=r"cannot be allocated inside CudaGraph.scope.*Make the box before")
    with CudaGraph.scope(oxide.devices()[0].new_stream()) as s, refused:
        s.record(op)
    s.graph.launch().sync()


def test_an_operation_that_fails_in_a_scope_records_nothing_of_itself() -> None:
    x, y = box_of(1), box_of(0)
    with CudaGraph.scope(oxide.devices()[0].new_stream()) as s:
        s.record(accumulate(x, y))
        with pytest.raises(GraphError):
            s.record(accumulate(x, y).and_then(dup))
    s.graph.launch().sync()
    assert numbers(y) == [1]


def test_an_exception_that_leaves_a_scope_leaves_no_graph_and_a_usable_stream(recording: RecordingDriver) -> None:
    x, y = box_of(1), box_of(0)
    stream = oxide.devices()[0].new_stream()
    before = recording.outstanding()["graphs"]
    with pytest.raises(ZeroDivisionError), CudaGraph.scope(stream) as s:
        s.record(accumulate(x, y))
        1 / 0  # noqa: B018
    with pytest.raises(GraphError, match="ended with an exception"):
        _ = s.graph
    assert recording.outstanding()["graphs"] == before
    accumulate(x, y).sync_on(stream)
    stream.synchronize()
    assert numbers(y) == [1]


@pytest.mark.parametrize("where", ["the captured stream", "another stream", "the policy's"])
def test_running_an_operation_inside_a_scope_is_refused(where: str) -> None:
    stream, other = (oxide.devices()[0].new_stream() for _ in range(2))
    with CudaGraph.scope(stream):
        with pytest.raises(GraphError, match="running an operation is not possible while a graph is captured"):
            if where == "the policy's":
                value(42).sync()
            else:
                value(42).sync_on(stream if where == "the captured stream" else other)
        with pytest.raises(GraphError, match="running an operation"):
            value(42).async_on(other)
    assert value(42).sync_on(stream) == 42


def test_awaiting_an_operation_inside_a_scope_is_refused_and_other_tasks_go_on() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with CudaGraph.scope(oxide.devices()[0].new_stream()) as s:
                with pytest.raises(GraphError, match="running an operation"):
                    await value(1)
                finished = trio.Event()

                async def other() -> None:
                    assert list(await h2d(np.ones(2)).to_host()) == [1, 1]
                    finished.set()

                trio.lowlevel.spawn_system_task(other)
                await finished.wait()
                nursery.cancel_scope.cancel()
            s.graph.close()
            assert await value(2) == 2

    trio.run(main)


@pytest.mark.parametrize(
    "use",
    [
        lambda stream: stream.synchronize(),
        lambda stream: stream.query(),
        lambda stream: stream.handle,
        lambda stream: stream.record_event(),
        lambda stream: stream.fork(),
        lambda stream: stream.launch_host_function(lambda: None),
    ],
)
def test_the_stream_of_a_capture_cannot_be_used_beside_it(use: Callable[[Stream], object]) -> None:
    stream = oxide.devices()[0].new_stream()
    refused = pytest.raises(GraphError, match="is not possible while a graph is captured on the stream")
    with CudaGraph.scope(stream), refused:
        use(stream)
    use(stream)

    def foreign(context: oxide.ExecutionContext) -> DeviceOperation[int]:
        use(context.stream)
        return value(1)

    with pytest.raises(GraphError, match="is not possible while a graph is captured on the stream"):
        with_context(foreign).graph()
    assert with_context(foreign).sync() == 1


def test_a_capture_inside_a_capture_is_refused() -> None:
    first, second = (oxide.devices()[0].new_stream() for _ in range(2))
    x, y = box_of(1), box_of(0)
    graph = accumulate(x, y).graph()
    with CudaGraph.scope(first) as s:
        with pytest.raises(GraphError, match="capturing a graph"), CudaGraph.scope(second):
            pass
        with pytest.raises(GraphError, match="capturing a graph"):
            accumulate(x, y).graph()
        with pytest.raises(GraphError, match="cannot be captured into another"):
            s.record(graph.launch())


def test_a_scope_is_used_once_and_its_graph_is_there_at_its_end() -> None:
    scope = CudaGraph.scope(oxide.devices()[0].new_stream())
    with pytest.raises(GraphError, match="record works inside its scope"):
        scope.record(value(1))
    with scope:
        with pytest.raises(GraphError, match="when the scope has ended"):
            _ = scope.graph
        with pytest.raises(TypeError, match="record takes an operation, not int"):
            scope.record(1)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="record works inside its scope"):
        scope.record(value(1))
    with pytest.raises(GraphError, match="used before"), scope:
        pass
    with pytest.raises(TypeError, match="a Stream is needed"):
        CudaGraph.scope(1)  # type: ignore[arg-type]


def test_host_memory_cannot_be_copied_from_inside_a_graph() -> None:
    box = box_of(1)
    with pytest.raises(GraphError, match=r"update\(memcpy\(box, array\)\)"):
        memcpy(box, np.ones(1, np.float32)).graph()


# Concurrent capture


def test_two_threads_capture_at_the_same_time() -> None:
    barrier = threading.Barrier(2)
    results: dict[int, list[float]] = {}

    def capture(number: int) -> None:
        x, y = box_of(number), box_of(0)
        with CudaGraph.scope(oxide.devices()[0].new_stream()) as s:
            barrier.wait()
            s.record(accumulate(x, y))
            barrier.wait()
            s.record(accumulate(x, y))
        s.graph.launch().sync()
        results[number] = numbers(y)

    threads = [threading.Thread(target=capture, args=(number,)) for number in (1, 2)]
    for running in threads:
        running.start()
    for running in threads:
        running.join()
    assert results == {1: [2.0], 2: [4.0]}


def test_another_thread_works_as_ever_during_a_capture() -> None:
    stream = oxide.devices()[0].new_stream()
    x, y = box_of(1), box_of(0)
    found: list[Any] = []

    def work() -> None:
        fresh = oxide.devices()[0].new_stream()
        found.append(list(h2d(np.ones(3)).to_host().sync_on(fresh)))
        found.append(list(h2d(np.ones(3)).to_host().sync_on(stream)))  # even on the stream: it is not in the graph
        found.append(h2d(np.ones(3)).and_then(dup).graph().launch().sync())

    with CudaGraph.scope(stream) as s:
        s.record(accumulate(x, y))
        other = threading.Thread(target=work)
        other.start()
        other.join()
        s.record(accumulate(x, y))
    assert found == [[1, 1, 1], [1, 1, 1], None]
    s.graph.launch().sync()
    assert numbers(y) == [2]


# Lifetimes


def test_a_graph_keeps_its_buffers_and_a_closed_one_refuses_to_run() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        y = box_of(0, 0)
        oxide.reclaim.drain()
        before = driver.outstanding()
        graph = h2d(np.array([1, 2], np.float32)).and_then(lambda x: accumulate(x, y)).graph()
        gc.collect()
        oxide.reclaim.drain()
        assert driver.outstanding()["allocations"] > before["allocations"]
        graph.launch().sync()  # poisoned memory would show here
        assert numbers(y) == [1, 2]
        launch = graph.launch()
        graph.close()
        graph.close()
        assert graph.closed
        with pytest.raises(GraphError, match="the graph was closed"):
            launch.sync()
        with pytest.raises(GraphError, match="the graph was closed"):
            graph.launch()
        with pytest.raises(GraphError, match="the graph was closed"):
            graph.update(value(1))
        gc.collect()
        oxide.reclaim.drain()
        after = driver.outstanding()
        assert {name: after[name] for name in ("allocations", "host_allocations", "graphs")} == {
            name: before[name] for name in ("allocations", "host_allocations", "graphs")
        }


def test_a_graph_closed_or_dropped_in_flight_runs_to_its_end_first() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        y = box_of(0)
        stream = oxide.devices()[0].new_stream()
        graph: CudaGraph[Any] | None = (
            h2d(np.array([3], np.float32)).and_then(lambda x: accumulate(x, y)).graph_on(stream)
        )
        assert graph is not None
        graph.launch().async_on(stream)
        graph.close()
        graph = None
        gc.collect()
        value(0).sync_on(oxide.devices()[0].new_stream())  # sweeps
        assert driver.count("destroy_graph") == 0
        stream.synchronize()
        assert numbers(y) == [3]
        gc.collect()
        oxide.reclaim.drain()
        assert driver.count("destroy_graph") == 1


# Faults


def test_a_kernels_fault_is_raised_by_the_launch_it_happened_in(recording: RecordingDriver) -> None:
    where, x, y = h2d(np.array([0, 1])).sync(), box_of(5, 6), box_of(0, 0)
    graph = pick(where, x, y).graph()
    streams = [oxide.devices()[0].new_stream() for _ in range(2)]
    futures = []
    for turn, places in enumerate(([1, 0], [0, 2], [1, 1], [-1, 0])):
        graph.update(memcpy(where, np.array(places)))
        futures.append(submit(graph.launch(), streams[turn % 2]))
    outcomes: list[Any] = []
    for future in futures:
        future.mark.synchronize()
        try:
            outcomes.append(future.finish())
        except BoundsError as fault:
            outcomes.append((fault.kernel, fault.parameter, fault.index))
    assert outcomes == [None, ("pick", "x", 2), None, ("pick", "x", -1)]
    graph.update(memcpy(where, np.array([1, 0])))
    graph.launch().sync()
    assert numbers(y) == [6, 5]


# Errors of the driver


class InjectedError(DriverError):
    """What a failing driver raises in these tests."""


def _capture_and_launch(x: DeviceBox, y: DeviceBox) -> None:
    graph = dup(x).and_then(lambda t: accumulate(t, y)).graph()
    graph.update(memcpy(x, np.ones(2, np.float32)))
    graph.launch().sync()
    graph.close()


def test_every_driver_call_that_fails_gives_one_error_and_leaves_nothing_behind() -> None:
    failing = FailingDriver(step_driver())
    with use_driver(RecordingDriver(failing)) as driver:
        x, y = box_of(0, 0), box_of(0, 0)
        _capture_and_launch(x, y)
        oxide.reclaim.drain()
        driver.clear()
        _capture_and_launch(x, y)
        calls = len(driver.calls)
        assert calls > 10
        gc.collect()
        oxide.reclaim.drain()
        counted = ("allocations", "host_allocations", "graphs")
        before = {name: driver.outstanding()[name] for name in counted}
        for n in range(1, calls + 1):
            failing.fail_call(n, InjectedError(1, "CUDA_ERROR_INVALID_VALUE"))
            with suppress(InjectedError):  # a sweep that fails is tried again, and raises nothing
                _capture_and_launch(x, y)
            driver.clear()  # a call that raised keeps what its frames hold
            failing._failures.clear()
            gc.collect()
            oxide.reclaim.drain()
            assert {name: driver.outstanding()[name] for name in counted} == before, f"call {n}"
        memcpy(x, np.zeros(2, np.float32)).sync()
        memcpy(y, np.zeros(2, np.float32)).sync()
        _capture_and_launch(x, y)
        assert numbers(y) == [1, 1]
