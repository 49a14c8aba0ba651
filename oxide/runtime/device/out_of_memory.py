"""Device memory where an allocation finds no room: what is nobody's any more is given back, and waited for.

Memory may be nobody's and yet not free: the program dropped a box, cancelled a task or dropped a result of ``async_on``
while the device works on it. An allocation that the driver refuses therefore collects garbage, sweeps and asks again,
for as long as such work is in flight on its device, and fails when none is left, or after a bounded time: the work may
itself be waiting for the thread that asks here, as behind a host function or on another stream that it will feed.

Work that a task still awaits is not waited for: its result will be held by that task.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from oxide.errors import OutOfMemoryError
from oxide.runtime.device.holdings import holdings
from oxide.runtime.loop.event_loops import running_loop_name

if TYPE_CHECKING:
    from oxide.runtime.device.runtime import Device
    from oxide.runtime.device.timeline import Timeline

PATIENCE_SECONDS = 2.0
"""How long a thread waits for dropped work to end."""

LOOP_PATIENCE_SECONDS = 0.1
"""The same on an event loop's thread, whose other tasks wait with it."""

_LONGEST_PAUSE = 5e-3


def allocate_when_free(timeline: Timeline, nbytes: int) -> int:
    """The address of memory that the driver refused once. Raises ``OutOfMemoryError``, which says what is held."""
    device = timeline.device
    patience = PATIENCE_SECONDS if running_loop_name() is None else LOOP_PATIENCE_SECONDS
    until = time.perf_counter() + patience
    gc.collect()  # a box in a cycle, as an exception's traceback makes, is held by nobody
    pause = 1e-4
    while True:
        in_flight = _sweep(device)
        try:
            return timeline.driver.allocate(nbytes, timeline.handle)
        except OutOfMemoryError as error:
            if not in_flight or time.perf_counter() >= until:
                waited = f", and {patience:g} s of waiting for dropped work did not see its end" if in_flight else ""
                raise OutOfMemoryError(f"{error}{waited}. {holdings(device)}") from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _sweep(device: Device) -> bool:
    """Gives back what can be; whether work is in flight whose end may free more."""
    results = False
    for loose in device.loose.copy():
        results |= loose.forget_finished()
    return device.runtime.reclaimer.make_room(device) or results
