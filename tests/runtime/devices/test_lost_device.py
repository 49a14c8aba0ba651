"""A lost device: everything in flight on it fails promptly, with the first cause, though no callback comes any more."""

from __future__ import annotations

import time
import traceback
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import h2d, spawn, value
from oxide.driver.cpu import CpuDriver
from oxide.testing import DelegatingDriver, step_driver, use_driver


class Losing(DelegatingDriver):
    """Nothing runs on device 0 any more, and once ``lost`` no call comes back well; device 1 is as it was."""

    lost = False

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        touches = method.startswith(("query", "synchronize", "record", "launch", "copy"))
        if self.lost and touches and arguments[-1].device == 0:
            cause = oxide.DriverError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", method)
            raise oxide.DeviceLostError("the context is gone") from cause
        return super().invoke(method, *arguments, **keywords)


@pytest.mark.slow
@pytest.mark.parametrize("completion", ["adaptive", "poll", "callback"])
def test_every_task_in_flight_fails_with_the_first_cause_within_a_second(completion: Any) -> None:
    driver = Losing(step_driver())
    with use_driver(driver, completion=completion):

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                handles = [spawn(nursery, h2d(np.ones(3)).to_host(), errors="handle") for _ in range(20)]
                for _ in range(50):
                    await trio.lowlevel.checkpoint()
                driver.lost = True
                start = time.perf_counter()
                causes = set()
                for handle in handles:
                    with pytest.raises(oxide.DeviceLostError) as caught:
                        await handle
                    causes.add(caught.value.__cause__)
                assert time.perf_counter() - start < 1
                assert len(causes) == 1
                with pytest.raises(oxide.DeviceLostError) as later:
                    await value(1)
                assert later.value.__cause__ in causes
                stream = oxide.devices()[0].new_stream
                with pytest.raises(oxide.DeviceLostError):
                    h2d(np.ones(3)).sync_on(stream())

        with pytest.warns(RuntimeWarning, match="blocks the trio event loop"):
            trio.run(main)
        driver.lost = False


def test_a_lost_device_leaves_the_others_alone() -> None:
    driver = Losing(CpuDriver(2))
    with use_driver(driver):
        first, second = (device.new_stream() for device in oxide.devices())
        driver.lost = True
        with pytest.raises(oxide.DeviceLostError):
            h2d(np.ones(3)).sync_on(first)
        np.testing.assert_array_equal(h2d(np.arange(3.0)).to_host().sync_on(second), np.arange(3.0))
        driver.lost = False


def test_looking_ahead_of_a_mark_that_was_passed_notes_the_loss_and_leaves_it_to_whoever_asks_for_the_others() -> None:
    driver = Losing(step_driver())
    with use_driver(driver):
        stream = oxide.devices()[0].new_stream()
        marks = [stream._timeline.mark() for _ in range(20)]
        driver.run_until_idle()
        answer = stream._timeline.ask(marks[0])
        driver.lost = True
        assert answer
        stream._timeline.look_ahead()
        assert stream.device.lost is not None
        assert marks[0].passed()
        with pytest.raises(oxide.DeviceLostError):
            marks[1].passed()
        del marks
        driver.lost = False


@pytest.mark.parametrize("use", ["sync_on", "passed", "mark"])
def test_the_loss_shows_the_call_of_the_driver_that_found_it(use: str) -> None:
    driver = Losing(step_driver())
    with use_driver(driver):
        stream = oxide.devices()[0].new_stream()
        timeline = stream._timeline
        mark = timeline.mark()
        driver.lost = True
        with pytest.raises(oxide.DeviceLostError) as found:
            {"sync_on": lambda: value(1).sync_on(stream), "passed": mark.passed, "mark": timeline.close}[use]()
        driver.lost = False
        assert "invoke" in [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
