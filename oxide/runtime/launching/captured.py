"""The boxes of the device arrays that a kernel names from outside; see ``compiler/signature/captured.py``."""

from __future__ import annotations

from typing import Any

from oxide.compiler.specialization import Specialization
from oxide.errors import LaunchError
from oxide.runtime.device.memory import DeviceBox


def captured_boxes(special: Specialization) -> tuple[DeviceBox, ...]:
    """Returns a box for each captured array of a specialization, in the order of its hidden parameters."""
    found: tuple[DeviceBox, ...] | None = special.captured_boxes
    if found is None:
        found = tuple([_box(special, captured) for captured in special.captured])
        special.captured_words = tuple(
            [word for box, each in zip(found, special.captured, strict=True) for word in each.type.flatten(box)]
        )
        special.captured_boxes = found  # last: another thread may read it
    return found


def _box(special: Specialization, captured: Any) -> DeviceBox:
    value: Any = captured.value
    if hasattr(type(value), "as_argument"):
        box: DeviceBox = value if isinstance(value, DeviceBox) else value.box
    else:
        from oxide.runtime.device.interop import from_cuda_array_interface, from_dlpack

        box = (from_cuda_array_interface if hasattr(value, "__cuda_array_interface__") else from_dlpack)(value)
    if box.as_argument().type != captured.type:
        raise LaunchError(
            f"kernel {special.description.name}: {captured.name}, an array from outside of the kernel, was "
            f"{captured.type} when the kernel was compiled and is {box.as_argument().type}"
        )
    return box
