"""Libdevice functions of one or two instructions, as IR for both back ends without a library.

numba-cuda lowers ``math`` and its own intrinsics to calls of libdevice's functions, such as ``__nv_sqrtf``. Functions
not defined here are left to ``ptx/libdevice.py`` on a GPU and ``cpu/libdevice/libm.py`` on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

FAST = "reassoc nsz arcp contract afn"
"""The flags of ``fastmath``. LLVM's ``fast`` would also promise that there are no NaNs and infinities, and would
miscompile branches that test for them."""


def definition(symbol: str) -> str | None:
    """Returns the IR that defines ``symbol``, or None for a function that is not defined here."""
    name = symbol.removeprefix("__nv_")
    if name == symbol:
        return None
    if name in _EXACT:
        return _EXACT[name](symbol)
    types, _, how = name.rpartition("_r")
    source, _, target = types.partition("2")
    return _conversion(symbol, source, target, how) if {source, target} <= _KINDS.keys() else None


def _function(symbol: str, result: str, parameters: tuple[str, ...], body: list[str]) -> str:
    listed = ", ".join(f"{kind} %p{number}" for number, kind in enumerate(parameters))
    lines = "\n".join(f"  {line}" for line in [*body, f"ret {result} %r"])
    return f"define linkonce_odr {result} @{symbol}({listed}) alwaysinline {{\n{lines}\n}}"


def _intrinsic(symbol: str, intrinsic: str, result: str, parameters: tuple[str, ...], last: str = "") -> str:
    """Returns a function that calls an LLVM intrinsic. ``last`` is a constant argument after the parameters."""
    given = [f"{kind} %p{number}" for number, kind in enumerate(parameters)] + ([last] if last else [])
    declared = [*parameters, *([last.split()[0]] if last else [])]
    call = f"%r = call {result} @{intrinsic}({', '.join(given)})"
    declare = f"declare {result} @{intrinsic}({', '.join(declared)})\n"
    return declare + _function(symbol, result, parameters, [call])


_Maker = Callable[[str], str]


def _float_calls() -> dict[str, _Maker]:
    calls = {
        "sqrt": ("sqrt", 1), "fabs": ("fabs", 1), "floor": ("floor", 1), "ceil": ("ceil", 1), "trunc": ("trunc", 1),
        "rint": ("roundeven", 1), "nearbyint": ("roundeven", 1), "fmin": ("minnum", 2), "fmax": ("maxnum", 2),
        "copysign": ("copysign", 2), "fma": ("fma", 3),
    }  # fmt: skip

    def maker(intrinsic: str, kind: str, count: int) -> _Maker:
        suffix = "f64" if kind == "double" else "f32"
        return lambda symbol: _intrinsic(symbol, f"llvm.{intrinsic}.{suffix}", kind, (kind,) * count)

    found = {}
    for name, (intrinsic, count) in calls.items():
        found[name] = maker(intrinsic, "double", count)
        found[f"{name}f"] = maker(intrinsic, "float", count)
    return found


def _integer_calls() -> dict[str, _Maker]:
    found: dict[str, _Maker] = {}

    def call(name: str, intrinsic: str, kind: str, count: int, last: str = "") -> None:
        full = f"llvm.{intrinsic}.{kind}"
        found[name] = lambda symbol: _intrinsic(symbol, full, kind, (kind,) * count, last)

    def counted(name: str, intrinsic: str, kind: str, last: str = "") -> None:
        """Adds a function that counts bits. Its result is an i32 whatever the argument's width."""

        def make(symbol: str) -> str:
            declared = f"declare {kind} @llvm.{intrinsic}.{kind}({kind}{', i1' if last else ''})\n"
            lines = [f"%n = call {kind} @llvm.{intrinsic}.{kind}({kind} %p0{', ' + last if last else ''})"]
            lines.append("%r = add i32 %n, 0" if kind == "i32" else f"%r = trunc {kind} %n to i32")
            return declared + _function(symbol, "i32", (kind,), lines)

        found[name] = make

    def first_set(name: str, kind: str) -> None:
        """Adds a function that returns the place of the lowest set bit, counted from 1; 0 for 0."""

        def make(symbol: str) -> str:
            lines = [
                f"%zeros = call {kind} @llvm.cttz.{kind}({kind} %p0, i1 false)",
                f"%next = add {kind} %zeros, 1",
                f"%none = icmp eq {kind} %p0, 0",
                f"%place = select i1 %none, {kind} 0, {kind} %next",
                "%r = add i32 %place, 0" if kind == "i32" else f"%r = trunc {kind} %place to i32",
            ]
            return f"declare {kind} @llvm.cttz.{kind}({kind}, i1)\n" + _function(symbol, "i32", (kind,), lines)

        found[name] = make

    def high_product(name: str, kind: str, wide: str, extend: str) -> None:
        bits = int(kind[1:])

        def make(symbol: str) -> str:
            lines = [
                f"%a = {extend} {kind} %p0 to {wide}",
                f"%b = {extend} {kind} %p1 to {wide}",
                f"%product = mul {wide} %a, %b",
                f"%high = lshr {wide} %product, {bits}",
                f"%r = trunc {wide} %high to {kind}",
            ]
            return _function(symbol, kind, (kind, kind), lines)

        found[name] = make

    for prefix, kind in (("", "i32"), ("ll", "i64")):
        call(f"{prefix}abs", "abs", kind, 1, "i1 false")
        for what in ("min", "max"):
            call(f"{prefix}{what}", f"s{what}", kind, 2)
            call(f"u{prefix}{what}", f"u{what}", kind, 2)
        counted(f"popc{prefix}", "ctpop", kind)
        counted(f"clz{prefix}", "ctlz", kind, "i1 false")
        first_set(f"ffs{prefix}", kind)
        call(f"brev{prefix}", "bitreverse", kind, 1)
    high_product("mulhi", "i32", "i64", "sext")
    high_product("umulhi", "i32", "i64", "zext")
    high_product("mul64hi", "i64", "i128", "sext")
    high_product("umul64hi", "i64", "i128", "zext")
    return found


