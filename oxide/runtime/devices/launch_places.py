"""Places: a *place* says where in an operation a kernel was launched, so that the notes of a fault can name it.

A fault is found when the run has completed, long after the launch, and only then are the notes written. Until then a
run keeps one tuple for each stage and part of the operation that it passed, and the code objects of users' functions.
It keeps no operation and no function. So an operation is freed when it has been submitted, with everything that its
functions close over. Otherwise a thousand operations in flight would be fifty thousand objects for the garbage
collector to traverse, and the next submission would use memory that is not in the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from oxide.errors import place_name

FUSED: Final = "fused"

LaunchPlace = tuple[str, object, int, Any]
"""The kind, detail and number of an operation's part, as ``part_note`` takes them, and the enclosing ``LaunchPlace`` or
None."""


def origin(function: Callable[..., Any]) -> object:
    """Returns the part of a user's function that notes need: its code object or its name."""
    if type(function) is FunctionType:
        code: CodeType = function.__code__
        if function.__qualname__ is code.co_qualname:
            return code
        return described(function)  # functools.wraps has given it another name
    if type(function) is MethodType:
        return origin(function.__func__)  # the method's function has the same qualified name
    return described(function)


def described(function: object) -> str:
    """Returns the name that messages give to a user's function, or to its ``origin``."""
    if type(function) is str:
        return function
    name: object = type(function).__name__
    code: object = None
    if isinstance(function, CodeType):
        name, code = function.co_qualname, function
    else:
        with suppress(Exception):  # attributes of a user's object may raise anything
            name = getattr(function, "__qualname__", name)
            code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return str(name)
    return f"{name} at {place_name(code.co_filename, code.co_firstlineno)}"


def part_note(what: str, detail: object, number: int) -> str:
    """Returns the note for a part of an operation. ``what`` is "zip", with the number of parts in ``detail``;
    "while_loop"; "cond", with the branch in ``detail``; "with_context"; or, for a stage of a chain, the stage's name,
    such as "and_then". For "with_context" and for stages, ``detail`` is the user's function or its ``origin``."""
    if what == "zip":
        return f"in part {number} of a zip of {detail}"
    if what == "while_loop":
        return "in the body of a while_loop"
    if what == "cond":
        return f"in {detail} of a cond"
    if what == "with_context":
        return f"in with_context({described(detail)})"
    return f"in stage {number} of a chain, {what}({described(detail)})"


def identity(place: LaunchPlace | None) -> object:
    """Returns a key that distinguishes places. Code objects of two files with the same text compare equal, so the key
    has the ids of the code objects."""
    if place is None:
        return None
    what, detail, number, outer = place
    if what == FUSED:
        stages: Any = detail
        return what, tuple([(first, identity(where)) for first, where in stages])
    return what, id(detail) if isinstance(detail, CodeType) else detail, number, identity(outer)


def fused_place(stages: Sequence[tuple[int, LaunchPlace | None]]) -> LaunchPlace:
    """Returns the place of a launch of a fused kernel. ``stages`` has a pair for each stage that was fused: the number
    of the stage's first fault site, and the stage's place."""
    return FUSED, tuple(stages), len(stages), None


def place_of_site(place: LaunchPlace | None, site: int) -> LaunchPlace | None:
    """Returns the place of the stage that a fault site belongs to, for a launch of a fused kernel. For other launches
    returns ``place`` itself."""
    if place is None or place[0] != FUSED:
        return place
    stages: Any = place[1]
    found: LaunchPlace | None = [where for first, where in stages if first <= site][-1]
    return found


def place_notes(place: LaunchPlace | None) -> list[str]:
    """Returns the notes of a place, innermost first, in the same form as for an error at submission."""
    notes = []
    while place is not None:
        what, detail, number, place = place
        notes.append(part_note(what, detail, number))
    return notes


def launch_notes(kernel: str, places: Iterable[LaunchPlace | None]) -> list[str]:
    """Returns the notes for a kernel that was launched at one of ``places``. Only a kernel in a graph has several
    places. Returns no notes if the launch was the whole operation: the fault's message names the kernel already."""
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
    """Adds a note to an error, unless the error has this note already. A shared error reaches several callers, and an
    error that is raised again passes the same place twice."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


_MOST = 8  # the number of places that a note names
