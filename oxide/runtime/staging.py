"""How host data gets to a device and back without blocking whoever submits it, in a bounded amount of pinned memory.

*Up.* An array in page-locked memory is copied straight from there. A small one is copied into a pinned buffer at once,
which takes less than a host function would. A large one is staged in chunks: on a stream beside the operation's, host
functions copy chunk after chunk into a few pinned slots, and the operation's stream takes each from there, so that the
memcpy of one chunk, shared out to several cores, runs while the one before is on the wire. A slot is used again when
its copy is done; the streams see to that, no thread waits.

*Down.* Into a pinned buffer, which becomes the result. Where the pool has none, through a slot, chunk by chunk, into an
ordinary array.

*Where the pool has none*, because it is at its limit, or because an event loop's thread must not make large ones, there
is the device's ring: a few slots that all copies of the device take turns with, in the order of submission. So copies
then wait for one another, on the device, but none is refused and none blocks a thread. The ring is small enough to be
made on an event loop: 3 ms on an H100.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from oxide.runtime.moves import Moves
from oxide.runtime.pinned import PinnedBuffer, pinned_buffer_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.runtime.context import Device
    from oxide.runtime.memory import DeviceBox
    from oxide.runtime.submission import ExecutionContext
    from oxide.runtime.timeline import Timeline

CHUNK_BYTES = 1 << 20
"""The smallest chunk, and the ring's: 20 µs on the wire, about what the driver takes to call a host function."""

SMALL_BYTES = 256 << 10
"""What is copied at submission: at most 30 microseconds of the loop's time."""

_SLOTS = 3  # one being filled, one on the wire, one between
_RING_SLOTS = 4


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
            timeline.wait_for(self.timeline, self.position)

    def note(self, timeline: Timeline) -> None:
        """What was just submitted to ``timeline`` uses the slot."""
        self.timeline = timeline
        self.position = timeline.advance()

    def idle(self) -> bool:
        return self.timeline is None or self.timeline.passed(self.position) or self.timeline.seen_dry()


