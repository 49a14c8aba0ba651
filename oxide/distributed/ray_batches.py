"""Sends batches to actors, runs them again when their actor dies, and delivers the results to the callers.

Everything here runs on the thread of the pool's event loop. Ray calls back on a thread of its own when a task has ended
(``ObjectRef.future``). The callback only makes the loop call ``Scheduler._ended``. So there are no locks, no thread
waits for a batch, and ``ray.wait`` is not polled.

Invariants. *A batch is in exactly one place*: waiting in the scheduler's heap, in flight on one actor, or settled in
its ``Batches``. *If a batch waits, no ready actor has room*: ``_pump`` ends in this state and follows every change.
*The window is respected*: ``Batches.existing`` counts the batches that were read and whose results the caller has not
got. The task that reads batches sleeps while this number has reached the window.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

import numpy as np
import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from oxide.distributed.ray_actors import ActorFacts, RestartedError
from oxide.errors import ActorLostError, OperationCancelledError
from oxide.runtime.loop.event_loops import EventLoop, Sleeper
from oxide.serving.task_groups import TaskGroup

STORED_BYTES = 100 << 10
"""A batch of more bytes is put in the object store, once for all tries. Ray sends a smaller batch with the call."""

IN_THREAD_BYTES = 4 << 20
"""A batch of more bytes is put in the object store by a thread: it would take milliseconds of the loop's time."""

_LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)
"""Ray's errors for a process that died, and for results that were lost with their machine. Ray's ``OutOfMemoryError``
means that Ray ended a process which took too much of the machine's memory."""


@final
@dataclass(slots=True, eq=False)
class Worker:
    """An actor of the pool, as the scheduler knows it."""

    number: int
    handle: Any
    state: Literal["starting", "ready", "restarting", "dead"] = "starting"
    busy: int = 0
    alone: bool = False
    """True while the actor runs a batch on its last try, and so gets no other batch."""
    restarts: int = 0
    facts: ActorFacts | None = None
    error: BaseException | None = None
    """The error because of which the actor did not start, or could not be restarted."""

    def __str__(self) -> str:
        facts = self.facts
        return f"actor {self.number}" + ("" if facts is None else f" (process {facts.pid} on {facts.node})")


@final
@dataclass(slots=True, eq=False)
class Batch:
    """A batch that has no result yet. Batches compare by the order in which they were read, and run in this order."""

    batches: Batches
    index: int
    order: int
    value: Any
    attempts: int = 0  # the number of actors that died while they ran it
    worker: Worker | None = None
    reference: Any = None  # Ray's reference to the task in flight

    def __lt__(self, other: Batch) -> bool:
        return self.order < other.order


