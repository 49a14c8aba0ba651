"""``oxide.planned``: independent parts of an operation run on several streams, without a graph."""

from __future__ import annotations

import gc
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
    GraphError,
    SingleStream,
    Slice,
    cond,
    d2h,
    f32,
    h2d,
    i64,
    kernel,
    memcpy,
    planned,
    thread,
    zeros,
)
from oxide.testing import FailingDriver, step_driver, use_driver

SIZE = 1000


@kernel(block=64)
def shifted(x: Slice[f32], by: i64, y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get() + by] + f32(1)


def chain(array: Any, length: int = 3) -> DeviceOperation[Any]:
    operation: DeviceOperation[DeviceBox] = h2d(array)
    for _ in range(length):
        operation = operation.and_then(lambda box: shifted(box, 0, zeros(array.size)).last())
    return operation.and_then(d2h)


def random(size: int = SIZE) -> Any:
    return np.random.default_rng().random(size, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 31, 33, 1000003])
def test_each_run_does_the_work_again_and_yields_new_results(size: int) -> None:
    arrays = [random(size) for _ in range(3)]
    operation = planned(oxide.zip(*map(chain, arrays)))
    first, second = operation.sync(), operation.sync()
    for array, one, other in zip(arrays, first, second, strict=True):
        expected = array + np.float32(1) + np.float32(1) + np.float32(1)
        np.testing.assert_array_equal(one, expected)
        np.testing.assert_array_equal(other, expected)
        assert one is not other


def test_branches_go_to_several_streams_and_a_run_ends_after_all_of_them() -> None:
    with use_driver(step_driver()) as driver:
        stream = oxide.devices()[0].new_stream()
        arrays = [random() for _ in range(3)]
        results = planned(oxide.zip(*map(chain, arrays))).async_on(stream)
        driver.run_until_idle()
        plain = oxide.zip(*map(chain, arrays))
        plain.async_on(stream)
        assert len(driver.pending()) == 1
        driver.run_until_idle()
        planned(oxide.zip(*map(chain, arrays))).async_on(stream)
        handle = stream._timeline.handle
        while handle in driver.pending():
            driver.step(handle)
        assert len(driver.pending()) >= 2
        assert not stream.query()
        driver.run_until_idle()
        stream.synchronize()
        for array, result in zip(arrays, results, strict=True):
            np.testing.assert_array_equal(result, array + np.float32(1) + np.float32(1) + np.float32(1))


def test_under_a_policy_of_one_stream_all_stays_on_it() -> None:
    with use_driver(step_driver(), policy=SingleStream()):
        assert len(planned(oxide.zip(chain(random()), chain(random()))).sync()) == 2
        assert len(oxide.devices()[0]._timelines) == 1


def test_it_is_awaited_and_may_be_a_part_of_an_operation() -> None:
    array = random()

    async def main() -> Any:
        return await planned(oxide.zip(chain(array), chain(array))).and_then(lambda both: h2d(both[0])).to_host()

    trio.run(main)
    inner = planned(oxide.zip(h2d(array), h2d(array))).and_then(lambda both: shifted(both[1], 0, zeros(SIZE)).last())
    np.testing.assert_array_equal(inner.to_host().sync(), array + np.float32(1))
    graph = planned(oxide.zip(chain(array), chain(array))).graph()
    graph.launch().sync()
    results = graph.take_output()
    assert results is not None
    np.testing.assert_array_equal(results[0], results[1])


def test_parts_on_several_devices_run_as_they_do_without_it() -> None:
    with use_driver(step_driver(2, seed=3)):
        arrays = [random(), random()]
        parts = [chain(array).on(number) for number, array in enumerate(arrays)]
        for operation in (planned(oxide.zip(*parts)), oxide.zip(*parts).fused()):
            for array, result in zip(arrays, operation.sync(), strict=True):
                np.testing.assert_array_equal(result, array + np.float32(1) + np.float32(1) + np.float32(1))


@pytest.mark.parametrize("plan", [planned, lambda operation: operation.fused()])
def test_what_only_an_eager_run_can_do_runs_as_it_does_without_it(plan: Any) -> None:
    array, box = random(), zeros(SIZE).sync()
    graph = memcpy(box, h2d(array).sync()).graph()

    def declared(ctx: Any) -> Any:
        ctx.reads(box)
        return oxide.value(None)

    for first in (memcpy(box, array), graph.launch(), oxide.with_context(declared)):
        operation = first.and_then(lambda _: shifted(box, 0, zeros(SIZE)).last()).and_then(d2h)
        for _ in range(2):
            np.testing.assert_array_equal(plan(operation).sync(), array + np.float32(1))
    with pytest.raises(GraphError, match="memcpy from a host array cannot be captured"):
        plan(memcpy(box, array)).graph()


