"""What a task awaits besides single operations: gather, as_completed and spawn, for concurrent operations, and prepare,
which compiles and captures in a thread before the first request."""

from __future__ import annotations

import heapq
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, Protocol, TypeAlias, TypeVar, final

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import Specialization
from oxide.errors import ArgumentError, DeviceError, GraphError, NoEventLoopError, OperationCancelledError
from oxide.host.core import Dropping, current_turn, note_dropped
from oxide.host.messages import written
from oxide.runtime.awaiting.completion import checkpoint, reactor_of, wait_any
from oxide.runtime.awaiting.future import DeviceFuture, ready_to_submit, would_keep
from oxide.runtime.awaiting.loading import load_announced, loaded_function
from oxide.runtime.devices.fault_records import add_note_once
from oxide.runtime.devices.runtime import Runtime, current_runtime
from oxide.runtime.loop.event_loops import EventLoop, current_loop, running_loop_name
from oxide.runtime.operations.operation import DeviceOperation
from oxide.runtime.ordering.stream import Stream
from oxide.runtime.ordering.timeline import Mark, Timeline
from oxide.runtime.submission.capture import Recording
from oxide.runtime.submission.stops import Unknown
from oxide.runtime.submission.submission import ExecutionContext

if TYPE_CHECKING:
    from types import TracebackType

    import trio

T = TypeVar("T")


async def gather(*operations: DeviceOperation[Any] | DeviceFuture[Any]) -> tuple[Any, ...]:
    """Submits all operations, waits for all, and returns the tuple of their results, in order. Always a checkpoint.

    Raises the first error, in the order of the arguments. After an error or a cancellation, submitted work keeps its
    memory until the device is past it. An error found before all operations are submitted is raised at once, and the
    rest is not submitted.
    """
    for operation in operations:
        _require_operation(operation, "gather")
    futures: list[DeviceFuture[Any]] = []
    finished = 0
    loop = current_loop()
    await loop.checkpoint_if_cancelled()
    try:
        for operation in operations:
            future = _future(operation)
            turn = current_turn()
            if would_keep(turn, future.stream):
                turn = await ready_to_submit(loop, future.stream)
            futures.append(future)
            if future.start(turn) is not None:
                await future.start_before_data(loop)
            if future.has_outcome:
                future.outcome()  # raises the error of the failed submission, so no more are submitted
            if not len(futures) % _TURNS:
                finished = _finish_first(futures, finished)
        if not futures:
            await loop.checkpoint()
        paused: _Waiting[Any] = _Waiting()
        for future in futures:
            if (mark := future.data_mark()) is not None:
                paused.add(future, mark)
        while paused:
            future = await paused.next_passed(loop)
            await future.start_before_data(loop)
            if future.has_outcome:
                future.outcome()
            elif (mark := future.data_mark()) is not None:
                paused.add(future, mark)
        # A finished operation needs no trip through the loop (4 µs under trio), but other tasks must get to run.
        return tuple(
            [
                future.outcome() if number % _TURNS and _is_done(future) else await future
                for number, future in enumerate(futures)
            ]
        )
    except BaseException:
        for future in futures:
            _leave(future)
        futures.clear()  # a traceback would keep them alive: see ``reclaim``
        raise


