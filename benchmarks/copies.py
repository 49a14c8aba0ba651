"""64 MiB up and down under trio: bandwidth beside the driver's own pinned copies, and the loop's longest stall.

The contenders of one direction alternate in one run, and each result is checked before anything is timed:

- ``driver``: the driver's asynchronous copy between pinned and device memory, timed with events: the ceiling;
- ``pinned``: ``h2d`` of a ``pinned_empty`` array; for ``d2h`` there is only this, results are in pinned memory;
- ``ordinary``: ``h2d`` of an ordinary array, staged in chunks: bounded by one core's memcpy;
- ``memcpy``: that one memcpy, into pinned memory.

A ticker beside them measures how long the loop was away. Writes ``benchmarks/results/copies-<device>.json``.

    python -m benchmarks.copies --mib 64 --repeats 30
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import trio

import oxide
from oxide import d2h, h2d, pinned_empty

RESULTS = Path(__file__).parent / "results"
PIPELINED = 4  # copies in flight, so that the time between two is not measured


async def measure(mib: int, repeats: int) -> dict[str, Any]:
    """Medians in GB/s of each contender, and the loop's longest absence while oxide's were running, in ms."""
    nbytes = mib << 20
    device = oxide.devices()[0]
    driver, stream = device.driver, device.new_stream()
    ordinary = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
    pinned = pinned_empty(nbytes, oxide.u8)
    pinned[:] = ordinary
    box = await h2d(ordinary)
    for source in (ordinary, pinned):
        assert np.array_equal(await h2d(source).to_host(), ordinary)

    def by_driver(up: bool) -> float:
        start = stream.record_event()
        for _ in range(PIPELINED):
            handle = stream._timeline.handle
            if up:
                driver.copy_to_device(box.ptr, pinned.ctypes.data, nbytes, handle)
            else:
                driver.copy_to_host(pinned.ctypes.data, box.ptr, nbytes, handle)
        end = stream.record_event()
        end.synchronize()
        return start.elapsed_ms(end) / PIPELINED

    async def timed(build: Any) -> float:
        start = time.perf_counter()
        await oxide.gather(*[build() for _ in range(PIPELINED)])
        return (time.perf_counter() - start) * 1e3 / PIPELINED

    def memcpy() -> float:
        start = time.perf_counter()
        np.copyto(pinned, ordinary)
        return (time.perf_counter() - start) * 1e3

    times: dict[str, list[float]] = {}
    stalls: dict[str, float] = {}
    watched = ""

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await trio.sleep(0)
            now = time.perf_counter()
            if watched:
                stalls[watched] = max(stalls.get(watched, 0.0), (now - last) * 1e3)
            last = time.perf_counter()

    contenders = {
        "up pinned": lambda: h2d(pinned),
        "up ordinary": lambda: h2d(ordinary),
        "down": lambda: d2h(box),
    }
    for warm_up in (True, False):
        for _ in range(5 if warm_up else repeats):
            row = {"up driver": by_driver(True), "down driver": by_driver(False), "memcpy": memcpy()}
            for name, build in contenders.items():
                row[name] = await timed(build)
            if not warm_up:
                for name, milliseconds in row.items():
                    times.setdefault(name, []).append(milliseconds)
    # The stalls apart: a ticker takes its share of the loop's time.
    gc.collect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        for name, build in contenders.items():
            await trio.sleep(0.01)
            watched = name
            for _ in range(repeats):
                await timed(build)
            watched = ""
        nursery.cancel_scope.cancel()
    rates = {name: nbytes / statistics.median(milliseconds) / 1e6 for name, milliseconds in times.items()}
    return {"gb_per_s": rates, "longest_stall_ms": stalls, "all_ms": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    found = trio.run(measure, options.mib, options.repeats)
    rates, stalls = found["gb_per_s"], found["longest_stall_ms"]
    device = oxide.devices()[0]
    ratios = {
        "up pinned": rates["up pinned"] / rates["up driver"],
        "up ordinary": rates["up ordinary"] / rates["up driver"],
        "up ordinary, of the memcpy": rates["up ordinary"] / rates["memcpy"],
        "down": rates["down"] / rates["down driver"],
    }
    print(f"{device.name}, {options.mib} MiB, GB/s: " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()))
    print("ratios: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    print("longest stall, ms: " + ", ".join(f"{name} {stall:.2f}" for name, stall in stalls.items()))
    record = {
        "device": device.name,
        "mib": options.mib,
        "repeats": options.repeats,
        "ratios": ratios,
        **found,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numpy", "trio", "cuda-core", "cuda-bindings")},
    }
    path = RESULTS / f"copies-{'h100' if 'H100' in device.name else device.kind}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