@final
class Scheduler:
    """Sends batches to actors. Ray starts the actors and runs the batches."""

    def __init__(self, loop: EventLoop, weights: tuple[tuple[str, Any], ...], in_flight: int, max_retries: int) -> None:
        self._loop = loop
        self._weights = weights  # the references, which keep the arrays for actors that are restarted
        self._from_threads = loop.from_threads()
        self._in_flight = in_flight
        self._max_retries = max_retries
        self._waiting: list[Batch] = []  # a heap
        self._read = 0
        self._starting: Sleeper | None = None
        self.workers: list[Worker] = []
        self.calls: set[Batches] = set()
        self.retried = 0
        self.closed = False

    # Actors

    def start(self, handles: Iterable[Any]) -> None:
        """Takes over the actors, and watches each until it is ready."""
        for handle in handles:
            worker = Worker(len(self.workers), handle)
            self.workers.append(worker)
            self._watch(worker)

    async def started(self) -> None:
        """Waits until all actors are ready. Raises the error of the first actor that cannot be started."""
        while any(each.state == "starting" for each in self.workers):
            self._starting = self._loop.sleeper()
            await self._starting.sleep()
            for each in self.workers:
                if each.error is not None:
                    raise each.error

    def _watch(self, worker: Worker) -> None:
        """Calls the actor's ``ready``. ``_found`` is called once the actor is ready, or cannot become ready. Ray sends
        the call of ``ready`` again if the actor restarts before that."""
        reference = worker.handle.ready.options(max_task_retries=-1).remote(self._weights)
        self._call_when_done(reference, partial(self._found, worker))

    def _found(self, worker: Worker, future: Future[Any]) -> None:
        if self.closed:
            return
        error = future.exception()
        if error is None:
            worker.restarts += worker.state == "restarting"
            worker.facts = future.result()
            worker.state = "ready"
        else:
            worker.state = "dead"
            worker.error = self._start_error(worker, error)
        if self._starting is not None:
            self._starting.wake()
        self._pump()

    def _start_error(self, worker: Worker, error: BaseException) -> BaseException:
        if isinstance(error, RayTaskError):
            found = own_error(error)
            found.add_note(f"when {worker} of an oxide.ray.ActorPool made its model")
            return found
        lost = ActorLostError(
            f"{worker} is dead, and Ray does not start it again: {_first_line(error)}", None, str(worker), 0
        )
        lost.__cause__ = error
        return lost

    def _lose(self, worker: Worker) -> None:
        if worker.state == "ready":
            worker.state = "restarting"
            self._watch(worker)

    def close(self) -> None:
        """Kills the actors, and ends the calls of ``map_batches`` that still wait for results."""
        self.closed = True
        self._weights = ()
        self._waiting.clear()
        for worker in self.workers:
            worker.state = "dead"
            ray.kill(worker.handle)
        for batches in self.calls:
            batches.wake()

    # Batches

    def add(self, batches: Batches, index: int, value: Any) -> Batch:
        """Takes a batch, and runs it as soon as an actor has room."""
        self._read += 1
        batch = Batch(batches, index, self._read, value)
        heapq.heappush(self._waiting, batch)
        self._pump()
        return batch

    def withdraw(self, given: Iterable[Batch]) -> None:
        """Drops batches whose results are no longer wanted, and cancels their tasks in Ray."""
        dropped = set(given)
        self._waiting = [each for each in self._waiting if each not in dropped]
        heapq.heapify(self._waiting)
        for batch in dropped:
            if batch.reference is not None and not self.closed:
                ray.cancel(batch.reference)

    def _pump(self) -> None:
        """Sends waiting batches to ready actors with room, to the least busy first.

        The last retry of a batch has an actor to itself. So if this actor dies too, no other batch loses a try.
        """
        while self._waiting and not self.closed:
            last_try = 0 < self._waiting[0].attempts == self._max_retries
            most = 1 if last_try else self._in_flight
            free = [each for each in self.workers if each.state == "ready" and each.busy < most and not each.alone]
            if free:
                worker = min(free, key=lambda each: each.busy)
                worker.alone = last_try
                self._send(heapq.heappop(self._waiting), worker)
            elif all(each.state == "dead" for each in self.workers):
                self._give_up(heapq.heappop(self._waiting))
            else:
                return

    def _send(self, batch: Batch, worker: Worker) -> None:
        try:
            reference = worker.handle.run.remote(batch.value)
        except Exception as error:  # the batch cannot be pickled
            error.add_note(f"when batch {batch.index} was sent to {worker}")
            worker.alone = False
            batch.batches.settle(batch.index, None, error)
            return
        worker.busy += 1
        batch.worker, batch.reference = worker, reference
        self._call_when_done(reference, partial(self._ended, worker, batch))

    def _call_when_done(self, reference: Any, function: Callable[[Future[Any]], None]) -> None:
        """Makes the loop call ``function`` with the future of a reference, once the future is done."""
        from_threads = self._from_threads
        reference.future().add_done_callback(lambda future: from_threads(partial(function, future)))

    def _ended(self, worker: Worker, batch: Batch, future: Future[Any]) -> None:
        worker.busy -= 1
        worker.alone = worker.alone and worker.busy > 0
        batch.reference = None
        error = future.exception()
        if error is None:
            batch.batches.settle(batch.index, future.result(), None)
        elif isinstance(error, RayTaskError) and isinstance(error.cause, RestartedError):
            self._lose(worker)
            if not batch.batches.closed:
                heapq.heappush(self._waiting, batch)
        elif isinstance(error, RayTaskError):
            found = own_error(error)
            found.add_note(f"when {worker} ran batch {batch.index}")
            batch.batches.settle(batch.index, None, found)
        elif isinstance(error, _LOST):
            if not self.closed:
                self._lose(worker)
            self._try_again(batch, worker, error)
        else:
            error.add_note(f"when {worker} ran batch {batch.index}")
            batch.batches.settle(batch.index, None, error)
        self._pump()

    def _try_again(self, batch: Batch, worker: Worker, error: BaseException) -> None:
        if self.closed or batch.batches.closed:
            return
        batch.attempts += 1
        if batch.attempts <= self._max_retries:
            self.retried += 1
            heapq.heappush(self._waiting, batch)
            return
        times = "its actor died" if batch.attempts == 1 else f"its actors died, {batch.attempts} in a row"
        why = f"{times}, the last of them {worker} (max_retries={self._max_retries})"
        _settle_lost(batch, why, worker, error)

    def _give_up(self, batch: Batch) -> None:
        """Settles a batch for which no actor is left, with an ``ActorLostError``."""
        cause = next((each.error for each in reversed(self.workers) if each.error is not None), None)
        why = f"all {len(self.workers)} actors are dead, and Ray restarts none; the last error is"
        _settle_lost(batch, why, batch.worker or self.workers[-1], cause)


def _settle_lost(batch: Batch, why: str, worker: Worker, cause: BaseException | None) -> None:
    text = f"batch {batch.index} has no result: {why}: {_first_line(cause)}"
    lost = ActorLostError(text, batch.index, str(worker), batch.attempts)
    lost.__cause__ = cause
    batch.batches.settle(batch.index, None, lost)


