"""A submission: one execution of an operation on a stream, and the context that the operation executes in.

A submission is *submitted*, then exactly once either *finished* (the device is past it and its outcome is known) or
*abandoned* (nothing waits for it any more, and the memory that it uses goes into the reclaimer's limbo until the device
is past it). In either case the reclaimer holds everything that the device may still use. So the program may drop any
object at any time.

Before it is submitted completely, a run may be *paused*: its walk has stopped (``walk.py``). A paused run either goes
on or is dropped. If it is dropped, it submits nothing more, and the work that it has submitted is abandoned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, final

from oxide.errors import DeviceError, DeviceLostError, LaunchError, OrderingError
from oxide.host import core
from oxide.host.core import Dropping
from oxide.host.locks import RUNTIME_LOCK, is_interrupt
from oxide.runtime.devices.fault_records import add_note_once
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.memory.memory import Arc, DeviceBox, require_device
from oxide.runtime.memory.reclaim import Run
from oxide.runtime.ordering.stream import Stream, current_capture, refuse_in_capture
from oxide.runtime.submission import raw_memory
from oxide.runtime.submission.capture import Recording
from oxide.runtime.submission.host_copies import HostCopies, is_stepped, is_wanted
from oxide.runtime.submission.stops import Faulted, HostData, Stop
from oxide.runtime.submission.walk import Frame, Submittable, Walk, explain, raise_if_nested

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oxide.compiler.kernel.specialization import Specialization
    from oxide.driver.base import Dim3, FunctionHandle
    from oxide.runtime.devices.fault_records import Report
    from oxide.runtime.memory.addresses import DevicePointer
    from oxide.runtime.memory.reclaim import Visible
    from oxide.runtime.ordering.timeline import Mark, Timeline

T = TypeVar("T")

_WORD: Final = struct.Struct("@Q")


@final
class ExecutionContext(core.ExecutionContext):
    """The context of one execution: the ``stream`` that its work is submitted to, and the stream's ``device``.
    Functions of ``with_context`` receive it.

    ``visible`` is the token of a run that may be dropped: see ``reclaim``. ``traced`` is set only while a trace runs.
    ``levels`` is the number of walks that may still be inside one another. ``copies`` is None before the run's first
    copy to host memory. ``waitless`` is the call that must not wait for host data, "" if the run may. ``renewed`` is
    for ``Shared``. ``_using`` is set by ``begin``: see ``interrupted``. ``_declared`` is None once everything has been
    submitted."""

    __slots__ = ()

    submission_lock = RUNTIME_LOCK

    def reads(self, *boxes: DeviceBox | Arc[DeviceBox]) -> None:
        """Declares that work unknown to oxide reads ``boxes``: work put on ``stream`` between now and the submission of
        this run. That work runs after the boxes' last write, and later writes run after it.

        Functions of ``with_context`` call this method if they call other libraries on ``stream.handle``. Raises
        ``OrderingError`` once the run has been submitted, and under strict ordering if a wait would be needed;
        ``GraphError`` in a capture, which misses other libraries' work; ``TypeError`` or ``DeviceError`` if a value is
        not a box of this device.
        """
        self._declare(boxes, writes=False)

    def writes(self, *boxes: DeviceBox | Arc[DeviceBox]) -> None:
        """Declares writes as ``reads`` does: the work runs after all uses of ``boxes``, and later uses run after it."""
        self._declare(boxes, writes=True)

    @property
    def device_id(self) -> int:
        """Returns the device's number."""
        return self.device.id

    def malloc_async(self, nbytes: int) -> DevicePointer:
        """Returns ``nbytes`` of uninitialised device memory, for work of this run and of later ones. The memory is
        freed when its pointers and boxes were dropped and the device is past its last use. In a capture it belongs to
        the graph.

        Like ``memcpy_async`` and ``memset_async``, raises ``TypeError`` or ``ValueError`` for wrong arguments, and
        ``OrderingError`` once the run has been submitted. These errors come before anything is submitted. Raises
        ``OutOfMemoryError``, and ``GraphError`` in the capture of a graph that may own no memory.
        """
        return raw_memory.allocate(self, nbytes)

    def memcpy_async(
        self,
        dst: DevicePointer | DeviceBox | Arc[DeviceBox] | NDArray[Any],
        src: DevicePointer | DeviceBox | Arc[DeviceBox] | NDArray[Any],
        nbytes: int,
    ) -> None:
        """Copies the first ``nbytes`` of ``src`` to ``dst``. Each of the two is a pointer, a contiguous box or a
        C-contiguous NumPy array, and at most one of them is an array. The copy runs after earlier uses of both,
        whatever streams these uses are on.

        An array is read until the run has completed: do not change it before. In a capture, each launch reads it again.
        A destination on the host must be page-locked memory of ``pinned_empty``, and is filled once the run has
        completed. Raises ``ValueError`` also for regions that overlap, and ``DeviceError`` unless one of the two is
        memory of this device.
        """
        raw_memory.copy(self, dst, src, nbytes)

    def memset_async(self, dst: DevicePointer | DeviceBox | Arc[DeviceBox], byte: int, nbytes: int) -> None:
        """Sets the first ``nbytes`` of ``dst``, a pointer or a contiguous box of this device, to ``byte``, 0 to 255.
        Raises ``DeviceError`` for memory of another device."""
        raw_memory.fill(self, dst, byte, nbytes)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an ExecutionContext cannot be pickled or copied: it belongs to one run")

    # Used by operations

    @property
    def is_over(self) -> bool:
        """Returns whether everything of the run has been submitted."""
        return self._declared is None

    def allocated(self, nbytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Allocation:
        """Allocates memory for the run; in a capture, the graph then owns it. Messages describe the memory by ``shape``
        and ``dtype``."""
        if self.lender is not None and nbytes:
            allocation = self.lender.allocation(self.timeline, nbytes, shape, dtype)
            allocation.visible = self.visible
        else:
            allocation = Allocation(self.timeline, nbytes, shape, dtype)
            allocation.visible = self.visible
            allocation.obtain()
        if self.recording is not None:
            self.recording.made.append(allocation)
        return allocation

    def part(
        self, recording: Recording | None = None, stream: Stream | None = None, visible: Visible | None = None
    ) -> ExecutionContext:
        """Returns a context for a part of this run, on the same stream or on ``stream``.

        An operation promises the order of its stages. So under strict ordering, which adds no waits for boxes,
        ``stream`` waits for the stages before the part, and ``join`` makes the stages after it wait for the part.
        """
        if stream is not None and self.runtime.ordering == "strict":
            stream.join(self.stream)
        inner = ExecutionContext(self.stream if stream is None else stream, recording, visible)
        inner.place, inner.levels, inner.traced, inner.renewed = self.place, self.levels, self.traced, self.renewed
        inner.waitless = self.waitless
        if self.copies is None:
            self.copies = HostCopies()
        inner.copies = self.copies
        if stream is None:
            inner.lender = self.lender
        return inner

    def keep(self, thing: object) -> None:
        """Keeps ``thing`` alive until the device is past this submission."""
        self._kept.append(thing)

    def ordered(self, reads: list[Allocation], writes: list[Allocation]) -> Ordered:
        """Returns a context manager: ``with ctx.submission_lock, ctx.ordered(reads, writes):`` submits work that reads
        and writes these buffers. The work is ordered after earlier uses of the buffers on any stream, and later uses
        are ordered after the work. Call no user code inside. The caller's own ``with`` takes the lock, for the reason
        given in ``locks``."""
        return Ordered(self, reads, writes)

    def launch(
        self,
        kernel: str,
        function: FunctionHandle,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        params: bytes,
        reads: list[Allocation],
        writes: list[Allocation],
    ) -> None:
        """Submits a launch of a kernel that reads and writes these buffers. Raises ``LaunchError`` with the kernel's
        name."""
        self._kept.append(function)
        if self.recording is not None:
            self.recording.kernel = kernel
        run = self.traced
        if run is not None:
            run.nbytes = sum([allocation.nbytes for allocation in reads])
            run.nbytes += sum([allocation.nbytes for allocation in writes])
        with self.submission_lock, self.ordered(reads, writes):
            try:
                self.driver.launch(function, grid, block, shared_bytes, params, self.timeline.handle)
            except LaunchError as error:
                raise LaunchError(f"kernel {kernel}: {error}") from None

    def interrupted(self) -> None:
        """Records the uses that an interrupt kept from being recorded. The work may have been submitted before the
        interrupt, and dropped memory would otherwise be freed on another stream too early."""
        using = self._using
        if using is not None:
            with self.submission_lock:
                self.end(*using, submitted=True)

    def at_launch(self, box: DeviceBox, function: Callable[[ExecutionContext, DeviceBox], None]) -> None:
        """Calls ``function(self, box)``, which uploads to ``box``. In a capture, each launch of the graph calls
        ``function(context, box)`` instead, before the graph's other work, because an upload reads host memory when it
        is submitted. In the body of a conditional, the launch uploads to another box, and each run of the body copies
        from that box."""
        recording = self.recording
        if recording is None:
            function(self, box)
            return
        target = box
        if recording.bodies:
            allocation = Allocation(self.timeline, box.nbytes, box.shape, box.dtype)
            allocation.obtain()
            target = DeviceBox(allocation, box.shape, box.dtype)
            with self.submission_lock, self.ordered([allocation], [box._allocation]):
                self.driver.copy_on_device(box.ptr, target.ptr, box.nbytes, self.timeline.handle)
        recording.at_launch[lambda now: function(now, target)] = target._allocation

    def take_host_copies(self, other: HostCopies) -> None:
        """Counts the copies to host memory of another run, whose result this run uses."""
        copies = self.copies
        if copies is None:
            copies = self.copies = HostCopies()
        copies.take(other)

    def wait_for_data(self, frame: Frame, stage: str) -> None:
        """Stops the walk until the copies to host memory that were submitted since ``frame.copies`` have arrived. Then
        updates ``frame.copies`` and returns. ``stage`` describes the function of the program that is to see the data.

        Raises the fault of a kernel of this run that the device is past; ``OrderingError`` if the run must not wait;
        ``GraphError`` in a capture, where the data does not exist.
        """
        copies, since = self.copies, frame.copies
        assert copies is not None
        if copies.recorded > since:
            assert self.recording is not None
            self.recording.needs_data(self, stage)
        if self.waitless and copies.count > since:  # also if the data has arrived: a refusal is no matter of speed
            raise not_waiting(self.waitless, stage)
        marks = copies.since(since)
        if marks:
            raise HostData(marks)
        for report in self._faults:
            if report.claimed():
                self._if_given_up = ()  # this run reports the faults that it has taken over
                try:
                    report.raise_fault()
                except Exception as fault:
                    raise Faulted(fault) from None
        frame.copies = copies.count

    def join(self, other: ExecutionContext) -> None:
        """Makes this run end after the work of ``other``, a context on another stream, and takes over the objects that
        ``other`` keeps alive."""
        try:
            if other._joined:
                other.wait_for_joined()
            mark = other.timeline.mark()
            other.settle(mark.position)
            self._joined += (mark,)
            if self.runtime.ordering == "strict":
                self.stream.join(other.stream)
        except BaseException:
            other.settle(other.timeline.advance())
            self.runtime.reclaimer.strand(other.timeline, [*other.kept, *other.faults])
            raise
        self.absorb(other)

    def wait_for_joined(self) -> None:
        """Orders this stream after the joined work."""
        # The wait for the later one of two marks of a stream makes the other needless.
        for mark in reversed(self._joined):
            self.timeline.wait_for(mark.timeline, mark.position, "a part of the operation was placed on another stream")
        self._joined = ()

    def fault_address(self, specialization: Specialization) -> int:
        """Returns the address where a kernel of this submission reports a fault."""
        address: int = _WORD.unpack(self.fault_word(specialization))[0]
        return address

    def fault_word(self, specialization: Specialization) -> bytes:
        """Returns ``fault_address`` as the last word of a kernel's parameters."""
        if self.recording is not None:
            outer = self.recording.outer
            if outer is None:
                return _WORD.pack(self.recording.fault_address(specialization, self.place))
            outer.place = self.place
            word: bytes = outer.fault_word(specialization)
            return word
        if self.lender is not None and self.lender.report is not None:
            return self.lender.report.word(specialization)
        report = self._report
        if report is None or report.is_full:
            report = self._report = self.runtime.fault_records.acquire()
            self._faults.append(report)
        return report.next_word(specialization, self.place)

    def absorb(self, other: ExecutionContext) -> None:
        """Takes over the kept objects and the fault reports of another context on the same stream."""
        if other._declared and self._declared is not None:
            self._declared += other._declared
        other._declared = None
        self._kept.extend(other._kept)
        self.watch_faults(other._faults)
        self._if_given_up += other._if_given_up
        self._joined += other._joined

    def watch_faults(self, faults: list[Report]) -> None:
        """Makes this submission also raise the faults in other reports: the reports of a submission whose results this
        submission uses, or of a graph's launch."""
        self._faults.extend(faults)
        self._report = None  # later launches get a new report, which is checked after these

    def if_given_up(self, function: Callable[[], None]) -> None:
        """Registers ``function`` to be called if the run that this context is part of cannot be submitted
        completely."""
        self._if_given_up += (function,)

    @property
    def faults(self) -> list[Report]:
        """Returns the reports of the kernels that the run has launched."""
        return self._faults

    @property
    def kept(self) -> list[Any]:
        """Returns what the device uses until it is past the run."""
        return self._kept

    def settle(self, position: int) -> None:
        """Ends the uses that ``reads`` and ``writes`` declared, at ``position``, which must be after everything
        submitted in this context."""
        declared, self._declared = self._declared, None
        if declared:
            with self.runtime.submission:
                for allocation, writes in declared:
                    allocation.settle(self.timeline, position, writes=writes)

    def _declare(self, things: tuple[Any, ...], *, writes: bool) -> None:
        name = "ctx.writes" if writes else "ctx.reads"
        if self.recording is not None:
            self.recording.refuse(
                f"{name} cannot be captured: it declares work of another library's, which a graph would leave out. Run "
                f"the operation before the graph, or between its launches with graph.update(op)"
            )
        if self._declared is None:
            raise OrderingError(
                f"{name} came too late: the run that this context belongs to has been submitted, and later uses of "
                f"{', '.join(map(repr, things))} may have been ordered already. Declare it inside the function of "
                f"with_context that uses the stream, before that function returns"
            )
        boxes = [thing.value if isinstance(thing, Arc) else thing for thing in things]
        for box in boxes:
            if not isinstance(box, DeviceBox):
                raise TypeError(f"{name} takes boxes, not {type(box).__name__}")
            require_device(box, self.device, name)
        for box in boxes:
            allocation = box._allocation
            self.keep(box)
            for visible in (self.visible, allocation.visible):
                if visible is not None:
                    visible.run.used_by_others = True
            with self.runtime.submission:
                (allocation.order_write if writes else allocation.order_read)(self.timeline)
                allocation.claim(self.timeline, writes=writes)
                self._declared += ((allocation, writes),)


@final
class Ordered:
    """The context manager of ``ExecutionContext.ordered``."""

    __slots__ = ("_context", "_reads", "_writes")

    def __init__(self, context: ExecutionContext, reads: list[Allocation], writes: list[Allocation]) -> None:
        self._context = context
        self._reads = reads
        self._writes = writes

    def __enter__(self) -> None:
        self._context.begin(self._reads, self._writes)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._context.end(self._reads, self._writes, submitted=error is None)


@final
class Submission(core.Submission, Generic[T]):
    """One submitted execution. ``submit`` makes it. ``result_in_flight`` is the result as a handle, before the device
    is past the submission. ``faults`` are the reports in which the submission's kernels may record faults; empty if
    none can."""

    __slots__ = ()

    if TYPE_CHECKING:  # of the core, with their types
        mark: Mark
        result_in_flight: T

        def __init__(self, context: ExecutionContext, result: T, title: object) -> None: ...

        def finish(self) -> T: ...

    def explain(self, error: BaseException) -> None:
        """Adds the operation's name to an error that was found when the device was done."""
        explain(error, self._title, self.mark.timeline)


@final
class Held(Dropping):
    """Has the reclaimer hold everything that the work of a stopped walk uses, as far as it was submitted. If this
    object is dropped, the work is abandoned."""

    __slots__ = ("_abandon", "_marks", "_release")

    def __init__(self, walk: Walk[Any]) -> None:
        self._marks: list[tuple[Mark, Run | None]] = []
        reclaimer = walk.context.runtime.reclaimer
        self._abandon, self._release = reclaimer.abandon_all, reclaimer.release
        visible = walk.context.visible
        run = None if visible is None else visible.run
        for context in walk.contexts():
            mark = context.timeline.mark()
            if context._declared:
                context.settle(mark.position)
                context._declared = ()
            for each in (mark, *[joined.timeline.mark() for joined in context._joined]):
                self._marks.append((each, run))
                reclaimer.hold(each, [*context._kept, *context._faults])
        self._drop = partial(self._abandon, self._marks)

    def release(self) -> None:
        """Ends the hold, because the walk goes on: its context keeps the same things."""
        marks, self._marks, self._drop = self._marks, [], None
        for mark, _ in marks:
            self._release(mark)

    def abandon(self) -> None:
        """Hands the memory of the submitted work to the reclaimer's limbo."""
        self._abandon(self._marks)
        self._marks, self._drop = [], None


@final
class Paused(Generic[T]):
    """A run whose walk has stopped for ``stop``."""

    __slots__ = ("_held", "_walk", "stop")

    def __init__(self, walk: Walk[T], stop: Stop) -> None:
        self._walk = walk
        self._held = Held(walk)
        self.stop = stop

    def go_on(self) -> Submission[T] | None:
        """Continues the run. Returns its submission, or None if the walk has stopped again: ``stop`` is then the new
        reason. An error ends the run."""
        walk = self._walk
        context, operation = walk.context, walk.operation
        try:
            self._held.release()
            stop = walk.go_on()
            if stop is None:
                return Submission(context, walk.result, operation.title())
            self._held, self.stop = Held(walk), stop
        except BaseException as error:
            give_up(context, operation, error)
        return None

    def fail(self, error: Exception) -> None:
        """Drops the run because of an error that came while its stop was waited for. Adds a note to the error."""
        explain(error, self._walk.operation.title(), self._walk.context.timeline)
        self.drop()

    def drop(self) -> None:
        """Ends the run: it submits nothing more, and what it has submitted is abandoned."""
        context = self._walk.context
        with suppress(DeviceError):
            self._walk.drop()
        for function in context._if_given_up:
            function()
        context.settle(context.timeline.advance())
        self._held.abandon()


def _submit_slowly(walk: Walk[T], error: BaseException | None) -> Submission[T] | Paused[T]:
    """Does the rest of ``submit`` for a walk that has raised ``error``, or that is traced."""
    context, operation = walk.context, walk.operation
    try:
        try:
            stop = walk.go_on(error=error)
        finally:
            del error  # a frame that its traceback has must not refer to it
        return Submission(context, walk.result, operation.title()) if stop is None else Paused(walk, stop)
    except BaseException as raised:
        give_up(context, operation, raised)


def _note_array(context: ExecutionContext, array: NDArray[Any]) -> None:
    """Notes an array that a call hands out before it is filled, if it is to be poisoned."""
    if is_wanted() and not is_stepped(context.device.driver):
        assert context.copies is not None
        context.copies.arrays.append(array)


def _give_up_blocked(
    operation: Submittable[Any],
    timeline: Timeline,
    kept: list[Any],
    faults: list[Report],
    result: object,
    error: BaseException,
) -> NoReturn:
    """Cleans up after a run that was submitted, and for which the calling thread has not waited to its end."""
    runtime = timeline.device.runtime
    runtime.reclaimer.strand(timeline, [*kept, *faults, result])
    runtime.counters.cancelled.add()
    if isinstance(error, Exception):
        explain(error, operation.title(), timeline)
    raise_if_nested(error, operation)  # of the program's own stack: the wait nests nothing
    try:
        raise error
    finally:
        del error  # a frame that its traceback has must not refer to it


def _new_visible() -> Visible:
    """Returns the token of a new run, which may be dropped."""
    return Run().visible()


def not_waiting(call: str, stage: str) -> OrderingError:
    """Returns the error for an operation with a function behind a copy to the host, in a call that does not wait."""
    return OrderingError(
        f"{stage} comes behind a copy to the host, and {call} does not wait for the copy: the function would see an "
        f"array that is not filled. Await the operation or call sync(); or leave the function out, and call it with "
        f"the result after stream.synchronize()"
    )


def give_up(context: ExecutionContext, operation: Submittable[Any], error: BaseException) -> NoReturn:
    """Cleans up after a run whose submission failed: keeps the memory of the work that was submitted before ``error``.
    Raises the error, with a note about the operation."""
    device = context.device
    if is_interrupt(error):
        context.interrupted()
    for function in context._if_given_up:
        function()
    with suppress(DeviceError):
        context.wait_for_joined()
    context.settle(context.timeline.advance())
    if context._kept or context._faults:
        context.runtime.reclaimer.strand(context.timeline, [*context._kept, *context._faults])
    if isinstance(error, Exception) and not getattr(error, "__notes__", None):
        add_note_once(error, f"when {operation!r} was submitted to {context.timeline.label}")
    if isinstance(error, DeviceLostError) and device.lost is None:
        device.lost = error
    raise_if_nested(error, operation)
    try:
        raise error
    finally:
        del error  # a frame that its traceback has must not refer to it


def _raise_fault(report: Report, title: object, timeline: Timeline) -> None:
    """Raises the fault that a kernel reported, with the operation's name."""
    try:
        report.raise_fault()
    except Exception as fault:
        explain(fault, title, timeline)
        raise


core.setup(
    Context=ExecutionContext,
    Submission=Submission,
    capture=current_capture.get,
    give_up=give_up,
    give_up_blocked=_give_up_blocked,
    new_visible=_new_visible,
    note_array=_note_array,
    raise_fault=_raise_fault,
    refuse_in_capture=partial(refuse_in_capture, "running an operation"),
    submit_slowly=_submit_slowly,
)
