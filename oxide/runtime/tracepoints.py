"""Trace points: the places in the host path that tell a tracer what happens.

While nothing is traced, ``points.tracer`` is None, and a trace point costs one test of an attribute. While a trace or a
profile runs, it is the recorder of ``oxide/tracing``, which this package does not know: a protocol stands for it. What
happens on devices passes the ``Driver`` protocol, so it needs no trace points: the recorder's driver stands in for the
runtime's (``Runtime.stand_in``).
"""

from __future__ import annotations

from typing import Any, Final, Protocol, final


class Tracer(Protocol):
    """The object that trace points report to. Every method may be called from any thread, and raises nothing."""

    def built(self, operation: object) -> None:
        """Records that an operation was built by the calling frame of the program."""

    def enter(self, name: str, operation: object, captured: bool) -> object:
        """Records that the calling thread begins to submit an operation, or to capture it. Returns what ``leave``
        takes."""

    def leave(self, entered: object) -> None:
        """Records that the calling thread has submitted the operation."""

    def uses(self, reads: list[Any], writes: list[Any]) -> None:
        """Records the allocations that the next launch of the calling thread reads and writes."""

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
