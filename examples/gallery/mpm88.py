"""A block of jelly that falls: the material point method (MLS-MPM) with particles and a grid, three launches a step.

Original: Taichi, examples/simulation/mpm88.py, 80 lines.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from oxide import (
    AtomicSlice3,
    DisjointSlice,
    DisjointSlice2,
    DisjointSlice3,
    LaunchConfig,
    Slice,
    Slice2,
    Slice3,
    Tiles,
    d2h,
    device,
    f32,
    h2d,
    i64,
    kernel,
    ones,
    thread,
    zeros,
)

N = 128  # cells along a side; a cell stores its momentum, which becomes its velocity, and its mass
DX, DT = 1 / N, 2e-4
MASS = VOLUME = (0.5 / N) ** 2
STIFFNESS, GRAVITY, BOUND = 400.0, 9.8, 3


@device
def weight(offset: i64, from_base: f32) -> f32:
    """Returns the quadratic B-spline's value at one of the three cells around a particle."""
    d = from_base - offset
    return 0.75 - d * d if offset == 1 else 0.5 * (1.5 - abs(d)) ** 2


@kernel(block=128)
def to_grid(x: Slice2[f32], v: Slice2[f32], c: Slice2[f32], j: Slice[f32], grid: AtomicSlice3[f32]) -> None:
    p = thread.index_1d().get()
    if p < len(x):
        base_x, base_y = i64(x[p, 0] * N - 0.5), i64(x[p, 1] * N - 0.5)
        fx, fy = x[p, 0] * N - base_x, x[p, 1] * N - base_y
        stress = -DT * 4 * STIFFNESS * VOLUME * (j[p] - 1) * N * N
        for a in range(3):
            for b in range(3):
                w, dx, dy = weight(a, fx) * weight(b, fy), (a - fx) * DX, (b - fy) * DX
                momentum_x = MASS * (v[p, 0] + c[p, 0] * dx + c[p, 1] * dy) + stress * dx
                momentum_y = MASS * (v[p, 1] + c[p, 2] * dx + c[p, 3] * dy) + stress * dy
                grid.fetch_add((base_x + a, base_y + b, 0), f32(w * momentum_x))
                grid.fetch_add((base_x + a, base_y + b, 1), f32(w * momentum_y))
                grid.fetch_add((base_x + a, base_y + b, 2), f32(w * MASS))


@kernel(block=128)
def on_grid(grid: DisjointSlice3[f32, Tiles[Literal[3]]]) -> None:
    index = thread.index_1d()
    cell = grid.get_mut(index)
    if cell is not None:
        i, j = index.get() // N, index.get() % N
        mass = cell[2] if cell[2] > 0 else 1.0
        vx, vy = cell[0] / mass, cell[1] / mass - DT * GRAVITY
        cell[0] = 0.0 if (i < BOUND and vx < 0) or (i > N - BOUND and vx > 0) else vx
        cell[1] = 0.0 if (j < BOUND and vy < 0) or (j > N - BOUND and vy > 0) else vy


@kernel(block=128)
def from_grid(
    grid: Slice3[f32],
    x: DisjointSlice2[f32, Tiles[Literal[2]]],
    v: DisjointSlice2[f32, Tiles[Literal[2]]],
    c: DisjointSlice2[f32, Tiles[Literal[4]]],
    j: DisjointSlice[f32],
) -> None:
    index = thread.index_1d()
    position, velocity, affine, volume = x.get_mut(index), v.get_mut(index), c.get_mut(index), j.get_mut(index)
    if position is not None and velocity is not None and affine is not None and volume is not None:
        base_x, base_y = i64(position[0] * N - 0.5), i64(position[1] * N - 0.5)
        fx, fy = position[0] * N - base_x, position[1] * N - base_y
        vx, vy, xx, xy, yx, yy = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for a in range(3):
            for b in range(3):
                w, dx, dy = weight(a, fx) * weight(b, fy), a - fx, b - fy
                cell_x, cell_y = w * grid[base_x + a, base_y + b, 0], w * grid[base_x + a, base_y + b, 1]
                vx, vy = vx + cell_x, vy + cell_y
                xx, xy = xx + cell_x * dx, xy + cell_x * dy
                yx, yy = yx + cell_y * dx, yy + cell_y * dy
        velocity[0], velocity[1] = vx, vy
        position[0] += DT * vx
        position[1] += DT * vy
        volume.value *= 1 + DT * 4 * N * (xx + yy)
        affine[0], affine[1], affine[2], affine[3] = 4 * N * xx, 4 * N * xy, 4 * N * yx, 4 * N * yy


def simulate(x: Any, v: Any, steps: int) -> tuple[Any, Any, Any]:
    """Returns positions, velocities and volumes (1 at the start) of the particles."""
    each = LaunchConfig.for_num_elems(len(x), 128)
    position, velocity = h2d(x).sync(), h2d(v).sync()
    affine, volume = zeros((len(x), 4)).sync(), ones(len(x)).sync()
    for _ in range(steps):
        grid = to_grid[each](position, velocity, affine, volume, zeros((N, N, 3))).last().and_then(on_grid).first()
        from_grid[each](grid, position, velocity, affine, volume).sync()
    return d2h(position).sync(), d2h(velocity).sync(), d2h(volume).sync()


def main() -> None:
    x = np.random.default_rng(1).random((8192, 2), np.float32) * 0.4 + 0.2
    x, v, _ = simulate(np.float32(x), np.tile(np.array((0, -1), np.float32), (8192, 1)), steps=200)
    print(f"8192 particles after 200 steps: mean height {x[:, 1].mean():.4f}, mean speed {-v[:, 1].mean():.4f}")


if __name__ == "__main__":
    main()
