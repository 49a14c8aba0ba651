"""libdevice's functions with a rounding mode on the CPU: ``dadd_ru``, ``double2float_rd`` and similar.

A processor rounds to nearest. Rounding up takes the next number above that result if the exact result is greater, so it
needs the sign of the rounding error. The error of a sum is itself a double. For other operations a fused multiply-add
computes the error: the computed error may be rounded or underflow, but its sign is exact. Rounding down negates the
first operand (of a sum, both operands), rounds up and negates the result, which also gives zeros the right signs. A
square root, which is never negative, is lowered directly. An operation on floats is the operation on doubles, rounded
once more in the same direction.

The sign of the error of an ``fma`` of doubles cannot be found in these ways. The C library's ``fma``, called in the
required rounding mode, computes this operation.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

_OPERATIONS = ("add", "sub", "mul", "div", "rcp", "sqrt")
_SOURCES = ("double", "int", "uint", "ll", "ull")


def definitions(symbol: str) -> list[str]:
    """Returns a list with one IR text for ``symbol`` and for each of its callees; [] for any other function."""
    if symbol == "__nv_frsqrt_rn":
        return [*_DECLARATIONS, _RECIPROCAL_ROOT]
    name, _, how = symbol.removeprefix("__nv_").rpartition("_r")
    source, _, target = name.partition("2")
    if how not in ("n", "z", "d", "u"):
        return []
    if name[:1] in ("f", "d") and name[1:] in _OPERATIONS:
        return _arithmetic(symbol, name[0], name[1:], how)
    if name in ("fma", "fmaf"):
        return _fused(symbol, name.removeprefix("fma"), how)
    if source in _SOURCES and target in ("double", "float") and how != "n":
        return _conversion(symbol, source, target, how)
    return []


def _arithmetic(symbol: str, kind: str, operation: str, how: str) -> list[str]:
    name, suffix = _NAMES[kind]
    if how == "n":  # the other operations are IR instructions
        plain = {"rcp": f"fdiv {name} 1.0, %p0", "sqrt": f"call {name} @llvm.sqrt.{suffix}({name} %p0)"}.get(operation)
        return [*_DECLARATIONS, function(symbol, name, (name,), [f"%r = {plain}"])] if plain else []
    lines, operands = _wide(kind, 1 if operation in ("rcp", "sqrt") else 2)
    if operation == "sub":
        lines.append(f"%minus = fneg double {operands[1]}")
        operands[1] = "%minus"
    if operation == "rcp":
        operands.insert(0, "1.0")
    base = {"sub": "add", "rcp": "div"}.get(operation, operation)
    call = f"call double @oxide.{base}.{how}({', '.join(f'double {operand}' for operand in operands)})"
    parameters = (name,) if operation in ("rcp", "sqrt") else (name, name)
    return [*_directed(base, how), *_rounded(symbol, kind, how, parameters, lines, call)]


def _fused(symbol: str, kind: str, how: str) -> list[str]:
    name, suffix = _NAMES[kind or "d"]
    if how == "n":
        call = f"%r = call {name} @llvm.fma.{suffix}({name} %p0, {name} %p1, {name} %p2)"
        return [*_DECLARATIONS, function(symbol, name, (name,) * 3, [call])]
    if kind == "f":
        lines, (a, b, c) = _wide("f", 3)
        lines.append(f"%product = fmul double {a}, {b}")  # exact
        call = f"call double @oxide.add.{how}(double %product, double {c})"
        return [*_directed("add", how), *_rounded(symbol, "f", how, ("float",) * 3, lines, call)]
    directions = _DIRECTIONS.get(platform.machine())
    if directions is None:
        return []
    # Not inlined: only the call may run while the processor's rounding mode is changed.
    body = f"""define double @{symbol}(double %a, double %b, double %c) noinline nounwind {{
  %begun = call i32 @fesetround(i32 {directions[how]})
  %r = call double @fma(double %a, double %b, double %c) nobuiltin
  %ended = call i32 @fesetround(i32 0)
  ret double %r
}}"""
    return ["declare i32 @fesetround(i32)", "declare double @fma(double, double, double)", body]


def _conversion(symbol: str, source: str, target: str, how: str) -> list[str]:
    if source == "double":
        line = f"%r = call float @oxide.narrow.{how}(double %p0)"
        return [*_narrow(how), function(symbol, "float", ("double",), [line])]
    convert = "uitofp" if source[0] == "u" else "sitofp"
    if source in ("int", "uint"):
        return _rounded(symbol, target[0], how, ("i32",), [], f"{convert} i32 %p0 to double")
    lines = [
        f"%upper = {'lshr' if source == 'ull' else 'ashr'} i64 %p0, 32",
        f"%count = {convert} i64 %upper to double",
        "%high = fmul double %count, 4294967296.0",
        "%lower = and i64 %p0, 4294967295",
        "%low = uitofp i64 %lower to double",
    ]
    call = f"call double @oxide.add.{how}(double %high, double %low)"
    return [*_directed("add", how), *_rounded(symbol, target[0], how, ("i64",), lines, call)]


def _wide(kind: str, count: int) -> tuple[list[str], list[str]]:
    """Returns the lines that widen the parameters to doubles, and the doubles' names."""
    if kind == "d":
        return [], [f"%p{number}" for number in range(count)]
    return [f"%w{n} = fpext float %p{n} to double" for n in range(count)], [f"%w{n}" for n in range(count)]


