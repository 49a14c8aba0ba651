"""One kernel from process start to its first result, in oxide: what start-up is made of when there is little else."""

from __future__ import annotations

import sys

import numpy as np

from oxide import DisjointSlice, Slice, f32, h2d, kernel, thread, zeros

SIZE = 1000


@kernel(block=256)
def relu(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = max(x[index.get()], f32(0))


def main() -> int:
    """Runs the kernel once and checks it; the exit code."""
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    result = relu(h2d(x), zeros(SIZE)).last().to_host().sync()
    correct = np.array_equal(result, np.maximum(x, 0))
    print("SUCCESS" if correct else "FAILED")
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
