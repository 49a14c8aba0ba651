"""Threads that help the device's host-function thread to copy: one core's memcpy has a sixth of the bus's bandwidth.

On an H100's machine one core copies 9 GB/s into page-locked memory, and the device reads 55 GB/s from there. So the
memcpy limits an upload from ordinary memory. CUDA calls all host functions on one thread. Here that thread shares each
copy with a few helpers, copies too, and returns when all is done: fork and join in machine code. The helpers are
threads of the C library. Python does not know them, they take no lock and never ask for the GIL. No helper waits for a
device. After a copy they poll for the next one for about 50 µs, because the chunks of one upload follow each other.
Then they sleep in the kernel (a futex).

``streaming_copy`` does the copying where it is available, else the C library's ``memcpy``.

The protocol works on a structure in memory that is never freed:

- The owner of a copy takes ``busy``. A thread that does not get it copies alone.
- The owner writes the copy's addresses and length, zeroes ``next``, opens the copy and wakes the helpers. Every thread
  claims pieces by adding to ``next``.
- A helper adds itself to ``inside`` *before* it checks whether a copy is open. The owner closes the copy *before* it
  checks ``inside``, and leaves only when ``inside`` is 0. So either the helper sees the copy closed, or the owner waits
  for the helper: no helper claims a piece of one copy with the addresses of another.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import sys
import threading
from typing import Any, final

from oxide.compiler.cpu.native_functions import host_function
from oxide.compiler.ir.files import ir_file
from oxide.driver.records import COPY_POOL
from oxide.runtime.host_memory.streaming_copy import streaming_copy_address

PIECE_BYTES = 128 << 10
"""The number of bytes that a thread claims at once: 13 µs of one core's time, so that the threads wait little for the
last to finish."""

MOST_HELPERS = 11
"""The largest number of helpers. The program needs the other cores.

Uploads of 64 MiB in chunks of 8 MiB on an H100's machine of 16 cores: 6.2 GB/s without helpers, 19.7 with 3, 27.7 with
7, 29.7 with 11 (29.8 in chunks of 16 MiB; 18.3 of 4).

The helpers share the memory with the device. Next to 11 helpers that store past the cache at 41 GB/s, the device's own
copy of other memory falls from 54 to 45 GB/s, and faster hand-overs then gain nothing. Fewer helpers are no clear gain:
four uploads at once were 1 to 9 per cent faster with 5 or 7 in two runs, and 7 per cent slower with 7 in a third.
"""

_LOOKS = 1000
"""The number of polls before a helper sleeps, and before an owner that waits for a helper gives way: about 50 µs.

A poll is the processor's own pause. With ``sched_yield`` in its place, a helper that shares its core with another
thread, such as one of NumPy's, gives up its time slice at each poll: Linux 6.18 then runs it a tick of 4 ms later, and
the copy waits for it. A step of ``examples.why_slow`` with an upload of 16 MiB took 4.3 ms on an H100's machine in all
of nine runs, and takes 1.8 to 4.0, 2.4 in the median of six.
"""

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}


@final
class CopyPool:
    """The helpers of this process. ``address`` is the address of their shared structure, for ``copy_function``."""

    def __init__(self, helpers: int, futex: int) -> None:
        self.helpers = helpers
        page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        libc = ctypes.CDLL(None)
        shared = COPY_POOL.structure.from_buffer(page)
        self.address = ctypes.addressof(shared)
        shared.piece, shared.memcpy = PIECE_BYTES, streaming_copy_address()
        shared.syscall = ctypes.cast(libc.syscall, ctypes.c_void_p).value
        shared.sched_yield = ctypes.cast(libc.sched_yield, ctypes.c_void_p).value
        shared.futex, shared.helpers, shared.looks = futex, helpers, _LOOKS
        help_address, code = host_function(code_for(platform.machine()), "oxide_copy_help")
        for kept in (page, code):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # leaked: the threads outlive the interpreter
        create = libc.pthread_create
        create.argtypes = (ctypes.c_void_p,) * 4
        thread = ctypes.c_uint64()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for Python's threads
        try:
            started = 0
            while started < helpers and not create(ctypes.addressof(thread), None, help_address, self.address):
                libc.pthread_detach(thread)
                started += 1
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.helpers = started


def copy_pool() -> CopyPool | None:
    """Returns the pool, and starts its threads at the first call. Returns None without a second core or a futex."""
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = (_make(),)
    return _pool[0]


def copy_function() -> int:
    """Returns the address of ``void copy(void *row)``. A row is a ``COPY_ROW`` with a pool's address."""
    global _copy
    if _copy is None:
        _copy = host_function(code_for(platform.machine()), "oxide_copy_together")
    return _copy[0]


_lock = threading.Lock()
_pool: tuple[CopyPool | None] | None = None
_copy: tuple[int, Any] | None = None


def code_for(machine: str) -> str:
    """Returns the IR of the helpers and of their owner for a kind of machine."""
    declared, pause = _PAUSE[machine]
    return ir_file(__file__, "copy_pool.ll").replace("<declared>", declared).replace("<pause>", pause)


def _make() -> CopyPool | None:
    futex = _SYS_FUTEX.get(platform.machine()) if sys.platform == "linux" else None
    helpers = min(MOST_HELPERS, len(os.sched_getaffinity(0)) - 1) if futex is not None else 0
    if futex is None or helpers < 1:
        return None
    pool = CopyPool(helpers, futex)
    return pool if pool.helpers else None
