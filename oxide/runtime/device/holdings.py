"""Describes what holds a device's memory: the second half of an out-of-memory error's message."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oxide.messages import byte_count

if TYPE_CHECKING:
    from oxide.runtime.device.runtime import Device

_LARGEST = 5


def holdings(device: Device) -> str:
    """Lists the largest kinds of boxes that the program holds, the work in flight and the pooled memory."""
    runtime = device.runtime
    in_flight, cancelled, dropped, dropped_bytes = runtime.reclaimer.pending()  # first: it collects dropped boxes
    live = list(device.live.copy().values())  # a copy is one step: a finaliser may take from the original
    count = Counter(live)
    kinds = sorted(count, key=lambda kind: -kind[0] * count[kind])
    boxes = [
        f"{count[kind]} of {'x'.join(map(str, kind[1])) or 'scalar'} {kind[2]} ({byte_count(kind[0])} each)"
        for kind in kinds[:_LARGEST]
    ]
    more = len(kinds) - len(boxes)
    named = (": " + ", ".join(boxes) + (f", and {more} smaller kinds" if more else "")) if boxes else ""
    return (
        f"{device.label} holds {len(live)} boxes, {byte_count(sum(entry[0] for entry in live))}{named}; "
        f"{in_flight} operations are in flight or not yet collected, {cancelled} cancelled ones are still running, "
        f"{dropped} dropped boxes ({byte_count(dropped_bytes)}) wait to be given back; {runtime.pinned.describe()}"
    )
