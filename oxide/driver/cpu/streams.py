"""Streams, events and work of the CPU device: plain state, without threads or scheduling.

A stream is a FIFO of items. An event is a name for a ``Point``, a position in a stream. Recording makes a new point, so
recording again moves the event, and waits already submitted keep the old point. A scheduler decides which thread runs
the items, and when: ``workers`` (threads) or ``steps`` (one item at a time, on request).

All blocks of a cooperative launch are live at once, and wait for each other at the grid's barriers. One pass over the
blocks runs each block from one grid barrier to the next, on as many workers as are worth waking. Between two passes no
block runs, which has the effect of the barrier. No worker ever waits for another.

If a clock measures the device, the items that a thread submits between its ``begin`` and ``end`` get a ``Times``, which
the threads that run the items fill in. So the times are exact. An item that is not traced costs one test of an
attribute.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeAlias, final

from oxide.driver.base import ConditionalKind, Dim3, Droppable, Span
from oxide.driver.cpu.errors import driver_error
from oxide.driver.records import COOPERATIVE
from oxide.errors import DeviceLostError, DriverError, LaunchError

_numbers = itertools.count(1)


@final
class Point:
    """A position in ``stream``, which is None once the point is passed.

    Passing the point calls each of the ``waiters`` under the scheduler's lock: once, or twice if an interrupt came
    during the call.
    """

    __slots__ = ("passed", "stream", "time_ns", "waiters")

    def __init__(self, stream: CpuStream | None = None) -> None:
        self.passed = False
        self.stream = stream
        self.time_ns = 0
        self.waiters: list[Callable[[], object]] = []


@final
class Times:
    """The times when the work of an item began and ended, by ``perf_counter_ns``, for a ``CpuClock``. Both are
    0 until a time is noted. ``over`` is True once the work has ended."""

    __slots__ = ("begun", "ended", "over")

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.over = False

    def note(self, begun: int, ended: int) -> None:
        """Records when a part of the work, such as some blocks of a kernel, began and ended."""
        if not self.begun or begun < self.begun:
            self.begun = begun
        self.ended = max(self.ended, ended)


@final
class Record:
    """The item that passes a point."""

    __slots__ = ("point",)

    def __init__(self, point: Point) -> None:
        self.point = point

    def __repr__(self) -> str:
        return "record event"


@final
class Wait:
    """The item that holds its stream back until a point is passed."""

    __slots__ = ("point",)

    def __init__(self, point: Point) -> None:
        self.point = point

    def __repr__(self) -> str:
        return "wait for event"


@final
class Task:
    """An item of indivisible work.

    A ``brief`` task takes less time than waking a thread, never calls user code, and may be run again from its
    beginning after an interrupt. A ``kernel`` task is a sanitized launch, which may take forever. ``droppable`` is the
    run of an operation that the work belongs to, None if it belongs to no run. Clocks skip a task whose ``measured`` is
    False: work that the driver itself adds to a launch.
    """

    __slots__ = ("brief", "description", "droppable", "kernel", "measured", "run", "times")

    def __init__(
        self,
        description: str,
        run: Callable[[], object],
        *,
        brief: bool = False,
        kernel: bool = False,
        measured: bool = True,
    ) -> None:
        self.description = description
        self.run = run
        self.brief = brief
        self.kernel = kernel
        self.measured = measured
        self.droppable: Droppable | None = None
        self.times: Times | None = None  # set by a clock

    def renewed(self) -> Task:
        """Returns a new task that does the same work, with times of its own."""
        return Task(self.description, self.run, brief=self.brief, kernel=self.kernel, measured=self.measured)

    def run_timed(self) -> None:
        """Runs the work, and notes its times if a clock asks for them."""
        times = self.times
        if times is None:
            self.run()
            return
        begun = perf_counter_ns()
        try:
            self.run()
        finally:
            times.note(begun, perf_counter_ns())
            times.over = True

    def __repr__(self) -> str:
        return self.description


@final
class ThreadPace:
    """The time in ns that one thread of a kernel without loops takes, learned from its launches; 0 before the first."""

    __slots__ = ("nanoseconds",)

    def __init__(self) -> None:
        self.nanoseconds = 0.0

    def learn(self, nanoseconds: float, *, exact: bool) -> None:
        """Records the time of one thread. A time that is not ``exact`` may include the caller's wait for the GIL, so it
        never replaces a shorter time."""
        known = self.nanoseconds
        self.nanoseconds = nanoseconds if exact or not known else min(nanoseconds, known)


@final
class LoopFree:
    """Lets a waiting thread run the blocks of a launch itself, if the kernel has no loops. A block has ``threads``
    threads.

    ``run_holding`` does the same as the launch's ``run``, but keeps the GIL. It is for work that takes less time than
    handing the GIL over.
    """

    __slots__ = ("pace", "run_holding", "threads")

    def __init__(self, run_holding: Callable[[int, int], object], pace: ThreadPace, threads: int) -> None:
        self.run_holding = run_holding
        self.pace = pace
        self.threads = threads


@final
class BlockRange:
    """A kernel's blocks, handed out in chunks to any number of workers.

    ``run(first, end)`` runs blocks without the GIL. The scheduler's lock guards ``next`` (the next block to hand out),
    ``workers`` (the number of workers in the kernel) and ``nanoseconds_per_block`` (the pace of the blocks that have
    run). The blocks of a ``cooperative`` launch are handed out again for each pass. ``loop_free`` is set for a kernel
    whose blocks end soon whatever its arguments are; ``run`` is then a function in C. ``droppable`` means the same as
    in ``Task``.
    """

    __slots__ = (
        "cooperative", "description", "droppable", "loop_free", "nanoseconds_per_block", "next", "run", "times",
        "total", "workers",
    )  # fmt: skip

    def __init__(
        self, description: str, run: Callable[[int, int], object], total: int, loop_free: LoopFree | None = None
    ) -> None:
        self.description = description
        self.run = run
        self.loop_free = loop_free
        self.cooperative = run if isinstance(run, CooperativeRun) else None
        self.total = total
        self.next = 0
        self.workers = 0
        self.nanoseconds_per_block = 0.0
        self.droppable: Droppable | None = None
        self.times: Times | None = None

    def expected(self) -> float:
        """Returns the nanoseconds that the remaining blocks will take on one thread, 0 if that is unknown."""
        small, left = self.loop_free, self.total - self.next
        if self.nanoseconds_per_block or small is None:
            return self.nanoseconds_per_block * left
        return small.pace.nanoseconds * small.threads * left

    def learn(self, nanoseconds_per_block: float, *, exact: bool) -> None:
        """Records the time per block. ``exact`` means the same as in ``ThreadPace.learn``."""
        self.nanoseconds_per_block = nanoseconds_per_block
        if self.loop_free is not None:
            self.loop_free.pace.learn(nanoseconds_per_block / self.loop_free.threads, exact=exact)

    def renewed(self) -> BlockRange:
        """Returns a new launch of the same kernel, with no blocks handed out."""
        run = self.run if self.cooperative is None else self.cooperative.renewed()
        return BlockRange(self.description, run, self.total, self.loop_free)

    def __repr__(self) -> str:
        return self.description


MOST_THREADS, MOST_BLOCKS = 2**18, 2**13
"""The most threads and blocks of a grid that may be live at once, because each takes memory. A large GPU holds about as
many."""


def blocks_that_fit(threads: int) -> int:
    """Returns how many blocks of ``threads`` threads may be live at once."""
    return min(MOST_BLOCKS, MOST_THREADS // threads)


def check_fits(device: int, grid: Dim3, block: Dim3) -> None:
    """Raises ``LaunchError`` for a grid whose blocks cannot all be live at once."""
    total, fitting = math.prod(grid), blocks_that_fit(math.prod(block))
    if total > fitting:
        raise LaunchError(
            f"thread.sync_grid() needs all blocks on the device at once: the launch has {total} blocks of "
            f"{math.prod(block)} threads, and cpu:{device} holds {fitting} of them; launch at most that "
            "many, and let each thread do several elements"
        )


@final
class CooperativeRun:
    """A cooperative launch of a kernel's entry ``call``. A call of the launch runs a range of blocks to the grid's next
    barrier, without the GIL."""

    def __init__(
        self,
        call: Callable[[Any, int, int], object],
        device: int,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        params: bytes,
        seed: int,
    ) -> None:
        self._call = call
        self._launch = (device, grid, block, shared_bytes, params, seed)
        check_fits(device, grid, block)
        self._total = math.prod(grid)
        self._blocks = (ctypes.c_void_p * self._total)()
        address = ctypes.addressof(self._blocks)
        self._record = COOPERATIVE.structure(grid, block, shared_bytes, seed, params, address, least=2**32 - 1)
        self._pointer = ctypes.byref(self._record)

    def __call__(self, first: int, end: int) -> None:
        self._call(self._pointer, first, end)

    def goes_on(self) -> bool:
        """Returns whether all blocks must run another pass. Call it at the end of each pass.

        Abandons the blocks if they can never continue: if some wait while others have ended, or if they wait at
        different barriers.
        """
        record = self._record
        if not record.waiting:
            return False
        if record.finished or record.least != record.greatest:
            record.abandon = 1
            self(0, self._total)
            return False
        record.waiting, record.least, record.greatest = 0, 2**32 - 1, 0
        return True

    def renewed(self) -> CooperativeRun:
        """Returns a new run of the same launch, for a graph's next launch."""
        return CooperativeRun(self._call, *self._launch)


