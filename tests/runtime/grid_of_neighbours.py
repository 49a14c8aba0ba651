"""A kernel that is right only if the whole grid meets at each barrier, and what it computes."""

from __future__ import annotations

import numpy as np

from oxide import AtomicSlice, i32, kernel, thread, u32


@kernel
def neighbours(rounds: u32, x: AtomicSlice[i32], y: AtomicSlice[i32]) -> None:
    """Each thread adds its two neighbours' numbers, round after round, from one buffer to the other and back."""
    threads = thread.grid_dim.x * thread.block_dim.x
    me = thread.index_1d().get()
    left, right = (me + threads - 1) % threads, (me + 1) % threads
    for _ in range(rounds):
        y.store(me, i32((x.load(left) + x.load(right)) % 1009))
        thread.sync_grid()
        x.store(me, i32((y.load(left) + y.load(right)) % 1009))
        thread.sync_grid()


def summed(x: np.ndarray, steps: int) -> np.ndarray:
    """What ``steps`` such sums, two in a round, leave of ``x``."""
    for _ in range(steps):
        x = (np.roll(x, 1) + np.roll(x, -1)) % 1009
    return x
