"""Dropping the work of a cancelled await whose results can no longer be observed.

A run that was awaited and cancelled is *dead* once nothing refers to its results: its boxes, the arrays that it
downloads into, its outcome. All of these hold one token, the run's ``Visible``, so the run is dead when the token is
gone. The reclaimer checks for this when it sweeps, and sets ``dropped``. The device then skips all work of the run that
it has not begun (``Driver.for_run``). Two things exclude a run from being dropped:

- It wrote memory that it did not allocate: a box of the caller, of a graph or of another library. Such a run is
  executed as a whole, so that its effect is never partial.
- Work of another run used its memory, so its results may be observed through that run.

Only work is dropped. Marks are passed, streams wait for each other and memory is freed in stream order, as if the work
had been done. Host functions of the program on a stream, and sources of shared operations, do not belong to such a run.
"""

from __future__ import annotations

import weakref
from typing import final

from oxide.native import mypyc_attr


@final
class Run:
    """One execution that may be dropped. The driver knows it as a ``Droppable``."""

    __slots__ = ("_visible", "dropped", "used_by_others")

    def __init__(self) -> None:
        self.dropped = False
        # True too if the run uses memory that it did not allocate. Such a run is never dropped.
        self.used_by_others = False
        self._visible: weakref.ref[Visible] | None = None

    def visible(self) -> Visible:
        """Returns the run's token, which every observable result of the run must reference. Call it once."""
        token = Visible(self)
        self._visible = weakref.ref(token)
        return token

    def drop(self) -> bool:
        """Drops the run if it is dead. Returns True if no further check is needed."""
        if self.used_by_others:
            return True
        if self._visible is None or self._visible() is not None:
            return False
        self.dropped = True
        return True


@final
@mypyc_attr(native_class=False)  # `Run` refers to it weakly
class Visible:
    """A run's token. Every object through which the program can observe the run's results holds it."""

    __slots__ = ("__weakref__", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
