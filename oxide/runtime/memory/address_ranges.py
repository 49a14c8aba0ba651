"""Address ranges of memory shared with other libraries. Through them all boxes on the same memory share one history.

Without them, a box that is exported and imported again, or an array that is imported twice, would be two allocations,
each with its own history of uses. A kernel that writes through one box would race with a copy through the other. So an
import first looks here for an existing allocation of the memory, and the new box uses that allocation.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import final

from oxide.host.locks import RUNTIME_LOCK
from oxide.runtime.memory.allocation import Allocation, Known

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
