"""The entries of ``oxide.random``: Philox 4x32-10, in IR that both back ends compile, and for typed kernels and tile
kernels alike.

``philox`` is the same in Python, for the interpreter.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from oxide.compiler.source.typings import Signature
from oxide.language import random

from .numbers import INTEGERS, ROUND
from .table import WORDS, Primitive, Rule, shown

_ROUNDS: Final = 10
_MULTIPLIERS: Final = 0xD2511F53, 0xCD9E8D57
_INCREMENTS: Final = 0x9E3779B9, 0xBB67AE85


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Returns the four words of Philox 4x32-10."""
    c, k = counter, key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c[0], _MULTIPLIERS[1] * c[2]
        c = (second >> 32) ^ c[1] ^ k[0], second % 2**32, (first >> 32) ^ c[3] ^ k[1], first % 2**32
        k = (k[0] + _INCREMENTS[0]) % 2**32, (k[1] + _INCREMENTS[1]) % 2**32
    return c


def _words(seed: int, i: int) -> tuple[int, int, int, int]:
    return philox((seed % 2**32, seed >> 32), (i % 2**32, i >> 32, 0, 0))


def rounds(upper: tuple[str, str] = ("0", "0")) -> str:
    """Returns the IR that computes the words ``%w0`` to ``%w3`` for the key ``%seed`` and the counter ``%i``, whose
    upper two words are ``upper``.

    LLVM would widen all of it to 64 bits, of which a GPU's instructions compute 32. ``oxide.word``, which returns its
    argument, keeps it from that there.
    """
    lines = []
    for name, value in (("k", "seed"), ("c", "i")):
        lines += [
            f"%{name}0 = trunc i64 %{value} to i32",
            f"%{name}.upper = lshr i64 %{value}, 32",
            f"%{name}1 = trunc i64 %{name}.upper to i32",
        ]
    c, k = ["%c0", "%c1", *upper], ["%k0", "%k1"]
    for n in range(_ROUNDS):
        for half, factor in enumerate(_MULTIPLIERS):
            lines += [
                f"%word{half}.{n} = call i32 @oxide.word(i32 {c[2 * half]})",
                f"%wide{half}.{n} = zext i32 %word{half}.{n} to i64",
                f"%product{half}.{n} = mul i64 %wide{half}.{n}, {factor}",
                f"%low{half}.{n} = trunc i64 %product{half}.{n} to i32",
                f"%upper{half}.{n} = lshr i64 %product{half}.{n}, 32",
                f"%high{half}.{n} = trunc i64 %upper{half}.{n} to i32",
            ]
        first, third = ("%w0", "%w2") if n == _ROUNDS - 1 else (f"%first.{n}", f"%third.{n}")
        lines += [
            f"%mixed0.{n} = xor i32 %high1.{n}, {c[1]}",
            f"{first} = xor i32 %mixed0.{n}, {k[0]}",
            f"%mixed1.{n} = xor i32 %high0.{n}, {c[3]}",
            f"{third} = xor i32 %mixed1.{n}, {k[1]}",
            *(f"%key{half}.{n} = add i32 {k[half]}, {more}" for half, more in enumerate(_INCREMENTS)),
        ]
        c, k = [first, f"%low1.{n}", third, f"%low0.{n}"], [f"%key0.{n}", f"%key1.{n}"]
    return "\n".join(f"  {line}" for line in [*lines, f"%w1 = add i32 {c[1]}, 0", f"%w3 = add i32 {c[3]}, 0"])


def _of_words(tail: str) -> str:
    """Returns the definition of a function of the words. ``tail`` follows the declarations, and ends in ``ret``."""
    declared = [line for line in tail.strip("\n").split("\n") if line.startswith("declare ")]
    body = [line for line in tail.strip("\n").split("\n") if not line.startswith("declare ")]
    return "\n".join(["declare i32 @oxide.word(i32)", *declared, rounds(), *body])


def _counted(result: str, bounds: int = 0) -> Rule:
    """Returns the rule of a function of a seed, a counter, and bounds that are signed numbers."""

    def rule(name: str, kinds: tuple[str, ...]) -> Signature | str:
        for kind in kinds:
            if kind not in INTEGERS:
                return f"{name} takes integers, not {shown([kind])}; convert it, as in i64(x)"
        if "u64" in kinds[2:]:
            return f"{name} takes bounds that an i64 holds, not u64; convert it, as in i64(x)"
        return Signature(("u64", "u64", *["i64"] * bounds), result)

    return rule


def _hexadecimal(number: float) -> str:
    """Returns a number, rounded to f32, as a constant of LLVM IR."""
    return f"0x{struct.pack('>d', ROUND['f32'](number)).hex().upper()}"


_BITS4 = """
  %r0 = insertvalue [4 x i32] undef, i32 %w0, 0
  %r1 = insertvalue [4 x i32] %r0, i32 %w1, 1
  %r2 = insertvalue [4 x i32] %r1, i32 %w2, 2
  %r3 = insertvalue [4 x i32] %r2, i32 %w3, 3
  ret [4 x i32] %r3
"""

