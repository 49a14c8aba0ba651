"""Scheduling: picks the device and the stream that an operation runs on. ``SchedulingPolicy`` in ``runtime.py`` is the
protocol of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from oxide.errors import DeviceError
from oxide.host.locks import new_lock, unheld
from oxide.host.messages import written
from oxide.runtime.devices.runtime import Device, Runtime, SchedulingPolicy, current_runtime
from oxide.runtime.ordering.stream import Stream, require_priority
from oxide.runtime.ordering.timeline import not_in_force

if TYPE_CHECKING:
    from oxide.driver.base import StreamPriority


@final
class StreamPoolRoundRobin:
    """The default policy: round robin over ``streams`` streams of each device, so that independent operations overlap.

    ``priority`` is the priority of the streams, as for ``device.new_stream``. Raises ``ValueError`` unless ``streams``
    is an int of 1 or more and ``priority`` is ``"normal"`` or ``"high"``.
    """

    def __init__(self, streams: int = 4, *, priority: StreamPriority = "normal") -> None:
        if isinstance(streams, bool) or not isinstance(streams, int) or streams < 1:
            raise ValueError(
                f"StreamPoolRoundRobin(streams={written(streams)}): streams must be an integer of 1 or more"
            )
        self._priority: StreamPriority = require_priority(priority, "StreamPoolRoundRobin")
        self._size = streams
        self._lock = new_lock()
        self._pools: dict[Device, _Pool] = {}

    @property
    def streams(self) -> int:
        """Returns the number of streams of each device."""
        return self._size

    def next_stream(self, device: Device) -> Stream:
        """Returns the stream of ``device`` whose turn it is."""
        pool = self._pools.get(device)
        if pool is not None and len(pool.streams) == self._size:  # two threads may get the same stream
            index = pool.turn
            pool.turn = (index + 1) % self._size
            return pool.streams[index]
        with unheld(self._lock):
            pool = self._pools.get(device)
            if pool is None:
                pool = self._pools[device] = _Pool()
            index = pool.turn
            if index == len(pool.streams):
                pool.streams.append(device.new_stream(priority=self._priority))
            pool.turn = (index + 1) % self._size
            return pool.streams[index]

    def __repr__(self) -> str:
        priority = ", priority='high'" if self._priority == "high" else ""
        return f"StreamPoolRoundRobin(streams={written(self._size)}{priority})"


@final
class _Pool:
    """One device's streams, and the index of the stream to return next."""

    __slots__ = ("streams", "turn")

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.turn = 0


@final
class SingleStream:
    """A policy for debugging, with one stream for each device: all work runs in the order of submission."""

    def __init__(self) -> None:
        self._pool = StreamPoolRoundRobin(1)

    def next_stream(self, device: Device) -> Stream:
        """Returns the stream of ``device``."""
        return self._pool.next_stream(device)

    def __repr__(self) -> str:
        return "SingleStream()"


@final
class PolicyOf:
    """The policy that ``policy_of`` returns. It cannot be the runtime's own, which it asks."""

    asks_the_runtime = True

    def __init__(self, device: int | Device) -> None:
        self._placement = require_placement(device, "policy_of")

    def next_stream(self, device: Device) -> Stream:
        """Returns a stream of the policy's own device, whatever ``device`` is."""
        runtime = current_runtime()
        return picked_stream(runtime.policy, find_device(runtime, self._placement))

    def __repr__(self) -> str:
        return f"policy_of({written(placed_number(self._placement))})"


def policy_of(device: int | Device) -> SchedulingPolicy:
    """Returns a policy that picks streams of one device by the runtime's policy: ``op.schedule(policy_of(1))`` runs
    ``op`` on device 1.

    ``device`` is a number or one of ``devices()``. Raises ``TypeError`` for anything else, ``DeviceError`` for a
    negative number. Picking a stream raises ``DeviceError`` if the device is not set up.
    """
    return PolicyOf(device)


def require_placement(device: int | Device, what: str) -> int | Device:
    """Checks and returns a device that a user gave as an object or a number. Raises ``TypeError`` or
    ``DeviceError``."""
    if isinstance(device, Device):
        return device
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(
            f"{what} takes a device's number or one of devices(), not {type(device).__name__} {written(device)}"
        )
    if device < 0:
        raise DeviceError(f"{what} was given device {written(device)}; devices are numbered from 0")
    return device


def find_device(runtime: Runtime, placement: int | Device) -> Device:
    """Returns the device that ``placement`` names, by its number or as an object. Raises ``DeviceError`` if ``runtime``
    has not set up this device."""
    device = runtime.device(placed_number(placement))
    if isinstance(placement, Device) and device is not placement:
        raise not_in_force(placement.label, "take it from devices()")
    return device


def picked_stream(policy: Any, device: Device) -> Stream:
    """Returns the stream of ``device`` that ``policy`` picks. The policy may be a user's. Raises ``TypeError`` if the
    policy returns no stream, ``DeviceError`` if it returns a stream of another device."""
    stream: Stream = policy.next_stream(device)
    if not isinstance(stream, Stream):
        require_stream(stream)
    if stream.device is not device:
        raise _wrong_device(type(policy).__name__, stream.device, device)
    return stream


def _wrong_device(policy: str, found: Device, device: Device) -> DeviceError:
    if found.runtime is not device.runtime:
        return not_in_force(f"the stream that the policy {policy} returned", "make it with device.new_stream()")
    return DeviceError(
        f"the policy {policy} returned a stream of {found.label}, where a stream of {device.label} was asked for; "
        f"next_stream(device) must return one that device.new_stream() made"
    )


def require_stream(stream: Stream) -> Stream:
    if not isinstance(stream, Stream):
        raise TypeError(f"a Stream is needed, got {type(stream).__name__}; devices()[0].new_stream() makes one")
    return stream


def placed_number(placement: int | Device | None) -> int:
    """Returns the number of a device that a user named."""
    assert placement is not None
    return placement.id if isinstance(placement, Device) else placement


Runtime.default_policy = StreamPoolRoundRobin
