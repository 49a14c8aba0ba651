"""How a generic kernel's type variables get their types: from the arguments of a launch, or by name.

A variable that is the element type of a slice is the dtype of the buffer; all uses must agree, and scalars of that
type convert as those of a fixed type do. A variable that only scalars have takes the type of the values: a NumPy
scalar's own, else ``i64`` for an int, ``f64`` for a float and ``bool_`` for a bool, or the one constraint of that kind
where these are none of the constraints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ..device.arrays import ArrayAnnotation
from ..device.types import ScalarType
from ..errors import ArgumentError
from .arguments import ArgumentType, ArrayType, EnumType, NumberType, TupleType
from .signature import SCALARS, Closed, Declared, OpenParameter, UntypedParameter

_BY_DTYPE = {scalar.dtype: scalar for scalar in SCALARS.values()}
_PLAIN: dict[type, tuple[str, str]] = {bool: ("bool_", "b"), int: ("i64", "iu"), float: ("f64", "f")}


@final
@dataclass(frozen=True, slots=True)
class Evidence:
    """What an argument says of the type of an open parameter: a dtype, or the Python type of a plain number."""

    dtype: np.dtype[Any] | None = None
    number: type | None = None

    @property
    def shown(self) -> str:
        if self.dtype is not None:
            scalar = _BY_DTYPE.get(self.dtype)
            return str(self.dtype) if scalar is None else scalar.name
        return "an unknown type" if self.number is None else f"a Python {self.number.__name__}"


def close_by_arguments(
    kernel: str, declared: Sequence[Declared], found: Mapping[str, Evidence], typed: Mapping[str, ArgumentType]
) -> tuple[Closed, ...]:
    """The parameters for arguments of which ``found`` says, by parameter, what is known; and ``typed``, for parameters
    without an annotation, the arguments' types. Raises ``ArgumentError``."""
    chosen: dict[str, tuple[ScalarType, OpenParameter]] = {}
    opened = [parameter for parameter in declared if isinstance(parameter, OpenParameter)]
    # Buffers decide, then NumPy's scalars, then plain numbers, which convert.
    buffers = [p for p in opened if p.kind != "scalar" and found[p.name].dtype is not None]
    scalars = [p for p in opened if p.kind == "scalar" and found[p.name].dtype is not None]
    numbers = [p for p in opened if p.kind == "scalar" and found[p.name].number is not None]
    for parameter in buffers:
        scalar = _allowed(parameter, found[parameter.name])
        before, by = chosen.setdefault(parameter.variable, (scalar, parameter))
        if before is not scalar:
            raise _disagreement(kernel, by, before, parameter, scalar)
    decided = {p.variable for p in opened if p.kind != "scalar"}
    for parameter in scalars:
        if parameter.variable not in decided:
            scalar = _allowed(parameter, found[parameter.name])
            before, by = chosen.setdefault(parameter.variable, (scalar, parameter))
            if before is not scalar:
                raise _disagreement(kernel, by, before, parameter, scalar)
    decided |= set(chosen)
    widest = sorted(numbers, key=lambda p: list(_PLAIN).index(found[p.name].number or bool), reverse=True)
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
    return tuple(
        p.closed(chosen[p.variable][0])
        if isinstance(p, OpenParameter)
        else p.closed(typed[p.name])
        if isinstance(p, UntypedParameter)
        else p
        for p in declared
    )


def close_by_name(kernel: str, declared: Sequence[Declared], types: Mapping[str, Any]) -> tuple[Closed, ...]:
    """The parameters, where ``types`` says what each type variable stands for, and of what type each parameter without
    an annotation is. Raises ``ArgumentError``."""
    opened = {p.variable: p for p in declared if isinstance(p, OpenParameter)}
    untyped = [p.name for p in declared if isinstance(p, UntypedParameter)]
    typed = {name: _argument_type(kernel, name, types) for name in untyped}
    for name in types:
        if name not in opened and name not in typed:
            takes = f"it takes {', '.join([*opened, *untyped])}" if opened or untyped else "it is not generic"
            raise ArgumentError(f"kernel {kernel} has no type variable {name}: {takes}")
    for name, parameter in opened.items():
        if name not in types:
            raise ArgumentError(
                f"kernel {kernel} is generic in {', '.join(opened)}: say what {name} is, as in "
                f"{kernel}.specialize({name}={parameter.choices[0].name})"
            )
        if not isinstance(types[name], ScalarType):
            raise ArgumentError(f"kernel {kernel}: {name} is {types[name]!r}; give a scalar type, such as f32")
    for each in declared:
        if isinstance(each, OpenParameter):
            _allowed(each, Evidence(types[each.variable].dtype))
    return tuple(
        p.closed(types[p.variable])
        if isinstance(p, OpenParameter)
        else p.closed(typed[p.name])
        if isinstance(p, UntypedParameter)
        else p
        for p in declared
    )


def _argument_type(kernel: str, name: str, types: Mapping[str, Any]) -> ArgumentType:
    """What was said of a parameter without an annotation."""
    advice = f"say what it is, as in {kernel}.specialize({name}=Array[f32, 1]) or {kernel}.specialize({name}=i64)"
    if name not in types:
        raise ArgumentError(f"kernel {kernel}: parameter {name} has no annotation, so its type is a launch's: {advice}")
    kind = types[name]
    if isinstance(kind, ScalarType):
        return NumberType(kind.dtype)
    if isinstance(kind, ArrayAnnotation):
        return ArrayType(kind.dtype, kind.ndim)
    if isinstance(kind, NumberType | ArrayType | TupleType | EnumType):
        return kind
    raise ArgumentError(f"kernel {kernel}: parameter {name} cannot be {kind!r}: {advice}")


def _allowed(parameter: OpenParameter, evidence: Evidence) -> ScalarType:
    """The type that a dtype stands for, if the variable may be that."""
    assert evidence.dtype is not None
    scalar = _BY_DTYPE.get(evidence.dtype)
    if scalar is None or scalar not in parameter.choices:
        raise _impossible(parameter, evidence)
    return scalar


def _plain(parameter: OpenParameter, evidence: Evidence) -> ScalarType:
    """The type of a plain number."""
    assert evidence.number is not None
    name, kinds = _PLAIN[evidence.number]
    if SCALARS[name] in parameter.choices:
        return SCALARS[name]
    fitting = [scalar for scalar in parameter.choices if scalar.dtype.kind in kinds]
    if len(fitting) != 1:
        raise _impossible(parameter, evidence)
    return fitting[0]


def _impossible(parameter: OpenParameter, evidence: Evidence) -> ArgumentError:
    names = ", ".join(scalar.name for scalar in parameter.choices)
    return ArgumentError(
        f"kernel {parameter.kernel}: parameter {parameter.name} is {parameter.annotation}, and {parameter.variable} is "
        f"one of {names}; the argument is {evidence.shown}: convert it first"
    )


def _disagreement(
    kernel: str, first: OpenParameter, first_type: ScalarType, second: OpenParameter, second_type: ScalarType
) -> ArgumentError:
    return ArgumentError(
        f"kernel {kernel}: parameters {first.name} ({first.annotation}) and {second.name} ({second.annotation}) must "
        f"agree on {first.variable}, but {first.name} has {first_type.name} and {second.name} has {second_type.name}: "
        "convert one of them"
    )
