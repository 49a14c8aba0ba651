"""Fault records: kernels report faults in page-locked memory, which has one record for each launch in flight.

Launches by the host: a submission takes a ``FaultReport`` of eight records and passes the address of the next unused
record to each launch.

Launches by a graph: its kernels always report in one record in device memory. At the end of each launch of the graph,
the device copies this record, if a kernel has claimed it, to the next record of a *page* of page-locked memory, and
advances to the page's following record in any case (``Driver.report``). The host counts the launches of the graph, and
submits extra work only when a launch begins a new page.

Records are reused. A submission holds its reports until the device is past it, even if it was abandoned. So the device
never writes to a record that another submission has taken since, and a fault is never attributed to another launch.
Records are returned by finalisers, which only append them to a queue (``oxide/_core/finalisers.c``).

A fault is found when the run has completed, long after the launch, and only then are its notes written, which say where
in the operation the kernel was launched: its *place*. Until then a run keeps one tuple for each stage and part of the
operation that it passed, and the code objects of users' functions. It keeps no operation and no function. So an
operation is freed when it has been submitted, with everything that its functions close over. Otherwise a thousand
operations in flight would be fifty thousand objects for the garbage collector to traverse, and the next submission
would use memory that is not in the caches.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import starmap
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np

from oxide.compiler.source.faults import RECORD, read_fault
from oxide.driver.base import Driver
from oxide.errors import DeviceError, OxideError, place_name
from oxide.host import core
from oxide.host.core import PAGE_RECORDS, REPORT_RECORDS, Dropping, new_report
from oxide.host.locks import new_lock, unheld
from oxide.runtime.memory.pinned import PinnedBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.compiler.kernel.specialization import Specialization

    Report: TypeAlias = "FaultReport | GraphFaultReport | HostReport"

RECORD_BYTES: Final[int] = RECORD.itemsize
CURSOR_BYTES: Final = 8
"""The size of a graph's cursor, which is the address of the page's next record. The cursor is in device memory, behind
the graph's own record."""

_RECORD_WORDS: Final[int] = RECORD.itemsize // 4
_ONCE: Final = ((),)
_BLOCK_REPORTS = 64


@final
class FaultReport(core.FaultReport):
    """Fault records of one submission, for up to eight launches. Dropping the report frees its records.

    Each launch has a record of its own, so a claimed record tells which launch failed. The alternative, one record for
    all launches with the kernel's number in it, was slower: each launch had to search the launches before it.
    """

    __slots__ = ()

    def raise_fault(self) -> None:
        """Raises the first fault that a kernel recorded, if any. Do not call it before the device is past the
        submission."""
        for number in range(len(self._launches) >> 1):
            if self._records.flags[number * _RECORD_WORDS]:
                special, place = self._launches[2 * number : 2 * number + 2]
                _raise_recorded(self._records.records[number], special, (place,), None)


@final
class Records:
    """The memory of a report or a page, at ``address``. It is part of the driver's allocation at ``block``."""

    __slots__ = ("address", "block", "flags", "records")

    def __init__(self, block: int, address: int, records: NDArray[Any]) -> None:
        self.block = block
        self.address = address
        self.records = records
        self.flags = records.view(np.uint32).data

    def clear(self, number: int) -> None:
        """Zeroes a record. A record that no kernel has claimed is zero."""
        self.records[number : number + 1].view(np.uint64)[:] = 0


class RecordPool:
    """Free fault records, in pieces of ``records``. The driver allocates ``pieces`` of them at a time."""

    def __init__(self, driver: Driver, pieces: int, records: int) -> None:
        self._driver = driver
        self._pieces = pieces
        self._records = records
        self._lock = new_lock()
        self._returned: deque[Records] = deque()

    def _make(self) -> None:
        nbytes = self._pieces * self._records * RECORD_BYTES
        block = self._driver.allocate_host(nbytes)
        try:
            memory = PinnedBlock(block, nbytes).memory.view(RECORD)
            memory.view(np.uint64)[:] = 0
            self._returned.extend(
                [
                    Records(block, block + first * RECORD_BYTES, memory[first : first + self._records])
                    for first in range(0, len(memory), self._records)
                ]
            )
        except BaseException:
            if not any(records.block == block for records in self._returned.copy()):
                self._driver.free_host(block)
            raise

    def trim(self) -> None:
        """Returns memory to the driver: each allocation of which all pieces are unused. Blocks until the device is
        idle."""
        with unheld(self._lock):
            free: list[Records] = []
            gone: set[int] = set()
            try:
                while self._returned:
                    try:
                        free.extend(starmap(self._returned.popleft, _ONCE))
                    except IndexError:  # another thread took it
                        break
                for block, count in Counter([records.block for records in free]).items():
                    if count == self._pieces:
                        gone.add(block)  # before the call: an interrupt after it would put freed memory back
                        try:
                            self._driver.free_host(block)
                        except DeviceError:
                            gone.remove(block)
                            raise
            finally:
                self._returned.extend([records for records in free if records.block not in gone])


