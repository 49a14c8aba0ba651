"""The types of unannotated arguments (numba-cuda's ``typeof``), and the *words* that are passed for an argument: the
scalars that the machine code takes.

A launch computes the type of each argument. Types are hashable, and two arguments have equal types if the same machine
code takes both. The types of all arguments select the specialization. Nothing here loads numba: the front end turns
these descriptions into numba's types.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar, TypeAlias, dataclass_transform, final

import numpy as np

from oxide.language.types import OF_PYTHON, SCALARS, of_dtype, of_narrow_scalar


@dataclass_transform()
class _Described:
    """A type that is fully described by its fields, which are its slots and the arguments that make it.

    It is no dataclass, because each dataclass adds a millisecond to ``import oxide``.
    """

    __slots__ = ("_hash",)
    __match_args__: ClassVar[tuple[str, ...]] = ()

    _hash: int

    def __init_subclass__(cls) -> None:
        cls.__match_args__ = cls.__slots__  # type: ignore[misc] # mypy takes it for a dataclass's own

    def __init__(self, *fields: Any) -> None:
        for name, value in zip(self.__match_args__, fields, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_hash", hash((type(self), *fields)))

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} does not change")

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._fields() == other._fields())

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}={value!r}" for name, value in zip(self.__match_args__, self._fields(), strict=True))
        return f"{type(self).__name__}({listed})"


@final
class NumberType(_Described):
    """A scalar: a bool, an integer, a float, a complex number, a datetime64 or a timedelta64."""

    __slots__ = ("dtype",)

    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return self.dtype.name

    @property
    def words(self) -> tuple[str, ...]:
        """Returns the LLVM type of each word that is passed."""
        scalar = of_dtype(self.dtype)
        if scalar is None:  # a datetime64 or a timedelta64
            return ("i64",)
        return (SCALARS[scalar.part].memory_type,) * 2 if scalar.part else (scalar.memory_type,)

    @property
    def format(self) -> str:
        """Returns the words' format for ``struct``."""
        scalar = of_dtype(self.dtype)
        if scalar is None:
            return "q"
        return "e" if scalar.precision else scalar.struct_format  # an f16 is passed as a number, not as its bits

    def flatten(self, value: Any) -> tuple[Any, ...]:
        """Returns the words of a value of this type."""
        kind = self.dtype.kind
        if kind == "c":
            return value.real, value.imag
        if kind in "mM":
            return (int(value.astype(np.int64)),)
        if kind in "iu":
            return (_wrapped(int(value), self.dtype),)
        return (value,)


@final
class ArrayType(_Described):
    """A box of ``ndim`` axes, with numba-cuda's array semantics: C-contiguous, or a ``strided`` view."""

    __slots__ = ("dtype", "ndim", "strided")

    SIZE: ClassVar[int] = 2
    ADDRESS: ClassVar[int] = 4
    AXES: ClassVar[int] = 5
    """``SIZE``, ``ADDRESS`` and ``AXES`` are positions of words: of the number of elements, of the address, and of the
    shape's first word. The strides follow the shape."""

    dtype: np.dtype[Any]
    ndim: int
    strided: bool

    def __init__(self, dtype: np.dtype[Any], ndim: int, strided: bool = False) -> None:
        super().__init__(dtype, ndim, strided)

    def __str__(self) -> str:
        return f"Array[{self.dtype if self.dtype.names else self.dtype.name}, {self.ndim}]{', strided' * self.strided}"

    @property
    def words(self) -> tuple[str, ...]:
        """Returns the types in numba-cuda's array structure: two null pointers, size, item size, address, shape,
        strides in bytes."""
        return ("ptr", "ptr", "i64", "i64", "ptr", *["i64"] * (2 * self.ndim))

    @property
    def format(self) -> str:
        return "QQqqQ" + "q" * (2 * self.ndim)

    def flatten(self, value: Any) -> tuple[Any, ...]:
        """Returns the words of a box of this type."""
        return 0, 0, value.size, self.dtype.itemsize, value.ptr, *value.shape, *value.strides


