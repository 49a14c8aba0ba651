"""The CPU device's clock: the threads that run work note when they begin and end it.

The items that a thread submits between ``begin`` and ``end`` get a ``Times``. The thread that runs an item fills in its
``Times``, so the times are exact. An item that is not traced costs one test of an attribute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from oxide.driver.base import Span
from oxide.driver.cpu.streams import CpuStream, Recordable, Task, Times


@final
class _Measured(threading.local):
    """``times`` has the times of the items that the calling thread submits; it is None unless the thread is between
    ``begin`` and ``end``."""

    times: list[Times] | None = None


@final
class CpuClock:
    """The ``Clock`` of a ``CpuDriver``. ``ended`` is called when the clock is closed."""

    source = "workers"

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._measured = _Measured()

    def note(self, item: Recordable) -> Recordable:
        """Makes ``item`` note its times, if the calling thread is between ``begin`` and ``end``. Returns the item. A
        conditional of a graph is measured as a whole."""
        times = self._measured.times
        if times is not None and (not isinstance(item, Task) or item.measured):
            noted = item.times = Times()
            times.append(noted)
        return item

    def begin(self, stream: CpuStream) -> list[Times]:
        """Begins to measure the items that the calling thread submits."""
        times: list[Times] = []
        self._measured.times = times
        return times

    def end(self, token: list[Times], stream: CpuStream) -> None:
        """Ends the measurement that ``begin`` began."""
        self._measured.times = None

    def collect(self, *, final: bool) -> None:
        """Does nothing: the threads fill in the times themselves."""

    def spans(self, token: list[Times]) -> list[Span] | None:
        """Returns the times of the items; None if an item has not ended. A dropped item never ends."""
        for times in token:
            if not times.over or not times.begun:
                return None
        return [Span(times.begun, times.ended) for times in token]

    def forget(self, token: list[Times]) -> None:
        """Does nothing: a token holds nothing but a little memory."""

    def close(self) -> None:
        """Ends the measuring: the driver may open another clock."""
        self._ended()
