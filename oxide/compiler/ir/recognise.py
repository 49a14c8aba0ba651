"""Recognises calls, conditions and the thread's position in a kernel."""

from __future__ import annotations

from typing import NamedTuple

from .module import Function, Module
from .values import Binary, Call, Cast, Instruction, Select, Value, unescaped

_INVERSE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
INVERSE = {sign + one: sign + other for sign in "su" for one, other in _INVERSE.items()}
"""Maps each ordering predicate of integers to its negation."""

_MIRROR = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
MIRROR = {sign + one: sign + other for sign in "su" for one, other in _MIRROR.items()}
"""Maps each ordering predicate of integers to the predicate that is equivalent when the operands are exchanged."""


def called(value: Value) -> str:
    """Returns the symbol of the function that a call calls. Returns "" for a call of inline assembly or of a pointer,
    and for a value that is not a call."""
    return value.called if isinstance(value, Call) else ""


def bounds_check(axes: int) -> str:
    """Returns the symbol of the function that checks one axis of an access. The access has ``axes`` axes, from 1 to
    3."""
    return f"oxide.in_bounds.{axes}" if axes > 1 else "oxide.in_bounds"


def out_of_bounds(axes: int) -> str:
    """Returns the symbol of the function that reports a failed check. This function has the same parameters as the
    check."""
    return f"oxide.out_of_bounds.{axes}" if axes > 1 else "oxide.out_of_bounds"


_BOUNDS_CHECKS = frozenset(bounds_check(axes) for axes in (1, 2, 3))


def is_bounds_check(value: Value) -> bool:
    """Returns whether a value is a bounds check: the call ``oxide.in_bounds(context, index, length, site)``, or the
    check of one of several axes, which takes the indices and lengths of the other axes as further arguments."""
    return called(value) in _BOUNDS_CHECKS


def is_alignment_check(value: Value) -> bool:
    """Returns whether a value is the call ``oxide.aligned(context, low bits of an address, site)``."""
    return called(value) == "oxide.aligned"


def is_check(value: Value) -> bool:
    return is_bounds_check(value) or is_alignment_check(value)


def fails_an_assert(value: Value) -> bool:
    """Returns whether an instruction reports a failed ``assert``."""
    return called(value) == "oxide.assertion_failed"


def register_of(value: Value) -> str:
    """Returns the name of the register that a call reads: a thread's coordinate or a size of the launch, such as
    ``tid.x``. Returns "" for any other value."""
    symbol = called(value)
    return symbol.removeprefix("oxide.register.") if symbol.startswith("oxide.register.") else ""


PLACE = "!oxide.place"
"""The metadata that holds an instruction's place in the source, such as ``!{!"/a/kernels.py", i32 7, !"f", i32 5}``."""


class Place(NamedTuple):
    """A place in the source: its file and line, and the Python function with its first line."""

    file: str
    line: int
    function: str
    first_line: int


def place_of(module: Module, instruction: Instruction) -> Place | None:
    """Returns the place in the source that the front end attached to an instruction, or None."""
    node = instruction.metadata.get(PLACE)
    if node is None:
        return None
    _, file, after_file, function, after_function = module.metadata[int(node[1:])].split('"')
    line, first = (int(text.split()[2].rstrip(",}")) for text in (after_file, after_function))
    return Place(unescaped(file), line, unescaped(function), first)


_EXTREMES = ("smin", "smax", "umin", "umax", "ssub.sat", "usub.sat")


def integer_intrinsic(value: Value) -> str:
    """Returns the operation of a call of an LLVM intrinsic that computes a minimum, maximum or saturating difference of
    integers, such as ``smax``. The call's two arguments are the operands. Returns "" for any other value."""
    operation, _, type_ = called(value).removeprefix("llvm.").rpartition(".")
    return operation if operation in _EXTREMES and type_ == value.type else ""


def conditions_of(value: Value, truth: bool) -> list[tuple[Value, bool]]:
    """Returns the operands of a boolean operation, each with the truth value that it must have for the result to be
    ``truth``. Handles an ``and`` that is true, an ``or`` that is false, and a ``not``. Returns [] in any other case."""
    match value:
        # `a and b` is select(a, b, false), `a or b` is select(a, true, b).
        case Select(type="i1", condition=condition, left=left, right=right):
            if truth and right.integer == 0:
                return [(condition, True), (left, True)]
            if not truth and left.integer == 1:
                return [(condition, False), (right, False)]
        case Binary(type="i1", opcode="and" | "or" as opcode, left=left, right=right):
            if opcode == ("and" if truth else "or"):
                return [(left, truth), (right, truth)]
        case Binary(type="i1", opcode="xor", left=left, right=right) if right.integer == 1:
            return [(left, not truth)]
    return []


# The thread's position in the launch: ``blockIdx.x * blockDim.x + threadIdx.x``, or the same along another axis


def replace_positions(kernel: Function, position: Value, axis: str = "x") -> None:
    """Replaces each computation of the thread's position along an axis by ``position``, an ``i64``."""
    replaced: dict[Value, Value] = {}
    for instruction in kernel.instructions:
        match instruction:
            case Binary(opcode="add", left=left, right=right) if _is_position(left, right, axis) or _is_position(
                right, left, axis
            ):
                replaced[instruction] = position
                if instruction.type != "i64":
                    narrow = replaced[instruction] = Cast(instruction.name, "trunc", position, instruction.type)
                    instruction.block.replace(instruction, [narrow])
    kernel.replace(replaced)


def _is_position(product: Value, thread: Value, axis: str) -> bool:
    """Returns whether two summands are ``ctaid.x * ntid.x`` and ``tid.x``, or the same registers of another axis."""
    match product:
        case Binary(opcode="mul", operands=factors) if _widened_register(thread) == f"tid.{axis}":
            return set(map(_widened_register, factors)) == {f"ctaid.{axis}", f"ntid.{axis}"}
    return False


def _widened_register(value: Value) -> str:
    match value:
        case Cast(opcode="zext" | "sext", value=narrow):
            return register_of(narrow)
    return register_of(value)


def leave_out_unused(kernel: Function) -> None:
    """Removes arithmetic, casts and reads of registers that nothing uses, such as those that computed the positions."""
    while True:
        used = {operand for instruction in kernel.instructions for operand in instruction.operands}
        unused = [
            instruction
            for instruction in kernel.instructions
            if instruction not in used and (isinstance(instruction, Binary | Cast) or register_of(instruction))
        ]
        if not unused:
            return
        for instruction in unused:
            instruction.block.replace(instruction, ())
