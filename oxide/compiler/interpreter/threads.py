"""Threads of an interpreted launch: the current thread, its faults, and the synchronisation of threads.

If the threads of a kernel synchronise, each thread of a block runs in its own Python thread. Only one Python thread
runs at a time: it runs until its kernel thread waits or ends, and then hands over control. So a debugger can stop in a
kernel thread as in any function, at any depth of calls. If the threads never synchronise, they run one after the other
in the Python thread that launches the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from oxide.compiler.source.faults import DIVERGENT, FaultSite

Triple: TypeAlias = tuple[int, int, int]

MARK = "__oxide_interpreted__"
"""The global variable that marks interpreted functions."""


class Leave(BaseException):
    """Raised to end a thread of the kernel."""


@final
@dataclass(slots=True)
class Fault:
    """The first fault of a launch, with the fields of the device's fault record."""

    site: FaultSite
    index: int = 0
    length: int = 0
    block: Triple = (0, 0, 0)
    thread: Triple = (0, 0, 0)
    claimed: int = 1
    other: FaultSite | None = None
    """The site of the second synchronisation, if threads wait for one another for ever. ``length`` then says how they
    wait (see ``DIVERGENT``)."""
    others: tuple[tuple[int, int], ...] = ()
    """The index and the length of each other axis of the access."""


@final
@dataclass(slots=True)
class Launch:
    """The state of a running launch."""

    grid: Triple
    block: Triple
    shared_bytes: int
    goes_on: bool
    """True if a thread continues after a fault, because other threads may wait for it."""
    fault: Fault | None = None
    accesses: int | None = None
    """The number of accesses that the launch may still make; None if there is no limit. A new thread counts as an
    access."""

    def spend(self, accesses: int = 1) -> None:
        """Counts accesses, or other work that takes as long as that many accesses. Raises ``TooLong`` if the launch has
        then made more accesses than its limit."""
        if self.accesses is not None:
            self.accesses -= accesses
            if self.accesses < 0:
                raise TooLong


class TooLong(Exception):
    """Raised when a launch makes more accesses than its limit."""


@final
@dataclass(slots=True)
class Meeting:
    """A synchronisation that a thread waits for: a barrier or a warp operation.

    ``kind`` is "block", "grid" or "warp". ``value`` is the thread's own value. ``combine`` computes the results from
    the values of all threads. ``mask`` names the lanes that take part in a warp operation.
    """

    kind: str
    site: FaultSite
    value: Any
    combine: Callable[[dict[int, Any]], Any]
    mask: int = 0


