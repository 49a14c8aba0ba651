"""Finds the specialization of a generic kernel by the kinds of the arguments that determine its types.

The kinds of these arguments form a key. The kind of a buffer is its dtype, that of a number its type, and that of a
function its code with the types that it captures. ``KernelLaunches`` caches the plan of each key. So a launch inspects
these arguments only once, and does one dictionary look-up. A call whose key has no cached plan takes the slow path,
``specializing.py``, which is imported at the first such call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide.compiler.kernel import Kernel
from oxide.compiler.signature.device_function import is_function
from oxide.compiler.signature.generic_parameters import OpenParameter
from oxide.compiler.signature.signature import UntypedParameter
from oxide.runtime.device.arc import Arc
from oxide.runtime.device.memory import DeviceBox
from oxide.runtime.launching.untyped import argument_type_of
from oxide.runtime.operations.operation import BoxSpec, DeviceOperation


def kinds(kernel: Kernel, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the key of a call: everything that the choice of a specialization depends on."""
    parts: list[Any] = []
    for place in kernel.open_places:
        argument = arguments[place]
        if type(argument) is Arc:
            argument = argument.value
        if type(kernel.parameters[place]) is UntypedParameter:
            if type(argument) is DeviceBox:
                parts.append((argument._argument or argument.as_argument()).kind)
            else:
                parts.append(argument_type_of(argument))
        elif type(argument) is DeviceBox:
            parts.append(argument.dtype)
        elif is_function(argument):
            parts.append(_kind_of()(argument))
        elif isinstance(argument, DeviceOperation):
            spec = argument.spec()
            parts.append((DeviceOperation, spec.dtype if isinstance(spec, BoxSpec) else None))
        elif isinstance(argument, np.ndarray):
            parts.append((np.ndarray, argument.dtype))
        else:
            parts.append(type(argument))
    return tuple(parts)


def is_typed_by_boxes(kernel: Kernel) -> bool:
    """Returns whether the dtypes of boxes alone decide the types of a generic kernel."""
    places = kernel.open_places
    found = [each for place in places if isinstance(each := kernel.parameters[place], OpenParameter)]
    if len(found) < len(places):
        return False
    of_boxes = {parameter.variable for parameter in found if parameter.kind != "scalar"}
    return {parameter.variable for parameter in found} <= of_boxes


_found_kind_of: Any = None  # loaded with the first kernel that takes a function


def _kind_of() -> Any:
    global _found_kind_of
    if _found_kind_of is None:
        from oxide.compiler.signature.closures import kind_of

        _found_kind_of = kind_of
    return _found_kind_of
