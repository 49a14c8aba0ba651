"""The current runtime: one driver, its devices, the default device and policy, and the completion mode.

``init_device_contexts`` sets up the runtime. Otherwise the first operation sets it up with the defaults. ``install``
replaces it by a runtime with the caller's driver: the tests install a recording, failing or stepping driver.

Every use of the runtime in a child of ``os.fork`` raises ``DeviceLostError``. The child has none of the parent's other
threads, and CUDA does not work in it: a wait would hang, and a driver call would fail at best. So the child replaces
each lock, as a thread of the parent may have held it; ``host/locks.py`` renews those of the whole process. It also
replaces the driver by one whose calls raise the error. Objects that the child drops are only forgotten, as their memory
and handles belong to the parent.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Protocol, final, runtime_checkable

from oxide.driver.base import CAPABILITIES, DeviceInfo, Driver, EventHandle, FunctionHandle, StreamPriority, provided
from oxide.errors import DeviceError, DeviceLostError
from oxide.host.environment import word
from oxide.host.locks import RUNTIME_LOCK, new_lock, refuse_inside, unheld
from oxide.host.messages import written
from oxide.host.uninterrupted import forked_error, unforked
from oxide.host.weak_table import WeakTable
from oxide.runtime.devices.fault_records import FaultPages, FaultRecordPool
from oxide.runtime.loop.event_loops import Alarm
from oxide.runtime.memory import reclaim
from oxide.runtime.memory.addresses import AddressRanges
from oxide.runtime.memory.pinned import PinnedPool
from oxide.runtime.memory.reclaim import Reclaimer
from oxide.runtime.memory.staging_ring import StagingRing
from oxide.runtime.ordering.timeline import Timeline
from oxide.runtime.tracepoints import points

if TYPE_CHECKING:
    from oxide.driver.base import Driver
    from oxide.runtime.ordering.stream import LooseResults, Stream

CompletionMode = Literal["adaptive", "poll", "callback"]
_COMPLETION_MODES = ("adaptive", "poll", "callback")
OrderingMode = Literal["wait", "strict"]
_ORDERING_MODES = ("wait", "strict")


@final
class Device:
    """One device. ``devices()`` lists all. Each device of a runtime has one such object, so devices are compared by
    identity."""

    def __init__(self, runtime: Runtime, number: int) -> None:
        self.id = number
        self.runtime = runtime
        self.driver = runtime.driver
        self._info: DeviceInfo | None = None
        self.spare_events: deque[EventHandle] = deque()
        self.spare_timelines: deque[Timeline] = deque()
        self._timelines: list[Timeline] = []
        self.loose: set[LooseResults] = set()  # the async_on submissions of each stream that exists
        # The bytes, shape and dtype of each allocation, by its address. The error of a failed allocation lists them.
        self.live: dict[int, tuple[int, tuple[int, ...], Any]] = {}
        self.staging = StagingRing(self)
        self.lost: DeviceLostError | None = None
        # Loaded kernels by specialization. An entry is removed once its kernel is dropped and nothing in flight uses
        # the kernel.
        self.functions: WeakTable[Any, FunctionHandle] = WeakTable()
        self.loaded: dict[Any, FunctionHandle] = self.functions.entries
        self.loading_beside: set[object] = set()  # the loads that threads run for event loops
        self.load_turn = new_lock()

    @property
    def info(self) -> DeviceInfo:
        """Returns the device's name, memory and limits."""
        if self._info is None:
            self._info = self.driver.device_info(self.id)
        return self._info

    @property
    def name(self) -> str:
        """Returns the name that the driver gives the device."""
        return self.info.name

    @property
    def kind(self) -> str:
        """Returns ``"cuda"`` or ``"cpu"``."""
        return self.driver.name

    @property
    def label(self) -> str:
        """Returns the kind and the number, such as ``cuda:0``."""
        return f"{self.driver.name}:{self.id}"

    def new_stream(self, *, priority: StreamPriority = "normal") -> Stream:
        """Returns a new stream for the caller. Dropping the stream returns it to the device.

        The device prefers the kernels of streams with ``priority="high"`` to those of ``"normal"`` streams. Raises
        ``ValueError`` for any other priority.
        """
        from oxide.runtime.ordering.stream import Stream, require_priority

        refuse_inside()
        return Stream(self, require_priority(priority, "new_stream"))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Device cannot be pickled or copied; devices() lists those of each process")

    def __repr__(self) -> str:
        if self._info is None and sys.is_finalizing():  # the modules that the name needs are gone
            return f"<oxide.Device {self.label}>"
        return f"<oxide.Device {self.label} {self.name}>"

    # Used by the runtime

    def take_event(self) -> EventHandle:
        """Returns a spare event, or a new one. It goes back to ``spare_events``."""
        try:
            return self.spare_events.popleft()
        except IndexError:
            return self.driver.create_event(self.id, timing=False)

    def take_timeline(self, priority: StreamPriority = "normal") -> Timeline:
        """Returns a timeline of a priority: the timeline of a dropped stream that has run all its work, or a new
        one."""
        for _ in range(len(self.spare_timelines)):
            try:
                timeline = self.spare_timelines.popleft()
            except IndexError:
                break
            if timeline.priority == priority and timeline.seen_dry():
                return timeline
            self.spare_timelines.append(timeline)
        timeline = Timeline(self, priority=priority)
        self._timelines.append(timeline)
        return timeline

    def foreign_timeline(self, address: int) -> Timeline:
        """Returns a timeline for a stream that another library made, by the stream's number. The timeline's history
        begins now.

        Each call makes a new timeline, as a number may belong to another stream later.
        """
        return Timeline(self, provided(self.driver.sharing, "sharing").foreign_stream(self.id, address))

    @property
    def timelines(self) -> list[Timeline]:
        """Returns the timelines of all streams made so far, as a copy of the list."""
        return list(self._timelines)

    def raise_lost(self, error: DeviceLostError) -> NoReturn:
        """Raises ``error`` and records it as the loss of this device. If the device was lost before, raises a new error
        with the cause of the first error."""
        if self.lost is None:
            self.lost = error
            raise error
        first = self.lost
        cause = first.__cause__ or first
        raise DeviceLostError(f"{self.label} was lost: {first}") from cause

    def raise_if_lost(self) -> None:
        """Raises ``DeviceLostError`` if this device was lost."""
        if self.lost is not None:
            self.raise_lost(self.lost)

    def close(self) -> None:
        """Destroys streams and events. Called only when the runtime ends."""
        while self._timelines:
            with contextlib.suppress(DeviceLostError):
                self._timelines.pop().destroy()
        while self.spare_events:
            with contextlib.suppress(DeviceLostError):
                self.driver.destroy_event(self.spare_events.popleft())


