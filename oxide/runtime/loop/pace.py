"""How long the waits on one stream last, learned, and what a new wait should do: spin, poll or park.

Waiting for the device has three prices. *Spinning* asks the event again and again: the result is seen within 1.4 µs,
and no other task runs meanwhile. *Polling* lets other tasks run between two looks: 5 µs a look under trio. *Parking*
costs nothing while it lasts and 39 µs at the end. Spinning pays for an empty kernel, parking for a long one, and no
kernel says beforehand which it is; but those of one stream resemble each other. So each stream keeps the running mean
of how long its waits lasted, each one counting as much as all before it, which forgets within a few operations.

The budgets are bounded, so a wrong guess is cheap: a wait spins for 10 µs at most and polls for 50 at most, about what
parking would have cost, and one in sixteen waits of a stream that parks polls again, in case its work has become short.
"""

from __future__ import annotations

from typing import Final, final

from oxide.runtime.locks import new_lock

SPIN_SECONDS: Final = 10e-6
"""The most that a wait spins, and up to which mean a stream's waits do."""

POLL_SECONDS: Final = 50e-6
"""The most that a wait polls: what a parked wait costs more than a polled one, so none costs more than twice."""

PARK_SECONDS: Final = 40e-6
"""What parking adds to a wait on an H100; taken off before a parked wait is learned from."""

_LONGEST: Final = 2 * POLL_SECONDS  # a wait counts as no longer than this, so that one of an hour is forgotten too
_PROBE_EVERY: Final = 16


@final
class Pace:
    """What one stream's waits were like. Methods may be called from any thread."""

    __slots__ = ("_lock", "_since_probe", "expected", "parked", "polled_seconds", "waits")

    def __init__(self) -> None:
        self._lock = new_lock()
        self._since_probe = 0
        self.expected = POLL_SECONDS / 2  # seconds: nothing is known yet, so poll with the whole budget
        self.waits = 0
        self.parked = 0
        self.polled_seconds = 0.0

    @property
    def spin_budget(self) -> float:
        """Seconds that a wait may spin."""
        return SPIN_SECONDS if self.expected <= SPIN_SECONDS else 0.0

    @property
    def poll_budget(self) -> float:
        """Seconds that a wait may spin and poll before it parks."""
        if self.expected > POLL_SECONDS:
            return 0.0
        return min(POLL_SECONDS, 2 * self.expected + SPIN_SECONDS)

    def budget(self) -> float:
        """``poll_budget`` of the wait that begins now; one in sixteen that would park at once polls."""
        budget = self.poll_budget
        if not budget:
            with self._lock:
                self._since_probe += 1
                if self._since_probe == _PROBE_EVERY:
                    self._since_probe = 0
                    return POLL_SECONDS
        return budget

    def learn(self, seconds: float, polled: float, *, parked: bool) -> None:
        """A wait lasted ``seconds``, of which it spun and polled for ``polled``."""
        if parked:
            seconds = max(0.0, seconds - PARK_SECONDS)
        with self._lock:
            self.waits += 1
            self.parked += parked
            self.polled_seconds += polled
            self.expected = (self.expected + min(seconds, _LONGEST)) / 2
