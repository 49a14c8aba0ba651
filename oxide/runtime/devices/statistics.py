"""Statistics of the runtime since it was set up: ``oxide.statistics()``."""

from __future__ import annotations

from typing import NamedTuple, final

from oxide.runtime.devices.runtime import current_runtime


@final
class StreamStatistics(NamedTuple):
    """The tasks' waits for one stream. A wait counts if the work was not done at the first query.

    ``stream`` is the stream's number, as in ``Stream.handle``. ``waits`` is the number of waits, ``parked`` the number
    of waits that parked, ``polling_seconds`` the total time for which waits spun and polled. ``expected_us`` is the
    expected duration of the next wait in µs. ``poll_budget_us`` is the time in µs that the next wait may poll before it
    parks: 0 for a stream whose work is long.
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
    """The runtime's statistics. Totals count from the moment the runtime was set up.

    - ``submitted``: executions of an operation. ``completed`` of them have ended on the device. ``cancelled`` of them
      were abandoned before that, because a task was cancelled or a future dropped. ``in_flight`` is the rest. A run by
      ``sync`` counts only when it has ended.
    - ``waits_inserted``: event waits that ordered a stream after another stream's write or read. ``waits_avoided``:
      orderings that needed no wait, since the device was known to be past the earlier use.
    - ``polling_seconds``: total time that awaiting tasks spent polling the device. With ``completion="poll"`` the time
      is not counted.
    - ``streams``: for each stream, its waits and polling time, and the duration that adaptive polling expects of its
      next wait.
    - ``streams_made``, ``events_free`` and ``pinned_bytes_free``: the number of streams made, the number of free
      events, and the bytes of free page-locked memory.
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
        """Returns the number of executions that are neither completed nor cancelled yet."""
        return self.submitted - self.completed - self.cancelled


def statistics() -> Statistics:
    """Returns the statistics of the current runtime. Does not wait, and calls no driver."""
    runtime = current_runtime()
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
    # The number of submissions in flight is the number of submissions that are held, not a difference of counts: an
    # interrupt may keep an outcome from being counted. The counted outcomes are read first, so that a submission that
    # ends meanwhile is not counted twice.
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
