"""The two event loops in which an operation can be awaited, trio's and asyncio's, behind one small interface.

A loop can raise a pending cancellation, let other tasks run, park the current task until it is woken, call a function
when a file descriptor becomes readable or after a while, run a function in a thread, and hold one object for as long as
the loop runs. This module imports trio or asyncio only if the program has imported it: otherwise its loop cannot be
running.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, final

from oxide.errors import NoEventLoopError
from oxide.host.core import alarm
from oxide.host.weak_table import WeakTable

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

T = TypeVar("T")


class EventLoop(ABC):
    """The loop that runs the current task."""

    checkpoint_if_cancelled: Callable[[], Coroutine[Any, Any, None]]
    """Raises the loop's cancellation if the task is cancelled, else returns at once."""
    checkpoint: Callable[[], Coroutine[Any, Any, None]]
    """Lets other tasks run. Raises the loop's cancellation."""
    let_run: Callable[[], Coroutine[Any, Any, None]]
    """Lets other tasks run, and leaves a cancellation for the next checkpoint."""

    @abstractmethod
    def sleeper(self) -> Sleeper:
        """Returns a one-shot parking slot for the current task."""

    @abstractmethod
    def local(self, make: Callable[[EventLoop], Any]) -> Any:
        """Returns the object that this loop holds for as long as the loop runs. The first call makes the object with
        ``make``."""

    @abstractmethod
    def watch_readable(self, descriptor: int, callback: Callable[[], None], closed: Callable[[], None]) -> None:
        """Calls ``callback`` whenever ``descriptor`` is readable, and ``closed`` after the loop has ended."""

    @abstractmethod
    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Calls ``callback`` after ``seconds``, unless the loop has ended by then."""

    @abstractmethod
    def from_threads(self) -> Callable[[Callable[[], None]], None]:
        """Returns a function that any thread may call. That function has the loop call its argument soon, unless the
        loop has ended."""

    @abstractmethod
    async def in_thread(self, function: Callable[[], T]) -> T:
        """Calls ``function`` in a thread, waits for the thread and returns the result. After a cancellation the wait
        ends, and the thread runs on."""


class Sleeper(ABC):
    """A one-shot parking slot: ``wake`` resumes the task. ``wake`` is called on the loop's thread, once or more, at any
    time."""

    @abstractmethod
    async def sleep(self) -> None:
        """Returns after ``wake``, even if ``wake`` came first. Raises the loop's cancellation."""

    @abstractmethod
    def wake(self) -> None: ...


def current_loop() -> EventLoop:
    """Returns the loop that runs the calling task. Raises ``NoEventLoopError`` outside trio and asyncio."""
    loop = (_found.get_running_loop or _running_asyncio_loop)()
    if loop is None and _trio_loop is not None and _found.sniffed.name == "trio":  # the common case
        return _trio_loop
    # If no asyncio loop runs, sniffio's name suffices: trio itself refuses a coroutine that is driven by hand outside
    # of tasks.
    if _sniffed_name() == "trio" if loop is None else _in_trio() and _trio_is_inside():
        return _trio_loop or _make_trio_loop()
    if loop is not None:
        return _AsyncioLoop(loop)
    raise NoEventLoopError(
        "an operation was awaited outside any event loop: await it under trio.run or asyncio.run, or call op.sync()"
    )


def running_loop_name() -> str | None:
    """Returns ``"trio"`` or ``"asyncio"`` if the calling thread is running one, else None."""
    if _in_trio():
        return "trio"
    return "asyncio" if _running_asyncio_loop() is not None else None


def blocked_loop_name() -> str | None:
    """Returns the name of the loop that a blocking call would stall, or None if there is no such loop.

    A loop that is running a cell of a notebook does not count: the loop waits for the cell, whatever the cell does. In
    a task that a cell has started, a blocking call does stall the loop.
    """
    sniffed, asyncio_loop = _found.sniffed, _found.get_running_loop or _running_asyncio_loop
    if sniffed is not None and sniffed.name is None and asyncio_loop() is None:  # the common case: none runs
        return None
    name = running_loop_name()
    return None if name is None or _in_cell() else name


