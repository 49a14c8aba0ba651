"""The sum of two matrices, computed in tiles: the first program of cuTile Rust's book."""

from __future__ import annotations

import numpy as np
import trio

from oxide import d2h, f32, h2d, tile, zeros


@tile.kernel
def add(z: tile.Partition2[f32], x: tile.Tensor2[f32], y: tile.Tensor2[f32]) -> None:
    z.store(tile.load_like(x, z) + tile.load_like(y, z))


async def run() -> float:
    """Adds two random matrices. Returns the greatest error."""
    rng = np.random.default_rng(1)
    x, y = rng.random((1000, 777), np.float32), rng.random((1000, 777), np.float32)
    z = await add(zeros(x.shape).partition((32, 128)), h2d(x), h2d(y)).first().unpartition()
    return float(np.abs(await d2h(z) - (x + y)).max())


def main() -> None:
    print(f"add: 1000 x 777 elements, greatest error {trio.run(run)}")


if __name__ == "__main__":
    main()
