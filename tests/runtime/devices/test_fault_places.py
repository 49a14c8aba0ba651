"""A kernel's fault is found when the run has completed; its notes say which kernel, and where in the operation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import (
    BoundsError,
    DisjointSlice,
    Slice,
    f32,
    h2d,
    kernel,
    ones,
    thread,
    u32,
    value,
    with_context,
    zeros,
)

TABLE = np.arange(100, dtype=np.float32)


@kernel(block=32)
def pick(table: Slice[f32], number: u32, x: DisjointSlice[f32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = table[number]


def refuse(number: int, x: Any) -> Any:
    """A launch that fails where there is no such number."""
    return pick(h2d(TABLE), number, x)


def run_by_sync(operation: oxide.DeviceOperation[Any]) -> None:
    operation.sync()


def run_by_await(operation: oxide.DeviceOperation[Any]) -> None:
    async def main() -> None:
        await operation

    trio.run(main)


def run_by_async_on(operation: oxide.DeviceOperation[Any]) -> None:
    stream = oxide.devices()[0].new_stream()
    operation.async_on(stream)
    stream.synchronize()


def run_as_graph(operation: oxide.DeviceOperation[Any]) -> None:
    operation.graph().launch().sync()


def notes_of(operation: oxide.DeviceOperation[Any], run: Callable[[Any], None]) -> list[str]:
    with pytest.raises(BoundsError) as raised:
        run(operation)
    return list(raised.value.__notes__)


everywhere = pytest.mark.parametrize("run", [run_by_sync, run_by_await, run_by_async_on, run_as_graph])


@everywhere
def test_the_stage_of_a_chain_is_named_with_its_function(run: Callable[[Any], None]) -> None:
    def second(box: Any) -> Any:
        return refuse(500, box)

    notes = notes_of(ones(8).map(lambda box: box).and_then(second).last().map(lambda box: box), run)
    assert notes[0] == "in <oxide launch of pick>"
    assert notes[1].startswith("in stage 3 of a chain, and_then(test_the_stage_of_a_chain_is_named_with_its_function")
    assert notes[1].endswith(f"second at {__file__}:{second.__code__.co_firstlineno})")
    assert not any("stage" in note for note in notes[2:])


def test_of_several_launches_of_a_kernel_the_one_that_failed_is_named() -> None:
    for wrong in range(4):
        numbers = [500 if stage == wrong else stage for stage in range(4)]
        chain: oxide.DeviceOperation[Any] = zeros(8)
        for number in numbers:
            chain = chain.and_then(lambda box, number=number: refuse(number, box).last())
        assert f"in stage {wrong + 2} of a chain" in notes_of(chain, run_by_sync)[1]


def test_parts_of_a_zip_and_nested_operations_are_named_innermost_first() -> None:
    def inside(box: Any) -> Any:
        return oxide.zip(value(1), with_context(lambda _: refuse(500, box)))

    operation = oxide.zip(refuse(1, zeros(8)), ones(8).and_then(inside), refuse(2, zeros(8)))
    notes = notes_of(operation, run_by_sync)
    found = [note.split("(")[0] for note in notes]
    assert found[:5] == [
        "in <oxide launch of pick>",
        "in with_context",
        "in part 2 of a zip of 2",
        "in stage 2 of a chain, and_then",
        "in part 2 of a zip of 3",
    ]


def test_what_comes_after_a_chain_is_not_taken_for_a_part_of_it() -> None:
    operation = oxide.zip(zeros(8).and_then(lambda box: refuse(1, box)), refuse(500, zeros(8)))
    notes = notes_of(operation, run_by_sync)
    assert notes[:2] == ["in <oxide launch of pick>", "in part 2 of a zip of 2"]
    for argument in (
        zeros(8).and_then(value),
        oxide.zip(zeros(8), value(1)).first(),
        with_context(lambda _: zeros(8)),
    ):
        (note,) = notes_of(refuse(500, argument), run_by_sync)
        assert note.startswith("found when <oxide launch of pick> had run on ")


def test_a_graph_that_launches_a_kernel_at_two_places_names_both_and_where_it_was_launched() -> None:
    graph = zeros(8).and_then(lambda box: refuse(1, box).last()).and_then(lambda box: refuse(500, box)).graph()
    notes = notes_of(value(0).and_then(lambda _: graph.launch()), run_by_sync)
    assert "stage 2 of a chain" in notes[1]
    assert "; or in stage 3 of a chain" in notes[1]
    assert "in stage 2 of a chain" in notes[2]


def test_a_submission_takes_records_for_its_launches_eight_at_a_time_and_gives_them_back() -> None:
    from oxide.driver.cpu import CpuDriver
    from oxide.testing import use_driver

    with use_driver(CpuDriver()):
        box = zeros(8).sync()
        stream = oxide.devices()[0].new_stream()

        class Many(oxide.DeviceOperation[None]):
            def execute(self, context: Any) -> None:
                for number in range(90):
                    refuse(number, box).run(context)

        Many().async_on(stream)
        records = oxide.runtime.devices.runtime.current_runtime().fault_records
        assert len(records._returned) == 64 - 12
        stream.synchronize()
        assert len(records._returned) == 64


@kernel(block=32)
def count_up(x: DisjointSlice[f32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value + f32(1)


def test_a_kernel_that_can_report_no_fault_takes_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    from oxide.driver.cpu import CpuDriver
    from oxide.driver.cpu.code import CpuFunction
    from oxide.testing import RecordingDriver, use_driver

    monkeypatch.setattr(CpuFunction, "reports", False)
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        box = zeros(8).sync()
        count_up(box).sync()
        count_up(value(box).map(lambda same: same)).sync()
        graph = count_up(box).and_then(lambda boxes: count_up(*boxes)).graph()
        graph.launch().sync()
        np.testing.assert_array_equal(oxide.d2h(box).sync(), [4.0] * 8)
        assert driver.count("report") == 0
        assert not oxide.runtime.devices.runtime.current_runtime().fault_records._returned


@pytest.mark.parametrize("between", ["graph", "shared", "update"])
def test_of_two_faults_the_first_is_raised_whatever_it_came_by(between: str) -> None:
    table, box = h2d(TABLE).sync(), zeros(8).sync()

    def first() -> oxide.DeviceOperation[Any]:
        if between == "shared":
            return pick(table, 200, box).shared()
        if between == "graph":
            return pick(table, 200, box).graph().launch()
        graph = pick(table, 1, box).graph()
        graph.update(pick(table, 200, box))
        return graph.launch()

    part = first()
    chain = pick(table, 1, box).and_then(lambda _: part).and_then(lambda _: pick(table, 300, box))
    with pytest.raises(BoundsError) as caught:
        chain.sync()
    assert caught.value.index == 200


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [0, 1, 7, 8, 12])
def test_of_a_kernel_launched_at_many_places_the_one_that_failed_is_named_and_the_next_run_is_clean(wrong: int) -> None:
    table, box = h2d(TABLE).sync(), zeros(8).sync()

    def launches(number: int) -> oxide.DeviceOperation[Any]:
        operation: oxide.DeviceOperation[Any] = value(0)
        for stage in range(13):
            limit = number if stage == wrong else stage
            operation = operation.and_then(lambda _, limit=limit: pick(table, limit, box))  # type: ignore[misc]
        return operation

    for _ in range(70):  # more slots than a page has
        assert f"stage {wrong + 2} of a chain" in notes_of(launches(500), run_by_sync)[1]
        launches(5).sync()


@kernel(block=32)
def pick_double(table: Slice[f32], number: u32, x: DisjointSlice[f32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = f32(2) * table[number]


@kernel(block=32)
def pick_half(table: Slice[f32], number: u32, x: DisjointSlice[f32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = table[number] / f32(2)


@pytest.mark.parametrize("wrong", [0, 2, 3, 17, 29])
def test_of_many_launches_of_several_kernels_the_one_that_failed_is_named(wrong: int) -> None:
    table, box = h2d(TABLE).sync(), zeros(8).sync()
    kernels = [pick, pick_double, pick_half]
    parts = [kernels[part % 3](table, 500 if part == wrong else part, box) for part in range(30)]
    notes = notes_of(oxide.zip(*parts), run_by_sync)
    assert notes[:2] == [f"in <oxide launch of {kernels[wrong % 3].name}>", f"in part {wrong + 1} of a zip of 30"]


def test_consumers_of_a_shared_operation_find_the_stage_of_its_source() -> None:
    source = zeros(8).and_then(lambda box: refuse(500, box)).shared()
    for _ in range(2):
        notes = notes_of(value(0).and_then(lambda _: source), run_by_sync)
        assert "in stage 2 of a chain" in notes[1]
        assert len([note for note in notes if "stage" in note]) == 1


class Settings(dict[str, int]):
    """A common idiom, which answers a question after an attribute that is not there with a KeyError."""

    __getattr__ = dict.__getitem__

    def __call__(self, x: Any) -> Any:
        return refuse(self.row, x)


class Layer:
    def forward(self, x: Any) -> Any:
        return refuse(500, x)


def named_by_a_decorator() -> Callable[[Any], Any]:
    @functools.wraps(refuse)
    def wrapper(x: Any) -> Any:
        return refuse(500, x)

    return wrapper


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (named_by_a_decorator(), "refuse at "),
        (functools.partial(refuse, 500), "partial"),
        (Settings(row=500), "Settings"),
        (Layer().forward, "Layer.forward at "),
    ],
    ids=["a decorator", "partial", "an object", "a method"],
)
def test_functions_of_any_kind_are_named_as_python_names_them(function: Any, name: str) -> None:
    with pytest.raises(BoundsError) as raised:
        zeros(4).and_then(function).sync()
    assert f"in stage 2 of a chain, and_then({name}" in raised.value.__notes__[1]


def test_functions_of_the_same_text_in_two_files_are_told_apart_in_a_graph() -> None:
    def step(file: str) -> Callable[[Any], Any]:
        found: dict[str, Any] = {"refuse": refuse}
        exec(compile("def step(x):\n    return refuse(500, x)", file, "exec"), found)
        function: Callable[[Any], Any] = found["step"]
        return function

    x = zeros(4).sync()
    graph = oxide.zip(value(x).and_then(step("one.py")), value(x).and_then(step("two.py"))).graph()
    with pytest.raises(BoundsError) as raised:
        graph.launch().sync()
    assert "step at one.py:1" in raised.value.__notes__[1]
    assert "step at two.py:1" in raised.value.__notes__[1]
