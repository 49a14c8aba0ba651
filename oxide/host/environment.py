"""Reads the program's surroundings: environment variables, and which packages are installed.

A variable holds a whole number or one of several words. Any other value raises an error that names the variable.
Otherwise a mistake, such as a wrong memory limit or a seed that is no number, would show only much later.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from oxide.errors import CompileError, DeviceError, LaunchError

P = ParamSpec("P")
R = TypeVar("R")
Word = TypeVar("Word", bound=str)


def whole_number(variable: str, *, least: int) -> int | None:
    """Returns the environment variable's number, of ``least`` or more; None if it is not set.

    Raises ``DeviceError`` for anything else."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    # Python parses at most 4300 digits, and no valid number here has more than twenty.
    if not (text.isascii() and text.isdecimal() and len(text) <= 4300) or int(text) < least:
        raise DeviceError(
            f"{variable}={text!r:.80}: a whole number of {least} or more is needed; set it so, or unset it"
        )
    return int(text)


def word(variable: str, known: tuple[Word, ...]) -> Word | None:
    """Returns the environment variable's word, one of ``known``; None if it is not set.

    Raises ``DeviceError`` for anything else."""
    text = os.environ.get(variable, "").strip()
    for each in known:
        if text == each:
            return each
    if text:
        needed = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
        raise DeviceError(f"{variable}={text!r}: {needed} is needed; set it so, or unset it")
    return None


def full_traceback() -> bool:
    """Returns whether ``OXIDE_TRACEBACK=full`` requests every frame and cause of an error about the user's program."""
    return word("OXIDE_TRACEBACK", ("full",)) is not None


def drop_frames(error: BaseException) -> None:
    """Removes this package's frames from the traceback of an error about the user's program, just before it is raised
    again: they would stand between the user's line and the message. An error with a cause is a failure of the package
    itself, and keeps its frames. With ``OXIDE_TRACEBACK=full`` every error keeps them."""
    if error.__cause__ is None and not full_traceback():
        error.__traceback__ = None


def without_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function: errors about the user's program that it raises lose this package's frames."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (CompileError, LaunchError) as error:
            drop_frames(error)
            raise  # adds no frame

    return called


@functools.cache
def is_installed(module: str) -> bool:
    """Returns whether a module can be found. Imports nothing but the packages that contain it."""
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # a package that contains it is missing
        return False
