"""Allocations of device memory, which record their uses.

An allocation remembers its last write and the reads since then, each with its stream and its place on that stream. That
is enough to order any two operations on any two streams, and to free the memory only after its last use.

Memory may be unreferenced and not yet free: the program dropped a box, cancelled a task or dropped a result of
``async_on`` while the device was still using the memory. So an allocation that the driver refuses is tried again as
long as such work is in flight on the device, but only for a bounded time: the work may be waiting for this very thread.
Work that a task still awaits is not waited for, because the task will hold the memory of its result.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.errors import OrderingError, OutOfMemoryError
from oxide.host import core
from oxide.host.messages import byte_count, dtype_name
from oxide.runtime.loop.event_loops import running_loop_name
from oxide.runtime.loop.pace import SHARE_SECONDS
from oxide.runtime.tracepoints import points

if TYPE_CHECKING:
    from oxide.runtime.ordering.timeline import DeviceState, Timeline

dropped: Final[deque[Allocation]] = deque()
"""Unreferenced allocations of all runtimes. The finaliser of an allocation appends it; ``collect`` removes it."""


@final
class Known:
    """A handle of an allocation that other libraries know; the ranges refer to it weakly. It is separate from
    ``Allocation``, which spares the many others the field for weak references.

    Its holders are the boxes exported to or imported from other libraries, the views of those boxes, pointers that were
    converted to a number, the graphs that use such memory, and runs in flight that use another library's memory. So the
    handle keeps the ``owners`` of imported memory: they are released at the last use, and a box that was never used
    releases them when it is dropped.
    """

    __slots__ = ("__weakref__", "allocation", "owners")

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self.owners: tuple[object, ...] = ()


@final
class Allocation(core.Allocation):
    """A piece of device memory and its uses. Methods that order or record uses must be called with the runtime's
    submission lock held.

    ``address`` is 0 while there is no memory, ``adopted`` is True for another library's. ``owners`` has the address,
    the size and the owner of each range of such memory. ``known`` is a weak reference to the allocation's entry in
    ``AddressRanges``. ``reads`` are the reads since the last write, by stream. ``claims`` are declared uses whose work
    is being submitted. ``visible`` is the token of the run that made it, if that run may be dropped."""

    __slots__ = ()

    def __init__(
        self, timeline: Timeline, nbytes: int, shape: tuple[int, ...] = (), dtype: np.dtype[Any] | None = None
    ) -> None:
        """Creates an allocation without memory: see ``obtain``. Messages name it by ``shape`` and ``dtype``."""
        if nbytes > sys.maxsize:
            raise OutOfMemoryError(f"{timeline.device.label} has no room for {nbytes} bytes: no memory is as large")
        self.device = timeline.device
        self.home = timeline
        self.nbytes = nbytes
        self.shape = shape
        self.dtype = dtype
        self.owners = ()
        self.claims = ()

    def obtain(self) -> None:
        """Allocates the memory on the stream of ``home``. This counts as the first write, so other streams wait for it.

        If the device is out of memory, frees dropped memory, waits for the work that uses it, and tries again. Raises
        ``OutOfMemoryError`` with a list of the boxes that take the memory. Call it without the submission lock.
        """
        timeline, nbytes = self.home, self.nbytes
        if nbytes:
            try:  # assigned in the same statement, so that an interrupt cannot leak the address
                self.address = timeline.driver.allocate(nbytes, timeline.handle)
            except OutOfMemoryError:
                self.obtain_when_free()
            else:
                self._obtained()

    def obtain_when_free(self) -> None:
        """Does what ``obtain`` does after the driver has found no memory."""
        self.address = _allocate_when_free(self.home, self.nbytes)
        self._obtained()

    def _obtained(self) -> None:
        self.note_write(self.home, self.home.advance())
        self.device.live[self.address] = (self.nbytes, self.shape, self.dtype)

    @staticmethod
    def of_another_library(
        timeline: Timeline,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        owner: object,
        written: tuple[Timeline, int] | None,
        nbytes: int,
    ) -> Allocation:
        """Returns an allocation for memory that ``owner`` keeps alive, None if the allocation's entry in
        ``AddressRanges`` keeps the owner. ``written`` is the timeline and position of the last write, or None if the
        device is past that write. The driver must have adopted the memory."""
        allocation = Allocation(timeline, nbytes, shape, dtype)
        allocation.adopted = True
        allocation.owners = ((address, allocation.nbytes, owner),)
        allocation.address = address
        if written is not None:
            allocation.note_write(*written)
        return allocation

    def known_to_others(self) -> Known | None:
        """Returns the allocation's entry in ``AddressRanges``, or None. The entry stays there as long as the returned
        object is referenced."""
        return self.known() if self.known is not None else None

    def extend(self, address: int, nbytes: int) -> None:
        """Adds another library's memory that overlaps this allocation. Its uses are ordered with this allocation's uses
        from now on."""
        self.owners += ((address, nbytes, None),)

    def note_foreign_write(self, timeline: Timeline) -> None:
        """Records that another library made ``timeline`` wait for its work on this memory. Later uses run after that
        work."""
        for other, position in self.uses():
            timeline.wait_for(other, position)
        self.note_write(timeline, timeline.advance())

    def order_read(self, timeline: Timeline) -> None:
        """Makes a stream wait for the last write. Raises ``OrderingError`` if strict ordering forbids the wait, or if
        another stream has claimed the memory for writing."""
        if self.claims:
            self._refuse_claimed(timeline, writes=False)
        self._after_write(timeline, "read")

    def order_write(self, timeline: Timeline) -> None:
        """Makes a stream wait for the last write and for the reads since. Raises ``OrderingError`` if strict ordering
        forbids the wait, or if another stream has claimed the memory."""
        if self.claims:
            self._refuse_claimed(timeline, writes=True)
        if self.written_by is not timeline:
            self._after_write(timeline, "written")
        for reader, position in self.reads.items():
            if reader is not timeline:
                self._wait(timeline, reader, position, "written", "read")

    def claim(self, timeline: Timeline, *, writes: bool) -> None:
        """Declares that from now until ``settle`` the memory is used on ``timeline`` by work unknown to oxide.
        ``writes`` tells whether this work may write."""
        self.claims += ((timeline, writes),)

    def settle(self, timeline: Timeline, position: int, *, writes: bool) -> None:
        """Ends a claim and records the claimed use. All work of the claim must precede ``position``."""
        self._end_claim(timeline, writes)
        (self.note_write if writes else self.note_read)(timeline, position)

    def _end_claim(self, timeline: Timeline, writes: bool) -> None:
        claims = list(self.claims)
        claims.remove((timeline, writes))
        self.claims = tuple(claims)

    def uses(self) -> tuple[tuple[Timeline, int], ...]:
        """Returns the last write and the reads since, each as a timeline and a position."""
        written = () if self.written_by is None else ((self.written_by, self._written_at),)
        return (*written, *self.reads.items()) if self.reads else written

    def is_held(self) -> bool:
        """Returns whether there is memory to free."""
        return self.address != 0

    def uses_away(self) -> tuple[tuple[Timeline, int], ...]:
        """Returns ``uses``, or an empty tuple if every use was on the allocation's own stream and the memory was never
        exported: a free that is submitted to this stream then runs after all uses."""
        home = self.home
        at_home = self.written_by is home and (not self.reads or (len(self.reads) == 1 and home in self.reads))
        return () if at_home and not self.exported else self.uses()

    def _after_write(self, timeline: Timeline, use: str) -> None:
        other = self.written_by
        if other is None or other is timeline:
            return
        if self._written_at <= other.seen:  # as ``wait_for`` checks, without the call: most uses are over
            self.device.runtime.counters.waits_avoided.add()
        else:
            self._wait(timeline, other, self._written_at, use, "written")

    def _wait(self, timeline: Timeline, other: Timeline, position: int, use: str, earlier: str) -> None:
        if self.device.runtime.ordering == "strict" and not timeline.is_after(other, position):
            raise OrderingError(
                f"{self.label} is {use} on {timeline.label} and was {earlier} on {other.label}, and nothing orders the "
                f"two: run both on one stream, await or synchronise the earlier one, or join the streams; "
                f"OXIDE_ORDERING=wait makes the later one wait by itself"
            )
        if timeline.wait_for(other, position):
            tracer = points.tracer
            if tracer is not None:
                tracer.caused(f"memory is {use} that was {earlier} on the other stream")

    def _refuse_claimed(self, timeline: Timeline, *, writes: bool) -> None:
        for claimant, claims_write in self.claims:
            if claimant is not timeline and (writes or claims_write):
                raise OrderingError(
                    f"{self.label} would be {'written' if writes else 'read'} on {timeline.label} while an operation "
                    f"that declared {'ctx.writes' if claims_write else 'ctx.reads'} of it is still being submitted to "
                    f"{claimant.label}: start one after the other has been submitted, or give each its own box"
                )

    @property
    def label(self) -> str:
        """Returns the allocation's name for messages."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        what = f"{shape} {dtype_name(self.dtype)}" if self.dtype else f"{self.nbytes} bytes"
        return f"box {what} at {self.address:#x}"


