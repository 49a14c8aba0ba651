"""The product of two matrices. On a GPU the loop becomes a pipeline of copies that feeds the tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import DeviceOperation, bf16, d2h, f32, h2d, tile, zeros


@tile.kernel(warps=8, stages=4)
def matmul(c: tile.Partition2[bf16], a: tile.Tensor2[bf16], b: tile.Tensor2[bf16], bk: tile.Constant[int] = 64) -> None:
    row, column = c.index
    rows, columns = c.tile_shape
    acc = tile.zeros((rows, columns), f32)
    for k in range(tile.cdiv(a.shape[1], bk)):
        acc = tile.mma(a.load((row, k), (rows, bk)), b.load((k, column), (bk, columns)), acc)
    c.store(acc)


@tile.kernel
def matmul_f32(
    c: tile.Partition2[f32], a: tile.Tensor2[f32], b: tile.Tensor2[f32], bk: tile.Constant[int] = 256
) -> None:
    row, column = c.index
    rows, columns = c.tile_shape
    acc = tile.zeros((rows, columns), f32)
    for k in range(tile.cdiv(a.shape[1], bk)):
        acc = tile.mma(a.load((row, k), (rows, bk)), b.load((k, column), (bk, columns)), acc)
    c.store(acc)


TILE = (128, 256)
"""The shape of a tile of the result in bf16. With it, the sums fill the registers of eight warps."""


def apply(a: Any, b: Any, tile_shape: tuple[int, int] = TILE) -> DeviceOperation[Any]:
    """Returns the operation that yields a box with the product of two matrices of bf16, given as boxes or as operations
    that yield boxes."""
    out = zeros((a.shape[0], b.shape[1]), bf16).partition(tile_shape)
    return matmul(out, a, b).first().unpartition()


def main() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.dtype(bf16)) for shape in ((500, 300), (300, 700)))
    found = d2h(apply(h2d(a).sync(), h2d(b).sync())).sync().astype(np.float64)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    print(f"gemm: 500 x 300 by 300 x 700 in bf16, relative error {error:.1e}")


if __name__ == "__main__":
    main()
