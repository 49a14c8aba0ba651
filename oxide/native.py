"""Lets one source run in two forms: interpreted, and compiled by mypyc.

The runtime is ordinary Python. A wheel built with a C compiler also contains the modules as extension modules, next to
their sources, and Python imports the extension modules. A checkout has no extension modules. ``build_backend.py`` lists
the compiled modules, and ``docs/notes/host-path.md`` explains the idioms that only the compiled form needs.

This file itself is never compiled.
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from importlib.machinery import ExtensionFileLoader, PathFinder
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

COMPILING = False  # native.ini makes it True for mypyc
if not COMPILING:
    Given = Annotated[T, "judged by the function itself"]
else:
    Given = Union[T, Any]  # type: ignore[misc]  # noqa: UP007

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_options):
        return lambda decorated: decorated


_PACKAGE = os.path.dirname(os.path.abspath(__file__))


@cache
def is_compiled() -> bool:
    """Returns whether this installation of the package contains the runtime's modules in compiled form."""
    found = PathFinder.find_spec("oxide.locks", [_PACKAGE])
    return found is not None and isinstance(found.loader, ExtensionFileLoader)


def form() -> str:
    """Returns ``"compiled"`` or ``"interpreted"``, for reports."""
    return "compiled" if is_compiled() else "interpreted"


def keep_alive(thing: object) -> None:
    """Keeps a local variable's object alive up to this call, because the address of its memory is in use. Compiled code
    drops the object after the last use of the variable, hence before a call that gets only the address."""


def warn_caller(message: str) -> None:
    """Gives a ``RuntimeWarning`` at the line of the program that called the package."""
    frame = sys._getframe()  # it may be the only frame, in a compiled finaliser while the interpreter shuts down
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE + os.sep):
        frame = frame.f_back
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def caused(error: E, cause: BaseException | None) -> E:
    """Sets the cause of ``error`` as ``raise error from cause`` does, and returns the error."""
    error.__cause__ = cause
    return error
