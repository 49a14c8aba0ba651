"""The notes of the recorder: tuples, which are the cheapest to make. The first element is the kind of the note.

``("track", number, name, arguments)``: a task or thread was seen for the first time.
``("stream", stream, device label, name, arguments)``: a stream was made.
``("held", device label, {address: bytes})``: the memory in use when a runtime was attached.
``("run", run, ended)``: an operation was submitted, or captured.
``("work", submitted, stream, clock, token, run, name, built, kind, what, nbytes, …)``: work was submitted to a stream.
``name`` and ``built`` are the name and the origin of the part of the run that submitted it; ``run`` is None if no run
did. For a kernel, the grid, the block and the bytes of dynamic shared memory follow; for a graph, the names of its
nodes.
``("wait", submitted, stream, other stream, run, name, built, thread)``: a stream was made to wait for an event.
``("cause", thread, cause)``: the reason for the last wait that the thread submitted.
``("await", begun, ended, track, name, outcome)``: a task awaited an operation.
``("sync", begun, ended, track, stream)``: a thread was blocked.
``("memory", time, stream, address, nbytes)``: memory was allocated or, if ``nbytes`` is 0, freed.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

Note: TypeAlias = tuple[Any, ...]


class Notes(Protocol):
    """What takes the notes of a driver: ``Recorder``."""

    @property
    def notes(self) -> Any: ...

    @property
    def runs(self) -> Any: ...

    def blocked(self, begun: int, stream: Any, /) -> object: ...
