"""Collectives of one process: their results, their order among other work, and what is refused."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import oxide
from oxide import (
    ArgumentError,
    DeviceError,
    DisjointSlice,
    DriverError,
    GraphError,
    SanitizerError,
    Slice,
    collectives,
    d2h,
    f32,
    h2d,
    kernel,
    ones,
    thread,
)
from oxide.collectives import Group, local_group
from oxide.driver.cpu import CpuDriver
from oxide.driver.sanitizing import Tracking
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver

SIZES = (0, 1, 31, 33, 1000003)
EPSILONS = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-13, "complex64": 1e-6}


@kernel(sanitize=("memory",))
def copied(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = x[i.get()]


def uploaded(group: Group, arrays: list[Any]) -> tuple[Any, ...]:
    return tuple(h2d(array).on(device).sync() for array, device in zip(arrays, group.devices, strict=True))


def downloaded(boxes: Any) -> list[Any]:
    boxes = boxes if isinstance(boxes, tuple) else (boxes,)
    return [d2h(box).on(box.device).sync() for box in boxes]


def drawn(shape: Any, dtype: Any, rank: int) -> Any:
    random = np.random.default_rng([rank, *np.atleast_1d(shape)])
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return random.integers(1, 4, shape).astype(dtype)
    if dtype.kind == "c":
        return (random.random(shape) + 1j * random.random(shape)).astype(dtype)
    return random.random(shape).astype(dtype)


def reduced(op: str, arrays: list[Any]) -> Any:
    wide = [array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) for array in arrays]
    function: Any = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    result = wide[0]
    for each in wide[1:]:
        result = function(result, each)
    return result / len(wide) if op == "avg" else result


def assert_near(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    error = np.linalg.norm(found.astype(expected.dtype).ravel() - expected.ravel())
    assert error <= EPSILONS.get(found.dtype.name, 0) * np.linalg.norm(expected.ravel())


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
def test_each_collective_at_each_size(several: Any, n: int) -> None:
    with local_group() as group:
        size = group.size
        arrays = [drawn(n, np.float32, rank) for rank in range(size)]
        for found in downloaded(group.all_reduce(*uploaded(group, arrays)).sync()):
            assert_near(found, reduced("sum", arrays))
        for found in downloaded(group.all_gather(*uploaded(group, arrays)).sync()):
            np.testing.assert_array_equal(found, np.concatenate(arrays))
        for found in downloaded(group.broadcast(*uploaded(group, arrays), root=size - 1).sync()):
            np.testing.assert_array_equal(found, arrays[-1])
        whole = [drawn((size * n, 2), np.float32, rank) for rank in range(size)]
        for rank, found in enumerate(downloaded(group.reduce_scatter(*uploaded(group, whole)).sync())):
            assert_near(found, reduced("sum", whole)[rank * n : (rank + 1) * n])


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize(
    "dtype",
    [np.int8, np.uint8, np.int32, np.uint64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64],
)
def test_each_reduction_of_each_dtype(several: Any, op: Any, dtype: Any) -> None:
    kind = np.dtype(dtype).kind
    with local_group() as group:
        arrays = [drawn((7, 9), dtype, rank) for rank in range(group.size)]
        boxes = uploaded(group, arrays)
        if (kind in "iu" and op == "avg") or (kind == "c" and op not in ("sum", "avg")):
            with pytest.raises(ArgumentError, match="op="):
                group.all_reduce(*boxes, op=op).sync()
            return
        for found in downloaded(group.all_reduce(*boxes, op=op).sync()):
            assert_near(found, reduced(op, arrays))


def test_all_ranks_have_the_same_bits(several: Any) -> None:
    with local_group() as group:
        arrays = [drawn(10007, np.float32, rank) for rank in range(group.size)]
        first, *others = downloaded(group.all_reduce(*uploaded(group, arrays)).sync())
        for other in others:
            np.testing.assert_array_equal(first, other)


def test_a_collective_is_a_stage_of_an_operation(several: Any) -> None:
    with local_group() as group:
        uploads = oxide.zip(*[h2d(np.full(5, 2.0**rank)).on(device) for rank, device in enumerate(group.devices)])
        operation = uploads.and_then(lambda boxes: group.all_reduce(*boxes)).map(lambda boxes: boxes[-1])
        operation = operation.and_then(lambda box: d2h(box).on(box.device))
        expected = np.full(5, 2.0**group.size - 1)

        async def main() -> None:
            np.testing.assert_array_equal(await operation, expected)

        np.testing.assert_array_equal(operation.sync(), expected)
        trio.run(main)
        assert operation.picture().nodes


def test_a_group_of_some_devices(several: Any) -> None:
    with local_group([1, 0]) as group:
        assert (group.size, group.ranks) == (2, (0, 1))
        assert group.devices == (several[1], several[0])
        boxes = uploaded(group, [np.zeros(3), np.ones(3)])
        assert boxes[0].device is several[1]
        np.testing.assert_array_equal(downloaded(group.broadcast(*boxes, root=1).sync())[0], np.ones(3))
    with local_group([several[0]]) as group:
        box = ones(4).sync()
        assert group.all_reduce(box).sync() is box
        assert downloaded(group.all_gather(box).sync())[0].shape == (4,)
        assert group.rank == 0


@given(seed=st.integers(0, 2**32 - 1), draw=st.data())
@settings(max_examples=25)
def test_collectives_keep_their_place_under_any_schedule(seed: int, draw: Any) -> None:
    """Uploads, collectives and copies of random boxes on three devices, submitted without waiting. Their order in
    time is drawn; the results are those of one after another."""
    with use_driver(step_driver(3, seed=seed), policy=oxide.StreamPoolRoundRobin(3)), local_group() as group:
        arrays = [[drawn(6, np.float64, 10 * rank + n) for n in range(3)] for rank in range(3)]
        boxes = [uploaded(group, [arrays[rank][n] for rank in range(3)]) for n in range(3)]
        streams = [device.new_stream() for device in oxide.devices()]
        for _ in range(draw.draw(st.integers(1, 12))):
            kind = draw.draw(st.sampled_from(["all_reduce", "broadcast", "memcpy"]))
            n = draw.draw(st.integers(0, 2))
            if kind == "all_reduce":
                group.all_reduce(*boxes[n], op="avg").async_on(streams[n])
                expected = sum(arrays[rank][n] for rank in range(3)) / 3
                for rank in range(3):
                    arrays[rank][n] = expected
            elif kind == "broadcast":
                root = draw.draw(st.integers(0, 2))
                group.broadcast(*boxes[n], root=root).async_on(streams[n])
                for rank in range(3):
                    arrays[rank][n] = arrays[root][n]
            else:
                rank, other = draw.draw(st.integers(0, 2)), draw.draw(st.integers(0, 2))
                oxide.memcpy(boxes[n][rank], boxes[other][rank]).async_on(streams[rank])
                arrays[rank][n] = arrays[rank][other]
        for rank in range(3):
            for n in range(3):
                np.testing.assert_allclose(downloaded(boxes[n][rank])[0], arrays[rank][n], rtol=1e-12)


def test_other_work_goes_on_beside_a_collective() -> None:
    """The collective has its own stream: work of the same run that does not use its boxes may run before it."""
    with use_driver(step_driver(2)) as driver, local_group() as group:
        boxes = uploaded(group, [np.ones(4), np.ones(4)])
        other = h2d(np.zeros(4)).sync()
        seen: list[str] = []
        stream = oxide.devices()[0].new_stream()
        operation = oxide.zip(group.all_reduce(*boxes), oxide.memcpy(other, np.ones(4)))
        operation.async_on(stream)
        while any(repr(item).startswith("copy") for each in driver.pending() for item in each.items):
            chosen = next(each for each in driver.pending() if not any("reduce" in repr(item) for item in each.items))
            seen.append(repr(chosen.items[0]))
            driver.step(chosen)
        assert seen
        assert any("all_reduce" in repr(item) for each in driver.pending() for item in each.items)
        stream.synchronize()
        np.testing.assert_array_equal(downloaded(boxes)[1], np.full(4, 2.0))


def test_a_cancelled_collective_still_runs() -> None:
    """Other ranks wait for it, so it must not be dropped."""
    opened = threading.Event()
    with use_driver(CpuDriver(2)), local_group() as group:
        boxes = uploaded(group, [np.ones(4), np.ones(4)])

        async def main() -> None:
            group._streams[0].launch_host_function(opened.wait)  # type: ignore[arg-type]
            async with trio.open_nursery() as nursery:
                oxide.spawn(nursery, group.all_reduce(*boxes))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            opened.set()

        trio.run(main)
        np.testing.assert_array_equal(downloaded(boxes)[0], np.full(4, 2.0))


def test_a_failure_at_any_driver_call_is_one_error_and_leaves_nothing() -> None:
    def run(group: Group) -> Any:
        boxes = [h2d(np.full(9, rank + 1.0)).on(rank) for rank in range(2)]
        made = oxide.zip(*boxes).and_then(lambda each: oxide.zip(group.all_reduce(*each), group.all_gather(*each)))
        return made.and_then(lambda pair: d2h(pair[0][1]).on(1)).sync()

    with use_driver(RecordingDriver(CpuDriver(2))) as recording, local_group() as group:
        before = len(recording.calls)
        np.testing.assert_array_equal(run(group), np.full(9, 3.0))
        calls = len(recording.calls) - before
    assert calls > 15
    failures = 0
    for number in range(1, calls + 1):
        inner = CpuDriver(2)
        failing = FailingDriver(inner)
        with use_driver(failing):
            with local_group() as group:
                injected = DriverError(999, "CUDA_ERROR_UNKNOWN", f"injected at call {number}")
                failing.fail_call(number, injected)
                for _ in range(2):  # the first run may make fewer calls than were counted
                    try:
                        np.testing.assert_array_equal(run(group), np.full(9, 3.0))
                    except DriverError as error:
                        assert error is injected  # noqa: PT017
                        failures += 1
                np.testing.assert_array_equal(run(group), np.full(9, 3.0))  # the group is whole
            del group, injected
            gc.collect()
            oxide.reclaim.drain()
        assert not inner.live_allocations.device_count, f"call {number}"
    assert failures > 10


# What is refused


def test_boxes_that_do_not_fit_are_refused_by_name(several: Any) -> None:
    with local_group([0, 1]) as group:
        a, b = uploaded(group, [np.ones(4), np.ones(4)])
        short, single = h2d(np.ones(3)).on(1).sync(), h2d(np.ones(4, np.float32)).on(1).sync()
        for wrong, words in (
            ((a,), "all_reduce takes 2 boxes, one for each rank of this process; got 1"),
            ((b, a), "all_reduce, box of rank 0: the rank's device is .*:0, and the box is on .*:1"),
            ((a, short), r"box of rank 1: .*3.*, where box of rank 0 is .*4.*; they must be alike"),
            ((a, single), "box of rank 1: .*float32.*, where box of rank 0 is .*float64"),
            ((a[::2], b), "strided view.*dup"),
        ):
            with pytest.raises(ArgumentError, match=words):
                group.all_reduce(*wrong).sync()
        with pytest.raises(TypeError, match=r"h2d\(array\) copies it"):
            group.all_reduce(np.ones(4), b)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"one box for each rank"):
            group.all_reduce([a, b])  # type: ignore[arg-type]
        for op in ("mean", ["sum"]):
            with pytest.raises(ArgumentError, match=r"op: .*; it must be one of sum, prod, min, max, avg"):
                group.all_reduce(a, b, op=op)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="root: 2 is no rank; ranks are 0 to 1"):
            group.broadcast(a, b, root=2)
        with pytest.raises(ArgumentError, match="cannot be divided into 2 equal parts"):
            group.reduce_scatter(*uploaded(group, [np.ones(5), np.ones(5)])).sync()
        with pytest.raises(DeviceError, match="to_device"):
            group.send(a, to=1)
        with pytest.raises(DeviceError, match="ranks 0 to 1"):
            _ = group.rank
        with pytest.raises(GraphError, match="a graph runs on one device"):
            group.all_reduce(a, b).graph()
        np.testing.assert_array_equal(downloaded(group.all_reduce(a, b).sync())[0], np.full(4, 2.0))
        operation = group.all_reduce(a, b)
    with pytest.raises(DeviceError, match="the group was closed"):
        operation.sync()
    with pytest.raises(DeviceError, match="the group was closed"):
        group.all_reduce(a, b)


def test_what_a_collective_writes_counts_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tracking, "wanted", True)
    with use_driver(CpuDriver(2)), local_group() as group:
        given = uploaded(group, [np.ones(4, np.float32), np.full(4, 2, np.float32)])
        boxes = [oxide.empty(4, f32).on(device).sync() for device in group.devices]
        for operation in (
            group.all_gather(*given),
            group.reduce_scatter(*given),
            group.broadcast(given[0], boxes[1]),
        ):
            for box in operation.sync():
                copied[1, 32](box, oxide.zeros(box.size)).on(box.device).sync()
        with pytest.raises(SanitizerError, match="memory that nothing has written"):
            copied[1, 32](oxide.empty(4, f32), oxide.zeros(4)).sync()


def test_strict_ordering_takes_collectives_and_placed_parts() -> None:
    with use_driver(step_driver(2, seed=3), ordering="strict"), local_group() as group:
        arrays = [np.arange(3.0), np.ones(3)]
        boxes = oxide.zip(*[h2d(array).on(number) for number, array in enumerate(arrays)])
        sums = boxes.and_then(lambda each: group.all_reduce(*each))
        found = sums.and_then(lambda each: oxide.zip(*[d2h(box).on(box.device) for box in each])).sync()
        np.testing.assert_array_equal(found, [arrays[0] + 1] * 2)
        moved = h2d(arrays[0]).on(0).and_then(lambda box: oxide.to_device(box, 1)).and_then(lambda box: d2h(box).on(1))
        np.testing.assert_array_equal(moved.sync(), arrays[0])


def test_a_graph_of_a_closed_group_is_refused(several: Any) -> None:
    """The graph is dropped after the group: NCCL would wait for it, and the group would never be closed."""
    with local_group([several[0]]) as group:
        graph = group.all_reduce(oxide.ones(9).sync()).graph()
        graph.launch().sync()
    with pytest.raises(DeviceError, match=r"the group (of a collective )?was closed"):
        graph.launch().sync()


def test_wrong_groups_are_refused(several: Any) -> None:
    with pytest.raises(DeviceError, match="twice"):
        local_group([0, 0])
    with pytest.raises(DeviceError, match="no devices"):
        local_group([])
    with pytest.raises(DeviceError, match="there is no device 99"):
        local_group([0, 99])
    for wrong in (0, "cpu"):
        with pytest.raises(TypeError, match="takes a list of devices"):
            local_group(wrong)  # type: ignore[arg-type]
    with local_group([0]) as group, pytest.raises(TypeError, match="each process joins it"):
        pickle.dumps(group)
    for wrong, words in (
        ({}, "give the rank, or set RANK; python -m oxide launch does"),
        ({"rank": 2, "size": 2, "name": "x"}, "ranks are numbered from 0 to 1"),
        ({"rank": -1, "size": 2, "name": "x"}, "it must be an int of 0 or more"),
        ({"rank": 0, "size": 1}, "give the group's name"),
        ({"rank": 0, "size": 1, "name": "a/b"}, "a word without a slash"),
        ({"rank": 0, "size": 1, "name": "x" * 99}, "too long"),
        ({"rank": 0, "size": 1, "name": "x", "timeout": 0}, "positive number of seconds"),
    ):
        with pytest.raises(DeviceError, match=words):
            collectives.join_group(**wrong)  # type: ignore[arg-type]
