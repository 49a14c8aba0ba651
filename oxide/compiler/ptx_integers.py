"""Integer instructions of PTX that ptxas takes for more than their specification says, or loses.

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

LLVM 22 itself takes a shift of 64 bits, whose amount was compared with 64, for the instruction that gives 0, or the
sign, where its amount of 32 bits is too large, and cuts the amount to those first: by 2**32 nothing was shifted.

So they are written out in the assembly, where nothing turns what they are written as into them again: LLVM makes a
negation of a product with a negative power of two, too, as it selects instructions.
"""

from __future__ import annotations

import re

_NEGATION = re.compile(r"\bneg\.s(16|32)\s+(%\w+), (%\w+);")
_HIGH_PRODUCT = re.compile(r"\bmul\.hi\.u32\s+(%\w+), ([^,;]+), ([^,;]+);")
_SHORT_EXTREME = re.compile(r"\b(min|max)\.([su])16\s+(%\w+), (%\w+), (%\w+|-?\d+);")
_FUNCTION = re.compile(r"^\{$.*?^\}$", re.MULTILINE | re.DOTALL)
_LONG_SHIFT = re.compile(r"\b(sh[lr]\.[bus]64\s+%\w+, [^,;]+), (%r\d+);")
_CUT = re.compile(r"\bcvt\.u32\.u64\s+(%r\d+), (%rd\d+);")
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
    if _LONG_SHIFT.search(assembly):
        assembly = _FUNCTION.sub(_with_long_amounts, assembly)
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


def _with_long_amounts(function: re.Match[str]) -> str:
    """A function whose shifts by an amount that was 64 bits long go by all of it."""
    code = function[0]
    cut = {low for low, _ in _CUT.findall(code)}.intersection(amount for _, amount in _LONG_SHIFT.findall(code))
    if not cut:
        return code
    code = _LONG_SHIFT.sub(lambda m: f"{m[1]}, {m[2]}_amount;" if m[2] in cut else m[0], code)
    code = _CUT.sub(
        lambda m: (
            f"{m[0]}\n\t{{ .reg .b64 amount; min.u64 amount, {m[2]}, 64; cvt.u32.u64 {m[1]}_amount, amount; }}"
            if m[1] in cut
            else m[0]
        ),
        code,
    )
    registers = ", ".join(f"{low}_amount" for low in sorted(cut))
    return f"{{\n\t.reg .b32 {registers};{code[1:]}"
