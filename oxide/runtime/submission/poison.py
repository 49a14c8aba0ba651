"""Poison for host arrays that are handed out before they are filled.

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
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oxide.driver import sanitizing
from oxide.runtime.memory.memory import Arc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.runtime.ordering.stream import Stream

_BYTES: Final = np.dtype(np.uint8)


def is_wanted() -> bool:
    return "oxide.testing" in sys.modules or bool(sanitizing.requested())


def poison(array: NDArray[Any]) -> None:
    array.reshape(-1).view(_BYTES).fill(255)


def is_stepped(driver: object) -> bool:
    return bool(getattr(driver, "stepped", False))


def handed_out(result: Any, arrays: list[NDArray[Any]], stream: Stream) -> Any:
    """Returns a result with poisoned arrays in place of ``arrays``, which the device fills. The next
    ``stream.synchronize()`` fills them. Looks into tuples and ``Arc`` objects: functions of the program, which might
    have made other objects of the arrays, have not seen them."""
    if isinstance(result, tuple):
        return tuple([handed_out(each, arrays, stream) for each in result])
    if isinstance(result, Arc):
        return Arc(handed_out(result.value, arrays, stream))
    if not any(result is array for array in arrays):
        return result
    poisoned = np.empty(result.shape, result.dtype)
    poison(poisoned)
    stream._when_synchronized(partial(np.copyto, poisoned, result))
    return poisoned
