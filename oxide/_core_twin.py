"""The twin of the extension ``oxide._core``, in plain Python: the same names, for a system without a C compiler. It is
the specification of the extension, whose names have the same meaning. The classes of the runtime that derive from these
types describe them. Where the extension does the frequent case of a method of such a class, the twin leaves all to it.
This file has operations, the walk and runs; ``host/_device_twin.py`` has the rest.

What it costs: a run takes two to eight times the host's time (docs/notes/host-path.md). A call from a stream takes the
GIL, so the device's host-function thread waits for Python when a task is woken or an upload is copied; no threads help
with large copies; no report names a kernel that ends the process. A finaliser is Python: an interrupt that arrives
there is printed and lost, and an exception that is on its way while another library drops a box of oxide's may be lost.
"""

from __future__ import annotations

import sys
import threading
from types import CoroutineType
from typing import Any, Final

from oxide.host._device_twin import *  # noqa: F403
from oxide.host._device_twin import (
    EMPTY,
    NOTHING,
    RUNTIME_LOCK,
    Dropping,
    General,
    given,
    note_dropped,
    points,
    refuse_inside,
)

# Binding

SLICE, DISJOINT, TILES, SCALAR, LIFTED, ARGUMENT, OTHER = range(7)
SIGNED, UNSIGNED, FLOAT = 1 << 8, 2 << 8, 3 << 8


class ParameterSlot:
    """The rules that bind an argument to one parameter."""

    __slots__ = (
        "alignment", "before", "bits", "components", "converted", "dtype", "fits", "judged", "kind", "last",
        "last_piece", "last_words", "most", "ndim", "number", "parts", "type",
    )  # fmt: skip


class Plan:
    """The rules that bind the parameters of a specialization."""

    __slots__ = (
        "captured", "end", "fitting", "holds", "inferred", "inferred_shape", "outputs", "reference", "short", "slots",
        "special",
    )  # fmt: skip

    def compile(self, slots: tuple[Any, ...], outputs: Any, captured: Any, end: bytes, bound: bool) -> None:
        """Sets what launches read at each call. ``bound`` is False for a plan whose launches C does not make whole."""
        self.slots, self.outputs, self.captured, self.end = slots, outputs, captured, end


class LaunchConfig:
    """The size of a launch."""

    __slots__ = ("_block", "_grid", "_shared_mem_bytes")

    def _set(self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_mem_bytes: int) -> None:
        self._grid, self._block, self._shared_mem_bytes = grid, block, shared_mem_bytes

    def equals(self, other: LaunchConfig) -> bool:
        """Returns whether ``other`` has the same grid, block and dynamic shared memory."""
        sizes = (self._grid, self._block, self._shared_mem_bytes)
        return sizes == (other._grid, other._block, other._shared_mem_bytes)


class ConfiguredKernel(General):
    """A kernel with its launch configuration."""

    __slots__ = ("_config", "_kernel", "_plan")

    def __init__(self: Any, kernel: Any, config: Any) -> None:
        if config is not None and type(config) is not given.Config:
            config = self._bracketed(kernel, config)
        self._kernel, self._config, self._plan = kernel, config, kernel.launches.latest


# Operations

MAP, INSPECT, AND_THEN, WITH_CONTEXT = range(4)
_BEGIN, _RUNS, _KEPT = range(3)  # the states of a chain, as in combinators.py