core.setup(Allocation=Allocation, OutOfMemoryError=OutOfMemoryError, dropped=dropped)


PATIENCE_SECONDS = 2.0
"""The longest wait of a thread for dropped work to end."""

LOOP_PATIENCE_SECONDS = SHARE_SECONDS
"""The longest wait on an event loop's thread, which blocks the loop's other tasks."""

_YOUNG = 1  # the oldest generation that is collected on an event loop's thread, in about a millisecond
_ALL = 2

_LONGEST_PAUSE = 5e-3
_LARGEST = 5  # the number of kinds of boxes that an error lists


def _allocate_when_free(timeline: Timeline, nbytes: int) -> int:
    """Allocates memory that the driver refused once. Raises ``OutOfMemoryError`` with a list of the boxes that take the
    memory."""
    device = timeline.device
    on_loop = running_loop_name() is not None
    gc.collect(_YOUNG if on_loop else _ALL)  # a box may be in a cycle, such as that of an exception's traceback
    patience = LOOP_PATIENCE_SECONDS if on_loop else PATIENCE_SECONDS
    until = time.perf_counter() + patience
    pause = 0.0 if on_loop else 1e-4  # on a busy machine a sleep may take several times as long as asked for
    while True:
        in_flight = _sweep(device)
        try:
            return timeline.driver.allocate(nbytes, timeline.handle)
        except OutOfMemoryError as error:
            if not in_flight or time.perf_counter() >= until:
                waited = f", and {patience:g} s of waiting for dropped work did not see its end" if in_flight else ""
                raise OutOfMemoryError(f"{error}{waited}. {_holdings(device)}") from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _sweep(device: DeviceState) -> bool:
    """Frees the memory that is no longer in use. Returns whether work is in flight whose end may free more memory."""
    results = False
    for loose in device.loose.copy():
        results |= loose.forget_finished()
    return device.runtime.reclaimer.make_room(device) or results


def _holdings(device: DeviceState) -> str:
    """Returns a description of what holds the memory: the largest kinds of boxes, the work in flight, the pooled
    memory."""
    runtime = device.runtime
    in_flight, cancelled, dropped, dropped_bytes = runtime.reclaimer.pending()  # first, as it collects dropped boxes
    live = list(device.live.copy().values())  # the copy is one step: finalisers may change the original
    count = Counter(live)
    kinds = sorted(count, key=lambda kind: -kind[0] * count[kind])
    boxes = [
        f"{count[kind]} of {'x'.join(map(str, kind[1])) or 'scalar'} {kind[2]} ({byte_count(kind[0])} each)"
        for kind in kinds[:_LARGEST]
    ]
    more = len(kinds) - len(boxes)
    named = (": " + ", ".join(boxes) + (f", and {more} smaller kinds" if more else "")) if boxes else ""
    return (
        f"{device.label} holds {len(live)} boxes, {byte_count(sum(entry[0] for entry in live))}{named}; "
        f"{in_flight} operations are in flight or not yet collected, {cancelled} cancelled ones are still running, "
        f"{dropped} dropped boxes ({byte_count(dropped_bytes)}) wait to be given back; {runtime.pinned.describe()}"
    )
