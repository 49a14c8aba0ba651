"""Streams and events as users see them."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from oxide.dropping import calls_drop, nothing
from oxide.errors import DeviceError
from oxide.native import Given
from oxide.runtime.device.timeline import Timeline
from oxide.runtime.locks import new_rlock
from oxide.runtime.submission.capture import refuse_in_capture

if TYPE_CHECKING:
    from oxide.runtime.device.runtime import Device
    from oxide.runtime.submission.submission import Submission


@final
class Stream:
    """An in-order queue of work on one device. ``device.new_stream()`` makes one; a policy holds its own.

    Dropping it gives the stream back; work already submitted still runs.
    """

    def __init__(self, device: Device) -> None:
        self._drop: Any = nothing
        self.device = device
        self.drops_work: bool = device.driver.drops_work
        self._timeline: Timeline = device.take_timeline()
        self._loose = LooseResults(self._timeline)
        self._drop = partial(device.loose.discard, self._loose)  # whose last holder this is then
        device.loose.add(self._loose)

    @property
    def handle(self) -> int:
        """The stream's number for other libraries: a ``CUstream`` on a GPU."""
        refuse_in_capture("naming the stream to another library, whose work would be left out,", self)
        return self._timeline.name()

    @property
    def __cuda_stream__(self) -> Callable[[], tuple[int, int]]:
        """The CUDA stream protocol, version 0, by which CuPy's ``Stream.from_external`` and cuda.core take streams."""
        if self.device.kind != "cuda":
            raise AttributeError(f"a stream on {self.device.label} is no CUDA stream")
        return lambda: (0, self.handle)

    def synchronize(self) -> None:
        """Blocks the thread until all that was submitted has run.

        Raises the error of the first operation that ``async_on`` put here and that failed.
        """
        refuse_in_capture("synchronize()", self)
        loose = self._loose.take()
        self.device.raise_if_lost()
        self._timeline.synchronize()
        _finish_all(loose)

    def query(self) -> bool:
        """Whether all that was submitted has run."""
        refuse_in_capture("query()", self)
        return self._timeline.seen_dry()

    def record_event(self) -> Event:
        """An event at the end of what the stream holds now; it keeps the time it was passed."""
        refuse_in_capture("record_event()", self)
        event = Event(self.device)
        event._behind = self._timeline.waited()
        event._timeline, event._position = self._timeline, self._timeline.advance()
        self.device.driver.record_event(event._handle, self._timeline.handle)
        return event

    def wait(self, event: Given[Event]) -> None:
        """What is submitted from now on runs after ``event``; blocks nobody."""
        refuse_in_capture("wait(event)", self)
        if not isinstance(event, Event):
            raise TypeError(f"a stream waits for an Event, not {type(event).__name__}; join(stream) waits for a stream")
        self._timeline.close()
        self.device.driver.wait_event(self._timeline.handle, event._handle)
        self._timeline.note_waited(event._timeline, event._position)
        self._note_behind(event._behind)

    def fork(self) -> Stream:
        """A new stream whose work runs after all that this one holds now."""
        refuse_in_capture("fork()", self)
        branch = self.device.new_stream()
        branch.join(self)
        return branch

    def join(self, other: Given[Stream]) -> None:
        """What is submitted to this stream from now on runs after all that ``other`` holds now."""
        refuse_in_capture("join(stream)", self)
        if not isinstance(other, Stream):
            raise TypeError(f"a stream joins a Stream, not {type(other).__name__}; wait(event) waits for an event")
        behind = other._timeline.waited()
        mark = other._timeline.mark()
        self._timeline.wait_for(other._timeline, mark.position)
        self._note_behind(behind)

    def launch_host_function(self, function: Callable[[], None]) -> None:
        """Calls ``function`` on a thread of the driver's, in stream order. It must not use the device.

        What it raises goes to ``sys.unraisablehook``; the stream goes on.
        """
        refuse_in_capture("launch_host_function()", self)
        if not callable(function):
            raise TypeError(f"launch_host_function takes a function without arguments, not {type(function).__name__}")
        self._timeline.close()
        self.device.driver.launch_host_function(function, self._timeline.handle)
        self._timeline.advance()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Stream cannot be pickled or copied; device.new_stream() makes another")

    def __repr__(self) -> str:
        return f"<oxide.Stream {self.device.driver.stream_address(self._timeline.handle):#x} on {self.device.label}>"

    def _note_behind(self, behind: dict[Timeline, int]) -> None:
        """What another stream had been made to wait for, this one now comes after as well."""
        for timeline, position in behind.items():
            self._timeline.note_waited(timeline, position)

    def _adopt(self, submission: Submission[Any]) -> None:
        """Remembers an ``async_on`` submission, whose error the next ``synchronize`` raises."""
        self._loose.adopt(submission)

    def __del__(self) -> None:
        self._drop()


