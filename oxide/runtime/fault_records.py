"""Where kernels report faults: records in page-locked memory, by the slot for submissions and by the page for graphs.

What the host launches itself, it tells where to report: a *slot* of several records is taken for each submission and
its address handed to its kernels. A graph's kernels always report at one address, in device memory; at the end of each
launch the device itself carries the record on, if it was claimed, to the next record of a *page*, and moves on by one
in any case (``Driver.report``). So the host counts along, and submits nothing for it but once a page.

Slots and pages are used again. Who holds one is a submission, by its reports, until the device is past it, finished or
abandoned; so what the device may still write belongs to nobody else, and no fault is ever shown to another. They come
back in finalisers, which append and do nothing else.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, final

import numpy as np

from oxide.compiler.faults import RECORD
from oxide.driver.base import Driver
from oxide.runtime.pinned import Block

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE_RECORDS = 64
"""Launches of a graph that a page serves."""

RECORD_BYTES: int = RECORD.itemsize
CURSOR_BYTES = 8
"""Where the next fault goes, kept in device memory behind a graph's record."""

_LANES = 8
_RECORD_WORDS = RECORD.itemsize // 4
_SLOTS_BYTES = 64 * _LANES * RECORD.itemsize


@final
class FaultRecords:
    """Fault records side by side in page-locked memory, the ``lanes`` of one slot, with what is asked of them often."""

    __slots__ = ("_flags", "address", "lanes", "used", "words")

    def __init__(self, address: int, lanes: NDArray[Any]) -> None:
        self.address = address
        self.lanes = lanes
        addresses = [address + lane * RECORD.itemsize for lane in range(_LANES)]
        self.words = [lane.to_bytes(8, sys.byteorder) for lane in addresses]  # as a kernel's parameters end with them
        self.used = 0  # the last lane that the slot before used
        self._flags = lanes.view(np.uint32).data

    def claimed(self, lane: int) -> bool:
        """Whether a kernel reported a fault there. Asked at every completion: a memoryview answers ten times faster
        than a field of a NumPy record."""
        return bool(self._flags[lane * _RECORD_WORDS])

    def clean(self) -> None:
        """Makes all records zero: no fault. What no kernel claimed, none has written."""
        for lane in range(self.used + 1):
            if self.claimed(lane):
                self.lanes[lane : lane + 1].view(np.uint64)[:] = 0


@final
class FaultSlot:
    """Where the kernels of one submission report a fault; free again when dropped.

    A record says which kernel wrote it and not which launch of that kernel. So there are several, and who launches the
    same kernel at another place of the operation goes on to the next, up to the last.
    """

    __slots__ = ("_records", "_slots", "lane", "word")

    def __init__(self, slots: FaultSlots, records: FaultRecords) -> None:
        self._slots = slots
        self._records = records
        self.lane = 0  # the present record's number
        self.word = records.words[0]  # the present record's address, as a kernel's parameters end with it

    @property
    def address(self) -> int:
        """The first record's."""
        return self._records.address

    def next_lane(self) -> bool:
        """Goes on to the next record; False at the last."""
        lane = self.lane + 1
        if lane == _LANES:
            return False
        self.lane = lane
        self.word = self._records.words[lane]
        return True

    def claimed(self) -> bool:
        """Whether a kernel reported a fault."""
        records = self._records
        for lane in range(self.lane + 1):  # noqa: SIM110 (any() would make a generator for each submission)
            if records.claimed(lane):
                return True
        return False

    def record(self, lane: int) -> NDArray[Any] | None:
        """What a kernel wrote into a record, an array of one ``RECORD``; None if none did."""
        return self._records.lanes[lane : lane + 1] if self._records.claimed(lane) else None

    def __del__(self) -> None:
        self._records.used = self.lane
        self._slots._returned.append(self._records)


@final
class FaultSlots:
    """Fault records in page-locked memory, those of 64 slots at a time.

    A slot is taken for each submission that launches a kernel and held until the device is past the submission,
    so submissions in flight never see each other's faults.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._returned: deque[FaultRecords] = deque()
        self._pages: list[int] = []

    def acquire(self) -> FaultSlot:
        """A slot whose records are all zero: no fault."""
        with self._lock:
            if not self._returned:
                page = self._driver.allocate_host(_SLOTS_BYTES)
                self._pages.append(page)
                memory = Block(page, _SLOTS_BYTES).memory.view(RECORD)
                memory.view(np.uint64)[:] = 0
                for first in range(0, len(memory), _LANES):
                    address = page + first * RECORD.itemsize
                    self._returned.append(FaultRecords(address, memory[first : first + _LANES]))
            records = self._returned.popleft()
        records.clean()
        return FaultSlot(self, records)

    def trim(self) -> None:
        """Gives the pages back if no slot is in use."""
        with self._lock:
            if len(self._returned) * _LANES * RECORD.itemsize == len(self._pages) * _SLOTS_BYTES:
                self._returned.clear()
                while self._pages:
                    self._driver.free_host(self._pages.pop())


@final
class FaultPage:
    """A record for each of ``PAGE_RECORDS`` launches of one graph in a row; back in the pool when dropped.

    The graph holds the page while it has records left, and each launch holds it until the device is past the launch.
    """

    __slots__ = ("_memory", "_pages", "address")

    def __init__(self, pages: FaultPages, memory: PageMemory) -> None:
        self._pages = pages
        self._memory = memory
        self.address = memory.address

    def claimed(self, number: int) -> bool:
        """Whether a kernel of a launch reported a fault."""
        return bool(self._memory.flags[number * _RECORD_WORDS])

    def record(self, number: int) -> NDArray[Any]:
        """What it reported, an array of one ``RECORD``."""
        return self._memory.records[number : number + 1]

    def __del__(self) -> None:
        self._pages._returned.append(self._memory)


@final
class PageMemory:
    """The memory of a page, as the driver gave it."""

    __slots__ = ("address", "flags", "records")

    def __init__(self, address: int) -> None:
        self.address = address
        self.records: NDArray[Any] = Block(address, PAGE_RECORDS * RECORD_BYTES).memory.view(RECORD)
        self.flags = self.records.view(np.uint32).data  # see FaultRecords.claimed


@final
class FaultPages:
    """The pages that nothing uses. Without a lock: whoever takes one off the list has it alone."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._returned: deque[PageMemory] = deque()

    def acquire(self) -> FaultPage:
        """A page whose records are all zero: no fault."""
        try:
            memory = self._returned.popleft()
        except IndexError:
            memory = PageMemory(self._driver.allocate_host(PAGE_RECORDS * RECORD_BYTES))
        memory.records.view(np.uint64)[:] = 0
        return FaultPage(self, memory)

    def trim(self) -> None:
        """Gives the pages back to the driver. Blocks until the device is idle."""
        while True:
            try:
                memory = self._returned.popleft()
            except IndexError:
                return
            try:
                self._driver.free_host(memory.address)
            except BaseException:
                self._returned.append(memory)
                raise
