"""Calls that Ctrl-C does not end half-way: imports of packages that cannot be imported again, and compilations.

Python calls signal handlers, and raises ``KeyboardInterrupt``, in the main thread only, between any two bytecodes. An
import of numpy or numba that ends there cannot be made again. numba and numba-cuda keep tables and generators for the
whole process: an interrupted compilation leaves them half filled or dead, and no kernel compiles any more. So in the
main thread another thread makes such a call, and the main thread waits for it. An interrupt ends the wait. The call
goes on, and the program's next attempt finds its result or waits for it.

A child that is forked while another thread makes such a call, or sets up the devices, can do neither: the parent's
thread holds locks of Python's, numba's and oxide's, and does not exist in the child. It gets ``DeviceLostError``.
"""

from __future__ import annotations

import _imp
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TypeVar

from oxide.errors import DeviceLostError

T = TypeVar("T")


def uninterrupted(function: Callable[[], T]) -> T:
    """Returns ``function()``, and raises what it raises. In the main thread, another thread makes the call. If an
    interrupt ends the wait, the call still runs to its end, and the process does not end before it. Raises
    ``DeviceLostError`` in a child that was forked during such a call."""
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return unforked(function)
    release_import_lock()
    results: list[T] = []
    errors: list[BaseException] = []
    work = [function]  # taken from the list: the thread may live a little longer than the call, and then holds nothing
    ended = threading.Lock()
    ended.acquire()

    def call() -> None:
        try:
            results.append(unforked(work.pop()))
        except BaseException as error:
            errors.append(error)
        finally:
            ended.release()

    try:
        threading.Thread(target=contextvars.copy_context().run, args=(call,), name="oxide compiler").start()
    except RuntimeError:  # the system has no more threads, or the interpreter is ending
        return unforked(function)
    ended.acquire()  # not ``join``: an interrupt of it makes Python 3.11 take the thread for ended
    if errors:
        raise errors.pop()
    return results.pop()


_under_way: list[int] = []
"""The threads that make calls of ``unforked``, each once for each call."""
_cut_off = False
"""True in a child that was forked while another thread made such a call."""


def unforked(function: Callable[[], T]) -> T:
    """Returns ``function()``, and raises what it raises; ``DeviceLostError`` in a child that was forked during such a
    call of another thread."""
    if _cut_off:
        raise forked_error()
    this = threading.get_ident()
    try:
        _under_way.append(this)
        return function()
    finally:
        _under_way.remove(this)


def _note_fork() -> None:
    global _cut_off
    _cut_off = _cut_off or any(thread != threading.get_ident() for thread in _under_way)


os.register_at_fork(after_in_child=_note_fork)


def forked_error() -> DeviceLostError:
    """Returns the error that every use of the runtime raises in a forked child."""
    return DeviceLostError(
        f"process {os.getpid()} was forked from one in which oxide was already set up, and devices do not survive a "
        f"fork: fork before the first use of oxide, or start processes with multiprocessing's 'spawn' or 'forkserver'"
    )


def import_whole(package: str) -> None:
    """Imports a package, uninterrupted."""
    release_import_lock()
    if package not in sys.modules:
        uninterrupted(partial(import_module, package))


def release_import_lock() -> None:
    """Releases Python's import lock if this thread holds it. No module holds it while its code runs, but an interrupt
    between two bytecodes of importlib leaves it held, and then any other thread's import waits for ever."""
    with contextlib.suppress(RuntimeError):  # this thread does not hold it
        while True:
            _imp.release_lock()


import_whole("numpy")  # the package imports this module first
