"""The largest numbers of each row, with their columns, as the sampler of a language model needs them."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import d2h, f32, h2d, i64, tile, zeros


@tile.kernel
def topk(
    values: tile.Partition2[f32], columns: tile.Partition2[i64], x: tile.Tensor2[f32], width: tile.Constant[int]
) -> None:
    rows, k = values.tile_shape
    largest, places = tile.topk(x.load((values.index[0], 0), (rows, width), padding=float("-inf")), k)
    values.store(largest)
    columns.store(places)


def apply(x: Any, k: int) -> tuple[Any, Any]:
    """Returns the ``k`` largest numbers of each row of an array, largest first, and their columns."""
    rows = len(x)
    width = 1 << (x.shape[1] - 1).bit_length()
    values, columns, _, _ = topk(
        zeros((rows, k)).partition((4, k)), zeros((rows, k), i64).partition((4, k)), h2d(x), width
    ).sync()
    return d2h(values.unpartition()).sync(), d2h(columns.unpartition()).sync()


def main() -> None:
    x = np.random.default_rng(1).standard_normal((1000, 300)).astype(np.float32)
    _, columns = apply(x, 5)
    expected = np.argsort(-x, 1, kind="stable")[:, :5]
    print(f"topk: the 5 largest of 300, right in {(columns == expected).all(1).sum()} of 1000 rows")


if __name__ == "__main__":
    main()
