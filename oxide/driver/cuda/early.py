"""A GPU's slowest first steps, begun beside the imports that they would otherwise wait for.

Initialising the driver and making a device's context take some 0.2 s, during which the driver needs no GIL; importing
cuda.bindings and cuda.core takes as long, and needs nothing of the driver. So a thread makes the context while this one
imports. Nobody who needs the device waits for the thread: the driver itself makes whoever asks next for the same thing
wait until it is there, and a failure is met again, and reported, by the call that needs what failed. Only the
interpreter's end waits for it: a process that ends while the driver starts dies in the driver's own clean-up.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any

from oxide.driver.cuda import probe


def start_early(device: int) -> threading.Thread | None:
    """Begins to open a device's primary context, and imports the driver module meanwhile; None without libcuda.

    The context stays retained until the process ends, as it does through cuda.core. Never raises.
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
        import oxide.driver.cuda.driver  # noqa: F401
    return thread


def _open(library: Any, device: int) -> None:
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(handle), device) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
