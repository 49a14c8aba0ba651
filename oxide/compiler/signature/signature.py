"""A kernel's parameters: parses their annotations, and converts scalar arguments.

Decorating a kernel only parses its annotations; nothing is compiled.
"""

from __future__ import annotations

import inspect
import math
import operator
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, final, get_args, get_origin

import numpy as np

from oxide.compiler.source.source import EMPTY, at_parameter, closure_values, located
from oxide.errors import ArgumentError, CompileError
from oxide.language import shaped, types
from oxide.language.arrays import Array, ArrayAnnotation
from oxide.language.atomic import AtomicSlice
from oxide.language.slices import DisjointSlice, Slice
from oxide.language.types import ATOMIC, SCALAR_NAMES, ScalarType
from oxide.messages import is_long, written

from .untyped_arguments import ArgumentType, ArrayType, identity

if TYPE_CHECKING:
    from .complex_parameters import Parts
    from .generic_parameters import Lifted, OpenFunction, OpenParameter
    from .tuples import Fields

Kind = Literal["scalar", "slice", "disjoint", "tiles", "atomic", "function", "tuple", "argument"]
"""``tiles`` is a ``DisjointSlice`` with a layout."""

_SHOWN: dict[Kind, str] = {
    "slice": "Slice",
    "disjoint": "DisjointSlice",
    "tiles": "DisjointSlice",
    "atomic": "AtomicSlice",
}
SAFE_FLOAT = 3.4e38
"""A magnitude that both f32 and f64 hold."""


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
    """For kind ``tiles``, the sides of a tile: one for ``Tiles``, two for ``RowMajorTiles``."""
    lifted: Lifted | Fields | Parts | None = None
    """For a function, a tuple or a complex number, the scalars that are passed instead of it."""
    ndim: int = 1
    """The number of a slice's axes. A slice of one axis takes the elements of any box in row-major order."""
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
            from .complex_parameters import Parts  # imported here: few programs need it

            object.__setattr__(self, "lifted", Parts(self.kernel, self.name, self.scalar))

    @property
    def annotation(self) -> str:
        """Returns the annotation as it is written."""
        if self.of_tiles:
            return f"tile.{self.of_tiles}[{self.scalar.name}, {self.ndim}]"
        if self.lifted is not None:
            return self.lifted.annotation
        return shown(self.kind, self.scalar.name, self.tile, self.ndim)

    @property
    def identity(self) -> str:
        """Returns the annotation and, for a function, a tuple or a complex number, the identity of ``lifted``. The text
        is the same in every process."""
        return self.annotation if self.lifted is None else f"{self.annotation} {self.lifted.identity}"

    @property
    def lengths(self) -> tuple[str, ...]:
        """Returns the names of a slice's lengths in contracts: ``len(a)``, or ``a.shape[0]``, ``a.shape[1]`` … for
        several axes."""
        return lengths_of(self.name, self.ndim)

    @property
    def is_matrix(self) -> bool:
        """Returns whether the parameter is an output of two axes."""
        return self.kind in ("disjoint", "tiles") and self.ndim == 2

    @property
    def alignment(self) -> int:
        """Returns the alignment of a tiled output's address, in bytes."""
        return alignment_of(self.tile, self.dtype.itemsize)

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
        return ArgumentError(
            f"kernel {self.kernel}: parameter {self.name} is {self.annotation}, the argument is {found}; {advice}"
        )


@final
@dataclass(frozen=True, slots=True)
class NumbaParameter:
    """A parameter with numba-cuda's semantics: an ``Array``, or an unannotated parameter once the argument's type is
    known.

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
    """A parameter without an annotation. Each launch's argument decides its type, and it becomes a
    ``NumbaParameter``."""

    kernel: str
    name: str

    kind: ClassVar[Kind] = "argument"
    annotation: ClassVar[str] = "no annotation"

    def closed(self, kind: ArgumentType) -> NumbaParameter:
        """Returns the parameter for an argument of type ``kind``."""
        return NumbaParameter(self.kernel, self.name, kind)


P = TypeVar("P", bound="Parameter | NumbaParameter")
Closed: TypeAlias = Parameter | NumbaParameter
"""A parameter whose type is known, as a specialization has it."""


def leaves(parameters: Iterable[P]) -> Iterator[P | Parameter]:
    """Yields the parameters that are passed: the parts of functions, tuples and complex numbers in place of these."""
    for parameter in parameters:
        if parameter.lifted is None:
            yield parameter
        else:
            yield from leaves(parameter.lifted.parts)


Declared: TypeAlias = "Closed | OpenParameter | OpenFunction | UntypedParameter"
"""A parameter as a kernel declares it."""


def parse_parameters(
    function: Callable[..., Any], name: str, local_names: Mapping[str, Any], adopted: bool = False
) -> tuple[Declared, ...]:
    """Parses a kernel's parameters from its annotations, string annotations included. Raises ``CompileError``.

    ``local_names`` are the local names where the kernel is defined: a string annotation may use them. If ``adopted``,
    the function is from a kernel of numba-cuda, and its annotations are ignored.
    """
    signature = inspect.signature(function)
    names = Names(function, local_names)
    returns = signature.return_annotation
    if (
        not adopted
        and returns is not inspect.Signature.empty
        and names.evaluate(returns, "the return annotation") is not None
    ):
        raise located(function, f"kernel {name} must return None: write its result through a DisjointSlice")
    parameters: list[Declared] = []
    for parameter in signature.parameters.values():
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise refused(function, name, parameter.name, "must be an ordinary one, without * or /")
        if adopted or parameter.annotation is inspect.Parameter.empty:
            parameters.append(UntypedParameter(name, parameter.name))
            continue
        annotation = names.evaluate(parameter.annotation, f"the annotation of {parameter.name}", parameter.name)
        parameters.append(_parameter(function, name, parameter.name, annotation, names))
    return tuple(parameters)


def default_values(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the defaults of a function's parameters by name."""
    code, defaults = function.__code__, getattr(function, "__defaults__", None) or ()
    return dict(zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True))


