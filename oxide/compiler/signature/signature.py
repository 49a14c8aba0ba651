"""A kernel's parameters, and the conversion of scalar arguments."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, final

import numpy as np

from oxide.compiler.source.source import at_parameter
from oxide.errors import ArgumentError, CompileError
from oxide.host.messages import is_long, written
from oxide.language import slices, types
from oxide.language.atomic import AtomicSlice
from oxide.language.slices import DisjointSlice, Slice
from oxide.language.structures import StructureType
from oxide.language.types import SCALARS, ScalarType

from .untyped_arguments import ArgumentType, Captured, identity

Kind = Literal["scalar", "slice", "disjoint", "tiles", "atomic", "function", "tuple", "argument"]
"""``tiles`` is a ``DisjointSlice`` with a layout."""

_SHOWN: dict[Kind, str] = {
    "slice": "Slice",
    "disjoint": "DisjointSlice",
    "tiles": "DisjointSlice",
    "atomic": "AtomicSlice",
}
_ONE_AXIS: dict[Any, Kind] = {Slice: "slice", DisjointSlice: "disjoint", AtomicSlice: "atomic"}
SLICES: dict[Any, tuple[Kind, int]] = {each: (kind, 1) for each, kind in _ONE_AXIS.items()} | {
    several: (kind, ndim)
    for each, kind in _ONE_AXIS.items()
    for ndim in range(2, 6)
    if (several := getattr(slices, f"{each.__name__}{ndim}", None))
}
"""The kind and the number of axes of each slice type."""
ROWS = (0,)
"""``Rows.shape``. Stands for the sides of a tile that is a row, of as many elements as the slice has columns."""
_WIDEST = 16
"""The bytes of the longest vector that one thread loads or stores at once."""
SAFE_FLOAT = 3.4e38
"""A magnitude that both f32 and f64 hold."""


class Lifts(Protocol):
    """The scalars that stand for a function, a tuple or a complex number: ``Lifted``, ``Fields`` or ``Parts``."""

    @property
    def annotation(self) -> str: ...

    @property
    def identity(self) -> str: ...

    @property
    def parts(self) -> tuple[Parameter, ...]: ...

    def words(self, argument: Any, /) -> tuple[Any, ...]: ...


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel.

    An argument is passed as *words*, the fields of the packed parameters. A scalar is one word. A slice is passed as an
    address and the length of each axis. A complex number is passed as its real and its imaginary part, a function as
    the numbers that it captures, and a tuple as its elements.
    """

    kernel: str
    name: str
    kind: Kind
    scalar: ScalarType
    tile: tuple[int, ...] = ()
    """For kind ``tiles``, the sides of a tile: one for ``Tiles``, two for ``RowMajorTiles``, ``ROWS`` for ``Rows``."""
    lifted: Lifts | None = None
    """For a function, a tuple or a complex number, the scalars that are passed instead of it."""
    ndim: int = 1
    """The number of a slice's axes. A slice of one axis takes the elements of any box in row-major order."""
    components: int = 1
    """The number of components of an element: 2 to 4 for a vector. The last axis of its box is that of the
    components."""
    structure: StructureType | None = None
    """The type of a slice's elements that are structures. ``scalar`` then only has their name and their dtype."""
    of_tiles: str = ""
    """For a tensor of a tile kernel, the name of its annotation: ``Tensor``, ``Partition`` or ``Target``."""
    dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """The dtype of the scalar, or of the slice's elements."""
    integers: range | None = field(init=False, repr=False, compare=False)
    """The range of an integer scalar. None for any other parameter."""
    is_float: bool = field(init=False, repr=False, compare=False)
    """True for a scalar that is passed as a float: an f32 or an f64."""

    def __post_init__(self) -> None:
        # Computed here, because every launch reads these for every argument.
        number = self.scalar.kind if self.kind == "scalar" else ""
        low, high = self.scalar.limits if number in ("i", "u") else (0, 0)
        object.__setattr__(self, "dtype", self.scalar.dtype)
        object.__setattr__(self, "integers", range(low, high + 1) if high else None)
        object.__setattr__(self, "is_float", number == "f" and not self.scalar.precision)
        if number == "c":
            object.__setattr__(self, "lifted", Parts(self.kernel, self.name, self.scalar))

    @property
    def annotation(self) -> str:
        """Returns the annotation as it is written."""
        if self.of_tiles:
            return f"tile.{self.of_tiles}[{self.scalar.name}, {self.ndim}]"
        if self.lifted is not None:
            return self.lifted.annotation
        return shown(self.kind, self.element, self.tile, self.ndim)

    @property
    def element(self) -> str:
        """Returns the type of a slice's elements as it is written."""
        return _element(self.scalar.name, self.components)

    @property
    def identity(self) -> str:
        """Returns the annotation and, for a function, a tuple or a complex number, the identity of ``lifted``. The text
        is the same in every process."""
        if self.structure is not None:
            return f"{self.annotation} {self.structure.identity}"
        return self.annotation if self.lifted is None else f"{self.annotation} {self.lifted.identity}"

    @property
    def lengths(self) -> tuple[str, ...]:
        """Returns a slice's lengths as contracts name them: ``len(a)``, or ``a.shape[0]``, ``a.shape[1]`` …"""
        if self.ndim == 1:
            return (f"len({self.name})",)
        return tuple(f"{self.name}.shape[{axis}]" for axis in range(self.ndim))

    @property
    def is_matrix(self) -> bool:
        """Returns whether the parameter is an output of two axes."""
        return self.kind in ("disjoint", "tiles") and self.ndim == 2

    @property
    def alignment(self) -> int:
        """Returns the alignment of a box's address, in bytes: of the tiles of an output, and of vectors and structures
        that are loaded and stored whole. It is 1 if any address that fits the scalars will do."""
        size = self.components * self.dtype.itemsize
        if self.structure is not None:
            return max(self.structure.alignment, alignment_of(self.tile, size) if self.tile else 1)
        whole = self.components > 1 and self.scalar.kind != "c" and size & (size - 1) == 0 and size <= _WIDEST
        return max(size if whole else 1, alignment_of(self.tile, size) if self.tile else 1)

    def elements(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of a box as the kernel sees it: without the axis of a vector's components."""
        return shape[:-1] if self.components > 1 else shape

    @property
    def struct_format(self) -> str:
        """Returns the parameter's format for ``struct``."""
        if self.lifted is not None:
            return "".join(part.struct_format for part in self.lifted.parts)
        return self.scalar.struct_format if self.kind == "scalar" else "Q" + "Q" * self.ndim

    def words(self, value: Any) -> tuple[Any, ...]:
        """Returns the words that are passed for a scalar, a tuple or a function. Raises ``ArgumentError``."""
        return (self.convert(value),) if self.lifted is None else self.lifted.words(value)

    def convert(self, value: Any) -> int | float | bool:
        """Returns a scalar argument as the Python number that the kernel gets.

        Takes Python and NumPy scalars, and 0-d arrays. Raises ``ArgumentError`` for an integer that does not fit, a
        float for an integer parameter, a number for a bool parameter, and anything that is no number.
        """
        # The two plain cases come first: NumPy's limits and isinstance checks take ten times as long as these compares.
        if type(value) is int:
            if self.integers is not None and value in self.integers:
                return value
        elif type(value) is float and self.is_float and -SAFE_FLOAT <= value <= SAFE_FLOAT:
            return value
        kind = self.scalar.kind
        if type(value) is np.ndarray and value.ndim == 0:
            value = value[()]
        if kind == "b":
            if isinstance(value, bool | np.bool_):
                return bool(value)
            raise self._refuse(value, "pass True or False")
        if kind == "f":
            if _is_real(value):
                return self._to_half(self._to_float(value)) if self.scalar.precision else self._to_float(value)
            raise self._refuse(value, "pass a number")
        if isinstance(value, bool | np.bool_):
            return int(value)
        if not isinstance(value, int | np.integer):
            raise self._refuse(
                value, "pass an int; round a float yourself, with int(x)" if _is_float(value) else "pass an int"
            )
        number = operator.index(value)
        if self.integers is None or number not in self.integers:
            low, high = self.scalar.limits
            raise self._refuse(value, f"{self.scalar.name} holds {low} to {high}")
        return number

    def _to_float(self, value: Any) -> float:
        try:
            number = float(value)
        except OverflowError:
            raise self._refuse(value, f"{self.scalar.name} holds no number as large") from None
        if self.scalar.name == "f32" and math.isfinite(number) and abs(number) > float(np.finfo(np.float32).max):
            rounded = float(np.float32(number)) if abs(number) < 3.4028236e38 else math.inf
            if math.isinf(rounded):
                raise self._refuse(value, "f32 holds magnitudes up to 3.4e38")
            return rounded
        return number

    def _to_half(self, number: float) -> int:
        """Returns the bits of a narrow float, rounded to nearest, ties to even."""
        from oxide.language import narrow  # imported here: few programs need it

        bits = narrow.encoded(self.scalar.name, number)
        if bits is None:
            raise self._refuse(number, f"{self.scalar.name} holds magnitudes up to {self.scalar.greatest:.6g}")
        return bits

    def _refuse(self, value: Any, advice: str) -> ArgumentError:
        if type(value) is int and is_long(value):
            found = written(value)
        else:
            axes = value.ndim if hasattr(value, "ndim") else np.ndim(value)
            found = f"{value!r} ({type(value).__name__})" if axes == 0 else type(value).__name__
        return refused_argument(self, found, advice)


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """The two floats that are passed for a complex scalar."""

    kernel: str
    name: str
    scalar: ScalarType

    @property
    def parts(self) -> tuple[Parameter, ...]:
        """Returns the real and the imaginary part, as the scalars that are passed."""
        kind = SCALARS[self.scalar.part]
        return tuple(Parameter(self.kernel, f"{self.name}.{part}", "scalar", kind) for part in ("real", "imag"))

    @property
    def annotation(self) -> str:
        """Returns the annotation as it is written."""
        return self.scalar.name

    @property
    def identity(self) -> str:
        """Returns the type's name, which is the same in every process."""
        return self.scalar.name

    def words(self, argument: Any) -> tuple[Any, ...]:
        """Returns the real and the imaginary part of a number, which may have any number type of Python or NumPy.

        Raises ``ArgumentError`` for anything else, and for a part that the type cannot hold.
        """
        number = argument[()] if type(argument) is np.ndarray and argument.ndim == 0 else argument
        if not isinstance(number, int | float | complex | np.number | np.bool_):
            raise _no_number(self, argument)
        real, imag = self.parts
        return real.convert(number.real), imag.convert(number.imag)


@final
@dataclass(frozen=True, slots=True)
class NumbaParameter:
    """An array of numba-cuda, which is not checked, or an unannotated parameter once the argument's type is known.

    ``untyped_arguments.py`` defines the words that are passed.
    """

    kernel: str
    name: str
    type: ArgumentType

    kind: ClassVar[Kind] = "argument"
    lifted: ClassVar[None] = None

    @property
    def annotation(self) -> str:
        """Returns the type as an annotation would spell it."""
        return str(self.type)

    @property
    def identity(self) -> str:
        """Returns a text that is the same for the same type in every process."""
        return identity(self.type)

    @property
    def struct_format(self) -> str:
        """Returns the parameter's format for ``struct``."""
        return self.type.format


@final
@dataclass(frozen=True, slots=True)
class UntypedParameter:
    """A parameter without an annotation, which becomes a ``NumbaParameter`` at each launch."""

    kernel: str
    name: str

    kind: ClassVar[Kind] = "argument"
    annotation: ClassVar[str] = "no annotation"

    def closed(self, kind: ArgumentType) -> NumbaParameter:
        """Returns the parameter for an argument of type ``kind``."""
        return NumbaParameter(self.kernel, self.name, kind)


@final
@dataclass(frozen=True, slots=True)
class OpenParameter:
    """One parameter of a generic kernel, whose type the argument decides: ``factor: T``, ``x: Slice[T]``.

    It becomes a ``Parameter`` when the kernel is specialised (see ``type_variables.py``).
    """

    kernel: str
    name: str
    kind: Kind
    variable: str
    choices: tuple[ScalarType, ...]
    """The scalar types that the variable may stand for: its constraints, or all scalar types."""
    tile: tuple[int, ...] = ()
    ndim: int = 1
    components: int = 1

    @property
    def annotation(self) -> str:
        """Returns the annotation as it is written."""
        return shown(self.kind, _element(self.variable, self.components), self.tile, self.ndim)

    def elements(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of a box as the kernel sees it: without the axis of a vector's components."""
        return shape[:-1] if self.components > 1 else shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns void, because the dtype is not known yet."""
        return np.dtype(np.void)

    def convert(self, value: Any) -> Any:
        """Returns a scalar argument unchanged if it is a number. Raises ``ArgumentError`` for anything else."""
        if isinstance(value, int | float | complex | np.number | np.bool_) or (
            type(value) is np.ndarray and value.ndim == 0
        ):
            return value
        raise _no_number(self, value)

    def closed(self, scalar: ScalarType) -> Parameter:
        """Returns the parameter with ``scalar`` for the type variable."""
        return Parameter(
            self.kernel, self.name, self.kind, scalar, self.tile, ndim=self.ndim, components=self.components
        )


@final
@dataclass(frozen=True, slots=True)
class OpenFunction:
    """A parameter that takes a function: ``f: Callable[[T], T]``.

    ``takes`` has the types that the function's arguments are converted to, or is None if the annotation does not list
    them. ``returns`` is the type that the function's result is converted to. Both may contain names of type variables.
    """

    kernel: str
    name: str
    takes: tuple[ScalarType | str | None, ...] | None
    returns: ScalarType | str | None
    annotation: str
    choices: tuple[tuple[str, tuple[ScalarType, ...]], ...]
    """The type variables, and the scalar types that each may stand for."""

    @property
    def kind(self) -> Kind:
        return "function"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns void, because a function is not a number."""
        return np.dtype(np.void)


@final
@dataclass(frozen=True, slots=True)
class Lifted:
    """A function that a kernel is compiled with, as a device function.

    After its own ``arity`` parameters the device function takes the numbers that it captures. These numbers are the
    ``parts`` of the kernel's parameter. See ``closures.py``.
    """

    function: Any
    parts: tuple[Parameter, ...]
    literal: tuple[bool, ...]
    """For each part, True if it is a Python float. Like a literal, a Python float takes the type of the number that it
    is combined with."""
    arity: int
    annotation: str
    identity: str
    words: Callable[[Any], tuple[Any, ...]]
    """Returns the current values of the numbers that a given function captures. Raises ``ArgumentError`` if a number
    does not fit its type."""


Closed: TypeAlias = Parameter | NumbaParameter
"""A parameter whose type is known, as a specialization has it."""

Declared: TypeAlias = Closed | OpenParameter | OpenFunction | UntypedParameter
"""A parameter as a kernel declares it."""

P = TypeVar("P", Parameter, Closed)


def leaves(parameters: Iterable[P]) -> Iterator[P]:
    """Yields the parameters that are passed: the parts of functions, tuples and complex numbers in place of these."""
    for parameter in parameters:
        if parameter.lifted is None:
            yield parameter
        else:
            yield from leaves(parameter.lifted.parts)


def with_captured(kernel: str, parameters: tuple[Closed, ...], captured: Iterable[Captured]) -> tuple[Closed, ...]:
    """Returns the parameters of the machine code: the kernel's own, and a hidden one for each captured array."""
    return (*parameters, *(NumbaParameter(kernel, each.name, each.type) for each in captured))


def shown(kind: Kind, element: str, tile: tuple[int, ...], ndim: int = 1) -> str:
    """Returns an annotation as it is written."""
    if kind == "scalar":
        return element
    layout = f", {'Tiles' if len(tile) == 1 else 'RowMajorTiles'}({', '.join(map(str, tile))})" if tile else ""
    if tile == ROWS:
        layout = ", Rows"
    return f"{_SHOWN[kind]}{ndim if ndim > 1 else ''}[{element}{layout}]"


def _element(scalar: str, components: int) -> str:
    """Returns the type of a slice's elements as it is written."""
    return scalar if components == 1 else f"Vec{components}[{scalar}]"


def alignment_of(tile: tuple[int, ...], itemsize: int) -> int:
    """Returns the alignment of a tiled output: the greatest power of two that divides a tile row's bytes, up to 16. A
    vector of 16 bytes is the longest that one thread loads or stores at once. Whole rows have that of an element."""
    if tile == ROWS:
        return min(itemsize & -itemsize, 16)
    row = tile[-1] * itemsize
    return min(row & -row, _WIDEST)


def refused_parameter(function: Callable[..., Any], kernel: str, name: str, problem: str) -> CompileError:
    """Returns the error for the declaration of a kernel's parameter. ``problem`` begins with the parameter's name."""
    return at_parameter(function, name, f"kernel {kernel}: parameter {problem}")


def refused_argument(parameter: Any, found: str, advice: str) -> ArgumentError:
    """Returns the error for an argument that a parameter, or what stands for one, does not take."""
    return ArgumentError(
        f"kernel {parameter.kernel}: parameter {parameter.name} is {parameter.annotation}, the argument is {found}; "
        f"{advice}"
    )


def _no_number(parameter: Any, value: Any) -> ArgumentError:
    return refused_argument(parameter, f"{type(value).__name__} {written(value):.80}", "pass a number")


def _is_real(value: Any) -> bool:
    return (
        isinstance(value, int | float | np.integer | np.floating | np.bool_)
        or types.of_narrow_scalar(value) is not None
    )


def _is_float(value: Any) -> bool:
    return isinstance(value, float | np.floating) or types.of_narrow_scalar(value) is not None
