"""numba.cuda's streams and events, made of oxide's streams and events, on the calling thread's current device.

Work on one stream runs in order, and oxide orders uses of one array on different streams. So data needs no implicit
synchronisation of the default stream. Only events and ``synchronize`` show the order of unrelated work. On the default
stream, they also cover the earlier work of all other streams, as on CUDA's legacy default stream.

In CUDA an error of a kernel is an error of its context, which every later call reports. So every wait of this module
raises the errors of the kernels that have run by then, on whatever stream, dropped or not.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import oxide
from oxide.errors import DeviceError
from oxide.host.locks import new_lock


class CudaDriverError(DeviceError):
    """An error of the CUDA driver, named as in numba.cuda. oxide raises only its subclass ``CudaAPIError``."""


class CudaAPIError(CudaDriverError):
    """An error with one of the CUDA driver's error codes, named as in numba.cuda."""

    def __init__(self, code: int, msg: str) -> None:
        self.code = code
        self.msg = msg
        super().__init__(f"[{code}] {msg}")


state = threading.local()


def current() -> oxide.Device:
    """Returns the calling thread's current device."""
    listed = oxide.devices()
    number: int = getattr(state, "number", 0)
    return listed[number] if number < len(listed) else listed[0]


class Stream:
    """A stream of numba.cuda."""

    def __init__(self, stream: oxide.Stream, *, default: bool = False) -> None:
        self.oxide_stream = stream
        """The ``oxide.Stream`` to which the work is submitted."""
        self.is_default = default
        if not default:
            with _changing:
                known = _others.get(stream)
                if known is None or known() is None:
                    _others[stream] = weakref.ref(self)

    @property
    def handle(self) -> int:
        """Returns the stream's handle as a number; on a GPU, its ``CUstream``."""
        return self.oxide_stream.handle

    @property
    def external(self) -> bool:
        """Returns False: ``external_stream`` refuses other libraries' streams."""
        return False

    def synchronize(self) -> None:
        """Blocks the thread until the stream's work has run. Raises the first error of the kernels that have run, on
        any stream of the device."""
        if self.is_default:
            synchronize()
        else:
            self.oxide_stream.synchronize()
            raise_errors(self.oxide_stream.device)

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Returns a context manager that synchronises the stream at its end."""
        yield self
        self.synchronize()

    def add_callback(self, callback: Callable[[Stream, int, Any], None], arg: Any = None) -> None:
        """Calls ``callback(stream, status, arg)`` on a driver thread when the work submitted so far has run."""
        self.oxide_stream.launch_host_function(lambda: callback(self, 0, arg))

    def async_done(self) -> Any:
        """Returns a future of the running asyncio loop that is done when the work submitted so far has run. Its result
        is the stream; if a kernel failed, its exception is the kernel's error."""
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def done() -> None:
            if future.done():
                return
            try:
                raise_errors(self.oxide_stream.device)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(self)

        def wake() -> None:
            loop.call_soon_threadsafe(done)

        self.oxide_stream.launch_host_function(wake)
        return future

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)

    def __int__(self) -> int:
        return 0 if self.is_default else self.handle

    def __bool__(self) -> bool:
        return not self.is_default

    def __repr__(self) -> str:
        return f"<numba_cuda default stream of {self.oxide_stream.device.label}>" if self.is_default else repr(
            self.oxide_stream
        )  # fmt: skip


_changing = new_lock()  # reentrant: a finaliser may make a stream while it is held
_others: dict[oxide.Stream, weakref.ref[Stream]] = {}
"""The streams that are no default streams. A stream is in this table as long as its ``Stream`` is referenced, and then
until its work has run and the errors were raised."""
_defaults: dict[oxide.Device, Stream] = {}  # of one runtime's devices


def stream() -> Stream:
    """Returns a new stream of the current device."""
    return Stream(current().new_stream())


def default_stream() -> Stream:
    """Returns the default stream of the current device."""
    return _default_of(current())


def _default_of(device: oxide.Device) -> Stream:
    found = _defaults.get(device)
    if found is None:
        if any(other.runtime is not device.runtime for other in _defaults):
            _defaults.clear()  # so that no ended runtime is kept
        found = _defaults[device] = Stream(device.new_stream(), default=True)
    return found


