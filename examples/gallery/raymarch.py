"""A picture by ray marching: a box with a ball cut out of it, on a plane, described by their distance to any point.

Original: Warp, examples/core/example_raymarch.py, 120 lines.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from oxide import DisjointSlice3, Tiles, d2h, device, f32, kernel, thread, zeros

Vec = tuple[f32, f32, f32]


@device
def dot(a: Vec, b: Vec) -> f32:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@device
def along(start: Vec, direction: Vec, t: f32) -> Vec:
    return start[0] + t * direction[0], start[1] + t * direction[1], start[2] + t * direction[2]


@device
def unit(v: Vec) -> Vec:
    return along((0.0, 0.0, 0.0), v, 1 / math.sqrt(dot(v, v)))


@device
def distance(x: f32, y: f32, z: f32) -> f32:
    """Returns the distance of a point from the scene, negative inside an object."""
    ball = math.sqrt(x * x + (y - 0.75) ** 2 + z * z) - 0.75
    out_x, out_y, out_z = abs(x) - 1.0, abs(y) - 0.5, abs(z) - 0.5
    outside = math.sqrt(max(out_x, 0.0) ** 2 + max(out_y, 0.0) ** 2 + max(out_z, 0.0) ** 2)
    box = outside + min(max(out_x, out_y, out_z), 0.0)
    return min(max(-ball, box), y + 1.0)


@device
def normal(x: f32, y: f32, z: f32) -> Vec:
    e = f32(1e-3)
    dx = distance(x + e, y, z) - distance(x - e, y, z)
    dy = distance(x, y + e, z) - distance(x, y - e, z)
    dz = distance(x, y, z + e) - distance(x, y, z - e)
    return unit((dx, dy, dz))


@device
def lit(start: Vec, direction: Vec) -> f32:
    """Returns the fraction of the light that reaches a point: 1 if no object is near the ray, 0 if an object blocks
    it."""
    t, share = f32(0.0), f32(1.0)
    for _ in range(64):
        x, y, z = along(start, direction, t)
        d = distance(x, y, z)
        t += min(max(d, 1e-4), 2.0)
        h = min(max(4 * d / t, 0.0), 1.0)
        share = min(share, h * h * (3 - 2 * h))
        if t > 8:
            return 1.0
    return share


@kernel(block=128)
def draw(eye: Vec, right: Vec, up: Vec, ahead: Vec, pixels: DisjointSlice3[f32, Tiles[Literal[3]]]) -> None:
    index = thread.index_1d()
    pixel = pixels.get_mut(index)
    if pixel is not None:
        rows, cols, _ = pixels.shape
        sx = f32(2 * (index.get() % cols) - cols) / rows
        sy = f32(2 * (index.get() // cols) - rows) / rows
        ray = unit(along(along(along((0.0, 0.0, 0.0), right, sx), up, sy), ahead, 2.0))
        t, d = f32(0.0), f32(0.0)
        for _ in range(128):
            x, y, z = along(eye, ray, t)
            d = distance(x, y, z)
            t += d
        pixel[0], pixel[1], pixel[2] = 0.6, 0.675, 0.75
        if d < 0.01:
            x, y, z = along(eye, ray, t)
            light = unit((0.6, 0.4, 0.5))
            n, half = normal(x, y, z), unit(along(light, ray, -1.0))
            specular = min(max(dot(n, half), 0.0), 1.0) ** 80
            fresnel = 0.04 + 0.96 * min(max(1 - dot(half, light), 0.0), 1.0) ** 5
            shade = 2 * (dot(n, light) * (1 - fresnel) + 10 * specular * fresnel) * lit((x, y, z), light)
            pixel[0] = min(max(0.85 * shade, 0.0) ** 2.2, 1.0)
            pixel[1] = min(max(0.9 * shade, 0.0) ** 2.2, 1.0)
            pixel[2] = min(max(0.95 * shade, 0.0) ** 2.2, 1.0)


def camera(eye: Any, target: Any) -> tuple[Any, ...]:
    """Returns the eye and the directions to the right, up and ahead, each a tuple."""
    ahead = np.subtract(target, eye) / np.linalg.norm(np.subtract(target, eye))
    right = np.cross(ahead, (0, 1, 0)) / np.linalg.norm(np.cross(ahead, (0, 1, 0)))
    return tuple(tuple(map(float, each)) for each in (eye, right, np.cross(right, ahead), ahead))


def picture(rows: int, cols: int, eye: tuple[float, float, float] = (-1.25, 1.0, 2.0)) -> Any:
    view = camera(eye, target=(0.0, 0.0, 0.0))
    return draw[-(-rows * cols // 128), 128](*view, zeros((rows, cols, 3))).last().and_then(d2h).sync()


def main() -> None:
    image = picture(128, 256)
    print(f"a picture of {image.shape[1]} by {image.shape[0]} pixels, mean colour {image.mean((0, 1)).round(4)}")


if __name__ == "__main__":
    main()
