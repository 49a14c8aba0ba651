"""The scalar types: ``ScalarType`` objects to numba's types, and how integers of both signs mix."""

from __future__ import annotations

import operator
from typing import Any

from numba.cuda import types
from numba.cuda.typing.templates import signature
from numba.cuda.typing.typeof import typeof_impl

from ...device.types import ScalarType

NUMBA_TYPES: dict[str, Any] = {
    "i8": types.int8,
    "i16": types.int16,
    "i32": types.int32,
    "i64": types.int64,
    "u8": types.uint8,
    "u16": types.uint16,
    "u32": types.uint32,
    "u64": types.uint64,
    "f32": types.float32,
    "f64": types.float64,
    "bool_": types.boolean,
}

_INTEGER_OPERATORS = frozenset(
    {
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.mod,
        operator.and_,
        operator.or_,
        operator.xor,
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.ifloordiv,
        operator.imod,
        operator.iand,
        operator.ior,
        operator.ixor,
    }
)


@typeof_impl.register(ScalarType)
def _type_of_scalar_type(value: ScalarType, context: Any) -> Any:
    return types.NumberClass(NUMBA_TYPES[value.name]) if value.name in NUMBA_TYPES else None


def mixed_integers(function: Any, args: tuple[Any, ...]) -> Any:
    """The signature of an operator on a ``u64`` and a signed integer, or None for any other.

    NumPy and numba give a float64 there, as no integer holds both ranges. Kernels compute indices with such sums
    (``m * n + thread.index_2d_col()``), so here the result is ``i64``, as indices are: arithmetic modulo 2**64.
    """
    if len(args) != 2 or function not in _INTEGER_OPERATORS:
        return None
    left, right = (types.unliteral(argument) for argument in args)
    if not (isinstance(left, types.Integer) and isinstance(right, types.Integer)):
        return None
    if left.signed != right.signed and types.uint64 in (left, right):
        return signature(types.int64, types.int64, types.int64)
    return None


def conversion_problem(target: Any, value: Any) -> str | None:
    """Why a value of one type may not be stored as the scalar type ``target``, or None if it may.

    A float in an integer would lose its fraction, and a constant that the type does not hold its value. Integers
    computed at run time wrap.
    """
    name, plain = display(target), types.unliteral(value)
    if not isinstance(plain, types.Number | types.Boolean):
        advice = "; give it a number on every path" if isinstance(plain, types.Optional) else ""
        return f"the value is {display(value)}{advice}"
    if isinstance(plain, types.Float) and not isinstance(target, types.Float):
        return f"the value is {display(value)}; convert it, as in {name}(x)"
    if isinstance(value, types.IntegerLiteral) and isinstance(target, types.Integer):
        number = int(value.literal_value)
        if not int(target.minval) <= number <= int(target.maxval):
            return (
                f"the value is {number}, which does not fit; {name} holds {target.minval} to {target.maxval}, and "
                f"{name}({number}) wraps"
            )
    return None


def display(numba_type: Any) -> str:
    """A type by the name that a kernel's author wrote."""
    plain = types.unliteral(numba_type)
    for name, known in NUMBA_TYPES.items():
        if plain == known:
            return name
    if isinstance(plain, types.Optional):
        return f"{display(plain.type)} or None"
    if isinstance(plain, types.NoneType):
        return "None"
    return str(plain).removeprefix("class(").removesuffix(")")