def as_completed(
    operations: Iterable[DeviceOperation[T] | DeviceFuture[T]], *, limit: int | None = None
) -> AsyncIterator[T]:
    """Yields results as they finish, with at most ``limit`` operations in flight:
    ``async for result in as_completed(ops, limit=8)``.

    ``operations`` may be a generator. The next operation is taken from it when fewer than ``limit`` are in flight, so
    with a limit the generator may be endless. An error ends the iteration and is raised. After an error or a
    cancellation, submitted work keeps its memory until the device is past it, and the rest is not submitted. Raises
    ``ValueError`` for a limit below 1.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"as_completed(limit={written(limit)}): the limit must be an integer of 1 or more, or None")
    if isinstance(operations, Sequence):
        operations = tuple(operations)
        for operation in operations:
            _require_operation(operation, "as_completed")  # at the call, as all operations are known
    return _AsCompleted(iter(operations), limit)


_NO_MORE: Any = object()


@final
class _Waiting(Generic[T]):
    """Futures that wait for marks, in a heap for each stream. The device passes a stream's marks in order, so only the
    first of each heap is polled."""

    def __init__(self) -> None:
        self._serial = count()
        self._heaps: dict[Timeline, list[tuple[int, int, Mark, DeviceFuture[T]]]] = {}  # by position
        self.size = 0

    def __bool__(self) -> bool:
        return self.size > 0

    def add(self, future: DeviceFuture[T], mark: Mark) -> None:
        entry = (mark.position, next(self._serial), mark, future)
        heapq.heappush(self._heaps.setdefault(mark.timeline, []), entry)
        self.size += 1

    async def next_passed(self, loop: EventLoop) -> DeviceFuture[T]:
        """Waits until the device is past one of the marks, and removes and returns the future that waits for it. Is
        always a checkpoint."""
        heads = sorted([heap[0] for heap in self._heaps.values()], key=_serial)
        await wait_any(loop, heads[0][3].stream.device.runtime, [mark for _, _, mark, _ in heads])
        for _, _, mark, future in heads:
            if mark.passed():
                heap = self._heaps[mark.timeline]
                heapq.heappop(heap)
                if not heap:
                    del self._heaps[mark.timeline]
                self.size -= 1
                return future
        raise AssertionError("wait_any returned before any mark was passed")

    def leave(self) -> None:
        """Abandons all futures."""
        for heap in self._heaps.values():
            for *_, future in heap:
                _leave(future)
        self._heaps.clear()
        self.size = 0


@final
class _AsCompleted(AsyncIterator[T]):
    def __init__(self, waiting: Iterator[DeviceOperation[T] | DeviceFuture[T]], limit: int | None) -> None:
        self._waiting: Iterator[DeviceOperation[T] | DeviceFuture[T]] | None = waiting  # None: exhausted
        self._limit = limit
        self._running: _Waiting[T] = _Waiting()
        self._settled: deque[DeviceFuture[T]] = deque()  # futures that have an outcome, such as failed submissions

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        loop = current_loop()
        await loop.checkpoint_if_cancelled()
        try:
            while self._waiting is not None and (
                self._limit is None or self._running.size + len(self._settled) < self._limit
            ):
                operation = next(self._waiting, _NO_MORE)
                if operation is _NO_MORE:
                    self._waiting = None
                    break
                _require_operation(operation, "as_completed")
                future = _future(operation)
                turn = current_turn()
                if would_keep(turn, future.stream):
                    turn = await ready_to_submit(loop, future.stream)
                if future.start(turn) is not None:
                    await future.start_before_data(loop)
                self._note_started(future)
            if self._settled or not self._running:
                await checkpoint(loop)
                if not self._settled:
                    raise StopAsyncIteration
                return _outcome_in_iteration(self._settled.popleft())
            return await self._next(loop)
        except BaseException:
            self._running.leave()
            self._settled.clear()
            self._waiting = None
            raise

    def _note_started(self, future: DeviceFuture[T]) -> None:
        mark = future.next_mark()
        if mark is None:
            self._settled.append(future)
        else:
            self._running.add(future, mark)

    async def _next(self, loop: EventLoop) -> T:
        while not self._settled:
            try:
                future = await self._running.next_passed(loop)
            except DeviceError as error:
                add_note_once(error, f"while as_completed waited for {self._running.size} operations")
                raise
            if not future.is_paused:
                return _outcome_in_iteration(future)
            await future.start_before_data(loop)
            self._note_started(future)
        return _outcome_in_iteration(self._settled.popleft())


def _outcome_in_iteration(future: DeviceFuture[T]) -> T:
    """Returns the future's outcome. ``StopAsyncIteration``, which would end the iteration as if all were done, becomes
    a ``RuntimeError``, as in a generator."""
    try:
        return future.outcome()
    except StopAsyncIteration as error:
        raise RuntimeError("an operation given to as_completed raised StopAsyncIteration") from error


def _serial(entry: tuple[int, int, Mark, DeviceFuture[Any]]) -> int:
    return entry[1]


def spawn(
    nursery: trio.Nursery,
    operation: DeviceOperation[T] | DeviceFuture[T],
    *,
    errors: Literal["nursery", "handle"] = "nursery",
) -> JoinHandle[T]:
    """Runs an operation as a task of a trio nursery. ``await handle`` returns its result or raises its error.

    An error of the operation is raised in the nursery, too, as an error of any task: the nursery cancels its other
    tasks. With ``errors="handle"`` it is raised in the nursery only if the handle was dropped before, and otherwise
    kept for the task that awaits the handle. Raises ``TypeError`` unless the arguments are a nursery and an operation,
    ``ValueError`` for other ``errors``, and ``NoEventLoopError`` outside trio.
    """
    if not hasattr(nursery, "start_soon"):
        raise TypeError(
            f"spawn takes a trio nursery, not {type(nursery).__name__}; under asyncio, use a task or gather"
        )
    if running_loop_name() != "trio":
        raise NoEventLoopError(
            "spawn was called outside of trio, or in another thread than the nursery's; from a thread of trio's, "
            "trio.from_thread.run_sync(spawn, nursery, operation) calls it where the nursery is"
        )
    _require_operation(operation, "spawn")
    if not isinstance(errors, str) or errors not in ("nursery", "handle"):
        raise ValueError(f'spawn(errors={written(errors)}): errors go to the "nursery" and the handle, or to "handle"')
    future = _future(operation)
    handle: JoinHandle[T] = JoinHandle()
    held = weakref.ref(handle) if errors == "handle" else None
    nursery.start_soon(_run, future, handle._state, held, name=f"oxide.spawn {operation!r}")
    return handle


@final
class JoinHandle(Dropping, Generic[T]):
    """A handle to a spawned operation's result. May be awaited by several tasks, and repeatedly."""

    def __init__(self) -> None:
        self._state: _JoinState[T] = _JoinState()

    def done(self) -> bool:
        """Returns whether awaiting would give the outcome at once."""
        return self._state.finished.is_set()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        await self._state.finished.wait()
        self._state.taken = True
        self._drop = None
        if self._state.error is not None:
            raise self._state.error.with_traceback(self._state.trace)
        return self._state.result

    def __reduce__(self) -> NoReturn:
        raise TypeError("a JoinHandle cannot be pickled or copied; it may be awaited again, and by several tasks")


