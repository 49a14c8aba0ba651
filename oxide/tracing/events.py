"""The events of a timeline, and how they are made of the recorder's notes. Times are nanoseconds of
``time.perf_counter_ns``.

A note is a tuple, which is the cheapest to make. Its first element is its kind:

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

``Builder`` gives the events their names, places, sizes, and the times that the clocks have measured. A stream runs its
work in order, so the notes of each stream's work and waits form a queue. Work leaves the front of the queue once its
times are known. A wait gets its times from its neighbours: the stream reaches the wait when the previous work ends, and
goes on when the next work begins.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

from oxide.driver.base import Clock, Span
from oxide.runtime.tracepoints import Built, TracedRun

Note: TypeAlias = tuple[Any, ...]

_ALWAYS: Final = 1 << 63
_AHEAD: Final = 8  # if work has no times, so many entries of the queue are searched for later work that has ended


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


@final
@dataclass(slots=True)
class _NotedWork:
    """A note of work in its stream's queue. ``spans`` are its times, once they are known."""

    note: Note
    spans: list[Span] | None = None

    def known(self) -> bool:
        if self.spans is None:
            clock: Clock = self.note[3]
            self.spans = clock.spans(self.note[4])
        return self.spans is not None


@final
@dataclass(slots=True)
class _NotedWait:
    """A note of a wait in its stream's queue. ``begun`` is set once the stream has reached the wait."""

    note: Note
    cause: str = ""
    begun: int = 0


@final
@dataclass(slots=True)
class _Stream:
    """A stream: its name, its queue, the waits that it has reached, and the end of its last work."""

    device: str
    number: int
    name: str
    queue: deque[_NotedWork | _NotedWait] = field(default_factory=deque)
    reached: list[_NotedWait] = field(default_factory=list)
    ended: int = 0


