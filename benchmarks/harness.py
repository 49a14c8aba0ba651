"""How everything here is measured: contenders take turns in one run, after warm-up, and are checked before timing.

A ``Contender`` times itself, one turn at a time, since what a turn is differs: a batch of submissions with the device
drained around it, or a round of waits inside an event loop. A ``Comparison`` alternates the turns, so that a change
of clock or of temperature meets all contenders alike, and reports medians and spread. A peer that is not installed
is left out by name; one that computes something wrong is reported and not timed.
"""

from __future__ import annotations

import gc
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray


class Unavailable(Exception):
    """A contender cannot run here; the text says why."""


class WrongResult(Exception):
    """A contender computed something wrong; the text says what."""


@final
@dataclass(frozen=True, slots=True)
class Contender:
    """``sample()`` is one turn: the times of one or more units of work, in the comparison's unit. ``check()`` runs the
    work once and raises ``WrongResult`` if its result is wrong; ``close()`` gives back what the contender holds."""

    sample: Callable[[], list[float]]
    check: Callable[[], None]
    close: Callable[[], None] = lambda: None


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """What was seen of one contender: percentiles over ``count`` samples."""

    median: float
    low: float
    high: float
    p99: float
    best: float
    count: int

    @classmethod
    def of(cls, samples: Iterable[float]) -> Figure:
        values = np.sort(np.fromiter(samples, float))
        low, high, p99 = np.percentile(values, (10, 90, 99))
        return cls(float(np.median(values)), float(low), float(high), float(p99), float(values[0]), len(values))


@final
@dataclass(slots=True)
class Comparison:
    """Contenders side by side. Those of one ``series`` are drawn as lines over ``x``, the others as bars."""

    group: str
    title: str
    unit: str
    better: Literal["less", "more"] = "less"
    series: str | None = None
    x: float | None = None
    figures: dict[str, Figure] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)

    def ratio(self, one: str, other: str) -> float | None:
        """The medians' ratio; None if one of the two was not measured."""
        if one not in self.figures or other not in self.figures:
            return None
        return self.figures[one].median / self.figures[other].median


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """A figure that oxide is held to: ``value`` at most (or at least) ``limit``."""

    name: str
    value: float
    limit: float
    relation: Literal["at most", "at least"]

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.relation == "at most" else self.value >= self.limit


@final
class Session:
    """One run of the benchmarks: what was asked for, and what was found so far."""

    def __init__(self, device: str, *, quick: bool, seconds: float) -> None:
        self.device = device
        self.quick = quick
        self.seconds = seconds
        self.group = ""
        self.comparisons: list[Comparison] = []
        self.claims: list[Claim] = []
        self.errors: dict[str, str] = {}  # groups that broke

    @property
    def wrong(self) -> bool:
        """Whether a contender gave a wrong result, or oxide gave none."""
        return bool(self.errors) or any(comparison.wrong for comparison in self.comparisons)

    def choose(self, full: Any, quick: Any) -> Any:
        """A size or a count for a full run, or for a quick one."""
        return quick if self.quick else full

    def require_gpu(self) -> None:
        """Raises ``Unavailable`` on the CPU device."""
        if self.device != "cuda":
            raise Unavailable("needs a CUDA device")

    def compare(
        self,
        title: str,
        contenders: Mapping[str, Callable[[], Contender]],
        *,
        unit: str = "µs",
        better: Literal["less", "more"] = "less",
        turns: int = 30,
        least: int = 3,
        warmup: int = 2,
        series: str | None = None,
        x: float | None = None,
    ) -> Comparison:
        """Makes, checks and times the contenders, ``turns`` turns each, fewer (but ``least``) when time is short."""
        comparison = Comparison(self.group, title, unit, better, series, x)
        self.comparisons.append(comparison)
        ready: dict[str, Contender] = {}
        try:
            for name, make in contenders.items():
                progress(f"{self.group}: {title}: {name}")
                self._prepare(comparison, ready, name, make)
            # All peers' modules together are a million objects, which a program that uses one has not: the garbage
            # collector is not to walk them in the middle of somebody's turn. What the turns make, it does.
            gc.collect()
            gc.freeze()
            samples: dict[str, list[float]] = {name: [] for name in ready}
            deadline = time.perf_counter() + self.seconds
            for turn in range(warmup + turns):
                if turn >= warmup + least and time.perf_counter() > deadline:
                    break
                for place, (name, contender) in enumerate(list(ready.items())):
                    done = (turn + place / len(ready)) / (warmup + turns)
                    progress(f"{_bar(done)} {self.group}: {title}: {name}")
                    try:
                        times = contender.sample()
                    except Exception as error:  # of any kind: a peer's own, which _prepare would have skipped too
                        if name.startswith("oxide"):
                            raise
                        comparison.skipped[name] = _first_line(error)
                        del samples[name]
                        ready.pop(name).close()
                        continue
                    if turn >= warmup:
                        samples[name] += times
            comparison.figures = {name: Figure.of(values) for name, values in samples.items()}
        finally:
            gc.unfreeze()
            progress("")
            for contender in ready.values():
                contender.close()
        return comparison

    def claim(self, name: str, value: float | None, relation: Literal["at most", "at least"], limit: float) -> None:
        """Notes a figure that oxide is held to on a GPU. One that could not be measured is not noted."""
        if value is not None and self.device == "cuda":
            self.claims.append(Claim(name, value, limit, relation))

    def _prepare(
        self, comparison: Comparison, ready: dict[str, Contender], name: str, make: Callable[[], Contender]
    ) -> None:
        try:
            contender = make()
            ready[name] = contender
            contender.check()
        except Unavailable as reason:
            comparison.skipped[name] = str(reason)
        except WrongResult as error:
            comparison.wrong[name] = str(error)
        except Exception as error:
            # What is wrong with a peer is not ours to fail on; an oxide that gives no result is.
            kind = comparison.wrong if name.startswith("oxide") else comparison.skipped
            kind[name] = _first_line(error)
        else:
            return
        if name in ready:
            ready.pop(name).close()


