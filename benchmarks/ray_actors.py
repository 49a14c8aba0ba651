"""A pool of Ray actors beside the same processes fed directly, while actors are killed; and what Ray's parts cost.

``python -m benchmarks.ray_actors`` runs batches of a perceptron (784, 2560, 2560, 10) on four actors of ``oxide.ray``,
as they complete and in order, and kills two of the actors with SIGKILL at random moments. Each result is compared with
float64. Beside the pool, four processes run the same model with as many batches in flight, and each makes its own
batches: no Ray, and nothing leaves a process. The two take turns of some seconds, as the speed of a machine that others
use changes within minutes. Ray's processes get the priority of the others (``RAY_worker_niceness=0``, by default 15).
The program also measures what a simulation of a cluster needs: the time of a call of an actor, the bandwidth of the
object store, and the times of a start, a death and a restart.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import random
import re
import signal
import statistics
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import trio

import oxide
from benchmarks.harness import peer
from benchmarks.record import write
from oxide import DeviceBox, DeviceOperation, d2h, empty, h2d
from oxide_kernels import matmul_packed, pack, relu

ROWS, WIDTHS = 128, (784, 2560, 2560, 10)
KINDS = 16
"""The number of different batches. The others are multiples of them, and so are the results, as the model has no
biases: expected results need no time while the clock runs."""

IN_FLIGHT = 2


class Perceptron:
    """Computes the scores of a batch, which is a number and an array. The number goes with the scores."""

    def __init__(self, **weights: DeviceBox) -> None:
        self._weights = [weights[f"w{number}"] for number in range(len(WIDTHS) - 1)]

    def __call__(self, batch: Any) -> DeviceOperation[Any]:
        number, rows = batch
        x: DeviceOperation[Any] = h2d(rows)
        for layer, weight in enumerate(self._weights):
            x = matmul_packed(x, weight, empty((len(rows), WIDTHS[layer + 1])))
            if weight is not self._weights[-1]:
                x = x.and_then(lambda box: relu(box, box)).last()
        return x.and_then(d2h).map(lambda scores: (number, scores))


class Idle:
    """Returns the batch: what is left is Ray's and the pool's time."""

    def __call__(self, batch: Any) -> Any:
        return batch


def weights_of(seed: int = 0) -> list[Any]:
    """Returns the weights, k×n."""
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in pairwise(WIDTHS)]


def bases() -> list[Any]:
    """Returns the different batches."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal((ROWS, WIDTHS[0])).astype(np.float32) for _ in range(KINDS)]


def factor(number: int) -> np.float32:
    """Returns the factor of a batch: no two of 10,000 are the same."""
    return np.float32(1 + number / 16384)


def batch_of(number: int, kinds: list[Any]) -> tuple[int, Any]:
    return number, kinds[number % KINDS] * factor(number)


def expected_results(kinds: list[Any], weights: list[Any]) -> list[Any]:
    """Returns the results of the different batches, computed in float64."""
    found = []
    for kind in kinds:
        x = kind.astype(np.float64)
        for number, weight in enumerate(weights):
            x = x @ weight.astype(np.float64)
            x = np.maximum(x, 0) if number < len(weights) - 1 else x
        found.append(x)
    return found


def check(result: tuple[int, Any], expected: list[Any]) -> int:
    """Returns the number of a result's batch. Raises ``RuntimeError`` if it is not the result of this batch."""
    number, scores = result
    wanted = expected[number % KINDS] * float(factor(number))
    if np.abs(scores - wanted).max() > 2e-5 * np.abs(wanted).max():
        raise RuntimeError(f"the result of batch {number} is wrong")
    return number


