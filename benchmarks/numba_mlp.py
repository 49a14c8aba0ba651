"""The example's synthetic network in plain numba-cuda, kernels cached on disk: what start-up is compared with."""

from __future__ import annotations

import sys

import numpy as np
from numba import cuda

from benchmarks import numba_kernels

DIM, BATCHES, TILE = 64, 4, 16


def main() -> int:
    """Runs four batches on four streams and checks them; the exit code."""
    count = np.arange(DIM * DIM)
    w0 = (((count % 7) - 3) * 0.01).astype(np.float32).reshape(DIM, DIM)
    w1 = (((np.arange(DIM) % 5) - 2) * 0.01).astype(np.float32)
    batches = [(((count + 37 * b) % 13) * 0.1).astype(np.float32).reshape(DIM, DIM) for b in range(BATCHES)]
    device_w0, device_w1 = cuda.to_device(w0), cuda.to_device(w1)
    streams = [cuda.stream() for _ in range(BATCHES)]
    results = [cuda.pinned_array(DIM, np.float32) for _ in range(BATCHES)]
    tiles = DIM // TILE
    for batch, stream, result in zip(batches, streams, results, strict=True):
        staged = cuda.pinned_array((DIM, DIM), np.float32)
        staged[:] = batch
        inputs = cuda.to_device(staged, stream=stream)
        hidden = cuda.device_array((DIM, DIM), np.float32, stream=stream)
        output = cuda.device_array(DIM, np.float32, stream=stream)
        numba_kernels.sgemm[(tiles, tiles), (TILE, TILE), stream](
            np.float32(1), inputs, device_w0, np.float32(0), hidden
        )
        numba_kernels.matvec[1, 256, stream](hidden, device_w1, output)
        numba_kernels.relu[1, 256, stream](output, output)
        output.copy_to_host(result, stream=stream)
    for stream in streams:
        stream.synchronize()
    correct = all(
        np.allclose(result, np.maximum(0, batch.astype(np.float64) @ w0 @ w1), atol=1e-5)
        for batch, result in zip(batches, results, strict=True)
    )
    print("SUCCESS" if correct else "FAILED")
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
