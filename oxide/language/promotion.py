"""The types of arithmetic in kernels: NumPy's (NEP 50), with few exceptions. Typed kernels and tile kernels ask here.

Two typed numbers have NumPy's common type, and the result wraps in it. Two kinds of numbers have no type of their own
(*weak*):

- A Python number, which is a literal, or a variable that holds one (*open*). It takes the type of the typed number
  that it meets. A literal must fit in that type.
- A *place*, such as an index, a length, or the variable of a ``range``. To typed integers it is an ``i64``, and to
  floats a Python integer, so that ``dx * column`` is an f32 if ``dx`` is.

Among themselves weak integers are computed in 64 bits, and weak floats as f64. Exceptions from NumPy: a ``u64`` with a
signed integer is refused, except in comparisons, which compare the numbers; a shift has the type of its left operand,
and a power of integers that of its base; narrow floats keep their type with integers; arithmetic of bools is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from .types import OF_PYTHON, SCALARS, ScalarType, of_dtype

_BOOL, _I64, _F64 = (OF_PYTHON[kind] for kind in (bool, int, float))
_U64, _F32 = SCALARS["u64"], SCALARS["f32"]


class Place(int):
    """The kind of a weak integer that is a place."""


@final
@dataclass(frozen=True, slots=True)
class Operand:
    """What is known about the type of an operand or a result."""

    scalar: ScalarType
    weak: type | None = None
    """For a number without a type of its own: ``bool``, ``int``, ``float`` or ``Place``."""
    value: int | None = None
    """The value of a literal integer."""

    @property
    def is_whole(self) -> bool:
        """Returns whether the operand is an integer or a bool."""
        return self.scalar.kind in "iub"

    @property
    def is_bool(self) -> bool:
        """Returns whether the operand is a bool."""
        return self.scalar.kind == "b"

    @property
    def is_typed(self) -> bool:
        """Returns whether the operand is a number with a type of its own, and no bool."""
        return self.weak is None and not self.is_bool

    @property
    def shown(self) -> str:
        """Returns the operand as an error shows it."""
        return self.scalar.name if self.value is None else str(self.value)


def literal(value: int) -> Operand:
    """Returns the operand of an integer literal."""
    return Operand(_I64 if value < 2**63 else _U64, int, value)


class Refused(Exception):
    """Raised for operands that an operation does not take together. The message is the reason in words."""


BITWISE: Final = ("&", "|", "^")
SHIFTS: Final = ("<<", ">>")
_EXTREMES: Final = ("min", "max", "minimum", "maximum")
_NARROW: Final = 16
"""The bits of integers that are too few to count in."""
_RANK: Final = {"b": 0, "i": 1, "u": 1, "f": 2}


def common(first: ScalarType, second: ScalarType) -> ScalarType | None:
    """Returns NumPy's common type of two integer types. Returns None for ``u64`` and a signed integer."""
    if first.kind == second.kind:
        return first if first.bits >= second.bits else second
    signed, unsigned = (first, second) if first.kind == "i" else (second, first)
    return None if unsigned is _U64 else SCALARS[f"i{max(signed.bits, 2 * unsigned.bits)}"]


def fits(value: int, scalar: ScalarType) -> bool:
    """Returns whether an integer type holds a number."""
    low, high = scalar.limits
    return low <= value <= high


# Operations


def unary(operation: str, operand: Operand) -> Operand:
    """Returns the type of ``-x``, ``+x``, ``~x`` or ``abs(x)``. Raises ``Refused`` for bools, except for ``~``."""
    if operand.is_bool and operation != "~":
        _refuse_bools(operation)
    return Operand(operand.scalar, operand.weak)


def binary(operation: str, operands: Sequence[Operand]) -> Operand:
    """Returns the type of an operator, or of ``min``, ``max`` and their like, which take any number of operands. Raises
    ``Refused`` for operands that it does not take together."""
    if not all(each.is_whole for each in operands):
        return together(operation, operands)
    if operation == "/":
        weak = all(each.weak is not None and not each.is_bool for each in operands)
        return Operand(_F64, float if weak else None)
    if operation in (*SHIFTS, "**"):
        return _by_the_left(operation, *operands)
    if all(each.is_bool for each in operands) and operation not in (*BITWISE, *_EXTREMES):
        _refuse_bools(operation)
    return together(operation, operands)


def together(operation: str, operands: Sequence[Operand]) -> Operand:
    """Returns the common type of numbers. Raises ``Refused`` if there is none, or if a literal does not fit in it."""
    if all(each.is_whole for each in operands):
        return _of_integers(operation, operands)
    typed = [each.scalar for each in operands if each.weak is None]
    floats = {each for each in typed if each.kind == "f"}
    if not floats:
        return Operand(_F64, None if typed else float)
    if all(each.precision for each in floats):
        return Operand(floats.pop() if len(floats) == 1 else _F32)
    wide = of_dtype(np.result_type(*[each.dtype for each in typed if not each.precision]))
    assert wide is not None
    return Operand(wide)


def _of_integers(operation: str, operands: Sequence[Operand]) -> Operand:
    typed = [each.scalar for each in operands if each.is_typed]
    places = any(each.weak is Place for each in operands)
    bools = [each for each in operands if each.is_bool]
    if len(bools) == len(operands):
        return Operand(_BOOL, bool if all(each.weak for each in bools) else None)
    if not typed and not any(each.weak is None for each in bools):
        return Operand(_I64, Place if places else int)
    if places or not typed:
        typed.append(_I64)
    found = typed[0]
    for scalar in typed[1:]:
        both = common(found, scalar)
        if both is None:
            shown = _written(operation, [each.scalar.name for each in operands])
            raise Refused(f"{shown}: no integer type holds both; convert one, as in i64(x) or u64(x)")
        found = both
    _require_fit(operation, operands, found)
    return Operand(found)


