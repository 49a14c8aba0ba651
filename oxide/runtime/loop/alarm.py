"""The alarm that wakes an event loop: a file descriptor, and the native callback that makes it readable."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import ClassVar, final

from oxide.host.core import alarm


@final
class Alarm:
    """A file descriptor that a native callback makes readable: ``core.NOTIFY``, which writes the number 1, in eight
    bytes, to the alarm whose ``argument`` it gets. It takes no lock, allocates nothing and does not use Python.

    The descriptor is never closed, because a callback may still be outstanding when the alarm's loop ends. Instead the
    next loop reuses the alarm. There a late callback is only a spurious wake-up. ``argument`` is the callback's
    argument.
    """

    _spare: ClassVar[list[Alarm]] = []

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.descriptor = self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.descriptor, self._bell = os.pipe()
            os.set_blocking(self.descriptor, False)
            os.set_blocking(self._bell, False)
        self.argument = alarm(self._bell)

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
