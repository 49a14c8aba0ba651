"""How host data gets to a device and back without blocking whoever submits it, in a bounded amount of pinned memory.

*Up.* An array in page-locked memory is copied straight from there. A small one is copied into a pinned buffer at once,
which takes less than a host function would. A large one is staged in chunks: on streams beside the operation's, host
functions copy chunk after chunk into a few pinned slots, and the operation's stream takes each from there, so that the
memcpy of one chunk, shared out to several cores, runs while the one before is on the wire. A slot is used again when
its copy is done, whatever follows that on the operation's stream; the streams see to it, no thread waits. Each slot has
a stream of its own beside, see ``_beside``. The uploads that are in flight on one stream share their slots, a ``Lane``:
they come after one another there anyway, so buffers of their own would only be filled sooner than they are wanted.
Sixty-four uploads of 16 MiB at once on four streams so hold 64 MiB of page-locked memory, and held 1 GiB without.

A graph's uploads are the exception: nobody knows when a launch that was submitted is past its uploads, so each launch
copies its arrays when it is submitted, whatever their size (``ReadingAtSubmission``).

*Down.* Into a pinned buffer, which becomes the result. Where the pool has none, through a slot, chunk by chunk, into an
ordinary array.

*Where the pool has none*, because it is at its limit, or because an event loop's thread must not make large ones, there
is the device's ring: a few slots that all copies of the device take turns with, in the order of submission. So copies
then wait for one another, on the device, but none is refused and none blocks a thread. The ring is small enough to be
made on an event loop, 3 ms on an H100; but a task that awaits a large copy first has it made by a thread (``loading``),
with all else that is made once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.native import mypyc_attr
from oxide.runtime.host_memory.copy_pool import copy_function, copy_pool
from oxide.runtime.host_memory.moves import Moves
from oxide.runtime.host_memory.pinned import PinnedBuffer, PinnedPool, pinned_buffer_of

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from oxide.runtime.device.memory import Allocation, DeviceBox
    from oxide.runtime.device.runtime import Device
    from oxide.runtime.device.timeline import Timeline
    from oxide.runtime.submission.submission import ExecutionContext

CHUNK_BYTES = 1 << 20
"""The ring's chunk: 20 µs on the wire, about what the driver takes to call a host function."""

SMALL_BYTES = 256 << 10
"""What is copied at submission: at most 30 microseconds of the loop's time."""

_SLOTS = 4  # one being filled, one on the wire, and two on the way between these
_LANE_BYTES = 16 << 20  # of uploads in one chunk, how much is filled ahead
_MUCH_LARGER = 8
_RING_SLOTS = 4

PREPARED_CHUNK_BYTES = 4 << 20
"""The ring's slots where nobody waits for its making: a copy then is fewer chunks to submit, 16 of 64 MiB."""


_NOTHING: Final[list[Allocation]] = []

_reads_at_submission: Final[ContextVar[bool]] = ContextVar("oxide_reads_at_submission", default=False)


@final
class ReadingAtSubmission:
    """``with ReadingAtSubmission():`` an upload submitted in here has read its array when it returns.

    That takes the calling thread 0.1 to 0.2 ms for a MiB, the time of a memcpy by one core."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _reads_at_submission.set(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _reads_at_submission.reset(self._before)


@final
class Slot:
    """A piece of pinned memory and its last use."""

    __slots__ = ("address", "position", "timeline")

    def __init__(self, address: int) -> None:
        self.address = address
        self.timeline: Timeline | None = None
        self.position = 0

    def order(self, timeline: Timeline) -> None:
        """Makes a stream wait for the slot's last use."""
        if self.timeline is not None:
            timeline.follow(self.timeline, self.position)

    def note(self, timeline: Timeline) -> None:
        """What was just submitted to ``timeline`` uses the slot. Marked, so that who waits for it does not wait for the
        kernels behind it too."""
        self.timeline, self.position = timeline, timeline.advance()
        timeline.mark()

    def idle(self) -> bool:
        return self.timeline is None or self.timeline.passed(self.position) or self.timeline.seen_dry()


