"""Finds the specialization of a generic kernel by the kinds of the arguments that determine its types.

The kinds of these arguments form a key. The kind of a buffer is its dtype, that of a number its type, and that of a
function its code with the types that it captures. ``KernelLaunches`` caches the plan of each key. So a launch inspects
these arguments only once, and does one dictionary look-up. ``specialize_for`` serves a call whose key has no plan yet.

A parameter without an annotation, or with an ``Array`` annotation, takes its type from the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import Specialization
from oxide.compiler.signature.device_function import is_function
from oxide.compiler.signature.signature import NumbaParameter, OpenFunction, OpenParameter, UntypedParameter
from oxide.compiler.signature.untyped_arguments import (
    ArgumentType,
    ArrayType,
    NumberType,
    RecordType,
    laid_out,
    of_box,
    type_of,
)
from oxide.errors import ArgumentError
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


@cache
def _kind_of() -> Callable[[Any], Any]:
    from oxide.compiler.signature.closures import kind_of  # here, as few programs pass functions to kernels

    return kind_of


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
    typed = _untyped_arguments(kernel, arguments)
    return kernel.specialization(close_by_arguments(kernel.name, declared, found, functions, typed))


def _evidence(parameter: OpenParameter, argument: Any) -> Evidence:
    """Returns what an argument tells about the type of its parameter."""
    from oxide.compiler.signature.type_variables import Evidence

    argument = _plain(argument)
    if isinstance(argument, DeviceOperation):
        spec = argument.spec()
        return Evidence(spec.dtype if isinstance(spec, BoxSpec) and parameter.kind != "scalar" else None)
    if parameter.kind != "scalar":
        return Evidence(argument.dtype if isinstance(argument, DeviceBox) else None)
    if isinstance(argument, np.generic) or (isinstance(argument, np.ndarray) and argument.ndim == 0):
        return Evidence(argument.dtype)
    return Evidence(number=type(argument) if type(argument) in (bool, int, float, complex) else None)


def argument_type_of(argument: Any) -> ArgumentType | None:
    """Returns the type of an argument of a parameter without an annotation. Returns None if no kernel takes the
    argument, or if it is an operation that does not say what it yields."""
    argument = _plain(argument)
    if isinstance(argument, DeviceOperation):
        spec = argument.spec()
        return of_box(spec.dtype, len(spec.shape)) if isinstance(spec, BoxSpec) else None
    return type_of(argument, _box_type)


def _box_type(argument: Any) -> ArrayType | RecordType | None:
    return (
        of_box(argument.dtype, argument.ndim, not argument.is_contiguous) if isinstance(argument, DeviceBox) else None
    )


def _untyped_arguments(kernel: Kernel, arguments: tuple[Any, ...]) -> dict[str, ArgumentType]:
    """Returns the types of the arguments of parameters without an annotation, by the parameters' names. If the kernel
    has explicit signatures, the types are those of one of the signatures. Raises ``ArgumentError`` if there is none.
    ``refusals.check`` must have passed the arguments."""
    typed = {
        parameter.name: found
        for parameter, argument in zip(kernel.parameters, arguments, strict=True)
        if isinstance(parameter, UntypedParameter) and (found := argument_type_of(argument)) is not None
    }
    if kernel.signatures:
        typed = dict(zip(typed, _signature(kernel, tuple(typed.values())), strict=True))
    return typed


def take_strides(special: Specialization, arguments: Sequence[Any]) -> Specialization:
    """Returns the specialization that takes strided views where the arguments are strided. ``special`` was found
    without regard to strides: an ``Array`` annotation and an explicit signature do not mention them.

    Raises ``CompileError``.
    """
    parameters = tuple(
        NumbaParameter(parameter.kernel, parameter.name, laid_out(parameter.type, _plain(argument), _strided))
        if isinstance(parameter, NumbaParameter)
        else parameter
        for parameter, argument in zip(special.parameters, arguments, strict=False)
    )
    if len(parameters) < len(special.parameters) or parameters == special.parameters:
        return special
    return special.kernel.specialization(parameters)


def _strided(kind: ArrayType, argument: Any) -> bool:
    fits = isinstance(argument, DeviceBox) and (argument.ndim, argument.dtype.itemsize) == (
        kind.ndim,
        kind.dtype.itemsize,
    )
    return kind.strided or (fits and not argument.is_contiguous)


def _plain(argument: Any) -> Any:
    return argument.value if isinstance(argument, Arc) else argument


def _signature(kernel: Kernel, found: tuple[ArgumentType, ...]) -> tuple[ArgumentType, ...]:
    """Returns the explicit signature for arguments of these types: the signature with just these types, or the first
    that they convert to. Raises ``ArgumentError`` if there is none."""
    plain = tuple(laid_out(kind, None, lambda *_: False) for kind in found)  # without strides: see take_strides
    if plain in kernel.signatures:
        return plain
    for types in kernel.signatures:
        if len(types) == len(found) and all(map(converts, found, types)):
            return types
    listed = "; ".join(f"({', '.join(map(str, types))})" for types in kernel.signatures)
    raise ArgumentError(
        f"kernel {kernel.name} takes {listed}; the arguments are ({', '.join(map(str, found))}); convert them"
    )


def converts(found: ArgumentType, wanted: ArgumentType) -> bool:
    """Returns whether an argument of type ``found`` is accepted where a signature says ``wanted``. A number converts to
    its own kind or a wider one: integer, float, complex. An integer that is too large for its type wraps."""
    if isinstance(found, NumberType) and isinstance(wanted, NumberType):
        return _ORDER[found.dtype.kind] <= _ORDER[wanted.dtype.kind]
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        one, other = found.dtype, wanted.dtype
        # numba-cuda ignores the elements' type if there is a single signature. Here only the sign may differ.
        same = one == other or (one.kind in "iu" and other.kind in "iu" and one.itemsize == other.itemsize)
        return same and found.ndim == wanted.ndim  # strides are not part of a declared type
    return found == wanted


_ORDER = {"b": 0, "i": 0, "u": 0, "f": 1, "c": 2, "m": 3, "M": 4}
