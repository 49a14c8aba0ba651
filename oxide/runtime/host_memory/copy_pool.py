"""Threads that help the device's host-function thread to copy: one core's memcpy has a sixth of the bus's bandwidth.

On an H100's machine one core copies 9 GB/s into page-locked memory, and the device reads 55 GB/s from there. So the
memcpy limits an upload from ordinary memory. CUDA calls all host functions on one thread. Here that thread shares each
copy with a few helpers, copies too, and returns when all is done: fork and join in machine code. The helpers are
threads of the C library. Python does not know them, they take no lock and never ask for the GIL. None waits for a
device. After a copy they poll for the next one for about 50 µs, because the chunks of one upload follow each other.
Then they sleep in the kernel (a futex).

``streaming_copy`` does the copying where it is available, else the C library's ``memcpy``.

The protocol works on a structure in memory that is never freed:

- The owner of a copy takes ``busy``. A thread that does not get it copies alone.
- The owner writes the copy down, zeroes ``next``, opens the copy and wakes the helpers. Every thread claims pieces by
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
import threading
from typing import Any, final

from oxide.runtime.host_memory.streaming_copy import streaming_copy_address
from oxide.runtime.loop.alarm import native_function

PIECE_BYTES = 128 << 10
"""The bytes claimed at once: 13 µs of one core's time, so that the others wait little for the last to finish."""

MOST_HELPERS = 11
"""The largest number of helpers. The program needs the other cores.

Uploads of 64 MiB in chunks of 8 MiB on an H100's machine of 16 cores: 6.2 GB/s without helpers, 19.7 with 3, 27.7 with
7, 29.7 with 11 (29.8 in chunks of 16 MiB; 18.3 of 4).

The helpers share the memory with the device. Next to 11 helpers that store past the cache at 41 GB/s, the device's own
copy of other memory falls from 54 to 45 GB/s, and faster hand-overs then gain nothing. Fewer helpers are no clear gain:
four uploads at once were 1 to 9 per cent faster with 5 or 7 in two runs, and 7 per cent slower with 7 in a third.
"""

_LOOKS = 200  # polls before a helper sleeps, at about 0.25 µs each

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}


@final
class CopyPool:
    """The helpers of this process. ``address`` is the address of their shared structure, for ``copy_function``."""

    def __init__(self, helpers: int, futex: int) -> None:
        self.helpers = helpers
        page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        libc = ctypes.CDLL(None)
        functions = [ctypes.cast(function, ctypes.c_void_p).value for function in (libc.syscall, libc.sched_yield)]
        constants = [streaming_copy_address(), *functions, futex, helpers, _LOOKS]
        for position, number in enumerate([PIECE_BYTES, *constants]):
            ctypes.c_uint64.from_address(self.address + _CONSTANTS + 8 * position).value = number or 0
        help_address, code = native_function(_HELP_CODE, COPY_IR, "oxide_copy_help")
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
    """Returns the address of ``void copy(void *row)``. A row is destination, source, bytes and a pool's address."""
    global _copy
    if _copy is None:
        _copy = native_function(_COPY_CODE, COPY_IR, "oxide_copy_together")
    return _copy[0]


_lock = threading.Lock()
_pool: tuple[CopyPool | None] | None = None
_copy: tuple[int, Any] | None = None


def _make() -> CopyPool | None:
    futex = _SYS_FUTEX.get(platform.machine()) if sys.platform == "linux" else None
    helpers = min(MOST_HELPERS, len(os.sched_getaffinity(0)) - 1) if futex is not None else 0
    if futex is None or helpers < 1:
        return None
    pool = CopyPool(helpers, futex)
    return pool if pool.helpers else None


_CONSTANTS = 320

