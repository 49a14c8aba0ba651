"""Trace points: the places in the runtime's host code that report to a tracer what happens.

While nothing is traced, ``points.tracer`` is None, and a trace point costs one test of an attribute. While a trace or a
profile runs, ``points.tracer`` is the recorder of ``oxide/tracing``. The runtime does not import the recorder, and
calls it by the protocol ``Tracer``. Work on devices needs no trace points, because all of it goes through the
``Driver`` protocol: the recorder replaces the runtime's driver by its own (``Runtime.stand_in``).
"""

from __future__ import annotations

from typing import Any, Protocol, final

from oxide.host.core import points

__all__ = ["Built", "TracedRun", "Tracer", "points"]

Built = tuple[int, Any, int]
"""The time when an operation was built, the code object that built it, and the index of the instruction there, which
gives the source line."""


@final
class TracedRun:
    """A run of an operation, while a thread submits it. ``whole_name`` and ``whole_built`` are the operation's name and
    origin. ``name`` and ``built`` are those of the part that the thread submits now. ``nbytes`` is the size of the
    memory that the part's next launch uses, -1 if it is unknown. ``track`` is the number of the task's track in the
    trace, ``ident`` the number of the thread. ``outer`` is the run of the same thread that this run is part of, if
    any."""

    __slots__ = (
        "begun", "built", "captured", "ident", "name", "nbytes", "number", "outer", "track", "whole_built",
        "whole_name",
    )  # fmt: skip

    def __init__(
        self, number: int, name: str, built: Built | None, track: int, ident: object, captured: bool, begun: int
    ) -> None:
        self.number = number
        self.whole_name = self.name = name
        self.whole_built = built
        self.built = built
        self.track = track
        self.ident = ident
        self.captured = captured
        self.begun = begun
        self.nbytes = -1
        self.outer: TracedRun | None = None


class Tracer(Protocol):
    """The object that trace points report to. Every method may be called from any thread, and raises nothing."""

    def built(self) -> Built:
        """Returns the present time, and the place in the program that is building an operation."""

    def enter(self, name: str, built: Built | None, captured: bool) -> TracedRun:
        """Records that the calling thread begins to submit a whole operation, or to capture it. Returns the run, which
        is to be passed to ``leave``."""

    def leave(self, run: TracedRun) -> None:
        """Records that the calling thread has submitted or captured the operation of ``run``, or has failed to."""

    def caused(self, cause: str) -> None:
        """Records why the calling thread has just made a stream wait."""

    def awaits(self, name: str) -> object:
        """Records that the current task begins to await an operation. Returns the object to pass to ``resumed``."""

    def resumed(self, awaited: object, outcome: str) -> None:
        """Records that the task of ``awaited`` runs again. ``outcome`` is "" or "cancelled"."""

    def attach(self, runtime: Any) -> None:
        """Begins to record what a runtime submits."""

    def detach(self, runtime: Any) -> None:
        """Ends the recording of a runtime that is about to close. Called when all work of the runtime has ended."""
