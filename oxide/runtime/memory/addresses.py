"""Device memory that is known by its address: raw memory, and memory that is shared with other libraries.

An address alone does not tell which allocation a copy to the address uses. So programs get raw memory as a
``DevicePointer``, which has the arithmetic of an address and refers to its allocation. Work on the memory is ordered,
and the memory is freed, as for a box.

All boxes on the same memory share one history of uses. Otherwise a box that is exported and imported again, or an array
that is imported twice, would be two allocations, and a kernel that writes through one box would race with a copy
through the other. So exported and imported memory, and that of a pointer which was converted to a number, is registered
in ``AddressRanges``. An import first looks there for an existing allocation of the memory.
"""

from __future__ import annotations

import operator
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, NoReturn, SupportsIndex, final

from oxide.host.locks import RUNTIME_LOCK
from oxide.host.messages import byte_count, written
from oxide.runtime.memory.allocation import Allocation, Known


@final
class DevicePointer:
    """An address in device memory that ``ctx.malloc_async`` allocated. It keeps the memory alive. The memory is freed
    when all pointers and boxes on it were dropped and the device is past its last use.

    ``pointer + 16`` points 16 bytes further, ``pointer - other`` is the distance in bytes, and ``int(pointer)`` is the
    address for other libraries, which must order their own work.
    """

    __slots__ = ("_allocation", "_known", "_offset", "device")

    def __init__(self, allocation: Allocation, offset: int = 0, known: Known | None = None) -> None:
        self._allocation = allocation
        self.device = allocation.device
        """The device whose memory the pointer points to."""
        self._offset = offset
        self._known = known

    @property
    def nbytes(self) -> int:
        """Returns the number of bytes from the pointer to the end of the allocation."""
        return self._allocation.nbytes - self._offset

    def __int__(self) -> int:
        """Returns the address, 0 for an allocation of no bytes."""
        allocation = self._allocation
        if allocation.nbytes and self._known is None:
            ranges = allocation.device.runtime.shared_ranges
            self._known = ranges.add(allocation, allocation.address, allocation.nbytes)
        return allocation.address + self._offset

    def __index__(self) -> int:
        return int(self)

    def __add__(self, distance: SupportsIndex) -> DevicePointer:
        """Returns the pointer ``distance`` bytes further. Raises ``ValueError`` if it would lie outside the allocation.
        The end of the allocation is allowed."""
        if isinstance(distance, (DevicePointer, bool)) or not hasattr(distance, "__index__"):
            raise TypeError(f"a DevicePointer plus {written(distance)}: a distance is a number of bytes, an int")
        offset = self._offset + operator.index(distance)
        if not 0 <= offset <= self._allocation.nbytes:
            raise ValueError(
                f"{self!r} plus {written(distance)} bytes lies outside its allocation of "
                f"{byte_count(self._allocation.nbytes)}"
            )
        return DevicePointer(self._allocation, offset, self._known)

    def __radd__(self, distance: SupportsIndex) -> DevicePointer:
        return self.__add__(distance)

    def __sub__(self, other: Any) -> Any:
        """Returns the distance in bytes from ``other``, a pointer into the same allocation. If ``other`` is an int,
        returns the pointer that many bytes before this one. Raises ``ValueError`` for a pointer into another
        allocation, and if the result would lie outside this allocation."""
        if isinstance(other, DevicePointer):
            if other._allocation is not self._allocation:
                raise ValueError(f"{self!r} and {other!r} point into different allocations, which have no distance")
            return self._offset - other._offset
        if isinstance(other, bool) or not hasattr(other, "__index__"):
            raise TypeError(f"a DevicePointer minus {written(other)}: it takes a pointer or a number of bytes, an int")
        return self.__add__(-operator.index(other))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DevicePointer) and other._allocation is self._allocation and other._offset == self._offset
        )

    def __hash__(self) -> int:
        return hash((id(self._allocation), self._offset))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DevicePointer cannot be pickled or copied by copy; copy its memory with ctx.memcpy_async")

    def __repr__(self) -> str:
        address = self._allocation.address + self._offset
        return f"<oxide.DevicePointer {address:#x}, {byte_count(self.nbytes)} to its end, on {self.device.label}>"


_FEW = 64


@final
class AddressRanges:
    """Finds, by address, the allocations that are shared with other libraries. An entry lives as long as its ``Known``
    is referenced. The ranges are disjoint and sorted."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._entries: list[tuple[int, int, Callable[[], Known | None]]] = []  # of each range: start, end, reference
        self._forget_above = _FEW

    def overlapping(self, address: int, nbytes: int) -> list[Known]:
        """Returns the allocations that overlap a range, in order of address."""
        with RUNTIME_LOCK:
            first, last = self._between(address, address + nbytes)
            if first == last:  # the common case
                return []
            found: list[Known] = []
            for _, _, reference in self._entries[first:last]:
                known = reference()
                if known is not None:
                    found.append(known)
            return found

    def add(self, allocation: Allocation, address: int, nbytes: int) -> Known:
        """Registers a range as ``allocation``'s for as long as the returned object is referenced. Merges the range with
        overlapping ranges of the same allocation."""
        start, end = address, address + nbytes
        with RUNTIME_LOCK:
            mine, named = allocation.known_to_others(), allocation.known
            if mine is None or named is None:
                mine = Known(allocation)
                named = allocation.known = weakref.ref(mine)
            first, last = self._between(start, end)
            if first != last:
                for begin, stop, reference in self._entries[first:last]:
                    known = reference()
                    if known is mine:
                        start, end = min(start, begin), max(end, stop)
                    elif known is not None:  # another thread exports the box too: the range is already registered
                        return mine
            # No call stands between the two assignments, as an interrupt could arrive in a call.
            self._starts[first:last] = [start]
            self._entries[first:last] = [(start, end, named)]
            if len(self._starts) > self._forget_above:
                entries = [entry for entry in self._entries if entry[2]() is not None]
                starts = [entry[0] for entry in entries]
                self._starts, self._entries = starts, entries
                self._forget_above = 2 * len(entries) + _FEW
            return mine

    def covers(self, known: Known, address: int, nbytes: int) -> bool:
        """Returns whether a range lies within one range of ``known``."""
        with RUNTIME_LOCK:
            first, last = self._between(address, address + nbytes)
            return any(
                reference() is known and begin <= address and address + nbytes <= end
                for begin, end, reference in self._entries[first:last]
            )

    def _between(self, start: int, end: int) -> tuple[int, int]:
        """Returns the first index and the end index of the entries that overlap [start, end)."""
        starts = self._starts
        first = bisect_right(starts, start)
        last = bisect_left(starts, end, first) if first < len(starts) and starts[first] < end else first
        if first and self._entries[first - 1][1] > start:
            first -= 1
        return first, last
