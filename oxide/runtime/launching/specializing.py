"""Finds the specialization of a generic kernel by the kinds of the arguments that determine its types.

The kinds of these arguments form a key. The kind of a buffer is its dtype, that of a number its type, and that of a
function its code with the types that it captures. ``KernelLaunches`` caches the plan of each key. So a launch inspects
these arguments only once, and does one dictionary look-up. ``specialize_for`` serves a call whose key has no plan yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import Specialization
from oxide.compiler.signature.device_function import is_function
from oxide.compiler.signature.signature import OpenFunction, OpenParameter, UntypedParameter
from oxide.runtime.launching.untyped import argument_type_of, untyped_arguments
from oxide.runtime.memory.memory import Arc, DeviceBox
from oxide.runtime.operations.operation import BoxSpec, DeviceOperation

if TYPE_CHECKING:
    from oxide.compiler.signature.type_variables import Evidence


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


def specialize_for(kernel: Kernel, arguments: tuple[Any, ...]) -> Specialization:
    """Returns the specialization for arguments that passed their checks. Makes it if there is none yet.

    Raises ``ArgumentError`` if the arguments imply different types for one type variable, and ``CompileError``.
    """
    from oxide.compiler.signature.type_variables import close_by_arguments  # here, as few programs need it

    declared = kernel.parameters
    found = {
        parameter.name: _evidence(parameter, argument)
        for parameter, argument in zip(declared, arguments, strict=True)
        if isinstance(parameter, OpenParameter)
    }
    functions = {
        parameter.name: argument
        for parameter, argument in zip(declared, arguments, strict=True)
        if isinstance(parameter, OpenFunction)
    }
    typed = untyped_arguments(kernel, arguments)
    return kernel.specialization(close_by_arguments(kernel.name, declared, found, functions, typed))


def _evidence(parameter: OpenParameter, argument: Any) -> Evidence:
    """Returns what an argument tells about the type of its parameter."""
    from oxide.compiler.signature.type_variables import Evidence

    if isinstance(argument, Arc):
        argument = argument.value
    if isinstance(argument, DeviceOperation):
        spec = argument.spec()
        return Evidence(spec.dtype if isinstance(spec, BoxSpec) and parameter.kind != "scalar" else None)
    if parameter.kind != "scalar":
        return Evidence(argument.dtype if isinstance(argument, DeviceBox) else None)
    if isinstance(argument, np.generic) or (isinstance(argument, np.ndarray) and argument.ndim == 0):
        return Evidence(argument.dtype)
    return Evidence(number=type(argument) if type(argument) in (bool, int, float, complex) else None)
