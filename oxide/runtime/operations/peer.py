"""to_device: a box's copy on a device of choice, directly between two devices where the hardware can.

A copy also on the device that the box is on: what a program then writes into it must not show in the original on one
device and not on two. So a program gives the same numbers however many devices there are.
"""

from __future__ import annotations

from typing import Any, final

from oxide.native import Given
from oxide.runtime.device.arc import Arc
from oxide.runtime.device.memory import DeviceBox, require_runtime
from oxide.runtime.device.runtime import Device
from oxide.runtime.device.scheduling import find_device, require_placement
from oxide.runtime.operations.operation import DeviceOperation, Spec
from oxide.runtime.operations.placement import run_placed
from oxide.runtime.operations.transfers import copy_box, new_box, require_box
from oxide.runtime.submission.submission import ExecutionContext


@final
class ToDevice(DeviceOperation[DeviceBox]):
    """See ``to_device``."""

    def __init__(
        self, box: Given[DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]], device: Given[int | Device]
    ) -> None:
        self._box = box
        parts = [box] if isinstance(box, DeviceOperation) else []
        for part in parts:
            part.consume()
        self._target = require_placement(device, "to_device")
        super().__init__(*parts)

    def execute(self, context: ExecutionContext) -> DeviceBox:
        box = self._box.run(context) if isinstance(self._box, DeviceOperation) else self._box
        source = require_box(box, "to_device")
        require_runtime(source, context.device, "to_device")
        target = find_device(context.runtime, self._target)
        arrival = _Arrival(source)
        return arrival.run(context) if target is context.device else run_placed(context, target, arrival)

    def spec(self) -> Spec:
        return self._box.spec() if isinstance(self._box, DeviceOperation) else None


@final
class _Arrival(DeviceOperation[DeviceBox]):
    """A copy of any device's box on the device it runs on."""

    def __init__(self, source: DeviceBox) -> None:
        self._source = source
        super().__init__()
        self.consume()

    def execute(self, context: ExecutionContext) -> DeviceBox:
        copy = new_box(context, self._source.shape, self._source.dtype)
        copy_box(context, copy, self._source)
        return copy


def to_device(
    box: Given[DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]], device: Given[int | Device]
) -> DeviceOperation[DeviceBox]:
    """A box's copy on a device: directly between the two where the hardware can, and within it where the box is on it.

    Always a new box: it costs its memory and the time of a copy also where the box is there already; compare
    ``box.device`` first where that matters. Takes a box, an ``Arc`` of one, or an operation that yields one, and a
    device's number or one of ``devices()``. May be run on any device. What follows it runs where it would have run
    without: ``op.to_device(1).and_then(f)`` needs ``.on(1)`` inside ``f``. Raises ``TypeError`` for anything else.
    """
    if not isinstance(box, DeviceOperation):
        require_box(box, "to_device")
    return ToDevice(box, device)
