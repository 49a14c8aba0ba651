"""Which device an operation runs on, in a program that uses several.

An operation runs on the device of the context it is part of, unless it was placed: ``op.on(device)``. A placed
operation that is part of one on another device runs on a stream of its own device, which the policy picks; nothing
waits in between but what the buffers ask for, and the run it is part of ends after it.
"""

from __future__ import annotations

from typing import TypeVar, final

from oxide.errors import DeviceError, GraphError
from oxide.messages import written
from oxide.native import Given
from oxide.runtime.device.policy import SchedulingPolicy
from oxide.runtime.device.runtime import Device, Runtime, current_runtime, not_in_force
from oxide.runtime.operations.operation import DeviceOperation, Spec, picked_stream
from oxide.runtime.submission.stream import Stream
from oxide.runtime.submission.submission import ExecutionContext

T = TypeVar("T")


@final
class OnDevice(DeviceOperation[T]):
    """See ``DeviceOperation.on``."""

    def __init__(self, source: DeviceOperation[T], device: Given[int | Device]) -> None:
        source.consume()
        self._source = source
        self._placement = require_placement(device, "on")
        super().__init__(source)
        self._placed = True

    def execute(self, context: ExecutionContext) -> T:
        return self._source.run(context)

    def spec(self) -> Spec:
        return self._innermost()._source.spec()

    def _innermost(self) -> OnDevice[T]:
        """Of placements inside one another the one that says where the work runs; found without recursion, so that
        they can be described however many they are."""
        inner = self
        while isinstance(inner._source, OnDevice):
            inner = inner._source
        return inner

    def __repr__(self) -> str:
        inner = self._innermost()
        return f"<oxide operation on device {written(_number(inner._placement))}: {inner._source!r}>"


@final
class PolicyOf:
    """See ``policy_of``."""

    def __init__(self, device: Given[int | Device]) -> None:
        self._placement = require_placement(device, "policy_of")

    def next_stream(self, device: Device) -> Stream:
        runtime = current_runtime()
        return picked_stream(runtime.policy, find_device(runtime, self._placement))

    def __repr__(self) -> str:
        return f"policy_of({written(_number(self._placement))})"


def policy_of(device: Given[int | Device]) -> SchedulingPolicy:
    """The runtime's policy, for one device only: ``op.schedule(policy_of(1))`` runs on device 1.

    ``device`` is a number or one of ``devices()``. Raises ``TypeError`` for anything else, and ``DeviceError``, when a
    stream is picked, for a device that is not set up.
    """
    return PolicyOf(device)


def require_placement(device: Given[int | Device], what: str) -> int | Device:
    """The device as a user names it. Raises ``TypeError`` or ``DeviceError``."""
    if isinstance(device, Device):
        return device
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(
            f"{what} takes a device's number or one of devices(), not {type(device).__name__} {written(device)}"
        )
    if device < 0:
        raise DeviceError(f"{what} was given device {written(device)}; devices are numbered from 0")
    return device


def find_device(runtime: Runtime, placement: int | Device) -> Device:
    """The device of a runtime's. Raises ``DeviceError`` for one that is not set up there."""
    device = runtime.device(_number(placement))
    if isinstance(placement, Device) and device is not placement:
        raise not_in_force(placement.label, "take it from devices()")
    return device


def run_placed(context: ExecutionContext, device: Device, operation: DeviceOperation[T]) -> T:
    """Runs an operation as part of ``context`` on another device, on a stream that the policy picks."""
    if context.recording is not None:
        raise GraphError(
            f"{operation!r} runs on {device.label} and cannot be captured into a graph of {context.device.label}: a "
            f"graph runs on one device. Capture a graph for each, with op.on(device).graph()"
        )
    inner = ExecutionContext(picked_stream(context.runtime.policy, device), None, context.visible)
    inner.place, inner.levels = context.place, context.levels
    try:
        return operation.execute(inner)
    except BaseException as error:
        if not isinstance(error, Exception):
            inner.interrupted()
        raise
    finally:
        context.join(inner)


def _number(placement: int | Device | None) -> int:
    assert placement is not None
    return placement.id if isinstance(placement, Device) else placement
