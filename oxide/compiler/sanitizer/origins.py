"""Traces each pointer of a kernel to the array that it points into: a parameter, a shared, a local or a constant array.

A pointer is traced back, through the instructions that build and take apart structures, to its *roots*: the values that
cannot be traced further. It has several roots where paths merge: ``v = a if c else b``, or a loop over the arrays of a
tuple. Then the kernel computes the number of the root at run time, with an additional ``phi`` or ``select`` next to the
``phi`` or ``select`` of the pointer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from oxide.compiler.ir.module import Function
from oxide.compiler.ir.recognise import called
from oxide.compiler.ir.values import (
    Alloca,
    Binary,
    Cast,
    Extract,
    GetElementPtr,
    Insert,
    Instruction,
    Load,
    Operation,
    Phi,
    Select,
    Store,
    Value,
    number,
)

HELD_LOCAL = "oxide.held.local"
"""The function whose calls stand for local arrays while the kernel is simplified. Its arguments are the array's size
and its alignment, in bytes."""

_NOTHING = ("null", "undef", "poison", "zeroinitializer")

Member = tuple[Value, tuple[int, ...]]
"""A pointer in a structure, as the structure and the path of indices. The path is () for a value that is itself a
pointer. The same type describes a place in a stack variable: the variable, and the path without trailing zeros."""


@final
class Origins:
    """Numbers the roots of a kernel's pointers. Roots in ``numbered`` have the given numbers, other roots get higher
    numbers. A root that is not the address of a known array has the number ``unknown``, -1."""

    unknown = -1

    def __init__(self, function: Function, numbered: Mapping[Value, int]) -> None:
        self._numbers = dict(numbered)
        self._known: dict[Value, tuple[Value, ...]] = {}
        self._chosen: dict[Member, Value] = {}
        self._beside: list[tuple[Instruction, Instruction]] = []
        self._stored: dict[Member, dict[Value, None]] = {}
        for instruction in function.instructions:
            if isinstance(instruction, Store) and instruction.value.type == "ptr":
                slot = _slot(instruction.pointer)
                if slot is not None:
                    self._stored.setdefault(slot, {})[instruction.value] = None

    def roots(self, pointer: Value) -> tuple[Value, ...]:
        """Returns the roots that a pointer is computed from. Their order is deterministic."""
        if pointer not in self._known:
            self._known[pointer] = tuple(self._roots((pointer, ()), set()))
        return self._known[pointer]

    def number(self, root: Value) -> int:
        """Returns the number of a root, or ``unknown``. A new root gets the next number."""
        is_memory = (
            root.symbol
            or isinstance(root, Alloca)
            or called(root).startswith(("oxide.shared.", "oxide.cluster.map", HELD_LOCAL))
        )
        if root not in self._numbers and not is_memory:
            return self.unknown
        return self._numbers.setdefault(root, len(self._numbers))

    def chosen(self, pointer: Value) -> Value:
        """Returns the operand that holds, at run time, the number of the root that a pointer is computed from."""
        return self._choice((pointer, ()))

    def add_choices(self) -> None:
        """Adds the instructions that ``chosen`` refers to. Each ``phi`` or ``select`` of a pointer is followed by
        another ``phi`` or ``select``, which gives the number of the pointer's root."""
        for instruction, choice in self._beside:
            block = instruction.block
            block.insert(block.instructions.index(instruction) + 1, [choice])

    def _roots(self, member: Member, seen: set[Member]) -> dict[Value, None]:
        """Returns the roots of a pointer, as an ordered set. If a pointer in a structure cannot be traced further, the
        structure is the root."""
        if member in seen or member[0].name in _NOTHING:
            return {}
        seen.add(member)
        sources = self._sources(*member)
        if sources is None:
            return {member[0]: None}
        return {root: None for source in sources for root in self._roots(source, seen)}

    def _sources(self, value: Value, path: tuple[int, ...]) -> list[Member] | None:
        """Returns the sources of a pointer, one step back: several sources where paths merge, or None for a root."""
        match value:
            case GetElementPtr(pointer=base):
                return [(base, ())]
            case Extract(whole=whole, path=inside):
                return [(whole, inside + path)]
            case Insert(whole=whole, part=part, path=inserted):
                if path[: len(inserted)] == inserted:
                    return [(part, path[len(inserted) :])]
                return [(whole, path)] if inserted[: len(path)] != path else None
            case Phi():
                return [(each, path) for each, _ in value.incoming]
            case Select(left=left, right=right):
                return [(left, path), (right, path)]
            case Cast(opcode="bitcast" | "addrspacecast") | Operation(opcode="freeze"):
                return [(value.operands[0], path)]
            case Cast(opcode="inttoptr"):
                return [(each, ()) for each in _addresses(value)] or None
            case Load(pointer=pointer, type="ptr", before=""):
                slot = _slot(pointer)
                stored = self._stored.get(slot) if slot else None  # all pointers that are ever stored there
                return [(each, ()) for each in stored] if stored else None
        return None

    def _choice(self, member: Member) -> Value:
        """Returns the number of a pointer's root as an operand."""
        if member in self._chosen:
            return self._chosen[member]
        value, path = member
        roots = list(self._roots(member, set()))
        if len(roots) == 1:
            self._chosen[member] = number(self.number(roots[0]))
        elif roots and isinstance(value, Phi | Select):
            choice = value.copy({}, f"%origin.{len(self._chosen)}")
            choice.type = "i64"
            self._chosen[member] = choice  # set before its operands are computed, as a loop may need it
            choice.operands = [
                self._choice((each, path)) if each.type == value.type else each for each in value.operands
            ]
            self._beside.append((value, choice))
        else:
            # A pointer in memory is one of several at run time, and no instruction chooses among them.
            sources = self._sources(*member) if roots and not isinstance(value, Load) else None
            one = sources[0] if sources is not None and len(sources) == 1 else None
            self._chosen[member] = self._choice(one) if one else number(self.unknown)
        return self._chosen[member]


def _addresses(value: Value) -> list[Value]:
    """Returns the pointers whose addresses are operands of a sum: numba-cuda computes addresses in strided arrays by
    sums."""
    match value:
        case Cast(opcode="ptrtoint", value=pointer):
            return [pointer]
        case Cast(opcode="inttoptr") | Binary(opcode="add"):
            return [address for operand in value.operands for address in _addresses(operand)]
    return []


def _slot(pointer: Value) -> Member | None:
    """Returns the place in a stack variable that a pointer points to, or None."""
    path: tuple[int, ...] = ()
    while isinstance(pointer, GetElementPtr) and pointer.source.startswith(("{", "[")):
        first, *rest = (index.integer for index in pointer.indices)
        if first != 0 or None in rest:
            return None
        path = (*(index for index in rest if index is not None), *path)
        pointer = pointer.pointer
    while path and not path[-1]:
        path = path[:-1]
    return (pointer, path) if isinstance(pointer, Alloca) else None
