"""The memory regions that a sanitized kernel can reach: the memory of its parameters, and its own arrays.

Each piece is a ``Region``. ``origins.py`` finds the roots that a pointer is computed from; this module maps a root to
its region.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Sequence
from typing import final

from oxide.compiler.cpu import primitives
from oxide.compiler.ir.parameters import word_types
from oxide.compiler.ir.primitives import SharedMemory
from oxide.compiler.ir.ssa import LABEL, WORD
from oxide.compiler.signature.signature import Closed, NumbaParameter
from oxide.compiler.signature.untyped_arguments import ArgumentType, ArrayType, RecordType, TupleType
from oxide.driver.sanitizing import PointerWord

from .origins import NAME, Origins
from .types import TYPE, size_of

REGION_KINDS = ("device", "shared", "local", "constant", "stack")
"""Kinds of memory that an access may go to; ``oxide.sanitize.chosen`` takes an index into this tuple."""

HELD_LOCAL = re.compile(
    rf"^  (?P<name>{NAME}) = call ptr @oxide\.held\.local\(i64 (?P<bytes>\d+), i64 (?P<align>\d+)\)"
)
"""A local array, which is a call while the kernel is simplified."""


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """A piece of memory that a pointer comes from: a parameter's ``view``, or an ``array`` of ``bytes`` bytes.
    ``array`` is an operand, or the call that returns it."""

    kind: str
    what: str
    array: str = ""
    bytes: str = ""
    offset: int = 0
    view: int = -1


UNKNOWN = Region("device", "memory")


@final
class Regions:
    """The regions of one kernel. ``views`` maps the value that points to a parameter's memory to the view's number;
    ``names`` are the names of these parameters."""

    def __init__(
        self,
        head: list[str],
        body: list[str],
        views: dict[str, int],
        names: Sequence[str],
        shared: SharedMemory,
        origins: Origins,
    ) -> None:
        self._views = views
        self._names = names
        self._shared = shared
        self._origins = origins
        self._constants = _constants(head)
        self._local_bytes = {match["name"]: int(match["bytes"]) for line in body if (match := HELD_LOCAL.match(line))}
        self.others = self._arrays_but_parameters(body)

    def reached(self, pointer: str) -> dict[int, Region]:
        """Returns the regions that a pointer may go to, keyed by the numbers that ``Origins`` gives them."""
        return {self._origins.number(root): self.of(root) for root in self._origins.roots(pointer)}

    def is_local(self, pointer: str) -> bool:
        """Returns whether a pointer is the beginning of a local array."""
        return pointer in self._local_bytes

    def of(self, root: str) -> Region:
        """Returns the region that a pointer's root belongs to."""
        definition = self._origins.definition(root)
        if root in self._views:
            return Region("device", self._names[self._views[root]], view=self._views[root])
        if root in self._local_bytes:
            return Region("local", "a LocalArray", root, str(self._local_bytes[root]))
        if static := re.search(r"@oxide\.shared\.static\.(\d+)\(", definition):
            offset, length, _ = self._shared.arrays[int(static[1])]
            return Region("shared", "a SharedArray", _METADATA.sub("", definition), str(length), offset)
        if "@oxide.shared.dynamic(" in definition:
            offset = primitives.static_bytes(self._shared)
            return Region("shared", "a DynamicSharedArray", _METADATA.sub("", definition), "", offset)
        if root in self._constants:
            return Region("constant", "a constant array", *self._constants[root])
        return Region("stack", "") if root.startswith("@") or definition.startswith("alloca ") else UNKNOWN

    def _arrays_but_parameters(self, body: list[str]) -> list[Region] | None:
        """Returns the regions that an unknown address may be in, but for parameters; None if one has no fixed place."""
        found = [self.of(name) for name in (*self._constants, *self._local_bytes)]
        blocks = 0
        for line in body:
            blocks += bool(LABEL.match(line))
            if match := _ALLOCA.match(line):
                if blocks > 1:
                    return None  # as for numba's tuples of several types
                found.append(Region("stack", "", match["name"], str(size_of(match["type"]) * int(match["count"] or 1))))
            elif match := _SHARED.match(line):
                found.append(self.of(match["name"]))
        return list({(region.array, region.bytes): region for region in found}.values())


def pointers_of(signature: tuple[Closed, ...]) -> tuple[tuple[PointerWord, ...], dict[int, int]]:
    """Returns the memory of the parameters, and the view that each of the kernel's address words points to."""
    found: list[PointerWord] = []
    views: dict[int, int] = {}
    layout, words = "@", 0
    for parameter in signature:
        kinds = word_types((parameter,))
        memory: list[tuple[int, int | None, int, int]] = []
        if isinstance(parameter, NumbaParameter):
            memory = _memory(parameter.type)
        elif kinds == ["ptr", "i64"]:
            memory = [(0, 1, parameter.dtype.itemsize, 0)]
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
                )
            )
        layout += parameter.struct_format
        words += len(kinds)
    return tuple(found), views


def _memory(kind: ArgumentType, before: int = 0) -> list[tuple[int, int | None, int, int]]:
    """Returns the arrays and records of an argument with numba-cuda's semantics, which begins with word ``before``: the
    word of the address, the word of the number of elements, an element's bytes, and the axes of a strided view."""
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
    """Returns the offset of an eight-byte word among the packed parameters, behind those of format ``before``."""
    return struct.calcsize(before + words[: number + 1]) - 8


def _constants(head: list[str]) -> dict[str, tuple[str, str]]:
    """Returns the module's constant arrays: each one's address as an operand, and its bytes."""
    found = {}
    for line in head:
        if match := _GLOBAL.match(line):
            name, space = match["name"], match["space"]
            operand = f"addrspacecast (ptr {space}{name} to ptr)" if space else name
            found[name] = operand, str(size_of(match["type"]))
    return found


_ALLOCA = re.compile(rf"^  (?P<name>{NAME}) = alloca (?P<type>{TYPE})(?:, i\d+ (?P<count>\d+))?, align")
_SHARED = re.compile(rf"^  (?P<name>{NAME}) = call ptr @oxide\.shared\.(?:static\.\d+|dynamic)\(")
_METADATA = re.compile(r", ![^\n]*$")
_GLOBAL = re.compile(rf"^(?P<name>@{WORD}) = (?:\w+ )*?(?P<space>addrspace\(\d+\) )?constant (?P<type>{TYPE}) ")