def memory(pid: int | str = "self") -> dict[str, float]:
    """Returns the resident MiB of a process: its own, and all with the pages of the object store that it has seen."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = {name: int(re.search(rf"{name}:\s+(\d+)", text).group(1)) / 1024 for name in ("RssAnon", "VmRSS")}  # type: ignore[union-attr]
    return {"own MiB": round(found["RssAnon"], 1), "resident MiB": round(found["VmRSS"], 1)}


# Fed directly


def work(orders: Any, threads: int) -> None:
    """Runs shares of batches in a process of its own, as they are ordered."""
    os.environ["OXIDE_CPU_THREADS"] = str(threads)
    weights = weights_of()
    model = Perceptron(**{f"w{number}": h2d(pack(weight)).sync() for number, weight in enumerate(weights)})
    kinds = bases()
    expected = expected_results(kinds, weights)

    async def run(share: range) -> None:
        flying: deque[tuple[int, asyncio.Task[Any]]] = deque()

        async def one(number: int) -> Any:
            return await model(batch_of(number, kinds))

        async def take() -> None:
            number, task = flying.popleft()
            if check(await task, expected) != number:
                raise RuntimeError(f"batch {number} has another's result")

        for number in share:
            flying.append((number, asyncio.create_task(one(number))))
            if len(flying) == IN_FLIGHT:
                await take()
        while flying:
            await take()

    asyncio.run(run(range(50)))
    orders.send("ready")
    while (share := orders.recv()) is not None:
        asyncio.run(run(share))
        orders.send("done")


class Direct:
    """Processes that make their own batches, while the block lasts."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        threads = max(1, len(os.sched_getaffinity(0)) // processes)
        pairs = [context.Pipe() for _ in range(processes)]
        self._orders: list[Any] = [ours for ours, _ in pairs]
        self._processes = [context.Process(target=work, args=(theirs, threads), daemon=True) for _, theirs in pairs]
        for process in self._processes:
            process.start()
        for orders in self._orders:
            orders.recv()

    def run(self, batches: int) -> float:
        """Returns the seconds that so many batches take."""
        begun = time.perf_counter()
        for first, orders in enumerate(self._orders):
            orders.send(range(first, batches, len(self._orders)))
        for orders in self._orders:
            orders.recv()
        return time.perf_counter() - begun

    def end(self) -> None:
        for orders in self._orders:
            orders.send(None)
        for process in self._processes:
            process.join()


# On actors


