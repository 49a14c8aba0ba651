"""Functions whose definitions, as IR, are the same for both back ends.

- Libdevice's functions of one or two instructions, such as ``__nv_sqrtf``, which numba-cuda's lowering of ``math``
  calls. ``ptx/libdevice.py`` and ``cpu/libdevice/libm.py`` define the others.
- *Total* integer operations, whose results are defined for all operands. ``frontend/lowering/total_builder.py`` and
  ``tile/arithmetic.py`` call them.
- Loops that clear a thread's large local arrays.
- ``round(x, n)``, and the rounding of a double for which a second rounding follows.
- Runtime functions that numba's lowering of arrays calls. numba-cuda defines these in CUDA C++.

``atomics.py`` and ``compiler/primitives`` define further functions for both back ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

FAST = "reassoc nsz arcp contract afn"
"""The flags of ``fastmath``. LLVM's ``fast`` would also assert that there are no NaNs and infinities, and would
miscompile branches that test for them."""


def definition(symbol: str) -> str | None:
    """Returns the IR that defines ``symbol``, or None for a function that is not defined here."""
    if symbol in _BODIES:
        body = _BODIES[symbol]
        return "\n".join([*body.declared, _function(symbol, body.result, body.parameters, body.lines)])
    if symbol.startswith(_CLEAR):
        return _clearing(symbol)
    return _total(symbol) if is_total(symbol) else _TEXTS.get(symbol)


# Libdevice


class _Body(NamedTuple):
    """A function's body: the types of its result and parameters, its instructions, and the declarations of the
    intrinsics that these call. The parameters are ``%p0``, ``%p1`` …, and the result is ``%r``."""

    result: str
    parameters: tuple[str, ...]
    lines: list[str]
    declared: tuple[str, ...] = ()


def _function(symbol: str, result: str, parameters: tuple[str, ...], body: list[str]) -> str:
    listed = ", ".join(f"{kind} %p{number}" for number, kind in enumerate(parameters))
    lines = "\n".join(f"  {line}" for line in [*body, f"ret {result} %r"])
    return f"define linkonce_odr {result} @{symbol}({listed}) alwaysinline {{\n{lines}\n}}"


_FLOATS = (("f", "float", "f32"), ("", "double", "f64"))
"""For each type of float: the suffix of its functions' names, the type, and the suffix of its intrinsics' names."""


def _intrinsic(intrinsic: str, kind: str, count: int, last: str = "") -> _Body:
    """Returns the body of a function that calls an LLVM intrinsic. ``last`` is a constant argument after the
    parameters."""
    given = ", ".join([f"{kind} %p{number}" for number in range(count)] + ([last] if last else []))
    declared = ", ".join([kind] * count + ([last.split()[0]] if last else []))
    line = f"%r = call {kind} @{intrinsic}({given})"
    return _Body(kind, (kind,) * count, [line], (f"declare {kind} @{intrinsic}({declared})",))


def _float_calls() -> Iterator[tuple[str, _Body]]:
    calls = {
        "sqrt": ("sqrt", 1), "fabs": ("fabs", 1), "floor": ("floor", 1), "ceil": ("ceil", 1), "trunc": ("trunc", 1),
        "rint": ("roundeven", 1), "nearbyint": ("roundeven", 1), "fmin": ("minnum", 2), "fmax": ("maxnum", 2),
        "copysign": ("copysign", 2), "fma": ("fma", 3),
    }  # fmt: skip
    for name, (intrinsic, count) in calls.items():
        for end, kind, suffix in _FLOATS:
            yield name + end, _intrinsic(f"llvm.{intrinsic}.{suffix}", kind, count)


def _integer_calls() -> Iterator[tuple[str, _Body]]:
    for prefix, kind in (("", "i32"), ("ll", "i64")):
        yield f"{prefix}abs", _intrinsic(f"llvm.abs.{kind}", kind, 1, "i1 false")
        for what in ("min", "max"):
            yield f"{prefix}{what}", _intrinsic(f"llvm.s{what}.{kind}", kind, 2)
            yield f"u{prefix}{what}", _intrinsic(f"llvm.u{what}.{kind}", kind, 2)
        yield f"brev{prefix}", _intrinsic(f"llvm.bitreverse.{kind}", kind, 1)
        for name, intrinsic, last in (
            ("popc", "ctpop", ""),
            ("clz", "ctlz", ", i1 false"),
            ("ffs", "cttz", ", i1 false"),
        ):
            lines = [f"%n = call {kind} @llvm.{intrinsic}.{kind}({kind} %p0{last})"]
            if name == "ffs":
                # The result is the position of the lowest set bit, counted from 1, or 0 if no bit is set.
                lines += [f"%next = add {kind} %n, 1", f"%none = icmp eq {kind} %p0, 0"]
                lines.append(f"%place = select i1 %none, {kind} 0, {kind} %next")
            number = "%place" if name == "ffs" else "%n"
            # The result is an i32 for an argument of any width.
            lines.append(f"%r = add i32 {number}, 0" if kind == "i32" else f"%r = trunc {kind} {number} to i32")
            declared = f"declare {kind} @llvm.{intrinsic}.{kind}({kind}{', i1' if last else ''})"
            yield name + prefix, _Body("i32", (kind,), lines, (declared,))


def _high_products() -> Iterator[tuple[str, _Body]]:
    """Yields the functions that return the upper half of a product."""
    for name, kind, wide in (("mulhi", "i32", "i64"), ("mul64hi", "i64", "i128")):
        for sign, extend in (("", "sext"), ("u", "zext")):
            lines = [
                f"%a = {extend} {kind} %p0 to {wide}",
                f"%b = {extend} {kind} %p1 to {wide}",
                f"%product = mul {wide} %a, %b",
                f"%high = lshr {wide} %product, {kind[1:]}",
                f"%r = trunc {wide} %high to {kind}",
            ]
            yield sign + name, _Body(kind, (kind, kind), lines)


def _classes() -> Iterator[tuple[str, _Body]]:
    """Yields ``isnan`` and similar functions; their result is an i32, 1 or 0."""
    nan, infinite, finite = 0b11, 0b1000000100, 0b0111111000
    for kind, suffix, *names in (
        ("float", "f32", "isnanf", "isinff", "finitef"),
        ("double", "f64", "isnand", "isinfd", "isfinited"),
    ):
        for name, mask in zip(names, (nan, infinite, finite), strict=True):
            lines = [f"%is = call i1 @llvm.is.fpclass.{suffix}({kind} %p0, i32 {mask})", "%r = zext i1 %is to i32"]
            yield name, _Body("i32", (kind,), lines, (f"declare i1 @llvm.is.fpclass.{suffix}({kind}, i32 immarg)",))
    for name, kind, bits in (("signbitf", "float", 32), ("signbitd", "double", 64)):
        lines = [f"%bits = bitcast {kind} %p0 to i{bits}", f"%top = lshr i{bits} %bits, {bits - 1}"]
        lines.append("%r = add i32 %top, 0" if bits == 32 else "%r = trunc i64 %top to i32")
        yield name, _Body("i32", (kind,), lines)


def _bits() -> Iterator[tuple[str, _Body]]:
    """Yields the functions that reinterpret a number's bits as another type."""
    for source, target in (("float", "int"), ("float", "uint"), ("double", "longlong")):
        for given, result in ((source, target), (target, source)):
            kinds = _KINDS[given], _KINDS[result]
            yield f"{given}_as_{result}", _Body(kinds[1], (kinds[0],), [f"%r = bitcast {kinds[0]} %p0 to {kinds[1]}"])


