"""The alarm that wakes an event loop: a file descriptor, and the native function that a device's callback calls.

On Linux (x86-64 and AArch64) the function is given as about twenty bytes of machine code, because the first task that
parks must not wait for a compiler: importing LLVM and compiling the function takes 30 to 70 ms, which would be the
loop's longest stall. On other systems it is compiled from IR.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import sys
from typing import Any, ClassVar, final


@final
class Alarm:
    """A file descriptor that a native callback makes readable.

    It is never closed, because a callback may still be on its way when its loop ends. Instead it is reused by the next
    loop, where a late callback is only a spurious wake-up.
    """

    _spare: ClassVar[list[Alarm]] = []

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.descriptor = self.argument = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.descriptor, self.argument = os.pipe()
            os.set_blocking(self.descriptor, False)
            os.set_blocking(self.argument, False)

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
            os.write(self.argument, (1).to_bytes(8, sys.byteorder))

    def clear(self) -> None:
        """Makes the descriptor unreadable until the next callback."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)


def notify_function() -> int:
    """Returns the address of ``void notify(void *argument)``, which writes the eight bytes of the number 1 to an alarm.

    The function takes no lock, allocates nothing and does not use Python.
    """
    global _notify
    if _notify is None:
        _notify = native_function(_MACHINE_CODE, _IR, "oxide_notify")
    return _notify[0]


def native_function(machine_code: dict[str, bytes], ir: str, name: str) -> tuple[int, Any]:
    """Returns a function's address, and the object that keeps it alive. Uses machine code for this processor if there
    is any, else compiles the IR."""
    code = machine_code.get(platform.machine()) if sys.platform == "linux" else None
    mapped = None if code is None else _map(code)
    return mapped if mapped is not None else compiled_function(ir, name)


_notify: tuple[int, Any] | None = None

_MACHINE_CODE = {
    "x86_64": bytes.fromhex(
        "b801000000"  # mov eax, 1 (write)
        "488d3508000000"  # lea rsi, [rip + 8] (the number below)
        "ba08000000"  # mov edx, 8
        "0f05"  # syscall
        "c3"  # ret
        "0100000000000000"
    ),
    "aarch64": bytes.fromhex(
        "080880d2"  # mov x8, 64 (write)
        "a1000010"  # adr x1, the number below
        "020180d2"  # mov x2, 8
        "010000d4"  # svc 0
        "c0035fd6"  # ret
        "1f2003d5"  # nop
        "0100000000000000"
    ),
}
"""The descriptor is the first argument of both the function and the system call, so its register stays unchanged."""

_IR = """
@one = private constant i64 1
declare i64 @write(i32, ptr, i64)
define void @oxide_notify(ptr %argument) {
  %wide = ptrtoint ptr %argument to i64
  %descriptor = trunc i64 %wide to i32
  %written = call i64 @write(i32 %descriptor, ptr @one, i64 8)
  ret void
}
"""


def _map(code: bytes) -> tuple[int, Any] | None:
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    libc = ctypes.CDLL(None, use_errno=True)
    protection = mmap.PROT_READ | mmap.PROT_EXEC  # never writable and executable at once
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), protection):
        return None  # the system forbids it
    return address, page


def compiled_function(ir: str, name: str) -> tuple[int, Any]:
    """Compiles the function from its IR, for processors without machine code here."""
    from oxide.compiler.cpu.native import compile_host_function

    return compile_host_function(ir, name)
