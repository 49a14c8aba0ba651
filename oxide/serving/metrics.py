"""The statistics of a batcher, and their form for Prometheus."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import count, takewhile
from typing import Final, NamedTuple, final

RECENT: Final = 2048
"""The number of latest values from which a quantile is computed."""


@final
class BatcherStatistics(NamedTuple):
    """The statistics of a batcher since it was made. Times are in seconds.

    - ``accepted``: requests taken into the queue. Each becomes one of ``answered``, ``failed`` (it got an error),
      ``cancelled`` (its caller was cancelled first) and ``timed_out`` (its ``timeout`` passed first), or is ``queued``,
      ``waiting_for_room`` (beyond ``max_queue``, and not counted in ``queued``) or ``running``.
    - ``rejected``: requests that got ``Overloaded`` and were not accepted.
    - ``batches``: runs of a batch or of a part of one. ``reruns`` of them ran requests again, after a run had failed.
      ``batches_in_flight`` is the number of batches now. ``batch_sizes`` has the number of runs for each number of
      requests.
    - ``wait``: from the call to the start of the batch. ``device``: from the batch's first work on its stream to
      its last. ``latency``: from the call to the answer. ``p50`` and ``p99`` are quantiles of the latest 2048 values,
      None without values.
    """

    accepted: int
    answered: int
    failed: int
    cancelled: int
    timed_out: int
    rejected: int
    queued: int
    waiting_for_room: int
    running: int
    batches: int
    reruns: int
    batches_in_flight: int
    batch_sizes: dict[int, int]
    wait_p50: float | None
    wait_p99: float | None
    device_p50: float | None
    device_p99: float | None
    latency_p50: float | None
    latency_p99: float | None


@final
class Times:
    """Durations in seconds: their number, their sum, and the latest ones."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self._recent.append(seconds)

    def quantile(self, fraction: float) -> float | None:
        """Returns the smallest recent value that at least ``fraction`` of the recent values do not exceed. Returns None
        without values."""
        if not self._recent:
            return None
        ordered = sorted(self._recent)
        return ordered[max(0, -int(-fraction * len(ordered) // 1) - 1)]


@final
class Measures:
    """The counters and times of one batcher, whose batches have at most ``max_batch`` requests."""

    def __init__(self, max_batch: int) -> None:
        self._bounds = [*takewhile(lambda bound: bound < max_batch, (1 << n for n in count())), max_batch]
        self.accepted = 0
        self.answered = 0
        self.failed = 0
        self.cancelled = 0
        self.timed_out = 0
        self.rejected = 0
        self.reruns = 0
        self.batch_sizes: Counter[int] = Counter()
        self.wait = Times()
        self.device = Times()
        self.latency = Times()

    def statistics(self, waiting: int, max_queue: int, running: int, in_flight: int) -> BatcherStatistics:
        """Returns the statistics, given the number of requests that wait and run, and of batches in flight."""
        return BatcherStatistics(
            accepted=self.accepted,
            answered=self.answered,
            failed=self.failed,
            cancelled=self.cancelled,
            timed_out=self.timed_out,
            rejected=self.rejected,
            queued=min(waiting, max_queue),
            waiting_for_room=max(0, waiting - max_queue),
            running=running,
            batches=self.batch_sizes.total(),
            reruns=self.reruns,
            batches_in_flight=in_flight,
            batch_sizes=dict(sorted(self.batch_sizes.items())),
            wait_p50=self.wait.quantile(0.5),
            wait_p99=self.wait.quantile(0.99),
            device_p50=self.device.quantile(0.5),
            device_p99=self.device.quantile(0.99),
            latency_p50=self.latency.quantile(0.5),
            latency_p99=self.latency.quantile(0.99),
        )

    def prometheus(self, name: str, now: BatcherStatistics) -> str:
        return "".join(f"{line}\n" for line in self._lines(_escaped(name), now))

    def _lines(self, name: str, now: BatcherStatistics) -> Iterator[str]:
        label = f'batcher="{name}"'
        yield from _head("requests_total", "counter", "Requests that ended, by outcome.")
        for outcome in ("answered", "failed", "cancelled", "timed_out", "rejected"):
            yield f'oxide_batcher_requests_total{{{label},outcome="{outcome}"}} {getattr(self, outcome)}'
        for metric, kind, text, value in (
            ("accepted_total", "counter", "Requests taken into the queue.", self.accepted),
            ("reruns_total", "counter", "Runs of a part of a batch that had failed.", self.reruns),
            ("queued_requests", "gauge", "Requests in the queue.", now.queued),
            ("waiting_requests", "gauge", "Requests that wait for room in the queue.", now.waiting_for_room),
            ("running_requests", "gauge", "Requests in the batches in flight.", now.running),
            ("batches_in_flight", "gauge", "Batches in flight.", now.batches_in_flight),
        ):
            yield from _head(metric, kind, text)
            yield f"oxide_batcher_{metric}{{{label}}} {value}"
        yield from _head("batch_size", "histogram", "Requests in a batch.")
        sizes, total = self.batch_sizes, self.batch_sizes.total()
        for bound in self._bounds:
            below = sum(number for size, number in sizes.items() if size <= bound)
            yield f'oxide_batcher_batch_size_bucket{{{label},le="{bound}"}} {below}'
        yield f'oxide_batcher_batch_size_bucket{{{label},le="+Inf"}} {total}'
        yield f"oxide_batcher_batch_size_sum{{{label}}} {sum(size * number for size, number in sizes.items())}"
        yield f"oxide_batcher_batch_size_count{{{label}}} {total}"
        for metric, text, times in (
            ("wait_seconds", "From the call to the begin of the batch.", self.wait),
            ("device_seconds", "From a batch's first work on its stream to its last.", self.device),
            ("latency_seconds", "From the call to the answer.", self.latency),
        ):
            yield from _head(metric, "summary", text)
            for fraction in (0.5, 0.99):
                found = times.quantile(fraction)
                yield f'oxide_batcher_{metric}{{{label},quantile="{fraction}"}} {"NaN" if found is None else found}'
            yield f"oxide_batcher_{metric}_sum{{{label}}} {times.total}"
            yield f"oxide_batcher_{metric}_count{{{label}}} {times.count}"


def _head(metric: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP oxide_batcher_{metric} {text}"
    yield f"# TYPE oxide_batcher_{metric} {kind}"


def _escaped(name: str) -> str:
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
