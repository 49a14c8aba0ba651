"""A simulation of larger machines than were measured: more GPUs in one, and many machines under Ray.

The parameters are measured ones, from ``benchmarks/results``: those of ``collectives`` for a training step, and those
of ``ray_actors`` for batches. What they do not say is assumed, and printed as such. The page ``docs/scaling.md`` shows
the results and says what follows.

- **Training step.** Each of n GPUs computes its n-th part of the batch, for a time that varies as the measured steps
  do. The slowest decides. Then come the collectives that nothing hides. Ring all-reduce: 2(n-1)/n of the bytes at the
  measured bandwidth, and a latency for each of 2(n-1) hops.
- **Batches on many machines.** A discrete-event simulation of ``ActorPool.map_batches``: one driver, which takes a
  fixed time for each batch, k batches in flight on each actor, service times with a heavy tail, and machines that fail.
  A failed machine's batches go to others once the failure is seen; the machine comes back later.

    python -m benchmarks.scaling [--json FILE]
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Step:
    """A training step: microseconds of one GPU with the whole batch, the share of it that does not shrink with the
    batch, the relative spread of a step's time, and the collectives."""

    alone_us: float
    fixed_us: float
    spread: float
    gradient_bytes: float
    exposed: float  # the part of the gradients whose reduction nothing hides
    bandwidth: float  # bytes per microsecond, of each GPU's links
    hop_us: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """Batches on many machines. Times are in seconds."""

    machines: int
    actors: int  # of each machine
    in_flight: int  # of each actor
    service: float  # the median time of a batch on an actor
    spread: float  # the standard deviation of its logarithm
    tail: float  # the part of the batches that take ten times as long
    driver: float  # the driver's time for a batch
    detect: float  # from a failure to the driver's knowledge
    restart: float  # from there until the actor serves again
    failures: float  # the mean time between failures of one machine


def step_us(step: Step, gpus: int, random: np.random.Generator, steps: int = 2000) -> float:
    """Returns the mean time of a step on ``gpus`` GPUs."""
    own = step.fixed_us + (step.alone_us - step.fixed_us) / gpus
    slowest = (own * np.exp(random.normal(0, step.spread, (steps, gpus)))).max(axis=1)
    if gpus == 1:
        return float(slowest.mean())
    moved = 2 * (gpus - 1) / gpus * step.gradient_bytes * step.exposed / step.bandwidth
    return float(slowest.mean()) + moved + 2 * (gpus - 1) * step.hop_us


@dataclass(slots=True)
class Outcome:
    """What a simulation of batches gives. ``efficiency`` is the throughput beside that of all actors without driver,
    stragglers and failures."""

    seconds: float
    throughput: float
    efficiency: float
    driver_busy: float
    failed: int
    repeated: int
    p99_wait: float


def serve(cluster: Cluster, batches: int, seed: int) -> Outcome:
    """Simulates ``batches`` batches."""
    random = np.random.default_rng(seed)
    actors = cluster.machines * cluster.actors
    services = cluster.service * np.exp(random.normal(0, cluster.spread, batches))
    services[random.random(batches) < cluster.tail] *= 10
    times: list[float] = services.tolist()
    events: list[tuple[float, int, str, int, int, int]] = []  # time, number, kind, actor, batch, life of the actor
    number = 0

    def at(when: float, kind: str, actor: int, batch: int = -1, life: int = 0) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (when, number, kind, actor, batch, life))

    waiting: deque[int] = deque()  # batches whose actor failed
    fresh = 0
    lives = [0] * actors
    up = [True] * actors
    queues: list[deque[int]] = [deque() for _ in range(actors)]
    sent: dict[int, float] = {}
    # The places in the windows, each with the life of its actor: those of an earlier life are void.
    free = deque([(actor, 0) for _ in range(cluster.in_flight) for actor in range(actors)])
    driver_until = driver_busy = now = 0.0
    done = failed = repeated = 0
    waits: list[float] = []
    for machine in range(cluster.machines):
        at(float(random.exponential(cluster.failures)), "fail", machine)

    def feed(now: float) -> None:
        nonlocal driver_until, driver_busy, fresh
        while free and (waiting or fresh < batches):
            actor, life = free.popleft()
            if life != lives[actor] or not up[actor]:
                continue
            batch = waiting.popleft() if waiting else fresh
            fresh += batch == fresh
            driver_until = max(driver_until, now) + cluster.driver
            driver_busy += cluster.driver
            sent.setdefault(batch, driver_until)
            at(driver_until, "arrive", actor, batch, lives[actor])

    feed(0.0)
    while done < batches:
        now, _, kind, actor, batch, life = heapq.heappop(events)
        if kind == "arrive":
            if life != lives[actor]:
                at(now + cluster.detect, "lost", actor, batch)
                continue
            queues[actor].append(batch)
            if len(queues[actor]) == 1:
                at(now + times[batch], "done", actor, batch, life)
        elif kind == "done":
            if life != lives[actor]:
                continue
            queues[actor].popleft()
            done += 1
            waits.append(now - sent.pop(batch))
            if queues[actor]:
                at(now + times[queues[actor][0]], "done", actor, queues[actor][0], life)
            free.append((actor, life))
            feed(now)
        elif kind == "fail":
            machine = actor
            for each in range(machine * cluster.actors, (machine + 1) * cluster.actors):
                lives[each] += 1
                failed += 1
                up[each] = False
                for lost in queues[each]:
                    at(now + cluster.detect, "lost", each, lost)
                queues[each].clear()
                at(now + cluster.detect + cluster.restart, "back", each)
            at(now + float(random.exponential(cluster.failures)), "fail", machine)
        elif kind == "lost":
            repeated += 1
            waiting.append(batch)
            feed(now)
        else:
            up[actor] = True
            free.extend([(actor, lives[actor])] * cluster.in_flight)
            feed(now)
    ideal = batches * float(services.mean()) / actors if cluster.tail else batches * cluster.service / actors
    waits.sort()
    return Outcome(
        now, done / now, ideal / now, driver_busy / now, failed, repeated, waits[int(0.99 * (len(waits) - 1))]
    )


