"""Drivers for tests, one that records every call and one that fails on demand, and a context that installs a driver.

``RecordingDriver`` and ``FailingDriver`` wrap any driver and each other, and otherwise change nothing about a call.
With ``step_driver`` nothing runs until the test requests it. So a test can examine any moment of an operation's life,
without a sleep::

    driver = RecordingDriver(step_driver())
    with use_driver(driver):
        future = h2d(x).and_then(d2h).into_future()
        assert driver.submissions == []

``import oxide`` does not import this module.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast, final

from oxide.driver.base import CAPABILITIES, Driver, Droppable, StreamHandle, StreamPriority, Wrapper
from oxide.driver.cpu import CpuDriver
from oxide.host.messages import written
from oxide.runtime.devices.runtime import CompletionMode, OrderingMode, SchedulingPolicy, install, uninstall

_D = TypeVar("_D", bound=Driver)

SUBMISSIONS = frozenset(
    {
        "allocate",
        "free",
        "copy_to_device",
        "copy_to_host",
        "copy_on_device",
        "copy_peer",
        "fill",
        "report",
        "launch",
        "launch_graph",
        "record_event",
        "wait_event",
        "call",
        "launch_host_function",
        "launch_native_host_function",
    }
)
"""The methods that submit work to a stream."""


@contextmanager
def use_driver(
    driver: _D,
    *,
    policy: SchedulingPolicy | None = None,
    default_device: int = 0,
    num_devices: int | None = None,
    completion: CompletionMode | None = None,
    ordering: OrderingMode | None = None,
) -> Iterator[_D]:
    """Makes ``driver`` the runtime's driver inside the ``with``. Afterwards the previous runtime is the current one
    again.

    ``num_devices`` is the number of the driver's devices that the runtime uses, by default all. The other arguments are
    those of ``init_device_contexts``. The end of the ``with`` waits for the work and leaves the driver open. Raises
    ``DeviceError`` for a device that the driver does not have, ``TypeError`` if ``driver`` is not a driver.
    """
    _require_driver(driver, "use_driver")
    install(
        driver,
        default_device=default_device,
        num_devices=num_devices,
        policy=policy,
        completion=completion,
        ordering=ordering,
    )
    try:
        yield driver
    finally:
        uninstall()


def step_driver(devices: int = 1, *, seed: int | None = None) -> CpuDriver:
    """Returns a CPU driver on which nothing runs until ``step()``, ``run_until_idle()`` or a blocking call.

    ``seed`` selects the stream that advances at each step, and the order of a kernel's blocks and of their threads.
    Without a seed, work runs in the order of its submission, work of high-priority streams before all other work, and
    blocks and threads run in order. With a seed, any stream may be selected, whatever its priority: on a real device
    too, work of a stream of normal priority may run first.
    """
    return CpuDriver(devices, step=True, seed=seed)


def seeded_driver(seed: int, devices: int = 1) -> CpuDriver:
    """Returns a CPU driver whose schedule follows from ``seed``, as with ``OXIDE_SEED``: the order in which streams
    make progress, blocks run, and warps and threads run between barriers. Work runs inside the calls that wait for it.

    Raises ``TypeError`` or ``ValueError`` for a seed that is not a whole number of 0 or more."""
    return CpuDriver(devices, seed=seed)


def failing_seed(
    program: Callable[[], object], *, tries: int = 100, first: int = 0, devices: int = 1
) -> tuple[int, Exception] | None:
    """Runs ``program`` under successive seeds. Returns the first seed under which it raises, and the exception; None if
    it raises under none of ``tries`` seeds.

    ``program`` checks its results itself, with ``assert`` for example. Each run has new CPU devices, so ``program``
    must make its boxes itself, from data on the host. It fails again with ``OXIDE_DEVICE=cpu`` and the returned seed in
    ``OXIDE_SEED``, or on ``seeded_driver(seed, devices)``.
    """
    for seed in range(first, first + tries):
        driver = seeded_driver(seed, devices)
        try:
            with use_driver(driver):
                program()
        except Exception as error:
            error.add_note(f"found with seed {seed}: OXIDE_DEVICE=cpu OXIDE_SEED={seed} runs the same schedule again")
            return seed, error
        finally:
            driver.close()
    return None


@dataclass(slots=True)
class Call:
    """A call of a driver's method: its arguments, keyword arguments last, and its result or exception."""

    method: str
    arguments: tuple[Any, ...]
    result: Any = None
    exception: BaseException | None = None


class DelegatingDriver(Wrapper):
    """A base class that passes every call of the protocol and its capabilities on to ``inner`` through ``invoke``,
    which subclasses override.

    Attributes outside the protocol, such as ``step`` of a stepping driver, are those of ``inner``.
    """

    def __init__(self, inner: Driver) -> None:
        _require_driver(inner, type(self).__name__)
        super().__init__(inner)

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Makes one call of ``inner``."""
        return getattr(self.inner, method)(*arguments, **keywords)

    def for_run(self, run: Droppable) -> Driver:
        return _as_run_uses_it(self, self.inner.for_run(run))

    def create_stream(self, device: int, priority: StreamPriority = "normal") -> StreamHandle:
        return self.invoke("create_stream", device, priority)


def _passed_on(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def pass_on(self: DelegatingDriver, *arguments: Any, **keywords: Any) -> Any:
        return self.invoke(name, *arguments, **keywords)

    return functools.update_wrapper(pass_on, method)


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    name: method
    for protocol in (Driver, *CAPABILITIES.values())
    for name, method in vars(protocol).items()
    if callable(method) and not name.startswith("_")
}

for _name in _METHODS.keys() - vars(DelegatingDriver).keys():
    setattr(DelegatingDriver, _name, _passed_on(_name, _METHODS[_name]))


def _as_run_uses_it(driver: DelegatingDriver, inner: Driver) -> Driver:
    """Returns a driver that shares ``driver``'s state and methods, but wraps ``inner``."""
    kind: Any = type(driver)
    view: Any = object.__new__(_view_of(kind))
    view.__dict__ = driver.__dict__
    view.inner_of_run = inner
    return cast("Driver", view)


