"""What ``cuLaunchKernel`` with packed parameters does not launch: persistent, cooperative and dependent kernels, and
Python functions.

``cuLaunchKernel`` takes parameters as an array of pointers or, through ``extra``, as one packed buffer. The runtime
packs parameters as the kernel's C structure, so a plain launch needs no pointers (``_core/launching.c``). The calls for
cooperative and dependent launches take pointers.

``cuLaunchHostFunc`` goes through ctypes, not cuda.bindings: the binding wraps every host function in a function that
takes the GIL, but a completion callback must run even while the interpreter is busy.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, final

from cuda import core
from cuda.bindings import driver

from oxide.driver.base import Dim3
from oxide.driver.cuda.errors import check
from oxide.driver.cuda.modules import CudaFunction
from oxide.errors import LaunchError


def resident_blocks(function: CudaFunction, threads: int, shared_bytes: int) -> int:
    """Returns how many blocks of ``threads`` threads and ``shared_bytes`` of dynamic shared memory the kernel's device
    holds at once."""
    resident = function.resident.get((threads, shared_bytes))
    if resident is None:
        error, of_one = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.handle, threads, shared_bytes)
        check(error, "cuOccupancyMaxActiveBlocksPerMultiprocessor")
        resident = int(of_one * core.Device(function.device).properties.multiprocessor_count)
        function.resident[threads, shared_bytes] = resident
    return resident


def persistent_sizes(function: CudaFunction, grid: Dim3, shared_bytes: int) -> tuple[Dim3, Dim3]:
    """Returns the grid and the block with which to launch a kernel of persistent blocks, each of which does the work of
    several blocks of the requested grid. The requested grid extends along x only."""
    resident = resident_blocks(function, function.persistent, shared_bytes)
    # If not even one block fits, the launch raises the error.
    return (max(1, min(grid[0], resident)), 1, 1), (function.persistent, 1, 1)


def launch_cooperative(
    function: CudaFunction, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, stream: Any
) -> Any:
    """Launches a kernel whose blocks are all resident at once, so that they can wait for one another. Returns the
    driver's result. Raises ``LaunchError`` for a grid of more blocks than the device holds at once.

    With packed parameters, ``cuLaunchKernelEx`` takes the cooperative attribute on a stream, but refuses it while a
    graph is captured (an H100, CUDA 13.0).
    """
    blocks, threads = math.prod(grid), math.prod(block)
    fitting = resident_blocks(function, threads, shared_bytes)
    if blocks > fitting:
        raise LaunchError(
            f"thread.sync_grid() needs all blocks on the device at once: the launch has {blocks} blocks of "
            f"{threads} threads and {shared_bytes} bytes of dynamic shared memory, and cuda:{function.device} holds "
            f"{fitting} of them; launch at most that many, and let each thread do several elements"
        )
    packet = ParameterPacket(params, function.places)
    return driver.cuLaunchCooperativeKernel(function.handle, *grid, *block, shared_bytes, stream, packet.address)[0]


def launch_dependent(
    function: CudaFunction, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, stream: Any
) -> Any:
    """Launches a kernel that calls ``thread.wait_dependencies()``, and that may begin before the previous kernel in its
    stream has ended. Returns the driver's result.

    CUDA calls this programmatic dependent launch. An attribute of the launch allows the overlap in its stream; a
    capture turns the attribute into an edge of the graph. Neither changes the order with work other than kernels. The
    compiler has checked that every thread waits before it accesses device memory and before it ends.
    """
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared_bytes
    config.hStream = stream
    config.attrs = [_early()]
    config.numAttrs = 1
    # Pointers to the parameters: during a capture, packed parameters were refused with another attribute
    # (``launch_cooperative``).
    packet = ParameterPacket(params, function.places)
    return driver.cuLaunchKernelEx(config, function.handle, packet.address, 0)[0]


@functools.cache
def _early() -> Any:
    """Returns the attribute of a launch that may begin early."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


@final
class ParameterPacket:
    """A launch's packed parameters in C memory. ``address`` is that of an array with a pointer to each parameter."""

    __slots__ = ("_buffer", "_pointers", "address")

    def __init__(self, params: bytes, places: tuple[int, ...]) -> None:
        """Takes the parameters and their offsets."""
        self._buffer = ctypes.create_string_buffer(params, len(params))
        start = ctypes.addressof(self._buffer)
        self._pointers = (ctypes.c_void_p * len(places))(*[start + place for place in places])
        self.address = ctypes.addressof(self._pointers)


@final
class HostFunctions:
    """Keeps the Python functions that streams will call. Each has a number, which the driver passes to the callback.

    One C entry point serves all of them. The alternative, a ctypes closure for each function, would have to outlive its
    call, and nothing would free it.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], None]] = {}
        self._keys = itertools.count(1)
        self._entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._run)
        address = ctypes.cast(self._entry, ctypes.c_void_p).value
        assert address is not None
        self.entry = address

    def add(self, function: Callable[[], None]) -> int:
        """Stores a function and returns its number, the argument of ``entry``. The function is removed when it runs."""
        key = next(self._keys)
        self._waiting[key] = function
        return key

    def discard(self, key: int) -> None:
        """Removes a function whose submission failed."""
        self._waiting.pop(key, None)

    def __len__(self) -> int:
        return len(self._waiting)

    def _run(self, key: int) -> None:
        # An exception leaves through ctypes, which hands it to sys.unraisablehook.
        self._waiting.pop(key)()
