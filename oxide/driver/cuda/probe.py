"""Detects through libcuda itself whether CUDA can be used.

This module uses only ctypes: without an NVIDIA driver it costs one failed ``dlopen``, not the 70 ms of importing
``cuda.bindings``. Import ``oxide.driver.cuda.driver`` only if ``available()`` is True.
"""

from __future__ import annotations

import ctypes
import importlib.util

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