@final
class Counter:
    """A counter to which any thread and any finaliser may add without losing a count: ``add`` is one call of a C
    iterator."""

    __slots__ = ("_count", "add")

    def __init__(self) -> None:
        self._count = count()
        self.add = self._count.__next__

    @property
    def value(self) -> int:
        """Returns the number of calls of ``add``."""
        # The iterator's ``repr`` is the only way to read it without advancing it.
        return int(repr(self._count)[len("count(") : -1])


@final
class Counters:
    """The counters of one runtime, for ``statistics()``."""

    __slots__ = ("cancelled", "completed", "waits_avoided", "waits_inserted")

    def __init__(self) -> None:
        self.completed = Counter()
        self.cancelled = Counter()
        self.waits_inserted = Counter()
        self.waits_avoided = Counter()


@runtime_checkable
class SchedulingPolicy(Protocol):
    """A policy that picks streams. It is called once for each operation that is run, from any thread."""

    def next_stream(self, device: Device) -> Stream:
        """Returns the stream of ``device`` for the next operation. A stream of another device is refused, unless the
        policy was given to ``op.schedule``: the operation then runs on the stream's device."""


@final
class Runtime:
    """The state of one installed driver. ``configure`` may be called again at any time."""

    default_policy: ClassVar[type[SchedulingPolicy]]
    """Makes the policy if none is given. ``scheduling.py``, which has oxide's policies, sets it."""
    default_device: Device
    devices: tuple[Device, ...]
    policy: SchedulingPolicy
    completion: CompletionMode
    ordering: OrderingMode

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        # held while the uses of buffers are read, work is submitted and the new uses are recorded
        self.submission = RUNTIME_LOCK
        self.loading = new_lock()
        self.shared_ranges = AddressRanges()
        self.forked = False  # True in a child that was forked after the runtime was set up
        self.counters = Counters()
        self.reclaimer = Reclaimer(driver)
        self.pinned = PinnedPool(driver)
        self.fault_records = FaultRecordPool(driver)
        self.fault_pages = FaultPages(driver)
        self._found = tuple(Device(self, number) for number in range(driver.device_count()))
        _in_this_process.set(self, None)

    def configure(
        self,
        default_device: int,
        num_devices: int | None,
        policy: SchedulingPolicy | None,
        completion: CompletionMode | None,
        ordering: OrderingMode | None = None,
    ) -> None:
        """Applies the arguments of ``init_device_contexts``. If one of them is wrong, raises and changes nothing."""
        found = len(self._found)
        count = found if num_devices is None else num_devices
        kind = self.driver.name
        hint = "; OXIDE_CPU_DEVICES sets their number" if kind == "cpu" else ""
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= found:
            allowed = "1" if found == 1 else f"an int from 1 to {found}"
            raise DeviceError(
                f"num_devices, how many devices to set up, is {written(count)}; it must be {allowed}, as there "
                f"{_are(found)} {kind} device{_s(found)}{hint}"
            )
        if isinstance(default_device, bool) or not isinstance(default_device, int) or not 0 <= default_device < found:
            allowed = "0" if found == 1 else f"an int from 0 to {found - 1}"
            raise DeviceError(
                f"default_device, the number of the device that operations run on, is {written(default_device)}; it "
                f"must be {allowed}, as there {_are(found)} {kind} device{_s(found)}, numbered from 0{hint}"
            )
        if isinstance(policy, type):
            raise TypeError(f"policy is the class {policy.__name__}; give an object of it, as in {policy.__name__}(…)")
        if policy is not None and not isinstance(policy, SchedulingPolicy):
            raise TypeError(
                f"policy is {type(policy).__name__} {written(policy):.80}; it must have a method next_stream(device), "
                "as StreamPoolRoundRobin(4) and SingleStream() have"
            )
        if getattr(policy, "asks_the_runtime", False):
            raise TypeError(
                f"policy is {policy!r}, which takes its streams from the runtime's policy and cannot be that itself; "
                "default_device is the device that operations run on, and policy_of is for op.schedule"
            )
        mode: CompletionMode = _mode(completion, "completion", _COMPLETION_MODES)
        order: OrderingMode = _mode(ordering, "ordering", _ORDERING_MODES)
        # A default device past num_devices widens the list, so that the user's device numbers stay valid.
        self.devices = self._found[: max(count, default_device + 1)]
        self.default_device = self.devices[default_device]
        self.policy = policy if policy is not None else self.default_policy()
        self.completion = mode
        self.ordering = order

    def device(self, number: int) -> Device:
        """Returns the device with a number. Raises ``DeviceError`` if there is no such device."""
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self.devices):
            raise DeviceError(
                f"there is no device {written(number)}; init_device_contexts set up 0 to {len(self.devices) - 1}"
            )
        return self.devices[number]

    def stand_in(self, driver: Driver) -> None:
        """Makes ``driver`` the driver of everything submitted from now on. ``driver`` is a wrapper of the present
        driver, with the same handles, or the driver that the present one wraps. Submissions that other threads have
        begun go to the driver they began with."""
        self.driver = driver
        self.reclaimer._driver = driver
        for device in self._found:
            device.driver = driver
        for device in self._found:  # afterwards: a timeline takes its driver from the device
            for timeline in device.timelines:
                timeline.driver = driver

    def settle(self) -> None:
        """Waits for pending work and frees the cached memory. Does nothing in a forked child, which owns neither the
        work nor the memory."""
        if self.forked:
            return
        for device in self._found:
            for loose in device.loose.copy():
                loose.wait()
        if self.reclaimer.awaited():
            gc.collect()  # an exception's traceback, such as an interrupt's, may hold work that no task awaits any more
        self.reclaimer.drain()
        staging = [device.staging.trim for device in self._found]
        trims = [self.pinned.trim, *staging, self.fault_records.trim, self.fault_pages.trim]
        for trim in trims:
            with contextlib.suppress(DeviceLostError):  # the memory is freed when the process ends
                trim()

    @property
    def is_in_force(self) -> bool:
        """Returns whether this is the current runtime."""
        return self is _current

    def cut_off(self, driver: Any) -> None:
        """Makes ``driver``, whose calls raise, the driver of this runtime in a forked child."""
        global _lock
        _lock = new_lock()
        atexit.unregister(self.driver.close)
        self.forked = True
        self.reclaimer._driver = driver
        self.reclaimer._turn = threading.Lock()
        for part in (self.pinned, self.fault_records, self.fault_pages):
            part._driver = driver
            part._lock._at_fork_reinit()
        for device in self._found:
            device.lost = forked_error()
            device.staging.renew_lock()
            for timeline in device._timelines:
                timeline.driver = driver
                timeline.lane = None
            device.driver = driver
        self.driver = driver

    def close(self) -> None:
        """Waits for pending work, then frees everything."""
        try:
            self.settle()
        finally:
            tracer = points.tracer
            if tracer is not None:
                tracer.detach(self)
            for device in self._found:
                device.close()


