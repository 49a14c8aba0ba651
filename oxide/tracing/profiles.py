"""``oxide.profile``: counts, times and rates of each kernel and each kind of copy."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, final

from oxide.tracing import recorder
from oxide.tracing.events import Event, Work

_SAMPLES = 100_000
"""The most durations kept for the 99th percentile of a row. When there are more, every other duration is dropped, and
half as many of the later durations are kept."""


@final
@dataclass(frozen=True, slots=True)
class ProfileRow:
    """The runs of one kernel, or of one kind of copy, on one device. Times are microseconds.

    ``bytes`` is the total that the runs moved. It is exact for copies and fills. For a kernel it is an estimate: each
    launch counts the sizes of all buffers that it reads or writes, once for each buffer. ``bytes`` is None if the size
    is not known for every launch. ``gb_per_s`` is ``bytes`` divided by the total time. ``gflop_per_s`` follows from the
    argument ``flops`` of ``profile``, and is None without it. ``share`` is this row's fraction of the device time of
    all rows.
    """

    name: str
    kind: str
    device: str
    count: int
    total_us: float
    mean_us: float
    p99_us: float
    bytes: int | None
    gb_per_s: float | None
    gflop_per_s: float | None
    share: float


@final
@dataclass(slots=True)
class _Sum:
    """The sums of a row. ``durations`` has the duration of one run out of each ``every`` runs, so that it stays
    short."""

    count: int = 0
    total_ns: int = 0
    nbytes: int | None = 0
    durations: list[int] = field(default_factory=list)
    every: int = 1

    def add(self, duration: int, nbytes: int | None) -> None:
        if self.count % self.every == 0:
            self.durations.append(duration)
            if len(self.durations) > _SAMPLES:
                del self.durations[1::2]
                self.every *= 2
        self.count += 1
        self.total_ns += duration
        self.nbytes = None if nbytes is None or self.nbytes is None else self.nbytes + nbytes


@final
class Profile:
    """Counts and times of the work submitted in a ``with``: ``print(p)`` shows a table, ``p.table()`` returns its rows.

    Rows that are read before the end of the ``with`` may lack recent work, which the recorder adds in batches.
    """

    def __init__(self, flops: Mapping[str, float]) -> None:
        self._flops = dict(flops)
        self._sums: dict[tuple[str, str, str], _Sum] = {}
        self._unmeasured = 0
        self.device_times = ""
        """The source of device times, once the profile has ended: "workers" on the CPU device, "events" or "CUPTI"."""

    def accept(self, event: Event) -> None:
        """Counts an event, if it is work."""
        if not isinstance(event, Work):
            return
        if event.state:
            self._unmeasured += 1
            return
        if event.parts:
            for part in event.parts:
                self.add(part.name, "node of a graph", event.device, part.ended - part.begun, None)
            return
        self.add(event.name, event.kind, event.device, event.ended - event.begun, event.nbytes)

    def forked(self) -> None:
        """Does nothing: a forked child keeps the sums so far."""

    def add(self, name: str, kind: str, device: str, duration: int, nbytes: int | None) -> None:
        """Counts a run that took ``duration`` ns."""
        key = name, kind, device
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = _Sum()
        found.add(duration, nbytes)

    def table(self) -> list[ProfileRow]:
        """Returns a row for each kernel, each kind of copy and each node of graphs, those with the most time first."""
        sums = dict(self._sums)
        whole = sum(each.total_ns for each in sums.values()) or 1
        rows = []
        for (name, kind, device), each in sums.items():
            durations = sorted(each.durations)
            per_launch = self._flops.get(name) if kind in ("kernel", "node of a graph") else None
            timed = each.total_ns > 0
            rows.append(
                ProfileRow(
                    name=name,
                    kind=kind,
                    device=device,
                    count=each.count,
                    total_us=each.total_ns / 1e3,
                    mean_us=each.total_ns / each.count / 1e3,
                    p99_us=durations[min(len(durations) - 1, int(0.99 * len(durations)))] / 1e3,
                    bytes=each.nbytes,
                    gb_per_s=each.nbytes / each.total_ns if each.nbytes is not None and timed else None,
                    gflop_per_s=per_launch * each.count / each.total_ns if per_launch is not None and timed else None,
                    share=each.total_ns / whole,
                )
            )
        return sorted(rows, key=lambda row: -row.total_us)

    def to_json(self) -> str:
        """Returns the rows as JSON: ``{"device times": …, "not measured": …, "rows": [{"name": …, …}, …]}``."""
        rows = [asdict(row) for row in self.table()]
        return json.dumps({"device times": self.device_times, "not measured": self._unmeasured, "rows": rows}, indent=1)

    def _cells(self) -> list[list[str]]:
        return [
            [
                row.name,
                row.kind,
                row.device,
                str(row.count),
                f"{row.total_us / 1e3:.3f}",
                f"{row.mean_us:.2f}",
                f"{row.p99_us:.2f}",
                "" if row.bytes is None else f"{row.bytes / 1e6:.3f}",
                "" if row.gb_per_s is None else f"{row.gb_per_s:.2f}",
                "" if row.gflop_per_s is None else f"{row.gflop_per_s:.1f}",
                f"{100 * row.share:.1f} %",
            ]
            for row in self.table()
        ]

    def _note(self) -> str:
        notes = [f"device times by {self.device_times}"] if self.device_times else []
        if self._unmeasured:
            notes.append(f"{self._unmeasured} submissions were not run or not measured")
        return "; ".join(notes)

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(_HEADS, *cells, strict=True)]
        lines = []
        for row in [list(_HEADS), *cells]:
            padded = [
                text.ljust(width) if place < _WORDS else text.rjust(width)
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, *filter(None, [self._note()])])

    def __repr__(self) -> str:
        return f"<oxide.Profile of {sum(each.count for each in self._sums.values())} submissions>"

    def _repr_html_(self) -> str:
        def cell(tag: str, place: int, text: str) -> str:
            align = "left" if place < _WORDS else "right"
            return f'<{tag} style="text-align:{align}">{html.escape(text)}</{tag}>'

        head = "".join(cell("th", place, text) for place, text in enumerate(_HEADS))
        body = "".join(
            "<tr>" + "".join(cell("td", place, text) for place, text in enumerate(row)) + "</tr>"
            for row in self._cells()
        )
        note = f"<caption>{html.escape(self._note())}</caption>" if self._note() else ""
        return f"<table>{note}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_HEADS = ("name", "kind", "device", "count", "total ms", "mean µs", "p99 µs", "MB", "GB/s", "GFLOP/s", "share")
_WORDS = 3  # the number of columns of words, which come first


@contextmanager
def profile(*, flops: Mapping[str, float] | None = None) -> Iterator[Profile]:
    """Counts and times kernels, copies and fills inside the ``with``: ``with oxide.profile() as p: …``, then
    ``print(p)``.

    ``flops`` maps the name of a kernel to the number of floating-point operations of a launch, which the runtime does
    not know: ``flops={"sgemm": 2 * n**3}``. The end of the ``with`` blocks the thread until the work submitted so far
    has ended. Raises ``TypeError`` if ``flops`` is not a dict of numbers by name, ``ValueError`` if a number is
    negative or not finite.
    """
    taken = Profile(_checked_flops(flops))
    recorder.begin(taken)
    try:
        yield taken
    finally:
        taken.device_times = recorder.end(taken)


def _checked_flops(flops: Any) -> Mapping[str, float]:
    """Returns the argument ``flops`` of ``profile``, or an empty dict for None. Raises ``TypeError`` for anything but
    numbers by name, and ``ValueError`` for a number that is negative or not finite."""
    if flops is None:
        return {}
    if not isinstance(flops, Mapping):
        raise TypeError(f"flops must be a dict of FLOPs a launch by kernel name, not {type(flops).__name__}")
    for name, count in flops.items():
        if not isinstance(name, str) or isinstance(count, bool) or not isinstance(count, (int, float)):
            raise TypeError(f"flops[{name!r}] is {count!r}; it must be the number of FLOPs of a launch, by kernel name")
        if not 0 <= count < math.inf:
            raise ValueError(f"flops[{name!r}] is {count!r}; a launch has a finite number of FLOPs, 0 or more")
    return flops