@final
@dataclass(frozen=True, slots=True)
class Annotation:
    """A device function's annotation of a parameter or of the result."""

    kind: Kind
    scalar: ScalarType
    tile: tuple[int, ...] = ()
    ndim: int = 1


def parse_annotations(function: Callable[..., Any], local_names: Mapping[str, Any]) -> dict[str, Annotation]:
    """Returns the annotations of a device function by parameter, and the annotation of the result under ``return``.
    Raises ``CompileError``.

    A parameter is generic if it has no annotation, ``Any``, a type variable, or a type that only the compiler makes: a
    ``ThreadIndex``, a ``Ref``, shared memory, None.
    """
    found: dict[str, Annotation] = {}
    if not getattr(function, "__annotations__", None):
        return found
    names = Names(function, local_names)
    for name, annotation in function.__annotations__.items():
        what = f"device function {function.__name__}: " + ("the result" if name == "return" else f"parameter {name}")
        value = names.evaluate(annotation, f"{what}: the annotation", name)
        tile: tuple[int, ...] = ()
        ndim = 1
        if isinstance(value, ScalarType):
            kind: Kind = "scalar"
            scalar: Any = value
        elif get_origin(value) in SLICES and SLICES[get_origin(value)][0] != "atomic":
            kind, scalar, tile, ndim = _slice_of(function, what, name, value)
            if isinstance(scalar, TypeVar):
                continue
        elif value in (int, float, bool, complex, str):
            raise at_parameter(
                function,
                name,
                f"{what} is annotated {value.__name__}; annotate it as a scalar ({SCALAR_NAMES}), Slice[T] or "
                "DisjointSlice[T], or not at all",
            )
        else:
            continue
        if not isinstance(scalar, ScalarType):
            problem = f"{what}: scalars and the elements of slices are {SCALAR_NAMES}"
            raise at_parameter(function, name, problem)
        found[name] = Annotation(kind, scalar, tile, ndim)
    return found


def refused(function: Callable[..., Any], kernel: str, name: str, problem: str) -> CompileError:
    """Returns the error for a parameter of a kernel, at the parameter."""
    return at_parameter(function, name, f"kernel {kernel}: parameter {name} {problem}")


class Names:
    """The names that a function's annotations may use: those of its module, of the scope that defines it, and of its
    closure."""

    def __init__(self, function: Callable[..., Any], local_names: Mapping[str, Any]) -> None:
        self.function = function
        closure = {name: value for name, value in closure_values(function) if value is not EMPTY}
        self.globals = getattr(function, "__globals__", {})
        own = {variable.__name__: variable for variable in getattr(function, "__type_params__", ())}
        self.locals = {**local_names, **closure, **own}

    def evaluate(self, annotation: Any, what: str, name: str = "return") -> Any:
        if not isinstance(annotation, str):
            return annotation
        try:
            return eval(annotation, self.globals, self.locals)
        except Exception as error:
            problem = f"{what}, {annotation}, cannot be evaluated: {error}"
            raise at_parameter(self.function, name, problem) from None


_ONE_AXIS: dict[Any, Kind] = {Slice: "slice", DisjointSlice: "disjoint", AtomicSlice: "atomic"}
SLICES: dict[Any, tuple[Kind, int]] = {each: (kind, 1) for each, kind in _ONE_AXIS.items()} | {
    several: (kind, ndim)
    for each, kind in _ONE_AXIS.items()
    for ndim in range(2, 6)
    if (several := getattr(shaped, f"{each.__name__}{ndim}", None))
}
"""The kind and the number of axes of each slice type."""


def shown(kind: Kind, element: str, tile: tuple[int, ...], ndim: int = 1) -> str:
    """Returns an annotation as it is written."""
    if kind == "scalar":
        return element
    layout = f", {layout_name(tile)}" if tile else ""
    return f"{_SHOWN[kind]}{ndim if ndim > 1 else ''}[{element}{layout}]"


def lengths_of(name: str, ndim: int) -> tuple[str, ...]:
    """Returns the names of a slice's lengths in contracts."""
    return (f"len({name})",) if ndim == 1 else tuple(f"{name}.shape[{axis}]" for axis in range(ndim))


