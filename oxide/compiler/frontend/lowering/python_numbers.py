"""Python's operators and built-in functions of numbers, where numba-cuda differs from Python or lacks them: ``min`` and
``max`` of floats, ``//``, ``%`` and ``divmod``, ``round``, and powers.

Python's ``max(a, b)`` returns ``a`` unless ``b`` is greater. So ``max(x, 0.0)`` is NaN if ``x`` is, and a relu hides no
NaN. numba-cuda uses libdevice's ``fmax``, which returns the operand that is not a NaN. The least integer divided by -1
wraps, as every sum does; numba returns 0. Powers wrap in the type of the base, and a negative power of an integer is 0;
numba-cuda rounds a power whose exponent is known at run time to an f64. Kernels in numba-cuda's own vocabulary keep
numba-cuda's behaviour.

numba-cuda branches around a division by zero, and around a division of the least integer by -1. Here, the total
division (``compiler/ir/known_functions.py``) covers both cases by selecting another divisor. The selection does not
depend on the dividend, so a loop with one divisor selects it once.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.ir.known_functions import ROUND_DECIMALS
from oxide.compiler.signature.device_function import device
from oxide.language.types import i64, u64

from .mathematics import call_device_function, call_of_floats, plain
from .primitives import call
from .registry import lowering_registry, note, session, typing_registry
from .types import COMPARISONS, display, forms_of
from .whole_numbers import end_of_chain

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


def _compare_mixed(function: Any) -> Any:
    """Returns the lowering of a comparison of an i64 and a u64. A negative i64 is less than every u64, and any other
    i64
    is compared as a u64."""

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = 0 if sig.args[0].signed else 1
        negative = builder.icmp_signed("<", args[number], ir.Constant(args[number].type, 0))
        if_negative = function(-1, 0) if number == 0 else function(0, -1)
        otherwise = builder.icmp_unsigned(COMPARISONS[function], *args)
        return builder.select(negative, ir.Constant(otherwise.type, int(if_negative)), otherwise)

    return lowered


for _mixed in ((types.int64, types.uint64), (types.uint64, types.int64)):
    for _comparison in COMPARISONS:
        lowering_registry.lower(_comparison, *_mixed)(_compare_mixed(_comparison))
for _function in _EXTREMES:
    for _first in (types.float32, types.float64):  # exact types take precedence over numba-cuda's own lowering
        for _second in (types.float32, types.float64):
            lowering_registry.lower(_function, _first, _second)(_lower_extreme(_function))
for _operator in forms_of(operator.floordiv):
    lowering_registry.lower(_operator, types.Integer, types.Integer)(_lower_floor_division)
for _operator in forms_of(operator.mod):
    lowering_registry.lower(_operator, types.Integer, types.Integer)(_lower_remainder)


# round and divmod


@typing_registry.register_global(round)
class Round(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if kws or len(args) != 1:
            note("round takes 1 or 2 arguments, by position")
            return None
        (kind,) = plain(args)
        if isinstance(kind, types.Optional):
            return None  # numba tries again with the type without None
        if not isinstance(kind, types.Float | types.Integer):
            note(f"round(x) takes a number, not {display(kind)}")
            return None
        if kind == types.float16:  # numba-cuda's float16
            return signature(types.int64, types.float32)
        return signature(types.int64 if isinstance(kind, types.Float) else kind, kind)


@lowering_registry.lower(round, types.Any)
def _lower_round(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    if isinstance(kind, types.Integer):
        return args[0]
    return call(builder, f"__nv_{'float' if kind.bitwidth == 32 else 'double'}2ll_rn", ir.IntType(64), *args)


@typing_registry.register_global(divmod)
class DivMod(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if kws or len(args) != 2 or not all(isinstance(argument, types.Integer | types.Float) for argument in args):
            note(f"divmod takes two numbers, not {' and '.join(map(display, args))}")
            return None
        quotient = self.context.resolve_function_type(operator.floordiv, args, {})
        return signature(types.UniTuple(quotient.return_type, 2), *quotient.args)


@lowering_registry.lower(divmod, types.Any, types.Any)
@lowering_registry.lower(divmod, types.Integer, types.Integer)
def _lower_divmod(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Lowers ``divmod`` as ``//`` and ``%``."""
    parts = []
    for function in (operator.floordiv, operator.mod):
        implementation = context.get_function(function, signature(sig.return_type.dtype, *sig.args))
        parts.append(end_of_chain(builder, implementation(builder, args)))
    return context.make_tuple(builder, sig.return_type, parts)


