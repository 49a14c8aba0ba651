"""The narrow floats, such as ``f16`` and ``f8e4m3``: the types of operations on them, and their lowering
through f32.

An operation on two narrow floats of one type, or on a narrow float and an integer, has the narrow type. An operation on
a narrow float and an f32 or f64 has the type of the f32 or f64. An operation on two different narrow types gives an
f32. The functions of ``math`` in ``_ARITHMETIC`` and ``_UNARY`` return the type of their arguments.

"Half" in this file's names stands for all narrow floats.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.language import fast, intrinsics
from oxide.language.narrow import bits_of
from oxide.language.types import SCALARS, of_narrow_scalar

from .common import primitive
from .primitives import call
from .registry import lowering_registry, typing_registry
from .types import ARITHMETIC, COMPARISONS, NUMBA_TYPES, HalfType, forms_of, operation_of

_SINGLE = ir.FloatType()

_ARITHMETIC = (
    *(*ARITHMETIC, pow, intrinsics.fmin, intrinsics.fmax),
    *(math.pow, math.atan2, math.copysign, math.fmod, math.hypot, math.remainder),
)
"""Operations on two numbers."""
_EXTREMES = (min, max)

_UNARY_NAMES = """acos acosh asin asinh atan atanh cbrt ceil cos cosh degrees erf erfc exp exp2 expm1 fabs floor gamma
lgamma log log10 log1p log2 radians sin sinh sqrt tan tanh trunc"""
_UNARY = (
    operator.neg,
    operator.pos,
    abs,
    intrinsics.rsqrt,
    intrinsics.saturate,
    math.ulp,
    *(getattr(math, name) for name in _UNARY_NAMES.split()),
)
_FAST = tuple(value for value in vars(fast).values() if callable(value) and value.__module__ == fast.__name__)
_THROUGH_SINGLE = (
    *COMPARISONS,
    *(math.isnan, math.isinf, math.isfinite, math.frexp, math.modf, math.ldexp, math.log, math.nextafter),
    *(float, int, bool, round, divmod, intrinsics.fma),
    *_FAST,
)
"""Functions for which a narrow float argument is converted to f32. Their results have the same types as for an f32
argument."""


primitive(HalfType, lambda kind: ir.IntType(kind.bitwidth))


def type_of_constant(value: Any) -> Any:
    """Returns the type of a scalar of ``ml_dtypes`` that a kernel names. Returns None for any other value."""
    scalar = of_narrow_scalar(value)
    return None if scalar is None else NUMBA_TYPES[scalar.name]


@lowering_registry.lower_constant(HalfType)
def _lower_constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    bits = np.asarray(value).view(f"u{value.dtype.itemsize}")
    return ir.Constant(context.get_value_type(kind), int(bits))


def half_signature(function: Any, args: tuple[Any, ...]) -> Any:
    """Returns the signature of an operation whose result is a narrow float, or of a comparison of two numbers of one
    narrow type. Returns None for any other operation."""
    key = operation_of(function)
    kinds = {argument for argument in map(types.unliteral, args) if isinstance(argument, HalfType)}
    others = [types.unliteral(argument) for argument in args if not isinstance(types.unliteral(argument), HalfType)]
    if len(kinds) != 1 or not all(isinstance(other, types.Integer | types.Boolean) for other in others):
        return None
    (kind,) = kinds
    if not others and len(args) == 2 and key in COMPARISONS:
        return signature(types.boolean, kind, kind)
    several = len(args) == 2 or (len(args) > 2 and key in _EXTREMES)
    if (key in (*_ARITHMETIC, *_EXTREMES) and several) or (key in _UNARY and len(args) == 1):
        return signature(kind, *[kind] * len(args))
    return None


def half_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types that the arguments of an operation on narrow floats are converted to. Returns the arguments of
    any other operation unchanged."""
    key = operation_of(function)
    if not any(isinstance(types.unliteral(argument), HalfType) for argument in args):
        return args
    if found := half_signature(function, args):
        return tuple(found.args)
    if not (key in (*_ARITHMETIC, *_EXTREMES) or key in _UNARY or key in _THROUGH_SINGLE):
        return args
    return tuple(types.float32 if isinstance(types.unliteral(argument), HalfType) else argument for argument in args)


