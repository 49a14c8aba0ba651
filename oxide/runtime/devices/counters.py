"""The counters of a runtime, which ``statistics.py`` reads."""

from __future__ import annotations

from itertools import count
from typing import final


@final
class Counter:
    """A counter to which any thread and any finaliser may add without losing a count: ``add`` is one call of a C
    iterator, in 40 ns."""

    __slots__ = ("_count", "add")

    def __init__(self) -> None:
        self._count = count()
        self.add = self._count.__next__

    @property
    def value(self) -> int:
        """Returns the number of calls of ``add``."""
        # The iterator's ``repr`` is the only way to read it without advancing it.
        return int(repr(self._count)[len("count(") : -1])


@final
class Counters:
    """The counters of one runtime."""

    __slots__ = ("cancelled", "completed", "waits_avoided", "waits_inserted")

    def __init__(self) -> None:
        self.completed = Counter()
        self.cancelled = Counter()
        self.waits_inserted = Counter()
        self.waits_avoided = Counter()