def _rounded() -> Iterator[tuple[str, _Body]]:
    """Yields the arithmetic functions that round to nearest and are never fused with other operations."""
    for operation in ("add", "sub", "mul", "div"):
        for kind in ("float", "double"):
            yield f"{kind[0]}{operation}_rn", _Body(kind, (kind, kind), [f"%r = f{operation} {kind} %p0, %p1"])


_KINDS = {"float": "float", "double": "double", "int": "i32", "uint": "i32"}
_KINDS |= {"ll": "i64", "ull": "i64", "longlong": "i64"}
_DIRECTIONS = {"n": "roundeven", "z": "", "d": "floor", "u": "ceil"}


def _conversions() -> Iterator[tuple[str, _Body]]:
    """Yields the conversion functions. Conversions from float to integer saturate, and exist for each rounding
    direction. Conversions from integer to float, and from f64 to f32, exist for rounding to nearest only."""
    for _, given, suffix in _FLOATS:
        for integer in ("int", "uint", "ll", "ull"):
            kind = _KINDS[integer]
            back = f"%r = {'uitofp' if integer[0] == 'u' else 'sitofp'} {kind} %p0 to {given}"
            yield f"{integer}2{given}_rn", _Body(given, (kind,), [back])
            convert = f"llvm.fpto{'u' if integer[0] == 'u' else 's'}i.sat.{kind}.{suffix}"
            for how, rounding in _DIRECTIONS.items():
                declared, lines, whole = [f"declare {kind} @{convert}({given})"], [], "%p0"
                if rounding:
                    declared.append(f"declare {given} @llvm.{rounding}.{suffix}({given})")
                    lines, whole = [f"%whole = call {given} @llvm.{rounding}.{suffix}({given} %p0)"], "%whole"
                lines.append(f"%r = call {kind} @{convert}({given} {whole})")
                yield f"{given}2{integer}_r{how}", _Body(kind, (given,), lines, tuple(declared))
    yield "double2float_rn", _Body("float", ("double",), ["%r = fptrunc double %p0 to float"])


