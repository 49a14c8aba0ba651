"""libdevice's functions on the CPU that neither the C library nor ``libm.py`` has, such as ``sinpi`` and
``erfinv``.

Functions of real numbers are computed in doubles. So the functions of floats are exact to about one bit, and the
functions of doubles to a few units in the last place, as libdevice's are.

- ``sinpi`` and ``cospi`` first subtract multiples of a half, which is exact, and then multiply by pi.
- ``erfcx(x)`` is ``exp(x*x) * erfc(x)``, corrected for the rounding error of ``x*x``. For large x it is an asymptotic
  series (NIST's Digital Library of Mathematical Functions, 7.12.1).
- ``erfcinv`` takes Newton steps for ``x*x - log(erfcx(x)) + log(y) = 0``, which is as accurate for y = 1e-300 as for
  0.1. The steps start at the first approximation of *Numerical Recipes* (third edition, 6.2.2). Near 0, where the
  equation would cancel, ``erfinv`` takes Newton steps for ``erf(x) - y = 0``, starting at the value of its power
  series. ``normcdfinv`` uses ``erfcinv``.
- ``normcdf(x)`` is half of ``erfc(-x / sqrt 2)``, corrected for the rounding error of the division.
"""

from __future__ import annotations


def definitions(symbol: str) -> tuple[tuple[str, ...], list[str]]:
    """Returns the C functions of doubles that ``symbol`` calls, and one IR text each for ``symbol`` and its callees.
    Returns no texts for any other function."""
    for base, kind in forms(symbol.removeprefix("__nv_")):
        if base in _SPECIAL:
            called, texts = _SPECIAL[base]
            return called, [*texts, _exported(symbol, base, kind)]
    return (), []


def forms(name: str) -> list[tuple[str, str]]:
    """Returns the functions that a libdevice name may stand for, each with the type of its numbers. Any name may be a
    function of doubles. A name that ends in f may also be a function of floats, returned without the f."""
    return [(name, "double"), *([(name[:-1], "float")] if name.endswith("f") else [])]


def _exported(symbol: str, base: str, kind: str) -> str:
    """Defines ``symbol``, a function of floats or doubles, as a call of the function of doubles."""
    if base == "sincospi":
        sine, cosine = ("%s", "%c") if kind == "double" else ("%s.narrow", "%c.narrow")
        narrow = (
            "" if kind == "double" else "".join(f"  {v}.narrow = fptrunc double {v} to float\n" for v in ("%s", "%c"))
        )
        return f"""define void @{symbol}({kind} %given, ptr %sine.at, ptr %cosine.at) alwaysinline {{
  %x = {_widened(kind)}
  %s = call double @oxide.sinpi(double %x)
  %c = call double @oxide.cospi(double %x)
{narrow}  store {kind} {sine}, ptr %sine.at
  store {kind} {cosine}, ptr %cosine.at
  ret void
}}"""
    return f"""define {kind} @{symbol}({kind} %given) alwaysinline {{
  %x = {_widened(kind)}
  %wide = call double @oxide.{base}(double %x)
  %r = {"fptrunc double %wide to float" if kind == "float" else "fadd double %wide, -0.0"}
  ret {kind} %r
}}"""


def _widened(kind: str) -> str:
    return "fadd double %given, -0.0" if kind == "double" else "fpext float %given to double"


_FUSED = "declare double @llvm.fma.f64(double, double, double)"
_SIZE = "declare double @llvm.fabs.f64(double)"
_EVEN = "declare double @llvm.roundeven.f64(double)"
_SIGNED = "declare double @llvm.copysign.f64(double, double)"

# Splits x, in half turns, into the nearest multiple of 1/2 and a rest. Returns the rest as an angle in radians, and the
# multiple as a number of quarter turns, modulo a turn. The reduction is exact.
_PARTS = """define { double, i64 } @oxide.half.turns(double %x) alwaysinline {
  %halved = fmul double %x, 0.5
  %turns = call double @llvm.roundeven.f64(double %halved)
  %whole = fmul double %turns, 2.0
  %part = fsub double %x, %whole
  %double = fmul double %part, 2.0
  %nearest = call double @llvm.roundeven.f64(double %double)
  %at = fmul double %nearest, 0.5
  %rest = fsub double %part, %at
  %angle = fmul double %rest, 0x400921FB54442D18
  %number = fcmp ord double %nearest, 0.0
  %safe = select i1 %number, double %nearest, double 0.0
  %quarter = fptosi double %safe to i64
  %one = insertvalue { double, i64 } poison, double %angle, 0
  %r = insertvalue { double, i64 } %one, i64 %quarter, 1
  ret { double, i64 } %r
}"""


