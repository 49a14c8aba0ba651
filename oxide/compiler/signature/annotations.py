"""Parses the annotations of kernels and device functions. Nothing is compiled."""

from __future__ import annotations

import ast
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final, get_args, get_origin

import numpy as np

from oxide.compiler.source.source import EMPTY, at_parameter, closure_values, located, parse_definition
from oxide.errors import CompileError
from oxide.language.arrays import Array, ArrayAnnotation
from oxide.language.structures import NoStructure, StructureType, is_named_tuple, structure_of
from oxide.language.types import ATOMIC, OF_PYTHON, SCALAR_NAMES, SCALARS, ScalarType, of_dtype
from oxide.language.vectors import Vector, VectorType

from .signature import (
    SLICES,
    Declared,
    Kind,
    NumbaParameter,
    OpenFunction,
    OpenParameter,
    Parameter,
    UntypedParameter,
    refused_parameter,
)
from .untyped_arguments import ArrayType


def parse_parameters(
    function: Callable[..., Any], name: str, local_names: Mapping[str, Any], adopted: bool = False
) -> tuple[Declared, ...]:
    """Parses a kernel's parameters from its annotations, string annotations included. Raises ``CompileError``.

    ``local_names`` are the local names where the kernel is defined: a string annotation may use them. If ``adopted``,
    the function is from a kernel of numba-cuda, and its annotations are ignored.

    A kernel is typed whole, or not at all: a parameter whose annotation was forgotten would be a raw array, which is
    not checked.
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
        untyped = adopted or parameter.annotation is inspect.Parameter.empty
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and untyped:
            problem = f"{parameter.name} is given by name alone, as those of typed kernels may be: annotate it"
            raise refused_parameter(function, name, parameter.name, problem)
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            problem = f"{parameter.name} must be an ordinary one, without /, and none of *args and **kwargs"
            raise refused_parameter(function, name, parameter.name, problem)
        if untyped:
            parameters.append(UntypedParameter(name, parameter.name))
            continue
        annotation = names.evaluate(parameter.annotation, f"the annotation of {parameter.name}", parameter.name)
        parameters.append(_parameter(function, name, parameter.name, annotation, names))
    bare = [each.name for each in parameters if isinstance(each, UntypedParameter)]
    if bare and len(bare) < len(parameters):
        raise refused_parameter(function, name, bare[0], _unannotated(function, bare[0]))
    return tuple(parameters)


def default_values(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the defaults of a function's parameters by name."""
    code, defaults = function.__code__, getattr(function, "__defaults__", None) or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return dict(zip(names, defaults, strict=True)) | (getattr(function, "__kwdefaults__", None) or {})


@final
@dataclass(frozen=True, slots=True)
class Annotation:
    """A device function's annotation of a parameter or of the result."""

    kind: Kind
    scalar: Any
    tile: tuple[int, ...] = ()
    ndim: int = 1


def parse_annotations(
    function: Callable[..., Any], local_names: Mapping[str, Any], *, lenient: bool = False
) -> dict[str, Annotation]:
    """Returns the annotations of a device function by parameter, and the annotation of the result under ``return``.
    Raises ``CompileError`` for one that means nothing, or with ``lenient`` leaves it out.

    A parameter is generic if it has no annotation, ``Any``, a type variable, or a type that only the compiler makes: a
    ``ThreadIndex``, a ``Ref``, shared memory, None.
    """
    found: dict[str, Annotation] = {}
    names = Names(function, local_names)
    for name, annotation in (getattr(function, "__annotations__", None) or {}).items():
        try:
            declared = _declared(function, name, annotation, names)
        except CompileError:
            if not lenient:
                raise
            declared = None
        if declared is not None:
            found[name] = declared
    return found