async def on_actors(
    direct: Direct, batches: int, turn: int, actors: int, ordered: bool, kills: int, seed: int
) -> dict[str, Any]:
    """Returns the figures of a pool while some of its actors are killed, and of the processes that take turns with it.
    Raises ``RuntimeError`` unless each batch has its result once."""
    weights = weights_of()
    kinds = bases()
    expected = expected_results(kinds, weights)
    chosen = random.Random(seed)
    moments = sorted(chosen.sample(range(batches // 10, batches - batches // 10), kills), reverse=True)
    given = {f"w{number}": pack(weight) for number, weight in enumerate(weights)}
    seen = np.zeros(batches, bool)
    killed: list[int] = []
    sizes: dict[str, Any] = {}
    turns: list[tuple[float, float]] = []  # batches a second: of the pool, and fed directly
    begun = time.perf_counter()
    async with oxide.ray.ActorPool(
        Perceptron, actors=actors, weights=given, in_flight=IN_FLIGHT, max_restarts=kills
    ) as pool:
        started = time.perf_counter() - begun
        async for _ in pool.map_batches(batch_of(each, kinds) for each in range(100)):  # takes the first memory
            pass
        number, waited = 0, 0
        sizes["begin"] = memory()
        results = pool.map_batches((batch_of(each, kinds) for each in range(batches)), ordered=ordered)
        begun = time.perf_counter()
        async for result in results:
            found = check(result, expected)
            if seen[found] or (ordered and found != number):
                raise RuntimeError(f"batch {found} has its result twice, or out of order")
            seen[found] = True
            number += 1
            if moments and number == moments[-1]:
                moments.pop()
                pid = chosen.choice([each.pid for each in pool.actors if each.pid and each.pid not in killed])
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)
            if number == batches // 2:
                sizes["middle"] = memory()
            if number % turn == 0 or number == batches:
                # What the window held at the turn's begin was computed before: it does not count.
                counted = (number - 1) % turn + 1 - waited
                own = counted / (time.perf_counter() - begun)
                beside = await trio.to_thread.run_sync(direct.run, turn // 4)
                turns.append((own, (turn // 4) / beside))
                waited = actors * IN_FLIGHT
                begun = time.perf_counter()
        sizes["end"] = memory()
        if not seen.all() or number != batches:
            raise RuntimeError(f"{batches - int(seen.sum())} batches have no result")
        seconds, beside = (sum(1 / each[place] for each in turns) for place in (0, 1))
        return {
            "batches": batches,
            "batches a second": round(len(turns) / seconds, 1),
            "fed directly, batches a second": round(len(turns) / beside, 1),
            "of the speed fed directly": round(beside / seconds, 3),
            "turns, pool and fed directly": [[round(each, 1) for each in pair] for pair in turns],
            "seconds to start the pool": round(started, 2),
            "killed": len(killed),
            "restarts seen": sum(each.restarts for each in pool.actors),
            "batches run again": pool.retried,
            "driver's memory": sizes,
        }


# What Ray's parts cost


async def parts(ray: Any) -> dict[str, Any]:
    """Returns what a simulation of a cluster needs."""
    found: dict[str, Any] = {}
    begun = time.perf_counter()
    async with oxide.ray.ActorPool(Idle, max_restarts=10) as pool:
        found["start of a pool of one actor, s"] = round(time.perf_counter() - begun, 2)
        for name, nbytes in (("small", 8), ("64 KiB", 64 << 10), ("400 KiB", 400 << 10), ("4 MiB", 4 << 20)):
            batch = np.zeros(nbytes, np.uint8)
            for window in (1, 2):
                count = 1500 if nbytes < 1 << 20 else 200
                begun = time.perf_counter()
                async for _ in pool.map_batches((batch for _ in range(count)), window=window):
                    pass
                spent = (time.perf_counter() - begun) / count * 1e6
                found[f"a {name} batch there and back, {window} in flight, µs"] = round(spent)
        deaths, restarts = [], []
        for _ in range(5):
            async for _ in pool.map_batches(range(4)):
                pass
            (state,) = pool.actors
            assert state.pid is not None
            results = pool.map_batches(_until_seen(pool, state.pid, deaths, restarts), window=1)
            async for _ in results:
                pass
        found["SIGKILL until the pool knows, s"] = spread(deaths)
        found["SIGKILL until the actor has its first result again, s"] = spread(restarts)
    array = np.ones(64 << 20, np.uint8)
    puts = []
    for _ in range(12):
        begun = time.perf_counter()
        reference = ray.put(array)
        puts.append(array.nbytes / (time.perf_counter() - begun) / 1e9)
        del reference
    found["put of 64 MiB in the object store, GB/s"] = round(statistics.median(puts[2:]), 2)
    return found


def _until_seen(pool: Any, pid: int, deaths: list[float], restarts: list[float]) -> Iterator[int]:
    """Yields a batch for an actor that was killed just before, and then another: by then the first has its result."""
    begun = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    watched = pool._scheduler
    lose = watched._lose

    def lost(worker: Any) -> None:
        deaths.append(time.perf_counter() - begun)
        watched._lose = lose
        lose(worker)

    watched._lose = lost
    yield 0
    restarts.append(time.perf_counter() - begun)


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "least": round(min(values), 2),
        "most": round(max(values), 2),
    }


def machine() -> dict[str, Any]:
    """Returns the machine's facts."""
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "device": oxide.devices()[0].name,
        "processor": platform.machine() if model is None else model.group(1),
        "cores": len(os.sched_getaffinity(0)),
        "memory GiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
    }


def main() -> None:
    """Prints the figures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--turn", type=int, default=400, help="the batches of a pool's turn (400)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true", help="leave the file of results as it is")
    options = parser.parse_args()
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray = peer("ray")
    ray.init(num_cpus=options.actors, include_dashboard=False, log_to_driver=False)
    figures: dict[str, Any] = {
        **machine(),
        "batch": {"rows": ROWS, "widths": WIDTHS, "KiB": ROWS * WIDTHS[0] * 4 // 1024, "in flight": IN_FLIGHT},
        "actors": options.actors,
    }
    direct = Direct(options.actors)
    pools = {}
    for ordered in (False, True):
        name = "in order" if ordered else "as completed"
        batches = options.batches // 10 if ordered else options.batches
        pools[name] = trio.run(
            on_actors, direct, batches, options.turn, options.actors, ordered, options.kills, options.seed
        )
        print(f"{name}: {pools[name]}", flush=True)
    direct.end()
    speed = statistics.median(each["fed directly, batches a second"] for each in pools.values())
    figures["ms from batch to batch, fed directly"] = round(1e3 / speed, 1)
    figures["pool"] = pools
    figures["parts"] = trio.run(parts, ray)
    for name, value in figures.items():
        print(f"{name}: {value}")
    ray.shutdown()
    if not options.no_record:
        write("ray-actors", figures, "ray", "numpy", "numba", "llvmlite", "trio")


if __name__ == "__main__":
    main()
