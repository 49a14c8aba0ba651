"""Where in an operation a kernel was launched, kept until the device is past it: what a fault's notes say.

A fault is found when the run has completed, long after the launch, and only then are the notes written; what a run
keeps for that is one tuple for each stage and each part that it passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class Composed(Protocol):
    """An operation that others are parts of."""

    def part(self, number: int) -> str:
        """What notes call one of them."""
        ...


Place = tuple[Any, ...]
"""The operation, a ``Composed``, the number of its part, and where the operation itself is part of another, a ``Place``
or None."""


def place_notes(place: Place | None) -> list[str]:
    """The notes, innermost first, as an error at submission gets them."""
    notes = []
    while place is not None:
        composed: Composed = place[0]
        notes.append(composed.part(place[1]))
        place = place[2]
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
