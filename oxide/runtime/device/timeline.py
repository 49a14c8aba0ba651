"""Timelines: what was submitted to a stream, numbered, and marks: the points in it that the device reports.

Every timeline counts what was submitted to its stream: its *position*. A use of a buffer is a (timeline,
position) pair. A ``Mark`` is an event recorded in the stream together with the position it covers, so that "has
the device passed this use?" and "make that stream wait for this use" are questions about integers, and the driver
is asked only when the integers cannot tell.

Two invariants carry the rest:

- A position is given out *after* its work was submitted, and a mark takes its position *before* its event is
  recorded. So a mark at position p covers all work numbered up to p, and whatever another library put into the
  stream before the mark.
- While nothing was submitted after a mark, the stream itself is the event: it has run dry exactly when the device is
  past the mark. So a mark's event is recorded when it is needed: before the next work is submitted (``close``), or for
  a thread, another stream or a callback to wait for. Work that is awaited before more follows never has one. Should
  two threads submit at once, work may come in between: then the mark covers it too, and whoever asks is told later.
- A device keeps its timelines for good and hands them out again: a timeline is never garbage, so a finaliser that
  finds one, in whatever order the collector ran, finds a usable stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, final

from oxide.driver.base import EventHandle, StreamHandle
from oxide.dropping import calls_drop, nothing
from oxide.errors import DeviceError, DeviceLostError
from oxide.runtime.locks import new_lock
from oxide.runtime.loop.pace import Pace

if TYPE_CHECKING:
    from oxide.runtime.device.runtime import Device


_FEW: Final = 8  # marks that are asked one by one


@final
class Mark:
    """A point in a timeline. ``passed()`` asks the driver only until it once said yes."""

    __slots__ = ("_drop", "event", "position", "timeline")

    def __init__(self, timeline: Timeline, position: int) -> None:
        self._drop: Any = nothing
        self.timeline = timeline
        self.position = position
        self.event: EventHandle | None = None  # none yet while it is the end of its stream

    def passed(self) -> bool:
        """Whether the device is past this point. Raises what the stream's work failed with."""
        timeline = self.timeline
        if self.position <= timeline.seen:
            return True
        if not timeline.ask(self):
            return False
        if len(timeline._marks) > _FEW:
            timeline.look_ahead()
        return True

    def synchronize(self) -> None:
        """Blocks the thread until the device is past this point."""
        timeline = self.timeline
        if self.position > timeline.seen:
            if timeline.device.lost is not None:
                timeline.device.raise_if_lost()
            # Not for the stream: another thread may submit more to it, that waits for this one.
            event = timeline.event_of(self)
            try:
                timeline.driver.synchronize_event(event)
            except DeviceLostError as error:
                timeline.device.raise_lost(error)
            timeline.note_passed(self.position)

    def has_event(self, event: EventHandle) -> None:
        """The mark's event is recorded. It can be recorded again as soon as the mark is dropped: a wait that was
        submitted for it keeps its own point."""
        self.event = event
        self._drop = partial(self.timeline.device.spare_events.append, event)

    def __del__(self) -> None:
        self._drop()


calls_drop(Mark)


