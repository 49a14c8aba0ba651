"""Emits the arithmetic of tile elements as LLVM IR, one element at a time.

Narrow floats are computed as f32 and rounded after each operation, as NumPy does. Integer arithmetic wraps around, a
division by 0 gives 0, as in NumPy, and a conversion to an integer saturates.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Final

from oxide.compiler.ir.half import literal
from oxide.compiler.primitives.random_numbers import UNIFORM
from oxide.language.narrow import rounded as rounded_number
from oxide.language.types import ScalarType

from .ir_text import Code

__all__ = ["apply", "cast", "constant", "stored", "widened"]


def constant(value: Any, scalar: ScalarType) -> str:
    """Returns a number as a literal of LLVM IR. A narrow float is rounded to its type."""
    if scalar.kind == "b":
        return "true" if value else "false"
    if scalar.kind in "iu":
        low, high = scalar.limits
        whole = int(value)
        if not low <= whole <= high:
            whole = (whole - low) % (high - low + 1) + low
        return str(whole)
    number = float(value)
    if scalar.name != "f64":
        number = rounded_number(scalar.name, number) if scalar.precision else number
        try:
            number = struct.unpack("f", struct.pack("f", number))[0]
        except OverflowError:
            number = math.copysign(math.inf, number)
    return literal(number)


def widened(out: Code, bits: str, scalar: ScalarType) -> str:
    """Converts an element from its type in memory to the type of a value in registers."""
    if scalar.precision:
        return out.call("float", f"oxide.{scalar.name}.widen", (scalar.memory_type, bits))
    if scalar.kind == "b":
        return out.new(f"icmp ne i8 {bits}, 0")
    return bits


def stored(out: Code, value: str, scalar: ScalarType) -> str:
    """Converts a value in registers to the type of an element in memory."""
    if scalar.precision:
        return out.call(scalar.memory_type, f"oxide.{scalar.name}.narrow", ("float", value))
    if scalar.kind == "b":
        return out.new(f"zext i1 {value} to i8")
    return value


def rounded(out: Code, value: str, scalar: ScalarType) -> str:
    """Rounds the result of an operation to ``scalar`` if that is a narrow float. Returns any other result unchanged."""
    return widened(out, stored(out, value, scalar), scalar) if scalar.precision else value


def cast(out: Code, value: str, source: ScalarType, target: ScalarType) -> str:
    """Converts a value from the type ``source`` to the type ``target``."""
    if source is target:
        return value
    one, two = source.register_type, target.register_type
    if source.kind == "b":
        if target.kind == "f":
            return out.new(f"uitofp i1 {value} to {two}")
        return out.new(f"zext i1 {value} to {two}")
    if target.kind == "b":
        if source.kind == "f":
            return out.new(f"fcmp une {one} {value}, {constant(0, source)}")
        return out.new(f"icmp ne {one} {value}, 0")
    if source.kind == "f" and target.kind == "f":
        if two == "double":
            return value if one == "double" else out.new(f"fpext float {value} to double")
        if one == "double":
            name = "oxide.round_to_odd" if target.precision else ""
            value = out.call("float", name, ("double", value)) if name else out.new(f"fptrunc double {value} to float")
        return rounded(out, value, target)
    if source.kind == "f":
        how = "u" if target.kind == "u" else "s"
        suffix = {"float": "f32", "double": "f64"}[one]
        return out.call(two, f"llvm.fpto{how}i.sat.{two}.{suffix}", (one, value))
    if target.kind == "f":
        how = "uitofp" if source.kind == "u" else "sitofp"
        if target.precision:
            wide = out.new(f"{how} {one} {value} to double")
            return rounded(out, out.call("float", "oxide.round_to_odd", ("double", wide)), target)
        return out.new(f"{how} {one} {value} to {two}")
    before, after = int(one[1:]), int(two[1:])
    if before == after:
        return value
    if after < before:
        return out.new(f"trunc {one} {value} to {two}")
    return out.new(f"{'zext' if source.kind == 'u' else 'sext'} {one} {value} to {two}")


def with_nans(out: Code, scalar: ScalarType, first: str, one: str, two: str) -> tuple[str, str]:
    """Completes a comparison for numbers that may be NaNs, which come after all numbers and are equal to one another.
    ``first`` says whether ``one`` comes first if both are numbers. Returns whether ``one`` comes first, and whether
    both are equal."""
    equal = apply(out, "eq", scalar, [one, two])
    if scalar.kind != "f":
        return first, equal
    one_nan, two_nan = (out.new(f"fcmp uno {scalar.register_type} {each}, {each}") for each in (one, two))
    number = out.new(f"xor i1 {one_nan}, true")
    first = out.new(f"or i1 {first}, {out.new(f'and i1 {number}, {two_nan}')}")
    return first, out.new(f"or i1 {equal}, {out.new(f'and i1 {one_nan}, {two_nan}')}")


_PLAIN: Final = ("add", "sub", "mul", "and", "or", "xor")
_COMPARED: Final = ("lt", "le", "gt", "ge", "eq", "ne")
_INTRINSICS: Final = {"sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "maximum": "maximum",
                      "minimum": "minimum"}  # fmt: skip
_RENAMED: Final = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}


def apply(out: Code, op: str, scalar: ScalarType, values: list[str], flags: str = "") -> str:
    """Applies an operation to values of one type."""
    kind = scalar.register_type
    if op == "copy":
        return values[0]
    if op == "rand":
        return out.call("float", UNIFORM, *(("i64", each) for each in values))
    if op == "where":
        return out.new(f"select i1 {values[0]}, {kind} {values[1]}, {kind} {values[2]}")
    if op in _COMPARED:
        if scalar.kind == "f":
            how = "une" if op == "ne" else f"o{op}"
            return out.new(f"fcmp {how} {kind} {values[0]}, {values[1]}")
        sign = "" if op in ("eq", "ne") else "u" if scalar.kind in "ub" else "s"
        return out.new(f"icmp {sign}{op} {kind} {values[0]}, {values[1]}")
    if scalar.kind == "f":
        return rounded(out, _of_floats(out, op, kind, values, flags), scalar)
    return _of_integers(out, op, kind, scalar, values)


def _of_floats(out: Code, op: str, kind: str, values: list[str], flags: str) -> str:
    flags = f"{flags} " if flags else ""
    suffix = {"float": "f32", "double": "f64"}[kind]
    typed = [(kind, each) for each in values]
    if op in ("add", "sub", "mul"):
        return out.new(f"f{op} {flags}{kind} {values[0]}, {values[1]}")
    if op == "truediv":
        return out.new(f"fdiv {flags}{kind} {values[0]}, {values[1]}")
    if op == "neg":
        return out.new(f"fneg {kind} {values[0]}")
    if op in _INTRINSICS:
        return out.call(kind, f"llvm.{_INTRINSICS[op]}.{suffix}", *typed)
    if op == "rsqrt":
        root = out.call(kind, f"llvm.sqrt.{suffix}", *typed)
        return out.new(f"fdiv {kind} 1.0, {root}")
    if op in ("floordiv", "mod"):
        return _floor_divided(out, op, kind, suffix, values)
    name = "fast_exp2" if op == "exp2" and flags and kind == "float" else _RENAMED.get(op, op)
    return out.call(kind, f"__nv_{name}{'f' if kind == 'float' else ''}", *typed)


def _floor_divided(out: Code, op: str, kind: str, suffix: str, values: list[str]) -> str:
    """Emits ``//`` or ``%`` of floats by NumPy's algorithm. The remainder is exact. The quotient is computed from the
    difference of ``a`` and the remainder."""
    a, b = values
    new: Callable[[str], str] = out.new
    left = out.call(kind, f"__nv_fmod{'f' if kind == 'float' else ''}", (kind, a), (kind, b))
    some = new(f"fcmp one {kind} {left}, 0.0")
    negative = new(f"fcmp olt {kind} {b}, 0.0")
    below = new(f"fcmp olt {kind} {left}, 0.0")
    differ = new(f"xor i1 {negative}, {below}")
    moved = new(f"and i1 {some}, {differ}")
    more = new(f"fadd {kind} {left}, {b}")
    signed = out.call(kind, f"llvm.copysign.{suffix}", (kind, "0.0"), (kind, b))
    whole = new(f"fcmp oeq {kind} {left}, 0.0")
    kept = new(f"select i1 {whole}, {kind} {signed}, {kind} {left}")
    rest = new(f"select i1 {moved}, {kind} {more}, {kind} {kept}")
    if op == "mod":
        return rest
    taken = new(f"fsub {kind} {a}, {left}")
    quotient = new(f"fdiv {kind} {taken}, {b}")
    lower = new(f"fsub {kind} {quotient}, 1.0")
    quotient = new(f"select i1 {moved}, {kind} {lower}, {kind} {quotient}")
    down = out.call(kind, f"llvm.floor.{suffix}", (kind, quotient))
    off = new(f"fsub {kind} {quotient}, {down}")
    half = new(f"fcmp ogt {kind} {off}, 0.5")
    up = new(f"fadd {kind} {down}, 1.0")
    near = new(f"select i1 {half}, {kind} {up}, {kind} {down}")
    plain = new(f"fdiv {kind} {a}, {b}")
    zero = new(f"fcmp oeq {kind} {quotient}, 0.0")
    signless = out.call(kind, f"llvm.copysign.{suffix}", (kind, "0.0"), (kind, plain))
    near = new(f"select i1 {zero}, {kind} {signless}, {kind} {near}")
    by_zero = new(f"fcmp oeq {kind} {b}, 0.0")
    return new(f"select i1 {by_zero}, {kind} {plain}, {kind} {near}")


def _of_integers(out: Code, op: str, kind: str, scalar: ScalarType, values: list[str]) -> str:
    unsigned = scalar.kind in "ub"
    typed = [(kind, each) for each in values]
    if op in _PLAIN:
        return out.new(f"{op} {kind} {values[0]}, {values[1]}")
    if op == "neg":
        return out.new(f"sub {kind} 0, {values[0]}")
    if op == "invert":
        return out.new(f"xor {kind} {values[0]}, {'true' if kind == 'i1' else '-1'}")
    if op in ("shl", "shr"):
        name = "shl" if op == "shl" else "lshr" if unsigned else "ashr"
        return out.call(kind, f"oxide.{name}.{kind}", *typed)
    if op in ("maximum", "minimum"):
        if kind == "i1":
            return out.new(f"{'or' if op == 'maximum' else 'and'} i1 {values[0]}, {values[1]}")
        return out.call(kind, f"llvm.{'u' if unsigned else 's'}{op[:3]}.{kind}", *typed)
    if op == "abs":
        return out.call(kind, f"llvm.abs.{kind}", typed[0], ("i1", "false"))
    if op in ("floordiv", "mod"):
        if unsigned:
            return out.call(kind, f"oxide.{'udiv' if op == 'floordiv' else 'urem'}.{kind}", *typed)
        return _floor_divided_integers(out, op, kind, values)
    raise NotImplementedError(f"{op} of {scalar.name}")


def _floor_divided_integers(out: Code, op: str, kind: str, values: list[str]) -> str:
    a, b = values
    rest = out.call(kind, f"oxide.srem.{kind}", (kind, a), (kind, b))
    some = out.new(f"icmp ne {kind} {rest}, 0")
    differ = out.new(f"xor {kind} {rest}, {b}")
    negative = out.new(f"icmp slt {kind} {differ}, 0")
    moved = out.new(f"and i1 {some}, {negative}")
    if op == "mod":
        more = out.new(f"add {kind} {rest}, {b}")
        return out.new(f"select i1 {moved}, {kind} {more}, {kind} {rest}")
    quotient = out.call(kind, f"oxide.sdiv.{kind}", (kind, a), (kind, b))
    less = out.new(f"sub {kind} {quotient}, 1")
    return out.new(f"select i1 {moved}, {kind} {less}, {kind} {quotient}")
