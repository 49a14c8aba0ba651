"""Edits the PTX that LLVM prints: works around instructions that are miscompiled, and completes line tables.

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

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.values import Binary, Call, Cast, Constant, Instruction, Value

Calls = list[list[tuple[str, str, int]]]
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


@dataclass(frozen=True, slots=True)
class _Read:
    """An instruction of PTX: the index of its line, its opcode without its type, its type, and its operands."""

    place: int
    opcode: str
    kind: str
    operands: list[str]

    @property
    def result(self) -> str:
        """Returns the register that is written first, or "" if the first operand is none."""
        first = self.operands[0].removeprefix("{")
        return first if first.startswith("%") and len(self.operands) > 1 else ""

    @property
    def bits(self) -> str:
        return self.kind.lstrip("bfsu")


def as_specified(assembly: str) -> str:
    """Returns PTX in which the instructions that ptxas miscompiles are expanded."""
    lines = assembly.split("\n")
    read = list(_instructions(lines))
    masks = any((each.opcode, each.kind) in _TO_HALF for each in read)
    extremes = [
        each for each in read if each.opcode in ("min", "max") and "f" in each.kind and each.bits in _MINUS_ZERO
    ]
    expanded = _float_extremes(read, extremes) if extremes else {}
    for each in read:
        text = expanded.get(each.place) or _expanded(each, masks=masks)
        if text:
            lines[each.place] = f"\t{text}"
    return "\n".join(lines)


def _instructions(lines: list[str]) -> Iterator[_Read]:
    """Reads the lines that have one instruction each. All that LLVM selects is of this form."""
    for place, line in enumerate(lines):
        if line.startswith("\t") and line.endswith(";"):
            opcode, _, operands = line[1:-1].partition(" ")
            if operands and ";" not in operands:
                name, _, kind = opcode.rpartition(".")
                yield _Read(place, name, kind, operands.lstrip().split(", "))


def _expanded(each: _Read, *, masks: bool) -> str:
    """Returns the instructions that stand for an instruction, or "" if it is as specified. With ``masks``, a mask of 16
    bits may be of a number that was made f16 or bf16."""
    match each.opcode, each.kind, each.operands:
        case "mul.hi", "u32", [result, x, y]:
            return (
                f"{{ .reg .b32 low; .reg .b64 product; mul.wide.u32 product, {x}, {y}; "
                f"mov.b64 {{low, {result}}}, product; }}"
            )
        case "min" | "max" as which, "s16" | "u16", [result, x, y]:
            sign = each.kind[0]
            return (
                f"{{ .reg .b16 short; .reg .b32 first, second; mov.b16 short, {y}; cvt.{sign}32.{sign}16 first, {x}; "
                f"cvt.{sign}32.{sign}16 second, short; {which}.{sign}32 first, first, second; "
                f"cvt.u16.u32 {result}, first; }}"
            )
        case "and", "b16", [result, x, constant] if masks and not constant.startswith("%"):
            # ptxas fuses the two instructions into one mask again, but does not drop this mask.
            others = ~int(constant)
            return f"or.b16 {result}, {x}, {others};\n\txor.b16 {result}, {result}, {others};"
        case "abs", "s16" | "s32" | "s64", [result, x]:
            bits = each.bits
            return (
                f"{{ .reg .pred negative; .reg .b{bits} negated; setp.lt.s{bits} negative, {x}, 0; "
                f"not.b{bits} negated, {x}; add.s{bits} negated, negated, 1; "
                f"selp.b{bits} {result}, negated, {x}, negative; }}"
            )
        case "neg", "s16" | "s32", [result, x]:
            return f"not.b{each.bits} {result}, {x};\n\tadd.s{each.bits} {result}, {result}, 1;"
    return ""


_TO_HALF = {(f"cvt.rn{relu}.{kind}", "f32") for relu in ("", ".relu") for kind in ("f16", "bf16")}
_MINUS_ZERO = {"16": "0x8000", "32": "0f80000000", "64": "0d8000000000000000"}
_ONES = {"3C00", "3F800000", "3FF0000000000000"}


def _float_extremes(read: list[_Read], extremes: list[_Read]) -> dict[int, str]:
    """Returns the expanded minimums and maximums of floats, by their lines. A minimum or maximum with a constant 0 is a
    selection again, where this gives another zero. ptxas is also kept from treating ``max(min(x, 1.0), 0.0)`` as a
    saturation."""
    written = Counter(each.result for each in read)
    # A constant of 32 or 64 bits is an operand. A constant of 16 bits is in a register.
    constants = {each.result: each.operands[1][2:] for each in read if (each.opcode, each.kind) == ("mov", "b16")}

    def constant(extreme: _Read) -> str:
        limit = extreme.operands[2]
        if limit[0] != "%":
            return limit[2:]
        return constants.get(limit, "") if written[limit] == 1 else ""

    at_most_one = {
        each.result
        for each in extremes
        if each.opcode == "min" and constant(each) in _ONES and written[each.result] == 1
    }
    expanded: dict[int, str] = {}
    for each in extremes:
        zero, kind, is_minimum = constant(each), each.kind, each.opcode == "min"
        result, x, limit = each.operands
        if not zero or zero.strip("0") not in ("", "8"):
            continue
        before = ""
        if not is_minimum and x in at_most_one:
            # Adding -0.0 changes no number, and ptxas does not simplify it.
            before = f".reg .{kind} number, nothing; mov.b{each.bits} nothing, {_MINUS_ZERO[each.bits]}; "
            before += f"add.rn.{kind} number, {x}, nothing; "
            x = "number"
        if (zero[0] == "8") != is_minimum:
            # LLVM has turned a selection into this minimum or maximum. Restores the selection.
            comparison, selection = "lt" if is_minimum else "gt", "b16" if each.bits == "16" else kind
            expanded[each.place] = (
                f"{{ {before}.reg .pred beyond; setp.{comparison}.{kind} beyond, {x}, {limit}; "
                f"selp.{selection} {result}, {x}, {limit}, beyond; }}"
            )
        elif before:
            expanded[each.place] = f"{{ {before}{each.opcode}.{kind} {result}, {x}, {limit}; }}"
    return expanded


# Line tables

_FILE, _LOC = "\t.file\t", "\t.loc\t"
_LEFT_OUT = ("$L__tmp", "$L__func_begin", "$L__func_end", "\t.section\t.debug_macinfo\t")
"""The beginnings of lines to leave out: labels that only LLVM's own sections would refer to, and an empty section."""


