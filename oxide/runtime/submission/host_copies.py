"""Counts the copies to host memory of a run, so that the run can wait for those that a function of the program would
see."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from oxide.host import core

if TYPE_CHECKING:
    from oxide.runtime.ordering.timeline import Mark, Timeline


@final
class HostCopies(core.HostCopies):
    """The copies to host memory that the contexts of one run have submitted, numbered from 1 in ``count``. The last
    copy on each stream stands for the stream's earlier ones: ``_last`` has its number and its position.

    A copy that is recorded and not yet submitted has a number, too: ``recorded`` is the last such number. ``arrays``
    are the arrays that ``poison.handed_out`` replaces."""

    __slots__ = ()

    def submitted(self, timeline: Timeline, position: int) -> None:
        """Notes that the recorded copies have been submitted, all before ``position`` of one stream."""
        if self.recorded:
            self.add(timeline, position)
            self.recorded = 0

    def take(self, other: HostCopies) -> None:
        """Counts the copies of another run, whose result this run uses."""
        for timeline, (_, position) in other._last.items():
            if not timeline.passed(position):
                self.add(timeline, position)

    def order(self, after: Timeline, count: int) -> None:
        """Makes a stream run after all submitted copies after number ``count``."""
        for timeline, (number, position) in self._last.items():
            if number > count:
                after.wait_for(timeline, position, "an array that another stream fills")

    def since(self, count: int) -> list[Mark]:
        """Returns the marks that the device must pass until all submitted copies after number ``count`` have arrived.
        Raises the errors of the streams."""
        marks = []
        for timeline, (number, position) in self._last.items():
            if number > count and not timeline.passed(position):
                mark = timeline.covering(position) or timeline.mark()
                if not mark.passed():
                    marks.append(mark)
        return marks


core.setup(HostCopies=HostCopies)
