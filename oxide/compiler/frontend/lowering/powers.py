"""Lowers powers of integers. They are computed modulo 2**64, and wrap in the type of the base.

numba-cuda rounds a power whose exponent is known at run time to an f64. Here it is exact. A negative power is 0, because
nothing raises in a kernel. In a kernel of numba-cuda's own vocabulary it is the fraction truncated towards 0, and a
negative power of 0 is -2**63, as there.
"""

from __future__ import annotations

import operator
from typing import Any

from numba.cuda import types

from oxide.compiler.signature.device_function import device
from oxide.language.types import i64, u64

from .python_mathematics import call_device_function
from .registry import lowering_registry, session

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
