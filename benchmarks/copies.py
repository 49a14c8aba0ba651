"""64 MiB up and down under trio: bandwidth beside the driver's own pinned copies, and the loop's longest stall.

The contenders of one direction alternate in one run, and each result is checked before anything is timed:

- ``driver``: the driver's asynchronous copy between pinned and device memory, timed with events: the ceiling;
- ``up pinned``: ``h2d`` of a ``pinned_empty`` array;
- ``up ordinary``: ``h2d`` of an ordinary array, staged in chunks that several threads copy;
- ``down``: ``d2h``, whose results are in pinned memory;
- ``memcpy``, ``memcpy shared out``: the staging alone, by one core and by the pool, a chunk at a time.

A ticker beside them measures how long the loop was away: first of all while each size is used for the first time in the
process, when memory has to be page-locked, and then when warm. Prints PASS or FAIL for what is asked of them, and
writes ``benchmarks/results/copies-<device>.json``. ``--sweep`` tries other numbers of helpers, pieces and chunks
instead, and ``--page-locking`` how long another thread's calls wait while memory is page-locked, both ways of doing it.

    python -m benchmarks.copies --mib 64 --repeats 30
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import trio

import oxide
from benchmarks import record
from oxide import d2h, h2d, pinned_empty
from oxide.host.core import copy
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.memory import moves
from oxide.runtime.memory.moves import ROW
from oxide.runtime.submission import staging

PIPELINED = 4  # copies in flight, so that the time between two is not measured

LEAST_RATIO = 0.85  # of the driver's own pinned copy
MOST_STALL_MS = 5.0


class Ticker:
    """How long the loop was away, at the longest, for each thing that was watched, in ms."""

    def __init__(self) -> None:
        self.stalls: dict[str, float] = {}

    @asynccontextmanager
    async def watching(self, name: str) -> AsyncIterator[None]:
        async def tick() -> None:
            last = time.perf_counter()
            while True:
                await trio.sleep(0)
                now = time.perf_counter()
                self.stalls[name] = max(self.stalls.get(name, 0.0), (now - last) * 1e3)
                last = now

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            await trio.sleep(0.005)
            yield
            nursery.cancel_scope.cancel()


async def first_uses(nbytes: int, ticker: Ticker) -> None:
    """What nobody has used before in this process: the sizes of pinned memory, the threads, the streams."""
    array = np.random.default_rng(1).integers(0, 255, nbytes, np.uint8)
    small = np.zeros(1024, np.uint8)
    await h2d(small).to_host()  # the device itself
    gc.collect()
    async with ticker.watching("first up ordinary"):
        box = await h2d(array)
    async with ticker.watching("first down"):
        result = await d2h(box)
    assert np.array_equal(result, array)
    async with ticker.watching("while memory is page-locked beside"):
        while current_runtime().pinned._grower is not None:
            await h2d(small).to_host()


async def measure(mib: int, repeats: int) -> dict[str, Any]:
    """Medians in GB/s of each contender, and the loop's longest absence while oxide's were running, in ms."""
    nbytes = mib << 20
    ticker = Ticker()
    await first_uses(nbytes, ticker)
    device = oxide.devices()[0]
    driver, stream = device.driver, device.new_stream()
    ordinary = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
    pinned = pinned_empty(nbytes, oxide.u8)
    pinned[:] = ordinary
    box = await h2d(ordinary)
    for source in (ordinary, pinned):
        assert np.array_equal(await h2d(source).to_host(), ordinary)

    def by_driver(up: bool) -> float:
        start = stream.record_event()
        for _ in range(PIPELINED):
            handle = stream._timeline.handle
            if up:
                driver.copy_to_device(box.ptr, pinned.ctypes.data, nbytes, handle)
            else:
                driver.copy_to_host(pinned.ctypes.data, box.ptr, nbytes, handle)
        end = stream.record_event()
        end.synchronize()
        return start.elapsed_ms(end) / PIPELINED

    async def timed(build: Any) -> float:
        start = time.perf_counter()
        await oxide.gather(*[build() for _ in range(PIPELINED)])
        return (time.perf_counter() - start) * 1e3 / PIPELINED

    def memcpy() -> float:
        start = time.perf_counter()
        np.copyto(pinned, ordinary)
        return (time.perf_counter() - start) * 1e3

    chunk = staging._chunk_bytes(nbytes)

    def staged(pool: moves.CopyPool | None) -> float:
        """The staging alone, on this thread: chunk after chunk into a few slots."""
        row = np.empty(1, ROW)
        start = time.perf_counter()
        for number, offset in enumerate(range(0, nbytes, chunk)):
            target = pinned.ctypes.data + number % staging._SLOTS * chunk
            size = min(chunk, nbytes - offset)
            if pool is None:
                ctypes.memmove(target, ordinary.ctypes.data + offset, size)
            else:
                row[0] = (target, ordinary.ctypes.data + offset, size, pool.address)
                copy(int(row.ctypes.data))
        return (time.perf_counter() - start) * 1e3

    times: dict[str, list[float]] = {}
    contenders: dict[str, Callable[[], Any]] = {
        "up pinned": lambda: h2d(pinned),
        "up ordinary": lambda: h2d(ordinary),
        "down": lambda: d2h(box),
    }
    pool = moves.copy_pool()
    before = -1
    while before != (before := current_runtime().pinned._held):  # until no copy asks for more pinned memory
        for build in contenders.values():
            await timed(build)
        while current_runtime().pinned._grower is not None:
            await trio.sleep(0.001)
    for warm_up in (True, False):
        for _ in range(5 if warm_up else repeats):
            row = {"up driver": by_driver(True), "down driver": by_driver(False), "memcpy": staged(None)}
            if pool is not None:
                row["memcpy shared out"] = staged(pool)
            pinned[:] = ordinary
            for name, build in contenders.items():
                row[name] = await timed(build)
            if not warm_up:
                for name, milliseconds in row.items():
                    times.setdefault(name, []).append(milliseconds)
    # The stalls apart: a ticker takes its share of the loop's time.
    gc.collect()
    for name, build in contenders.items():
        async with ticker.watching(name):
            for _ in range(repeats):
                await timed(build)
    rates = {name: nbytes / statistics.median(milliseconds) / 1e6 for name, milliseconds in times.items()}
    return {"gb_per_s": rates, "longest_stall_ms": ticker.stalls, "all_ms": times}


def sweep(mib: int, repeats: int) -> None:
    """GB/s of pipelined uploads from an ordinary array, for other numbers than the ones in force."""
    array = np.random.default_rng(0).integers(0, 255, mib << 20, np.uint8)
    stream = oxide.devices()[0].new_stream()
    pools: dict[int, moves.CopyPool | None] = {0: None}

    def once() -> float:
        start = time.perf_counter()
        boxes = [h2d(array).async_on(stream) for _ in range(PIPELINED)]
        stream.synchronize()
        del boxes
        return PIPELINED * array.nbytes / (time.perf_counter() - start) / 1e9

    for helpers in (0, 3, 7, 11):
        if helpers and helpers not in pools:
            pools[helpers] = moves.CopyPool(helpers)
        for piece in (128 << 10, 256 << 10, 512 << 10) if helpers else (0,):
            pool = pools[helpers]
            moves._pool = (pool,)
            if pool is not None:
                ctypes.c_uint64.from_address(pool.address + moves._CONSTANTS).value = piece
            row = []
            for chunk in (2, 4, 8, 16):
                staging._chunk_bytes = lambda nbytes, chunk=chunk: chunk << 20  # type: ignore[misc]
                row.append(f"{chunk} MiB {max(once() for _ in range(repeats)):5.1f}")
            print(f"helpers {helpers:2}, pieces of {piece >> 10:3} KiB, chunks of: " + ", ".join(row))


def page_locking(mib: int) -> None:
    """How long a launch or a query of this thread waits while another thread page-locks memory, in ms."""
    from cuda.bindings import driver as cuda

    from oxide.driver.cuda.memory_blocks import RegisteredMemory

    device = oxide.devices()[0]
    stream, box, driver = device.new_stream(), oxide.zeros(1024).sync(), device.driver
    registered = RegisteredMemory()
    context = driver._any_context()  # type: ignore[attr-defined]

    def allocate() -> None:
        error, _ = cuda.cuMemHostAlloc(mib << 20, cuda.CU_MEMHOSTALLOC_PORTABLE | cuda.CU_MEMHOSTALLOC_DEVICEMAP)
        assert not error

    for name, make in (("cuMemHostAlloc", allocate), ("cuMemHostRegister", lambda: registered.allocate(mib << 20))):
        took: list[float] = []

        def work(make: Callable[[], object] = make, took: list[float] = took) -> None:
            cuda.cuCtxSetCurrent(context.handle)
            for _ in range(5):
                start = time.perf_counter()
                make()
                took.append((time.perf_counter() - start) * 1e3)

        thread = threading.Thread(target=work)
        waits = [0.0]
        thread.start()
        while thread.is_alive():
            start = time.perf_counter()
            driver.fill(box.ptr, b"\0", 4096, stream._timeline.handle)
            driver.query_stream(stream._timeline.handle)
            waits.append((time.perf_counter() - start) * 1e3)
        print(f"{name} of {mib} MiB: {statistics.median(took):.1f} ms; another thread's call waits {max(waits):.2f} ms")


def verdicts(rates: dict[str, float], stalls: dict[str, float]) -> dict[str, tuple[float, float, bool]]:
    """What is asked of the copies: what was found, the bound, whether it is met."""
    asked = {}
    for name, ceiling in (("up pinned", "up driver"), ("down", "down driver"), ("up ordinary", "up driver")):
        ratio = rates[name] / rates[ceiling]
        asked[f"{name}, of the driver's pinned copy"] = (ratio, LEAST_RATIO, ratio >= LEAST_RATIO)
    for name, stall in stalls.items():
        asked[f"longest stall, {name}, ms"] = (stall, MOST_STALL_MS, stall < MOST_STALL_MS)
    return asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--page-locking", action="store_true")
    options = parser.parse_args()
    if options.page_locking:
        page_locking(options.mib)
        return
    if options.sweep:
        sweep(options.mib, options.repeats)
        return
    found = trio.run(measure, options.mib, options.repeats)
    rates, stalls = found["gb_per_s"], found["longest_stall_ms"]
    device = oxide.devices()[0]
    print(f"{device.name}, {options.mib} MiB, GB/s: " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()))
    asked = verdicts(rates, stalls)
    for name, (value, bound, met) in asked.items():
        print(f"{'PASS' if met else 'FAIL'}  {name}: {value:.3g} ({'<' if 'stall' in name else '>='} {bound:g})")
    figures = {
        "device": device.name,
        "mib": options.mib,
        "repeats": options.repeats,
        "asked": {name: {"found": value, "bound": bound, "met": met} for name, (value, bound, met) in asked.items()},
        "helpers": pool.helpers if (pool := moves.copy_pool()) is not None else 0,
        **found,
    }
    record.write("copies", figures, "numpy", "trio", "cuda-core", "cuda-bindings")


if __name__ == "__main__":
    main()