_UNIFORM = f"""
  %upper.bits = lshr i32 %w0, 8
  %whole = uitofp i32 %upper.bits to float
  %r = fmul float %whole, {_hexadecimal(2.0**-24)}
  ret float %r
"""

_INTEGERS = """
  %difference = sub i64 %high, %low
  %some = icmp sgt i64 %high, %low
  %span = select i1 %some, i64 %difference, i64 0
  %below = zext i32 %w0 to i64
  %above = zext i32 %w1 to i64
  %shifted = shl i64 %above, 32
  %random = or i64 %shifted, %below
  %wide.random = zext i64 %random to i128
  %wide.span = zext i64 %span to i128
  %product = mul i128 %wide.random, %wide.span
  %upper.half = lshr i128 %product, 64
  %place = trunc i128 %upper.half to i64
  %r = add i64 %low, %place
  ret i64 %r
"""


def _polynomial(result: str, x: str, coefficients: tuple[float, ...]) -> str:
    """Returns the IR that computes a polynomial of ``x`` by Horner's rule, from the highest coefficient."""
    value, *terms = map(_hexadecimal, coefficients)
    lines = []
    for n, term in enumerate(terms, 1):
        name = result if n == len(terms) else f"{result}.{n}"
        lines.append(f"  {name} = call float @llvm.fma.f32(float {value}, float {x}, float {term})")
        value = name
    return "\n".join(lines)


# ln x = e ln 2 + ln(1 + m), with m from -1/3 to 1/3, is within a unit in the last place. The upper two bits of b decide
# whether the cosine is the cosine or the sine of an angle from -pi/4 to pi/4. Their polynomials are those of Cephes.
_LOGARITHM = (
    -0.1256918907, 0.1358056366, -0.1225263476, 0.1408452243, -0.1667606533, 0.2000586689, -0.2499987781,
    0.3333328962, -0.5,
)  # fmt: skip
NORMAL = f"""
declare float @llvm.fma.f32(float, float, float)
declare float @llvm.sqrt.f32(float)
  %a = uitofp i32 %w0 to float
  %x = call float @llvm.fma.f32(float %a, float {_hexadecimal(2.0**-32)}, float {_hexadecimal(2.0**-33)})
  %x.bits = bitcast float %x to i32
  %x.moved = sub i32 %x.bits, {0x3F2AAAAB}
  %e.bits = and i32 %x.moved, {-(2**23)}
  %m.bits = sub i32 %x.bits, %e.bits
  %m.one = bitcast i32 %m.bits to float
  %m = fsub float %m.one, 1.0
  %e.whole = sitofp i32 %e.bits to float
  %e = fmul float %e.whole, {_hexadecimal(2.0**-23)}
{_polynomial("%l", "%m", _LOGARITHM)}
  %m.squared = fmul float %m, %m
  %l.one = call float @llvm.fma.f32(float %l, float %m.squared, float %m)
  %logarithm = call float @llvm.fma.f32(float %e, float {_hexadecimal(math.log(2.0))}, float %l.one)
  %radius.squared = fmul float %logarithm, -2.0
  %radius = call float @llvm.sqrt.f32(float %radius.squared)
  %b = add i32 %w1, {2**29}
  %quadrant = lshr i32 %b, 30
  %b.rest = and i32 %b, {2**30 - 1}
  %b.centred = sub i32 %b.rest, {2**29}
  %b.float = sitofp i32 %b.centred to float
  %angle = fmul float %b.float, {_hexadecimal(math.tau / 2**32)}
  %z = fmul float %angle, %angle
{_polynomial("%s", "%z", (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1))}
  %s.z = fmul float %s, %z
  %sine = call float @llvm.fma.f32(float %s.z, float %angle, float %angle)
{_polynomial("%cosine", "%z", (2.443315712e-5, -1.388731625e-3, 4.166664568e-2, -0.5, 1.0))}
  %odd = trunc i32 %quadrant to i1
  %part = select i1 %odd, float %sine, float %cosine
  %next = add i32 %quadrant, 1
  %next.second = and i32 %next, 2
  %is.negative = icmp ne i32 %next.second, 0
  %negative = fneg float %part
  %signed = select i1 %is.negative, float %negative, float %part
  %r = fmul float %radius, %signed
  ret float %r
"""

ENTRIES = (
    Primitive(
        random.bits,
        _counted("u32"),
        definition=_of_words("  ret i32 %w0"),
        interpreted=lambda signature: lambda seed, i: _words(seed, i)[0],
    ),
    Primitive(random.bits4, _counted(WORDS), definition=_of_words(_BITS4), interpreted=lambda signature: _words),
    Primitive(
        random.uniform,
        _counted("f32"),
        definition=_of_words(_UNIFORM),
        interpreted=lambda signature: lambda seed, i: (_words(seed, i)[0] >> 8) * 2.0**-24,
    ),
    Primitive(random.normal, _counted("f32"), definition=_of_words(NORMAL)),
    Primitive(random.integers, _counted("i64", 2), definition=_of_words(_INTEGERS)),
)

UNIFORM = next(each for each in ENTRIES if each.function is random.uniform).symbol_of(Signature(("u64", "u64"), "f32"))
"""The name in the IR of ``uniform``, for the code of tile kernels."""
