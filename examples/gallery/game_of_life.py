"""Conway's game of life on a torus.

Original: Taichi, examples/simulation/game_of_life.py, 75 lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import DisjointSlice2, Slice2, d2h, h2d, i32, kernel, thread, zeros


@kernel(block=(16, 16))
def generation(now: Slice2[i32], later: DisjointSlice2[i32]) -> None:
    index = thread.index_2d()
    cell = later.get_mut(index)
    if cell is not None:
        row, col = index.row, index.column
        rows, cols = now.shape
        neighbours = -now[row, col]
        for i in range(-1, 2):
            for j in range(-1, 2):
                neighbours += now[(row + i + rows) % rows, (col + j + cols) % cols]
        alive = neighbours == 3 or (neighbours == 2 and now[row, col] == 1)
        cell.value = 1 if alive else 0


def play(world: Any, generations: int) -> Any:
    now, later = h2d(world).sync(), zeros(world.shape, world.dtype).sync()
    for _ in range(generations):
        later, now = generation(now, later).sync()
    return d2h(now).sync()


def main() -> None:
    world = (np.random.default_rng(1).random((64, 64)) > 0.8).astype(np.int32)
    print(f"{world.sum()} cells alive; after 100 generations {play(world, 100).sum()}")


if __name__ == "__main__":
    main()
