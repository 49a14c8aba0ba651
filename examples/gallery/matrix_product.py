"""A matrix product whose blocks share tiles of both operands, for matrices of any shape.

Original: numba-cuda, docs, matrix multiplication with shared memory (tests/doc_examples/test_matmul.py), 41 lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import DisjointSlice2, SharedArray, Slice2, d2h, f32, h2d, kernel, thread, zeros

SIDE = 16


@kernel(block=(SIDE, SIDE))
def matmul(a: Slice2[f32], b: Slice2[f32], c: DisjointSlice2[f32]) -> None:
    tile_a, tile_b = SharedArray((SIDE, SIDE), f32), SharedArray((SIDE, SIDE), f32)
    i, j = thread.thread_idx.y, thread.thread_idx.x
    row, col = thread.index_2d_row(), thread.index_2d_col()
    total = 0.0
    for first in range(0, a.shape[1], SIDE):
        in_a, in_b = row < a.shape[0] and first + j < a.shape[1], first + i < b.shape[0] and col < b.shape[1]
        tile_a[i, j] = a[row, first + j] if in_a else 0.0
        tile_b[i, j] = b[first + i, col] if in_b else 0.0
        thread.sync_threads()
        for k in range(SIDE):
            total += tile_a[i, k] * tile_b[k, j]
        thread.sync_threads()
    element = c.get_mut(thread.index_2d())
    if element is not None:
        element.value = total


def product(a: Any, b: Any) -> Any:
    return matmul(h2d(a), h2d(b), zeros((len(a), b.shape[1]))).last().and_then(d2h).sync()


def main() -> None:
    a, b = np.arange(115, dtype=np.float32).reshape(5, 23), np.ones((23, 7), np.float32)
    print(f"the first column of (5, 23) by (23, 7): {product(a, b)[:, 0]}")


if __name__ == "__main__":
    main()
