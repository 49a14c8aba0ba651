"""What the runtime has done since it was set up: ``oxide.statistics()``, and the counters behind it."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from oxide.runtime.device.runtime import Runtime


@final
class StreamStatistics(NamedTuple):
    """The waits of one stream's awaiting tasks that found the device not done yet.

    ``stream`` is the stream's number, as in ``Stream.handle``. ``expected_us`` is how long the next wait is taken to
    last, in µs, and ``poll_budget_us`` what it may poll before it parks: 0 for a stream whose work is long.
    """

    device: str
    stream: int
    waits: int
    parked: int
    polling_seconds: float
    expected_us: float
    poll_budget_us: float


@final
class Statistics(NamedTuple):
    """What the runtime has done. Every number counts from the moment the runtime was set up.

    - ``submitted``: executions of an operation; of these the device was seen past ``completed``, whoever looked,
      ``cancelled`` were abandoned before that (a task was cancelled, a future dropped), and ``in_flight`` is the rest.
      A run that blocks its thread, ``sync``, counts when it has ended.
    - ``waits_inserted``: event waits put into a stream because it uses what another one wrote or read;
      ``waits_avoided``: times that this was not needed, since the device was known to be past it.
    - ``polling_seconds``: time that awaiting tasks spent asking the device, in all; ``completion="poll"`` keeps none.
    - ``streams``: the streams with their learned waits.
    - the pools: streams and events made, events of them free, and bytes of page-locked memory that is free.
    """

    submitted: int
    completed: int
    cancelled: int
    waits_inserted: int
    waits_avoided: int
    polling_seconds: float
    streams: tuple[StreamStatistics, ...]
    streams_made: int
    events_free: int
    pinned_bytes_free: int

    @property
    def in_flight(self) -> int:
        """Submitted, and neither completed nor cancelled yet."""
        return self.submitted - self.completed - self.cancelled


@final
class Counter:
    """Counts calls of ``add``, exactly, from any thread and any finaliser, in 40 ns: one step of a C iterator."""

    __slots__ = ("_count", "add")

    def __init__(self) -> None:
        self._count = count()
        self.add = self._count.__next__

    @property
    def value(self) -> int:
        """How often ``add`` was called."""
        # Its text is the one way to read an iterator without moving it.
        return int(repr(self._count)[len("count(") : -1])


@final
class Counters:
    """The counters of one runtime."""

    __slots__ = ("cancelled", "completed", "waits_avoided", "waits_inserted")

    def __init__(self) -> None:
        self.completed = Counter()
        self.cancelled = Counter()
        self.waits_inserted = Counter()
        self.waits_avoided = Counter()


def statistics() -> Statistics:
    """What the runtime in force has done since it was set up. Waits for nothing and asks no device."""
    from oxide.runtime.device.runtime import current_runtime

    return statistics_of(current_runtime())


def statistics_of(runtime: Runtime) -> Statistics:
    """``statistics`` of a runtime."""
    counters = runtime.counters
    streams = tuple(
        StreamStatistics(
            device.label,
            device.driver.stream_address(timeline.handle),
            timeline.pace.waits,
            timeline.pace.parked,
            timeline.pace.polled_seconds,
            timeline.pace.expected * 1e6,
            timeline.pace.poll_budget * 1e6,
        )
        for device in runtime.devices
        for timeline in device.timelines
    )
    # What is in flight is what is held for it, and not a difference of counts: an interrupt may keep one from being
    # counted. Outcomes first: whatever happens in between, none is counted that was not submitted.
    completed, cancelled = counters.completed.value, counters.cancelled.value
    in_flight, passed, abandoned = runtime.reclaimer.outcomes()
    completed += passed
    cancelled += abandoned
    return Statistics(
        submitted=completed + cancelled + in_flight,
        completed=completed,
        cancelled=cancelled,
        waits_inserted=counters.waits_inserted.value,
        waits_avoided=counters.waits_avoided.value,
        polling_seconds=sum(stream.polling_seconds for stream in streams),
        streams=streams,
        streams_made=len(streams),
        events_free=sum(len(device.spare_events) for device in runtime.devices),
        pinned_bytes_free=runtime.pinned.free_bytes,
    )
