"""Driver errors of the CPU device, with CUDA's names and codes, so that one handler serves both kinds of devices."""

from __future__ import annotations

from typing import Literal, TypeAlias

from oxide.errors import DriverError

ErrorName: TypeAlias = Literal[
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_INVALID_DEVICE",
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_HANDLE",
    "CUDA_ERROR_ILLEGAL_STATE",
    "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_NOT_READY",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_NOT_PERMITTED",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
]


def driver_error(name: ErrorName, message: str) -> DriverError:
    """Returns the error with CUDA's code for ``name``."""
    return DriverError(_CODES[name], name, message)


_CODES: dict[ErrorName, int] = {
    "CUDA_ERROR_INVALID_VALUE": 1,
    "CUDA_ERROR_DEINITIALIZED": 4,
    "CUDA_ERROR_INVALID_DEVICE": 101,
    "CUDA_ERROR_INVALID_IMAGE": 200,
    "CUDA_ERROR_INVALID_HANDLE": 400,
    "CUDA_ERROR_ILLEGAL_STATE": 401,
    "CUDA_ERROR_NOT_FOUND": 500,
    "CUDA_ERROR_NOT_READY": 600,
    "CUDA_ERROR_LAUNCH_FAILED": 719,
    "CUDA_ERROR_NOT_PERMITTED": 800,
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": 900,
    "CUDA_ERROR_STREAM_CAPTURE_UNJOINED": 904,
}