@final
class Batches:
    """A call of ``map_batches``: a task reads batches while the window has room, and the caller takes results."""

    def __init__(
        self,
        scheduler: Scheduler,
        tasks: TaskGroup,
        source: Iterable[Any] | AsyncIterable[Any],
        ordered: bool,
        window: int,
    ) -> None:
        self._scheduler = scheduler
        self._tasks = tasks
        self._source = source
        self._ordered = ordered
        self._window = window
        self._loop = scheduler._loop
        self._unsettled: dict[int, Batch] = {}
        self._settled: dict[int, tuple[Any, BaseException | None]] = {}  # in the order in which they ended
        self._head = 0  # if ordered: the number of the batch whose result the caller gets next
        self._read: int | None = None  # the number of batches, once it is known
        self._handed = 0
        self._feeder: Sleeper | None = None
        self._caller: Sleeper | None = None
        self.existing = 0
        self.closed = False

    async def results(self) -> AsyncGenerator[Any, None]:
        """Yields the results. When it ends, for whatever reason, it cancels the batches in flight."""
        stop_feeding = self._tasks.start(self._feed, "oxide.ray batches")
        self._scheduler.calls.add(self)
        try:
            while (index := await self._next()) is not None:
                value, error = self._settled.pop(index)
                self._handed += 1
                self.existing -= 1
                self._head = index + 1
                if self._feeder is not None:
                    self._feeder.wake()
                if error is not None:
                    raise error
                # In a list, so that this frame does not keep the result alive when the caller has dropped it.
                kept = [value]
                del value
                yield kept.pop()
        finally:
            self.closed = True
            self._scheduler.calls.discard(self)
            stop_feeding()
            self._scheduler.withdraw(self._unsettled.values())

    async def _next(self) -> int | None:
        """Waits for the next result that the caller may get. Returns the number of its batch; None after the last
        result. Raises ``OperationCancelledError`` if the pool was closed."""
        while True:
            if self._ordered:
                if self._head in self._settled:
                    return self._head
            elif self._settled:
                first: int = next(iter(self._settled))
                return first
            if self._handed == self._read:
                return None
            if self._scheduler.closed:
                raise OperationCancelledError("the pool's block has ended, and its actors with it")
            self._caller = self._loop.sleeper()
            await self._caller.sleep()

    def settle(self, index: int, value: Any, error: BaseException | None) -> None:
        """Keeps the outcome of a batch for the caller. Drops it if the call has ended."""
        self._unsettled.pop(index, None)
        if self.closed:
            return
        self._settled[index] = (value, error)
        self.wake()

    def wake(self) -> None:
        """Wakes the caller, if it waits: its result has come, or will not come."""
        if self._caller is not None:
            self._caller.wake()

    async def _feed(self) -> None:
        source = self._source
        steps: Any
        count = 0
        try:
            try:
                is_async = isinstance(source, AsyncIterable)
                steps = aiter(source) if isinstance(source, AsyncIterable) else iter(source)
                while True:
                    while self.existing >= self._window:
                        self._feeder = self._loop.sleeper()
                        await self._feeder.sleep()
                    value = await anext(steps) if is_async else next(steps)
                    self.existing += 1
                    value = await self._stored(value) if is_large(value, STORED_BYTES) else _copy(value)
                    self._unsettled[count] = self._scheduler.add(self, count, value)
                    del value
                    count += 1
            except (StopIteration, StopAsyncIteration):
                pass
            except Exception as error:
                error.add_note(f"when map_batches read batch {count}")
                self.settle(count, None, error)
                count += 1
        finally:
            self._read = count
            self.wake()

    async def _stored(self, value: Any) -> Any:
        if not is_large(value, IN_THREAD_BYTES):
            return ray.put(value)
        return await self._loop.in_thread(lambda: ray.put(value))


def is_large(batch: object, most: int) -> bool:
    """Returns whether a batch, an array or a collection of arrays, has more than ``most`` bytes."""
    if isinstance(batch, np.ndarray):
        return batch.nbytes > most
    inside = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple | list) else ()
    return sum(each.nbytes for each in inside if isinstance(each, np.ndarray)) > most


def _copy(batch: Any) -> Any:
    """Returns the batch with copies of its arrays: the source may write its next batch to the same memory."""
    if type(batch) is np.ndarray:
        return batch.copy()
    if type(batch) in (tuple, list):
        return type(batch)(map(_copy, batch))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_copy, batch))
    if type(batch) is dict:
        return {key: _copy(each) for key, each in batch.items()}
    return batch


def own_error(error: RayTaskError) -> BaseException:
    """Returns the exception that an actor's method raised, with its type and fields. Its cause is Ray's error, which
    shows the actor's traceback. Returns Ray's error itself if the exception could not be pickled."""
    own: BaseException = error.cause if isinstance(error.cause, BaseException) else error
    if own is not error:
        own.__cause__ = error
    return own


def _first_line(error: BaseException | None) -> str:
    """Returns the first line of an error's message. Ray's messages are pages long."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
