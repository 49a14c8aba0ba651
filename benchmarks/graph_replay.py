"""async_mlp's batch as a graph: the same results as running it, for thousands of changing inputs, and what it saves.

Every input goes through both: the pipeline run as it is, and the graph, whose uploads read the same array. The results
must be bit for bit equal. The driver's calls are counted meanwhile: no allocation, no new stream or event, and the
process's resident memory after the last input against that after the first tenth. Then both are timed without the
counting, alternating in rounds. Writes ``benchmarks/results/graph-replay-<device>.json``.

    python -m benchmarks.graph_replay --inputs 10000
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import oxide
from benchmarks import record
from examples.async_mlp import pipeline
from oxide import h2d
from oxide.runtime.devices import runtime as context
from oxide.testing import RecordingDriver, use_driver

CREATES = ("allocate", "allocate_host", "create_stream", "create_event", "begin_capture")


def resident_bytes() -> int:
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


class Contest:
    """The pipeline over one input array, which changes in place, and the graph captured from it."""

    def __init__(self, dim: int) -> None:
        rng = np.random.default_rng(0)
        self.rng = rng
        self.batch = rng.random((dim, dim), np.float32)
        w0 = h2d(rng.standard_normal((dim, dim), np.float32)).arc().sync()
        w1 = h2d(rng.standard_normal(dim, np.float32)).arc().sync()
        self.operation = pipeline.mlp(self.batch, w0, w1)
        self.captured = self.operation.graph()
        self.captured.launch().sync()
        output = self.captured.take_output()
        assert output is not None
        self.output = output

    def change(self) -> None:
        self.rng.random(out=self.batch, dtype=np.float32)

    def run(self) -> Any:
        return self.operation.sync()

    def replay(self) -> Any:
        self.captured.launch().sync()
        return self.output


def compare(dim: int, inputs: int) -> dict[str, Any]:
    """Runs every input both ways; raises where they differ or where the graph allocates."""
    with use_driver(RecordingDriver(context._choose_driver(0))) as driver:
        contest = Contest(dim)
        settle, memory = max(1, inputs // 10), 0
        created: dict[str, int] = {}
        for number in range(inputs):
            contest.change()
            expected = contest.run().copy()
            driver.clear()
            found = contest.replay()
            if number >= 10:
                for method in CREATES:
                    created[method] = created.get(method, 0) + driver.count(method)
            assert np.array_equal(found, expected), f"input {number}: {found[:4]} is not {expected[:4]}"
            if number == settle:
                gc.collect()
                memory = resident_bytes()
        gc.collect()
        growth = resident_bytes() - memory
        outstanding = driver.outstanding()
        driver.clear()
        contest.captured.close()
        del contest, found
    assert not any(created.values()), f"launches created {created}"
    return {"inputs": inputs, "created": created, "growth_bytes": growth, "outstanding": outstanding}


def time_both(dim: int, rounds: int, length: int) -> dict[str, list[float]]:
    """Microseconds an input, run and replayed, from the host array to the host result."""
    contest = Contest(dim)
    contenders: dict[str, Callable[[], Any]] = {"run": contest.run, "replay": contest.replay}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            start = time.perf_counter()
            for _ in range(length):
                contender()
            if number:
                times[name].append((time.perf_counter() - start) / length * 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--length", type=int, default=200)
    options = parser.parse_args()
    compared = compare(options.dim, options.inputs)
    print(
        f"{options.inputs} inputs: equal; created by launches: none; growth {compared['growth_bytes'] / 1024:.0f} KiB"
    )
    times = time_both(options.dim, options.rounds, options.length)
    run, replay = statistics.median(times["run"]), statistics.median(times["replay"])
    device = oxide.devices()[0]
    print(f"{device.name}: run {run:.1f} µs an input, replay {replay:.1f} µs, ratio {replay / run:.3f}")
    figures = {
        "device": device.name,
        "dim": options.dim,
        **compared,
        "run_us": run,
        "replay_us": replay,
        "all_us": times,
    }
    record.write("graph-replay", figures, "numpy", "cuda-core", "cuda-bindings")


if __name__ == "__main__":
    main()
