"""The locks of the package.

*A thread that holds a lock of the package runs no operation.* A finaliser, a callback of the garbage collector or a
signal handler may run an operation between any two steps of the package's own code, on the same thread. If that code
holds a lock which the operation needs, the thread would wait for itself; and if it needs another, two threads may wait
for each other. So the locks that are held while work is submitted are two for the whole process, ``RUNTIME_LOCK`` and,
taken inside it, ``DRIVER_LOCK``. ``refuse_inside`` is called where a run or a wait begins, or another call of the
program's that takes one of them. Every other lock is taken before these two, by ``with unheld(lock)``. Both raise
``OrderingError``. What the package's own finalisers do is allowed inside: locks are reentrant.

A lock is taken only by ``with``. A signal handler, for example for Ctrl-C, may raise an exception between any two
calls. An exception between ``lock.acquire()`` and the ``try`` after it would leave the lock held for ever. Between the
entry of a ``with`` and the first line of its body, Python handles no signal.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from oxide.errors import OrderingError, OxideError
from oxide.host import core
from oxide.host.core import RUNTIME_LOCK, refuse_inside

__all__ = [
    "DRIVER_LOCK",
    "RUNTIME_LOCK",
    "driver_threads",
    "held_error",
    "is_interrupt",
    "new_lock",
    "refuse_inside",
    "unheld",
]


def new_lock() -> Any:
    """Returns a reentrant lock of ``threading``."""
    return threading.RLock()


# RUNTIME_LOCK is held while the uses of memory are read, work is submitted and the new uses are recorded; it guards the
# marks of streams, too. Code in C takes it.
DRIVER_LOCK: Final[Any] = threading.RLock()
"""Guards the streams and the memory of the CPU driver."""


driver_threads: Final[set[int]] = set()
"""The threads of the CPU driver, but while they call a host function of the program's."""


def _renew() -> None:
    """Releases the two locks in a forked child: a thread of the parent may hold them, and does not exist here."""
    RUNTIME_LOCK._at_fork_reinit()
    DRIVER_LOCK._at_fork_reinit()
    driver_threads.clear()


os.register_at_fork(after_in_child=_renew)


def is_interrupt(error: BaseException) -> bool:
    """Returns whether an error may have come between any two steps of the package's own code, from a signal handler. An
    error that a step itself raises is one of the package's."""
    return not isinstance(error, OxideError) or error.args == (_HELD,)


def unheld(lock: Any) -> Any:
    """Returns a lock, for ``with``. Raises ``OrderingError`` if the calling thread holds it."""
    if lock._is_owned():
        raise held_error()
    return lock


def held_error() -> OrderingError:
    """Returns the error for a call that would wait for its own thread."""
    return OrderingError(_HELD)


core.setup(held_error=held_error, driver_threads=driver_threads, driver_lock_is_owned=DRIVER_LOCK._is_owned)

_HELD: Final = (
    "the calling thread already holds a lock of oxide's, or is oxide's own: a finaliser, a callback of the garbage "
    "collector or a signal handler has interrupted oxide's code, and no operation may run there. Let it note what is "
    "to be done, in a queue for example, and let the program do that later"
)
