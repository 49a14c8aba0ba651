"""Types of numbers and of arguments as numba has them, and Python's operators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.typeof import typeof_impl

from oxide.compiler.signature.untyped_arguments import (
    ArgumentType,
    ArrayType,
    EnumType,
    NoneType,
    NumberType,
    RecordType,
    TupleType,
    of_box,
)
from oxide.errors import CompileError
from oxide.language import promotion
from oxide.language.promotion import Operand
from oxide.language.structures import NoStructure, StructureType, is_named_tuple, structure_of
from oxide.language.types import SCALARS, ScalarType, of_dtype
from oxide.language.vectors import Vector, VectorType


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


class ComponentsType(types.NamedUniTuple):  # type: ignore[misc]
    """The type of a vector. ``dtype`` is the type of its components."""

    def __init__(self, dtype: Any, made_of: type[Vector[Any]]) -> None:
        super().__init__(types.unliteral(dtype), len(made_of._fields), made_of)
        self.name = f"{made_of.__name__}[{display(self.dtype)}]"

    def of(self, dtype: Any) -> ComponentsType:
        """Returns the type of a vector of equal length with components of another type."""
        return ComponentsType(dtype, self.instance_class)

    def unify(self, context: Any, other: Any) -> Any:
        if not (isinstance(other, ComponentsType) and other.count == self.count):
            return None
        dtype = context.unify_pairs(self.dtype, other.dtype)
        return None if dtype is None else self.of(dtype)

    def can_convert_to(self, context: Any, other: Any) -> Any:
        if not (isinstance(other, ComponentsType) and other.count == self.count):
            return None
        return context.can_convert(self.dtype, other.dtype)

    def __unliteral__(self) -> Any:
        return self


class OfElements:
    """The base of types whose names contain the type of their elements. numba keeps types by ``key``, which has the
    type, too: the classes of two structures may have one name."""

    name: str
    dtype: Any

    @property
    def key(self) -> Any:
        return self.name, self.dtype


class StructuredType(types.NamedTuple):  # type: ignore[misc]
    """The type of a structure: numba's named tuple, whose fields have the types that the class declares."""

    def __init__(self, structure: StructureType) -> None:
        super().__init__([composite_of(kind) for kind in structure.kinds], structure.made_of)
        self.structure = structure
        self.name = structure.name

    def __unliteral__(self) -> Any:
        return self


NUMBA_TYPES: dict[str, Any] = {
    name: HalfType(scalar) if scalar.precision else getattr(types, {"b": "boolean"}.get(scalar.kind, scalar.dtype_name))
    for name, scalar in SCALARS.items()
}

NAMES = {kind: name for name, kind in NUMBA_TYPES.items()} | {OPEN: "f64", OPEN_INTEGER: "i64", PLACE: "i64"}


def makes_vector(function: Any) -> bool:
    """Returns whether a called function is ``Vec2``, ``Vec3`` or ``Vec4``, whose arguments keep their open types."""
    made = getattr(function, "typing_key", None)
    return isinstance(made, type) and issubclass(made, Vector)


def composite_of(scalar: Any) -> Any:
    """Returns the type of a value of an annotation's type: of a scalar, a vector or a structure."""
    if isinstance(scalar, StructureType):
        return StructuredType(scalar)
    if isinstance(scalar, VectorType):
        return ComponentsType(NUMBA_TYPES[scalar.scalar.name], scalar.made_of)
    return NUMBA_TYPES[scalar.name]


def structured(made_of: Any) -> StructuredType | None:
    """Returns the type of a NamedTuple class's values. Returns None for any other object, and for a class that is no
    structure."""
    if not is_named_tuple(made_of):
        return None
    try:
        return StructuredType(structure_of(made_of))
    except NoStructure:
        return None


@typeof_impl.register(ScalarType)
def _type_of_scalar_type(value: ScalarType, context: Any) -> Any:
    return types.NumberClass(NUMBA_TYPES[value.name])


# Types of unannotated arguments


def numba_type(kind: ArgumentType) -> Any:
    """Returns numba's type for an argument type. Raises ``CompileError`` for a dtype that numba does not know."""
    match kind:
        case NumberType(dtype):
            return _of_dtype(dtype)
        case ArrayType(dtype, ndim, strided):
            return types.Array(_of_dtype(dtype), ndim, "A" if strided else "C")
        case RecordType(dtype):
            return _of_dtype(dtype)
        case TupleType(elements, made_of):
            return types.BaseTuple.from_types([numba_type(element) for element in elements], made_of)
        case NoneType():
            return types.none
        case EnumType(made_of, value):
            integer = issubclass(made_of, int)
            return (types.IntEnumMember if integer else types.EnumMember)(made_of, numba_type(value))


def argument_type(kind: Any) -> ArgumentType:
    """Returns the argument type for numba's type. Raises ``CompileError`` for a type that a launch cannot pass."""
    if isinstance(kind, types.Array):
        return ArrayType(_dtype(kind.dtype), kind.ndim)
    if isinstance(kind, types.Record):
        return of_box(_dtype(kind), 0)
    if isinstance(kind, types.BaseTuple):
        made_of = getattr(kind, "instance_class", tuple)
        return TupleType(tuple(argument_type(element) for element in kind), made_of)
    if isinstance(kind, types.EnumMember):
        return EnumType(kind.instance_class, argument_type(kind.dtype))
    return NoneType() if kind == types.none else NumberType(_dtype(kind))


