"""Detects through libcuda itself whether CUDA can be used, and starts a GPU early.

This module uses only ctypes: without an NVIDIA driver it costs one failed ``dlopen``, not the 70 ms of importing
``cuda.bindings``. Import ``oxide.driver.cuda.driver`` only if ``available()`` is True.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import threading

LIBRARY = "libcuda.so.1"


def available() -> bool:
    """Returns whether there is a CUDA device that oxide can use. Never raises."""
    return unavailable_reason() is None


def unavailable_reason() -> str | None:
    """Returns the reason why there is no usable CUDA device, as text to follow "no CUDA device: ". Returns None if
    there is a usable device. Never raises.

    Initialises the driver in this process, which creates no context on any device.
    """
    try:
        library = libcuda()
    except OSError as error:
        return f"the NVIDIA driver's {LIBRARY} cannot be loaded ({error}); install the NVIDIA driver"
    code = library.cuInit(0)
    if code:
        return f"cuInit failed with {_describe(library, code)}; see whether nvidia-smi lists a device"
    count = ctypes.c_int()
    code = library.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return f"cuDeviceGetCount failed with {_describe(library, code)}; see whether nvidia-smi lists a device"
    if count.value == 0:
        return "the NVIDIA driver sees no device; see nvidia-smi and CUDA_VISIBLE_DEVICES"
    for package in ("bindings", "core"):
        if not _installed(f"cuda.{package}"):
            return f"the Python package cuda-{package} is not installed; pip install cuda-{package}"
    return None


def libcuda() -> ctypes.CDLL:
    """Loads the driver's library. Calls through it release the GIL. Raises ``OSError`` if it cannot be loaded."""
    return ctypes.CDLL(LIBRARY)


def _describe(library: ctypes.CDLL, code: int) -> str:
    texts = []
    for function in (library.cuGetErrorName, library.cuGetErrorString):
        text = ctypes.c_char_p()
        function(code, ctypes.byref(text))
        texts.append((text.value or b"unknown").decode())
    return f"{texts[0]} ({code}: {texts[1]})"


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def start_early(device: int) -> threading.Thread | None:
    """Starts to open a device's primary context in a thread, and imports the driver module meanwhile.

    Initialising the driver and making a context takes some 0.2 s, during which the driver needs no GIL. Importing
    cuda.bindings and cuda.core takes as long, and does not use the driver. Users of the device do not wait for the
    thread: the driver itself makes the next caller that needs the context wait until the context exists. If a step in
    the thread fails, it fails again, and is reported, in the first call that needs it. Only the interpreter's end waits
    for the thread, because a process crashes in the driver's own clean-up if it ends while the driver is starting.

    Returns the thread, or None if there is no libcuda or the system has no more threads. Never raises. The context
    stays retained until the process ends, like a context that cuda.core retains.
    """
    try:
        library = libcuda()
    except OSError:
        return None
    thread = threading.Thread(target=_open, args=(library, device), name="oxide CUDA start", daemon=False)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return None
    from oxide.host.uninterrupted import import_whole  # imported here: it imports NumPy, and `oxide doctor` none

    with contextlib.suppress(ImportError):
        import_whole("oxide.driver.cuda.driver")
    return thread


def _open(library: ctypes.CDLL, device: int) -> None:
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(handle), device) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