@final
class FaultRecordPool(RecordPool):
    """The free records for submissions."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, _BLOCK_REPORTS, REPORT_RECORDS)

    def acquire(self) -> FaultReport:
        """Returns a report with free records."""
        report: FaultReport = new_report(self)
        return report


@final
class GraphFaultReport(core.GraphFaultReport):
    """The record of one launch of a graph, at index ``number`` of a page. ``kernels`` holds the graph's kernels by
    ``kernel_id``, each with the places of its launches. ``graph_place`` is the place where the graph was launched."""

    __slots__ = ()

    def raise_fault(self) -> None:
        """Raises the fault that a kernel recorded, if any."""
        if self.claimed():
            record = self._page.record((self._address - self._page.address) // RECORD_BYTES)
            special, places = self._kernels[int(record["kernel_id"])]
            _raise_recorded(record, special, places, self._graph_place)


@final
class HostReport:
    """The outcome of work whose failure the host finds, such as a collective. Either a thread sets ``error`` before the
    device is past the work, or ``check`` is set: once the device is past the work, it is called and returns the error
    or None."""

    __slots__ = ("check", "error")

    def __init__(self) -> None:
        self.error: OxideError | None = None
        self.check: Callable[[], OxideError | None] | None = None

    def claimed(self) -> bool:
        """Returns whether the work failed."""
        check = self.check
        if self.error is None and check is not None:
            self.error = check()
        self.check = None  # only now: another thread may ask meanwhile, and an interrupt may end the check
        return self.error is not None

    def raise_fault(self) -> None:
        """Raises a copy of the error, if there is one. Each waiter gets its own copy, so that the notes added for a
        waiter stay its own."""
        if self.error is not None:
            raise copy(self.error)


@final
class StandingReport:
    """One record for all launches that no submission waits for. These launches may be on any streams, or in graphs of
    other libraries, which may be replayed at any time. The record is never returned to the pool. Of several faults it
    keeps the first."""

    __slots__ = ("_kernels", "_records", "_report", "_word")

    def __init__(self, pool: FaultRecordPool) -> None:
        self._report = pool.acquire()
        self._records = self._report._records
        if self._records.flags[0]:  # an earlier launch claimed it
            self._records.clear(0)
        self._word = self._records.address.to_bytes(8, sys.byteorder)
        self._kernels: dict[int, Specialization] = {}

    def word(self, special: Specialization) -> bytes:
        """Returns the record's address as the last bytes of the parameters of a launch of ``special``."""
        self._kernels[special.kernel_id] = special
        return self._word

    def claimed(self) -> bool:
        """Returns whether a kernel has reported a fault."""
        return bool(self._records.flags[0])

    def raise_fault(self) -> None:
        """Raises the fault that a kernel recorded, if any, and zeroes the record. Do not call it before the
        devices are past the launches."""
        record = self._records.records[0].copy()
        self._records.clear(0)
        if record["claimed"]:
            _raise_recorded(record, self._kernels[int(record["kernel_id"])], (None,), None)


def _raise_recorded(
    record: Any, special: Specialization, places: tuple[LaunchPlace | None, ...], graph_place: LaunchPlace | None
) -> None:
    """Raises the fault in a record, with notes that say where the kernel was launched. Returns if the record describes
    no fault."""
    fault = read_fault(record, special.kernel.name, special.sites)
    if fault is not None:
        site = int(record["site"])
        kernel = special.sites[site].kernel if site < len(special.sites) else ""  # set for a stage of a fused kernel
        found = [place_of_site(place, site) for place in places]
        for note in (*launch_notes(kernel or special.kernel.name, found), *place_notes(graph_place)):
            add_note_once(fault, note)
        try:
            raise fault
        finally:
            del fault  # breaks the cycle through the traceback, which would keep the record until the next collection


@final
class FaultPage(Dropping):
    """A record for each of ``PAGE_RECORDS`` successive launches of one graph, zero at first. Dropping the page returns
    it to the pool.

    The graph holds the page as long as the page has free records. Each launch holds the page until the device is past
    the launch.
    """

    __slots__ = ("_memory", "address")

    def __init__(self, pages: FaultPages) -> None:
        held: list[Records] = []
        self._drop = partial(pages._returned.extend, held)
        while not held:
            try:
                held.extend(starmap(pages._returned.popleft, _ONCE))  # one call of C, in which no interrupt loses it
            except IndexError:
                pages._make()
        self._memory = held[0]
        self._memory.records.view(np.uint64)[:] = 0
        self.address = self._memory.address

    def claimed(self, number: int) -> bool:
        """Returns whether a kernel of the page's launch ``number`` reported a fault."""
        return bool(self._memory.flags[number * _RECORD_WORDS])

    def record(self, number: int) -> Any:
        """Returns the record of the page's launch ``number``, a ``RECORD``."""
        return self._memory.records[number]