@final
class Unfolding:
    """An item that puts further items in front of itself: the chosen body of a conditional, the next iteration of a
    loop, or the work of a graph with branches.

    ``unfold(stream)`` makes these items. When they have run, the item is at the head of its stream again. It is then
    over, or unfolds again if it ``repeats``. It is also over if ``unfold`` returns no items.
    """

    __slots__ = ("_unfold", "description", "repeats", "times", "unfolded")

    def __init__(self, description: str, unfold: Callable[[CpuStream], list[Item]], *, repeats: bool = False) -> None:
        self.description = description
        self.repeats = repeats
        self.unfolded = False  # set by the scheduler, in one step with the insertion of the items
        self.times: Times | None = None  # set by a clock
        self._unfold = unfold

    def further(self, stream: CpuStream) -> list[Item]:
        """Returns the items to put in front of this item, in reverse order; an empty list if this item is over."""
        now = perf_counter_ns()
        items = [] if self.unfolded and not self.repeats else self._unfold(stream)
        items.reverse()
        if self.times is not None:
            self.times.note(now, perf_counter_ns())
            self.times.over = not items
        return items

    def renewed(self) -> Unfolding:
        """Returns a new item that does the same, for another launch of a graph."""
        return Unfolding(self.description, self._unfold, repeats=self.repeats)

    def __repr__(self) -> str:
        return self.description


