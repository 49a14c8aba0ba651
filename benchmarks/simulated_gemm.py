"""numba-cuda's simulator on one matrix product: prints the microseconds it took. A process of its own, as the
simulator is chosen by ``NUMBA_ENABLE_CUDASIM=1`` before numba is imported."""

from __future__ import annotations

import sys
import time

import numpy as np

from benchmarks.numba_kernels import sgemm

n = int(sys.argv[1])
rng = np.random.default_rng()
a, b = rng.standard_normal((n, n), np.float32), rng.standard_normal((n, n), np.float32)
c = np.zeros((n, n), np.float32)
tiles = -(-n // 16)
start = time.perf_counter()
sgemm[(tiles, tiles), (16, 16)](np.float32(1), a, b, np.float32(0), c)
elapsed = time.perf_counter() - start
assert np.allclose(c, a.astype(np.float64) @ b, rtol=1e-3, atol=1e-3)
print(elapsed * 1e6)
