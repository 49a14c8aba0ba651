"""Many operations at once: gather, as_completed, spawn."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from oxide.errors import DeviceError, OperationCancelledError
from oxide.runtime.completion import reactor_of, wait_any
from oxide.runtime.event_loops import EventLoop, current_loop
from oxide.runtime.future import DeviceFuture
from oxide.runtime.operation import DeviceOperation
from oxide.runtime.submission import add_note_once
from oxide.runtime.timeline import Mark

if TYPE_CHECKING:
    import trio

T = TypeVar("T")


async def gather(*operations: DeviceOperation[Any] | DeviceFuture[Any]) -> tuple[Any, ...]:
    """Submits all, then waits for all: the tuple of their results, in order. Always a checkpoint.

    The first error, in the order of the arguments, is raised; then, or when the task is cancelled, what was
    submitted keeps its memory until the device is past it.
    """
    futures = [_future(operation, "gather") for operation in operations]
    loop = current_loop()
    await loop.checkpoint_if_cancelled()
    try:
        for future in futures:
            future.start()
            if future.submission is None:
                future.outcome()  # a failed submission: submit no more
        if not futures:
            await loop.checkpoint()
        # What is done already needs no trip through the loop (4 µs under trio), but others must get their turns.
        return tuple(
            [
                future.outcome() if number % _TURNS and _is_done(future) else await future
                for number, future in enumerate(futures)
            ]
        )
    except BaseException:
        for future in futures:
            _leave(future)
        raise


def as_completed(
    operations: Iterable[DeviceOperation[T] | DeviceFuture[T]], *, limit: int | None = None
) -> AsyncIterator[T]:
    """``async for result in as_completed(ops, limit=8)``: results as they finish, at most ``limit`` in flight.

    An error ends the iteration and is raised; then, or when the task is cancelled, what was submitted keeps its
    memory until the device is past it, and the rest is not submitted.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"as_completed(limit={limit!r}): the limit must be an integer of 1 or more, or None")
    return _AsCompleted([_future(operation, "as_completed") for operation in operations], limit)


@final
class _AsCompleted(AsyncIterator[T]):
    def __init__(self, futures: list[DeviceFuture[T]], limit: int | None) -> None:
        self._waiting = deque(futures)
        self._limit = limit
        self._running: list[DeviceFuture[T]] = []

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        loop = current_loop()
        await loop.checkpoint_if_cancelled()
        try:
            while self._waiting and (self._limit is None or len(self._running) < self._limit):
                future = self._waiting.popleft()
                future.start()
                self._running.append(future)
            if not self._running:
                await loop.checkpoint()
                raise StopAsyncIteration
            return await self._next(loop)
        except BaseException:
            for future in self._running:
                _leave(future)
            self._running.clear()
            self._waiting.clear()
            raise

    async def _next(self, loop: EventLoop) -> T:
        if all(future.submission is not None for future in self._running):
            runtime = self._running[0].stream.device.runtime
            try:
                await wait_any(loop, runtime, [_mark(future) for future in self._running])
            except DeviceError as error:
                add_note_once(error, f"while as_completed waited for {len(self._running)} operations")
                raise
        else:
            await loop.checkpoint()
        for index, future in enumerate(self._running):
            if future.submission is None or future.submission.mark.passed():
                del self._running[index]
                return future.outcome()
        raise AssertionError("wait_any returned before any mark was passed")


def spawn(nursery: trio.Nursery, operation: DeviceOperation[T] | DeviceFuture[T]) -> JoinHandle[T]:
    """Runs an operation as a task of a trio nursery. ``await handle`` gives its result or raises its error.

    An error goes to the handle while somebody holds it; one whose handle was thrown away is raised in the nursery,
    as any task's is.
    """
    if not hasattr(nursery, "start_soon"):
        raise TypeError(
            f"spawn takes a trio nursery, not {type(nursery).__name__}; under asyncio, use a task or gather"
        )
    future = _future(operation, "spawn")
    handle: JoinHandle[T] = JoinHandle()
    nursery.start_soon(_run, future, handle._state, weakref.ref(handle), name=f"oxide.spawn {operation!r}")
    return handle


@final
class JoinHandle(Generic[T]):
    """A spawned operation's result to come. May be awaited by several tasks, and again."""

    def __init__(self) -> None:
        self._state: _JoinState[T] = _JoinState()

    def done(self) -> bool:
        """Whether awaiting would give the outcome at once."""
        return self._state.finished.is_set()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        await self._state.finished.wait()
        self._state.taken = True
        if self._state.error is not None:
            raise self._state.error
        return self._state.result

    def __del__(self) -> None:
        state = self._state
        if state.error is not None and not state.taken and not isinstance(state.error, OperationCancelledError):
            warnings.warn(
                f"a spawned operation failed and its handle was never awaited: {state.error!r}",
                RuntimeWarning,
                stacklevel=2,
            )


class _JoinState(Generic[T]):
    result: T

    def __init__(self) -> None:
        import trio

        self.finished = trio.Event()
        self.error: BaseException | None = None
        self.taken = False


async def _run(future: DeviceFuture[T], state: _JoinState[T], handle: weakref.ref[JoinHandle[T]]) -> None:
    try:
        state.result = await future
    except Exception as error:
        if handle() is None:
            raise
        state.error = error
    except BaseException:
        state.error = OperationCancelledError("the spawned operation was cancelled with its nursery")
        raise
    finally:
        state.finished.set()


def _future(operation: DeviceOperation[T] | DeviceFuture[T], what: str) -> DeviceFuture[T]:
    if isinstance(operation, DeviceFuture):
        return operation
    if isinstance(operation, DeviceOperation):
        return operation.into_future()
    raise TypeError(f"{what} takes operations, not {type(operation).__name__}; value(x) makes one of a plain value")


_TURNS = 16  # results that gather takes before it lets other tasks run


def _is_done(future: DeviceFuture[Any]) -> bool:
    submission = future.submission
    try:
        return submission is None or submission.mark.passed()
    except DeviceError:
        return False  # awaiting it makes this its outcome


def _mark(future: DeviceFuture[Any]) -> Mark:
    assert future.submission is not None
    return future.submission.mark


def _leave(future: DeviceFuture[Any]) -> None:
    """Abandons what was submitted and has it swept when the device is past it."""
    submission = future.submission
    if submission is not None:
        future.abandon()
        reactor_of(current_loop()).notice(submission.mark)
