"""Warnings for unused objects that a program drops: an operation that was never run, or an error that was never seen.

A warning runs Python, so a finaliser cannot give it. Instead the finaliser records, in C, the object and the line that
dropped it, and requests a call of ``report`` (``_core/finalisers.c``). At the interpreter's end such requests are no
longer served, so from then on ``complain`` gives the warning at once. The globals of modules may be None by then: what
it needs is bound as default values."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, Final, Protocol

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class Unseen(Protocol):
    """An object that a program should not drop unused."""

    def _complaint(self) -> str | None:
        """Returns the text of the warning for a dropped object, or None if no warning is due."""


_dropped: Final[list[tuple[Unseen, FrameType | None, int]]] = []
"""The unused objects that were dropped, each with the frame that dropped it and its line at that moment."""


def report() -> None:
    """Gives the warnings for the dropped objects that finalisers have recorded. After an interrupt, the next call
    handles the rest."""
    while _dropped:
        try:
            dropped, frame, line = _dropped.pop(0)
        except IndexError:  # taken by a nested call
            return
        try:
            _warn(dropped._complaint(), frame, line)
        except Exception as error:  # warnings are errors: reported as for a coroutine that was never awaited
            report_ignored(error, dropped)


_ended: Final[list[bool]] = []


def _caller(frame: FrameType | None, package: str = _PACKAGE, limit: int = sys.getrecursionlimit()) -> FrameType | None:
    """Returns the first frame outside of the package, starting at ``frame``. Returns None if there is none, as while
    the interpreter ends."""
    caller: FrameType | None = frame
    # The loop is bounded by the most frames that a stack has: on CPython 3.11.7 frames that were recorded while the
    # garbage collector ran have been seen to form a circle, once in some thousand collections.
    for _ in range(limit):
        if caller is None or not caller.f_code.co_filename.startswith(package):
            return caller
        caller = caller.f_back
    return frame


def _warn(
    message: str | None,
    frame: FrameType | None,
    line: int,
    caller_of: Callable[[FrameType | None], FrameType | None] = _caller,
    warn: Callable[..., None] = warnings.warn_explicit,
) -> None:
    """Gives the warning ``message`` of a dropped object, if there is one. The warning names the innermost place outside
    of the package: ``frame``, which dropped the object, or a caller of ``frame``. ``line`` is the line of ``frame``
    that dropped the object, or 0 for its current line. If no code of the program runs any more, the warning names
    ``sys:1``, as Python does for a coroutine."""
    if message is None:
        return
    caller = caller_of(frame)
    if caller is None:
        warn(message, RuntimeWarning, "sys", 1)
        return
    where = caller.f_globals
    warn(
        message,
        RuntimeWarning,
        caller.f_code.co_filename,
        line if caller is frame and line else caller.f_lineno or 0,
        where.get("__name__") or "<unknown>",
        where.setdefault("__warningregistry__", {}),
    )


def complain(
    dropped: Unseen,
    warn: Callable[[str | None, FrameType | None, int], None] = _warn,
    frame: Callable[[], FrameType] = sys._getframe,
) -> None:
    """Warns at once of a dropped object, because the interpreter is ending. If warnings are errors, Python reports the
    error as that of the finaliser."""
    try:
        message = dropped._complaint()
    except Exception:  # modules that the object's name needs are gone (NumPy's for a dtype): any error may come
        return
    warn(message, frame(), 0)


def report_ignored(error: Exception, source: object) -> None:
    """Reports an error as Python reports an error of a finaliser: calls ``sys.unraisablehook``. If the program has set
    no hook of its own, prints the error here instead, because Python's hook accepts only arguments that Python made."""
    hook: Any = sys.unraisablehook
    if hook is sys.__unraisablehook__:
        print(f"Exception ignored in: {source!r}", file=sys.stderr)
        traceback.print_exception(error)
    else:
        trace = error.__traceback__
        hook(SimpleNamespace(exc_type=type(error), exc_value=error, exc_traceback=trace, err_msg=None, object=source))


@atexit.register
def _end() -> None:
    report()
    _ended.append(True)


given: Final[dict[str, Any]] = {"unused": _dropped, "report_unused": report, "is_ended": _ended, "complain": complain}
"""What the core's finalisers need."""
