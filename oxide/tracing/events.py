"""The events of a timeline, as the recorder gives them to a file or a profile. Times are nanoseconds of
``time.perf_counter_ns``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from oxide.driver.base import Span


@final
class Origin(NamedTuple):
    """The operation that submitted work: the number of its run, its name, the line that built it, and the task's
    track."""

    run: int
    name: str
    place: str
    track: int


@final
class Work(NamedTuple):
    """A launch, copy, fill, report, graph or host function on a stream.

    ``state`` is "" if its times are known. It is "not run" for work that was dropped, as its run had been cancelled, or
    whose device was lost, and "not measured" for work whose times the device does not tell; ``begun`` and ``ended`` are
    then the end of the work before. ``parts`` are the nodes of a graph.
    ``nbytes`` is what it moves: exact for copies and fills; for kernels the size of the buffers that they read and
    write; None if unknown.
    """

    kind: str
    name: str
    device: str
    stream: int
    submitted: int
    begun: int
    ended: int
    nbytes: int | None
    arguments: Mapping[str, Any]
    origin: Origin | None
    state: str
    parts: tuple[Span, ...]


@final
class Wait(NamedTuple):
    """A wait of a stream for another: from when the stream reached it to when the stream went on."""

    device: str
    stream: int
    submitted: int
    begun: int
    ended: int
    behind: str
    cause: str
    origin: Origin | None


@final
class Host(NamedTuple):
    """Time of a task: the submission (``submit``) or capture of an operation, an ``await``, or a blocking ``sync``."""

    kind: str
    name: str
    track: int
    begun: int
    ended: int
    arguments: Mapping[str, Any]


@final
class Memory(NamedTuple):
    """The bytes of device memory that are allocated from ``time`` on."""

    device: str
    time: int
    nbytes: int


@final
class Track(NamedTuple):
    """The name of a task's or a stream's track. ``device`` is "" for tasks."""

    device: str
    number: int
    name: str
    arguments: Mapping[str, Any]


Event: TypeAlias = Work | Wait | Host | Memory | Track


class Sink(Protocol):
    """A consumer of events."""

    def accept(self, event: Event) -> None:
        """Takes an event. Events of one track come in order; a track's name comes before its events."""

    def forked(self) -> None:
        """Called in a forked child: the sink belongs to the parent."""
