"""Finds the specialization of a generic kernel for argument kinds that it was not launched with before."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide.compiler.kernel import Kernel
from oxide.compiler.signature.generic_parameters import OpenFunction, OpenParameter
from oxide.compiler.signature.type_variables import Evidence, close_by_arguments
from oxide.compiler.specialization import Specialization
from oxide.runtime.device.arc import Arc
from oxide.runtime.device.memory import DeviceBox
from oxide.runtime.launching.untyped import untyped_arguments
from oxide.runtime.operations.operation import BoxSpec, DeviceOperation


def specialize_for(kernel: Kernel, arguments: tuple[Any, ...]) -> Specialization:
    """Returns the specialization for arguments that passed their checks. Makes it if there is none yet.

    Raises ``ArgumentError`` if the arguments imply different types for one type variable, and ``CompileError``.
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
    return kernel.specialization(close_by_arguments(kernel.name, declared, found, functions, typed))


def _evidence(parameter: OpenParameter, argument: Any) -> Evidence:
    """Returns what an argument tells about the type of its parameter."""
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
