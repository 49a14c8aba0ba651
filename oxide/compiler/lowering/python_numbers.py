"""``min`` and ``max`` of floats, and ``//`` of integers, as Python has them where numba-cuda differs.

Python's ``max(a, b)`` is a unless b is greater: so ``max(x, 0.0)`` of a NaN is that NaN, and a relu hides no fault.
numba-cuda takes libdevice's ``fmax``, which gives the number. The least integer ``// -1`` wraps, as every sum does,
where numba gives 0. Kernels in numba-cuda's own vocabulary keep what it does.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cpython.numbers import int_floordiv_impl

from .mathematics import call_of_floats, lower_divmod
from .registry import lowering_registry, session

_EXTREMES = {max: (">", "fmax"), min: ("<", "fmin")}


def _lower_extreme(function: Any) -> Any:
    comparison, libdevice = _EXTREMES[function]

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.return_type
        first, second = (context.cast(builder, value, given, kind) for value, given in zip(args, sig.args, strict=True))
        if session.numba_style:
            return call_of_floats(builder, libdevice, first, second)
        return builder.select(builder.fcmp_ordered(comparison, second, first), second, first)

    return lowered


def _lower_floor_division(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    quotient, kind = int_floordiv_impl(context, builder, sig, args), sig.return_type
    if session.numba_style or not kind.signed:
        return quotient
    dividend, divisor = (context.cast(builder, value, given, kind) for value, given in zip(args, sig.args, strict=True))
    is_least = builder.icmp_signed("==", dividend, ir.Constant(dividend.type, kind.minval))
    by_minus_one = builder.icmp_signed("==", divisor, ir.Constant(divisor.type, -1))
    return builder.select(builder.and_(is_least, by_minus_one), dividend, quotient)


for _function in _EXTREMES:
    for _first in (types.float32, types.float64):  # exactly, as numba-cuda has them
        for _second in (types.float32, types.float64):
            lowering_registry.lower(_function, _first, _second)(_lower_extreme(_function))
for _operator in (operator.floordiv, operator.ifloordiv):
    lowering_registry.lower(_operator, types.Integer, types.Integer)(_lower_floor_division)
lowering_registry.lower(divmod, types.Integer, types.Integer)(lower_divmod)
