"""Shares the time of a thread between waits and submissions and, if it runs an event loop, the loop's other tasks.

``Pace`` learns how long the waits on a stream last, and decides whether a new wait spins, polls or parks.

Each way to wait for the device has its price. *Spinning* queries the event in a loop: it sees the result within 1.4 µs,
but no other task runs meanwhile. *Polling* lets other tasks run between two queries; each query takes 5 µs under trio.
*Parking* lets the task sleep until a callback wakes it: this costs nothing while the task sleeps, and 39 µs at the end.
Spinning pays off for an empty kernel, parking for a long kernel. It is not known beforehand how long a kernel runs, but
the kernels of one stream resemble each other. So each stream keeps a running mean of the lengths of its waits. Each
wait counts as much as all earlier waits together, so the mean forgets old waits within a few operations.

The budgets are bounded, so a wrong guess is cheap. A wait spins for at most 10 µs and polls for at most 50 µs, about
what parking would have cost. On a stream whose waits park, one wait in sixteen polls again, in case the stream's work
has become short.

``Turn`` limits the share of an event loop's time that submissions take. A loop runs every ready task before it looks at
timers and sockets. So a thousand tasks that submit at once are one long *turn* of the loop, in which no timer fires and
no socket is read. A ``Turn`` adds up the time of the submissions in a turn. When they have used their share, further
tasks queue for one of the loop's next turns (``Reactor.next_turn``).

The end of a turn is detected at no cost. A task that the loop resumes was scheduled in an earlier turn. If the turn's
number is still the number that the task read before it let other tasks run, the task starts a new turn. Each loop has a
thread for itself, so each thread has its own ``Turn``.
"""

from __future__ import annotations

import time
from typing import Final, final

from oxide.host import core
from oxide.host.locks import RUNTIME_LOCK

SPIN_SECONDS: Final = 10e-6
"""The longest time that a wait spins. A stream's waits spin only while their mean is at most this time."""

POLL_SECONDS: Final = 50e-6
"""The longest time that a wait polls. It is about the time that parking adds to a wait, so no wait costs more than
twice the minimum."""

PARK_SECONDS: Final = 40e-6
"""The time that parking adds to a wait on an H100. ``learn`` subtracts it from a parked wait."""

_LONGEST: Final = 2 * POLL_SECONDS  # a longer wait counts as this, so that a wait of an hour is forgotten too
_PROBE_EVERY: Final = 16


@final
class Pace:
    """The running mean of one stream's waits. Methods may be called from any thread."""

    __slots__ = ("_since_probe", "expected", "parked", "polled_seconds", "waits")

    def __init__(self) -> None:
        self._since_probe = 0
        self.expected = POLL_SECONDS / 2  # seconds; nothing is known yet, so the first wait polls with the whole budget
        self.waits = 0
        self.parked = 0
        self.polled_seconds = 0.0

    @property
    def spin_budget(self) -> float:
        """Returns the seconds that a wait may spin."""
        return SPIN_SECONDS if self.expected <= SPIN_SECONDS else 0.0

    @property
    def poll_budget(self) -> float:
        """Returns the seconds that a wait may spin and poll before it parks."""
        if self.expected > POLL_SECONDS:
            return 0.0
        return min(POLL_SECONDS, 2 * self.expected + SPIN_SECONDS)

    def budget(self) -> float:
        """Returns ``poll_budget`` for a wait that begins now. Of the waits that would park at once, one in sixteen gets
        a budget for polling instead."""
        budget = self.poll_budget
        if not budget:
            with RUNTIME_LOCK:
                self._since_probe += 1
                if self._since_probe == _PROBE_EVERY:
                    self._since_probe = 0
                    return POLL_SECONDS
        return budget

    def learn(self, seconds: float, polled: float, *, parked: bool) -> None:
        """Records a wait of ``seconds``, of which ``polled`` seconds were spent spinning and polling."""
        if parked:
            seconds = max(0.0, seconds - PARK_SECONDS)
        with RUNTIME_LOCK:
            self.waits += 1
            self.parked += parked
            self.polled_seconds += polled
            self.expected = (self.expected + min(seconds, _LONGEST)) / 2


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