def with_calls(assembly: str, calls: Calls) -> str:
    """Returns PTX whose directives ``.loc`` have the calls through which an instruction was inlined. Apart from the
    ``.loc`` and ``.file`` directives and the section of names, the result is the PTX of the same kernel without line
    tables.

    LLVM's printer writes ``.loc`` without the calls. But it writes columns. So the column of each inlined instruction's
    location is a number, which is replaced by the calls::

        .loc 1 7 0
        .loc 1 2 0, function_name $L__oxide_name0, inlined_at 1 7 0

    ptxas expects the location of a call in an earlier directive, so each call gets a directive of its own, even if no
    instruction follows it.
    """
    read = [line for line in assembly.split("\n") if not line.startswith(_LEFT_OUT)]
    numbered = [line.removeprefix(_FILE).partition(" ") for line in read if line.startswith(_FILE)]
    files = {path[1:-1]: int(number) for number, _, path in numbered}
    added: list[str] = []
    names: dict[str, str] = {}

    def file(path: str) -> int:
        if path not in files:
            files[path] = max(files.values(), default=0) + 1
            added.append(f'{_FILE}{files[path]} "{path}"')
        return files[path]

    def located(number: str, line: str, column: str) -> list[str]:
        place = f"{_LOC}{number} {line} 0"
        if column == "0":
            return [place]
        directives = []
        for function, path, called_at in calls[int(column) - 1]:
            label = names.setdefault(function, f"$L__oxide_name{len(names)}")
            call = f"{file(path)} {called_at} 0"
            directives.append(f"{place}, function_name {label}, inlined_at {call}")
            place = f"{_LOC}{call}"
        return [place, *reversed(directives)]

    printed: list[str] = []
    for before, line in pairwise(["", *read]):
        if line.startswith(_LOC):
            printed += located(*line.removeprefix(_LOC).split()[:3])
        elif line or not before.startswith(_LOC):  # LLVM separates some directives from the code by an empty line
            printed.append(line)
    assembly = "\n".join(["\n".join(printed).rstrip(), *added, ""])
    if names:
        listed = [f"{label}:\n.b8 {', '.join(map(str, name.encode() + bytes(1)))}\n" for name, label in names.items()]
        assembly += f"\t.section\t.debug_str\n\t{{\n{''.join(listed)}\t}}\n"
    return assembly
