"""Turns the CUDA driver's error codes into ``DriverError``, or ``DeviceLostError`` if the context is lost.

Some codes are sticky: a kernel broke the context, and every later call in the process reports the same code.
Distinguishing them lets the runtime fail everything in flight at once and keep its other devices.
"""

from __future__ import annotations

from typing import NoReturn

from cuda.bindings import driver

from oxide.errors import DeviceError, DeviceLostError, DriverError

LOST = frozenset(
    int(code)
    for code in (
        driver.CUresult.CUDA_ERROR_ECC_UNCORRECTABLE,
        driver.CUresult.CUDA_ERROR_NVLINK_UNCORRECTABLE,
        driver.CUresult.CUDA_ERROR_CONTAINED,
        driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
        driver.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT,
        driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
        driver.CUresult.CUDA_ERROR_ASSERT,
        driver.CUresult.CUDA_ERROR_HARDWARE_STACK_ERROR,
        driver.CUresult.CUDA_ERROR_ILLEGAL_INSTRUCTION,
        driver.CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,
        driver.CUresult.CUDA_ERROR_INVALID_ADDRESS_SPACE,
        driver.CUresult.CUDA_ERROR_INVALID_PC,
        driver.CUresult.CUDA_ERROR_LAUNCH_FAILED,
        driver.CUresult.CUDA_ERROR_TENSOR_MEMORY_LEAK,
        driver.CUresult.CUDA_ERROR_MPS_CLIENT_TERMINATED,
        driver.CUresult.CUDA_ERROR_EXTERNAL_DEVICE,
    )
)


def check(code: int, call: str) -> None:
    """Raises ``failure(code, call)`` unless the code is success."""
    if code:
        raise failure(code, call)


def failure(code: int, call: str, detail: str = "") -> DeviceError:
    """Returns the exception for a failed driver call.

    ``call`` names the driver's function. ``detail`` is text from the driver or oxide that replaces the description of
    the code.
    """
    name = _name(code)
    error = DriverError(code=int(code), name=name, message=f"{call}: {detail or _text(code)}")
    if int(code) not in LOST:
        return error
    lost = DeviceLostError(
        f"the device's CUDA context is gone: {call} reported {name} ({_text(code)}). A kernel that ran earlier caused "
        f"it; nothing more runs on this device in this process. Restart the process, and run it under "
        f"compute-sanitizer to find the kernel"
    )
    lost.__cause__ = error
    return lost


def raise_core_failure(error: Exception, call: str) -> NoReturn:
    """Raises the exception of ``failure`` in place of ``error``, an exception of cuda.core. The message of ``error``
    may begin with the name of the driver's error code."""
    name, _, detail = str(error).partition(":")
    code = next((int(result) for result in driver.CUresult if result.name == name), None)
    if code is None:
        code, detail = _code_behind(), str(error)
    raise failure(code, call, detail.strip())


def _code_behind() -> int:
    """Returns the error code behind cuda.core's "Failed to create CUDA event", by asking the driver for an event."""
    try:
        error, event = driver.cuEventCreate(0)
    except RuntimeError:
        return int(driver.CUresult.CUDA_ERROR_UNKNOWN)
    if error:
        return int(error)
    driver.cuEventDestroy(event)
    return int(driver.CUresult.CUDA_ERROR_UNKNOWN)


def _name(code: int) -> str:
    try:
        return str(driver.CUresult(int(code)).name)
    except ValueError:
        return "CUDA_ERROR_UNKNOWN"


def _text(code: int) -> str:
    try:
        error, text = driver.cuGetErrorString(driver.CUresult(int(code)))
    except (ValueError, RuntimeError):
        return "no description"
    return "no description" if error else text.decode()
