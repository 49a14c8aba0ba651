"""Kernels of one element a thread on one core of the CPU device, beside the same loop under numba's ``@njit``.

What is timed is the machine code alone: the call for all blocks that a launch's workers share, against one call of the
compiled loop, in processor time of the thread, turn by turn, the least of all turns. Arrays of 65 536 floats stay in
the second cache, of 4 million they come from memory. Results are compared first. Writes
``benchmarks/results/elementwise-cpu.json``.

    python -m benchmarks.elementwise
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numba
import numpy as np
from numba import cuda

import oxide
from oxide import Array, DisjointSlice, LaunchConfig, Slice, d2h, f32, h2d, kernel, thread
from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu.code import CpuFunction, host_name
from oxide.testing import use_driver

RESULTS = Path(__file__).parent / "results"
ALPHA = np.float32(1.5)


@kernel
def axpy(x: Slice[f32], y: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = f32(1.5) * x[index.get()] + y[index.get()]


@kernel
def relu(x: Slice[f32], y: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = max(x[index.get()], f32(0))


@kernel
def gelu(x: Slice[f32], y: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        v = x[index.get()]
        element.value = f32(0.5) * v * (f32(1) + math.tanh(f32(0.7978846) * (v + f32(0.044715) * v * v * v)))


@kernel
def stencil(x: Slice[f32], y: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    i = index.get()
    element = out.get_mut(index)
    if element is not None:
        if i > 0 and i + 1 < len(x):
            element.value = f32(0.25) * x[i - 1] + f32(0.5) * x[i] + f32(0.25) * x[i + 1]
        else:
            element.value = x[i]


@kernel
def axpy_as_in_numba(x: Array[f32], y: Array[f32], out: Array[f32]) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = f32(1.5) * x[i] + y[i]


@numba.njit  # type: ignore[untyped-decorator]
def axpy_loop(x: Any, y: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = np.float32(1.5) * x[i] + y[i]


@numba.njit  # type: ignore[untyped-decorator]
def relu_loop(x: Any, y: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = max(x[i], np.float32(0))


@numba.njit  # type: ignore[untyped-decorator]
def gelu_loop(x: Any, y: Any, out: Any) -> None:
    for i in range(out.size):
        v = x[i]
        inner = np.float32(0.7978846) * (v + np.float32(0.044715) * v * v * v)
        out[i] = np.float32(0.5) * v * (np.float32(1) + math.tanh(inner))


@numba.njit  # type: ignore[untyped-decorator]
def stencil_loop(x: Any, y: Any, out: Any) -> None:
    for i in range(out.size):
        if i > 0 and i + 1 < x.size:
            out[i] = np.float32(0.25) * x[i - 1] + np.float32(0.5) * x[i] + np.float32(0.25) * x[i + 1]
        else:
            out[i] = x[i]


PAIRS: dict[str, tuple[Any, Callable[..., None]]] = {
    "axpy": (axpy, axpy_loop),
    "relu": (relu, relu_loop),
    "gelu, by tanh": (gelu, gelu_loop),
    "stencil of three": (stencil, stencil_loop),
    "axpy, numba.cuda's way": (axpy_as_in_numba, axpy_loop),
}


def main() -> int:
    """Measures, prints and writes; returns the exit code, 1 for a wrong result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    rows = []
    driver = CpuDriver()
    try:
        with use_driver(driver):
            for n in (65_536, 4_000_000):
                for name, (ours, loop) in PAIRS.items():
                    rows.append(_compared(name, n, ours, loop, options.repeats))
    finally:
        driver.close()
    document = {
        "what": "microseconds of processor time for all elements on one core, the least of all turns",
        "when": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "processor": host_name(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("numpy", "numba", "numba-cuda", "llvmlite")},
        "rows": rows,
    }
    (RESULTS / "elementwise-cpu.json").write_text(json.dumps(document, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


def _compared(name: str, n: int, ours: Any, loop: Callable[..., None], turns: int) -> dict[str, Any]:
    rng = np.random.default_rng()
    x, y, expected = (rng.standard_normal(n, np.float32) for _ in range(3))
    boxes = [h2d(array).sync() for array in (x, y, np.zeros_like(x))]
    call = _call_of(ours[LaunchConfig.for_num_elems(n)](*boxes))
    loop(x, y, expected)
    wrong = not np.allclose(d2h(boxes[2]).sync(), expected, rtol=1e-5, atol=1e-6)
    repeats = max(1, 2_000_000 // n)
    times: dict[str, list[float]] = {"oxide": [], "numba": []}
    for _ in range(turns):
        times["oxide"].append(_timed(call, repeats))
        times["numba"].append(_timed(lambda: loop(x, y, expected), repeats))
    row = {"kernel": name, "elements": n, "wrong": wrong, **{who: min(each) for who, each in times.items()}}
    print(f"{name:24} {n:9}  oxide {row['oxide']:10.1f}  @njit {row['numba']:10.1f} {'WRONG' if wrong else ''}")
    return row


def _call_of(operation: oxide.DeviceOperation[Any]) -> Callable[[], None]:
    """What the workers of a launch call, for all its blocks at once; the launch itself runs too."""
    calls: list[Callable[[], None]] = []
    bind = CpuFunction.bind

    def kept(self: CpuFunction, grid: Any, *rest: Any) -> Callable[[int, int], None]:
        run = bind(self, grid, *rest)
        calls.append(lambda: run(0, math.prod(grid)))
        return run

    with mock.patch.object(CpuFunction, "bind", kept):
        operation.sync()
    return calls[-1]


def _timed(call: Callable[[], None], repeats: int) -> float:
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats * 1e6


if __name__ == "__main__":
    os.environ["OXIDE_DEVICE"] = "cpu"
    sys.exit(main())