class Operation:
    """A lazy operation."""

    _unused = False  # set at the end of __init__, so that an operation with refused arguments does not warn
    _used = False
    _placed = False  # if False, the operation runs on the device of the run that it is part of
    _built = NOTHING  # when and where it was built, if that was traced

    def __init__(self, *parts: Any) -> None:
        for part in parts:
            part.consume()
        self._unused = True
        tracer = points.tracer
        if tracer is not None:
            self._built = tracer.built()

    def consume(self) -> None:
        """Marks the operation as used, so that dropping it does not warn."""
        self._used = True

    def place_as(self, other: Any) -> None:
        """Places this operation on the device that ``other`` was placed on, if any."""
        if other._placed:
            self._placed, self._placement = True, other._placement

    def and_then(self, function: Any) -> Any:
        """Runs this operation, then the operation ``function(result)``, on the same stream.

        ``function`` is called when this operation has been submitted. Boxes in the result are handles, whose data may
        be in flight. Host arrays are filled: if this operation copies to the host, the run waits for its copies before
        the function is called (``d2h``, ``h2d`` and ``memcpy`` themselves do not wait). Running raises ``TypeError`` if
        the function does not return an operation.
        """
        return given.AndThen(self, function, "and_then", AND_THEN)

    def and_then_with_context(self, function: Any) -> Any:
        """Runs this operation, then ``function(context, result)``: ``and_then`` with the execution context."""
        return given.AndThen(self, function, "and_then_with_context", WITH_CONTEXT)

    def map(self, function: Any) -> Any:
        """Yields ``function(result)``, computed on the host without device work. As for ``and_then``, boxes are handles
        whose data may be in flight, and host arrays are filled."""
        return given.Map(self, function, "map", MAP)

    def __del__(self, note: Any = note_dropped) -> None:  # at the interpreter's end a module's names may be gone
        if self._unused and not self._used:
            note(self)


class Stage(Operation):
    """An operation that continues from the result of another."""

    def __init__(self, source: Any, function: Any, name: str, kind: int) -> None:
        source._used = True  # a failed use counts as a use: dropping the operation does not warn
        given.refuse_stage(function, name)
        self.source, self._function, self._name, self._kind = source, function, name, kind
        self.stage: int = source.stage + 1 if isinstance(source, Stage) else 2
        self._origin = given.origin(function)
        self._unused = True
        if source._placed:  # a chain is on one device
            self.place_as(source)
        if source._built is not None:  # and was built where it begins
            self._built = source._built

    def step(self, frame: Any, result: Any) -> Any:
        """Runs a whole chain, whose last stage this is."""
        context = frame.context
        if frame.at == _BEGIN:
            stages = [self]
            source = self.source
            while isinstance(source, Stage):
                stages.append(source)
                source = source.source
            frame.at, frame.results, frame.place, frame.data = _RUNS, stages, context.place, None
            if context.copies is not None:
                frame.copies = context.copies.count
            return source
        if frame.at == _KEPT:
            frame.at, result = _RUNS, frame.result
        stages = frame.results
        try:
            while stages:
                stage: Any = stages[-1]
                copies = context.copies
                if copies is not None and copies.count > frame.copies:
                    frame.data = None
                    stage.require_data(frame, copies, result)
                frame.data = stage
                context.place = (stage._name, stage._origin, stage.stage, frame.place)
                kind, function = stage._kind, stage._function
                made = function(context, result) if kind == WITH_CONTEXT else function(result)
                if kind <= INSPECT and isinstance(made, CoroutineType):
                    given.refuse_coroutine(made, function, stage._name)
                stages.pop()
                if kind > INSPECT:
                    return made if isinstance(made, Operation) else given.require_operation(made, stage._name)
                if kind == MAP:
                    result = made
        except BaseException:
            frame.at, frame.result = _KEPT, result
            raise
        context.place = frame.place
        frame.result = result
        return None


