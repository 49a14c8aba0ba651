"""A sum in shared memory: each block adds its part in halves, and one atomic addition joins the parts.

Original: numba-cuda, docs, shared memory reduction (tests/doc_examples/test_reduction.py), 25 lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import AtomicSlice, LaunchConfig, SharedArray, Slice, d2h, h2d, i64, kernel, thread, zeros

BLOCK = 256


@kernel
def add_up(data: Slice[i64], result: AtomicSlice[i64]) -> None:
    part = SharedArray(BLOCK, i64)
    i, t = thread.index_1d().get(), thread.thread_idx.x
    part[t] = data[i] if i < len(data) else 0
    half = BLOCK // 2
    while half > 0:
        thread.sync_threads()
        if t < half:
            part[t] += part[t + half]
        half //= 2
    if t == 0:
        result.fetch_add(0, part[0])


def total(data: Any) -> int:
    config = LaunchConfig.for_num_elems(len(data), BLOCK)
    return int(add_up[config](h2d(data), zeros(1, data.dtype)).last().and_then(d2h).sync()[0])


def main() -> None:
    print(f"the sum of the numbers below 1024: {total(np.arange(1024))}")


if __name__ == "__main__":
    main()
