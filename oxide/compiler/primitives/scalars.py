"""The entries of ``oxide.intrinsics`` and ``oxide.fast``: functions of numbers, without effects.

Most become calls of libdevice's functions (``__nv_popc``, …), which ``compiler.ir.known_functions``,
``compiler.ptx.libdevice`` and ``compiler.cpu.libdevice`` define. A function that libdevice lacks has its definition
here, in IR that both back ends compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oxide.compiler.source.typings import Signature
from oxide.language import fast, intrinsics

from . import random_numbers
from .numbers import BITS, GREATEST, INTEGERS, LEAST, bits_of, fused
from .table import (
    SCALAR,
    Implementation,
    Primitive,
    bits,
    defined,
    floats,
    integers,
    llvm_type,
    parameters_of,
    shown,
    singles,
)


def _of_integers(base: str) -> Callable[[Signature], str]:
    """Returns the names of a libdevice function for integers of 32 and 64 bits."""
    return lambda signature: f"__nv_{base}{'' if bits(signature) == 32 else 'll'}"


def of_floats(base: str) -> Callable[[Signature], str]:
    """Returns the names of a libdevice function for f32 and f64."""
    return lambda signature: f"__nv_{base}{'f' if signature.arguments[0] == 'f32' else ''}"


def _mulhi(signature: Signature) -> str:
    sign = "" if signature.arguments[0][0] == "i" else "u"
    return f"__nv_{sign}{'mulhi' if bits(signature) == 32 else 'mul64hi'}"


def _saturating(operation: str) -> Callable[[Signature], str]:
    def symbol(signature: Signature) -> str:
        sign = "s" if signature.arguments[0][0] == "i" else "u"
        return f"llvm.{sign}{operation}.sat.i{bits(signature)}"

    return symbol


def _clamped(sign: int) -> Implementation:
    def implementation(signature: Signature) -> Callable[..., Any]:
        low, high = LEAST[signature.result], GREATEST[signature.result]
        return lambda a, b: min(max(a + sign * b, low), high)

    return implementation


def _to_bits(name: str, kinds: tuple[str, ...]) -> Signature | str:
    if kinds[0] not in ("f32", "f64"):
        return f"{name} takes an f32 or f64, not {shown(kinds)}; convert it, as in f32(x)"
    return Signature(kinds, f"u{BITS[kinds[0]]}")


def _from_bits(name: str, kinds: tuple[str, ...]) -> Signature | str:
    if kinds[0] not in INTEGERS or BITS[kinds[0]] < 32:
        return f"{name} takes 32- and 64-bit integers, not {shown(kinds)}; convert it, as in u32(x)"
    return Signature(kinds, f"f{BITS[kinds[0]]}")


_SATURATE = """
declare {result} @llvm.maxnum.{suffix}({result}, {result})
declare {result} @llvm.minnum.{suffix}({result}, {result})
  ; The maximum comes first, because the maximum of a NaN and 0 is 0.
  %positive = call {result} @llvm.maxnum.{suffix}({types[0]} %x, {types[0]} 0.0)
  %r = call {result} @llvm.minnum.{suffix}({types[0]} %positive, {types[0]} 1.0)
  ret {result} %r
"""

ENTRIES = (
    Primitive(
        intrinsics.popc,
        integers("i32"),
        _of_integers("popc"),
        interpreted=lambda signature: lambda x: bits_of(signature.arguments[0], x).bit_count(),
    ),
    Primitive(intrinsics.clz, integers("i32"), _of_integers("clz")),
    Primitive(intrinsics.ffs, integers("i32"), _of_integers("ffs")),
    Primitive(intrinsics.brev, integers(), _of_integers("brev")),
    Primitive(intrinsics.mulhi, integers(), _mulhi),
    Primitive(intrinsics.saturating_add, integers(), _saturating("add"), interpreted=_clamped(1)),
    Primitive(intrinsics.saturating_sub, integers(), _saturating("sub"), interpreted=_clamped(-1)),
    Primitive(
        intrinsics.fma,
        floats,
        of_floats("fma"),
        interpreted=lambda signature: lambda a, b, c: fused(signature.result, a, b, c),
    ),
    Primitive(intrinsics.fmax, floats, of_floats("fmax")),
    Primitive(intrinsics.fmin, floats, of_floats("fmin")),
    Primitive(intrinsics.rsqrt, floats, of_floats("rsqrt")),
    Primitive(intrinsics.saturate, floats, definition=_SATURATE),
    Primitive(
        intrinsics.to_bits,
        _to_bits,
        lambda signature: "__nv_float_as_uint" if bits(signature) == 32 else "__nv_double_as_longlong",
    ),
    Primitive(
        intrinsics.from_bits,
        _from_bits,
        lambda signature: "__nv_uint_as_float" if bits(signature) == 32 else "__nv_longlong_as_double",
    ),
    *(
        Primitive(function, singles, of_floats(f"fast_{function.__name__}"))
        for function in (
            fast.exp,
            fast.exp2,
            fast.exp10,
            fast.log,
            fast.log2,
            fast.log10,
            fast.sin,
            fast.cos,
            fast.tan,
            fast.pow,
            fast.reciprocal,
        )
    ),
    Primitive(fast.divide, singles, of_floats("fast_fdivide")),
    *random_numbers.ENTRIES,
)


_BY_NAME = {entry.name: entry for entry in ENTRIES}


def definition(symbol: str) -> str | None:
    """Returns the IR that defines ``symbol``, or None for a function that no entry defines."""
    if not symbol.startswith(SCALAR):
        return None
    module, name, *kinds = symbol.removeprefix(SCALAR).split(".")
    entry = _BY_NAME[f"{module}.{name}"]
    found = entry.typed(entry.name, tuple(kinds))
    assert isinstance(found, Signature), "the front end has typed the call"
    types = [llvm_type(kind) for kind in kinds]
    suffix, result = kinds[0].replace("u", "i"), llvm_type(found.result)
    text = entry.definition.format(types=types, suffix=suffix, result=result)
    named = zip(types, parameters_of(entry.function), strict=True)
    parameters = [f"{each} %{parameter.name}" for each, parameter in named]
    return defined(text, found.result, symbol, parameters, "alwaysinline").replace("define ", "define linkonce_odr ")
