"""Staged copies between host and device. They never block the submitting thread, and use a bounded amount of
page-locked memory.

*Up.* An array in page-locked memory is copied from there directly. A small array is copied into a page-locked buffer at
submission, which takes less time than a host function would. A large array is staged in chunks. Host functions on side
streams copy chunk after chunk into a few page-locked slots, and the operation's stream copies each slot to the device.
So the memcpy of one chunk, shared among several cores, overlaps the transfer of the previous chunk. A slot is reused as
soon as its copy is done, whatever follows on the operation's stream. The streams wait for each other; no thread waits.
Each slot has its own side stream (see ``_beside``). The uploads in flight on one stream share their slots, a ``Lane``:
they run one after another anyway, so separate buffers would only be filled sooner than needed. Sixty-four uploads of 16
MiB at once on four streams therefore hold 64 MiB of page-locked memory; without sharing they held 1 GiB.

A graph's uploads are the exception, because nothing tells when a submitted launch is past its uploads. So each launch
copies its arrays when it is submitted, whatever their size (``ReadingAtSubmission``).

*Down.* A download goes into a page-locked buffer, which becomes the result. If the pool has no buffer, the download
goes through page-locked slots, chunk by chunk, into an ordinary array.

*If the pool has no buffer*, because it is at its limit or because an event loop's thread must not make large ones, the
copy uses the device's ring (``memory/staging_ring.py``). Copies then wait for one another on the device, but none is
refused and none blocks a thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np

from oxide.host import core
from oxide.host.core import copy_host, download_pinned, upload_small
from oxide.host.locks import unheld
from oxide.runtime.memory import staging_ring
from oxide.runtime.memory.moves import Moves, copy_now, copy_pool
from oxide.runtime.memory.pinned import PinnedBuffer, PinnedPool, pinned_buffer_of
from oxide.runtime.memory.staging_ring import StagingSlot, Turns
from oxide.runtime.submission.host_copies import is_wanted, poison

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from numpy.typing import NDArray

    from oxide.runtime.devices.runtime import Device, Runtime
    from oxide.runtime.memory.allocation import Allocation
    from oxide.runtime.memory.memory import DeviceBox
    from oxide.runtime.memory.reclaim import Visible
    from oxide.runtime.ordering.timeline import Timeline

SMALL_BYTES = 256 << 10
"""Uploads up to this size are copied at submission: at most 30 microseconds of the loop's time."""

SHARED_BYTES = 1 << 20
"""Uploads up to this size are copied at submission, too, if a page-locked buffer is free and ``copy_pool`` has enough
threads to copy the array in the time of a small upload."""

_ENOUGH_HELPERS = 3
_SLOTS = 4  # one being filled, one in transfer, and two in between
_LANE_BYTES = 16 << 20  # the most memory of a lane with small chunks, which are filled that far ahead of the transfer
_MUCH_LARGER = 8

_reads_at_submission: Final[ContextVar[bool]] = ContextVar("oxide_reads_at_submission", default=False)


