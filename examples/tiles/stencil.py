"""A step of heat flow on a grid: the mean of each cell's four neighbours. Cells outside of the grid are cold.

The index of a load counts in whole tiles. So the neighbours of a tile's cells are gathered, by their rows and columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import DeviceOperation, f32, h2d, tile, zeros


@tile.function
def cells(now: Any, row: Any, column: Any) -> Any:
    """Returns the cells at ``row`` and ``column``, 0 for cells outside of the grid."""
    there = (row >= 0) & (row < now.shape[0]) & (column >= 0) & (column < now.shape[1])
    return tile.gather(now, (row, column), mask=there)


@tile.kernel
def step(later: tile.Partition2[f32], now: tile.Tensor2[f32]) -> None:
    rows, columns = later.tile_shape
    row = (later.index[0] * rows + tile.arange(rows))[:, None]
    column = (later.index[1] * columns + tile.arange(columns))[None, :]
    total = cells(now, row - 1, column) + cells(now, row + 1, column)
    total = total + cells(now, row, column - 1) + cells(now, row, column + 1)
    later.store(total * 0.25)


def apply(grid: Any, steps: int) -> DeviceOperation[Any]:
    """Returns the operation that yields the grid after ``steps`` steps."""
    now: Any = h2d(grid)
    for _ in range(steps):
        now = step(zeros(grid.shape).partition((16, 64)), now).first().unpartition()
    return now.to_host()  # type: ignore[no-any-return]


def reference(grid: Any, steps: int) -> Any:
    """Computes the same with NumPy in float64."""
    now = grid.astype(np.float64)
    for _ in range(steps):
        wide = np.pad(now, 1)
        now = (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]) / 4
    return now


def main() -> None:
    grid = np.random.default_rng(1).random((300, 500), np.float32)
    expected = reference(grid, 10)
    error = np.linalg.norm(apply(grid, 10).sync() - expected) / np.linalg.norm(expected)
    print(f"stencil: 10 steps of 300 x 500 cells, relative error {error:.1e}")


if __name__ == "__main__":
    main()
