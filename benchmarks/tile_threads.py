"""The examples of tile kernels beside the same programs as thread kernels, as one would write them first: a thread for
each element, row, query or point. Milliseconds, medians of rounds in turn, on the device at hand.

    python -m benchmarks.tile_threads [--rounds 9] [--write]

Both results are compared with NumPy's in float64 before anything is timed. Exits with 1 if a tile kernel is slower.
"""

from __future__ import annotations

import argparse
import builtins
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import record
from examples.tiles import add, attention, gemm, kmeans, layer_norm, softmax, stencil, topk
from oxide import (
    AtomicSlice,
    AtomicSlice2,
    DeviceOperation,
    DisjointSlice,
    DisjointSlice2,
    LaunchConfig,
    LocalArray,
    Slice,
    Slice2,
    bf16,
    devices,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    zeros,
)
from oxide_kernels import sgemm_2d

WIDTH = 64
"""The width of attention's heads."""
LARGEST = 5


@kernel
def added(x: Slice[f32], y: Slice[f32], z: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = z.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + y[index.get()]


@kernel(partial=True)
def softmaxed(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    row = thread.index_1d().get()
    if row < x.shape[0]:
        highest, total = f32(-math.inf), f32(0)
        for i in range(x.shape[1]):
            highest = max(highest, x[row, i])
        for i in range(x.shape[1]):
            total += math.exp(x[row, i] - highest)
        for i in range(x.shape[1]):
            y.scatter[row, i] = math.exp(x[row, i] - highest) / total


@kernel(partial=True)
def normalised(x: Slice2[f32], weight: Slice[f32], bias: Slice[f32], y: DisjointSlice2[f32]) -> None:
    row, n = thread.index_1d().get(), x.shape[1]
    if row < x.shape[0]:
        mean, variance = f32(0), f32(0)
        for i in range(n):
            mean += x[row, i]
        mean /= f32(n)
        for i in range(n):
            variance += (x[row, i] - mean) * (x[row, i] - mean)
        scale = f32(1) / math.sqrt(variance / f32(n) + f32(1e-5))
        for i in range(n):
            y.scatter[row, i] = (x[row, i] - mean) * scale * weight[i] + bias[i]


@kernel(partial=True)
def attended(
    q: Slice2[bf16], k: Slice2[bf16], v: Slice2[bf16], tokens: i64, scale: f32, y: DisjointSlice2[bf16]
) -> None:
    row = thread.index_1d().get()
    if row < q.shape[0]:
        first = row // tokens * tokens
        sums = LocalArray(WIDTH, f32)
        for i in range(WIDTH):
            sums[i] = f32(0)
        best, total = f32(-math.inf), f32(0)
        for key in range(first, first + tokens):
            score = f32(0)
            for i in range(WIDTH):
                score += f32(q[row, i]) * f32(k[key, i])
            higher = max(best, score * scale)
            weight, kept = math.exp2(score * scale - higher), math.exp2(best - higher)
            total = total * kept + weight
            for i in range(WIDTH):
                sums[i] = sums[i] * kept + weight * f32(v[key, i])
            best = higher
        for i in range(WIDTH):
            y.scatter[row, i] = bf16(sums[i] / total)


@kernel
def heated(now: Slice2[f32], later: DisjointSlice2[f32]) -> None:
    index = thread.index_2d(later.shape[1])
    element = later.get_mut(index)
    if element is not None:
        row, column, total = thread.index_2d_row(), thread.index_2d_col(), f32(0)
        if row > 0:
            total += now[row - 1, column]
        if row + 1 < now.shape[0]:
            total += now[row + 1, column]
        if column > 0:
            total += now[row, column - 1]
        if column + 1 < now.shape[1]:
            total += now[row, column + 1]
        element.value = total * f32(0.25)


@kernel
def assigned(
    points: Slice2[f32],
    centres: Slice2[f32],
    nearest: DisjointSlice[i32],
    sums: AtomicSlice2[f32],
    counts: AtomicSlice[i32],
) -> None:
    index = thread.index_1d()
    element = nearest.get_mut(index)
    if element is not None:
        point, best, least = index.get(), 0, f32(math.inf)
        for centre in range(centres.shape[0]):
            distance = f32(0)
            for i in range(points.shape[1]):
                apart = points[point, i] - centres[centre, i]
                distance += apart * apart
            if distance < least:
                best, least = centre, distance
        element.value = best
        for i in range(points.shape[1]):
            sums.fetch_add((best, i), points[point, i])
        counts.fetch_add(best, 1)


@kernel(partial=True)
def chosen(x: Slice2[f32], values: DisjointSlice2[f32], columns: DisjointSlice2[i64]) -> None:
    row = thread.index_1d().get()
    if row < x.shape[0]:
        largest, places = LocalArray(LARGEST, f32), LocalArray(LARGEST, i64)
        for i in range(LARGEST):
            largest[i] = f32(-math.inf)
            places[i] = 0
        for column in range(x.shape[1]):
            value, place = x[row, column], column
            for i in range(LARGEST):
                if value > largest[i]:
                    smaller, at = largest[i], places[i]
                    largest[i] = value
                    places[i] = place
                    value, place = smaller, at
        for i in range(LARGEST):
            values.scatter[row, i] = largest[i]
            columns.scatter[row, i] = places[i]


Program = tuple[
    str, DeviceOperation[Any], DeviceOperation[Any], Callable[[], list[Any]], Callable[[], list[Any]], list[Any]
]
"""A name, the tile kernel's launch, the thread kernel's, what each has written, and what NumPy says."""


def programs() -> Iterator[Program]:
    """Yields each example's program in both forms."""
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    def made(*shape: int, dtype: Any = f32) -> tuple[Any, Any]:
        return zeros(shape, dtype).sync(), zeros(shape, dtype).sync()

    def put(*arrays: Any) -> list[Any]:
        return [h2d(each).sync() for each in arrays]

    def rows(count: int) -> LaunchConfig:
        return LaunchConfig.for_num_elems(count)

    def program(
        name: str, tiles: Any, threads: Any, mine: list[Any], theirs: list[Any], expected: list[Any]
    ) -> Program:
        return (
            name,
            tiles,
            threads,
            lambda: [b.host_view() for b in mine],
            lambda: [b.host_view() for b in theirs],
            expected,
        )

    x, y = normal(2000, 2000), normal(2000, 2000)
    (a, b), (mine, theirs) = put(x, y), made(2000, 2000)
    tiles = add.add(mine.partition(softmax.rows_of(2000)), a, b)
    flat = [each.reshape(each.size) for each in (a, b, theirs)]
    yield program("add", tiles, added[rows(x.size)](*flat), [mine], [theirs], [x.astype(np.float64) + y])

    x = normal(4096, 1000)
    weight, bias = normal(1000), normal(1000)
    (a, w, c), wide = put(x, weight, bias), x.astype(np.float64)
    mine, theirs = made(4096, 1000)
    e = np.exp(wide - wide.max(1, keepdims=True))
    tiles = softmax.softmax(mine.partition(softmax.rows_of(1000)), a)
    yield program("softmax", tiles, softmaxed[rows(4096)](a, theirs), [mine], [theirs], [e / e.sum(1, keepdims=True)])

    mine, theirs = made(4096, 1000)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * weight + bias
    tiles = layer_norm.layer_norm(mine.partition(softmax.rows_of(1000)), a, w, c)
    yield program("layer_norm", tiles, normalised[rows(4096)](a, w, c, theirs), [mine], [theirs], [expected])

    x, y = normal(512, 512), normal(512, 512)
    (a, b), (mine, theirs) = put(x, y), made(512, 512)
    tiles = gemm.matmul_f32(mine.partition((120, 256)), a, b, 256)
    threads = sgemm_2d[LaunchConfig((32, 32), (16, 16))](1.0, a, b, 0.0, theirs)
    yield program("gemm", tiles, threads, [mine], [theirs], [x.astype(np.float64) @ y])

    heads, tokens = 4, 256
    q, k, v = (normal(heads * tokens, WIDTH).astype(np.dtype(bf16)) for _ in range(3))
    boxes, (mine, theirs) = put(q, k, v), made(heads * tokens, WIDTH, dtype=bf16)
    scale = math.log2(math.e) / math.sqrt(WIDTH)
    tiles = attention.attention(mine.partition((128, WIDTH)), *boxes, tokens, scale, 64)
    threads = attended[rows(heads * tokens)](*boxes, tokens, scale, theirs)
    expected = attention.reference(*(each.reshape(heads, tokens, WIDTH) for each in (q, k, v)))
    yield program("attention", tiles, threads, [mine], [theirs], [expected.reshape(heads * tokens, WIDTH)])

    grid = rng.random((1000, 1500), np.float32)
    (a,), (mine, theirs) = put(grid), made(1000, 1500)
    threads = heated[LaunchConfig((94, 63), (16, 16))](a, theirs)
    tiles = stencil.step(mine.partition((16, 64)), a)
    yield program("stencil", tiles, threads, [mine], [theirs], [stencil.reference(grid, 1)])

    points, centres = normal(20000, 7), normal(11, 7)
    a, b = put(points, centres)
    near = ((points[:, None].astype(np.float64) - centres) ** 2).sum(2).argmin(1)
    outs = [[zeros(20000, i32).sync(), zeros((11, 7)).sync(), zeros(11, i32).sync()] for _ in range(2)]
    tiles = kmeans.assign(outs[0][0].partition(64), a, b, *outs[0][1:], 16, 8)
    yield program("kmeans", tiles, assigned[rows(20000)](a, b, *outs[1]), outs[0][:1], outs[1][:1], [near])

    x = normal(4000, 512)
    (a,) = put(x)
    outs = [[zeros((4000, LARGEST)).sync(), zeros((4000, LARGEST), i64).sync()] for _ in range(2)]
    tiles = topk.topk(*(each.partition((4, LARGEST)) for each in outs[0]), a, 512)
    places = np.argsort(-x, 1, kind="stable")[:, :LARGEST]
    expected = [np.take_along_axis(x, places, 1), places]
    yield program("topk", tiles, chosen[rows(4000)](a, *outs[1]), outs[0], outs[1], expected)


def measured(program: Program, rounds: int) -> dict[str, Any]:
    """Returns a row of the table."""
    name, tiles, threads, *found, expected = program
    for launch, results in builtins.zip((tiles, threads), found, strict=True):
        launch.sync()
        for result, exact in builtins.zip(results(), expected, strict=True):
            error = np.linalg.norm(result.astype(np.float64) - exact) / np.linalg.norm(exact)
            if not error < (4e-3 if name == "attention" else 1e-3 if name == "kmeans" else 1e-5):
                raise SystemExit(f"{name}: a result is off by {error:.1e} of its norm")

    def taken(launch: DeviceOperation[Any]) -> float:
        begun = time.perf_counter()
        launch.sync()
        return time.perf_counter() - begun

    pairs = [(taken(tiles), taken(threads)) for _ in range(rounds)]
    low, middle, high = statistics.quantiles([theirs / mine for mine, theirs in pairs], n=4)
    mine, theirs = (1e3 * statistics.median(each) for each in builtins.zip(*pairs, strict=True))
    row = {"what": name, "tiles, ms": round(mine, 3), "threads, ms": round(theirs, 3), "ratio": round(middle, 2)}
    row["quartiles"] = [round(low, 2), round(high, 2)]
    print(json.dumps(row), flush=True)
    return row


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    given = parser.parse_args()
    rows = [measured(program, given.rounds) for program in programs()]
    if given.write:
        record.write("tile-threads", {"device": devices()[0].name, "rows": rows}, "numba", "llvmlite", "numpy")
    return int(any(row["ratio"] < 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
