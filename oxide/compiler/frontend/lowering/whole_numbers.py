"""The number that an index would be if nothing had wrapped.

Integers of 8 to 32 bits wrap, and an index that wrapped would reach another element without a word. So for an index,
the operations that lead to it are computed once more in 64 bits: ``+ - *``, ``<<``, unary minus, widening, and the
selection of ``min``, ``max`` and conditional expressions. Everything else ends the chain: a written conversion,
``% // & | ^ >>``, a load, a function's result. LLVM drops the narrow operations if only the index used them.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.cuda import types

from .registry import lowering_registry, session

_WORD: Final = ir.IntType(64)
_DEEPEST: Final = 200
"""The most operations one inside the other that are computed anew."""


def whole(builder: Any, value: Any, *, signed: bool) -> Any:
    """Returns an integer as a signed 64-bit number, computed in 64 bits from where its chain begins."""
    return _Chain(builder).of(value, signed, 0)


class _Chain:
    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._found: dict[tuple[int, bool], Any] = {}

    def of(self, value: Any, signed: bool, depth: int) -> Any:
        key = id(value), signed
        if key not in self._found:
            self._found[key] = self._computed(value, signed, depth)
        return self._found[key]

    def _computed(self, value: Any, signed: bool, depth: int) -> Any:
        builder, width = self._builder, value.type.width
        if isinstance(value, ir.Constant):
            number = int(value.constant or 0) % 2**width
            return ir.Constant(_WORD, number - 2**width if signed and number >= 2 ** (width - 1) else number)
        operation = getattr(value, "opname", "")
        if depth < _DEEPEST and not getattr(value, _ENDS, False):
            if operation in ("add", "sub", "mul"):
                return self._again(value, value.operands, signed, depth, getattr(builder, operation))
            if operation == "shl" and isinstance(value.operands[1], ir.Constant):
                count = ir.Constant(_WORD, value.operands[1].constant)
                return self._again(value, value.operands[:1], signed, depth, lambda left: builder.shl(left, count))
            if operation == "select" and isinstance(value.type, ir.IntType):
                condition, *sides = value.operands
                return self._again(value, sides, signed, depth, lambda one, two: builder.select(condition, one, two))
            if operation in ("zext", "sext") and _is_computed(value.operands[0]):
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


def _is_computed(value: Any) -> bool:
    return getattr(value, "opname", "") in _CHAINED and not getattr(value, _ENDS, False)


_CHAINED: Final = ("add", "sub", "mul", "shl", "select", "zext", "sext")
_ENDS: Final = "oxide_ends_chain"


@lowering_registry.lower(types.NumberClass, types.Any)
def _lower_conversion(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Lowers a written conversion, such as ``i64(x)``. It ends the chain of an index."""
    (given,) = sig.args
    value = context.cast(builder, args[0], given, sig.return_type)
    integers = isinstance(given, types.Integer) and isinstance(sig.return_type, types.Integer)
    if session().numba_style or not integers or isinstance(value, ir.Constant):
        return value
    if not isinstance(value, ir.CastInstr) or value is args[0]:
        value = _same(builder, value)
    setattr(value, _ENDS, True)
    return value


def _same(builder: Any, value: Any) -> Any:
    """Returns a value as the result of an instruction of its own, which LLVM drops."""
    made = ir.CastInstr(builder.block, "bitcast", value, value.type, "")
    builder._insert(made)
    return made
