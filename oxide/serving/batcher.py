"""Batcher: makes batches of the requests of concurrent tasks, and runs each batch as one operation.

A call queues its request and sleeps. While fewer than ``max_in_flight`` batches are in flight, a batch begins as soon
as it is full or its first request has waited ``max_wait``. Each batch has a task, which runs it and wakes the callers.
No task dispatches: ``_pump`` starts the batches. It is called whenever a batch may begin: at a new request, at the end
of a batch, and by a timer.

Invariants. *A request is in exactly one place*: the queue, one batch, or nowhere, if it has its outcome or its caller
has left. *If a batch may begin, it has begun; if it only has to wait for ``max_wait``, a timer runs*: ``_pump``
establishes this, and is called after every change. *A batch is in flight until the device is past all that it
submitted*: also if its callers have left or have an error, for the device is busy with its work all the same.

The idea of waiting briefly for a batch is Clipper's (Crankshaw et al., NSDI 2017) and the Triton Inference Server's.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar, final

from oxide.errors import (
    BatcherClosedError,
    DeviceError,
    DeviceLostError,
    OperationCancelledError,
    OutOfMemoryError,
    Overloaded,
)
from oxide.host.messages import written
from oxide.runtime.awaiting.completion import wait_any
from oxide.runtime.awaiting.future import DeviceFuture, FutureState
from oxide.runtime.awaiting.unrun import report_ignored
from oxide.runtime.devices.fault_records import add_note_once
from oxide.runtime.devices.runtime import SchedulingPolicy
from oxide.runtime.loop.event_loops import Sleeper, current_loop
from oxide.runtime.memory.allocation import PATIENCE_SECONDS
from oxide.runtime.memory.memory import DeviceBox
from oxide.runtime.operations.operation import DeviceOperation
from oxide.runtime.ordering.timeline import Mark, Timeline
from oxide.runtime.submission.walk import Frame
from oxide.serving.buckets import Buckets
from oxide.serving.metrics import BatcherStatistics, Measures
from oxide.serving.request_queue import Pending, RequestQueue, Results, State
from oxide.serving.task_groups import TaskGroup, task_group

Request = TypeVar("Request")
Result = TypeVar("Result")

_running: Final[ContextVar[tuple[object, list[Context]]]] = ContextVar("oxide: the batcher and the requests that run")


@final
@dataclass(frozen=True, slots=True)
class BatchReport:
    """A run of a batch, as ``on_batch`` gets it. Times are in seconds.

    ``size`` is the number of requests that were run, and ``cost`` the sum of their costs. ``waited`` is the longest
    time that a request waited for this run. ``seconds`` is the time from the submission to the result.
    ``device_seconds`` is the time on the stream, or None if the operation failed. ``error`` is the run's error, or
    None.
    """

    size: int
    cost: float
    waited: float
    seconds: float
    device_seconds: float | None
    error: Exception | None


@final
class Batcher(Generic[Request, Result]):
    """Makes batches of requests: ``async with Batcher(run) as batcher: result = await batcher(request)``.

    ``run(requests)`` gets a list and returns an operation that yields a result for each request, in order: a list, a
    tuple, or an array whose rows are the results. A result that is an exception is raised to its caller. ``run`` may
    also be ``Buckets``, which run each batch as a captured graph. A request may be run more than once, see ``reruns``.
    ``run`` sees the context variables of the block: ``contexts()`` has those of each request.

    - ``max_batch``: the most requests of a batch. ``cost(request)`` and ``max_cost`` also bound the sum of the costs.
    - ``max_wait``: the seconds that a request waits for others before its batch begins without them.
    - ``max_queue``: the most requests that wait for a batch. ``when_full`` is ``"raise"`` (a further call raises
      ``Overloaded``) or ``"wait"`` (it waits for room).
    - ``key(request)``: requests of different keys are never in one batch. A full batch of a key does not wait for
      requests of others.
    - ``reruns``: the most runs of a batch after the first, see below. With 0 no request is run twice.
    - ``ageing``: the seconds of waiting that count as much as one ``priority`` more. With ``math.inf`` a request waits
      as long as there are requests of a higher priority.
    - ``max_in_flight``: the most batches that are run at a time. A batch counts until the device is past its work, also
      if its callers have left.
    - ``policy`` picks the stream of each batch; by default the runtime's policy.
    - ``on_batch(report)`` is called after each run. Its exceptions go to ``sys.unraisablehook``.
    - ``name`` labels the metrics.

    If the run of a batch raises an error, each half of the batch is run again, and so on, up to ``reruns`` times: a
    request that fails alone gets its error, and so do at last requests that were in no run that succeeded, with a note.
    By default a batch of n requests has 2 * ceil(log2(n)) reruns, enough to find one request that fails. If the device
    has no memory for a batch, the batch is run again once another batch has ended, or dropped work on the device, which
    does not count; if there is none, it is halved. A lost device, an error of ``Buckets`` and a wrong number of results
    are raised to all callers of the batch.

    If a caller is cancelled, its request is removed from the queue. If its batch has begun, the other requests are
    unaffected; if no caller is left, the batch's await is cancelled, and work that the device has not begun is dropped.
    The batch stays in flight until the device is past the rest.

    The end of the ``async with`` block waits until every accepted request has its outcome; batches then begin without
    waiting ``max_wait``. If the block ends with an exception or a cancellation, the requests get an
    ``OperationCancelledError``. Calls outside the block raise ``BatcherClosedError``.

    Runs under trio and asyncio. Raises ``TypeError`` and ``ValueError`` for wrong arguments, and ``NoEventLoopError``
    at the start of the block outside of an event loop.
    """

    def __init__(
        self,
        run: Callable[[list[Request]], DeviceOperation[Results[Result]]] | Buckets[Request, Result],
        *,
        max_batch: int = 64,
        max_wait: float = 0.002,
        max_queue: int = 1024,
        when_full: Literal["raise", "wait"] = "raise",
        cost: Callable[[Request], float] | None = None,
        max_cost: float | None = None,
        key: Callable[[Request], Hashable] | None = None,
        reruns: int | None = None,
        ageing: float = 1.0,
        max_in_flight: int = 2,
        policy: SchedulingPolicy | None = None,
        on_batch: Callable[[BatchReport], object] | None = None,
        name: str = "batcher",
    ) -> None:
        self._buckets = run if isinstance(run, Buckets) else None
        if self._buckets is None and not callable(run):
            raise TypeError(f"a Batcher takes a function of a list of requests, or Buckets, not {type(run).__name__}")
        self._function: Any = run
        for label, count in (("max_batch", max_batch), ("max_queue", max_queue), ("max_in_flight", max_in_flight)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"Batcher({label}={written(count)}): it must be an integer of 1 or more")
        _require_number("max_wait", max_wait)
        if when_full not in ("raise", "wait"):
            raise ValueError(f'Batcher(when_full={written(when_full)}): it must be "raise" or "wait"')
        if (cost is None) != (max_cost is None):
            raise ValueError("Batcher takes cost and max_cost together: the cost of a request, and a batch's most")
        if max_cost is not None:
            _require_number("max_cost", max_cost)
        if reruns is not None and (isinstance(reruns, bool) or not isinstance(reruns, int) or reruns < 0):
            raise ValueError(f"Batcher(reruns={written(reruns)}): it must be an integer of 0 or more, or None")
        if not _is_positive(ageing):
            raise ValueError(f"Batcher(ageing={written(ageing)}): it must be a number of seconds above 0, or math.inf")
        if policy is not None and not hasattr(policy, "next_stream"):
            raise TypeError(
                f"Batcher(policy=…) takes a policy with a method next_stream(device), not {type(policy).__name__}"
            )
        for label, function, of in (
            ("cost", cost, "request"),
            ("key", key, "request"),
            ("on_batch", on_batch, "report"),
        ):
            if function is not None and not callable(function):
                raise TypeError(f"Batcher({label}=…) takes a function of a {of}, not {type(function).__name__}")
        if inspect.iscoroutinefunction(on_batch):
            raise TypeError("Batcher(on_batch=…) takes an ordinary function, not an async one: nothing would await it")
        if not isinstance(name, str):
            raise TypeError(f"Batcher(name=…) takes a str, not {type(name).__name__}")
        self._key = key
        self._reruns = reruns
        self._max_queue = max_queue
        self._raises_when_full = when_full == "raise"
        self._cost = cost
        self._max_cost = math.inf if max_cost is None else float(max_cost)
        self._max_in_flight = max_in_flight
        self._policy = policy
        self._on_batch = on_batch
        self._name = name
        self._queue: RequestQueue[Request, Result] = RequestQueue(
            max_batch, self._max_cost, float(max_wait), float(ageing)
        )
        self._measures = Measures(max_batch)
        self._tasks: TaskGroup | None = None
        self._is_open = False
        self._batches: set[Batch[Request, Result]] = set()  # in flight
        self._cancels_timer: Callable[[], None] | None = None
        self._short_of_memory: list[Sleeper] = []  # the batches that wait for another to end

    # The block

    async def __aenter__(self) -> Batcher[Request, Result]:
        if self._tasks is not None:
            raise RuntimeError("a Batcher's block is entered once: make another Batcher")
        self._tasks = task_group()
        await self._tasks.open()
        self._is_open = True
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        tasks = self._tasks
        assert tasks is not None
        self._is_open = False
        if error is not None:
            self._give_up()
            tasks.cancel()
        else:
            if self._cancels_timer is not None:
                self._cancels_timer()
            self._pump()
        try:
            await tasks.close()
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Gives each request in the queue an ``OperationCancelledError``. The requests of batches in flight get theirs
        from the tasks of the batches."""
        while self._queue:
            for pending in self._queue.take(math.inf):
                self._fail(pending, _given_up())

    # Calls

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Batcher cannot be pickled or copied; make another with the same function")

    async def __call__(self, request: Request, *, priority: int = 0, timeout: float | None = None) -> Result:
        """Returns the result of ``request``. Always a checkpoint, unless it raises at once.

        Requests with a higher ``priority`` come into a batch before requests with a lower ``priority``, unless these
        have waited for long (``ageing``). After ``timeout`` seconds the request is dropped, as if its caller were
        cancelled, and ``TimeoutError`` is raised.

        Raises ``Overloaded`` if the queue is full, ``BatcherClosedError`` outside the ``async with`` block,
        ``ValueError`` for a request that costs more than ``max_cost`` and for a ``timeout`` that is not a number of 0
        or more, ``TypeError`` for a ``priority`` that is not an int and a key that is not hashable, ``RuntimeError`` in
        another event loop than the block's, and the error of the request.
        """
        tasks = self._tasks
        if tasks is None:
            raise BatcherClosedError("the batcher has not begun: call it inside `async with Batcher(…) as batcher:`")
        if not tasks.is_running_here():
            raise RuntimeError("the batcher was called outside the event loop in which its block was entered")
        if not isinstance(priority, int):
            raise TypeError(f"a request's priority is an integer, not {type(priority).__name__}")
        if timeout is None:
            return await self._ask(request, priority, math.inf)
        if isinstance(timeout, bool) or not isinstance(timeout, Real) or not timeout >= 0:
            raise ValueError(f"a request's timeout is a number of seconds of 0 or more, not {written(timeout)}")
        return await tasks.within(float(timeout), self._ask(request, priority, tasks.now() + float(timeout)))

    async def _ask(self, request: Request, priority: int, deadline: float) -> Result:
        loop = current_loop()
        await loop.checkpoint_if_cancelled()
        if not self._is_open:
            raise BatcherClosedError("the batcher's block has ended, and it takes no more requests")
        cost = 1.0 if self._cost is None else self._cost_of(request)
        key = None if self._key is None else self._key_of(request)
        if self._raises_when_full and len(self._queue) >= self._max_queue:
            self._measures.rejected += 1
            raise Overloaded(
                f"the batcher's queue is full: {len(self._queue)} requests wait (max_queue={self._max_queue}), and "
                f"{len(self._batches)} batches are in flight"
            )
        pending: Pending[Request, Result] = Pending(
            request, key, cost, priority, self._now(), copy_context(), loop.sleeper()
        )
        self._queue.add(pending)
        self._measures.accepted += 1
        self._pump()
        try:
            await pending.sleeper.sleep()
        except BaseException:
            self._leave(pending, self._now() >= deadline)
            raise
        return pending.outcome()

    def _cost_of(self, request: Request) -> float:
        assert self._cost is not None
        cost = self._cost(request)
        if isinstance(cost, bool) or not isinstance(cost, Real) or not 0 <= cost <= self._max_cost:
            raise ValueError(
                f"the cost of a request must be a number from 0 to max_cost={self._max_cost:g}, and cost(request) "
                f"returned {written(cost)}"
            )
        return float(cost)

    def _key_of(self, request: Request) -> Hashable:
        assert self._key is not None
        key = self._key(request)
        try:
            hash(key)
        except TypeError as error:
            raise TypeError(
                f"the key of a request must be hashable, and key(request) returned {written(key)}: {error}"
            ) from error
        return key

    def _leave(self, pending: Pending[Request, Result], timed_out: bool) -> None:
        """Ends the request of a cancelled caller: removes it from the queue or from its batch, and cancels a batch
        that has no caller left. Counts the request as timed out if ``timed_out`` is True, else as cancelled."""
        if pending.state is State.DONE:  # the outcome came at the same time as the cancellation
            self._count_outcome(pending, -1)
        elif pending.state is State.QUEUED:
            self._queue.remove(pending)
        else:
            batch = pending.batch
            assert batch is not None
            batch.forget(pending)
            if not batch.unanswered:
                assert batch.cancel is not None
                batch.cancel()
        pending.state = State.LEFT
        if timed_out:
            self._measures.timed_out += 1
        else:
            self._measures.cancelled += 1

    # What ``run`` asks for

    def contexts(self) -> list[Context]:
        """Returns the context of each request that runs, in the order of ``run``'s list: its caller's, as it was at the
        call. ``context[variable]`` is a variable's value, and ``context.run(f)`` calls a function in the context.

        Call it in ``run`` or in a function of its operation. Raises ``RuntimeError`` elsewhere.
        """
        batcher, contexts = _running.get((None, []))
        if batcher is not self:
            raise RuntimeError("batcher.contexts() is for the function of the batcher, while it runs a batch")
        return list(contexts)

    # Statistics and preparation

    def statistics(self) -> BatcherStatistics:
        """Returns the statistics since the batcher was made."""
        running = sum(len(batch.unanswered) for batch in self._batches)
        return self._measures.statistics(len(self._queue), self._max_queue, running, len(self._batches))

    def metrics(self) -> str:
        """Returns the statistics in Prometheus' text format, with the label ``batcher="<name>"``."""
        return self._measures.prometheus(self._name, self.statistics())

    def prepare_in_thread(self) -> None:
        """Captures the graphs of the batcher's ``Buckets``: ``await oxide.prepare(batcher)`` calls it in a thread."""
        if self._buckets is None:
            raise TypeError(
                "oxide.prepare takes a Batcher of Buckets; for another, prepare the operation: "
                "prepare(lambda: run([request]))"
            )
        self._buckets.prepare_in_thread()

    # Batches

    def _now(self) -> float:
        assert self._tasks is not None
        return self._tasks.now()

    def _pump(self) -> None:
        """Starts the batches that may begin, and the timer if the next batch must wait for ``max_wait``. A batch that
        waits for memory goes first: no other batch of its key begins until it has run. At the end of the block, stops
        waiting for abandoned work."""
        if not self._is_open and not self._queue:
            for batch in self._batches:
                if not batch.unanswered:
                    assert batch.cancel is not None
                    batch.cancel()
        while self._queue and len(self._batches) < self._max_in_flight:
            now = self._now()
            held = {batch.key for batch in self._batches if batch.lacks_memory}
            requests = self._queue.take(now if self._is_open else math.inf, held)
            if not requests:
                if self._is_open:
                    self._set_timer(self._queue.next_due(now))
                break
            self._start(Batch(requests))

    def _start(self, batch: Batch[Request, Result]) -> None:
        assert self._tasks is not None
        now = self._now()
        for pending in batch.unanswered:
            self._measures.wait.add(now - pending.arrived)
        self._batches.add(batch)
        batch.cancel = self._tasks.start(lambda: self._run(batch), f"a batch of {self._name}")

    def _set_timer(self, due: float) -> None:
        tasks = self._tasks
        assert tasks is not None
        # A running timer ends no later than ``due``, as the oldest requests of all groups only get younger.
        if due == math.inf or self._cancels_timer is not None:
            return

        async def wait() -> None:
            try:
                await tasks.sleep_until(due)
            finally:
                self._cancels_timer = None
            self._pump()

        self._cancels_timer = tasks.start(wait, f"the timer of {self._name}")

    async def _run(self, batch: Batch[Request, Result]) -> None:
        try:
            await self._answer(batch)
        except Exception as error:  # raised by ``Buckets``, and so by no request in particular
            for pending in list(batch.unanswered):
                self._fail(pending, error)
        finally:
            # Requests are left only if this task was cancelled: all callers have left, or the block was given up.
            for pending in list(batch.unanswered):
                self._fail(pending, _given_up())
            batch.lacks_memory = False
            if batch.behind is None:
                self._end(batch)
            else:  # in a task of its own, as this one may have been cancelled
                assert self._tasks is not None
                batch.cancel = self._tasks.start(lambda: self._stay(batch), f"the last work of a batch of {self._name}")
                self._pump()

    async def _stay(self, batch: Batch[Request, Result]) -> None:
        try:
            await self._until_past(batch)
        finally:
            self._end(batch)

    async def _until_past(self, batch: Batch[Request, Result]) -> None:
        """Sleeps until the device is past what the batch has submitted."""
        mark = batch.behind
        if mark is not None:
            with suppress(DeviceError):
                await wait_any(current_loop(), mark.timeline.device.runtime, [mark])
            batch.behind = None

    def _end(self, batch: Batch[Request, Result]) -> None:
        self._batches.discard(batch)
        waiting, self._short_of_memory = self._short_of_memory, []
        for sleeper in waiting:
            sleeper.wake()
        self._pump()

    async def _answer(self, batch: Batch[Request, Result]) -> None:
        run = self._function
        if self._buckets is not None:
            # Captured once for the whole batch: a part that is run again fits the same shape.
            run = await self._captured(self._buckets, [pending.value for pending in batch.unanswered])
        parts: list[tuple[list[Pending[Request, Result]], Exception | None]] = [(list(batch.unanswered), None)]
        bound = 2 * (len(batch.unanswered) - 1).bit_length() if self._reruns is None else self._reruns
        reruns, first = 0, True
        while parts:
            # The last part is a half of the run that failed last. A much larger one goes first: if the reruns do not
            # suffice, fewer requests are undecided (of 64 requests, two of which fail, a fifth instead of a half).
            largest = max(range(len(parts)), key=lambda number: len(parts[number][0]))
            goes_first = len(parts[largest][0]) >= 4 * len(parts[-1][0])
            part, failure = parts.pop(largest if goes_first else -1)  # ``failure`` is the error of the part's last run
            part = [pending for pending in part if pending.state is State.RUNNING]
            if failure is not None and part:
                if reruns < bound:
                    reruns += 1
                else:
                    add_note_once(failure, _undecided(bound))
                    for pending in part:
                        self._fail(pending, failure)
                    part = []
            failure = None
            if not part:
                continue
            if not first:
                self._measures.reruns += 1
                await self._until_past(batch)
            first = False
            error = await self._attempt(batch, run, part)
            if batch.lacks_memory and not isinstance(error, OutOfMemoryError):
                batch.lacks_memory = False
                self._pump()
            if error is None:
                continue
            refused = isinstance(error, OutOfMemoryError) and self._reruns != 0
            memory_is_freed = self._memory_is_freed(batch) if refused else None
            if memory_is_freed is not None:
                batch.lacks_memory = True
                _drop_tracebacks(error)
                await memory_is_freed
                parts.append((part, None))
            elif len(part) > 1 and not isinstance(error, (DeviceLostError, _MisfitError)):
                if reruns < bound:
                    _drop_tracebacks(error)
                middle = (len(part) + 1) // 2
                parts += [(part[middle:], error), (part[:middle], error)]
            else:
                for pending in part:
                    if pending.state is State.RUNNING:
                        self._fail(pending, error)
            del error  # its traceback holds this frame

    def _memory_is_freed(self, batch: Batch[Request, Result]) -> Awaitable[None] | None:
        """Returns what to await after a run of the batch found no memory: the end of another batch or, once, of dropped
        work that is in flight on the device. Returns None if there is neither."""
        if len(self._short_of_memory) + 1 < len(self._batches):
            return self._another_ends()
        if batch.behind is None or batch.has_waited:
            return None
        batch.has_waited = True
        device = batch.behind.timeline.device
        streams = device.runtime.reclaimer.streams_of_dropped_work(device)
        return self._dropped_work_ends(streams) if streams else None

    async def _another_ends(self) -> None:
        sleeper = current_loop().sleeper()
        self._short_of_memory.append(sleeper)
        try:
            await sleeper.sleep()
        finally:
            if sleeper in self._short_of_memory:
                self._short_of_memory.remove(sleeper)

    async def _dropped_work_ends(self, streams: set[Timeline]) -> None:
        async def pass_all() -> None:
            for mark in [stream.mark() for stream in streams]:
                await wait_any(current_loop(), mark.timeline.device.runtime, [mark])

        assert self._tasks is not None
        with suppress(DeviceError, TimeoutError):
            await self._tasks.within(PATIENCE_SECONDS, pass_all())

    async def _captured(
        self, buckets: Buckets[Request, Result], requests: list[Request]
    ) -> Callable[[list[Request]], DeviceOperation[Results[Result]]]:
        key = buckets.key_of(requests)
        found = buckets.find(key)
        return await current_loop().in_thread(lambda: buckets.capture(key)) if found is None else found

    async def _attempt(
        self,
        batch: Batch[Request, Result],
        run: Callable[[list[Request]], DeviceOperation[Results[Result]]],
        part: list[Pending[Request, Result]],
    ) -> Exception | None:
        """Runs a part of a batch, and gives each result to its request, unless the request's caller has left. Returns
        None, or the error if the run failed."""
        waited = self._now() - min(pending.arrived for pending in part)
        begun = time.perf_counter()
        self._measures.batch_sizes[len(part)] += 1
        failure: Exception | None = None
        device_seconds: float | None = None
        _running.set((self, [pending.context for pending in part]))
        try:
            operation = _Timed(_operation_of(run([pending.value for pending in part])))
            future = operation.into_future() if self._policy is None else operation.schedule(self._policy)
            try:
                results, start, end = await future
            except BaseException:
                batch.behind = _end_of(future)
                del future  # it holds the results, and only work without held results is dropped
                raise
            device_seconds = start.elapsed_ms(end) / 1000
            self._measures.device.add(device_seconds)
            _require_results(results, len(part))
            for number, pending in enumerate(part):
                if pending.state is not State.RUNNING:
                    continue  # its caller has left
                result = results[number]
                if isinstance(result, Exception):
                    self._fail(pending, result)
                else:
                    pending.answer(result)
                    self._count_outcome(pending, 1)
                    self._measures.latency.add(self._now() - pending.arrived)
        except Exception as error:
            failure = error
        if self._on_batch is not None:
            cost = sum(pending.cost for pending in part)
            seconds = time.perf_counter() - begun
            report = BatchReport(len(part), cost, waited, seconds, device_seconds, failure)
            try:
                self._on_batch(report)
            except Exception as error:
                report_ignored(error, self._on_batch)
        try:
            return failure
        finally:
            del failure  # its traceback holds this frame

    def _fail(self, pending: Pending[Request, Result], error: Exception) -> None:
        pending.fail(error)
        self._count_outcome(pending, 1)

    def _count_outcome(self, pending: Pending[Request, Result], change: int) -> None:
        if pending.has_failed:
            self._measures.failed += change
        else:
            self._measures.answered += change


