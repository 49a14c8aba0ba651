"""Python's ``min`` and ``max`` of floats, and ``//`` and ``%`` of integers, where numba-cuda differs from Python.

Python's ``max(a, b)`` returns ``a`` unless ``b`` is greater. So ``max(x, 0.0)`` is NaN if ``x`` is, and a relu hides no
NaN. numba-cuda uses libdevice's ``fmax``, which returns the operand that is not a NaN. The least integer divided by -1
wraps, as every sum does; numba returns 0. A ``u64`` and a signed integer are divided as integers by Python's rules, and
the result is an ``i64``, modulo 2**64; numba divides them as floats. Kernels in numba-cuda's own vocabulary keep
numba-cuda's behaviour.

numba-cuda branches around a division by zero, and around a division of the least integer by -1. Here, the total
division (``compiler/ir/known_functions.py``) covers both cases by selecting another divisor. The selection does not
depend on the dividend, so a loop with one divisor selects it once.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import types

from .mathematics import call_of_floats, lower_divmod
from .operators import forms_of
from .registry import lowering_registry, session

_EXTREMES = {max: (">", "fmax"), min: ("<", "fmin")}
_SMALLEST = {"float": 2.0**-149, "double": 5e-324}


def _lower_extreme(function: Any) -> Any:
    comparison, libdevice = _EXTREMES[function]

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.return_type
        first, second = (context.cast(builder, value, given, kind) for value, given in zip(args, sig.args, strict=True))
        if session().numba_style:
            return call_of_floats(builder, libdevice, first, second)
        return builder.select(_is_beyond(builder, comparison, second, first), second, first)

    return lowered


def _is_beyond(builder: Any, comparison: str, second: Any, first: Any) -> Any:
    """Returns whether ``second`` is less or greater than ``first``; ``comparison`` is ``<`` or ``>``.

    A comparison with zero is emitted as the equivalent comparison with the smallest number above or below zero.
    Otherwise, LLVM 22 would replace the comparison and the selection that follows it. It would use a minimum or maximum
    or, for widened numbers, a selection with the opposite comparison. Both may return the zero with the wrong sign.
    """
    if _is_zero(first):
        tiny = ir.Constant(first.type, _SMALLEST[str(first.type)] if comparison == ">" else -_SMALLEST[str(first.type)])
        return builder.fcmp_ordered(f"{comparison}=", second, tiny)
    if _is_zero(second):
        tiny = ir.Constant(first.type, -_SMALLEST[str(first.type)] if comparison == ">" else _SMALLEST[str(first.type)])
        return builder.fcmp_ordered("<=" if comparison == ">" else ">=", first, tiny)
    return builder.fcmp_ordered(comparison, second, first)


def _is_zero(value: Any) -> bool:
    while isinstance(value, ir.CastInstr):
        value = value.operands[0]
    return isinstance(value, ir.Constant) and value.constant == 0


def _lower_floor_division(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    dividend, divisor = _operands(context, builder, sig, args)
    kind = sig.return_type
    if not kind.signed:
        return builder.udiv(dividend, divisor)
    rounded = builder.zext(_is_rounded_down(builder, builder.srem(dividend, divisor), divisor), dividend.type)
    quotient = builder.sub(builder.sdiv(dividend, divisor), rounded)
    if not session().numba_style:
        return quotient
    is_least = builder.icmp_signed("==", dividend, ir.Constant(dividend.type, kind.minval))
    by_minus_one = builder.icmp_signed("==", divisor, ir.Constant(divisor.type, -1))
    return builder.select(builder.and_(is_least, by_minus_one), ir.Constant(dividend.type, 0), quotient)


def _lower_remainder(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    dividend, divisor = _operands(context, builder, sig, args)
    if not sig.return_type.signed:
        return builder.urem(dividend, divisor)
    if not _is_a_step(dividend) or isinstance(divisor, ir.Constant):
        return _remainder(builder, dividend, divisor)
    before = builder.block
    at_least_0 = builder.icmp_signed(">=", dividend, ir.Constant(dividend.type, 0))
    is_within = builder.and_(at_least_0, builder.icmp_signed("<", dividend, divisor))
    with builder.if_then(builder.not_(is_within), likely=False):
        rest = _remainder(builder, dividend, divisor)
        divided = builder.block
    result = builder.phi(dividend.type)
    result.add_incoming(dividend, before)
    result.add_incoming(rest, divided)
    return result


def _is_a_step(dividend: Any) -> bool:
    """Returns whether a dividend is a sum or difference with a constant, as in ``(i + 1) % n``. Such a step around a
    ring rarely reaches the ring's end, so a branch around the division pays: a 64-bit division takes a GPU some 30 to
    100 instructions."""
    return (
        isinstance(dividend, ir.Instruction)
        and dividend.opname in ("add", "sub")
        and any(isinstance(each, ir.Constant) for each in dividend.operands)
    )


def _remainder(builder: Any, dividend: Any, divisor: Any) -> Any:
    rest = builder.srem(dividend, divisor)
    return builder.select(_is_rounded_down(builder, rest, divisor), builder.add(rest, divisor), rest)


def _operands(context: Any, builder: Any, sig: Any, args: Any) -> tuple[Any, Any]:
    dividend, divisor = (
        context.cast(builder, value, given, sig.return_type) for value, given in zip(args, sig.args, strict=True)
    )
    return dividend, divisor


def _is_rounded_down(builder: Any, rest: Any, divisor: Any) -> Any:
    """Returns whether the exact quotient is less than the quotient rounded towards 0. ``rest`` is the remainder of the
    division rounded towards 0; it has the dividend's sign."""
    zero = ir.Constant(rest.type, 0)
    differ = builder.icmp_signed("<", builder.xor(rest, divisor), zero)
    return builder.and_(builder.icmp_signed("!=", rest, zero), differ)


