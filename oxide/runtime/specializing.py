"""Which specialization of a generic kernel a launch's arguments call for.

The arguments' kinds (a buffer's dtype, a number's type) make a key, and what a key led to once is found in the
kernel's own table: one look at each open argument and one at a dictionary. Everything else goes the long way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide.compiler.arguments import ArgumentType, ArrayType, NumberType, type_of
from oxide.compiler.generic import Evidence, close_by_arguments
from oxide.compiler.kernel import Kernel, Specialization
from oxide.compiler.signature import NumbaParameter, OpenParameter, UntypedParameter
from oxide.errors import ArgumentError
from oxide.runtime.arc import Arc
from oxide.runtime.memory import DeviceBox
from oxide.runtime.operation import BoxSpec, DeviceOperation


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
    typed = {
        parameter.name: _typed(parameter, argument)
        for parameter, argument in zip(declared, arguments, strict=True)
        if isinstance(parameter, UntypedParameter)
    }
    if kernel.signatures:
        typed = dict(zip(typed, _signature(kernel, tuple(typed.values())), strict=True))
    special = kernel.specialization(close_by_arguments(kernel.name, declared, found, typed))
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


def argument_type_of(argument: Any) -> ArgumentType | None:
    """The type of an argument of a parameter without an annotation, or None if no kernel takes it."""
    if isinstance(argument, Arc):
        argument = argument.value
    if isinstance(argument, DeviceOperation):
        spec = argument.spec()
        return ArrayType(spec.dtype, len(spec.shape)) if isinstance(spec, BoxSpec) else None
    return type_of(argument, _box_type)


def _box_type(argument: Any) -> ArrayType | None:
    return ArrayType(argument.dtype, argument.ndim) if isinstance(argument, DeviceBox) else None


def _typed(parameter: UntypedParameter, argument: Any) -> ArgumentType:
    check_argument(parameter, argument)
    found = argument_type_of(argument)
    assert found is not None
    return found


def check_argument(parameter: UntypedParameter | NumbaParameter, argument: Any) -> None:
    """Raises ``ArgumentError`` for an argument that is not of the parameter's type, or of none that kernels take."""
    found = argument_type_of(argument)
    if isinstance(parameter, NumbaParameter):
        if isinstance(argument, DeviceOperation) and argument.spec() is None:
            return  # what it yields is checked when it is there
        if found is not None:
            if not converts(found, parameter.type):
                raise ArgumentError(
                    f"kernel {parameter.kernel}, parameter {parameter.name}: expected {parameter.type}, got {found}"
                )
            return
    if found is None:
        raise _refusal(parameter.kernel, parameter.name, argument)


def _refusal(kernel: str, name: str, argument: Any) -> ArgumentError:
    """Why no kernel takes an argument."""
    what = f"kernel {kernel}, parameter {name}: "
    if isinstance(argument, DeviceOperation):
        spec = argument.spec()
        if isinstance(spec, tuple):
            return ArgumentError(f"{what}an operation that yields a tuple; pick one with first(), last() or unzip()")
        return ArgumentError(
            f"{what}the parameter has no annotation and the operation does not say beforehand what it yields; annotate "
            f"the parameter, or launch on the result: operation.and_then(lambda x: {kernel}[...](x, ...))"
        )
    if isinstance(argument, np.ndarray):
        return ArgumentError(
            f"{what}a NumPy array, which is in host memory; copy it to the device with h2d(array), and the result back "
            "with d2h(box)"
        )
    if isinstance(argument, np.void):
        return ArgumentError(f"{what}a record; pass a box of one, h2d(np.array([record])), and take its element 0")
    return ArgumentError(
        f"{what}{type(argument).__name__} {argument!r:.80}; kernels take numbers, members of enumerations, device "
        "buffers, and tuples of these"
    )


def _signature(kernel: Kernel, found: tuple[ArgumentType, ...]) -> tuple[ArgumentType, ...]:
    """The explicit signature that arguments of certain types are taken by: the same, or the first they convert to."""
    if found in kernel.signatures:
        return found
    for types in kernel.signatures:
        if len(types) == len(found) and all(map(converts, found, types)):
            return types
    listed = "; ".join(f"({', '.join(map(str, types))})" for types in kernel.signatures)
    raise ArgumentError(
        f"kernel {kernel.name} takes {listed}; the arguments are ({', '.join(map(str, found))}): convert them"
    )


def converts(found: ArgumentType, wanted: ArgumentType) -> bool:
    """Whether an argument of one type is taken where a signature says another: numbers convert, but not to integers
    what has a fraction."""
    if isinstance(found, NumberType) and isinstance(wanted, NumberType):
        return np.can_cast(found.dtype, wanted.dtype, "same_kind")
    return found == wanted
