"""Placement: the device that an operation runs on, in a program with several devices.

An operation runs on the device of the context that it is part of, unless it was placed: ``op.on(device)``. A placed
operation that is part of an operation on another device runs on a stream of its own device, which the policy picks. The
two streams wait for each other only where they use the same buffers, and the enclosing run ends after the placed
operation.
"""

from __future__ import annotations

from typing import Any, TypeVar, final

from oxide.host.messages import written
from oxide.runtime.devices.runtime import Device
from oxide.runtime.devices.scheduling import placed_number, require_placement
from oxide.runtime.operations.operation import Depiction, DeviceOperation, Spec
from oxide.runtime.submission.submission import ExecutionContext

T = TypeVar("T")


@final
class OnDevice(DeviceOperation[T]):
    _composed = True
    _called = "on"

    def __init__(self, source: DeviceOperation[T], device: int | Device) -> None:
        source.consume()
        self._source = source
        self._parts = (source,)
        self._placement = require_placement(device, "on")
        super().__init__(source)
        self._placed = True

    def finish(self, context: ExecutionContext, results: list[Any]) -> T:
        result: T = results[0]
        return result

    def spec(self) -> Spec:
        return self._innermost()._source.spec()

    def depict(self) -> Depiction:
        return "", "", (), (("", self._source),)

    def _innermost(self) -> OnDevice[T]:
        """Returns the innermost of nested placements, which decides where the work runs. Works without recursion, so
        that any number of placements may be nested."""
        inner = self
        while isinstance(inner._source, OnDevice):
            inner = inner._source
        return inner

    def __repr__(self) -> str:
        inner = self._innermost()
        return f"<oxide operation on device {written(placed_number(inner._placement))}: {inner._source!r}>"