@final
class Timeline:
    """A stream's history. ``seen`` is the highest position that the device was seen past.

    ``handle`` is a stream that another library made: its history then begins now.
    """

    def __init__(self, device: Device, handle: StreamHandle | None = None) -> None:
        self.device = device
        self.driver = device.driver
        self.seen = 0
        self.foreign = handle is not None  # then this object is garbage soon, and nothing may keep it
        self._named = self.foreign  # another library may submit to it at any time
        self._lock = new_lock()
        self.advance = count(1).__next__
        """``advance()`` numbers the work that was just submitted. A step of a C iterator: 40 ns and no lock."""
        self._marks: deque[Mark] = deque()
        self.end: Mark | None = None
        """The last mark, while it has no event and nothing was submitted after it."""
        self._waited: dict[Timeline, int] = {}
        self._watcher: StreamHandle | None = None
        self.lane: Callable[[], Any] | None = None
        """Where the large uploads in flight on the stream are staged: staging.py's, a weak reference."""
        self.pace = Pace()
        self.handle: StreamHandle = self.driver.create_stream(device.id) if handle is None else handle

    def mark(self) -> Mark:
        """A mark that covers everything submitted so far."""
        if self.end is not None:
            self.close()
        with self._lock:
            mark = Mark(self, self.advance())
            if self._named or self.device.runtime.ordering == "strict":  # which refuses what is not seen to be over
                self._record(mark)
            else:
                self.end = mark
            self._marks.append(mark)
        return mark

    def close(self) -> None:
        """To be called before work is submitted: what the stream holds now gets an end of its own."""
        with self._lock:
            end = self.end
            if end is not None:
                if end.position > self.seen:
                    self._record(end)
                self.end = None

    def event_of(self, mark: Mark) -> EventHandle:
        """The mark's event, recorded now if it has none."""
        with self._lock:
            if mark.event is None:
                self._record(mark)
                if mark is self.end:
                    self.end = None
            event: EventHandle = mark.event
            return event

    def _record(self, mark: Mark) -> None:
        event = self.device.take_event()
        try:
            self.driver.record_event(event, self.handle)
        except BaseException as error:
            self.device.spare_events.append(event)
            if isinstance(error, DeviceLostError):
                self.device.raise_lost(error)
            raise
        mark.has_event(event)

    def name(self) -> int:
        """The stream's number, for another library, which may submit to it from now on."""
        self.close()
        self._named = True
        return self.driver.stream_address(self.handle)

    def passed(self, position: int) -> bool:
        """Whether the device is past ``position``, as far as marks tell. Never records one."""
        if position <= self.seen:
            return True
        mark = self.covering(position)
        return mark is not None and mark.passed()

    def wait_for(self, other: Timeline, position: int) -> bool:
        """Orders this stream after ``other``'s work up to ``position``; True if that took an event wait."""
        if self.is_after(other, position):
            if other is not self:
                self.device.runtime.counters.waits_avoided.add()
            return False
        self._wait(other, position)
        self.device.runtime.counters.waits_inserted.add()
        return True

    def follow(self, other: Timeline, position: int) -> None:
        """``wait_for`` work that was just submitted, which the device is hardly past: it is not asked. For the
        streams of one copy, whose waits are not counted as ordering."""
        if other is not self and self._waited.get(other, 0) < position > other.seen:
            self._wait(other, position)

    def _wait(self, other: Timeline, position: int) -> None:
        mark = other.covering(position) or other.mark()
        event = other.event_of(mark)
        if self.end is not None:
            self.close()
        self.driver.wait_event(self.handle, event)
        if not other.foreign:
            self._waited[other] = mark.position

    def note_waited(self, other: Timeline | None, position: int) -> None:
        """This stream was made to wait for ``other``'s work up to ``position``."""
        if other is not None and other is not self and self._waited.get(other, 0) < position:
            self._waited[other] = position

    def waited(self) -> dict[Timeline, int]:
        """The other streams that this one was made to wait for, and up to where; a copy."""
        return self._waited.copy()

    def is_after(self, other: Timeline, position: int) -> bool:
        """Whether what is submitted here from now on runs after ``other``'s work up to ``position`` anyway."""
        return other is self or self._waited.get(other, 0) >= position or other.passed(position)

    def seen_dry(self) -> bool:
        """Whether the stream has run all that it holds. Forgets the marks that this answers for."""
        position = self.advance()
        if not self.driver.query_stream(self.handle):
            return False
        self.note_passed(position)
        return True

    def synchronize_past(self, position: int) -> None:
        """Blocks the thread until the device is past ``position``, which covers all that was submitted so far. Not for
        the stream, to which another thread may submit more, that waits for this one."""
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
        """Blocks the thread until the stream has run all that it holds."""
        position = self.advance()
        try:
            self.driver.synchronize_stream(self.handle)
        except DeviceLostError as error:
            self.device.raise_lost(error)
        self.note_passed(position)

    @property
    def label(self) -> str:
        """The stream as messages name it."""
        return f"stream {self.driver.stream_address(self.handle):#x} of {self.device.label}"

    def watch(self, mark: Mark, function: int, argument: int) -> None:
        """Calls the native ``function(argument)`` once the device is past ``mark``.

        The call runs on a stream beside this one, so it neither waits for later work here nor delays it.
        """
        event = self.event_of(mark)
        with self._lock:
            if self._watcher is None:
                self._watcher = self.driver.create_stream(self.device.id)
            self.driver.wait_event(self._watcher, event)
            self.driver.launch_native_host_function(function, argument, self._watcher)

    def ask(self, mark: Mark) -> bool:
        """Whether the driver says that the device is past ``mark``. Raises what the stream's work failed with."""
        if self.device.lost is not None:
            self.device.raise_if_lost()
        event = mark.event
        try:
            passed = self.driver.query_stream(self.handle) if event is None else self.driver.query_event(event)
        except DeviceLostError as error:
            self.device.raise_lost(error)
        if passed:
            self.note_passed(mark.position)
        return passed

    def note_passed(self, position: int) -> None:
        """The device was seen past ``position``."""
        with self._lock:
            if position > self.seen:
                self.seen = position
            if self.end is not None and self.end.position <= self.seen:
                self.end = None
            if self._marks and self._marks[0].position <= self.seen:
                dropped = [self._marks.popleft()]  # so that no mark dies inside the lock
                while self._marks and self._marks[0].position <= self.seen:
                    dropped.append(self._marks.popleft())

    def forget_marks(self) -> None:
        """Gives the events back, of a stream that nobody asks about any more."""
        self._marks.clear()
        self.end = None

    def look_ahead(self) -> None:
        """Finds out for many marks at once that the device is past them.

        Called when one was seen passed. The eighth mark from there is asked, then the sixteenth from that one, and so
        on with steps that double until one was not passed. So the end of a thousand operations is found with ten
        questions to the driver and not with a thousand (1.4 µs each), and where only one has ended, it takes one.
        """
        step = _FEW
        while True:
            with self._lock:
                left = len(self._marks)
                if left <= _FEW:
                    return
                mark = self._marks[min(step, left - 1)]
            try:
                if not self.ask(mark):
                    return
            except DeviceError:  # for whoever waits for that one
                return
            step *= 2

    def destroy(self) -> None:
        """Gives the stream back to the driver, and its events to the device; only when the runtime ends."""
        self.forget_marks()
        self.driver.destroy_stream(self.handle)
        if self._watcher is not None:
            self.driver.destroy_stream(self._watcher)

    def covering(self, position: int) -> Mark | None:
        """The first mark recorded at ``position`` or later, if there is one that the device was not seen past."""
        with self._lock:
            marks = self._marks
            if not marks or marks[-1].position < position:
                return None
            return marks[bisect_left(marks, position, key=lambda mark: mark.position)]