@final
class Builder:
    """Makes events from notes. Calls the parameter ``give`` with each event and a time: sinks that began after this
    time must not get the event."""

    def __init__(self, give: Callable[[Event, int], None]) -> None:
        self._give = give
        self._streams: dict[Any, _Stream] = {}
        self._counts: dict[str, int] = {}
        self._tracks: list[Track] = []
        self._last_waits: dict[int, _NotedWait] = {}  # by thread
        self._sizes: dict[tuple[str, int], int] = {}
        self._held: dict[str, int] = {}

    def repeat_tracks(self, sink: Sink) -> None:
        """Gives a new sink the names of all tracks."""
        for track in self._tracks:
            sink.accept(track)

    def take(self, notes: list[Note]) -> None:
        """Takes notes in the order in which they were made. Gives the events of those that need no times of a clock."""
        for note in notes:
            match note[0]:
                case "work":
                    self._stream(note[2]).queue.append(_NotedWork(note))
                case "wait":
                    wait = self._last_waits[note[7]] = _NotedWait(note)
                    self._stream(note[2]).queue.append(wait)
                case "cause":
                    if note[1] in self._last_waits:
                        self._last_waits.pop(note[1]).cause = note[2]
                case "run":
                    self._give_run(note)
                case "await":
                    _, begun, ended, track, name, outcome = note
                    arguments = {"outcome": outcome} if outcome else {}
                    self._give(Host("await", f"await {name}", track, begun, ended, arguments), begun)
                case "sync":
                    _, begun, ended, track, handle = note
                    arguments = {} if handle is None else {"stream": self._stream(handle).name}
                    self._give(Host("sync", "blocked until the device is done", track, begun, ended, arguments), begun)
                case "memory":
                    self._give_memory(note)
                case "track":
                    _, number, name, arguments = note
                    self._name(Track("", number, name, arguments))
                case "stream":
                    _, handle, device, name, arguments = note
                    self._add_stream(handle, device, name, arguments)
                case "held":
                    _, device, sizes = note
                    for address, nbytes in sizes.items():
                        self._sizes[device, address] = nbytes
                    self._held[device] = self._held.get(device, 0) + sum(sizes.values())

    def give(self, *, final: bool) -> None:
        """Gives the events of work and waits whose times are known. If ``final`` is True, gives all of them."""
        for stream in self._streams.values():
            queue = stream.queue
            while queue:
                entry = queue[0]
                if isinstance(entry, _NotedWait):
                    entry.begun = max(stream.ended, entry.note[1])
                    stream.reached.append(entry)
                elif entry.known() or final or _is_over(queue):
                    self._give_work(stream, entry)
                else:
                    break
                queue.popleft()
            if final:
                self._give_waits(stream, 0)

    # One kind of event each

    def _give_run(self, note: Note) -> None:
        run: TracedRun = note[1]
        begun, ended = run.begun, note[2]
        kind = "capture" if run.captured else "submit"
        origin = origin_of(run, run.whole_name, run.whole_built)
        assert origin is not None
        arguments: dict[str, Any] = {"run": origin.run}
        if run.whole_built is not None:
            arguments |= {"place": origin.place, "built_us_before": round((begun - run.whole_built[0]) / 1e3, 3)}
        self._give(Host(kind, f"{kind} {origin.name}", origin.track, begun, ended, arguments), begun)

    def _give_memory(self, note: Note) -> None:
        _, time_ns, handle, address, nbytes = note
        device = self._stream(handle).device
        if nbytes:
            self._sizes[device, address] = nbytes
        else:
            nbytes = -self._sizes.pop((device, address), 0)
        self._held[device] = self._held.get(device, 0) + nbytes
        self._give(Memory(device, time_ns, self._held[device]), time_ns)

    def _give_work(self, stream: _Stream, entry: _NotedWork) -> None:
        _, submitted, _, clock, token, run, part, built, kind, name, nbytes, *details = entry.note
        spans, state = entry.spans, ""
        if spans is None:
            clock.forget(token)
            state = "not run" if clock.source == "workers" else "not measured"
        if spans:
            begun, ended = min(span.begun for span in spans), max(span.ended for span in spans)
        else:
            begun = ended = max(stream.ended, submitted)
        self._give_waits(stream, begun)
        stream.ended = max(ended, stream.ended)
        arguments: dict[str, Any] = {}
        parts: tuple[Span, ...] = ()
        if kind == "kernel":
            grid, block, shared_bytes = details
            arguments = {"grid": list(grid), "block": list(block)}
            if shared_bytes:
                arguments["shared_bytes"] = shared_bytes
        elif kind == "graph":
            parts = _named(spans or [], details[0])
        origin = origin_of(run, part, built)
        self._give(
            Work(
                kind, name, stream.device, stream.number, submitted, begun, ended,
                None if nbytes < 0 else nbytes, arguments, origin, state,
                parts,
            ),
            submitted,
        )  # fmt: skip

    def _give_waits(self, stream: _Stream, until: int) -> None:
        for wait in stream.reached:
            _, submitted, _, handle, run, part, built, _ = wait.note
            behind = "" if handle is None else self._stream(handle).name
            origin = origin_of(run, part, built)
            ended = max(wait.begun, until)
            event = Wait(stream.device, stream.number, submitted, wait.begun, ended, behind, wait.cause, origin)
            self._give(event, submitted)
        stream.reached.clear()

    # Names

    def _stream(self, handle: Any) -> _Stream:
        found = self._streams.get(handle)
        return self._add_stream(handle, "a device", "a stream", {}) if found is None else found

    def _add_stream(self, handle: Any, device: str, name: str, arguments: Mapping[str, Any]) -> _Stream:
        number = self._counts[device] = self._counts.get(device, 0) + 1
        stream = self._streams[handle] = _Stream(device, number, name)
        self._name(Track(device, number, name, arguments))
        return stream

    def _name(self, track: Track) -> None:
        self._tracks.append(track)
        self._give(track, _ALWAYS)


def origin_of(run: TracedRun | None, name: str, built: Built | None) -> Origin | None:
    """Returns the origin of work that the part ``name`` of ``run``, which was built at ``built``, submitted."""
    if run is None:
        return None
    return Origin(run.number, name, "" if built is None else _place(built[1], built[2]), run.track)


@functools.lru_cache(4096)
def _place(code: CodeType, instruction: int) -> str:
    """Returns the file and line of an instruction, such as "program.py:31"."""
    for first, end, line in code.co_lines():
        if first <= instruction < end and line is not None:
            return f"{code.co_filename}:{line}"
    return f"{code.co_filename}:{code.co_firstlineno}"


def _is_over(queue: deque[_NotedWork | _NotedWait]) -> bool:
    """Returns whether the first work of a queue, whose own times are not known, must be over: work behind it is known
    to have ended. Looks only at the first ``_AHEAD`` entries of the queue."""
    for place in range(1, min(len(queue), _AHEAD)):
        entry = queue[place]
        if isinstance(entry, _NotedWork) and entry.known():
            return True
    return False


def _named(spans: list[Span], names: list[str] | None) -> tuple[Span, ...]:
    """Returns the spans of a graph's nodes, each with a name: the clock's, else the name from the capture (``names``),
    else "a node"."""
    if names is not None and len(names) == len(spans):
        return tuple([Span(span.begun, span.ended, span.name or name) for span, name in zip(spans, names, strict=True)])
    return tuple([Span(span.begun, span.ended, span.name or "a node") for span in spans])
