"""Several devices: where an operation runs, copies between devices, ordering across them, and what is refused."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import oxide
from oxide import (
    DeviceError,
    DeviceOperation,
    DisjointSlice,
    DriverError,
    ExecutionContext,
    GraphError,
    Slice,
    d2h,
    dup,
    f32,
    gather,
    h2d,
    kernel,
    memcpy,
    policy_of,
    thread,
    to_device,
    value,
    with_context,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver
from tests.choosing import examples


@kernel(block=64)
def add(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """y += x"""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value += x[index.get()]


@pytest.fixture
def two() -> Iterator[RecordingDriver]:
    with use_driver(RecordingDriver(CpuDriver(2, threads=2))) as driver:
        yield driver


def where() -> DeviceOperation[int]:
    return with_context(lambda context: value(context.device_id))


# Where an operation runs


def test_an_operation_runs_on_the_device_it_is_placed_on(two: RecordingDriver) -> None:
    assert where().sync() == 0
    assert where().on(1).sync() == 1
    assert where().on(oxide.devices()[1]).sync() == 1
    assert where().on(1).on(0).sync() == 1  # the innermost is the one that is meant
    assert h2d(np.ones(2)).on(1).sync().device is oxide.devices()[1]

    async def main() -> None:
        assert await where().on(1) == 1
        assert await where().schedule(policy_of(1)) == 1
        assert await where().schedule(policy_of(oxide.devices()[0])) == 0
        assert await gather(where().on(0), where().on(1)) == (0, 1)

    trio.run(main)


def test_what_is_chained_to_a_placed_operation_goes_on_there(two: RecordingDriver) -> None:
    x = np.arange(4, dtype=np.float32)
    chain = h2d(x).on(1).and_then(dup).and_then(lambda box: add(box, box)).last().map(lambda box: box)
    assert chain.inspect(lambda _: None).to_host().sync().tolist() == (2 * x).tolist()
    parts = oxide.zip(h2d(x).on(1), zeros(4).on(1)).and_then(lambda boxes: add(*boxes)).last()
    box = parts.sync()
    assert box.device.id == 1
    first, second = oxide.zip(h2d(x).on(1), zeros(4).on(1)).unzip()
    assert (first.sync().device.id, second.sync().device.id) == (1, 1)


def test_operations_on_several_devices_are_parts_of_one(two: RecordingDriver) -> None:
    x = np.arange(4, dtype=np.float32)
    pipelines = [h2d(x + n).and_then(lambda box: add(box, box)).last().to_host().on(n) for n in range(2)]
    results = oxide.zip(*pipelines).sync()
    for n, result in enumerate(results):
        np.testing.assert_array_equal(result, 2 * (x + n))
    nested = value(0).and_then(lambda _: oxide.zip(where().on(1), where(), where().on(1))).sync()
    assert nested == (1, 0, 1)


def test_the_run_ends_after_what_it_put_on_other_devices_and_these_do_not_wait_for_each_other() -> None:
    with use_driver(step_driver(2)) as driver:
        x = np.arange(4, dtype=np.float32)
        stream = oxide.devices()[0].new_stream()
        results = oxide.zip(h2d(x).to_host().on(1), h2d(x + 1).to_host().on(0)).async_on(stream)
        while driver.step(stream._timeline.handle):
            pass
        np.testing.assert_array_equal(results[1], x + 1)  # done, though device 1 has not begun
        assert not stream.query()
        stream.synchronize()
        np.testing.assert_array_equal(results[0], x)


def test_a_placed_operation_runs_where_it_is_placed_and_the_stream_it_was_given_goes_on_after_it() -> None:
    with use_driver(step_driver(2)) as driver:
        stream = oxide.devices()[0].new_stream()
        placed = oxide.full(4, 7).on(1).async_on(stream)
        assert placed.device is oxide.devices()[1]
        while driver.step(stream._timeline.handle):
            pass
        assert not stream.query()
        stream.synchronize()
        np.testing.assert_array_equal(placed.host_view(), 7)


def test_a_fault_on_another_device_is_the_runs(two: RecordingDriver) -> None:
    op = oxide.zip(value(1), oxide.zip(h2d(np.ones(1, np.float32)), zeros(3)).and_then(lambda b: add(*b)).on(1))
    with pytest.raises(oxide.BoundsError):
        op.sync()


def test_a_device_that_is_not_there_is_an_error_when_it_runs(two: RecordingDriver) -> None:
    with pytest.raises(DeviceError, match="there is no device 2; init_device_contexts set up 0 to 1"):
        where().on(2).sync()
    with pytest.raises(DeviceError, match="no device 5"):
        where().schedule(policy_of(5))
    for wrong in (True, "1", None):
        with pytest.raises(TypeError, match="on takes a device's number or one of devices"):
            value(1).on(wrong)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="numbered from 0"):
        value(1).on(-1)
    stale = oxide.devices()[1]
    with use_driver(CpuDriver(2)), pytest.raises(DeviceError, match="belongs to a runtime that is not in force"):
        value(1).on(stale).sync()


def test_a_box_of_one_device_used_on_another_is_an_error_that_says_where_it_is(two: RecordingDriver) -> None:
    box = h2d(np.ones(4, np.float32)).on(1).sync()
    for op in (d2h(box), dup(box), add(box, box), memcpy(box, box), memcpy(box, np.ones(4, np.float32))):
        with pytest.raises(DeviceError, match=r"the box is on cpu:1, but the operation runs on cpu:0"):
            op.sync()
        op.on(1).sync()


@pytest.mark.filterwarnings("ignore:.*was never run")
def test_a_box_of_a_runtime_that_is_not_in_force_is_called_that() -> None:
    array = np.ones(4, np.float32)
    with use_driver(step_driver()):
        old = h2d(array).sync()
    with use_driver(CpuDriver(2)):
        new = h2d(array).sync()
        for op in (
            d2h(old),
            dup(old),
            add(old, old),
            add(new, old),
            to_device(old, 0),
            to_device(old, 1),
            memcpy(old, array),
            memcpy(old, new),
            memcpy(new, old),
            memcpy(old, old),
        ):
            with pytest.raises(DeviceError, match="the box belongs to a runtime that is not in force; make a new one"):
                op.sync()
        np.testing.assert_array_equal(d2h(new).sync(), array)


def test_a_stream_of_a_runtime_that_is_not_in_force_takes_no_box_of_the_one_in_force(two: RecordingDriver) -> None:
    old = oxide.devices()[0].new_stream()
    with use_driver(CpuDriver(2)):
        box = h2d(np.ones(4)).sync()
        for op in (d2h(box), memcpy(box, box), to_device(box, 0)):
            with pytest.raises(DeviceError, match="the stream that the operation runs on belongs to a runtime that is"):
                op.sync_on(old)


# Copies between devices


@pytest.mark.parametrize("size", [0, 1, 3, 1000, 100_003])
def test_copies_between_devices_are_right_at_odd_sizes(two: RecordingDriver, size: int) -> None:
    array = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    there = h2d(array).to_device(1).sync()
    assert (there.device.id, there.shape, there.dtype) == (1, array.shape, array.dtype)
    back = to_device(there, 0).sync()
    np.testing.assert_array_equal(d2h(back).sync(), array)
    target = h2d(np.zeros(size, np.uint8)).on(1).sync()
    assert memcpy(target, back).sync() is target  # on the source's device
    np.testing.assert_array_equal(d2h(target).on(1).sync(), array)
    memcpy(back, target).on(1).sync()
    np.testing.assert_array_equal(d2h(back).sync(), array)


def test_to_device_of_a_box_that_is_there_is_a_copy_all_the_same(two: RecordingDriver) -> None:
    box = h2d(np.ones(4)).sync()
    for target in (0, 1):  # so that a program gives the same numbers with one device and with two
        copy = to_device(box, target).sync()
        memcpy(copy, np.full(box.shape, 9, box.dtype)).on(target).sync()
        assert 9 not in d2h(box).sync()
    arc = oxide.Arc(h2d(np.ones(4)).on(1).sync())
    assert to_device(arc, oxide.devices()[1]).sync().ptr != arc.value.ptr
    with pytest.raises(TypeError, match="to_device takes a DeviceBox, not ndarray"):
        to_device(np.ones(3), 1)  # type: ignore[arg-type]


def test_a_copy_between_two_devices_runs_on_one_of_them() -> None:
    with use_driver(CpuDriver(3)):
        one, other = (h2d(np.ones(4)).on(device).sync() for device in (1, 2))
        with pytest.raises(DeviceError, match="memcpy: the box is on cpu:1, but the operation runs on cpu:0"):
            memcpy(one, other).sync()
        memcpy(one, other).on(2).sync()


def test_a_copy_waits_for_work_on_the_other_device_and_work_there_waits_for_it() -> None:
    with use_driver(step_driver(2)) as driver:
        here, there = (device.new_stream() for device in oxide.devices())
        box = h2d(np.full(8, 1.0)).async_on(here)
        copy = to_device(box, 1).async_on(there)
        memcpy(box, np.full(8, 2.0)).async_on(here)  # must not overtake the copy
        while driver.step(there._timeline.handle) or driver.step(here._timeline.handle):
            pass
        del box
        gc.collect()
        result = d2h(copy).async_on(there)
        there.synchronize()
        np.testing.assert_array_equal(result, np.full(8, 1.0))


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**32), program=st.data())
def test_random_programs_on_three_devices_equal_their_sequential_meaning(seed: int, program: Any) -> None:
    with use_driver(step_driver(3, seed=seed)) as driver:
        streams = [device.new_stream() for device in oxide.devices() for _ in range(2)]
        numbers = st.integers(0, 2)
        boxes = [h2d(np.full(4, float(n))).on(n).sync() for n in range(3)]
        model = [np.full(4, float(n)) for n in range(3)]
        reads = []
        for step in range(program.draw(st.integers(1, 15))):
            stream = program.draw(st.sampled_from(streams))
            one, other = program.draw(numbers), program.draw(numbers)
            match program.draw(st.sampled_from(["copy", "copy", "write", "read", "move", "step"])):
                case "copy":
                    place = program.draw(st.sampled_from([one, other]))
                    memcpy(boxes[one], boxes[other]).on(place).async_on(stream)
                    model[one] = model[other].copy()
                case "write":
                    memcpy(boxes[one], np.full(4, 10.0 + step)).on(one).async_on(stream)
                    model[one] = np.full(4, 10.0 + step)
                case "read":
                    reads.append((d2h(boxes[one]).on(one).async_on(stream), model[one].copy()))
                case "move":  # away and back, into a new box; the old one is dropped in flight
                    boxes[one] = to_device(to_device(boxes[one], (one + 1) % 3), one).async_on(stream)
                case _:
                    driver.step()
        for stream in streams:
            stream.synchronize()
        for found, expected in reads:
            np.testing.assert_array_equal(found, expected)


# Failures


def test_an_error_on_another_device_leaves_nothing_behind() -> None:
    failing = FailingDriver(step_driver(2))
    with use_driver(RecordingDriver(failing)) as driver:

        def run() -> None:
            oxide.zip(h2d(np.ones(4)).to_device(1), h2d(np.ones(4)).on(1).and_then(dup).to_device(0)).sync()

        run()
        run()
        oxide.reclaim.drain()
        driver.clear()
        run()
        calls = len(driver.calls)
        oxide.reclaim.drain()
        for n in range(1, calls + 1):
            failing.fail_call(n, DriverError(1, "CUDA_ERROR_INVALID_VALUE"))
            with suppress(DriverError):  # a sweep that fails is tried again, and raises nothing
                run()
            failing._failures.clear()
            driver.clear()
            gc.collect()
            oxide.reclaim.drain()
            outstanding = driver.outstanding()
            assert (outstanding["allocations"], outstanding["host_allocations"]) == (0, 0), f"call {n}"


def test_a_python_error_on_another_device_reaches_the_caller_and_the_memory_stays_until_it_is_unused() -> None:
    with use_driver(RecordingDriver(step_driver(2))) as driver:

        def fail(context: ExecutionContext, box: oxide.DeviceBox) -> DeviceOperation[Any]:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            oxide.zip(value(1), h2d(np.ones(4)).and_then_with_context(fail).on(1)).sync()
        driver.clear()
        gc.collect()
        oxide.reclaim.drain()
        assert driver.outstanding()["allocations"] == 0


# Graphs


def test_a_graph_of_an_operation_on_a_device_is_launched_there(two: RecordingDriver) -> None:
    x = np.ones(4, np.float32)
    box = zeros(4).on(1).sync()
    graph = h2d(x).and_then(lambda fresh: add(fresh, box)).on(1).graph()
    assert graph.device.id == 1
    graph.launch().sync()
    oxide.zip(graph.launch(), where()).sync()
    np.testing.assert_array_equal(d2h(box).on(1).sync(), [2, 2, 2, 2])


def test_a_graph_holds_work_of_one_device(two: RecordingDriver) -> None:
    box = h2d(np.ones(4)).sync()
    with pytest.raises(GraphError, match=r"a graph runs on one device. Capture a graph for each"):
        oxide.zip(dup(box), where().on(1)).graph()
    there = h2d(np.ones(4)).on(1).sync()
    with pytest.raises(GraphError, match="copy_peer cannot be captured"):
        memcpy(box, there).graph()
