"""Boxes that are dropped while streams use them: who waits, and when their memory goes back."""

from __future__ import annotations

import pytest

from oxide import Stream, d2h, devices, full, reclaim
from oxide.testing import RecordingDriver, step_driver, use_driver


def waits(driver: RecordingDriver, stream: Stream) -> int:
    return sum(call.method == "wait_event" and call.arguments[0] is stream._timeline.handle for call in driver.calls)


@pytest.mark.parametrize("readers", [1, 2])
def test_no_stream_waits_because_a_box_that_others_use_was_dropped(readers: int) -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        home = devices()[0].new_stream()
        busy = [devices()[0].new_stream() for _ in range(readers)]
        box = full(1000, 5).sync_on(home)
        for stream in busy:
            d2h(box).async_on(stream)
        del box
        full(1000, 9).async_on(home)  # which sweeps
        assert waits(driver, home) == 0
        freed = [call.arguments[1] for call in driver.calls if call.method == "free"]
        assert home._timeline.handle not in freed
        driver.inner.run_until_idle()


def test_the_memory_goes_back_after_the_last_of_several_uses() -> None:
    with use_driver(RecordingDriver(step_driver(seed=5))) as driver:
        for number in range(40):
            streams = [devices()[0].new_stream() for _ in range(3)]
            box = full(64, number).async_on(streams[0])
            results = [d2h(box).async_on(stream) for stream in streams[1 + number % 2 :]]
            del box
            full(64, -1).async_on(streams[0])
            for stream in streams:
                stream.synchronize()
            assert all(set(result) == {number} for result in results)
        del stream, streams, results
        reclaim.drain()
        assert driver.inner.live_allocations.device_count == 0