_lock = new_lock()
_current: Runtime | None = None
_installed = False


def init_device_contexts(
    default_device: int = 0,
    num_devices: int = 1,
    policy: SchedulingPolicy | None = None,
    *,
    completion: CompletionMode | None = None,
    ordering: OrderingMode | None = None,
) -> None:
    """Sets up ``num_devices`` devices (0, 1, …). Operations run on ``default_device``.

    ``policy`` picks the streams (``StreamPoolRoundRobin(4)`` by default). ``completion`` is how an awaited operation
    learns that the device is done: ``"adaptive"`` polls briefly, then sleeps until a host callback; ``"poll"`` only
    polls, and ``"callback"`` only sleeps (``OXIDE_COMPLETION`` sets the default). ``ordering`` is the rule for a box
    that a second stream uses: ``"wait"`` makes the second stream wait for the first, ``"strict"`` raises
    ``OrderingError`` (``OXIDE_ORDERING`` sets the default). The function may be called again; work submitted before
    still completes.

    ``OXIDE_DEVICE=cuda|cpu`` picks the kind of device. If it is unset, a CUDA device is used if there is one, else the
    CPU device. Raises ``DeviceError`` for a device that does not exist, ``TypeError`` for an object that is no policy,
    ``ValueError`` for an unknown mode. The name is cuda-async's.
    """
    _set_up(default_device, num_devices, policy, completion, ordering)


