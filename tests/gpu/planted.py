"""A program with a slow line and a bad access, for NVIDIA's tools to find: ``python -m tests.gpu.planted slow|bad``."""

from __future__ import annotations

import sys

import numpy as np

from oxide import DisjointSlice, Slice, device, f32, h2d, i64, kernel, thread, zeros


@device
def slow_root(x: f32) -> f32:
    y = x
    for _ in range(400):
        y = f32(0.5) * (y + x / y)  # slow
    return y


@kernel(block=256)
def roots(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = slow_root(x[index.get()])  # call


@kernel(block=32, unchecked=True)
def stray(far: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get() + far]  # bad access


def main(what: str) -> None:
    if what == "slow":
        x = np.linspace(1, 2, 1 << 18, dtype=np.float32)
        roots_of = roots(h2d(x), zeros(x.size)).last().to_host().sync()
        print("largest error", float(np.abs(roots_of - np.sqrt(x.astype(np.float64))).max()))
    else:
        stray(1 << 34, h2d(np.ones(32, np.float32)), zeros(32)).sync()


if __name__ == "__main__":
    main(sys.argv[1])