def _in_cell() -> bool:
    """Returns whether the calling code runs in a notebook's cell and not in a task. Searches the stack from its
    innermost frame for a frame of IPython's cell or of a loop: the first one found decides."""
    if "IPython.core.interactiveshell" not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe(0)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == "IPython.core.interactiveshell":
            return True
        if module in ("asyncio.events", "trio._core._run"):
            return False
        frame = frame.f_back
    return False


def _sniffed_name() -> str | None:
    """Returns the name of the loop that the calling thread runs, as the loop reports it to sniffio. Trio does so,
    asyncio does not. Returns None if no name was reported."""
    sniffed = _found.sniffed
    if sniffed is None:
        sniffed = _found.sniffed = getattr(sys.modules.get("sniffio"), "thread_local", None)
        if sniffed is None:
            return None
    name: str | None = sniffed.name
    return name


def _in_trio() -> bool:
    # Asks sniffio first: trio's own function raises and catches an exception if trio does not run, and another thread
    # may still be importing trio.
    if _sniffed_name() is None:
        return False
    if _found.in_trio_task is None:
        trio = sys.modules.get("trio")
        if trio is None:
            return False
        _found.in_trio_task = trio.lowlevel.in_trio_task
    inside: bool = _found.in_trio_task()
    return inside


def _running_asyncio_loop() -> asyncio.AbstractEventLoop | None:
    get_running_loop = _found.get_running_loop
    if get_running_loop is None:
        module = sys.modules.get("asyncio")
        if module is None:
            return None
        # The package ``asyncio`` has this function only once ``asyncio.events`` is fully imported. Until then the
        # function in ``asyncio.events`` may be the version in Python, which the import replaces by the version in C.
        get_running_loop = _found.get_running_loop = getattr(module, "_get_running_loop", None)
        if get_running_loop is None:
            return None
    loop: asyncio.AbstractEventLoop | None = get_running_loop()
    return loop


@final
class _Found:
    """Functions of trio and asyncio, and sniffio's thread-local object. Every operation uses them, so they are looked
    up once, after the program has imported their modules."""

    __slots__ = ("get_running_loop", "in_trio_task", "sniffed")

    def __init__(self) -> None:
        self.sniffed: Any = None
        self.in_trio_task: Any = None
        self.get_running_loop: Any = None


_found: Final = _Found()


