"""The part of the core's twin that is about memory: the order of its uses, page-locked memory, and the records in which
kernels report faults; and what both parts need. See ``_core_twin.py``."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from itertools import count, starmap
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final

__all__ = [
    "PAGE_RECORDS", "REPORT_RECORDS", "RUNTIME_LOCK", "Allocation", "DeviceBox", "Dropping", "FaultReport",
    "GraphFaultReport", "HostCopies", "Mark", "PinnedBlock", "PinnedBuffer", "PinnedPool", "Timeline", "call_soon",
    "copy_host", "download_pinned", "given", "new_box", "new_report", "note_dropped", "points", "refuse_inside",
    "setup", "upload_small",
]  # fmt: skip

given: Final[Any] = SimpleNamespace()
"""What ``setup`` has been given: classes and functions of the runtime, which this module cannot import."""
points: Final[Any] = SimpleNamespace(tracer=None)
RUNTIME_LOCK: Final[Any] = threading.RLock()

NOTHING: Final[Any] = None  # for fields that have other values later
EMPTY: Final[Any] = ()
_new: Final[Any] = object.__new__


def setup(**things: Any) -> None:
    """Gives this module classes and functions of the runtime, by name."""
    vars(given).update(things)


def refuse_inside() -> None:
    """Raises ``OrderingError`` if the calling thread holds one of the two locks, or is one of the driver's."""
    threads = given.driver_threads
    if RUNTIME_LOCK._is_owned() or given.driver_lock_is_owned() or (threads and threading.get_ident() in threads):
        raise given.held_error()


class General:
    """A base of the classes of whose methods the extension does the frequent case. Here the general method of a
    subclass, which is named first below, does all."""

    __slots__ = ()

    def __init_subclass__(cls: Any) -> None:
        for general, name in _GENERAL:
            if general in vars(cls):
                setattr(cls, name, vars(cls)[general])
        super().__init_subclass__()


_GENERAL: Final = (
    ("_call_slow", "__call__"),
    ("_execute_otherwise", "execute"),
    ("_execute_slowly", "execute"),
    ("_fill_slowly", "fill"),
)


class Dropping:
    """An object that calls ``_drop()`` when it is dropped. Without one it is dropped silently."""

    __slots__ = ("_drop",)

    def __del__(self) -> None:
        drop = getattr(self, "_drop", None)
        if drop is not None:
            drop()


def call_soon(function: Callable[[Any], object], argument: Any) -> None:
    """Calls the function: this module's finalisers are Python anyway."""
    function(argument)


def note_dropped(thing: Any, given: Any = given, sys: Any = sys) -> None:
    """Records an unused object and the line that has dropped it, and warns of it. At the interpreter's end the module's
    names may be gone."""
    if given.is_ended:
        given.complain(thing)
    else:
        frame = sys._getframe(1)
        given.unused.append((thing, frame, frame.f_lineno))
        given.report_unused()


class Timeline:
    """A stream's history."""

    __slots__ = (
        "_completed", "_in_flight", "_loaded", "_look_at", "_marks", "_named", "_queues", "_runtime", "advance",
        "device", "driver", "end", "handle", "seen",
    )  # fmt: skip

    def __new__(cls, *_: Any, **__: Any) -> Any:
        self = _new(cls)
        self.advance, self.seen, self.end = count(1).__next__, 0, None
        self._marks, self._look_at, self._named, self._loaded = [], 0, False, None
        return self

    def mark(self: Any) -> Any:
        """Returns a mark that covers everything submitted so far."""
        if self.end is not None:
            self.close()
        if len(self._marks) >= self._look_at:
            # A stream that serves as a branch has marks that no thread waits for. Without this they would all be kept.
            self.look_ahead()
            self._look_at = max(64, 4 * len(self._marks))
        with RUNTIME_LOCK:
            mark = given.Mark(self, self.advance())
            # strict ordering refuses a use that is not known to have ended, so the mark gets its event at once
            if self._named or self._runtime.ordering == "strict":
                self._record(mark)
            else:
                self.end = mark
            self._marks.append(mark)
        return mark

    def close(self) -> None:
        """Records an event for the stream's last mark, unless the mark has one or the device is known to be past the
        mark. Call it before work is submitted."""
        with RUNTIME_LOCK:
            end = self.end
            if end is not None:
                if end.position > self.seen and end.event is None:
                    self._record(end)
                self.end = None

    def _record(self: Any, mark: Any) -> None:
        event = self.device.take_event()
        try:
            self.driver.record_event(event, self.handle)
        except BaseException as error:
            self.device.spare_events.append(event)
            if isinstance(error, given.DeviceLostError):
                self.device.raise_lost(error)
            raise
        mark.event = event

    def note_passed(self: Any, position: int) -> None:
        """Records that the device is past ``position``."""
        with RUNTIME_LOCK:
            if position > self.seen:
                self.seen = position
            if self.end is not None and self.end.position <= self.seen:
                self.end = None
            marks = self._marks
            if marks and marks[0].position <= self.seen:
                passed = 1
                while passed < len(marks) and marks[passed].position <= self.seen:
                    passed += 1
                _dropped = marks[:passed]  # dropped after the lock is released, as each drop runs a finaliser
                del marks[:passed]

    def ask(self: Any, mark: Any) -> bool:
        """Queries the driver: returns whether the device is past ``mark``. Raises the error of the stream's work."""
        if self.device.lost is not None:
            self.device.raise_if_lost()
        event = mark.event
        try:
            passed: bool = self.driver.query_stream(self.handle) if event is None else self.driver.query_event(event)
        except given.DeviceLostError as error:
            self.device.raise_lost(error)
        if passed:
            self.note_passed(mark.position)
        return passed