UNTIMED = 10
"""Calls at the start of a sample of single ones: one in a hundred that finds its caches cold would be the 99th
percentile."""


def timed_batch(submit: Callable[[], object], units: int, drain: Callable[[], object]) -> Callable[[], list[float]]:
    """A ``sample`` that times ``submit()``, which submits ``units`` units, with the device drained before and after:
    microseconds a unit, and a full queue is never what is measured. Once before, it is not timed: nor is it measured
    what the contender before left in the processor's caches."""

    def sample() -> list[float]:
        submit()
        drain()
        start = time.perf_counter()
        submit()
        elapsed = time.perf_counter() - start
        drain()
        return [elapsed / units * 1e6]

    return sample


def timed_to_the_end(
    submit: Callable[[], object], units: int, drain: Callable[[], object]
) -> Callable[[], list[float]]:
    """A ``sample`` from before ``submit()``, which submits ``units`` units to a drained device, to the end of the last:
    microseconds a unit."""

    def sample() -> list[float]:
        drain()
        start = time.perf_counter()
        submit()
        drain()
        return [(time.perf_counter() - start) / units * 1e6]

    return sample


def timed_calls(call: Callable[[], object], count: int) -> Callable[[], list[float]]:
    """A ``sample`` of ``count`` calls, each timed by itself, after some that are not: microseconds."""

    def sample() -> list[float]:
        times = []
        for _ in range(UNTIMED):
            call()
        for _ in range(count):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
        return times

    return sample


def repeated_to_the_end(operation: Any, stream: Any, seconds: float = 0.02) -> Callable[[], float]:
    """Returns a function that runs an operation of oxide's for about ``seconds``, as parts of one, and returns the
    seconds that one run took."""
    from oxide import zip as together  # imported here: other users of this module choose the device first

    start = time.perf_counter()
    operation.sync_on(stream)
    count = max(1, round(seconds / (time.perf_counter() - start)))
    repeated = together(*[operation] * count)

    def batch() -> float:
        begun = time.perf_counter()
        repeated.sync_on(stream)
        return (time.perf_counter() - begun) / count

    return batch


def expect(found: Any, expected: NDArray[Any], *, relative: float = 1e-5, what: str = "the result") -> None:
    """Raises ``WrongResult`` unless ``found`` is ``expected`` within ``relative`` of its norm."""
    array = np.asarray(found, np.float64)
    reference = np.asarray(expected, np.float64)
    if array.shape != reference.shape:
        raise WrongResult(f"{what} has shape {array.shape}, expected {reference.shape}")
    scale = float(np.linalg.norm(reference)) or 1.0
    error = float(np.linalg.norm(array - reference)) / scale
    if not error <= relative:  # a NaN is no match
        raise WrongResult(f"{what} is off by {error:.2e} of its norm, more than {relative:.0e}")


def peer(module: str, package: str | None = None) -> Any:
    """The module of a library that oxide is compared with. Raises ``Unavailable`` where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Unavailable(f"{package or module} is not installed") from error
    except Exception as error:
        raise Unavailable(f"{package or module} does not import: {error}".splitlines()[0]) from error


def median(values: list[float]) -> float:
    """The median of what was measured by hand."""
    return statistics.median(values)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _bar(done: float) -> str:
    return f"[{'#' * round(20 * done):20}]"


def progress(text: str) -> None:
    """Shows on a terminal what is being measured, on a line that the next one overwrites."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text[:110]}", end="", file=sys.stderr, flush=True)
