"""Threads that help the device's host-function thread to copy: one core's memcpy has a sixth of the bus's bandwidth.

On an H100's machine one core copies 9 GB/s into page-locked memory, and the device reads 55 GB/s from this memory. So
one core's ``memcpy`` limits an upload from ordinary memory. CUDA calls all host functions on one thread. That thread
shares each copy with a few *helpers*, copies a part itself, and returns when the whole copy is done: a fork and join in
machine code. The helpers are threads that the C library made. Python does not know them, they take no lock and never
ask for the GIL. No helper waits for a device. After a copy the helpers poll for the next copy for about 50 µs, because
the chunks of one upload follow each other. Then they sleep on a futex.

All threads copy by ``streaming_copy``, which is the C library's ``memcpy`` on processors other than x86-64.

The threads share a structure, ``COPY_POOL`` of ``driver/records.py``, in memory that is never freed. The protocol:

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
import mmap
import os
import platform
import signal
import sys
from typing import Any, final

from oxide.compiler.cpu.native_functions import host_function
from oxide.compiler.ir.files import ir_file
from oxide.driver.records import COPY_POOL
from oxide.locks import new_lock, unheld
from oxide.runtime.host_memory.streaming_copy import streaming_copy_address

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

_LOOKS = 1000
"""The number of polls before a helper sleeps, and before an owner that waits for a helper calls ``sched_yield``: about
50 µs.

Each poll is the processor's pause instruction. If it were ``sched_yield``, a helper that shares its core with another
thread, such as a thread of NumPy's, would give up its time slice at each poll. Linux 6.18 would then run the helper a
tick of 4 ms later, and the copy would wait for the helper. A step of ``examples.why_slow`` with an upload of 16 MiB, on
an H100's machine, took 4.3 ms with ``sched_yield`` in all of nine runs. With the pause instruction it takes 1.8 to 4.0
ms, with a median of 2.4 ms in six runs.
"""

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}


@final
class CopyPool:
    """The threads of this process that help to copy host memory. ``address`` is the address of the ``COPY_POOL``
    structure that they share; a row for ``copy_function`` holds it as its ``copier``."""

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
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # only Python's threads get signals
        try:
            started = 0
            while started < helpers and not create(ctypes.addressof(thread), None, help_address, self.address):
                libc.pthread_detach(thread)
                started += 1
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.helpers = started


def copy_pool() -> CopyPool | None:
    """Returns the process's pool. The first call starts its threads. Returns None if the process may use only one core,
    if the system has no futex, or if no thread could be started."""
    global _pool
    if _pool is None:
        with unheld(_lock):
            if _pool is None:
                _pool = (_make(),)
    return _pool[0]


def copy_function() -> int:
    """Returns the address of the native ``void copy(void *row)``. It makes the copy that a ``COPY_ROW`` describes,
    together with the helpers of the pool whose ``address`` is the row's ``copier``."""
    global _copy
    if _copy is None:
        _copy = host_function(code_for(platform.machine()), "oxide_copy_together")
    return _copy[0]


_lock = new_lock()
_pool: tuple[CopyPool | None] | None = None
_copy: tuple[int, Any] | None = None


def code_for(machine: str) -> str:
    """Returns the IR of the native ``copy`` and of the helpers. ``machine`` is the name of the machine that runs the
    code, as ``platform.machine`` gives it."""
    declared, pause = _PAUSE[machine]
    return ir_file(__file__, "copy_pool.ll").replace("<declared>", declared).replace("<pause>", pause)


def _make() -> CopyPool | None:
    futex = _SYS_FUTEX.get(platform.machine()) if sys.platform == "linux" else None
    helpers = min(MOST_HELPERS, len(os.sched_getaffinity(0)) - 1) if futex is not None else 0
    if futex is None or helpers < 1:
        return None
    pool = CopyPool(helpers, futex)
    return pool if pool.helpers else None
