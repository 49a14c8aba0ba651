"""Stops: the reasons why the walk of an operation cannot go on yet, and other signals to it (``walk.py``).

A signal is not an ``Exception``, so that functions of the program on the call stack do not catch it as their own error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from oxide.host.core import current_turn

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
