"""Checks the arguments that ``tensor.load_tile`` copies from or ``store_tile`` copies to.

A GPU's copy engine takes only matrices whose rows begin at multiples of 16 bytes. All devices refuse other matrices, so
that a launch that works on one device works on all.
"""

from __future__ import annotations

from typing import Any, Final

from oxide.compiler.signature.signature import Closed, Parameter
from oxide.errors import ArgumentError
from oxide.runtime.device.arc import Arc
from oxide.runtime.device.memory import DeviceBox

_ROW_ALIGNMENT: Final = 16


def refuse_uneven_rows(
    kernel: str, parameters: tuple[Closed, ...], tiled: tuple[int, ...], arguments: tuple[Any, ...]
) -> None:
    """Raises ``ArgumentError`` for a box whose rows cannot be copied. ``tiled`` has the places of the parameters to
    check. Arguments that are not boxes are accepted."""
    for number in tiled:
        given = arguments[number]
        box = given.value if isinstance(given, Arc) else given
        declared = parameters[number]
        flat = isinstance(declared, Parameter) and declared.ndim == 1
        if flat and isinstance(box, DeviceBox):
            if box.size == 0 or box.ptr % _ROW_ALIGNMENT:
                raise ArgumentError(
                    f"kernel {kernel}, parameter {declared.name}: expected elements that begin at a multiple of "
                    f"{_ROW_ALIGNMENT} bytes, as the kernel copies tiles of it, got a box of {box.dtype} of shape "
                    f"{box.shape} at address {box.ptr:#x}"
                )
        elif isinstance(box, DeviceBox) and not even_rows(box):
            way = "tensor.load_tile copies from it" if declared.kind == "slice" else "tensor.store_tile copies to it"
            raise ArgumentError(
                f"kernel {kernel}, parameter {parameters[number].name}: expected a matrix whose rows begin at "
                f"multiples of {_ROW_ALIGNMENT} bytes, as {way}, got a box of {box.dtype} of "
                f"shape {box.shape} at address {box.ptr:#x}; make the rows longer, to a multiple of "
                f"{_ROW_ALIGNMENT // box.dtype.itemsize} columns"
            )


def even_rows(box: DeviceBox) -> bool:
    """Returns whether a box has elements and each row of it begins at a multiple of 16 bytes."""
    pitch = box.shape[-1] * box.dtype.itemsize
    return box.size > 0 and box.ptr % _ROW_ALIGNMENT == 0 and pitch % _ROW_ALIGNMENT == 0
