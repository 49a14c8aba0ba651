"""Scalar types: maps ``ScalarType`` objects to numba's types; the types of Python numbers and places."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.typeof import typeof_impl

from oxide.language.types import SCALARS, ScalarType

from .operators import COMPARISONS


class HalfType(types.Number):  # type: ignore[misc]
    """The type of a narrow float. numba's own float16 needs a CUDA C++ library."""

    def __init__(self, scalar: ScalarType) -> None:
        super().__init__(scalar.name)
        self.bitwidth = scalar.bits


class OpenFloat(types.Float):  # type: ignore[misc]
    """The type of a Python float: an f64 that takes the type of the first typed float that it meets."""

    def __init__(self) -> None:
        types.Number.__init__(self, "open_float")
        self.bitwidth = 64

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.promote if isinstance(other, types.Float | types.Complex | HalfType) else None


OPEN = OpenFloat()


class WeakInteger(types.Integer):  # type: ignore[misc]
    """An integer of 64 bits without a type of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name, bitwidth=64, signed=True)

    def can_convert_to(self, context: Any, other: Any) -> Any:
        if isinstance(other, types.Integer):
            return Conversion.promote if other.bitwidth == 64 else Conversion.unsafe
        return Conversion.unsafe if isinstance(other, types.Number | types.Boolean) else None


class OpenInteger(WeakInteger):
    """The type of a variable that holds a Python integer."""


class Place(WeakInteger):
    """The type of an index of a thread, a length, or the variable of a ``range``."""


OPEN_INTEGER = OpenInteger("open_integer")
PLACE = Place("place")


NUMBA_TYPES: dict[str, Any] = {
    name: HalfType(scalar) if scalar.precision else getattr(types, {"b": "boolean"}.get(scalar.kind, scalar.dtype_name))
    for name, scalar in SCALARS.items()
}

NAMES = {kind: name for name, kind in NUMBA_TYPES.items()} | {OPEN: "f64", OPEN_INTEGER: "i64", PLACE: "i64"}


@typeof_impl.register(ScalarType)
def _type_of_scalar_type(value: ScalarType, context: Any) -> Any:
    return types.NumberClass(NUMBA_TYPES[value.name])


def is_mixed_comparison(function: Any, kinds: tuple[Any, ...]) -> bool:
    """Returns whether an operator is a comparison that ``lower_mixed_comparison`` must lower."""
    return function in COMPARISONS and _is_mixed([types.unliteral(kind) for kind in kinds])


def lower_mixed_comparison(builder: Any, function: Any, kinds: tuple[Any, ...], left: Any, right: Any) -> Any:
    """Lowers the comparison of an i64 and a u64. A negative i64 is less than every u64, and any other i64 is compared
    as a u64."""
    number = 0 if kinds[0].signed else 1
    signed = (left, right)[number]
    negative = builder.icmp_signed("<", signed, ir.Constant(signed.type, 0))
    if_negative = function(-1, 0) if number == 0 else function(0, -1)
    otherwise = builder.icmp_unsigned(COMPARISONS[function], left, right)
    return builder.select(negative, ir.Constant(otherwise.type, int(if_negative)), otherwise)


def _is_mixed(kinds: list[Any]) -> bool:
    integers = all(isinstance(kind, types.Integer) for kind in kinds)
    return integers and types.uint64 in kinds and any(kind.signed for kind in kinds)


def conversion_problem(target: Any, value: Any) -> str | None:
    """Returns the reason why a value of type ``value`` may not be stored as the scalar type ``target``. Returns None if
    it may be stored.

    A float may not be stored as an integer, because it would lose its fraction. A constant outside the range of an
    integer type may not be stored either. Integers that are computed at run time are stored as NumPy's ``same_kind``
    allows: they are narrowed, and wrap, but a signed integer is not stored as an unsigned one.
    """
    name, plain = display(target), types.unliteral(value)
    if not isinstance(plain, types.Number | types.Boolean):
        advice = "; give it a number on every path" if isinstance(plain, types.Optional) else ""
        return f"the value is {display(value)}{advice}"
    if isinstance(plain, types.Complex) and not isinstance(target, types.Complex):
        return f"the value is {display(value)}; take its .real or abs(...) of it"
    if isinstance(plain, types.Float | HalfType) and not isinstance(target, types.Float | types.Complex | HalfType):
        return f"the value is {display(value)}; convert it, as in {name}(x)"
    if isinstance(value, types.IntegerLiteral) and isinstance(target, types.Integer):
        number = int(value.literal_value)
        if not int(target.minval) <= number <= int(target.maxval):
            return (
                f"the value is {number}, which does not fit; {name} holds {target.minval} to {target.maxval}, and "
                f"{name}({number}) wraps"
            )
    if isinstance(plain, types.Integer) and isinstance(target, types.Integer) and not isinstance(plain, WeakInteger):
        if plain.signed and not target.signed and plain is value:
            return f"the value is {display(value)}, which may be negative; convert it, as in {name}(x)"
    return None


def display(numba_type: Any) -> str:
    """Returns the name of a type as a kernel's author writes it."""
    plain = types.unliteral(numba_type)
    if plain in NAMES:
        return NAMES[plain]
    if isinstance(plain, types.Optional):
        return f"{display(plain.type)} or None"
    if isinstance(plain, types.NoneType):
        return "None"
    if isinstance(plain, types.BaseNamedTuple):
        return str(plain.instance_class.__name__)
    if isinstance(plain, types.BaseTuple):
        return f"tuple[{', '.join(map(display, plain))}]"
    shown = str(plain).removesuffix(" of index_2d")
    return shown[len("class(") : -1] if shown.startswith("class(") else shown
