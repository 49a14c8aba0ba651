"""Which specialization of a generic kernel a launch's arguments call for.

The arguments' kinds (a buffer's dtype, a number's type, a function's code and the types it captures) make a key, and
what a key led to once is found in the kernel's own table: one look at each open argument and one at a dictionary.
Everything else goes the long way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide.compiler.closures import kind_of
from oxide.compiler.function import is_function
from oxide.compiler.generic import Evidence, close_by_arguments
from oxide.compiler.kernel import Kernel
from oxide.compiler.open_parameters import OpenFunction, OpenParameter
from oxide.compiler.signature import UntypedParameter
from oxide.compiler.specialization import Specialization
from oxide.runtime.arc import Arc
from oxide.runtime.memory import DeviceBox
from oxide.runtime.operation import BoxSpec, DeviceOperation
from oxide.runtime.untyped import argument_type_of, untyped_arguments


def known_specialization(kernel: Kernel, arguments: tuple[Any, ...]) -> Specialization | None:
    """The specialization for arguments of kinds that the kernel was launched with before; else None."""
    if len(arguments) != len(kernel.parameters):
        return None
    return kernel.by_arguments.get(_key(kernel, arguments))


def specialize_for(kernel: Kernel, arguments: tuple[Any, ...]) -> Specialization:
    """The specialization for arguments that are of kinds which their parameters take, made if need be.

    Raises ``ArgumentError`` where they do not agree, and ``CompileError``.
    """
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
    special = kernel.specialization(close_by_arguments(kernel.name, declared, found, functions, typed))
    kernel.by_arguments[_key(kernel, arguments)] = special
    return special


def _key(kernel: Kernel, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What of the arguments the choice of a specialization depends on."""
    parts: list[Any] = []
    for place in kernel.open_places:
        argument = arguments[place]
        if type(argument) is Arc:
            argument = argument.value
        if type(kernel.parameters[place]) is UntypedParameter:
            parts.append(
                (argument.dtype, len(argument.shape)) if type(argument) is DeviceBox else argument_type_of(argument)
            )
        elif type(argument) is DeviceBox:
            parts.append(argument.dtype)
        elif is_function(argument):
            parts.append(kind_of(argument))
        elif isinstance(argument, DeviceOperation):
            spec = argument.spec()
            parts.append((DeviceOperation, spec.dtype if isinstance(spec, BoxSpec) else None))
        elif isinstance(argument, np.ndarray):
            parts.append((np.ndarray, argument.dtype))
        else:
            parts.append(type(argument))
    return tuple(parts)


def _evidence(parameter: OpenParameter, argument: Any) -> Evidence:
    """What an argument, which is one that the parameter takes, says of its type."""
    if isinstance(argument, Arc):
        argument = argument.value
    if isinstance(argument, DeviceOperation):
        spec = argument.spec()
        return Evidence(spec.dtype if isinstance(spec, BoxSpec) and parameter.kind != "scalar" else None)
    if parameter.kind != "scalar":
        return Evidence(argument.dtype if isinstance(argument, DeviceBox) else None)
    if isinstance(argument, np.generic) or (isinstance(argument, np.ndarray) and argument.ndim == 0):
        return Evidence(argument.dtype)
    return Evidence(number=type(argument) if type(argument) in (bool, int, float) else None)
