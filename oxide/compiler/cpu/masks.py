"""Hides from LLVM that a number is reduced modulo a small power of two.

LLVM 22 treats ``i & 3`` of a loop's index as a counter of 2 bits. It treats ``x[first + (i & 3)]`` as contiguous while
the counter does not wrap around. The vectoriser must test for a wrap-around before the loop. It wrongly leaves out the
test if it can prove that the counter does wrap around in each vector: the loop then reads ``x[first + i]``
(llvm/llvm-project#225086). So this pass replaces each such mask by a load from memory whose content LLVM does not know.
A loop with such a mask is vectorised with gathers.

A remainder by a power of two becomes such a mask too, because LLVM would turn it into a mask. A masked number that is
only a shift's amount or only compared stays unchanged: no address depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.values import Binary, Cast, Compare, Constant, Instruction, Load, Select, Value, number, suffixed

_WIDEST = 16
"""The most bits of a mask that is hidden. A counter with more bits does not wrap around within one vector, so LLVM
cannot prove that it does."""

_TYPES = ("i8", "i16", "i32", "i64")
_SHIFTS = ("shl", "lshr", "ashr")


def hidden_masks(module: Module) -> Module:
    """Returns a module whose small masks LLVM does not know. Returns ``module`` itself if it has no small masks."""
    if not any(_bits(each) for each in module.instructions):
        return module
    module = module.copy()
    kept = module.add_metadata("!{}")
    for function in module.defined:
        users = function.users()
        replaced: dict[Value, Value] = {}
        for instruction in list(function.instructions):
            if _bits(instruction) and any(_matters(instruction, user) for user in users.get(instruction, ())):
                added = list(_hidden(module, instruction, kept))
                instruction.block.replace(instruction, added)
                replaced[instruction] = added[-1]
        function.replace(replaced)
    return module


def _bits(instruction: Instruction) -> int:
    """Returns the number of low bits that an instruction keeps of its operand; 0 for any other instruction."""
    match instruction:
        case Binary(opcode="and" | "urem" | "srem" as opcode, right=Constant(integer=int(constant))):
            power = constant + (opcode == "and")
            if instruction.type in _TYPES and power > 1 and power & (power - 1) == 0:
                return power.bit_length() - 1 if power <= 1 << _WIDEST else 0
        case Cast(opcode="trunc", value=value, type="i8" | "i16" as kind) if value.type in _TYPES:
            return int(kind[1:])
    return 0


def _matters(value: Instruction, user: Instruction) -> bool:
    """Returns whether an address may depend on this use of a reduced number. Amounts of shifts and comparisons do not
    count. A truncated number counts only where it is extended again."""
    if isinstance(value, Cast):
        return isinstance(user, Cast) and user.opcode in ("zext", "sext")
    shifts_by = isinstance(user, Binary) and user.opcode in _SHIFTS and user.left is not value
    return not (shifts_by or isinstance(user, Compare))


def _hidden(module: Module, instruction: Instruction, metadata: str) -> Iterator[Instruction]:
    """Yields the instructions that replace an instruction."""
    bits, number_of = _bits(instruction), instruction.operands[0]
    kind = number_of.type
    symbol = f"oxide.low_bits.{kind}.{bits}"
    mask = (1 << bits) - 1
    module.globals[symbol] = f"@{symbol} = internal externally_initialized global {kind} {mask}"
    # LLVM itself names values `.mask`.
    loaded = Load(suffixed(instruction.name, ".low_bits"), kind, Constant(f"@{symbol}", "ptr"), "")
    loaded.metadata["!invariant.load"] = metadata
    yield loaded
    if isinstance(instruction, Cast):
        kept = Binary(suffixed(instruction.name, ".kept"), "and", number_of, loaded)
        yield from (kept, instruction.copy({number_of: kept}, instruction.name))
    elif instruction.opcode == "srem":  # the result has the number's sign
        kept = Binary(suffixed(instruction.name, ".kept"), "and", number_of, loaded)
        below = Compare(suffixed(instruction.name, ".below"), "slt", number_of, number(0, kind))
        some = Compare(suffixed(instruction.name, ".some"), "ne", kept, number(0, kind))
        both = Binary(suffixed(instruction.name, ".both"), "and", below, some)
        less = Binary(suffixed(instruction.name, ".less"), "sub", kept, number(1 << bits, kind))
        yield from (kept, below, some, both, less, Select(instruction.name, both, less, kept))
    else:
        yield Binary(instruction.name, "and", number_of, loaded)
