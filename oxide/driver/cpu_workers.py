"""The CPU device's scheduler: threads that take runnable streams.

A stream that becomes runnable is handed straight to an idle worker, or to a new one where none is idle, and the
worker stays with it until it is empty or held back by an event. So a host function that blocks costs its own stream
and nobody else, no thread ever waits for an event, and an idle worker sleeps on a lock of its own. A ready queue
with a fixed number of workers was left out: one blocking host function a worker would stop every stream.

A large kernel's blocks go to several workers. The one that has the stream starts; when what is left is worth waking
others for, it calls them in; whoever finishes the last chunk goes on with the stream, so nobody waits for anybody.
"""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter_ns
from typing import TypeAlias, final

from oxide.driver.cpu_errors import driver_error
from oxide.driver.cpu_streams import (
    BlockRange,
    CpuStream,
    Item,
    Point,
    Record,
    Scheduler,
    Task,
    Wait,
    closed_error,
    pass_point,
)

_Job: TypeAlias = tuple[CpuStream, Task | BlockRange]

# Handing a stream to another thread costs tens of microseconds: a kernel with less than this left is finished by
# the workers it has, and chunks are long enough for taking one (about 2 microseconds) not to matter.
_WORTH_A_WORKER_NS = 200_000
_CHUNK_NS = 500_000
_MAX_IDLE_WORKERS = 16


