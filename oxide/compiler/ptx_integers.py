"""Integer instructions of PTX that ptxas takes for more than their specification says, or loses.

By PTX's specification ``abs`` and ``neg`` wrap for the least number. ptxas 13.0 assumes that the result of ``abs`` is
not negative, and that the result of ``neg.s16``, or of a subtraction from 0, fits in 16 bits before it is cut to them.
So ``abs(x) < 0`` is false for every x, and ``-x`` of the least ``i16`` is 32768 where it is widened. Before a minimum
or maximum of three numbers, of 16 or of 32 bits, it loses a negation altogether.

This was seen on an H100 (2026-11-22, driver 580.159.04): the first two in 565 combinations of an instruction and one
that reads its result, over every number of 16 bits, and the extremes and 3000 others of 32 and 64, of which 20 were
wrong, all by ``abs`` in three widths and ``neg.s16``; the third by random kernels. Other subtractions, ``add``,
``mul``, ``mad``, ``not``, ``xor``, shifts, ``min``, ``max``, ``div`` and ``rem`` are as specified.

So they are written out in the assembly, where nothing turns what they are written as into them again: LLVM makes a
negation of a product with a negative power of two, too, as it selects instructions.
"""

from __future__ import annotations

import re

_NEGATION = re.compile(r"\bneg\.s(16|32)\s+(%\w+), (%\w+);")
_ABSOLUTE = re.compile(r"\babs\.s(16|32|64)\s+(%\w+), (%\w+);")


def wrapping(assembly: str) -> str:
    """PTX whose negations and absolute values wrap for the least number, as specified."""
    assembly = _ABSOLUTE.sub(
        r"{ .reg .pred negative; .reg .b\1 negated; setp.lt.s\1 negative, \3, 0; not.b\1 negated, \3; "
        r"add.s\1 negated, negated, 1; selp.b\1 \2, negated, \3, negative; }",
        assembly,
    )
    return _NEGATION.sub(r"not.b\1 \2, \3;\n\tadd.s\1 \2, \2, 1;", assembly)