@pytest.mark.parametrize("plan", [planned, lambda operation: operation.fused()])
@pytest.mark.parametrize("beside", ["nothing", "a choice", "another device", "a choice on another device"])
def test_the_source_of_an_unzip_runs_once_in_each_run(plan: Any, beside: str) -> None:
    """A choice or a second device beside the unzip means that the operation cannot be planned."""
    with use_driver(step_driver(2, seed=3)):
        x = h2d(random()).sync()
        flag = h2d(np.array([1], np.int32)).sync()
        one, other = oxide.zip(oxide.dup(x), oxide.dup(x)).unzip(2)
        used = shifted(one, 0, zeros(SIZE)).unzip(3)  # takes its source from the unzip before it
        parts: list[DeviceOperation[Any]] = [other, used[0], used[2]]
        if "choice" in beside:  # in the branch, too, the parts are those of this run
            parts.append(cond(flag, used[2].and_then(lambda box: memcpy(x, box))))
        if "device" in beside:
            parts.append(zeros(1).on(1))
        operation = plan(oxide.zip(*parts))
        for _ in range(3):
            before = random()
            memcpy(x, before).sync()
            found = [d2h(box).sync() for box in operation.sync()[:3]]
            for result, expected in zip(found, [before, before, before + np.float32(1)], strict=True):
                np.testing.assert_array_equal(result, expected)
            after = before + np.float32(1) if "choice" in beside else before
            np.testing.assert_array_equal(d2h(x).sync(), after)


@pytest.mark.parametrize("plan", [planned, lambda operation: operation.fused()])
def test_a_shared_source_runs_in_its_turn_and_once(plan: Any) -> None:
    array = random()
    x = h2d(array).sync()
    copied = oxide.dup(x).shared()  # of what the launch before it has written
    operation = plan(oxide.zip(shifted(x, 0, x), copied).last().to_host())
    np.testing.assert_array_equal(operation.sync(), array + np.float32(1))
    np.testing.assert_array_equal(operation.sync(), array + np.float32(1))
    np.testing.assert_array_equal(d2h(x).sync(), array + np.float32(1) + np.float32(1))


def test_it_obeys_strict_ordering() -> None:
    with use_driver(step_driver(seed=5), ordering="strict"):
        array = random()
        both = oxide.zip(chain(array), chain(array))
        np.testing.assert_array_equal(*planned(both).sync())


def test_a_fault_names_its_kernel_and_its_place() -> None:
    x = zeros(SIZE).sync()
    bad = oxide.zip(chain(random()), oxide.value(x).and_then(lambda box: shifted(box, 9, zeros(SIZE))))
    with pytest.raises(BoundsError, match="shifted") as caught:
        planned(bad).sync()
    notes = "\n".join(caught.value.__notes__)
    assert "and_then" in notes
    assert "part 2 of 2 of zip" in notes or "zip" in notes


def test_an_error_of_a_function_is_raised_and_leaves_nothing() -> None:
    with use_driver(step_driver()) as driver:
        operation = planned(oxide.zip(chain(random()), oxide.value(1).map(lambda one: one // 0)))
        with pytest.raises(ZeroDivisionError):
            operation.sync()
        with pytest.raises(GraphError, match="not possible while a graph is captured"):
            planned(oxide.value(1).map(lambda _: zeros(3).sync())).sync()
        gc.collect()
        oxide.reclaim.drain()
        live = driver.live_allocations
        assert (live.device_count, live.host_count) == (0, 0)


@pytest.mark.parametrize("at", range(1, 40))
def test_a_failure_at_any_call_leaks_nothing(at: int) -> None:
    with use_driver(FailingDriver(step_driver())) as failing:
        array = random()
        operation = planned(oxide.zip(chain(array), chain(array)))
        failing.fail_call(at, DeviceError("refused"))
        with suppress(DeviceError):
            operation.sync()
        failing.forget()
        np.testing.assert_array_equal(*operation.sync())
        gc.collect()
        oxide.reclaim.drain()
        live = failing.inner.live_allocations
        assert (live.device_count, live.host_count) == (0, 0)


def test_it_takes_an_operation() -> None:
    with pytest.raises(TypeError, match="planned takes an operation, not int"):
        planned(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [6, 1 << 20])
@pytest.mark.parametrize("way", ["planned", "fused"])
def test_an_array_that_the_run_downloads_is_uploaded_after_that(size: int, way: str) -> None:
    for turn in range(3):
        x = h2d(np.arange(size, dtype=np.float32) + turn).sync()
        operation = d2h(x).and_then(h2d).and_then(lambda box: shifted(box, 0, zeros(size)).last()).and_then(d2h)
        found = (planned(operation) if way == "planned" else operation.fused()).sync()
        np.testing.assert_array_equal(found, np.arange(size) + turn + 1)
