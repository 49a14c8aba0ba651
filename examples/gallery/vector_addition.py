"""Adds two vectors: one thread for each element.

Original: numba-cuda, docs, vector addition (tests/doc_examples/test_vecadd.py), 18 lines.
"""

from __future__ import annotations

import numpy as np

from oxide import DisjointSlice, Slice, d2h, f64, h2d, kernel, thread, zeros


@kernel(block=256)
def add(a: Slice[f64], b: Slice[f64], c: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    element = c.get_mut(index)
    if element is not None:
        element.value = a[index.get()] + b[index.get()]


def main() -> None:
    a, b = np.random.default_rng(1).random((2, 100_000))
    c = add(h2d(a), h2d(b), zeros(a.shape, a.dtype)).last().and_then(d2h).sync()
    print(f"{len(c)} sums, the first {c[0]:.6f} = {a[0]:.6f} + {b[0]:.6f}")


if __name__ == "__main__":
    main()
