"""Crash reports: a line on standard error that names the kernel whose memory access ends the process.

A kernel without bounds checks may access memory that is not the process's. On the CPU device a signal then ends the
process. Before that, a signal handler looks up the kernel whose code was running, and prints the kernel's name and how
to find the access. Then the signal's previous action runs: the handler of Python's ``faulthandler``, for example, or
the system's action. ``OXIDE_CRASH_REPORT=0`` turns crash reports off. They exist on Linux, for x86-64 and AArch64.
"""

from __future__ import annotations

import ctypes
import platform
import signal
import sys
from typing import Any, Final

from oxide.compiler.cpu.native_functions import host_function
from oxide.compiler.ir.files import ir_file
from oxide.compiler.specialization import Specialization
from oxide.driver.records import CRASH_KERNEL, CRASH_TABLE
from oxide.environment import word
from oxide.errors import place_name
from oxide.locks import new_lock, unheld

_COUNTERS: Final = {"x86_64": 168, "aarch64": 440}
"""The offset of the program counter in a ``ucontext_t``, in bytes, by machine."""

_SIGNALS: Final = (signal.SIGSEGV, signal.SIGBUS)
_SA_SIGINFO, _SA_ONSTACK = 4, 0x08000000


class _Action(ctypes.Structure):
    """The C library's ``struct sigaction``."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_lock: Final = new_lock()
_kernels: Final[list[tuple[int, int, bytes]]] = []
_kept: Final[list[Any]] = []  # tables for the handler; never freed, as a handler may be reading one
_handler: list[Any] = []


def watch(specialization: Specialization, function: Any) -> None:
    """Adds a kernel to the crash reports. Call it for a kernel that was loaded for the CPU device and whose accesses
    are not all checked. Does nothing if crash reports are off or do not exist for this system."""
    code: tuple[int, int] | None = getattr(function, "code_range", None)
    if code is None or sys.platform != "linux" or platform.machine() not in _COUNTERS:
        return
    if word("OXIDE_CRASH_REPORT", ("0", "1")) == "0":
        return
    described = specialization.description
    source = described.function.__code__
    place = place_name(source.co_filename, source.co_firstlineno)
    text = (
        f"oxide: kernel {described.name} ({place}) accessed memory that is not the "
        "process's, where nothing checks its accesses. OXIDE_SANITIZE=memory finds the access.\n"
    )
    with unheld(_lock):
        _kernels.append((*code, text.encode(errors="backslashreplace")))
        _publish()


def _publish() -> None:
    """Gives the handler a new table of all recorded kernels. The first call installs the handler."""
    library = ctypes.CDLL(None)
    made = [CRASH_KERNEL.structure(first, end, text, len(text)) for first, end, text in _kernels]
    records = (CRASH_KERNEL.structure * len(made))(*made)
    table = CRASH_TABLE.structure(
        ctypes.cast(library.write, ctypes.c_void_p).value,
        ctypes.cast(library.sigaction, ctypes.c_void_p).value,
        _COUNTERS[platform.machine()],
        len(made),
        ctypes.addressof(records),
    )
    installs = not _handler
    if installs:
        address, memory = host_function(ir_file(__file__, "crash_reports.ll"), "oxide_crash")
        take = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(address)
        _handler.extend([take, memory, {number: _Action() for number in _SIGNALS}])
    take, _, before = _handler
    for number, action in before.items():
        table.before[number] = ctypes.addressof(action)
    _kept.append((records, table))
    take(0, ctypes.addressof(table), None)
    if installs:
        new = _Action(ctypes.cast(take, ctypes.c_void_p).value, flags=_SA_SIGINFO | _SA_ONSTACK)
        for number, action in before.items():
            library.sigaction(int(number), ctypes.byref(new), ctypes.byref(action))