def external_stream(ptr: int) -> Stream:
    """Returns the stream with a given handle: the default stream for 0 to 2, or a stream that ``stream()`` made. Raises
    ``NotImplementedError`` for any other handle: oxide submits only to its own streams."""
    if ptr in (0, 1, 2):
        return default_stream()
    for reference in list(_others.values()):
        found = reference()
        if found is not None and found.oxide_stream.device.kind == "cuda" and found.handle == ptr:
            return found
    raise NotImplementedError(
        f"external_stream({ptr:#x}): oxide's launches run on streams of its own; make one with cuda.stream(), and give "
        "its .handle to the other library"
    )


def resolved(given: Any) -> Stream:
    """Returns the stream that an argument stands for: the default stream for None and 0 to 2. Raises ``TypeError`` for
    an object that is no stream."""
    if type(given) is Stream:
        return given
    if given is None or (isinstance(given, int) and given in (0, 1, 2)):
        return default_stream()
    if isinstance(given, oxide.Stream):
        return Stream(given)
    raise TypeError(f"a stream is 0, None or one that cuda.stream() made, not {type(given).__name__}")


def synchronize() -> None:
    """Blocks the thread until the current device has done the work on all streams. Raises the first error of the
    kernels, and then does not wait for the remaining streams."""
    for each in _streams_of(current()):
        each.synchronize()


def run(operation: oxide.DeviceOperation[Any], stream: oxide.Stream) -> Any:
    """Runs an operation on a stream, waits, and returns its result. Raises the first error of the kernels that have
    run, on any stream of the device."""
    found = operation.sync_on(stream)
    raise_errors(stream.device)
    return found


def raise_errors(device: oxide.Device) -> None:
    """Raises the first error of the kernels that the device is past, on any stream. Waits for nothing."""
    for each in _streams_of(device):
        each._raise_finished()


def _streams_of(device: oxide.Device) -> list[oxide.Stream]:
    """Returns the device's streams, the default stream first. Forgets the dropped ones that have nothing left."""
    found = [_default_of(device).oxide_stream]
    for each, reference in list(_others.items()):
        if each.device is device:
            found.append(each)
        if reference() is None and (each.device.runtime is not device.runtime or each._loose.is_empty()):
            with _changing:
                if _others.get(each) is reference:
                    del _others[each]
    return found


class Event:
    """An event of numba.cuda. Each ``record`` replaces the recorded point."""

    def __init__(self, *, timing: bool = True) -> None:
        self._timing = timing
        self._recorded: oxide.Event | None = None

    def record(self, stream: Any = 0) -> None:
        """Records the work submitted to the stream so far. On the default stream, also records the work submitted to
        all other streams of the device."""
        found = resolved(stream)
        target = found.oxide_stream
        if found.is_default:
            for other in _streams_of(target.device)[1:]:
                target.join(other)
        self._recorded, self._device = target.record_event(), target.device

    def query(self) -> bool:
        """Returns whether the device has passed the recorded point. An event that was not recorded counts as passed."""
        return self._recorded is None or self._recorded.query()

    def synchronize(self) -> None:
        """Blocks the thread until the device has passed the recorded point. Raises the first error of the kernels that
        have run, on any stream of the device."""
        if self._recorded is not None:
            self._recorded.synchronize()
            raise_errors(self._device)

    def wait(self, stream: Any = 0) -> None:
        """Makes later work of the stream wait until the device has passed the recorded point."""
        if self._recorded is not None:
            resolved(stream).oxide_stream.wait(self._recorded)

    def elapsed_time(self, evtend: Event) -> float:
        """Returns the milliseconds from this event to ``evtend``. Raises ``CudaAPIError`` unless both were recorded
        with timing."""
        if not (self._timing and evtend._timing) or self._recorded is None or evtend._recorded is None:
            raise CudaAPIError(400, "elapsed_time: both events must have been recorded, with timing=True")
        return self._recorded.elapsed_ms(evtend._recorded)


def event(timing: bool = True) -> Event:
    """Returns a new event."""
    current()
    return Event(timing=timing)


def event_elapsed_time(evtstart: Event, evtend: Event) -> float:
    """Returns the milliseconds between two events. See ``Event.elapsed_time``."""
    return evtstart.elapsed_time(evtend)
