"""The program of ``first_kernel`` in plain numba-cuda, its kernel cached on disk. ``NUMBA_ENABLE_CUDASIM=1`` runs it in
numba-cuda's simulator."""

from __future__ import annotations

import sys

import numpy as np
from numba import cuda

from benchmarks import numba_kernels

SIZE = 1000


def main() -> int:
    """Runs the kernel once and checks it; the exit code."""
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    y = cuda.device_array(SIZE, np.float32)
    numba_kernels.relu[-(-SIZE // 256), 256](cuda.to_device(x), y)
    correct = np.array_equal(y.copy_to_host(), np.maximum(x, 0))
    print("SUCCESS" if correct else "FAILED")
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
