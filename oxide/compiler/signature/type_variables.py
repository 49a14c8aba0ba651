"""Infers the types of a generic kernel's type variables from the arguments of a launch, or takes them by name.

If a variable is the element type of a slice, it takes the buffer's dtype. All buffers must agree on the type. Scalar
arguments of parameters with this variable are converted to the type, as for a fixed type. If a variable is the type of
scalars only, the NumPy scalars among the arguments determine it, and must agree. If there are no NumPy scalars, the
widest Python number determines it: ``i64`` for an int, ``f64`` for a float, ``c128`` for a complex and ``bool_`` for a
bool. If the constraints exclude that type, the variable takes the constraint of the same kind, if there is exactly one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from oxide.errors import ArgumentError
from oxide.host.messages import written
from oxide.language.arrays import ArrayAnnotation
from oxide.language.types import OF_PYTHON, SCALARS, ScalarType, of_dtype

from .closures import lift
from .device_function import is_function
from .signature import Closed, Declared, OpenFunction, OpenParameter, UntypedParameter
from .untyped_arguments import ArgumentType, ArrayType, EnumType, NoneType, NumberType, RecordType, TupleType


@final
@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of an open parameter's type in an argument: a dtype, or a number's Python type."""

    dtype: np.dtype[Any] | None = None
    number: type | None = None

    @property
    def shown(self) -> str:
        if self.dtype is not None:
            scalar = of_dtype(self.dtype)
            if scalar is None and self.dtype.names is not None:
                return f"structures of {', '.join(self.dtype.names)}"
            return str(self.dtype) if scalar is None else scalar.name
        return "an unknown type" if self.number is None else f"a Python {self.number.__name__}"


def close_by_arguments(
    kernel: str,
    declared: Sequence[Declared],
    found: Mapping[str, Evidence],
    functions: Mapping[str, Any],
    typed: Mapping[str, ArgumentType],
) -> tuple[Closed, ...]:
    """Returns the parameters for a launch's arguments.

    ``found`` has the evidence for each open parameter, ``functions`` the function arguments, and ``typed`` the types of
    the arguments for unannotated parameters. Raises ``ArgumentError``, and ``CompileError`` for a function whose source
    cannot be read.
    """
    chosen: dict[str, tuple[ScalarType, OpenParameter]] = {}
    opened = [parameter for parameter in declared if isinstance(parameter, OpenParameter)]
    # Buffers decide first, then NumPy's scalars, then plain numbers, which are converted.
    buffers = [p for p in opened if p.kind != "scalar" and found[p.name].dtype is not None]
    scalars = [p for p in opened if p.kind == "scalar" and found[p.name].dtype is not None]
    numbers = [p for p in opened if p.kind == "scalar" and found[p.name].number is not None]
    decided = {p.variable for p in opened if p.kind != "scalar"}
    for parameter in (*buffers, *(p for p in scalars if p.variable not in decided)):
        scalar = _allowed(parameter, found[parameter.name])
        before, by = chosen.setdefault(parameter.variable, (scalar, parameter))
        if before is not scalar:
            raise _disagreement(kernel, by, before, parameter, scalar)
    decided |= set(chosen)
    widest = sorted(numbers, key=lambda p: list(OF_PYTHON).index(found[p.name].number or bool), reverse=True)
    for parameter in widest:
        if parameter.variable not in decided:
            chosen.setdefault(parameter.variable, (_plain(parameter, found[parameter.name]), parameter))
    for parameter in sorted(opened, key=lambda p: p.kind == "scalar"):
        if parameter.variable not in chosen:
            raise ArgumentError(
                f"kernel {kernel}: {parameter.variable} is the type of parameter {parameter.name}, and no argument "
                "says what it is: an operation that does not say beforehand what it yields was given; launch the "
                "kernel on its result, as in operation.and_then(lambda box: kernel[...](box, ...))"
            )
    return _closed(declared, {name: scalar for name, (scalar, _) in chosen.items()}, functions, typed)


def close_by_name(kernel: str, declared: Sequence[Declared], given: Mapping[str, Any]) -> tuple[Closed, ...]:
    """Returns the parameters for types given by name.

    ``given`` has the type for each type variable, each function, and the type of each unannotated parameter. Raises
    ``ArgumentError``, and ``CompileError`` for a function whose source cannot be read.
    """
    needed: dict[str, str] = {}
    for parameter in declared:
        if isinstance(parameter, OpenParameter):
            needed.setdefault(parameter.variable, parameter.choices[0].name)
        elif isinstance(parameter, OpenFunction):
            needed.update({name: choices[0].name for name, choices in parameter.choices if name not in needed})
            needed[parameter.name] = "lambda ...: ..."
        elif isinstance(parameter, UntypedParameter):
            needed[parameter.name] = "Array[f32, 1]"
    for name in given:
        if name not in needed:
            takes = f"it takes {', '.join(needed)}" if needed else "it is not generic"
            raise ArgumentError(f"kernel {kernel} has no type variable {name}; {takes}")
    for name in needed:
        if name not in given:
            example = ", ".join(f"{each}={value}" for each, value in needed.items())
            raise ArgumentError(
                f"kernel {kernel} is generic in {', '.join(needed)}; say what {name} is, as in "
                f"{kernel}.specialize({example})"
            )
    functions = {p.name: given[p.name] for p in declared if isinstance(p, OpenFunction)}
    typed = {p.name: _argument_type(kernel, p.name, given) for p in declared if isinstance(p, UntypedParameter)}
    for name, value in given.items():
        if name in functions:
            if not is_function(value):
                raise ArgumentError(f"kernel {kernel}: {name} is {written(value)}; give a function")
        elif name not in typed and not isinstance(value, ScalarType):
            raise ArgumentError(f"kernel {kernel}: {name} is {written(value)}; give a scalar type, such as f32")
    for parameter in declared:
        if isinstance(parameter, OpenParameter) and given[parameter.variable] not in parameter.choices:
            raise _impossible(parameter, Evidence(given[parameter.variable].dtype))
    chosen = {name: value for name, value in given.items() if name not in functions and name not in typed}
    return _closed(declared, chosen, functions, typed)


