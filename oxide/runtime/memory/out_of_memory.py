"""Out-of-memory recovery: collects garbage, sweeps and retries until a time-out.

Memory may be unreferenced and not yet free: the program dropped a box, cancelled a task or dropped a result of
``async_on`` while the device was still using the memory. An allocation that the driver refuses is therefore tried again
as long as such work is in flight on the allocation's device. The allocation fails when no such work is left, or after a
bounded time. The time is bounded because the work may be waiting for this very thread: for a host function that needs
this thread, or for work that this thread has yet to submit.

Work that a task still awaits is not waited for, because the task will hold the memory of its result.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from typing import TYPE_CHECKING

from oxide.errors import OutOfMemoryError
from oxide.host.messages import byte_count
from oxide.runtime.loop.event_loops import running_loop_name
from oxide.runtime.loop.turns import SHARE_SECONDS

if TYPE_CHECKING:
    from oxide.runtime.ordering.device_state import DeviceState
    from oxide.runtime.ordering.timeline import Timeline

PATIENCE_SECONDS = 2.0
"""The longest wait of a thread for dropped work to end."""

LOOP_PATIENCE_SECONDS = SHARE_SECONDS
"""The longest wait on an event loop's thread, which blocks the loop's other tasks."""

_YOUNG = 1  # the oldest generation that is collected on an event loop's thread, in about a millisecond
_ALL = 2

_LONGEST_PAUSE = 5e-3
_LARGEST = 5  # the number of kinds of boxes that an error lists


def allocate_when_free(timeline: Timeline, nbytes: int) -> int:
    """Allocates memory that the driver refused once. Raises ``OutOfMemoryError`` with a list of the boxes that take the
    memory."""
    device = timeline.device
    on_loop = running_loop_name() is not None
    gc.collect(_YOUNG if on_loop else _ALL)  # a box may be in a cycle, such as that of an exception's traceback
    patience = LOOP_PATIENCE_SECONDS if on_loop else PATIENCE_SECONDS
    until = time.perf_counter() + patience
    pause = 0.0 if on_loop else 1e-4  # on a busy machine a sleep may take several times as long as asked for
    while True:
        in_flight = _sweep(device)
        try:
            return timeline.driver.allocate(nbytes, timeline.handle)
        except OutOfMemoryError as error:
            if not in_flight or time.perf_counter() >= until:
                waited = f", and {patience:g} s of waiting for dropped work did not see its end" if in_flight else ""
                raise OutOfMemoryError(f"{error}{waited}. {_holdings(device)}") from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _sweep(device: DeviceState) -> bool:
    """Frees the memory that is no longer in use. Returns whether work is in flight whose end may free more memory."""
    results = False
    for loose in device.loose.copy():
        results |= loose.forget_finished()
    return device.runtime.reclaimer.make_room(device) or results


def _holdings(device: DeviceState) -> str:
    """Returns a description of what holds the memory: the largest kinds of boxes, the work in flight, the pooled
    memory."""
    runtime = device.runtime
    in_flight, cancelled, dropped, dropped_bytes = runtime.reclaimer.pending()  # first, as it collects dropped boxes
    live = list(device.live.copy().values())  # the copy is one step: finalisers may change the original
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
