"""The requests that wait for a batch, ordered by priority, then by arrival. A batch that is taken from the queue is
bounded in the number of its requests and in the sum of their costs.

This module uses neither an event loop nor a device. The batcher calls it from one thread, and tests call it directly.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, final

if TYPE_CHECKING:
    from types import TracebackType

    from oxide.runtime.loop.event_loops import Sleeper
    from oxide.serving.batcher import Batch

Request = TypeVar("Request")
Result = TypeVar("Result")
Item = TypeVar("Item", covariant=True)


class Results(Protocol[Item]):
    """The results of a batch, by the index of the request in the batch: a list, a tuple or an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Item: ...


@final
class State(enum.Enum):
    """The state of a request. ``DONE`` and ``LEFT`` are final, except that ``DONE`` becomes ``LEFT`` if the caller is
    cancelled before it takes the outcome."""

    QUEUED = "queued"  # in the queue, in no batch
    RUNNING = "running"  # in a batch that has begun
    DONE = "done"  # it has its result or its error
    LEFT = "left"  # its caller was cancelled


@final
class Pending(Generic[Request, Result]):
    """A request whose caller waits. When the request is done, also holds the result or the error."""

    __slots__ = ("_error", "_result", "_trace", "arrived", "batch", "cost", "priority", "sleeper", "state", "value")

    def __init__(self, value: Request, cost: float, priority: int, arrived: float, sleeper: Sleeper) -> None:
        self.value = value
        self.cost = cost
        self.priority = priority
        self.arrived = arrived
        self.sleeper = sleeper
        self.state = State.QUEUED
        self.batch: Batch[Any, Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None  # the error's, as first raised: each task that raises it adds frames

    def answer(self, result: Result) -> None:
        """Gives the request its result and wakes its caller."""
        self._result = result
        self._finish()

    def fail(self, error: BaseException) -> None:
        """Gives the request its error and wakes its caller."""
        self._error, self._trace = error, error.__traceback__
        self._finish()

    def _finish(self) -> None:
        assert self.state in (State.QUEUED, State.RUNNING), self.state
        if self.batch is not None:
            self.batch.forget(self)
        self.state = State.DONE
        self.sleeper.wake()

    @property
    def has_failed(self) -> bool:
        """Returns whether the outcome is an error that was not raised to the caller yet."""
        return self._error is not None

    def outcome(self) -> Result:
        """Returns the result or raises the error. Call it once."""
        error, self._error = self._error, None
        if error is None:
            result: Result = self._result
            return result
        try:
            raise error.with_traceback(self._trace)
        finally:
            del error, self._trace  # the traceback holds this frame


@final
class RequestQueue(Generic[Request, Result]):
    """The queued requests. ``max_batch`` and ``max_cost`` bound what ``take`` returns."""

    def __init__(self, max_batch: int, max_cost: float) -> None:
        self._max_batch = max_batch
        self._max_cost = max_cost
        # An OrderedDict removes its first entry and any other in constant time. A dict does not: its iterator walks
        # over removed entries.
        self._levels: dict[int, OrderedDict[Pending[Request, Result], None]] = {}
        self._length = 0
        self._cost = 0.0

    def __len__(self) -> int:
        return self._length

    def add(self, pending: Pending[Request, Result]) -> None:
        """Adds a request behind the other requests of its priority."""
        self._levels.setdefault(pending.priority, OrderedDict())[pending] = None
        self._length += 1
        self._cost += pending.cost

    def remove(self, pending: Pending[Request, Result]) -> None:
        """Removes a request that is in the queue."""
        del self._levels[pending.priority][pending]
        self._removed(pending)

    @property
    def fills_a_batch(self) -> bool:
        """Returns whether the next batch is full: waiting for more requests would not make it larger."""
        return self._length >= self._max_batch or self._cost >= self._max_cost

    @property
    def oldest(self) -> float:
        """Returns the arrival time of the request that has waited longest. The queue must not be empty."""
        return min(next(iter(level)).arrived for level in self._levels.values())

    def take(self) -> list[Pending[Request, Result]]:
        """Removes and returns the requests of the next batch: the first requests of the queue, until the batch has
        ``max_batch`` requests or the next request would exceed ``max_cost``."""
        batch: list[Pending[Request, Result]] = []
        cost = 0.0
        while self._levels and len(batch) < self._max_batch:
            level = self._levels[max(self._levels)]
            first = next(iter(level))
            cost += first.cost
            if batch and cost > self._max_cost:
                break
            del level[first]
            self._removed(first)
            batch.append(first)
        return batch

    def _removed(self, pending: Pending[Request, Result]) -> None:
        if not self._levels[pending.priority]:
            del self._levels[pending.priority]
        self._length -= 1
        self._cost = self._cost - pending.cost if self._length else 0.0  # an empty queue clears rounding errors
