"""Declares the functions and classes of the kernel language.

A declaration has a name, parameters and a docstring. The documentation and type checkers read it. The compiler takes
the functions that a kernel can name from ``FUNCTIONS``, and has the types and the code of each function in
``compiler/primitives``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

FUNCTIONS: set[Callable[..., Any]] = set()
"""The functions of the kernel language."""


def function(declared: Function) -> Function:
    """Declares a function of the kernel language, whose body is its docstring. Outside of kernels it raises
    ``TypeError``."""

    @functools.wraps(declared)
    def refuse(*args: Any, **named: Any) -> NoReturn:
        only_in_a_kernel(name_of(declared))

    FUNCTIONS.add(refuse)
    return refuse  # type: ignore[return-value]


def name_of(function: Callable[..., Any]) -> str:
    """Returns a declared function's name as users write it, such as ``warp.shuffle`` or ``tensor.cluster.sync``."""
    module, *parts = function.__module__.removeprefix("oxide.language.").split(".")
    public = [] if module == "views" else [module, *(part for part in parts if part == "cluster")]
    return ".".join([*public, function.__name__])


def only_in_a_kernel(name: str) -> NoReturn:
    """Raises the error for a use of the kernel language outside of kernels."""
    raise TypeError(f"{name} has a meaning only inside a @kernel, where the compiler gives it one")


def made_in_kernels(declared: Class) -> Class:
    """Declares a class whose instances kernels make. Outside of kernels its methods and properties raise
    ``TypeError``."""
    return _refusing(declared, only_in_a_kernel)


def passed_to_kernels(declared: Class) -> Class:
    """Declares a class for the parameters of kernels. Outside of kernels its methods and properties raise
    ``TypeError``."""

    def refuse(name: str) -> NoReturn:
        raise TypeError(
            f"{name} exists only inside a @kernel; on the host, pass a device buffer where a kernel takes one"
        )

    return _refusing(declared, refuse)


def _refusing(declared: Class, refuse: Callable[[str], NoReturn]) -> Class:
    """Returns the class with methods and properties that call ``refuse`` with the name of the object's class."""

    def method(original: Any) -> Any:
        @functools.wraps(original)
        def refusing(self: object, *args: Any, **named: Any) -> NoReturn:
            refuse(type(self).__name__)

        return refusing

    for name, member in {"__init__": object.__init__, **vars(declared)}.items():
        if name == "__init__" or isinstance(member, FunctionType):
            setattr(declared, name, method(member))
        elif isinstance(member, property):
            setattr(declared, name, property(method(member.fget), doc=member.__doc__))
    return declared
