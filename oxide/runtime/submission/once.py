"""Runs something once: the first caller runs it while the others wait. Shared operations are built on it.

This file knows nothing of devices. A caller that arrives during another thread's run does one of three things:

- A thread outside of event loops blocks until the run has ended.
- A submission by a task of an event loop must not block the loop, as the run may be waiting for that very loop. It
  raises ``StillRunning``, at which its walk stops. The task sleeps until the run has ended, then the walk goes on.
- A thread that the run itself waits for, directly or through other threads, gets a ``RuntimeError``: waiting would
  never end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from oxide.host.core import current_turn
from oxide.host.locks import RUNTIME_LOCK
from oxide.runtime.submission.stops import Stop


@final
class Once:
    """A run-once guard: ``if once.enter(): run(); once.leave(done=True)``."""

    __slots__ = ("_done", "_runner", "_waiting")

    def __init__(self) -> None:
        self._done = False
        self._runner: int | None = None  # the running thread's identifier
        self._waiting: list[Callable[[], object]] = []

    def enter(self) -> bool:
        """Returns True if the caller must do the run and then call ``leave``. Returns False if the run is done.

        Raises ``RuntimeError`` if waiting would never end, and ``StillRunning`` if the thread submits for a task and
        must not block: the thread's ``Turn`` then has ``gives_up`` set.
        """
        if self._done:
            return False
        me = threading.get_ident()
        while True:
            ended = threading.Event()
            with RUNTIME_LOCK:
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
                with RUNTIME_LOCK:
                    del _blocked[me]
                    if ended.set in self._waiting:  # after a KeyboardInterrupt, for example
                        self._waiting.remove(ended.set)

    def leave(self, *, done: bool) -> None:
        """Ends the run. If it failed, ``done`` is False, and the next thread that enters runs it again."""
        with RUNTIME_LOCK:
            self._done = done
            self._runner = None
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def call_when_left(self, wake: Callable[[], object]) -> bool:
        """Makes the running thread call ``wake`` when the run ends. Returns False if no thread is doing the run."""
        with RUNTIME_LOCK:
            if self._runner is None:
                return False
            self._waiting.append(wake)
            return True

    def forget(self, wake: Callable[[], object]) -> None:
        """Withdraws ``wake`` from ``call_when_left``."""
        with RUNTIME_LOCK:
            if wake in self._waiting:
                self._waiting.remove(wake)


@final
class StillRunning(Stop):
    """The walk would have to wait for another thread's run of ``once``."""

    def __init__(self, once: Once) -> None:
        super().__init__("another thread runs the source of a shared operation")
        self.once = once

    def block(self) -> None:
        """Raises the stop again: only the task that submits may wait."""
        raise self


_blocked: dict[int, Once] = {}  # the ``Once`` that each blocked thread waits for


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
