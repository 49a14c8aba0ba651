"""The number that an index would be if nothing had wrapped.

Integers of 8 to 32 bits wrap, and an index that wrapped would reach another element without a word. So for an index,
the operations that lead to it are computed once more in 64 bits: ``+ - *``, ``<<``, unary minus, widening, and the
selection of ``min``, ``max``, conditional expressions and branches. Everything else ends the chain: a written
conversion, ``% // ** & | ^ >>``, a load, a function's result, a variable that a loop changes. LLVM drops the narrow
operations if only the index used them.
"""

from __future__ import annotations

import operator
from typing import Any, Final

from llvmlite import ir

from .types import operation_of

_WORD: Final = ir.IntType(64)
_DEEPEST: Final = 200
"""The most operations one inside the other that are computed anew."""


def whole(builder: Any, value: Any, *, signed: bool) -> Any:
    """Returns an integer as a signed 64-bit number, computed in 64 bits from where its chain begins."""
    return _Chain(builder).of(value, signed, 0)


class _Chain:
    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._found: dict[tuple[int, bool, int], Any] = {}
        """What was computed, by the value and the block in which it was computed."""

    def of(self, value: Any, signed: bool, depth: int) -> Any:
        key = id(value), signed, id(self._builder.block)
        if key not in self._found:
            self._found[key] = self._computed(value, signed, depth)
        return self._found[key]

    def _computed(self, value: Any, signed: bool, depth: int) -> Any:
        builder, width = self._builder, value.type.width
        if isinstance(value, ir.Constant):
            number = int(value.constant or 0) % 2**width
            return ir.Constant(_WORD, number - 2**width if signed and number >= 2 ** (width - 1) else number)
        value = _element(value)
        operation = getattr(value, "opname", "")
        if depth < _DEEPEST and _is_computed(value):
            if hasattr(value, _SHIFTED):
                left, count = getattr(value, _SHIFTED)
                return self._again(value, [left], signed, depth, lambda new: builder.shl(new, count))
            if operation in ("add", "sub", "mul"):
                return self._again(value, value.operands, signed, depth, getattr(builder, operation))
            if operation == "select":
                condition, *sides = value.operands
                return self._again(value, sides, signed, depth, lambda one, two: builder.select(condition, one, two))
            if operation == "phi":
                return self._where_branches_meet(value, signed, depth)
            if _is_computed(value.operands[0]):  # a widening
                return self.of(value.operands[0], operation == "sext", depth + 1)
        if width == 64:
            return value
        return builder.sext(value, _WORD) if signed else builder.zext(value, _WORD)

    def _again(self, value: Any, operands: Any, signed: bool, depth: int, operation: Any) -> Any:
        """Returns an operation on operands that are computed anew, or the value if they are the same as before."""
        found = [self.of(each, signed, depth + 1) for each in operands]
        if value.type == _WORD and all(new is old or new == old for new, old in zip(found, operands, strict=True)):
            return value
        return operation(*found)

    def _where_branches_meet(self, value: Any, signed: bool, depth: int) -> Any:
        builder, found = self._builder, []
        here = builder.block
        for each, block in value.oxide_branches:
            _to_end(builder, block)
            found.append((self.of(each, signed, depth + 1), block))
        _to_end(builder, here)
        if value.type == _WORD and all(
            new is old for (new, _), (old, _) in zip(found, value.oxide_branches, strict=True)
        ):
            return value
        builder.position_at_start(value.parent)
        made = builder.phi(_WORD)
        _to_end(builder, here)
        for new, block in found:
            made.add_incoming(new, block)
        return made


def _to_end(builder: Any, block: Any) -> None:
    """Makes a builder emit instructions at the end of a block, before its branch if it has one already."""
    if block.is_terminated:
        builder.position_before(block.terminator)
    else:
        builder.position_at_end(block)


def _element(value: Any) -> Any:
    """Returns the number that was put into a tuple, for the number that is taken out of it."""
    if getattr(value, "opname", "") != "extractvalue":
        return value
    (made,) = value.operands
    while getattr(made, "opname", "") == "insertvalue":
        made, element = made.operands[0], made.operands[1] if made.indices == value.indices else None
        if element is not None:
            return _element(element)
    return value


def _is_computed(value: Any) -> bool:
    """Returns whether an operation of a chain computes a value."""
    operation = getattr(value, "opname", "")
    if operation == "phi":
        return getattr(value, _MEETS, False)
    return operation in _CHAINED or hasattr(value, _SHIFTED)


def branches_meet(phi: Any, branches: list[tuple[Any, Any]]) -> None:
    """Makes a phi, whose values are all known, a selection of a chain."""
    phi.oxide_branches = branches
    setattr(phi, _MEETS, isinstance(phi.type, ir.IntType) and any(_is_computed(_element(each)) for each, _ in branches))


def shifted(value: Any, left: Any, count: Any) -> Any:
    """Marks a value as ``left << count``, with a count of 64 bits."""
    setattr(value, _SHIFTED, (left, count))
    return value


_CHAINED: Final = ("add", "sub", "mul", "select", "zext", "sext")
_SHIFTED: Final = "oxide_shifted"
_MEETS: Final = "oxide_meets"


ASSIGN: Final = "oxide.assign"
"""An assignment to an annotated variable. It ends the chain if it makes the number narrower."""


def goes_on(function: Any) -> bool:
    """Returns whether the chain of an index goes on through an operation."""
    return operation_of(function) in _GOES_ON


_GOES_ON: Final = (
    *(operator.add, operator.sub, operator.mul, operator.lshift, operator.neg, operator.pos),
    *(min, max, ASSIGN),
)


def end_of_chain(builder: Any, value: Any) -> Any:
    """Returns a value at which the chain of an index ends."""
    if not isinstance(value.type, ir.IntType) or not _is_computed(_element(value)):
        return value
    made = ir.CastInstr(builder.block, "bitcast", value, value.type, "")  # LLVM drops it
    builder._insert(made)
    return made
