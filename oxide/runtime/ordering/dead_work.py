"""Drops the remaining work of a cancelled await, if its results can no longer be observed.

A *run* is one execution of an operation. A run that was awaited and cancelled is *dead* once nothing refers to its
results: its boxes, the arrays that it downloads into, its outcome. All of these hold one token, the run's ``Visible``,
so the run is dead when the token is gone. The reclaimer checks for this when it sweeps, and sets ``dropped``. The
device then skips all work of the run that it has not begun (``Runs.for_run``). Two things exclude a run from being
dropped:

- The run wrote memory that it did not allocate: a box of the caller, of a graph or of another library, or a host array
  of the program. Such a run is executed as a whole, so that its effect is never partial.
- Work of another run used this run's memory, so the results may be observed through the other run.

Only launches, copies, fills and oxide's host functions are skipped. The device still passes marks, streams wait for
each other and memory is freed in stream order, as if the work had been done. The program's own host functions on a
stream, and the sources of shared operations, do not belong to a run that may be dropped.
"""

from __future__ import annotations

import weakref
from typing import final


@final
class Run:
    """One execution of an operation. The execution may be dropped: for the driver it is a ``Droppable``."""

    __slots__ = ("_visible", "dropped", "used_by_others")

    def __init__(self) -> None:
        self.dropped = False
        # True too if the run writes memory that it did not allocate. If it is True, the run is never dropped.
        self.used_by_others = False
        self._visible: weakref.ref[Visible] | None = None

    def visible(self) -> Visible:
        """Returns the run's token, which every observable result of the run must reference. Call it once."""
        token = Visible(self)
        self._visible = weakref.ref(token)
        return token

    def drop(self) -> bool:
        """Drops the run if it is dead. Returns False if the run may still become dead, so that the caller must check
        again."""
        if self.used_by_others:
            return True
        if self._visible is None or self._visible() is not None:
            return False
        self.dropped = True
        return True


@final
class Visible:
    """A run's token. Every object through which the program can observe the run's results holds the token."""

    __slots__ = ("__weakref__", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