@final
class RecordType(_Described):
    """A box of a structured dtype without axes: a record, passed by its address, whose fields may be assigned to."""

    __slots__ = ("dtype",)

    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"a record of {self.dtype}"

    @property
    def words(self) -> tuple[str, ...]:
        return ("ptr",)

    @property
    def format(self) -> str:
        return "Q"

    def flatten(self, value: Any) -> tuple[Any, ...]:
        """Returns the address of a box of this type."""
        return (value.ptr,)


@final
class TupleType(_Described):
    """A tuple or a NamedTuple; ``kind`` is its class."""

    __slots__ = ("elements", "kind")

    elements: tuple[ArgumentType, ...]
    kind: type

    def __str__(self) -> str:
        inside = ", ".join(map(str, self.elements)) + "," * (len(self.elements) == 1)
        return f"({inside})" if self.kind is tuple else f"{self.kind.__name__}({inside})"

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(word for element in self.elements for word in element.words)

    @property
    def format(self) -> str:
        return "".join(element.format for element in self.elements)

    def flatten(self, value: Any) -> tuple[Any, ...]:
        """Returns the words of the elements, one after the other."""
        return tuple(word for element, part in zip(self.elements, value, strict=True) for word in element.flatten(part))


@final
class EnumType(_Described):
    """The type of an argument that is a member of an enumeration."""

    __slots__ = ("kind", "value")

    kind: type[enum.Enum]
    value: ArgumentType

    def __str__(self) -> str:
        return self.kind.__name__

    @property
    def words(self) -> tuple[str, ...]:
        return self.value.words

    @property
    def format(self) -> str:
        return self.value.format

    def flatten(self, value: Any) -> tuple[Any, ...]:
        """Returns the words of the member's value."""
        return self.value.flatten(value.value)


@final
class NoneType(_Described):
    """None. numba prunes the branches of ``if x is None`` that are not taken."""

    __slots__ = ()

    def __str__(self) -> str:
        return "None"

    words: ClassVar[tuple[str, ...]] = ("ptr",)
    format: ClassVar[str] = "Q"

    def flatten(self, value: Any) -> tuple[Any, ...]:
        """Returns the null pointer that numba passes."""
        return (0,)


ArgumentType: TypeAlias = NumberType | ArrayType | RecordType | TupleType | EnumType | NoneType


@lru_cache(maxsize=256)
def of_box(dtype: np.dtype[Any], ndim: int, strided: bool = False) -> ArrayType | RecordType:
    """Returns the type of a box. Boxes of equal types share one type object, so that launches compare types quickly."""
    return RecordType(dtype) if ndim == 0 and dtype.names is not None else ArrayType(dtype, ndim, strided)


@lru_cache(maxsize=256)
def of_elements(elements: tuple[ArgumentType, ...], kind: Any) -> TupleType:
    """Returns the type of a tuple. Tuples of equal types share one type object, as boxes do."""
    return TupleType(elements, kind)


def laid_out(kind: ArgumentType, value: Any, strided: Callable[[ArrayType, Any], bool]) -> ArgumentType:
    """Returns the type with the layout of each array in it changed: strided if ``strided`` returns True for the array's
    type and its part of ``value``, else contiguous."""
    if isinstance(kind, ArrayType):
        wanted = strided(kind, value)
        return kind if wanted is kind.strided else ArrayType(kind.dtype, kind.ndim, wanted)
    if isinstance(kind, TupleType):
        values = (
            value if isinstance(value, tuple) and len(value) == len(kind.elements) else (None,) * len(kind.elements)
        )
        parts = tuple(laid_out(part, each, strided) for part, each in zip(kind.elements, values, strict=True))
        return kind if parts == kind.elements else TupleType(parts, kind.kind)
    return kind


_INT64 = NumberType(np.dtype(np.int64))
_UINT64 = NumberType(np.dtype(np.uint64))
_PLAIN: dict[type, ArgumentType] = {
    **{kind: NumberType(scalar.dtype) for kind, scalar in OF_PYTHON.items() if kind is not int},
    type(None): NoneType(),
    # NumPy's classes whose objects all have one dtype; an extended float and a date are not among them
    **{(kind := np.dtype(code)).type: NumberType(kind) for code in "?bhilqBHILQefdFD"},
}


