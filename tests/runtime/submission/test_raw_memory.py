"""Raw memory: malloc_async, memcpy_async and memset_async of the context, and boxes from raw parts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from examples.async_mlp import pipeline, synthetic
from oxide import (
    DeviceBox,
    DeviceOperation,
    DevicePointer,
    ExecutionContext,
    GraphError,
    OrderingError,
    f32,
    pinned_empty,
    value,
    with_context,
)
from oxide.driver.cpu import CpuDriver
from oxide.runtime.devices.runtime import current_runtime
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver
from oxide_kernels import relu

RANDOM = np.random.default_rng(26)


def raw_h2d(array: Any) -> DeviceOperation[DeviceBox]:
    host = np.ascontiguousarray(array)

    def up(ctx: ExecutionContext) -> DeviceOperation[DeviceBox]:
        pointer = ctx.malloc_async(host.nbytes)
        ctx.memcpy_async(pointer, host, host.nbytes)
        return value(DeviceBox.from_raw_parts(pointer, host.shape, host.dtype))

    return with_context(up)


def raw_zeros(shape: Any, dtype: Any = f32) -> DeviceOperation[DeviceBox]:
    element = np.dtype(getattr(dtype, "dtype", dtype))
    nbytes = int(np.prod(shape)) * element.itemsize

    def make(ctx: ExecutionContext) -> DeviceOperation[DeviceBox]:
        pointer = ctx.malloc_async(nbytes)
        ctx.memset_async(pointer, 0, nbytes)
        return value(DeviceBox.from_raw_parts(pointer, shape, element))

    return with_context(make)


def raw_d2h(box: DeviceBox) -> DeviceOperation[Any]:
    def down(ctx: ExecutionContext) -> DeviceOperation[Any]:
        array = pinned_empty(box.shape, box.dtype)
        ctx.memcpy_async(array, box, box.nbytes)
        return value(array)

    return with_context(down)


def in_run(function: Callable[[ExecutionContext], object]) -> Any:
    """Returns the result of ``function(ctx)`` in a run of its own."""

    def run(ctx: ExecutionContext) -> DeviceOperation[Any]:
        return value(function(ctx))

    return with_context(run).sync()


@pytest.fixture
def raw_mlp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces h2d, empty and d2h in the example's pipeline."""
    monkeypatch.setattr(pipeline, "h2d", raw_h2d)
    monkeypatch.setattr(pipeline, "empty", raw_zeros)
    monkeypatch.setattr(pipeline, "d2h", raw_d2h)
    monkeypatch.setattr(synthetic, "h2d", raw_h2d)


