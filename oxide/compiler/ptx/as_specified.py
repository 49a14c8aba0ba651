"""Instructions of PTX that LLVM's back end or ptxas takes for more than their specification says, or loses.

By PTX's specification ``abs`` and ``neg`` wrap for the least number. ptxas 13.0 assumes that the result of ``abs`` is
not negative, and that the result of ``neg.s16``, or of a subtraction from 0, fits in 16 bits before it is cut to them.
So ``abs(x) < 0`` is false for every x, and ``-x`` of the least ``i16`` is 32768 where it is widened. Before a minimum
or maximum of three numbers, of 16 or of 32 bits, it loses a negation altogether. Of ``mul.hi.u32`` and a 64-bit
subtraction from its result it makes one instruction, ``IMAD.HI.U32``, to which it gives the lower half's negation: the
difference is 2**32 too small where that half is 0. Of a minimum or maximum of 16 bits and its comparison with the same
constant it makes ``VIMNMX.S16x2``, whose two answers, for the lower half and the upper, it writes to one predicate: the
upper half's stays. A mask of a number that was converted to f16 or bf16 it leaves out, where the result is the lower
half of a word.

This was seen on an H100 (2026-11-22, driver 580.159.04): the first two in 565 combinations of an instruction and one
that reads its result, over every number of 16 bits, and the extremes and 3000 others of 32 and 64, of which 20 were
wrong, all by ``abs`` in three widths and ``neg.s16``; the others by random kernels, then in SASS. Other subtractions,
``add``, ``mul``, ``mad``, ``not``, ``xor``, shifts, ``min``, ``max``, ``div`` and ``rem`` are as specified.

LLVM 22 selects wrongly in two places. Of a comparison with a constant zero and a choice by it, ``x < 0.0 ? x : 0.0``,
it makes ``min``, which gives -0.0 of -0.0, not 0.0. A shift of 64 bits, whose amount was compared with 64, it takes for
the instruction that gives 0 where its amount of 32 bits is too large, and cuts the amount to those first: by 2**32
nothing is shifted.

So they are written out in the assembly, where nothing turns what they are written as into them again: LLVM makes a
negation of a product with a negative power of two, too, as it selects instructions. The amounts of shifts are hidden
from LLVM's back end before, as its assembly does not show them any more.
"""

from __future__ import annotations

import re
from itertools import count

from oxide.compiler.ir.ssa import NAME

_SHIFT = re.compile(
    rf"^(?P<head>  {NAME} = (?:shl|lshr) (?:nuw |nsw |exact )*(?P<kind>i32|i64) .*, )(?P<amount>{NAME})(?=,|$)",
    re.MULTILINE,
)
_CUT = re.compile(rf"^  ({NAME}) = trunc (?:nuw |nsw )*i64 {NAME} to i32", re.MULTILINE)


def has_shifts(text: str) -> bool:
    """Whether some number is shifted by an amount that is no constant."""
    return _SHIFT.search(text) is not None


def with_hidden_amounts(text: str) -> str:
    """An optimised module whose shifts go by amounts that the back end cannot compare with anything: those of 64 bits,
    and those that were cut from as many."""
    cut, numbers = set(_CUT.findall(text)), count()

    def hidden(shift: re.Match[str]) -> str:
        amount, place = shift["amount"], f"%oxide.amount.{next(numbers)}"
        lines = []
        if shift["kind"] == "i64":
            lines.append(f"  {place}.low = trunc i64 {amount} to i32")
            amount = f"{place}.low"
        elif amount not in cut:
            return shift[0]
        lines.append(f'  {place}.same = call i32 asm "mov.b32 $0, $1;", "=r,r"(i32 {amount})')
        if shift["kind"] == "i64":
            lines.append(f"  {place} = zext i32 {place}.same to i64")
        lines.append(shift["head"] + (place if shift["kind"] == "i64" else f"{place}.same"))
        return "\n".join(lines)

    return _SHIFT.sub(hidden, text)


_NEGATION = re.compile(r"\bneg\.s(16|32)\s+(%\w+), (%\w+);")
_HIGH_PRODUCT = re.compile(r"\bmul\.hi\.u32\s+(%\w+), ([^,;]+), ([^,;]+);")
_SHORT_EXTREME = re.compile(r"\b(min|max)\.([su])16\s+(%\w+), (%\w+), (%\w+|-?\d+);")
_EXTREME_OF_ZERO = re.compile(
    r"\b(?:(?P<min>min)|max)\.f(?P<bits>32|64)\s+(?P<result>%\w+), (?P<x>%\w+), (?P<zero>0[fd](?(min)0|8)0+);"
)
_TO_HALF = re.compile(r"\bcvt\.rn(?:\.relu)?\.b?f16\.f32\b")
_MASK = re.compile(r"\band\.b16\s+(%\w+), (%\w+), (-?\d+);")
_ABSOLUTE = re.compile(r"\babs\.s(16|32|64)\s+(%\w+), (%\w+);")


def as_specified(assembly: str) -> str:
    """PTX that ptxas makes what its specification says of."""
    assembly = _HIGH_PRODUCT.sub(
        r"{ .reg .b32 low; .reg .b64 product; mul.wide.u32 product, \2, \3; mov.b64 {low, \1}, product; }", assembly
    )
    assembly = _SHORT_EXTREME.sub(
        r"{ .reg .b16 short; .reg .b32 first, second; mov.b16 short, \5; cvt.\g<2>32.\g<2>16 first, \4; "
        r"cvt.\g<2>32.\g<2>16 second, short; \1.\g<2>32 first, first, second; cvt.u16.u32 \3, first; }",
        assembly,
    )
    assembly = _EXTREME_OF_ZERO.sub(_chosen, assembly)
    if _TO_HALF.search(assembly):
        assembly = _MASK.sub(_masked, assembly)
    assembly = _ABSOLUTE.sub(
        r"{ .reg .pred negative; .reg .b\1 negated; setp.lt.s\1 negative, \3, 0; not.b\1 negated, \3; "
        r"add.s\1 negated, negated, 1; selp.b\1 \2, negated, \3, negative; }",
        assembly,
    )
    return _NEGATION.sub(r"not.b\1 \2, \3;\n\tadd.s\1 \2, \2, 1;", assembly)


def _masked(mask: re.Match[str]) -> str:
    """A mask as the two instructions that ptxas makes one of again, and does not lose."""
    result, source, constant = mask.groups()
    others = ~int(constant)
    return f"or.b16 {result}, {source}, {others};\n\txor.b16 {result}, {result}, {others};"


def _chosen(extreme: re.Match[str]) -> str:
    """The choice that LLVM made a minimum of 0.0, or a maximum of -0.0, of."""
    bits, x, zero = extreme["bits"], extreme["x"], extreme["zero"]
    comparison = "lt" if extreme["min"] else "gt"
    return (
        f"{{ .reg .pred beyond; setp.{comparison}.f{bits} beyond, {x}, {zero}; "
        f"selp.f{bits} {extreme['result']}, {x}, {zero}, beyond; }}"
    )