class ContextState(Protocol):
    """A run's context, as the copies that it submits know it: ``ExecutionContext`` says what each of these is."""

    device: Device
    driver: Any
    runtime: Runtime
    timeline: Timeline
    visible: Visible | None
    waitless: str

    @property
    def is_over(self) -> bool: ...

    @property
    def recording(self) -> Any: ...

    @property
    def submission_lock(self) -> Any: ...

    def allocated(self, nbytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Allocation: ...

    def at_launch(self, box: DeviceBox, function: Callable[[Any, DeviceBox], None]) -> None: ...

    def keep(self, thing: object) -> None: ...

    def note_host_copy(self, array: Any = None) -> None: ...

    def ordered(self, reads: list[Allocation], writes: list[Allocation]) -> AbstractContextManager[object]: ...


@final
class ReadingAtSubmission:
    """``with ReadingAtSubmission():`` makes uploads read their arrays before they return.

    Reading takes the calling thread 0.1 to 0.2 ms for a MiB, the time of a memcpy by one core.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _reads_at_submission.set(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _reads_at_submission.reset(self._before)


@final
class Lane:
    """The slots, of at least ``chunk`` bytes each, that the uploads in flight on one stream share.

    Each upload holds the lane. When the last upload drops the lane, the lane's memory returns to the pool.
    """

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.turns = Turns()
        self._buffers: list[PinnedBuffer] = []

    def grow(self, pool: PinnedPool, count: int) -> None:
        """Takes up to ``count`` more slots, as long as the pool has them and the lane is not full."""
        most = max(_SLOTS, _LANE_BYTES // self.chunk)
        for _ in range(min(count, most - len(self._buffers))):
            buffer = pool.try_acquire(self.chunk)
            if buffer is None:
                return
            self._buffers.append(buffer)
            self.turns.slots.append(StagingSlot(buffer.address))


def upload(context: ContextState, box: DeviceBox, array: NDArray[Any]) -> None:
    """Copies an array into a new box of its shape and dtype. The array is read until the run has completed; inside
    ``ReadingAtSubmission`` it is read before this returns."""
    if upload_small(context, box, array):
        return
    pool, nbytes, at_once = context.runtime.pinned, box.nbytes, _reads_at_submission.get()
    if not at_once and pinned_buffer_of(array, pool) is not None and array.flags.c_contiguous:
        context.keep(array)
        copy_host(context, box, array.ctypes.data, True)
        return
    if at_once or nbytes <= SHARED_BYTES:
        # Making a larger buffer may take a while. Without a buffer of its own, the upload goes through the lane.
        buffer = pool.try_acquire(nbytes) if at_once or nbytes <= SMALL_BYTES else _reused(pool, array)
        if buffer is not None:
            context.keep(buffer)
            if nbytes > SMALL_BYTES and array.flags.c_contiguous:
                copy_now(buffer.address, array.ctypes.data, nbytes)
            else:
                buffer.fill(array)
            copy_host(context, box, buffer.address, True)
            return
    if at_once:
        array = array.copy()
    chunk = min(nbytes, _chunk_bytes(nbytes))
    chunks = -(-nbytes // chunk)
    count = min(chunks, _SLOTS)
    lane = _lane(context.timeline, chunk)
    turns = lane.turns
    with unheld(turns.lock):
        lane.grow(pool, count)
        missing = count - len(turns.slots)
        enough = missing <= 0 or len(turns.slots) > 1  # many chunks in a single slot would not overlap
        if enough:
            _upload_in_chunks(context, box, array, chunk, turns.take(chunks), lane)
    if not enough:
        ring = context.device.staging
        with unheld(ring.lock):
            slots, chunk = ring.take(nbytes, chunk)
            _upload_in_chunks(context, box, array, chunk, slots, None)
    if missing > 0:
        pool.want(lane.chunk, missing)


def _reused(pool: PinnedPool, array: NDArray[Any]) -> PinnedBuffer | None:
    """Returns a free buffer, into which the threads of ``copy_pool`` can copy ``array`` at submission. Returns None if
    no buffer is free, if there are too few threads, or if the array is not C-contiguous."""
    helpers = copy_pool()
    if helpers is None or helpers.helpers < _ENOUGH_HELPERS or not array.flags.c_contiguous:
        return None
    return pool.reuse(array.nbytes)


def _copy_host(context: ContextState, box: DeviceBox, host: int, up: bool) -> None:
    """Does what ``copy_host`` does, in a recording, too."""
    memory, stream = [box._allocation], context.timeline.handle
    with context.submission_lock, context.ordered([] if up else memory, memory if up else []):
        if up:
            context.driver.copy_to_device(box._ptr, host, box._nbytes, stream)
        else:
            context.driver.copy_to_host(host, box._ptr, box._nbytes, stream)


def is_read_by_device(context: ContextState, array: object) -> bool:
    """Returns whether an upload of ``array`` in this context is a copy by the device itself, in stream order. If it is
    not, the host reads the array, perhaps at once."""
    return (
        isinstance(array, np.ndarray)
        and context.recording is None
        and not _reads_at_submission.get()
        and pinned_buffer_of(array, context.runtime.pinned) is not None
        and bool(array.flags.c_contiguous)
    )


def _lane(timeline: Timeline, chunk: int) -> Lane:
    """Returns the lane of the uploads in flight on a stream, if its slots hold a chunk and are not much larger than
    that. If not, starts a new lane; the uploads in flight keep the old lane alive."""
    lane: Lane | None = timeline.lane() if timeline.lane is not None else None
    if lane is None or not chunk <= lane.chunk <= _MUCH_LARGER * chunk:
        lane = Lane(chunk)
        timeline.lane = weakref.ref(lane)
    return lane


def _chunk_bytes(nbytes: int) -> int:
    """Returns the chunk size of an upload: about a quarter of the upload, so that the first memcpy and the last
    transfer, which overlap nothing, stay short. It is at least 4 MiB, because each chunk has a fixed cost. It is at
    most 8 MiB, unless submitting so many chunks would take milliseconds of the loop's thread.

    Measured on an H100, in GB/s, for one upload / for uploads on four streams. 16 MiB: 26.3 / 38.4 in eighths, 29.4 /
    42.7 in quarters. 32 MiB: 29.9 / 32.0 in eighths, 34.1 / 44.2 in quarters. 4 MiB: 17.3 / 22.0 in four chunks, 19.1 /
    32.8 in two, 19.3 / 40.4 in one. For 64 MiB, quarters of 16 MiB were faster on that host than 8 MiB (36.1 / 42.6
    against 35.2 / 36.2), but on a host with slower memory a single upload took a fifth longer."""
    size = 4 * staging_ring.CHUNK_BYTES
    while 4 * size < nbytes and (size < 8 * staging_ring.CHUNK_BYTES or 128 * size < nbytes):
        size *= 2
    return size


def _layout(nbytes: int, chunk: int) -> list[tuple[int, int]]:
    """Returns the chunks of a copy, as (offset, size).

    Two variants were measured and left out. Smaller chunks at the start, for an earlier transfer, lose more to the
    fixed cost of a chunk than they gain. A chunk can also be transferred in parts, each as soon as the copying threads
    write a word to memory that announces the part (``cuStreamWaitValue32``). This variant gave 39.6 GB/s instead of
    39.8 for four uploads at once, 29.1 instead of 28.7 for one upload, and twice the calls on the loop's thread.
    """
    return [(offset, min(chunk, nbytes - offset)) for offset in range(0, nbytes, chunk)]


def _upload_in_chunks(
    context: ContextState,
    box: DeviceBox,
    array: NDArray[Any],
    chunk: int,
    slots: Sequence[StagingSlot],
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
            # A host function gathers the array too: NumPy releases the GIL there.
            source = np.empty(array.shape, array.dtype)
            kept.append(source)
            driver.launch_host_function(lambda: np.copyto(source, array), stagers[0].handle)
            gathered = stagers[0].advance()
            for stager in stagers[1:]:
                stager.follow(stagers[0], gathered)
        address = source.ctypes.data
        with context.submission_lock, context.ordered([], [box._allocation]):
            for number, (offset, size) in enumerate(layout):
                slot, stager = slots[number % len(slots)], stagers[number % len(stagers)]
                slot.order(stager)
                moves.submit(driver, slot.address, address + offset, size, stager.handle)
                slot.note(stager)
                slot.order(timeline)
                timeline.close()
                driver.copy_to_device(box.ptr + offset, slot.address, size, timeline.handle)
                slot.note(timeline)


@contextmanager
def _beside(context: ContextState, count: int, kept: list[Any]) -> Iterator[list[Timeline]]:
    """Takes side streams for the host functions of one copy. If the body raises, keeps ``kept`` alive until the host
    functions have run.

    Each slot has its own stream, so that the next chunk's host function is ready to start when one ends. On a single
    stream, on an H100, each host function would start 90 µs after the end of the one before it: the device takes that
    long to notice the end and make the next call.
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


def download(context: ContextState, box: DeviceBox) -> NDArray[Any]:
    """Returns an array of a box's shape and dtype, filled once the run has completed."""
    found: NDArray[Any] | None = download_pinned(context, box)
    if found is not None:
        return found
    pool, nbytes, recording = context.runtime.pinned, box.nbytes, context.recording
    # The program gets an array that is not filled: the result of a call that does not wait, or that of a graph.
    handed_out = context.waitless or (recording is not None and recording.outer is None)
    # A graph needs the buffer now: it keeps using the address, and capturing blocks anyway.
    buffer = pool.try_acquire(nbytes) if recording is None else pool.acquire(nbytes)
    result = np.empty(box.shape, box.dtype) if buffer is None else buffer.array(box.shape, box.dtype, context.visible)
    if handed_out and is_wanted():
        poison(result)
    if buffer is not None:
        context.keep(buffer)
        copy_host(context, box, buffer.address, False)
    else:
        ring = context.device.staging
        with unheld(ring.lock):
            slots, chunk = ring.take(nbytes, _chunk_bytes(nbytes))
            _download_in_chunks(context, box, result, chunk, slots)
        pool.want(nbytes, 1)
    context.note_host_copy(result)
    return result


def _download_in_chunks(
    context: ContextState, box: DeviceBox, result: NDArray[Any], chunk: int, slots: Sequence[StagingSlot]
) -> None:
    driver, timeline, nbytes = context.driver, context.timeline, box.nbytes
    layout = _layout(nbytes, chunk)
    moves = Moves(len(layout))
    kept, address = [result, moves], result.ctypes.data
    context.keep(kept)
    if context.visible is not None:
        # ``kept`` references the result, so it is unknown whether the program still does
        context.visible.run.used_by_others = True
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
            moves.submit(driver, address + offset, slot.address, size, stager.handle)
            slot.note(stager)
        for stager in stagers:  # the run ends after the last copy into the result
            timeline.follow(stager, stager.mark().position)


core.setup(copy_host=_copy_host, small_bytes=SMALL_BYTES)