@final
class Fork:
    """The item that makes the items of ``lane`` runnable. ``lane`` is the stream of one branch of a graph; its items
    were put into it before the scheduler knew the stream."""

    __slots__ = ("lane",)

    def __init__(self, lane: CpuStream) -> None:
        self.lane = lane

    def __repr__(self) -> str:
        return f"begin {self.lane!r}"


Recordable: TypeAlias = Task | BlockRange | Unfolding
"""An item that a capture records."""

Item: TypeAlias = Record | Wait | Fork | Recordable


def is_dropped(work: Task | BlockRange) -> bool:
    """Returns whether the work was dropped. Dropped work must not start."""
    droppable = work.droppable
    return droppable is not None and droppable.dropped


@final
class CapturedPart:
    """One part of a capture: the items that it recorded, in order. A launch runs them after the parts whose numbers
    are in ``after``. ``begun`` is True if ``capture_after`` began the part, False for the part that a capture begins
    with."""

    __slots__ = ("after", "begun", "items")

    def __init__(self, after: tuple[int, ...], *, begun: bool = False) -> None:
        self.after = after
        self.begun = begun
        self.items: list[Recordable] = []


@final
class OpenConditional:
    """A conditional whose bodies are being captured, each on a stream of its own. ``kind``, ``flag`` and ``stop`` are
    the arguments of ``begin_conditional``."""

    __slots__ = ("bodies", "flag", "kind", "stop")

    def __init__(self, kind: ConditionalKind, flag: int, stop: int, bodies: tuple[CpuStream, ...]) -> None:
        self.kind = kind
        self.flag = flag
        self.stop = stop
        self.bodies = bodies


@final
class CpuStream:
    """An in-order queue of items. ``running`` is not 0 while a thread runs its items, or will soon: the thread's number
    if it does so in a call of the program's, otherwise 1. With worker threads, a stream that has items and is not
    running waits for an event. The items of a ``high`` stream run first."""

    __slots__ = ("captured", "conditional", "destroyed", "device", "high", "items", "number", "running")

    def __init__(self, device: int, *, high: bool = False) -> None:
        self.device = device
        self.high = high
        self.number = next(_numbers)
        self.items: deque[Item] = deque()
        self.captured: list[CapturedPart] | None = None  # the parts of a capture; None outside a capture
        self.conditional: OpenConditional | None = None  # in a capture
        self.running = 0
        self.destroyed = False

    def __repr__(self) -> str:
        return f"<stream {self.number} of cpu:{self.device}>"


