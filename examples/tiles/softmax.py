"""Softmax of each row: a program computes some whole rows, and each row is read once and written once."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import DeviceOperation, f32, h2d, tile, zeros


@tile.kernel
def softmax(y: tile.Partition2[f32], x: tile.Tensor2[f32]) -> None:
    v = tile.load_like(x, y, padding=float("-inf"))
    e = tile.exp(v - tile.max(v, axis=1, keepdims=True))
    y.store(e / tile.sum(e, axis=1, keepdims=True))


def rows_of(columns: int) -> tuple[int, int]:
    """Returns the shape of a tile of whole rows of ``columns`` elements: at least one row, else about 4,096
    elements."""
    width = 1 << max(0, columns - 1).bit_length()
    return max(1, 4096 // width), width


def apply(x: Any) -> DeviceOperation[Any]:
    """Returns the operation that yields the softmax of an array's rows."""
    return softmax(zeros(x.shape).partition(rows_of(x.shape[1])), h2d(x)).first().unpartition().to_host()


def main() -> None:
    x = np.random.default_rng(1).standard_normal((4096, 1000)).astype(np.float32)
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    expected = wide / wide.sum(1, keepdims=True)
    error = np.linalg.norm(apply(x).sync() - expected) / np.linalg.norm(expected)
    print(f"softmax: 4096 rows of 1000, relative error {error:.1e}")


if __name__ == "__main__":
    main()
