"""The tasks of a batcher or of a pool of Ray actors, under trio and asyncio. They are started and cancelled one by one,
and waited for together.

trio's nursery and asyncio's tasks differ in some ways, which a group hides:

- Errors. A nursery wraps an exception that is raised in its ``async with`` block in an ``ExceptionGroup``. So the group
  does not pass the exception of the batcher's or the pool's block to the nursery.
- Cancelling one task. trio needs a cancel scope for each task, and asyncio cancels the task itself. Here ``start``
  returns a function that cancels the task, and a cancelled task ends without an exception.
- Contexts. Both start a task in a copy of the caller's context, and the caller may be any task that uses the batcher.
  Here a task has a copy of the context in which the group was made.
- Waiting. A nursery waits for its tasks when its block ends. asyncio's tasks must be kept and waited for. Here
  ``close`` returns when the last task has ended, including tasks that are started in the meantime.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, final

from oxide.host.messages import written
from oxide.runtime.loop.event_loops import current_loop, running_loop_name

T = TypeVar("T")


class TaskGroup(ABC):
    """The tasks of one batcher or pool, in the event loop in which its block was entered."""

    @abstractmethod
    async def open(self) -> None:
        """Starts the group. The same task must later call ``close``."""

    @abstractmethod
    def start(self, function: Callable[[], Coroutine[Any, Any, None]], name: str) -> Callable[[], None]:
        """Starts a task, and returns the function that cancels it."""

    @abstractmethod
    async def close(self) -> None:
        """Waits until all tasks have ended. If the caller is cancelled, cancels the tasks, waits for them, and then
        raises the cancellation."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancels all tasks, including tasks that are started later."""

    @abstractmethod
    def is_running_here(self) -> bool:
        """Returns whether the calling task runs in the group's event loop."""

    @abstractmethod
    def now(self) -> float:
        """Returns the loop's time in seconds."""

    @abstractmethod
    async def sleep_until(self, time: float) -> None:
        """Sleeps until the loop's time is ``time``."""

    @abstractmethod
    async def within(self, seconds: float, awaitable: Awaitable[T]) -> T:
        """Returns the result of ``awaitable``. Cancels it after ``seconds`` and raises ``TimeoutError``."""


def task_group() -> TaskGroup:
    """Returns a group for the running event loop. Raises ``NoEventLoopError`` outside trio and asyncio."""
    current_loop()
    return _TrioGroup() if running_loop_name() == "trio" else _AsyncioGroup()


@final
class _TrioGroup(TaskGroup):
    def __init__(self) -> None:
        import trio

        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self._context = copy_context()
        self._manager = trio.open_nursery()

    async def open(self) -> None:
        self._nursery = await self._manager.__aenter__()

    def start(self, function: Callable[[], Coroutine[Any, Any, None]], name: str) -> Callable[[], None]:
        scope = self._trio.CancelScope()

        async def run() -> None:
            with scope:
                await function()

        self._context.run(partial(self._nursery.start_soon, run, name=name))
        return scope.cancel

    async def close(self) -> None:
        await self._manager.__aexit__(None, None, None)

    def cancel(self) -> None:
        self._nursery.cancel_scope.cancel()

    def is_running_here(self) -> bool:
        return running_loop_name() == "trio" and self._trio.lowlevel.current_trio_token() is self._token

    def now(self) -> float:
        return self._trio.current_time()

    async def sleep_until(self, time: float) -> None:
        await self._trio.sleep_until(time)

    async def within(self, seconds: float, awaitable: Awaitable[T]) -> T:
        with self._trio.move_on_after(seconds):
            return await awaitable
        raise _too_late(seconds)


@final
class _AsyncioGroup(TaskGroup):
    def __init__(self) -> None:
        import asyncio

        self._asyncio = asyncio
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cancelled = False

    async def open(self) -> None:
        pass

    def start(self, function: Callable[[], Coroutine[Any, Any, None]], name: str) -> Callable[[], None]:
        task = self._context.run(partial(self._loop.create_task, function(), name=name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_cancelled:
            self._cancel(task)
        return lambda: self._cancel(task)

    def _cancel(self, task: Any) -> None:
        # Not at once: a task that is cancelled before its first step runs none of its code, so no ``finally`` either.
        self._loop.call_soon(task.cancel)

    async def close(self) -> None:
        cancelled: BaseException | None = None
        while self._tasks:
            try:
                await self._asyncio.wait(self._tasks)
            except self._asyncio.CancelledError as error:
                cancelled = error
                self.cancel()
        if cancelled is not None:
            raise cancelled

    def cancel(self) -> None:
        self._is_cancelled = True
        for task in self._tasks:
            self._cancel(task)

    def is_running_here(self) -> bool:
        return running_loop_name() == "asyncio" and self._asyncio.get_running_loop() is self._loop

    def now(self) -> float:
        return self._loop.time()

    async def sleep_until(self, time: float) -> None:
        await self._asyncio.sleep(time - self._loop.time())

    async def within(self, seconds: float, awaitable: Awaitable[T]) -> T:
        timeout = self._asyncio.timeout(seconds)
        try:
            async with timeout:
                return await awaitable
        except TimeoutError as error:
            if timeout.expired():
                raise _too_late(seconds) from error
            raise


def _too_late(seconds: float) -> TimeoutError:
    return TimeoutError(f"the batcher did not answer the request within {written(seconds)} s")
