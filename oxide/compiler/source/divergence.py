"""Turns the fault record of a deadlock into an error that names the places where threads wait.

Only the CPU device (``cpu/coroutines``) and the interpreter detect threads that wait for one another for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oxide.errors import BarrierError

if TYPE_CHECKING:
    from .faults import FaultSite

DIVERGENT = 2
"""The value of ``claimed`` in the fault record of a deadlock. ``length`` says how the threads wait.

- 0: some threads wait at the barrier ``site`` and others at the barrier ``index``.
- 1: a warp operation at ``site`` waits for lanes that do not reach it. ``index`` is a place where other lanes wait.
- 2: threads of the grid have returned while others wait for them at ``site``.
- 3 in the lowest byte: a thread waits at a ``tensor.Barrier``, and no other thread can continue. The next 28 bits of
  ``length`` are the number of the Barrier's phase. The upper 28 bits are the number of the phase that the thread waits
  for. The lower half of ``index`` counts the arrivals that the Barrier's phase still waits for, and the upper half
  counts the bytes of copies.
"""
_POLLING = 3


def divergence(entry: Any, kernel: str, sites: Sequence[FaultSite]) -> BarrierError:
    """Returns the error for a record with ``claimed == DIVERGENT``."""
    first = sites[int(entry["site"])]
    x, y, z = (int(number) for number in entry["block"])
    if int(entry["length"]) & 255 == _POLLING:
        return BarrierError(kernel, (x, y, z), ((first.file, first.line),), _polling(entry, first))
    second = sites[int(entry["index"])]
    if entry["length"] == 0:
        problem = (
            f"some threads wait in {first.parameter} at {first.place} and others in {second.parameter} at "
            f"{second.place}; all threads that have not returned must come to the same barrier: move it "
            "out of the branch"
        )
    elif entry["length"] == 2:
        problem = (
            f"its threads wait in {first.parameter} at {first.place}, and others of the grid have "
            "returned; every thread of the grid must come to it: let those that have nothing to do go round the work, "
            "not return"
        )
    else:
        problem = (
            f"a thread waits in {first.parameter} at {first.place} for lanes of its warp that do not come: "
            f"others wait in {second.parameter} at {second.place}; every lane that the mask names must "
            "make the same call with the same mask"
        )
    return BarrierError(kernel, (x, y, z), ((first.file, first.line), (second.file, second.line)), problem)


def _polling(entry: Any, place: FaultSite) -> str:
    """Returns the description of a wait at a ``tensor.Barrier`` that cannot end."""
    numbers, left = int(entry["length"]), int(entry["index"])
    phase, wanted = numbers >> 8 & (1 << 28) - 1, numbers >> 36
    wanted -= (wanted & 1 << 27) << 1
    arrivals, nbytes = (signed - ((signed & 1 << 31) << 1) for signed in (left & 0xFFFFFFFF, left >> 32 & 0xFFFFFFFF))
    x, y, z = (int(number) for number in entry["thread"])
    if place.parameter == "tensor.wgmma()":
        return (
            f"thread ({x}, {y}, {z}) waits in tensor.wgmma() at {place.place} for {arrivals} threads of "
            "its warpgroup that do not come; all 128 threads of a warpgroup must make the call together"
        )
    copies = f"and {nbytes} bytes of copies"
    if nbytes < 0:
        copies = f"and {-nbytes} bytes more have been copied than Barrier.expect has announced"
    passed = ""
    if phase > wanted + 1:
        passed = (
            "; a wait tells a phase only from the next: more threads have arrived, or called expect, than the "
            "number of arrivals that Barrier(count, arrivals) was made with"
        )
    return (
        f"thread ({x}, {y}, {z}) waits in {place.parameter} at {place.place} for phase {wanted} of a "
        f"Barrier, which cannot end: the Barrier is in phase {phase}, which still waits for {arrivals} arrivals "
        f"{copies}, and no thread of the block can go on{passed}"
    )