@final
class StagingRing:
    """Slots of ``CHUNK_BYTES`` that belong to a device, for when the pool has none. Made when first needed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.lock = threading.Lock()
        self._slots: list[Slot] = []

    def slots(self) -> list[Slot]:
        """The slots; call and use them with ``lock`` held."""
        if not self._slots:
            address = self._device.driver.allocate_host(_RING_SLOTS * CHUNK_BYTES)  # one call: each has its price
            self._slots = [Slot(address + number * CHUNK_BYTES) for number in range(_RING_SLOTS)]
        return self._slots

    def trim(self) -> None:
        """Gives the slots back if no work in flight uses them."""
        with self.lock:
            if self._slots and all(slot.idle() for slot in self._slots):
                self._device.driver.free_host(self._slots[0].address)
                self._slots = []


def upload(context: ExecutionContext, box: DeviceBox, array: NDArray[Any]) -> None:
    """Copies an array of a new box's shape and dtype into the box. The array is read until the run has completed."""
    pool, nbytes = context.runtime.pinned, box.nbytes
    if array.flags.c_contiguous and pinned_buffer_of(array, pool) is not None:
        context.keep(array)
        with context.ordered([], [box._allocation]):
            context.driver.copy_to_device(box.ptr, array.ctypes.data, nbytes, context.timeline.handle)
        return
    if nbytes <= SMALL_BYTES:
        buffer = pool.try_acquire(nbytes)
        if buffer is not None:
            context.keep(buffer)
            np.copyto(buffer.array(array.shape, array.dtype), array)
            with context.ordered([], [box._allocation]):
                context.driver.copy_to_device(box.ptr, buffer.address, nbytes, context.timeline.handle)
            return
    chunk = min(nbytes, _chunk_bytes(nbytes))
    slots = min(-(-nbytes // chunk), _SLOTS)
    buffers: list[PinnedBuffer] = []
    while len(buffers) < slots and (found := pool.try_acquire(chunk)) is not None:
        buffers.append(found)
    if len(buffers) > 1 or len(buffers) == slots:  # with one slot for many chunks nothing would overlap
        _upload_in_chunks(context, box, array, chunk, [Slot(buffer.address) for buffer in buffers], buffers)
    else:
        missing = slots - len(buffers)
        buffers.clear()
        with context.device.staging.lock:
            _upload_in_chunks(context, box, array, CHUNK_BYTES, context.device.staging.slots(), [])
        pool.want(chunk, missing)


def _chunk_bytes(nbytes: int) -> int:
    """An eighth of the upload, so that the first memcpy and the last copy, which nothing overlaps, are short beside it;
    but 8 MiB at most, unless submitting so many chunks would take the loop's thread milliseconds."""
    size = CHUNK_BYTES
    while 8 * size < nbytes and (size < 8 * CHUNK_BYTES or 128 * size < nbytes):
        size *= 2
    return size


def _upload_in_chunks(
    context: ExecutionContext,
    box: DeviceBox,
    array: NDArray[Any],
    chunk: int,
    slots: Sequence[Slot],
    buffers: list[PinnedBuffer],
) -> None:
    driver, timeline, nbytes = context.driver, context.timeline, box.nbytes
    moves = Moves(-(-nbytes // chunk))
    kept: list[Any] = [moves, array, buffers]
    context.keep(kept)
    stager = context.device.take_timeline()
    try:
        source = array
        if not array.flags.c_contiguous:
            # Gathered by a host function too, where NumPy lets go of the GIL.
            source = np.empty(array.shape, array.dtype)
            kept.append(source)
            driver.launch_host_function(lambda: np.copyto(source, array), stager.handle)
            stager.advance()
        with context.ordered([], [box._allocation]):
            for number, offset in enumerate(range(0, nbytes, chunk)):
                slot, size = slots[number % len(slots)], min(chunk, nbytes - offset)
                slot.order(stager)
                moves.submit(driver, slot.address, source.ctypes.data + offset, size, stager.handle)
                slot.note(stager)
                slot.order(timeline)
                driver.copy_to_device(box.ptr + offset, slot.address, size, timeline.handle)
                slot.note(timeline)
    except BaseException:
        context.runtime.reclaimer.strand(stager, kept)  # its host functions may still write to the slots
        raise
    finally:
        context.device.spare_timelines.append(stager)


def download(context: ExecutionContext, box: DeviceBox) -> NDArray[Any]:
    """An array of a box's shape and dtype, filled once the run has completed."""
    driver, timeline, nbytes = context.driver, context.timeline, box.nbytes
    pool = context.runtime.pinned
    # A graph needs the buffer now: it goes on using the address, and capturing blocks anyway.
    buffer = pool.try_acquire(nbytes) if context.recording is None else pool.acquire(nbytes)
    if buffer is not None:
        context.keep(buffer)
        with context.ordered([box._allocation], []):
            driver.copy_to_host(buffer.address, box.ptr, nbytes, timeline.handle)
        return buffer.array(box.shape, box.dtype)
    result = np.empty(box.shape, box.dtype)
    moves = Moves(-(-nbytes // CHUNK_BYTES))
    context.keep((result, moves))
    staging = context.device.staging
    with staging.lock, context.ordered([box._allocation], []):
        for number, offset in enumerate(range(0, nbytes, CHUNK_BYTES)):
            slots = staging.slots()
            slot, size = slots[number % len(slots)], min(CHUNK_BYTES, nbytes - offset)
            slot.order(timeline)
            driver.copy_to_host(slot.address, box.ptr + offset, size, timeline.handle)
            slot.note(timeline)
            moves.submit(driver, result.ctypes.data + offset, slot.address, size, timeline.handle)
            slot.note(timeline)
    pool.want(nbytes, 1)
    return result
