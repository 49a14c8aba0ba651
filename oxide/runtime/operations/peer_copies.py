"""to_device: copies a box to another device, directly between the two devices if the hardware can.

``to_device`` makes a copy even if the box is on that device already. So later writes to the result never show in the
original, and a program computes the same numbers with any number of devices.
"""

from __future__ import annotations

from typing import Any, final

from oxide.host.core import new_box
from oxide.host.messages import written
from oxide.runtime.devices.runtime import Device
from oxide.runtime.devices.scheduling import find_device, placed_number, require_placement
from oxide.runtime.memory.memory import Arc, DeviceBox, require_runtime
from oxide.runtime.operations.operation import Depiction, DeviceOperation, OfArguments, Spec, consume, spec_of
from oxide.runtime.operations.transfers import copy_box, require_box
from oxide.runtime.submission.submission import ExecutionContext
from oxide.runtime.submission.walk import Frame


@final
class ToDevice(OfArguments[DeviceBox]):
    _called = "to_device"

    def __init__(self, box: DeviceBox | Arc[DeviceBox] | DeviceOperation[Any], device: int | Device) -> None:
        self._box = box
        consume([box])
        self._target = require_placement(device, "to_device")
        super().__init__(box)
        self._composed = True

    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None:
        if frame.at == 2:
            frame.result = result
            return None
        if frame.at == 0 and self._parts:
            frame.at = 1
            part: DeviceOperation[Any] = self._parts[0]
            return part
        source = require_box(result if self._parts else self._box, "to_device")
        require_runtime(source, frame.context.device, "to_device")
        frame.at = 2
        return _Arrival(source, find_device(frame.context.runtime, self._target))

    def spec(self) -> Spec:
        return spec_of(self._box)

    def depict(self) -> Depiction:
        return "copy", "to_device", (f"to device {written(placed_number(self._target))}",), (("", self._box),)


@final
class _Arrival(DeviceOperation[DeviceBox]):
    """An operation that copies a box of any device to ``device``."""

    def __init__(self, source: DeviceBox, device: Device) -> None:
        self._source = source
        super().__init__()
        self.consume()
        self._placed, self._placement = True, device

    def execute(self, context: ExecutionContext) -> DeviceBox:
        copy = new_box(context, self._source.shape, self._source.dtype)
        copy_box(context, copy, self._source)
        return copy


def to_device(
    box: DeviceBox | Arc[DeviceBox] | DeviceOperation[Any], device: int | Device
) -> DeviceOperation[DeviceBox]:
    """Copies a box to a device: directly between two devices if the hardware can, or within one device.

    Always yields a new box, which takes memory and the time of a copy even if the box is on that device already. To
    avoid the copy, compare ``box.device`` first. Takes a box, an ``Arc`` of a box, or an operation that yields one, and
    a device's number or one of ``devices()``. The operation may be run on any device. Later stages run on the device
    that runs the operation, and not on the target: for a stage on device 1, the function ``f`` in
    ``op.to_device(1).and_then(f)`` must return an operation that is placed with ``.on(1)``. Raises ``TypeError`` for
    other arguments.
    """
    if not isinstance(box, DeviceOperation):
        require_box(box, "to_device")
    return ToDevice(box, device)