def measured_step() -> Step:
    """Returns the parameters of a step, from the benchmark of the collectives on GPUs."""
    found = json.loads((RESULTS / "collectives-h200.json").read_text())
    reduce = found["all_reduce"]
    ranks, step = found["ranks"], found["step"]
    alone, low, high = step["alone, one graph"]
    largest = max(reduce, key=int)
    share = 2 * (ranks - 1) / ranks
    bandwidth = share * int(largest) / min(reduce[largest][name][0] for name in ("oxide", "oxide, graph"))
    small = min(reduce, key=int)
    hop = (reduce[small]["oxide, graph"][0] - share * int(small) / bandwidth) / (2 * (ranks - 1))
    gradients = 4 * 4096 * (65 + 10)
    # A step over both GPUs less half of one GPU's and the hops is what does not shrink.
    fixed = max(0.0, 2 * (step["together, one graph"][0] - alone / 2 - 2 * hop))
    return Step(alone, fixed, max(1e-3, (high - low) / 1.35 / alone), gradients, 65 / 75, bandwidth, hop)


def measured_cluster() -> tuple[Cluster, list[str]]:
    """Returns the parameters of batches, from the benchmark of Ray's actors, and what is assumed beside them."""
    found = json.loads((RESULTS / "ray-actors-cpu.json").read_text())["parts"]
    assumed = [
        "the spread of service times is 0.1, and one batch in a thousand takes ten times as long",
        "a machine is back 10 minutes after its failure",
        "the failure of a machine is seen as soon as the end of a process was here",
        "the driver takes for a batch what one went there and back in, two in flight: more than it takes alone",
    ]
    cluster = Cluster(
        machines=1000,
        actors=1,
        in_flight=2,
        service=0.5,
        spread=0.1,
        tail=1e-3,
        driver=found["a 400 KiB batch there and back, 2 in flight, µs"] / 1e6,
        detect=found["SIGKILL until the pool knows, s"]["median"],
        restart=600.0,
        failures=30 * 86400.0,
    )
    return cluster, assumed


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables, and writes them as JSON where asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", allow_abbrev=False)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args(arguments)
    step, (cluster, assumed) = measured_step(), measured_cluster()
    figures: dict[str, Any] = {"step": asdict(step), "cluster": asdict(cluster), "assumed": assumed}
    print(f"a step, measured: {step}")
    rows: list[dict[str, float]] = []
    for gpus in (1, 2, 4, 8):
        random = np.random.default_rng(gpus)
        times = {
            "as measured": step_us(step, gpus, random),
            "a spread of 5 %": step_us(replace(step, spread=0.05), gpus, random),
            "gradients of 120 MB": step_us(replace(step, gradient_bytes=120e6), gpus, random),
        }
        rows.append({"gpus": gpus, **times})
        print(f"{gpus} GPUs: " + ", ".join(f"{name} {time:.0f} us" for name, time in times.items()))
    figures["steps"] = rows
    print(f"batches, measured: {cluster}; assumed: {'; '.join(assumed)}")
    outcomes: list[dict[str, Any]] = []
    for machines in (1, 10, 100, 1000):
        for service in (0.05, 0.5, 5.0):
            for failures in (cluster.failures, 6 * 3600.0):
                case = replace(cluster, machines=machines, service=service, failures=failures)
                outcome = serve(case, 200 * machines, machines)
                outcomes.append(
                    {"machines": machines, "service": service, "failures": failures, "outcome": asdict(outcome)}
                )
                print(
                    f"{machines} machines, batches of {service:g} s, a failure of each in {failures / 86400:.3g} days: "
                    f"efficiency {outcome.efficiency:.2f}, {outcome.throughput:.0f} batches/s, driver busy "
                    f"{outcome.driver_busy:.0%}, {outcome.repeated} repeated, 99 % within {outcome.p99_wait:.1f} s"
                )
    figures["batches"] = outcomes
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
