"""Policies of a program's own: streams of the wrong device are refused wherever the runtime asks for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import pytest
import trio

import oxide
from oxide import DeviceError, from_dlpack, h2d, policy_of, value, with_context, zeros
from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver
from tests.on_stream import On


@final
class Forgetful:
    """One stream for all, whatever device is asked for."""

    stream: oxide.Stream | None = None

    def next_stream(self, device: oxide.Device) -> oxide.Stream:
        if self.stream is None:
            self.stream = device.new_stream()
        return self.stream


def awaited(operation: oxide.DeviceOperation[Any]) -> Any:
    async def main() -> Any:
        return await operation

    return trio.run(main)


WRONG = "the policy Forgetful returned a stream of cpu:0, where a stream of cpu:1 was asked for; next_stream"


@pytest.mark.parametrize(
    "run",
    [
        lambda: zeros(3).on(1).sync(),
        lambda: awaited(zeros(3).on(1)),
        lambda: zeros(3).on(1).into_future(),
        lambda: zeros(3).schedule(policy_of(1)),
        lambda: oxide.zip(value(1), zeros(3).on(1)).sync(),
        lambda: zeros(3).to_device(1).sync(),
        lambda: zeros(3).map(lambda _: None).on(1).graph().launch().sync(),
    ],
)
def test_a_stream_of_another_device_than_the_one_asked_for_is_refused(run: Callable[[], object]) -> None:
    with use_driver(CpuDriver(2), policy=Forgetful()):
        zeros(3).sync()
        with pytest.raises(DeviceError, match=WRONG):
            run()
        np.testing.assert_array_equal(zeros(3).to_host().sync(), 0)


def test_an_array_of_another_library_is_not_taken_to_a_stream_of_another_device() -> None:
    with use_driver(CpuDriver(2), policy=Forgetful()):
        zeros(3).sync_on(oxide.devices()[1].new_stream())
        oxide.init_device_contexts(1, 2, policy=On(oxide.devices()[1].new_stream()))
        with pytest.raises(DeviceError, match="the policy On returned a stream of cpu:1, where a stream of cpu:0"):
            from_dlpack(np.ones(3))


def test_a_policy_given_to_schedule_says_where_an_operation_runs() -> None:
    with use_driver(CpuDriver(2)):
        policy = On(oxide.devices()[1].new_stream())

        async def main() -> tuple[int, int]:
            where = with_context(lambda context: value(context.device_id))
            return await where.schedule(policy), await where.on(0).schedule(policy)

        assert trio.run(main) == (1, 0)


def test_a_stream_of_a_runtime_that_is_not_in_force_is_called_that() -> None:
    policy = Forgetful()
    with use_driver(CpuDriver(1), policy=policy):
        zeros(3).sync()
    with (
        use_driver(CpuDriver(1), policy=policy),
        pytest.raises(DeviceError, match="the policy Forgetful returned belongs to a runtime that is not in force"),
    ):
        h2d(np.ones(3)).sync()
