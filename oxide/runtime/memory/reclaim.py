"""Reclamation: frees memory that the program has dropped, once the device no longer uses it.

There are three ways. A dropped allocation is *retired*: its memory is freed in stream order, after its last use on any
stream. The free is submitted to a stream that used the allocation, if that stream already runs after the uses on other
streams, and otherwise to a separate stream. So no stream waits for another because memory was dropped. Work that no
task waits for any more goes into the *limbo*: its task was cancelled, or its future was dropped. Everything that such
work uses is kept until the device is past the work. Work whose submission failed half-way is *stranded*: everything
that it uses is kept until its stream has run dry.

Finalisers run at any moment, in any thread, while any lock is held. So a finaliser only appends to a deque. The driver
is called from ``sweep``, which runs when operations are submitted and when they complete, and from ``make_room`` and
``drain``. A sweep may find ten thousand things to free on an event loop's thread, so its time is bounded, and the next
sweep continues. Each loop over a queue reads the clock before it takes an item, and handles that item even if the time
is over. So every sweep takes something from every queue, however long the earlier queues took, and no queue waits for
ever.

A *run* is one execution of an operation. A run that was awaited and cancelled is *dead* once nothing refers to its
results: its boxes, the arrays that it downloads into, its outcome. All of these hold one token, the run's ``Visible``,
so the run is dead when the token is gone. A sweep checks for this, and sets ``dropped``. The device then skips all work
of the run that it has not begun (``Runs.for_run``). Two things exclude a run from being dropped:

- The run wrote memory that it did not allocate: a box of the caller, of a graph or of another library, or a host array
  of the program. Such a run is executed as a whole, so that its effect is never partial.
- Work of another run used this run's memory, so the results may be observed through the other run.

Only launches, copies, fills and oxide's host functions are skipped. The device still passes marks, streams wait for
each other and memory is freed in stream order, as if the work had been done. The program's own host functions on a
stream, and the sources of shared operations, do not belong to a run that may be dropped.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from oxide.driver.base import Driver, EventHandle, GraphHandle, provided
from oxide.errors import DeviceError, DeviceLostError
from oxide.host.locks import RUNTIME_LOCK, held_error, refuse_inside
from oxide.runtime.loop.pace import SHARE_SECONDS
from oxide.runtime.memory.allocation import Allocation, dropped

if TYPE_CHECKING:
    from oxide.runtime.ordering.timeline import DeviceState, Mark, Timeline

T = TypeVar("T")

_FEW: Final = 64  # as many items as are finalised within a fraction of a millisecond

_MOST_BESIDE = 32  # the most separate streams for frees: there is one for each set of streams that frees wait for

settle: Final[list[Callable[[], None]]] = []
"""Waits for the work of the runtime in force: ``runtime.py`` adds the function."""
collectors: Final[list[Callable[[], None]]] = []
"""Functions that ``collect`` calls first. The function of ``dlpack`` drops boxes that other libraries have released."""

LEGACY_DEFAULT_STREAM = 1
"""CUDA's number for the default stream. Libraries use that stream unless they are given another."""


def drain() -> None:
    """Waits until the device is past all dropped and cancelled work, and frees the memory of that work.

    Work of ``async_on`` counts as dropped, as oxide knows of no waiter for it; its errors are kept for
    ``stream.synchronize()``. Work that a task awaits is not waited for. Blocks the thread, for ever if dropped work
    waits for this thread. Frees cached page-locked memory too, so that afterwards only memory that the program holds is
    allocated. If the driver reports an error when dropped work is waited for or dropped memory is freed, tries again,
    and raises the second such ``DeviceError``.
    """
    refuse_inside()
    for function in settle:
        function()


def collect(until: float = math.inf) -> None:
    """Hands dropped allocations to the reclaimers of their runtimes: at least one, and further ones until the time
    ``until`` by ``time.perf_counter``. After an interrupt, or if another thread collects too, an allocation may be
    handed over twice. A sweep frees it only once, because the first free sets its address to 0."""
    clock = time.perf_counter
    for more in collectors:
        more()
    late = False
    while dropped and not late:
        late = clock() >= until
        try:
            allocation = dropped[0]
        except IndexError:  # another thread took it
            return
        allocation.visible = None  # the program can no longer observe the run through it
        if allocation.is_held():
            reclaimer = allocation.device.runtime.reclaimer
            if allocation.adopted:
                reclaimer._adopted.append(allocation)
            else:
                allocation.device.live.pop(allocation.address, None)
                reclaimer._retired.append(allocation)
        try:
            dropped.remove(allocation)
        except ValueError:  # another thread took it
            continue