def _set_up(
    default_device: int,
    num_devices: int | None,
    policy: SchedulingPolicy | None = None,
    completion: CompletionMode | None = None,
    ordering: OrderingMode | None = None,
    *,
    first: bool = False,
) -> None:
    """Does what ``init_device_contexts`` does. With ``first``, does nothing if there is a runtime."""

    def set_up() -> None:
        global _current
        with unheld(_lock):
            if _current is not None:
                if _current.forked:
                    raise forked_error()
                if first:
                    return
            runtime = _current if _current is not None else Runtime(_choose_driver(default_device))
            runtime.configure(default_device, num_devices, policy, completion, ordering)
            if runtime is not _current:
                _trace(runtime)
            _current = runtime

    unforked(set_up)


def devices() -> tuple[Device, ...]:
    """Returns the devices that are set up, in the order of their numbers: all devices, unless ``init_device_contexts``
    limited them."""
    return current_runtime().devices


def current_runtime() -> Runtime:
    """Returns the current runtime. If there is none, sets up the default runtime. Raises ``DeviceLostError`` in a
    forked child."""
    runtime = _current
    if runtime is None:
        _set_up(0, None, first=True)  # all devices
        runtime = _current
        assert runtime is not None
    if runtime.forked:
        raise forked_error()
    return runtime