class Zip(Operation):
    """An operation that runs several operations in order on one stream and yields the tuple of their results."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._parts = parts
        super().__init__(*parts)
        device = parts[0]._placement if parts and parts[0]._placed else None
        # a list, as a generator takes longer for few parts
        if device is not None and all([part._placed and part._placement == device for part in parts]):  # noqa: C419
            self.place_as(parts[0])

    def step(self, frame: Any, result: Any) -> Any:
        parts, number, context = self._parts, frame.at, frame.context
        if number:
            frame.results.append(result)
        else:
            frame.results, frame.place, frame.data = [], context.place, None
        if number < len(parts):
            frame.at = number + 1
            context.place = ("zip", len(parts), number + 1, frame.place)
            return parts[number]
        context.place = frame.place
        if frame.data is not None:
            raise frame.data
        frame.result = tuple(frame.results)
        return None


class Element(Operation):
    """An operation that yields one element of the tuple that another operation yields."""

    def __init__(self, source: Any, index: int) -> None:
        self._index, self._parts = index, (source,)
        super().__init__(source)
        self.place_as(source)

    def step(self, frame: Any, result: Any) -> Any:
        if not frame.at:
            frame.at = 1
            return self._parts[0]
        if not isinstance(result, tuple) or not -len(result) <= self._index < len(result):
            given.refuse_element(self._index, result)
        frame.result = result[self._index]
        return None


class Value(Operation):
    """An operation that yields a value of the host's."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self._unused = True
        tracer = points.tracer
        if tracer is not None:
            self._built = tracer.built()

    def execute(self, context: Any) -> Any:
        """Returns the value."""
        return self._result


class Launch(General, Operation):
    """A launch of a kernel. ``bind`` is added by ``binding.py``."""

    _bound = _composed = False
    _bound_device = _config = _held = _known = NOTHING
    _parts: tuple[Any, ...] = ()


class Frame:
    """An operation that has begun, with the state of its steps."""

    __slots__ = ("at", "context", "copies", "data", "inner", "operation", "place", "result", "results")

    def __init__(self, operation: Any, context: Any) -> None:
        self.operation = operation
        self.context = self.inner = context
        self.at = self.copies = 0


class Walk:
    """The execution of an operation in a context."""

    __slots__ = ("_ending", "_frames", "_given", "_part", "_stop", "context", "operation", "result")

    def __init__(self, operation: Any, context: Any) -> None:
        self.operation = self._part = operation
        self.context = context
        self._frames: list[Any] = []
        self._given = self._stop = self._ending = NOTHING

    def advance(self, traced: bool) -> None:
        """Goes on until the walk has its result. After an exception, ``_part`` is the operation that has raised it when
        it was begun, or None if the step of the last frame has."""
        frames = self._frames
        part, result = self._part, self._given
        limit = sys.getrecursionlimit()
        context = frames[-1].inner if frames else self.context
        try:
            while True:
                if part is not None:
                    part._used = True
                    if part._placed and part._placement is not context.device:
                        part = given.placed_elsewhere(part, context)
                    if traced:
                        given.name_part(context.traced, part)
                    if part._composed:
                        if len(frames) + 1 >= limit:
                            raise given.TooDeep
                        frames.append(Frame(part, context))
                        part = result = None
                        continue
                    result = part.execute(context)
                    part = None
                else:
                    frame = frames[-1]
                    part = frame.operation.step(frame, result)
                    if part is not None:
                        context = frame.inner
                        continue
                    result = frame.result
                    frames.pop()
                if not frames:
                    self.result = result
                    return
                context = frames[-1].inner
                if traced:
                    given.name_part(context.traced, frames[-1].operation)
        except BaseException:
            self._part, self._given = part, result
            raise


def run_through(operation: Any, context: Any) -> Any:
    """Executes an operation to its end, and blocks the thread at each stop."""
    if points.tracer is not None:
        return given.run_in_python(operation, context)
    if not operation._composed and not operation._placed:  # most need no walk
        operation._used = True
        try:
            return operation.execute(context)
        except BaseException as error:
            return given.failed_to_execute(operation, context, error)
    walk = given.Walk(operation, context)
    try:
        walk.advance(False)
    except BaseException as error:
        return walk._caught(error)
    return walk.result