_GROUPS = (_float_calls, _integer_calls, _high_products, _classes, _bits, _rounded, _conversions)
_BODIES = {f"__nv_{name}": body for group in _GROUPS for name, body in group()}


QUOTIENTS = ("__nv_fast_fdividef", "__nv_fast_reciprocalf", "__nv_rsqrtf", "__nv_rsqrt")
"""The functions that a GPU approximates by one instruction."""


def quotient(symbol: str, *, approximate: bool) -> list[str]:
    """Returns definitions for one of ``QUOTIENTS``, approximate or rounded according to IEEE 754.

    The CPU gets the rounded form. For a CPU, LLVM would approximate only the quotients that it computes in vectors, so
    that equal arguments would have different results.
    """
    if symbol == "__nv_fast_fdividef":
        flags = f"{FAST} " if approximate else ""
        return [_function(symbol, "float", ("float", "float"), [f"%r = fdiv {flags}float %p0, %p1"])]
    if symbol == "__nv_fast_reciprocalf":
        # With flags instead, LLVM would choose the approximation that keeps subnormal numbers, which takes six
        # instructions.
        body = (
            'call float asm "rcp.approx.ftz.f32 $0, $1;", "=f,f"(float %p0)' if approximate else "fdiv float 1.0, %p0"
        )
        return [_function(symbol, "float", ("float",), [f"%r = {body}"])]
    suffix, kind, flags = ("f32", "float", "arcp afn ") if symbol.endswith("f") else ("f64", "double", "arcp ")
    flags = flags if approximate else ""
    lines = [f"%root = call {flags}{kind} @llvm.sqrt.{suffix}({kind} %p0)", f"%r = fdiv {flags}{kind} 1.0, %root"]
    return [f"declare {kind} @llvm.sqrt.{suffix}({kind})", _function(symbol, kind, (kind,), lines)]


# Total integer operations

_SHIFTS = ("shl", "lshr", "ashr")
_DIVISIONS = ("sdiv", "udiv", "srem", "urem")


