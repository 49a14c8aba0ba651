"""CUDA's clocks: CUPTI's activity records if the package ``cupti-python`` is installed and works, else events.

CUPTI notes the times of every kernel, copy and fill on the device itself, kernels of graphs included. A record names
the driver call that submitted its work, and CUPTI connects this call with a number that the caller pushed before the
call (an *external correlation id*). So each token is such a number. Driver calls that submit no work are not recorded:
otherwise each query of an event would leave a record.

A process has one CUPTI with one set of callbacks, which are registered once. CUPTI calls them from a thread of its own,
when a buffer is full or flushed.
"""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from oxide.driver.base import Clock, Span, StreamHandle
from oxide.driver.event_clock import EventClock
from oxide.errors import DeviceError
from oxide.host.locks import new_lock, unheld

if TYPE_CHECKING:
    from oxide.driver.base import Driver

VARIABLE = "OXIDE_TRACE_CLOCK"
"""The environment variable that picks the clock: ``events`` or ``cupti``. Without it, CUPTI is used if it works."""

_BUFFER_BYTES = 8 << 20
_WORK = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET")
_ACTIVITIES = (*_WORK, "DRIVER", "EXTERNAL_CORRELATION")
_CALLS = {
    "cuLaunchKernel": 307,
    "cuLaunchKernelEx": 652,
    "cuLaunchCooperativeKernel": 477,
    "cuMemcpyHtoDAsync_v2": 277,
    "cuMemcpyDtoHAsync_v2": 279,
    "cuMemcpyAsync": 306,
    "cuMemcpyPeerAsync": 319,
    "cuMemsetD8Async": 216,
    "cuMemsetD16Async": 218,
    "cuMemsetD32Async": 220,
    "cuGraphLaunch": 514,
}
"""The driver calls with which ``CudaDriver`` submits work that takes time, with their numbers in CUPTI's header
``cupti_driver_cbid.h``. The numbers are given here because they never change, and because some releases of
``cupti-python`` have no names for them."""
_NUMBERS_OF_CALLS = 1024
"""A bound that is above the numbers of all driver calls."""


