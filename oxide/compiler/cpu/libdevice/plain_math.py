"""Elementary functions of floats on the CPU as arithmetic without calls, which LLVM vectorises.

``exp``, ``exp2``, ``exp10``, ``tanh``, ``erf``, ``log``, ``log2`` and ``log10`` of a float are computed in double
precision, without a branch, and rounded once at the end. Their errors are little more than half an ulp: 0.501 at most,
measured for every 29th float. Subnormal numbers, overflow and cancellation need no special cases: a float's extremes
are ordinary doubles. The range reductions are standard (Muller, *Elementary Functions*). An exponential is a power of
two times ``2**z``, with ``z`` between -1/2 and 1/2. The logarithm of the mantissa is ``2 atanh(s)``. The result of
``tanh`` is ``m / (m + 2)``, with ``m = exp(2x) - 1``. Near 0, ``m`` keeps a double's relative precision, because the
power of two is 1 there.

``fast.exp``, which is also ``tile.exp`` on the CPU, is computed in single precision: a vector holds twice as many
elements, and the error is under 1 ulp.

Functions of doubles would need twice the precision, and stay calls of the C library.
"""

from __future__ import annotations

import math
import struct

from oxide.compiler.ir.half import literal

_NAMES = {"exp", "exp2", "exp10", "tanh", "log", "log2", "log10", "erf"}
_ROUNDING = 1.5 * 2.0**52
"""A number whose sum with a small double rounds the double to a whole number: the lowest bits of the sum are the whole
number."""


def definitions(symbol: str) -> list[str]:
    """Returns a list with one IR text for ``symbol`` and for each of its callees; [] for any other function."""
    if symbol == "__nv_fast_expf":
        return [
            "declare float @llvm.fma.f32(float, float, float)",
            f"define float @{symbol}(float %x) alwaysinline {{\n{_fast_exp()}\n}}",
        ]
    name = symbol.removeprefix("__nv_").removeprefix("fast_").removesuffix("f")
    if name not in _NAMES or not symbol.endswith("f"):
        return []
    bodies = {"tanh": _tanh, "erf": _erf}
    body = bodies[name]() if name in bodies else _exp(name) if name.startswith("exp") else _log(name)
    declared = ["declare float @llvm.copysign.f32(float, float)"] if name == "tanh" else []
    return [
        "declare double @llvm.fma.f64(double, double, double)",
        *declared,
        f"define float @{symbol}(float %x) alwaysinline {{\n  %wide = fpext float %x to double\n{body}\n}}",
    ]


def _exp(name: str) -> str:
    """Returns the body of an exponential. The exponent is clamped to about ±150: as a float, 2**150 is already
    infinite, and 2**-150 rounds to 0. The argument is clamped as a float, because a vector holds twice as many floats
    as doubles. The nearest power of two is applied by an addition to the exponent bits of ``2**z``. A NaN stays a NaN:
    the lowest bits of a NaN that was a float are 0."""
    factor = {"exp": 1 / math.log(2), "exp2": 1.0, "exp10": math.log2(10)}[name]
    return f"""{_clamped("%x", float(round(151 / factor)), "float")}
  %within = fpext float %clamped to double
  %shifted = call double @llvm.fma.f64(double %within, double {literal(factor)}, double {literal(_ROUNDING)})
  %nearest = fsub double %shifted, {literal(_ROUNDING)}
  %minus = fneg double %nearest
  %z = call double @llvm.fma.f64(double %within, double {literal(factor)}, double %minus)
{_horner("%power", "%z", [1.0, *_EXPONENTIAL])}
  %number = bitcast double %shifted to i64
  %more = shl i64 %number, 52
  %power.bits = bitcast double %power to i64
  %bits = add i64 %power.bits, %more
  %result = bitcast i64 %bits to double
  %narrow = fptrunc double %result to float
  ret float %narrow"""


