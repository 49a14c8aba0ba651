"""The memory regions that a sanitized kernel can access: the memory of its parameters, and its own arrays.

A pointer is traced back, through the instructions that build and take apart structures, to its *roots*: the values that
cannot be traced further. A root belongs to a ``Region``. A pointer has several roots where paths merge:
``v = a if c else b``, or a loop over the arrays of a tuple. Then the kernel computes the number of the root at run
time, with an additional ``phi`` or ``select`` next to the ``phi`` or ``select`` of the pointer.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from typing import final

from oxide.compiler.cpu import primitives
from oxide.compiler.ir.module import Function, Module
from oxide.compiler.ir.parameters import word_types
from oxide.compiler.ir.parser import constants
from oxide.compiler.ir.primitives import SharedMemory
from oxide.compiler.ir.recognise import called
from oxide.compiler.ir.values import (
    Alloca,
    Binary,
    Call,
    Cast,
    Constant,
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
    split_list,
)
from oxide.compiler.signature.signature import Closed, NumbaParameter
from oxide.compiler.signature.untyped_arguments import ArgumentType, ArrayType, RecordType, TupleType
from oxide.driver.sanitizing import PointerWord

# Roots

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


# Regions

REGION_KINDS = ("device", "shared", "local", "constant", "stack", "remote")
"""The kinds of memory that an access may go to. ``oxide.sanitize.chosen`` takes an index into this tuple. The function
checks nothing for the last two kinds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """A piece of memory that a pointer points into: a parameter's ``view``, or an ``array`` of ``bytes`` bytes.
    ``bytes`` is None for dynamic shared memory. For a shared array, ``array`` is the function that returns its address.
    For an array of another block, ``array`` is the call that maps this block's array to the other block."""

    kind: str
    what: str
    array: Value | None = None
    bytes: int | None = None
    offset: int = 0
    view: int = -1


UNKNOWN = Region("device", "memory")


@final
class Regions:
    """The regions of one kernel. ``views`` maps each value that points to a parameter's memory to the view's number.
    ``names`` are the names of these parameters."""

    def __init__(
        self,
        module: Module,
        function: Function,
        views: Mapping[Value, int],
        names: Sequence[str],
        shared: SharedMemory,
        origins: Origins,
    ) -> None:
        self._names = names
        self._views = views
        self._shared = shared
        self._origins = origins
        self._arrays: dict[Value, Region] = {}
        for constant, content in constants(module).items():
            address = (
                constant if constant.type == "ptr" else Constant(f"addrspacecast ({constant.typed} to ptr)", "ptr")
            )
            self._arrays[constant] = Region("constant", "a constant array", address, size_of(content))
        for call in function.calls:
            if call.called == HELD_LOCAL:
                self._arrays[call] = Region("local", "a LocalArray", call, call.arguments[0].integer)
        self.others = self._arrays_but_parameters(function)

    def reached(self, pointer: Value) -> dict[int, Region]:
        """Returns the regions that a pointer may point to, keyed by their numbers in ``Origins``."""
        return {self._origins.number(root): self.of(root) for root in self._origins.roots(pointer)}

    def of(self, root: Value) -> Region:
        """Returns the region that a pointer's root belongs to."""
        if root in self._views:
            return Region("device", self._names[self._views[root]], view=self._views[root])
        if root in self._arrays:
            return self._arrays[root]
        if isinstance(root, Call):
            match root.called.split("."):
                case "oxide", "shared", "static", place:
                    offset, length, _ = self._shared.arrays[int(place)]
                    return Region("shared", "a SharedArray", root.callee, length, offset)
                case "oxide", "shared", "dynamic":
                    offset = primitives.static_bytes(self._shared)
                    return Region("shared", "a DynamicSharedArray", root.callee, None, offset)
                case "oxide", "cluster", "map":
                    return Region("remote", "another block's array", root, 0)
        return Region("stack", "") if root.symbol or isinstance(root, Alloca) else UNKNOWN

    def _arrays_but_parameters(self, function: Function) -> list[Region] | None:
        """Returns the regions, other than parameters, that an unknown address may be in. Returns None if the place of
        one of them is not fixed."""
        found = list(self._arrays.values())
        for instruction in function.instructions:
            if isinstance(instruction, Alloca):
                count = instruction.operands[0].integer if instruction.operands else 1
                if instruction.block is not function.entry or count is None:
                    return None  # such as numba's variables for tuples of several types
                found.append(Region("stack", "", instruction, size_of(instruction.allocated) * count))
            elif called(instruction) == "oxide.cluster.map":
                return None
            elif called(instruction).startswith("oxide.shared.") and instruction.type == "ptr":
                found.append(self.of(instruction))
        return list(dict.fromkeys(found))