def new_clock(driver: Driver, ended: Callable[[], None], devices: Iterable[int] = ()) -> Clock:
    """Returns the clock that ``OXIDE_TRACE_CLOCK`` names, by default CUPTI's if that works, else one by events.
    ``devices`` are the devices in use. Raises ``DeviceError`` for another name, or if the variable is ``cupti`` and
    CUPTI does not work."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "events", "cupti"):
        raise DeviceError(f"{VARIABLE} is {asked!r}; it must be events or cupti, or unset")
    if asked != "events":
        try:
            return CuptiClock(importlib.import_module("cupti.cupti"), ended)
        except Exception as error:  # ImportError, or an error of CUPTI's: another profiler has it, or no permission
            if asked == "cupti":
                raise DeviceError(
                    f"{VARIABLE}=cupti, but CUPTI does not work here ({type(error).__name__}: {error}); install "
                    f"oxide-gpu[cupti], end other profilers, or use events"
                ) from error
    return EventClock(driver, _device_of, ended, devices)


def _device_of(stream: StreamHandle) -> int:
    device: int = stream.device
    return device


_Record = tuple[int, int, int, int, str]
"""A record of CUPTI: its activity kind and its correlation id. Then follow, for an external correlation, the external
kind, the external id and "", and for work, its begin, end and name."""


@final
class CuptiClock:
    """The ``Clock`` by CUPTI's activity records. ``cupti`` is the module ``cupti.cupti``."""

    source = "CUPTI"

    def __init__(self, cupti: Any, ended: Callable[[], None]) -> None:
        self._cupti = cupti
        self._ended = ended
        self._external_kind = int(cupti.ExternalCorrelationKind.CUSTOM0)
        self._numbers = itertools.count(1)
        self._lock = new_lock()
        self._received: deque[_Record] = deque()  # from CUPTI's thread
        self._tokens: dict[int, int] = {}  # by correlation id
        self._correlations: dict[int, int] = {}  # by token
        self._spans: dict[int, list[Span]] = {}  # by token
        # Work whose token is not known yet, by correlation id. Work that has no token at the second flush belongs to
        # other libraries.
        self._early: dict[int, list[Span]] = {}
        self._earlier: dict[int, list[Span]] = {}
        self._offset = 0
        self._correlation_kind = int(cupti.ActivityKind.EXTERNAL_CORRELATION)
        self._kinds_of_work = {int(getattr(cupti.ActivityKind, name)) for name in _WORK}
        self._receive = self._take_over
        try:
            _register(cupti)
            for name in _ACTIVITIES:
                cupti.activity_enable(int(getattr(cupti.ActivityKind, name)))
            for call in range(1, _NUMBERS_OF_CALLS):
                if call not in _CALLS.values():
                    with suppress(Exception):  # some numbers belong to no call in this version of CUPTI
                        cupti.activity_enable_driver_api(call, 0)
        except BaseException:
            self._disable()
            raise
        _receivers.append(self._receive)

    def begin(self, stream: StreamHandle) -> int:
        """Pushes a number for the next driver call of this thread. Returns the number."""
        token = next(self._numbers)
        self._cupti.activity_push_external_correlation_id(self._external_kind, token)
        return token

    def end(self, token: int, stream: StreamHandle) -> None:
        """Pops the number."""
        self._cupti.activity_pop_external_correlation_id(self._external_kind)

    def collect(self, *, final: bool) -> None:
        """Flushes CUPTI's buffers and assigns the records to tokens. Unless ``final``, CUPTI keeps buffers that have
        records of running work."""
        with unheld(self._lock):
            # CUPTI's clock is not Python's. Both are read now, so that a drift does not add up.
            earliest = time.perf_counter_ns()
            theirs = int(self._cupti.get_timestamp())
            self._offset = (earliest + time.perf_counter_ns()) // 2 - theirs
            self._cupti.activity_flush_all(1 if final else 0)
            while self._received:
                self._sort(self._received.popleft())
            self._earlier, self._early = self._early, {}

    def spans(self, token: int) -> list[Span] | None:
        """Returns the work of the token's driver call, in order; None if no record of it has come."""
        with unheld(self._lock):
            found = self._spans.get(token)
            if found is not None:
                self._drop(token)
        return None if found is None else sorted(found, key=_begun)

    def forget(self, token: int) -> None:
        """Drops the token and its records."""
        with unheld(self._lock):
            self._drop(token)

    def close(self) -> None:
        """Makes CUPTI record no more activities."""
        with suppress(ValueError):
            _receivers.remove(self._receive)
        self._disable()
        self._ended()

    def _disable(self) -> None:
        cupti = self._cupti
        for name in _ACTIVITIES:
            with suppress(Exception):
                cupti.activity_disable(int(getattr(cupti.ActivityKind, name)))

    def _drop(self, token: int) -> None:
        self._spans.pop(token, None)
        self._tokens.pop(self._correlations.pop(token, 0), None)

    def _take_over(self, records: Any) -> None:
        """Copies the data out of a buffer's records, as CUPTI reuses the buffer. Runs on a thread of CUPTI."""
        for record in records:
            kind = int(record.kind)
            if kind == self._correlation_kind:
                what = (int(record.external_kind), int(record.external_id), "")
            elif kind in self._kinds_of_work:
                name = getattr(record, "name", None)
                what = (int(record.start), int(record.end), name if isinstance(name, str) else "")
            else:
                continue
            self._received.append((kind, int(record.correlation_id), *what))

    def _sort(self, record: _Record) -> None:
        kind, correlation, first, second, name = record
        if kind == self._correlation_kind:
            if first == self._external_kind:
                self._tokens[correlation] = second
                self._correlations[second] = correlation
                for early in (self._earlier, self._early):
                    if correlation in early:
                        self._spans.setdefault(second, []).extend(early.pop(correlation))
        elif second:  # an end of 0: the record was forced out of the buffer while the work ran
            span = Span(first + self._offset, second + self._offset, name)
            token = self._tokens.get(correlation)
            if token is None:
                self._early.setdefault(correlation, []).append(span)
            else:
                self._spans.setdefault(token, []).append(span)


def _begun(span: Span) -> int:
    return span.begun


_receivers: list[Callable[[Any], object]] = []
_registered: list[Any] = []  # the modules of CUPTI that have our callbacks


def _register(cupti: Any) -> None:
    """Registers the callbacks, once in the process: CUPTI cannot unregister them."""
    if not any(each is cupti for each in _registered):
        cupti.activity_register_callbacks(_buffer, _completed)
        _registered.append(cupti)


def _buffer() -> tuple[int, int]:
    """Returns the size of a buffer in bytes, and the most records that it may hold (0: as many as fit)."""
    return _BUFFER_BYTES, 0


def _completed(records: Any) -> None:
    for receive in _receivers:
        receive(records)
