"""Scheduling policies: which stream an operation runs on.

The idea is cuda-async's ``SchedulingPolicy``. Any object with ``next_stream(device)`` is one.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol, final, runtime_checkable
from weakref import WeakKeyDictionary

from oxide.runtime.context import Device
from oxide.runtime.stream import Stream


@runtime_checkable
class SchedulingPolicy(Protocol):
    """Picks a stream. Called once for each operation that is run, from any thread."""

    def next_stream(self, device: Device) -> Stream:
        """The stream of ``device`` that the next operation runs on."""


@final
class StreamPoolRoundRobin:
    """The default: ``streams`` streams a device, taken in turn, so that independent operations overlap."""

    def __init__(self, streams: int = 4) -> None:
        if isinstance(streams, bool) or not isinstance(streams, int) or streams < 1:
            raise ValueError(f"StreamPoolRoundRobin(streams={streams!r}): streams must be an integer of 1 or more")
        self._size = streams
        self._lock = threading.Lock()
        self._pools: WeakKeyDictionary[Device, _Pool] = WeakKeyDictionary()
        self._latest: _Pool | None = None  # nearly always the one asked for: a weak dictionary's answer takes 1 µs

    @property
    def streams(self) -> int:
        """How many streams each device has."""
        return self._size

    def next_stream(self, device: Device) -> Stream:
        with self._lock:
            pool = self._latest
            if pool is None or pool.device() is not device:
                pool = self._pools.get(device)
                if pool is None:
                    pool = self._pools[device] = _Pool(device)
                self._latest = pool
            index = pool.turn
            if index == len(pool.streams):
                pool.streams.append(device.new_stream())
            pool.turn = (index + 1) % self._size
            return pool.streams[index]

    def __repr__(self) -> str:
        return f"StreamPoolRoundRobin(streams={self._size})"


@final
class _Pool:
    """One device's streams and whose turn it is."""

    __slots__ = ("device", "streams", "turn")

    def __init__(self, device: Device) -> None:
        self.device = weakref.ref(device)
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
