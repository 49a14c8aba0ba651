"""Counts what a driver was asked to submit, and what a trace file says was submitted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from oxide.testing import RecordingDriver
from tests.tracing.schema import TraceContents

COPIES = {
    "copy_to_device": "copy to device",
    "copy_to_host": "copy to host",
    "copy_on_device": "copy on device",
    "copy_peer": "copy between devices",
    "fill": "fill",
    "launch": "kernel",
    "launch_graph": "graph",
    "report": "report",
    "launch_host_function": "host function",
    "wait_event": "wait",
}


def seen(driver: RecordingDriver) -> Counter[tuple[str, str, Any]]:
    """Returns what was submitted: kind, stream's address, and bytes where they are known."""
    counted: Counter[tuple[str, str, Any]] = Counter()
    capturing: set[Any] = set()
    for call in driver.calls:
        stream = call.arguments[0] if call.method == "wait_event" else call.arguments[-1] if call.arguments else None
        if call.method == "begin_capture":
            capturing.add(stream)
        elif call.method == "begin_conditional":
            capturing.update(call.result or ())
        elif call.method == "end_capture":
            capturing.discard(stream)
        elif call.method in COPIES and call.exception is None and stream not in capturing:
            nbytes = None
            if call.method.startswith("copy"):
                nbytes = call.arguments[-2]
            elif call.method == "fill":
                nbytes = len(call.arguments[1]) * call.arguments[2]
            counted[COPIES[call.method], f"{driver.stream_address(stream):#x}", nbytes] += 1
    return counted


def written(contents: TraceContents) -> Counter[tuple[str, str, Any]]:
    """Returns what the file says was submitted, in the same terms."""
    counted: Counter[tuple[str, str, Any]] = Counter()
    for each in contents.slices(*COPIES.values()):
        kind = each["cat"]
        nbytes = each["args"].get("bytes") if kind.startswith(("copy", "fill")) else None
        counted[kind, contents.tracks[each["pid"], each["tid"]]["handle"], nbytes] += 1
    return counted
