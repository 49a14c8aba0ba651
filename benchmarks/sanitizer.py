"""What the sanitizer of the CPU device costs: kernels as they are and sanitized, side by side, in processor time.

Sanitized launches run on one core, so processor time is what compares. Results are checked first. Writes
``benchmarks/results/sanitizer-cpu.json``.

    OXIDE_DEVICE=cpu python -m benchmarks.sanitizer
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import oxide
from benchmarks.cpu import saxpy
from oxide import DisjointSlice, Kernel, LaunchConfig, Slice, d2h, f32, h2d, kernel, thread, zeros
from oxide_kernels import block_sum, sgemm_naive

RESULTS = Path(__file__).parent / "results"
KINDS = {"as it is": (), "memory": ("memory",), "race": ("race",), "memory and race": ("memory", "race")}


@kernel
def sums(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """Each block's sum, through shuffles, shared memory and two barriers."""
    index = thread.index_1d()
    total = block_sum(x[index.get()], f32)
    element = y.get_mut(index)
    if element is not None:
        element.value = total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    device = oxide.devices()[0]
    rng = np.random.default_rng(1)
    figures: dict[str, dict[str, float]] = {}
    for name, (original, config, arguments, expected) in _cases(rng).items():
        milliseconds: dict[str, float] = {}
        for what, kinds in KINDS.items():
            same = Kernel(original.function, block=original.default_block, sanitize=kinds, names=globals())
            operation = same[config](*arguments)
            result = d2h(operation.sync()[-1]).sync()
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
            milliseconds[what] = 1e3 * min(_once(operation) for _ in range(repeats))
        figures[name] = {what: round(spent, 3) for what, spent in milliseconds.items()}
        plain = milliseconds["as it is"]
        print(
            name, *(f"{what}: {spent:.2f} ms, x{spent / plain:.0f}" for what, spent in milliseconds.items()), sep="\n  "
        )
    record = {
        "device": device.name,
        "python": platform.python_version(),
        "llvmlite": version("llvmlite"),
        "processor_time_ms": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sanitizer-cpu.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _cases(rng: Any) -> dict[str, tuple[Kernel, LaunchConfig, tuple[Any, ...], Any]]:
    n, long = 128, 1_000_000
    a, b = rng.standard_normal((n, n), np.float32), rng.standard_normal((n, n), np.float32)
    x, y = rng.standard_normal(long, np.float32), rng.standard_normal(long, np.float32)
    blocks = x[: 256 * 1000].reshape(1000, 256)
    boxes = [h2d(array).sync() for array in (a, b, x, y, blocks)]
    gemm = (n, n, n, 1.0, boxes[0], boxes[1], 0.0, zeros((n, n)).sync())
    per_block = np.repeat(blocks.astype(np.float64).sum(1), 256).reshape(blocks.shape)
    return {
        "GEMM, 128x128, one thread an element": (
            sgemm_naive, LaunchConfig((8, 8), (16, 16)), gemm, a.astype(np.float64) @ b
        ),
        "saxpy, 1000000 elements": (
            saxpy,
            LaunchConfig.for_num_elems(long),
            (2.0, boxes[2], boxes[3], zeros(long).sync()),
            2.0 * x.astype(np.float64) + y,
        ),
        "block sums, 1000 blocks of 256": (
            sums, LaunchConfig(1000, 256), (boxes[4], zeros(blocks.shape).sync()), per_block
        ),
    }  # fmt: skip


def _once(operation: Any) -> float:
    start = process_time()
    operation.sync()
    return process_time() - start


if __name__ == "__main__":
    main()
