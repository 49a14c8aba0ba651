"""The CPU device's checks at submission: invalid or destroyed handles, launches beyond its limits, and invalid seeds or
numbers of devices and threads."""

from __future__ import annotations

import operator
from typing import TypeVar

from oxide.driver.base import MAX_BLOCK, MAX_GRID, MAX_THREADS_PER_BLOCK, Dim3
from oxide.driver.cpu.code import CpuFunction
from oxide.driver.cpu.errors import driver_error
from oxide.driver.cpu.graph import CpuGraph
from oxide.driver.cpu.streams import CpuEvent, CpuStream
from oxide.errors import DeviceError
from oxide.host.messages import written

_MAX_SHARED_BYTES = 2**31 - 1
_MOST = 4096  # devices or threads: more are a typo
_NOUNS: dict[type, str] = {CpuStream: "a stream", CpuEvent: "an event", CpuGraph: "a graph"}

_Owned = TypeVar("_Owned", CpuStream, CpuEvent, CpuGraph)


def check_handle(handle: _Owned, kind: type[_Owned]) -> _Owned:
    """Returns the handle. Raises ``DriverError`` unless it is a ``kind`` and has not been destroyed."""
    if type(handle) is not kind or handle.destroyed:
        noun = _NOUNS[kind]
        found = "it was destroyed" if type(handle) is kind else f"a {type(handle).__name__} is none of the CPU driver's"
        raise driver_error("CUDA_ERROR_INVALID_HANDLE", f"{handle!r} is not {noun} to use: {found}; create a new one")
    return handle


def check_idle(stream: CpuStream) -> CpuStream:
    """Returns the stream. Raises ``DriverError`` unless it is usable and not in a capture."""
    if type(stream) is not CpuStream or stream.destroyed:
        check_handle(stream, CpuStream)
    if stream.captured is not None:
        raise driver_error(
            "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            f"{stream!r} is in a capture, which takes launches, copies and fills only; end the capture first",
        )
    return stream


def check_recordable(stream: CpuStream) -> None:
    """Raises ``DriverError`` if a conditional has begun in the stream's capture and has not ended."""
    if stream.conditional is not None:
        raise driver_error(
            "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            f"{stream!r} is in a conditional, whose bodies have streams of their own; end the conditional first",
        )


def check_launch(function: CpuFunction, grid: Dim3, block: Dim3, shared_bytes: int, stream: CpuStream) -> int:
    """Returns the number of blocks. Raises ``DriverError`` unless the kernel was loaded on the stream's device and the
    launch is within the device's limits."""
    if type(function) is not CpuFunction or function.device != stream.device:
        raise driver_error(
            "CUDA_ERROR_INVALID_HANDLE",
            f"a launch of {function!r} on {stream!r}; load the kernel on cpu:{stream.device}",
        )
    blocks = _check_dim(function, "grid", grid, MAX_GRID)
    threads = _check_dim(function, "block", block, MAX_BLOCK)
    if threads > MAX_THREADS_PER_BLOCK:
        raise driver_error(
            "CUDA_ERROR_INVALID_VALUE",
            f"{function!r} with a block of {block}, {threads} threads; the most is {MAX_THREADS_PER_BLOCK}",
        )
    if not 0 <= shared_bytes <= _MAX_SHARED_BYTES:
        raise driver_error(
            "CUDA_ERROR_INVALID_VALUE",
            f"{function!r} with {shared_bytes} bytes of dynamic shared memory; ask for 0 to {_MAX_SHARED_BYTES}",
        )
    return blocks


def _check_dim(function: CpuFunction, what: str, dim: Dim3, limit: Dim3) -> int:
    """Returns the product of a grid's or block's sizes. Raises ``DriverError`` if a size is beyond its limit."""
    if len(dim) != 3 or not (1 <= dim[0] <= limit[0] and 1 <= dim[1] <= limit[1] and 1 <= dim[2] <= limit[2]):
        raise driver_error(
            "CUDA_ERROR_INVALID_VALUE", f"{function!r} with a {what} of {dim}; each of the three must be 1 to {limit}"
        )
    return dim[0] * dim[1] * dim[2]


def check_count(what: str, number: int) -> None:
    """Raises ``DeviceError`` unless ``number`` is a valid number of devices or threads."""
    if not 1 <= number <= _MOST:
        raise DeviceError(
            f"a CPU driver with {written(number)} {what} was asked for; it has 1 to {_MOST} "
            f"(OXIDE_CPU_DEVICES sets the devices)"
        )


def checked_seed(seed: int) -> int:
    """Returns a seed as an int. Raises ``TypeError`` if it is not an integer, ``ValueError`` if it is negative."""
    try:
        number = operator.index(seed)
    except TypeError:
        needed = f"a whole number of 0 or more is needed, not {type(seed).__name__}"
        raise TypeError(f"seed={written(seed)}: {needed}") from None
    if number < 0:
        raise ValueError(f"seed={written(seed)}: a whole number of 0 or more is needed")
    return number
