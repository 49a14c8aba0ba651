"""The walk: the state machine that executes an operation, and keeps its place in an object.

*The stack.* A walk has a stack of frames. A ``Frame`` is an operation that has begun and waits for the result of one of
its parts, which is the operation of the next frame. ``at`` is the frame's state: a number whose meaning is its
operation's own, 0 at the beginning. The walk is always about to do one of two things:

- *begin* an operation. If it has no parts (``_composed`` is False), its ``execute`` submits its work, and its result is
  given to the last frame. If it has parts, it becomes the last frame, and its first step is next.
- *step* the last frame with a result: ``operation.step(frame, result)``. A frame's first step gets None, each further
  one the result of the part that the step before it returned. If a step returns an operation, this part is begun next,
  in the context ``frame.inner``. If it returns None, ``frame.result`` is the operation's result. The frame is then
  removed, and the frame below it is stepped with this result. The result of the first frame is the walk's.

*Stops.* ``go_on`` continues until the walk has its result, and then returns None, or until it returns a ``Stop``, the
reason why the walk cannot go on yet. The caller waits or blocks as the reason asks, and calls ``go_on`` again. An
``execute`` or a step that raises a stop is called again with the same arguments, so it must not have had an effect
before. Between two calls of ``go_on`` no Python frame of the walk exists. The walk may be dropped there: nothing more
is submitted then.

*Errors.* After an error the frames are left, from the last to the first: ``operation.fail(frame, error)`` gives up what
the frame holds and adds notes. It may return an operation that is begun instead of the part that failed; the error is
then forgotten. If no frame does so, ``go_on`` raises the error.

*The invariant of host data: user code never sees a host array that is not filled.* A run counts the copies to host
memory that it submits (``host_copies.py``). A chain reads the count before its source begins. Before a stage calls a
function of the program, the walk stops for the copies that were submitted since then
(``ExecutionContext.wait_for_data``). Results are not searched. Copies of other parts of a ``zip`` are not waited for.

*Nesting.* Operations inside one another take none of Python's stack. Chains of ``and_then``, ``map`` and ``inspect``,
and ``shared`` operations that follow one another, may have any length; the walk's own stack has a limit (``TooDeep``).
"""

from __future__ import annotations

import ctypes
import re
import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from oxide.host import core
from oxide.host.locks import is_interrupt
from oxide.runtime.devices.fault_records import add_note_once
from oxide.runtime.devices.scheduling import find_device, picked_stream
from oxide.runtime.submission.capture import NotRecordable
from oxide.runtime.submission.stops import Dropped, Faulted, PlanEnds, Stop
from oxide.runtime.tracepoints import TracedRun, points

if TYPE_CHECKING:
    from oxide.host.core import ExecutionContext
    from oxide.runtime.devices.runtime import Device
    from oxide.runtime.ordering.timeline import Timeline

Result = TypeVar("Result", covariant=True)
T = TypeVar("T")

_LEAST = 30
"""The fewest walks inside one another that explain a full stack of Python's: with fewer, a function of the program used
it up."""

_IN_CTYPES = re.compile(r"argument \d+: RecursionError: ")
"""The beginning of the message that ctypes gives to an error which arose while it converted an argument."""


