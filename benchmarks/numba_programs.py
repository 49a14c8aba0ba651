"""Programs of numba.cuda on ``oxide.numba_cuda`` and, on a GPU, on numba-cuda itself, in one run.

``python -m benchmarks.numba_programs [--json FILE]`` measures launches of 1, 5 and 20 device arrays, of host arrays,
and whole programs. Each program is the same text, executed with either module as ``cuda``; the two take turns, and the
figures are medians. With stumpy installed, ``stumpy.gpu_stump`` of 10,000 values is measured on oxide's side
(``install()`` replaces numba.cuda's names for the whole process, so it comes last). On the CPU device only oxide's side
runs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import oxide

PROGRAM = """
import math

@cuda.jit
def one(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1.0

@cuda.jit
def five(a, b, c, d, e):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = b[i] + c[i] + d[i] + e[i]

@cuda.jit
def twenty(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t):
    x = cuda.grid(1)
    if x < a.size:
        a[x] = b[x] + t[x]

@cuda.jit
def heat(u, v):
    i, j = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        v[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])

@cuda.jit("void(float64[:], float64[:], float64[:])")
def price(spot, strike, out):
    i = cuda.grid(1)
    if i < out.size:
        d = math.log(spot[i] / strike[i]) / 0.3 + 0.15
        bought = strike[i] * 0.5 * math.erfc(-(d - 0.3) / math.sqrt(2.0))
        out[i] = spot[i] * 0.5 * math.erfc(-d / math.sqrt(2.0)) - bought
"""


class Side:
    """The programs on one module."""

    def __init__(self, name: str, cuda: Any) -> None:
        self.name, self.cuda = name, cuda
        names: dict[str, Any] = {"cuda": cuda, "math": math}
        exec(PROGRAM, names)
        rng = np.random.default_rng(0)
        small = [cuda.to_device(np.zeros(32)) for _ in range(20)]
        host = [np.zeros(1000) for _ in range(5)]
        u, v = cuda.to_device(rng.random((2048, 2048))), cuda.to_device(rng.random((2048, 2048)))
        spot, strike = (cuda.to_device(rng.random(4_000_000) + 1) for _ in range(2))
        out = cuda.device_array(4_000_000)
        one, five, twenty, heat, price = (names[each] for each in ("one", "five", "twenty", "heat", "price"))
        total = cuda.reduce(lambda a, b: a + b)
        stream = cuda.stream()

        def steps() -> None:
            for _ in range(25):
                heat[(128, 128), (16, 16)](u, v)
                heat[(128, 128), (16, 16)](v, u)

        self.programs: dict[str, tuple[Callable[[], Any], int]] = {
            "launch, 1 device array": (lambda: one[1, 32](small[0]), 200),
            "launch, 5 device arrays": (lambda: five[1, 32](*small[:5]), 200),
            "launch, 20 device arrays": (lambda: twenty[1, 32](*small), 200),
            "launch, 20 device arrays, on a stream": (lambda: twenty[1, 32, stream](*small), 200),
            "launch, 5 host arrays of 1,000": (lambda: five[4, 256](*host), 50),
            "to_device and copy_to_host, 1,000 values": (lambda: cuda.to_device(host[0]).copy_to_host(), 50),
            "50 steps of heat, 2048 x 2048": (steps, 1),
            "prices of 4,000,000 options": (lambda: price[15625, 256](spot, strike, out), 1),
            "reduction of 4,000,000 values": (lambda: total(spot), 1),
        }

    def microseconds(self, program: str) -> float:
        """Returns the time of one call, with the device idle before and after."""
        call, count = self.programs[program]
        self.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        self.cuda.synchronize()
        return (time.perf_counter() - begin) / count * 1e6


def stump_seconds() -> list[float]:
    """Returns the seconds of two runs of stumpy's matrix profile of 10,000 values; the first one compiles."""
    from oxide import numba_cuda

    numba_cuda.install()
    stumpy = importlib.import_module("stumpy")
    values = np.random.default_rng(0).random(10_000)
    found = []
    for _ in range(3):
        begin = time.perf_counter()
        stumpy.gpu_stump(values, 50)
        found.append(time.perf_counter() - begin)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    from oxide import numba_cuda

    sides = [Side("oxide", numba_cuda)]
    if oxide.devices()[0].kind == "cuda":
        sides.append(Side("numba-cuda", importlib.import_module("numba.cuda")))
    figures: dict[str, dict[str, float]] = {}
    for program in sides[0].programs:
        times: dict[str, list[float]] = {side.name: [] for side in sides}
        for turn in range(given.rounds + 2):
            for side in sides:
                found = side.microseconds(program)
                if turn >= 2:  # the first ones compile
                    times[side.name].append(found)
        figures[program] = {name: statistics.median(each) for name, each in times.items()}
        shown = ", ".join(f"{name} {value:,.1f} µs" for name, value in figures[program].items())
        if len(sides) == 2:
            ratio = figures[program]["numba-cuda"] / figures[program]["oxide"]
            shown += f": {ratio:.2f} of numba-cuda's speed"
        print(f"{program}: {shown}", flush=True)
    report: dict[str, Any] = {"device": oxide.devices()[0].name, "microseconds": figures}
    if importlib.util.find_spec("stumpy") is not None:
        report["gpu_stump of 10,000 values, seconds"] = stump_seconds()
        print("stumpy.gpu_stump, 10,000 values, seconds:", report["gpu_stump of 10,000 values, seconds"])
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