class ExecutionContext:
    """The context of one execution."""

    __slots__ = (
        "_declared", "_faults", "_if_given_up", "_joined", "_kept", "_report", "_using", "copies", "device", "driver",
        "lender", "levels", "place", "recording", "renewed", "runtime", "stream", "timeline", "traced", "visible",
        "waitless",
    )  # fmt: skip

    def __init__(self, stream: Any, recording: Any = None, visible: Any = None) -> None:
        timeline: Any = stream._timeline
        self.stream, self.timeline, self.recording, self.visible = stream, timeline, recording, visible
        self.device, self.runtime = timeline.device, timeline._runtime
        self.driver = timeline.driver if recording is None else recording
        if visible is not None:
            self.driver = self.driver.for_run(visible.run)
        self.place = self.traced = self.copies = self.renewed = self.lender = self._report = self._using = NOTHING
        self.levels, self.waitless = sys.getrecursionlimit(), ""
        self._joined = self._if_given_up = self._declared = EMPTY
        self._kept: list[Any] = []
        self._faults: list[Any] = []

    def note_host_copy(self, array: Any = None, /) -> None:
        """Counts a copy to host memory that was just submitted or recorded, into the new ``array`` if one is given."""
        if self.copies is None:
            self.copies = given.HostCopies()
        if self.recording is None:
            self.copies.add(self.timeline, self.timeline.advance())
        else:
            self.copies.recorded = self.copies.count = self.copies.count + 1
        if self.waitless and array is not None:
            given.note_array(self, array)

    def begin(self, reads: list[Any], writes: list[Any]) -> None:
        """Orders work that is submitted until ``end`` after the buffers' earlier uses; in a capture, at each launch of
        the graph. Call it with the lock held."""
        if self.recording is not None:
            self.recording.note_uses(reads, writes)
            return
        timeline = self.timeline
        self._using = (reads, writes)
        if timeline.end is not None:
            timeline.close()
        # Most memory is used on a single stream: the test here then saves a call.
        for allocation in reads:
            if allocation.written_by is not timeline or allocation.claims:
                allocation.order_read(timeline)
        for allocation in writes:
            if allocation.written_by is not timeline or allocation.claims or allocation.reads:
                allocation.order_write(timeline)
        if self.visible is not None:
            for allocation in writes:
                if allocation.visible is not self.visible:
                    self.visible.run.used_by_others = True

    def end(self, reads: list[Any], writes: list[Any], *, submitted: bool) -> None:
        """Orders later uses of the buffers after the work since ``begin``, if it was ``submitted``."""
        if self.recording is not None:
            self.recording.uses_noted()
            return
        if submitted:
            timeline = self.timeline
            position = timeline.advance()
            for allocation in reads:
                allocation.reads[timeline] = position
                if allocation.adopted or allocation.visible is not None:
                    self._note_shared(allocation)
            for allocation in writes:
                if allocation.adopted or allocation.visible is not None:
                    self._note_shared(allocation)
                allocation.written_by, allocation._written_at = timeline, position
                if allocation.reads:
                    allocation.reads.clear()
            self._using = None

    def _note_shared(self, allocation: Any) -> None:
        if allocation.adopted:  # it may be imported again after its boxes are gone, until this run ends
            self._kept.append(allocation.known_to_others())
        if allocation.visible is not None and allocation.visible is not self.visible:
            allocation.visible.run.used_by_others = True


class Captured(Dropping):
    """A graph's handle, and everything that the device needs while it runs."""

    _last = _page = first = NOTHING
    _used = 0

    def _set_uses(self, reads: list[Any], writes: list[Any], plain: bool) -> None:
        self._reads, self._writes, self._lock = reads, writes, threading.RLock()

    def launch(self: Any, context: Any, sources: Any) -> None:
        """Submits one launch: the copies to its inputs and the uploads, then the graph."""
        context._kept.append(self)
        self._launch_slowly(context, sources)


class GraphLaunch(General, Operation):
    """A launch of a graph."""

    def __init__(self, graph: Any, device: Any, sources: tuple[Any, ...]) -> None:
        self._graph, self._sources = graph, sources
        super().__init__()
        self._placed, self._placement = True, device


