"""The policies that oxide brings: which stream an operation runs on. ``policy.py`` says what a policy is."""

from __future__ import annotations

import threading
from typing import final

from oxide.messages import written
from oxide.native import Given
from oxide.runtime.device.runtime import Device
from oxide.runtime.submission.stream import Stream


@final
class StreamPoolRoundRobin:
    """The default: ``streams`` streams a device, taken in turn, so that independent operations overlap."""

    def __init__(self, streams: Given[int] = 4) -> None:
        if isinstance(streams, bool) or not isinstance(streams, int) or streams < 1:
            raise ValueError(
                f"StreamPoolRoundRobin(streams={written(streams)}): streams must be an integer of 1 or more"
            )
        self._size = streams
        self._lock = threading.Lock()
        self._pools: dict[Device, _Pool] = {}

    @property
    def streams(self) -> int:
        """How many streams each device has."""
        return self._size

    def next_stream(self, device: Device) -> Stream:
        with self._lock:
            pool = self._pools.get(device)
            if pool is None:
                pool = self._pools[device] = _Pool()
            index = pool.turn
            if index == len(pool.streams):
                pool.streams.append(device.new_stream())
            pool.turn = (index + 1) % self._size
            return pool.streams[index]

    def __repr__(self) -> str:
        return f"StreamPoolRoundRobin(streams={written(self._size)})"


@final
class _Pool:
    """One device's streams and whose turn it is."""

    __slots__ = ("streams", "turn")

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.turn = 0


@final
class SingleStream:
    """One stream a device: everything runs in the order it was submitted. For debugging."""

    def __init__(self) -> None:
        self._pool = StreamPoolRoundRobin(1)

    def next_stream(self, device: Device) -> Stream:
        return self._pool.next_stream(device)

    def __repr__(self) -> str:
        return "SingleStream()"
