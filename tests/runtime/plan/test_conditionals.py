"""``while_loop`` and ``cond``: which bodies run and how often, what they yield, their faults and their errors."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from benchmarks.conditional import System, solved
from oxide import (
    Arc,
    ArgumentError,
    BoundsError,
    CudaGraph,
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    DriverError,
    GraphError,
    Slice,
    cond,
    d2h,
    dup,
    f64,
    full,
    h2d,
    i32,
    kernel,
    memcpy,
    thread,
    tile,
    unzip,
    value,
    while_loop,
    with_context,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.host.environment import word
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.operations import conditional
from oxide.testing import DelegatingDriver, FailingDriver, RecordingDriver, seeded_driver, step_driver, use_driver

SIZE = 6


@kernel(block=32)
def count_down(n: DisjointSlice[i32]) -> None:
    element = n.get_mut(thread.index_1d())
    if element is not None:
        element.value -= i32(1)


@kernel(block=32)
def set_to(n: DisjointSlice[i32], x: i32) -> None:
    element = n.get_mut(thread.index_1d())
    if element is not None:
        element.value = x


@kernel(block=32)
def add_one(y: DisjointSlice[f64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value += 1.0


@kernel(block=32)
def add_into(x: Slice[f64], y: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = element.value + x[index.get()]


@kernel(block=32)
def halve(y: DisjointSlice[f64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value *= 0.5


@kernel(block=32)
def collatz(x: DisjointSlice[i32], odd: DisjointSlice[i32], going: DisjointSlice[i32]) -> None:
    index = thread.index_1d()
    element, is_odd, goes_on = x.get_mut(index), odd.get_mut(index), going.get_mut(index)
    if element is not None and is_odd is not None and goes_on is not None:
        is_odd.value = element.value & i32(1)
        goes_on.value = i32(1) if element.value != i32(1) else i32(0)


@kernel(block=32)
def triple(x: DisjointSlice[i32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = i32(3) * element.value + i32(1)


@kernel(block=32)
def half(x: DisjointSlice[i32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value // i32(2)


@kernel(block=32)
def read_at(n: Slice[i32], x: Slice[f64], y: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[i32(3) - n[0]]


def flag(number: int) -> DeviceBox:
    return h2d(np.array([number], np.int32)).sync()


def numbers(box: Any) -> list[Any]:
    found: list[Any] = d2h(box).sync().tolist()
    return found


def by_sync(operation: DeviceOperation[Any]) -> Any:
    return operation.sync()


def by_await(operation: DeviceOperation[Any]) -> Any:
    async def main() -> Any:
        return await operation

    return trio.run(main)


def under_asyncio(operation: DeviceOperation[Any]) -> Any:
    async def main() -> Any:
        return await operation

    return asyncio.run(main())


def as_graph(operation: DeviceOperation[Any]) -> Any:
    graph = operation.graph()
    graph.launch().sync()
    return graph.take_output()


def in_a_chain(operation: DeviceOperation[Any]) -> Any:
    return zeros(1).and_then(lambda _: operation).map(lambda result: result).sync()


def in_a_zip(operation: DeviceOperation[Any]) -> Any:
    return as_graph(oxide.zip(full(SIZE, 1.0), operation, full(SIZE, 2.0)))[1]


def in_a_scope(operation: DeviceOperation[Any]) -> Any:
    with CudaGraph.scope(oxide.devices()[0].new_stream()) as scope:
        result = scope.record(operation)
    scope.graph.launch().sync()
    return result


class OldDriver(DelegatingDriver):
    """A driver without conditionals."""

    def conditionals(self, device: int) -> str | None:
        return "the driver is old"


WAYS = [by_sync, by_await, under_asyncio, as_graph, in_a_chain, in_a_zip]
every_way = pytest.mark.parametrize("run", WAYS)


# Loops


@pytest.mark.parametrize("times", [0, 1, 2, 50])
@pytest.mark.parametrize("run", [*WAYS, in_a_scope])
def test_a_loop_runs_its_body_while_the_flag_is_not_0(run: Any, times: int) -> None:
    n, y = flag(times), zeros(SIZE, f64).sync()
    result = run(while_loop(n, oxide.zip(count_down(n), add_one(y))))
    assert numbers(y) == [times] * SIZE
    assert numbers(n) == [0]
    assert result[0][0] is n
    assert result[1][0] is y


def test_a_graph_with_a_loop_follows_its_flag_at_each_launch() -> None:
    n, y = flag(0), zeros(SIZE, f64).sync()
    graph = while_loop(n, count_down(n).and_then(lambda _: add_one(y))).graph()
    for number, times in enumerate((3, 0, 7)):
        graph.update(memcpy(n, np.array([times], np.int32)))
        graph.launch().sync()
        assert numbers(y)[0] == (3, 3, 10)[number]


@every_way
def test_boxes_that_a_body_makes_hold_its_last_iteration_or_zeros(run: Any) -> None:
    for times in (0, 1, 3):
        n, y = flag(times), full(SIZE, 5.0, f64).sync()
        body = add_one(y).and_then(lambda _: oxide.zip(dup(y), full(2, 7.0, f64), count_down(n)))  # noqa: B023
        copied, filled, _ = run(while_loop(n, body))
        assert numbers(copied) == [5.0 + times if times else 0.0] * SIZE
        assert numbers(filled) == [7.0 if times else 0.0] * 2


@every_way
def test_each_iteration_begins_with_the_arrays_that_its_body_uploads(run: Any) -> None:
    n, y = flag(3), zeros(SIZE, f64).sync()
    body = h2d(np.arange(SIZE) * 1.0).and_then(
        lambda x: add_one(x).and_then(lambda _: oxide.zip(add_into(x, y), count_down(n)))
    )
    run(while_loop(n, body))
    assert numbers(y) == [3 * (number + 1) for number in range(SIZE)]


@every_way
def test_a_loop_in_a_loop_begins_anew_each_time(run: Any) -> None:
    outer, inner, y = flag(4), flag(0), zeros(SIZE, f64).sync()
    body = set_to(inner, 3).and_then(
        lambda _: while_loop(inner, oxide.zip(count_down(inner), add_one(y))).and_then(lambda _: count_down(outer))
    )
    run(while_loop(outer, body))
    assert numbers(y) == [12] * SIZE


@every_way
def test_branches_of_a_body_that_share_nothing_and_those_that_do(run: Any) -> None:
    n, x, y, z = flag(5), full(SIZE, 1.0, f64).sync(), zeros(SIZE, f64).sync(), zeros(SIZE, f64).sync()
    run(while_loop(n, oxide.zip(add_one(x), add_one(y), add_into(x, z), add_into(y, z), count_down(n))))
    assert numbers(x) == [6] * SIZE
    assert numbers(z) == [sum(range(2, 7)) + sum(range(1, 6))] * SIZE


@every_way
def test_the_flag_may_be_an_operation_an_arc_or_a_part_of_a_box(run: Any) -> None:
    row, y = h2d(np.array([0, 3, 9], np.int32)).sync(), zeros(SIZE, f64).sync()
    run(while_loop(row[1:2], oxide.zip(count_down(row[1:2]), add_one(y))))
    assert numbers(row) == [0, 0, 9]
    assert numbers(y) == [3] * SIZE
    arc = Arc(row[2])
    run(while_loop(arc, count_down(row[2:3])))
    assert numbers(row) == [0, 0, 0]
    made: list[DeviceBox] = []
    body = with_context(lambda _: oxide.zip(count_down(made[-1]), add_one(y)))
    run(while_loop(h2d(np.array([4], np.int32)).inspect(made.append), body))
    assert numbers(y) == [7] * SIZE


def test_an_operation_runs_again_with_boxes_of_its_own() -> None:
    n = flag(2)
    operation = while_loop(n, oxide.zip(count_down(n), full(SIZE, 1.0)))
    (_, first), (_, second) = operation.sync(), operation.sync()
    assert first is not second
    assert numbers(first) == [1] * SIZE
    assert numbers(second) == [0] * SIZE


# Choices


@every_way
@pytest.mark.parametrize("number", [1, 0, -7])
def test_the_flag_chooses_the_branch(run: Any, number: int) -> None:
    f, x, y = flag(number), zeros(SIZE, f64).sync(), zeros(SIZE, f64).sync()
    assert run(cond(f, add_one(x))) is None
    assert numbers(x) == [bool(number)] * SIZE
    result = run(cond(f, add_one(x).first(), add_one(y).first()))
    assert numbers(result) == (numbers(x) if number else numbers(y)) == [2 if number else 1] * SIZE
    assert result is not x
    assert result is not y


@every_way
@pytest.mark.parametrize("number", [1, 0])
def test_a_box_that_both_branches_yield_is_the_result_itself(run: Any, number: int) -> None:
    f, x = flag(number), full(SIZE, 10.0, f64).sync()
    result = run(cond(f, add_one(x), value(x).map(lambda box: (box,))))
    assert result[0] is x
    assert numbers(x) == [10 + number] * SIZE


@every_way
def test_results_of_branches_are_merged_in_form(run: Any) -> None:
    f, x = flag(0), h2d(np.arange(12.0)).sync()
    arc = Arc(x)
    other = dup(x).and_then(lambda box: add_one(box).first()).sync()
    then = value((arc, x.reshape(3, 4), (x[2:4],), 7, "a", x.partition(4)))
    otherwise = value((Arc(other), other.reshape(3, 4), (other[::6],), 7, "a", other.partition(4)))
    found = run(cond(f, then, otherwise))
    assert isinstance(found[0], Arc)
    assert numbers(found[0].value) == [number + 1 for number in range(12)]
    assert found[1].shape == (3, 4)
    assert numbers(found[2][0]) == [1, 7]
    assert found[3:5] == (7, "a")
    assert found[5].tile_shape == (4,)
    assert numbers(found[5].box) == numbers(found[0].value)
    same = run(cond(f, value((arc, x.partition(4), None)), value((Arc(x), x.partition(4), None))))
    assert same[0] is arc
    assert same[1].box is x


@every_way
def test_collatz_with_choices_in_a_loop(run: Any) -> None:
    x, odd, going, steps = flag(27), flag(0), flag(1), zeros(1, f64).sync()
    step = oxide.zip(cond(odd, triple(x), half(x)), add_one(steps)).and_then(lambda _: collatz(x, odd, going))
    run(collatz(x, odd, going).and_then(lambda _: while_loop(going, step)))
    assert numbers(x) == [1]
    assert numbers(steps) == [111]


def test_what_an_unzip_makes_in_a_body_stays_in_the_body() -> None:
    """Its work may never run there, so a use behind it needs work of its own."""
    f, x = flag(0), full(SIZE, 3.0, f64).sync()
    one, other = unzip(dup(x).map(lambda box: (box, box)), 2)
    graph = oxide.zip(cond(f, one.and_then(add_one)), other).graph()
    graph.launch().sync()
    assert numbers((graph.take_output() or ())[1]) == [3] * SIZE


def test_a_shared_operation_runs_once_for_all_iterations() -> None:
    n, y = flag(3), zeros(SIZE, f64).sync()
    calls: list[int] = []
    source = full(SIZE, 2.0, f64).inspect(lambda _: calls.append(1)).shared()
    while_loop(n, oxide.zip(add_into(source, y), count_down(n))).sync()
    assert numbers(y) == [6] * SIZE
    assert calls == [1]
    inside = while_loop(n, count_down(n)).shared()  # it runs outside of the graph that is captured
    memcpy(n, np.array([2], np.int32)).sync()
    graph = oxide.zip(inside, add_one(y)).graph()
    assert numbers(n) == [0]
    graph.launch().sync()
    assert numbers(y) == [7] * SIZE


@pytest.mark.parametrize("width", [1, 7, 24])
@every_way
def test_conjugate_gradients_solve_what_numpy_solves(run: Any, width: int) -> None:
    b = np.random.default_rng(width).standard_normal(width * width)
    expected, _ = solved(b, width, 1e-12)
    system = System(b, width, 1e-12)
    run(system.solution())
    np.testing.assert_allclose(d2h(system.x).sync(), expected, rtol=1e-9, atol=1e-9)
    assert numbers(system.going) == [0]


# Faults and errors


def fault_of(operation: Callable[[], Any]) -> BoundsError:
    with pytest.raises(BoundsError) as caught:
        operation()
    return caught.value


def _fail_in_the_third_iteration(run: Any = by_sync) -> None:
    n, x, y = flag(3), zeros(3, f64).sync(), zeros(1, f64).sync()
    fault = fault_of(lambda: run(while_loop(n, count_down(n).and_then(lambda _: read_at(n, x, y)))))
    assert (fault.kernel, fault.index) == ("read_at", 3)
    assert numbers(n) == [0]


@pytest.mark.parametrize("run", [by_sync, by_await, as_graph])
def test_a_fault_in_an_iteration_names_kernel_index_line_and_place_and_ends_the_loop(run: Any) -> None:
    n, x, y = flag(10), zeros(3, f64).sync(), zeros(1, f64).sync()
    # The index is 3 - n: -7 at once, which ends the loop although nothing counts down any more.
    fault = fault_of(lambda: run(while_loop(n, read_at(n, x, y).and_then(lambda _: count_down(n)))))
    assert (fault.kernel, fault.parameter, fault.index, fault.length) == ("read_at", "x", -7, 3)
    assert fault.file == __file__
    lines = open(__file__, encoding="utf-8").read().splitlines()  # noqa: SIM115
    assert lines[fault.line - 1].strip() == "element.value = x[i32(3) - n[0]]"
    assert "in the body of a while_loop" in fault.__notes__
    assert numbers(n) == [9]
    _fail_in_the_third_iteration(run)


def test_a_kernel_that_fails_before_it_ends_the_loop_does_not_hang_it() -> None:
    n, x, y = flag(10), zeros(3, f64).sync(), zeros(1, f64).sync()
    endless = while_loop(n, oxide.zip(read_at(n, x, y), set_to(n, 10)))
    graph = endless.graph()
    for _ in range(3):
        assert fault_of(lambda: graph.launch().sync()).index == -7
        assert fault_of(endless.sync).index == -7


@every_way
def test_a_fault_in_a_branch_says_which(run: Any) -> None:
    n, x, y = flag(10), zeros(3, f64).sync(), zeros(1, f64).sync()
    notes = fault_of(lambda: run(cond(flag(0), add_one(y), read_at(n, x, y).first().map(lambda _: (y,))))).__notes__
    assert "in branch otherwise of a cond" in notes


@every_way
def test_a_fault_before_a_cond_does_not_end_it(run: Any) -> None:
    """As it ends no kernel that comes after it."""
    n, x, y, z = flag(10), zeros(3, f64).sync(), zeros(1, f64).sync(), zeros(1, f64).sync()
    assert fault_of(lambda: run(oxide.zip(read_at(n, x, y), cond(flag(1), add_one(z))))).index == -7
    oxide.reclaim.drain()
    assert numbers(z)[0] >= 1


def test_flags_that_are_not_one_i32_are_refused_before_anything_runs() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        x = zeros(1, f64).sync()
        two = zeros(2, i32).sync()
        driver.clear()
        for make, body in ((while_loop, add_one(x)), (cond, add_one(x))):
            for given, found in (
                (x, "not of 1 float64"),
                (two, "not of 2 int32"),
                (zeros(2, i32), "not of 2 int32"),
                (1, "not int; h2d"),
                (np.zeros(1, np.int32), "not ndarray; h2d"),
                ((two, two), "not tuple; first"),
            ):
                with pytest.raises(ArgumentError, match=rf"{make.__name__}: the flag is a box of one i32, {found}"):
                    make(given, body)  # type: ignore[operator]
        assert not driver.submissions
        for late in (value(x).map(lambda box: box), value((two,)).map(lambda boxes: boxes)):
            with pytest.raises(ArgumentError, match="while_loop: the flag is a box of one i32"):
                while_loop(late, add_one(x)).sync()
        assert not driver.submissions


def test_what_is_not_an_operation_is_refused() -> None:
    f = flag(1)
    with pytest.raises(TypeError, match=r"while_loop runs operations, not DeviceBox"):
        while_loop(f, f)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"cond runs operations, not function; call it, or wrap it: with_context"):
        cond(f, lambda: value(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"cond runs operations, not NoneType"):
        cond(f, None, value(1))  # type: ignore[arg-type]


@every_way
def test_branches_with_different_results_are_refused(run: Any) -> None:
    f = flag(1)
    for then, otherwise, kind, words in (
        (full(4, 1.0), full(5, 1.0), ValueError, "full of 4 float32> is a box of 4 float32, .*full of 5 float32> is a"),
        (full(4, 1.0), full(4, 1.0, f64), TypeError, "is a box of 4 float32, .* is a box of 4 float64"),
        (full(4, 1.0), value(None), TypeError, "is a box of 4 float32, .* is None"),
        (value(1), value(2), ValueError, "is 1, .* is 2"),
        (value((f,)), value((f, f)), ValueError, "is a tuple of 1, .* is a tuple of 2"),
        (value((f, (f, 1))), value((f, (f, f))), TypeError, r"the result\[1\]\[1\] of .* is 1, .* is a box of 1 int32"),
        (value([1]), value([1]), TypeError, "is of type list, "),
        (value(f.partition(1)), value(full(4, 1).sync().partition(2)), ValueError, r"Partition in tiles of \(1,\)"),
    ):
        with pytest.raises(kind, match=words):
            run(cond(f, then, otherwise))


@every_way
def test_what_a_body_cannot_hold_is_refused_with_advice(run: Any) -> None:
    n, x = flag(3), zeros(SIZE, f64).sync()
    with pytest.raises(GraphError, match=r"d2h cannot be part of the body of a while_loop: .*and_then\(d2h\)"):
        run(while_loop(n, count_down(n).first().and_then(d2h)))
    with pytest.raises(GraphError, match=r"d2h cannot be part of branch then of a cond"):
        run(cond(n, d2h(x)))
    with pytest.raises(GraphError, match="memcpy from a host array cannot be captured"):
        run(while_loop(n, oxide.zip(count_down(n), memcpy(x, np.zeros(SIZE)))))
    graph = add_one(x).graph()
    with pytest.raises(GraphError, match="launch of a graph cannot be captured"):
        run(cond(n, graph.launch()))
    with pytest.raises(ValueError, match=r"does not write the flag, .* never end"):
        run(while_loop(n, add_one(x)))
    assert numbers(n) == [3]
    assert numbers(x) == [0] * SIZE


def test_a_scope_takes_a_loop_that_makes_no_boxes() -> None:
    n, y = flag(3), zeros(SIZE, f64).sync()
    with CudaGraph.scope(oxide.devices()[0].new_stream()) as scope:
        scope.record(add_one(y))
        with pytest.raises(GraphError, match=r"cannot be allocated inside CudaGraph\.scope"):
            scope.record(while_loop(n, oxide.zip(add_one(y), dup(y), count_down(n))))
        with pytest.raises(ValueError, match="does not write the flag"):
            scope.record(while_loop(n, add_one(y)))
        scope.record(while_loop(n, oxide.zip(add_one(y), count_down(n))))
    scope.graph.launch().sync()
    assert numbers(y) == [4] * SIZE


# Drivers without conditionals


def test_where_the_driver_has_no_conditionals_a_run_decides_on_the_host_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conditional, "_warned", set())
    with use_driver(OldDriver(CpuDriver())) as driver:
        with pytest.warns(
            RuntimeWarning, match="reads its flag back to the host on cpu:0: the driver is old"
        ) as warned:
            for run in (by_sync, by_await, in_a_chain):
                test_a_loop_runs_its_body_while_the_flag_is_not_0(run, 0)
                test_a_loop_runs_its_body_while_the_flag_is_not_0(run, 3)
                test_boxes_that_a_body_makes_hold_its_last_iteration_or_zeros(run)
                test_a_loop_in_a_loop_begins_anew_each_time(run)
                test_the_flag_chooses_the_branch(run, 1)
                test_the_flag_chooses_the_branch(run, 0)
                test_collatz_with_choices_in_a_loop(run)
                test_branches_with_different_results_are_refused(run)
                test_what_a_body_cannot_hold_is_refused_with_advice(run)
        assert len(warned) == 1
        _fail_in_the_third_iteration()
        n = flag(3)
        with pytest.raises(GraphError, match=r"while_loop cannot be captured on cpu:0: the driver is old\. Update the"):
            while_loop(n, count_down(n)).graph()
        with pytest.raises(GraphError, match="cond cannot be captured"):
            cond(n, count_down(n)).graph()
        trio.run(oxide.prepare, while_loop(n, count_down(n)))
        del n
        gc.collect()
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == 0


def test_interpreted_kernels_run_in_loops_that_the_host_drives() -> None:
    with use_driver(CpuDriver()):
        n, x, y = flag(3), zeros(3, f64).sync(), zeros(1, f64).sync()
        while_loop(n, oxide.zip(count_down.interpret(n), cond(n, add_one.interpret(y).last(), dup(y)))).sync()
        assert numbers(n) == [0]
        assert numbers(y) == [2]
        memcpy(n, np.array([3], np.int32)).sync()
        loop = while_loop(n, oxide.zip(count_down.interpret(n), read_at.interpret(n, x, y)))
        fault = fault_of(loop.sync)
        assert fault.index == 3
        assert numbers(n) == [0]
        with pytest.raises(oxide.LaunchError, match="count_down cannot be interpreted in a graph"):
            while_loop(n, count_down.interpret(n)).graph()


# Nothing is left behind


def test_the_memory_of_a_run_is_freed_when_its_result_is_dropped() -> None:
    with use_driver(step_driver()) as driver:
        n, y = flag(3), zeros(SIZE, f64).sync()
        before = driver.live_allocations.device_count
        operation = while_loop(n, oxide.zip(add_one(y), dup(y), count_down(n)))
        result = operation.sync()
        del result, operation
        gc.collect()
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == before


class InjectedError(DriverError):
    """What a failing driver raises in these tests."""


def _in_a_graph(n: DeviceBox, y: DeviceBox) -> None:
    body = oxide.zip(add_one(y), cond(n, dup(y), full(SIZE, 1.0, f64)), h2d(np.zeros(2)), count_down(n))
    graph = while_loop(n, body).graph()
    graph.update(memcpy(n, np.array([2], np.int32)))
    graph.launch().sync()
    graph.close()


def _by_itself(n: DeviceBox, y: DeviceBox) -> None:
    memcpy(n, np.array([2], np.int32)).sync()
    body = oxide.zip(add_one(y), cond(n, dup(y), full(SIZE, 1.0, f64)), h2d(np.zeros(2)), count_down(n))
    while_loop(n, body).sync()


@pytest.mark.parametrize("program", [_in_a_graph, _by_itself])
def test_every_driver_call_that_fails_gives_one_error_and_leaves_nothing(program: Any) -> None:
    failing = FailingDriver(step_driver())
    with use_driver(RecordingDriver(failing)) as driver:
        n, y = flag(0), zeros(SIZE, f64).sync()
        program(n, y)
        oxide.reclaim.drain()
        driver.clear()
        program(n, y)
        calls = len(driver.calls)
        assert {"begin_conditional", "end_conditional", "conditionals"} <= {call.method for call in driver.calls}
        gc.collect()
        oxide.reclaim.drain()
        counted = ("allocations", "host_allocations", "graphs")
        before = {name: driver.outstanding()[name] for name in counted}
        raised = 0
        for number in range(1, calls + 1):
            failing.fail_call(number, InjectedError(1, "CUDA_ERROR_INVALID_VALUE"))
            try:
                program(n, y)
            except InjectedError:
                raised += 1
            driver.clear()  # a call that raised keeps what its frames hold
            failing.forget()
            gc.collect()
            oxide.reclaim.drain()
            assert {name: driver.outstanding()[name] for name in counted} == before, f"call {number}"
        assert raised > calls // 2
        memcpy(y, np.zeros(SIZE)).sync()
        program(n, y)
        assert numbers(y) == [2] * SIZE
        oxide.reclaim.drain()  # a sweep ends after 2 ms
        assert current_runtime().reclaimer.pending() == (0, 0, 0, 0)


@pytest.mark.skipif(word("OXIDE_INTERPRET", ("1",)) is not None, reason="the host drives loops of interpreted kernels")
def test_a_run_that_is_cancelled_leaves_nothing() -> None:
    with use_driver(CpuDriver()) as driver:
        n, y = flag(20_000), zeros(SIZE, f64).sync()
        trio.run(_cancelled, while_loop(n, oxide.zip(add_one(y), count_down(n))))
        assert numbers(y) == [20_000] * SIZE  # it went on without its task
        del n, y
        gc.collect()
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == 0


async def _cancelled(operation: DeviceOperation[Any]) -> None:
    with trio.move_on_after(0.01) as scope:
        await operation
    assert scope.cancelled_caught


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_under_a_seed_loops_on_several_streams_keep_their_order(seed: int) -> None:
    with use_driver(seeded_driver(seed)):
        n, m, y = flag(3), flag(2), zeros(SIZE, f64).sync()
        streams = [oxide.devices()[0].new_stream() for _ in range(2)]
        while_loop(n, oxide.zip(add_one(y), count_down(n))).async_on(streams[0])
        add_into(full(SIZE, 10.0, f64), y).async_on(streams[0])
        while_loop(m, oxide.zip(halve(y), count_down(m))).async_on(streams[1])
        result = d2h(y).async_on(streams[0])
        streams[0].synchronize()
        assert result.tolist() == [13 / 4] * SIZE


@tile.kernel
def doubled(z: tile.Partition[f64, 1], x: tile.Tensor[f64, 1]):
    z.store(tile.load_like(x, z) + tile.load_like(x, z))


@every_way
def test_tile_kernels_run_in_bodies(run: Any) -> None:
    n, x, y = flag(3), full(8, 1.0, f64).sync(), zeros(8, f64).sync()
    body = doubled(y.partition(4), x).and_then(lambda _: oxide.zip(memcpy(x, y), count_down(n)))
    run(while_loop(n, body))
    assert numbers(x) == [8] * 8


def test_prepare_compiles_the_kernels_of_bodies() -> None:
    n = flag(3)

    async def main() -> None:
        await oxide.prepare(while_loop(n, count_down(n)), cond(n, count_down(n)))

    trio.run(main)
    assert numbers(n) == [3]
