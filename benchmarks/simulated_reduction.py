"""numba-cuda's simulator on sums of blocks of 256 threads, through a tree in shared memory: prints the microseconds it
took. A process of its own, as the simulator is chosen by ``NUMBA_ENABLE_CUDASIM=1`` before numba is imported."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numba import cuda, float32


@cuda.jit  # type: ignore[untyped-decorator]
def block_reduction(x: Any, out: Any) -> None:
    partial = cuda.shared.array(256, float32)
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    partial[t] = x[i]
    cuda.syncthreads()
    half = 128
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()
        half //= 2
    out[i] = partial[0]


blocks = int(sys.argv[1])
x = np.random.default_rng().standard_normal((blocks, 256), np.float32)
out = np.zeros(blocks * 256, np.float32)
flat = x.reshape(-1)
start = time.perf_counter()
block_reduction[blocks, 256](flat, out)
elapsed = time.perf_counter() - start
assert np.allclose(out.reshape(x.shape), x.astype(np.float64).sum(1, keepdims=True), rtol=1e-3, atol=1e-3)
print(elapsed * 1e6)