@final
class Batch(Generic[Request, Result]):
    """The requests of a batch that has begun. ``unanswered`` are the requests without an outcome whose callers still
    wait, in order. ``behind`` is a mark behind the work of a run that was cancelled or failed, None if there is none.
    ``lacks_memory`` is True from a run that found no memory to the next that does, and ``has_waited`` once the batch
    has waited for dropped work."""

    __slots__ = ("behind", "cancel", "has_waited", "key", "lacks_memory", "unanswered")

    def __init__(self, requests: list[Pending[Request, Result]]) -> None:
        self.key = requests[0].key
        self.lacks_memory = False
        self.has_waited = False
        self.behind: Mark | None = None
        self.unanswered: dict[Pending[Request, Result], None] = dict.fromkeys(requests)
        self.cancel: Callable[[], None] | None = None
        for pending in requests:
            pending.state = State.RUNNING
            pending.batch = self

    def forget(self, pending: Pending[Request, Result]) -> None:
        """Removes a request that has its outcome, or whose caller was cancelled."""
        del self.unanswered[pending]
        pending.batch = None


@final
class _MisfitError(TypeError):
    """Raised if ``run`` returned no operation, or its operation yielded a wrong number of results. This is a mistake of
    ``run``, not of a request."""


@final
class _Timed(DeviceOperation[Any]):
    """Runs an operation between two events."""

    _composed = _combines = True

    def __init__(self, operation: DeviceOperation[Any]) -> None:
        super().__init__(operation)
        self._parts = (operation,)
        self.place_as(operation)

    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None:
        if not frame.at:
            frame.at, frame.data = 1, frame.context.stream.record_event()
            part: DeviceOperation[Any] = self._parts[0]
            return part
        frame.result = result, frame.data, frame.context.stream.record_event()
        return None