@final
class StreamOrder(Generic[T]):
    """Items that wait for marks, by stream. The device passes a stream's marks in order, so only the first mark of each
    stream is queried."""

    def __init__(self) -> None:
        self.waiting: dict[Timeline, list[tuple[int, int, Mark, T]]] = {}
        self._serial = count()

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def size(self) -> int:
        """Returns the number of waiting items."""
        return sum(map(len, list(self.waiting.values())))

    def add(self, mark: Mark, item: T) -> None:
        """Adds an item that waits for ``mark``."""
        entry = (mark.position, next(self._serial), mark, item)
        heap = self.waiting.get(mark.timeline)
        if heap is None:
            self.waiting[mark.timeline] = [entry]
        else:
            heapq.heappush(heap, entry)

    def pop_passed(self, most: float = math.inf) -> list[T]:
        """Removes and returns up to ``most`` items whose marks the device is past, or whose device is lost.

        If the query of an item's mark raises another error, the item stays.
        """
        passed: list[T] = []
        for timeline, heap in list(self.waiting.items()):
            while heap and len(passed) < most and _is_passed(heap[0][2]):
                passed.append(heapq.heappop(heap)[3])
            del self.waiting[timeline]
            if heap:
                self.waiting[timeline] = heap  # at the end, so that the next call begins with the other streams
        return passed

    def remove(self, timeline: Timeline) -> list[T]:
        """Removes and returns all items of one stream."""
        return [entry[3] for entry in self.waiting.pop(timeline, [])]

    def timelines(self) -> list[Timeline]:
        """Returns the streams that have items."""
        return list(self.waiting)

    def head(self, timeline: Timeline) -> Mark:
        """Returns the first mark of a stream that has items."""
        return self.waiting[timeline][0][2]

    def heads(self) -> list[Mark]:
        """Returns the first mark of each stream."""
        # an interrupted ``pop_passed`` leaves an empty heap
        return [heap[0][2] for heap in self.waiting.values() if heap]


def _is_passed(mark: Mark) -> bool:
    try:
        return mark.passed()
    except DeviceLostError:
        return True
    except DeviceError:
        return False