def _of_turns(name: str, first: int, zero: str) -> str:
    """Defines ``sinpi`` or ``cospi``. To the number of quarter turns taken from x, ``first`` is added. The sum's lowest
    bit selects sine or cosine, and the next bit the sign. ``zero`` is the IR of a result that is 0."""
    return f"""define double @oxide.{name}(double %x) alwaysinline {{
  %parts = call {{ double, i64 }} @oxide.half.turns(double %x)
  %angle = extractvalue {{ double, i64 }} %parts, 0
  %quarter = extractvalue {{ double, i64 }} %parts, 1
  %s = call double @sin(double %angle)
  %c = call double @cos(double %angle)
  %turned = add i64 %quarter, {first}
  %odd = and i64 %turned, 1
  %is.odd = icmp ne i64 %odd, 0
  %value = select i1 %is.odd, double %c, double %s
  %second = and i64 %turned, 2
  %is.second = icmp ne i64 %second, 0
  %minus = fneg double %value
  %signed = select i1 %is.second, double %minus, double %value
  %none = fcmp oeq double %signed, 0.0
  %zero = {zero}
  %r = select i1 %none, double %zero, double %signed
  ret double %r
}}"""


_SINE = [_EVEN, _SIGNED, _PARTS, _of_turns("sinpi", 0, "call double @llvm.copysign.f64(double 0.0, double %x)")]
_COSINE = [_EVEN, _PARTS, _of_turns("cospi", 1, "fadd double 0.0, 0.0")]


def _series(names: list[str]) -> str:
    """Returns the IR that computes 1 - u + 3u^2 - 15u^3 ... by Horner's rule, where u is 1/(2x^2). Each factor is the
    next odd number."""
    lines, last = [], "1.0"
    for number, odd in zip(names, range(2 * len(names) - 1, 0, -2), strict=True):
        lines.append(f"  %{number}.f = fmul double %u, {-odd}.0")
        lines.append(f"  %{number} = call double @llvm.fma.f64(double %{number}.f, double {last}, double 1.0)")
        last = f"%{number}"
    return "\n".join(lines)


_ERFCX = f"""define double @oxide.erfcx(double %x) {{
entry:
  %large = fcmp ogt double %x, 20.0
  br i1 %large, label %series, label %other
series:
  %square.2 = fmul double %x, %x
  %twice = fmul double %square.2, 2.0
  %u = fdiv double 1.0, %twice
{_series([f"s{n}" for n in range(9)])}
  %inverse = fdiv double 0x3FE20DD750429B6D, %x
  %small = fmul double %inverse, %s8
  ret double %small
other:
  %square = fmul double %x, %x
  %minus = fneg double %square
  %lost = call double @llvm.fma.f64(double %x, double %x, double %minus)
  %power = call double @exp(double %square)
  %part = call double @erfc(double %x)
  %near = fmul double %power, %part
  %more = fmul double %near, %lost
  %sum = fadd double %near, %more
  %beyond = fcmp oeq double %near, 0x7FF0000000000000
  %r = select i1 %beyond, double 0x7FF0000000000000, double %sum
  ret double %r
}}"""

_NORMCDF = """define double @oxide.normcdf(double %x) {
  %z = fmul double %x, 0xBFE6A09E667F3BCD
  %minus = fneg double %z
  %lost.1 = call double @llvm.fma.f64(double %x, double 0xBFE6A09E667F3BCD, double %minus)
  %lost = call double @llvm.fma.f64(double %x, double 0x3C8BDD3413B26456, double %lost.1)
  %part = call double @erfc(double %z)
  %square = fmul double %z, %z
  %falling = fneg double %square
  %power = call double @exp(double %falling)
  %slope = fmul double %power, 0xBFF20DD750429B6D
  %change = fmul double %slope, %lost
  %number = fcmp one double %power, 0.0
  %safe = select i1 %number, double %change, double 0.0
  %sum = fadd double %part, %safe
  %r = fmul double %sum, 0.5
  ret double %r
}"""

_ERFCINV_STEP = """define double @oxide.erfcinv.step(double %z, double %logarithm) alwaysinline {
  %scaled = call double @oxide.erfcx(double %z)
  %log = call double @log(double %scaled)
  %minus = fneg double %log
  %value = call double @llvm.fma.f64(double %z, double %z, double %minus)
  %off = fadd double %value, %logarithm
  %inverse = fmul double %scaled, 0x3FEC5BF891B4EF6B
  %change = fmul double %off, %inverse
  %r = fsub double %z, %change
  ret double %r
}"""

