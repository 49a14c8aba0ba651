"""Slices of two axes beside the flat form of the same kernels: what ``a[row, i]`` costs against ``a[row * k + i]``.

``python -m benchmarks.slices [--sizes 1024 2048 4096] [--seconds 3] [--write]`` prints GFLOPS, the median of batches
that the two forms run in turn, and the ratio. Results are compared with NumPy's in float64 before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import record
from benchmarks.harness import repeated_to_the_end
from oxide import LaunchConfig, devices, h2d, reclaim, zeros
from oxide_kernels import matvec_2d, matvec_naive, sgemm_2d, sgemm_naive

"""Seconds of one batch, about."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each comparison runs (3)")
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    given = parser.parse_args()
    rows = []
    for n in given.sizes:
        for measure in (product, product_with_vector):
            rows.append(measure(n, given.seconds))
            print(json.dumps(rows[-1]), flush=True)
            reclaim.drain()
    if given.write:
        record.write("slices", {"device": devices()[0].name, "rows": rows}, "numba", "numba-cuda", "llvmlite", "numpy")


def product(n: int, seconds: float) -> dict[str, Any]:
    """Measures ``n`` by ``n`` products."""
    random = np.random.default_rng(n)
    left, right = (random.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    a, b = h2d(left).sync(), h2d(right).sync()
    config = LaunchConfig(grid=(-(-n // 16), -(-n // 16)), block=(16, 16))
    operations = {
        "flat": sgemm_naive[config](n, n, n, 1.0, a, b, 0.0, zeros((n, n)).sync()).last(),
        "2-D": sgemm_2d[config](1.0, a, b, 0.0, zeros((n, n)).sync()).last(),
    }
    some = random.integers(0, n, 16)
    return _measured("sgemm", n, 2 * n**3, operations, left[some].astype(np.float64) @ right, some, seconds)


def product_with_vector(n: int, seconds: float) -> dict[str, Any]:
    """Measures products of an ``n`` by ``n`` matrix with a vector."""
    random = np.random.default_rng(n)
    matrix, vector = random.standard_normal((n, n), dtype=np.float32), random.standard_normal(n, dtype=np.float32)
    a, x = h2d(matrix).sync(), h2d(vector).sync()
    operations = {
        "flat": matvec_naive(n, n, a, x, zeros(n).sync()).last(),
        "2-D": matvec_2d(a, x, zeros(n).sync()).last(),
    }
    return _measured("matvec", n, 2 * n**2, operations, matrix.astype(np.float64) @ vector, slice(None), seconds)


def _measured(
    what: str, n: int, flops: int, operations: dict[str, Any], expected: Any, some: Any, seconds: float
) -> dict[str, Any]:
    stream = devices()[0].new_stream()
    batches: dict[str, Callable[[], float]] = {}
    for name, operation in operations.items():
        found = operation.to_host().sync_on(stream)[some].astype(np.float64)
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        if not error < 1e-5:
            raise SystemExit(f"{what}, {name}, n = {n}: the result is off by {error:.1e} of its norm")
        batches[name] = repeated_to_the_end(operation, stream)
    times: dict[str, list[float]] = {name: [] for name in operations}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not all(times.values()):
        for name, batch in batches.items():
            times[name].append(batch())
    rates = {name: flops / statistics.median(measured) / 1e9 for name, measured in times.items()}
    return {
        "what": f"{what}, GFLOPS",
        "n": n,
        **{name: round(rate, 1) for name, rate in rates.items()},
        "2-D / flat": round(rates["2-D"] / rates["flat"], 4),
    }


if __name__ == "__main__":
    main()
