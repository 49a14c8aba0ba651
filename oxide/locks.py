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

Compiled code handles no signals between its calls. But a compiled ``with`` looks up two methods of a Python object,
which takes three times as long as calling them. So compiled modules use the class ``Lock``, whose methods a compiled
``with`` calls directly. Where this module is not compiled, locks are those of ``threading``.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final, final

from oxide.errors import OrderingError, OxideError
from oxide.native import is_compiled


@final
class Lock:
    """A lock of ``threading``, wrapped for the ``with`` statements of compiled modules."""

    __slots__ = ("_acquire", "_is_owned", "_release")

    def __init__(self, lock: Any) -> None:
        self._acquire = lock.acquire
        self._is_owned = lock._is_owned
        self._release = lock.release

    def __enter__(self) -> None:
        self._acquire()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._release()


def new_lock() -> Lock:
    """Returns a reentrant lock of ``threading``, wrapped if this module is compiled."""
    return _for_with(threading.RLock())


def _for_with(lock: Any) -> Lock:
    return Lock(lock) if is_compiled() else lock


_of_runtime: Any = threading.RLock()
RUNTIME_LOCK: Final = _for_with(_of_runtime)
"""Held while the uses of memory are read, work is submitted and the new uses are recorded; it guards the marks of
streams, too."""
DRIVER_LOCK: Final[Any] = threading.RLock()  # not wrapped: the CPU driver is not compiled
"""Guards the streams and the memory of the CPU driver."""


driver_threads: Final[set[int]] = set()
"""The threads of the CPU driver, but while they call a host function of the program's."""


def _renew() -> None:
    """Releases the two locks in a forked child: a thread of the parent may hold them, and does not exist here."""
    _of_runtime._at_fork_reinit()
    DRIVER_LOCK._at_fork_reinit()
    driver_threads.clear()


os.register_at_fork(after_in_child=_renew)


def is_interrupt(error: BaseException) -> bool:
    """Returns whether an error may have come between any two steps of the package's own code, from a signal handler. An
    error that a step itself raises is one of the package's."""
    return not isinstance(error, OxideError) or error.args == (_HELD,)


def refuse_inside() -> None:
    """Raises ``OrderingError`` if the calling thread holds one of the two locks, or is one of the driver's."""
    if RUNTIME_LOCK._is_owned() or DRIVER_LOCK._is_owned() or threading.get_ident() in driver_threads:
        raise held_error()


def unheld(lock: Lock) -> Lock:
    """Returns a lock, for ``with``. Raises ``OrderingError`` if the calling thread holds it."""
    if lock._is_owned():
        raise held_error()
    return lock


def held_error() -> OrderingError:
    """Returns the error for a call that would wait for its own thread."""
    return OrderingError(_HELD)


_HELD: Final = (
    "the calling thread already holds a lock of oxide's, or is oxide's own: a finaliser, a callback of the garbage "
    "collector or a signal handler has interrupted oxide's code, and no operation may run there. Let it note what is "
    "to be done, in a queue for example, and let the program do that later"
)