_FEW: Final = 4  # results that nobody asks after


@final
class LooseResults:
    """What ``async_on`` submitted to a stream and nobody has asked after since. The stream holds it, and while that is
    there the device does, for when memory is to be given back. It gives the stream's timeline back when it is dropped.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._drop: Any = partial(timeline.device.spare_timelines.append, timeline)
        self._timeline = timeline
        self._lock = new_rlock()  # several threads may submit to a stream, and a finaliser inside may too
        self._submissions: deque[Submission[Any]] = deque()
        self._ask_at = _FEW  # how many there are to be when the device is asked

    def adopt(self, submission: Submission[Any]) -> None:
        """One more. Those that the device is past are let go, but it is not asked each time, which takes 1.4 µs."""
        with self._lock:
            if len(self._submissions) >= self._ask_at:
                self._let_go()
                self._ask_at = len(self._submissions) + _FEW
            self._submissions.append(submission)

    def _let_go(self) -> None:
        loose, timeline = self._submissions, self._timeline
        loose[-1].finished_well()  # then all are, with no more questions
        # A stream passes its work in order, so whether the first is done is all to ask, however many there are.
        while loose and loose[0].finished_well():
            loose.popleft()
        if loose and loose[0].mark.position <= timeline.seen:  # it failed, and stays to be raised
            self._keep_unfinished()

    def take(self) -> deque[Submission[Any]]:
        """All of them, which are forgotten here."""
        with self._lock:
            taken, self._submissions = self._submissions, deque()
            self._ask_at = _FEW
            return taken

    def forget_finished(self) -> bool:
        """Lets go of the results that the device is past; what failed stays, for ``synchronize``. Whether any is still
        in flight."""
        with self._lock:
            self._keep_unfinished()
            return any(submission.mark.position > self._timeline.seen for submission in list(self._submissions))

    def _keep_unfinished(self) -> None:
        left = [submission for submission in self.take() if not submission.finished_well()]
        self._submissions.extendleft(reversed(left))

    def wait(self) -> None:
        """Returns when nothing that was submitted until now is in flight."""
        with self._lock:
            last = list(self._submissions)[-1:]
        for submission in last:
            with contextlib.suppress(DeviceError):  # for ``synchronize``
                submission.mark.synchronize()
        self.forget_finished()

    def __del__(self) -> None:
        self._drop()


@final
class Event:
    """A recorded point in a stream, with its time. ``stream.record_event()`` makes one."""

    def __init__(self, device: Device) -> None:
        self._drop: Any = nothing
        self._device = device
        self._timeline: Timeline | None = None  # whose first ``_position`` uses it covers
        self._position = 0
        self._behind: dict[Timeline, int] = {}  # what that stream had been made to wait for before
        self._handle = device.driver.create_event(device.id, timing=True)
        self._drop = partial(device.runtime.reclaimer.retire_event, self._handle)

    def query(self) -> bool:
        """Whether the device has passed the event."""
        passed = self._device.driver.query_event(self._handle)
        if passed:
            self._note_passed()
        return passed

    def synchronize(self) -> None:
        """Blocks the thread until the device has passed the event."""
        self._device.driver.synchronize_event(self._handle)
        self._note_passed()

    def _note_passed(self) -> None:
        if self._timeline is not None:
            self._timeline.note_passed(self._position)

    def elapsed_ms(self, end: Given[Event]) -> float:
        """Milliseconds from this event to ``end``; both must have been passed."""
        if not isinstance(end, Event):
            raise TypeError(f"elapsed_ms takes an Event, not {type(end).__name__}; stream.record_event() makes one")
        return self._device.driver.elapsed_ms(self._handle, end._handle)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Event cannot be pickled or copied; stream.record_event() makes another")

    def __del__(self) -> None:
        self._drop()


calls_drop(Stream, LooseResults, Event)


def _finish_all(submissions: Iterable[Submission[Any]]) -> None:
    """Finishes each, then raises the first error, which says how many there were."""
    first: BaseException | None = None
    more = 0
    for submission in submissions:
        try:
            submission.finish()
        except Exception as error:
            more += first is not None
            first = first or error
    if first is not None:
        if more:
            first.add_note(f"{more} more operation{'s' * (more > 1)} on the stream failed")
        raise first
