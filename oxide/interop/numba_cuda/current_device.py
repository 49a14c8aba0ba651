"""The calling thread's current device, as in numba.cuda, and the errors of the driver."""

from __future__ import annotations

import threading

import oxide
from oxide.errors import DeviceError


class CudaDriverError(DeviceError):
    """An error of the CUDA driver, named as in numba.cuda. oxide raises only its subclass ``CudaAPIError``."""


class CudaAPIError(CudaDriverError):
    """An error with one of the CUDA driver's error codes, named as in numba.cuda."""

    def __init__(self, code: int, msg: str) -> None:
        self.code = code
        self.msg = msg
        super().__init__(f"[{code}] {msg}")


state = threading.local()


def current() -> oxide.Device:
    """Returns the calling thread's current device."""
    listed = oxide.devices()
    number: int = getattr(state, "number", 0)
    return listed[number] if number < len(listed) else listed[0]