class Submittable(core.Operation, Generic[Result]):
    """An operation as the walk and a submission see it. ``_placed`` is True if it was placed on the device
    ``_placement``; otherwise it runs on the device of the run that it is part of. ``_built`` says when and where it was
    built, if that was traced. ``_unused`` is True once it is made, and ``_used`` from its first use on: dropping the
    operation then does not warn."""

    __slots__ = ()

    _composed = False
    """True if the operation has parts and is executed by steps, False if ``execute`` submits its work."""
    _combines = False
    """True if the operation only combines others: errors get no note of it."""
    _parts: tuple[Any, ...] = ()
    """The operations whose results this operation takes, in the order in which they run, as far as they are known
    before the run."""
    _may_download = True
    """False if the operation is known to copy nothing to host memory."""

    @abstractmethod
    def execute(self, context: Any) -> Result:
        """Submits the operation's work to ``context.stream``, and returns the result."""

    def step(self, frame: Frame, result: Any) -> Submittable[Any] | None:
        """Continues an operation with parts: see this module's docstring. By default, runs ``_parts`` in order, then
        calls ``finish``."""
        number: int = frame.at
        count = len(self._parts)
        if number <= count:  # and not called again after a stop of ``finish``
            if number:
                frame.results.append(result)
            else:
                frame.results = []
            frame.at = number + 1
            if number < count:
                part: Submittable[Any] = self._parts[number]
                return part
        frame.result = self.finish(frame.context, frame.results)
        return None

    def finish(self, context: Any, results: list[Any]) -> Any:
        """Submits the work of an operation that takes the ``results`` of its parts, and returns its result."""
        raise NotImplementedError

    def fail(self, frame: Frame, error: BaseException) -> Submittable[Any] | None:
        """Leaves a frame because of ``error``: see this module's docstring. By default, does nothing."""
        return None

    def end_plan(self, frame: Frame) -> None:
        """Submits the work that the operation has recorded, because of ``PlanEnds``."""
        raise NotImplementedError

    def pause(self, frame: Frame) -> None:
        """Called for each frame, from the last to the first, when the walk stops."""

    def resume(self, frame: Frame) -> None:
        """Called for each frame, from the first to the last, before the walk goes on after a stop."""

    def whereabouts(self) -> str:
        """Returns the note that the walk adds to an error of this operation."""
        return f"in {self!r}"

    @abstractmethod
    def traced_name(self) -> str:
        """Returns the operation's name in traces."""

    @abstractmethod
    def title(self) -> object:
        """Returns an object that names the operation in messages that may come after the operation was dropped: its
        class, or the operation itself."""


Frame = core.Frame
"""An operation that has begun, with the state of its steps. Its parts run in the context ``inner``. ``results``,
``place``, ``copies`` and ``data`` are for the operation's own use."""