def _trio_is_inside() -> bool:
    """Returns whether trio's loop is the inner one, if one loop was run inside the other.

    Both libraries then report that their loop runs, so this function searches the stack from its innermost frame.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        module = frame.f_globals.get("__name__", "")
        if module == "asyncio.base_events":
            return False
        if module == "trio._core._run":
            return True
    return True


@final
class _TrioLoop(EventLoop):
    """The loop of every run of trio: trio's functions act on the current run, so one object serves all runs.

    Its checkpoint methods are trio's own functions, without another coroutine around each.
    """

    def __init__(self) -> None:
        import trio

        self.checkpoint_if_cancelled = trio.lowlevel.checkpoint_if_cancelled
        self.checkpoint = trio.lowlevel.checkpoint
        self.let_run = trio.lowlevel.cancel_shielded_checkpoint
        self._local = trio.lowlevel.RunVar[Any]("oxide reactor")

    def sleeper(self) -> Sleeper:
        return _TrioSleeper()

    def local(self, make: Callable[[EventLoop], Any]) -> Any:
        try:
            return self._local.get()
        except LookupError:
            made = make(self)
            self._local.set(made)
            return made

    def watch_readable(self, descriptor: int, callback: Callable[[], None], closed: Callable[[], None]) -> None:
        import trio

        async def watch() -> None:
            try:
                while True:
                    await trio.lowlevel.wait_readable(descriptor)
                    callback()
            finally:
                closed()

        trio.lowlevel.spawn_system_task(watch, name="oxide completion")

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        import trio

        async def wait() -> None:
            await trio.sleep(seconds)
            callback()

        trio.lowlevel.spawn_system_task(wait, name="oxide completion, a look")

    def from_threads(self) -> Callable[[Callable[[], None]], None]:
        import trio

        token = trio.lowlevel.current_trio_token()

        def call_soon(function: Callable[[], None]) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(function)

        return call_soon

    async def in_thread(self, function: Callable[[], T]) -> T:
        import trio

        return await trio.to_thread.run_sync(function, abandon_on_cancel=True)


@final
class _TrioSleeper(Sleeper):
    def __init__(self) -> None:
        import trio

        self._task = trio.lowlevel.current_task()
        self._asleep = False
        self._woken = False

    async def sleep(self) -> None:
        import trio

        if self._woken:
            await trio.lowlevel.checkpoint()
            return

        def abort(_: object) -> trio.lowlevel.Abort:
            self._asleep = False
            return trio.lowlevel.Abort.SUCCEEDED

        self._asleep = True
        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            self._asleep = False  # an interrupt may come before the task sleeps: wake must not reschedule it then

    def wake(self) -> None:
        import trio

        self._woken = True
        if self._asleep:
            self._asleep = False
            trio.lowlevel.reschedule(self._task)


_trio_loop: _TrioLoop | None = None


def _make_trio_loop() -> _TrioLoop:
    global _trio_loop
    _trio_loop = _TrioLoop()
    return _trio_loop


_asyncio_locals: WeakTable[Any, Any] = WeakTable()
_closing: Final[dict[weakref.ref[Any], Callable[[], None]]] = {}  # the ``closed`` callbacks of watched loops
_gone: Final[deque[weakref.ref[Any]]] = deque()  # references to loops that were collected


def _call_closed() -> None:
    """Calls the ``closed`` callbacks of loops that have been collected. Called before another loop is watched.

    The callback of the weak reference to the loop does not call them itself: a finaliser must not run Python code.
    """
    while _gone:
        try:
            closed = _closing.pop(_gone.popleft(), None)
        except IndexError:  # another thread took the last entry
            return
        if closed is not None:
            closed()


@final
class _AsyncioLoop(EventLoop):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def checkpoint_if_cancelled(self) -> None:
        """Does nothing: asyncio delivers a cancellation at the next real suspension."""

    async def checkpoint(self) -> None:
        import asyncio

        await asyncio.sleep(0)

    def let_run(self) -> Coroutine[Any, Any, None]:
        """Lets other tasks run. asyncio cannot defer a cancellation that arrives meanwhile, so this may raise it."""
        return self.checkpoint()

    def sleeper(self) -> Sleeper:
        return _AsyncioSleeper(self._loop)

    def local(self, make: Callable[[EventLoop], Any]) -> Any:
        made = _asyncio_locals.get(self._loop)
        if made is None:
            _call_closed()
            made = _asyncio_locals.set(self._loop, make(self))
        return made

    def watch_readable(self, descriptor: int, callback: Callable[[], None], closed: Callable[[], None]) -> None:
        # A closed loop has removed its readers, so no loop watches the descriptor when the loop object is collected.
        self._loop.add_reader(descriptor, callback)
        _closing[weakref.ref(self._loop, _gone.append)] = closed

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._loop.call_later(seconds, callback)

    def from_threads(self) -> Callable[[Callable[[], None]], None]:
        loop = self._loop

        def call_soon(function: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(function)

        return call_soon

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(None, function)


@final
class _AsyncioSleeper(Sleeper):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future = loop.create_future()

    async def sleep(self) -> None:
        await self._future

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


@final
class Alarm:
    """A file descriptor that a native callback makes readable: ``core.NOTIFY``, which writes the number 1, in eight
    bytes, to the alarm whose ``argument`` it gets. It takes no lock, allocates nothing and does not use Python.

    The descriptor is never closed, because a callback may still be outstanding when the alarm's loop ends. Instead the
    next loop reuses the alarm. There a late callback is only a spurious wake-up. ``argument`` is the callback's
    argument.
    """

    _spare: ClassVar[list[Alarm]] = []

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.descriptor = self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.descriptor, self._bell = os.pipe()
            os.set_blocking(self.descriptor, False)
            os.set_blocking(self._bell, False)
        self.argument = alarm(self._bell)

    @classmethod
    def take(cls) -> Alarm:
        try:
            return cls._spare.pop()
        except IndexError:
            return cls()

    def give_back(self) -> None:
        self._spare.append(self)

    def ring(self) -> None:
        """Makes the descriptor readable, as the native callback does."""
        with contextlib.suppress(BlockingIOError):  # it is readable already
            os.write(self._bell, (1).to_bytes(8, sys.byteorder))

    def clear(self) -> None:
        """Makes the descriptor unreadable until the next callback or ``ring``."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
