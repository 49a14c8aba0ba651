"""The CPU device beside what else compiles Python loops for a CPU, and beside numba-cuda's simulator.

All run the same algorithm, one inner loop an element, on all cores; NumPy's BLAS is there for scale.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

import oxide
from benchmarks.harness import Contender, Session, WrongResult, expect, peer
from oxide import DisjointSlice, LaunchConfig, SharedArray, Slice, Tiles, f32, h2d, kernel, thread, zeros
from oxide.testing import use_driver
from oxide_kernels import sgemm_naive

ROOT = Path(__file__).parent.parent


@kernel
def saxpy(alpha: f32, x: Slice[f32], y: Slice[f32], out: DisjointSlice[f32]) -> None:
    idx = thread.index_1d()
    elem = out.get_mut(idx)
    if elem is not None:
        elem.value = alpha * x[idx.get()] + y[idx.get()]


ROW = 64


@kernel
def softmax(x: Slice[f32], out: DisjointSlice[f32, Tiles[Literal[64]]]) -> None:
    """A thread a row of 64."""
    idx = thread.index_1d()
    first = idx.get() * ROW
    row = out.get_mut(idx)
    if row is not None:
        greatest = x[first]
        for j in range(ROW):
            greatest = max(greatest, x[first + j])
        total = f32(0)
        for j in range(ROW):
            power = f32(math.exp(x[first + j] - greatest))
            row[j] = power
            total += power
        for j in range(ROW):
            row[j] = row[j] / total


@kernel
def block_reduction(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    """A block's sum, in every thread: a tree in shared memory."""
    partial = SharedArray(256, f32)
    idx = thread.index_1d()
    t = thread.thread_idx.x
    partial[t] = x[idx.get()]
    thread.sync_threads()
    half = 128
    while half > 0:
        if t < half:
            partial[t] = partial[t] + partial[t + half]
        thread.sync_threads()
        half = half // 2
    elem = out.get_mut(idx)
    if elem is not None:
        elem.value = partial[0]


def run(session: Session) -> None:
    """Measures the group, on the CPU device whatever device the session is on."""
    from oxide.driver.cpu import CpuDriver

    driver = CpuDriver()
    try:
        with use_driver(driver):
            _gemm(session, session.choose(512, 96))
            _saxpy(session, session.choose(10_000_000, 100_000))
            _softmax(session, session.choose(20_000, 200))
            _simulated_gemm(session, session.choose(64, 16))
            _simulated_reduction(session, session.choose(16, 1))
    finally:
        driver.close()


def _gemm(session: Session, n: int) -> None:
    rng = np.random.default_rng()
    a, b = rng.standard_normal((n, n), np.float32), rng.standard_normal((n, n), np.float32)
    expected = a.astype(np.float64) @ b

    def numba(parallel: bool) -> Contender:
        numba = peer("numba")

        @numba.njit(parallel=parallel)  # type: ignore[untyped-decorator]
        def gemm(a: Any, b: Any, c: Any) -> None:
            for row in numba.prange(a.shape[0]):  # a range where nothing is parallel
                for col in range(b.shape[1]):
                    acc = np.float32(0)
                    for i in range(a.shape[1]):
                        acc += a[row, i] * b[i, col]
                    c[row, col] = acc

        c = np.zeros((n, n), np.float32)
        return _host(lambda: gemm(a, b, c), c, expected)

    def warp() -> Contender:
        wp = peer("warp", "warp-lang")
        from benchmarks import warp_kernels

        arrays = [wp.array(array, dtype=float, device="cpu") for array in (a, b, np.zeros((n, n), np.float32))]
        return _host(
            lambda: wp.launch(warp_kernels.sgemm, (n, n), inputs=arrays, device="cpu"), arrays[2].numpy(), expected
        )

    def blas() -> Contender:
        c = np.zeros((n, n), np.float32)
        return _host(lambda: np.matmul(a, b, out=c), c, expected)

    session.compare(
        f"GEMM, {n}×{n}, one thread an element",
        {
            "oxide, CPU device": lambda: _oxide_gemm(a, b, expected),
            "numba @njit(parallel=True)": lambda: numba(True),
            "numba @njit, one core": lambda: numba(False),
            "warp-lang, CPU": warp,
            "NumPy (BLAS)": blas,
        },
        turns=session.choose(20, 3),
    )


