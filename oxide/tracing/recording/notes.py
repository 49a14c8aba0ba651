"""The notes of the recorder: tuples, which cost least to make. The first element says which one it is.

``("track", number, name, arguments)``: a task or thread was seen for the first time.
``("stream", stream, device label, name, arguments)``: a stream was made.
``("held", device label, {address: bytes})``: the memory in use when a runtime was attached.
``("run", begun, ended, part)``: an operation was submitted, or captured.
``("work", submitted, stream, clock, token, part, kind, name, nbytes, …)``: work was submitted to a stream. A kernel's
note goes on with its grid, block and dynamic shared memory, a graph's with the names of its nodes.
``("wait", submitted, stream, other stream, part, thread)``: a stream was made to wait for an event.
``("cause", thread, cause)``: why the thread's last wait was submitted.
``("await", begun, ended, track, name, outcome)``: a task awaited an operation.
``("sync", begun, ended, track, stream)``: a thread was blocked.
``("memory", time, stream, address, nbytes)``: memory was allocated; freed, if ``nbytes`` is 0.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, TypeAlias, final

Note: TypeAlias = tuple[Any, ...]

Built: TypeAlias = tuple[int, CodeType, int]
"""When an operation was built, by which code, and the index of the instruction, from which its line follows."""


@final
class Part:
    """A part of an operation, or a whole one, while a thread submits it: the number of the run, the operation's name,
    when and where it was built, the task's track, and the part that it belongs to. ``nbytes`` is what the next launch
    uses, -1 if that is not known."""

    __slots__ = ("begun", "built", "captured", "ident", "name", "nbytes", "outer", "run", "track")

    def __init__(
        self, run: int, name: str, built: Built | None, track: int, ident: int, outer: Part | None, captured: bool
    ) -> None:
        self.run = run
        self.name = name
        self.built = built
        self.track = track
        self.ident = ident
        self.outer = outer
        self.captured = captured
        self.begun = 0
        self.nbytes = -1