def layout_name(tile: tuple[int, ...]) -> str:
    """Returns a layout as it is written."""
    return f"{'Tiles' if len(tile) == 1 else 'RowMajorTiles'}({', '.join(map(str, tile))})"


def alignment_of(tile: tuple[int, ...], itemsize: int) -> int:
    """Returns the alignment of a tiled output: the greatest power of two that divides a tile row's bytes, up to 16. A
    vector of 16 bytes is the longest that one thread loads or stores at once."""
    row = tile[-1] * itemsize
    return min(row & -row, 16)


def _slice_of(
    function: Callable[..., Any], what: str, name: str, annotation: Any
) -> tuple[Kind, Any, tuple[int, ...], int]:
    """Returns four facts of a slice's annotation: the kind, the element type, the sides of the layout's tiles (an empty
    tuple without a layout), and the number of axes."""
    kind, ndim = SLICES[get_origin(annotation)]
    scalar, *layouts = get_args(annotation)
    if ndim == 1 and layouts and type(layouts[0]) is int and 1 <= layouts[0] <= (3 if kind == "atomic" else 5):
        ndim = layouts.pop(0)
    if not layouts:
        return kind, scalar, (), ndim
    from oxide.language.tiles import RowMajorTiles, Tiles

    if kind != "disjoint" or len(layouts) > 1 or type(layouts[0]) not in (Tiles, RowMajorTiles):
        problem = (
            "beside its elements' type a DisjointSlice takes a layout, Tiles(n) or RowMajorTiles(r, c), and every "
            "slice its number of axes, 1 to 5, an AtomicSlice up to 3"
        )
    elif ndim > 3:
        problem = f"an output of {ndim} axes is written by tensor.store_tile, and has no layout"
    elif ndim == 3 and type(layouts[0]) is RowMajorTiles:
        problem = "RowMajorTiles are of a matrix, and this slice has 3 axes"
    else:
        return "tiles", scalar, layouts[0].shape, ndim
    raise at_parameter(function, name, f"{what} is annotated {annotation!r}; {problem}")


def _parameter(function: Callable[..., Any], kernel: str, name: str, annotation: Any, names: Names) -> Declared:
    if annotation is Array:
        problem = "say of what and with how many axes, as in Array[f32, 2], or leave the annotation out"
        raise refused(function, kernel, name, f"is annotated Array; {problem}")
    if isinstance(annotation, ArrayAnnotation):
        return NumbaParameter(kernel, name, ArrayType(annotation.dtype, annotation.ndim))
    if annotation is Callable or annotation is typing.Callable or get_origin(annotation) is Callable:
        from .generic_parameters import function_parameter  # imported here: few programs need it

        return function_parameter(function, kernel, name, annotation)
    if annotation is tuple or get_origin(annotation) is tuple or hasattr(annotation, "_fields"):
        from .tuples import tuple_parameter

        return tuple_parameter(
            function, kernel, name, annotation, lambda text: names.evaluate(text, f"the annotation of {name}", name)
        )
    tile: tuple[int, ...] = ()
    ndim = 1
    if isinstance(annotation, ScalarType | TypeVar):
        kind: Kind = "scalar"
        scalar: Any = annotation
    elif get_origin(annotation) in SLICES:
        kind, scalar, tile, ndim = _slice_of(function, f"kernel {kernel}: parameter {name}", name, annotation)
    else:
        from oxide.compiler.signature.annotation_advice import of_annotation

        shown = getattr(annotation, "__name__", None) or repr(annotation)
        raise refused(function, kernel, name, f"is annotated {shown}; {of_annotation(annotation)}")
    if isinstance(scalar, TypeVar):
        from .generic_parameters import open_parameter

        return open_parameter(function, kernel, name, kind, scalar, tile, ndim)
    if not isinstance(scalar, ScalarType):
        from oxide.compiler.signature.annotation_advice import of_element

        problem = f"the elements of a slice are scalars: {of_element(scalar)}"
        raise at_parameter(function, name, f"kernel {kernel}: parameter {name}: {problem}")
    if kind == "atomic" and scalar.name not in ATOMIC:
        raise located(
            function,
            f"kernel {kernel}: parameter {name}: an AtomicSlice has elements of {' '.join(ATOMIC)}, not {scalar.name}",
        )
    return Parameter(kernel, name, kind, scalar, tile, ndim=ndim)


def no_number(parameter: Parts | OpenParameter, value: Any) -> ArgumentError:
    """Returns the error for an argument that is no number."""
    return ArgumentError(
        f"kernel {parameter.kernel}: parameter {parameter.name} is {parameter.annotation}, the argument is "
        f"{type(value).__name__} {written(value):.80}; pass a number"
    )


def _is_real(value: Any) -> bool:
    return (
        isinstance(value, int | float | np.integer | np.floating | np.bool_)
        or types.of_narrow_scalar(value) is not None
    )


def _is_float(value: Any) -> bool:
    return isinstance(value, float | np.floating) or types.of_narrow_scalar(value) is not None
