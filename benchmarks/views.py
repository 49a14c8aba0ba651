"""Views and tiles beside what they replace: the naive product over views, indexed and unchecked; a kernel that only
moves elements, over tiles and over elements. Results are checked before anything is timed.

``python -m benchmarks.views [--sizes 1024 2048 4096] [--json FILE]`` prints GFLOPS or GB/s, the best of several
batches, all in one run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.views_kernels import relu_by_four, relu_by_one, sgemm_views
from oxide import devices, h2d, kernel, zeros
from oxide_kernels import sgemm_naive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results: list[dict[str, Any]] = [product(size) for size in given.sizes]
    results.append(relu(1 << 26))
    for result in results:
        print(json.dumps(result))
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def product(n: int) -> dict[str, Any]:
    """GFLOPS of ``n`` by ``n`` products."""
    random = np.random.default_rng(n)
    left, right = (random.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    a, b = h2d(left).sync(), h2d(right).sync()
    config = (-(-n // 16), -(-n // 16)), (16, 16)
    rows = random.integers(0, n, 16)
    expected = left[rows].astype(np.float64) @ right
    launches: dict[str, Callable[[], Any]] = {}
    contenders = (
        ("views", sgemm_views),
        ("indexed", sgemm_naive),
        ("unchecked", kernel(unchecked=True)(sgemm_naive.function)),
    )
    for name, each in contenders:
        c = zeros((n, n)).sync()
        operation = each[config](n, n, n, 1.0, a, b, 0.0, c)
        found = operation.last().to_host().sync()[rows]
        assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4, name
        launches[name] = lambda operation=operation: operation  # type: ignore[misc]
    flops = 2 * n**3
    return {"what": "product, GFLOPS", "n": n, **{k: round(flops / t / 1e9) for k, t in timed(launches).items()}}


def relu(n: int) -> dict[str, Any]:
    """GB/s read and written in place over ``n`` float32."""
    x = np.random.default_rng(1).standard_normal(n, dtype=np.float32)
    launches: dict[str, Callable[[], Any]] = {}
    for name, each in (("tiles", relu_by_four), ("elements", relu_by_one)):
        y = h2d(x).sync()
        operation = each(y)
        assert np.array_equal(operation.last().to_host().sync(), np.maximum(x, 0)), name
        launches[name] = lambda operation=operation: operation  # type: ignore[misc]
    return {"what": "relu in place, GB/s", "n": n, **{k: round(8 * n / t / 1e9) for k, t in timed(launches).items()}}


def timed(launches: dict[str, Callable[[], Any]], batches: int = 7, repeats: int = 10) -> dict[str, float]:
    """Seconds a launch: the least of several batches, the contenders in turn."""
    stream = devices()[0].new_stream()
    best = dict.fromkeys(launches, float("inf"))
    for _ in range(batches):
        for name, launch in launches.items():
            launch().async_on(stream)
            stream.synchronize()
            begin = time.perf_counter()
            for _ in range(repeats):
                launch().async_on(stream)
            stream.synchronize()
            best[name] = min(best[name], (time.perf_counter() - begin) / repeats)
    return best


if __name__ == "__main__":
    main()
