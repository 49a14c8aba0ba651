"""Monte Carlo integration of any function: it is an argument of the kernel.

A thread's random number follows from the seed and the thread's place, so there is no state to keep.

Original: numba-cuda, docs, Monte Carlo integration (tests/doc_examples/test_montecarlo.py), 33 lines.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxide import DisjointSlice, d2h, f32, kernel, random, thread, u64, zeros
from oxide_kernels import ops


@kernel(block=256)
def evaluate(f: Callable[[f32], f32], seed: u64, low: f32, high: f32, values: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = values.get_mut(index)
    if element is not None:
        element.value = f(low + (high - low) * random.uniform(seed, index.get()))


def integral(f: Callable[[float], float], low: float, high: float, samples: int, seed: int = 42) -> float:
    values = evaluate(f, seed, low, high, zeros(samples)).last()
    return float(values.and_then(ops.reduce_sum).and_then(d2h).sync()) / samples * (high - low)


def main() -> None:
    found = integral(lambda x: 1 / x, 1, 2, 1_000_000)
    print(f"the integral of 1/x from 1 to 2 is about {found:.5f} (the logarithm of 2 is {np.log(2):.5f})")


if __name__ == "__main__":
    main()