def _by_the_left(operation: str, left: Operand, right: Operand) -> Operand:
    """Types a shift or a power of integers: it has the type of its left operand. A Python number there takes the type
    of a typed right operand."""
    if left.is_bool and right.is_bool:
        _refuse_bools(operation)
    if left.is_bool:
        return Operand(_I64)
    if left.weak is int and right.is_typed:
        _require_fit(operation, (left, right), right.scalar)
        return Operand(right.scalar)
    if left.value is not None:
        return Operand(_I64, Place if right.weak is Place else int)
    return Operand(left.scalar, left.weak)


def compared(first: Operand, second: Operand) -> tuple[ScalarType, ScalarType]:
    """Returns the types in which two integers or bools are compared, each in its own. A comparison compares the
    numbers. The two types are equal unless one is ``u64`` and the other ``i64``."""
    if first.is_bool and second.is_bool:
        return _BOOL, _BOOL
    one, two = (_I64 if each.is_bool else each.scalar for each in (first, second))
    if first.value is not None and fits(first.value, two):
        return two, two
    if second.value is not None and fits(second.value, one):
        return one, one
    wide = common(one, two)
    if wide is not None:
        return wide, wide
    return (_U64, _I64) if one.kind == "u" else (_I64, _U64)


def _refuse_bools(operation: str) -> None:
    raise Refused(f"{operation} of bools: write &, | or ^ for logic, or convert to count, as in i32(x)")


def _require_fit(operation: str, operands: Sequence[Operand], scalar: ScalarType) -> None:
    """Refuses literals that do not fit in the type that they take."""
    for value in (each.value for each in operands):
        if value is not None and not fits(value, scalar):
            shown = _written(operation, [each.shown for each in operands])
            low, high = scalar.limits
            raise Refused(
                f"{shown}: {value} does not fit in {scalar.name}, which holds {low} to {high}; convert the other "
                f"operand to a wider type, or write {scalar.name}({value}), which wraps"
            )


def _written(operation: str, operands: Sequence[str]) -> str:
    return f"{operation}({', '.join(operands)})" if operation.isidentifier() else f" {operation} ".join(operands)


# Variables, stores and arguments


def assigned(operands: Sequence[Operand]) -> Operand | None:
    """Returns the type of a variable to which several numbers are assigned. Returns None if these have two types. To
    typed numbers a place is an ``i64``."""
    if any(each.weak is None for each in operands):
        operands = [Operand(_I64) if each.weak is Place else each for each in operands]
    typed = {each.scalar for each in operands if each.weak is None}
    if len(typed) > 1:
        return None
    if not typed:
        widest = max((each.weak for each in operands if each.weak), key=(bool, int, Place, float).index)
        return Operand(_I64 if widest is Place else OF_PYTHON[widest], widest)
    (scalar,) = typed
    fits_in = all(_RANK[each.scalar.kind] <= _RANK[scalar.kind] for each in operands)
    return Operand(scalar) if fits_in else None


def two_types(name: str, one: ScalarType, line: int, two: ScalarType, other_line: int) -> str:
    """Returns the problem of a variable with two types, each with the line of an assignment."""
    return (
        f"{name} is {one.name} in line {line} and {two.name} in line {other_line}, and both reach what follows: a "
        f"variable has one type; convert one, or annotate it, as in {name}: {two.name} = …"
    )


def narrow_sum(name: str, scalar: ScalarType) -> str | None:
    """Returns the problem of a sum that begins as an integer literal and takes a type. Returns None if the type is
    wide enough to count in."""
    if scalar.kind not in "iu" or scalar.bits > _NARROW:
        return None
    return (
        f"{name} begins as an integer literal and takes the type {scalar.name}, in which a sum soon wraps: write "
        f"{name}: i32 = …, or {name}: {scalar.name} = … where that is meant"
    )


def stored(target: ScalarType, value: Operand) -> str | None:
    """Returns the reason why a number may not be stored as the type ``target``. Returns None if it may be stored.

    A float may not be stored as an integer, because it would lose its fraction. A literal that does not fit may not be
    stored either. Integers that are computed at run time are stored as NumPy's ``same_kind`` allows: they are narrowed,
    and wrap, but a signed integer is not stored as an unsigned one.
    """
    if value.scalar.kind == "i" and target.kind == "u" and value.weak is None:
        return f"the value is {value.scalar.name}, which may be negative; convert it, as in {target.name}(x)"
    return annotated(target, value)


def annotated(target: ScalarType, value: Operand) -> str | None:
    """Does what ``stored`` does for an assignment to a variable that is annotated as ``target``. The annotation is the
    author's word that a signed integer may become an unsigned one."""
    name, given = target.name, value.scalar
    if given.kind == "c" and target.kind != "c":
        return f"the value is {given.name}; take its .real or abs(...) of it"
    if given.kind == "f" and target.kind in "iub":
        return f"the value is {given.name}; convert it, as in {name}(x)"
    if value.value is not None and target.kind in "iu" and not fits(value.value, target):
        low, high = target.limits
        return (
            f"the value is {value.value}, which does not fit; {name} holds {low} to {high}, and {name}({value.value}) "
            "wraps"
        )
    return None


def narrows(target: ScalarType, value: Operand) -> bool:
    """Returns whether an integer type does not hold all numbers that a value may have. A literal was checked, and a
    place is never negative."""
    if target.kind not in "iu" or value.scalar.kind not in "iu" or value.value is not None:
        return False
    low, high = target.limits
    least, greatest = value.scalar.limits
    return (0 if value.weak is Place else least) < low or greatest > high
