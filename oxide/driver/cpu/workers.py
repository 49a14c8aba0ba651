"""The CPU device's scheduler: worker threads that take runnable streams.

A stream that becomes runnable is added to the *backlog* as a *job*. An idle worker is woken for the job, or a new
worker is started if none is idle. The worker stays with the stream until the stream is empty or held back by an event.
So a host function that blocks stops only its own stream, no worker ever waits for an event, and each idle worker sleeps
on its own lock. A fixed number of workers was rejected: one blocking host function for each of them would stop every
stream.

A large kernel's blocks go to several workers, in chunks. The worker that has the stream begins, and adds jobs for other
workers if the remaining blocks are worth waking them. The worker that finishes the last chunk continues with the
stream, so no worker waits for another.

Work of high-priority streams goes first:

- The jobs of high-priority streams are at the front of the backlog. The one exception is the job of an interrupted
  thread, which is added at the end.
- While a job of a high-priority stream is in the backlog, no worker begins an item or a chunk of a normal stream. A
  worker that has finished an item or a chunk of a normal stream gives its job back and takes the first job.
- While kernels of high-priority streams run, a worker begins no chunk of a normal kernel if more than ``threads``
  workers are in kernels. Instead it leaves the kernel. The kernel's job is kept in ``_held`` until another worker
  leaves a kernel.

A priority changes neither the order within a stream nor waits for events. A stream that waits for an event has no job
in the backlog, so it holds up no normal stream. Kernels of high-priority streams that keep all threads busy hold up all
normal kernels. A thread that waits for a point runs the point's stream, whatever the backlog holds.

Ctrl-C may interrupt a call of the main thread anywhere, and submitted work still runs exactly once. Python checks for
signals after calls and at the start of functions and loop iterations. So plain stores followed by one call of a
function in C are one atomic step, and the main thread changes state in such steps only. After each step the state shows
what is left to do:

- A stream that holds items is among the busy ones. An item that was appended is submitted.
- A stream is ``running`` if it is in the backlog or a thread has it. A stream of the main thread goes into the backlog
  if the main thread is interrupted.
- The main thread removes an item from its stream after running it. A worker removes an item when it takes it: workers
  see no signals.
- Dropped work leaves its stream when it comes to the head, and is not run.
- A worker that is not idle has been woken. It checks the backlog, and rests if the backlog is empty.

So an interrupted call goes through the busy streams and the backlog once more (``_mend``). If ``_mend`` is interrupted
too, the next call of the scheduler runs it.

A thread that waits for a point itself runs the items before the point, unless a worker has begun with them (``_help``):
waking a worker and being woken by it takes tens of microseconds, and running a small kernel takes about one. The
waiting thread runs kernels and brief tasks. Other items, and a kernel that turns out to be long, go to the workers. Of
kernels, the main thread runs only those without loops: Ctrl-C cannot end its wait for a kernel that it runs itself.

Meanwhile the worker woken by the submission is on its way. It needs the GIL to check the backlog, so it checks when the
waiting thread releases the GIL, and finds no job. Until then it counts as coming, and no other worker is woken for the
same work (``_coming``).
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from functools import partial
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any, TypeAlias, final

from oxide.driver.cpu.errors import driver_error
from oxide.driver.cpu.streams import (
    BlockRange,
    CpuStream,
    Fork,
    Item,
    Point,
    Record,
    Recordable,
    Scheduler,
    Task,
    Unfolding,
    Wait,
    closed_error,
    is_dropped,
    pass_point,
)
from oxide.host.locks import DRIVER_LOCK, driver_threads, held_error, refuse_inside

_Job: TypeAlias = tuple[CpuStream, BlockRange | None]
"""A job for a worker: a stream, and the stream's kernel to join. Without a kernel, the worker runs everything that the
stream can run."""

# Handing a stream to another thread costs tens of microseconds. So a kernel with less than _WORTH_A_WORKER_NS left is
# finished by its present workers. Taking a chunk costs about 2 microseconds, which is small against _CHUNK_NS.
_WORTH_A_WORKER_NS = 200_000
_CHUNK_NS = 500_000
_MAX_IDLE_WORKERS = 16
# Releasing and retaking the GIL costs a hand-over if another thread waits for it. So blocks that take less time than
# _WORTH_THE_GIL_NS run with the GIL held.
_WORTH_THE_GIL_NS = 20_000


@final
class WorkerScheduler(Scheduler):
    """A scheduler that runs streams on daemon threads, and a kernel's blocks on up to ``threads`` of them."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self._threads = threads
        # The lock is reentrant, because the garbage collector may run a finalizer that frees memory while this thread
        # is in a critical section: such a submission is deferred to the section's end.
        self._in_section = False
        self._deferred: deque[list[tuple[CpuStream, Item]]] = deque()  # each list has one entry, or none once submitted
        self._interrupted = False
        self._resumed: deque[CpuStream] = deque()
        self._busy: set[CpuStream] = set()
        self._quiet = threading.Condition(DRIVER_LOCK)
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._worker_idents: set[int] = set()
        self._main = threading.main_thread().ident
        self._backlog: deque[_Job] = deque()
        self._started = 0
        self._coming = 0  # workers woken or started that have not checked the backlog yet. The count may be too low.
        self._in_kernels = 0  # workers that are in kernels
        self._in_high_kernels = 0  # workers that are in kernels of high-priority streams
        self._held: deque[tuple[CpuStream, BlockRange]] = deque()  # kernels that workers left, one entry a worker
        self._closed = False

    def submit(self, stream: CpuStream, item: Item) -> None:
        if self._interrupted:
            self._mend()
        mine = False
        try:
            with DRIVER_LOCK:
                if self._in_section:
                    self._deferred.append([(stream, item)])
                    return
                if self._closed:
                    raise closed_error()
                self._in_section = True
                try:
                    self._busy.add(stream)
                    stream.items.append(item)
                    if len(stream.items) == 1 and not stream.running:
                        if isinstance(item, Task) and item.brief:
                            mine = True
                            stream.running = threading.get_ident()
                        else:
                            self._advance(stream)
                    self._settle()
                finally:
                    self._in_section = False
            if mine and isinstance(item, Task):
                item.run_timed()
                stream.items.popleft()
                with DRIVER_LOCK:
                    self._in_section = True
                    try:
                        stream.running = mine = False
                        self._advance(stream)
                        self._settle()
                    finally:
                        self._in_section = False
            if self._deferred:
                self._flush()
        except BaseException:
            self._interrupted = True  # before any call, where a second interrupt could come
            self._recover(stream if mine else None)
            raise

    def wait(self, point: Point) -> None:
        self._refuse_on_a_worker("wait for a stream or an event")
        refuse_inside()
        if self._interrupted:
            self._mend()
        if self._backlog and not self._workers:
            self._run_backlog()
        if point.passed:
            return
        stream = point.stream
        if stream is not None:
            self._help(stream, point)
            if point.passed:
                return
        if sys.is_finalizing():
            raise driver_error(
                "CUDA_ERROR_DEINITIALIZED",
                "the interpreter is ending, and the threads that run the CPU device's work are gone: nothing can be "
                "waited for any more, as in a finaliser that runs so late",
            )
        gate: SimpleQueue[None] = SimpleQueue()  # not a lock, which cannot be released twice
        this = threading.get_ident()
        with DRIVER_LOCK:
            if point.passed:
                return
            if any(busy.running == this for busy in self._busy):
                raise held_error()  # a finaliser or a signal handler, in an item that this thread runs
            point.waiters.append(partial(gate.put, None))
        gate.get()

    def close(self) -> None:
        self._refuse_on_a_worker("close the driver")
        with DRIVER_LOCK:
            self._closed = True
        self._mend()
        self._run_backlog()
        with self._quiet:
            while self._busy:
                self._quiet.wait()
            workers = list(self._workers)
            while self._idle:
                self._end_idle()
        for worker in workers:
            worker.join()

    def abandon(self, lock: Any = DRIVER_LOCK) -> None:
        # At the interpreter's exit the module's names may be gone, and a worker that will never run again may hold the
        # lock: it is not waited for.
        if lock.acquire(blocking=False):
            try:
                if not self._in_section:
                    self._closed = True
                    while self._idle:
                        self._end_idle()
            finally:
                lock.release()

    def _recover(self, mine: CpuStream | None) -> None:
        """Restores the invariants after an interrupt. ``mine`` is the stream that this thread was running, if any."""
        if mine is not None:
            mine.running = 1
            self._backlog.append((mine, None))
        self._mend()

    def _help(self, stream: CpuStream, point: Point) -> None:
        """Runs a stream's items before ``point`` on the calling thread, if the stream waits for a worker."""
        interruptible = threading.get_ident() == self._main
        mine = False
        try:
            with DRIVER_LOCK:
                mine = True
                try:
                    self._backlog.remove((stream, None))
                    stream.running = threading.get_ident()
                except ValueError:
                    mine = False  # a worker has it
            while mine:
                with DRIVER_LOCK:
                    self._in_section = True
                    try:
                        item = self._head(stream)
                        if item is None:
                            stream.running = mine = False
                        elif point.passed or not _is_small(item, interruptible):
                            stream.running = mine = False
                            self._advance(stream)
                        if self._resumed or self._deferred:
                            self._settle()
                    finally:
                        self._in_section = False
                if mine and item is not None:
                    try:
                        over = _unfold(stream, item) if isinstance(item, Unfolding) else _run_some(item)
                    except BaseException as error:
                        if interruptible:
                            raise
                        self.record_failure(stream.device, error)
                        over = True
                    if over:
                        stream.items.popleft()
            if self._deferred:
                self._flush()
        except BaseException:
            self._interrupted = True  # before any call, where a second interrupt could come
            self._recover(stream if mine else None)
            raise

    def run(self, stream: CpuStream, blocks: BlockRange | None, worker: _Worker | None) -> None:
        """Runs ``blocks`` if given, then all work that the stream can run. Then lets ``worker``, if given, rest."""
        following: Recordable | None = blocks or self._take_next(stream, worker)
        while following is not None:
            if isinstance(following, Task):
                try:
                    following.run_timed()
                except BaseException as error:
                    self.record_failure(stream.device, error)
            elif isinstance(following, Unfolding):
                over = True
                try:
                    over = _unfold(stream, following)
                except BaseException as error:
                    self.record_failure(stream.device, error)
                if over:
                    stream.items.popleft()
            elif not self._run_blocks(stream, following, worker):
                return
            following = self._take_next(stream, worker)

    def _run_blocks(self, stream: CpuStream, blocks: BlockRange, worker: _Worker | None) -> bool:
        """Runs chunks of a kernel until none is left. Returns ``False``, and lets ``worker`` rest, if other workers
        still run chunks or if work of a higher priority is to run first."""
        ran = elapsed = started = 0
        while True:
            with DRIVER_LOCK:
                self._in_section = True
                try:
                    if ran:
                        blocks.learn(elapsed / ran, exact=False)
                        if blocks.times is not None:
                            blocks.times.note(started, started + elapsed)
                    if worker is not None and blocks.next < blocks.total and self._makes_way(stream):
                        self._held.append((stream, blocks))
                        self._leave_kernel(stream, worker)
                        self._settle()
                        return False
                    first, end = self._take_chunk(stream, blocks)
                    done = first == end
                    last = False
                    # Outside the lock, the last worker inside decides whether a cooperative launch continues.
                    passed = done and blocks.workers == 1 and blocks.cooperative is not None
                    if done and not passed:
                        blocks.workers -= 1
                        last = blocks.workers == 0
                        if last and blocks.times is not None:
                            blocks.times.over = True
                        self._leave_kernel(stream, None if last else worker)
                    self._settle()
                finally:
                    self._in_section = False
            if passed:
                self._next_pass(stream, blocks)
                ran = 0
                continue
            if done:
                return last
            started = perf_counter_ns()
            try:
                blocks.run(first, end)
            except BaseException as error:
                self.record_failure(stream.device, error)
            ran, elapsed = end - first, perf_counter_ns() - started

    def _next_pass(self, stream: CpuStream, blocks: BlockRange) -> None:
        """Makes all blocks of a cooperative launch available again, or marks the launch as finished."""
        assert blocks.cooperative is not None
        goes_on = False
        try:
            goes_on = blocks.cooperative.goes_on()
        except BaseException as error:
            self.record_failure(stream.device, error)
        with DRIVER_LOCK:
            if goes_on:
                blocks.next = 0
            else:
                blocks.cooperative = None

    def _take_chunk(self, stream: CpuStream, blocks: BlockRange) -> tuple[int, int]:
        """Takes the next blocks for one worker: one block to learn the pace, then as many as ``_CHUNK_NS`` allows,
        fewer towards the end.

        Dropped work yields no more blocks: no caller sees its partial result. A dropped cooperative launch runs to its
        end, because its threads wait for each other.
        """
        if is_dropped(blocks) and blocks.cooperative is None:
            blocks.next = blocks.total
        first, left = blocks.next, blocks.total - blocks.next
        if left <= 1:
            count = left
        elif not blocks.nanoseconds_per_block:
            count = 1
        elif blocks.nanoseconds_per_block * left < _WORTH_A_WORKER_NS:
            count = left
        else:
            while blocks.workers < left and self._has_room(stream):
                blocks.workers += 1
                self._enter_kernel(stream)
                self._enqueue(stream, blocks)
            share = -(-left // (2 * blocks.workers))
            count = max(1, min(share, int(_CHUNK_NS / blocks.nanoseconds_per_block)))
        blocks.next = first + count
        return first, first + count

    def _take_next(self, stream: CpuStream, worker: _Worker | None) -> Recordable | None:
        """Takes the next work of a stream that this thread runs. An ``Unfolding`` stays at the head until it is over.

        If there is no work, or a job of a higher priority waits, releases the stream and returns ``None``. ``worker``
        then rests, in the same critical section. So a later submission finds this worker idle and starts no other.
        """
        with DRIVER_LOCK:
            self._in_section = True
            try:
                following = self._head(stream)
                if following is not None:
                    self._settle()  # a point on the way may have resumed a stream of a higher priority
                if following is None:
                    stream.running = 0
                    if worker is not None:
                        self._rest(worker)
                elif worker is not None and not stream.high and self._high_waits():
                    following = None
                    self._rest(worker)
                    self._enqueue(stream, None)
                elif not isinstance(following, Unfolding):
                    stream.items.popleft()
                    if isinstance(following, BlockRange):
                        following.workers = 1
                        self._enter_kernel(stream)
                self._settle()
            finally:
                self._in_section = False
        if self._deferred:
            self._flush()
        return following

    def _advance(self, stream: CpuStream) -> None:
        """Adds a stream to the backlog and wakes a worker, if no thread runs the stream and its work can run."""
        if not stream.running and self._head(stream) is not None:
            self._enqueue(stream, None)

    def _enqueue(self, stream: CpuStream, blocks: BlockRange | None) -> None:
        """Adds a job to the backlog, behind other jobs of its priority, and wakes a worker."""
        place = len(self._backlog)
        if stream.high:
            place = 0
            while place < len(self._backlog) and self._backlog[place][0].high:
                place += 1
        stream.running = 1  # one step together with the next line
        self._backlog.insert(place, (stream, blocks))
        self._call_worker()

    def _high_waits(self) -> bool:
        """Returns whether a job of a high-priority stream is in the backlog."""
        return bool(self._backlog) and self._backlog[0][0].high

    def _makes_way(self, stream: CpuStream) -> bool:
        """Returns whether a worker must leave a kernel of ``stream``, to make way for work of high-priority streams."""
        crowded = self._in_high_kernels > 0 and self._in_kernels > self._threads
        return not stream.high and (crowded or self._high_waits())

    def _has_room(self, stream: CpuStream) -> bool:
        """Returns whether one more worker may join a kernel of ``stream``."""
        return (self._in_high_kernels if stream.high else self._in_kernels) < self._threads

    def _enter_kernel(self, stream: CpuStream) -> None:
        self._in_kernels += 1
        self._in_high_kernels += stream.high

    def _leave_kernel(self, stream: CpuStream, worker: _Worker | None) -> None:
        """Notes that a worker has left a kernel, and resumes held kernels if there is room. Lets ``worker``, if given,
        rest."""
        self._in_kernels -= 1
        self._in_high_kernels -= stream.high
        if worker is not None:
            self._rest(worker)
        while self._held and (not self._in_high_kernels or self._in_kernels < self._threads):
            resumed, blocks = self._held.popleft()
            self._enter_kernel(resumed)
            self._enqueue(resumed, blocks)

    def _head(self, stream: CpuStream) -> Recordable | None:
        """Returns a stream's next work. On the way, passes points and makes the lanes of graphs runnable. Returns
        ``None`` if the stream is empty or held back.

        An item leaves the queue here only when it is finished. So a reader without the lock never sees a stream with
        work as both empty and not running.
        """
        items = stream.items
        while items:
            item = items[0]
            if isinstance(item, Record):
                pass_point(item.point)
            elif isinstance(item, Fork):
                self._busy.add(item.lane)
                self._advance(item.lane)
            elif not isinstance(item, Wait):
                if isinstance(item, Unfolding) or not is_dropped(item):
                    return item
            elif not item.point.passed:
                item.point.waiters.append(partial(self._resumed.append, stream))
                return None
            items.popleft()
        self._busy.discard(stream)
        if self._closed and not self._busy:
            self._quiet.notify_all()
        return None

    def _settle(self) -> None:
        """Ends a critical section: resumes streams whose wait is over and submits deferred items."""
        while self._resumed or self._deferred:
            if self._resumed:
                self._advance(self._resumed[0])
                self._resumed.popleft()
                continue
            deferred = self._deferred[0]
            if deferred:
                stream, item = deferred[0]
                self._busy.add(stream)
                del deferred[0]  # one step together with the next line
                stream.items.append(item)
                if len(stream.items) == 1:
                    self._advance(stream)
            self._deferred.popleft()

    def _flush(self) -> None:
        """Submits items that a finalizer deferred between the end of a critical section and the lock's release."""
        with DRIVER_LOCK:
            if not self._in_section:
                self._in_section = True
                try:
                    self._settle()
                finally:
                    self._in_section = False

    def _mend(self) -> None:
        """Resumes all work after an interrupt, as the module docstring describes."""
        with DRIVER_LOCK:
            if self._in_section:
                return  # a finalizer has interrupted a section of this thread
            self._in_section = True
            try:
                for stream in list(self._busy):
                    self._advance(stream)
                self._settle()
                # A count that is too low costs a needless call. A count that is too high would leave a stream without a
                # worker.
                self._coming = 0
                for _ in range(len(self._backlog)):
                    self._call_worker()
                self._interrupted = False
            finally:
                self._in_section = False

    def _call_worker(self) -> None:
        """Wakes the idle worker that was busy last, or starts a new worker, unless enough are coming."""
        if self._coming >= len(self._backlog):
            return
        self._coming += 1
        if self._idle:
            worker = self._idle[-1]
            del self._idle[-1]
            worker.wake.release()
            return
        try:
            worker = _Worker(self, self._started + 1)
        except RuntimeError:
            # The system has no more threads. The next worker to rest checks the backlog; without any worker, the next
            # waiting thread does.
            self._coming -= 1
            return
        self._started += 1
        self._workers.add(worker)

    def _end_idle(self) -> None:
        """Ends the idle worker that was busy last."""
        worker = self._idle[-1]
        worker.ended = True
        del self._idle[-1]
        worker.wake.release()

    def _rest(self, worker: _Worker) -> None:
        """Makes a worker idle, sends it back to a backlog that has work, or ends it if enough workers are idle."""
        if self._backlog:
            self._coming += 1
            worker.wake.release()
        elif self._closed or len(self._idle) >= _MAX_IDLE_WORKERS:
            worker.ended = True
            worker.wake.release()
        else:
            self._idle.append(worker)

    def _run_backlog(self) -> None:
        """Runs the backlog on the calling thread while there are no workers."""
        while True:
            with DRIVER_LOCK:
                if self._workers or not self._backlog:
                    return
                stream, blocks = self._backlog.popleft()
            try:
                self.run(stream, blocks, None)
            except BaseException as error:  # from a signal handler: the progress of the current work is unknown
                self._interrupted = True
                self.record_failure(stream.device, error)
                if stream.running:
                    self._backlog.append((stream, None))
                raise

    def serve(self, worker: _Worker) -> None:
        """Runs a job from the backlog on ``worker``, if there is one. Then ``worker`` rests."""
        with DRIVER_LOCK:
            self._coming = max(0, self._coming - 1)
            job = self._backlog.popleft() if self._backlog else None
            if job is None:
                self._rest(worker)
        if job is not None:
            self.run(*job, worker)

    def _refuse_on_a_worker(self, request: str) -> None:
        if threading.get_ident() in self._worker_idents:
            raise driver_error(
                "CUDA_ERROR_NOT_PERMITTED",
                f"a host function asked to {request}, but host functions must not call the driver; "
                "let it signal another thread, and do it there",
            )

    def enter(self, worker: _Worker) -> None:
        """Registers this thread as that of ``worker``."""
        with DRIVER_LOCK:
            self._worker_idents.add(threading.get_ident())
            driver_threads.add(threading.get_ident())
            self._workers.add(worker)  # the thread that started it may have been interrupted before it did so

    def leave(self, worker: _Worker) -> None:
        """Unregisters a worker that ends."""
        with DRIVER_LOCK:
            self._worker_idents.discard(threading.get_ident())
            driver_threads.discard(threading.get_ident())
            self._workers.discard(worker)


def _unfold(stream: CpuStream, item: Unfolding) -> bool:
    """Puts further items in front of ``item``, which is at the head of a stream that this thread runs. Returns True if
    there are none, because ``item`` is over."""
    items = item.further(stream)
    if not items:
        return True
    item.unfolded = True  # one step together with the next line
    stream.items.extendleft(items)
    return False


def _is_small(item: Recordable, interruptible: bool) -> bool:
    """Returns whether a waiting thread should run an item itself, judged by its expected duration. ``interruptible`` is
    True for the main thread."""
    if isinstance(item, Unfolding):
        return True
    if isinstance(item, Task):
        return item.brief
    if item.cooperative is not None or (interruptible and item.loop_free is None):
        return False
    return item.expected() < _WORTH_A_WORKER_NS


def _run_some(item: Task | BlockRange) -> bool:
    """Runs a task, or blocks of a kernel that no other thread runs: all that are left, or one to learn the pace.
    Returns True if the item has ended.

    A signal handler's exception is raised after a call of a function in C. So if ``run`` raises, the blocks have run.
    """
    if isinstance(item, Task):
        item.run_timed()
        return True
    first, end, run, small = item.next, item.total, item.run, item.loop_free
    if first == end:  # an interrupt came after the last block had run
        return True
    holding = small is not None and 0 < item.expected() < _WORTH_THE_GIL_NS
    if small is not None and holding:
        run = small.run_holding
    elif end - first > 1 and not item.nanoseconds_per_block:
        end = first + 1
    started = perf_counter_ns()
    try:
        run(first, end)
    finally:
        item.next = end
    ended = perf_counter_ns()
    item.learn((ended - started) / (end - first), exact=holding)
    if item.times is not None:
        item.times.note(started, ended)
        item.times.over = end == item.total
    return end == item.total


@final
class _Worker:
    """A thread that serves the scheduler each time it is woken, until it is ``ended``."""

    __slots__ = ("_begun", "_scheduler", "_thread", "ended", "wake")

    def __init__(self, scheduler: WorkerScheduler, number: int) -> None:
        self._scheduler = scheduler
        self.ended = False
        self.wake = threading.Lock()
        self.wake.acquire()
        if sys.is_finalizing():
            raise RuntimeError("the interpreter is ending")
        thread: Any = threading.Thread(target=self._run, name=f"oxide-cpu-{number}", daemon=True)
        thread._started = self._begun = _Begun()
        self._thread = thread
        self._thread.start()

    def _run(self) -> None:
        self._scheduler.enter(self)
        while not self.ended:
            self._scheduler.serve(self)
            self.wake.acquire()
        self._scheduler.leave(self)

    def join(self) -> None:
        """Waits for the end of a worker that is ``ended``."""
        threading.Event.wait(self._begun)
        self._thread.join()


@final
class _Begun(threading.Event):
    """The event that ``Thread.start`` waits for, without the wait: a lock is held there, and a collection in the
    thread's first steps may run a finaliser that waits for the lock."""

    def wait(self, timeout: float | None = None) -> bool:
        return True
