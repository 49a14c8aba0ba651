"""A clock for any driver whose events have times. It records one event before each submission and one after it.

Two errors are inherent. An idle stream passes the first event before the host has submitted the work, so a span may
begin before its work, by some microseconds. And the events themselves take time on the device. A driver uses this clock
if it has no better one.

Each submission needs two events of its own, even in a busy stream. The second event of the previous submission could
serve as the first event only if nothing came in between. The clock cannot tell, because it sees neither waits for other
streams nor work that other libraries submit.

Creating two events takes longer than recording them. So each device has a pool of pairs of events, which are created
when the clock begins to use the device. If the pool is empty, the submitting thread reads the times of the oldest
submissions and reuses their events. It reads the times in batches: a stream passes its events in order, so one query
can show that it has passed a whole batch. If the device is too far behind, the pool grows. So the number of events
depends on the work in flight, however rarely times are collected. And there is no need for another thread, which would
compete for the GIL.

CUDA measures the time of an event from an earlier event, here the *base*, as milliseconds in single precision, which
resolves 0.25 µs at 4 s. So every two seconds a recent event, whose time is known, becomes the new base.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, final

from oxide.driver.base import Driver, EventHandle, Span, StreamHandle, provided
from oxide.errors import DeviceError
from oxide.host.locks import new_lock, unheld

_BASE_NS = 2_000_000_000
_TRIES = 5  # the first base is the best of so many tries
_POOL = 512  # pairs of events that a device begins with
_BATCH = 64  # submissions whose times are read at once, and pairs by which a pool grows


@final
@dataclass(eq=False, slots=True)
class _Pair:
    """The events before and after a submission."""

    before: EventHandle
    after: EventHandle


@final
@dataclass(eq=False, slots=True)
class _Device:
    """A device: its base, the base's time by ``perf_counter_ns``, the stream of the first base, and the pool of unused
    pairs."""

    number: int
    stream: StreamHandle
    base: EventHandle | None = None
    base_ns: int = 0
    spare: list[_Pair] = field(default_factory=list)


@final
@dataclass(eq=False, slots=True)
class _Lane:
    """A stream: its device and, in order, its submissions whose times have not been read."""

    device: _Device
    pending: deque[_Measured] = field(default_factory=deque)


@final
@dataclass(eq=False, slots=True)
class _Measured:
    """A submission, the token of this clock. It has its events until its times are read or it is given up."""

    lane: _Lane
    pair: _Pair | None
    times: tuple[int, int] | None = None


@final
class EventClock:
    """The ``Clock`` of ``driver`` by timing events. ``device_of`` returns the number of a stream's device. ``ended`` is
    called when the clock is closed. ``devices`` are the devices in use, whose events are created at once."""

    source = "events"

    def __init__(
        self,
        driver: Driver,
        device_of: Callable[[Any], int],
        ended: Callable[[], None],
        devices: Iterable[int] = (),
    ) -> None:
        self._driver = driver
        self._device_of = device_of
        self._ended = ended
        self._devices: dict[int, _Device] = {}
        self._lanes: dict[StreamHandle, _Lane] = {}
        self._adding = new_lock()  # held to add devices and streams
        self._reading = threading.Lock()  # held to read times and to give up tokens
        for device in devices:
            with suppress(DeviceError):  # raised again by the first submission to the device
                self._add_device(device)

    def begin(self, stream: StreamHandle) -> _Measured:
        """Records the event before the submission. Returns the token."""
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._add_lane(stream)
        spare = lane.device.spare
        while True:
            try:
                pair = spare.pop()
                break
            except IndexError:
                self._refill(lane.device)
        try:
            self._driver.record_event(pair.before, stream)
        except BaseException:
            spare.append(pair)
            raise
        return _Measured(lane, pair)

    def end(self, token: _Measured, stream: StreamHandle) -> None:
        """Records the event after the submission. If the driver refuses that, the submission never gets times."""
        pair = token.pair
        assert pair is not None, "a token is ended once, before it is used up"
        with suppress(DeviceError):
            self._driver.record_event(pair.after, stream)
            token.lane.pending.append(token)

    def collect(self, *, final: bool) -> None:
        """Reads the times of all submissions that the streams have passed."""
        with self._reading:
            for lane in list(self._lanes.values()):
                self._read(lane, len(lane.pending))

    def spans(self, token: _Measured) -> list[Span] | None:
        """Returns one span, from the first event to the second; None until their times have been read."""
        times = token.times
        return None if times is None else [Span(*times)]

    def forget(self, token: _Measured) -> None:
        """Returns the submission's events to the pool, if they have not been returned."""
        with self._reading:
            pair = token.pair
            if pair is not None:
                with suppress(ValueError):  # not pending: its second event was not recorded
                    token.lane.pending.remove(token)
                token.pair = None
                token.lane.device.spare.append(pair)

    def close(self) -> None:
        """Destroys all events of all devices."""
        while self._devices:
            self._end_device(self._devices.popitem()[1])
        self._lanes.clear()
        self._ended()

    # Times

    def _read(self, lane: _Lane, limit: int) -> int:
        """Reads the times of the stream's oldest submissions, at most ``limit``, and returns their events to the pool.
        Returns the number of submissions read. The caller holds ``_reading``, so no other thread takes submissions out
        of ``pending``."""
        pending, device = lane.pending, lane.device
        timing = provided(self._driver.timing, "timing")
        read = 0
        with suppress(DeviceError):  # the device is lost, or two threads submitted at once and their events are mixed
            passed = self._count_passed(pending, min(limit, len(pending)))
            while read < passed:
                token = pending[0]
                pair = token.pair
                assert pair is not None, "a pending submission has its events"
                begun = device.base_ns + round(timing.elapsed_ms(device.base, pair.before) * 1e6)
                ended = begun + round(timing.elapsed_ms(pair.before, pair.after) * 1e6)
                pending.popleft()
                token.pair = None
                token.times = begun, ended
                read += 1
                if begun - device.base_ns > _BASE_NS:
                    device.base, device.base_ns, pair.before = pair.before, begun, device.base
                device.spare.append(pair)
        return read

    def _count_passed(self, pending: deque[_Measured], count: int) -> int:
        """Returns how many of the first ``count`` submissions the stream has passed. One query is enough if it has
        passed all of them."""

        def is_ahead(index: int) -> bool:
            pair = pending[index].pair
            return pair is not None and not self._driver.query_event(pair.after)

        if count == 0 or not is_ahead(count - 1):
            return count
        return bisect_left(range(count - 1), True, key=is_ahead)

    # Devices, streams and events

    def _add_lane(self, stream: StreamHandle) -> _Lane:
        number = self._device_of(stream)
        self._add_device(number)
        with unheld(self._adding):
            return self._lanes.setdefault(stream, _Lane(self._devices[number]))

    def _add_device(self, number: int) -> None:
        """Creates the events of a device. Does nothing if they exist."""
        with unheld(self._adding):
            if number in self._devices:
                return
            device = _Device(number, self._driver.create_stream(number))
            try:
                self._begin_base(device)
                self._add_pairs(device, _POOL)
            except BaseException:
                self._end_device(device)
                raise
            self._devices[number] = device

    def _begin_base(self, device: _Device) -> None:
        """Records the first base, on an idle stream that belongs to this clock, and reads the host's clock before and
        after. Of a few tries, keeps the one with the shortest time between the two readings, and takes the event to be
        in the middle."""
        driver = self._driver
        best = -1
        for _ in range(_TRIES):
            event = driver.create_event(device.number, timing=True)
            try:
                earliest = time.perf_counter_ns()
                driver.record_event(event, device.stream)
                driver.synchronize_event(event)
                latest = time.perf_counter_ns()
            except BaseException:
                self._destroy(event)
                raise
            if device.base is None or latest - earliest < best:
                event, device.base = device.base, event
                best, device.base_ns = latest - earliest, (earliest + latest) // 2
            if event is not None:
                self._destroy(event)

    def _refill(self, device: _Device) -> None:
        """Fills a device's empty pool with the events of submissions that the device has passed. If these are fewer
        than ``_BATCH`` pairs, adds new events."""
        if not self._reading.acquire(blocking=False):  # a thread is reading, maybe this one: finalisers submit work
            self._add_pairs(device, 1)
            return
        try:
            read = 0
            for lane in list(self._lanes.values()):
                if lane.device is device:
                    read += self._read(lane, _BATCH - read)
        finally:
            self._reading.release()
        if read < _BATCH:
            self._add_pairs(device, _BATCH)

    def _add_pairs(self, device: _Device, count: int) -> None:
        driver = self._driver
        for _ in range(count):
            before = driver.create_event(device.number, timing=True)
            try:
                device.spare.append(_Pair(before, driver.create_event(device.number, timing=True)))
            except BaseException:
                self._destroy(before)
                raise

    def _end_device(self, device: _Device) -> None:
        while device.spare:
            pair = device.spare.pop()
            self._destroy(pair.before)
            self._destroy(pair.after)
        if device.base is not None:
            self._destroy(device.base)
        with suppress(DeviceError):
            self._driver.destroy_stream(device.stream)

    def _destroy(self, event: EventHandle) -> None:
        with suppress(DeviceError):
            self._driver.destroy_event(event)