class _JoinState(Generic[T]):
    result: T

    def __init__(self) -> None:
        import trio

        self.finished = trio.Event()
        self.error: BaseException | None = None
        self.trace: TracebackType | None = None  # of the error's first raise
        self.taken = False

    def _complaint(self) -> str | None:
        """Returns the warning that the error was never seen; None if there is no error or it was seen."""
        if self.error is None or self.taken:
            return None
        return f"a spawned operation failed and its handle was never awaited: {self.error!r}"


async def _run(future: DeviceFuture[T], state: _JoinState[T], handle: weakref.ref[JoinHandle[T]] | None) -> None:
    """Runs a spawned operation. ``handle`` is None if its errors are raised in the nursery."""
    try:
        state.result = await future
    except Exception as error:
        state.error, state.trace = error, error.__traceback__
        if handle is None or handle() is None:
            raise
        _hold_to_account(handle(), state)
    except BaseException:
        state.error = OperationCancelledError("the spawned operation was cancelled with its nursery")
        raise
    finally:
        state.finished.set()


def _hold_to_account(handle: JoinHandle[Any] | None, state: _JoinState[Any]) -> None:
    """Makes the handle warn when dropped. Separate from ``_run``, because the error's traceback keeps ``_run``'s frame
    alive: a reference to the handle in a local variable there would keep the handle alive."""
    if handle is not None and not isinstance(state.error, OperationCancelledError):
        handle._drop = partial(note_dropped, state)


def _require_operation(operation: object, what: str) -> None:
    if isinstance(operation, (DeviceOperation, DeviceFuture)):
        operation.consume()
    else:
        raise TypeError(f"{what} takes operations, not {type(operation).__name__}; value(x) makes one of a plain value")


def _future(operation: DeviceOperation[T] | DeviceFuture[T]) -> DeviceFuture[T]:
    if isinstance(operation, DeviceFuture):
        return operation
    future = operation.into_future()
    future.consume()
    return future


_TURNS = 16  # number of results that gather takes before it lets other tasks run


def _finish_first(futures: list[DeviceFuture[Any]], finished: int) -> int:
    """Takes the outcomes of futures in order, up to the first that has not finished, and returns how many have been
    taken in all. ``finished`` is how many were taken before. Operations submitted later can then reuse the staging
    buffers and fault records of these futures.

    Skips the newest ``_TURNS // 2`` futures, which are probably still running. First checks the others from the newest
    on, up to one that has not finished: if the device keeps up, one query for each stream answers for all earlier
    futures of that stream.
    """
    settled = len(futures) - _TURNS // 2
    for number in range(settled - 1, finished - 1, -1):
        if not _is_done(futures[number]):
            break
    while finished < settled and _is_done(futures[finished]):
        futures[finished].outcome()
        finished += 1
    return finished


def _is_done(future: DeviceFuture[Any]) -> bool:
    try:
        mark = future.next_mark()
        return not future.is_paused and (mark is None or mark.passed())
    except DeviceError:
        return False  # awaiting the future raises this error as its outcome


