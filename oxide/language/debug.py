"""Debugging aids inside a kernel: a clock, traps and breakpoints. ``print(…)`` works in kernels too.

These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from . import primitives


@primitives.function
def clock64() -> int:
    """Returns the cycle count of the multiprocessor, or on the CPU device the processor's time stamp, as an ``i64``.

    Only differences between two readings in one thread are meaningful."""


@primitives.function
def trap() -> None:
    """Stops execution. On a GPU the whole context is lost, as after any hardware fault: everything in flight fails
    with a ``DeviceLostError``, and the process cannot use the device any more. On the CPU device the thread ends and
    the launch fails with a ``KernelAssertionError``. An ``assert`` fails only the launch, on both devices."""


@primitives.function
def breakpoint() -> None:
    """Stops in an attached debugger, such as cuda-gdb. Without a debugger it acts as ``trap``. On the CPU device it
    always acts as ``trap``, because debuggers do not know the source of kernels on that device."""
