"""Cooperative launches on CUDA: all blocks are resident at once, so that they can wait for one another.

The launches use ``cuLaunchCooperativeKernel``, with a pointer to each parameter. With packed parameters,
``cuLaunchKernelEx`` takes the cooperative attribute on a stream, but refuses it while a graph is captured (an H100,
CUDA 13.0).
"""

from __future__ import annotations

import math
from typing import Any, final

from cuda import core
from cuda.bindings import driver

from oxide.driver.base import Dim3
from oxide.driver.cuda.errors import check
from oxide.errors import LaunchError


@final
class CooperativeLimit:
    """A cooperative kernel on one device, whose launches are limited to the blocks that the device holds at once."""

    def __init__(self, device: int, handle: Any, places: tuple[int, ...]) -> None:
        """Takes the kernel. ``places`` are the offsets of the parameters in the packed structure."""
        self._device = device
        self._handle = handle
        self._fitting: dict[tuple[int, int], int] = {}  # by threads and bytes of dynamic shared memory of a block
        self.places = places

    def launch(self, grid: Dim3, block: Dim3, shared_bytes: int, stream: Any, pointers: int) -> Any:
        """Launches the kernel with the array of pointers to its parameters at ``pointers``. Returns the driver's
        result.

        Raises ``LaunchError`` for a grid of more blocks than the device holds at once.
        """
        blocks, threads = math.prod(grid), math.prod(block)
        fitting = self.blocks_that_fit(threads, shared_bytes)
        if blocks > fitting:
            raise LaunchError(
                f"thread.sync_grid() needs all blocks on the device at once: the launch has {blocks} blocks of "
                f"{threads} threads and {shared_bytes} bytes of dynamic shared memory, and cuda:{self._device} holds "
                f"{fitting} of them; launch at most that many, and let each thread do several elements"
            )
        return driver.cuLaunchCooperativeKernel(self._handle, *grid, *block, shared_bytes, stream, pointers)[0]

    def blocks_that_fit(self, threads: int, shared_bytes: int) -> int:
        """Returns how many blocks of ``threads`` threads and ``shared_bytes`` of dynamic shared memory the device holds
        at once."""
        fitting = self._fitting.get((threads, shared_bytes))
        if fitting is None:
            fitting = resident_blocks(self._device, self._handle, threads, shared_bytes)
            self._fitting[threads, shared_bytes] = fitting
        return fitting


def resident_blocks(device: int, handle: Any, threads: int, shared_bytes: int) -> int:
    """Returns how many blocks of a kernel a device holds at once, if a block has these threads and shared bytes."""
    error, per_multiprocessor = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, threads, shared_bytes)
    check(error, "cuOccupancyMaxActiveBlocksPerMultiprocessor")
    return int(per_multiprocessor * core.Device(device).properties.multiprocessor_count)