def total_function(operation: str, kind: str) -> str:
    """Returns the name of a total operation on a type, such as ``oxide.sdiv.i64``.

    A shift by the width or more gives the result of repeated shifts by one bit: 0, or -1 for an arithmetic shift of a
    negative number. ``x // 0`` and ``x % 0`` are 0. The quotient of the least number and -1 wraps."""
    return f"oxide.{operation}.{kind}"


def is_total(symbol: str) -> bool:
    """Returns whether a function is a total operation, by its name."""
    parts = symbol.split(".")
    return len(parts) == 3 and parts[0] == "oxide" and parts[1] in (*_SHIFTS, *_DIVISIONS)


def _total(symbol: str) -> str:
    _, operation, kind = symbol.split(".")
    body = _shift(operation, kind) if operation in _SHIFTS else _division(operation, kind)
    return (
        f"define linkonce_odr {kind} @{symbol}({kind} %a, {kind} %b) alwaysinline {{\n{body}\n  ret {kind} %result\n}}"
    )


def _shift(operation: str, kind: str) -> str:
    bits = int(kind[1:])
    fits = f"  %fits = icmp ult {kind} %b, {bits}\n"
    if operation == "ashr":
        # A signed number shifted by all bits but one is 0 or -1, and further shifts do not change it.
        return f"""{fits}  %amount = select i1 %fits, {kind} %b, {kind} {bits - 1}
  %result = ashr {kind} %a, %amount"""
    return f"""{fits}  %shifted = {operation} {kind} %a, %b
  %result = select i1 %fits, {kind} %shifted, {kind} 0"""


def _division(operation: str, kind: str) -> str:
    """Defines a quotient or a remainder. The definition replaces the divisor 0 by 1, and in a signed operation also the
    divisor -1. This choice does not depend on the dividend. So a loop with a constant divisor makes the choice once,
    and a GPU computes the divisor's reciprocal before the dividend is known."""
    if operation in ("udiv", "urem"):
        special = f"  %special = icmp eq {kind} %b, 0"
    else:
        special = f"  %above = add {kind} %b, 1\n  %special = icmp ult {kind} %above, 2"
    divided = f"""{special}
  %divisor = select i1 %special, {kind} 1, {kind} %b"""
    if operation in ("srem", "urem"):  # the remainder by 1 is 0, as it is by 0 and -1
        return f"{divided}\n  %result = {operation} {kind} %a, %divisor"
    if operation == "udiv":
        return f"""{divided}
  %quotient = udiv {kind} %a, %divisor
  %result = select i1 %special, {kind} 0, {kind} %quotient"""
    return f"""{divided}
  %quotient = sdiv {kind} %a, %divisor
  %negative = sub {kind} 0, %a
  %instead = and {kind} %negative, %b
  %result = select i1 %special, {kind} %instead, {kind} %quotient"""


# Local arrays

LARGE_ARRAY = 256
"""A local array of at least this many elements is cleared by a loop. It has more elements than a thread has registers,
so it is in memory anyway. A smaller array is cleared by one store, which LLVM splits into a store for each element and
drops if the array lives in registers. For thousands of elements, LLVM's time grows with the square of their number. A
memset is no alternative: on a GPU it becomes a loop of single bytes."""

_CLEAR = "oxide.clear."


def word_bits(size: int, alignment: int) -> int:
    """Returns the width in bits of the widest word whose size divides ``size`` and ``alignment``, both in bytes."""
    return 8 * next(width for width in (8, 4, 2, 1) if size % width == 0 and alignment % width == 0)


def clearing_function(bits: int) -> str:
    """Returns the name of the function ``(address, words)`` that clears words of ``bits`` bits."""
    return f"{_CLEAR}{bits}"


