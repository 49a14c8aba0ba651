"""Limits the share of an event loop's time that the runtime's submissions take before other tasks run.

A loop runs every ready task before it looks at timers and sockets. So a thousand tasks that submit at once are one long
*turn* of the loop, in which no timer fires and no socket is read. This file adds up the time of the submissions in a
turn. When they have used their share, further tasks queue for one of the loop's next turns (``Reactor.next_turn``).

The end of a turn is detected at no cost. A task that the loop resumes was scheduled in an earlier turn. If the turn's
number is still the number that the task read before it let other tasks run, the task starts a new turn. Each loop has a
thread for itself, so each thread has its own ``Turn``.
"""

from __future__ import annotations

import threading
import time
from typing import Final, final

SHARE_SECONDS: Final = 2e-3
"""The time for submissions in one turn. Sweeping, and waking tasks, may each take about as long in addition."""

_MOST: Final = 128  # the most tasks admitted in one turn: each costs about 10 µs under trio, whatever it then does

_clock: Final = time.perf_counter  # compiled code reads a constant without a look-up


@final
class Turn:
    """The current turn of a thread's loop."""

    def __init__(self) -> None:
        self.number = 0
        # True while a future submits, which must neither wait for other threads (``once``) nor compile (``loading``)
        self.gives_up = False
        self.defers = False  # True while a launch is built whose kernel may be compiled later: see ``loading``
        self.compiles_now = False  # True while a launch is built whose kernel is compiled at once
        self.works_for_run = False  # True while the thread does the work of a run's stop (``submission/stops.py``)
        self.spent = 0.0  # seconds that submissions took in this turn
        self._usual = 20e-6  # running mean of a submission's seconds

    def over(self, number: int) -> None:
        """Starts a new turn if the number of the current turn is still ``number``. A task passes the number that it
        read before it last let other tasks run."""
        if self.number == number:
            self.next()

    def next(self) -> None:
        """Starts a new turn."""
        self.number += 1
        self.spent = 0.0

    @property
    def used_up(self) -> bool:
        """Returns whether a task that wants to submit should wait for another turn."""
        return self.spent >= SHARE_SECONDS

    def spend(self, begun: float) -> None:
        """Adds the time of a submission that began at ``begun``, by ``time.perf_counter``, and ends now."""
        seconds = _clock() - begun
        self.spent += seconds
        self._usual += (seconds - self._usual) / 8

    @property
    def admitted(self) -> int:
        """Returns the number of queued tasks that may submit in one turn."""
        return max(1, min(_MOST, int(SHARE_SECONDS / self._usual)))


_of_thread: Final = threading.local()


def current_turn() -> Turn:
    """Returns the calling thread's turn."""
    try:
        turn: Turn = _of_thread.turn
    except AttributeError:
        turn = _of_thread.turn = Turn()
    return turn
