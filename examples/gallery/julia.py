"""A Julia set in motion: how fast each point of the plane escapes.

Original: Taichi, examples/simulation/fractal.py, 27 lines.
"""

from __future__ import annotations

import math
from typing import Any

from oxide import DisjointSlice2, d2h, f32, kernel, thread, zeros


@kernel(block=(16, 16))
def paint(c_re: f32, c_im: f32, pixels: DisjointSlice2[f32]) -> None:
    index = thread.index_2d()
    pixel = pixels.get_mut(index)
    if pixel is not None:
        n = f32(pixels.shape[0])
        x, y = 2 * (index.column / n - 1), 2 * (index.row / n - 0.5)
        iterations = 0
        while x * x + y * y < 400 and iterations < 50:
            x, y = x * x - y * y + c_re, 2 * x * y + c_im
            iterations += 1
        pixel.value = 1 - 0.02 * iterations


def picture(n: int, t: float) -> Any:
    """Returns n rows of 2n pixels, each from 0 (the point never escapes) to 1 (it escapes at once)."""
    return paint(-0.8, 0.2 * math.cos(t), zeros((n, 2 * n))).last().and_then(d2h).sync()


def main() -> None:
    inside = [float((picture(320, 0.03 * frame) < 1e-6).mean()) for frame in range(0, 100, 25)]
    print("the set's share of the picture, in four frames:", ", ".join(f"{share:.3f}" for share in inside))


if __name__ == "__main__":
    main()
