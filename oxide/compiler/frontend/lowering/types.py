"""Types of numbers and of arguments as numba has them, Python's operators, and the types of operations on integers."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import signature
from numba.cuda.typing.typeof import typeof_impl

from oxide.compiler.signature.untyped_arguments import (
    ArgumentType,
    ArrayType,
    EnumType,
    NoneType,
    NumberType,
    RecordType,
    TupleType,
    of_box,
)
from oxide.errors import CompileError
from oxide.language.types import SCALARS, ScalarType, of_dtype


class HalfType(types.Number):  # type: ignore[misc]
    """The type of a narrow float. numba's own float16 needs a CUDA C++ library."""

    def __init__(self, scalar: ScalarType) -> None:
        super().__init__(scalar.name)
        self.bitwidth = scalar.bits


class OpenFloat(types.Float):  # type: ignore[misc]
    """The type of a Python float: an f64 that takes the type of the first typed float that it meets."""

    def __init__(self) -> None:
        types.Number.__init__(self, "open_float")
        self.bitwidth = 64

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.promote if isinstance(other, types.Float | types.Complex | HalfType) else None


OPEN = OpenFloat()


NUMBA_TYPES: dict[str, Any] = {
    name: HalfType(scalar) if scalar.precision else getattr(types, {"b": "boolean"}.get(scalar.kind, scalar.dtype_name))
    for name, scalar in SCALARS.items()
}

NAMES = {kind: name for name, kind in NUMBA_TYPES.items()} | {OPEN: "f64"}


@typeof_impl.register(ScalarType)
def _type_of_scalar_type(value: ScalarType, context: Any) -> Any:
    return types.NumberClass(NUMBA_TYPES[value.name])


# Types of unannotated arguments


def numba_type(kind: ArgumentType) -> Any:
    """Returns numba's type for an argument type. Raises ``CompileError`` for a dtype that numba does not know."""
    match kind:
        case NumberType(dtype):
            return _of_dtype(dtype)
        case ArrayType(dtype, ndim, strided):
            return types.Array(_of_dtype(dtype), ndim, "A" if strided else "C")
        case RecordType(dtype):
            return _of_dtype(dtype)
        case TupleType(elements, made_of):
            return types.BaseTuple.from_types([numba_type(element) for element in elements], made_of)
        case NoneType():
            return types.none
        case EnumType(made_of, value):
            integer = issubclass(made_of, int)
            return (types.IntEnumMember if integer else types.EnumMember)(made_of, numba_type(value))


def argument_type(kind: Any) -> ArgumentType:
    """Returns the argument type for numba's type. Raises ``CompileError`` for a type that a launch cannot pass."""
    if isinstance(kind, types.Array):
        return ArrayType(_dtype(kind.dtype), kind.ndim)
    if isinstance(kind, types.Record):
        return of_box(_dtype(kind), 0)
    if isinstance(kind, types.BaseTuple):
        made_of = getattr(kind, "instance_class", tuple)
        return TupleType(tuple(argument_type(element) for element in kind), made_of)
    if isinstance(kind, types.EnumMember):
        return EnumType(kind.instance_class, argument_type(kind.dtype))
    return NoneType() if kind == types.none else NumberType(_dtype(kind))


def _dtype(kind: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(numpy_support.as_dtype(kind))
        return found
    except Exception:
        raise CompileError(f"an argument of numba's type {kind} cannot be passed to a kernel") from None


def _of_dtype(dtype: np.dtype[Any]) -> Any:
    scalar = of_dtype(dtype)
    if scalar is not None and scalar.numpys is None:  # numba's own type for this dtype needs a CUDA C++ library
        raise CompileError(
            f"kernels cannot use the dtype {dtype} for a parameter without an annotation; annotate it, as in "
            f"Slice[{scalar.name}]"
        )
    try:
        return numpy_support.from_dtype(dtype)
    except Exception as error:
        raise CompileError(f"kernels cannot use the dtype {dtype}: {error}") from None


# Python's operators, as the rules of types name them. An operator in place, ``+=``, has the types and the code of the
# plain one.

ARITHMETIC = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
)  # fmt: skip
COMPARISONS = {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}
_BITWISE = (operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor)
_IN_PLACE = {each: getattr(operator, f"i{each.__name__.rstrip('_')}") for each in (*ARITHMETIC, *_BITWISE)}
_PLAIN = {in_place: plain for plain, in_place in _IN_PLACE.items()}


def operation_of(function: Any) -> Any:
    """Returns the operation of a function or an operator of numba's typing, in its plain form. Returns None for an
    object of numba's that has no hash."""
    key = getattr(function, "typing_key", function)
    try:
        return _PLAIN.get(key, key)
    except TypeError:
        return None


def forms_of(function: Any) -> tuple[Any, ...]:
    """Returns an operator and its form in place. Returns any other function alone."""
    return (function, _IN_PLACE[function]) if function in _IN_PLACE else (function,)


# Operations on integers

