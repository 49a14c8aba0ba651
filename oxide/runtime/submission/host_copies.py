"""The host arrays that a run fills: its copies to host memory are counted, so that the run can wait for those that a
function of the program would see; and arrays that are handed out before they are filled are poisoned.

``async_on`` and ``graph.update`` yield host arrays at once, and the program reads them after ``stream.synchronize()``.
A program that reads too early is mostly right on a fast device, and gets another request's numbers on a busy one. So in
tests (once ``oxide.testing`` is imported) and under the sanitizer such an array is filled with poison, all bits of it
one: NaN as a float, -1 as a signed integer. The device fills another array, from which ``stream.synchronize()`` fills
the one that was handed out. A test that steps the device decides itself when the device fills an array, so there the
device fills the array itself. The arrays of a graph are poisoned until a launch fills them.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.driver import sanitizing
from oxide.host import core
from oxide.runtime.memory.memory import Arc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.runtime.ordering.stream import Stream
    from oxide.runtime.ordering.timeline import Mark, Timeline

_BYTES: Final = np.dtype(np.uint8)


@final
class HostCopies(core.HostCopies):
    """The copies to host memory that the contexts of one run have submitted, numbered from 1 in ``count``. The last
    copy on each stream stands for the stream's earlier ones: ``_last`` has its number and its position.

    A copy that is recorded and not yet submitted has a number, too: ``recorded`` is the last such number. ``arrays``
    are the arrays that ``handed_out`` replaces."""

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


def is_wanted() -> bool:
    return "oxide.testing" in sys.modules or bool(sanitizing.requested())


def poison(array: NDArray[Any]) -> None:
    array.reshape(-1).view(_BYTES).fill(255)


def is_stepped(driver: object) -> bool:
    return bool(getattr(driver, "stepped", False))


def handed_out(result: Any, copies: HostCopies, stream: Stream) -> Any:
    """Returns the result of a call that does not wait. If its arrays are to be poisoned, it has others in their place,
    which the next ``stream.synchronize()`` fills."""
    return _poisoned(result, copies.arrays, stream) if copies.arrays else result


def _poisoned(result: Any, arrays: list[NDArray[Any]], stream: Stream) -> Any:
    """Returns a result with poisoned arrays in place of ``arrays``, which the device fills. Looks into tuples and
    ``Arc`` objects: functions of the program, which might have made other objects of the arrays, have not seen them."""
    if isinstance(result, tuple):
        return tuple([_poisoned(each, arrays, stream) for each in result])
    if isinstance(result, Arc):
        return Arc(_poisoned(result.value, arrays, stream))
    if not any(result is array for array in arrays):
        return result
    poisoned = np.empty(result.shape, result.dtype)
    poison(poisoned)
    stream._when_synchronized(partial(np.copyto, poisoned, result))
    return poisoned


core.setup(HostCopies=HostCopies, handed_out=handed_out, poisons=is_wanted)