def _rounded(symbol: str, kind: str, how: str, parameters: tuple[str, ...], lines: list[str], last: str) -> list[str]:
    """Returns the function ``symbol`` and its callees. The function computes a double by ``lines`` and then ``last``.
    For the ``kind`` "f" it returns the double rounded to a float."""
    if kind == "d":
        return [function(symbol, "double", parameters, [*lines, f"%r = {last}"])]
    lines = [*lines, f"%wide = {last}", f"%r = call float @oxide.narrow.{how}(double %wide)"]
    return [*_narrow(how), function(symbol, "float", parameters, lines)]


def function(symbol: str, result: str, parameters: Sequence[str], lines: list[str]) -> str:
    """Returns the definition of a function with the parameters ``%p0`` and so on, whose ``lines`` compute ``%r``."""
    listed = ", ".join(f"{kind} %p{number}" for number, kind in enumerate(parameters))
    body = "\n".join(f"  {line}" for line in [*lines, f"ret {result} %r"])
    return f"define {result} @{symbol}({listed}) alwaysinline {{\n{body}\n}}"


def _directed(operation: str, how: str) -> list[str]:
    """Returns ``@oxide.add.u`` or a similar operation on doubles, and its callees."""
    texts = [*_DECLARATIONS, *_STEPS, _UPWARDS[operation]]
    if operation == "sqrt":  # never negative
        return texts if how == "u" else [*_DECLARATIONS, *_STEPS, _ROOT_DOWN.format(how=how)]
    second = "fneg double %b" if operation == "add" else "fadd double %b, -0.0"
    texts.append(_DOWN.format(operation=operation, second=second))
    texts.append(
        _TOWARD_ZERO.format(
            operation=operation, kind="double", parameters="double %a, double %b", nearest=f"f{operation} double %a, %b"
        )
    )
    return texts[: len(texts) - {"u": 2, "d": 1, "z": 0}[how]]


def _narrow(how: str) -> list[str]:
    """Returns ``@oxide.narrow.u`` or similar, from double to float, and its callees."""
    toward_zero = _TOWARD_ZERO.format(
        operation="narrow", kind="float", parameters="double %a", nearest="fptrunc double %a to float"
    )
    return [_NARROW_UP, _NARROW_DOWN, toward_zero][: {"u": 1, "d": 2, "z": 3}[how]]


_NAMES = {"f": ("float", "f32"), "d": ("double", "f64")}

_DIRECTIONS = {
    "x86_64": {"d": 0x400, "u": 0x800, "z": 0xC00},
    "aarch64": {"u": 0x400000, "d": 0x800000, "z": 0xC00000},
}
"""The values of the rounding modes in C's ``fenv.h``, by processor."""

_DECLARATIONS = (
    "declare double @llvm.fma.f64(double, double, double)",
    "declare float @llvm.fma.f32(float, float, float)",
    "declare double @llvm.fabs.f64(double)",
    "declare double @llvm.sqrt.f64(double)",
    "declare float @llvm.sqrt.f32(float)",
)

_STEPS = (
    """define double @oxide.step.up(double %x, i1 %more) alwaysinline {
  %bits = bitcast double %x to i64
  %negative = icmp slt i64 %bits, 0
  %step = select i1 %negative, i64 -1, i64 1
  %next = add i64 %bits, %step
  %zero = fcmp oeq double %x, 0.0
  %above = select i1 %zero, i64 1, i64 %next
  %chosen = select i1 %more, i64 %above, i64 %bits
  %r = bitcast i64 %chosen to double
  ret double %r
}""",
    """define i1 @oxide.is.below.zero(double %x) alwaysinline {
  %bits = bitcast double %x to i64
  %negative = icmp slt i64 %bits, 0
  %number = fcmp ord double %x, 0.0
  %r = and i1 %negative, %number
  ret i1 %r
}""",
)

