"""``op.fused()``, ``graph(fuse=True)`` and ``op.explain()``."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import (
    BoundsError,
    DeviceBox,
    DeviceError,
    DeviceOperation,
    DisjointSlice,
    DisjointSlice2,
    Slice,
    Slice2,
    cond,
    d2h,
    dup,
    empty,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    value,
    while_loop,
    zeros,
)
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver
from oxide_kernels import axpy, relu

SIZES = (0, 1, 31, 33, 1000003)


@kernel(block=64)
def scale(a: f32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = a * x[i.get()]


@kernel(block=64)
def add(x: Slice[f32], y: Slice[f32], z: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = z.get_mut(i)
    if e is not None:
        e.value = x[i.get()] + y[i.get()]


@kernel(block=64)
def shifted(x: Slice[f32], by: i64, y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = x[i.get() + by]


@kernel(block=64)
def rotate(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = x[(i.get() + 1) % len(x)]


@kernel(block=64)
def by_lane(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = x[i.get()] + f32(thread.thread_idx.x)


@kernel(block=64)
def applied(f: Callable[[f32], f32], a: f32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = a * f(x[i.get()])


def random(size: Any) -> Any:
    return np.random.default_rng().standard_normal(size).astype(np.float32)


def scaled(a: float, box: DeviceBox) -> DeviceOperation[DeviceBox]:
    return scale(a, box, empty(box.size)).last()


def rectified(box: DeviceBox) -> DeviceOperation[DeviceBox]:
    return relu(box, empty(box.size)).last()


def chain(x: DeviceOperation[DeviceBox]) -> DeviceOperation[DeviceBox]:
    """max(0, 3 (2 x)) + 5 (2 x), with a multiplication before an addition that must not be contracted."""
    return (
        x.and_then(lambda box: scaled(2.1, box))
        .and_then(lambda twice: oxide.zip(scaled(3.3, twice).and_then(rectified), scaled(5.7, twice)))
        .and_then(lambda both: add(*both, empty(both[0].size)).last())
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_fused_operation_yields_the_same_bits(size: int) -> None:
    array = random(size)
    expected = chain(h2d(array)).to_host().sync()
    np.testing.assert_array_equal(chain(h2d(array)).to_host().fused().sync(), expected)
    np.testing.assert_array_equal(chain(h2d(array)).fused().to_host().sync(), expected)
    graph = chain(h2d(array)).to_host().graph(fuse=True)
    graph.launch().sync()
    np.testing.assert_array_equal(graph.take_output(), expected)


def test_it_is_one_launch_that_touches_only_its_input_and_its_result() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        box = h2d(random(1000)).sync()
        operation = chain(value(box)).fused()
        driver.clear()
        operation.sync()
        assert driver.count("launch") == 1
        (call,) = [call for call in driver.calls if call.method == "launch"]
        assert call.arguments[1] == (1, 1, 1)
        graph = chain(value(box)).graph(fuse=True)
        assert graph.summary() == "1 launch, 0 copies"
        assert graph.memory().before == graph.memory().after * 5


def test_explain_says_what_fusion_does() -> None:
    box = h2d(random(1000)).sync()
    lines = chain(value(box)).explain().splitlines()
    assert lines[:3] == [
        "launches: 5 -> 1",
        "memory traffic saved: 35.16 KiB a run",
        "scale + scale + relu + scale + add: 5 launches -> 1, 35.16 KiB of memory traffic saved",
    ]
    assert lines[3:5] == [
        "memory of its own boxes: 3.906 KiB instead of 19.53 KiB",
        "streams that its branches can use: 1",
    ]
    after = lines.index("after:")
    assert lines[5:after] == [
        "before:",
        "  1 scale",
        "  2 scale, after 1",
        "  3 relu, after 2",
        "  4 scale, after 1",
        "  5 add, after 3, 4",
    ]
    assert lines[after + 1 :] == ["  1 scale+scale+relu+scale+add"]
    assert chain(value(box)).fused().explain().splitlines() == lines
    assert oxide.planned(chain(value(box)).fused().map(lambda box: box)).explain().splitlines() == lines


def test_a_launch_with_too_few_threads_stays_alone() -> None:
    x, t, y = (zeros(100).sync() for _ in range(3))
    with pytest.warns(RuntimeWarning, match="reach 64 of the 100 elements"):
        operation = in_turn(scale[1, 64](2.0, x, t), relu(t, y))
    assert reasons(operation)[0] == (
        "kernel scale is not fused: its launch has fewer threads than its arrays have elements; relu cannot be its "
        "epilogue: it has no form with an epilogue"
    )


def reasons(operation: DeviceOperation[Any]) -> list[str]:
    return [line for line in operation.explain().splitlines() if "not fused" in line]


def in_turn(*launches: DeviceOperation[Any]) -> DeviceOperation[Any]:
    return oxide.zip(*launches)


def test_explain_says_why_a_launch_stays_alone() -> None:
    x, t, y = (zeros(100).sync() for _ in range(3))
    other = zeros(99).sync()
    for operation, expected in (
        (
            in_turn(relu(x, t), by_lane(t, y), relu(y, x)),
            "kernel by_lane is not fused: it uses its thread in other ways than by its index; relu cannot be its "
            "epilogue: it has no form with an epilogue; relu cannot be its prologue: other launches or the program "
            "need the result, too",
        ),
        (
            in_turn(relu(x, t), scale(2.0, y, y)),
            "kernel scale is not fused with relu: it accesses none of their arrays",
        ),
        (
            in_turn(relu(x, t), relu(t[:99], other)),
            "kernel relu is not fused with relu: its arrays have 99 elements, theirs 100",
        ),
        (
            in_turn(relu(x, t), scale(2.0, t, other)),
            "kernel scale is not fused: its arrays have different shapes: (99,), (100,); relu cannot be its prologue: "
            "other launches or the program need the result, too",
        ),
        (
            in_turn(relu(x, t), rotate(t, y)),
            "kernel rotate is not fused with relu: one writes relu_output, and another reads it at other indices than "
            "its thread's",
        ),
        (
            in_turn(relu(x[1:], t[:99]), relu(x, y)),
            "kernel relu is not fused with relu: its arrays have 100 elements, theirs 99",
        ),
        (
            in_turn(relu(x, t), scale(2.0, t[1:], t[:99])),
            "kernel scale is not fused: its arrays overlap in part",
        ),
    ):
        assert expected in reasons(operation), reasons(operation)


def test_partial_overlaps_and_steps_between_are_respected() -> None:
    array = random(100)
    x = h2d(array).sync()
    y = h2d(random(101)).sync()
    operation = in_turn(
        scale(2.0, x, y[:100]),
        scale(3.0, y[1:], x),  # reads what the first wrote, one element on
        by_lane(x, y[:100]),
        relu(y[:100], x),
    )
    copies = [d2h(x).sync(), d2h(y).sync()]
    operation.sync()
    expected = [d2h(x).sync(), d2h(y).sync()]
    oxide.memcpy(x, copies[0]).sync()
    oxide.memcpy(y, copies[1]).sync()
    operation.fused().sync()
    np.testing.assert_array_equal(d2h(x).sync(), expected[0])
    np.testing.assert_array_equal(d2h(y).sync(), expected[1])


def test_a_recipe_that_runs_again_is_planned_again_where_it_changes() -> None:
    """Sizes, what the program holds and which boxes are the same differ from run to run."""
    kept: list[DeviceBox] = []
    given: dict[str, Any] = {}

    def stages(_: Any) -> DeviceOperation[DeviceBox]:
        x, y = given["boxes"]
        return (
            scaled(given["factor"], x)
            .inspect(kept.append if given["keep"] else lambda _: None)
            .and_then(lambda box: add(box, y, empty(box.size)).last())
        )

    operation = value(None).and_then(stages).fused()
    for size, keep, same, factor in (
        (100, False, False, 2.0),
        (100, False, False, 3.0),
        (33, False, False, 3.0),
        (100, True, False, 2.0),
        (100, False, True, 2.0),
        (100, True, True, 0.5),
        (100, False, False, 2.0),
    ):
        arrays = random(size), random(size)
        boxes = [h2d(array).sync() for array in arrays]
        given.update(boxes=(boxes[0], boxes[0] if same else boxes[1]), keep=keep, factor=factor)
        kept.clear()
        found = d2h(operation.sync()).sync()
        between = np.float32(factor) * arrays[0]
        np.testing.assert_array_equal(found, between + (arrays[0] if same else arrays[1]))
        for box in kept:
            np.testing.assert_array_equal(d2h(box).sync(), between)


def test_boxes_that_the_program_holds_are_written() -> None:
    array = random(1000)
    kept: list[DeviceBox] = []
    operation = h2d(array).and_then(lambda box: scaled(2.0, box)).inspect(kept.append).and_then(rectified)
    result = operation.fused().to_host().sync()
    np.testing.assert_array_equal(d2h(kept[0]).sync(), 2 * array)
    np.testing.assert_array_equal(result, np.maximum(2 * array, 0))
    x, t = h2d(array).sync(), zeros(1000).sync()
    in_turn(scale(2.0, x, t), relu(t, x)).fused().sync()
    np.testing.assert_array_equal(d2h(t).sync(), 2 * array)
    np.testing.assert_array_equal(d2h(x).sync(), np.maximum(2 * array, 0))


def test_work_between_the_stages_moves_out_of_the_way_or_ends_the_chain() -> None:
    array = random(1000)
    before = h2d(array).and_then(lambda box: relu(box, zeros(1000)).last())  # the fill of a box that is overwritten
    operation = before.and_then(lambda box: scale(2.0, box, zeros(1000)).last()).to_host()
    assert operation.explain().splitlines()[0] == "launches: 2 -> 1"
    assert operation.explain().count("fill") == 3  # two before, and that of the result after
    np.testing.assert_array_equal(operation.fused().sync(), 2 * np.maximum(array, 0))
    copied = h2d(array).and_then(rectified).and_then(lambda box: dup(box).and_then(lambda copy: scaled(2.0, copy)))
    assert copied.explain().splitlines()[0] == "launches: 2 -> 2"
    np.testing.assert_array_equal(copied.fused().to_host().sync(), 2 * np.maximum(array, 0))


@kernel(block=(16, 16))
def halve_matrix(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    i = thread.index_2d(y.shape[1])
    e = y.get_mut(i)
    if e is not None:
        e.value = x[thread.index_2d_row(), thread.index_2d_col()] * f32(0.5)


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (33, 7), (100, 100)])
def test_kernels_over_matrices_fuse_with_each_other_and_with_those_over_rows_of_elements(shape: Any) -> None:
    array = random(shape)
    operation = (
        h2d(array)
        .and_then(lambda box: halve_matrix(box, empty(shape)).last())
        .and_then(lambda box: relu(box, empty(shape)).last())
        .and_then(lambda box: halve_matrix(box, empty(shape)).last())
    )
    assert operation.explain().splitlines()[0] == "launches: 3 -> 1"
    np.testing.assert_array_equal(operation.to_host().fused().sync(), np.maximum(array * np.float32(0.5), 0) / 2)


def test_a_fault_names_its_own_kernel_line_and_place() -> None:
    x = h2d(random(100)).sync()
    bad = value(x).and_then(rectified).and_then(lambda box: shifted(x, 9, box).last()).and_then(rectified)
    assert bad.explain().splitlines()[0] == "launches: 3 -> 1"
    for run in (bad.fused(), bad.graph(fuse=True).launch()):
        with pytest.raises(BoundsError) as caught:
            run.sync()
        error = caught.value
        assert (error.kernel, error.parameter, error.length) == ("shifted", "x", 100)
        assert error.index in range(100, 109)
        notes = "\n".join(error.__notes__)
        assert "in <oxide launch of shifted>" in notes
        assert "in stage 3 of a chain, and_then" in notes


def test_it_is_awaited_and_planned_and_part_of_others() -> None:
    array = random(1000)
    expected = chain(h2d(array)).to_host().sync()

    async def main() -> Any:
        return await chain(h2d(array)).fused().to_host()

    np.testing.assert_array_equal(trio.run(main), expected)
    both = oxide.planned(oxide.zip(chain(h2d(array)).fused(), chain(h2d(array)).fused())).sync()
    for box in both:
        np.testing.assert_array_equal(d2h(box).sync(), expected)


@pytest.mark.parametrize("at", range(1, 25))
def test_a_failure_at_any_call_leaks_nothing(at: int) -> None:
    array = random(1000)
    expected = chain(h2d(array)).to_host().sync()
    with use_driver(FailingDriver(step_driver())) as failing:
        for operation in (chain(h2d(array)).to_host().fused(), chain(h2d(array)).to_host()):
            failing.fail_call(at, DeviceError("refused"))
            with suppress(DeviceError):
                operation.graph(fuse=True).launch().sync()
            failing.forget()
            failing.fail_call(at, DeviceError("refused"))
            with suppress(DeviceError):
                operation.fused().sync()
            failing.forget()
            np.testing.assert_array_equal(operation.fused().sync(), expected)
        gc.collect()
        oxide.reclaim.drain()
        live = failing.inner.live_allocations
        assert (live.device_count, live.host_count) == (0, 0)


@pytest.mark.parametrize(
    ("run", "note"),
    [
        (lambda operation: operation.graph(), "in node 3 of the graph, relu"),
        (lambda operation: oxide.planned(operation).sync(), "in node 3 of the plan, relu"),
        (lambda operation: operation.fused().sync(), "in node 1 of the plan, scale+scale+relu+scale+add"),
    ],
)
def test_an_error_of_the_driver_names_the_node(run: Any, note: str) -> None:
    with use_driver(FailingDriver(step_driver())) as failing:
        operation = chain(value(h2d(random(100)).sync()))
        operation.sync()
        operation.fused().sync()
        failing.fail("launch", DeviceError("refused"), at=1 if "node 1" in note else 3)
        with pytest.raises(DeviceError, match="refused") as caught:
            run(operation)
        assert note in caught.value.__notes__


def test_in_place_kernels_fuse_too() -> None:
    array = random(1000)
    x, y = h2d(array).sync(), h2d(array).sync()
    operation = in_turn(relu(x, x), axpy(2.0, x, y), scale(3.0, y, y))
    assert operation.explain().splitlines()[0] == "launches: 3 -> 1"
    operation.fused().sync()
    rectified_ = np.maximum(array, 0)
    np.testing.assert_array_equal(d2h(x).sync(), rectified_)
    reference = 3.0 * (2.0 * rectified_.astype(np.float64) + array)
    found = d2h(y).sync().astype(np.float64)
    assert np.linalg.norm(found - reference) <= 1e-6 * np.linalg.norm(reference)


@pytest.mark.parametrize("as_operation", [False, True])
def test_a_function_keeps_the_numbers_that_it_captured_when_its_launch_was_built(*, as_operation: bool) -> None:
    x, y, total = h2d(np.ones(33, np.float32)).sync(), zeros(33).sync(), zeros(33).sync()
    source: Any = value(x) if as_operation else x
    launches = []
    for number, half in ((1.0, True), (2.0, False), (3.0, True)):
        launches.append(applied(lambda v: number * v if half else v, 0.5, source, y))  # noqa: B023
        launches.append(axpy(2.0, y, total))
    operation = oxide.zip(*launches)
    number = 100.0
    assert operation.explain().startswith("launches: 6 -> 1")
    graph = operation.graph(fuse=True)
    for run in (operation, operation.fused(), graph.launch(), operation.fused()):
        oxide.memcpy(total, np.zeros(33, np.float32)).sync()
        run.sync()
        np.testing.assert_array_equal(d2h(total).sync(), np.full(33, 5, np.float32))


@kernel(block=64)
def first_of(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    e = y.get_mut(thread.index_1d())
    if e is not None:
        e.value = x[0]


@pytest.mark.parametrize("launch", [lambda x, y: add(x, x, y), first_of], ids=["reads its elements", "writes alone"])
def test_launches_whose_results_nothing_needs(launch: Any) -> None:
    x = h2d(np.ones(33, np.float32)).sync()

    def both() -> DeviceOperation[None]:
        return oxide.zip(launch(x, empty(33)), launch(x, empty(33))).map(lambda _: None)

    assert both().explain().splitlines()[0] == "launches: 2 -> 1"
    both().fused().sync()
    both().graph(fuse=True).launch().sync()


# Bodies of loops and choices


@kernel(block=64)
def count_down(n: DisjointSlice[i32]) -> None:
    e = n.get_mut(thread.index_1d())
    if e is not None:
        e.value -= i32(1)


def doubled(x: DeviceBox) -> DeviceOperation[DeviceBox]:
    """Doubles a box by three launches and two temporaries."""
    half = scale(0.5, x, empty(x.shape)).last()
    return half.and_then(lambda a: add(a, x, empty(x.shape)).last()).and_then(lambda b: scale(4 / 3, b, x).last())


@pytest.mark.parametrize("times", [0, 1, 3])
def test_stages_in_the_body_of_a_loop_are_merged(times: int) -> None:
    x, n = h2d(np.arange(33, dtype=np.float32)).sync(), h2d(np.array([times], np.int32)).sync()

    def loop() -> DeviceOperation[Any]:
        return while_loop(n, doubled(x).and_then(lambda _: count_down(n)))

    explained = loop().explain().splitlines()
    assert explained[0] == "launches: 4 -> 2"
    assert explained[-4:] == ["  1 while", "    body:", "      1 scale+add+scale", "      2 count_down"]
    graph = loop().graph(fuse=True)
    assert graph.summary() == "2 launches, 0 copies, 1 loop"
    assert (loop().graph().memory().after, graph.memory().after) == (2 * 33 * 4, 0)
    graph.launch().sync()
    np.testing.assert_allclose(d2h(x).sync(), np.arange(33) * 2.0**times, rtol=1e-6)


def test_what_one_iteration_leaves_for_the_next_is_written() -> None:
    """The sum is the graph's own, and no node uses it after the loop."""
    x, n = zeros(33).sync(), h2d(np.array([3], np.int32)).sync()
    one = h2d(np.ones(33, np.float32)).sync()

    def iteration(total: DeviceBox) -> DeviceOperation[Any]:
        return add(total, one, total).last().and_then(lambda t: scale(2.0, t, x)).and_then(lambda _: count_down(n))

    graph = zeros(33).and_then(lambda total: while_loop(n, iteration(total))).graph(fuse=True)
    assert graph.summary() == "2 launches, 0 copies, 1 loop"
    graph.launch().sync()
    np.testing.assert_array_equal(d2h(x).sync(), np.full(33, 6, np.float32))


