"""Cooperative launches on CUDA: all blocks are on the device at once, so that they can wait for one another.

Through ``cuLaunchKernelEx`` with the cooperative attribute and not ``cuLaunchCooperativeKernel``, which takes no packed
parameters. Recorded in a graph, the attribute stays with the launch.
"""

from __future__ import annotations

import math
from typing import Any, final

from cuda import core
from cuda.bindings import driver

from oxide.driver.base import Dim3
from oxide.driver.cuda_errors import check
from oxide.errors import LaunchError


@final
class CooperativeLimit:
    """A cooperative kernel's launches on one device, and how many of its blocks the device holds."""

    def __init__(self, device: int, handle: Any) -> None:
        self._device = device
        self._handle = handle
        self._fitting: dict[tuple[int, int], int] = {}  # by threads and bytes of shared memory of a block
        self._attribute = driver.CUlaunchAttribute()
        self._attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        self._attribute.value.cooperative = 1

    def launch(self, grid: Dim3, block: Dim3, shared_bytes: int, stream: Any, extra: int) -> Any:
        """Launches the kernel; the driver's result. Raises ``LaunchError`` for a grid that does not fit."""
        blocks, threads = math.prod(grid), math.prod(block)
        fitting = self.blocks_that_fit(threads, shared_bytes)
        if blocks > fitting:
            raise LaunchError(
                f"thread.sync_grid() needs all blocks on the device at once: the launch has {blocks} blocks of "
                f"{threads} threads and {shared_bytes} bytes of dynamic shared memory, and cuda:{self._device} holds "
                f"{fitting} of them; launch at most that many, and let each thread do several elements"
            )
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        config.hStream = stream
        config.attrs = [self._attribute]
        config.numAttrs = 1
        return driver.cuLaunchKernelEx(config, self._handle, 0, extra)[0]

    def blocks_that_fit(self, threads: int, shared_bytes: int) -> int:
        """How many blocks of so many threads and so much dynamic shared memory the device holds at once."""
        fitting = self._fitting.get((threads, shared_bytes))
        if fitting is None:
            error, per_multiprocessor = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self._handle, threads, shared_bytes
            )
            check(error, "cuOccupancyMaxActiveBlocksPerMultiprocessor")
            multiprocessors = core.Device(self._device).properties.multiprocessor_count
            fitting = self._fitting[threads, shared_bytes] = per_multiprocessor * multiprocessors
        return fitting
