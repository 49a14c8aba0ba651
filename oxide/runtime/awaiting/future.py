"""DeviceFuture: an operation bound to a stream, as a three-state machine.

Idle: nothing has been submitted. Executing: work was submitted, and the device is not known to have finished it. The
run may be *paused*: its walk has stopped, and the rest is submitted later, by a task that awaits the future. Complete:
the outcome is known. The first await submits the work. The idea is cuda-async's ``DeviceFuture``.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, final

from oxide.errors import OperationCancelledError
from oxide.host import core
from oxide.host.core import current_turn, submit
from oxide.runtime.awaiting.completion import reactor_of, spin, wait_any, wait_on
from oxide.runtime.awaiting.loading import load_beside, may_load
from oxide.runtime.loop.event_loops import EventLoop, current_loop
from oxide.runtime.loop.pace import SHARE_SECONDS, Turn
from oxide.runtime.memory.reclaim import Run
from oxide.runtime.submission.stops import Beside, HostData, StillRunning, Stop
from oxide.runtime.submission.submission import Submission
from oxide.runtime.tracepoints import points

if TYPE_CHECKING:
    from oxide.runtime.ordering.stream import Stream
    from oxide.runtime.ordering.timeline import Mark
    from oxide.runtime.submission.submission import Paused
    from oxide.runtime.submission.walk import Submittable

T = TypeVar("T")


def would_keep(turn: Turn, stream: Stream) -> bool:
    """Returns whether a submission to ``stream`` might block the loop. This cheap check comes before
    ``ready_to_submit``, to avoid creating a coroutine."""
    return turn.used_up or may_load(stream.device)


async def ready_to_submit(loop: EventLoop, stream: Stream) -> Turn:
    """Waits until a submission to ``stream`` will not block the loop. Returns the current turn of the calling thread.
    The thread may have changed during the wait, because an asyncio loop may continue in another thread."""
    if may_load(stream.device):
        await load_beside(loop, stream.device)
    if current_turn().used_up:
        await reactor_of(loop).next_turn(loop)
    return current_turn()


@final
class FutureState(enum.Enum):
    """The state of a future."""

    IDLE = "idle"  # nothing submitted
    EXECUTING = "executing"  # submitted, perhaps not completely, and not known to be done
    COMPLETE = "complete"  # the outcome is known


_IDLE: Final = FutureState.IDLE  # an enum's member costs two look-ups at each use
_EXECUTING: Final = FutureState.EXECUTING
_COMPLETE: Final = FutureState.COMPLETE


@final
class DeviceFuture(core.DeviceFuture, Generic[T]):
    """An operation bound to a stream; the work is submitted at the first await.

    The future may be awaited again, and by several tasks: each await returns the same result object or raises the same
    error. Awaiting is always a checkpoint. A task that is cancelled while it waits gets the cancellation at once. The
    submitted work keeps its memory until the device is past the work. A paused run submits nothing more, unless another
    task awaits the future, then or later. Another task that awaits the future still gets its outcome. Dropping a future
    that was never awaited submits nothing, and gives the same warning as dropping an operation that was never run.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # of the core, with their types
        _operation: Submittable[T] | None
        _paused: Paused[T] | None
        _submission: Submission[T] | None

        def __init__(self, operation: Submittable[T], stream: Stream) -> None: ...

        def outcome(self) -> T: ...

    @property
    def state(self) -> FutureState:
        """Returns the state: idle, executing or complete."""
        return self._state

    @property
    def stream(self) -> Stream:
        """Returns the stream that the work runs on."""
        return self._stream

    def __await__(self) -> Generator[Any, Any, T]:
        return self.wait(current_loop()).__await__()

    async def wait(self, loop: EventLoop, *, alone: bool = False) -> T:
        """Awaits the future in ``loop``, which must be the running loop. ``alone`` is True if only the calling task has
        this future.

        Submits the work, lets other tasks run once, and then waits if necessary. A cancellation is raised before
        anything is submitted, or while the task waits. If the device has done the work when the other tasks have run,
        the task does not wait: the call costs one query of the driver and no further coroutine, and returns the result
        even if trio has cancelled the task meanwhile.
        """
        self.consume()
        tracer = points.tracer
        awaited = None if tracer is None else tracer.awaits(self._traced_name())
        await loop.checkpoint_if_cancelled()
        turn = current_turn()
        if self._state is _IDLE and (turn.spent >= SHARE_SECONDS or may_load(self._stream.device)):
            turn = await ready_to_submit(loop, self._stream)
        stop = self.start(turn)
        if stop is not None:
            try:
                await self._go_through(loop, stop, alone)
            except BaseException:
                if tracer is not None:
                    tracer.resumed(awaited, "cancelled")
                raise
        submission = self._submission
        if submission is None:
            await loop.checkpoint()
            if tracer is not None:
                tracer.resumed(awaited, "")
            return self.outcome()
        self._waiting += 1
        mark = submission.mark
        try:
            number = turn.number
            await loop.let_run()
            turn.over(number)
            if not mark.passed():
                marks, runtime, begun = [mark], self._stream.device.runtime, time.perf_counter()
                if not spin(runtime, marks, begun):
                    await wait_on(loop, runtime, marks, begun)
        except Exception as error:
            submission.explain(error)
            self._complete(error)
        except BaseException:  # cancelled
            if tracer is not None:
                tracer.resumed(awaited, "cancelled")
            if self._waiting == 1 and self._state is _EXECUTING:
                self.abandon()
                reactor_of(loop).notice(mark)
            # An asyncio task that ended with the cancellation keeps the traceback, and so this frame and its variables.
            del submission
            if alone:
                self._submission = None
            raise
        finally:
            self._waiting -= 1
        if tracer is not None:
            tracer.resumed(awaited, "")
        return self.outcome()

    # Used by the runtime

    def _start_slowly(self, turn: Turn) -> Stop | None:
        """Does what ``start`` does, also for a run that is paused, or that another thread submits."""
        with self._lock:  # waits while another thread submits the work
            if self._submission is not None or self.state is _COMPLETE:
                return None
            self._state = _EXECUTING
            begun = time.perf_counter()
            gave_up, turn.gives_up = turn.gives_up, True
            try:
                paused = self._paused
                if paused is not None:
                    if not paused.stop.is_over():
                        return paused.stop
                    self._submission = paused.go_on()
                else:
                    assert self._operation is not None
                    made = submit(self._operation, self._stream, Run() if self._stream.drops_work else None)
                    if isinstance(made, Submission):
                        self._submission = made
                    else:
                        self._paused = paused = made
                        self._operation = None
                if self._submission is None:
                    assert paused is not None
                    return paused.stop
            except BaseException as error:
                self._complete(error)
                if not isinstance(error, Exception):  # such as KeyboardInterrupt inside a function of and_then
                    raise
            finally:
                turn.gives_up = gave_up
                turn.spend(begun)
            self._operation = self._paused = None
            return None

    async def pass_stop(self, loop: EventLoop, stop: Stop) -> None:
        """Waits until the walk, which has stopped for ``stop``, may go on. Raises the loop's cancellation. An error of
        the device becomes the outcome."""
        if isinstance(stop, StillRunning):
            await reactor_of(loop).left(loop, stop.once)
        elif isinstance(stop, Beside):
            await reactor_of(loop).work_beside(loop, stop.block)
        elif isinstance(stop, HostData):
            runtime = self._stream.device.runtime
            try:
                for mark in stop.marks:
                    if not mark.passed():
                        await wait_any(loop, runtime, [mark])
            except Exception as error:
                with self._lock:
                    if self._paused is not None and self._paused.stop is stop:
                        self._paused.fail(error)
                        self._complete(error)

    async def start_before_data(self, loop: EventLoop) -> None:
        """Submits the work up to its end, or up to a stop for host data: ``next_mark`` then tells what to wait for."""
        stop = self.start()
        while stop is not None and not isinstance(stop, HostData):
            await self.pass_stop(loop, stop)
            stop = self.start()

    async def _go_through(self, loop: EventLoop, stop: Stop, alone: bool) -> None:
        """Submits the rest of the work of a run that has stopped for ``stop``."""
        self._waiting += 1
        next_stop: Stop | None = stop
        try:
            while next_stop is not None:
                await self.pass_stop(loop, next_stop)
                next_stop = self.start()
        except BaseException:  # cancelled
            mark = self.next_mark()
            if alone:
                self._drop_paused()
            if mark is not None and self._waiting == 1:
                reactor_of(loop).notice(mark)
            raise
        finally:
            self._waiting -= 1

    @property
    def submission(self) -> Submission[T] | None:
        """Returns the submission while its outcome is unknown, else None."""
        return self._submission

    @property
    def has_outcome(self) -> bool:
        """Returns whether the outcome is known, or the device is past everything: ``outcome`` may be called."""
        return self._submission is None and self._paused is None

    def next_mark(self) -> Mark | None:
        """Returns a mark that the device must pass before the run can go on, or before its outcome is known; None if it
        waits for no mark."""
        submission = self._submission
        return self.data_mark() if submission is None else submission.mark

    def data_mark(self) -> Mark | None:
        """Returns a mark that the device must pass before a paused run can go on; None if it waits for no mark."""
        paused = self._paused
        stop = None if paused is None else paused.stop
        return stop.next_mark() or stop.marks[0] if isinstance(stop, HostData) else None

    @property
    def is_paused(self) -> bool:
        """Returns whether the run is paused: a part of the work is still to be submitted."""
        return self._paused is not None

    def abandon(self) -> None:
        """Hands everything that the work uses to the reclaimer's limbo (``memory/reclaim.py``). Call it when no task
        waits for the work any more."""
        submission = self._submission
        if submission is not None:
            submission.abandon()

    def _drop_paused(self) -> None:
        """Ends a paused run: it submits nothing more."""
        with self._lock:
            if self._paused is not None:
                self._paused.drop()
                self._complete(OperationCancelledError("the run was cancelled before all of it was submitted"))

    def _traced_name(self) -> str:
        operation = self._operation
        return "an operation" if operation is None else operation.traced_name()

    def _complete(self, error: BaseException) -> None:
        submission = self._submission
        self._error, self._trace = error, error.__traceback__
        self._operation = self._paused = None
        self._state = _COMPLETE
        self._submission = None
        if submission is not None:
            submission.abandon()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DeviceFuture cannot be pickled or copied; it may be awaited again, and by several tasks")

    def __repr__(self) -> str:
        return f"<oxide.DeviceFuture {self._state.value} on {self._stream!r}>"


core.setup(idle=FutureState.IDLE, executing=FutureState.EXECUTING, complete=FutureState.COMPLETE)
