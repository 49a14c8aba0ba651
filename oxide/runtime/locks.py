"""The locks that every submission takes.

Where Python runs, such a lock is taken by ``with`` and by nothing else: the handler of a signal, of Ctrl-C say, may
raise between any two calls, so also between ``lock.acquire()`` and the ``try`` behind it, and whoever came next would
wait for ever. Between a ``with`` and its first line Python looks at no signal. Compiled code looks at none between its
calls, but its ``with`` asks an object of Python's for two methods, and takes three times as long as they do. So there
is a class that a compiled ``with`` calls directly, and where Python runs ``threading``'s own locks take its place.
"""

from __future__ import annotations

import threading
from typing import Any, final

from oxide.native import is_compiled


@final
class Lock:
    """One of ``threading``'s locks, for ``with``."""

    __slots__ = ("_acquire", "_release")

    def __init__(self, lock: Any) -> None:
        self._acquire = lock.acquire
        self._release = lock.release

    def __enter__(self) -> None:
        self._acquire()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._release()


def new_lock() -> Lock:
    """A ``threading.Lock``."""
    return _for_with(threading.Lock())


def new_rlock() -> Lock:
    """A ``threading.RLock``."""
    return _for_with(threading.RLock())


def _for_with(lock: Any) -> Lock:
    return Lock(lock) if is_compiled() else lock
