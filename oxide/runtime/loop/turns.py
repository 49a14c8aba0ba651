"""Limits the share of an event loop's time that the runtime's submissions take before other tasks run.

A loop runs every ready task before it looks at timers and sockets. So a thousand tasks that submit at once are one long
*turn* of the loop, in which no timer fires and no socket is read. This file adds up the time of the submissions in a
turn. When they have used their share, further tasks queue for one of the loop's next turns (``Reactor.next_turn``).

The end of a turn is detected at no cost. A task that the loop resumes was scheduled in an earlier turn. If the turn's
number is still the number that the task read before it let other tasks run, the task starts a new turn. Each loop has a
thread for itself, so each thread has its own ``Turn``.
"""

from __future__ import annotations

import time
from typing import Final, final

from oxide.host import core
from oxide.host.core import current_turn

__all__ = ["SHARE_SECONDS", "Turn", "current_turn"]

SHARE_SECONDS: Final = 2e-3
"""The time for submissions in one turn. Sweeping, and waking tasks, may each take about as long in addition."""

_MOST: Final = 128  # the most tasks admitted in one turn: each costs about 10 µs under trio, whatever it then does


@final
class Turn(core.Turn):
    """The current turn of a thread's loop. ``spent`` is the time that submissions took in it, in seconds. ``gives_up``
    is True while a future submits, which must neither wait for other threads (``once``) nor compile (``loading``).
    ``defers`` is True while a launch is built whose kernel may be compiled later (``loading``), ``compiles_now`` while
    one is built whose kernel is compiled at once. ``works_for_run`` is True while the thread does the work of a run's
    stop (``submission/stops.py``)."""

    __slots__ = ()

    @property
    def used_up(self) -> bool:
        """Returns whether a task that wants to submit should wait for another turn."""
        return self.spent >= SHARE_SECONDS

    def spend(self, begun: float) -> None:
        """Adds the time of a submission that began at ``begun``, by ``time.perf_counter``, and ends now."""
        seconds = time.perf_counter() - begun
        self.spent += seconds
        self._usual += (seconds - self._usual) / 8

    @property
    def admitted(self) -> int:
        """Returns the number of queued tasks that may submit in one turn."""
        return max(1, min(_MOST, int(SHARE_SECONDS / self._usual)))


core.setup(Turn=Turn)
