"""A device's staging ring: a few slots of page-locked memory for copies that find no buffer in the pool.

All these copies use the slots in turn, in the order of submission. A copy's stream waits until the last use of a slot
has ended, and no thread is blocked. The ring is small enough to be made on an event loop's thread, in 3 ms on an H100.
A task that awaits a large copy first has a thread make a larger ring (``awaiting/loading.py``).
``submission/staging.py`` submits the copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from oxide.host.locks import new_lock, unheld
from oxide.runtime.memory.moves import Moves, copy_pool

if TYPE_CHECKING:
    from oxide.runtime.ordering.timeline import DeviceState, Timeline

CHUNK_BYTES = 1 << 20
"""The size of the ring's chunks: 20 µs of transfer, about as long as the driver takes to call a host function."""

PREPARED_CHUNK_BYTES = 4 << 20
"""The size of the ring's chunks if ``prepare`` makes the ring, in a thread without an event loop. A copy of 64 MiB then
takes only 16 chunks."""

_RING_SLOTS = 4


@final
class StagingSlot:
    """A piece of page-locked memory and its last use."""

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
        """Records that the work just submitted to ``timeline`` uses the slot. Marks the timeline at once, so that
        waiters on the slot do not wait for later kernels too."""
        self.timeline, self.position = timeline, timeline.advance()
        timeline.mark()

    def idle(self) -> bool:
        return self.timeline is None or self.timeline.passed(self.position) or self.timeline.seen_dry()


@final
class Turns:
    """Slots that copies use in turn. Hold ``lock`` while calling ``take`` and using the slots that it returns."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.slots: list[StagingSlot] = []
        self._next = 0

    def take(self, chunks: int) -> list[StagingSlot]:
        """Returns all slots, least recently used first, for a caller that uses the first ``chunks`` of them."""
        first = self._next % len(self.slots)
        self._next = first + chunks
        return self.slots[first:] + self.slots[:first]


@final
class StagingRing:
    """A device's slots of ``chunk`` bytes, for copies that find no page-locked buffer. If the first copy makes the
    ring, the chunks are small. If ``prepare`` makes it, they are larger. A task that awaits a large copy has a thread
    call ``prepare``."""

    def __init__(self, device: DeviceState) -> None:
        self._device = device
        self._turns = Turns()
        self.chunk = CHUNK_BYTES
        self.prepared = False

    def prepare(self) -> None:
        """Creates everything that the first large copy needs: the ring, the copy helpers, streams for host functions,
        and the driver's own state for its first host function. This takes up to 200 ms on an H100."""
        device = self._device
        with unheld(self.lock):
            if self.prepared:
                return
            self.prepared = True  # after an error, the copy itself tries again
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

    @property
    def lock(self) -> Any:
        """Returns the lock to hold while using the slots."""
        return self._turns.lock

    def renew_lock(self) -> None:
        """Replaces the lock in a forked process, where the thread that held it does not exist."""
        self._turns.lock = new_lock()

    def take(self, nbytes: int, most: int) -> tuple[list[StagingSlot], int]:
        """Returns the slots for a copy of ``nbytes``, in the order of ``Turns.take``, and the size of its chunks, which
        is ``most`` bytes or less."""
        if not self._turns.slots:
            self._make(CHUNK_BYTES)
        chunk = min(most, self.chunk)
        return self._turns.take(-(-nbytes // chunk)), chunk

    def _make(self, chunk: int) -> None:
        address = self._device.driver.allocate_host(_RING_SLOTS * chunk)  # one call, as each call is costly
        self._turns.slots = [StagingSlot(address + number * chunk) for number in range(_RING_SLOTS)]
        self.chunk = chunk

    def trim(self) -> None:
        """Frees the slots if no work in flight uses them."""
        with unheld(self.lock):
            slots = self._turns.slots
            if slots and all(slot.idle() for slot in slots):
                self._device.driver.free_host(min(slot.address for slot in slots))
                self._turns.slots = []
                self.prepared = False
