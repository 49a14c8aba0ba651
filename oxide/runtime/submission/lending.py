"""Runs on a stream of another library, in memory that the library lends.

Such a library orders its memory by its streams: a block that it gets back is reused by later work on the same stream.
So the memory that a run used on that stream is given back as soon as the run was submitted. This needs neither a mark
nor the reclaimer, which would take half of the time of a short call. Memory that is still referred to, or that was also
used on another stream, takes the usual way: the reclaimer gives it back after its last use.

Nothing waits for the end of such a run. So the kernels of all these runs report faults in one record, which outlives
the runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np

from oxide.driver.base import provided
from oxide.errors import GraphError
from oxide.host.core import context_for, run_through
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.submission.submission import Submission, give_up
from oxide.runtime.submission.walk import Submittable

if TYPE_CHECKING:
    from oxide.runtime.devices.fault_records import StandingReport
    from oxide.runtime.ordering.stream import Stream
    from oxide.runtime.ordering.timeline import Timeline

T = TypeVar("T")


@final
@dataclass(slots=True, eq=False)
class Lender:
    """Another library's memory for one run. ``allocate(shape, dtype)`` returns an address and the object that keeps the
    memory. ``report`` is the record for faults; None if the caller waits for the run's end. The run adds its loaded
    kernels to ``functions``, which keeps them loaded."""

    allocate: Callable[[tuple[int, ...], np.dtype[Any]], tuple[int, object]]
    report: StandingReport | None
    functions: dict[int, object]
    made: list[Allocation] = field(default_factory=list)  # the memory that operations of the run allocated
    _lent: list[Allocation] = field(default_factory=list)

    def allocation(self, timeline: Timeline, nbytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Allocation:
        """Allocates memory of the library."""
        address, owner = self.allocate(shape, dtype)
        allocation = self.lent(timeline, address, nbytes, shape, dtype, owner)
        self.made.append(allocation)
        return allocation

    def lent(
        self,
        timeline: Timeline,
        address: int,
        nbytes: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        owner: object,
    ) -> Allocation:
        """Returns memory of the library as an allocation, for a run on ``timeline``."""
        if self.report is None and nbytes:  # only on the CPU device, which checks the ranges of copies
            provided(timeline.driver.sharing, "sharing").adopt(address, nbytes)
        allocation = Allocation(timeline, nbytes, shape, dtype)
        allocation.adopted = True
        allocation.owners = ((address, nbytes, owner),)
        allocation.address = address
        self._lent.append(allocation)
        return allocation

    def give_back(self) -> None:
        """Ends the loan of all memory that nothing refers to any more and that no other stream has used. Call it when
        the run was submitted; if the caller waits for the run, only when the run is over. Before the call, drop the
        run's boxes and its operation."""
        self.made.clear()
        lent = self._lent
        for place in range(len(lent)):
            if _references(lent, place) <= _ALONE and not _used_elsewhere(lent[place]):
                _end(lent[place], waited_for=self.report is None)
        lent.clear()


def _references(things: list[Any], place: int) -> int:
    return getrefcount(things[place])


_ALONE: Final[int] = _references([object()], 0)
"""The number of references to an object that only a list refers to."""


def _end(allocation: Allocation, *, waited_for: bool) -> None:
    """Ends the loan of an allocation: it has no memory from now on, so dropping it frees none."""
    if waited_for and allocation.address:
        provided(allocation.device.driver.sharing, "sharing").disown(allocation.address, allocation.nbytes)
    allocation.address = 0
    allocation.owners = ()


def _used_elsewhere(allocation: Allocation) -> bool:
    """Returns whether the memory was also used on another stream."""
    home, reads = allocation.home, allocation.reads
    at_home = not reads or (len(reads) == 1 and home in reads)
    return not at_home or (allocation.written_by is not None and allocation.written_by is not home)


def submit_lent(operation: Submittable[T], stream: Stream, lender: Lender, captures: bool) -> T:
    """Submits ``operation`` to ``stream``, another library's, and returns its result, which may be in flight. With
    ``captures``, that library is recording the stream's work in a graph.

    Raises ``GraphError`` while the library captures work that must be waited for: an upload, or a graph's launch.
    """
    context = context_for(operation, stream, sweeps=not captures)
    context.lender = lender
    if captures:
        context.waitless = "another library's capture"
    try:
        result = run_through(operation, context)
        if context._joined:
            context.wait_for_joined()
        if context._declared:
            context.settle(context.timeline.advance())
        context._declared = None
        waits = bool(context._faults)
        for thing in context._kept:
            if hasattr(thing, "reports"):  # a loaded kernel
                lender.functions[id(thing)] = thing
            elif thing is not None:
                waits = True
        if waits:
            if captures:
                raise GraphError(
                    f"{operation!r} cannot be captured by another library: it uploads, launches a graph or uses memory "
                    f"that two libraries share, and such work must be kept until it has run"
                )
            stream._adopt(Submission(context, result, operation.title()))
    except BaseException as error:
        if not captures:
            give_up(context, operation, error)
        context.settle(context.timeline.advance())
        raise
    return result