@final
class Reclaimer:
    """The queues of memory, events and graphs to free once no work in flight uses them.

    One thread at a time sweeps: the holder of the lock ``_turn``. Each sweep creates a lock, acquires it by ``with``,
    and then makes it the current ``_turn``, if the previous ``_turn`` is not held. So a sweep never waits, and its turn
    ends with the ``with`` statement whatever is raised. No other state needs to be reset after a turn.

    The lock ``_gate`` is held only while a sweep replaces ``_turn``, so that no other thread replaces it meanwhile. The
    gate is reentrant: the garbage collector may run in this section and call code that makes a complete nested sweep.
    Other threads acquire the lock of a turn only to wait for the turn's end. At worst such a wait makes one sweep skip
    its turn.

    An interrupt, such as Ctrl-C, may end a sweep between any two calls. So an item stays in its queue until it has been
    handled, and may be handled twice. The exception is an item that the driver must receive only once: it leaves its
    queue as the driver's call ends, unless the driver refuses it. If an interrupt ends that call itself, the outcome is
    unknown, and the item counts as freed: freeing an address again could free a later allocation.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._turn = threading.Lock()
        self._sweeper = 0  # the thread that has, or had last, the turn
        self._in_flight: dict[Mark, list[Any]] = {}
        self._retired: deque[Allocation] = deque()
        self._adopted: deque[Allocation] = deque()
        self._events: deque[EventHandle] = deque()
        self._graphs: deque[GraphHandle] = deque()
        self._abandoned: deque[tuple[Mark, Run | None]] = deque()
        self._dying: deque[tuple[Mark, Run]] = deque()  # abandoned runs, which are dropped once unobservable
        # For finalisers: each is one atomic call in C.
        self.retire_event: Callable[[EventHandle], object] = self._events.append
        # only for graphs whose launches the device is past
        self.retire_graph: Callable[[GraphHandle], object] = self._graphs.append
        # Moves a submission into the limbo: its mark, and its run if that may be dropped.
        self.abandon: Callable[[tuple[Mark, Run | None]], object] = self._abandoned.append
        self.abandon_all: Callable[[list[tuple[Mark, Run | None]]], object] = self._abandoned.extend
        self._limbo: StreamOrder[list[Any]] = StreamOrder()
        self._stranded: deque[tuple[Timeline, list[Any]]] = deque()
        self._freeing: dict[Timeline, int] = {}  # each stream's last free, until it has run
        self._queues: tuple[Any, ...] = (
            dropped, self._abandoned, self._dying, self._limbo.waiting, self._stranded, self._retired, self._adopted,
            self._events, self._graphs,
        )  # fmt: skip
        """Each is empty if nothing is pending there. Every submission looks."""
        self._beside: dict[tuple[DeviceState, bool, frozenset[Timeline]], Timeline] = {}

    # The life of a submission. ``hold`` keeps a strong reference to what it uses from the start, so that a finaliser
    # never has to resurrect an object.

    def hold(self, mark: Mark, kept: list[Any]) -> None:
        """Keeps everything that the work before ``mark`` uses, until ``release`` or ``abandon``."""
        self._in_flight[mark] = kept

    def release(self, mark: Mark) -> bool:
        """Ends ``hold`` for ``mark``. Returns False if ``hold`` had ended before: if several threads call, only one
        gets True."""
        return self._in_flight.pop(mark, None) is not None

    def awaited(self) -> int:
        """Returns the number of submissions that are held and not abandoned: the program, or a reference cycle, still
        refers to them."""
        return len(set(self._in_flight.copy()) - {mark for mark, _ in self._abandoned.copy()})

    def outcomes(self) -> tuple[int, int, int]:
        """Returns three counts of the submissions that are held: those in flight, those that the device is known to be
        past, and those that were abandoned before the device was past them."""
        abandoned = {mark for mark, _ in self._abandoned.copy()}
        in_flight = passed = cancelled = 0
        for mark in list(self._in_flight.copy()):
            if mark.position <= mark.timeline.seen:
                passed += 1
            elif mark in abandoned:
                cancelled += 1
            else:
                in_flight += 1
        return in_flight, passed, cancelled

    def strand(self, timeline: Timeline, kept: list[Any]) -> None:
        """Keeps everything that half-submitted work uses until the stream has run dry."""
        self._stranded.append((timeline, kept))

    # Freeing

    @property
    def idle(self) -> bool:
        """Returns whether nothing is pending."""
        return not any(self._queues)

    def pending(self) -> tuple[int, int, int, int]:
        """Returns four numbers for messages: submissions in flight, cancelled submissions that still run, dropped
        allocations, and the bytes of the dropped allocations."""
        collect()
        retired = self._retired.copy()
        in_flight = self.awaited()
        cancelled = self._limbo.size() + len(self._in_flight) - in_flight
        return in_flight, cancelled, len(retired), sum(allocation.nbytes for allocation in retired)

    def make_room(self, device: DeviceState) -> bool:
        """Sweeps for an allocation that found no memory. Returns whether more may be freed soon: dropped or cancelled
        work is in flight on the device, or another thread is sweeping."""
        turn = threading.Lock()
        with turn:
            if not self._begin(turn):
                return True
            try:
                self._sweep(math.inf)
                self._forget_freed()
                stranded = any(timeline.device is device for timeline, _ in self._stranded)
                return stranded or bool(self.streams_of_dropped_work(device))
            except DeviceError:
                return False

    def streams_of_dropped_work(self, device: DeviceState) -> set[Timeline]:
        """Returns the streams of a device on which frees and cancelled work are in flight, whose end frees memory."""
        waiting = {*self._freeing.copy(), *self._limbo.timelines()}
        return {timeline for timeline in waiting if timeline.device is device}

    def sweep(self) -> bool:
        """Frees memory and handles for about 2 ms, and at least one item of each queue. Returns False if that was too
        short to free all that can be freed now. Never blocks, and never raises a driver's error: the next sweep tries
        again."""
        if self.idle:
            return True
        turn = threading.Lock()
        with turn:
            if not self._begin(turn):
                return True
            try:
                until = time.perf_counter() + SHARE_SECONDS
                self._sweep(until)
                at_hand = (
                    self._abandoned or dropped or self._retired or self._events or self._graphs
                )  # the other queues wait for the device
                return not at_hand or time.perf_counter() < until
            except DeviceError:
                return True

    def drain(self) -> None:
        """Waits until the device is past the work in the limbo, then frees everything pending. After an error of the
        driver, tries again, and raises the second error. Other threads may sweep while this one waits."""
        refused = 0
        collect()
        while self._freeing or not self.idle:
            try:
                for work in self._in_the_way():
                    work.synchronize()
            except DeviceLostError:
                pass  # the next sweep counts the rest as freed
            except DeviceError:
                refused += 1
                if refused == 2:
                    raise

    def _begin(self, turn: threading.Lock) -> bool:
        """Makes ``turn``, which the caller holds, the current turn. Returns False if another sweep is running."""
        before = self._turn
        if before.locked():
            return False
        with RUNTIME_LOCK:
            if self._turn is not before:
                return False
            self._turn = turn
            self._sweeper = threading.get_ident()
        return True

    def _in_the_way(self) -> list[Mark | Timeline]:
        """Sweeps. Returns the work to wait for before the next sweep can free the rest. If another thread is sweeping,
        waits for the end of that sweep instead, and returns an empty list."""
        turn = threading.Lock()
        with turn:
            if self._begin(turn):
                self._sweep(math.inf)
                self._forget_freed()
                users = {timeline for allocation in self._adopted.copy() for timeline, _ in allocation.uses()}
                streams = {timeline for timeline, _ in self._stranded.copy()} | self._freeing.keys()
                return [*self._limbo.heads(), *[timeline.mark() for timeline in users], *streams]
        if self._turn.locked() and self._sweeper == threading.get_ident():
            raise held_error()
        with self._turn:
            return []

    def _forget_freed(self) -> None:
        """Forgets the frees that the device has completed."""
        for timeline, position in list(self._freeing.items()):
            if timeline.device.lost is not None or timeline.passed(position):
                del self._freeing[timeline]
            elif timeline.covering(position) is None:
                timeline.mark()  # without a mark, the free could never be seen to have run

    def _sweep(self, until: float) -> None:
        """Tries to free every item of every queue. When ``time.perf_counter()`` has reached ``until``, tries only one
        more item of each queue."""
        clock = time.perf_counter
        late = False
        while self._abandoned and not late:
            late = clock() >= until
            mark, abandoned = self._abandoned[0]
            kept = self._in_flight.get(mark)
            if kept is not None:
                if abandoned is not None:
                    self._dying.append((mark, abandoned))
                self._limbo.add(mark, kept)
                if self.release(mark):
                    counters, seen = mark.timeline.device.runtime.counters, mark.timeline.seen
                    (counters.completed if mark.position <= seen else counters.cancelled).add()
            self._abandoned.popleft()
        late = False
        while self._limbo and not late and (passed := self._limbo.pop_passed(_FEW)):
            late = clock() >= until
            for kept in passed:
                kept.clear()
        collect(until)  # before runs are dropped: an uncollected allocation keeps its run observable
        for _ in range(min(len(self._dying), _FEW)):
            mark, run = self._dying[0]
            timeline = mark.timeline
            if run.drop() or mark.position <= timeline.seen or timeline.device.lost is not None:
                self._dying.popleft()
            else:
                self._dying.rotate(-1)
        empty: dict[Timeline, bool] = {}  # queries each stream once, however much is stranded on it
        for _ in range(len(self._stranded)):
            timeline, _ = self._stranded[0]
            if timeline not in empty:
                empty[timeline] = _is_empty(timeline)
            if empty[timeline]:
                self._stranded.popleft()
            else:
                self._stranded.rotate(-1)
        late = False
        while self._retired and not late:
            late = clock() >= until
            allocation = self._retired[0]
            if not allocation.address:  # handed over twice
                self._retired.popleft()
                continue
            home = allocation.home
            try:
                last = self._behind(
                    home, allocation.uses_away(), default=allocation.exported and home.device.kind == "cuda"
                )
            except DeviceLostError:
                allocation.address = 0  # memory is lost with its device
                self._retired.popleft()
                continue
            if last not in self._freeing:
                self._freeing[last] = last.advance()  # before the call, in case of an interrupt
            refused = False  # inlined ``_give``: most items of a sweep are memory
            try:
                self._driver.free(allocation.address, last.handle)
            except DeviceLostError:
                pass
            except DeviceError:
                refused = True
                raise
            finally:
                if not refused:
                    allocation.address = 0
                    self._retired.popleft()
            self._freeing[last] = last.advance()
        late = False
        for _ in range(len(self._adopted)):
            if late:
                break
            late = clock() >= until
            allocation = self._adopted[0]
            if all(_use_is_over(timeline, position) for timeline, position in allocation.uses()):
                self._disown(allocation)
                self._adopted.popleft()
            else:
                self._adopted.rotate(-1)
        late = False
        while self._events and not late:
            late = clock() >= until
            _give(self._events.popleft, self._driver.destroy_event, self._events[0])
        late = False
        while self._graphs and not late:
            late = clock() >= until
            _give(self._graphs.popleft, provided(self._driver.graphs, "graphs").destroy_graph, self._graphs[0])

    def _disown(self, allocation: Allocation) -> None:
        """Gives the ranges of ``allocation``, which are another library's memory, back to that library. Skips the
        ranges that an earlier call, ended by an error or an interrupt, has given back."""
        while allocation.owners:
            sharing = provided(self._driver.sharing, "sharing")
            *others, (address, nbytes, _) = allocation.owners
            _give(partial(setattr, allocation, "owners", tuple(others)), sharing.disown, address, nbytes)
        allocation.address = 0

    def _behind(self, home: Timeline, uses: tuple[tuple[Timeline, int], ...], *, default: bool) -> Timeline:
        """Returns a stream of ``home``'s device whose next work runs after all of ``uses`` and, with ``default``, after
        the work of CUDA's default stream."""
        device = home.device
        if not default:
            if _is_after(home, uses):
                return home
            for candidate, _ in reversed(uses):
                if candidate.device is device and _is_after(candidate, uses):
                    return candidate
        # Frees that wait for the same streams share one separate stream, which runs them in order.
        behind = (device, default, frozenset([timeline for timeline, _ in uses]))
        beside = self._beside.get(behind)
        if beside is None:
            if len(self._beside) == _MOST_BESIDE:
                spare, self._beside = self._beside, {}
                for timeline in spare.values():
                    timeline.device.spare_timelines.append(timeline)
            beside = self._beside[behind] = device.take_timeline()
        for timeline, position in uses:
            beside.wait_for(timeline, position, "memory is freed after its last use")
        if default:
            theirs = device.foreign_timeline(LEGACY_DEFAULT_STREAM)
            beside.wait_for(theirs, theirs.mark().position)
            theirs.forget_marks()
        return beside


