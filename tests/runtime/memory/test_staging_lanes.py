"""The slots that large uploads are staged through: shared by a stream's uploads, free again after their copies."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest

import oxide
from oxide import DeviceBox, DisjointSlice, h2d, kernel, thread, u8
from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu.streams import BlockRange, CpuStream
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.memory import staging_ring
from oxide.runtime.submission import staging
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver

MIB = 1 << 20


@kernel(block=128)
def increment(x: DisjointSlice[u8]) -> None:
    elem = x.get_mut(thread.index_1d())
    if elem is not None:
        elem.value = elem.value + u8(1)


def is_filling(stream: CpuStream) -> bool:
    """Whether what comes next on a stream is to fill a slot."""
    return "native host function" in repr(stream.items[0])


def random_bytes(nbytes: int) -> np.ndarray:
    return np.random.default_rng().integers(0, 255, nbytes, np.uint8)


def run_all_but(driver: CpuDriver, left: Callable[[CpuStream], bool]) -> None:
    """Steps all streams whose next item can run, but those ``left``."""
    while ready := [stream for stream in driver.pending() if not left(stream)]:
        assert driver.step(ready[0])


def run_all_but_kernels(driver: CpuDriver) -> None:
    run_all_but(driver, lambda stream: isinstance(stream.items[0], BlockRange))


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_a_slot_is_free_after_its_copy_and_does_not_wait_for_the_kernels_behind_it(limit: int) -> None:
    with use_driver(step_driver()) as driver:
        current_runtime().pinned.limit = limit
        first, second = random_bytes(9 * MIB), random_bytes(9 * MIB)
        streams = [oxide.devices()[0].new_stream() for _ in range(2)]
        boxes = h2d(first).and_then(increment).async_on(streams[0])
        other = h2d(second).async_on(streams[1])
        run_all_but_kernels(driver)
        assert driver.query_stream(streams[1]._timeline.handle)
        assert not driver.query_stream(streams[0]._timeline.handle)
        np.testing.assert_array_equal(oxide.d2h(other).sync_on(streams[1]), second)
        np.testing.assert_array_equal(oxide.d2h(boxes[0]).sync_on(streams[0]), first + 1)


def test_the_next_upload_of_a_stream_is_staged_while_the_kernels_before_it_run() -> None:
    with use_driver(step_driver()) as driver:
        stream = oxide.devices()[0].new_stream()
        data = random_bytes(9 * MIB)
        h2d(random_bytes(9 * MIB)).and_then(increment).async_on(stream)
        box = h2d(data).async_on(stream)
        run_all_but_kernels(driver)
        lane = stream._timeline.lane()
        assert lane is not None
        staged = [ctypes.string_at(slot.address, 64) for slot in lane.turns.slots]
        chunks = [data[offset : offset + 64].tobytes() for offset, _ in staging._layout(len(data), lane.chunk)]
        assert set(chunks) <= set(staged)
        np.testing.assert_array_equal(oxide.d2h(box).sync_on(stream), data)


def test_uploads_in_flight_on_a_stream_share_slots_which_go_back_to_the_pool_with_the_last() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        stream = oxide.devices()[0].new_stream()
        data = [random_bytes(9 * MIB + number) for number in range(12)]
        boxes = [h2d(array).async_on(stream) for array in data]
        pool = current_runtime().pinned
        chunk = staging._chunk_bytes(9 * MIB)
        assert pool._held <= staging._SLOTS * chunk
        assert pool.free_bytes == 0
        stream.synchronize()
        assert pool.free_bytes == pool._held
        assert stream._timeline.lane() is None
        for box, array in zip(boxes, data, strict=True):
            np.testing.assert_array_equal(oxide.d2h(box).sync_on(stream), array)
        del boxes, box
        oxide.reclaim.drain()
        assert driver.live_allocations.host_bytes == 0


def test_small_chunks_are_filled_further_ahead() -> None:
    with use_driver(step_driver()):
        stream = oxide.devices()[0].new_stream()
        data = [random_bytes(MIB) for _ in range(40)]
        boxes = [h2d(array).async_on(stream) for array in data]
        assert current_runtime().pinned._held == staging._LANE_BYTES
        for box, array in zip(boxes, data, strict=True):
            np.testing.assert_array_equal(oxide.d2h(box).sync_on(stream), array)


def test_copies_of_one_chunk_take_the_rings_slots_in_turn() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        current_runtime().pinned.limit = 0
        stream = oxide.devices()[0].new_stream()
        data = [random_bytes(MIB - 5) for _ in range(staging_ring._RING_SLOTS)]
        boxes = [h2d(array).async_on(stream) for array in data]
        sources = [call.arguments[1] for call in driver.calls if call.method == "copy_to_device"]
        assert len(set(sources)) == len(data) == len(sources)
        for box, array in zip(boxes, data, strict=True):
            np.testing.assert_array_equal(oxide.d2h(box).sync_on(stream), array)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_uploads_of_all_sizes_follow_one_another_on_one_stream(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.choice([staging.SMALL_BYTES + 1, MIB, 3 * MIB - 1, 5 * MIB, 17 * MIB + 7], 8)
    data = [rng.integers(0, 255, size, np.uint8) for size in sizes]
    with use_driver(step_driver(seed=seed)):
        stream = oxide.devices()[0].new_stream()
        boxes: list[DeviceBox] = [h2d(array).async_on(stream) for array in data]
        for box, array in zip(boxes, data, strict=True):
            np.testing.assert_array_equal(oxide.d2h(box).sync_on(stream), array)


def test_threads_upload_on_one_stream() -> None:
    data = [random_bytes(6 * MIB + number) for number in range(4)]
    results: list[np.ndarray | None] = [None] * len(data)
    with use_driver(CpuDriver()):
        stream = oxide.devices()[0].new_stream()

        def upload(number: int) -> None:
            for _ in range(5):
                results[number] = h2d(data[number]).to_host().sync_on(stream)

        threads = [threading.Thread(target=upload, args=(number,)) for number in range(len(data))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        for result, array in zip(results, data, strict=True):
            assert result is not None
            np.testing.assert_array_equal(result, array)


@pytest.mark.slow
@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize(("limit", "nbytes"), [(0, 200), (1 << 30, 1600)])  # 13 chunks each
def test_what_a_failed_upload_had_submitted_writes_into_no_slot_that_is_used_again(
    monkeypatch: pytest.MonkeyPatch, limit: int, nbytes: int
) -> None:
    monkeypatch.setattr(staging_ring, "CHUNK_BYTES", 16)
    monkeypatch.setattr(staging, "SMALL_BYTES", 0)
    data = random_bytes(nbytes)

    with use_driver(RecordingDriver(step_driver())) as counting:
        h2d(random_bytes(nbytes)).to_host().sync()
    for number in range(1, len(counting.calls) + 1):
        for held in range(staging._SLOTS):  # one of the streams beside stops where it was
            steps = step_driver()
            with use_driver(FailingDriver(steps)) as driver:
                current_runtime().pinned.limit = limit
                stream = oxide.devices()[0].new_stream()
                driver.fail_call(number, oxide.DriverError(999, "CUDA_ERROR_UNKNOWN", "injected"))
                with contextlib.suppress(oxide.DriverError):
                    h2d(random_bytes(nbytes)).async_on(stream)
                driver.forget()
                gc.collect()  # the error's traceback holds what failed
                beside = [one for one in steps.pending() if is_filling(one)]
                stopped = beside[held : held + 1]
                run_all_but(steps, lambda one: one in stopped)  # noqa: B023
                copied = h2d(data).to_host().async_on(stream)
                run_all_but(steps, lambda one: one in stopped or not is_filling(one))  # noqa: B023
                run_all_but(steps, lambda one: one not in stopped)  # noqa: B023
                steps.run_until_idle()
                np.testing.assert_array_equal(copied, data, f"after a failure of call {number}")
