"""Threads that help the device's host-function thread to copy: one core's memcpy has a sixth of the bus's bandwidth.

On an H100's machine one core copies 9 GB/s into page-locked memory, and the device reads 55 GB/s from this memory. So
one core's ``memcpy`` limits an upload from ordinary memory. CUDA calls all host functions on one thread. That thread
shares each copy with a few *helpers*, copies a part itself, and returns when the whole copy is done: a fork and join in
machine code. The helpers are threads that the C library made. Python does not know them, they take no lock and never
ask for the GIL. No helper waits for a device. After a copy the helpers poll for the next copy for about 80 µs, because
the chunks of one upload follow each other. Then they sleep on a futex.

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

import os
import signal
import sys
from typing import final

from oxide.host.core import start_helpers
from oxide.host.locks import new_lock, unheld

PIECE_BYTES = 128 << 10
"""The number of bytes that a thread claims at once: 13 µs of one core's time. So the other threads wait only briefly
for the last thread to finish."""

MOST_HELPERS = 11
"""The largest number of helpers, so that the other cores are left for the program.

Throughput of uploads of 64 MiB in chunks of 8 MiB, on an H100's machine of 16 cores: 6.2 GB/s without helpers, 19.7
with 3 helpers, 27.7 with 7 and 29.7 with 11. With 11 helpers, chunks of 16 MiB give 29.8 GB/s and chunks of 4 MiB 18.3.

The helpers share the memory's bandwidth with the device. While 11 helpers write 41 GB/s by non-temporal stores, the
device's own copy of other memory falls from 54 to 45 GB/s, and handing over chunks faster then gains nothing. Fewer
helpers are no clear gain: with 5 or 7 helpers, four uploads at once were 1 to 9 per cent faster in two runs, and with 7
they were 7 per cent slower in a third run.
"""

_LOOKS = 4000
"""The number of polls before a helper sleeps, and before an owner that waits for a helper calls ``sched_yield``: 60 to
100 µs on an H200's machine. With 1000 polls the helpers slept 20 µs after a copy there, before the next upload of a
program that waits for each. Waking them takes 10 µs: one such upload of 1 MiB took 71 µs with 1000 polls, 66 with 2000
and 57 with 4000.

Each poll is the processor's pause instruction. If it were ``sched_yield``, a helper that shares its core with another
thread, such as a thread of NumPy's, would give up its time slice at each poll. Linux 6.18 would then run the helper a
tick of 4 ms later, and the copy would wait for the helper. A step of ``examples.why_slow`` with an upload of 16 MiB, on
an H100's machine, took 4.3 ms with ``sched_yield`` in all of nine runs. With the pause instruction it takes 1.8 to 4.0
ms, with a median of 2.4 ms in six runs.
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