def pointers_of(signature: tuple[Closed, ...]) -> tuple[tuple[PointerWord, ...], dict[int, int]]:
    """Returns the *views*: the pieces of memory that the parameters point to. Also returns, for each of the kernel's
    words that is an address, the index of the view that the word points to."""
    found: list[PointerWord] = []
    views: dict[int, int] = {}
    layout, words = "@", 0
    for parameter in signature:
        kinds = word_types((parameter,))
        memory: list[tuple[int, int | None, int, int]] = []
        lengths = 1
        if isinstance(parameter, NumbaParameter):
            memory = _memory(parameter.type)
        elif kinds[:1] == ["ptr"]:
            memory = [(0, 1, parameter.components * parameter.dtype.itemsize, 0)]
            lengths = parameter.ndim
        for address, length, itemsize, ndim in memory:
            views[words + address] = len(found)
            axes = address - ArrayType.ADDRESS + ArrayType.AXES
            found.append(
                PointerWord(
                    parameter.name,
                    _place_of(layout, parameter.struct_format, address),
                    None if length is None else _place_of(layout, parameter.struct_format, length),
                    itemsize,
                    ndim,
                    _place_of(layout, parameter.struct_format, axes) if ndim else 0,
                    lengths=lengths,
                )
            )
        layout += parameter.struct_format
        words += len(kinds)
    return tuple(found), views


def _memory(kind: ArgumentType, before: int = 0) -> list[tuple[int, int | None, int, int]]:
    """Returns four numbers for each array or record in an argument with numba-cuda's semantics: the index of the word
    with the address, the index of the word with the number of elements (None for a record), an element's size in bytes,
    and the number of axes of a strided view (0 for any other array). ``before`` is the index of the argument's first
    word."""
    match kind:
        case ArrayType(dtype, ndim, strided):
            return [(before + ArrayType.ADDRESS, before + ArrayType.SIZE, dtype.itemsize, ndim if strided else 0)]
        case RecordType(dtype):
            return [(before, None, dtype.itemsize, 0)]
        case TupleType(elements, _):
            found = []
            for element in elements:
                found += _memory(element, before)
                before += len(element.words)
            return found
        case _:
            return []


def _place_of(before: str, words: str, number: int) -> int:
    """Returns the offset of a parameter's word in the packed parameters. The parameter has the format ``words``, and
    its word ``number`` has eight bytes. ``before`` is the format of the parameters before it."""
    return struct.calcsize(before + words[: number + 1]) - 8


# Sizes of types in memory

_SIZES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}


def size_of(kind: str) -> int:
    """Returns the size in bytes of a type in memory. Structures have natural alignment."""
    if kind in _SIZES:
        return _SIZES[kind]
    if kind.startswith("i"):
        return -(-int(kind[1:]) // 8)
    if not kind.startswith(("{", "<{")):
        count, _, element = kind[1:-1].partition(" x ")
        return int(count) * size_of(element)
    packed = kind.startswith("<")
    end = 0
    for part in _members(kind):
        alignment = 1 if packed else _alignment(part)
        end = -(-end // alignment) * alignment + size_of(part)
    return end if packed else -(-end // _alignment(kind)) * _alignment(kind)


def _alignment(kind: str) -> int:
    if kind.startswith("["):
        return _alignment(kind[1:-1].partition(" x ")[2])
    if kind.startswith("{"):
        return max(map(_alignment, _members(kind)), default=1)
    return 1 if kind.startswith("<{") else min(16 if kind.startswith("<") else 8, size_of(kind))


def _members(kind: str) -> list[str]:
    """Returns the types of a structure's members; none for ``{}``, which stands for a function."""
    return split_list(kind.strip("<>").removeprefix("{").removesuffix("}"))