@final
class Thread:
    """A thread of the kernel."""

    def __init__(self, launch: Launch, block: Triple, thread: Triple, shared: dict[Any, Any]) -> None:
        self.launch = launch
        self.block_idx, self.thread_idx = block, thread
        self.shared = shared
        """The shared arrays of the thread's block."""
        self.local: dict[Any, Any] = {}
        """The thread's local arrays, by the frame and the place of their declaration."""
        self.worker: Worker | None = None
        launch.spend()

    @property
    def number(self) -> int:
        """Returns the thread's number in its block, counted with x fastest."""
        (x, y, z), (width, height, _) = self.thread_idx, self.launch.block
        return x + width * (y + height * z)

    def place(self, axis: int) -> int:
        """Returns the thread's index in the whole launch along an axis."""
        return self.block_idx[axis] * self.launch.block[axis] + self.thread_idx[axis]

    def outside(
        self,
        parameter: str,
        index: int,
        length: int,
        axis: int | None = None,
        place: tuple[str, int] | None = None,
        others: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Records an access out of bounds. Then ends the thread, unless the launch's threads continue after faults."""
        site = FaultSite(parameter, *(place or here()), None, axis, 1 + len(others))
        found = tuple((_wrapped(each), size) for each, size in others)
        self._record(Fault(site, _wrapped(index), length, others=found), leaves=not self.launch.goes_on)

    def mistake(self, what: str, problem: str) -> None:
        """Records a fault that has no index. Then ends the thread, unless the launch's threads continue after
        faults."""
        self._record(Fault(FaultSite(what, *here(), problem)), leaves=not self.launch.goes_on)

    def fail(self, message: str) -> None:
        """Records a failed assertion and ends the thread."""
        self._record(Fault(FaultSite("", *here(), message)), leaves=True)

    def _record(self, fault: Fault, *, leaves: bool) -> None:
        if self.launch.fault is None:
            fault.block, fault.thread = self.block_idx, self.thread_idx
            self.launch.fault = fault
        if leaves:
            raise Leave

    def meet(self, meeting: Meeting) -> Any:
        """Waits until a synchronisation is complete. Returns this thread's result."""
        assert self.worker is not None, "the front end knows which threads meet"
        self.launch.spend(_ACCESSES_OF_MEETING)
        return self.worker.wait(meeting)


def _wrapped(index: int) -> int:
    return ((index + 2**63) & (2**64 - 1)) - 2**63


_ACCESSES_OF_MEETING = 20
"""The number of memory accesses that take as long as one synchronisation, which needs two switches between Python
threads."""

_local = threading.local()


def current() -> Thread:
    """Returns the kernel's thread that this Python thread runs."""
    found: Thread = _local.thread
    return found


def here() -> tuple[str, int]:
    """Returns the file and the line of the kernel's code that is being executed."""
    frame = sys._getframe(1)
    while frame.f_back is not None and MARK not in frame.f_globals:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@final
class Worker:
    """A Python thread that runs threads of the kernel, one after the other. ``step`` hands control to the worker, and
    the worker hands control back when the kernel's thread waits or ends.

    Each side waits by acquiring a lock. The worker acquires its own lock; the Python thread that launches acquires
    ``back``.
    """

    def __init__(self, body: Callable[[], object], back: Any, trace: Any) -> None:
        self._body, self._back, self._trace = body, back, trace
        self._go = allocate_lock()
        self._go.acquire()
        self.thread: Thread
        self.meeting: Meeting | None = None
        self.given: Any = None
        self.error: BaseException | None = None
        self.ended, self.stopped, self._closed = True, False, False
        self._os_thread = threading.Thread(target=self._run, name="oxide thread", daemon=True)
        self._os_thread.start()

    def begin(self, thread: Thread) -> Worker:
        """Assigns a new thread of the kernel to this worker. ``step`` then runs it."""
        self.thread, thread.worker = thread, self
        self.ended = False
        return self

    def step(self) -> None:
        """Runs the kernel's thread up to its next synchronisation or its end."""
        self.meeting = None
        self._go.release()
        self._back.acquire()

    def close(self) -> None:
        """Ends the kernel's thread if it is waiting, and then the Python thread."""
        self.stopped = True
        while not self.ended:
            self.step()
        self._closed = True
        self._go.release()
        self._os_thread.join()

    def interrupt(self) -> None:
        """Stops the kernel's thread at its next line. Returns when the thread has stopped."""
        self.stopped = True
        number = self._os_thread.ident
        if number is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(number), ctypes.py_object(Leave))
        self._back.acquire()

    def wait(self, meeting: Meeting) -> Any:
        """Hands control back, and waits until the synchronisation is complete. Returns this thread's result."""
        self.meeting = meeting
        self._back.release()
        self._go.acquire()
        if self.stopped:
            raise Leave
        return self.given

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if self._closed:
                return
            _local.thread = self.thread
            try:
                if not self.stopped:
                    if self._trace is not None and sys.gettrace() is None:
                        sys.settrace(self._trace)
                    self._body()
            except Leave:
                pass
            except BaseException as error:
                self.error = error
            finally:
                sys.settrace(None)
                self.ended = True
                self.meeting = None
                self._back.release()


def places(shape: Triple) -> Iterator[Triple]:
    """Yields the coordinates of a grid's blocks, or of a block's threads, with x changing fastest."""
    x, y, z = shape
    return ((i, j, k) for k in range(z) for j in range(y) for i in range(x))


def run_alone(launch: Launch, body: Callable[[], object]) -> None:
    """Runs the threads of a launch one after the other in the calling Python thread."""
    outer = getattr(_local, "thread", None)
    try:
        for block in places(launch.grid):
            shared: dict[Any, Any] = {}
            for thread in places(launch.block):
                _local.thread = Thread(launch, block, thread, shared)
                with contextlib.suppress(Leave):
                    body()
    finally:
        _local.thread = outer


def run_together(launch: Launch, body: Callable[[], object], *, cooperative: bool) -> None:
    """Runs the threads of a launch whose threads synchronise. The blocks run one after the other; the blocks of a
    cooperative launch run together."""
    blocks = list(places(launch.grid))
    back = allocate_lock()
    back.acquire()
    trace = sys.gettrace()
    workers: list[Worker] = []
    try:
        for group in [blocks] if cooperative else [[block] for block in blocks]:
            threads: list[Thread] = []
            for block in group:
                shared: dict[Any, Any] = {}
                threads += [Thread(launch, block, thread, shared) for thread in places(launch.block)]
            launch.spend(_ACCESSES_OF_MEETING * len(threads))
            while len(workers) < len(threads):
                workers.append(Worker(body, back, trace))
            if not _run_group(launch, [worker.begin(thread) for worker, thread in zip(workers, threads, strict=True)]):
                return
    finally:
        for worker in workers:
            worker.close()


