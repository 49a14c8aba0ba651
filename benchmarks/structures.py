"""N-body with ``Slice[Particle]`` beside the same kernel with separate arrays: what structures cost, or save.

``python -m benchmarks.structures [--sizes 4096 16384] [--seconds 3] [--write]`` prints interactions per second in
billions, the median of batches that the forms run in turn, and the ratio of their times. A second pair filters and
reduces a table of records, once from records and once from one array for each column, and prints the bytes that each
moves. Results are compared with NumPy's in float64 before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import oxide
from benchmarks import record
from benchmarks.harness import repeated_to_the_end
from oxide import DisjointSlice, Slice, Vec3, devices, f32, f64, h2d, i32, kernel, reclaim, thread, u8, zeros

"""Seconds of one batch, about."""
_SOFTENING = 0.01
_COUNT = 1 << 14
"""The threads that reduce a table."""


class Particle(NamedTuple):
    position: Vec3[f32]
    velocity: Vec3[f32]
    mass: f32


class Record(NamedTuple):
    key: i32
    group: u8
    amount: f64


@kernel(block=128)
def of_structures(bodies: Slice[Particle], seconds: f32, moved: DisjointSlice[Particle]) -> None:
    index = thread.index_1d()
    element = moved.get_mut(index)
    if element is not None:
        one = bodies[index.get()]
        pull = Vec3[f32](0.0, 0.0, 0.0)
        for j in range(len(bodies)):
            other = bodies[j]
            apart = other.position - one.position
            squared = apart.dot(apart) + 0.01
            pull += apart * (other.mass / (squared * squared**0.5))
        velocity = one.velocity + pull * seconds
        element.value = one._replace(position=one.position + velocity * seconds, velocity=velocity)


@kernel(block=128, requires=("len(place) == len(mass)", "len(place) == len(speed)"))
def of_arrays(
    place: Slice[Vec3[f32]],
    speed: Slice[Vec3[f32]],
    mass: Slice[f32],
    seconds: f32,
    new_speed: DisjointSlice[Vec3[f32]],
    new_place: DisjointSlice[Vec3[f32]],
) -> None:
    index = thread.index_1d()
    place_elem, speed_elem = new_place.get_mut(index), new_speed.get_mut(index)
    if place_elem is not None and speed_elem is not None:
        own = place[index.get()]
        pull = Vec3[f32](0.0, 0.0, 0.0)
        for j in range(len(place)):
            apart = place[j] - own
            squared = apart.dot(apart) + 0.01
            pull += apart * (mass[j] / (squared * squared**0.5))
        velocity = speed[index.get()] + pull * seconds
        speed_elem.value = velocity
        place_elem.value = own + velocity * seconds


@kernel(block=128)
def from_records(table: Slice[Record], out: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        total = f64(0.0)
        for i in range(index.get(), len(table), len(out)):
            one = table[i]
            if one.group == 1 and one.amount >= 0.25:
                total += one.amount * one.key
        element.value = total


@kernel(block=128, requires=("len(key) == len(group)", "len(key) == len(amount)"))
def from_columns(key: Slice[i32], group: Slice[u8], amount: Slice[f64], out: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        total = f64(0.0)
        for i in range(index.get(), len(key), len(out)):
            if group[i] == 1 and amount[i] >= 0.25:
                total += amount[i] * key[i]
        element.value = total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 16384], help="the numbers of bodies")
    parser.add_argument("--records", type=int, default=1 << 22, help="the length of the table")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each comparison runs (3)")
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    given = parser.parse_args()
    rows = []
    for n in given.sizes:
        rows.append(bodies(n, given.seconds))
        print(json.dumps(rows[-1]), flush=True)
        reclaim.drain()
    rows.append(records(given.records, given.seconds))
    print(json.dumps(rows[-1]), flush=True)
    if given.write:
        record.write(
            "structures", {"device": devices()[0].name, "rows": rows}, "numba", "numba-cuda", "llvmlite", "numpy"
        )


def bodies(n: int, seconds: float) -> dict[str, Any]:
    """Measures one step of ``n`` bodies."""
    random = np.random.default_rng(n)
    table = np.zeros(n, oxide.dtype_of(Particle))
    table["position"], table["velocity"] = random.random((n, 3)), random.random((n, 3))
    table["mass"] = random.random(n) / n
    place, speed, mass = (np.ascontiguousarray(table[name]) for name in Particle._fields)
    whole = of_structures(h2d(table).sync(), 0.01, zeros(n, Particle).sync()).last()
    parts = of_arrays(
        h2d(place).sync(), h2d(speed).sync(), h2d(mass).sync(), 0.01, zeros((n, 3)).sync(), zeros((n, 3)).sync()
    ).last()
    some = random.integers(0, n, 16)
    apart = place[None].astype(np.float64) - place[some][:, None]
    squared = (apart**2).sum(-1) + _SOFTENING
    velocity = speed[some] + (apart * (mass / squared**1.5)[..., None]).sum(1) * 0.01
    expected = place[some] + velocity * 0.01
    operations = {"structures": whole, "arrays": parts}
    results = {"structures": lambda found: found["position"][some], "arrays": lambda found: found[some]}
    rates = _rates(operations, results, expected, 1e-5, n * n, seconds)
    return {"what": "n-body", "n": n, "unit": "10^9 interactions/s", **rates}


def records(n: int, seconds: float) -> dict[str, Any]:
    """Measures a sum over some of ``n`` records."""
    random = np.random.default_rng(n)
    table = np.zeros(n, oxide.dtype_of(Record))
    table["key"], table["group"], table["amount"] = (
        random.integers(-9, 9, n),
        random.integers(0, 3, n),
        random.random(n),
    )
    columns = [h2d(np.ascontiguousarray(table[name])).sync() for name in Record._fields]
    kept = table[(table["group"] == 1) & (table["amount"] >= 0.25)]
    operations = {
        "structures": from_records(h2d(table).sync(), zeros(_COUNT, f64).sync()).last(),
        "arrays": from_columns(*columns, zeros(_COUNT, f64).sync()).last(),
    }
    results = dict.fromkeys(operations, lambda found: found.sum())
    rates = _rates(operations, results, (kept["amount"] * kept["key"]).sum(), 1e-9, n, seconds)
    moved = {"structures": table.nbytes, "arrays": sum(column.nbytes for column in columns)}
    return {"what": "records", "n": n, "unit": "10^9 records/s", **rates, "bytes": moved}


def _rates(
    operations: dict[str, Any],
    results: dict[str, Callable[[Any], Any]],
    expected: Any,
    tolerance: float,
    work: int,
    seconds: float,
) -> dict[str, Any]:
    """Returns the rate of each operation, after a comparison of its result with ``expected``, and their ratio."""
    stream = devices()[0].new_stream()
    batches: dict[str, Callable[[], float]] = {}
    for name, operation in operations.items():
        found = results[name](operation.to_host().sync_on(stream))
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        if not error < tolerance:
            raise SystemExit(f"{name}: the result is off by {error:.1e} of its norm")
        batches[name] = repeated_to_the_end(operation, stream)
    times: dict[str, list[float]] = {name: [] for name in operations}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["arrays"]) < 5:
        for name, batch in batches.items():
            times[name].append(batch())
    medians = {name: statistics.median(each) for name, each in times.items()}
    rates = {name: round(work / median / 1e9, 3) for name, median in medians.items()}
    return {**rates, "ratio": round(medians["structures"] / medians["arrays"], 3)}


if __name__ == "__main__":
    main()
