"""A clock of any driver that has events with times: one event before each submission and one after it.

Two errors are inherent. The first event is passed when the stream is idle, so a span may begin before its work: by the
host's time between the two submissions, some microseconds. And an event takes time on the device itself. A driver uses
this clock where nothing better is at hand.

Positions are the milliseconds since an earlier event, the *base*, as CUDA gives them: in single precision, which
resolves 0.25 µs at 4 s. So every two seconds the base is replaced by an event of that moment, whose position is known.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, final

from oxide.driver.base import Driver, EventHandle, Span, StreamHandle
from oxide.errors import DeviceError

_BASE_NS = 2_000_000_000
_TRIES = 5  # the base's time is the best of several tries


@final
class _Base:
    """An event of a device, and its time by ``perf_counter_ns``."""

    __slots__ = ("event", "time_ns")

    def __init__(self, event: EventHandle, time_ns: int) -> None:
        self.event = event
        self.time_ns = time_ns


@final
class _Measured:
    """The two events of a submission, and the device that they belong to."""

    __slots__ = ("after", "before", "device")

    def __init__(self, device: int, before: EventHandle, after: EventHandle) -> None:
        self.device = device
        self.before = before
        self.after = after


@final
class EventClock:
    """The ``Clock`` of ``driver``, by timing events. ``device_of`` returns the number of a stream's device; ``ended``
    is called when the clock is closed."""

    source = "events"

    def __init__(self, driver: Driver, device_of: Callable[[Any], int], ended: Callable[[], None]) -> None:
        self._driver = driver
        self._device_of = device_of
        self._ended = ended
        self._spare: dict[int, deque[EventHandle]] = {}
        self._bases: dict[int, _Base] = {}
        self._streams: dict[int, StreamHandle] = {}  # one for each device, for the first base
        self._lock = threading.Lock()

    def begin(self, stream: StreamHandle) -> _Measured:
        """Records an event in the stream."""
        device = self._device_of(stream)
        if device not in self._bases:
            self._begin_device(device)
        measured = _Measured(device, self._take(device), self._take(device))
        try:
            self._driver.record_event(measured.before, stream)
        except BaseException:
            self.forget(measured)
            raise
        return measured

    def end(self, token: _Measured, stream: StreamHandle) -> None:
        """Records the second event. If the driver refuses, the submission stays without times."""
        with suppress(DeviceError):
            self._driver.record_event(token.after, stream)

    def collect(self, *, final: bool) -> None:
        """Does nothing: ``spans`` queries the events."""

    def spans(self, token: _Measured) -> list[Span] | None:
        """Returns the time between the two events; None while they have not been passed."""
        driver = self._driver
        try:
            if not (driver.query_event(token.before) and driver.query_event(token.after)):
                return None
            base = self._bases[token.device]
            begun = base.time_ns + round(driver.elapsed_ms(base.event, token.before) * 1e6)
            ended = begun + round(driver.elapsed_ms(token.before, token.after) * 1e6)
        except DeviceError:  # the device is lost, or an event was never recorded
            return None
        if begun - base.time_ns > _BASE_NS:
            self._give_back(token.device, base.event)
            self._bases[token.device] = _Base(token.before, begun)
        else:
            self._give_back(token.device, token.before)
        self._give_back(token.device, token.after)
        return [Span(begun, ended)]

    def forget(self, token: _Measured) -> None:
        """Takes the events back."""
        self._give_back(token.device, token.before)
        self._give_back(token.device, token.after)

    def close(self) -> None:
        """Destroys the events."""
        for spare in self._spare.values():
            while spare:
                self._destroy(spare.popleft())
        for base in self._bases.values():
            self._destroy(base.event)
        for stream in self._streams.values():
            with suppress(DeviceError):
                self._driver.destroy_stream(stream)
        self._bases.clear()
        self._streams.clear()
        self._ended()

    def _begin_device(self, device: int) -> None:
        """Records the first base, on an idle stream of its own, and reads the host's clock before and after. The event
        is taken to be in the middle, for the shortest of a few tries."""
        with self._lock:
            if device in self._bases:
                return
            driver = self._driver
            stream = self._streams[device] = driver.create_stream(device)
            best, chosen = -1, None
            for _ in range(_TRIES):
                event = driver.create_event(device, timing=True)
                earliest = time.perf_counter_ns()
                driver.record_event(event, stream)
                driver.synchronize_event(event)
                latest = time.perf_counter_ns()
                if chosen is None or latest - earliest < best:
                    if chosen is not None:
                        self._destroy(chosen.event)
                    best, chosen = latest - earliest, _Base(event, (earliest + latest) // 2)
                else:
                    self._destroy(event)
            assert chosen is not None
            self._spare[device] = deque()
            self._bases[device] = chosen

    def _take(self, device: int) -> EventHandle:
        try:
            return self._spare[device].popleft()
        except IndexError:
            return self._driver.create_event(device, timing=True)

    def _give_back(self, device: int, event: EventHandle) -> None:
        self._spare[device].append(event)

    def _destroy(self, event: EventHandle) -> None:
        with suppress(DeviceError):
            self._driver.destroy_event(event)
