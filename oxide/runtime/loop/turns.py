"""How much of an event loop's time the runtime takes before it lets others run.

A loop runs every task that is ready before it looks at anything else, so a thousand tasks that submit at once are one
long turn in which no timer fires and no socket is read. Here the submissions of a turn are added up, and when they have
taken their share, the tasks that come next wait in line for one of the loop's next turns (``Reactor.next_turn``).

How a turn's end is noticed, at no cost: a task that comes back from the loop was scheduled in the turn before, so if
nobody has noticed since it went, it does. A loop has its thread for itself, so the count is the thread's.
"""

from __future__ import annotations

import threading
import time
from typing import Final, final

SHARE_SECONDS: Final = 2e-3
"""What submissions take of one turn, and sweeping and waking each."""

_MOST: Final = 128  # tasks let go on in one turn, which costs about 10 µs each under trio, whatever they then do

_clock: Final = time.perf_counter  # compiled, a constant takes no look-up


@final
class Turn:
    """The present turn of a thread's loop."""

    def __init__(self) -> None:
        self.number = 0
        self.gives_up = False  # while a future submits: it must not wait for another thread (``once``)
        self.spent = 0.0  # seconds of this turn that submissions took
        self._usual = 20e-6  # seconds that a submission takes, as a running mean

    def over(self, number: int) -> None:
        """Called by who last saw turn ``number`` and comes back from the loop."""
        if self.number == number:
            self.next()

    def next(self) -> None:
        """A new turn has begun."""
        self.number += 1
        self.spent = 0.0

    @property
    def used_up(self) -> bool:
        """Whether who wants to submit should wait for another turn."""
        return self.spent >= SHARE_SECONDS

    def spend(self, begun: float) -> None:
        """A submission that began at ``begun`` (of ``time.perf_counter``) has been made."""
        seconds = _clock() - begun
        self.spent += seconds
        self._usual += (seconds - self._usual) / 8

    @property
    def admitted(self) -> int:
        """How many that wait in line may submit in one turn."""
        return max(1, min(_MOST, int(SHARE_SECONDS / self._usual)))


_of_thread: Final = threading.local()


def current_turn() -> Turn:
    """The calling thread's."""
    try:
        turn: Turn = _of_thread.turn
    except AttributeError:
        turn = _of_thread.turn = Turn()
    return turn
