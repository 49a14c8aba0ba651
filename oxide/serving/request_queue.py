"""The requests that wait for a batch, ordered by priority and by the time that they have waited. A batch that is taken
from the queue has requests of one key, and is bounded in their number and in the sum of their costs.

This module uses neither an event loop nor a device. The batcher calls it from one thread, and tests call it directly.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from collections.abc import Container, Hashable
from contextvars import Context
from dataclasses import dataclass
from operator import attrgetter
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, final

from oxide.runtime.loop.event_loops import Sleeper

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
@dataclass(slots=True, eq=False)
class Pending(Generic[Request, Result]):
    """A request whose caller waits. When the request is done, also holds the result or the error."""

    value: Request
    key: Hashable
    cost: float
    priority: int
    arrived: float
    context: Context
    sleeper: Sleeper
    rank: tuple[float, float] = (0.0, 0.0)  # the least goes first: see ``RequestQueue``
    state: State = State.QUEUED
    batch: Any = None
    _result: Any = None
    _error: BaseException | None = None
    _trace: TracebackType | None = None  # the error's, as first raised: each task that raises it adds frames

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
    """The queued requests, in groups: the requests of a key. A batch is of one group. It may begin once it is full
    (``max_batch`` requests, or costs of ``max_cost``) or its oldest request has waited for ``max_wait``.

    A request counts as one priority more for each ``ageing`` seconds that it has waited. As this holds for every
    request, their order does not change while they wait, and is an order of fixed ranks.
    """

    def __init__(self, max_batch: int, max_cost: float, max_wait: float, ageing: float) -> None:
        self._max_batch = max_batch
        self._max_cost = max_cost
        self._max_wait = max_wait
        self._ageing = ageing
        self._groups: dict[Hashable, _Group[Request, Result]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, pending: Pending[Request, Result]) -> None:
        """Adds a request behind the other requests of its key and its priority."""
        if self._ageing == math.inf:
            pending.rank = (-pending.priority, pending.arrived)
        else:
            pending.rank = (pending.arrived - pending.priority * self._ageing, pending.arrived)
        group = self._groups.get(pending.key)
        if group is None:
            group = self._groups[pending.key] = _Group()
        group.add(pending)
        self._length += 1

    def remove(self, pending: Pending[Request, Result]) -> None:
        """Removes a request that is in the queue."""
        group = self._groups[pending.key]
        group.remove(pending)
        if not group.length:
            del self._groups[pending.key]
        self._length -= 1

    def take(self, now: float, held: Container[Hashable] = ()) -> list[Pending[Request, Result]]:
        """Removes and returns the requests of the next batch, or an empty list if no batch may begin at the time
        ``now``. Of several batches, the batch of the first request comes first. Keys in ``held`` get no batch."""
        best: Pending[Request, Result] | None = None
        for key, group in self._groups.items():
            if key not in held and (self._is_full(group) or group.oldest + self._max_wait <= now):
                first = group.first
                if best is None or first.rank < best.rank:
                    best = first
        batch: list[Pending[Request, Result]] = []
        if best is not None:
            group, cost = self._groups[best.key], 0.0
            while group.length and len(batch) < self._max_batch:
                first = group.first
                cost += first.cost
                if batch and cost > self._max_cost:
                    break
                self.remove(first)
                batch.append(first)
        return batch

    def next_due(self, now: float) -> float:
        """Returns the first time after ``now`` at which a group has waited for ``max_wait``; infinity if none will."""
        due = (group.oldest + self._max_wait for group in self._groups.values())
        return min((time for time in due if time > now), default=math.inf)

    def _is_full(self, group: _Group[Request, Result]) -> bool:
        return group.length >= self._max_batch or group.cost >= self._max_cost


@final
class _Group(Generic[Request, Result]):
    """The queued requests of one key. Each priority is a level, whose requests are in the order of their arrival."""

    __slots__ = ("cost", "length", "levels")

    def __init__(self) -> None:
        # An OrderedDict removes its first entry and any other in constant time. A dict does not: its iterator walks
        # over removed entries.
        self.levels: dict[int, OrderedDict[Pending[Request, Result], None]] = {}
        self.length = 0
        self.cost = 0.0

    def add(self, pending: Pending[Request, Result]) -> None:
        self.levels.setdefault(pending.priority, OrderedDict())[pending] = None
        self.length += 1
        self.cost += pending.cost

    def remove(self, pending: Pending[Request, Result]) -> None:
        level = self.levels[pending.priority]
        del level[pending]
        if not level:
            del self.levels[pending.priority]
        self.length -= 1
        self.cost -= pending.cost

    @property
    def first(self) -> Pending[Request, Result]:
        return min((next(iter(level)) for level in self.levels.values()), key=attrgetter("rank"))

    @property
    def oldest(self) -> float:
        return min(next(iter(level)).arrived for level in self.levels.values())
