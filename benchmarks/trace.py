"""Measures the cost of a trace: the same work with no trace, with bookkeeping alone, and with device times.

Bookkeeping is what the host notes of each operation and each submission; a clock that measures nothing stands in for
the device's. The notes are turned into events by another thread, and a sink drops the events. An await has a task's
notes too. On a GPU, device times come from events and, where it is installed, from CUPTI.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import numpy as np
import trio

import oxide
from benchmarks.harness import UNTIMED, Contender, Session, Unavailable, expect, timed_batch
from benchmarks.launch import CONFIG, SIZE, add
from oxide import d2h, h2d
from oxide.driver.base import Span
from oxide.runtime.devices.runtime import Runtime
from oxide.tracing import recorder

BATCH = 200
CALLS = 100
OFF = "oxide, no trace"
NOTES = "oxide, bookkeeping alone"
TIMES = "oxide, traced"
CLOCK = "OXIDE_TRACE_CLOCK"


def run(session: Session) -> None:
    """Measures the group."""
    bench = _Traces()
    clocks = ["events", "cupti"] if session.device == "cuda" else [""]
    measured = (
        ("launches of a recipe run again", bench.recipe),
        ("launches in a chain that is built", bench.chain),
        ("await of a launch, trio", bench.awaited),
    )
    for title, measure in measured:
        contenders: dict[str, Callable[[], Contender]] = {OFF: partial(measure, None), NOTES: partial(measure, "none")}
        for clock in clocks:
            contenders[f"{TIMES}, {clock}" if clock else TIMES] = partial(measure, clock)
        compared = session.compare(title, contenders, turns=session.choose(60, 5))
        if measure != bench.recipe:
            continue
        for name, limit in ((NOTES, 1.5), (f"{TIMES}, cupti", 3.0), (f"{TIMES}, events", 6.0)):
            if name in compared.figures and OFF in compared.figures:
                cost = compared.figures[name].median - compared.figures[OFF].median
                session.claim(f"a launch, {name}: more than without, µs", cost, "at most", limit)


@final
class _Nothing:
    """A sink that drops events."""

    def accept(self, event: object) -> None:
        """Drops the event."""

    def forked(self) -> None:
        """Does nothing."""


@final
class _NoClock:
    """A clock that measures nothing."""

    source = "nothing"

    def begin(self, stream: Any) -> None:
        """Begins nothing."""

    def end(self, token: None, stream: Any) -> None:
        """Ends nothing."""

    def collect(self, *, final: bool) -> None:
        """Collects nothing."""

    def spans(self, token: None) -> list[Span]:
        """Returns nothing."""
        return []

    def forget(self, token: None) -> None:
        """Forgets nothing."""

    def close(self) -> None:
        """Closes nothing."""


@contextmanager
def traced(clock: str | None) -> Any:
    """Traces the block: not at all (None), with no device times ("none"), or with those of a clock by its name, "" for
    the device's own."""
    if clock is None:
        yield
        return
    before = os.environ.get(CLOCK)
    if clock not in ("", "none"):
        os.environ[CLOCK] = clock
    sink = _Nothing()
    try:
        try:
            recorder.begin(sink, _no_clock if clock == "none" else recorder.clock_of)
        except oxide.DeviceError as error:
            raise Unavailable(str(error)) from error
        try:
            yield
        finally:
            recorder.end(sink)
    finally:
        os.environ.pop(CLOCK, None)
        if before is not None:
            os.environ[CLOCK] = before


def _no_clock(runtime: Runtime) -> _NoClock:
    return _NoClock()


@final
class _Traces:
    """The work, and a contender for each way to trace it."""

    def __init__(self) -> None:
        rng = np.random.default_rng()
        self.a, self.b = rng.standard_normal((2, SIZE), np.float32)
        self.expected = self.a.astype(np.float64) + self.b
        self.stream = oxide.devices()[0].new_stream()
        self.boxes = oxide.zip(h2d(self.a), h2d(self.b), oxide.zeros(SIZE)).sync_on(self.stream)

    def check(self, clock: str | None, work: Callable[[], object]) -> None:
        with traced(clock):
            work()
            self.stream.synchronize()
        expect(d2h(self.boxes[2]).sync_on(self.stream), self.expected)

    def recipe(self, clock: str | None) -> Contender:
        """An operation of many launches, submitted again and again."""
        operation = oxide.zip(*[add[CONFIG](*self.boxes) for _ in range(BATCH)])
        return self.submitted(clock, lambda: operation.async_on(self.stream))

    def chain(self, clock: str | None) -> Contender:
        """Chains of 20 launches, built and submitted: two operations a launch, the launch and the stage."""
        configured = add[CONFIG]

        def submit() -> None:
            for _ in range(BATCH // 20):
                operation = configured(*self.boxes)
                for _ in range(19):
                    operation = operation.and_then(lambda boxes: configured(*boxes))
                operation.async_on(self.stream)

        return self.submitted(clock, submit)

    def submitted(self, clock: str | None, submit: Callable[[], object]) -> Contender:
        """For what submits ``BATCH`` launches."""
        timed = timed_batch(submit, BATCH, self.stream.synchronize)

        def sample() -> list[float]:
            with traced(clock):
                return timed()

        return Contender(sample, lambda: self.check(clock, submit))

    def awaited(self, clock: str | None) -> Contender:
        """A launch that a task awaits, again and again."""
        configured = add[CONFIG]

        async def calls() -> list[float]:
            times = []
            for number in range(UNTIMED + CALLS):
                start = time.perf_counter()
                await configured(*self.boxes).schedule(_Same(self.stream))
                if number >= UNTIMED:
                    times.append((time.perf_counter() - start) * 1e6)
            return times

        def sample() -> list[float]:
            with traced(clock):
                return trio.run(calls)

        return Contender(sample, lambda: self.check(clock, lambda: configured(*self.boxes).sync_on(self.stream)))


@final
class _Same:
    """A policy of one stream."""

    def __init__(self, stream: oxide.Stream) -> None:
        self._stream = stream

    def next_stream(self, device: oxide.Device) -> oxide.Stream:
        return self._stream