def unify_half(first: Any, second: Any) -> Any:
    """Returns the type of a variable to which a narrow float and a number of another type are assigned. Returns None
    for any other pair of types."""
    kinds = [types.unliteral(first), types.unliteral(second)]
    halves = [kind for kind in kinds if isinstance(kind, HalfType)]
    if not halves or not all(isinstance(kind, types.Number | types.Boolean) for kind in kinds):
        return None
    if len(halves) == 2:
        return halves[0] if halves[0] == halves[1] else types.float32
    (other,) = (kind for kind in kinds if kind is not halves[0])
    return other if isinstance(other, types.Float) else halves[0]


def half_conversion(source: Any, target: Any) -> Any:
    """Returns numba's kind of conversion between a narrow float and any number. Returns None for any other pair of
    types."""
    kinds = [types.unliteral(source), types.unliteral(target)]
    halves = any(isinstance(kind, HalfType) for kind in kinds)
    return Conversion.unsafe if halves and all(isinstance(k, types.Number | types.Boolean) for k in kinds) else None


def _name(kind: Any) -> str:
    return "f16" if kind == types.float16 else str(kind.name)


def widen(builder: Any, kind: Any, value: Any) -> Any:
    """Returns the f32 that is equal to a narrow float, or to a float16 of numba's."""
    return call(builder, f"oxide.{_name(kind)}.widen", _SINGLE, value)


def narrow(builder: Any, kind: Any, value: Any) -> Any:
    """Returns the narrow float nearest to an f32 or f64."""
    if value.type == ir.DoubleType():
        value = call(builder, "oxide.round_to_odd", _SINGLE, value)
    return call(builder, f"oxide.{_name(kind)}.narrow", ir.IntType(kind.bitwidth), value)


def through_single(single: Any) -> Any:
    """Returns the lowering of an operation that the function ``single`` computes in f32, for numbers of one narrow type
    or of numba's float16. A result that is no truth value is rounded to the type."""

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        result = types.boolean if sig.return_type == types.boolean else types.float32
        implementation = context.get_function(single, signature(result, *[types.float32] * len(args)))
        found = implementation(builder, [widen(builder, sig.args[0], value) for value in args])
        return found if result == types.boolean else narrow(builder, sig.return_type, found)

    return lowered


def _register(function: Any, lowered: Any, count: int) -> None:
    lowering_registry.lower(function, *[HalfType] * count)(lowered)
    _register_type(function)


def _lower_extreme(function: Any) -> None:
    """Registers Python's ``min`` or ``max`` of two numbers. The lowering compares the numbers widened to f32, but
    selects between the narrow values. If it selected between the widened numbers, LLVM 22 might select the zero with
    the wrong sign."""
    comparison = "<" if function is min else ">"

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first, second = (widen(builder, sig.return_type, value) for value in args)
        return builder.select(builder.fcmp_ordered(comparison, second, first), args[1], args[0])

    _register(function, lowered, 2)


def _lower_extreme_of_several(function: Any) -> None:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.return_type
        of_two = context.get_function(function, signature(kind, kind, kind))
        result, *others = args
        for other in others:
            result = of_two(builder, (result, other))
        return result

    lowering_registry.lower(function, HalfType, HalfType, HalfType, types.VarArg(HalfType))(lowered)


