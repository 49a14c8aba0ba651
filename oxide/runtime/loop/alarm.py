"""The alarm that wakes an event loop: a file descriptor, and the native callback that makes it readable."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Any, ClassVar, final

from oxide.compiler.cpu.native_functions import host_function
from oxide.compiler.ir.files import ir_file
from oxide.driver.records import ALARM


@final
class Alarm:
    """A file descriptor that a native callback makes readable.

    The descriptor is never closed, because a callback may still be outstanding when the alarm's loop ends. Instead the
    next loop reuses the alarm. There a late callback is only a spurious wake-up. ``argument`` is the callback's
    argument.
    """

    _spare: ClassVar[list[Alarm]] = []
    _records: ClassVar[list[Any]] = []  # never freed, as a late callback may read one

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.descriptor = self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.descriptor, self._bell = os.pipe()
            os.set_blocking(self.descriptor, False)
            os.set_blocking(self._bell, False)
        write = ctypes.cast(ctypes.CDLL(None).write, ctypes.c_void_p).value or 0
        record = ALARM.structure(self._bell, write)
        self._records.append(record)
        self.argument = ctypes.addressof(record)

    @classmethod
    def take(cls) -> Alarm:
        try:
            return cls._spare.pop()
        except IndexError:
            return cls()

    def give_back(self) -> None:
        self._spare.append(self)

    def ring(self) -> None:
        """Makes the descriptor readable, as the native callback does."""
        with contextlib.suppress(BlockingIOError):  # it is readable already
            os.write(self._bell, (1).to_bytes(8, sys.byteorder))

    def clear(self) -> None:
        """Makes the descriptor unreadable until the next callback or ``ring``."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)


def notify_function() -> int:
    """Returns the address of the native callback, ``void notify(void *argument)``. It writes the number 1, in eight
    bytes, to the alarm whose ``argument`` it gets.

    The callback takes no lock, allocates nothing and does not use Python.
    """
    global _notify
    if _notify is None:
        _notify = host_function(ir_file(__file__, "alarm.ll"), "oxide_notify")
    return _notify[0]


_notify: tuple[int, Any] | None = None
