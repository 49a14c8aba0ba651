"""SchedulingPolicy: picks the stream that an operation runs on. ``scheduling.py`` has the policies of oxide.

The idea is cuda-async's ``SchedulingPolicy``. Any object with ``next_stream(device)`` is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from oxide.runtime.device.runtime import Device
    from oxide.runtime.device.stream import Stream


@runtime_checkable
class SchedulingPolicy(Protocol):
    """Picks a stream. Called once for each operation that is run, from any thread."""

    def next_stream(self, device: Device) -> Stream:
        """The stream of ``device`` that the next operation runs on. One of another device is refused, unless
        ``op.schedule`` was given this policy: then it says where the operation runs."""