@final
class Walk(core.Walk, Generic[T]):
    """The execution of an operation in a context: see this module's docstring. One thread at a time may use it.

    ``_frames`` is the stack. ``_part`` is the operation to begin; if it is None, the last frame is to be stepped with
    the result ``_given``. ``_stop`` is the last stop, until the walk goes on. ``_ending`` is the context of a recording
    that is to be submitted first. ``advance`` does the work, and this class what must happen after a stop or an
    error."""

    __slots__ = ()

    def go_on(self, traced: bool = False, error: BaseException | None = None) -> Stop | None:
        """Continues the walk. Returns None if it has its result, otherwise the reason for its stop. Raises the error
        that ended the walk. ``traced`` is True if a tracer knows of the walk already. ``error`` is what ``advance`` has
        just raised, if it was called elsewhere."""
        if points.tracer is not None and not traced and error is None:
            return self._go_on_traced()
        frames = self._frames
        stopped, self._stop = self._stop, None
        if stopped is not None:
            for frame in frames:
                frame.operation.resume(frame)
        while True:
            try:
                if error is not None:
                    try:
                        raise error
                    finally:
                        error = None  # a frame that its traceback has must not refer to it
                if stopped is not None:
                    failure, stopped = stopped.error, None
                    if failure is not None:
                        try:
                            raise failure
                        finally:
                            failure = None
                if self._ending is not None:
                    self._end_plan(self._ending)
                self.advance(traced)
                return None
            # An operation that was begun has raised if ``_part`` is not None, and the step of the last frame otherwise.
            except Stop as stop:
                self._stop = stop
                for frame in reversed(frames):
                    frame.operation.pause(frame)
                # Its traceback would keep the results that the frames of Python have, even if the walk is dropped.
                stop.__traceback__ = stop.__context__ = None
                return stop
            except PlanEnds as found:
                self._ending = found.context
            except Faulted as fault:
                self._leave(fault, self._taken_part())
                explain(fault.error, self.operation.title(), self.context.timeline)
                raise fault.error from None
            except BaseException as found:
                left = self._leave(found, self._taken_part())
                try:
                    if left is found:
                        raise
                    if left is not None:
                        raise left  # its context is the error that frames were left with
                finally:
                    left = None  # a frame that its traceback has must not refer to it
                self._given = None

    def _caught(self, error: BaseException) -> Any:
        """Goes on to the walk's end after ``error``, which ``advance`` has raised, and blocks the calling thread at
        each stop. Returns the result."""
        try:
            stop = self.go_on(error=error)
        finally:
            del error  # a frame that its traceback has must not refer to it
        return self.to_end(stop)

    def to_end(self, stop: Stop | None) -> T:
        """Blocks the calling thread at ``stop`` and at each further stop. Returns the result."""
        while stop is not None:
            try:
                stop.block()
            except BaseException as error:  # such as an interrupt
                self.drop(error)
                raise
            stop = self.go_on()
        result: T = self.result
        return result

    def _taken_part(self) -> Submittable[Any] | None:
        part, self._part = self._part, None
        return part

    def _end_plan(self, ended: ExecutionContext) -> None:
        """Has the frame whose parts are recorded in the context ``ended`` submit what is recorded. Its parts go on in
        the context of the frame itself."""
        frames = self._frames
        for number, frame in enumerate(frames):
            if frame.inner is ended:
                frame.operation.end_plan(frame)
                frame.inner = frame.context
                for above in frames[number + 1 :]:
                    if above.context is ended:
                        above.context = frame.context
                    if above.inner is ended:
                        above.inner = frame.context
                self._ending = None
                return
        self._ending = None
        raise NotRecordable  # the frame is one of an outer walk

    def _leave(self, error: BaseException, part: Submittable[Any] | None) -> BaseException | None:
        """Leaves frames after an error of the operation ``part``, or of the last frame if ``part`` is None, until one
        of them has another operation begun, which becomes ``_part``. Returns None then, and otherwise the error to
        raise."""
        frames = self._frames
        noted = isinstance(error, Exception)
        if noted and part is not None:
            _add_whereabouts(error, part)
        while frames:
            frame = frames[-1]
            try:
                following = frame.operation.fail(frame, error)
            except BaseException as another:
                following, error = None, another
                noted = isinstance(error, Exception)
            if following is not None:
                self._part = following
                return None
            frames.pop()
            if noted:
                _add_whereabouts(error, frame.operation)
        return error

    def drop(self, error: BaseException | None = None) -> None:
        """Leaves all frames of a walk that has stopped and will not go on, perhaps because of ``error``."""
        reason = Dropped() if error is None else error
        while self._leave(reason, None) is None:
            self._part = None
            self._frames.pop()  # it would have gone on

    def contexts(self) -> list[Any]:
        """Returns the contexts that submit the work of a walk that has stopped: its own, and those of its frames."""
        found = [self.context]
        for frame in self._frames:
            for context in (frame.context, frame.inner):
                if context.recording is None and not any(context is each for each in found):
                    found.append(context)
        return found

    def _go_on_traced(self) -> Stop | None:
        """Does what ``_go_on`` does while a tracer is told what is submitted."""
        traced, tracer = self.context.traced, points.tracer
        if traced is not None:  # this walk is a part of another
            name, built = traced.name, traced.built
            try:
                return self.go_on(True)
            finally:
                traced.name, traced.built = name, built
        if tracer is None:  # another thread has just ended the trace
            return self.go_on()
        operation = self.operation
        entered = tracer.enter(operation.traced_name(), operation._built, self.context.recording is not None)
        self._set_traced(entered)
        try:
            return self.go_on(True)
        finally:
            self._set_traced(None)
            tracer.leave(entered)

    def _set_traced(self, run: TracedRun | None) -> None:
        self.context.traced = run
        for frame in self._frames:
            frame.context.traced = frame.inner.traced = run
            _name(run, frame.operation)


class TooDeep(RecursionError):
    """Raised by a walk whose stack is full. That stack is as deep as Python's may be (``sys.getrecursionlimit()``): a
    function of ``and_then`` that returns its own ``and_then`` without end would otherwise take all memory."""

    def __init__(self) -> None:
        super().__init__("operations are nested too deep")


