"""A submission: one execution of an operation on a stream, and the context that the operation executes in.

Its life: *submitted*, then *finished* (the device is past it: its outcome is known) or *abandoned* (nobody waits
any more: what it uses goes into the limbo), exactly once. From submission to that point the reclaimer holds what
the device may still use, so nothing depends on what the program keeps or drops.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from oxide.runtime.memory import Allocation
from oxide.runtime.stream import Stream

if TYPE_CHECKING:
    from oxide.compiler.kernel import Specialization
    from oxide.driver.base import Driver
    from oxide.runtime.context import Device, Runtime
    from oxide.runtime.operation import DeviceOperation
    from oxide.runtime.pinned import FaultSlot
    from oxide.runtime.timeline import Mark, Timeline

T = TypeVar("T")


@final
class ExecutionContext:
    """What an operation executes in: a stream of a device. ``with_context`` hands it out."""

    __slots__ = ("_faults", "_kept", "_slot", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._kept: list[Any] = []
        self._faults: list[FaultReport] = []
        self._slot: FaultReport | None = None

    @property
    def device(self) -> Device:
        """The device that the operation runs on."""
        return self.stream.device

    @property
    def device_id(self) -> int:
        """The device's number."""
        return self.stream.device.id

    # What operations use

    @property
    def runtime(self) -> Runtime:
        return self.stream.device.runtime

    @property
    def driver(self) -> Driver:
        return self.stream.device.driver

    @property
    def timeline(self) -> Timeline:
        return self.stream._timeline

    def keep(self, thing: object) -> None:
        """Keeps ``thing`` alive until the device is past this submission."""
        self._kept.append(thing)

    def ordered(self, reads: list[Allocation], writes: list[Allocation]) -> Ordered:
        """``with ctx.ordered(reads, writes):`` submits work that reads and writes these buffers: it is ordered after
        their earlier uses on any stream, and later uses are ordered after it."""
        return Ordered(self, reads, writes)

    def fault_address(self, specialization: Specialization) -> int:
        """Where a kernel of this submission reports a fault."""
        report = self._slot
        if report is None:
            report = self._slot = FaultReport(self.runtime.fault_slots.acquire())
            self._faults.append(report)
        report.kernels[specialization.kernel_id] = specialization
        return report.slot.address

    def absorb(self, other: ExecutionContext) -> None:
        """Takes over what another context on the same stream keeps and reports."""
        self._kept.extend(other._kept)
        self._faults.extend(other._faults)

    def watch_faults(self, faults: list[FaultReport]) -> None:
        """Reports another submission's faults too: this one uses its results."""
        self._faults.extend(faults)

    @property
    def faults(self) -> list[FaultReport]:
        return self._faults


@final
class FaultReport:
    """A fault slot and the kernels that may have written it."""

    __slots__ = ("kernels", "slot")

    def __init__(self, slot: FaultSlot) -> None:
        self.slot = slot
        self.kernels: dict[int, Specialization] = {}

    def raise_fault(self) -> None:
        """Raises the fault that a kernel recorded, if one did. Only once the device is past the submission."""
        if self.slot.claimed():
            from oxide.compiler.faults import read_fault

            record = self.slot.record[0]
            specialization = self.kernels[int(record["kernel_id"])]
            fault = read_fault(record, specialization.kernel.name, specialization.sites)
            if fault is not None:
                raise fault


@final
class Ordered:
    """See ``ExecutionContext.ordered``. Holds the runtime's submission lock: call nothing of a user's inside."""

    __slots__ = ("_lock", "_reads", "_timeline", "_writes")

    def __init__(self, context: ExecutionContext, reads: list[Allocation], writes: list[Allocation]) -> None:
        stream = context.stream
        self._lock = stream.device.runtime.submission
        self._timeline = stream._timeline
        self._reads = reads
        self._writes = writes

    def __enter__(self) -> None:
        self._lock.acquire()
        timeline = self._timeline
        try:
            for allocation in self._reads:
                allocation.order_read(timeline)
            for allocation in self._writes:
                allocation.order_write(timeline)
        except BaseException:
            self._lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                timeline = self._timeline
                position = timeline.advance()
                for allocation in self._reads:
                    allocation.note_read(timeline, position)
                for allocation in self._writes:
                    allocation.note_write(timeline, position)
        finally:
            self._lock.release()


@final
class Submission(Generic[T]):
    """One execution, submitted. ``submit`` makes it."""

    __slots__ = ("_faults", "_open", "_reclaimer", "_result", "mark")

    def __init__(self, context: ExecutionContext, result: T) -> None:
        self._open = False
        self._result = result
        self._faults = context.faults
        self._reclaimer = context.runtime.reclaimer
        self.mark: Mark = context.timeline.mark()
        context.keep(result)
        context.keep(context.faults)
        self._reclaimer.hold(self.mark, context._kept)
        self._open = True
        context.runtime.counters.submitted.add()

    @property
    def result_in_flight(self) -> T:
        """The result as a handle, before the device is past the submission."""
        return self._result

    def finish(self) -> T:
        """The result, once the device is past the submission; raises the fault that a kernel reported."""
        if self._open:
            self._open = False
            self._reclaimer.release(self.mark)
            self.mark.timeline.device.runtime.counters.completed.add()
        for report in self._faults:
            report.raise_fault()
        return self._result

    def finished_well(self) -> bool:
        """Whether the device is past it and nothing failed."""
        try:
            if not self.mark.passed():
                return False
            self.finish()
        except Exception:
            return False
        return True

    def abandon(self) -> None:
        """Nobody waits any more: what it uses goes into the limbo."""
        if self._open:
            self._open = False
            self._reclaimer.abandon(self.mark)
            self.mark.timeline.device.runtime.counters.cancelled.add()

    def __del__(self) -> None:
        self.abandon()


def submit(operation: DeviceOperation[T], stream: Stream) -> Submission[T]:
    """Executes ``operation`` on ``stream``: everything is submitted when this returns, nothing has been waited for.

    If it raises, what had been submitted until then keeps its memory until the device is past it.
    """
    reclaimer = stream.device.runtime.reclaimer
    reclaimer.sweep()
    context = ExecutionContext(stream)
    try:
        return Submission(context, operation.run(context))
    except BaseException:
        if context._kept or context._faults:
            reclaimer.strand(context.timeline, [*context._kept, *context._faults])
        raise