def _run_group(launch: Launch, workers: Sequence[Worker]) -> bool:
    """Runs threads that synchronise, until all of them have ended. Returns False if they wait for one another for
    ever."""
    running: Worker | None = None
    try:
        ready = list(workers)
        while ready:
            for running in ready:
                running.step()
                if running.error is not None:
                    raise running.error
            running = None
            alive = [worker for worker in workers if not worker.ended]
            ready = _released(alive)
            if alive and not ready:
                _record_divergence(launch, alive, len(alive) < len(workers))
                return False
        return True
    except BaseException:
        if running is not None and not running.ended and running.meeting is None:
            running.interrupt()  # Ctrl-C interrupted the wait for this worker
        raise


def _released(alive: Sequence[Worker]) -> list[Worker]:
    """Gives results to the threads whose synchronisation is complete, and returns these threads."""
    ready: list[Worker] = []
    if alive and all(_kind(worker) == "grid" for worker in alive) and _one_site(alive):
        return _give(alive)
    blocks: dict[Triple, list[Worker]] = {}
    for worker in alive:
        blocks.setdefault(worker.thread.block_idx, []).append(worker)
    for block in blocks.values():
        if all(_kind(worker) == "block" for worker in block) and _one_site(block):
            ready += _give(block)
            continue
        warps: dict[int, list[Worker]] = {}
        for worker in block:
            warps.setdefault(worker.thread.number // 32, []).append(worker)
        for warp in warps.values():
            ready += _released_lanes(warp)
    return ready


def _released_lanes(warp: Sequence[Worker]) -> list[Worker]:
    """Gives results to the lanes whose warp operation is complete, and returns these lanes. An operation is complete if
    all lanes of its mask have reached it."""
    ready: list[Worker] = []
    left = [worker for worker in warp if _kind(worker) == "warp"]
    while left:
        first = left[0].meeting
        assert first is not None
        named = [worker for worker in warp if first.mask >> (worker.thread.number % 32) & 1]
        same = [worker for worker in left if worker.meeting is not None and _is_same(worker.meeting, first)]
        if set(named) == set(same):
            ready += _give(same)
        left = [worker for worker in left if worker not in same]
    return ready


def _is_same(meeting: Meeting, other: Meeting) -> bool:
    return (meeting.site.parameter, meeting.mask) == (other.site.parameter, other.mask)


def _give(workers: Sequence[Worker]) -> list[Worker]:
    meetings = [worker.meeting for worker in workers]
    first = meetings[0]
    assert first is not None
    brought = {
        worker.thread.number % 32 if first.kind == "warp" else place: worker.meeting.value
        for place, worker in enumerate(workers)
        if worker.meeting is not None
    }
    result = first.combine(brought)
    for worker in workers:
        worker.given = result[worker.thread.number % 32] if first.kind == "warp" else result
    return list(workers)


def _kind(worker: Worker) -> str:
    return "" if worker.meeting is None else worker.meeting.kind


def _one_site(workers: Iterable[Worker]) -> bool:
    return len({worker.meeting.site for worker in workers if worker.meeting is not None}) == 1


def _record_divergence(launch: Launch, alive: Sequence[Worker], some_ended: bool) -> None:
    """Records that threads wait for one another for ever."""
    if launch.fault is not None:
        return
    sites = list(dict.fromkeys(worker.meeting.site for worker in alive if worker.meeting is not None))
    lanes = [worker for worker in alive if _kind(worker) == "warp"]
    block = (lanes or alive)[0].thread.block_idx
    if lanes:
        assert lanes[0].meeting is not None
        first = lanes[0].meeting.site
        others = [site for site in sites if site != first]
        launch.fault = Fault(first, 0, 1, block, claimed=DIVERGENT, other=others[0] if others else first)
    elif some_ended and len(sites) == 1:
        launch.fault = Fault(sites[0], 0, 2, block, claimed=DIVERGENT, other=sites[0])
    else:
        launch.fault = Fault(sites[0], 0, 0, block, claimed=DIVERGENT, other=sites[-1])
