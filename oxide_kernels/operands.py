"""Operands of the library's functions: a box, an ``Arc`` of a box, or an operation that yields a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from oxide import Arc, DeviceBox, DeviceOperation, value, zip

T = TypeVar("T")
Operand: TypeAlias = DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]


def with_boxes(function: Callable[..., DeviceOperation[T]], *operands: Operand) -> DeviceOperation[T]:
    """Returns the operation ``function(*boxes)``, where ``boxes`` are the boxes of the operands. If no operand is an
    operation, ``function`` is called now. Otherwise it is called when all operands that are operations have yielded
    their boxes. Raises ``TypeError`` for an operand of another kind."""
    if not any(isinstance(operand, DeviceOperation) for operand in operands):
        return function(*(box_of(operand) for operand in operands))
    parts = [operand if isinstance(operand, DeviceOperation) else value(operand) for operand in operands]
    together: DeviceOperation[Any] = zip(*parts)
    return together.and_then(lambda found: function(*(box_of(one) for one in found)))


def box_of(operand: object) -> DeviceBox:
    """Returns the operand if it is a box, or the box in it if it is an ``Arc``. Raises ``TypeError`` for any other
    operand."""
    box = operand.value if isinstance(operand, Arc) else operand
    if isinstance(box, DeviceBox):
        return box
    raise TypeError(
        f"an operand is a DeviceBox, an Arc of one or an operation that yields one, not {type(box).__name__}; h2d "
        "copies a host array to the device, and first(), last() or unzip() pick one of a tuple"
    )