@final
class Turns:
    """Slots that copies take in turn. Call and use what it gives with ``lock`` held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.slots: list[Slot] = []
        self._next = 0

    def take(self, chunks: int) -> list[Slot]:
        """The slots, those that were used longest ago first; the next who asks begins ``chunks`` further."""
        first = self._next % len(self.slots)
        self._next = first + chunks
        return self.slots[first:] + self.slots[:first]


@final
@mypyc_attr(native_class=False)  # a stream refers to it weakly
class Lane:
    """The slots, of at least ``chunk`` bytes, of the uploads that are in flight on one stream. Each of these holds it,
    and with the last of them the memory goes back to the pool."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.turns = Turns()
        self._buffers: list[PinnedBuffer] = []

    def grow(self, pool: PinnedPool, count: int) -> None:
        """Takes up to ``count`` more slots, as far as the pool has them and the lane is not full."""
        most = max(_SLOTS, _LANE_BYTES // self.chunk)
        for _ in range(min(count, most - len(self._buffers))):
            buffer = pool.try_acquire(self.chunk)
            if buffer is None:
                return
            self._buffers.append(buffer)
            self.turns.slots.append(Slot(buffer.address))


@final
class StagingRing:
    """Slots of ``chunk`` bytes that belong to a device, for when the pool has none: small ones, made when first needed,
    or larger, made by ``prepare``, which a task that awaits a large copy has called in a thread."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._turns = Turns()
        self.chunk = CHUNK_BYTES
        self.prepared = False

    def prepare(self) -> None:
        """Makes what the first large copy would make on its way, up to 200 ms on an H100: the ring, the threads that
        help to copy, streams for host functions, and whatever the driver makes when it is first asked to call one."""
        device = self._device
        with self.lock:
            if self.prepared:
                return
            self.prepared = True  # an error is for the copy, which tries again in place
            if not self._turns.slots:
                self._make(max(CHUNK_BYTES, PREPARED_CHUNK_BYTES))
            slots = self._turns.slots
            moves = Moves(len(slots))
            timelines: list[Timeline] = []
            try:
                for slot in slots:
                    timelines.append(device.take_timeline())
                    moves.submit(device.driver, slot.address, slot.address, 0, timelines[-1].handle)
                    timelines[-1].advance()
                for timeline in timelines:
                    device.driver.synchronize_stream(timeline.handle)
            except BaseException:
                for timeline in timelines:
                    device.runtime.reclaimer.strand(timeline, [moves])
                raise
            finally:
                device.spare_timelines.extend(timelines)
        copy_pool()
        copy_function()

    @property
    def lock(self) -> threading.Lock:
        """For who uses the slots."""
        return self._turns.lock

    def renew_lock(self) -> None:
        """In a forked process, where the thread that held it is not."""
        self._turns.lock = threading.Lock()

    def take(self, nbytes: int, most: int) -> tuple[list[Slot], int]:
        """The slots, as ``Turns.take`` gives them, for a copy of ``nbytes`` in chunks of up to ``most``, and how large
        its chunks are to be."""
        if not self._turns.slots:
            self._make(CHUNK_BYTES)
        chunk = min(most, self.chunk)
        return self._turns.take(-(-nbytes // chunk)), chunk

    def _make(self, chunk: int) -> None:
        address = self._device.driver.allocate_host(_RING_SLOTS * chunk)  # one call: each has its price
        self._turns.slots = [Slot(address + number * chunk) for number in range(_RING_SLOTS)]
        self.chunk = chunk

    def trim(self) -> None:
        """Gives the slots back if no work in flight uses them."""
        with self.lock:
            slots = self._turns.slots
            if slots and all(slot.idle() for slot in slots):
                self._device.driver.free_host(min(slot.address for slot in slots))
                self._turns.slots = []
                self.prepared = False


def upload(context: ExecutionContext, box: DeviceBox, array: NDArray[Any]) -> None:
    """Copies an array of a new box's shape and dtype into the box. The array is read until the run has completed,
    or inside ``ReadingAtSubmission`` not any more when this returns."""
    pool, nbytes, at_once = context.runtime.pinned, box.nbytes, _reads_at_submission.get()
    if not at_once and pinned_buffer_of(array, pool) is not None and array.flags.c_contiguous:
        context.keep(array)
        _copy(context, box, array.ctypes.data, up=True)
        return
    if at_once or nbytes <= SMALL_BYTES:
        buffer = pool.try_acquire(nbytes)
        if buffer is not None:
            context.keep(buffer)
            buffer.fill(array)
            _copy(context, box, buffer.address, up=True)
            return
    if at_once:
        array = array.copy()
    chunk = min(nbytes, _chunk_bytes(nbytes))
    chunks = -(-nbytes // chunk)
    count = min(chunks, _SLOTS)
    lane = _lane(context.timeline, chunk)
    turns = lane.turns
    with turns.lock:
        lane.grow(pool, count)
        missing = count - len(turns.slots)
        enough = missing <= 0 or len(turns.slots) > 1  # with one slot for many chunks nothing would overlap
        if enough:
            _upload_in_chunks(context, box, array, chunk, turns.take(chunks), lane)
    if not enough:
        ring = context.device.staging
        with ring.lock:
            slots, chunk = ring.take(nbytes, chunk)
            _upload_in_chunks(context, box, array, chunk, slots, None)
    if missing > 0:
        pool.want(lane.chunk, missing)


def _copy(context: ExecutionContext, box: DeviceBox, host: int, *, up: bool) -> None:
    """One copy between a box and page-locked memory at the address ``host``, in order. Without ``ordered``, as launches
    do it: small copies are as many."""
    this = [box._allocation]
    reads, writes = (_NOTHING, this) if up else (this, _NOTHING)
    submitted = False
    with context.submission_lock:
        context.begin(reads, writes)
        try:
            if up:
                context.driver.copy_to_device(box._ptr, host, box._nbytes, context.timeline.handle)
            else:
                context.driver.copy_to_host(host, box._ptr, box._nbytes, context.timeline.handle)
            submitted = True
        finally:
            context.end(reads, writes, submitted=submitted)


def _lane(timeline: Timeline, chunk: int) -> Lane:
    """The lane of the uploads in flight on a stream, if its slots are large enough and not much larger, else a new one;
    that of before is held by its own uploads."""
    lane: Lane | None = timeline.lane() if timeline.lane is not None else None
    if lane is None or not chunk <= lane.chunk <= _MUCH_LARGER * chunk:
        lane = Lane(chunk)
        timeline.lane = weakref.ref(lane)
    return lane


def _chunk_bytes(nbytes: int) -> int:
    """A quarter of the upload, so that the first memcpy and the last copy, which nothing overlaps, are short beside it;
    but 4 MiB at least, as each chunk is handed over once more, and 8 MiB at most, unless submitting so many chunks
    would take the loop's thread milliseconds.

    GB/s on an H100, of one upload / of uploads on four streams, in eighths and in quarters: 16 MiB 26.3 / 38.4 and
    29.4 / 42.7; 32 MiB 29.9 / 32.0 and 34.1 / 44.2. 4 MiB in four chunks, two and one: 17.3 / 22.0, 19.1 / 32.8, 19.3 /
    40.4. 64 MiB in quarters of 16 MiB were quicker on that host (36.1 / 42.6 for 35.2 / 36.2), but on one whose memory
    is slower one by itself took a fifth longer."""
    size = 4 * CHUNK_BYTES
    while 4 * size < nbytes and (size < 8 * CHUNK_BYTES or 128 * size < nbytes):
        size *= 2
    return size


def _layout(nbytes: int, chunk: int) -> list[tuple[int, int]]:
    """The chunks of a copy, as offset and size. Smaller ones at the beginning, for the wire to begin sooner, were
    measured and left out: what a chunk costs whatever its size is more than that. So was to send a chunk in parts, each
    as soon as a word that the helpers write says that it is there (``cuStreamWaitValue32``): 39.6 GB/s with it and 39.8
    without for four uploads at once, 29.1 and 28.7 for one, and twice as many calls on the loop's thread."""
    return [(offset, min(chunk, nbytes - offset)) for offset in range(0, nbytes, chunk)]


def _upload_in_chunks(
    context: ExecutionContext,
    box: DeviceBox,
    array: NDArray[Any],
    chunk: int,
    slots: Sequence[Slot],
    lane: Lane | None,
) -> None:
    driver, timeline, nbytes = context.driver, context.timeline, box.nbytes
    layout = _layout(nbytes, chunk)
    moves = Moves(len(layout))
    kept: list[Any] = [moves, array, lane]
    context.keep(kept)
    source = array
    with _beside(context, min(len(slots), len(layout)), kept) as stagers:
        if not array.flags.c_contiguous:
            # Gathered by a host function too, where NumPy lets go of the GIL.
            source = np.empty(array.shape, array.dtype)
            kept.append(source)
            driver.launch_host_function(lambda: np.copyto(source, array), stagers[0].handle)
            gathered = stagers[0].advance()
            for stager in stagers[1:]:
                stager.follow(stagers[0], gathered)
        with context.submission_lock, context.ordered([], [box._allocation]):
            for number, (offset, size) in enumerate(layout):
                slot, stager = slots[number % len(slots)], stagers[number % len(stagers)]
                slot.order(stager)
                moves.submit(driver, slot.address, source.ctypes.data + offset, size, stager.handle)
                slot.note(stager)
                slot.order(timeline)
                timeline.close()
                driver.copy_to_device(box.ptr + offset, slot.address, size, timeline.handle)
                slot.note(timeline)


@contextmanager
def _beside(context: ExecutionContext, count: int, kept: list[Any]) -> Iterator[list[Timeline]]:
    """Streams beside the operation's for the host functions of one copy. Where the body raises, ``kept`` is kept until
    they have run.

    One for each slot: the next chunk's host function is then ready when one ends. Behind one another on one stream they
    would each come 90 µs after the last (on an H100), which the device takes to see that it ended and to call the next.
    """
    stagers: list[Timeline] = []
    try:
        while len(stagers) < count:
            stagers.append(context.device.take_timeline())
        yield stagers
    except BaseException:
        for stager in stagers:
            context.runtime.reclaimer.strand(stager, [kept])
        raise
    finally:
        context.device.spare_timelines.extend(stagers)


def download(context: ExecutionContext, box: DeviceBox) -> NDArray[Any]:
    """An array of a box's shape and dtype, filled once the run has completed."""
    pool, nbytes = context.runtime.pinned, box.nbytes
    # A graph needs the buffer now: it goes on using the address, and capturing blocks anyway.
    buffer = pool.try_acquire(nbytes) if context.recording is None else pool.acquire(nbytes)
    if buffer is not None:
        context.keep(buffer)
        _copy(context, box, buffer.address, up=False)
        return buffer.array(box.shape, box.dtype, context.visible)
    result = np.empty(box.shape, box.dtype)
    ring = context.device.staging
    with ring.lock:
        slots, chunk = ring.take(nbytes, _chunk_bytes(nbytes))
        _download_in_chunks(context, box, result, chunk, slots)
    pool.want(nbytes, 1)
    return result


def _download_in_chunks(
    context: ExecutionContext, box: DeviceBox, result: NDArray[Any], chunk: int, slots: Sequence[Slot]
) -> None:
    driver, timeline, nbytes = context.driver, context.timeline, box.nbytes
    layout = _layout(nbytes, chunk)
    moves = Moves(len(layout))
    kept = [result, moves]
    context.keep(kept)
    if context.visible is not None:
        context.visible.run.used_by_others = True  # who holds the result cannot be told, as it is kept
    with (
        _beside(context, min(len(slots), len(layout)), kept) as stagers,
        context.submission_lock,
        context.ordered([box._allocation], []),
    ):
        for number, (offset, size) in enumerate(layout):
            slot, stager = slots[number % len(slots)], stagers[number % len(stagers)]
            slot.order(timeline)
            timeline.close()
            driver.copy_to_host(slot.address, box.ptr + offset, size, timeline.handle)
            slot.note(timeline)
            slot.order(stager)
            moves.submit(driver, result.ctypes.data + offset, slot.address, size, stager.handle)
            slot.note(stager)
        for stager in stagers:  # the run is over when the result is there
            timeline.follow(stager, stager.mark().position)
