"""Where in an operation a kernel was launched, kept until the device is past it: what a fault's notes say.

A fault is found when the run has completed, long after the launch, and only then are the notes written; what a run
keeps for that is one tuple for each stage and each part that it passed, and of users' functions their code. It keeps no
operation and no function, so that recipes are gone when they have been submitted, with all that they close over: a
thousand of them in flight would be fifty thousand objects for the garbage collector to walk, and memory that the next
submission finds in no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final

_FUNCTION: Final = FunctionType  # compiled, a constant takes no look-up
_BUILTIN: Final = BuiltinFunctionType
_METHOD: Final = MethodType

Place = tuple[str, object, int, Any]
"""What an operation is part of, as ``part_note`` takes it, and where that is part of another: a ``Place`` or None."""


def origin(function: Callable[..., Any]) -> object:
    """What notes need of a user's function."""
    if type(function) is _FUNCTION:
        code: CodeType = function.__code__
        if function.__qualname__ is code.co_qualname:
            return code
        return described(function)  # as one that functools.wraps has named
    if type(function) is _METHOD:
        return origin(function.__func__)  # which has its name, too
    if type(function) is _BUILTIN:  # as oxide's own are, compiled
        return function.__qualname__
    return described(function)


def described(function: object) -> str:
    """A user's function, or its ``origin``, as messages name it."""
    if type(function) is str:
        return function
    name: object = type(function).__name__
    code: object = None
    if isinstance(function, CodeType):
        name, code = function.co_qualname, function
    else:
        with suppress(Exception):  # an object of a user's may answer with anything
            name = getattr(function, "__qualname__", name)
            code = getattr(function, "__code__", None)
    return f"{name} at {code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else str(name)


def part_note(what: str, detail: object, number: int) -> str:
    """What notes call a part of an operation: of a ``zip``, whose ``detail`` is how many it has, or what a function
    returned, that of ``with_context`` or of a stage of a chain."""
    if what == "zip":
        return f"in part {number} of a zip of {detail}"
    if what == "with_context":
        return f"in with_context({described(detail)})"
    return f"in stage {number} of a chain, {what}({described(detail)})"


def identity(place: Place | None) -> object:
    """What places are told apart by: codes are equal that have the same text in two files."""
    if place is None:
        return None
    what, detail, number, outer = place
    return what, id(detail) if isinstance(detail, CodeType) else detail, number, identity(outer)


def place_notes(place: Place | None) -> list[str]:
    """The notes, innermost first, as an error at submission gets them."""
    notes = []
    while place is not None:
        what, detail, number, place = place
        notes.append(part_note(what, detail, number))
    return notes


def launch_notes(kernel: str, places: Iterable[Place | None]) -> list[str]:
    """The notes for a kernel that was launched at one of ``places``, which are told apart only outside of graphs. None
    for a launch that was all of the operation: a fault's message names the kernel."""
    launched = f"in <oxide launch of {kernel}>"
    found = list(dict.fromkeys(tuple(place_notes(place)) for place in places))
    if found == [()]:
        return []
    if len(found) == 1:
        return [launched, *found[0]]
    ways = [", ".join(notes) or "outside of any chain" for notes in found[:_MOST]]
    more = f"; or in one of {len(found) - _MOST} more places" if len(found) > _MOST else ""
    return [launched, "in one of its launches: " + "; or ".join(ways) + more]


def add_note_once(error: BaseException, note: str) -> None:
    """A shared error reaches several callers, and an error that is raised again passes the same place twice."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


_MOST = 8  # places that a note names
