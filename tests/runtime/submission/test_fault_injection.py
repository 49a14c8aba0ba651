"""Each driver call that a pipeline makes fails once: one error to the right caller, and nothing left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from examples.async_mlp import pipeline, synthetic
from oxide import DeviceOperation, DisjointSlice, Slice, as_completed, d2h, dup, f32, gather, h2d, kernel, thread, zeros
from oxide.driver.cpu import CpuDriver
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.memory import staging_ring
from oxide.runtime.submission import staging
from oxide.testing import DelegatingDriver, FailingDriver, RecordingDriver, use_driver

pytestmark = pytest.mark.usefixtures("small_heap")  # they collect garbage hundreds of times

ONES = np.ones(500, np.float32)


@kernel(block=128)
def increment(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + f32(1.0)


def ten_stages() -> tuple[DeviceOperation[Any], Any]:
    def up(box: Any) -> DeviceOperation[Any]:
        return increment(box, zeros(box.size)).last()

    operation = h2d(ONES).and_then(up).and_then(dup).and_then(up).and_then(up).map(lambda box: box.reshape(50, 10))
    staged = operation.and_then(lambda box: oxide.zip(dup(box), dup(box)).first()).and_then(dup).and_then(dup)
    return staged.and_then(d2h), np.full((50, 10), 4.0)


def example() -> tuple[DeviceOperation[Any], Any]:
    model = synthetic.Model.of(32)
    batch = synthetic.input_batch(32, 0)
    expected = np.maximum(0, batch.astype(float) @ model.w0.astype(float) @ model.w1.astype(float))
    weights = oxide.zip(h2d(model.w0).arc(), h2d(model.w1).arc())
    return weights.and_then(lambda w: pipeline.mlp(batch, *w)), expected


def staged_copy() -> tuple[DeviceOperation[Any], Any]:
    data = np.arange(200.0)
    return h2d(data).and_then(d2h), data


def by_sync(operation: DeviceOperation[Any]) -> Any:
    return operation.sync()


def by_await(operation: DeviceOperation[Any]) -> Any:
    async def main() -> Any:
        return await operation

    return trio.run(main)


def in_gather(operation: DeviceOperation[Any]) -> Any:
    async def main() -> Any:
        return (await gather(operation, operation))[1]

    return trio.run(main)


def in_as_completed(operation: DeviceOperation[Any]) -> Any:
    async def main() -> Any:
        return [result async for result in as_completed([operation, operation], limit=1)][0]  # noqa: RUF015

    return trio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("run", [by_sync, by_await, in_gather, in_as_completed])
@pytest.mark.parametrize("build", [ten_stages, example, staged_copy])
def test_a_failure_at_any_driver_call_is_one_error_and_leaves_nothing(
    build: Callable[[], tuple[DeviceOperation[Any], Any]],
    run: Callable[[DeviceOperation[Any]], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if build is staged_copy:
        monkeypatch.setattr(staging_ring, "CHUNK_BYTES", 16)  # seven chunks, which take turns with four slots
        monkeypatch.setattr(staging, "SMALL_BYTES", 0)
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        operation, expected = build()
        np.testing.assert_allclose(run(operation), expected, rtol=1e-5)
        calls = len(driver.calls)
    assert calls > 20
    failures = noted = 0
    for number in range(1, calls + 1):
        recording = RecordingDriver(CpuDriver())
        failing = FailingDriver(recording)
        with use_driver(failing, policy=oxide.StreamPoolRoundRobin(2)):
            operation, expected = build()
            injected = oxide.DriverError(999, "CUDA_ERROR_UNKNOWN", f"injected at call {number}")
            failing.fail_call(number, injected)
            try:
                result = run(operation)
            except oxide.DriverError as error:
                assert error is injected  # noqa: PT017
                failures += 1
                noted += bool(getattr(error, "__notes__", None))  # where in the operation
            else:
                np.testing.assert_allclose(result, expected, rtol=1e-5)
                del result
            failing.forget()  # polling makes their number differ from run to run
            # The same operation again, in the same runtime.
            np.testing.assert_allclose(run(operation), expected, rtol=1e-5)
            del operation, injected
            gc.collect()  # an error's traceback holds what failed
            oxide.reclaim.drain()
            assert recording.outstanding()["allocations"] == recording.outstanding()["host_allocations"] == 0
            assert current_runtime().reclaimer.pending() == (0, 0, 0, 0)
            assert recording.inner.live_allocations.device_count == 0  # type: ignore[attr-defined]
        gc.collect()
        assert set(recording.outstanding().values()) == {0}, f"call {number}: {recording.outstanding()}"
    # All but what finds the streams that operations are to run on: making two, and asking the four that are spare.
    assert noted >= failures - 6
    assert failures > calls // 2  # a failed free, say, is tried again and is nobody's error


class LostDriver(DelegatingDriver):
    """From the ``n``-th call on, the device is gone: every call that touches it says so."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.lost_at: int | None = None

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if self.lost_at is not None and method not in ("device_count", "device_info", "stream_address"):
            self.lost_at -= 1
            if self.lost_at <= 0:
                cause = oxide.DriverError(719, "CUDA_ERROR_LAUNCH_FAILED", f"first seen by {method}")
                raise oxide.DeviceLostError("the context is gone") from cause
        return super().invoke(method, *arguments, **keywords)


@pytest.mark.parametrize("run", [by_sync, by_await, in_gather])
def test_a_device_that_is_lost_at_any_call_fails_what_is_in_flight_and_all_that_follows(
    run: Callable[[DeviceOperation[Any]], Any],
) -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        run(ten_stages()[0])
        calls = len(driver.calls)
    for number in range(1, calls, 3):
        inner = CpuDriver()
        driver = LostDriver(inner)
        with use_driver(driver):
            operation, _ = ten_stages()
            driver.lost_at = number
            with pytest.raises(oxide.DeviceLostError) as first:
                for _ in range(10):  # the end of the calls may be cleaning up, which is nobody's error
                    run(operation)
            assert isinstance(first.value.__cause__, oxide.DriverError)
            with pytest.raises(oxide.DeviceLostError) as later:
                run(operation)
            assert isinstance(later.value.__cause__, oxide.DriverError)
            if later.value is not first.value:
                assert "first seen by" in str(later.value.__cause__)
            del operation, first, later
            gc.collect()
            oxide.reclaim.drain()  # returns
        # What was submitted before runs on in the device below: it stays lost to the runtime, whose memory goes here.
        inner.close()