# 0 <= y <= 0.5
_ERFCINV_TAIL = """define double @oxide.erfcinv.tail(double %y) {
  %log = call double @log(double %y)
  %half = fadd double %log, 0xBFE62E42FEFA39EF
  %twice = fmul double %half, -2.0
  %t = call double @llvm.sqrt.f64(double %twice)
  %a = call double @llvm.fma.f64(double %t, double 0.27061, double 2.30753)
  %b = call double @llvm.fma.f64(double %t, double 0.04481, double 0.99229)
  %c = call double @llvm.fma.f64(double %t, double %b, double 1.0)
  %d = fdiv double %a, %c
  %e = fsub double %t, %d
  %first = fmul double %e, 0x3FE6A09E667F3BCD
  %second = call double @oxide.erfcinv.step(double %first, double %log)
  %third = call double @oxide.erfcinv.step(double %second, double %log)
  %fourth = call double @oxide.erfcinv.step(double %third, double %log)
  %none = fcmp oeq double %y, 0.0
  %r = select i1 %none, double 0x7FF0000000000000, double %fourth
  ret double %r
}"""

_ERFINV_STEP = """define double @oxide.erfinv.step(double %z, double %y) alwaysinline {
  %value = call double @erf(double %z)
  %off = fsub double %value, %y
  %square = fmul double %z, %z
  %power = call double @exp(double %square)
  %inverse = fmul double %power, 0x3FEC5BF891B4EF6B
  %change = fmul double %off, %inverse
  %r = fsub double %z, %change
  ret double %r
}"""

# -0.5 <= y <= 0.5
_ERFINV_MIDDLE = """define double @oxide.erfinv.middle(double %y) {
  %square = fmul double %y, %y
  %c = call double @llvm.fma.f64(double %square, double 0x3FB9007BA3C74069, double 0x3FC26C5ADE6D5247)
  %d = call double @llvm.fma.f64(double %square, double %c, double 0x3FD0C152382D7366)
  %b = call double @llvm.fma.f64(double %square, double %d, double 1.0)
  %scaled = fmul double %y, 0x3FEC5BF891B4EF6B
  %first = fmul double %scaled, %b
  %second = call double @oxide.erfinv.step(double %first, double %y)
  %third = call double @oxide.erfinv.step(double %second, double %y)
  %none = fcmp oeq double %y, 0.0
  %r = select i1 %none, double %y, double %third
  ret double %r
}"""

_ERFINV = """define double @oxide.erfinv(double %y) {
  %size = call double @llvm.fabs.f64(double %y)
  %near = fcmp ole double %size, 0.5
  br i1 %near, label %middle, label %end
middle:
  %small = call double @oxide.erfinv.middle(double %y)
  ret double %small
end:
  %rest = fsub double 1.0, %size
  %large = call double @oxide.erfcinv.tail(double %rest)
  %r = call double @llvm.copysign.f64(double %large, double %y)
  ret double %r
}"""

_ERFCINV = """define double @oxide.erfcinv(double %y) {
  %low = fcmp ole double %y, 0.5
  br i1 %low, label %beginning, label %other
beginning:
  %large = call double @oxide.erfcinv.tail(double %y)
  ret double %large
other:
  %high = fcmp oge double %y, 1.5
  br i1 %high, label %end, label %middle
end:
  %rest = fsub double 2.0, %y
  %mirrored = call double @oxide.erfcinv.tail(double %rest)
  %minus = fneg double %mirrored
  ret double %minus
middle:
  %off = fsub double 1.0, %y
  %small = call double @oxide.erfinv.middle(double %off)
  ret double %small
}"""

_NORMCDFINV = """define double @oxide.normcdfinv(double %p) {
  %y = fmul double %p, 2.0
  %z = call double @oxide.erfcinv(double %y)
  %r = fmul double %z, 0xBFF6A09E667F3BCD
  ret double %r
}"""

_ROOT = "declare double @llvm.sqrt.f64(double)"
_TAIL = [_FUSED, _ROOT, _ERFCX, _ERFCINV_STEP, _ERFCINV_TAIL]
_MIDDLE = [_ERFINV_STEP, _ERFINV_MIDDLE]
_INVERSE = ("exp", "log", "erf", "erfc")

_SPECIAL: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "sinpi": (("sin", "cos"), _SINE),
    "cospi": (("sin", "cos"), _COSINE),
    "sincospi": (("sin", "cos"), [*_SINE, _COSINE[-1]]),
    "erfcx": (("exp", "erfc"), [_FUSED, _ERFCX]),
    "erfinv": (_INVERSE, [_SIZE, _SIGNED, *_TAIL, *_MIDDLE, _ERFINV]),
    "erfcinv": (_INVERSE, [*_TAIL, *_MIDDLE, _ERFCINV]),
    "normcdf": (("exp", "erfc"), [_FUSED, _NORMCDF]),
    "normcdfinv": (_INVERSE, [*_TAIL, *_MIDDLE, _ERFCINV, _NORMCDFINV]),
}