class Submission:
    """One submitted execution."""

    __slots__ = ("_open", "_reclaimer", "_title", "_visible", "faults", "mark", "result_in_flight")

    def __init__(self, context: Any, result: Any, title: object) -> None:
        self._open = False  # True while the submission is neither finished nor abandoned
        self.result_in_flight, self._title, self._visible = result, title, context.visible
        self.faults, self._reclaimer = context._faults, context.runtime.reclaimer
        if context._joined:
            context.wait_for_joined()
        self.mark = context.timeline.mark()
        if context._declared:
            context.settle(self.mark.position)
        context._declared = None
        if self._visible is None:  # a run with a token must not keep its result alive: see ``reclaim``
            context._kept.append(result)
        context._kept.append(context._faults)
        self._open = True  # before the hold: abandoning a mark that is not held does nothing
        self._reclaimer._in_flight[self.mark] = context._kept

    def finish(self) -> Any:
        """Returns the result. Do not call it before the device is past the submission. Raises the fault that a kernel
        reported."""
        if self._open:
            kept = self._reclaimer._in_flight.pop(self.mark, None)
            self._open = False
            if kept is not None:  # for only one thread, which counts it
                self.mark.timeline._runtime.counters.completed.add()
        for report in self.faults:
            if report.claimed():
                given.raise_fault(report, self._title, self.mark.timeline)
        return self.result_in_flight

    def finished_well(self) -> bool:
        """Returns whether the device is past the submission and no kernel failed."""
        try:
            if not self.mark.passed():
                return False
            self.finish()
        except Exception:
            return False
        return True

    def abandon(self) -> None:
        """Hands the submission's memory to the reclaimer's limbo: no task waits for the submission any more."""
        if self._open:
            self._reclaimer.abandon((self.mark, None if self._visible is None else self._visible.run))
            self._open = False

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.abandon()


class LooseResults(Dropping):
    """The submissions of ``async_on`` to a stream."""

    _ask_at: int
    _submissions: Any

    def adopt(self, submission: Any) -> None:
        """Adds a submission. Drops finished ones from time to time: a query takes too long for each call."""
        with RUNTIME_LOCK:
            if len(self._submissions) >= self._ask_at:
                self._let_go()  # type: ignore[attr-defined]
            self._submissions.append(submission)


def context_for(operation: Any, stream: Any, visible: Any = None, *, sweeps: bool = True) -> Any:
    """Returns the context for a run of ``operation`` on ``stream``. First lets the reclaimer free dropped memory, if
    ``sweeps``. Raises ``GraphError`` during a capture, and the errors of ``refuse_inside`` and of a lost device."""
    operation.consume()
    refuse_inside()
    if given.capture() is not None:
        given.refuse_in_capture()
    device = stream.device
    if device.lost is not None:
        device.raise_if_lost()
    if sweeps and any(device.runtime.reclaimer._queues):
        device.runtime.reclaimer.sweep()
    return given.Context(stream, None, visible)


def submit(operation: Any, stream: Any, run: Any = None) -> Any:
    """Executes ``operation`` on ``stream``, and waits for nothing. Returns its submission, or a ``Paused`` run at the
    first stop of the walk. With a ``run``, work whose results can no longer be observed is dropped once the submission
    is abandoned. If it raises, work that was submitted before keeps its memory until the device is past it."""
    context = context_for(operation, stream, None if run is None else run.visible())
    walk = given.Walk(operation, context)
    if points.tracer is not None:
        return given.submit_slowly(walk, None)
    try:
        walk.advance(False)
    except BaseException as error:
        return given.submit_slowly(walk, error)
    try:
        return given.Submission(context, walk.result, operation.title())
    except BaseException as error:
        given.give_up(context, operation, error)


