"""libdevice on the CPU: defines each ``__nv_*`` function that a kernel calls, as a call of the C library.

``special.py`` and ``rounding.py`` have functions that the C library lacks; functions of words are here. The C library
is already loaded in the process. Its errors are at most an ulp or two, as libdevice's are, so the two devices may
differ in the last bit. On the CPU, libdevice's fast approximations are computed by the ordinary functions.
"""

from __future__ import annotations

from oxide.compiler.ir.known_functions import QUOTIENTS, quotient
from oxide.compiler.ir.module import Module
from oxide.errors import CompileError

from . import plain_math, rounding, special

_UNARY = """sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10 log1p logb cbrt
erf erfc tgamma lgamma round j0 j1 y0 y1"""
_BINARY = "atan2 pow hypot fmod remainder nextafter fdim"
_SHAPES = {
    **dict.fromkeys(_UNARY.split(), ("{t}", ("{t}",))),
    **dict.fromkeys(_BINARY.split(), ("{t}", ("{t}", "{t}"))),
    "ldexp": ("{t}", ("{t}", "i32")),
    "scalbn": ("{t}", ("{t}", "i32")),
    "ilogb": ("i32", ("{t}",)),
    "llrint": ("i64", ("{t}",)),
    "llround": ("i64", ("{t}",)),
    "jn": ("{t}", ("i32", "{t}")),
    "yn": ("{t}", ("i32", "{t}")),
    "frexp": ("{t}", ("{t}", "ptr")),
    "modf": ("{t}", ("{t}", "ptr")),
    "remquo": ("{t}", ("{t}", "{t}", "ptr")),
}
"""The result and the parameters of the functions that C has under the same name. ``{t}`` is double, or float for the
function whose name ends in f."""

_FAST = "sin cos tan exp log log2 log10 pow tanh sincos exp10"


def definitions(kernel: str, module: Module) -> str:
    """Returns definitions of the ``__nv_*`` functions that a module only declares.

    Raises ``CompileError`` for a function without a counterpart on the CPU."""
    texts: list[str] = []
    for symbol, function in module.functions.items():
        if not (function.is_declaration and symbol.startswith("__nv_")):
            continue
        parts = _definitions(symbol)
        if not parts:
            raise CompileError(
                f"kernel {kernel}: {symbol.removeprefix('__nv_')} is a function of NVIDIA's libdevice that the CPU "
                "device has no counterpart of; run the kernel on a CUDA device, or compute it from oxide's math"
            )
        texts += parts
    return "\n".join(dict.fromkeys(texts))


def _definitions(symbol: str) -> list[str]:
    """Returns a function's definition as texts, or [] for a function without a counterpart on the CPU. Each text
    declares or defines one function, so that two definitions with a callee in common have the same text for it."""
    if symbol in QUOTIENTS:
        return quotient(symbol, approximate=False)
    found = plain_math.definitions(symbol) or _of_c(symbol) or _of_words(symbol)
    if not found:
        called, texts = special.definitions(symbol)
        found = [*(_declare(base, "double")[1] for base in called), *texts]
    return found or rounding.definitions(symbol)


def _of_c(symbol: str) -> list[str]:
    fast = symbol.removeprefix("__nv_fast_")
    plain = fast if fast.removesuffix("f") in _FAST.split() else symbol.removeprefix("__nv_")
    for base, kind in special.forms(plain):
        if base in _SHAPES:
            result, parameters = _SHAPES[base]
            listed = ", ".join(f"{part} %p{number}" for number, part in enumerate(parameters))
            body = f"  %r = call {result} @{{{base}}}({listed})"
            return _composed(symbol, kind, (base,), parameters, result, body)
        if base in _COMPOSED:
            return _composed(symbol, kind, *_COMPOSED[base])
    return []


def _declare(base: str, kind: str) -> tuple[str, str]:
    """Returns the C function's name and its declaration. The function is declared pure, as no kernel reads errno.

    ``fmod`` is declared ``nobuiltin``: LLVM assumes wrongly that ``fmod(x, y)`` is no NaN if x is not infinite and y is
    not 0, although y may be a NaN.
    """
    result, parameters = _SHAPES[base]
    called = base + ("f" if kind == "float" else "")
    listed = ", ".join(part.format(t=kind) for part in parameters)
    memory = "memory(argmem: readwrite)" if "ptr" in parameters else "memory(none)"
    unknown = " nobuiltin" if base == "fmod" else ""
    return called, f"declare {result.format(t=kind)} @{called}({listed}) nounwind willreturn {memory}{unknown}"


_COMPOSED = {
    "exp10": (("pow",), ("{t}",), "{t}", "  %r = call {t} @{pow}({t} 10.0, {t} %p0)"),
    "powi": (
        ("pow",),
        ("{t}", "i32"),
        "{t}",
        "  %n = sitofp i32 %p1 to {t}\n  %r = call {t} @{pow}({t} %p0, {t} %n)",
    ),
    "rcbrt": (("cbrt",), ("{t}",), "{t}", "  %root = call {t} @{cbrt}({t} %p0)\n  %r = fdiv {t} 1.0, %root"),
    "rhypot": (
        ("hypot",),
        ("{t}", "{t}"),
        "{t}",
        "  %root = call {t} @{hypot}({t} %p0, {t} %p1)\n  %r = fdiv {t} 1.0, %root",
    ),
    "sincos": (
        ("sin", "cos"),
        ("{t}", "ptr", "ptr"),
        "void",
        "  %s = call {t} @{sin}({t} %p0)\n  store {t} %s, ptr %p1\n"
        "  %c = call {t} @{cos}({t} %p0)\n  store {t} %c, ptr %p2",
    ),
}
"""Functions that C lacks: the C functions that each calls, its parameters, its result and its body."""


