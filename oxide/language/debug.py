"""For finding out what a kernel does: the clock, and stops. ``print(…)`` works in kernels too.

These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import NoReturn


def clock64() -> int:
    """The cycles that the multiprocessor, or on the CPU device the processor's time stamp, has counted: an ``i64``.

    Differences between two readings in one thread mean something; those between threads do not."""
    _only_in_a_kernel("clock64")


def trap() -> None:
    """Stops. On a GPU the whole context is lost, as after any hardware fault: everything in flight fails with a
    ``DeviceLostError``, and the process cannot use the device any more. On the CPU device the thread ends and the
    launch fails with a ``KernelAssertionError``. An ``assert`` fails the launch alone, on both."""
    _only_in_a_kernel("trap")


def breakpoint() -> None:
    """Stops in the debugger that is attached, such as cuda-gdb. Without one it is a ``trap``, and so it is on the CPU
    device, where no debugger knows the kernel's source."""
    _only_in_a_kernel("breakpoint")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"debug.{name} has a meaning only inside a @kernel, where the compiler gives it one")
