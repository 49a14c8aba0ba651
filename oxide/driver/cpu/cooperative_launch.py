"""Cooperative launches on the CPU device: all blocks are live at once, and wait for each other at the grid's barriers.

One pass over the blocks runs each block from one grid barrier to the next, on as many workers as are worth waking.
Between two passes no block runs, which has the effect of the barrier. No worker ever waits for another.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, Protocol, final

from oxide.driver.base import Dim3
from oxide.driver.records import COOPERATIVE
from oxide.errors import LaunchError

MOST_THREADS, MOST_BLOCKS = 2**18, 2**13
"""The most threads and blocks of a grid that may be live at once, because each takes memory. A large GPU holds about as
many."""


class Function(Protocol):
    """A loaded kernel: ``CpuFunction``."""

    device: int

    @property
    def call(self) -> Callable[[Any, int, int], object]: ...


def blocks_that_fit(threads: int) -> int:
    """Returns how many blocks of ``threads`` threads may be live at once."""
    return min(MOST_BLOCKS, MOST_THREADS // threads)


def check_fits(function: Function, grid: Dim3, block: Dim3) -> None:
    """Raises ``LaunchError`` for a grid whose blocks cannot all be live at once."""
    total, fitting = math.prod(grid), blocks_that_fit(math.prod(block))
    if total > fitting:
        raise LaunchError(
            f"thread.sync_grid() needs all blocks on the device at once: the launch has {total} blocks of "
            f"{math.prod(block)} threads, and cpu:{function.device} holds {fitting} of them; launch at most that "
            "many, and let each thread do several elements"
        )


@final
class CooperativeRun:
    """A cooperative launch. A call runs a range of blocks to the grid's next barrier, without the GIL."""

    def __init__(
        self, function: Function, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, seed: int
    ) -> None:
        self._function = function
        self._launch = (grid, block, shared_bytes, params, seed)
        check_fits(function, grid, block)
        self._total = math.prod(grid)
        self._blocks = (ctypes.c_void_p * self._total)()
        address = ctypes.addressof(self._blocks)
        self._record = COOPERATIVE.structure(grid, block, shared_bytes, seed, params, address, least=2**32 - 1)
        self._pointer = ctypes.byref(self._record)

    def __call__(self, first: int, end: int) -> None:
        self._function.call(self._pointer, first, end)

    def goes_on(self) -> bool:
        """Returns whether all blocks must run another pass. Call it at the end of each pass.

        Abandons the blocks if they can never continue: if some wait while others have ended, or if they wait at
        different barriers.
        """
        record = self._record
        if not record.waiting:
            return False
        if record.finished or record.least != record.greatest:
            record.abandon = 1
            self(0, self._total)
            return False
        record.waiting, record.least, record.greatest = 0, 2**32 - 1, 0
        return True

    def renewed(self) -> CooperativeRun:
        """Returns a new run of the same launch, for a graph's next launch."""
        return CooperativeRun(self._function, *self._launch)
