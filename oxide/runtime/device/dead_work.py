"""Work of a cancelled await that nobody can see any more, and that the device need not do.

A run that was awaited and given up is *dead* once nothing refers to what it could show: its boxes, the arrays that it
downloads into, its outcome. All of these hold one token, the run's ``Visible``, so that the run is dead exactly when
the token is gone. The reclaimer looks at its sweeps, and sets ``dropped``: what the device has not begun it then
skips, all of it (``Driver.for_run``). Two things keep a run from ever being dropped:

- It wrote memory that is not its own: a box of the caller's, a graph's, another library's. Such a run is done as a
  whole, so that nobody finds a part of it.
- Work of another run used its memory: what that makes of it may be seen.

What is dropped is work and nothing else. Marks are passed, streams wait for each other and memory is freed in stream
order, as if the work had been done. A stream's own host functions, the program's, and sources of shared operations are
work of no such run.
"""

from __future__ import annotations

import weakref
from typing import final

from oxide.native import mypyc_attr


@final
class Run:
    """One execution that may be dropped: what the driver knows it by (``Droppable``)."""

    __slots__ = ("_visible", "dropped", "used_by_others")

    def __init__(self) -> None:
        self.dropped = False
        self.used_by_others = False  # or it uses what is not its own: it is never dropped
        self._visible: weakref.ref[Visible] | None = None

    def visible(self) -> Visible:
        """The token, for whatever the run makes that can be seen. To be asked for once."""
        token = Visible(self)
        self._visible = weakref.ref(token)
        return token

    def drop(self) -> bool:
        """Drops the run if it is dead. Whether the question is settled: it need not be asked again."""
        if self.used_by_others:
            return True
        if self._visible is None or self._visible() is not None:
            return False
        self.dropped = True
        return True


@final
@mypyc_attr(native_class=False)  # `Run` refers to it weakly
class Visible:
    """Held by all that a run could show."""

    __slots__ = ("__weakref__", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
