"""Where kernels report faults: records in page-locked memory, one for each launch in flight.

What the host launches itself, it tells where to report: a submission takes records eight at a time, a ``FaultReport``,
and hands the next one's address to each launch. A graph's kernels always report at one address, in device memory; at
the end of each launch the device itself carries the record on, if it was claimed, to the next record of a *page*, and
moves on by one in any case (``Driver.report``). So the host counts along, and submits nothing for it but once a page.

Records are used again. Who holds them is a submission, by its reports, until the device is past it, finished or
abandoned; so what the device may still write belongs to nobody else, and no fault is ever shown to another. They come
back in finalisers, which append and do nothing else (``oxide.dropping``).
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np

from oxide.compiler.source.faults import RECORD
from oxide.driver.base import Driver
from oxide.dropping import calls_drop
from oxide.errors import DeviceError
from oxide.runtime.device.places import add_note_once, launch_notes, place_notes
from oxide.runtime.host_memory.pinned import Block
from oxide.runtime.locks import new_lock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.compiler.specialization import Specialization
    from oxide.runtime.device.places import Place

    Report: TypeAlias = "FaultReport | GraphFaultReport"

PAGE_RECORDS: Final = 64
"""Launches of a graph that a page serves."""

RECORD_BYTES: Final[int] = RECORD.itemsize
CURSOR_BYTES: Final = 8
"""Where the next fault goes, kept in device memory behind a graph's record."""

REPORT_RECORDS: Final = 8
"""Launches that a report of a submission's serves."""

_RECORD_WORDS: Final[int] = RECORD.itemsize // 4
_ONCE: Final = ((),)
_NO_CLAIMS: Final = bytes(4 * REPORT_RECORDS)
_BLOCK_REPORTS = 64
_BLOCK_BYTES = _BLOCK_REPORTS * REPORT_RECORDS * RECORD.itemsize


@final
class FaultReport:
    """Where the launches of one submission report faults, up to eight of them; its records are free when it is dropped.

    Each launch has a record of its own, which so says where in the operation the launch was. What was tried before, one
    record for all launches that the kernel's number tells apart, took longer: to look through them at each launch.
    """

    __slots__ = ("_drop", "_records", "launches", "places")

    def __init__(self, pool: FaultRecordPool) -> None:
        held: list[ReportRecords] = []
        self._drop: Any = partial(pool.give_back, held)
        _take_one(held, pool._returned, pool._make)
        self._records = held[0]
        self.launches: list[Specialization] = []
        self.places: list[Place | None] = []  # where in the operation each was launched

    def next_word(self, special: Specialization, place: Place | None) -> bytes:
        """Where a launch of ``special``, which is the next one, reports: the address, as its parameters end with it."""
        launches = self.launches
        word = self._records.word(len(launches))
        self.places.append(place)
        launches.append(special)
        return word

    def claimed(self) -> bool:
        """Whether a kernel reported a fault. Asked at every completion: a memoryview answers ten times faster than a
        field of a NumPy record."""
        flags = self._records.flags
        for number in range(len(self.launches)):  # noqa: SIM110 (any() would make a generator for each submission)
            if flags[number * _RECORD_WORDS]:
                return True
        return False

    def raise_fault(self) -> None:
        """Raises the fault that a kernel recorded, if one did, the first of several. Only once the device is past the
        submission."""
        for number, special in enumerate(self.launches):
            if self._records.flags[number * _RECORD_WORDS]:
                _raise_recorded(self._records.records[number], special, (self.places[number],), None)

    def __del__(self) -> None:
        self._drop()


@final
class ReportRecords:
    """The memory of a report."""

    __slots__ = ("block", "flags", "records", "words")

    def __init__(self, block: int, address: int, records: NDArray[Any]) -> None:
        self.block = block  # the address of what the driver gave
        self.records = records
        self.words = [address.to_bytes(8, sys.byteorder)]  # as many as were asked for so far: most runs launch once
        self.flags = records.view(np.uint32).data

    def word(self, number: int) -> bytes:
        """The address of a record, as a kernel's parameters end with it; numbers are asked for in order."""
        if number == len(self.words):
            address = int.from_bytes(self.words[0], sys.byteorder) + number * RECORD_BYTES
            self.words.append(address.to_bytes(8, sys.byteorder))
        return self.words[number]

    def clean(self) -> None:
        """Makes all records zero: no fault. What no kernel claimed, none has written."""
        if self.flags[::_RECORD_WORDS].tobytes() != _NO_CLAIMS:
            self.records.view(np.uint64)[:] = 0


