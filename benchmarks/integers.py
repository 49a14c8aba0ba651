"""Kernels of 32-bit integers beside the same in CUDA C++: a hash and a Philox generator, whose products must wrap.

Each kernel runs in CUDA graphs of several launches, and the two of a pair take turns. Results are checked against NumPy
first. The same source with a conversion around every operation must give the same PTX. Needs a GPU and NVRTC; writes
``benchmarks/results/integers-<device>.json``.

    python -m benchmarks.integers
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter
from typing import Any

import numpy as np

import oxide
from benchmarks import record
from oxide import DisjointSlice, In, Out, Slice, d2h, h2d, kernel, thread, u32, u64, zeros

SIZE, BLOCK = 1 << 24, 256
EACH = ("len(x) == len(y)",)
"""What the launches keep. CUDA C++ reads ``x`` without a check; with this contract, none is left here."""

SOURCE = r"""
extern "C" __global__ void hash(const unsigned *x, unsigned *y, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) {
        unsigned h = x[i];
        for (int round = 0; round < 16; ++round) {
            h = (h ^ h >> 16) * 0x85ebca6bu;
            h = (h ^ h >> 13) * 0xc2b2ae35u;
        }
        y[i] = h;
    }
}
extern "C" __global__ void philox(const unsigned *x, unsigned *y, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) {
        unsigned a = x[i], b = 0, c = 0, d = 0, k = 1, l = 2;
        for (int round = 0; round < 10; ++round) {
            unsigned long long p = (unsigned long long)a * 0xD2511F53u, q = (unsigned long long)c * 0xCD9E8D57u;
            a = (unsigned)(q >> 32) ^ b ^ k;
            b = (unsigned)q;
            c = (unsigned)(p >> 32) ^ d ^ l;
            d = (unsigned)p;
            k += 0x9E3779B9u;
            l += 0xBB67AE85u;
        }
        y[i] = a;
    }
}
"""


@kernel(block=BLOCK, requires=EACH)
def hashed(x: Slice[u32], y: DisjointSlice[u32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        h = x[index.get()]
        for _ in range(16):
            h = (h ^ h >> 16) * 0x85EBCA6B
            h = (h ^ h >> 13) * 0xC2B2AE35
        element.value = h


@kernel(block=BLOCK, requires=EACH)
def hashed_with_conversions(x: Slice[u32], y: DisjointSlice[u32]) -> None:
    """The same, as it had to be written where integers were computed in 64 bits."""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        h = u32(x[index.get()])
        for _ in range(16):
            h = u32(u32(h ^ u32(h >> u32(16))) * u32(0x85EBCA6B))
            h = u32(u32(h ^ u32(h >> u32(13))) * u32(0xC2B2AE35))
        element.value = h


@kernel(block=BLOCK, requires=EACH)
def philox(x: Slice[u32], y: DisjointSlice[u32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        a, b, c, d = x[index.get()], u32(0), u32(0), u32(0)
        k, m = u32(1), u32(2)
        for _ in range(10):
            p, q = u64(a) * 0xD2511F53, u64(c) * 0xCD9E8D57
            a, b, c, d = u32(q >> 32) ^ b ^ k, u32(q), u32(p >> 32) ^ d ^ m, u32(p)
            k += 0x9E3779B9
            m += 0xBB67AE85
        element.value = a


def hash_of(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """NumPy's hash of u32."""
    h = x.copy()
    for _ in range(16):
        h = (h ^ h >> 16) * np.uint32(0x85EBCA6B)
        h = (h ^ h >> 13) * np.uint32(0xC2B2AE35)
    return h


def philox_of(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """NumPy's first word of Philox 4x32-10."""
    a, b, c, d = x.copy(), np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    k, m = 1, 2
    for _ in range(10):
        p, q = a.astype(np.uint64) * 0xD2511F53, c.astype(np.uint64) * 0xCD9E8D57
        a, b = (q >> 32).astype(np.uint32) ^ b ^ np.uint32(k), q.astype(np.uint32)
        c, d = (p >> 32).astype(np.uint32) ^ d ^ np.uint32(m), p.astype(np.uint32)
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return a


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    values = np.random.default_rng().integers(0, 2**32, SIZE, np.uint32)
    x, y = h2d(values).sync(), zeros(SIZE, u32).sync()
    stream = oxide.devices()[0].new_stream()
    foreign = oxide.module(SOURCE)
    pairs = {
        "hash": (hashed(x, y), foreign["hash"][SIZE // BLOCK, BLOCK](In(x), Out(y), np.uint64(SIZE)), hash_of(values)),
        "philox": (
            philox(x, y),
            foreign["philox"][SIZE // BLOCK, BLOCK](In(x), Out(y), np.uint64(SIZE)),
            philox_of(values),
        ),
    }
    same = body(hashed.ptx()) == body(hashed_with_conversions.ptx())
    figures: dict[str, Any] = {"device": oxide.devices()[0].name, "size": SIZE, "same PTX without conversions": same}
    print(f"the same PTX without conversions: {same}")
    for name, (own, other, expected) in pairs.items():
        graphs = {}
        for side, operation in (("oxide", own), ("CUDA C++", other)):
            operation.sync_on(stream)
            np.testing.assert_array_equal(d2h(y).sync_on(stream), expected, f"{name}, {side}")
            graphs[side] = oxide.zip(*[operation] * 20).graph_on(stream)
            graphs[side].take_output()
        times: dict[str, list[float]] = {side: [] for side in graphs}
        for _ in range(options.turns):
            for side, graph in graphs.items():
                stream.synchronize()
                begun = perf_counter()
                graph.launch().async_on(stream)
                stream.synchronize()
                times[side].append((perf_counter() - begun) / 20 * 1e6)
        found = {side: statistics.median(each) for side, each in times.items()}
        figures[name] = {**found, "speed of CUDA C++": found["CUDA C++"] / found["oxide"]}
        print(f"{name}: {figures[name]}")
    record.write("integers", figures, "numpy", "numba", "numba-cuda")


def body(ptx: str) -> list[str]:
    """The instructions of a PTX text, without the kernel's name."""
    own = "hashed", "\tst.global.b64"  # the name, and its number in the record of a fault
    return [line for line in ptx.splitlines() if not any(each in line for each in own) and line.startswith("\t")]


if __name__ == "__main__":
    main()
