"""The fault of threads that wait for one another for ever: turns its record into an error that names both places.

Only the CPU device detects this fault (``cpu/coroutines``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oxide.errors import BarrierError

if TYPE_CHECKING:
    from .faults import FaultSite

DIVERGENT = 2
"""The value of the fault record's ``claimed`` for this fault.

``site`` and ``index`` are the two places. ``length`` is 0 if threads wait at two barriers, 1 if a warp operation waits
for lanes that do not reach it, and 2 if threads of the grid have returned while others wait for them at ``site``.
"""


def divergence(entry: Any, kernel: str, sites: Sequence[FaultSite]) -> BarrierError:
    """Returns the error for a record with ``claimed == DIVERGENT``."""
    first, second = sites[int(entry["site"])], sites[int(entry["index"])]
    x, y, z = (int(number) for number in entry["block"])
    if entry["length"] == 0:
        problem = (
            f"some threads wait in {first.parameter} at {first.file}:{first.line} and others in {second.parameter} at "
            f"{second.file}:{second.line}; all threads that have not returned must come to the same barrier: move it "
            "out of the branch"
        )
    elif entry["length"] == 2:
        problem = (
            f"its threads wait in {first.parameter} at {first.file}:{first.line}, and others of the grid have "
            "returned; every thread of the grid must come to it: let those that have nothing to do go round the work, "
            "not return"
        )
    else:
        problem = (
            f"a thread waits in {first.parameter} at {first.file}:{first.line} for lanes of its warp that do not come: "
            f"others wait in {second.parameter} at {second.file}:{second.line}; every lane that the mask names must "
            "make the same call with the same mask"
        )
    return BarrierError(kernel, (x, y, z), ((first.file, first.line), (second.file, second.line)), problem)