@final
class FaultPages(RecordPool):
    """The free pages for graphs."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, 1, PAGE_RECORDS)

    def acquire(self) -> FaultPage:
        """Returns a page whose records are all zero."""
        return FaultPage(self)


FUSED: Final = "fused"

LaunchPlace = tuple[str, object, int, Any]
"""The kind, detail and number of an operation's part, as ``part_note`` takes them, and the enclosing ``LaunchPlace`` or
None."""


def origin(function: Callable[..., Any]) -> object:
    """Returns the part of a user's function that notes need: its code object or its name."""
    if type(function) is FunctionType:
        code: CodeType = function.__code__
        if function.__qualname__ is code.co_qualname:
            return code
        return described(function)  # functools.wraps has given it another name
    if type(function) is MethodType:
        return origin(function.__func__)  # the method's function has the same qualified name
    return described(function)


def described(function: object) -> str:
    """Returns the name that messages give to a user's function, or to its ``origin``."""
    if type(function) is str:
        return function
    name: object = type(function).__name__
    code: object = None
    if isinstance(function, CodeType):
        name, code = function.co_qualname, function
    else:
        with suppress(Exception):  # attributes of a user's object may raise anything
            name = getattr(function, "__qualname__", name)
            code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return str(name)
    return f"{name} at {place_name(code.co_filename, code.co_firstlineno)}"


def part_note(what: str, detail: object, number: int) -> str:
    """Returns the note for a part of an operation. ``what`` is "zip", with the number of parts in ``detail``;
    "while_loop"; "cond", with the branch in ``detail``; "with_context"; or, for a stage of a chain, the stage's name,
    such as "and_then". For "with_context" and for stages, ``detail`` is the user's function or its ``origin``."""
    if what == "zip":
        return f"in part {number} of a zip of {detail}"
    if what == "while_loop":
        return "in the body of a while_loop"
    if what == "cond":
        return f"in {detail} of a cond"
    if what == "with_context":
        return f"in with_context({described(detail)})"
    return f"in stage {number} of a chain, {what}({described(detail)})"


def identity(place: LaunchPlace | None) -> object:
    """Returns a key that distinguishes places. Code objects of two files with the same text compare equal, so the key
    has the ids of the code objects."""
    if place is None:
        return None
    what, detail, number, outer = place
    if what == FUSED:
        stages: Any = detail
        return what, tuple([(first, identity(where)) for first, where in stages])
    return what, id(detail) if isinstance(detail, CodeType) else detail, number, identity(outer)


def fused_place(stages: Sequence[tuple[int, LaunchPlace | None]]) -> LaunchPlace:
    """Returns the place of a launch of a fused kernel. ``stages`` has a pair for each stage that was fused: the number
    of the stage's first fault site, and the stage's place."""
    return FUSED, tuple(stages), len(stages), None


def place_of_site(place: LaunchPlace | None, site: int) -> LaunchPlace | None:
    """Returns the place of the stage that a fault site belongs to, for a launch of a fused kernel. For other launches
    returns ``place`` itself."""
    if place is None or place[0] != FUSED:
        return place
    stages: Any = place[1]
    found: LaunchPlace | None = [where for first, where in stages if first <= site][-1]
    return found


def place_notes(place: LaunchPlace | None) -> list[str]:
    """Returns the notes of a place, innermost first, in the same form as for an error at submission."""
    notes = []
    while place is not None:
        what, detail, number, place = place
        notes.append(part_note(what, detail, number))
    return notes


def launch_notes(kernel: str, places: Iterable[LaunchPlace | None]) -> list[str]:
    """Returns the notes for a kernel that was launched at one of ``places``. Only a kernel in a graph has several
    places. Returns no notes if the launch was the whole operation: the fault's message names the kernel already."""
    launched = f"in <oxide launch of {kernel}>"
    found = list(dict.fromkeys(tuple(place_notes(place)) for place in places))
    if found == [()]:
        return []
    if len(found) == 1:
        return [launched, *found[0]]
    ways = [", ".join(notes) or "outside of any chain" for notes in found[:_MOST]]
    more = f"; or in one of {len(found) - _MOST} more places" if len(found) > _MOST else ""
    return [launched, "in one of its launches: " + "; or ".join(ways) + more]


def add_note_once(error: BaseException, note: str) -> None:
    """Adds a note to an error, unless the error has this note already. A shared error reaches several callers, and an
    error that is raised again passes the same place twice."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


_MOST = 8  # the number of places that a note names


core.setup(FaultPage=FaultPage, FaultReport=FaultReport, GraphFaultReport=GraphFaultReport, record_bytes=RECORD_BYTES)