def _composed(
    symbol: str, kind: str, parts: tuple[str, ...], parameters: tuple[str, ...], result: str, body: str
) -> list[str]:
    """Returns the definition of a function of ``kind``, double or float, that calls the C functions ``parts``."""
    declared = {part: _declare(part, kind) for part in parts}
    names = {part: called for part, (called, _) in declared.items()}
    listed = ", ".join(f"{part.format(t=kind)} %p{number}" for number, part in enumerate(parameters))
    kind_of_result = result.format(t=kind)
    returned = "  ret void" if result == "void" else f"  ret {kind_of_result} %r"
    return [
        *(text for _, text in declared.values()),
        f"define {kind_of_result} @{symbol}({listed}) alwaysinline {{\n{body.format(t=kind, **names)}\n{returned}\n}}",
    ]


# Functions of words: differences, averages, bytes, the upper and lower words of doubles. They are exact, so both
# devices give the same bits. NVIDIA's CUDA Math API defines each of them.


def _of_words(symbol: str) -> list[str]:
    """Returns a list with the IR that defines a function of words; [] for any other function."""
    if symbol not in _BODIES:
        return []
    result, parameters, body = _BODIES[symbol]
    return [rounding.function(symbol, result, parameters.split(), body.split("; "))]


def _difference(greater: str) -> str:
    return (
        f"%c = icmp {greater} i32 %p0, %p1; %a = sub i32 %p0, %p1; %b = sub i32 %p1, %p0; "
        "%d = select i1 %c, i32 %a, i32 %b; %r = add i32 %d, %p2"
    )


def _average(extend: str, rounding: int) -> str:
    return (
        f"%a = {extend} i32 %p0 to i64; %b = {extend} i32 %p1 to i64; %s = add i64 %a, %b; "
        f"%t = add i64 %s, {rounding}; %h = ashr i64 %t, 1; %r = trunc i64 %h to i32"
    )


def _product(shift: str) -> str:
    return (
        f"%a = shl i32 %p0, 8; %x = {shift} i32 %a, 8; %b = shl i32 %p1, 8; %y = {shift} i32 %b, 8; %r = mul i32 %x, %y"
    )


def _permutation() -> str:
    """Returns the body of ``byte_perm``: three bits select each byte of the result among the eight bytes of the first
    two parameters."""
    lines = [
        "%a = zext i32 %p0 to i64; %b = zext i32 %p1 to i64; %high = shl i64 %b, 32; %all = or i64 %a, %high",
        "%names = zext i32 %p2 to i64",
    ]
    last = "0"
    for n in range(4):
        lines += [
            f"%n{n} = lshr i64 %names, {4 * n}; %m{n} = and i64 %n{n}, 7; %o{n} = shl i64 %m{n}, 3",
            f"%h{n} = lshr i64 %all, %o{n}; %y{n} = and i64 %h{n}, 255; %z{n} = shl i64 %y{n}, {8 * n}",
            f"%r{n} = or i64 {last}, %z{n}",
        ]
        last = f"%r{n}"
    return "; ".join([*lines, f"%r = trunc i64 {last} to i32"])


_BODIES = {
    "__nv_byte_perm": ("i32", "i32 i32 i32", _permutation()),
    "__nv_saturatef": (
        "float",
        "float",
        "%positive = fcmp ogt float %p0, 0.0; %below = fcmp olt float %p0, 1.0; "
        "%least = select i1 %below, float %p0, float 1.0; %r = select i1 %positive, float %least, float 0.0",
    ),
    "__nv_half2float": ("float", "i16", "%r = call float @oxide.f16.widen(i16 %p0)"),
    "__nv_float2half_rn": ("i16", "float", "%r = call i16 @oxide.f16.narrow(float %p0)"),
    "__nv_sad": ("i32", "i32 i32 i32", _difference("sgt")),
    "__nv_usad": ("i32", "i32 i32 i32", _difference("ugt")),
    "__nv_hadd": ("i32", "i32 i32", _average("sext", 0)),
    "__nv_rhadd": ("i32", "i32 i32", _average("sext", 1)),
    "__nv_uhadd": ("i32", "i32 i32", _average("zext", 0)),
    "__nv_urhadd": ("i32", "i32 i32", _average("zext", 1)),
    "__nv_mul24": ("i32", "i32 i32", _product("ashr")),
    "__nv_umul24": ("i32", "i32 i32", _product("lshr")),
    "__nv_double2hiint": (
        "i32",
        "double",
        "%w = bitcast double %p0 to i64; %h = lshr i64 %w, 32; %r = trunc i64 %h to i32",
    ),
    "__nv_double2loint": ("i32", "double", "%w = bitcast double %p0 to i64; %r = trunc i64 %w to i32"),
    "__nv_hiloint2double": (
        "double",
        "i32 i32",
        "%h = zext i32 %p0 to i64; %l = zext i32 %p1 to i64; %s = shl i64 %h, 32; %w = or i64 %s, %l; "
        "%r = bitcast i64 %w to double",
    ),
}
