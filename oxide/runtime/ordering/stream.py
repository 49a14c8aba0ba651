"""The public ``Stream`` and ``Event``."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, final

from oxide.driver.base import provided
from oxide.errors import DeviceError, GraphError
from oxide.host import core
from oxide.host.core import Dropping
from oxide.host.locks import RUNTIME_LOCK, new_lock, refuse_inside
from oxide.host.messages import written
from oxide.runtime.ordering.timeline import Timeline
from oxide.runtime.tracepoints import points

if TYPE_CHECKING:
    from oxide.driver.base import StreamPriority
    from oxide.runtime.ordering.timeline import DeviceState, Mark


class InFlight(Protocol):
    """A submission whose error the stream's ``synchronize`` raises."""

    @property
    def mark(self) -> Mark:
        """Returns the mark after the submission's work."""

    def finish(self) -> object:
        """Returns the result. Never called before the device is past the mark. Raises the fault that a kernel
        reported."""

    def finished_well(self) -> bool:
        """Returns whether the device is past the mark and no kernel failed."""


@final
class Stream(Dropping):
    """An in-order queue of work on one device. ``device.new_stream()`` makes one.

    Dropping the stream returns it to its device. Submitted work still runs. While a graph is captured on the stream,
    its methods raise ``GraphError``.
    """

    def __init__(
        self, device: DeviceState, priority: StreamPriority = "normal", timeline: Timeline | None = None
    ) -> None:
        """Makes a stream. With ``timeline``, wraps that timeline, which belongs to another library's stream."""
        self.drops_work: bool = device.driver.runs is not None
        self._timeline: Timeline = device.take_timeline(priority) if timeline is None else timeline
        self.device = self._timeline.device
        self._loose = LooseResults(self._timeline)
        self._drop = partial(device.loose.discard, self._loose)  # holds the last reference after the discard
        device.loose.add(self._loose)

    @property
    def priority(self) -> StreamPriority:
        """Returns ``"normal"`` or ``"high"``."""
        return self._timeline.priority

    @property
    def handle(self) -> int:
        """Returns the stream's number for other libraries: a ``CUstream`` on a GPU."""
        refuse_in_capture("naming the stream to another library, whose work would be left out,", self)
        return self._timeline.name()

    @property
    def __cuda_stream__(self) -> Callable[[], tuple[int, int]]:
        """Implements the CUDA stream protocol, version 0, for CuPy's ``Stream.from_external`` and cuda.core."""
        if self.device.kind != "cuda":
            raise AttributeError(f"a stream on {self.device.label} is no CUDA stream")
        return lambda: (0, self.handle)

    def synchronize(self) -> None:
        """Blocks the thread until all submitted work has run.

        Raises the first error of the operations that ``async_on`` submitted here.
        """
        refuse_in_capture("synchronize()", self)
        loose = self._loose.take()
        self.device.raise_if_lost()
        position = self._timeline.advance()
        self._timeline.synchronize()
        self._loose.call_functions(position)
        _finish_all(loose)

    def query(self) -> bool:
        """Returns whether all submitted work has run."""
        refuse_in_capture("query()", self)
        return self._timeline.seen_dry()

    def record_event(self) -> Event:
        """Returns an event recorded after the work submitted so far. The event keeps the time at which the device
        passed it."""
        refuse_in_capture("record_event()", self)
        event = Event(self.device)
        event._behind = self._timeline.waited()
        event._timeline, event._position = self._timeline, self._timeline.advance()
        self.device.driver.record_event(event._handle, self._timeline.handle)
        return event

    def wait(self, event: Event) -> None:
        """Makes work submitted from now on run after ``event``. Blocks no thread."""
        refuse_in_capture("wait(event)", self)
        if not isinstance(event, Event):
            raise TypeError(f"a stream waits for an Event, not {type(event).__name__}; join(stream) waits for a stream")
        self._timeline.close()
        self.device.driver.wait_event(self._timeline.handle, event._handle)
        tracer = points.tracer
        if tracer is not None:
            tracer.caused("stream.wait(event)")
        self._timeline.note_waited(event._timeline, event._position)
        self._note_behind(event._behind)

    def fork(self) -> Stream:
        """Returns a new stream of the same priority, whose work runs after all work submitted to this stream so far."""
        refuse_in_capture("fork()", self)
        branch = self.device.new_stream(priority=self.priority)
        branch.join(self)
        return branch

    def join(self, other: Stream) -> None:
        """Makes work submitted to this stream from now on run after all work submitted to ``other`` so far."""
        refuse_in_capture("join(stream)", self)
        if not isinstance(other, Stream):
            raise TypeError(f"a stream joins a Stream, not {type(other).__name__}; wait(event) waits for an event")
        behind = other._timeline.waited()
        mark = other._timeline.mark()
        self._timeline.wait_for(other._timeline, mark.position, "stream.join(stream)")
        self._note_behind(behind)

    def launch_host_function(self, function: Callable[[], None]) -> None:
        """Calls ``function`` on a driver thread, in stream order. The function must not use the device.

        Its exceptions go to ``sys.unraisablehook``, and the stream continues.
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
        priority = ", high priority" if self.priority == "high" else ""
        address = self.device.driver.stream_address(self._timeline.handle)
        return f"<oxide.Stream {address:#x} on {self.device.label}{priority}>"

    def _note_behind(self, behind: dict[Timeline, int]) -> None:
        """Records that this stream, which was just ordered after another stream, also runs after ``behind``: the work
        that the other stream had been made to wait for."""
        for timeline, position in behind.items():
            self._timeline.note_waited(timeline, position)

    def _adopt(self, submission: InFlight) -> None:
        """Keeps an ``async_on`` submission. The next ``synchronize`` raises its error."""
        self._loose.adopt(submission)

    def _raise_finished(self) -> None:
        """Raises the first error of the ``async_on`` submissions that the device is past. Waits for nothing."""
        _finish_all(self._loose.take_finished())

    def _when_synchronized(self, function: Callable[[], object]) -> None:
        """Has the next ``synchronize`` call ``function`` once the work submitted so far has run."""
        self._loose.functions.append((self._timeline.advance(), function))


def require_priority(priority: StreamPriority, call: str) -> StreamPriority:
    """Checks and returns a priority that a user gave to ``call``. Raises ``ValueError``."""
    if not isinstance(priority, str) or priority not in ("normal", "high"):
        raise ValueError(f"{call}(priority={written(priority)}): priority must be 'normal' or 'high'")
    return "high" if priority == "high" else "normal"


_FEW: Final = 8  # the number of results kept before the first query


@final
class LooseResults(core.LooseResults):
    """The ``async_on`` submissions to a stream since its last ``synchronize``. The stream holds this object. While the
    stream exists, the device holds the object too, for out-of-memory recovery. Dropping the object returns the stream's
    timeline to the device."""

    def __init__(self, timeline: Timeline) -> None:
        self._drop = None if timeline.foreign else partial(timeline.device.spare_timelines.append, timeline)
        self._timeline = timeline
        self._submissions: deque[InFlight] = deque()
        # What ``synchronize`` calls, each with the position that the device must have passed. A function is removed
        # once it has returned, so that another thread that synchronises does not go on before.
        self.functions: deque[tuple[int, Callable[[], object]]] = deque()
        self._calling = new_lock()
        self._ask_at = _FEW  # the number of submissions at which the device is queried

    def _let_go(self) -> None:
        loose, timeline = self._submissions, self._timeline
        # The device passes a stream's work in order: if one is done, those before it are, without a query.
        # From the oldest on, ``Mark.passed`` looks ahead itself.
        for submission in (loose[-1], loose[-_FEW], loose[0]):
            if submission.finished_well():
                break
        while loose and loose[0].mark.position <= timeline.seen and loose[0].finished_well():
            loose.popleft()
        # The first submission failed. It stays, so that ``synchronize`` raises its error.
        if loose and loose[0].mark.position <= timeline.seen:
            self._keep_unfinished()
        self._ask_at = len(self._submissions) + _FEW

    def take(self) -> deque[InFlight]:
        """Removes and returns all submissions."""
        with RUNTIME_LOCK:
            taken, self._submissions = self._submissions, deque()
            self._ask_at = _FEW
            return taken

    def take_finished(self) -> list[InFlight]:
        """Removes and returns the submissions that the device is past."""
        taken: list[InFlight] = []
        with RUNTIME_LOCK:
            while self._submissions and self._submissions[0].mark.passed():
                taken.append(self._submissions.popleft())
        return taken

    def is_empty(self) -> bool:
        """Drops the submissions that finished well. Returns whether none is left."""
        self.forget_finished()
        return not self._submissions

    def call_functions(self, position: int) -> None:
        """Calls the functions of ``synchronize`` that wait for nothing after ``position``, which the device has
        passed."""
        if self.functions:
            with self._calling:
                while self.functions and self.functions[0][0] <= position:
                    self.functions[0][1]()
                    self.functions.popleft()

    def forget_finished(self) -> bool:
        """Drops the submissions that the device is past, but keeps failed ones for ``synchronize``. Returns whether a
        submission is still in flight."""
        with RUNTIME_LOCK:
            self._keep_unfinished()
            return any(submission.mark.position > self._timeline.seen for submission in list(self._submissions))

    def _keep_unfinished(self) -> None:
        left = [submission for submission in self.take() if not submission.finished_well()]
        self._submissions.extendleft(reversed(left))

    def wait(self) -> None:
        """Blocks until all work submitted so far has ended."""
        with RUNTIME_LOCK:
            last = list(self._submissions)[-1:]
        for submission in last:
            with contextlib.suppress(DeviceError):  # ``synchronize`` raises it
                submission.mark.synchronize()
        self.forget_finished()


@final
class Event(Dropping):
    """A recorded point in a stream, with its time. ``stream.record_event()`` makes one."""

    def __init__(self, device: DeviceState) -> None:
        self._device = device
        self._timeline: Timeline | None = None  # the event covers the first ``_position`` positions of this timeline
        self._position = 0
        self._behind: dict[Timeline, int] = {}  # the work that the stream had been made to wait for before the event
        self._handle = device.driver.create_event(device.id, timing=True)
        self._drop = partial(device.runtime.reclaimer.retire_event, self._handle)

    def query(self) -> bool:
        """Returns whether the device has passed the event."""
        refuse_inside()
        passed = self._device.driver.query_event(self._handle)
        if passed:
            self._note_passed()
        return passed

    def synchronize(self) -> None:
        """Blocks the thread until the device has passed the event."""
        refuse_inside()
        self._device.driver.synchronize_event(self._handle)
        self._note_passed()

    def _note_passed(self) -> None:
        if self._timeline is not None:
            self._timeline.note_passed(self._position)

    def elapsed_ms(self, end: Event) -> float:
        """Returns the milliseconds from this event to ``end``. The device must have passed both."""
        if not isinstance(end, Event):
            raise TypeError(f"elapsed_ms takes an Event, not {type(end).__name__}; stream.record_event() makes one")
        return provided(self._device.driver.timing, "timing").elapsed_ms(self._handle, end._handle)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Event cannot be pickled or copied; stream.record_event() makes another")


def _finish_all(submissions: Iterable[InFlight]) -> None:
    """Finishes each submission, then raises the first error, with a note of the number of further errors."""
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


class Capture(Protocol):
    """A capture in progress."""

    is_open: bool

    @property
    def stream(self) -> Any:
        """Returns the stream whose work is captured."""


# A context variable, so that a capture belongs to one task or thread: other tasks may run operations meanwhile.
current_capture: Final[ContextVar[Capture | None]] = ContextVar("oxide_capture", default=None)


def refuse_in_capture(what: str, stream: object = None) -> None:
    """Raises ``GraphError`` inside a capture of this task or thread. With ``stream``, raises only if the capture is on
    ``stream``. ``what`` names the refused call in the error. Also raises the ``OrderingError`` of
    ``refuse_inside``."""
    refuse_inside()
    capture = current_capture.get()
    if capture is not None and capture.is_open and (stream is None or capture.stream is stream):
        raise GraphError(
            f"{what} is not possible while a graph is captured"
            + (f" on thread {threading.current_thread().name}" if stream is None else " on the stream")
            + ": nothing runs before the graph is launched. Do it before the capture or after it; "
            "inside CudaGraph.scope, hand operations to record"
        )
