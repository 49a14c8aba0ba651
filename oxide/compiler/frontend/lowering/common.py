"""What the types of the kernel language have in common, for numba: their form, length, elements, and test for None."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from numba.cuda import types
from numba.cuda.extending import core_models, register_model
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from .registry import lowering_registry, note, typing_registry
from .types import PLACE, conversion_problem, display


def structure(*kinds: Any, members: Callable[[Any], list[tuple[str, Any]]]) -> None:
    """Gives types the form of a structure. ``members(kind)`` returns the names and the types of its members."""

    class Model(core_models.StructModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, members(kind))

    for kind in kinds:
        register_model(kind)(Model)


def primitive(kind: Any, form: Callable[[Any], Any]) -> None:
    """Gives a type the form of one value of LLVM's type ``form(kind)``."""

    class Model(core_models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, form(kind))

    register_model(kind)(Model)


def address(kind: Any) -> None:
    """Gives a type the form of a pointer to its first element."""

    class Model(core_models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, manager.lookup(kind.dtype).get_data_type().as_pointer())

    register_model(kind)(Model)


def same_form(*kinds: Any) -> None:
    """Lets a value be converted to another type of the same class as it is."""
    for kind in kinds:

        @lowering_registry.lower_cast(kind, kind)
        def cast(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
            return value


def has_length(*kinds: Any) -> Callable[[Any], Any]:
    """Makes ``len(x)`` a place, which the decorated function lowers."""

    def register(lower: Any) -> Any:
        @typing_registry.register_global(len)
        class Length(AbstractTemplate):  # type: ignore[misc]
            def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
                return signature(PLACE, *args) if len(args) == 1 and isinstance(args[0], kinds) else None

        for kind in kinds:
            lowering_registry.lower(len, kind)(lower)
        return lower

    return register


def check_value(dtype: Any, value: Any) -> bool:
    """Returns whether a value may be stored as ``dtype``. A float may not be stored as an integer, because it would
    lose its fraction. If the value may not be stored, adds a note with the reason."""
    why = conversion_problem(dtype, value)
    if why is not None:
        note(f"the element is {display(dtype)} and {why}")
    return why is None


def optional(*kinds: Any) -> Callable[[Any], Any]:
    """Allows ``x is None`` and ``x is not None``. The decorated function lowers the latter."""

    def register(is_there: Any) -> Any:
        class NoneTest(AbstractTemplate):  # type: ignore[misc]
            def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
                if len(args) == 2 and isinstance(args[0], kinds) and isinstance(args[1], types.NoneType):
                    return signature(types.boolean, *args)
                return None

        def is_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.not_(is_there(context, builder, sig, args))

        for test, lower in ((operator.is_, is_none), (operator.is_not, is_there)):
            typing_registry.register_global(test)(NoneTest)
            for kind in kinds:
                lowering_registry.lower(test, kind, types.NoneType)(lower)
        return is_there

    return register


def attribute(kind: Any, name: str, type_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Gives a type an attribute of the type ``type_of(kind)``. The decorated function lowers the reads of it."""

    def register(lower: Any) -> Any:
        @typing_registry.register_attr
        class Attribute(AttributeTemplate):  # type: ignore[misc]
            key = kind

            def generic_resolve(self, kind: Any, attribute: str) -> Any:
                return type_of(kind) if attribute == name else None

        return lowering_registry.lower_getattr(kind, name)(lower)

    return register


def methods(kind: Any, **templates: Any) -> None:
    """Gives a type methods. ``templates`` maps the name of each to the template that types its calls."""

    @typing_registry.register_attr
    class Methods(AttributeTemplate):  # type: ignore[misc]
        key = kind

        def generic_resolve(self, kind: Any, name: str) -> Any:
            return types.BoundFunction(templates[name], kind) if name in templates else None