def raise_if_nested(error: BaseException, operation: object) -> None:
    """Raises a ``RecursionError`` with advice if ``error`` is one that nested operations caused. If the stack was full
    in a call of a native function, ``error`` is the ``ArgumentError`` that ctypes has made of the ``RecursionError``,
    and a ``RecursionError`` is raised for it too."""
    in_ctypes = isinstance(error, ctypes.ArgumentError) and _IN_CTYPES.match(str(error)) is not None
    if not in_ctypes and not isinstance(error, RecursionError):
        return
    trace, depth = error.__traceback__, 0
    while trace is not None:
        depth += trace.tb_frame.f_code is Walk.go_on.__code__
        trace = trace.tb_next
    if depth >= _LEAST or isinstance(error, TooDeep):
        raise RecursionError(
            f"{operation!r} has more operations inside one another than the {sys.getrecursionlimit()} that "
            f"sys.getrecursionlimit() allows. Chains of and_then, map and inspect may have any length, and shared() "
            f"may follow shared(); make nested zips flat, zip(a, b, c), give a launch the boxes of earlier launches in "
            f"an and_then, and write a function that returns its own and_then as a loop"
        ) from None
    if in_ctypes:
        found = RecursionError("maximum recursion depth exceeded in a call of a native function")
        for note in getattr(error, "__notes__", ()):
            found.add_note(note)
        raise found.with_traceback(error.__traceback__) from None


def _run_in_python(operation: Submittable[T], context: ExecutionContext) -> T:
    """Does what ``run_through`` does, while a tracer is told what is submitted."""
    walk: Walk[T] = Walk(operation, context)
    return walk.to_end(walk.go_on())


def _failed_to_execute(operation: Submittable[T], context: ExecutionContext, error: BaseException) -> T:
    """Handles an error of an operation without parts, which needed no walk. A stop needs one."""
    if isinstance(error, Stop):
        return _run_in_python(operation, context)
    if isinstance(error, Exception):
        _add_whereabouts(error, operation)
    try:
        raise error
    finally:
        del error  # a frame that its traceback has must not refer to it


def _placed_elsewhere(part: Submittable[Any], context: ExecutionContext) -> Submittable[Any]:
    """Returns the operation to run for one that was placed on a device, which may be that of the context."""
    device = find_device(context.runtime, part._placement)
    return part if device is context.device else _Elsewhere(part, device)


@final
class _Elsewhere(Submittable[Any]):
    """An operation that was placed on another device than that of the run that it is a part of. It runs on a stream of
    its device, which the policy picks. The enclosing run ends after it."""

    _composed = _combines = True

    def __init__(self, operation: Submittable[Any], device: Device) -> None:
        self._operation = operation
        self._device = device

    def step(self, frame: Frame, result: Any) -> Submittable[Any] | None:
        context = frame.context
        if not frame.at:
            if context.recording is not None:
                context.recording.refuse(
                    f"{self._operation!r} runs on {self._device.label} and cannot be captured into a graph of "
                    f"{context.device.label}: a graph runs on one device. Capture a graph for each, with "
                    f"op.on(device).graph()"
                )
            stream = picked_stream(context.runtime.policy, self._device)
            frame.inner = context.part(None, stream, context.visible)
            frame.at = 1
            return self._operation
        frame.at = 2
        context.join(frame.inner)
        frame.result = result
        return None

    def fail(self, frame: Frame, error: BaseException) -> Submittable[Any] | None:
        if frame.at == 1:
            if is_interrupt(error):
                frame.inner.interrupted()
            frame.context.join(frame.inner)
        return None

    def execute(self, context: Any) -> Any:
        raise NotImplementedError

    def consume(self) -> None:
        self._operation.consume()

    def traced_name(self) -> str:
        return self._operation.traced_name()

    def title(self) -> object:
        return self._operation.title()


def _name(run: TracedRun | None, operation: Submittable[Any]) -> None:
    """Makes an operation the part of the run that the thread submits now."""
    if run is not None:
        run.name, run.built = operation.traced_name(), operation._built


def _add_whereabouts(error: BaseException, operation: Submittable[Any]) -> None:
    if not operation._combines:
        add_note_once(error, operation.whereabouts())


def explain(error: BaseException, title: object, timeline: Timeline) -> None:
    """Adds an operation's name to an error that was found when the device had run it."""
    named = f"<oxide operation {title.__name__}>" if isinstance(title, type) else repr(title)
    add_note_once(error, f"found when {named} had run on {timeline.label}")


core.setup(
    Walk=Walk,
    TooDeep=TooDeep,
    failed_to_execute=_failed_to_execute,
    name_part=_name,
    placed_elsewhere=_placed_elsewhere,
    run_in_python=_run_in_python,
)
