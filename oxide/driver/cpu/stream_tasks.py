"""Makes the tasks of the CPU device's streams that copy memory, fill it, report kernel faults (``Graphs.report``), and
call host functions.

Every range is checked against the live allocations at the submission, except for the destination of a report, which is
known only when the task runs. So a wrong address or a use after free raises a ``DriverError`` at once, while on a GPU
it would cause a fault later.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, final

from oxide.driver.cpu.allocator import Heap, memset, out_of_range
from oxide.driver.cpu.errors import driver_error
from oxide.driver.cpu.streams import Task
from oxide.driver.sanitizing import Tracking
from oxide.host.locks import driver_threads

# Handing a copy of fewer bytes to another thread takes longer than the copy itself, about 1 microsecond.
BRIEF_BYTES = 32 * 1024


@final
class Copies:
    """Makes the tasks of one driver that copy, fill and report. ``heaps`` are its devices' heaps in order, ``host`` is
    the heap of page-locked memory.

    Each method raises ``DriverError`` for a range that does not lie in one live allocation.
    """

    def __init__(self, heaps: list[Heap], host: Heap) -> None:
        self._heaps = heaps
        self._host = host

    def to_device(self, device: int, destination: int, source: int, nbytes: int) -> Task:
        """Makes a task that copies from host memory to a device's memory."""
        self._heaps[device].check("the destination of a copy to the device,", destination, nbytes)
        self._host.check("the source of a copy to the device,", source, nbytes)
        return self._copy("copy to the device", destination, source, nbytes)

    def to_host(self, device: int, destination: int, source: int, nbytes: int) -> Task:
        """Makes a task that copies from a device's memory to host memory."""
        self._host.check("the destination of a copy to the host,", destination, nbytes)
        self._heaps[device].check("the source of a copy to the host,", source, nbytes)
        return self._copy("copy to the host", destination, source, nbytes)

    def on_device(self, destination: int, source: int, nbytes: int) -> Task:
        """Makes a task that copies between any two places in device memory."""
        for end, address in (("destination", destination), ("source", source)):
            if not any(heap.contains(address, nbytes) for heap in self._heaps):
                raise out_of_range(f"the {end} of a copy on the device,", address, nbytes, "this driver's devices")
        return self._copy("copy on the device", destination, source, nbytes)

    def between_devices(
        self, destination: int, destination_device: int, source: int, source_device: int, nbytes: int
    ) -> Task:
        """Makes a task that copies from one device's memory to another device's memory."""
        self._heaps[destination_device].check("the destination of a copy between devices,", destination, nbytes)
        self._heaps[source_device].check("the source of a copy between devices,", source, nbytes)
        return self._copy("copy between devices", destination, source, nbytes)

    def fill(self, device: int, address: int, pattern: bytes, count: int) -> Task:
        """Makes a task that writes ``pattern`` to a device's memory ``count`` times."""
        heap = self._heaps[device]
        pattern = bytes(pattern)
        if len(pattern) not in (1, 2, 4, 8, 16) or address % min(len(pattern), 8):
            raise driver_error(
                "CUDA_ERROR_INVALID_VALUE",
                f"a fill of {address:#x} with a pattern of {len(pattern)} bytes; "
                "a pattern has 1, 2, 4, 8 or 16, and the address is a multiple of that, or of 8",
            )
        nbytes = len(pattern) * count
        heap.check("a fill of", address, nbytes)

        def run() -> None:
            _fill(address, pattern, count)
            if Tracking.wanted:
                heap.wrote(address, nbytes, None)

        return Task(f"fill {nbytes} bytes", run, brief=nbytes <= BRIEF_BYTES)

    def report(self, device: int, record: int, cursor: int, nbytes: int) -> Task:
        """Makes a task that does ``Driver.report`` for addresses in a device's memory."""
        heap = self._heaps[device]
        if nbytes % 8 or record % 8 or cursor % 8:
            raise driver_error(
                "CUDA_ERROR_INVALID_VALUE",
                f"a report of {nbytes} bytes at {record:#x} by the cursor at {cursor:#x}; all are multiples of 8",
            )
        heap.check("the record of a report,", record, nbytes)
        heap.check("the cursor of a report,", cursor, 8)
        host = self._host

        def run() -> None:
            claimed = _report(record, cursor, nbytes, host)
            if Tracking.wanted:
                heap.wrote(cursor, 8, None)
                if claimed:
                    heap.wrote(record, nbytes, None)

        return Task(f"report {nbytes} bytes", run)

    def _copy(self, what: str, destination: int, source: int, nbytes: int) -> Task:
        def run() -> None:
            _copy(destination, source, nbytes)
            if Tracking.wanted:
                _note_copy(self._heaps, destination, source, nbytes)

        brief = nbytes <= min(BRIEF_BYTES, abs(destination - source))  # an overlapping copy must not run twice
        return Task(f"{what}, {nbytes} bytes", run, brief=brief)


