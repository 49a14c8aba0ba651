"""Starts a GPU in a thread, while the calling thread imports the CUDA packages.

Initialising the driver and making a device's context takes some 0.2 s, during which the driver needs no GIL. Importing
cuda.bindings and cuda.core takes as long, and does not use the driver. So a thread makes the context during the
imports. Users of the device do not wait for the thread: the driver itself makes the next caller that needs the context
wait until the context exists. If a step in the thread fails, it fails again, and is reported, in the first call that
needs it. Only the interpreter's end waits for the thread, because a process crashes in the driver's own clean-up if it
ends while the driver is starting.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any

from oxide.driver.cuda import probe
from oxide.host.uninterrupted import import_whole


def start_early(device: int) -> threading.Thread | None:
    """Starts to open a device's primary context in a thread, and imports the driver module meanwhile.

    Returns the thread, or None if there is no libcuda or the system has no more threads. Never raises. The context
    stays retained until the process ends, like a context that cuda.core retains.
    """
    try:
        library = probe.libcuda()
    except OSError:
        return None
    thread = threading.Thread(target=_open, args=(library, device), name="oxide CUDA start", daemon=False)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return None
    with contextlib.suppress(ImportError):
        import_whole("oxide.driver.cuda.driver")
    return thread


def _open(library: Any, device: int) -> None:
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(handle), device) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