def _fast_exp() -> str:
    """Returns the body of ``exp`` in single precision: ``2**n * e**r``, where r is x less n times the logarithm of 2.
    The logarithm is a sum of two floats. The power of two is applied in two factors, because 2**n may be subnormal or
    beyond the largest float, and by products, so that a NaN stays a NaN."""
    log_2 = struct.unpack("f", struct.pack("f", math.log(2)))[0]
    rounding = 1.5 * 2.0**23
    return f"""{_clamped("%x", 104.0, "float")}
  %shifted = call float @llvm.fma.f32(float %clamped, float {_single(1 / math.log(2))}, float {literal(rounding)})
  %nearest = fsub float %shifted, {literal(rounding)}
  %minus = fneg float %nearest
  %most = call float @llvm.fma.f32(float %minus, float {literal(log_2)}, float %clamped)
  %r = call float @llvm.fma.f32(float %minus, float {_single(math.log(2) - log_2)}, float %most)
{_horner("%power", "%r", [1.0, 1.0, *_FAST_EXPONENTIAL], "float")}
  %number = bitcast float %shifted to i32
  %half = lshr i32 %number, 1
  %rest = sub i32 %number, %half
  %half.bits = shl i32 %half, 23
  %rest.bits = shl i32 %rest, 23
  %first.bits = add i32 %half.bits, {127 << 23}
  %first = bitcast i32 %first.bits to float
  %scaled = fmul float %power, %first
  %scale.bits = add i32 %rest.bits, {127 << 23}
  %scale = bitcast i32 %scale.bits to float
  %result = fmul float %scaled, %scale
  ret float %result"""


def _tanh() -> str:
    """Returns the body of ``tanh``. Beyond ±14 / log2(e) the result is ±1 in float precision. The sign is restored for
    -0."""
    return f"""  %exponent = fmul double %wide, {literal(2 / math.log(2))}
{_clamped("%exponent", 28.0)}
{_power_of_two("%clamped")}
  %scaled = fmul double %beyond.one, %scale
  %whole = fsub double %scale, {literal(1.0)}
  %m = fadd double %scaled, %whole
  %m.two = fadd double %m, {literal(2.0)}
  %quotient = fdiv double %m, %m.two
  %narrow = fptrunc double %quotient to float
  %result = call float @llvm.copysign.f32(float %narrow, float %x)
  ret float %result"""


def _erf() -> str:
    """Returns the body of ``erf``: x times a polynomial in ``x**2``. Beyond ±4 the result is ±1 in float precision."""
    return f"""{_clamped("%wide", 4.0)}
  %square = fmul double %clamped, %clamped
  %from.middle = fsub double %square, {literal(8.0)}
  %middle = fmul double %from.middle, {literal(0.125)}
{_horner("%ratio", "%middle", _ERF)}
  %result = fmul double %ratio, %clamped
  %narrow = fptrunc double %result to float
  ret float %narrow"""


def _log(name: str) -> str:
    """Returns the body of a logarithm, which splits x into ``2**e * m``, with m between the square roots of 1/2 and 2.

    The bits of the lower root are subtracted from the bits of x, as integers. The highest bits of the difference are e.
    """
    per_e = {"log": math.log(2), "log2": 1.0, "log10": math.log10(2)}[name]
    factor = {"log": 1.0, "log2": 1 / math.log(2), "log10": 1 / math.log(10)}[name]
    lower = struct.unpack("<q", struct.pack("<d", math.sqrt(0.5)))[0]
    rounding = struct.unpack("<q", struct.pack("<d", _ROUNDING))[0]
    terms = [2 * factor / n for n in range(3, 16, 2)]
    return f"""  %bits = bitcast double %wide to i64
  %above = sub i64 %bits, {lower}
  %top = and i64 %above, -4503599627370496
  %mantissa.bits = sub i64 %bits, %top
  %m = bitcast i64 %mantissa.bits to double
  %e.bits = ashr i64 %above, 52
  %e.shifted = add i64 %e.bits, {rounding}
  %e.large = bitcast i64 %e.shifted to double
  %e = fsub double %e.large, {literal(_ROUNDING)}
  %f = fsub double %m, {literal(1.0)}
  %f.two = fadd double %f, {literal(2.0)}
  %s = fdiv double %f, %f.two
  %square = fmul double %s, %s
{_horner("%series", "%square", terms)}
  %series.square = fmul double %series, %square
  %bracket = fadd double %series.square, {literal(2 * factor)}
  %log.m = fmul double %s, %bracket
  %log.e = fmul double %e, {literal(per_e)}
  %log = fadd double %log.e, %log.m
  %finite = fcmp olt double %wide, {literal(math.inf)}
  %positive = fcmp ogt double %wide, {literal(0.0)}
  %zero = fcmp oeq double %wide, {literal(0.0)}
  %of.large = select i1 %finite, double %log, double %wide
  %of.others = select i1 %zero, double {literal(-math.inf)}, double {literal(math.nan)}
  %result = select i1 %positive, double %of.large, double %of.others
  %narrow = fptrunc double %result to float
  ret float %narrow"""


