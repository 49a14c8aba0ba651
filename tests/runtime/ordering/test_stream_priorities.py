"""The priority of a stream: who gets it, who keeps it, and that the work of a high one goes first."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import StreamPoolRoundRobin, d2h, h2d, with_context
from oxide.driver.cpu import CpuDriver
from oxide.testing import RecordingDriver, step_driver, use_driver
from tests.on_stream import On


def created(driver: RecordingDriver) -> list[Any]:
    return [call.arguments for call in driver.calls if call.method == "create_stream"]


def test_a_stream_has_the_priority_that_was_asked_for_and_so_has_its_fork() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        device = oxide.devices()[0]
        normal, high = device.new_stream(), device.new_stream(priority="high")
        assert (normal.priority, high.priority) == ("normal", "high")
        assert (normal.fork().priority, high.fork().priority) == ("normal", "high")
        assert device.new_stream(priority="normal").priority == "normal"
        assert created(driver)[:2] == [(0, "normal"), (0, "high")]
        assert repr(normal).endswith("on cpu:0>")
        assert repr(high).endswith("on cpu:0, high priority>")


def test_a_dropped_stream_is_used_again_for_its_priority_alone() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        device = oxide.devices()[0]
        dropped = device.new_stream(priority="high")
        handle = dropped._timeline.handle
        del dropped
        gc.collect()
        normal = device.new_stream()
        assert normal._timeline.handle is not handle
        again = device.new_stream(priority="high")
        assert again._timeline.handle is handle
        assert created(driver) == [(0, "high"), (0, "normal")]


def test_streams_of_the_runtime_are_normal() -> None:
    with use_driver(RecordingDriver(CpuDriver()), completion="callback") as driver:
        stream = oxide.devices()[0].new_stream(priority="high")

        async def main() -> Any:
            return await d2h(h2d(np.ones(8, np.float32))).schedule(On(stream))

        np.testing.assert_array_equal(trio.run(main), 1)
        assert created(driver)[0] == (0, "high")
        assert {*created(driver)[1:]} <= {(0, "normal")}


@pytest.mark.parametrize("wrong", ["low", "HIGH", "", 0, -1, None, True, np.ones(2), ["high"]])
def test_any_other_priority_is_refused_before_a_stream_is_made(wrong: Any) -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        with pytest.raises(
            ValueError, match=r"^new_stream\(priority=.*\): priority must be 'normal' or 'high'$"
        ) as one:
            oxide.devices()[0].new_stream(priority=wrong)
        with pytest.raises(ValueError, match=r"^StreamPoolRoundRobin\(priority=.*\): priority must be") as other:
            StreamPoolRoundRobin(4, priority=wrong)
        assert repr(wrong) in str(one.value)
        assert repr(wrong) in str(other.value)
        assert created(driver) == []


def test_a_pool_of_high_priority_has_streams_of_it() -> None:
    policy = StreamPoolRoundRobin(2, priority="high")
    assert repr(policy) == "StreamPoolRoundRobin(streams=2, priority='high')"
    assert repr(StreamPoolRoundRobin(2)) == "StreamPoolRoundRobin(streams=2)"
    with use_driver(CpuDriver()):
        picked = with_context(lambda context: oxide.value(context.stream.priority))
        assert picked.sync() == "normal"

        async def main() -> str:
            return await picked.schedule(policy)

        assert trio.run(main) == "high"
        oxide.init_device_contexts(policy=policy)
        assert picked.sync() == "high"


def test_work_of_high_priority_overtakes_what_was_submitted_before_it_but_not_what_it_needs() -> None:
    with use_driver(step_driver()):
        device = oxide.devices()[0]
        normal, high = device.new_stream(), device.new_stream(priority="high")
        box = h2d(np.full(8, 3, np.float32)).async_on(normal)
        alone = h2d(np.ones(8, np.float32)).and_then(d2h).async_on(high)
        high.synchronize()
        np.testing.assert_array_equal(alone, 1)
        assert not normal.query()
        needs = d2h(box).async_on(high)  # behind the upload on the other stream
        high.synchronize()
        np.testing.assert_array_equal(needs, 3)
