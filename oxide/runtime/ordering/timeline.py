"""Timelines number the submissions to a stream. A mark tells whether the device is past a point in a timeline.

A timeline numbers the submissions to its stream; the number is a *position*. A use of a buffer is a (timeline,
position) pair. So whether the device has passed a use, and whether a stream must still be made to wait for a use, are
questions about integers. The driver is called only if the integers do not decide.

Three invariants hold:

- A position is assigned *after* its work was submitted, and a mark takes its position *before* its event is recorded.
  So a mark at position p covers all work up to p, and all work that another library submitted to the stream before the
  mark.
- While nothing was submitted after a mark, the stream itself serves as the event: it has run dry exactly if the device
  is past the mark. So a mark's event is recorded only when it is needed: before the next work is submitted (``close``),
  or for a thread, another stream or a callback that waits for the mark. If work is awaited before more is submitted, no
  event is recorded. If two threads submit at the same time, work may come between the mark and its event. Then the mark
  covers that work too, and the mark's waiters wake later.
- A device keeps the timelines of its streams for good and reuses them. Such a timeline is never garbage, so a finaliser
  that refers to one always finds a usable stream, in whatever order the collector runs finalisers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, final

from oxide.driver.base import Driver, EventHandle, FunctionHandle, StreamHandle, StreamPriority
from oxide.errors import DeviceError, DeviceLostError, OxideError
from oxide.host import core
from oxide.host.locks import RUNTIME_LOCK
from oxide.runtime.loop.pace import Pace
from oxide.runtime.tracepoints import points


class DeviceState(Protocol):
    """A device, as streams and memory know it. ``Device`` says what each of these is."""

    id: int
    driver: Driver
    live: dict[int, tuple[int, tuple[int, ...], Any]]
    loaded: dict[Any, FunctionHandle]

    @property
    def label(self) -> str: ...

    @property
    def loose(self) -> set[Any]: ...

    @property
    def runtime(self) -> Any: ...

    @property
    def spare_timelines(self) -> deque[Any]: ...

    def take_timeline(self, priority: StreamPriority = "normal") -> Any: ...


def not_in_force(what: str, hint: str) -> DeviceError:
    """Returns the error for an object of a runtime that is not the current one."""
    return DeviceError(f"{what} belongs to a runtime that is not in force; {hint}")


_FEW: Final = 8  # the most marks that are queried one by one
_MANY: Final = 64  # the number of marks at which a stream looks for passed marks by itself


@final
class Mark(core.Mark):
    """A point in a timeline. Each call of ``passed()`` queries the driver, until a query finds that the device is past
    the mark. Later calls return True without a query. When the mark is dropped, its event becomes free, and may be
    recorded again for another mark. Waits that were submitted before keep waiting for this mark's point.

    ``event`` is None while the stream serves as the event."""

    __slots__ = ()

    def synchronize(self) -> None:
        """Blocks the thread until the device is past this point."""
        timeline = self.timeline
        if self.position > timeline.seen:
            if timeline.device.lost is not None:
                timeline.device.raise_if_lost()
            # Waits for the event, not the stream: another thread may submit work that waits for this thread.
            event = timeline.event_of(self)
            try:
                timeline.driver.synchronize_event(event)
            except DeviceLostError as error:
                timeline.device.raise_lost(error)
            timeline.note_passed(self.position)


@final
class Timeline(core.Timeline):
    """A stream's history. ``seen`` is the highest position that the device is known to be past. ``end`` is the last
    mark, while it has no event and nothing was submitted after it. ``advance()`` numbers the work that was just
    submitted.

    If ``handle`` is given, the stream is another library's, and its history begins now.
    """

    def __init__(
        self, device: DeviceState, handle: StreamHandle | None = None, *, priority: StreamPriority = "normal"
    ) -> None:
        self.device = device
        self.driver = device.driver
        self._runtime = device.runtime
        self._loaded = device.loaded
        reclaimer = device.runtime.reclaimer
        self._queues, self._in_flight = reclaimer._queues, reclaimer._in_flight
        self._completed = device.runtime.counters.completed.add
        self.priority: StreamPriority = priority
        # True for a stream of another library: the timeline is short-lived, and nothing may keep it
        self.foreign = handle is not None
        self._named = self.foreign  # another library may submit to it at any time
        self._look_at = _MANY  # the number of marks at which the next mark looks for passed marks
        self._waited: dict[Timeline, int] = {}
        self._watcher: StreamHandle | None = None
        self.lane: Callable[[], Any] | None = None
        """The staging of the large uploads in flight on the stream: a weak reference that ``staging.py`` sets."""
        self.pace = Pace()
        self.handle: StreamHandle = self.driver.create_stream(device.id, priority) if handle is None else handle

    def event_of(self, mark: Mark) -> EventHandle:
        """Returns the mark's event. If the mark has none, records one."""
        with RUNTIME_LOCK:
            if mark.event is None:
                self._record(mark)
                if mark is self.end:
                    self.end = None
            return mark.event

    def name(self) -> int:
        """Returns the stream's number for another library, which may submit to the stream from now on."""
        self.close()
        self._named = True
        return self.driver.stream_address(self.handle)

    def passed(self, position: int) -> bool:
        """Returns whether the device is past ``position``, as far as the marks tell. Never records a mark."""
        if position <= self.seen:
            return True
        mark = self.covering(position)
        return mark is not None and mark.passed()

    def wait_for(self, other: Timeline, position: int, cause: str = "") -> bool:
        """Orders this stream after ``other``'s work up to ``position``. Returns True if that took an event wait.
        ``cause`` is the reason that traces show for the wait."""
        if self.is_after(other, position):
            if other is not self:
                self.device.runtime.counters.waits_avoided.add()
            return False
        self._wait(other, position)
        self.device.runtime.counters.waits_inserted.add()
        tracer = points.tracer
        if tracer is not None and cause:
            tracer.caused(cause)
        return True

    def follow(self, other: Timeline, position: int) -> None:
        """Orders this stream after ``other``'s work up to ``position``, as ``wait_for`` does, but does not query the
        device: the work was just submitted, so the device is unlikely to be past it. This method is for the streams of
        one copy; ``statistics()`` does not count its waits."""
        if other is not self and self._waited.get(other, 0) < position > other.seen:
            self._wait(other, position)
            tracer = points.tracer
            if tracer is not None:
                tracer.caused("the streams of one copy")

    def _wait(self, other: Timeline, position: int) -> None:
        mark = other.covering(position) or other.mark()
        event = other.event_of(mark)
        if self.end is not None:
            self.close()
        self.driver.wait_event(self.handle, event)
        if not other.foreign:
            self._waited[other] = mark.position

    def note_waited(self, other: Timeline | None, position: int) -> None:
        """Records that this stream was made to wait for ``other``'s work up to ``position``."""
        if other is not None and other is not self and self._waited.get(other, 0) < position:
            self._waited[other] = position

    def waited(self) -> dict[Timeline, int]:
        """Returns the streams that this stream was made to wait for, each with the position, as a copy."""
        return self._waited.copy()

    def is_after(self, other: Timeline, position: int) -> bool:
        """Returns whether work submitted here from now on runs after ``other``'s work up to ``position`` without a new
        wait."""
        return other is self or self._waited.get(other, 0) >= position or other.passed(position)

    def seen_dry(self) -> bool:
        """Returns whether the stream has run all its work. If so, records that its marks so far have passed."""
        position = self.advance()
        if not self.driver.query_stream(self.handle):
            return False
        self.note_passed(position)
        return True

    def synchronize_past(self, position: int) -> None:
        """Blocks the thread until the device is past ``position``. All work at or before ``position`` must have been
        submitted. Waits for an event, not the stream: another thread may submit work that waits for this thread."""
        device = self.device
        event = device.take_event()
        try:
            self.driver.record_event(event, self.handle)
            self.driver.synchronize_event(event)
        except DeviceLostError as error:
            device.raise_lost(error)
        finally:
            device.spare_events.append(event)
        self.note_passed(position)

    def synchronize(self) -> None:
        """Blocks the thread until the stream has run all its work."""
        position = self.advance()
        try:
            self.driver.synchronize_stream(self.handle)
        except DeviceLostError as error:
            self.device.raise_lost(error)
        self.note_passed(position)

    @property
    def label(self) -> str:
        """Returns the stream's name for messages."""
        return f"stream {self.driver.stream_address(self.handle):#x} of {self.device.label}"

    def watch(self, mark: Mark, function: int, argument: int) -> None:
        """Calls the native ``function(argument)`` once the device is past ``mark``.

        The call runs on a separate stream, so it neither waits for later work of this stream nor delays it.
        """
        event = self.event_of(mark)
        with RUNTIME_LOCK:
            if self._watcher is None:
                self._watcher = self.driver.create_stream(self.device.id)
            self.driver.wait_event(self._watcher, event)
            tracer = points.tracer
            if tracer is not None:
                tracer.caused("the call that wakes a task")
            self.driver.launch_native_host_function(function, argument, self._watcher)

    def forget_marks(self) -> None:
        """Drops all marks, which returns their events to the device. The dropped marks must not be queried again."""
        self._marks.clear()
        self.end = None

    def look_ahead(self) -> None:
        """Finds, with few queries, most of the marks that the device has passed.

        Called when a mark was found to be passed, and when a stream has many marks. Skips eight marks and queries the
        next one, then skips sixteen, and doubles the step until a mark is not passed or at most eight marks are left.
        So the end of a thousand operations takes ten queries instead of a thousand, at 1.4 µs each. The end of a single
        operation takes one query.
        """
        step = _FEW
        while True:
            with RUNTIME_LOCK:
                left = len(self._marks)
                if left <= _FEW:
                    return
                mark = self._marks[min(step, left - 1)]
            try:
                if not self.ask(mark):
                    return
            except DeviceError:  # ignored here: the waiter on that mark sees it
                return
            step *= 2

    def destroy(self) -> None:
        """Destroys the stream, and returns its events to the device. Called only when the runtime ends."""
        self.forget_marks()
        self.driver.destroy_stream(self.handle)
        if self._watcher is not None:
            self.driver.destroy_stream(self._watcher)

    def covering(self, position: int) -> Mark | None:
        """Returns the first mark at ``position`` or later that the device is not known to be past, or None."""
        with RUNTIME_LOCK:
            marks = self._marks
            if not marks or marks[-1].position < position:
                return None
            # The streams of a copy wait for what was just submitted.
            if len(marks) == 1 or marks[-2].position < position:
                return marks[-1]
            return marks[bisect_left(marks, position, key=lambda mark: mark.position)]


core.setup(Mark=Mark, DeviceLostError=DeviceLostError, OxideError=OxideError)
