"""Stops: the reasons why the walk of an operation cannot go on yet, and other signals to it (``walk.py``).

A signal is not an ``Exception``, so that functions of the program on the call stack do not catch it as their own error.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from oxide.host.core import current_turn
from oxide.host.locks import RUNTIME_LOCK

if TYPE_CHECKING:
    from oxide.runtime.ordering.timeline import Mark


class Stop(BaseException):
    """The base of every stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.error: Exception | None = None
        """An error that becomes that of the step that has stopped."""

    @abstractmethod
    def block(self) -> None:
        """Blocks the calling thread until the walk can go on."""

    def is_over(self) -> bool:
        """Returns whether the walk can go on, or must be asked again whether it can."""
        return True


@final
class HostData(Stop):
    """The walk waits for copies to host memory: the device must pass all of ``marks``."""

    def __init__(self, marks: list[Mark]) -> None:
        super().__init__("a function of the program waits for host data")
        self.marks = marks

    def block(self) -> None:
        for mark in self.marks:
            mark.synchronize()

    def is_over(self) -> bool:
        return self.next_mark() is None

    def next_mark(self) -> Mark | None:
        """Returns the first of the marks that the device is not known to be past, or None."""
        for mark in self.marks:
            if mark.position > mark.timeline.seen:
                return mark
        return None


@final
class Beside(Stop):
    """The walk waits for ``work``, such as a compilation, which would block an event loop and so runs in a thread. An
    error of the work is the stop's ``error``. The work knows that it is a run's: ``Turn.works_for_run``."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__("a run waits for the work of a thread")
        self._work = work
        self._done = False

    def block(self) -> None:
        turn = current_turn()
        before = turn.gives_up, turn.works_for_run
        turn.gives_up, turn.works_for_run = False, True
        try:
            self._work()
        except Exception as error:
            self.error = error
        finally:
            turn.gives_up, turn.works_for_run = before
        self._done = True

    def is_over(self) -> bool:
        return self._done


@final
class StillRunning(Stop):
    """The walk would have to wait for another thread's run of ``once``."""

    def __init__(self, once: Once) -> None:
        super().__init__("another thread runs the source of a shared operation")
        self.once = once

    def block(self) -> None:
        """Raises the stop again: only the task that submits may wait."""
        raise self


@final
class PlanEnds(BaseException):
    """Raised by a step in a context that records a part of a run, if a function of the program is to see the data of
    recorded copies. The operation that owns the recording submits what is recorded (``end_plan``). Then the step is
    called again, in the context of the run."""

    def __init__(self, context: Any) -> None:
        super().__init__("a function of the program waits for host data that is recorded")
        self.context = context


@final
class Faulted(BaseException):
    """Raised by a step that has found ``error``, the fault of a kernel. The notes of ``error`` name the kernel's place
    already, so the walk adds none of its own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("a kernel faulted")
        self.error = error


@final
class Unknown(BaseException):
    """Raised in a rehearsal, which runs nothing on the device, at a function of the program that would see data of the
    device. The operations that depend on the function's result are not known."""


@final
class Dropped(BaseException):
    """The reason with which frames are left if a walk is dropped before its end."""


@final
class Once:
    """A run-once guard, for shared operations: ``if once.enter(): run(); once.leave(done=True)``. The first caller does
    the run, and the others wait.

    A thread outside of event loops blocks until the run has ended. A submission by a task of an event loop must not
    block the loop, as the run may be waiting for that very loop: it stops. A thread that the run itself waits for,
    directly or through other threads, gets a ``RuntimeError``, as waiting would never end."""

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