class Mark:
    """A point in a timeline."""

    __slots__ = ("event", "position", "timeline")

    def __init__(self, timeline: Any, position: int) -> None:
        self.timeline, self.position, self.event = timeline, position, NOTHING

    def passed(self) -> bool:
        """Returns whether the device is past this point. Raises the error of the stream's work."""
        timeline = self.timeline
        if self.position <= timeline.seen:
            return True
        if not timeline.ask(self):
            return False
        if len(timeline._marks) > 8:
            timeline.look_ahead()
        return True

    def __del__(self) -> None:
        if getattr(self, "event", None) is not None:
            self.timeline.device.spare_events.append(self.event)


class Allocation:
    """A piece of device memory and its uses."""

    __slots__ = (
        "_written_at", "address", "adopted", "claims", "device", "dtype", "exported", "home", "known", "nbytes",
        "owners", "reads", "shape", "visible", "written_by",
    )  # fmt: skip

    def __new__(cls, *_: Any, **__: Any) -> Any:
        self = _new(cls)
        self.address = self._written_at = 0
        self.exported = self.adopted = False
        self.known = self.visible = self.written_by = None
        self.reads = {}
        return self

    def note_read(self: Any, timeline: Any, position: int) -> None:
        """Records a read."""
        self.reads[timeline] = position

    def note_write(self: Any, timeline: Any, position: int) -> None:
        """Records a write."""
        self.written_by, self._written_at = timeline, position
        if self.reads:
            self.reads.clear()

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            given.dropped.append(self)


class DeviceBox:
    """An array in device memory. ``_words`` are its parameter bytes as a slice of one axis, once made, and
    ``_shaped_words`` those as a slice of the box's axes."""

    __slots__ = (
        "_allocation", "_argument", "_dtype", "_known", "_nbytes", "_offset", "_ptr", "_shape", "_shaped_words",
        "_size", "_strides", "_words",
    )  # fmt: skip

    def __init__(self, allocation: Any, shape: Any, dtype: Any, offset: int = 0, strides: Any = None) -> None:
        size = 1
        for length in shape:
            size *= length
        self._allocation, self._dtype, self._offset, self._size = allocation, dtype, offset, size
        self._shape: tuple[int, ...] = shape
        self._strides: tuple[int, ...] | None = strides
        self._nbytes: int = size * dtype.itemsize
        self._ptr: int = allocation.address + offset if self._nbytes else 0
        self._argument = self._known = self._words = self._shaped_words = NOTHING

    shape: Any = property(attrgetter("_shape"), doc="The length of each axis.")
    dtype: Any = property(attrgetter("_dtype"), doc="The elements' type.")
    size: Any = property(attrgetter("_size"), doc="The number of elements.")
    nbytes: Any = property(attrgetter("_nbytes"), doc="The size in bytes.")
    ptr: Any = property(
        attrgetter("_ptr"),
        doc="The first element's address, 0 for an empty box. Work that is not submitted through oxide must be ordered "
        "by its submitter.",
    )
    device: Any = property(attrgetter("_allocation.device"), doc="The device whose memory the box is in.")


