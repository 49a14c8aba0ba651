"""SchedulingPolicy: the protocol for picking an operation's stream. ``scheduling.py`` has oxide's policies.

The idea is cuda-async's ``SchedulingPolicy``. Any object with ``next_stream(device)`` implements the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from oxide.runtime.device.runtime import Device
    from oxide.runtime.device.stream import Stream


@runtime_checkable
class SchedulingPolicy(Protocol):
    """A policy that picks streams. It is called once for each operation that is run, from any thread."""

    def next_stream(self, device: Device) -> Stream:
        """Returns the stream of ``device`` for the next operation. A stream of another device is refused, unless the
        policy was given to ``op.schedule``: the operation then runs on the stream's device."""