_UPWARDS = {
    # The larger operand first: then the sum's error is a double, and finite if the sum is.
    "add": """define double @oxide.add.u(double %a, double %b) alwaysinline {
  %nearest = fadd double %a, %b
  %a.size = call double @llvm.fabs.f64(double %a)
  %b.size = call double @llvm.fabs.f64(double %b)
  %first = fcmp oge double %a.size, %b.size
  %large = select i1 %first, double %a, double %b
  %small = select i1 %first, double %b, double %a
  %part = fsub double %nearest, %large
  %error = fsub double %small, %part
  %more = fcmp ogt double %error, 0.0
  %r = call double @oxide.step.up(double %nearest, i1 %more)
  ret double %r
}""",
    "mul": """define double @oxide.mul.u(double %a, double %b) alwaysinline {
  %nearest = fmul double %a, %b
  %minus = fneg double %a
  %over = call double @llvm.fma.f64(double %minus, double %b, double %nearest)
  %more = call i1 @oxide.is.below.zero(double %over)
  %r = call double @oxide.step.up(double %nearest, i1 %more)
  ret double %r
}""",
    "div": """define double @oxide.div.u(double %a, double %b) alwaysinline {
  %nearest = fdiv double %a, %b
  %size = call double @llvm.fabs.f64(double %b)
  %bits = bitcast double %b to i64
  %negative = icmp slt i64 %bits, 0
  %minus = fneg double %a
  %subtracted = select i1 %negative, double %a, double %minus
  %over = call double @llvm.fma.f64(double %nearest, double %size, double %subtracted)
  %more = call i1 @oxide.is.below.zero(double %over)
  %r = call double @oxide.step.up(double %nearest, i1 %more)
  ret double %r
}""",
    "sqrt": """define double @oxide.sqrt.u(double %a) alwaysinline {
  %nearest = call double @llvm.sqrt.f64(double %a)
  %minus = fneg double %a
  %over = call double @llvm.fma.f64(double %nearest, double %nearest, double %minus)
  %more = call i1 @oxide.is.below.zero(double %over)
  %r = call double @oxide.step.up(double %nearest, i1 %more)
  ret double %r
}""",
}

_ROOT_DOWN = """define double @oxide.sqrt.{how}(double %a) alwaysinline {{
  %nearest = call double @llvm.sqrt.f64(double %a)
  %minus = fneg double %nearest
  %left = call double @llvm.fma.f64(double %minus, double %nearest, double %a)
  %above = call i1 @oxide.is.below.zero(double %left)
  %some = fcmp ogt double %nearest, 0.0
  %over = and i1 %above, %some
  %bits = bitcast double %nearest to i64
  %below = sub i64 %bits, 1
  %chosen = select i1 %over, i64 %below, i64 %bits
  %r = bitcast i64 %chosen to double
  ret double %r
}}"""

_DOWN = """define double @oxide.{operation}.d(double %a, double %b) alwaysinline {{
  %x = fneg double %a
  %y = {second}
  %above = call double @oxide.{operation}.u(double %x, double %y)
  %r = fneg double %above
  ret double %r
}}"""

_NARROW_UP = """define float @oxide.narrow.u(double %a) alwaysinline {
  %nearest = fptrunc double %a to float
  %back = fpext float %nearest to double
  %more = fcmp olt double %back, %a
  %bits = bitcast float %nearest to i32
  %negative = icmp slt i32 %bits, 0
  %step = select i1 %negative, i32 -1, i32 1
  %next = add i32 %bits, %step
  %zero = fcmp oeq float %nearest, 0.0
  %above = select i1 %zero, i32 1, i32 %next
  %chosen = select i1 %more, i32 %above, i32 %bits
  %r = bitcast i32 %chosen to float
  ret float %r
}"""

_NARROW_DOWN = """define float @oxide.narrow.d(double %a) alwaysinline {
  %x = fneg double %a
  %above = call float @oxide.narrow.u(double %x)
  %r = fneg float %above
  ret float %r
}"""

_TOWARD_ZERO = """define {kind} @oxide.{operation}.z({parameters}) alwaysinline {{
  %nearest = {nearest}
  %above = call {kind} @oxide.{operation}.u({parameters})
  %below = call {kind} @oxide.{operation}.d({parameters})
  %negative = fcmp olt {kind} %nearest, 0.0
  %toward = select i1 %negative, {kind} %above, {kind} %below
  %zero = fcmp oeq {kind} %nearest, 0.0
  %r = select i1 %zero, {kind} %nearest, {kind} %toward
  ret {kind} %r
}}"""

# The quotient of doubles may be wrong in its last bit. Between 1 and 4 this affects no float's result: all were tried.
# Every other float is one of these times a power of 4.
_RECIPROCAL_ROOT = """define float @__nv_frsqrt_rn(float %p0) alwaysinline {
  %x = fpext float %p0 to double
  %root = call double @llvm.sqrt.f64(double %x)
  %close = fdiv double 1.0, %root
  %r = fptrunc double %close to float
  ret float %r
}"""