# The output of LLVM 22 for the IR below (``opt -O2``, ``llc`` with position-independent code, for the baseline of each
# processor). It is stored because the first upload must not wait for a compiler; a test compiles it again and compares.
_COPY_CODE = {
    "x86_64": bytes.fromhex(
        "55415741564155415453504889f8488b3f488b7008488b5010488b5818b90100000031c0f00fb14b400f85d90000004889bb"
        "800100004889b3880100004889939001000031c0488783c0000000878b80000000f0ff0348c7042400000000488bbb600100"
        "00488b8b68010000ba810000004889de31c0ff93500100004c8bbb400100004c8ba3480100004c8bab80010000488bab8801"
        "00004c8bb390010000904c89fef0480fc1b3c00000004c89f24829f24885d27e134c39fa490f4dd74a8d3c2e4801ee41ffd4"
        "ebd6488b04248783800000006666662e0f1f840000000000488b83000100004885c07408ff9358010000ebec31c087434048"
        "83c4085b415c415d415e415f5dc3488b83480100004883c4085b415c415d415e415f5dffe0"
    ),
    "aarch64": bytes.fromhex(
        "fe0f1bf8fa6701a9f85f02a9f65703a9f44f04a9024c41a9e80300aa000040f9010540f9290080527402019188fe5f880807"
        "003589fe0888a8ffff35750203916802029129008052600618a962ca00f9bffe9fc809fd9f8868fe5f880805001168fe0988"
        "a9ffff35600e56a9e10313aa68aa40f92210805200013fd6765e54a97aca40f9786658a9a8fe5fc80901168ba9fe0ac8aaff"
        "ff35490308cb3f0500f1ab0100543f0116eb0003088b2103088b22b1969ae0023fd6a8fe5fc80901168ba9fe0ac8aaffff35"
        "490308cb3f0100f1acfeff54680202911ffd9f886802049108fddfc8880000b468ae40f900013fd6fbffff179ffe9f88f44f"
        "44a9f65743a9f85f42a9fa6741a9fe0745f8c0035fd65f3f03d563a640f9f44f44a9f65743a9f85f42a9fa6741a9fe0745f8"
        "60001fd6"
    ),
}

_HELP_CODE = {
    "x86_64": bytes.fromhex(
        "554157415641554154534883ec284889fb488b875001000048894424104c8bbf58010000488b87600100004889442408488b"
        "877001000048ffc048894424184c897c2420eb22662e0f1f840000000000ba80000000488b7c24084889de89e94531c031c0"
        "ff5424108b0389442404f048ff83000100008b838000000085c074604c8bbb400100004c8bb3480100004c8bab800100004c"
        "8ba388010000488bab90010000666666662e0f1f8400000000004c89fef0480fc1b3c00000004889ea4829f24885d27e194c"
        "39fa490f4dd74a8d3c2e4c01e641ffd6ebd6660f1f440000f048ff8b000100008b038b6c240439e84c8b7c24200f856dffff"
        "ff4c8b74241849ffce0f8447ffffff41ffd78b0339e874eee951ffffff"
    ),
    "aarch64": bytes.fromhex(
        "ffc301d1fd7b01a9fc6f02a9fa6703a9f85f04a9f65705a9f44f06a908b840f90a5c55a909b040f9f30300aa180004911900"
        "03911a050091e92b00a907000014e02340a9e10313aa02108052e303152ae4031faa00013fd675fedf8808ff5fc808050091"
        "08ff09c8a9ffff356802029108fddf88e80200347b7254a974ca40f97d5a58a928ff5fc809011b8b29ff0ac8aaffff358902"
        "08cb3f0500f1ab0100543f011beba003088bc102088b22b19b9a80033fd628ff5fc809011b8b29ff0ac8aaffff35890208cb"
        "3f0100f1acfeff5408ff5fc8080500d108ff09c8a9ffff3568fedf881f01156b81fbff54f4031aaa940600f160faff54e002"
        "3fd668fedf881f01156b60ffff54d4ffff17"
    ),
}

