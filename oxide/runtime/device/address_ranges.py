"""The memory that oxide shares with other libraries, by address: so that two boxes on one memory are ordered as one.

A box that is exported and imported again, or an array that is imported twice, would otherwise be two allocations, each
with its own history, and a kernel that writes through the one would race with a copy through the other. So an import
looks here first, and its box uses the allocation that it finds.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import final

from oxide.native import mypyc_attr
from oxide.runtime.device.memory import Allocation

_FEW = 64


@final
@mypyc_attr(native_class=False)  # the ranges refer to it weakly
class Known:
    """An allocation that other libraries know. It is no ``Allocation`` itself: a class with weak references is made
    in Python, and three of those cost a batch of async_mlp a twentieth.

    It is held by the boxes that other libraries have been given or have given, by the boxes that are made of those, by
    the graphs that use them, and by runs in flight that use memory of another library's.
    """

    __slots__ = ("__weakref__", "allocation")

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation


@final
class AddressRanges:
    """Allocations that other libraries know, while somebody holds them. The ranges are disjoint, and sorted."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finaliser inside may use it
        self._starts: list[int] = []
        self._entries: list[tuple[int, int, Callable[[], Known | None]]] = []  # each with its end, and whose it is
        self._forget_above = _FEW

    def overlapping(self, address: int, nbytes: int) -> list[Known]:
        """The allocations that have bytes of a range, by address."""
        with self._lock:
            first, last = self._between(address, address + nbytes)
            if first == last:  # as nearly always
                return []
            found: list[Known] = []
            for _, _, reference in self._entries[first:last]:
                known = reference()
                if known is not None:
                    found.append(known)
            return found

    def add(self, allocation: Allocation, address: int, nbytes: int) -> Known:
        """Makes a range known as ``allocation``'s, together with those of its ranges that overlap it, for as long as
        what it returns is held."""
        start, end = address, address + nbytes
        with self._lock:
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
                    elif known is not None:  # as two exports of one box at once: it is known
                        return mine
            # Both lists are changed with no call in between, where an interrupt could come.
            self._starts[first:last] = [start]
            self._entries[first:last] = [(start, end, named)]
            if len(self._starts) > self._forget_above:
                entries = [entry for entry in self._entries if entry[2]() is not None]
                starts = [entry[0] for entry in entries]
                self._starts, self._entries = starts, entries
                self._forget_above = 2 * len(entries) + _FEW
            return mine

    def covers(self, known: Known, address: int, nbytes: int) -> bool:
        """Whether a range lies within one of ``known``'s."""
        with self._lock:
            first, last = self._between(address, address + nbytes)
            return any(
                reference() is known and begin <= address and address + nbytes <= end
                for begin, end, reference in self._entries[first:last]
            )

    def _between(self, start: int, end: int) -> tuple[int, int]:
        """The positions of the ranges that overlap [start, end)."""
        starts = self._starts
        first = bisect_right(starts, start)
        last = bisect_left(starts, end, first) if first < len(starts) and starts[first] < end else first
        if first and self._entries[first - 1][1] > start:
            first -= 1
        return first, last