class HostCopies:
    """Counts the copies to host memory of a run."""

    __slots__ = ("_last", "arrays", "count", "recorded")

    def __init__(self) -> None:
        self.count = self.recorded = 0
        self._last: dict[Any, tuple[int, int]] = {}
        self.arrays: list[Any] = []

    def add(self, timeline: Any, position: int) -> None:
        """Counts a copy that was submitted to a stream, at or before ``position``."""
        self.count += 1
        self._last[timeline] = self.count, max(position, self._last.get(timeline, (0, 0))[1])


class PinnedBlock:
    """A piece of page-locked memory."""

    __slots__ = ("address", "exported", "memory", "nbytes", "page", "user")

    def __new__(cls, *_: Any, **__: Any) -> Any:
        self = _new(cls)
        self.user = 0
        return self


class PinnedPool:
    """Page-locked buffers."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        self = _new(cls)
        self._returned, self._free, self._lock, self._numbers = deque(), {}, threading.RLock(), count(1)
        return self

    def take(self, nbytes: int) -> Any:
        """Returns a free buffer, where the extension is; here Python does."""
        return None


class PinnedBuffer(General):
    """A buffer on a block of a pool, which it returns when it is dropped. ``fill`` copies an array of at most
    ``nbytes`` into it, in C order."""

    __slots__ = ("_block", "_number", "_pool", "address", "nbytes")

    def __init__(self, pool: Any, block: Any, nbytes: int) -> None:
        self._pool, self._block, self.address, self.nbytes = pool, block, block.address, nbytes
        self._number = block.user = next(pool._numbers)

    def __del__(self) -> None:
        if hasattr(self, "_number"):
            self._pool._returned.append((self._block, self._number))


PAGE_RECORDS: Final = 64


class GraphFaultReport:
    """The record of one launch of a graph."""

    __slots__ = ("_address", "_graph_place", "_kernels", "_page")

    def __init__(self, page: Any, number: int, kernels: Any, graph_place: Any) -> None:
        self._page, self._kernels, self._graph_place = page, kernels, graph_place
        self._address: int = page.address + number * given.record_bytes

    def claimed(self: Any) -> bool:
        """Returns whether a kernel reported a fault."""
        return bool(self._page.claimed((self._address - self._page.address) // given.record_bytes))


REPORT_RECORDS: Final = 8


class FaultReport:
    """Fault records of one submission."""

    __slots__ = ("_give_back", "_held", "_launches")

    @property
    def _records(self: Any) -> Any:
        return self._held[0]

    @property
    def is_full(self: Any) -> bool:
        """Returns whether every record has a launch."""
        return len(self._launches) == 2 * REPORT_RECORDS

    def next_word(self: Any, special: Any, place: Any) -> bytes:
        """Assigns the next record to a launch of ``special``. Returns the record's address as the last bytes of the
        kernel's parameters."""
        launches, records, nbytes = self._launches, self._records, given.record_bytes
        number = len(launches) >> 1
        if records.flags[number * (nbytes >> 2)]:  # an earlier launch claimed it; an unclaimed record is zero
            records.clear(number)
        launches.append(special)
        launches.append(place)
        address: int = records.address + number * nbytes
        return address.to_bytes(8, sys.byteorder)

    def claimed(self: Any) -> bool:
        """Returns whether a kernel reported a fault."""
        flags, words = self._records.flags, given.record_bytes >> 2
        for number in range(len(self._launches) >> 1):  # noqa: SIM110 (any() would make a generator for each submission)
            if flags[number * words]:
                return True
        return False

    def __del__(self: Any) -> None:
        held = getattr(self, "_held", None)
        if held:
            self._give_back(held)


_ONCE: Final = ((),)


def new_report(pool: Any) -> Any:
    """Returns a report with free records of the pool."""
    returned, report = pool._returned, given.FaultReport()
    held = report._held = []
    report._launches, report._give_back = [], returned.extend
    while not held:
        try:
            held.extend(starmap(returned.popleft, _ONCE))  # one call of C, in which no interrupt loses the records
        except IndexError:
            pool._make()
    return report


def new_box(context: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns an uninitialised box on the context's device. Raises ``OutOfMemoryError``, and ``GraphError`` in the
    capture of a graph that may own no memory."""
    return given.new_box(context, shape, dtype)


def copy_host(context: Any, box: Any, host: int, up: bool) -> None:
    """Submits one ordered copy between a box and page-locked memory at the address ``host``."""
    given.copy_host(context, box, host, up)


def download_pinned(context: Any, box: Any) -> Any:
    """Returns None: Python makes the array."""
    return None


def upload_small(context: Any, box: Any, array: Any) -> bool:
    """Copies a small array through a free page-locked buffer, where the extension is; here Python does."""
    return False
