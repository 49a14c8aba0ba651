"""The part of the core's twin that is near the device: memory, the order of its uses, the records in which kernels
report faults, and what native code calls or is called by, through ctypes. See ``_core_twin.py``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from itertools import count, starmap
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final

__all__ = [
    "DROP_CAPSULE", "HEADER_BYTES", "MOVE", "NOTIFY", "PAGE_RECORDS", "RELEASE", "REPORT_RECORDS", "ROW_BYTES",
    "RUNTIME_LOCK", "SHARE_COPY", "Allocation", "Calls", "DeviceBox", "Dropping", "FaultReport", "Function",
    "GraphFaultReport", "Handle", "HostCopies", "Mark", "PinnedBlock", "PinnedBuffer", "PinnedPool", "Timeline",
    "alarm", "call_soon", "copy", "copy_host", "download_pinned", "given", "launch", "new_box", "new_report",
    "note_dropped", "points", "refuse_inside", "released", "setup", "start_helpers", "upload_small", "watch_kernel",
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


_POINTER: Final = ctypes.c_void_p
_kept: Final[list[Any]] = []  # never freed: they may be called at any time


def _address_of(function: Callable[[int], None], kind: Callable[..., Any] = ctypes.CFUNCTYPE) -> int:
    """Returns the address of a native function that calls ``function`` with its argument, an address."""
    native = kind(None, ctypes.c_void_p)(function)
    _kept.append(native)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))  # it outlives this module
    return ctypes.cast(native, ctypes.c_void_p).value or 0


def alarm(descriptor: int) -> int:
    """Returns the argument for ``NOTIFY`` with which it makes a file descriptor readable."""
    record = ctypes.c_int(descriptor)
    _kept.append(record)
    return ctypes.addressof(record)


_ONE: Final = (1).to_bytes(8, sys.byteorder)


def _notify(record: int) -> None:
    with contextlib.suppress(BlockingIOError):  # it is readable already
        os.write(ctypes.c_int.from_address(record).value, _ONE)


NOTIFY: Final = _address_of(_notify)


class _Row(ctypes.Structure):
    _fields_ = (
        ("destination", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("length", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
    )


ROW_BYTES: Final = ctypes.sizeof(_Row)


def copy(row: int) -> None:
    """Makes the copy of the row at an address. Releases the GIL meanwhile."""
    asked = _Row.from_address(row)
    ctypes.memmove(asked.destination, asked.source, asked.length)


MOVE: Final = _address_of(copy)
SHARE_COPY: Final = 0  # no threads help with copies, and no signal handler can tell a kernel
start_helpers = watch_kernel = None
HEADER_BYTES: Final = 32
_last: Final = [0]  # the address of the DLPack tensor that a consumer released last


# Another library may call it when this module's names are gone.
def _release(tensor: int, last: list[int] = _last, number: type[ctypes.c_int64] = ctypes.c_int64) -> None:
    link = number.from_address(tensor - 8)
    if link.value == -1:  # alive
        link.value = last[0]  # callers hold the GIL, so nothing comes between this line and the next
        last[0] = tensor


def _drop_capsule(capsule: int) -> None:
    name = _get_name(capsule)
    tensor = _get_pointer(capsule, name)
    if name == tensor - HEADER_BYTES:
        _release(tensor)


def released() -> int:
    """Returns the address of the tensor that was released last, 0 for none."""
    return _last[0]


_get_name = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("PyCapsule_GetName", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
RELEASE: Final = _address_of(_release)
DROP_CAPSULE: Final = _address_of(_drop_capsule, ctypes.PYFUNCTYPE)


# Calls of a driver's functions by address

_OF_ONE: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)
_OF_TWO: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER)
_OF_LAUNCH: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, *[ctypes.c_uint] * 7, _POINTER, _POINTER, _POINTER)
_EXTRA: Final = _POINTER * 5  # "here is the buffer", its address, "here is its size", that size's address, the end
_functions: Final[dict[int, Any]] = {}


def _function(kind: Any, entry: int) -> Any:
    found = _functions.get(entry)
    if found is None:
        if not entry:
            raise ValueError("entry is no address of a function")
        found = _functions[entry] = kind(entry)
    return found


def _checked(numbers: tuple[int, ...], bits: int) -> None:
    """Raises ``OverflowError`` for a number that C would cut off, ``TypeError`` for what is none."""
    for number in numbers:
        if number >> bits:
            raise OverflowError(f"{number} is beyond {bits} bits")


def launch(entry: int, function: int, grid: Any, block: Any, shared_bytes: int, params: bytes, stream: int) -> int:
    """Calls the cuLaunchKernel at address ``entry`` with the packed bytes ``params``, and returns its error code."""
    if not (type(params) is bytes and type(grid) is type(block) is tuple and len(grid) == len(block) == 3):
        raise TypeError("grid and block are tuples of three ints, and params are bytes")
    _checked((*grid, *block, shared_bytes), 32)
    _checked((function, stream), 64)
    buffer, size = ctypes.create_string_buffer(params, len(params)), ctypes.c_size_t(len(params))
    extra = _EXTRA(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    code: int = _function(_OF_LAUNCH, entry)(function, *grid, *block, shared_bytes, stream, None, extra)
    return code


class Handle:
    """A handle of a driver whose functions are called by address."""

    __slots__ = ("address",)


class Function:
    """A loaded kernel of such a driver. ``plain`` is True if a launch takes nothing but its parameters."""

    __slots__ = ("address", "parameter_bytes", "plain", "reports", "shared_limit")


def _call(entry: int, first: Any, second: Any = None) -> int:
    """Calls the driver's function at address ``entry`` with one or two handles, and returns its error code."""
    if second is None:
        return int(_function(_OF_ONE, entry)(first.address))
    return int(_function(_OF_TWO, entry)(first.address, second.address))


_NOT_READY: Final = 600  # CUDA_ERROR_NOT_READY


class Calls:
    """Such a driver: the addresses of its functions, and the methods that call them."""

    def query_stream(self: Any, stream: Any) -> bool:
        """Returns whether the device is past the stream's work. Raises the error of failed work."""
        return not self._called("cuStreamQuery", _call(self._stream_query, stream), _NOT_READY)

    def query_event(self: Any, event: Any) -> bool:
        """Returns whether the device is past the event. Raises the error of failed work."""
        return not self._called("cuEventQuery", _call(self._event_query, event), _NOT_READY)

    def record_event(self: Any, event: Any, stream: Any) -> None:
        """Records the event at the end of the stream's work."""
        self._called("cuEventRecord", _call(self._event_record, event, stream))

    def synchronize_event(self: Any, event: Any) -> None:
        """Blocks the thread until the device is past the event."""
        self._called("cuEventSynchronize", _call(self._event_synchronize, event))

    def launch_graph(self: Any, graph: Any, stream: Any) -> None:
        """Submits a launch of the graph."""
        self._called("cuGraphLaunch", _call(self._launch_graph, graph, stream))

    def _called(self: Any, name: str, code: int, may_be: int = 0) -> int:
        if code not in (0, may_be):
            raise self.call_failure(code, name)
        return code
