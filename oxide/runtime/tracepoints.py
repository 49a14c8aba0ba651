"""Trace points: the places in the host path that tell a tracer what happens.

While nothing is traced, ``points.tracer`` is None, and a trace point costs one test of an attribute. While a trace or a
profile runs, it is the recorder of ``oxide/tracing``, which this package does not know: a protocol stands for it. What
happens on devices passes the ``Driver`` protocol, so it needs no trace points: the recorder's driver stands in for the
runtime's (``Runtime.stand_in``).
"""

from __future__ import annotations

from typing import Any, Final, Protocol, final

Built = tuple[int, Any, int]
"""When an operation was built, by which code, and the index of the instruction, from which its line follows."""


@final
class TracedRun:
    """A run of an operation, while a thread submits it: its number, its own name and origin, the track of its task, and
    the thread. ``name`` and ``built`` are those of the part that is being submitted, ``nbytes`` what its next launch
    uses, -1 if that is unknown. ``outer`` is the thread's run that this run is part of, if any."""

    __slots__ = (
        "begun", "built", "captured", "ident", "name", "nbytes", "number", "outer", "track", "whole_built",
        "whole_name",
    )  # fmt: skip

    def __init__(
        self, number: int, name: str, built: Built | None, track: int, ident: object, captured: bool, begun: int
    ) -> None:
        self.number = number
        self.whole_name = self.name = name
        # Any: with the tuple's type, compiled code would make new tuples
        self.whole_built: Any = built
        self.built: Any = built
        self.track = track
        self.ident = ident
        self.captured = captured
        self.begun = begun
        self.nbytes = -1
        self.outer: TracedRun | None = None


class Tracer(Protocol):
    """The object that trace points report to. Every method may be called from any thread, and raises nothing."""

    def built(self) -> Built:
        """Returns the time, and where the program builds an operation now."""

    def enter(self, name: str, built: Built | None, captured: bool) -> TracedRun:
        """Records that the calling thread begins to submit a whole operation, or to capture it."""

    def leave(self, run: TracedRun) -> None:
        """Records that the calling thread has submitted the operation."""

    def caused(self, cause: str) -> None:
        """Records why the calling thread has just made a stream wait."""

    def awaits(self, name: str) -> object:
        """Records that the current task begins to await an operation. Returns what ``resumed`` takes."""

    def resumed(self, awaited: object, outcome: str) -> None:
        """Records that the task runs again. ``outcome`` is "" or "cancelled"."""

    def attach(self, runtime: Any) -> None:
        """Begins to record what a runtime submits."""

    def detach(self, runtime: Any) -> None:
        """Ends the recording of a runtime that is about to close. Its work has ended."""


@final
class Points:
    """The tracer in force, or None. One object of the process: compiled code reads its attribute without a look-up."""

    __slots__ = ("tracer",)

    def __init__(self) -> None:
        self.tracer: Any = None  # a ``Tracer``; ``Any`` spares the compiled form a check at each test


points: Final = Points()
