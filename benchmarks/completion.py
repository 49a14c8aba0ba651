"""How long after the submission of an empty kernel the host has its result, and what waiting costs the host.

Three questions: the latency of each way to wait; the processor time that an awaited long kernel takes; and whether
the host's cost per operation stays the same with 1 or with 10 000 operations in flight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, final

import numpy as np
import trio

import oxide
from benchmarks.harness import UNTIMED, Contender, Session, WrongResult, expect, progress, timed_calls
from oxide import DisjointSlice, LaunchConfig, f32, gather, h2d, kernel, thread, u32

CALLS = 100
ONE = LaunchConfig(1, 1)
FLOOR = "launch and synchronize_stream"
SYNC = "oxide sync()"
TRIO = "oxide await, trio"
TRIO_FLOOR = "launch, trio checkpoint, synchronize"


@kernel
def bump(x: DisjointSlice[f32]) -> None:
    elem = x.get_mut(thread.index_1d())
    if elem is not None:
        elem.value = elem.value + f32(1.0)


@kernel
def spin(rounds: u32, factor: f32, x: DisjointSlice[f32]) -> None:
    """A chain of dependent multiply-adds, so that the time is the number of rounds times a constant."""
    elem = x.get_mut(thread.index_1d())
    if elem is not None:
        value = elem.value
        for _ in range(rounds):
            value = value * factor + f32(1.0)
        elem.value = value


def run(session: Session) -> None:
    """Measures the group."""
    bench = _Completion()
    compared = session.compare(
        "empty kernel, submission to result",
        {
            FLOOR: bench.synchronised,
            SYNC: bench.sync,
            TRIO: bench.awaited(trio.run),
            TRIO_FLOOR: bench.checkpointed,
            "oxide await, asyncio": bench.awaited(_asyncio_run),
            "trio to_thread(synchronize_stream)": bench.in_thread,
        },
        turns=session.choose(20, 2),
    )
    session.claim("await under trio, p50 / launch and synchronize", compared.ratio(TRIO, FLOOR), "at most", 1.3)
    if TRIO in compared.figures:
        figure = compared.figures[TRIO]
        session.claim("await under trio, p99 / p50", figure.p99 / figure.median, "at most", 3.0)
    session.claim("sync() / launch and synchronize", compared.ratio(SYNC, FLOOR), "at most", 1.15)
    if session.device == "cuda":
        progress("completion: a kernel of 100 ms, awaited")
        busy = processor_share(0.1)
        session.claim("processor time while a 100 ms kernel is awaited, % of a core", busy * 100, "at most", 2.0)
    _in_flight(session)


@final
class _Completion:
    """One method for each contender: all launch the same kernel on the same stream."""

    def __init__(self) -> None:
        self.stream = oxide.devices()[0].new_stream()
        self.driver: Any = self.stream.device.driver
        self.policy = _OneStream(self.stream)

    def contender(
        self, sample: Callable[[], list[float]], once: Callable[[], object], box: oxide.DeviceBox
    ) -> Contender:
        def check() -> None:
            before = oxide.d2h(box).sync_on(self.stream).copy()
            once()
            expect(oxide.d2h(box).sync_on(self.stream), before + 1, what="the counter")

        return Contender(sample, check)

    def box(self) -> oxide.DeviceBox:
        return oxide.zeros(1).sync_on(self.stream)

    def synchronised(self) -> Contender:
        box = self.box()
        launch, synchronize = self.driver_calls(box)

        def call() -> None:
            launch()
            synchronize()

        return self.contender(timed_calls(call, CALLS), call, box)

    def checkpointed(self) -> Contender:
        """What is left of an await where nothing but the driver and the loop is called."""
        box = self.box()
        launch, synchronize = self.driver_calls(box)

        async def once() -> None:
            launch()
            await trio.lowlevel.checkpoint()
            synchronize()

        return self.contender(lambda: trio.run(timed_awaits, once), lambda: trio.run(once), box)

    def driver_calls(self, box: oxide.DeviceBox) -> tuple[Callable[[], None], Callable[[], None]]:
        """The driver's own launch of the kernel on ``box``, and its wait for the stream."""
        device = self.stream.device
        special = bump.specialize()
        function = self.driver.load(device.id, special.code(device.info.target))
        params = special.pack([(box.ptr, 1)], 0)
        handle, launch, synchronize = self.stream._timeline.handle, self.driver.launch, self.driver.synchronize_stream
        return partial(launch, function, (1, 1, 1), (1, 1, 1), 0, params, handle), partial(synchronize, handle)

    def sync(self) -> Contender:
        box = self.box()
        operation = bump[ONE](box)
        return self.contender(
            timed_calls(lambda: operation.sync_on(self.stream), CALLS), lambda: operation.sync_on(self.stream), box
        )

    def awaited(self, run_loop: Callable[..., Any]) -> Callable[[], Contender]:
        def make() -> Contender:
            box = self.box()
            operation = bump[ONE](box)

            async def once() -> None:
                await operation.schedule(self.policy)

            def call() -> oxide.DeviceFuture[Any]:
                return operation.schedule(self.policy)

            return self.contender(lambda: run_loop(timed_awaits, call), lambda: run_loop(once), box)

        return make

    def in_thread(self) -> Contender:
        box = self.box()
        operation = bump[ONE](box)
        handle, synchronize = self.stream._timeline.handle, self.driver.synchronize_stream

        async def call() -> None:
            operation.async_on(self.stream)
            await trio.to_thread.run_sync(synchronize, handle)

        return self.contender(lambda: trio.run(timed_awaits, call), lambda: trio.run(call), box)


