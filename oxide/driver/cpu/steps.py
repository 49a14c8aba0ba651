"""The CPU device's scheduler for tests and for runs with a seed: it has no threads and runs items only on request.

A test builds a situation (a kernel "in flight", a copy not yet made), examines it for as long as it likes, and then
lets one item run. A seed decides each choice among the runnable streams and the order of a kernel's blocks. So a search
over seeds is a search over schedules, and a failure is replayed by its seed.

Without a seed, the items of high-priority streams run before all others. With a seed, the scheduler draws from all
runnable streams, because on a real device work of a normal stream may begin, or continue, although a high-priority
stream is ready. So a search finds programs that mistake a priority for an order.

Ctrl-C ends the wait for a kernel, or for a graph's loop. The device is then lost: nothing can end the kernel or the
loop itself, so later work never runs. Python reports Ctrl-C to the main thread only, and only between two bytecode
instructions, and a whole kernel runs within one. So the main thread lets another thread run the kernel and waits. Still
only one of the two runs at a time. A thread for each kernel costs some 50 microseconds. Threads other than the main
thread get no signals, so they run kernels themselves.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import final

from oxide.driver.cpu.errors import driver_error
from oxide.driver.cpu.streams import (
    BlockRange,
    CpuStream,
    Fork,
    Item,
    Point,
    Record,
    Scheduler,
    Task,
    Unfolding,
    Wait,
    closed_error,
    is_dropped,
    pass_point,
)
from oxide.errors import DeviceLostError
from oxide.host.locks import DRIVER_LOCK

_MOST_RANGES = 4096
"""The most ranges that a kernel's blocks are divided into: shuffling and calling more of them takes too long."""


