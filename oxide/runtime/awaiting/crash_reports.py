"""Crash reports: a line on standard error that names the kernel whose memory access ends the process.

A kernel without bounds checks may access memory that is not the process's. On the CPU device a signal then ends the
process. Before that, a signal handler looks up the kernel whose code was running, and prints the kernel's name and how
to find the access. Then the signal's previous action runs: the handler of Python's ``faulthandler``, for example, or
the system's action. ``OXIDE_CRASH_REPORT=0`` turns crash reports off. They exist on Linux, for x86-64 and AArch64, and
need the extension (``host/core.py``).
"""

from __future__ import annotations

from typing import Any, Final

from oxide.compiler.kernel.specialization import Specialization
from oxide.errors import place_name
from oxide.host.core import watch_kernel
from oxide.host.environment import word
from oxide.host.locks import new_lock, unheld

_lock: Final = new_lock()


def watch(specialization: Specialization, function: Any) -> None:
    """Adds a kernel to the crash reports. Call it for a kernel that was loaded for the CPU device and whose accesses
    are not all checked. Does nothing if crash reports are off or do not exist for this system."""
    code: tuple[int, int] | None = getattr(function, "code_range", None)
    if code is None or watch_kernel is None:
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
        watch_kernel(*code, text.encode(errors="backslashreplace"))