@final
class CpuEvent:
    """An event. ``point`` is the point recorded last, ``None`` before the first recording."""

    __slots__ = ("destroyed", "device", "number", "point", "timing")

    def __init__(self, device: int, *, timing: bool) -> None:
        self.device = device
        self.number = next(_numbers)
        self.timing = timing
        self.point: Point | None = None
        self.destroyed = False

    def __repr__(self) -> str:
        return f"<event {self.number} of cpu:{self.device}>"


class Scheduler(ABC):
    """The base class of schedulers, which run the items of streams. Every method may be called from any thread."""

    def __init__(self) -> None:
        self.failures: dict[int, BaseException] = {}

    @abstractmethod
    def submit(self, stream: CpuStream, item: Item) -> None:
        """Appends an item to the stream. Raises ``DriverError`` once the scheduler is closing."""

    @abstractmethod
    def wait(self, point: Point) -> None:
        """Blocks until a submitted point is passed."""

    @abstractmethod
    def close(self) -> None:
        """Runs all submitted work and ends the threads. May be called again."""

    def abandon(self) -> None:  # noqa: B027
        """Lets threads end when they run out of work. Does not wait. A finalizer calls this method, so the call may
        come at any moment."""

    def block_order(self, total: int) -> list[tuple[int, int]]:
        """Returns the ranges of blocks, in the order in which to run them, for a kernel that one thread runs alone."""
        return [(0, total)]

    def synchronize(self, stream: CpuStream) -> None:
        """Blocks until all work now in the stream has run."""
        if stream.running or stream.items:
            point = Point(stream)
            self.submit(stream, Record(point))
            self.wait(point)

    def record_failure(self, device: int, error: BaseException) -> None:
        """Marks a device as failed. Its streams continue, so that waiters do not hang."""
        self.failures.setdefault(device, error)

    def raise_lost(self, device: int) -> None:
        """Raises ``DeviceLostError`` if the device's streams can never continue."""
        cause = self.failures.get(device)
        if isinstance(cause, DeviceLostError):
            raise cause

    def raise_failure(self, device: int) -> None:
        """Raises ``DriverError`` or ``DeviceLostError`` if the device has failed."""
        self.raise_lost(device)
        cause = self.failures.get(device)
        if cause is not None:
            raise driver_error(
                "CUDA_ERROR_LAUNCH_FAILED",
                f"work submitted to cpu:{device} failed with {type(cause).__name__}: {cause}; "
                "what it was to write is undefined: start over with a new driver",
            ) from cause


def pass_point(point: Point) -> None:
    """Marks a point as passed and calls its waiters. After an interrupted call, calls the waiters that remain. The
    caller must hold the scheduler's lock."""
    if not point.passed:
        point.time_ns = perf_counter_ns()
        point.passed = True
        point.stream = None
    waiters = point.waiters
    while waiters:
        waiters[0]()
        del waiters[0]


def closed_error() -> DriverError:
    """Returns the error for a submission to a driver that is closing or closed."""
    return driver_error(
        "CUDA_ERROR_DEINITIALIZED", "the CPU driver is closed and takes no more work; make a new CpuDriver"
    )


@final
class _Measured(threading.local):
    """``times`` has the times of the items that the calling thread submits; it is None unless the thread is between
    ``begin`` and ``end``."""

    times: list[Times] | None = None


@final
class CpuClock:
    """The ``Clock`` of a ``CpuDriver``. ``ended`` is called when the clock is closed."""

    source = "workers"

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._measured = _Measured()

    def note(self, item: Recordable) -> Recordable:
        """Makes ``item`` note its times, if the calling thread is between ``begin`` and ``end``. Returns the item. A
        conditional of a graph is measured as a whole."""
        times = self._measured.times
        if times is not None and (not isinstance(item, Task) or item.measured):
            noted = item.times = Times()
            times.append(noted)
        return item

    def begin(self, stream: CpuStream) -> list[Times]:
        """Begins to measure the items that the calling thread submits."""
        times: list[Times] = []
        self._measured.times = times
        return times

    def end(self, token: list[Times], stream: CpuStream) -> None:
        """Ends the measurement that ``begin`` began."""
        self._measured.times = None

    def collect(self, *, final: bool) -> None:
        """Does nothing: the threads fill in the times themselves."""

    def spans(self, token: list[Times]) -> list[Span] | None:
        """Returns the times of the items; None if an item has not ended. A dropped item never ends."""
        for times in token:
            if not times.over or not times.begun:
                return None
        return [Span(times.begun, times.ended) for times in token]

    def forget(self, token: list[Times]) -> None:
        """Does nothing: a token holds nothing but a little memory."""

    def close(self) -> None:
        """Ends the measuring: the driver may open another clock."""
        self._ended()
