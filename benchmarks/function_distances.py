"""How far the two devices' elementary functions are from each other, in units in the last place (ulp).

``python -m benchmarks.function_distances [--json FILE]`` runs each function of ``math`` and ``oxide.fast`` over the
same numbers on the CPU device and on the GPU and prints the largest distance and the share of numbers whose results
differ. Everything else in a kernel has the same bits on both. On a machine without a GPU it says so and ends.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxide import DisjointSlice, Kernel, Slice, d2h, f32, f64, fast, h2d, intrinsics, kernel, thread, zeros
from oxide.driver.cpu import CpuDriver
from oxide.driver.cuda.driver import CudaDriver
from oxide.errors import DeviceError
from oxide.testing import use_driver

COUNT = 1 << 20
ANY, POSITIVE, UNIT, ABOVE_ONE, WIDE = (-8.0, 8.0), (1e-3, 30.0), (-1.0, 1.0), (1.0, 50.0), (-80.0, 80.0)
UNARY: dict[str, tuple[float, float]] = {
    **dict.fromkeys(["sin", "cos", "tan", "atan", "asinh", "tanh", "erf", "erfc", "cbrt", "degrees", "radians"], ANY),
    **dict.fromkeys(["sinh", "cosh", "exp", "exp2", "expm1"], WIDE),
    **dict.fromkeys(["log", "log2", "log10", "log1p", "gamma", "lgamma"], POSITIVE),
    **dict.fromkeys(["asin", "acos", "atanh"], UNIT),
    "acosh": ABOVE_ONE,
}
BINARY: dict[str, tuple[float, float]] = {"atan2": ANY, "hypot": ANY, "pow": (0.1, 6.0)}
FAST: dict[str, tuple[float, float]] = {
    **dict.fromkeys(["exp", "exp10"], ANY),
    **dict.fromkeys(["log", "log2", "log10"], POSITIVE),
    **dict.fromkeys(["sin", "cos", "tan"], (-3.0, 3.0)),
}


def unary(function: Any, scalar: Any) -> Kernel:
    @kernel(block=256)
    def apply(x: Slice[scalar], y: DisjointSlice[scalar]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = function(x[i.get()])

    return apply


def binary(function: Any, scalar: Any) -> Kernel:
    @kernel(block=256)
    def apply(a: Slice[scalar], b: Slice[scalar], y: DisjointSlice[scalar]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = function(a[i.get()], b[i.get()])

    return apply


def distance(first: NDArray[Any], second: NDArray[Any]) -> tuple[int, float]:
    """The most numbers of the type that lie between two results, and the share of results that differ."""
    bits = np.int32 if first.dtype == np.float32 else np.int64
    least = np.iinfo(bits).min

    def ordered(values: NDArray[Any]) -> NDArray[Any]:
        raw = values.view(bits).astype(object)
        return np.where(raw < 0, least - raw, raw)

    both = ~(np.isnan(first) | np.isnan(second))
    if not np.array_equal(np.isnan(first), np.isnan(second)):
        raise SystemExit("a NaN on one device is none on the other")
    unlike = both & (first != second)
    apart = np.abs(ordered(first[unlike]) - ordered(second[unlike]))
    return int(apart.max()) if apart.size else 0, float(unlike.mean())


def results(each: Kernel, inputs: tuple[NDArray[Any], ...]) -> NDArray[Any]:
    found: NDArray[Any] = each(*map(h2d, inputs), zeros(inputs[0].size, inputs[0].dtype)).last().and_then(d2h).sync()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cases: list[tuple[str, str, Kernel, tuple[NDArray[Any], ...]]] = []
    for scalar in (f32, f64):
        random = np.random.default_rng(1)

        def some(ends: tuple[float, float], random: Any = random, scalar: Any = scalar) -> NDArray[Any]:
            values: NDArray[Any] = random.uniform(*ends, COUNT).astype(scalar.dtype)
            return values

        for name, ends in UNARY.items():
            cases.append((name, scalar.name, unary(getattr(math, name), scalar), (some(ends),)))
        cases.append(("rsqrt", scalar.name, unary(intrinsics.rsqrt, scalar), (some(POSITIVE),)))
        for name, ends in BINARY.items():
            cases.append((name, scalar.name, binary(getattr(math, name), scalar), (some(ends), some(ends))))
        if scalar is f32:
            for name, ends in FAST.items():
                cases.append((f"fast.{name}", "f32", unary(getattr(fast, name), f32), (some(ends),)))
            cases.append(("fast.pow", "f32", binary(fast.pow, f32), (some((0.1, 6.0)), some((0.1, 6.0)))))
            cases.append(("fast.divide", "f32", binary(fast.divide, f32), (some(POSITIVE), some(POSITIVE))))
    try:
        gpu = CudaDriver()
    except DeviceError as error:
        raise SystemExit(f"the distances are between two devices, and there is no GPU: {error}") from None
    gpu_name = gpu.device_info(0).name
    with use_driver(gpu):
        of_gpu = [results(each, inputs) for _, _, each, inputs in cases]
    with use_driver(CpuDriver()):
        of_cpu = [results(each, inputs) for _, _, each, inputs in cases]
    rows: list[dict[str, Any]] = []
    for (name, type_name, _, inputs), one, other in zip(cases, of_gpu, of_cpu, strict=True):
        ulp, share = distance(one, other)
        ends = [round(float(inputs[0].min()), 3), round(float(inputs[0].max()), 3)]
        rows.append({"function": name, "type": type_name, "between": ends, "ulp": ulp, "differ": round(share, 5)})
        print(f"{name:12} {type_name}  {ulp:8} ulp  {share:8.3%} differ  {ends}")
    if given.json:
        facts = {"gpu": gpu_name, "cpu": platform.processor() or platform.machine(), "count": COUNT}
        given.json.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