def _clearing(symbol: str) -> str:
    bits = symbol.removeprefix(_CLEAR)
    return f"""define linkonce_odr void @oxide.clear.{bits}(ptr %memory, i64 %words) alwaysinline {{
entry:
  br label %next
next:
  %word = phi i64 [ 0, %entry ], [ %following, %next ]
  %at = getelementptr inbounds i{bits}, ptr %memory, i64 %word
  store i{bits} 0, ptr %at
  %following = add i64 %word, 1
  %more = icmp ult i64 %following, %words
  br i1 %more, label %next, label %done
done:
  ret void
}}"""


# Rounding

ROUND_DECIMALS = "oxide.round_decimals"

_POWERS = ("10.0", "100.0", "1.0e4", "1.0e8", "1.0e16", "1.0e32", "1.0e64", "1.0e128", "1.0e256")
"""10 to the powers 1, 2, 4, 8 and so on. Their products are exact up to 1e22 and infinite past 1e308."""


def _round_decimals() -> str:
    """Returns the function that rounds x to n decimals as in Python.

    Python rounds the float's exact value to n decimals, ties to even, and converts these to the nearest float. The
    float 0.15 is less than 0.15, so ``round(0.15, 1)`` is 0.1. Python converts to text and back; this function uses
    exact arithmetic. Up to n = 22, 10**n is exactly a float (beyond, the result's last bit may differ from Python's).
    The rounding error of the product 10**n * x is exactly a float too. A fused multiply-add computes this error, and
    with the error the product is rounded correctly to a whole number. The division of the whole number by 10**n then
    rounds once. If the product is 2**53 or more, it has no fraction, and the result is x. For a negative n, the
    division comes first and the product last.

    The function is IR, not Python, since its operations must not be fused with others or reordered under fastmath.
    """
    steps, power = [], "1.0"
    for number, factor in enumerate(_POWERS):
        steps += [
            f"  %bit.{number} = and i64 %k, {1 << number}",
            f"  %has.{number} = icmp ne i64 %bit.{number}, 0",
            f"  %factor.{number} = select i1 %has.{number}, double {factor}, double 1.0",
            f"  %power.{number} = fmul double {power}, %factor.{number}",
        ]
        power = f"%power.{number}"
    listed = "\n".join(steps)
    return f"""
declare double @llvm.roundeven.f64(double)
declare double @llvm.fma.f64(double, double, double)
declare double @llvm.fabs.f64(double)
declare double @llvm.copysign.f64(double, double)
declare i64 @llvm.umin.i64(i64, i64)
define linkonce_odr double @{ROUND_DECIMALS}(double %x, i64 %n) alwaysinline {{
entry:
  %negative = icmp slt i64 %n, 0
  %minus = sub i64 0, %n
  %size = select i1 %negative, i64 %minus, i64 %n
  %k = call i64 @llvm.umin.i64(i64 %size, i64 {2 ** len(_POWERS) - 1})
{listed}
  br i1 %negative, label %tens, label %decimals
decimals:
  %scaled = fmul double %x, {power}
  %scaled.minus = fneg double %scaled
  %error = call double @llvm.fma.f64(double %x, double {power}, double %scaled.minus)
  %near = call double @llvm.roundeven.f64(double %scaled)
  %rest = fsub double %scaled, %near
  %is.half = fcmp oeq double %rest, 0.5
  %above = fcmp ogt double %error, 0.0
  %up = and i1 %is.half, %above
  %is.minus.half = fcmp oeq double %rest, -0.5
  %below = fcmp olt double %error, 0.0
  %down = and i1 %is.minus.half, %below
  %step.up = select i1 %up, double 1.0, double 0.0
  %step = select i1 %down, double -1.0, double %step.up
  %whole = fadd double %near, %step
  %of.decimals = fdiv double %whole, {power}
  br label %end
tens:
  %quotient = fdiv double %x, {power}
  %near.ten = call double @llvm.roundeven.f64(double %quotient)
  %near.minus = fneg double %near.ten
  %left = call double @llvm.fma.f64(double %near.minus, double {power}, double %x)
  %half = fmul double {power}, 0.5
  %half.minus = fneg double %half
  %more = fcmp ogt double %left, %half
  %less = fcmp olt double %left, %half.minus
  %ten.up = select i1 %more, double 1.0, double 0.0
  %ten.step = select i1 %less, double -1.0, double %ten.up
  %whole.tens = fadd double %near.ten, %ten.step
  %finite = fcmp olt double {power}, 0x7FF0000000000000
  %size.of.ten = select i1 %finite, double {power}, double 0.0
  %of.tens = fmul double %whole.tens, %size.of.ten
  br label %end
end:
  %moved = phi double [ %scaled, %decimals ], [ %quotient, %tens ]
  %number = phi double [ %of.decimals, %decimals ], [ %of.tens, %tens ]
  %signed = call double @llvm.copysign.f64(double %number, double %x)
  %magnitude = call double @llvm.fabs.f64(double %moved)
  %has.fraction = fcmp olt double %magnitude, 9007199254740992.0
  %result = select i1 %has.fraction, double %signed, double %x
  ret double %result
}}"""