@final
class StepScheduler(Scheduler):
    """A scheduler that runs one item in each step. The item is the first of a given stream, or of a runnable stream
    drawn with ``seed``. Without a seed, it is the earliest submission that can run, high-priority streams first.

    ``abandoned`` is called when a kernel is left running, as the kernel may use memory forever.

    Ctrl-C may interrupt a call anywhere. Python checks for signals after calls, so lines without calls, followed by one
    call of a function in C, are one atomic step. An item stays at the head of its stream until it has run. If the run
    of an item is interrupted and the item may be run again, the item stays at the head, and the next step of the stream
    runs it again.
    """

    def __init__(self, seed: int | None, abandoned: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._abandoned = abandoned
        self._lost: DeviceLostError | None = None
        self._random = None if seed is None else random.Random(seed)
        self._progress = threading.Condition(DRIVER_LOCK)
        # The streams that have work, with the submission numbers of their items.
        self._busy: dict[CpuStream, list[int]] = {}
        self._submitted = 0
        self._runners: list[int] = []
        self._closed = False

    def submit(self, stream: CpuStream, item: Item) -> None:
        with DRIVER_LOCK:
            if self._closed:
                raise closed_error()
            order = self._busy.setdefault(stream, [])
            self._submitted += 1
            order += [self._submitted]
            stream.items.append(item)

    def pending(self) -> tuple[CpuStream, ...]:
        """Returns the streams whose first item could run now: the high-priority streams, then the others. Each of the
        two groups is in the order in which the first items were submitted."""
        with DRIVER_LOCK:
            runnable = [
                (not stream.high, order[0], stream)
                for stream, order in list(self._busy.items())
                if order and not stream.running and not _is_held_back(stream.items[0])
            ]
        runnable.sort(key=lambda entry: entry[:2])
        return tuple(stream for _, _, stream in runnable)

    def step(self, stream: CpuStream | None = None) -> bool:
        """Runs one item, of ``stream`` if that is given. Returns ``False`` if no item can run.

        If a signal handler's exception, such as ``KeyboardInterrupt``, ends the wait for a kernel, marks the device as
        lost and raises that exception.
        """
        this = threading.get_ident()
        taken = over = left_behind = False
        try:
            with DRIVER_LOCK:
                runnable = self.pending()
                if stream is None and runnable:
                    stream = runnable[0] if self._random is None else self._random.choice(runnable)
                if stream is None or stream not in runnable:
                    return False
                item = stream.items[0]
                again = item.brief if isinstance(item, Task) else not isinstance(item, BlockRange)
                self._runners += [this]
                stream.running = taken = True
            over = not again
            over = self._run(stream, item)
        except Abandoned as error:
            assert stream is not None
            left_behind = True
            raise self._lose(stream, error) from None
        finally:
            if taken and stream is not None:
                with DRIVER_LOCK:
                    stream.running = left_behind
                    if over:
                        del stream.items[0], self._busy[stream][0]
                    if not self._busy[stream]:
                        del self._busy[stream]
                    self._runners.remove(this)
                    self._progress.notify_all()
        return True

    def run_until_idle(self) -> None:
        """Steps until no item can run."""
        while self.step():
            pass

    def wait(self, point: Point) -> None:
        """Steps until the point is passed.

        Raises ``DriverError`` if no step can ever pass it, ``DeviceLostError`` if an abandoned kernel or loop may be
        the reason.
        """
        try:
            self._step_to(point)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._leave_loops(error)
            raise

    def _step_to(self, point: Point) -> None:
        while not point.passed:
            if self.step():
                continue
            with self._progress:
                if point.passed or self.pending():
                    continue
                if all(runner == threading.get_ident() for runner in self._runners):
                    if self._lost is not None:
                        raise self._lost
                    raise driver_error(
                        "CUDA_ERROR_ILLEGAL_STATE",
                        "a deadlock: waiting for a stream or an event that no item left to run can bring about; "
                        f"streams that hold work: {list(self._busy) or 'none'}. "
                        "Is this call made by a host function?",
                    )
                self._progress.wait()

    def close(self) -> None:
        with DRIVER_LOCK:
            self._closed = True
        self.run_until_idle()

    def block_order(self, total: int) -> list[tuple[int, int]]:
        """Returns ranges of blocks in running order. Without a seed there is one range. With a seed there are up to
        ``_MOST_RANGES`` ranges of neighbouring blocks, in random order; each is a single block if the launch has few
        blocks."""
        if self._random is None:
            return [(0, total)]
        size = -(-total // _MOST_RANGES)
        ranges = [(first, min(first + size, total)) for first in range(0, total, size)]
        self._random.shuffle(ranges)
        return ranges

    def _passes(self, blocks: BlockRange) -> Iterator[Callable[[], object]]:
        """Yields the calls that run a kernel, one per range of blocks. For a cooperative launch, yields the calls of
        every pass."""
        goes_on = True
        while goes_on:
            for first, end in self.block_order(blocks.total):
                yield partial(blocks.run, first, end)
            goes_on = blocks.cooperative is not None and blocks.cooperative.goes_on()

    def _run(self, stream: CpuStream, item: Item) -> bool:
        """Runs an item. Returns False if the item has put further items in front of itself, and so is not over."""
        try:
            if isinstance(item, Record):
                with DRIVER_LOCK:
                    pass_point(item.point)
            elif isinstance(item, Fork):
                self._begin(item.lane)
            elif isinstance(item, Unfolding):
                return self._unfold(stream, item)
            elif isinstance(item, Wait) or is_dropped(item):
                pass
            elif isinstance(item, BlockRange):
                begun = perf_counter_ns()
                run_interruptibly(self._passes(item))
                if item.times is not None:
                    item.times.note(begun, perf_counter_ns())
                    item.times.over = True
            elif item.kernel:
                run_interruptibly([item.run_timed])
            else:
                item.run_timed()
        except Abandoned:
            raise
        except Exception as error:
            self.record_failure(stream.device, error)
        return True

    def _unfold(self, stream: CpuStream, item: Unfolding) -> bool:
        """Puts further items in front of ``item``. Returns True if there are none, because ``item`` is over."""
        items = item.further(stream)
        if not items:
            return True
        with DRIVER_LOCK:
            order = self._busy[stream]
            numbers = order[:1] * len(items)
            item.unfolded = True  # one step together with the next two lines
            order[:0] = numbers
            stream.items.extendleft(items)
        return False

    def _begin(self, lane: CpuStream) -> None:
        """Makes the items of ``lane``, the stream of a graph's branch, runnable. They were put into the stream before
        the scheduler knew it. Does nothing if an earlier call, whose step was interrupted, has done this."""
        with DRIVER_LOCK:
            if lane.items and lane not in self._busy:
                first = self._submitted + 1
                self._submitted += len(lane.items)
                self._busy[lane] = list(range(first, self._submitted + 1))

    def _lose(self, stream: CpuStream, abandoned: Abandoned) -> BaseException:
        """Marks a stream's device as lost because of an abandoned kernel. Returns the exception that ended the wait."""
        interrupt = abandoned.__cause__
        assert interrupt is not None
        self._mark_lost(stream, "kernel", interrupt)
        self._abandoned()
        return interrupt

    def _leave_loops(self, interrupt: BaseException) -> None:
        """Leaves the loops that have begun, which may be endless: their streams run no further, and their devices are
        lost."""
        with DRIVER_LOCK:
            for stream in list(self._busy):
                if any(isinstance(item, Unfolding) and item.repeats and item.unfolded for item in stream.items):
                    stream.running = 1
                    self._mark_lost(stream, "loop", interrupt)

    def _mark_lost(self, stream: CpuStream, what: str, interrupt: BaseException) -> None:
        with DRIVER_LOCK:
            self._lost = DeviceLostError(
                f"the wait for a {what} on cpu:{stream.device} was ended by {type(interrupt).__name__}, and nothing "
                f"can end the {what} itself: start over with a new driver, or in a new process"
            )
            self.record_failure(stream.device, self._lost)


def _is_held_back(item: Item) -> bool:
    return isinstance(item, Wait) and not item.point.passed


@final
class Abandoned(Exception):
    """Raised if a signal handler's exception, the ``__cause__``, ended the wait for a kernel. The kernel continues to
    run."""


def run_interruptibly(calls: Iterable[Callable[[], object]]) -> None:
    """Makes the calls one after another. If a call raises an exception, raises that and makes no more calls.

    Raises ``Abandoned`` if a signal handler raised an exception before the last call returned. The current call then
    continues, and no other begins.
    """
    work = _Work(calls)
    if threading.current_thread() is not threading.main_thread():
        work.run()
    else:
        try:
            _wait_for(work)
        except BaseException as interrupt:
            work.stop = True
            if work.done:
                raise
            raise Abandoned from interrupt
    if work.error is not None:
        raise work.error


def _wait_for(work: _Work) -> None:
    """Lets another thread do the work and waits for its end. If the system has no more threads, does the work here."""
    try:
        threading.Thread(target=work.run, name="oxide kernel", daemon=True).start()
    except RuntimeError:
        work.run()
    work.over.acquire()


@final
class _Work:
    """Calls and their progress. The first thread that claims the calls makes them all."""

    def __init__(self, calls: Iterable[Callable[[], object]]) -> None:
        self._calls = calls
        self._claim = threading.Lock()
        self.over = threading.Lock()
        self.over.acquire()
        self.stop = False
        self.done = False
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            for call in self._calls:
                if self.stop:
                    return
                call()
            self.done = True
        except BaseException as error:
            self.error, self.done = error, True
        finally:
            self.over.release()
