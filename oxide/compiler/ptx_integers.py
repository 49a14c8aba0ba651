"""Integer instructions of PTX that ptxas takes for more than their specification says, or loses.

By PTX's specification ``abs`` and ``neg`` wrap for the least number. ptxas 13.0 assumes that the result of ``abs`` is
not negative, and that the result of ``neg.s16``, or of a subtraction from 0, fits in 16 bits before it is cut to them.
So ``abs(x) < 0`` is false for every x, and ``-x`` of the least ``i16`` is 32768 where it is widened. Before a minimum
or maximum of three numbers, of 16 or of 32 bits, it loses a negation altogether. Of ``mul.hi.u32`` and a 64-bit
subtraction from its result it makes one instruction, ``IMAD.HI.U32``, to which it gives the lower half's negation: the
difference is 2**32 too small where that half is 0.

This was seen on an H100 (2026-11-22, driver 580.159.04): the first two in 565 combinations of an instruction and one
that reads its result, over every number of 16 bits, and the extremes and 3000 others of 32 and 64, of which 20 were
wrong, all by ``abs`` in three widths and ``neg.s16``; the others by random kernels. Other subtractions, ``add``,
``mul``, ``mad``, ``not``, ``xor``, shifts, ``min``, ``max``, ``div`` and ``rem`` are as specified.

So they are written out in the assembly, where nothing turns what they are written as into them again: LLVM makes a
negation of a product with a negative power of two, too, as it selects instructions.
"""

from __future__ import annotations

import re

_NEGATION = re.compile(r"\bneg\.s(16|32)\s+(%\w+), (%\w+);")
_HIGH_PRODUCT = re.compile(r"\bmul\.hi\.u32\s+(%\w+), ([^,;]+), ([^,;]+);")
_ABSOLUTE = re.compile(r"\babs\.s(16|32|64)\s+(%\w+), (%\w+);")


def as_specified(assembly: str) -> str:
    """PTX that ptxas makes what its specification says of."""
    assembly = _HIGH_PRODUCT.sub(
        r"{ .reg .b32 low; .reg .b64 product; mul.wide.u32 product, \2, \3; mov.b64 {low, \1}, product; }", assembly
    )
    assembly = _ABSOLUTE.sub(
        r"{ .reg .pred negative; .reg .b\1 negated; setp.lt.s\1 negative, \3, 0; not.b\1 negated, \3; "
        r"add.s\1 negated, negated, 1; selp.b\1 \2, negated, \3, negative; }",
        assembly,
    )
    return _NEGATION.sub(r"not.b\1 \2, \3;\n\tadd.s\1 \2, \2, 1;", assembly)
