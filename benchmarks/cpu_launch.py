"""What a launch of a small kernel and the wait for it cost the host on the CPU device, by the number of arrays.

One block of 32 threads adds vectors of 32 floats: the kernel itself takes a microsecond. Kernels of numba-cuda's arrays
(no annotations) and of slices; waited for by ``sync()``, by ``stream.synchronize()`` behind ``async_on``, and as a
recipe that was built before; and only built. Beside them, for scale, ``numba.njit`` called with the same arrays: in
place, and in another thread that is woken for it and wakes the caller. Then ``from_dlpack`` beside NumPy's.

All take turns in one process; results are checked first; a line is the median of a contender's turns and the least, in
microseconds. Writes ``benchmarks/results/cpu-launch-<device>.json``.

    OXIDE_DEVICE=cpu python -m benchmarks.cpu_launch
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import cuda

import oxide
from benchmarks import record
from benchmarks.harness import expect
from oxide import DisjointSlice, LaunchConfig, Slice, f32, h2d, kernel, thread

SIZE = 32
CONFIG = LaunchConfig(1, SIZE)
COUNTS = (1, 4, 20)
BATCH = 50  # calls that are timed together, one by one, before the next contender's turn

Call = Callable[[], object]


@kernel
def arrays_1(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 0


@kernel
def arrays_4(out, a, b, c):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i] + c[i]


@kernel
def arrays_20(out, a, b, c, d, e, f, g, h, j, k, m, n, o, p, q, r, s, t, u):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i] + j[i] + k[i]
        out[i] += m[i] + n[i] + o[i] + p[i] + q[i] + r[i] + s[i] + t[i] + u[i]


@kernel
def slices_1(out: DisjointSlice[f32]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = f32(0)


@kernel
def slices_4(out: DisjointSlice[f32], a: Slice[f32], b: Slice[f32], c: Slice[f32]) -> None:
    index = thread.index_1d()
    i = index.get()
    element = out.get_mut(index)
    if element is not None:
        element.value = a[i] + b[i] + c[i]


@kernel
def slices_20(
    out: DisjointSlice[f32],
    a: Slice[f32],
    b: Slice[f32],
    c: Slice[f32],
    d: Slice[f32],
    e: Slice[f32],
    f: Slice[f32],
    g: Slice[f32],
    h: Slice[f32],
    j: Slice[f32],
    k: Slice[f32],
    m: Slice[f32],
    n: Slice[f32],
    o: Slice[f32],
    p: Slice[f32],
    q: Slice[f32],
    r: Slice[f32],
    s: Slice[f32],
    t: Slice[f32],
    u: Slice[f32],
) -> None:
    index = thread.index_1d()
    i = index.get()
    element = out.get_mut(index)
    if element is not None:
        total = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i] + j[i] + k[i]
        element.value = total + m[i] + n[i] + o[i] + p[i] + q[i] + r[i] + s[i] + t[i] + u[i]


@numba.njit  # type: ignore[untyped-decorator]
def loop_1(out: Any) -> None:
    for i in range(out.size):
        out[i] = 0


@numba.njit  # type: ignore[untyped-decorator]
def loop_4(out: Any, a: Any, b: Any, c: Any) -> None:
    for i in range(out.size):
        out[i] = a[i] + b[i] + c[i]


@numba.njit  # type: ignore[untyped-decorator]
def loop_20(out: Any, *rest: Any) -> None:
    for i in range(out.size):
        total = np.float32(0)
        for each in rest:
            total += each[i]
        out[i] = total


class Helper:
    """Another thread, woken for each call, which wakes the caller: a hand-over and back."""

    def __init__(self) -> None:
        self._call: Call = lambda: None
        self._asked, self._done = threading.Lock(), threading.Lock()
        self._asked.acquire()
        self._done.acquire()
        threading.Thread(target=self._serve, daemon=True).start()

    def run(self, call: Call) -> None:
        self._call = call
        self._asked.release()
        self._done.acquire()

    def _serve(self) -> None:
        while True:
            self._asked.acquire()
            self._call()
            self._done.release()


def launches(count: int, stream: oxide.Stream, helper: Helper) -> dict[str, Call]:
    """The calls to time for a number of arrays; raises ``WrongResult`` for a wrong sum."""
    rng = np.random.default_rng(count)
    arrays = [rng.standard_normal(SIZE).astype(np.float32) for _ in range(count)]
    expected = np.sum(arrays[1:], axis=0, dtype=np.float64) if count > 1 else np.zeros(SIZE)
    boxes = [h2d(array).sync_on(stream) for array in arrays]
    calls: dict[str, Call] = {}
    for name, adds in (("arrays", globals()[f"arrays_{count}"]), ("slices", globals()[f"slices_{count}"])):
        operation = adds[CONFIG](*boxes)

        def submitted(adds: Any = adds) -> None:
            adds[CONFIG](*boxes).async_on(stream)
            stream.synchronize()

        calls[f"{name}, sync()"] = lambda adds=adds: adds[CONFIG](*boxes).sync()
        calls[f"{name}, async_on and synchronize()"] = submitted
        calls[f"{name}, a recipe's sync_on"] = lambda operation=operation: operation.sync_on(stream)
        calls[f"{name}, only built"] = lambda adds=adds: adds[CONFIG](*boxes).consume()
    loop = globals()[f"loop_{count}"]
    calls["numba.njit, called"] = lambda: loop(*arrays)
    calls["numba.njit, in another thread"] = lambda: helper.run(lambda: loop(*arrays))
    for name, call in calls.items():
        call()
        if not name.endswith("built"):
            found = arrays[0] if name.startswith("numba") else oxide.d2h(boxes[0]).sync_on(stream)
            expect(found, expected, what=name) if count > 1 else expect(found + 1, expected + 1, what=name)
    return calls


def imports(count: int) -> dict[str, Call]:
    """``from_dlpack`` of several arrays; what is imported lives until the next turn."""
    arrays = [np.zeros(SIZE, np.float32) for _ in range(count)]
    kept: dict[str, list[Any]] = {}

    def importing(name: str, function: Callable[[Any], Any]) -> Call:
        def call() -> None:
            kept[name] = [function(array) for array in arrays]

        return call

    return {
        "oxide.from_dlpack": importing("oxide", oxide.from_dlpack),
        "numpy.from_dlpack": importing("numpy", np.from_dlpack),
    }


def measured(calls: dict[str, Call], turns: int, units: int = 1) -> dict[str, dict[str, float]]:
    """The median of each contender's turns, each the median of its calls, and the least; in microseconds a unit."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 2):
        for name, call in calls.items():
            each = []
            for _ in range(BATCH):
                start = time.perf_counter()
                call()
                each.append((time.perf_counter() - start) * 1e6 / units)
            if turn >= 2:
                times[name].append(statistics.median(each))
    return {name: {"median": statistics.median(each), "least": min(each)} for name, each in times.items()}


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=30)
    options = parser.parse_args()
    stream, helper = oxide.devices()[0].new_stream(), Helper()
    figures: dict[str, Any] = {}
    for count in COUNTS:
        what = f"{count} array{'s' * (count > 1)}"
        figures[what] = measured(launches(count, stream, helper), options.turns)
    figures["an array of 20"] = measured(imports(20), options.turns, units=20)
    for what, rows in figures.items():
        print(what)
        for name, row in rows.items():
            print(f"  {name:36} {row['median']:7.1f}  least {row['least']:7.1f}")
    record.write("cpu-launch", figures, "numpy", "numba", "numba-cuda")


if __name__ == "__main__":
    main()