def _register_type(function: Any) -> None:
    """Registers the signatures of a function. Type inference does not need them. numba's lowering of an operator does:
    it looks up the operator's signature again, by the types of the operands."""

    @typing_registry.register_global(function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            return None if kws else half_signature(function, args)


# Functions that change only the sign of their argument change only the sign bit, so that a NaN keeps its other bits.


def lower_negative(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.xor(args[0], args[0].type(1 << (args[0].type.width - 1)))


def lower_absolute(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.and_(args[0], args[0].type((1 << (args[0].type.width - 1)) - 1))


def lower_positive(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return args[0]


def _lower_ulp(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Lowers ``math.ulp``: the distance to the next number away from zero. For the largest finite number, the result is
    the distance to the previous number."""
    kind = sig.return_type
    bits = args[0].type
    beyond = bits(bits_of(kind.name, SCALARS[kind.name].greatest) + 1)  # an infinity or a NaN
    size, one = builder.and_(args[0], bits((1 << (kind.bitwidth - 1)) - 1)), bits(1)
    following = builder.add(size, one)
    is_largest = builder.icmp_unsigned("==", following, beyond)
    upper = builder.select(is_largest, size, following)
    difference = builder.fsub(widen(builder, kind, upper), widen(builder, kind, builder.sub(upper, one)))
    is_finite = builder.icmp_unsigned("<", size, beyond)
    return builder.select(is_finite, narrow(builder, kind, difference), size)


for _function in (*_ARITHMETIC, *COMPARISONS):
    for _form in forms_of(_function):
        _register(_form, through_single(operator.pow if _function is pow else _function), 2)
for _function in _EXTREMES:
    _lower_extreme(_function)
    _lower_extreme_of_several(_function)
_BY_BITS = {
    operator.neg: lower_negative,
    operator.pos: lower_positive,
    abs: lower_absolute,
    math.fabs: lower_absolute,
    math.ulp: _lower_ulp,
}
for _function in _UNARY:
    _register(_function, _BY_BITS.get(_function) or through_single(_function), 1)


@lowering_registry.lower_cast(HalfType, types.Float)
def _cast_to_float(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return context.cast(builder, widen(builder, source, value), types.float32, target)


@lowering_registry.lower_cast(HalfType, types.Integer)
def _cast_to_integer(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return context.cast(builder, widen(builder, source, value), types.float32, target)


@lowering_registry.lower_cast(HalfType, types.Boolean)
def _cast_to_boolean(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return builder.fcmp_unordered("!=", widen(builder, source, value), ir.Constant(_SINGLE, 0.0))


@lowering_registry.lower_cast(HalfType, HalfType)
def _cast_half(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return value if source == target else narrow(builder, target, widen(builder, source, value))


@lowering_registry.lower_cast(types.Float, HalfType)
def _cast_from_float(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return narrow(builder, target, value)


@lowering_registry.lower_cast(types.Integer, HalfType)
@lowering_registry.lower_cast(types.Boolean, HalfType)
def _cast_from_integer(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    if isinstance(source, types.Integer) and source.bitwidth == 64:
        value = _within_a_double(builder, source, value)
    wide = context.cast(builder, value, source, types.float64)
    return _cast_from_float(context, builder, types.float64, target, wide)


def _within_a_double(builder: Any, kind: Any, value: Any) -> Any:
    """Replaces a 64-bit integer by an integer that a float64 holds exactly. An integer of 2**53 or more in magnitude is
    rounded to odd: its 11 lowest bits become 0, and if any of them was 1, bit 11 becomes 1. A later rounding to a
    narrow type then gives the result of a single rounding."""
    bits = value.type
    kept, dropped = builder.and_(value, bits(-2048)), builder.and_(value, bits(2047))
    exact = builder.icmp_unsigned("==", dropped, bits(0))
    odd = builder.or_(kept, builder.select(exact, bits(0), bits(2048)))
    # A double holds every integer below 2**53 in magnitude.
    above = builder.add(value, bits(2**53)) if kind.signed else value
    is_small = builder.icmp_unsigned("<", above, bits(2**54 if kind.signed else 2**53))
    return builder.select(is_small, value, odd)