def _clamped(value: str, end: float, kind: str = "double") -> str:
    """Returns the IR that clamps a value between -end and end. A NaN stays a NaN."""
    return f"""  %low = fcmp olt {kind} {value}, {literal(-end)}
  %not.low = select i1 %low, {kind} {literal(-end)}, {kind} {value}
  %high = fcmp ogt {kind} %not.low, {literal(end)}
  %clamped = select i1 %high, {kind} {literal(end)}, {kind} %not.low"""


def _power_of_two(exponent: str) -> str:
    """Returns the IR that computes ``2**exponent`` as ``%scale * (1 + %beyond.one)``, where ``%scale`` is the nearest
    power of two."""
    return f"""  %shifted = fadd double {exponent}, {literal(_ROUNDING)}
  %nearest = fsub double %shifted, {literal(_ROUNDING)}
  %z = fsub double {exponent}, %nearest
{_horner("%per.z", "%z", _EXPONENTIAL)}
  %beyond.one = fmul double %per.z, %z
  %number = bitcast double %shifted to i64
  %biased = add i64 %number, 1023
  %scale.bits = shl i64 %biased, 52
  %scale = bitcast i64 %scale.bits to double"""


_EXPONENTIAL = [
    0.6931471805568324,
    0.24022650695888503,
    0.055504109063258665,
    0.00961812913523614,
    0.0013333478473685442,
    0.00015403475186532374,
    1.5303700711379818e-05,
    1.3250805516981636e-06,
]
"""Coefficients of ``(2**z - 1) / z`` for z between -1/2 and 1/2: interpolated at Chebyshev points. ``2**z`` has a
relative error of 2**-38."""


_FAST_EXPONENTIAL = [
    0.4999999403953552,
    0.1666651964187622,
    0.04166839271783829,
    0.0083687799051404,
    0.0013814454432576895,
]
"""Floats that are coefficients of ``(e**r - 1 - r) / r**2`` for r within half a logarithm of 2: ``e**r`` has a relative
error of 2**-27."""


_ERF = [
    0.3535309956441157,
    -0.17657623321206922,
    0.13167511672361973,
    -0.10771044904006782,
    0.09020900091725167,
    -0.07472772607059086,
    0.059886799535369455,
    -0.04576648195095611,
    0.033061469200198666,
    -0.022466183428061927,
    0.014345736837763134,
    -0.008630037723629727,
    0.004864627922466145,
    -0.0025303565952701167,
    0.0012723236504853762,
    -0.0006730864704829158,
    0.0002991814429622432,
    -7.231688862838152e-05,
    3.107418230939317e-05,
    -3.6714090660456005e-05,
    1.3255563312585474e-05,
]
"""Coefficients of ``erf(x) / x`` as a polynomial in ``x**2 / 8 - 1``, for x between -4 and 4: interpolated at Chebyshev
points, with a relative error of 2e-11."""


def _horner(result: str, variable: str, coefficients: list[float], kind: str = "double") -> str:
    """Returns the IR that computes a polynomial by Horner's rule. The first coefficient is the constant term."""
    *others, last = coefficients
    lines, value = [], literal(last)
    fma = f"call {kind} @llvm.fma.{'f64' if kind == 'double' else 'f32'}"
    for number, coefficient in reversed(list(enumerate(others))):
        total = result if number == 0 else f"{result}.{number}"
        lines.append(f"  {total} = {fma}({kind} {value}, {kind} {variable}, {kind} {literal(coefficient)})")
        value = total
    return "\n".join(lines)


def _single(number: float) -> str:
    """Returns a number rounded to a float as an exact LLVM literal."""
    return literal(struct.unpack("f", struct.pack("f", number))[0])
