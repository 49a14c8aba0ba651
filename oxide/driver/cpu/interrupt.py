"""Runs kernels so that Ctrl-C ends the wait for them. This is for drivers that run kernels on the waiting thread:
drivers with a seed, and drivers in step mode.

Python reports Ctrl-C to the main thread only, and only between two bytecode instructions. A whole kernel runs within
one instruction. So the main thread lets another thread run the kernel and waits. Still only one of the two threads runs
at a time. A thread for each kernel costs some 50 microseconds. Threads other than the main thread get no signals, so
they run kernels themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import final


@final
class Abandoned(Exception):
    """Raised if a signal handler's exception, the ``__cause__``, ended the wait for a kernel. The kernel continues to
    run."""


def run_interruptibly(calls: Iterable[Callable[[], object]]) -> None:
    """Makes the calls one after another. If a call raises an exception, raises that and makes no more calls.

    Raises ``Abandoned`` if a signal handler raised an exception before the last call returned. The current call then
    continues, and no other begins.
    """
    work = _Work(calls)
    if threading.current_thread() is not threading.main_thread():
        work.run()
    else:
        try:
            _wait_for(work)
        except BaseException as interrupt:
            work.stop = True
            if work.done:
                raise
            raise Abandoned from interrupt
    if work.error is not None:
        raise work.error


def _wait_for(work: _Work) -> None:
    """Lets another thread do the work and waits for its end. If the system has no more threads, does the work here."""
    try:
        threading.Thread(target=work.run, name="oxide kernel", daemon=True).start()
    except RuntimeError:
        work.run()
    work.over.acquire()


@final
class _Work:
    """Calls and their progress. The first thread that claims the calls makes them all."""

    def __init__(self, calls: Iterable[Callable[[], object]]) -> None:
        self._calls = calls
        self._claim = threading.Lock()
        self.over = threading.Lock()
        self.over.acquire()
        self.stop = False
        self.done = False
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            for call in self._calls:
                if self.stop:
                    return
                call()
            self.done = True
        except BaseException as error:
            self.error, self.done = error, True
        finally:
            self.over.release()