def _oxide_gemm(a: Any, b: Any, expected: Any) -> Contender:
    n = len(a)
    tiles = -(-n // 16)
    boxes = [h2d(array).sync() for array in (a, b, np.zeros((n, n), np.float32))]
    operation = sgemm_naive[(tiles, tiles), (16, 16)](n, n, n, 1.0, boxes[0], boxes[1], 0.0, boxes[2])
    return _oxide(operation, boxes[2], expected)


def _saxpy(session: Session, n: int) -> None:
    rng = np.random.default_rng()
    x, y = rng.standard_normal(n, np.float32), rng.standard_normal(n, np.float32)
    alpha = np.float32(rng.standard_normal())
    expected = np.float64(alpha) * x + y

    def ours() -> Contender:
        boxes = [h2d(array).sync() for array in (x, y, np.zeros(n, np.float32))]
        return _oxide(saxpy[LaunchConfig.for_num_elems(n)](alpha, *boxes), boxes[2], expected)

    def numba() -> Contender:
        numba = peer("numba")

        @numba.njit(parallel=True)  # type: ignore[untyped-decorator]
        def compute(alpha: Any, x: Any, y: Any, out: Any) -> None:
            for i in numba.prange(x.size):
                out[i] = alpha * x[i] + y[i]

        out = np.zeros(n, np.float32)
        return _host(lambda: compute(alpha, x, y, out), out, expected)

    def warp() -> Contender:
        wp = peer("warp", "warp-lang")
        from benchmarks import warp_kernels

        arrays = [wp.array(array, dtype=float, device="cpu") for array in (x, y, np.zeros(n, np.float32))]
        return _host(
            lambda: wp.launch(warp_kernels.saxpy, n, inputs=[float(alpha), *arrays], device="cpu"),
            arrays[2].numpy(),
            expected,
        )

    def numpy() -> Contender:
        out = np.zeros(n, np.float32)

        def call() -> None:
            np.multiply(x, alpha, out=out)
            np.add(out, y, out=out)

        return _host(call, out, expected)

    session.compare(
        f"saxpy, {n} elements",
        {
            "oxide, CPU device": ours,
            "numba @njit(parallel=True)": numba,
            "warp-lang, CPU": warp,
            "NumPy": numpy,
        },
        turns=session.choose(20, 3),
    )


def _softmax(session: Session, rows: int) -> None:
    x = np.random.default_rng().standard_normal((rows, ROW), np.float32)
    powers = np.exp(x.astype(np.float64))
    expected = powers / powers.sum(1, keepdims=True)

    def ours() -> Contender:
        boxes = [h2d(x).sync(), zeros(x.shape).sync()]
        return _oxide(softmax[LaunchConfig.for_num_elems(rows)](*boxes), boxes[1], expected)

    def warp() -> Contender:
        wp = peer("warp", "warp-lang")
        from benchmarks import warp_kernels

        arrays = [wp.array(array, dtype=float, device="cpu") for array in (x, np.zeros_like(x))]
        return _host(
            lambda: wp.launch(warp_kernels.softmax, rows, inputs=arrays, device="cpu"), arrays[1].numpy(), expected
        )

    session.compare(
        f"softmax, {rows} rows of {ROW}, one thread a row",
        {"oxide, CPU device": ours, "warp-lang, CPU": warp},
        turns=session.choose(20, 3),
    )


def _simulated_gemm(session: Session, n: int) -> None:
    rng = np.random.default_rng()
    a, b = rng.standard_normal((n, n), np.float32), rng.standard_normal((n, n), np.float32)
    _beside_the_simulator(
        session,
        f"GEMM, {n}×{n}, for debugging",
        lambda: _oxide_gemm(a, b, a.astype(np.float64) @ b),
        "benchmarks.simulated_gemm",
        n,
    )


def _simulated_reduction(session: Session, blocks: int) -> None:
    x = np.random.default_rng().standard_normal((blocks, 256), np.float32)
    expected = np.repeat(x.astype(np.float64).sum(1), 256).reshape(x.shape)

    def ours() -> Contender:
        boxes = [h2d(x).sync(), zeros(x.shape).sync()]
        return _oxide(block_reduction[blocks, 256](*boxes), boxes[1], expected)

    what = f"sums of {blocks} block{'s' if blocks > 1 else ''} of 256 threads, for debugging"
    _beside_the_simulator(session, what, ours, "benchmarks.simulated_reduction", blocks)


def _beside_the_simulator(session: Session, what: str, ours: Callable[[], Contender], module: str, size: int) -> None:
    """The simulator runs in a process of its own, which prints its microseconds."""

    def simulated() -> Contender:
        peer("numba.cuda", "numba-cuda")

        def sample() -> list[float]:
            ran = subprocess.run(
                [sys.executable, "-m", module, str(size)],
                cwd=ROOT,
                env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            if ran.returncode:
                raise WrongResult("the simulator failed: " + " ".join(ran.stderr.strip().splitlines()[-1:]))
            return [float(ran.stdout)]

        return Contender(sample, lambda: None)

    session.compare(
        what,
        {"oxide, CPU device": ours, "numba-cuda's simulator": simulated},
        turns=session.choose(3, 1),
        warmup=0,
        least=1,
    )


def _oxide(operation: oxide.DeviceOperation[Any], box: oxide.DeviceBox, expected: Any) -> Contender:
    def check() -> None:
        operation.sync()
        expect(oxide.d2h(box).sync(), expected, relative=1e-4)

    return Contender(_timed(operation.sync), check)


def _host(call: Callable[[], object], result: Any, expected: Any) -> Contender:
    def check() -> None:
        call()
        expect(result, expected, relative=1e-4)

    return Contender(_timed(call), check)


def _timed(call: Callable[[], object]) -> Callable[[], list[float]]:
    def sample() -> list[float]:
        start = time.perf_counter()
        call()
        return [(time.perf_counter() - start) * 1e6]

    return sample
