"""What the CPU device refuses at once: handles that are not its own or not any more, launches beyond its limits, and
seeds that are no numbers."""

from __future__ import annotations

import operator
from typing import TypeVar

from oxide.driver.base import Dim3
from oxide.driver.cpu_code import CpuFunction
from oxide.driver.cpu_errors import driver_error
from oxide.driver.cpu_graph import CpuGraph
from oxide.driver.cpu_streams import CpuEvent, CpuStream
from oxide.messages import written

MAX_THREADS_PER_BLOCK = 1024
MAX_BLOCK: Dim3 = (1024, 1024, 64)
MAX_GRID: Dim3 = (2**31 - 1, 65535, 65535)
_MAX_SHARED_BYTES = 2**31 - 1
_NOUNS: dict[type, str] = {CpuStream: "a stream", CpuEvent: "an event", CpuGraph: "a graph"}

_Owned = TypeVar("_Owned", CpuStream, CpuEvent, CpuGraph)


def check_handle(handle: _Owned, kind: type[_Owned]) -> _Owned:
    """The handle, if it is one of this kind and has not been destroyed."""
    if type(handle) is not kind or handle.destroyed:
        noun = _NOUNS[kind]
        found = "it was destroyed" if type(handle) is kind else f"a {type(handle).__name__} is none of the CPU driver's"
        raise driver_error("CUDA_ERROR_INVALID_HANDLE", f"{handle!r} is not {noun} to use: {found}; create a new one")
    return handle


def check_idle(stream: CpuStream) -> CpuStream:
    """The stream, if it is one to use and is not in a capture."""
    if check_handle(stream, CpuStream).captured is not None:
        raise driver_error(
            "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            f"{stream!r} is in a capture, which takes launches, copies and fills only; end the capture first",
        )
    return stream


def check_launch(function: CpuFunction, grid: Dim3, block: Dim3, shared_bytes: int) -> int:
    """The number of blocks, if the launch is within the device's limits."""
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
    """The product of a grid's or block's sizes, if each is within its limit."""
    if len(dim) != 3 or not (1 <= dim[0] <= limit[0] and 1 <= dim[1] <= limit[1] and 1 <= dim[2] <= limit[2]):
        raise driver_error(
            "CUDA_ERROR_INVALID_VALUE", f"{function!r} with a {what} of {dim}; each of the three must be 1 to {limit}"
        )
    return dim[0] * dim[1] * dim[2]


def checked_seed(seed: int) -> int:
    """A seed that ``OXIDE_SEED`` can hold too. Raises ``TypeError`` or ``ValueError``."""
    try:
        number = operator.index(seed)
    except TypeError:
        needed = f"a whole number of 0 or more is needed, not {type(seed).__name__}"
        raise TypeError(f"seed={written(seed)}: {needed}") from None
    if number < 0:
        raise ValueError(f"seed={written(seed)}: a whole number of 0 or more is needed")
    return number