def example_types(declared: Sequence[Declared]) -> dict[str, Any]:
    """Returns a type for each type variable: ``f32`` if it may be that, else its first choice."""
    variables = {p.variable: p.choices for p in declared if isinstance(p, OpenParameter)}
    for parameter in declared:
        if isinstance(parameter, OpenFunction):
            for name, choices in parameter.choices:
                variables.setdefault(name, choices)
    f32 = SCALARS["f32"]
    return {name: f32 if f32 in choices else choices[0] for name, choices in variables.items()}


def _argument_type(kernel: str, name: str, given: Mapping[str, Any]) -> ArgumentType:
    """Returns the type that was given for an unannotated parameter."""
    kind = given[name]
    if isinstance(kind, ScalarType):
        return NumberType(kind.dtype)
    if isinstance(kind, ArrayAnnotation):
        return ArrayType(kind.dtype, kind.ndim)
    if kind is None:
        return NoneType()
    if isinstance(kind, NumberType | ArrayType | RecordType | TupleType | EnumType | NoneType):
        return kind
    raise ArgumentError(
        f"kernel {kernel}: parameter {name}, which has no annotation, cannot be {written(kind)}; give its type, such "
        "as Array[f32, 1] or i64"
    )


def _closed(
    declared: Sequence[Declared],
    chosen: Mapping[str, ScalarType],
    functions: Mapping[str, Any],
    typed: Mapping[str, ArgumentType],
) -> tuple[Closed, ...]:
    """Returns the parameters with all types, functions and variables filled in."""
    closed: list[Closed] = []
    for parameter in declared:
        if isinstance(parameter, OpenParameter):
            closed.append(parameter.closed(chosen[parameter.variable]))
        elif isinstance(parameter, UntypedParameter):
            closed.append(parameter.closed(typed[parameter.name]))
        elif isinstance(parameter, OpenFunction):
            takes, returns = parameter.takes, parameter.returns
            closed.append(
                lift(
                    parameter,
                    functions[parameter.name],
                    None if takes is None else tuple(_known(parameter, each, chosen) for each in takes),
                    _known(parameter, returns, chosen),
                )
            )
        else:
            closed.append(parameter)
    return tuple(closed)


def _known(
    parameter: OpenFunction, kind: ScalarType | str | None, chosen: Mapping[str, ScalarType]
) -> ScalarType | None:
    if not isinstance(kind, str):
        return kind
    if kind not in chosen:
        raise ArgumentError(
            f"kernel {parameter.kernel}: parameter {parameter.name} is {parameter.annotation}, and no other parameter "
            f"says what {kind} is; name a type in its place"
        )
    return chosen[kind]


def _allowed(parameter: OpenParameter, evidence: Evidence) -> ScalarType:
    """Returns the scalar type of a dtype. Raises ``ArgumentError`` if the variable may not be that type."""
    assert evidence.dtype is not None
    scalar = of_dtype(evidence.dtype)
    if scalar is not None and scalar in parameter.choices:
        return scalar
    fitting = [choice for choice in parameter.choices if choice.takes(evidence.dtype)]  # an unsigned dtype of its bits
    if len(fitting) == 1:
        return fitting[0]
    raise _impossible(parameter, evidence)


def _plain(parameter: OpenParameter, evidence: Evidence) -> ScalarType:
    """Returns the variable's type for a plain Python number."""
    assert evidence.number is not None
    plain = OF_PYTHON[evidence.number]
    if plain in parameter.choices:
        return plain
    kinds = "iu" if plain.kind == "i" else plain.kind
    fitting = [scalar for scalar in parameter.choices if scalar.kind in kinds]
    if len(fitting) != 1:
        raise _impossible(parameter, evidence)
    return fitting[0]


def _impossible(parameter: OpenParameter, evidence: Evidence) -> ArgumentError:
    names = ", ".join(scalar.name for scalar in parameter.choices)
    return ArgumentError(
        f"kernel {parameter.kernel}: parameter {parameter.name} is {parameter.annotation}, and {parameter.variable} is "
        f"one of {names}; the argument is {evidence.shown}; convert it first"
    )


def _disagreement(
    kernel: str, first: OpenParameter, first_type: ScalarType, second: OpenParameter, second_type: ScalarType
) -> ArgumentError:
    return ArgumentError(
        f"kernel {kernel}: parameters {first.name} ({first.annotation}) and {second.name} ({second.annotation}) must "
        f"agree on {first.variable}, but {first.name} has {first_type.name} and {second.name} has {second_type.name}; "
        "convert one of them"
    )