def _wrapped(number: int, dtype: np.dtype[Any]) -> int:
    """Returns an integer wrapped to its type: an explicit signature may convert as a C cast does."""
    bits = 8 * dtype.itemsize
    if dtype.kind == "u":
        return number & (1 << bits) - 1
    half = 1 << (bits - 1)
    return number if -half <= number < half else ((number + half) & (1 << bits) - 1) - half


def type_of(value: Any, array_type: Callable[[Any], ArrayType | RecordType | None]) -> ArgumentType | None:
    """Returns the type of an argument by numba-cuda's rules, or None if no kernel takes it.

    ``array_type`` returns the type of an argument that is no number, or None if it is no array.
    """
    kind = type(value)
    if kind is int:
        if -(2**63) <= value < 2**63:
            return _INT64
        return _UINT64 if 0 <= value < 2**64 else None
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    if isinstance(value, np.generic):
        known = value.dtype.kind in "biufcmM" and value.dtype.itemsize <= 16 and of_narrow_scalar(value) is None
        return NumberType(value.dtype) if known else None
    if isinstance(value, enum.Enum):
        values = {type_of(member.value, array_type) for member in type(value)}
        inner = values.pop()
        return EnumType(type(value), inner) if not values and isinstance(inner, NumberType | TupleType) else None
    if isinstance(value, tuple):
        elements = []
        for part in value:
            element = type_of(part, array_type)
            if element is None:
                return None
            elements.append(element)
        made_of: Any = kind
        return of_elements(tuple(elements), made_of)
    return array_type(value)


def identity(kind: ArgumentType) -> str:
    """Returns a text that is the same for the same type in every process, and differs for any other type.

    ``str`` does not suffice: it leaves out details, such as the members of an enumeration.
    """
    match kind:
        case TupleType(elements, made_of):
            fields = getattr(made_of, "_fields", ())
            inside = ", ".join(map(identity, elements))
            return f"tuple {made_of.__module__}.{made_of.__qualname__}{fields}({inside})"
        case EnumType(made_of, value):
            members = [(name, member.value) for name, member in made_of.__members__.items()]
            return f"enum {made_of.__module__}.{made_of.__qualname__}{members} of {identity(value)}"
        case _:
            return f"{type(kind).__name__} {kind!r}"


def arrays_in(kind: ArgumentType, value: Any) -> Sequence[Any]:
    """Returns the arrays and records in an argument: the argument itself, or those among the elements of a tuple."""
    if isinstance(kind, ArrayType | RecordType):
        return (value,)
    if isinstance(kind, TupleType):
        return [array for element, part in zip(kind.elements, value, strict=True) for array in arrays_in(element, part)]
    return ()


# Arrays that a kernel names


@final
@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A device array that a kernel with numba-cuda's semantics names, but does not take as an argument: a global, or a
    variable of the function around it. ``name`` is the kernel's name for the object ``value``.

    numba-cuda writes the address of such an array into the kernel's code. Here the array is a hidden parameter behind
    the kernel's own ones. So a launch is ordered with other uses of the array, and the sanitizer knows the array's
    bounds. As in numba-cuda, the kernel keeps the array that it found when it was compiled.
    """

    value: Any
    name: str
    type: ArrayType
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def captured(value: Any, name: str) -> Captured | None:
    """Returns a description of a device array: a box, an array of ``oxide.numba_cuda``, or another library's array with
    ``__cuda_array_interface__`` or ``__dlpack__``. Returns None for any other object, NumPy's arrays included."""
    as_argument = getattr(type(value), "as_argument", None)
    if as_argument is not None:
        argument = as_argument(value)
        kind, shape, strides = None if argument is None else argument.type, value.shape, value.strides
    elif isinstance(value, ModuleType | type | np.ndarray) or (view := _like(value)) is None:
        return None
    else:
        kind, shape, strides = of_box(view.dtype, view.ndim, not view.flags.c_contiguous), view.shape, view.strides
    return Captured(value, name, kind, shape, strides) if isinstance(kind, ArrayType) else None


def _like(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns a NumPy array of the layout of another library's array, whose elements must not be accessed."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        element = np.empty((), np.dtype(interface["typestr"]))
        return np.lib.stride_tricks.as_strided(element, interface["shape"], interface.get("strides"))
    if not hasattr(value, "__dlpack__"):
        return None
    try:
        return np.from_dlpack(value)
    except Exception:  # of another device, for example
        return None