def _end_of(future: DeviceFuture[Any]) -> Mark | None:
    """Returns a mark behind all that a future has submitted, or None if it has submitted nothing."""
    if future.state is FutureState.IDLE:
        return None
    submission = future.submission
    if submission is not None:
        return submission.mark
    try:  # a submission that failed half-way has no mark of its own
        return future.stream._timeline.mark()
    except DeviceError:
        return None


def _undecided(reruns: int) -> str:
    """Returns the note on an error of a run of several requests, which was not looked for in parts of it."""
    again = f"was run again {reruns} times, the most that reruns= allows" if reruns else "is not run again (reruns=0)"
    return f"the error of a run of several requests, and so perhaps of another one of them: the batch {again}"


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drops the tracebacks of an error that is kept while parts of its run are run again: their frames hold boxes."""
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _operation_of(made: object) -> DeviceOperation[Any]:
    """Returns ``made``, the result of ``run``. Raises ``_MisfitError`` if it is not an operation."""
    if isinstance(made, DeviceOperation):
        return made
    if inspect.iscoroutine(made):
        made.close()
        raise _MisfitError(
            f"the batcher's run returned the coroutine {made.__qualname__}; it must be an ordinary function that "
            f"returns an operation, which the batcher awaits. Of several operations, zip makes one where gather awaits "
            f"them"
        )
    raise _MisfitError(
        f"the batcher's run returned {type(made).__name__}; it must return an operation that yields a result for each "
        f"request. value(results) makes one of results that are computed on the host"
    )


def _require_results(results: Any, requests: int) -> None:
    """Raises ``_MisfitError`` unless there is a result for each request."""
    if isinstance(results, DeviceBox):
        raise _MisfitError(f"the batcher's run yields {results!r}; it must yield results on the host: end it with d2h")
    try:
        # A text or a dictionary has a length, but no results in order.
        is_sequence = hasattr(results, "__getitem__") and not isinstance(results, (str, bytes, dict))
        found = len(results) if is_sequence else None
    except TypeError:  # such as an array without axes
        found = None
    if found is None:
        raise _MisfitError(
            f"the batcher's run yields {type(results).__name__}; it must yield a list, a tuple or an array with a "
            f"result for each request"
        )
    if found != requests:
        raise _MisfitError(f"the batcher's run got {requests} requests, and its operation yields {found} results")


def _given_up() -> OperationCancelledError:
    return OperationCancelledError("the batcher's block ended by an exception or a cancellation before the answer")


def _require_number(label: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, Real) or not 0 <= float(number) < math.inf:
        raise ValueError(f"Batcher({label}={written(number)}): it must be a number of 0 or more")


def _is_positive(number: object) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool) and float(number) > 0