def submit_at_once(operation: Any, stream: Any, call: str) -> Any:
    """Submits all of ``operation``, for the public function ``call``, which does not wait. Raises ``OrderingError`` if
    the operation would wait for host data, if possible before anything is submitted."""
    if operation._composed:
        given.refuse_waiting(operation, call)
    context = context_for(operation, stream)
    context.waitless = call
    try:
        result = run_through(operation, context)
        if context.copies is not None:
            result = given.handed_out(result, context.copies, stream)
        return given.Submission(context, result, operation.title())
    except BaseException as error:
        given.give_up(context, operation, error)


def run_blocking(operation: Any, stream: Any, lender: Any = None) -> Any:
    """Submits ``operation``, waits and returns its result. A ``lender`` gives the run's memory. The call holds
    all that the device uses until the device is past it, so it needs neither a mark nor the reclaimer."""
    context = context_for(operation, stream)
    context.lender = lender
    timeline, runtime, kept, faults = context.timeline, context.runtime, context._kept, context._faults
    try:
        result = run_through(operation, context)
        if context._joined:
            context.wait_for_joined()
        position = timeline.advance()
        if context._declared:
            context.settle(position)
        context._declared = None
    except BaseException as error:
        given.give_up(context, operation, error)
    del context  # frees the context's objects while the device works, and not afterwards
    try:
        timeline.synchronize_past(position)
    except BaseException as error:
        given.give_up_blocked(operation, timeline, kept, faults, result, error)
    runtime.counters.completed.add()
    for report in faults:
        if report.claimed():
            given.raise_fault(report, operation.title(), timeline)
    return result


class Turn:
    """The current turn of a thread's loop."""

    __slots__ = ("_usual", "compiles_now", "defers", "gives_up", "number", "spent", "works_for_run")

    def __init__(self) -> None:
        self.gives_up = self.defers = self.compiles_now = self.works_for_run = False
        self.number, self.spent, self._usual = 0, 0.0, 20e-6

    def over(self, number: int) -> None:
        """Starts a new turn if ``number``, which a task read before it let other tasks run, is still the turn's."""
        if self.number == number:
            self.next()

    def next(self) -> None:
        """Starts a new turn."""
        self.number += 1
        self.spent = 0.0


_of_thread: Final = threading.local()


def current_turn() -> Any:
    """Returns the calling thread's turn."""
    try:
        return _of_thread.turn
    except AttributeError:
        turn = _of_thread.turn = given.Turn()
        return turn


class DeviceFuture:
    """An operation bound to a stream."""

    __slots__ = (
        "_error", "_lock", "_operation", "_paused", "_result", "_state", "_stream", "_submission", "_trace", "_waiting",
    )  # fmt: skip

    def __init__(self, operation: Any, stream: Any) -> None:
        self._operation, self._stream = operation, stream
        self._submission = self._paused = self._error = self._trace = NOTHING
        self._lock: Any = threading.RLock()  # tasks of several loops may await the future
        self._waiting = 0
        self._state = given.idle

    def start(self: Any, turn: Any = None, /) -> Any:
        """Submits the work, or goes on if the run is paused. Returns the reason if the walk stops, and None if the work
        is submitted or the outcome is known. The time counts in ``turn``, by default the calling thread's. An error
        becomes the outcome."""
        if self._submission is not None or self._state is given.complete:
            return None
        return self._start_slowly(turn or current_turn())

    def outcome(self: Any) -> Any:
        """Returns the result or raises the error. Do not call it before the device is past the submission."""
        if self._state is not given.complete:
            with self._lock:  # so that the work is counted before any thread has the result
                submission = self._submission
                if submission is not None:
                    try:
                        self._result = submission.finish()
                    except Exception as error:
                        self._error, self._trace = error, error.__traceback__
                    self._submission = None
                    self._state = given.complete
        if self._error is not None:
            context = self._error.__context__
            try:
                raise self._error.with_traceback(self._trace)
            finally:  # ``raise`` has replaced it by the exception that the caller handles
                self._error.__context__ = context
        return self._result

    def consume(self) -> None:
        """Marks the operation as used, so that dropping it does not warn."""
        if self._operation is not None:
            self._operation.consume()
