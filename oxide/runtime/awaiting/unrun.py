"""Warnings for unused objects that a program drops: an operation that was never run, or an error that was never seen.

A warning runs Python, so a finaliser cannot give it (``oxide.dropping``). Instead the finaliser records, in C, the
object and the line that dropped it, and requests a call of ``report``. At the interpreter's end such requests are no
longer served, so from then on the finaliser itself gives the warning. The globals of modules may be None by then: what
the finaliser needs is bound as default values.

This file itself is never compiled.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from itertools import repeat, starmap
from operator import attrgetter
from types import FrameType, SimpleNamespace
from typing import Any, Final, Protocol

from oxide.dropping import Soon, in_c, method_in_c

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class Unseen(Protocol):
    """An object that a program should not drop unused."""

    def _complaint(self) -> str | None:
        """Returns the text of the warning for a dropped object, or None if no warning is due."""


_dropped: Final[deque[Unseen]] = deque()
_places: Final[deque[tuple[FrameType, int]]] = deque()
"""The place where each object of ``_dropped`` was dropped: a frame, and its line at that moment."""


def report() -> None:
    """Gives the warnings for the dropped objects that finalisers have recorded. After an interrupt, the next call
    handles the rest."""
    while len(_places) > len(_dropped):  # an interrupt came between the two pops
        _places.popleft()
    while _dropped:
        try:
            dropped = _dropped.popleft()
            frame, line = _places.popleft()
        except IndexError:  # taken by a nested call
            return
        try:
            _warn(dropped._complaint(), frame, line)
        except Exception as error:  # warnings are errors: reported as for a coroutine that was never awaited
            report_ignored(error, dropped)


_place: Final = attrgetter("clear.__self__", "f_lineno")  # takes a frame; returns the frame and its current line
# Not ``sys._getframe()``: on CPython 3.11 a collection may run while a call of a coroutine function moves its frame to
# the new coroutine. ``sys._getframe()`` then returns the old frame, whose memory is reused: the process crashes later.
# The functions below skip a frame that is not complete.
_thread_state: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
_frame_of: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(("PyThreadState_GetFrame", ctypes.pythonapi))
_soon: Final = Soon(report)

note: Final[Callable[[Any], object]] = in_c(
    lambda dropped: zip(
        map(_dropped.append, dropped),
        map(_places.append, map(_place, map(_frame_of, starmap(_thread_state, repeat(()))))),
        _soon.asking,
        strict=False,
    )
)
"""Records, in C, a dropped object and the line that dropped it. ``report`` warns of it soon afterwards."""


_ended: Final[list[bool]] = []
_at_end: Final[list[tuple[type, str]]] = []


def warns_when_called(kind: type, name: str) -> None:
    """Gives the class ``kind`` a method ``name``, in C, that records the object as dropped. When the interpreter is
    ending, the method warns at once instead."""
    setattr(kind, name, method_in_c(note))
    _at_end.append((kind, name))


def _caller(frame: FrameType, package: str = _PACKAGE, limit: int = sys.getrecursionlimit()) -> FrameType | None:
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
    frame: FrameType,
    line: int,
    caller_of: Callable[[FrameType], FrameType | None] = _caller,
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
    ended: list[bool] = _ended,
    record: Callable[[Any], object] = note,
    warn: Callable[[str | None, FrameType, int], None] = _warn,
    frame: Callable[[], FrameType] = sys._getframe,
) -> None:
    """Records a dropped object with ``note``. When the interpreter is ending, warns at once instead, as ``report`` is
    no longer called; if warnings are errors, Python reports the error as that of the finaliser. Compiled finalisers
    call this function."""
    if not ended:
        record(dropped)
        return
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
    for kind, name in _at_end:
        setattr(kind, name, complain)