COPY_IR = """
; The pool: u32 generation at 0, u32 busy at 64, u32 open at 128, i64 next at 192, i64 inside at 256 (each in a cache
; line of its own), then constants from 320: piece, memcpy, syscall, sched_yield, the number of futex, helpers, looks;
; and from 384 the copy: destination, source, bytes.

define internal void @share(ptr %pool) alwaysinline {
  %next = getelementptr i8, ptr %pool, i64 192
  %piece_field = getelementptr i8, ptr %pool, i64 320
  %memcpy_field = getelementptr i8, ptr %pool, i64 328
  %job = getelementptr i8, ptr %pool, i64 384
  %source_field = getelementptr i8, ptr %pool, i64 392
  %size_field = getelementptr i8, ptr %pool, i64 400
  %piece = load i64, ptr %piece_field
  %memcpy = load ptr, ptr %memcpy_field
  %destination = load ptr, ptr %job
  %source = load ptr, ptr %source_field
  %size = load i64, ptr %size_field
  br label %claim
claim:
  %begin = atomicrmw add ptr %next, i64 %piece seq_cst
  %left = sub i64 %size, %begin
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %copy, label %done
copy:
  %whole = icmp sgt i64 %left, %piece
  %bytes = select i1 %whole, i64 %piece, i64 %left
  %to = getelementptr i8, ptr %destination, i64 %begin
  %from = getelementptr i8, ptr %source, i64 %begin
  %ignored = call ptr %memcpy(ptr %to, ptr %from, i64 %bytes)
  br label %claim
done:
  ret void
}

define void @oxide_copy_together(ptr %row) {
  %row_source = getelementptr i8, ptr %row, i64 8
  %row_size = getelementptr i8, ptr %row, i64 16
  %row_pool = getelementptr i8, ptr %row, i64 24
  %destination = load ptr, ptr %row
  %source = load ptr, ptr %row_source
  %size = load i64, ptr %row_size
  %pool = load ptr, ptr %row_pool
  %busy = getelementptr i8, ptr %pool, i64 64
  %open = getelementptr i8, ptr %pool, i64 128
  %next = getelementptr i8, ptr %pool, i64 192
  %inside = getelementptr i8, ptr %pool, i64 256
  %memcpy_field = getelementptr i8, ptr %pool, i64 328
  %syscall_field = getelementptr i8, ptr %pool, i64 336
  %yield_field = getelementptr i8, ptr %pool, i64 344
  %futex_field = getelementptr i8, ptr %pool, i64 352
  %helpers_field = getelementptr i8, ptr %pool, i64 360
  %job = getelementptr i8, ptr %pool, i64 384
  %source_field = getelementptr i8, ptr %pool, i64 392
  %size_field = getelementptr i8, ptr %pool, i64 400
  %swap = cmpxchg ptr %busy, i32 0, i32 1 seq_cst seq_cst
  %mine = extractvalue { i32, i1 } %swap, 1
  br i1 %mine, label %together, label %alone
alone:
  %memcpy = load ptr, ptr %memcpy_field
  %ignored = call ptr %memcpy(ptr %destination, ptr %source, i64 %size)
  ret void
together:
  store ptr %destination, ptr %job
  store ptr %source, ptr %source_field
  store i64 %size, ptr %size_field
  store atomic i64 0, ptr %next seq_cst, align 8
  store atomic i32 1, ptr %open seq_cst, align 4
  %generation = atomicrmw add ptr %pool, i32 1 seq_cst
  %syscall = load ptr, ptr %syscall_field
  %futex = load i64, ptr %futex_field
  %helpers = load i64, ptr %helpers_field
  %woken = call i64 (i64, ...) %syscall(i64 %futex, ptr %pool, i64 129, i64 %helpers)  ; FUTEX_WAKE_PRIVATE
  call void @share(ptr %pool)
  store atomic i32 0, ptr %open seq_cst, align 4
  br label %check
check:
  %left = load atomic i64, ptr %inside seq_cst, align 8
  %all_out = icmp eq i64 %left, 0
  br i1 %all_out, label %done, label %wait
wait:
  %yield = load ptr, ptr %yield_field
  %yielded = call i32 %yield()
  br label %check
done:
  store atomic i32 0, ptr %busy seq_cst, align 4
  ret void
}

define ptr @oxide_copy_help(ptr %pool) {
entry:
  %open = getelementptr i8, ptr %pool, i64 128
  %inside = getelementptr i8, ptr %pool, i64 256
  %syscall_field = getelementptr i8, ptr %pool, i64 336
  %yield_field = getelementptr i8, ptr %pool, i64 344
  %futex_field = getelementptr i8, ptr %pool, i64 352
  %looks_field = getelementptr i8, ptr %pool, i64 368
  %syscall = load ptr, ptr %syscall_field
  %yield = load ptr, ptr %yield_field
  %futex = load i64, ptr %futex_field
  %looks = load i64, ptr %looks_field
  br label %again
again:
  %generation = load atomic i32, ptr %pool seq_cst, align 4
  %entered = atomicrmw add ptr %inside, i64 1 seq_cst
  %state = load atomic i32, ptr %open seq_cst, align 4
  %is_open = icmp ne i32 %state, 0
  br i1 %is_open, label %work, label %leave
work:
  call void @share(ptr %pool)
  br label %leave
leave:
  %left = atomicrmw sub ptr %inside, i64 1 seq_cst
  br label %look
look:
  %count = phi i64 [ 0, %leave ], [ %counted, %pause ]
  %now = load atomic i32, ptr %pool seq_cst, align 4
  %same = icmp eq i32 %now, %generation
  br i1 %same, label %tired, label %again
tired:
  %enough = icmp eq i64 %count, %looks
  br i1 %enough, label %sleep, label %pause
pause:
  %counted = add i64 %count, 1
  %yielded = call i32 %yield()
  br label %look
sleep:
  %woken = call i64 (i64, ...) %syscall(i64 %futex, ptr %pool, i64 128, i32 %generation, ptr null)  ; FUTEX_WAIT_PRIVATE
  br label %again
}
"""