def _declared(function: Callable[..., Any], name: str, annotation: Any, names: Names) -> Annotation | None:
    """Returns an annotation of a device function; None for a generic parameter. Raises ``CompileError``."""
    what = f"device function {function.__name__}: " + ("the result" if name == "return" else f"parameter {name}")
    value = names.evaluate(annotation, f"{what}: the annotation", name)
    if isinstance(value, ScalarType | VectorType):
        declared = Annotation("scalar", value)
    elif is_named_tuple(value):
        try:
            return Annotation("scalar", structure_of(value, _evaluated(value, names, name)))
        except NoStructure:
            return None  # a tuple of other things, which is generic
    elif get_origin(value) in SLICES and SLICES[get_origin(value)][0] != "atomic":
        declared = _slice_of(function, what, name, value)
        if isinstance(declared.scalar, TypeVar):
            return None
    elif value in (int, float, bool, complex, str):
        raise at_parameter(
            function,
            name,
            f"{what} is annotated {value.__name__}; annotate it as a scalar ({SCALAR_NAMES}), Slice[T] or "
            "DisjointSlice[T], or not at all",
        )
    else:
        return None
    if isinstance(declared.scalar, VectorType) and isinstance(declared.scalar.scalar, TypeVar):
        return None
    if is_named_tuple(declared.scalar):
        return replace(declared, scalar=_structure(function, what, name, declared.scalar, names))
    if not isinstance(declared.scalar, ScalarType | VectorType):
        problem = f"{what}: scalars and the elements of slices are {SCALAR_NAMES}"
        raise at_parameter(function, name, problem)
    return declared


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
    from oxide.language.tiles import RowMajorTiles, Rows, Tiles

    if kind == "disjoint" and ndim == 2 and layouts == [Rows]:
        return Annotation("tiles", scalar, Rows.shape, ndim)
    if kind != "disjoint" or len(layouts) > 1 or type(layouts[0]) not in (Tiles, RowMajorTiles):
        problem = (
            "beside its elements' type a DisjointSlice takes a layout, Tiles(n) or RowMajorTiles(r, c), a "
            "DisjointSlice2 also Rows, and every slice its number of axes, 1 to 5, an AtomicSlice up to 3"
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
        problem = "say of what and with how many axes, as in Array[f32, 2]"
        raise refused_parameter(function, kernel, name, f"{name} is annotated Array; {problem}")
    if isinstance(annotation, ArrayAnnotation):
        return NumbaParameter(kernel, name, ArrayType(annotation.dtype, annotation.ndim))
    if annotation is Callable or annotation is typing.Callable or get_origin(annotation) is Callable:
        return _function_parameter(function, kernel, name, annotation)
    if isinstance(annotation, type) and issubclass(annotation, Vector):
        problem = f"{name} is annotated {annotation.__name__}; say of what, as in {annotation.__name__}[f32]"
        raise refused_parameter(function, kernel, name, problem)
    if isinstance(annotation, VectorType):
        from .tuples import vector_parameter

        return vector_parameter(kernel, name, annotation, functools.partial(refused_parameter, function, kernel, name))
    if annotation is tuple or get_origin(annotation) is tuple or hasattr(annotation, "_fields"):
        from .tuples import tuple_parameter

        def evaluate(text: str) -> Any:
            return names.evaluate(text, f"the annotation of {name}", name)

        refuse = functools.partial(refused_parameter, function, kernel, name)
        return tuple_parameter(kernel, name, annotation, evaluate, refuse)
    if isinstance(annotation, ScalarType | TypeVar):
        found = Annotation("scalar", annotation)
    elif get_origin(annotation) in SLICES:
        found = _slice_of(function, f"kernel {kernel}: parameter {name}", name, annotation)
    else:
        shown = getattr(annotation, "__name__", None) or repr(annotation)
        raise refused_parameter(function, kernel, name, f"{name} is annotated {shown}; {of_annotation(annotation)}")
    scalar, components = found.scalar, 1
    if isinstance(scalar, VectorType):
        scalar, components = scalar.scalar, scalar.count
        if found.kind == "atomic":
            problem = f"{name}: an AtomicSlice has scalars, not vectors; no atomic operation takes several numbers"
            raise refused_parameter(function, kernel, name, problem)
    structure = None
    if is_named_tuple(scalar):
        if found.kind == "atomic":
            problem = (
                f"{name}: an AtomicSlice has scalars, not {scalar.__name__}: no atomic operation takes several "
                "numbers; keep the field that several threads change in an AtomicSlice of its own"
            )
            raise refused_parameter(function, kernel, name, problem)
        structure = _structure(function, f"kernel {kernel}: parameter {name}", name, scalar, names)
        scalar = ScalarType(structure.name, "V", 8 * structure.dtype.itemsize, structure.dtype)
    if isinstance(scalar, TypeVar):
        choices = _choices(function, kernel, name, found.kind, scalar)
        return OpenParameter(kernel, name, found.kind, scalar.__name__, choices, found.tile, found.ndim, components)
    if not isinstance(scalar, ScalarType):
        problem = f"the elements of a slice are scalars, vectors or structures: {of_element(scalar)}"
        raise refused_parameter(function, kernel, name, f"{name}: {problem}")
    if found.kind == "atomic" and scalar.name not in ATOMIC:
        raise located(
            function,
            f"kernel {kernel}: parameter {name}: an AtomicSlice has elements of {' '.join(ATOMIC)}, not {scalar.name}",
        )
    return Parameter(
        kernel, name, found.kind, scalar, found.tile, ndim=found.ndim, components=components, structure=structure
    )


def _structure(function: Callable[..., Any], what: str, name: str, made_of: Any, names: Names) -> StructureType:
    """Returns the structure type of a NamedTuple class. Raises ``CompileError`` for a class that is no structure."""
    try:
        return structure_of(made_of, _evaluated(made_of, names, name))
    except NoStructure as problem:
        raise at_parameter(function, name, f"{what}: {problem}") from None


def _evaluated(made_of: Any, names: Names, name: str) -> Callable[[str], Any]:
    return lambda text: names.evaluate(text, f"the annotation of {made_of.__name__}", name)


def _function_parameter(function: Callable[..., Any], kernel: str, name: str, annotation: Any) -> OpenFunction:
    """Returns the parameter for ``Callable``, ``Callable[[f32, T], T]`` or ``Callable[..., f32]``. ``Any`` means no
    conversion. Raises ``CompileError`` for any other type in the annotation that is no scalar."""
    choices: dict[str, tuple[ScalarType, ...]] = {}

    def meaning(each: Any) -> ScalarType | str | None:
        if isinstance(each, TypeVar):
            choices[each.__name__] = _choices(function, kernel, name, "scalar", each)
            return each.__name__
        if each is Any:
            return None
        if isinstance(each, ScalarType):
            return each
        raise refused_parameter(
            function,
            kernel,
            name,
            f"{name}: a function takes and returns scalars ({SCALAR_NAMES}) in its "
            f"annotation, not {getattr(each, '__name__', each)}; Any says nothing of a type",
        )

    taken, returned = get_args(annotation) or (..., Any)
    takes = None if taken is ... else tuple(meaning(each) for each in taken)
    returns = meaning(returned)
    given = "..." if takes is None else f"[{', '.join(_type_name(each) for each in takes)}]"
    shown = f"Callable[{given}, {_type_name(returns)}]"
    return OpenFunction(kernel, name, takes, returns, shown, tuple(choices.items()))


def _type_name(kind: ScalarType | str | None) -> str:
    return "Any" if kind is None else str(kind)


def _choices(
    function: Callable[..., Any], kernel: str, name: str, kind: Kind, variable: TypeVar
) -> tuple[ScalarType, ...]:
    """Returns the scalar types that a type variable may stand for: its constraints, or all that are possible."""
    possible = ATOMIC if kind == "atomic" else SCALARS
    problem = None
    if variable.__bound__ is not None:
        problem = "has a bound, which says nothing of machine types"
    wrong = [each for each in variable.__constraints__ if not isinstance(each, ScalarType) or each.name not in possible]
    if wrong:
        problem = f"may be {getattr(wrong[0], '__name__', wrong[0])}, which {kind} parameters cannot have here"
    if problem is not None:
        raise refused_parameter(
            function,
            kernel,
            name,
            f"{name}: the type variable {variable.__name__} {problem}; constrain it to "
            f"scalar types, as in TypeVar({variable.__name__!r}, f32, f64); possible are {' '.join(possible)}",
        )
    if variable.__constraints__:
        return tuple(variable.__constraints__)
    return tuple(possible.values())


# Advice for missing and wrong annotations


def _unannotated(function: Callable[..., Any], name: str) -> str:
    """Returns the problem with the parameter ``name``, which has no annotation, while others have one. The advice
    follows from the uses of the parameter in the function's source."""
    return (
        f"{name} has no annotation, and others have one: annotate every parameter, or none for a kernel as in "
        f"numba-cuda; {name} {_annotation_for(function, name)}"
    )


def _annotation_for(function: Callable[..., Any], name: str) -> str:
    try:
        body, _ = parse_definition(function)
    except CompileError:  # the source cannot be read, which is an error of its own when the kernel is compiled
        return "may be a scalar, as in i32, a slice, as in Slice[f32], or an array, as in Array[f32, 1]"
    used = [node for node in ast.walk(body) if _is_named(getattr(node, "value", None), name)]
    attributes = {node.attr for node in used if isinstance(node, ast.Attribute)}
    indexed = [node for node in used if isinstance(node, ast.Subscript)]
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
    ndim = max((len(each.slice.elts) for each in indexed if isinstance(each.slice, ast.Tuple)), default=1)
    axes = str(ndim) if ndim > 1 else ""
    if any(_is_named(call.func, name) for call in calls):
        return "is called: annotate it as Callable"
    if attributes & _OF_OUTPUTS:
        return f"is an output: annotate it as DisjointSlice{axes}[f32], or as one of another type"
    if any(isinstance(node.ctx, ast.Store) for node in indexed):
        return f"is written by index: annotate it as Array[f32, {ndim}], or make it a DisjointSlice{axes}[f32]"
    if indexed or any(_is_named(call.func, "len") and _is_named(call.args[0], name) for call in calls if call.args):
        return f"is read by index: annotate it as Slice{axes}[f32], or as Array[f32, {ndim}], which is not checked"
    return f"is a number here: annotate it as a scalar, as in {name}: i32 or {name}: f32"


_OF_OUTPUTS = frozenset(("get_mut", "get_remainder", "scatter", "unchecked_mut"))


def _is_named(node: Any, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def of_annotation(annotation: Any) -> str:
    """Returns advice for the annotation of a kernel's parameter. ``annotation`` is the refused annotation."""
    scalars = _scalars_for(annotation)
    if scalars:
        return f"annotate it as {scalars}"
    if annotation in SLICES:
        return f"say of what, as in {annotation.__name__}[f32]"
    if annotation is np.ndarray or getattr(annotation, "__origin__", annotation) in (list, np.ndarray, Sequence):
        return "an input is Slice[f32] or Slice2[f32], an output DisjointSlice[f32], an array Array[f32, 2]"
    return (
        f"annotate it as a scalar ({SCALAR_NAMES}), a tuple or a NamedTuple of scalars, Slice[T], "
        "DisjointSlice[T], AtomicSlice[T], Array[T, ndim] or Callable, where T may be a TypeVar"
    )


def of_element(annotation: Any) -> str:
    """Returns advice for the element type of a slice. ``annotation`` is the refused element type."""
    scalars = _scalars_for(annotation)
    shown = getattr(annotation, "__name__", repr(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Vector):
        return f"say of what the vectors are, as in {shown}[f32]"
    return f"write {scalars}, not {shown}" if scalars else SCALAR_NAMES


def _scalars_for(annotation: Any) -> str:
    """Returns oxide's scalar types for a number type of Python or NumPy, or an empty string."""
    if annotation in OF_PYTHON:
        plain = OF_PYTHON[annotation]
        kinds = "iu" if plain.kind == "i" else plain.kind
        *first, last = (
            name for name, each in SCALARS.items() if each.kind in kinds and each.bits in (plain.bits, plain.bits // 2)
        )
        return f"{', '.join(first)} or {last}" if first else last
    return dtype_name(annotation) or ""


def dtype_name(value: Any) -> str | None:
    """Returns oxide's name for a scalar type of NumPy, or None."""
    if not (isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))):
        return None
    try:
        known = of_dtype(np.dtype(value))
    except TypeError:
        return None
    return None if known is None else known.name