_INTEGER_OPERATORS = (operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor)
_UNARY = (operator.neg, operator.pos, operator.invert, abs)
_DIVISIONS = (operator.floordiv, operator.mod, divmod)
_SHIFTS = (operator.lshift, operator.rshift)


def mixed_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types that the arguments of an operation on ``u64`` and signed integers are converted to. Returns the
    arguments of any other operation unchanged.

    NumPy and numba give a float64 for such an operation, because no integer type holds both ranges. Kernels compute
    indices with such sums (``m * n + thread.index_2d_col()``), so in a kernel the result is an ``i64``, like an index,
    and the arithmetic is modulo 2**64. A quotient or a remainder in ``i64`` would be wrong, not just wrapped, for
    numbers of 2**63 or more. With a non-negative constant, it is computed in ``u64``; otherwise ``mixed_signature``
    types it. ``min`` and ``max`` use ``i64``, so that ``max(n - m, 0)`` is 0 if ``n`` is less than ``m``.
    """
    plain = [types.unliteral(argument) for argument in args]
    if not _is_mixed(plain):
        return args
    key = operation_of(function)
    if len(plain) == 2 and key in _DIVISIONS:
        return args if any(_may_be_negative(argument) for argument in args) else (types.uint64,) * 2
    if (len(plain) == 2 and key in _INTEGER_OPERATORS) or key in (min, max):
        return (types.int64,) * len(plain)
    if len(plain) == 2 and key in _SHIFTS:
        return (types.int64 if plain[0].signed else types.uint64, types.uint64)
    return args


def mixed_signature(function: Any, args: tuple[Any, ...]) -> Any:
    """Returns the signature of an operation on the mathematical values of a ``u64`` and a signed integer. Such
    operations are comparisons, and the quotients and remainders that ``mixed_arguments`` has not converted. A quotient
    or a remainder is an ``i64``. Returns None for any other operation."""
    plain = [types.unliteral(argument) for argument in args]
    key = operation_of(function)
    if len(plain) != 2 or not _is_mixed(plain):
        return None
    wide = [types.int64 if kind.signed else types.uint64 for kind in plain]
    if key in COMPARISONS:
        return signature(types.boolean, *wide)
    return signature(types.int64, *wide) if key in _DIVISIONS and key is not divmod else None


def unary_signature(function: Any, args: tuple[Any, ...]) -> Any:
    """Returns the signature of ``-x``, ``+x``, ``~x`` or ``abs(x)`` of an integer, whose result has the type of ``x``.
    Returns None for any other operation.

    NumPy also keeps the type. numba would widen it to 64 bits, and then an unsigned result would not wrap at the width
    of ``x``.
    """
    plain = [types.unliteral(argument) for argument in args]
    if len(plain) != 1 or not isinstance(plain[0], types.Integer):
        return None
    return signature(plain[0], plain[0]) if operation_of(function) in _UNARY else None


def unify_mixed(first: Any, second: Any) -> Any:
    """Returns ``i64``, the type of a variable to which a ``u64`` and a signed integer are assigned. Returns None for
    any other pair of types."""
    return types.int64 if _is_mixed([types.unliteral(first), types.unliteral(second)]) else None


def _may_be_negative(argument: Any) -> bool:
    constant = isinstance(argument, types.IntegerLiteral)
    return bool(argument.literal_value < 0 if constant else types.unliteral(argument).signed)


def _is_mixed(kinds: list[Any]) -> bool:
    integers = all(isinstance(kind, types.Integer) for kind in kinds)
    return integers and types.uint64 in kinds and any(kind.signed for kind in kinds)


def conversion_problem(target: Any, value: Any) -> str | None:
    """Returns the reason why a value of type ``value`` may not be stored as the scalar type ``target``. Returns None if
    it may be stored.

    A float may not be stored as an integer, because it would lose its fraction. A constant outside the range of an
    integer type may not be stored either. Integers that are computed at run time may be stored, and wrap.
    """
    name, plain = display(target), types.unliteral(value)
    if not isinstance(plain, types.Number | types.Boolean):
        advice = "; give it a number on every path" if isinstance(plain, types.Optional) else ""
        return f"the value is {display(value)}{advice}"
    if isinstance(plain, types.Complex) and not isinstance(target, types.Complex):
        return f"the value is {display(value)}; take its .real or abs(...) of it"
    if isinstance(plain, types.Float | HalfType) and not isinstance(target, types.Float | types.Complex | HalfType):
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
    """Returns the name of a type as a kernel's author writes it."""
    plain = types.unliteral(numba_type)
    if plain in NAMES:
        return NAMES[plain]
    if isinstance(plain, types.Optional):
        return f"{display(plain.type)} or None"
    if isinstance(plain, types.NoneType):
        return "None"
    if isinstance(plain, types.BaseNamedTuple):
        return str(plain.instance_class.__name__)
    if isinstance(plain, types.BaseTuple):
        return f"tuple[{', '.join(map(display, plain))}]"
    shown = str(plain).removesuffix(" of index_2d")
    return shown[len("class(") : -1] if shown.startswith("class(") else shown
