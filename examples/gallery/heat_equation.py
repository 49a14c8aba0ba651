"""The heat equation on a rod whose ends are kept at zero: a graph of two steps, launched many times.

Each step is a launch of its own, so that all threads see the complete result of the previous step. No thread waits for
another.

Original: numba-cuda, docs, 1D heat equation (tests/doc_examples/test_laplace.py), 33 lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import DisjointSlice, Slice, d2h, f64, h2d, kernel, thread, value, zeros


@kernel(block=256)
def step(k: f64, now: Slice[f64], later: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    i = index.get()
    element = later.get_mut(index)
    if element is not None:
        left = now[i - 1] if i > 0 else 0.0
        right = now[i + 1] if i + 1 < len(now) else 0.0
        element.value = now[i] + k * (left - 2 * now[i] + right)


def solve(start: Any, steps: int, k: float = 0.25) -> Any:
    now, later = h2d(start).sync(), zeros(start.shape, start.dtype).sync()
    two_steps = step(k, now, later).and_then(lambda _: step(k, later, now)).graph()
    for _ in range(steps // 2):
        two_steps.launch().sync()
    return (step(k, now, later).last() if steps % 2 else value(now)).and_then(d2h).sync()


def main() -> None:
    rod = np.zeros(1001)
    rod[500] = 10_000
    rod = solve(rod, steps=10_000)
    print(f"after 10000 steps the middle has {rod[500]:.3f} degrees, and the rod {rod.sum():.3f} in all")


if __name__ == "__main__":
    main()
