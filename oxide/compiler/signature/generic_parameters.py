"""Parameters of generic kernels: their annotations, and the parameter that a function argument becomes.

Kept out of ``signature.py``, because few programs need it and each module adds to the time of ``import oxide``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, final, get_args

import numpy as np

from oxide.compiler.source.source import at_parameter
from oxide.language.types import ATOMIC, SCALAR_NAMES, SCALARS, ScalarType

from .signature import Kind, Parameter, no_number, shown


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

    @property
    def annotation(self) -> str:
        """Returns the annotation as it is written."""
        return shown(self.kind, self.variable, self.tile, self.ndim)

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
        raise no_number(self.kernel, self.name, self.annotation, value)

    def closed(self, scalar: ScalarType) -> Parameter:
        """Returns the parameter with ``scalar`` for the type variable."""
        return Parameter(self.kernel, self.name, self.kind, scalar, self.tile, ndim=self.ndim)


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


def open_parameter(
    function: Callable[..., Any],
    kernel: str,
    name: str,
    kind: Kind,
    variable: TypeVar,
    tile: tuple[int, ...],
    ndim: int,
) -> OpenParameter:
    """Returns the parameter for an annotation with a type variable. Raises ``CompileError`` if the variable may stand
    for a type that such a parameter cannot have."""
    choices = _choices(function, kernel, name, kind, variable)
    return OpenParameter(kernel, name, kind, variable.__name__, choices, tile, ndim)


def function_parameter(function: Callable[..., Any], kernel: str, name: str, annotation: Any) -> OpenFunction:
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
        raise at_parameter(
            function,
            name,
            f"kernel {kernel}: parameter {name}: a function takes and returns scalars ({SCALAR_NAMES}) in its "
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
    """Returns the scalar types that a type variable may stand for: its constraints, or every scalar type that the
    parameter may have."""
    possible = ATOMIC if kind == "atomic" else SCALARS
    problem = None
    if variable.__bound__ is not None:
        problem = "has a bound, which says nothing of machine types"
    wrong = [each for each in variable.__constraints__ if not isinstance(each, ScalarType) or each.name not in possible]
    if wrong:
        problem = f"may be {getattr(wrong[0], '__name__', wrong[0])}, which {kind} parameters cannot have here"
    if problem is not None:
        raise at_parameter(
            function,
            name,
            f"kernel {kernel}: parameter {name}: the type variable {variable.__name__} {problem}; constrain it to "
            f"scalar types, as in TypeVar({variable.__name__!r}, f32, f64); possible are {' '.join(possible)}",
        )
    if variable.__constraints__:
        return tuple(variable.__constraints__)
    return tuple(possible.values())
