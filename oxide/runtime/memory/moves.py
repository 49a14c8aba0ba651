"""Copies within host memory, done by the device's host-function thread in stream order.

An upload's data must be copied from ordinary into page-locked memory before the device can read it. A copy of 64 MiB
takes 6 ms, too long for an event loop's thread. So a native host function makes the copy. It reads addresses and length
from a table, allocates nothing and never asks for the GIL.

On an H100's machine one core copies 9 GB/s into page-locked memory, and the device reads 55 GB/s from this memory. So
one core's ``memcpy`` limits an upload from ordinary memory, and CUDA calls all host functions on one thread. If there
are cores to spare, that thread shares each large copy with a few *helpers*, copies a part itself, and returns when the
whole copy is done: a fork and join in machine code. The helpers are threads that the C library made. Python does not
know them, they take no lock and never ask for the GIL. No helper waits for a device. After a copy the helpers poll for
the next copy for about 80 µs, because the chunks of one upload follow each other. Then they sleep on a futex.

All threads copy by stores past the cache, or by the C library's ``memcpy`` on processors other than x86-64.

The code is in ``_core/copies.c``. The threads share a structure in memory that is never freed. The protocol:

- To make a copy, a thread sets ``busy`` and becomes the copy's owner. If ``busy`` was already set, the thread makes
  its copy alone.
- The owner writes the copy's addresses and length, zeroes ``next``, and opens the copy by setting ``open``. Then it
  increments ``generation``, on which idle helpers wait, and wakes them. Every thread claims pieces of the copy by
  adding to ``next``.
- A helper adds itself to ``inside`` *before* it checks whether a copy is open. The owner closes the copy *before* it
  checks ``inside``, and leaves only when ``inside`` is 0. So either the helper sees the copy closed, or the owner waits
  for the helper: no helper claims a piece of one copy with the addresses of another.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from typing import TYPE_CHECKING, Final, final

from oxide.host.core import MOVE, ROW_BYTES, SHARE_COPY, copy, start_helpers
from oxide.host.locks import new_lock, unheld

if TYPE_CHECKING:
    from oxide.driver.base import Driver, StreamHandle

PIECE_BYTES = 128 << 10
"""The number of bytes that a thread claims at once: 13 µs of one core's time. So the other threads wait only briefly
for the last thread to finish."""

MOST_HELPERS = 11
"""The largest number of helpers, so that the other cores are left for the program.

Throughput of uploads of 64 MiB in chunks of 8 MiB, on an H100's machine of 16 cores: 6.2 GB/s without helpers, 19.7
with 3 helpers, 27.7 with 7 and 29.7 with 11. The helpers share the memory's bandwidth with the device: while 11 helpers
write 41 GB/s, the device's own copy of other memory falls from 54 to 45 GB/s. Fewer helpers were no clear gain.
"""

_LOOKS = 4000
"""The number of polls before a helper sleeps, and before an owner that waits for a helper calls ``sched_yield``: 60 to
100 µs on an H200's machine. Waking a helper takes 10 µs: an upload of 1 MiB by a program that waits for each one took
71 µs with 1000 polls, 66 with 2000 and 57 with 4000.

Each poll is the processor's pause instruction. If it were ``sched_yield``, a helper that shares its core with another
thread, such as a thread of NumPy's, would give up its time slice at each poll. Linux 6.18 would then run the helper a
tick of 4 ms later, and the copy would wait for the helper.
"""


@final
class CopyPool:
    """The threads of this process that help to copy host memory. ``address`` is that of the structure that they share;
    a row for ``core.SHARE_COPY`` holds it as its ``pool``."""

    def __init__(self, helpers: int) -> None:
        assert start_helpers is not None
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # only Python's threads get signals
        try:
            self.address, self.helpers = start_helpers(helpers, PIECE_BYTES, _LOOKS)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def copy_pool() -> CopyPool | None:
    """Returns the process's pool. The first call starts its threads. Returns None if the process may use only one core,
    if the core has no helpers here, or if no thread could be started."""
    global _pool
    if _pool is None:
        with unheld(_lock):
            if _pool is None:
                _pool = (_make(),)
    return _pool[0]


_lock = new_lock()
_pool: tuple[CopyPool | None] | None = None


def _make() -> CopyPool | None:
    if start_helpers is None or sys.platform != "linux":
        return None
    helpers = min(MOST_HELPERS, len(os.sched_getaffinity(0)) - 1)
    pool = CopyPool(helpers) if helpers > 0 else None
    return pool if pool is not None and pool.helpers else None


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