def _classes() -> dict[str, _Maker]:
    """Returns ``isnan`` and similar functions; their result is an i32, 1 or 0."""
    found: dict[str, _Maker] = {}

    def classify(name: str, kind: str, mask: int) -> None:
        suffix = "f64" if kind == "double" else "f32"

        def make(symbol: str) -> str:
            lines = [f"%is = call i1 @llvm.is.fpclass.{suffix}({kind} %p0, i32 {mask})", "%r = zext i1 %is to i32"]
            return f"declare i1 @llvm.is.fpclass.{suffix}({kind}, i32 immarg)\n" + _function(
                symbol, "i32", (kind,), lines
            )

        found[name] = make

    def sign(name: str, kind: str, bits: int) -> None:
        lines = [f"%bits = bitcast {kind} %p0 to i{bits}", f"%top = lshr i{bits} %bits, {bits - 1}"]
        lines.append("%r = add i32 %top, 0" if bits == 32 else "%r = trunc i64 %top to i32")
        found[name] = lambda symbol: _function(symbol, "i32", (kind,), lines)

    nan, infinite, finite = 0b11, 0b1000000100, 0b0111111000
    for mask, single, double in ((nan, "isnanf", "isnand"), (infinite, "isinff", "isinfd"),
                                 (finite, "finitef", "isfinited")):  # fmt: skip
        classify(single, "float", mask)
        classify(double, "double", mask)
    sign("signbitf", "float", 32)
    sign("signbitd", "double", 64)
    return found


def _bits() -> dict[str, _Maker]:
    """Returns the functions that reinterpret a number's bits as another type."""

    def cast(source: str, target: str) -> _Maker:
        return lambda symbol: _function(symbol, target, (source,), [f"%r = bitcast {source} %p0 to {target}"])

    return {
        "float_as_int": cast("float", "i32"),
        "float_as_uint": cast("float", "i32"),
        "int_as_float": cast("i32", "float"),
        "uint_as_float": cast("i32", "float"),
        "double_as_longlong": cast("double", "i64"),
        "longlong_as_double": cast("i64", "double"),
    }


def _rounded() -> dict[str, _Maker]:
    """Returns arithmetic that rounds to nearest and is never fused with other operations."""

    def operation(opcode: str, kind: str) -> _Maker:
        return lambda symbol: _function(symbol, kind, (kind, kind), [f"%r = {opcode} {kind} %p0, %p1"])

    kinds, operations = (("f", "float"), ("d", "double")), ("add", "sub", "mul", "div")
    return {f"{letter}{name}_rn": operation(f"f{name}", kind) for letter, kind in kinds for name in operations}


_EXACT: dict[str, _Maker] = {**_float_calls(), **_integer_calls(), **_classes(), **_bits(), **_rounded()}


QUOTIENTS = ("__nv_fast_fdividef", "__nv_rsqrtf", "__nv_rsqrt")
"""Functions that a GPU approximates by one instruction."""


def quotient(symbol: str, *, approximate: bool) -> list[str]:
    """Returns definitions for one of ``QUOTIENTS``, approximate or rounded according to IEEE 754.

    The CPU gets the rounded form. LLVM approximates a CPU's quotients only in vectors, so that equal arguments would
    have different results.
    """
    if symbol == "__nv_fast_fdividef":
        flags = f"{FAST} " if approximate else ""
        return [_function(symbol, "float", ("float", "float"), [f"%r = fdiv {flags}float %p0, %p1"])]
    suffix, kind, flags = ("f32", "float", "arcp afn ") if symbol.endswith("f") else ("f64", "double", "arcp ")
    flags = flags if approximate else ""
    lines = [f"%root = call {flags}{kind} @llvm.sqrt.{suffix}({kind} %p0)", f"%r = fdiv {flags}{kind} 1.0, %root"]
    return [f"declare {kind} @llvm.sqrt.{suffix}({kind})", _function(symbol, kind, (kind,), lines)]


_KINDS = {"float": "float", "double": "double", "int": "i32", "uint": "i32", "ll": "i64", "ull": "i64"}
_TO_WHOLE = {"n": "roundeven", "d": "floor", "u": "ceil"}


def _conversion(symbol: str, source: str, target: str, how: str) -> str | None:
    """Defines float to integer, saturating, in any direction; integer to float and f64 to f32, to nearest only."""
    given, result = _KINDS[source], _KINDS[target]
    if target in ("int", "uint", "ll", "ull"):
        if source not in ("float", "double"):
            return None
        suffix = "f32" if source == "float" else "f64"
        convert = f"llvm.fpto{'u' if target[0] == 'u' else 's'}i.sat.{result}.{suffix}"
        declared, lines, whole = f"declare {result} @{convert}({given})\n", [], "%p0"
        if how in _TO_WHOLE:
            rounding = f"llvm.{_TO_WHOLE[how]}.{suffix}"
            declared += f"declare {given} @{rounding}({given})\n"
            lines, whole = [f"%whole = call {given} @{rounding}({given} %p0)"], "%whole"
        lines.append(f"%r = call {result} @{convert}({given} {whole})")
        return declared + _function(symbol, result, (given,), lines)
    if how != "n" or source == "float":
        return None
    operation = "fptrunc" if source == "double" else "uitofp" if source[0] == "u" else "sitofp"
    return _function(symbol, result, (given,), [f"%r = {operation} {given} %p0 to {result}"])
