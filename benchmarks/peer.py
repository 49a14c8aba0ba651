"""Two devices of one host: copies between them at every size, and one batch on one device and on two.

Each size from 1 byte to ``--largest`` is first checked byte for byte in both directions, and then timed beside the way
through the host (download, upload), the contenders alternating: ``memcpy`` between boxes that are there already, host
clock around a run of copies and one synchronisation. The batch splitter's result is checked against float64 NumPy on a
slice of its rows, then timed on one device and on two, alternating. Writes ``benchmarks/results/peer-<device>.json``.

    python -m benchmarks.peer                    # on a host with two GPUs
    OXIDE_DEVICE=cpu python -m benchmarks.peer --largest 1048576 --rows 256 --dim 64 --depth 2
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import numpy as np
import trio

import oxide
from benchmarks import record
from examples.batch_splitter import splitter
from oxide import d2h, h2d, init_device_contexts, memcpy


def check_copy(nbytes: int) -> None:
    """One copy in each direction, compared byte for byte."""
    array = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    for origin, target in ((0, 1), (1, 0)):
        source = h2d(array).on(origin).sync()
        result = d2h(oxide.to_device(source, target).sync()).on(target).sync()
        assert np.array_equal(result, array), f"{nbytes} bytes from device {origin} to device {target}"
        array = array[::-1].copy()


def time_copies(nbytes: int, repeats: int) -> dict[str, float]:
    """Seconds for one copy from device 0 to device 1, direct and through the host; medians."""
    array = np.zeros(nbytes, np.uint8)
    source, target = h2d(array).on(0).sync(), h2d(array).on(1).sync()
    stream = oxide.devices()[0].new_stream()
    run_length = max(1, min(50, (64 << 20) // nbytes))
    times: dict[str, list[float]] = {"direct": [], "through_host": []}
    for repeat in range(repeats + 2):
        start = time.perf_counter()
        for _ in range(run_length):
            memcpy(target, source).async_on(stream)
        stream.synchronize()
        direct = (time.perf_counter() - start) / run_length
        start = time.perf_counter()
        memcpy(target, d2h(source).on(0).sync()).on(1).sync()
        through_host = time.perf_counter() - start
        if repeat >= 2:
            times["direct"].append(direct)
            times["through_host"].append(through_host)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


async def time_splitter(rows: int, dim: int, depth: int, repeats: int) -> dict[int, list[float]]:
    """Seconds of the whole batch on one device and on two."""
    batch, weights = splitter.make_batch(rows, dim)
    copies = await splitter.spread(weights, range(2))
    few = slice(rows // 2 - 8, rows // 2 + 8)  # on both sides of the split
    expected = splitter.reference(batch[few], weights, depth)
    times: dict[int, list[float]] = {1: [], 2: []}
    for repeat in range(repeats + 1):
        for count, seconds in times.items():
            start = time.perf_counter()
            result = await splitter.run_split(batch, copies[:count], range(count), depth)
            elapsed = time.perf_counter() - start
            np.testing.assert_allclose(result[few], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
            if repeat >= 1:
                seconds.append(elapsed)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=1 << 30, help="bytes")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("OXIDE_CPU_DEVICES", "2")
    init_device_contexts(0, 2)
    devices = oxide.devices()

    copies: dict[int, Any] = {}
    sizes = [1 << power for power in range(0, 31, 2)]
    for nbytes in sorted({*sizes, 3, 4097, (1 << 20) + 1, options.largest}):
        if nbytes > options.largest:
            continue
        check_copy(nbytes)
        copies[nbytes] = seconds = time_copies(nbytes, options.repeats)
        direct, staged = seconds["direct"], seconds["through_host"]
        print(
            f"{nbytes:>10} bytes: right; direct {direct * 1e6:9.1f} µs ({nbytes / direct / 1e9:6.1f} GB/s), "
            f"through the host {staged * 1e6:9.1f} µs"
        )

    times = trio.run(time_splitter, options.rows, options.dim, options.depth, options.repeats)
    one, two = statistics.median(times[1]), statistics.median(times[2])
    print(f"{devices[0].name}: splitter, one device {one * 1e3:.1f} ms, two {two * 1e3:.1f} ms, ratio {two / one:.3f}")
    figures = {
        "devices": [device.name for device in devices[:2]],
        "copies_seconds": copies,
        "splitter": {"rows": options.rows, "dim": options.dim, "depth": options.depth},
        "one_device_s": one,
        "two_devices_s": two,
        "ratio": two / one,
        "all_s": times,
    }
    record.write("peer", figures, "numpy", "cuda-core", "cuda-bindings")


if __name__ == "__main__":
    main()