def _copy(destination: int, source: int, nbytes: int) -> None:
    """Copies bytes; the ranges may overlap. Releases the GIL for more than ``BRIEF_BYTES``."""
    (_memmove_brief if nbytes <= BRIEF_BYTES else _memmove)(destination, source, nbytes)


def _fill(address: int, pattern: bytes, count: int) -> None:
    """Writes a pattern ``count`` times."""
    nbytes = len(pattern) * count
    if pattern == pattern[:1] * len(pattern):
        (_memset_brief if nbytes <= BRIEF_BYTES else memset)(address, pattern[0], nbytes)
        return
    # One tile, then copies of it: the tile stays in the cache, and a copy runs at memory speed.
    tile = min(nbytes, _TILE_BYTES)
    _memmove_brief(address, pattern * (tile // len(pattern)), tile)
    for offset in range(tile, nbytes, _TILE_BYTES):
        _memmove(address + offset, address, min(_TILE_BYTES, nbytes - offset))


def _report(record: int, cursor: int, nbytes: int, host: Heap) -> bool:
    """If the first word of a record is not 0, copies the record to the address in ``host`` that the cursor holds, and
    zeroes the record.

    Advances the cursor by ``nbytes`` in any case. Returns whether it copied the record.
    """
    there = ctypes.c_uint64.from_address(cursor)
    destination = there.value
    there.value = destination + nbytes
    if not ctypes.c_uint32.from_address(record).value:
        return False
    host.check("the destination of a report,", destination, nbytes)
    _copy(destination, record, nbytes)
    _fill(record, b"\0", nbytes)
    return True


def _note_copy(heaps: list[Heap], destination: int, source: int, nbytes: int) -> None:
    """Copies the sanitizer's flags with the bytes: a copied byte counts as written if its source byte does. A source
    without flags counts as written."""
    values: bytes | None = None
    for heap in heaps:
        found = heap.tracked(source, nbytes)
        if found is not None:
            values = bytes(found[1][source - found[0] : source - found[0] + nbytes])
    for heap in heaps:
        heap.wrote(destination, nbytes, values)


def python_call(function: Callable[[], None]) -> Task:
    """Returns a task that calls a Python function. Its exceptions go to ``sys.unraisablehook``, and the stream
    continues."""

    def call() -> None:
        this = threading.get_ident()
        ours = this in driver_threads
        driver_threads.discard(this)
        try:
            function()
        except BaseException as error:
            _report_unraisable(function, error)
        finally:
            if ours:
                driver_threads.add(this)

    return Task(f"host function {function!r}", call)


def native_call(function: int, argument: int) -> Task:
    """Returns a task that calls a C function by its address, without the GIL. Raises ``DriverError`` for address 0."""
    if not function:
        raise driver_error("CUDA_ERROR_INVALID_VALUE", "a native host function at address 0; pass its address")
    call = _HostFunction(function)
    return Task(f"native host function {function:#x}", lambda: call(argument))


def _report_unraisable(function: Callable[[], Any], error: BaseException) -> None:
    """Gives an exception, with its traceback, to ``sys.unraisablehook`` by letting it leave a C callback."""

    def raise_again() -> None:
        try:
            raise error
        except BaseException as again:
            again.add_note(f"raised by the host function {function!r}")
            raise

    ctypes.CFUNCTYPE(None)(raise_again)()


_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_TILE_BYTES = 256 * 1024

_libc = ctypes.CDLL(None)
# CFUNCTYPE releases the GIL around the call. PYFUNCTYPE keeps it, which is faster for calls shorter than a hand-over.
_move_type = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove = ctypes.CFUNCTYPE(*_move_type)(("memmove", _libc))
_memmove_brief = ctypes.PYFUNCTYPE(*_move_type)(("memmove", _libc))
_memset_brief = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)(("memset", _libc))
