"""Something that is run once, by whoever comes first, while the others wait for it: what a shared operation stands on.

It knows nothing of devices. Who comes while another thread runs it has three ways:

- A thread outside of event loops blocks until the run has ended.
- A submission that an event loop's task makes must not keep the loop: the run may be waiting for that very loop. It is
  given up with ``StillRunning``, which the future that submits it takes; its task sleeps until the run has ended and
  submits once more.
- A thread for which the run is waiting itself, in however many steps, gets a ``RuntimeError``: it would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from oxide.runtime.loop.turns import current_turn


@final
class Once:
    """``if once.enter(): run(); once.leave(done=True)``."""

    __slots__ = ("_done", "_runner", "_waiting")

    def __init__(self) -> None:
        self._done = False
        self._runner: int | None = None  # a thread
        self._waiting: list[Callable[[], object]] = []

    def enter(self) -> bool:
        """True if the caller is to run it, and then to call ``leave``; False if that has been done.

        Raises ``RuntimeError`` where waiting would never end, ``StillRunning`` where the thread's turn ``gives_up``.
        """
        if self._done:
            return False
        me = threading.get_ident()
        while True:
            ended = threading.Event()
            with _lock:
                if self._done:
                    return False
                if self._runner is None:
                    self._runner = me
                    return True
                _refuse_circle(self, me)
                if current_turn().gives_up:
                    raise StillRunning(self)
                self._waiting.append(ended.set)
                _blocked[me] = self
            try:
                ended.wait()
            finally:
                with _lock:
                    del _blocked[me]
                    if ended.set in self._waiting:  # as after a KeyboardInterrupt
                        self._waiting.remove(ended.set)

    def leave(self, *, done: bool) -> None:
        """The run has ended. If it is not ``done``, the next who enters runs it."""
        with _lock:
            self._done = done
            self._runner = None
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def call_when_left(self, wake: Callable[[], object]) -> bool:
        """Calls ``wake``, in the thread that runs it, when that has ended; False if nobody is running it."""
        with _lock:
            if self._runner is None:
                return False
            self._waiting.append(wake)
            return True

    def forget(self, wake: Callable[[], object]) -> None:
        """``wake`` need not be called any more."""
        with _lock:
            if wake in self._waiting:
                self._waiting.remove(wake)


@final
class StillRunning(BaseException):
    """Ends a submission that would have to wait for another thread. No ``Exception``: functions of the program's that
    it passes must not take it for an error of theirs."""

    def __init__(self, once: Once) -> None:
        super().__init__("another thread runs the source of a shared operation")
        self.once = once


_lock = threading.Lock()  # of all of them: held for moments, and only so can a circle of waiting threads be seen
_blocked: dict[int, Once] = {}  # what each thread that blocks waits for


def _refuse_circle(once: Once, me: int) -> None:
    runner = once._runner
    first = runner
    while runner is not None and runner != me:
        waits_for = _blocked.get(runner)
        runner = None if waits_for is None else waits_for._runner
    if runner == me:
        if first == me:
            raise RuntimeError("a shared operation runs itself: its source uses its own result")
        raise RuntimeError(
            "shared operations wait for each other: another thread runs the source of this one, which uses the one "
            "whose source runs here. Let at most one of the two use the other"
        )
