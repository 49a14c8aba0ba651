"""Works around PTX instructions that LLVM's back end or ptxas miscompiles.

ptxas 13.0 miscompiles these cases, the first two although ``abs`` and ``neg`` of the least number wrap by PTX's
specification:

- It assumes that the result of ``abs`` is not negative: ``abs(x) < 0`` is false for every x.
- It assumes that the result of ``neg.s16``, or of a subtraction from 0, fits in 16 bits before truncation: ``-x`` of
  the least ``i16`` is 32768 once widened.
- It loses the negation of an operand of a minimum or maximum of three numbers, of 16 or 32 bits.
- It fuses a 64-bit subtraction from the result of ``mul.hi.u32`` into ``IMAD.HI.U32``, which adds the negated
  subtrahend. It negates the lower half of the subtrahend apart: the difference is 2**32 too small if that half is 0.
- It fuses a minimum or maximum of 16 bits and its comparison with the same constant into ``VIMNMX.S16x2``. The results
  of the lower and the upper half go to one predicate, so that only the result of the upper half is left.
- It drops an ``and.b16`` of a number that ``cvt`` has just made f16 or bf16, if the masked number becomes the lower
  half of a 32-bit word.
- It treats ``max(min(x, 1.0), 0.0)`` as a saturation, which gives 0 for NaN instead of 1: in f16, f32 and f64.

Observed on an H100 (2026-11-22, driver 580.159.04). The first two cases were found by testing 565 combinations of an
instruction and a reader of its result, over every number of 16 bits, and over the extremes and 3000 other numbers of 32
and 64 bits. 20 combinations were wrong: each had ``abs``, of 16, 32 or 64 bits, or ``neg.s16``. The other cases were
found by random kernels, and then in their SASS. Other subtractions, ``add``, ``mul``, ``mad``, ``not``, ``xor``,
shifts, ``min``, ``max``, ``div`` and ``rem`` are as specified.

LLVM 22 selects wrong instructions in two cases. It turns a comparison with a constant zero and a selection by it,
``x < 0.0 ? x : 0.0``, into ``min``, which returns -0.0 for -0.0 instead of 0.0. It turns a shift of 64 bits, whose
amount was compared with 64, into the instruction that gives 0 if its 32-bit amount is too large, and truncates the
amount to 32 bits first: a shift by 2**32 does nothing.

These instructions are therefore expanded in the assembly, where no pass folds the expansion back. LLVM's instruction
selection creates some of them itself, for example a negation for a product with a negative power of two. The amounts of
shifts are hidden from LLVM's back end beforehand, because its assembly no longer shows the original amounts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.values import Binary, Call, Cast, Constant, Instruction, Value

_SAME = Constant('asm "mov.b32 $0, $1;", "=r,r"', "ptr")


def shifts(module: Module) -> Iterator[Binary]:
    """Yields the shifts whose amount is not a constant."""
    for each in module.instructions:
        match each:
            case Binary(opcode="shl" | "lshr", type="i32" | "i64", right=amount) if not isinstance(amount, Constant):
                yield each


def hide_amounts(module: Module) -> None:
    """Hides the amounts of an optimised module's shifts from the back end's analysis: amounts of 64 bits, and amounts
    truncated from 64 bits."""
    for number, shift in enumerate(shifts(module)):
        amount, place = shift.right, f"%oxide.amount.{number}"
        match amount:
            case Value(type="i64"):
                low = Cast(f"{place}.low", "trunc", amount, "i32")
                same = Call(f"{place}.same", "i32", _SAME, (low,))
                hidden: list[Instruction] = [low, same, Cast(place, "zext", same, "i64")]
            case Cast(opcode="trunc", value=Value(type="i64")):
                hidden = [Call(f"{place}.same", "i32", _SAME, (amount,))]
            case _:
                continue
        shift.operands[1] = hidden[-1]
        shift.block.insert(shift.block.instructions.index(shift), hidden)


_NEGATION = re.compile(r"\bneg\.s(16|32)\s+(%\w+), (%\w+);")
_HIGH_PRODUCT = re.compile(r"\bmul\.hi\.u32\s+(%\w+), ([^,;]+), ([^,;]+);")
_SHORT_EXTREME = re.compile(r"\b(min|max)\.([su])16\s+(%\w+), (%\w+), (%\w+|-?\d+);")
# A constant of 32 or 64 bits is an operand. A constant of 16 bits is in a register.
_FLOAT_EXTREME = re.compile(
    r"\b(?P<operation>min|max)\.(?P<kind>b?f(?P<bits>16|32|64))\s+(?P<result>%\w+), (?P<x>%\w+), "
    r"(?P<limit>%\w+|0[fd][0-9A-F]+);"
)
_SHORT_CONSTANT = re.compile(r"\bmov\.b16\s+(%\w+), 0x([0-9A-F]{4});")
_DESTINATION = re.compile(r"^\s*(?:@!?%\w+ )?[\w.]+\s+\{?(%\w+),", re.MULTILINE)
_MINUS_ZERO = {"16": "0x8000", "32": "0f80000000", "64": "0d8000000000000000"}
_ONES = {"3C00", "3F800000", "3FF0000000000000"}
_TO_HALF = re.compile(r"\bcvt\.rn(?:\.relu)?\.b?f16\.f32\b")
_MASK = re.compile(r"\band\.b16\s+(%\w+), (%\w+), (-?\d+);")
_ABSOLUTE = re.compile(r"\babs\.s(16|32|64)\s+(%\w+), (%\w+);")


def as_specified(assembly: str) -> str:
    """Returns PTX in which the instructions that ptxas miscompiles are expanded."""
    assembly = _HIGH_PRODUCT.sub(
        r"{ .reg .b32 low; .reg .b64 product; mul.wide.u32 product, \2, \3; mov.b64 {low, \1}, product; }", assembly
    )
    assembly = _SHORT_EXTREME.sub(
        r"{ .reg .b16 short; .reg .b32 first, second; mov.b16 short, \5; cvt.\g<2>32.\g<2>16 first, \4; "
        r"cvt.\g<2>32.\g<2>16 second, short; \1.\g<2>32 first, first, second; cvt.u16.u32 \3, first; }",
        assembly,
    )
    assembly = _with_float_extremes(assembly)
    if _TO_HALF.search(assembly):
        assembly = _MASK.sub(_masked, assembly)
    assembly = _ABSOLUTE.sub(
        r"{ .reg .pred negative; .reg .b\1 negated; setp.lt.s\1 negative, \3, 0; not.b\1 negated, \3; "
        r"add.s\1 negated, negated, 1; selp.b\1 \2, negated, \3, negative; }",
        assembly,
    )
    return _NEGATION.sub(r"not.b\1 \2, \3;\n\tadd.s\1 \2, \2, 1;", assembly)


def _masked(mask: re.Match[str]) -> str:
    """Returns a mask as two instructions. ptxas fuses the two into one mask again, but does not drop this mask."""
    result, source, constant = mask.groups()
    others = ~int(constant)
    return f"or.b16 {result}, {source}, {others};\n\txor.b16 {result}, {result}, {others};"


def _with_float_extremes(assembly: str) -> str:
    """Returns PTX in which a minimum or maximum with a constant 0 is a selection again, where this gives another zero.
    ptxas is also kept from treating ``max(min(x, 1.0), 0.0)`` as a saturation."""
    constants, destinations = dict(_SHORT_CONSTANT.findall(assembly)), Counter(_DESTINATION.findall(assembly))

    def constant(extreme: re.Match[str]) -> str:
        limit = extreme["limit"]
        if limit[0] != "%":
            return limit[2:]
        return constants.get(limit, "") if destinations[limit] == 1 else ""

    at_most_one = {
        extreme["result"]
        for extreme in _FLOAT_EXTREME.finditer(assembly)
        if extreme["operation"] == "min" and constant(extreme) in _ONES and destinations[extreme["result"]] == 1
    }

    def expanded(extreme: re.Match[str]) -> str:
        zero, kind, is_minimum = constant(extreme), extreme["kind"], extreme["operation"] == "min"
        result, x, limit = extreme["result"], extreme["x"], extreme["limit"]
        if not zero or zero.strip("0") not in ("", "8"):
            return extreme[0]
        before = ""
        if not is_minimum and x in at_most_one:
            # Adding -0.0 changes no number, and ptxas does not simplify it.
            before = f".reg .{kind} number, nothing; mov.b{extreme['bits']} nothing, {_MINUS_ZERO[extreme['bits']]}; "
            before += f"add.rn.{kind} number, {x}, nothing; "
            x = "number"
        if (zero[0] == "8") == is_minimum:
            return f"{{ {before}{extreme['operation']}.{kind} {result}, {x}, {limit}; }}" if before else extreme[0]
        # LLVM has turned a selection into this minimum or maximum. Restores the selection.
        comparison, selection = "lt" if is_minimum else "gt", "b16" if extreme["bits"] == "16" else kind
        return (
            f"{{ {before}.reg .pred beyond; setp.{comparison}.{kind} beyond, {x}, {limit}; "
            f"selp.{selection} {result}, {x}, {limit}, beyond; }}"
        )

    return _FLOAT_EXTREME.sub(expanded, assembly)
