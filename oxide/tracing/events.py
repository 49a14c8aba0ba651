"""The events of a timeline, as the recorder gives them to a file or a profile. Times are nanoseconds of
``time.perf_counter_ns``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from oxide.driver.base import Span


@final
class Origin(NamedTuple):
    """The operation that submitted work: the number of its run, its name, the file and line that built it, and the
    track of its task."""

    run: int
    name: str
    place: str
    track: int


@final
class Work(NamedTuple):
    """A launch, copy, fill, report, graph or host function on a stream.

    ``state`` is "" if the times of the work are known. It is "not run" for work that the CPU device never ran, because
    its run was cancelled or the device was lost. It is "not measured" for work of a CUDA device if its times are
    unknown. In both cases ``begun`` and ``ended`` are the end of the previous work. ``parts`` are the nodes of a graph.
    ``nbytes`` is the number of bytes that the work moves: exact for copies and fills, for a kernel the size of the
    buffers that it reads and writes, None if unknown.
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
    """A wait of the stream ``stream`` for another stream, whose name is ``behind``, or "" if it is unknown. The waiting
    stream reached the wait at ``begun`` and went on at ``ended``."""

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
        """Consumes an event. The events of one track come in order. A track's name comes before the track's events."""

    def forked(self) -> None:
        """Gives the sink up in a forked child, because it belongs to the parent."""
