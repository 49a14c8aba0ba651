"""Forked children: every use of the runtime in a child of ``os.fork`` raises ``DeviceLostError``.

The child has none of the parent's other threads, and CUDA does not work in it: a wait would hang, and a driver call
would fail at best. So the child replaces each lock, as a thread of the parent may have held it; ``host/locks.py``
renews those of the whole process. It also replaces the driver by one whose calls raise the error. Objects that the
child drops are only forgotten, as their memory and handles belong to the parent.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, final

from oxide.driver.base import CAPABILITIES
from oxide.host.uninterrupted import forked_error
from oxide.host.weak_table import WeakTable
from oxide.runtime.loop.alarm import Alarm

if TYPE_CHECKING:
    from oxide.driver.base import Driver


class Forked(Protocol):
    """A runtime, as a fork knows it."""

    driver: Driver

    def cut_off(self, driver: Any) -> None:
        """Replaces the driver in a forked child."""


@final
class ForkWatch:
    """A runtime's entry in the table of runtimes that a forked child cuts off from the driver. The table refers to the
    entry weakly. The runtime holds the entry, so it lives as long as the runtime."""

    def __init__(self, runtime: Forked) -> None:
        self.runtime = runtime


_watches: WeakTable[ForkWatch, None] = WeakTable()
_registered = False


def watch_forks(runtime: Forked) -> ForkWatch:
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
    Alarm._spare.clear()  # the descriptors are shared with the parent
    for runtime in [watch.runtime for watch in _watches.objects()]:
        runtime.cut_off(ForkedDriver(runtime.driver.name))
