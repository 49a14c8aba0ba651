"""numba-cuda's float16: ``cuda.fp16`` and its operators, computed in f32 and rounded after each step.

numba-cuda lowers these operations to calls of CUDA C++ functions, which must be compiled by NVRTC and linked. Here, an
f16 sum, product, quotient or square root is rounded to f32 and then to f16. The result is the same as with a single
rounding, because f32 has more than twice the precision of f16.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import fp16, types

from .half import lower_absolute, lower_negative, lower_positive, through_single
from .operators import forms_of
from .primitives import call_primitive
from .registry import lowering_registry

_BITS = ir.IntType(16)
_SINGLE = ir.FloatType()
_DOUBLE = ir.DoubleType()

_BINARY: dict[Any, tuple[Any, ...]] = {
    operator.add: (fp16.hadd, "__hadd_rn"),
    operator.sub: (fp16.hsub, "__hsub_rn"),
    operator.mul: (fp16.hmul, "__hmul_rn"),
    operator.truediv: (fp16.hdiv,),
    max: (fp16.hmax,),
    min: (fp16.hmin,),
    operator.eq: (fp16.heq,),
    operator.ne: (fp16.hne,),
    operator.ge: (fp16.hge,),
    operator.gt: (fp16.hgt,),
    operator.le: (fp16.hle,),
    operator.lt: (fp16.hlt,),
}
_UNARY = {
    fp16.hceil: "__nv_ceilf",
    fp16.hfloor: "__nv_floorf",
    fp16.htrunc: "__nv_truncf",
    fp16.hrint: "__nv_rintf",
    fp16.hsqrt: "__nv_sqrtf",
    fp16.hrsqrt: "__nv_rsqrtf",
    fp16.hcos: "__nv_cosf",
    fp16.hsin: "__nv_sinf",
    fp16.hexp: "__nv_expf",
    fp16.hexp2: "__nv_exp2f",
    fp16.hexp10: "__nv_exp10f",
    fp16.hlog: "__nv_logf",
    fp16.hlog2: "__nv_log2f",
    fp16.hlog10: "__nv_log10f",
    fp16.htanh: "__nv_tanhf",
    fp16.htanh_approx: "__nv_tanhf",
}


def widen(builder: Any, value: Any) -> Any:
    """Returns the f32 that is equal to the f16 with the given bits."""
    return call_primitive(builder, _SINGLE, "oxide.f16.widen", (value,))


def narrow(builder: Any, value: Any) -> Any:
    """Returns the bits of the f16 nearest to an f32 or f64."""
    if value.type == _DOUBLE:
        value = call_primitive(builder, _SINGLE, "oxide.round_to_odd", (value,))
    return call_primitive(builder, _BITS, "oxide.f16.narrow", (value,))


def _lower(function: Any, count: int, lowered: Any) -> None:
    key = getattr(fp16, function) if isinstance(function, str) else function
    lowering_registry.lower(key, *[types.float16] * count)(lowered)


def _unary(name: str) -> Any:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return narrow(builder, call_primitive(builder, _SINGLE, name, (widen(builder, args[0]),)))

    return lowered


def _lower_fma(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # The product of two f16 is exact in f64. ``narrow`` rounds the sum to odd, as an f32, before it rounds it to f16.
    left, right, addend = (builder.fpext(widen(builder, value), _DOUBLE) for value in args)
    return narrow(builder, builder.fadd(builder.fmul(left, right), addend))


def _lower_truth(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fcmp_unordered("!=", widen(builder, args[0]), _SINGLE(0.0))


def _lower_reciprocal(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return narrow(builder, builder.fdiv(_SINGLE(1.0), widen(builder, args[0])))


for _single, _functions in _BINARY.items():
    for _function in (*forms_of(_single), *_functions):
        _lower(_function, 2, through_single(_single))
for _function, _name in _UNARY.items():
    _lower(_function, 1, _unary(_name))
_lower(fp16.hfma, 3, _lower_fma)
for _function in (operator.neg, fp16.hneg):
    _lower(_function, 1, lower_negative)
for _function in (abs, fp16.habs):
    _lower(_function, 1, lower_absolute)
_lower(operator.pos, 1, lower_positive)
_lower(fp16.hrcp, 1, _lower_reciprocal)
_lower(bool, 1, _lower_truth)


# Conversions: numba-cuda writes them as inline PTX


def _to_float(target: Any) -> Any:
    def lower(builder: Any, value: Any) -> Any:
        wide = widen(builder, value)
        return wide if target == _SINGLE else builder.fpext(wide, target)

    return lower


def _to_integer(signed: bool, bits: int) -> Any:
    def lower(builder: Any, value: Any) -> Any:
        even = call_primitive(builder, _SINGLE, "llvm.rint.f32", (widen(builder, value),))
        return (builder.fptosi if signed else builder.fptoui)(even, ir.IntType(bits))

    return lower


def _from_integer(signed: bool) -> Any:
    def lower(builder: Any, value: Any) -> Any:
        return narrow(builder, (builder.sitofp if signed else builder.uitofp)(value, _DOUBLE))

    return lower


CONVERSIONS: dict[str, Any] = {
    "cvt.f32.f16 $0, $1;": _to_float(_SINGLE),
    "cvt.f64.f16 $0, $1;": _to_float(_DOUBLE),
    "cvt.rn.f16.f32 $0, $1;": narrow,
    "cvt.rn.f16.f64 $0, $1;": narrow,
    **{
        f"cvt.rni.{letter}{bits}.f16 $0, $1;": _to_integer(letter == "s", bits)
        for letter in "su"
        for bits in (8, 16, 32, 64)
    },
    **{
        f"cvt.rn.f16.{letter}{bits} $0, $1;": _from_integer(letter == "s")
        for letter in "su"
        for bits in (8, 16, 32, 64)
    },
}
"""Maps the inline PTX of each conversion of an f16 to a lowering that calls functions of both back ends."""
