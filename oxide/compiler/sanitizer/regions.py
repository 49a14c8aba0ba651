"""The memory regions that a sanitized kernel can access: the memory of its parameters, and its own arrays.

``origins.py`` finds the roots that a pointer is computed from. This module maps a root to its ``Region``.
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
from oxide.compiler.ir.values import Alloca, Call, Constant, Value
from oxide.compiler.signature.signature import Closed, NumbaParameter
from oxide.compiler.signature.untyped_arguments import ArgumentType, ArrayType, RecordType, TupleType
from oxide.driver.sanitizing import PointerWord

from .origins import HELD_LOCAL, Origins
from .sizes import size_of

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
            memory = [(0, 1, parameter.dtype.itemsize, 0)]
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