def _give(forget: Callable[[], object], take: Callable[..., None], *arguments: Any) -> None:
    """Hands something to the driver by ``take(*arguments)``, then calls ``forget``, which must be a C function. If the
    driver refuses, raises the driver's error and does not call ``forget``."""
    refused = False
    try:
        take(*arguments)
    except DeviceLostError:
        pass  # memory and handles are lost with their device
    except DeviceError:
        refused = True
        raise
    finally:
        if not refused:
            forget()


def _is_after(candidate: Timeline, uses: tuple[tuple[Timeline, int], ...]) -> bool:
    for timeline, position in uses:  # most uses are on the candidate: all() would make a generator for each allocation
        if timeline is not candidate and not candidate.is_after(timeline, position):
            return False
    return True


def _use_is_over(timeline: Timeline, position: int) -> bool:
    try:
        return timeline.device.lost is not None or timeline.passed(position)
    except DeviceLostError:
        return True
    except DeviceError:
        return False


def _is_empty(timeline: Timeline) -> bool:
    try:
        return timeline.driver.query_stream(timeline.handle)
    except DeviceLostError:
        return True
    except DeviceError:
        return False


@final
class Run:
    """One execution of an operation. The execution may be dropped: for the driver it is a ``Droppable``."""

    __slots__ = ("_visible", "dropped", "used_by_others")

    def __init__(self) -> None:
        self.dropped = False
        # True too if the run writes memory that it did not allocate. If it is True, the run is never dropped.
        self.used_by_others = False
        self._visible: weakref.ref[Visible] | None = None

    def visible(self) -> Visible:
        """Returns the run's token, which every observable result of the run must reference. Call it once."""
        token = Visible(self)
        self._visible = weakref.ref(token)
        return token

    def drop(self) -> bool:
        """Drops the run if it is dead. Returns False if the run may still become dead, so that the caller must check
        again."""
        if self.used_by_others:
            return True
        if self._visible is None or self._visible() is not None:
            return False
        self.dropped = True
        return True


@final
class Visible:
    """A run's token. Every object through which the program can observe the run's results holds the token."""

    __slots__ = ("__weakref__", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
