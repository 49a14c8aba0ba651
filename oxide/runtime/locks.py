"""The locks that every submission takes.

Interpreted code takes these locks only by ``with``. A signal handler, for example for Ctrl-C, may raise an exception
between any two calls. An exception between ``lock.acquire()`` and the ``try`` after it would leave the lock held for
ever. Between the entry of a ``with`` and the first line of its body, Python handles no signal.

Compiled code handles no signals between its calls. But a compiled ``with`` looks up two methods of a Python object,
which takes three times as long as calling them. So compiled modules use the class ``Lock``, whose methods a compiled
``with`` calls directly. Interpreted modules use the locks of ``threading`` directly.
"""

from __future__ import annotations

import threading
from typing import Any, final

from oxide.native import is_compiled


@final
class Lock:
    """A lock of ``threading``, wrapped for the ``with`` statements of compiled modules."""

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