@pytest.mark.parametrize("flag", [0, 1])
def test_stages_in_branches_are_merged_and_yield_what_the_program_holds(flag: int) -> None:
    x, y = (h2d(np.full(33, number, np.float32)).sync() for number in (1, 10))
    chosen = h2d(np.array([flag], np.int32)).sync()

    def branch(box: DeviceBox) -> DeviceOperation[DeviceBox]:
        half = scale(0.5, box, empty(33)).last()
        return half.and_then(lambda a: add(a, box, empty(33)).last())

    graph = cond(chosen, branch(x), branch(y)).graph(fuse=True)
    result = graph.take_output()
    assert graph.summary().startswith("2 launches")
    for number in (1, 2):
        graph.launch().sync()
        expected = number * (1.5 if flag else 15)
        np.testing.assert_array_equal(d2h(result).sync(), np.full(33, expected, np.float32))
        for box in (x, y):
            add(box, box, box).sync()


def test_memory_is_shared_with_temporaries_in_the_body_of_a_loop() -> None:
    x, n = h2d(np.arange(33, dtype=np.float32)).sync(), h2d(np.array([2], np.int32)).sync()
    loop = while_loop(n, doubled(x).and_then(lambda _: count_down(n)))
    graph = doubled(x).and_then(lambda _: loop).and_then(lambda _: doubled(x)).graph()
    memory = graph.memory()
    assert (memory.before, memory.after) == (
        6 * 33 * 4,
        4 * 33 * 4,
    )  # the zeros for the loop run beside what is before it
    graph.launch().sync()
    np.testing.assert_allclose(d2h(x).sync(), np.arange(33) * 16.0, rtol=1e-5)


@kernel(block=64)
def plus_table(table: Slice2[f32], x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        i = index.get()
        element.value = x[i] + table[i % table.shape[0], (i // table.shape[0]) % table.shape[1]]


@kernel(block=64)
def of_two_tables(one: Slice2[f32], other: Slice2[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = f32(10 * one.shape[1] + other.shape[1])


def test_an_array_of_two_shapes_is_not_taken_for_one() -> None:
    table, x = h2d(np.arange(24, dtype=np.float32).reshape(4, 6)).sync(), h2d(np.zeros(24, np.float32)).sync()

    def recipe() -> Any:
        first = plus_table(table, x, zeros(24)).last()
        return first.and_then(lambda box: plus_table(table.reshape(6, 4), box, zeros(24)).last()).and_then(d2h)

    expected = recipe().sync()
    np.testing.assert_array_equal(recipe().fused().sync(), expected)
    graph = recipe().graph(fuse=True)
    graph.launch().sync()
    np.testing.assert_array_equal(graph.take_output(), expected)
    assert "an array has two shapes" in recipe().explain()
    both = of_two_tables(table, table.reshape(12, 2), zeros(24)).last().and_then(d2h)
    assert (both.fused().sync() == 62).all()