_TEXTS = {
    ROUND_DECIMALS: _round_decimals(),
    "oxide.round_to_odd": """define linkonce_odr float @oxide.round_to_odd(double %x) alwaysinline {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %size = call double @llvm.fabs.f64(double %x)
  %size.back = call double @llvm.fabs.f64(double %back)
  %over = fcmp ogt double %size.back, %size
  %inexact = fcmp one double %back, %x
  %bits = bitcast float %near to i32
  %less = sub i32 %bits, 1
  %toward.zero = select i1 %over, i32 %less, i32 %bits
  %odd = or i32 %toward.zero, 1
  %result = select i1 %inexact, i32 %odd, i32 %bits
  %number = bitcast i32 %result to float
  ret float %number
}
declare double @llvm.fabs.f64(double)""",
    # numba accepts `reshape` of contiguous arrays only. The strides then follow from the new shape, so any shape of the
    # same size needs no copy. Returns 1, or 0 if the sizes differ.
    "numba_attempt_nocopy_reshape": """
define i32 @numba_attempt_nocopy_reshape(i64 %nd, ptr %dims, ptr %strides, i64 %newnd, ptr %newdims, ptr %newstrides,
    i64 %itemsize, i32 %is_f_order) alwaysinline {
entry:
  br label %old
old:
  %i = phi i64 [ 0, %entry ], [ %i.next, %old.more ]
  %old.size = phi i64 [ 1, %entry ], [ %old.size.next, %old.more ]
  %old.left = icmp ult i64 %i, %nd
  br i1 %old.left, label %old.more, label %new
old.more:
  %dim.at = getelementptr i64, ptr %dims, i64 %i
  %dim = load i64, ptr %dim.at
  %old.size.next = mul i64 %old.size, %dim
  %i.next = add i64 %i, 1
  br label %old
new:
  %j = phi i64 [ %newnd, %old ], [ %j.next, %new.more ]
  %new.size = phi i64 [ 1, %old ], [ %new.size.next, %new.more ]
  %step = phi i64 [ %itemsize, %old ], [ %step.next, %new.more ]
  %new.left = icmp ugt i64 %j, 0
  br i1 %new.left, label %new.more, label %done
new.more:
  %j.next = sub i64 %j, 1
  %newdim.at = getelementptr i64, ptr %newdims, i64 %j.next
  %newdim = load i64, ptr %newdim.at
  %stride.at = getelementptr i64, ptr %newstrides, i64 %j.next
  store i64 %step, ptr %stride.at
  %step.next = mul i64 %step, %newdim
  %new.size.next = mul i64 %new.size, %newdim
  br label %new
done:
  %same = icmp eq i64 %old.size, %new.size
  %result = zext i1 %same to i32
  ret i32 %result
}""",
}