def _lower_round_decimals(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, double = sig.args[0], types.float64
    number = context.cast(builder, args[0], kind, double)
    digits = context.cast(builder, args[1], sig.args[1], types.int64)
    return context.cast(builder, call(builder, ROUND_DECIMALS, number.type, number, digits), double, kind)


for _kind in (types.float32, types.float64):  # exact types take precedence over numba's own lowering
    lowering_registry.lower(round, _kind)(_lower_round)
    lowering_registry.lower(round, _kind, types.Integer)(_lower_round_decimals)


# Powers of integers are computed modulo 2**64, like every product of integers. numba-cuda rounds a power whose exponent
# is known at run time to an f64. Here it is exact. A negative exponent gives the fraction truncated towards 0. A
# negative power of 0 is undefined and gives 0, because nothing raises in a kernel; in a kernel of numba-cuda's own
# vocabulary it gives -2**63, as there.

_POWERS = (operator.pow, operator.ipow, pow, math.pow)


def power_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types that the arguments of a power are converted to.

    An f32 to the power of an integer is an f32; numba would compute it in f64. With an f64 base, an unsigned exponent
    becomes an f64. A constant exponent of ``**`` stays a constant, because numba expands the power into products.
    """
    key = getattr(function, "typing_key", function)
    if len(args) != 2 or key not in _POWERS:
        return args
    base, exponent = types.unliteral(args[0]), types.unliteral(args[1])
    constant = args[1].literal_value if isinstance(args[1], types.IntegerLiteral) and key is not math.pow else None
    if not isinstance(exponent, types.Integer):
        return args
    if constant is None and (base == types.float32 or (base == types.float64 and not exponent.signed)):
        return (base, base)
    return args


_LEAST = -(2**63)


@device
def _power(base: u64, exponent: u64) -> u64:
    result = u64(1)
    while exponent != u64(0):
        if exponent & u64(1) != u64(0):
            result = result * base
        base, exponent = base * base, exponent >> u64(1)
    return result


@device
def _power_signed(base: i64, exponent: i64) -> i64:
    return i64(0) if exponent < 0 else i64(_power(u64(base), u64(exponent)))


@device
def _power_of_numba(base: i64, exponent: i64) -> i64:
    if exponent < 0 and base == 0:
        return i64(_LEAST)
    if exponent < 0 and (base == 1 or base == -1):
        exponent = -exponent  # -2**63 stays -2**63, which is even as a u64 too
    return i64(_power_signed(base, exponent))


def _lower_power(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # The base and the result have the same bits for signed and unsigned types, so only the exponent's type matters.
    base, exponent = sig.args
    args = (context.cast(builder, args[0], base, exponent), args[1])
    power = _power if not exponent.signed else _power_of_numba if session().numba_style else _power_signed
    found = call_device_function(context, builder, power, (exponent,) * 2, args)
    return context.cast(builder, found, exponent, sig.return_type)


def _lower_constant_power(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Lowers a power with a constant exponent as products."""
    exponent = sig.args[1].literal_value
    square = context.cast(builder, args[0], sig.args[0], sig.return_type)
    result = square.type(1)
    while exponent:
        if exponent & 1:
            result = builder.mul(result, square)
        exponent >>= 1
        square = builder.mul(square, square)
    return result


for _operator in (operator.pow, operator.ipow, pow):
    lowering_registry.lower(_operator, types.Integer, types.IntegerLiteral)(_lower_constant_power)
    for _base in types.integer_domain:  # exact types take precedence over numba's own lowering
        for _exponent in (types.int64, types.uint64):
            lowering_registry.lower(_operator, _base, _exponent)(_lower_power)
