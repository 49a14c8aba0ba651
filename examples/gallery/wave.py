"""Waves on water that a moving ball displaces: the wave equation on a grid, two launches a step.

Original: Warp, examples/core/example_wave.py, 176 lines.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oxide import DisjointSlice2, Slice2, d2h, device, f32, i64, kernel, thread, zeros


@device
def clamped(height: Slice2[f32], row: i64, col: i64) -> f32:
    """Returns the height of a point; for a point outside the grid, that of the nearest point at the edge."""
    return height[min(max(row, 0), height.shape[0] - 1), min(max(col, 0), height.shape[1] - 1)]


@kernel(block=(16, 16))
def displace(x: f32, y: f32, radius: f32, depth: f32, before: DisjointSlice2[f32], now: DisjointSlice2[f32]) -> None:
    index = thread.index_2d()
    old, new = before.get_mut(index), now.get_mut(index)
    dx, dy = index.column - x, index.row - y
    if old is not None and new is not None and dx * dx + dy * dy < radius * radius:
        old.value, new.value = depth, depth


@kernel(block=(16, 16))
def advance(speed: f32, damping: f32, cell: f32, dt: f32, now: Slice2[f32], later: DisjointSlice2[f32]) -> None:
    """Replaces the heights of the previous step, in ``later``, by the heights of the next step."""
    index = thread.index_2d()
    height = later.get_mut(index)
    if height is not None:
        i, j = index.row, index.column
        h, last = now[i, j], height.value
        across = clamped(now, i, j - 1) + clamped(now, i, j + 1) - 2 * h
        down = clamped(now, i - 1, j) + clamped(now, i + 1, j) - 2 * h
        laplacian = (across + down) / (cell * cell)
        height.value = 2 * h - last + dt * dt * (speed * laplacian - damping * (h - last))


def simulate(rows: int, cols: int, steps: int, dt: float = 1 / 960, depth: float = -0.5, damping: float = 0.0) -> Any:
    before, now = zeros((rows, cols)).sync(), zeros((rows, cols)).sync()
    for step in range(steps):
        x, y = cols / 2 + math.sin(step * dt) * cols / 3, rows / 2 + math.cos(step * dt) * rows / 3
        displace(x, y, radius=rows / 12, depth=depth, before=before, now=now).sync()
        advance(1.0, damping, cell=0.1, dt=dt, now=now, later=before).sync()
        before, now = now, before
    return d2h(now).sync()


def main() -> None:
    water = simulate(128, 128, steps=320)
    print(f"after 320 steps the water is between {np.min(water):.4f} and {np.max(water):.4f}")


if __name__ == "__main__":
    main()
