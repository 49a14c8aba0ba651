"""The benchmarks' kernels as numba-cuda's users write them. Imported only where numba-cuda is a contender."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda


@cuda.jit(cache=True)
def add(a: Any, b: Any, c: Any) -> None:
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]


@cuda.jit(cache=True)
def sgemm(alpha: Any, a: Any, b: Any, beta: Any, c: Any) -> None:
    col, row = cuda.grid(2)
    if row < c.shape[0] and col < c.shape[1]:
        acc = np.float32(0)
        for i in range(a.shape[1]):
            acc += a[row, i] * b[i, col]
        c[row, col] = alpha * acc + beta * c[row, col]


@cuda.jit(cache=True)
def matvec(mat: Any, vec: Any, out: Any) -> None:
    row = cuda.grid(1)
    if row < out.size:
        acc = np.float32(0)
        for i in range(vec.size):
            acc += mat[row, i] * vec[i]
        out[row] = acc


@cuda.jit(cache=True)
def relu(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < y.size:
        y[i] = max(x[i], np.float32(0))
