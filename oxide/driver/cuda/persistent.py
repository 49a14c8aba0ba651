"""Launches of kernels with persistent blocks: each block does the work of several blocks of the launch's grid."""

from __future__ import annotations

from typing import Any, final

from oxide.driver.base import Dim3
from oxide.driver.cuda.cooperative_launch import resident_blocks


@final
class PersistentBlocks:
    """Limits a persistent kernel, whose blocks have ``threads`` threads, to the blocks that a device holds at once."""

    def __init__(self, device: int, handle: Any, threads: int) -> None:
        self._device = device
        self._handle = handle
        self._block: Dim3 = threads, 1, 1
        self._resident: dict[int, int] = {}  # by bytes of dynamic shared memory of a block

    def sizes(self, grid: Dim3, shared_bytes: int) -> tuple[Dim3, Dim3]:
        """Returns the grid and the block to launch with, for a requested grid that extends along x only."""
        resident = self._resident.get(shared_bytes)
        if resident is None:
            resident = resident_blocks(self._device, self._handle, self._block[0], shared_bytes)
            self._resident[shared_bytes] = resident
        # If not even one block fits, the launch raises the error.
        return (max(1, min(grid[0], resident)), 1, 1), self._block