def install(
    driver: Driver,
    *,
    default_device: int = 0,
    num_devices: int | None = None,
    policy: SchedulingPolicy | None = None,
    completion: CompletionMode | None = None,
    ordering: OrderingMode | None = None,
) -> Runtime:
    """Makes a runtime with ``driver``, and makes it the current runtime until ``uninstall``. By default the runtime has
    all devices of the driver."""
    global _current
    runtime = Runtime(driver)
    runtime.configure(default_device, num_devices, policy, completion, ordering)
    _trace(runtime)
    with unheld(_lock):
        _previous.append(_current)
        _current = runtime
    return runtime


def uninstall() -> None:
    """Closes the runtime that ``install`` made, and makes the runtime before it the current one again."""
    global _current
    with unheld(_lock):
        if not _previous:
            raise RuntimeError("uninstall() without install()")
        runtime, _current = _current, _previous.pop()
    if runtime is not None:
        runtime.close()


def runtimes() -> list[Runtime]:
    """Returns the runtimes that are set up: the current one, and those that ``install`` has replaced for a time. Leaves
    out runtimes that a fork cut off."""
    with unheld(_lock):
        return [runtime for runtime in (*_previous, _current) if runtime is not None and not runtime.forked]


def _trace(runtime: Runtime) -> None:
    tracer = points.tracer
    if tracer is not None:
        tracer.attach(runtime)


def _settle() -> None:
    if _current is not None:
        _current.settle()


reclaim.settle.append(_settle)
_previous: list[Runtime | None] = []


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _mode(asked: str | None, what: str, modes: tuple[str, ...]) -> Any:
    """Returns the requested mode, else the mode that the environment variable names, else the first of ``modes``.
    Raises ``ValueError`` for an unknown mode."""
    mode = word(f"OXIDE_{what.upper()}", modes) or modes[0] if asked is None else asked
    if mode not in modes:
        raise ValueError(f"{what} is {mode!r}; it must be one of {', '.join(modes)}")
    return mode


def _choose_driver(device: int) -> Driver:
    asked = os.environ.get("OXIDE_DEVICE", "")
    if asked not in ("", "cuda", "cpu"):
        raise DeviceError(f"OXIDE_DEVICE is {asked!r}; it must be cuda or cpu, or unset")
    if asked != "cpu":
        from oxide.driver.cuda.probe import start_early, unavailable_reason

        if type(device) is int and device >= 0:  # configure() raises the error for any other value
            start_early(device)
        reason = unavailable_reason()
        if reason is None:
            from oxide.driver.cuda.driver import CudaDriver
            from oxide.driver.tools import with_ranges

            return with_ranges(CudaDriver())
        if asked == "cuda":
            raise DeviceError(f"OXIDE_DEVICE=cuda, but there is no CUDA device: {reason}")
        print(
            f"oxide: no CUDA device ({reason}); using the CPU device. OXIDE_DEVICE=cpu silences this.", file=sys.stderr
        )
    from oxide.driver.cpu import CpuDriver

    return CpuDriver()


@final
class ForkedDriver:
    """The driver in a forked child: every call raises ``DeviceLostError``."""

    runs = sanitizer = None

    def __init__(self, name: str) -> None:
        self.name = name

    def stream_address(self, stream: object) -> int:
        """Returns 0. Only messages call it."""
        return 0

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        if method in CAPABILITIES:
            return self

        def refuse(*arguments: object, **keywords: object) -> NoReturn:
            raise forked_error()

        return refuse


_in_this_process: WeakTable[Runtime, None] = WeakTable()
"""All runtimes, which a forked child cuts off from their drivers."""


def _cut_off() -> None:
    Alarm._spare.clear()  # the descriptors are shared with the parent
    for runtime in _in_this_process.objects():
        runtime.cut_off(ForkedDriver(runtime.driver.name))


os.register_at_fork(after_in_child=_cut_off)
