"""Parses the annotations of kernels and device functions. Nothing is compiled."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final, get_args, get_origin

from oxide.compiler.source.source import EMPTY, at_parameter, closure_values, located
from oxide.errors import CompileError
from oxide.language.arrays import Array, ArrayAnnotation
from oxide.language.types import ATOMIC, SCALAR_NAMES, ScalarType

from .signature import SLICES, Closed, Kind, NumbaParameter, Parameter, UntypedParameter
from .untyped_arguments import ArrayType

if TYPE_CHECKING:
    from .generic_parameters import OpenFunction, OpenParameter

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
    scalar: Any
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
        if isinstance(value, ScalarType):
            declared = Annotation("scalar", value)
        elif get_origin(value) in SLICES and SLICES[get_origin(value)][0] != "atomic":
            declared = _slice_of(function, what, name, value)
            if isinstance(declared.scalar, TypeVar):
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
        if not isinstance(declared.scalar, ScalarType):
            problem = f"{what}: scalars and the elements of slices are {SCALAR_NAMES}"
            raise at_parameter(function, name, problem)
        found[name] = declared
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


def _slice_of(function: Callable[..., Any], what: str, name: str, annotation: Any) -> Annotation:
    """Parses a slice's annotation. ``scalar`` is what the annotation has as the type of the elements."""
    kind, ndim = SLICES[get_origin(annotation)]
    scalar, *layouts = get_args(annotation)
    if ndim == 1 and layouts and type(layouts[0]) is int and 1 <= layouts[0] <= (3 if kind == "atomic" else 5):
        ndim = layouts.pop(0)
    if not layouts:
        return Annotation(kind, scalar, ndim=ndim)
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
        return Annotation("tiles", scalar, layouts[0].shape, ndim)
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
    if isinstance(annotation, ScalarType | TypeVar):
        found = Annotation("scalar", annotation)
    elif get_origin(annotation) in SLICES:
        found = _slice_of(function, f"kernel {kernel}: parameter {name}", name, annotation)
    else:
        from oxide.compiler.signature.annotation_advice import of_annotation

        shown = getattr(annotation, "__name__", None) or repr(annotation)
        raise refused(function, kernel, name, f"is annotated {shown}; {of_annotation(annotation)}")
    scalar = found.scalar
    if isinstance(scalar, TypeVar):
        from .generic_parameters import open_parameter

        return open_parameter(function, kernel, name, found.kind, scalar, found.tile, found.ndim)
    if not isinstance(scalar, ScalarType):
        from oxide.compiler.signature.annotation_advice import of_element

        problem = f"the elements of a slice are scalars: {of_element(scalar)}"
        raise at_parameter(function, name, f"kernel {kernel}: parameter {name}: {problem}")
    if found.kind == "atomic" and scalar.name not in ATOMIC:
        raise located(
            function,
            f"kernel {kernel}: parameter {name}: an AtomicSlice has elements of {' '.join(ATOMIC)}, not {scalar.name}",
        )
    return Parameter(kernel, name, found.kind, scalar, found.tile, ndim=found.ndim)
