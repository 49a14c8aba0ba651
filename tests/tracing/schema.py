"""A strict reader of trace files: what the trace-event format says, and what oxide promises of its own files."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, "Event Descriptions": the fields
# of each phase that oxide writes, and no others.
FIELDS = {
    "X": {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"},
    "s": {"ph", "cat", "name", "id", "pid", "tid", "ts"},
    "f": {"ph", "cat", "name", "id", "pid", "tid", "ts", "bp"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
    "M": {"ph", "name", "pid", "tid", "args"},
}
METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}
NUMBERS = {"pid": int, "tid": int, "id": int, "ts": (int, float), "dur": (int, float)}
KINDS = {
    "kernel", "node", "graph", "copy to device", "copy to host", "copy on device", "copy between devices", "fill",
    "report", "host function", "host copy or wake-up", "wait", "submit", "capture", "await", "sync",
}  # fmt: skip
SLACK = 0.0015
"""Times are written in µs with three digits: an end may seem to lie a nanosecond or so outside."""


@dataclass
class TraceContents:
    """What a valid file holds."""

    events: list[dict[str, Any]]
    processes: dict[int, str]
    tracks: dict[tuple[int, int], dict[str, Any]]
    clocks: str

    def slices(self, *kinds: str) -> list[dict[str, Any]]:
        """Returns the slices of these kinds, of every kind if none is named."""
        return [event for event in self.events if event["ph"] == "X" and (not kinds or event["cat"] in kinds)]

    def device(self, event: dict[str, Any]) -> str:
        return self.processes[event["pid"]].removeprefix("device ")

    def track(self, event: dict[str, Any]) -> str:
        name: str = self.tracks[event["pid"], event["tid"]]["name"]
        return name


def read(path: Path) -> TraceContents:
    """Reads a file. Fails on everything that the format does not have, and if slices of a track overlap without being
    nested, an arrow has no slices at its ends, or a track has no name."""
    contents = json.loads(path.read_text())
    assert set(contents) == {"displayTimeUnit", "traceEvents", "otherData"}
    assert contents["displayTimeUnit"] == "ns"
    events = contents["traceEvents"]
    processes: dict[int, str] = {}
    tracks: dict[tuple[int, int], dict[str, Any]] = {}
    arrows: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        phase = event["ph"]
        assert set(event) == FIELDS[phase], event
        for field, kind in NUMBERS.items():
            if field in event:
                assert isinstance(event[field], kind), event
                assert event[field] >= 0, event
        assert isinstance(event["name"], str), event
        assert event["name"], event
        match phase:
            case "M":
                argument = METADATA[event["name"]]
                assert argument in event["args"], event
                if event["name"] == "process_name":
                    assert event["pid"] not in processes
                    processes[event["pid"]] = event["args"]["name"]
                elif event["name"] == "thread_name":
                    assert (event["pid"], event["tid"]) not in tracks, event
                    tracks[event["pid"], event["tid"]] = event["args"]
            case "s" | "f":
                assert phase not in arrows[event["id"]], event
                arrows[event["id"]][phase] = event
                if phase == "f":
                    assert event["bp"] == "e"
            case "C":
                assert all(isinstance(value, int) for value in event["args"].values()), event
            case "X":
                assert event["cat"] in KINDS, event
    for event in events:
        assert event["pid"] in processes, event
        if event["ph"] in "Xsf":
            assert (event["pid"], event["tid"]) in tracks, event
    slices = [event for event in events if event["ph"] == "X"]
    _check_nesting(slices)
    for ends in arrows.values():
        assert set(ends) == {"s", "f"}, ends
        assert ends["s"]["pid"] == 1
        assert ends["f"]["pid"] != 1
        for end in ends.values():
            assert any(_holds(each, end) for each in slices), end
    return TraceContents(events, processes, tracks, contents["otherData"]["device times"])


def _holds(each: dict[str, Any], end: dict[str, Any]) -> bool:
    same_track = (each["pid"], each["tid"]) == (end["pid"], end["tid"])
    return same_track and each["ts"] - SLACK <= end["ts"] <= each["ts"] + each["dur"] + SLACK


def _check_nesting(slices: list[dict[str, Any]]) -> None:
    by_track: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for each in slices:
        by_track[each["pid"], each["tid"]].append(each)
    for track in by_track.values():
        track.sort(key=lambda each: (each["ts"], -each["dur"]))
        ends: list[float] = []
        for each in track:
            while ends and ends[-1] <= each["ts"] + SLACK:
                ends.pop()
            end = each["ts"] + each["dur"]
            assert not ends or end <= ends[-1] + SLACK, each
            ends.append(end)
