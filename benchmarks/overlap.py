"""Do independent pipelines overlap? async_mlp's batches on one stream and on four, timed with events on the GPU.

Each run is queued behind a kernel that waits, so that the host's submission time is not measured; the two
contenders alternate. Writes ``benchmarks/results/overlap-<device>.json``.

    python -m benchmarks.overlap --dim 512 --batches 4
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

import oxide
from benchmarks import record
from oxide import Arc, DeviceBox, DeviceOperation, Stream, h2d, zeros, zip
from oxide_kernels import matvec_naive, relu, sgemm_naive


def pipeline(dim: int, batch: Any, w0: Arc[DeviceBox], w1: Arc[DeviceBox]) -> DeviceOperation[Any]:
    """One batch: upload, GEMM, MatVec, ReLU, download."""
    tiles = -(-dim // 16)
    return (
        zip(h2d(batch), zeros((dim, dim)), zeros(dim))
        .and_then(
            lambda t: zip(
                sgemm_naive[(tiles, tiles), (16, 16)](dim, dim, dim, 1.0, t[0], w0, 0.0, t[1]).last(), oxide.value(t[2])
            )
        )
        .and_then(lambda t: matvec_naive(dim, dim, t[0], w1, t[1]).last())
        .and_then(lambda y: relu(y, y).last())
        .and_then(oxide.d2h)
    )


def run(dim: int, batches: list[Any], weights: tuple[Arc[DeviceBox], Arc[DeviceBox]], streams: list[Stream]) -> float:
    """Milliseconds from the first batch's start to the last one's end."""
    main = oxide.devices()[0].new_stream()
    gate = np.zeros(64 << 20, np.uint8)  # the host is far ahead by the time this has been copied a few times
    for _ in range(2):
        h2d(gate).to_host().async_on(main)
    start = main.record_event()
    for stream in streams:
        stream.join(main)
    results = [
        pipeline(dim, batch, *weights).async_on(streams[number % len(streams)]) for number, batch in enumerate(batches)
    ]
    for stream in streams:
        main.join(stream)
    end = main.record_event()
    main.synchronize()
    for stream in streams:
        stream.synchronize()
    assert all(np.isfinite(result).all() for result in results)
    return start.elapsed_ms(end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    dim = options.dim
    rng = np.random.default_rng(0)
    weights = (
        h2d(rng.standard_normal((dim, dim), np.float32)).arc().sync(),
        h2d(rng.standard_normal(dim, np.float32)).arc().sync(),
    )
    batches = [rng.standard_normal((dim, dim), np.float32) for _ in range(options.batches)]
    device = oxide.devices()[0]
    streams = [device.new_stream() for _ in range(4)]
    times: dict[int, list[float]] = {1: [], 4: []}
    for repeat in range(options.repeats + 2):
        for count in times:
            milliseconds = run(dim, batches, weights, streams[:count])
            if repeat >= 2:
                times[count].append(milliseconds)
    one, four = statistics.median(times[1]), statistics.median(times[4])
    figures = {
        "device": device.name,
        "dim": dim,
        "batches": options.batches,
        "one_stream_ms": one,
        "four_streams_ms": four,
        "ratio": four / one,
        "all_ms": times,
    }
    print(f"{device.name}: dim {dim}, {options.batches} batches: one stream {one:.3f} ms, four {four:.3f} ms, ", end="")
    print(f"ratio {four / one:.3f}")
    record.write("overlap", figures, "numba", "numba-cuda", "llvmlite", "cuda-core", "cuda-bindings")


if __name__ == "__main__":
    main()
