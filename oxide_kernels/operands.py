"""Operands of the library's functions: a box, an ``Arc`` of a box, or an operation that yields a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from oxide import Arc, DeviceBox, DeviceOperation, value, zip

T = TypeVar("T")
Operand: TypeAlias = DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]


def with_boxes(function: Callable[..., DeviceOperation[T]], *operands: Operand) -> DeviceOperation[T]:
    """Returns the operation ``function(*boxes)``. It is made now if all operands are boxes, and otherwise once the
    operations have yielded them. Raises ``TypeError`` for any other operand."""
    if not any(isinstance(operand, DeviceOperation) for operand in operands):
        return function(*(box_of(operand) for operand in operands))
    parts = [operand if isinstance(operand, DeviceOperation) else value(operand) for operand in operands]
    together: DeviceOperation[Any] = zip(*parts)
    return together.and_then(lambda found: function(*(box_of(one) for one in found)))


def box_of(operand: object) -> DeviceBox:
    """Returns the box, taken out of its ``Arc`` if it is in one. Raises ``TypeError`` for anything else."""
    box = operand.value if isinstance(operand, Arc) else operand
    if isinstance(box, DeviceBox):
        return box
    raise TypeError(
        f"an operand is a DeviceBox, an Arc of one or an operation that yields one, not {type(box).__name__}; h2d "
        "copies a host array to the device, and first(), last() or unzip() pick one of a tuple"
    )
