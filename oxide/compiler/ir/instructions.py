"""Libdevice functions of one or two instructions, as IR that both back ends compile without a library.

numba-cuda lowers ``math`` and its own intrinsics to calls of libdevice's functions, such as ``__nv_sqrtf``. Functions
not defined here are left to ``ptx/libdevice.py`` on a GPU and ``cpu/libdevice/libm.py`` on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

FAST = "reassoc nsz arcp contract afn"
"""The flags of ``fastmath``. LLVM's ``fast`` would also assert that there are no NaNs and infinities, and would
miscompile branches that test for them."""


class _Body(NamedTuple):
    """A function's body: the types of its result and parameters, its instructions, and the declarations of the
    intrinsics that these call. The parameters are ``%p0``, ``%p1`` …, and the result is ``%r``."""

    result: str
    parameters: tuple[str, ...]
    lines: list[str]
    declared: tuple[str, ...] = ()


def definition(symbol: str) -> str | None:
    """Returns the IR that defines ``symbol``, or None for a function that is not defined here."""
    body = _BODIES.get(symbol)
    if body is None:
        return None
    return "\n".join([*body.declared, _function(symbol, body.result, body.parameters, body.lines)])


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