@functools.cache
def _view_of(kind: Any) -> Any:
    members = {"__slots__": ("inner_of_run",), "inner": property(lambda view: view.inner_of_run)}
    return type(kind.__name__, (kind,), members)


@final
class RecordingDriver(DelegatingDriver):
    """A driver that records every call of the protocol in ``calls``, in the order in which the calls began.
    Thread-safe."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self._lock = threading.RLock()
        self._calls: list[Call] = []
        self._balance = Counter[str]()

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        call = Call(method, (*arguments, *keywords.values()))
        with self._lock:
            self._calls.append(call)
        try:
            call.result = super().invoke(method, *arguments, **keywords)
        except BaseException as error:
            call.exception = error
            raise
        if method in _BALANCE:
            resource, change = _BALANCE[method]
            with self._lock:
                self._balance[resource] += change
        return call.result

    @property
    def calls(self) -> list[Call]:
        """Returns a copy of the list of calls so far."""
        with self._lock:
            return list(self._calls)

    @property
    def submissions(self) -> list[Call]:
        """Returns the calls that submit work to a stream."""
        return [call for call in self.calls if call.method in SUBMISSIONS]

    def count(self, *methods: str) -> int:
        """Returns the number of calls of these methods. Raises ``ValueError`` for a name not in the protocol."""
        for method in methods:
            _check_method(method)
        return sum(call.method in methods for call in self.calls)

    def clear(self) -> None:
        """Forgets the calls, but not the counts of ``outstanding``."""
        with self._lock:
            self._calls.clear()

    def outstanding(self) -> dict[str, int]:
        """Returns the counts of resources created through this driver and not given back: ``streams``, ``events``,
        ``allocations``, ``host_allocations`` and ``graphs``. An allocation is given back when its free is submitted."""
        with self._lock:
            return {resource: self._balance[resource] for resource in dict.fromkeys(r for r, _ in _BALANCE.values())}


@final
class FailingDriver(DelegatingDriver):
    """A driver that raises an error given by the test instead of passing a call on to ``inner``. Thread-safe."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self._lock = threading.RLock()
        self._failures: list[_Failure] = []

    def fail(self, method: str, error: BaseException, *, at: int = 1) -> None:
        """Makes the ``at``-th call of a method from now raise ``error``. Raises ``ValueError`` if ``method`` is not in
        the protocol, or ``at`` is below 1."""
        _check_method(method)
        self._plan(_Failure(method, error, at))

    def fail_call(self, n: int, error: BaseException) -> None:
        """Makes the ``n``-th call from now, of any method, raise ``error``. Raises ``ValueError`` for ``n`` below 1."""
        self._plan(_Failure(None, error, n))

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        due: BaseException | None = None
        with self._lock:
            for failure in list(self._failures):
                if failure.method in (None, method):
                    failure.countdown -= 1
                    if failure.countdown == 0:
                        self._failures.remove(failure)
                        due = due or failure.error
        if due is not None:
            raise due
        return super().invoke(method, *arguments, **keywords)

    def forget(self) -> None:
        """Cancels the planned failures."""
        with self._lock:
            self._failures.clear()

    def _plan(self, failure: _Failure) -> None:
        if failure.countdown < 1:
            raise ValueError(f"a failure at call {failure.countdown}: calls are counted from 1, the next one")
        with self._lock:
            self._failures.append(failure)


@dataclass(slots=True)
class _Failure:
    """A planned failure: of the ``countdown``-th call of ``method`` from now, or of any method if ``method`` is
    None."""

    method: str | None
    error: BaseException
    countdown: int


_BALANCE = {
    "create_stream": ("streams", 1),
    "destroy_stream": ("streams", -1),
    "create_event": ("events", 1),
    "destroy_event": ("events", -1),
    "allocate": ("allocations", 1),
    "free": ("allocations", -1),
    "allocate_host": ("host_allocations", 1),
    "free_host": ("host_allocations", -1),
    "end_capture": ("graphs", 1),
    "destroy_graph": ("graphs", -1),
}


def _require_driver(driver: object, what: str) -> None:
    """Raises ``TypeError`` for an object that is not a driver at all. A driver without some method fails only when the
    method is called, as a test may intend."""
    if isinstance(driver, type):
        raise TypeError(f"{what} takes a driver, not the class {driver.__name__}; make one, as {driver.__name__}(…)")
    if not hasattr(driver, "device_count"):
        raise TypeError(
            f"{what} takes a driver, as step_driver() makes one, not {type(driver).__name__} {written(driver):.80}"
        )


def _check_method(method: str) -> None:
    if method not in _METHODS:
        raise ValueError(f"{method!r} is no method of the Driver protocol; it has {', '.join(sorted(_METHODS))}")
