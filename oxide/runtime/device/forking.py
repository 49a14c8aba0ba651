"""Forked children: every use of the runtime in a child of ``os.fork`` raises ``DeviceLostError``.

The child has none of the parent's other threads, and CUDA does not work in it: a wait would hang, and a driver call
would fail at best. So the child replaces each lock, as a thread of the parent may have held it; ``locks.py``
renews those of the whole process. It also replaces the driver by one whose calls raise the error. Objects that the
child drops are only forgotten, as their memory and handles belong to the parent.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any, NoReturn, final

from oxide.driver.base import CAPABILITIES
from oxide.locks import new_lock
from oxide.runtime.loop.alarm import Alarm
from oxide.uninterrupted import forked_error
from oxide.weak_table import WeakTable

if TYPE_CHECKING:
    from oxide.runtime.device.runtime import Runtime


@final
class ForkWatch:
    """A runtime's entry in the table of runtimes that a forked child cuts off from the driver. The table refers to the
    entry weakly. The runtime holds the entry, so it lives as long as the runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime


_watches: WeakTable[ForkWatch, None] = WeakTable()
_registered = False


def watch_forks(runtime: Runtime) -> ForkWatch:
    """Cuts ``runtime`` off from the driver in every child that this process forks, as long as the returned watch is
    held."""
    global _registered
    watch = ForkWatch(runtime)
    _watches.set(watch, None)
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_cut_off)
    return watch


@final
class ForkedDriver:
    """The driver in a forked child: every call raises ``DeviceLostError``."""

    runs = sanitizer = None

    def __init__(self, name: str) -> None:
        self.name = name

    def stream_address(self, stream: object) -> int:
        """Returns 0. Only messages call it."""
        return 0

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        if method in CAPABILITIES:
            return self

        def refuse(*arguments: object, **keywords: object) -> NoReturn:
            raise forked_error()

        return refuse


def _cut_off() -> None:
    from oxide.runtime.device import runtime as context

    context._lock = new_lock()
    Alarm._spare.clear()  # the descriptors are shared with the parent
    for runtime in [watch.runtime for watch in _watches.objects()]:
        atexit.unregister(runtime.driver.close)
        driver: Any = ForkedDriver(runtime.driver.name)
        runtime.forked = True
        runtime.reclaimer._driver = driver
        runtime.reclaimer._turn = threading.Lock()
        for part in (runtime.pinned, runtime.fault_records):
            part._driver = driver
            part._lock._at_fork_reinit()
        runtime.fault_pages._driver = driver
        for device in runtime._found:
            device.lost = forked_error()
            device.staging.renew_lock()
            for timeline in device._timelines:
                timeline.driver = driver
                timeline.lane = None
            device.driver = driver
        runtime.driver = driver