@final
class FaultRecordPool:
    """The records that no submission uses, made 64 reports at a time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = new_lock()
        self._returned: deque[ReportRecords] = deque()
        self.give_back: Callable[[list[ReportRecords]], object] = self._returned.extend  # for finalisers: a step of C

    def acquire(self) -> FaultReport:
        """A report whose records are all zero: no fault."""
        report = FaultReport(self)
        report._records.clean()
        return report

    def _make(self) -> None:
        block = self._driver.allocate_host(_BLOCK_BYTES)
        try:
            memory = Block(block, _BLOCK_BYTES).memory.view(RECORD)
            memory.view(np.uint64)[:] = 0
            self._returned.extend(
                [
                    ReportRecords(block, block + first * RECORD_BYTES, memory[first : first + REPORT_RECORDS])
                    for first in range(0, len(memory), REPORT_RECORDS)
                ]
            )
        except BaseException:
            if not any(records.block == block for records in self._returned.copy()):
                self._driver.free_host(block)
            raise

    def trim(self) -> None:
        """Gives back the memory of which no report is in use."""
        with self._lock:
            free: list[ReportRecords] = []
            gone: set[int] = set()
            try:
                while self._returned:
                    try:
                        free.extend(starmap(self._returned.popleft, _ONCE))
                    except IndexError:  # another thread took it
                        break
                for block, count in Counter([records.block for records in free]).items():
                    if count == _BLOCK_REPORTS:
                        gone.add(block)  # before: an interrupt behind the driver's call would leave what was freed
                        try:
                            self._driver.free_host(block)
                        except DeviceError:
                            gone.remove(block)
                            raise
            finally:
                self._returned.extend([records for records in free if records.block not in gone])


@final
class GraphFaultReport:
    """The record of a page that one launch of a graph has, and the graph's ``kernels`` by their numbers. They ran where
    the graph was launched, at ``graph_place``."""

    __slots__ = ("_graph_place", "_kernels", "_number", "_page")

    def __init__(
        self,
        page: FaultPage,
        number: int,
        kernels: dict[int, tuple[Specialization, tuple[Place | None, ...]]],
        graph_place: Place | None,
    ) -> None:
        self._page = page
        self._number = number
        self._kernels = kernels
        self._graph_place = graph_place

    def claimed(self) -> bool:
        """As of a ``FaultReport``."""
        return self._page.claimed(self._number)

    def raise_fault(self) -> None:
        """As of a ``FaultReport``."""
        if self.claimed():
            record = self._page.record(self._number)
            special, places = self._kernels[int(record["kernel_id"])]
            _raise_recorded(record, special, places, self._graph_place)


def _raise_recorded(
    record: Any, special: Specialization, places: tuple[Place | None, ...], graph_place: Place | None
) -> None:
    """Raises the fault that a kernel left in a record, with notes of where it was launched, if there is still one to
    tell."""
    from oxide.compiler.source.faults import read_fault

    fault = read_fault(record, special.kernel.name, special.sites)
    if fault is not None:
        for note in (*launch_notes(special.kernel.name, places), *place_notes(graph_place)):
            add_note_once(fault, note)
        try:
            raise fault
        finally:
            del fault  # or by its traceback it would hold itself, and its record, until the next collection


@final
class FaultPage:
    """A record for each of ``PAGE_RECORDS`` launches of one graph in a row; back in the pool when dropped.

    The graph holds the page while it has records left, and each launch holds it until the device is past the launch.
    """

    __slots__ = ("_drop", "_memory", "address")

    def __init__(self, pages: FaultPages) -> None:
        held: list[PageMemory] = []
        self._drop: Any = partial(pages._returned.extend, held)
        _take_one(held, pages._returned, pages._make)
        self._memory = held[0]
        self.address = self._memory.address

    def claimed(self, number: int) -> bool:
        """Whether a kernel of a launch reported a fault."""
        return bool(self._memory.flags[number * _RECORD_WORDS])

    def record(self, number: int) -> Any:
        """What it reported, a ``RECORD``."""
        return self._memory.records[number]

    def __del__(self) -> None:
        self._drop()


@final
class PageMemory:
    """The memory of a page, as the driver gave it."""

    __slots__ = ("address", "flags", "records")

    def __init__(self, address: int) -> None:
        self.address = address
        self.records: NDArray[Any] = Block(address, PAGE_RECORDS * RECORD_BYTES).memory.view(RECORD)
        self.flags = self.records.view(np.uint32).data  # see FaultReport.claimed


@final
class FaultPages:
    """The pages that nothing uses. Without a lock: whoever takes one off the list has it alone."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._returned: deque[PageMemory] = deque()

    def acquire(self) -> FaultPage:
        """A page whose records are all zero: no fault."""
        page = FaultPage(self)
        page._memory.records.view(np.uint64)[:] = 0
        return page

    def _make(self) -> None:
        address = self._driver.allocate_host(PAGE_RECORDS * RECORD_BYTES)
        try:
            self._returned.append(PageMemory(address))
        except BaseException:
            if not any(memory.address == address for memory in self._returned.copy()):
                self._driver.free_host(address)
            raise

    def trim(self) -> None:
        """Gives the pages back to the driver. Blocks until the device is idle."""
        while self._returned:
            held: list[PageMemory] = []
            try:
                held.extend(starmap(self._returned.popleft, _ONCE))
                address = held[0].address
                held.clear()  # before: an interrupt behind the driver's call would leave what was freed
            except IndexError:  # another thread took it
                return
            finally:
                self._returned.extend(held)
            try:
                self._driver.free_host(address)
            except DeviceError:
                self._returned.append(PageMemory(address))
                raise


def _take_one(held: list[Any], unused: deque[Any], make: Callable[[], None]) -> None:
    """Takes one of what a pool has off for a list, in one step of C. A finaliser that gives the list back has it from
    then on."""
    while not held:
        try:
            held.extend(starmap(unused.popleft, _ONCE))
        except IndexError:
            make()


calls_drop(FaultReport, FaultPage)