def _leave(future: DeviceFuture[Any]) -> None:
    """Abandons a future's submitted work. Its memory is freed when the device is past it."""
    mark = future.next_mark()
    if mark is not None:
        future.abandon()
        reactor_of(current_loop()).notice(mark)


# Before the first request

Preparable: TypeAlias = "Kernel | Specialization | DeviceOperation[Any]"


class Preparing(Protocol):
    """An object that prepares itself, such as a ``Batcher`` with ``Buckets``."""

    def prepare_in_thread(self) -> None:
        """Compiles and captures. Called in a thread."""


_PREPARES_ITSELF: Final = "prepare_in_thread"


async def prepare(*things: Preparable | Preparing | Callable[[], Preparable]) -> None:
    """Compiles and captures ahead of time, off the loop: a service awaits it before it begins to serve.

    Each of ``things`` is a kernel, an operation, ``kernel.specialize(…)`` of a generic kernel, a ``Batcher`` of
    ``Buckets``, or a function without arguments that returns one of the first three and is called in the thread.
    Building a launch of boxes compiles too: ``prepare(lambda: relu(x, y))`` keeps this compilation off the loop. An
    operation is not run, and may be run afterwards. Its functions of ``and_then`` and ``map`` are called one extra
    time, as by ``graph()``, but for those that would see host data: what depends on their results is not prepared.
    Sources of its ``shared`` operations are run.

    Always a checkpoint. The first error, such as a ``CompileError``, ends the preparation and is raised, with a note
    that names the kernel or the operation. Raises ``GraphError`` for an operation that cannot be captured,
    ``ArgumentError`` for a generic kernel without its types, ``TypeError`` for any other kind of argument. If the task
    is cancelled, the thread finishes what it has begun.
    """
    loop = current_loop()
    await loop.checkpoint_if_cancelled()
    for thing in things:
        if isinstance(thing, DeviceOperation):
            thing.consume()
        elif not callable(thing) and not isinstance(thing, Specialization) and not hasattr(thing, _PREPARES_ITSELF):
            raise TypeError(
                f"oxide.prepare takes kernels, operations, or functions that return one, not {type(thing).__name__}"
            )
    await loop.in_thread(partial(_prepare_all, current_runtime(), things))


def _prepare_all(runtime: Runtime, things: tuple[Any, ...]) -> None:
    for thing in things:
        if hasattr(thing, _PREPARES_ITSELF):
            thing.prepare_in_thread()
            continue
        made = thing if isinstance(thing, (Kernel, Specialization, DeviceOperation)) else thing()
        try:
            _prepare_one(runtime, made)
        except Exception as error:
            what = f"kernel {made.name}" if isinstance(made, Kernel) else repr(made)
            add_note_once(error, f"when oxide.prepare prepared {what}")
            raise


def _prepare_one(runtime: Runtime, thing: Any) -> None:
    device = runtime.default_device
    if isinstance(thing, Kernel):
        if thing.is_generic:
            raise ArgumentError(
                f"oxide.prepare({thing.name}): the kernel is generic, and its types follow from the arguments of a "
                f"launch; give a function that names them, prepare(lambda: {thing.name}.specialize(…)), or one "
                f"that builds a launch"
            )
        thing = thing.specialize()
    if isinstance(thing, Specialization):
        loaded_function(thing, device)
    elif isinstance(thing, DeviceOperation):
        device = thing._home(runtime)
        load_announced(device)
        try:
            _rehearse(thing, device.new_stream())
        except GraphError as error:
            raise GraphError(
                f"oxide.prepare cannot capture {thing!r}: {error}. Prepare the kernels that it launches, or "
                f"the parts of it that can be captured"
            ) from error
    else:
        raise TypeError(
            f"a function given to oxide.prepare returned {type(thing).__name__}; it must return a kernel, a "
            f"specialization or an operation"
        )


def _rehearse(operation: DeviceOperation[Any], stream: Stream) -> None:
    """Captures ``operation`` and discards the capture. This compiles and loads all kernels that the operation launches,
    but for those that depend on the result of a function that sees host data, and makes the page-locked memory that it
    needs. It runs nothing but the sources of shared operations."""
    from oxide.runtime.operations.captured_graph import discard, record  # here, as many programs capture nothing

    operation.consume()
    context = ExecutionContext(stream, Recording(stream, rehearses=True))

    def work() -> None:
        with suppress(Unknown):
            operation.run(context)

    record(context, operation, work)
    discard(context)
