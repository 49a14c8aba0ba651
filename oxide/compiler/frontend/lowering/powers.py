"""Lowers powers of integers. They are computed modulo 2**64, like every product of integers.

numba computes powers with large exponents through floats, and returns -2**63 for a negative power of 0. Here a negative
exponent gives the fraction truncated towards 0. A negative power of 0 is undefined and gives 0, because nothing raises
in a kernel. Kernels in numba-cuda's own vocabulary keep numba-cuda's behaviour.
"""

from __future__ import annotations

import operator
from typing import Any

from numba.cuda import types
from numba.cuda.cpython.numbers import int_power_impl

from oxide.compiler.signature.device_function import device
from oxide.language.types import i64, u64

from .python_mathematics import call_device_function
from .registry import lowering_registry, session


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
    if exponent < 0:
        if base != 1 and base != -1:
            return i64(0)
        exponent = -exponent  # -2**63 stays -2**63, which is even as a u64 too
    return i64(_power(u64(base), u64(exponent)))


def _lower_power(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    if session.numba_style:
        return int_power_impl(context, builder, sig, args)
    # The base and the result have the same bits for signed and unsigned types, so only the exponent's type matters.
    exponent = sig.args[1]
    return call_device_function(context, builder, _power_signed if exponent.signed else _power, (exponent,) * 2, args)


for _operator in (operator.pow, operator.ipow, pow):
    for _base in (types.int64, types.uint64):  # exact types take precedence over numba's own lowering
        for _exponent in (types.int64, types.uint64):
            lowering_registry.lower(_operator, _base, _exponent)(_lower_power)
