"""The picture of a recipe has what is known before the run, and that of a captured graph all of its work."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from oxide import (
    CudaGraph,
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    ExecutionContext,
    GraphError,
    LaunchConfig,
    Slice,
    arange,
    cond,
    d2h,
    devices,
    dup,
    empty,
    f32,
    full,
    h2d,
    i32,
    kernel,
    memcpy,
    thread,
    tile,
    to_device,
    unzip,
    value,
    while_loop,
    with_context,
    zeros,
    zip,
)
from oxide.pictures import Node, Picture, svg

X = np.arange(1000, dtype=np.float32)


@kernel
def axpy(alpha: f32, x: Slice[f32], y: DisjointSlice[f32]):
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value += alpha * x[i.get()]


@tile.kernel
def add(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]):
    z.store(tile.load_like(x, z) + tile.load_like(x, z))


def launch(alpha: float, x: Any, y: Any) -> DeviceOperation[Any]:
    return axpy[LaunchConfig.for_num_elems(1000)](alpha, x, y)


def titles(picture: Picture) -> list[str]:
    return [node.title for node in picture.nodes]


def flows(picture: Picture) -> set[tuple[str, str, str]]:
    """Source, target and label of each edge on which data flows."""
    named = {node.key: node.title for node in picture.nodes}
    return {(named[edge.source], named[edge.target], edge.label) for edge in picture.edges if edge.kind == "data"}


def node_of(picture: Picture, title: str) -> Node:
    (found,) = (node for node in picture.nodes if node.title == title)
    return found


def test_a_recipe_has_its_launch_its_copies_and_its_boxes() -> None:
    operation = launch(2.0, h2d(X), zeros(1000)).last().and_then(d2h)
    picture = operation.picture()
    assert titles(picture) == ["h2d", "zeros", "axpy", "d2h"]
    assert flows(picture) == {
        ("h2d", "axpy", "x: 1000 float32, 3.906 KiB"),
        ("zeros", "axpy", "y: 1000 float32, 3.906 KiB"),
        ("axpy", "d2h", "the last, 1000 float32, 3.906 KiB"),
    }
    assert node_of(picture, "axpy").kind == "launch"
    assert node_of(picture, "axpy").details == ("grid 4, block 256", "alpha = 2.0")
    assert node_of(picture, "d2h").details == ("device to host", "3.906 KiB")
    assert np.array_equal(operation.sync(), 2 * X)  # drawing it changes nothing


def test_a_stage_that_a_function_makes_is_shown_as_the_function() -> None:
    def further(box: DeviceBox) -> DeviceOperation[Any]:
        raise AssertionError("a picture calls no function")

    operation = h2d(X).and_then(further).map(len)
    picture = operation.picture()
    stage = node_of(picture, "and_then")
    assert stage.kind == "unknown"
    line = further.__code__.co_firstlineno
    assert stage.details == (f"{further.__qualname__} at {__file__}:{line}", "known when it runs")
    assert node_of(picture, "map").kind == "host"
    assert any("Dashed box" in note for note in picture.notes)


def test_an_operation_that_is_used_twice_is_one_node() -> None:
    shared = h2d(X).shared()
    picture = zip(launch(1.0, shared, zeros(1000)), launch(2.0, shared, zeros(1000))).picture()
    assert titles(picture).count("shared") == 1
    assert titles(picture).count("axpy") == 2
    (key,) = [node.key for node in picture.nodes if node.title == "shared"]
    assert sum(edge.source == key for edge in picture.edges) == 2


def test_the_elements_of_an_unzipped_launch_come_from_one_node() -> None:
    _, x, y = unzip(launch(2.0, h2d(X), zeros(1000)))
    picture = zip(d2h(x), d2h(y)).picture()
    assert titles(picture).count("axpy") == 1
    assert {label for source, _, label in flows(picture) if source == "unzip"} == {
        "element 1, 1000 float32, 3.906 KiB",
        "element 2, 1000 float32, 3.906 KiB",
    }


def test_every_kind_of_operation_is_drawn() -> None:
    box = zeros((4, 8)).sync()
    operations = [
        empty(3),
        full(3, 1.5),
        arange(5),
        dup(box),
        memcpy(box, np.ones((4, 8), np.float32)),
        memcpy(box, zeros(32).sync()),
        value(3),
        value(box),
        zeros(3).on(0),
        to_device(box, 0),
        zeros((2, 8)).reshape(16),
        zeros(16).partition(4),
        zeros(16).partition(4).unpartition(),
        add(zeros(16).partition(4), zeros(16)),
        add(box.reshape(32).partition(4), zeros(32)),
        with_context(lambda context: zeros(3)),
        zeros(3).inspect(len),
        zip(),
    ]
    for operation in operations:
        picture = operation.picture()
        assert picture.nodes
        assert svg(operation).startswith("<svg")
    tiles = add(zeros(16).partition(4), zeros(16))
    assert node_of(tiles.picture(), "add").details == ("tile kernel", "grid 4, block 128")


def test_a_picture_says_what_the_operation_yields() -> None:
    assert launch(1.0, h2d(X), zeros(1000)).first().picture().notes[0] == "Yields element 0."
    assert launch(1.0, h2d(X), zeros(1000)).last().picture().notes[0] == "Yields the last, 1000 float32, 3.906 KiB."
    assert zip(zeros(3), zeros(4)).picture().notes[0] == "Yields a tuple of 2."


def test_an_operation_of_the_users_own_has_its_name() -> None:
    class Mine(DeviceOperation[int]):
        def execute(self, context: ExecutionContext) -> int:
            return 3

    operation = Mine().map(str)
    assert titles(operation.picture()) == ["Mine", "map"]


def test_a_shared_operation_that_has_run_is_drawn_without_its_source() -> None:
    shared = h2d(X).shared()
    shared.sync()
    assert [(node.title, node.details) for node in shared.picture().nodes] == [("shared", ("has run",))]


def test_placed_operations_name_their_device() -> None:
    operation = zip(zeros(3).on(0), zeros(3))
    picture = operation.picture()
    assert [node.stream for node in picture.nodes] == ["device 0", "", ""]
    assert [edge.kind for edge in picture.edges] == ["wait", "data"]
    assert any("Dashed edge" in note for note in picture.notes)
    assert not any("Dashed edge" in note for note in zip(zeros(3), zeros(3)).picture().notes)


def test_of_a_long_chain_the_end_is_drawn() -> None:
    operation: DeviceOperation[Any] = zeros(3)
    for _ in range(5000):
        operation = operation.map(lambda box: box)
    picture = operation.picture()
    assert len(picture.nodes) == 251
    assert titles(picture)[:2] == ["map", "earlier operations"]
    svg(picture)


def test_an_operation_that_was_drawn_does_not_warn_that_it_never_ran(recwarn: pytest.WarningsRecorder) -> None:
    svg(zeros(3).map(len))
    gc.collect()
    zeros(4)  # not drawn: it warns
    gc.collect()
    assert ["4 float32" in str(warning.message) for warning in recwarn] == [True]


def captured() -> CudaGraph[Any]:
    def doubled(box: DeviceBox) -> DeviceOperation[Any]:
        return launch(1.0, box, zeros(1000)).last().and_then(lambda copy: launch(1.0, box, copy)).last()

    return h2d(X).and_then(doubled).and_then(d2h).graph()


def test_a_captured_graph_has_all_its_work() -> None:
    graph = captured()
    picture = graph.picture()
    assert titles(picture) == ["h2d", "zeros", "axpy", "axpy", "d2h"]
    assert [node.details[0] for node in picture.nodes if node.title == "axpy"] == ["grid 4, block 256"] * 2
    keys = {(edge.source, edge.target) for edge in picture.edges if edge.kind == "data"}
    assert keys == {(0, 2), (1, 2), (0, 3), (2, 3), (3, 4)}
    assert all(edge.label == "1000 float32, 3.906 KiB" for edge in picture.edges)
    assert "2 launches, 2 copies" in picture.title
    graph.launch().sync()
    assert np.array_equal(graph.take_output(), 2 * X)


def test_an_order_is_drawn_where_a_box_is_written_that_an_earlier_node_read() -> None:
    x, y, z = h2d(X).sync(), zeros(1000).sync(), zeros(1000).sync()
    with CudaGraph.scope(devices()[0].new_stream()) as scope:
        scope.record(launch(1.0, x, y))
        scope.record(launch(1.0, x, z))
        scope.record(memcpy(x, y))
    picture = scope.graph.picture()
    kinds = {(edge.source, edge.target): edge.kind for edge in picture.edges}
    one, other = [node.key for node in picture.nodes if node.title == "axpy"]
    (copy,) = [node.key for node in picture.nodes if node.title == "copy"]
    assert (one, other) not in kinds
    assert (kinds[one, copy], kinds[other, copy]) == ("data", "order")
    assert titles(picture).count("box") == 3


def test_what_a_failed_record_had_recorded_is_not_drawn() -> None:
    x, y = h2d(X).sync(), zeros(1000).sync()

    def fails(results: Any) -> DeviceOperation[Any]:
        raise ValueError("no")

    with CudaGraph.scope(devices()[0].new_stream()) as scope:
        scope.record(launch(1.0, x, y))
        with pytest.raises(ValueError, match="no"):
            scope.record(launch(2.0, x, y).and_then(fails))
        scope.record(d2h(y))
    assert titles(scope.graph.picture()).count("axpy") == 1
    assert titles(scope.graph.picture())[-1] == "d2h"


def test_a_launch_of_a_graph_says_what_is_in_it() -> None:
    graph = captured()
    operation = graph.launch()
    (node,) = operation.picture().nodes
    assert (node.kind, node.details) == ("graph", ("2 launches, 2 copies",))
    graph.close()
    assert operation.picture().nodes[0].details == ("closed",)


def test_a_closed_graph_has_no_picture() -> None:
    graph = captured()
    graph.close()
    with pytest.raises(GraphError, match="closed"):
        graph.picture()
    assert graph._repr_html_() is None


@kernel(block=32)
def count_down(n: DisjointSlice[i32]):
    element = n.get_mut(thread.index_1d())
    if element is not None:
        element.value -= i32(1)


def orders(picture: Picture) -> set[tuple[str, str, str]]:
    named = {node.key: node.title for node in picture.nodes}
    return {(named[edge.source], named[edge.target], edge.label) for edge in picture.edges if edge.kind == "order"}


def test_a_loop_and_a_choice_are_drawn_before_they_run() -> None:
    picture = while_loop(zeros(1, i32), cond(zeros(1, i32), zeros(3), zeros(3))).picture()
    assert titles(picture) == ["zeros", "zeros", "zeros", "zeros", "cond", "while_loop"]
    assert ("cond", "while_loop", "body: 3 float32, 12 bytes") in flows(picture)
    assert ("zeros", "cond", "then: 3 float32, 12 bytes") in flows(picture)
    assert node_of(picture, "while_loop").details == ("until the flag is 0",)


def test_a_captured_loop_is_drawn_with_its_body_behind_it() -> None:
    n, f, x, y = zeros(1, i32).sync(), zeros(1, i32).sync(), h2d(X).sync(), zeros(1000).sync()
    body = zip(count_down(n), cond(f, launch(1.0, x, y).last(), memcpy(y, x)))
    graph = while_loop(n, body).and_then(lambda _: d2h(y)).graph()
    assert graph.summary() == "2 launches, 2 copies, 1 loop, 1 choice"
    picture = graph.picture()
    assert orders(picture) >= {
        ("while", "count_down", "body"),
        ("while", "if", "body"),
        ("if", "axpy", "then"),
        ("if", "copy", "otherwise"),
    }
    assert ("box", "while", "flag") in flows(picture)
    assert ("box", "if", "flag") in flows(picture)
    svg(graph)
