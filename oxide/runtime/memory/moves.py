"""Copies within host memory, done by the device's host-function thread in stream order.

An upload's data must be copied from ordinary into page-locked memory before the device can read it. A copy of 64 MiB
takes 6 ms, too long for an event loop's thread. So a native host function makes the copy. It reads addresses and length
from a table, allocates nothing and never asks for the GIL. If there are cores to spare, several threads share a large
copy (``copy_pool``). Otherwise the function only calls the C library's ``memcpy``.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Final, final

from oxide.host.core import MOVE, ROW_BYTES, SHARE_COPY, copy
from oxide.runtime.memory.copy_pool import PIECE_BYTES, copy_pool

if TYPE_CHECKING:
    from oxide.driver.base import Driver, StreamHandle

ROW: Final = struct.Struct("@QQqQ")
"""A copy: the destination, source, length and pool of the ``row`` in ``_core/copies.c``. The pool is the address of a
``CopyPool`` for ``SHARE_COPY``, or 0."""
assert ROW.size == ROW_BYTES


@final
class Moves:
    """A table of ``count`` copies to submit. Keep it alive until the last copy has run."""

    __slots__ = ("_address", "_next", "_table")

    def __init__(self, count: int) -> None:
        # not an array of NumPy's, which takes 1 µs to tell its address
        self._table = (ctypes.c_char * (count * ROW_BYTES))()
        self._address = ctypes.addressof(self._table)
        self._next = 0

    def submit(self, driver: Driver, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        """Submits the next copy, in stream order. Both ranges must stay valid until the copy has run."""
        at, self._next = self._next, self._next + ROW_BYTES
        pool = copy_pool() if nbytes > 2 * PIECE_BYTES else None
        ROW.pack_into(self._table, at, destination, source, nbytes, 0 if pool is None else pool.address)
        function = MOVE if pool is None else SHARE_COPY
        driver.launch_native_host_function(function, self._address + at, stream)


def copy_now(destination: int, source: int, nbytes: int) -> None:
    """Copies on the calling thread, and returns when the copy is done. The helpers of ``copy_pool``, if there are any,
    share a copy of more than two pieces. The GIL is released meanwhile."""
    pool = copy_pool() if nbytes > 2 * PIECE_BYTES else None
    if pool is None:
        ctypes.memmove(destination, source, nbytes)
        return
    row = ctypes.create_string_buffer(ROW.pack(destination, source, nbytes, pool.address))
    copy(ctypes.addressof(row))
