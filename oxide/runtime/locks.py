"""The locks that every submission takes.

In interpreted Python such a lock is only taken by ``with``. A signal handler, for example for Ctrl-C, may raise between
any two calls. Between ``lock.acquire()`` and the ``try`` after it, that would leave the lock held for ever. Python
handles no signal between a ``with`` and its first line.

Compiled code handles no signals between its calls. But its ``with`` looks up two methods of a Python object, which
takes three times as long as calling them. So compiled modules use the class ``Lock``, whose methods a compiled ``with``
calls directly, and interpreted ones use ``threading``'s locks themselves.
"""

from __future__ import annotations

import threading
from typing import Any, final

from oxide.native import is_compiled


@final
class Lock:
    """A wrapper of a lock of ``threading``, for ``with``."""

    __slots__ = ("_acquire", "_release")

    def __init__(self, lock: Any) -> None:
        self._acquire = lock.acquire
        self._release = lock.release

    def __enter__(self) -> None:
        self._acquire()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._release()


def new_lock() -> Lock:
    """Returns a ``threading.Lock``, wrapped if this module is compiled."""
    return _for_with(threading.Lock())


def new_rlock() -> Lock:
    """Returns a ``threading.RLock``, wrapped if this module is compiled."""
    return _for_with(threading.RLock())


def _for_with(lock: Any) -> Lock:
    return Lock(lock) if is_compiled() else lock
