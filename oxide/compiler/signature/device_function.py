"""``@device``: functions that kernels call.

A device function is compiled into each kernel that reaches it. On the host it stays a plain Python function. A
parameter without an annotation is generic. An argument for an annotated parameter is converted to the annotated type,
or must have that type. A kernel may also call a program's Python functions without ``@device``
(``plain_function``).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, final

from oxide.compiler.source.source import keep_text

from .annotations import Annotation, parse_annotations

P = ParamSpec("P")
R = TypeVar("R")


@final
class DeviceFunction(Generic[P, R]):
    """A function that kernels may call. Calling it on the host calls the Python function."""

    def __init__(
        self, function: Callable[P, R], names: Mapping[str, Any] | None = None, *, plain: bool = False
    ) -> None:
        self.function = function
        self.annotations: dict[str, Annotation] = parse_annotations(function, names or {}, lenient=plain)
        """The annotations of the parameters by name, and the annotation of the result under ``return``."""
        self.captures: tuple[str, ...] = ()
        """Of a function that a kernel defines: the parameters for the variables of the kernel that it reads."""
        functools.update_wrapper(self, function)
        keep_text(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> str:
        return global_name(self, f"device function {self.function.__qualname__}")

    def __copy__(self) -> DeviceFunction[P, R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceFunction[P, R]:
        return self  # a function is its own copy

    def __repr__(self) -> str:
        return f"<device function {self.function.__qualname__}>"


_HOST_PACKAGES = {"numba", "numpy", "oxide", "oxide_kernels", "scipy", "torch", *sys.stdlib_module_names}
"""Packages whose Python functions are for the host, except for those that kernels know."""


def plain_function(function: object) -> DeviceFunction[..., Any] | None:
    """Returns the device function that kernels call for a program's Python function without ``@device``. Returns None
    for anything else.

    Annotations that a device function cannot have, such as ``int``, mean nothing there. The function holds its device
    function, so both live equally long.
    """
    if type(function) is not FunctionType or (function.__module__ or "").partition(".")[0] in _HOST_PACKAGES:
        return None
    found: DeviceFunction[..., Any] | None = vars(function).get("__oxide_device__")
    if found is None or found.function is not function:  # a decorator copies attributes to its own function
        found = DeviceFunction(function, plain=True)
        vars(function)["__oxide_device__"] = found
    return found


def is_function(argument: object) -> bool:
    """Returns whether a launch argument fits a function parameter: a Python function or a device function."""
    return type(argument) is FunctionType or isinstance(argument, DeviceFunction)


def device(function: Callable[P, R]) -> DeviceFunction[P, R]:
    """Marks a device function. Raises ``CompileError`` for annotations that a device function cannot have.

    A parameter without an annotation is generic: the function is compiled for the arguments' types. If a parameter is
    annotated as a scalar, its argument is converted as in a store to an element: an integer to a float or to another
    integer type. A float becomes an integer only by an explicit conversion, as in ``i32(x)``. ``Slice[T]`` and
    ``DisjointSlice[T]`` take exactly these types. The result is converted to a scalar return annotation by the same
    rule.
    """
    return DeviceFunction(function, dict(sys._getframe(1).f_locals))


def global_name(thing: Any, shown: str) -> str:
    """Returns the name under which a module holds a kernel or a device function, for ``__reduce__`` to return. They are
    pickled by name, as functions are: a kernel has compiled code and locks, which no other process can use.

    Raises ``TypeError`` if the module holds it under no name. ``shown`` describes the object in the error.
    """
    module = sys.modules.get(thing.__module__)
    held: Any = module
    for part in thing.__qualname__.split("."):
        held = getattr(held, part, None)
    if held is thing:
        return str(thing.__qualname__)
    # The name may differ from the function's, as in `adopted = kernel(f)`.
    for name, held in vars(module).items() if module is not None else ():
        if held is thing:
            return name
    raise TypeError(
        f"{shown} cannot be pickled: it is pickled by its name, as a function is, and module {thing.__module__} has no "
        f"name for it; define {thing.__name__} at the top of a module"
    )