async def timed_awaits(call: Callable[[], Awaitable[object]]) -> list[float]:
    """How long each of ``CALLS`` awaits of ``call()`` took, after some that are not timed, in microseconds."""
    times = []
    for _ in range(UNTIMED):
        await call()
    for _ in range(CALLS):
        start = time.perf_counter()
        await call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def processor_share(seconds: float) -> float:
    """The processor time that this process takes while it awaits a kernel of ``seconds``, as a share of one core."""
    stream = oxide.devices()[0].new_stream()
    box = h2d(np.ones(1, np.float32)).sync_on(stream)
    rounds = 1 << 20
    for _ in range(3):  # the first is slow: code is loaded, clocks are low
        start = time.perf_counter()
        spin[ONE](rounds, 0.5, box).sync_on(stream)
        rounds = max(1, min(2**32 - 1, round(rounds * seconds / (time.perf_counter() - start))))
    if not np.isclose(oxide.d2h(box).sync_on(stream)[0], 2.0):
        raise WrongResult("the spinning kernel did not converge to 2")
    shares = []

    async def wait() -> None:
        policy = _OneStream(stream)
        for _ in range(5):
            wall, cpu = time.perf_counter(), time.process_time()
            await spin[ONE](rounds, 0.5, box).schedule(policy)
            shares.append((time.process_time() - cpu) / (time.perf_counter() - wall))

    trio.run(wait)
    return sorted(shares)[len(shares) // 2]


def _in_flight(session: Session) -> None:
    """The host's cost of an operation, submission and completion, by how many are in flight at once."""
    total = session.choose(10_000, 200)
    medians: dict[int, float] = {}

    def make(count: int) -> Contender:
        # A box a stream: operations on one box would wait for each other across the streams.
        policies = [_OneStream(oxide.devices()[0].new_stream()) for _ in range(4)]
        boxes = [oxide.zeros(1).sync_on(policy.stream) for policy in policies]
        operations = [(bump[ONE](boxes[number % 4]), policies[number % 4]) for number in range(count)]

        async def turn() -> float:
            start = time.perf_counter()
            for _ in range(total // count):
                await gather(*[one.schedule(policy) for one, policy in operations])
            return (time.perf_counter() - start) / (total // count * count) * 1e6

        def check() -> None:
            trio.run(turn)
            found = sum(float(oxide.d2h(one).sync()[0]) for one in boxes)
            if found != total // count * count:
                raise WrongResult(f"{found:g} launches arrived of {total // count * count}")

        return Contender(lambda: [trio.run(turn)], check)

    counts = [count for count in (1, 10, 100, 1000, 10_000) if count <= total]
    for count in counts:
        compared = session.compare(
            f"{count} in flight",
            {"oxide gather": lambda count=count: make(count)},  # type: ignore[misc]
            unit="µs an operation",
            turns=session.choose(5, 2),
            warmup=1,
            series="operations in flight",
            x=count,
        )
        if compared.figures:
            medians[count] = next(iter(compared.figures.values())).median
    if len(medians) == len(counts):
        session.claim("cost an operation, 10 000 in flight / 1", medians[counts[-1]] / medians[1], "at most", 1.5)


@final
class _OneStream:
    """A policy of one given stream."""

    def __init__(self, stream: oxide.Stream) -> None:
        self.stream = stream

    def next_stream(self, device: oxide.Device) -> oxide.Stream:
        return self.stream


def _asyncio_run(function: Callable[..., Any], *arguments: Any) -> Any:
    return asyncio.run(function(*arguments))
