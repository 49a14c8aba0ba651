"""What a barrier costs the CPU device: a block of 1024 threads with 100 barriers, and a warp's shuffles.

The cost is the difference between two launches that differ in the number of rounds alone, for each thread and round;
results are checked first. Writes ``benchmarks/results/barriers-<device>.json``.

    OXIDE_DEVICE=cpu python -m benchmarks.barriers
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter
from typing import Any

import numpy as np

import oxide
from benchmarks import record
from oxide import DisjointSlice, SharedArray, Slice, d2h, f32, h2d, i64, kernel, thread, warp, zeros

THREADS, ROUNDS = 1024, 100


@kernel
def bare(rounds: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """Barriers and nothing else."""
    index = thread.index_1d()
    for _ in range(rounds):
        thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + f32(rounds)


@kernel
def neighbours(rounds: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """Two rounds at a time: each thread takes the next one's value through shared memory."""
    values = SharedArray(1024, f32)
    index = thread.index_1d()
    t = thread.thread_idx.x
    value = x[index.get()]
    for _ in range(rounds // 2):
        values[t] = value
        thread.sync_threads()
        value = values[(t + 1) % 1024] + f32(2)
        thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = value


@kernel
def shuffles(rounds: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """A shuffle a round."""
    index = thread.index_1d()
    value = x[index.get()]
    for _ in range(rounds):
        value = warp.shuffle_xor(value, 1) + f32(1)
    element = y.get_mut(index)
    if element is not None:
        element.value = value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    x, y = h2d(np.ones(THREADS, np.float32)).sync(), zeros(THREADS).sync()

    def seconds(kernel: Any, rounds: int) -> float:
        operation = kernel[1, THREADS](rounds, x, y)
        start = perf_counter()
        operation.sync()
        return perf_counter() - start

    figures: dict[str, Any] = {"device": oxide.devices()[0].name, "threads": THREADS, "rounds": ROUNDS}
    for each in (bare, neighbours, shuffles):
        each[1, THREADS](ROUNDS, x, y).sync()
        assert (d2h(y).sync() == ROUNDS + 1).all(), each.name
        with_rounds, without = [], []
        for _ in range(options.repeats):
            with_rounds.append(seconds(each, ROUNDS))
            without.append(seconds(each, 0))
        cost = (statistics.median(with_rounds) - statistics.median(without)) * 1e9 / THREADS / ROUNDS
        figures[f"{each.name}_ns_per_thread_and_round"] = cost
        print(f"{each.name}: {cost:.2f} ns a thread and round")
    record.write("barriers", figures, "numba", "numba-cuda", "llvmlite")


if __name__ == "__main__":
    main()