def _divide_mixed(builder: Any, sig: Any, args: Any) -> tuple[Any, Any]:
    """Returns the quotient and the remainder of an i64 and a u64. The division is one of magnitudes. If the i64 is
    negative, the quotient is then rounded down instead of towards 0."""
    number = 0 if sig.args[0].signed else 1
    zero = ir.Constant(args[number].type, 0)
    negative = builder.icmp_signed("<", args[number], zero)
    sizes = list(args)
    sizes[number] = builder.select(negative, builder.neg(args[number]), args[number])
    quotient, remainder = builder.udiv(*sizes), builder.urem(*sizes)
    rounded = builder.and_(negative, builder.icmp_unsigned("!=", remainder, zero))
    down = builder.neg(builder.add(quotient, builder.zext(rounded, zero.type)))
    rest = builder.sub(args[1], remainder) if number == 0 else builder.add(args[1], remainder)
    return builder.select(negative, down, quotient), builder.select(rounded, rest, remainder)


def _lower_mixed_quotient(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _divide_mixed(builder, sig, args)[0]


def _lower_mixed_remainder(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _divide_mixed(builder, sig, args)[1]


for _mixed in ((types.int64, types.uint64), (types.uint64, types.int64)):
    for _operator in forms_of(operator.floordiv):
        lowering_registry.lower(_operator, *_mixed)(_lower_mixed_quotient)
    for _operator in forms_of(operator.mod):
        lowering_registry.lower(_operator, *_mixed)(_lower_mixed_remainder)
for _function in _EXTREMES:
    for _first in (types.float32, types.float64):  # exact types take precedence over numba-cuda's own lowering
        for _second in (types.float32, types.float64):
            lowering_registry.lower(_function, _first, _second)(_lower_extreme(_function))
for _operator in forms_of(operator.floordiv):
    lowering_registry.lower(_operator, types.Integer, types.Integer)(_lower_floor_division)
for _operator in forms_of(operator.mod):
    lowering_registry.lower(_operator, types.Integer, types.Integer)(_lower_remainder)
lowering_registry.lower(divmod, types.Integer, types.Integer)(lower_divmod)
