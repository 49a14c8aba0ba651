"""Stars of a galaxy that attract one another.

Original: Taichi, examples/simulation/nbody.py, 63 lines.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from oxide import DisjointSlice2, Slice2, Tiles, d2h, f32, h2d, kernel, thread, zeros


@kernel(block=128)
def attract(pos: Slice2[f32], force: DisjointSlice2[f32, Tiles[Literal[2]]]) -> None:
    index = thread.index_1d()
    own = force.get_mut(index)
    if own is not None:
        i = index.get()
        fx, fy = 0.0, 0.0
        for j in range(pos.shape[0]):
            dx, dy = pos[j, 0] - pos[i, 0], pos[j, 1] - pos[i, 1]
            inverse = 1 / math.sqrt(dx * dx + dy * dy + 1e-5)
            weight = inverse * inverse * inverse
            fx += weight * dx
            fy += weight * dy
        own[0], own[1] = fx, fy


@kernel(block=128)
def move(
    dt: f32,
    force: Slice2[f32],
    vel: DisjointSlice2[f32, Tiles[Literal[2]]],
    pos: DisjointSlice2[f32, Tiles[Literal[2]]],
) -> None:
    index = thread.index_1d()
    v, p = vel.get_mut(index), pos.get_mut(index)
    if v is not None and p is not None:
        for axis in range(2):
            v[axis] += dt * force[index.get(), axis]
            p[axis] += dt * v[axis]


def simulate(pos: Any, vel: Any, steps: int, dt: float = 1e-5) -> tuple[Any, Any]:
    here, speed = h2d(pos).sync(), h2d(vel).sync()
    for _ in range(steps):
        move(dt, attract(here, zeros(pos.shape)).last(), speed, here).sync()
    return d2h(here).sync(), d2h(speed).sync()


def galaxy(n: int, size: float = 0.4, speed: float = 120) -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    angle, radius = 2 * np.pi * random.random(n), (0.6 * np.sqrt(random.random(n)) + 0.4) * size
    offset = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return np.float32(0.5 + offset), np.float32(speed * offset[:, ::-1] * (-1, 1))


def main() -> None:
    pos, vel = simulate(*galaxy(1000), steps=20)
    print(f"1000 stars after 20 steps: centre {pos.mean(0).round(4)}, mean speed {np.hypot(*vel.T).mean():.3f}")


if __name__ == "__main__":
    main()
