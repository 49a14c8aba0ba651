"""Structures: a ``typing.NamedTuple`` whose fields are scalars, vectors or other structures.

    class Particle(NamedTuple):
        position: Vec3[f32]
        velocity: Vec3[f32]
        mass: f32

On the host a structure is the NamedTuple that it is for Python. In memory its fields lie as in C, which is NumPy's
``align=True``, so a box of structures has a structured dtype (``dtype_of``). Kernels and the interpreter read the
fields and their types from ``StructureType``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ForwardRef, final

import numpy as np

from oxide.host.weak_table import WeakTable

from .types import SCALAR_NAMES, ScalarType, as_dtype
from .vectors import Vector, VectorType

_TAKEN = frozenset(("index", "count"))
"""The names of methods that a field would hide. A tuple has them, so other code may call them."""
_WIDEST = 16
"""The bytes of the longest access of one thread."""


@final
@dataclass(frozen=True, slots=True)
class StructureType:
    """The type of a structure: its class, and the scalar, vector or structure type of each field."""

    made_of: Any
    kinds: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Returns the name of the class."""
        return str(self.made_of.__name__)

    @property
    def fields(self) -> tuple[str, ...]:
        """Returns the names of the fields."""
        return tuple(self.made_of._fields)

    @property
    def identity(self) -> str:
        """Returns the class, the fields and their types as a text that is the same in every process."""
        pairs = zip(self.fields, self.kinds, strict=True)
        inside = ", ".join(f"{field}: {getattr(kind, 'identity', kind.name)}" for field, kind in pairs)
        return f"{self.made_of.__module__}.{self.made_of.__qualname__}({inside})"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the NumPy dtype of a structure in memory, whose fields are aligned as in C."""
        pairs = zip(self.fields, self.kinds, strict=True)
        return np.dtype([(field, kind.dtype) for field, kind in pairs], align=True)

    @property
    def alignment(self) -> int:
        """Returns the alignment of a structure's address in bytes: the greatest power of two that divides its size, up
        to 16, so that neighbouring fields can be one access."""
        size = self.dtype.itemsize
        return min(size & -size, _WIDEST)


class NoStructure(TypeError):
    """The class is no structure. The text says why."""


_known: WeakTable[Any, StructureType] = WeakTable()


def is_named_tuple(kind: Any) -> bool:
    """Returns whether an object is a NamedTuple class."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def dtype_of(kind: Any) -> np.dtype[Any]:
    """Returns the NumPy dtype in which a type of kernels is in memory.

    For ``Vec3[f32]`` it is ``np.dtype((np.float32, (3,)))``, so that an array of n vectors has the shape (n, 3). For a
    NamedTuple of scalars, vectors and such NamedTuples it is a structured dtype with NumPy's ``align=True``. Raises
    ``TypeError`` for what has no dtype.
    """
    if isinstance(kind, VectorType):
        return kind.dtype
    return structure_of(kind).dtype if is_named_tuple(kind) else as_dtype(kind, "dtype_of")


def structure_of(made_of: Any, evaluate: Callable[[str], Any] | None = None) -> StructureType:
    """Returns the structure type of a NamedTuple class. ``evaluate`` evaluates annotations with names that the class's
    module does not have. Raises ``NoStructure`` if the class is no structure."""
    found = _known.get(made_of)
    if found is None:
        if not made_of._fields:
            raise NoStructure(f"{made_of.__name__} has no fields")
        kinds = tuple(_kind_of(made_of, field, evaluate) for field in made_of._fields)
        found = _known.set(made_of, StructureType(made_of, kinds))
    return found


def problem_of(made_of: Any) -> str | None:
    """Returns the reason why a NamedTuple class is no structure. Returns None if it is one."""
    try:
        structure_of(made_of)
    except NoStructure as problem:
        return str(problem)
    return None


def is_structure(kind: Any) -> bool:
    """Returns whether an object is the class of a structure."""
    return is_named_tuple(kind) and problem_of(kind) is None


def _kind_of(made_of: Any, field: str, evaluate: Callable[[str], Any] | None) -> Any:
    shown = f"{made_of.__name__}.{field}"
    if field in _TAKEN:
        raise NoStructure(f"{shown} has the name of a method of tuples: rename the field")
    try:
        kind = field_type(made_of, field, evaluate)
    except NameError as error:
        raise NoStructure(f"the annotation of {shown} cannot be evaluated: {error}") from None
    if is_named_tuple(kind):
        return structure_of(kind, evaluate)
    if isinstance(kind, ScalarType) or (isinstance(kind, VectorType) and isinstance(kind.scalar, ScalarType)):
        return kind
    if isinstance(kind, type) and issubclass(kind, Vector):
        raise NoStructure(f"{shown} is annotated {kind.__name__}; say of what, as in {kind.__name__}[f32]")
    what = "has no annotation" if kind is None else f"is annotated {kind.__name__ if type(kind) is type else kind}"
    raise NoStructure(
        f"{shown} {what}; the fields of a structure are scalars ({SCALAR_NAMES}), vectors, as Vec3[f32], and "
        "NamedTuples of these"
    )


def field_type(made_of: Any, field: str, evaluate: Callable[[str], Any] | None = None) -> Any:
    """Returns the annotation of a NamedTuple's field, None for one of ``collections.namedtuple``. Raises ``NameError``
    for a name that nothing defines."""
    declared = (getattr(kind, "__annotations__", {}) for kind in made_of.__mro__)
    kind = next((annotations[field] for annotations in declared if field in annotations), None)
    text = kind.__forward_arg__ if isinstance(kind, ForwardRef) else kind
    if not isinstance(text, str):
        return text
    module = sys.modules.get(made_of.__module__)
    try:
        return eval(text, dict(vars(module)) if module is not None else {})
    except NameError:
        if evaluate is None:
            raise
        return evaluate(text)  # a type that is local to the function that defines class and kernel