@pytest.mark.usefixtures("raw_mlp")
@pytest.mark.parametrize("dim", [5, 64, 100])
def test_async_mlp_runs_on_h2d_zeros_and_d2h_written_with_raw_memory(
    dim: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trio.run(synthetic.run, dim, 4)
    assert capsys.readouterr().out.count("[ReLU OK]") == 4


@pytest.mark.usefixtures("raw_mlp")
def test_a_graph_of_raw_memory_reads_its_arrays_again_at_each_launch() -> None:
    model = synthetic.Model.of(33)
    w0, w1 = raw_h2d(model.w0).arc().sync(), raw_h2d(model.w1).arc().sync()
    batch = RANDOM.standard_normal((33, 33), np.float32)
    with pipeline.mlp(batch, w0.clone(), w1.clone()).graph() as graph:
        graph.launch().sync()
        output = graph.take_output()
        for _ in range(3):
            batch[...] = RANDOM.standard_normal((33, 33), np.float32)
            graph.launch().sync()
            expected = np.maximum(0, batch.astype(float) @ model.w0.astype(float) @ model.w1.astype(float))
            assert np.linalg.norm(output - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.usefixtures("raw_mlp")
@pytest.mark.parametrize("form", [oxide.planned, lambda operation: operation.fused()])
def test_raw_memory_in_planned_and_fused_operations(form: Callable[[Any], Any]) -> None:
    data = RANDOM.standard_normal(1001).astype(np.float32)
    twice = raw_h2d(data).and_then(lambda box: relu(box, raw_zeros(1001)).last())
    np.testing.assert_array_equal(form(twice.and_then(raw_d2h)).sync(), np.maximum(data, 0))


def test_a_host_array_in_a_graph_is_copied_at_its_place_among_the_work() -> None:
    """The bytes reach the box after the copy that reads its old contents, not at the beginning of the launch."""
    new = np.full(7, 5, np.uint8)
    box, before = oxide.zeros(7, np.uint8).sync(), oxide.ones(7, np.uint8).sync()

    def both(ctx: ExecutionContext) -> DeviceOperation[None]:
        ctx.memset_async(box, 1, 7)
        ctx.memcpy_async(before, box, 7)
        ctx.memcpy_async(box, new, 7)
        return value(None)

    with with_context(both).graph() as graph:
        for byte in (5, 9):
            new[:] = byte
            graph.launch().sync()
            assert list(oxide.d2h(before).sync()) == [1] * 7
            assert list(oxide.d2h(box).sync()) == [byte] * 7


def test_a_pointer_counts_in_bytes() -> None:
    data = RANDOM.integers(0, 255, 1003, np.uint8)

    def move(ctx: ExecutionContext) -> tuple[DevicePointer, Any]:
        pointer = ctx.malloc_async(1003)
        ctx.memset_async(pointer, 7, 1003)
        ctx.memcpy_async(pointer + 100, data[100:200], 100)
        ctx.memcpy_async(500 + pointer, pointer + 100, 100)
        result = pinned_empty(1003, np.uint8)
        ctx.memcpy_async(result, pointer, 1003)
        return pointer, result

    pointer, result = in_run(move)
    expected = np.full(1003, 7, np.uint8)
    expected[100:200] = expected[500:600] = data[100:200]
    np.testing.assert_array_equal(result, expected)
    assert int(pointer + 8) == int(pointer) + 8
    assert (pointer + 8) - pointer == 8
    assert pointer + 8 - 8 == pointer
    assert pointer != pointer + 8
    assert pointer + 8 != pointer
    assert hash(pointer + 8 - 8) == hash(pointer)
    assert (pointer + 1003).nbytes == 0
    for outside in (-1, 1004):
        with pytest.raises(ValueError, match="outside its allocation of 1003 bytes"):
            pointer + outside
    with pytest.raises(TypeError, match="a distance is a number of bytes"):
        pointer + pointer  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"minus 1\.5: it takes a pointer or a number of bytes"):
        pointer - 1.5


def test_a_use_on_another_stream_waits_for_the_write_and_the_memory_lives_until_then() -> None:
    with use_driver(RecordingDriver(step_driver())) as recording:
        driver: Any = recording.inner
        first, second = (oxide.devices()[0].new_stream() for _ in range(2))

        def make(ctx: ExecutionContext) -> DeviceOperation[DevicePointer]:
            pointer = ctx.malloc_async(64)
            ctx.memset_async(pointer, 3, 64)
            return value(pointer)

        held = [with_context(make).async_on(first)]
        result = pinned_empty(64, np.uint8)
        result[:] = 0

        def read(ctx: ExecutionContext) -> DeviceOperation[None]:
            ctx.memcpy_async(result, held.pop(), 64)
            return value(None)

        with_context(read).async_on(second)
        gc.collect()
        while driver.step(second._timeline.handle):
            pass
        assert not result.any()  # it waits for the first stream
        second.synchronize()
        assert (result == 3).all()
        first.synchronize()
        oxide.reclaim.drain()
        assert recording.outstanding()["allocations"] == 0


class Owner:
    """Owns host memory, which is the CPU device's memory too."""

    def __init__(self, array: Any) -> None:
        self.array = array


def test_a_box_of_a_foreign_address_keeps_its_owner_until_its_last_use() -> None:
    with use_driver(step_driver()) as driver:
        first, second = (oxide.devices()[0].new_stream() for _ in range(2))
        array = np.arange(16, dtype=np.float32)
        owner = Owner(array)
        gone = weakref.ref(owner)
        box = DeviceBox.from_raw_parts(array.ctypes.data, (4, 4), f32, owner=owner)
        results = [oxide.d2h(box).async_on(stream) for stream in (first, second)]
        del box, owner
        gc.collect()
        first.synchronize()
        oxide.devices()[0].new_stream().synchronize()
        assert gone() is not None  # the second stream has not read it yet
        second.synchronize()
        oxide.reclaim.drain()
        gc.collect()
        assert gone() is None
        for result in results:
            np.testing.assert_array_equal(result, array.reshape(4, 4))
        assert driver is not None


def test_boxes_of_one_allocation_share_its_history() -> None:
    pointer = in_run(lambda ctx: ctx.malloc_async(48))
    boxes = [
        DeviceBox.from_raw_parts(pointer, (3, 2), np.float64),
        DeviceBox.from_raw_parts(pointer + 8, 5, np.float64),
        DeviceBox.from_raw_parts(int(pointer) + 16, 4, np.float64, owner=pointer),
        DeviceBox.from_raw_parts(int(pointer), 6, np.float64, owner=object()),
    ]
    boxes.append(DeviceBox.from_raw_parts(boxes[0].ptr + 24, (), np.float64, owner=oxide.Arc(boxes[0])))
    assert {id(box._allocation) for box in boxes} == {id(pointer._allocation)}
    oxide.memcpy(boxes[3], np.arange(6.0)).sync()
    assert oxide.d2h(boxes[0]).sync().tolist() == [[0, 1], [2, 3], [4, 5]]
    assert oxide.d2h(boxes[1]).sync().tolist() == [1, 2, 3, 4, 5]
    assert oxide.d2h(boxes[4]).sync() == 3


def test_regions_that_touch_one_another_do_not_overlap() -> None:
    pointer = in_run(lambda ctx: ctx.malloc_async(8))
    box = DeviceBox.from_raw_parts(pointer, 8, np.uint8)
    oxide.memcpy(box, np.arange(8, dtype=np.uint8)).sync()
    in_run(lambda ctx: ctx.memcpy_async(pointer, pointer + 4, 4))
    assert oxide.d2h(box).sync().tolist() == [4, 5, 6, 7, 4, 5, 6, 7]


# Refused


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c, p: c.malloc_async(-1), ValueError, r"ctx.malloc_async: nbytes is -1; .* 0 or more"),
        (lambda c, p: c.malloc_async(2.0), TypeError, r"ctx.malloc_async: nbytes is 2.0; it must be an int"),
        (lambda c, p: c.malloc_async(True), TypeError, "nbytes is True"),
        (lambda c, p: c.malloc_async(2**63), ValueError, "no memory has more"),
        (
            lambda c, p: c.memset_async(p, 0, 65),
            ValueError,
            r"ctx.memset_async: 65 bytes overrun dst, which has 64 bytes",
        ),
        (lambda c, p: c.memset_async(p + 60, 0, 5), ValueError, "overrun dst, which has 4 bytes"),
        (lambda c, p: c.memset_async(p, 256, 4), ValueError, "byte is 256; a byte is 0 to 255"),
        (lambda c, p: c.memset_async(p, 1.5, 4), TypeError, "byte is 1.5"),
        (lambda c, p: c.memset_async(int(p), 0, 4), TypeError, r"dst is \d+; .*from_raw_parts"),
        (lambda c, p: c.memcpy_async(p, np.zeros(2), 17), ValueError, "17 bytes overrun src, an array of 16 bytes"),
        (lambda c, p: c.memcpy_async(p, p + 3, 4), ValueError, "overlap"),
        (lambda c, p: c.memcpy_async(np.zeros(2), p, 16), ValueError, "pageable memory.*pinned_empty"),
        (lambda c, p: c.memcpy_async(np.zeros(2), np.zeros(2), 16), TypeError, "both host arrays"),
        (lambda c, p: c.memcpy_async(p, np.zeros((4, 4)).T[:2], 8), ValueError, "do not follow each other"),
        (lambda c, p: c.memcpy_async(p, np.array([None]), 8), TypeError, "holds Python objects"),
        (lambda c, p: c.memcpy_async(p, b"12345678", 8), TypeError, "np.frombuffer"),
        (lambda c, p: c.memcpy_async(p, np.ma.masked_equal([1, 2], 2), 8), ValueError, "mask"),
        (
            lambda c, p: c.memset_async(DeviceBox.from_raw_parts(p, (4, 4), f32)[:, 0], 0, 4),
            ValueError,
            "strided view",
        ),
        (lambda c, p: DeviceBox.from_raw_parts(p, 17, f32), ValueError, "overruns the allocation of 64 bytes"),
        (lambda c, p: DeviceBox.from_raw_parts(p + 2, 1, f32), ValueError, "multiples of 4"),
        (lambda c, p: DeviceBox.from_raw_parts(p, 1, f32, owner=3), TypeError, "leave owner out"),
        (lambda c, p: DeviceBox.from_raw_parts(4096, 1, f32), TypeError, "pass owner="),
        (lambda c, p: DeviceBox.from_raw_parts(0, 1, f32, owner=c), BufferError, "address is 0"),
        (lambda c, p: DeviceBox.from_raw_parts("x", 1, f32, owner=c), TypeError, "must be a DevicePointer"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_submitted(
    call: Callable[[ExecutionContext, DevicePointer], object], error: type[Exception], message: str
) -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        pointer = in_run(lambda ctx: ctx.malloc_async(64))
        before = len([each for each in driver.submissions if each.method != "record_event"])
        with pytest.raises(error, match=message):
            in_run(lambda ctx: call(ctx, pointer))
        after = [each for each in driver.submissions if each.method != "record_event"]
        assert after[before:] == []


def test_a_read_only_destination_is_refused() -> None:
    pointer, array = in_run(lambda ctx: ctx.malloc_async(64)), pinned_empty(16)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        in_run(lambda ctx: ctx.memcpy_async(array, pointer, 64))


def test_the_address_of_a_box_without_its_owner_is_refused() -> None:
    box = oxide.zeros(8).sync()
    with pytest.raises(oxide.DeviceError, match="in a box of oxide's own"):
        DeviceBox.from_raw_parts(box.ptr + 4, 2, f32, owner=object())


def test_a_context_whose_run_was_submitted_is_refused() -> None:
    contexts: list[ExecutionContext] = []

    def leak(ctx: ExecutionContext) -> DeviceOperation[None]:
        contexts.append(ctx)
        return value(None)

    with_context(leak).sync()
    with with_context(leak).graph():
        pass
    with pytest.raises(OrderingError, match=r"ctx\.malloc_async came too late: the run"):
        contexts[0].malloc_async(8)
    with pytest.raises(GraphError, match=r"ctx\.malloc_async came too late: the graph"):
        contexts[1].malloc_async(8)


def test_memory_of_another_device_or_of_an_ended_runtime_is_refused() -> None:
    with use_driver(CpuDriver(2)):
        here, there = (device.new_stream() for device in oxide.devices())
        pointer = with_context(lambda ctx: value(ctx.malloc_async(8))).sync_on(there)

        def fill(ctx: ExecutionContext) -> DeviceOperation[None]:
            ctx.memset_async(pointer, 0, 8)
            return value(None)

        with pytest.raises(oxide.DeviceError, match=r"ctx\.memset_async: the box is on cpu:1"):
            with_context(fill).sync_on(here)

        def across(ctx: ExecutionContext) -> DeviceOperation[DevicePointer]:
            mine = ctx.malloc_async(8)
            ctx.memset_async(mine, 9, 8)
            ctx.memcpy_async(pointer, mine, 8)
            return value(mine)

        with_context(across).sync_on(here)
        assert oxide.d2h(DeviceBox.from_raw_parts(pointer, 8, np.uint8)).sync_on(there).tolist() == [9] * 8
    with pytest.raises(oxide.DeviceError, match=r"ctx\.memset_async: the box"):
        with_context(fill).sync()


def test_a_scope_that_may_own_no_memory_refuses_to_allocate() -> None:
    stream = oxide.devices()[0].new_stream()
    box = oxide.zeros(8, np.uint8).sync()

    def copy(ctx: ExecutionContext) -> DeviceOperation[None]:
        ctx.memcpy_async(box, np.ones(8, np.uint8), 8)
        return value(None)

    with oxide.CudaGraph.scope(stream) as scope:
        with pytest.raises(GraphError, match="cannot be allocated inside"):
            scope.record(with_context(lambda ctx: value(ctx.malloc_async(8))))
        with pytest.raises(GraphError, match="cannot be allocated inside"):
            scope.record(with_context(copy))


# Failures


def whole() -> tuple[DeviceOperation[Any], Any]:
    data = RANDOM.standard_normal(501).astype(np.float32)

    def second_copy(box: DeviceBox) -> DeviceOperation[DeviceBox]:
        def copied(ctx: ExecutionContext) -> DeviceOperation[DeviceBox]:
            pointer = ctx.malloc_async(box.nbytes)
            ctx.memcpy_async(pointer, box, box.nbytes)
            return value(DeviceBox.from_raw_parts(pointer, box.shape, box.dtype))

        return with_context(copied)

    up = raw_h2d(data).and_then(second_copy)
    return up.and_then(lambda box: relu(box, raw_zeros(501)).last()).and_then(raw_d2h), np.maximum(data, 0)


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("in_a_graph", [False, True])
def test_a_failure_at_any_driver_call_leaves_nothing(in_a_graph: bool) -> None:
    def run(operation: DeviceOperation[Any]) -> Any:
        if not in_a_graph:
            return operation.sync()
        with operation.graph() as graph:
            graph.launch().sync()
            return graph.take_output()

    with use_driver(RecordingDriver(CpuDriver())) as driver:
        operation, expected = whole()
        np.testing.assert_array_equal(run(operation), expected)
        calls = [call.method for call in driver.calls]
        del operation
    failures = 0
    for number, method in enumerate(calls, 1):
        recording = RecordingDriver(CpuDriver())
        failing = FailingDriver(recording)
        with use_driver(failing, policy=oxide.StreamPoolRoundRobin(2)):
            operation, expected = whole()
            injected = oxide.DriverError(999, "CUDA_ERROR_UNKNOWN", f"injected at call {number}")
            failing.fail_call(number, injected)
            try:
                result = run(operation)
            except oxide.DriverError as error:
                assert error is injected  # noqa: PT017
                failures += 1
            else:
                np.testing.assert_array_equal(result, expected)
                del result
            failing.forget()
            operation, expected = whole()
            np.testing.assert_array_equal(run(operation), expected)
            del operation, injected
            gc.collect()
            oxide.reclaim.drain()
            assert recording.outstanding()["allocations"] == recording.outstanding()["host_allocations"] == 0
            assert current_runtime().reclaimer.pending() == (0, 0, 0, 0)
        gc.collect()
        left = recording.outstanding()
        if method == "end_capture":  # the driver below never heard of it, and keeps the stream of a capture
            left.pop("streams")
        assert set(left.values()) == {0}, f"call {number}: {left}"
    assert failures > len(calls) // 2


def test_an_array_that_owns_the_memory_bounds_the_box() -> None:
    with use_driver(step_driver()):
        array = np.zeros(4, np.float32)
        DeviceBox.from_raw_parts(array.ctypes.data + 4, 3, f32, owner=array)
        with pytest.raises(ValueError, match=r"16 bytes at byte 4 overrun the owner, an array of 16 bytes"):
            DeviceBox.from_raw_parts(array.ctypes.data + 4, 4, f32, owner=array)
        array.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            DeviceBox.from_raw_parts(array.ctypes.data, 4, f32, owner=array)
