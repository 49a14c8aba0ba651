"""The event loop beside a busy device: its longest stall, and what a request pays for work that was given up.

Sixty-four operations, each of which takes the device a tenth of a second and the CPU device all of its cores, are
awaited under a time-out of 0.1 s, one task each, while a ticker looks how long the loop was away. Once all have timed
out a tiny operation is awaited. Three figures, of the median round:

- when the last of the 64 was timed out, from the start;
- the loop's longest stall, from the start to the tiny operation's result;
- how long the tiny operation took.

The same once more with each operation as a request of one ``Batcher``, four in a batch.

Prints PASS or FAIL for each and exits with 1 where one is not met; ``--json`` writes
``benchmarks/results/event_loop-<device>.json``.

    python -m benchmarks.event_loop --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import numpy as np
import trio

import oxide
from benchmarks import record
from oxide import DisjointSlice, f32, kernel, thread, u32, zeros
from oxide.serving import Batcher

TASKS = 64
TIMEOUT_SECONDS = 0.1

MOST_TIMED_OUT_SECONDS = 0.12
MOST_STALL_SECONDS = 0.05
MOST_TINY_SECONDS = 0.2

BLOCK = 64
BLOCKS = 1024


@kernel(block=BLOCK)
def grind(rounds: u32, out: DisjointSlice[f32]) -> None:
    """``rounds`` steps of a recurrence that no compiler folds, in each thread."""
    element = out.get_mut(thread.index_1d())
    if element is not None:
        value = f32(0.5)
        for _ in range(rounds):
            value = f32(3.7) * value * (f32(1.0) - value)
        element.value = value


def slow(rounds: int) -> oxide.DeviceOperation[object]:
    """An operation that keeps the device busy."""
    return grind(rounds, zeros(BLOCK * BLOCKS)).last().to_host()


def tiny() -> oxide.DeviceOperation[object]:
    """One that takes it no time."""
    return grind(1, zeros(BLOCK)).last().to_host()


def rounds_for(seconds: float) -> int:
    """How many rounds a kernel has that takes the device so long, when it has nothing else to do."""
    rounds = 256
    while True:
        took = min(timed(rounds) for _ in range(3))
        if took > seconds / 2:
            return max(1, round(rounds * seconds / took))
        rounds *= 2


def timed(rounds: int) -> float:
    """Seconds of one slow operation by itself."""
    begun = time.perf_counter()
    slow(rounds).sync()
    return time.perf_counter() - begun


async def awaited(rounds: int) -> tuple[float, float, float]:
    """One round in which each task awaits its operation."""
    return await measure(rounds, lambda rounds: slow(rounds) if rounds > 1 else tiny())


async def batched(rounds: int) -> tuple[float, float, float]:
    """One round in which each operation is a request of a batcher."""

    def run(requests: list[int]) -> oxide.DeviceOperation[tuple[object, ...]]:
        return oxide.zip(*[slow(rounds) if rounds > 1 else tiny() for rounds in requests])

    async with Batcher(run, max_batch=4) as batcher:
        return await measure(rounds, batcher)


async def measure(rounds: int, ask: Callable[[int], Awaitable[object]]) -> tuple[float, float, float]:
    """One round: until all have timed out, the longest stall, the tiny operation; in seconds."""
    stalls = [0.0]
    ended: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await trio.sleep(0.001)
            now = time.perf_counter()
            stalls.append(now - last)
            last = now

    async def give_up() -> None:
        with trio.move_on_at(deadline):
            await ask(rounds)
        ended.append(time.perf_counter())

    async with trio.open_nursery() as ticking:
        ticking.start_soon(tick)
        await trio.sleep(0.01)
        begun = time.perf_counter()
        deadline = trio.current_time() + TIMEOUT_SECONDS
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(give_up)
        sent = time.perf_counter()
        await ask(1)
        took = time.perf_counter() - sent
        ticking.cancel_scope.cancel()
    oxide.reclaim.drain()
    return max(ended) - begun, max(stalls), took


def main() -> int:
    """Measures and judges; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often all is measured")
    parser.add_argument("--json", action="store_true", help="leave the figures in benchmarks/results")
    options = parser.parse_args()
    assert np.isfinite(tiny().sync()).all()  # compiled and loaded
    rounds = rounds_for(TIMEOUT_SECONDS)
    names = ("all timed out", "longest stall", "tiny request")
    bounds = (MOST_TIMED_OUT_SECONDS, MOST_STALL_SECONDS, MOST_TINY_SECONDS)
    asked = {}
    for program, added in ((awaited, ""), (batched, ", of a batcher")):
        measured = [trio.run(program, rounds) for _ in range(options.rounds)]
        for name, bound, found in zip(names, bounds, zip(*measured, strict=True), strict=True):
            middle = statistics.median(found)
            asked[name + added] = {"found": middle, "bound": bound, "met": middle < bound, "all": found}
            print(
                f"{'PASS' if middle < bound else 'FAIL'}  {name}{added}: {middle * 1e3:.1f} ms (< {bound * 1e3:g}), "
                f"{min(found) * 1e3:.1f} to {max(found) * 1e3:.1f}"
            )
    if options.json:
        device = oxide.devices()[0]
        record.write("event_loop", {"device": device.name, "rounds": options.rounds, "asked": asked}, "numpy", "trio")
    return 0 if all(one["met"] for one in asked.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