@final
class WorkerScheduler(Scheduler):
    """Runs streams on daemon threads; a kernel's blocks on up to ``threads`` of them."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self._threads = threads
        # Reentrant, because the garbage collector may run a finalizer that frees memory while this thread is in a
        # critical section: such a submission is deferred to the section's end.
        self._lock = threading.RLock()
        self._in_section = False
        self._deferred: deque[tuple[CpuStream, Item]] = deque()
        self._resumed: deque[CpuStream] = deque()
        self._busy: set[CpuStream] = set()
        self._quiet = threading.Condition(self._lock)
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._worker_idents: set[int] = set()
        self._backlog: deque[_Job] = deque()
        self._started = 0
        self._in_kernels = 0
        self._closed = False

    def submit(self, stream: CpuStream, item: Item) -> None:
        brief: Task | None = None
        with self._lock:
            if self._in_section:
                self._deferred.append((stream, item))
                return
            if self._closed:
                raise closed_error()
            self._in_section = True
            try:
                brief = self._append(stream, item)
                self._settle()
            finally:
                self._in_section = False
        if brief is not None:
            self._run_task(stream, brief)
            self._take_next(stream, keep=False)
        elif self._deferred:
            self._flush()

    def wait(self, point: Point) -> None:
        self._refuse_on_a_worker("wait for a stream or an event")
        if self._backlog:
            self._run_backlog()
        if point.passed:
            return
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            if point.passed:
                return
            point.waiters.append(gate.release)
        gate.acquire()

    def close(self) -> None:
        self._refuse_on_a_worker("close the driver")
        with self._lock:
            self._closed = True
        self._flush()
        self._run_backlog()
        with self._quiet:
            while self._busy:
                self._quiet.wait()
            workers = list(self._workers)
            for worker in self._idle:
                worker.stop()
            self._idle.clear()
        for worker in workers:
            worker.thread.join()

    def abandon(self) -> None:
        # Never waits for the lock: at interpreter exit a worker that will never run again may hold it.
        if self._lock.acquire(blocking=False):
            try:
                if not self._in_section:
                    self._closed = True
                    while self._idle:
                        self._idle.pop().stop()
            finally:
                self._lock.release()

    def run(self, stream: CpuStream, item: Task | BlockRange, worker: _Worker | None) -> None:
        """Runs an item taken from a stream, then all that the stream can run after it; then ``worker`` rests."""
        following: Task | BlockRange | None = item
        while following is not None:
            if isinstance(following, Task):
                self._run_task(stream, following)
            elif not self._run_blocks(stream, following, worker):
                return
            following = self._take_next(stream, keep=True, worker=worker)

    def _run_task(self, stream: CpuStream, task: Task) -> None:
        try:
            task.run()
        except BaseException as error:
            self.record_failure(stream.device, error)

    def _run_blocks(self, stream: CpuStream, blocks: BlockRange, worker: _Worker | None) -> bool:
        """Runs chunks until none is left; ``False``, and ``worker`` rests, if others still run theirs."""
        ran = elapsed = 0
        while True:
            with self._lock:
                self._in_section = True
                if ran:
                    blocks.nanoseconds_per_block = elapsed / ran
                first, end = self._take_chunk(stream, blocks)
                done = first == end
                last = False
                # The last worker inside decides whether a cooperative launch goes on, outside the lock.
                passed = done and blocks.workers == 1 and blocks.cooperative is not None
                if done and not passed:
                    self._in_kernels -= 1
                    blocks.workers -= 1
                    last = blocks.workers == 0
                    if not last and worker is not None:
                        self._rest(worker)
                self._settle()
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
        """Hands all blocks of a cooperative launch out once more, or marks it as over."""
        assert blocks.cooperative is not None
        goes_on = False
        try:
            goes_on = blocks.cooperative.goes_on()
        except BaseException as error:
            self.record_failure(stream.device, error)
        with self._lock:
            if goes_on:
                blocks.next = 0
            else:
                blocks.cooperative = None

    def _take_chunk(self, stream: CpuStream, blocks: BlockRange) -> tuple[int, int]:
        """The next blocks for one worker: one to learn the pace, then by time, shrinking towards the end."""
        first, left = blocks.next, blocks.total - blocks.next
        if left <= 1 or self._threads == 1:
            count = left
        elif not blocks.nanoseconds_per_block:
            count = 1
        elif blocks.nanoseconds_per_block * left < _WORTH_A_WORKER_NS:
            count = left
        else:
            while blocks.workers < left and self._in_kernels < self._threads:
                blocks.workers += 1
                self._in_kernels += 1
                self._hand_over((stream, blocks))
            share = -(-left // (2 * blocks.workers))
            count = max(1, min(share, int(_CHUNK_NS / blocks.nanoseconds_per_block)))
        blocks.next = first + count
        return first, first + count

    def _append(self, stream: CpuStream, item: Item) -> Task | None:
        """Appends. A brief task of an idle stream is returned instead of handed over: the caller runs it at once."""
        stream.items.append(item)
        if stream.running or len(stream.items) > 1:
            return None
        self._busy.add(stream)
        following = self._next(stream)
        if isinstance(following, Task) and following.brief:
            return following
        if following is not None:
            self._hand_over((stream, following))
        return None

    def _take_next(self, stream: CpuStream, *, keep: bool, worker: _Worker | None = None) -> Task | BlockRange | None:
        """The stream's next work, for this thread to run if it is to ``keep`` the stream, else for a worker.

        Where there is none ``worker`` rests, in the same critical section: whoever submits work from then on finds
        it idle and starts no other."""
        with self._lock:
            self._in_section = True
            following = self._next(stream)
            if following is not None and not keep:
                self._hand_over((stream, following))
                following = None
            if following is None and worker is not None:
                self._rest(worker)
            self._settle()
            self._in_section = False
        if self._deferred:
            self._flush()
        return following

    def _next(self, stream: CpuStream) -> Task | BlockRange | None:
        """Takes the stream's next work, passing points on the way; ``None`` leaves it empty or held back."""
        stream.running = True
        items = stream.items
        while items:
            # A wait that still holds stays in the queue throughout, so that a reader without the lock never sees
            # a stream that holds work as neither filled nor running.
            item = items[0]
            if isinstance(item, Wait):
                if not item.point.passed:
                    item.point.waiters.append(lambda: self._resumed.append(stream))
                    stream.running = False
                    return None
                items.popleft()
                continue
            items.popleft()
            if isinstance(item, Record):
                pass_point(item.point)
                continue
            if isinstance(item, BlockRange):
                item.workers = 1
                self._in_kernels += 1
            return item
        stream.running = False
        self._busy.discard(stream)
        if not self._busy:
            self._quiet.notify_all()
        return None

    def _settle(self) -> None:
        """Ends a critical section: goes on with the streams whose wait is over, submits what was deferred."""
        while self._resumed or self._deferred:
            if self._resumed:
                stream = self._resumed.popleft()
                following = self._next(stream)
            else:
                stream, item = self._deferred.popleft()
                following = self._append(stream, item)
            if following is not None:
                self._hand_over((stream, following))

    def _flush(self) -> None:
        """Submits what a finalizer left between the end of a critical section and the lock's release."""
        with self._lock:
            if not self._in_section:
                self._in_section = True
                self._settle()
                self._in_section = False

    def _hand_over(self, job: _Job) -> None:
        """Gives work to an idle worker, the one that was busy last, or to a new one."""
        if self._idle:
            self._idle.pop().start(job)
            return
        try:
            worker = _Worker(self, job, self._started + 1)
        except RuntimeError:
            # The system has no more threads. The next worker to rest takes the job, and if there is none at all,
            # the next thread that waits.
            self._backlog.append(job)
        else:
            self._started += 1
            self._workers.add(worker)

    def _rest(self, worker: _Worker) -> None:
        """Takes a worker that has nothing to do, to wait for its next job unless enough others do."""
        if self._backlog:
            worker.start(self._backlog.popleft())
        elif self._closed or len(self._idle) >= _MAX_IDLE_WORKERS:
            worker.stop()
        else:
            self._idle.append(worker)

    def _run_backlog(self) -> None:
        """Runs, on the calling thread, the work that waits for a thread where there are no workers."""
        while True:
            with self._lock:
                if self._workers or not self._backlog:
                    return
                stream, item = self._backlog.popleft()
            self.run(stream, item, None)

    def _refuse_on_a_worker(self, request: str) -> None:
        if threading.get_ident() in self._worker_idents:
            raise driver_error(
                "CUDA_ERROR_NOT_PERMITTED",
                f"a host function asked to {request}, but host functions must not call the driver; "
                "let it signal another thread, and do it there",
            )

    def enter(self) -> None:
        """Notes that this thread is a worker."""
        with self._lock:
            self._worker_idents.add(threading.get_ident())

    def leave(self, worker: _Worker) -> None:
        """Forgets a worker that ends."""
        with self._lock:
            self._worker_idents.discard(threading.get_ident())
            self._workers.discard(worker)


@final
class _Worker:
    """A thread that runs one job, rests until it is given the next, and ends when it is given none."""

    __slots__ = ("_job", "_scheduler", "_wake", "thread")

    def __init__(self, scheduler: WorkerScheduler, job: _Job, number: int) -> None:
        self._scheduler = scheduler
        self._job: _Job | None = job
        self._wake = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=f"oxide-cpu-{number}", daemon=True)
        self.thread.start()

    def start(self, job: _Job) -> None:
        self._job = job
        self._wake.release()

    def stop(self) -> None:
        self._job = None
        self._wake.release()

    def _run(self) -> None:
        self._wake.acquire()
        self._scheduler.enter()
        while self._job is not None:
            job, self._job = self._job, None
            self._scheduler.run(*job, self)
            # A resting worker keeps nothing of its last job alive: a function would hold its code, and a host
            # function whatever it closes over.
            del job
            self._wake.acquire()
        self._scheduler.leave(self)
