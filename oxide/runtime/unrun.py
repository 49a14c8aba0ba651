"""Warnings of what a program drops and should have used: an operation that was never run, a result nobody looked at.

A warning runs Python, so no finaliser can give it (``oxide.dropping``). The finaliser puts the object into a queue,
notes the line, and has the interpreter call ``report`` in the main thread, between two bytecodes, as it calls the
handler of a signal: an interrupt there is raised in the program. All of this takes C alone:

- The queue is bounded and full of markers, so an object that joins it pushes a marker out.
- The marker's finaliser takes a step of a chain of iterators, which notes the frame with its line, and asks.
- ``Py_AddPendingCall`` calls ``PyObject_IsTrue``, which calls the ``__bool__`` of an object.

Of more than 64 objects that are dropped at once, the last 64 are reported. From the interpreter's end on, which handles
neither signals nor pending calls, the warning is given in place.

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
from collections.abc import Iterator
from functools import partial
from itertools import repeat, starmap
from operator import attrgetter
from types import FrameType, SimpleNamespace
from typing import Any, Final, Protocol, final

from oxide.dropping import calls_drop, method_in_c, nothing

_MOST: Final = 64
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Unseen(Protocol):
    """What may join the queue."""

    def _complaint(self) -> str | None:
        """What is wrong with dropping it; None if nothing is."""


@final
class _Report:
    """Reports when it is asked whether it is true."""

    def __bool__(self) -> bool:
        report()
        return False  # no error


_report: Final = _Report()
_places: Final[deque[tuple[FrameType, int]]] = deque(maxlen=_MOST)
"""Where the objects in the queue were dropped: each frame, and the line that it was at."""

_ask: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object)(
    ("Py_AddPendingCall", ctypes.pythonapi)
)
_is_true: Final = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_note_and_ask: Final[Iterator[Any]] = zip(
    map(_places.append, map(attrgetter("clear.__self__", "f_lineno"), starmap(sys._getframe, repeat(())))),
    starmap(_ask, repeat((_is_true, _report))),
    strict=False,
)


@final
class _Marker:
    """Keeps a place in the queue, and has ``report`` called when it loses it."""

    __slots__ = ()

    _drop = staticmethod(partial(next, _note_and_ask))

    def __del__(self) -> None: ...


calls_drop(_Marker)

unseen: Final[deque[Any]] = deque((_Marker() for _ in range(_MOST)), maxlen=_MOST)
"""The queue. What joins it is reported soon, with the line that dropped it."""


def report() -> None:
    """Warns of what is in the queue. An interrupt leaves the rest of it for the next call."""
    for _ in range(_MOST - len(unseen)):
        unseen.appendleft(_Marker())
    found: list[Unseen] = []
    while unseen and type(unseen[-1]) is not _Marker:
        found.append(unseen.pop())
        unseen.appendleft(_Marker())
    for dropped in reversed(found):
        frame, line = _places.popleft() if _places else (sys._getframe(), 0)
        _warn(dropped, frame, line)


def complain(dropped: Unseen) -> None:
    """``unseen.append`` for compiled code, and in place from the interpreter's end on."""
    if _ended:
        _warn(dropped, sys._getframe(), 0)
    else:
        unseen.append(dropped)


_ended: Final[list[bool]] = []
_at_end: Final[list[Any]] = []


def joins_when_unseen(kind: type, name: str) -> None:
    """Makes ``name`` a method of the class, in C: the object joins the queue. At the interpreter's end it warns."""
    setattr(kind, name, method_in_c(unseen.append))
    _at_end.append((kind, name))


def _warn(dropped: Unseen, frame: FrameType, line: int) -> None:
    """Warns at the first line outside of the package, from ``frame`` on, which was at ``line``."""
    message = dropped._complaint()
    if message is None:
        return
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.startswith(_PACKAGE):
        caller = caller.f_back
    if caller is None:
        caller = frame
    where = caller.f_globals
    try:
        warnings.warn_explicit(
            message,
            RuntimeWarning,
            caller.f_code.co_filename,
            line if caller is frame and line else caller.f_lineno or 0,
            where.get("__name__") or "<unknown>",
            where.setdefault("__warningregistry__", {}),
        )
    except Exception as error:  # warnings are errors: as for a coroutine that was never awaited
        _ignore(error, dropped)


def _ignore(error: Exception, dropped: Unseen) -> None:
    """What Python does with an error in a finaliser. Its own hook takes no arguments but those of Python's making."""
    hook: Any = sys.unraisablehook
    if hook is sys.__unraisablehook__:
        print(f"Exception ignored in: {dropped!r}", file=sys.stderr)
        traceback.print_exception(error)
    else:
        trace = error.__traceback__
        hook(SimpleNamespace(exc_type=type(error), exc_value=error, exc_traceback=trace, err_msg=None, object=dropped))


@atexit.register
def _end() -> None:
    report()
    _ended.append(True)
    for kind, name in _at_end:
        setattr(kind, name, complain)
    setattr(_Marker, "_drop", nothing)  # noqa: B010 (no method to mypy)