def _dtype(kind: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(numpy_support.as_dtype(kind))
        return found
    except Exception:
        raise CompileError(f"an argument of numba's type {kind} cannot be passed to a kernel") from None


def _of_dtype(dtype: np.dtype[Any]) -> Any:
    scalar = of_dtype(dtype)
    if scalar is not None and scalar.numpys is None:  # numba's own type for this dtype needs a CUDA C++ library
        raise CompileError(
            f"kernels cannot use the dtype {dtype} for a parameter without an annotation; annotate the "
            f"parameters, this one as in Slice[{scalar.name}]"
        )
    try:
        return numpy_support.from_dtype(dtype)
    except Exception as error:
        raise CompileError(f"kernels cannot use the dtype {dtype}: {error}") from None


# Python's operators, as the rules of types name them. An operator in place, ``+=``, has the types and the code of the
# plain one.

ARITHMETIC = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
)  # fmt: skip
COMPARISONS = {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}
_BITWISE = (operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor)
_IN_PLACE = {each: getattr(operator, f"i{each.__name__.rstrip('_')}") for each in (*ARITHMETIC, *_BITWISE)}
_PLAIN = {in_place: plain for plain, in_place in _IN_PLACE.items()}


def operation_of(function: Any) -> Any:
    """Returns the operation of a function or an operator of numba's typing, in its plain form. Returns None for an
    object of numba's that has no hash."""
    key = getattr(function, "typing_key", function)
    try:
        return _PLAIN.get(key, key)
    except TypeError:
        return None


def forms_of(function: Any) -> tuple[Any, ...]:
    """Returns an operator and its form in place. Returns any other function alone."""
    return (function, _IN_PLACE[function]) if function in _IN_PLACE else (function,)


_WEAK = {OPEN: float, OPEN_INTEGER: int, PLACE: promotion.Place}


def operand_of(kind: Any) -> Operand:
    """Returns a type of a number as ``promotion`` knows it."""
    if isinstance(kind, types.IntegerLiteral):
        return promotion.literal(int(kind.literal_value))
    plain = types.unliteral(kind)
    name = NAMES.get(plain) or ("c128" if isinstance(plain, types.Complex) else "f16")
    return Operand(SCALARS[name], _WEAK.get(plain))


def conversion_problem(target: Any, value: Any) -> str | None:
    """Returns the reason why a value of type ``value`` may not be stored as the scalar type ``target``. Returns None if
    it may be stored, by the rule of ``promotion.stored``."""
    if isinstance(target, StructuredType):
        return None if value == target else f"the value is {display(value)}"
    if isinstance(target, ComponentsType):
        return _vector_problem(conversion_problem, target, value)
    return _no_number(value) or promotion.stored(operand_of(target).scalar, operand_of(value))


def assignment_problem(target: Any, value: Any) -> str | None:
    """Does what ``conversion_problem`` does for an assignment to a local variable that is annotated as ``target``."""
    if isinstance(target, StructuredType):
        return None if value == target else f"the value is {display(value)}"
    if isinstance(target, ComponentsType):
        return _vector_problem(assignment_problem, target, value)
    return _no_number(value) or promotion.annotated(operand_of(target).scalar, operand_of(value))


def _vector_problem(problem: Callable[[Any, Any], str | None], target: Any, value: Any) -> str | None:
    """Returns the reason why a value may not be stored as a vector: ``problem`` gives that of a component."""
    if not (isinstance(value, ComponentsType) and value.count == target.count):
        return f"the value is {display(value)}"
    why = problem(target.dtype, value.dtype)
    return None if why is None else f"the value is {display(value)}; convert it, as in {display(target)}(v.x, v.y, …)"


def _no_number(value: Any) -> str | None:
    plain = types.unliteral(value)
    if isinstance(plain, types.Number | types.Boolean):
        return None
    advice = "; give it a number on every path" if isinstance(plain, types.Optional) else ""
    return f"the value is {display(value)}{advice}"


def is_narrowed(given: Any, wanted: Any) -> bool:
    """Returns whether an integer type does not hold all numbers of another, by ``promotion.narrows``."""
    if not isinstance(given, types.Integer) or not isinstance(wanted, types.Integer) or isinstance(wanted, WeakInteger):
        return False
    return promotion.narrows(operand_of(wanted).scalar, operand_of(given))


def display(numba_type: Any) -> str:
    """Returns the name of a type as a kernel's author writes it."""
    plain = types.unliteral(numba_type)
    if plain in NAMES:
        return NAMES[plain]
    if isinstance(plain, types.Optional):
        return f"{display(plain.type)} or None"
    if isinstance(plain, types.NoneType):
        return "None"
    if isinstance(plain, ComponentsType):
        return str(plain.name)
    if isinstance(plain, types.BaseNamedTuple):
        return str(plain.instance_class.__name__)
    if isinstance(plain, types.BaseTuple):
        return f"tuple[{', '.join(map(display, plain))}]"
    shown = str(plain).removesuffix(" of index_2d")
    return shown[len("class(") : -1] if shown.startswith("class(") else shown
