"""The CPU device: a real device behind the Driver protocol, with streams, events, memory and several devices.

This file checks requests and turns them into items for a scheduler. It builds on the modules ``streams`` (streams,
events, items), ``workers`` (the threads that run the items), ``steps`` (runs one item at a time, for tests),
``allocator``, ``stream_tasks``, ``code``, ``graph`` and ``submission_checks``. A wrong request is refused when it is
submitted, with CUDA's error code and name.

If the stream is idle, the submitting thread itself does a free, or a copy or fill of up to 32 KiB: that takes a
microsecond, and handing it to another thread takes ten. For the same reason a thread that blocks for a stream or an
event may itself run the small kernels that it waits for.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from time import sleep
from typing import final

from oxide.driver.base import (
    MAX_BLOCK,
    MAX_GRID,
    MAX_THREADS_PER_BLOCK,
    Code,
    ConditionalKind,
    DeviceInfo,
    Dim3,
    Droppable,
    KernelResources,
    Own,
    Ranges,
    StreamPriority,
)
from oxide.driver.cpu.allocator import Heap, LiveAllocations, keep_for_ever, note_launch, physical_memory
from oxide.driver.cpu.code import CpuFunction, host_name, host_target
from oxide.driver.cpu.errors import driver_error
from oxide.driver.cpu.graph import CpuGraph, conditional, recorded
from oxide.driver.cpu.steps import StepScheduler
from oxide.driver.cpu.stream_tasks import Copies, native_call, python_call
from oxide.driver.cpu.streams import (
    BlockRange,
    CapturedPart,
    CpuClock,
    CpuEvent,
    CpuStream,
    OpenConditional,
    Point,
    Record,
    Scheduler,
    Task,
    Wait,
    check_fits,
    closed_error,
)
from oxide.driver.cpu.submission_checks import (
    check_count,
    check_handle,
    check_idle,
    check_launch,
    check_recordable,
    checked_seed,
)
from oxide.driver.cpu.workers import WorkerScheduler
from oxide.driver.sanitizing import Tracking, requested
from oxide.errors import DeviceError
from oxide.host.core import Dropping, call_soon
from oxide.host.environment import whole_number

_LOOKS = 16
"""A polling thread releases the GIL once in this many queries that find work unfinished. A single wait makes fewer
queries before it parks (``runtime/loop/pace.py``)."""


class CpuDriver(Dropping):
    """A driver of ``devices`` CPU devices, which share the machine's cores.

    ``devices`` defaults to ``OXIDE_CPU_DEVICES`` or, if that is not set, to 1. ``threads`` is the most threads that run
    kernels at the same time. It defaults to ``OXIDE_CPU_THREADS`` or, if that is not set, to the number of cores. Each
    device may allocate ``OXIDE_CPU_MEMORY`` bytes or, if that is not set, the machine's memory.

    With ``step`` there are no threads, and work runs only in the methods ``step``, ``run_until_idle`` and
    ``synchronize_*``. ``seed`` selects the order in which streams make progress, the order in which the blocks of a
    kernel run, and the order in which the warps and threads of a block run between barriers. The same seed gives the
    same run. Without ``step``, the default seed is ``OXIDE_SEED`` if that is set. With a seed and without ``step``,
    nothing runs concurrently with the program: work runs inside the calls that wait for it or query it. ``poison``, on
    by default with ``step``, fills memory with 0xFF bytes when it is allocated and when it is freed.

    Raises ``DeviceError`` for an invalid number of devices, threads or bytes, ``TypeError`` or ``ValueError`` for an
    invalid ``seed``.
    """

    name = "cpu"
    graphs = peers = runs = sharing = sanitizer = timing = Own()

    def __init__(
        self,
        devices: int | None = None,
        *,
        threads: int | None = None,
        step: bool = False,
        seed: int | None = None,
        poison: bool | None = None,
    ) -> None:
        self.stepped = step
        self._devices = (whole_number("OXIDE_CPU_DEVICES", least=1) or 1) if devices is None else devices
        by_default = whole_number("OXIDE_CPU_THREADS", least=1) or os.cpu_count() or 1
        self._threads = by_default if threads is None else threads
        check_count("devices", self._devices)
        check_count("threads", self._threads)
        if seed is None and not step:
            seed = whole_number("OXIDE_SEED", least=0)
        elif seed is not None:
            seed = checked_seed(seed)
        poison = step if poison is None else poison
        self._memory = whole_number("OXIDE_CPU_MEMORY", least=1) or physical_memory()
        self._heaps = [Heap(f"cpu:{index}", self._memory, poison=poison) for index in range(self._devices)]
        self._host = Heap("pinned host memory", None, poison=poison)
        self._copies = Copies(self._heaps, self._host)
        # With a seed and without step, the calling threads drive the work: worker threads would not repeat a run.
        self._driven = seed is not None and not step
        self._seeds = None if seed is None else random.Random(seed)
        self._scheduler: Scheduler = (
            StepScheduler(seed, partial(keep_for_ever, (*self._heaps, self._host)))
            if step or self._driven
            else WorkerScheduler(self._threads)
        )
        # Ends the threads of a driver that is dropped without ``close``.
        self._drop = partial(call_soon, methodcaller("abandon"), self._scheduler)
        self._failures = self._scheduler.failures
        self._looks = 0
        self._clock: CpuClock | None = None
        self._closed = False
        Tracking.wanted = Tracking.wanted or bool(requested())

    def for_run(self, run: Droppable) -> CpuDriver:
        """Returns this driver with its submissions marked as work of ``run``."""
        return _RunDriver(self, run)

    # Devices

    def device_count(self) -> int:
        return self._devices

    def device_info(self, device: int) -> DeviceInfo:
        """Describes a device: the host's processor with a CUDA device's limits.

        The first call on a machine loads llvmlite, if that is installed, to name the target.
        """
        self._check_device(device)
        return DeviceInfo(
            name=host_name(),
            target=host_target() if self._seeds is None else dataclasses.replace(host_target(), seeded=True),
            multiprocessors=self._threads,
            memory=self._memory,
            max_threads_per_block=MAX_THREADS_PER_BLOCK,
            max_block=MAX_BLOCK,
            max_grid=MAX_GRID,
        )

    # Streams

    def create_stream(self, device: int, priority: StreamPriority = "normal") -> CpuStream:
        """Creates a stream. It uses no thread until it has work."""
        self._check_device(device)
        return CpuStream(device, high=priority == "high")

    def destroy_stream(self, stream: CpuStream) -> None:
        if not self._closed:
            check_handle(stream, CpuStream).destroyed = True

    def synchronize_stream(self, stream: CpuStream) -> None:
        """Blocks until all submitted work has run; in step mode, runs it."""
        self._scheduler.synchronize(check_idle(stream))
        if self._failures:
            self._scheduler.raise_failure(stream.device)

    def query_stream(self, stream: CpuStream) -> bool:
        """Returns whether all submitted work has run. Takes no lock.

        With a seed and without ``step``, first runs the remaining work.
        """
        check_idle(stream)
        # The order matters: if a stream first has no items and then is not running, it has run all items that it held
        # at the first check.
        if stream.items or stream.running:
            if not self._driven:
                self._note_look()
                self._scheduler.raise_lost(stream.device)
                return False
            self._scheduler.synchronize(stream)
        if self._failures:
            self._scheduler.raise_failure(stream.device)
        return True

    def stream_address(self, stream: CpuStream) -> int:
        """Returns the stream's number, unique in this process."""
        return check_handle(stream, CpuStream).number

    # Events

    def create_event(self, device: int, *, timing: bool) -> CpuEvent:
        self._check_device(device)
        return CpuEvent(device, timing=timing)

    def destroy_event(self, event: CpuEvent) -> None:
        """Destroys the event; streams that wait for it keep waiting for its point."""
        if not self._closed:
            check_handle(event, CpuEvent).destroyed = True

    def record_event(self, event: CpuEvent, stream: CpuStream) -> None:
        if type(event) is not CpuEvent or event.destroyed:
            check_handle(event, CpuEvent)
        check_idle(stream)
        if event.device != stream.device:
            raise driver_error(
                "CUDA_ERROR_INVALID_HANDLE",
                f"{event!r} cannot be recorded on {stream!r}, of another device; create it on cpu:{stream.device}",
            )
        point = Point(stream)
        self._scheduler.submit(stream, Record(point))
        event.point = point

    def query_event(self, event: CpuEvent) -> bool:
        """Returns whether the stream has passed the event's latest recording. Takes no lock.

        With a seed and without ``step``, first runs the work before that recording.
        """
        if type(event) is not CpuEvent or event.destroyed:
            check_handle(event, CpuEvent)
        point = event.point
        if point is not None and not point.passed and self._driven:
            self._scheduler.wait(point)
        if point is not None and not point.passed:
            self._note_look()
            self._scheduler.raise_lost(event.device)
            return False
        if self._failures:
            self._scheduler.raise_failure(event.device)
        return True

    def synchronize_event(self, event: CpuEvent) -> None:
        """Blocks until the stream has passed the event's latest recording; in step mode, runs the work before it."""
        if type(event) is not CpuEvent or event.destroyed:
            check_handle(event, CpuEvent)
        point = event.point
        if point is not None:
            self._scheduler.wait(point)
        if self._failures:
            self._scheduler.raise_failure(event.device)

    def wait_event(self, stream: CpuStream, event: CpuEvent) -> None:
        """Holds the stream back until the event's point is passed. The event may be of another device of this
        driver."""
        check_idle(stream)
        point = check_handle(event, CpuEvent).point
        if point is not None:
            self._scheduler.submit(stream, Wait(point))

    def elapsed_ms(self, start: CpuEvent, end: CpuEvent) -> float:
        times = []
        for event in (start, end):
            point = check_handle(event, CpuEvent).point
            if not event.timing or point is None:
                raise driver_error(
                    "CUDA_ERROR_INVALID_HANDLE",
                    f"{event!r} has no time: "
                    + ("it was never recorded" if event.timing else "create it with timing=True"),
                )
            if not point.passed:
                raise driver_error(
                    "CUDA_ERROR_NOT_READY", f"{event!r} has not been passed yet; synchronize with it first"
                )
            times.append(point.time_ns)
        return (times[1] - times[0]) / 1e6

    # Memory

    def allocate(self, nbytes: int, stream: CpuStream) -> int:
        """Allocates device memory at once. Raises ``OutOfMemoryError`` beyond the device's memory."""
        self._check_open()
        return self._heaps[check_idle(stream).device].allocate(nbytes)

    def free(self, address: int, stream: CpuStream) -> None:
        """Frees device memory once all work now in the stream has run; after ``close``, at once."""
        if self._closed:
            heap = self._heaps[stream.device]
            heap.release(heap.retire(address))
            return
        heap = self._heaps[check_idle(stream).device]
        retirement = heap.retire(address)
        self._scheduler.submit(stream, Task(f"free {address:#x}", lambda: heap.release(retirement), brief=True))

    def allocate_host(self, nbytes: int) -> int:
        """Allocates host memory. This device needs no page-locking; the memory is counted separately."""
        self._check_open()
        return self._host.allocate(nbytes)

    def free_host(self, address: int) -> None:
        self._host.release(self._host.retire(address))

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: CpuStream) -> None:
        device = check_handle(stream, CpuStream).device
        self._submit(stream, self._copies.to_device(device, destination, source, nbytes))

    def copy_to_host(self, destination: int, source: int, nbytes: int, stream: CpuStream) -> None:
        device = check_handle(stream, CpuStream).device
        self._submit(stream, self._copies.to_host(device, destination, source, nbytes))

    def copy_on_device(self, destination: int, source: int, nbytes: int, stream: CpuStream) -> None:
        check_handle(stream, CpuStream)
        self._submit(stream, self._copies.on_device(destination, source, nbytes))

    def copy_peer(
        self,
        destination: int,
        destination_device: int,
        source: int,
        source_device: int,
        nbytes: int,
        stream: CpuStream,
    ) -> None:
        check_handle(stream, CpuStream)
        self._check_device(destination_device)
        self._check_device(source_device)
        task = self._copies.between_devices(destination, destination_device, source, source_device, nbytes)
        self._submit(stream, task)

    def fill(self, address: int, pattern: bytes, count: int, stream: CpuStream) -> None:
        device = check_handle(stream, CpuStream).device
        self._submit(stream, self._copies.fill(device, address, pattern, count))

    def report(self, record: int, cursor: int, nbytes: int, stream: CpuStream) -> None:
        """The address at the cursor is read when the report runs. If it is invalid, the device fails then, as a GPU
        does."""
        device = check_handle(stream, CpuStream).device
        self._submit(stream, self._copies.report(device, record, cursor, nbytes))

    # Code

    def load(self, device: int, code: Code) -> CpuFunction:
        """Loads native code. Raises ``DriverError`` for other code, a damaged image or a missing entry."""
        self._check_device(device)
        return CpuFunction(device, code)

    def resources(self, function: CpuFunction, code: Code, threads: int, shared_bytes: int) -> KernelResources:
        """Raises ``DeviceError``: a CPU has no registers or occupancy to report."""
        raise DeviceError(
            f"resources were asked for on cpu:{function.device}; registers and occupancy are a GPU's: "
            "ask where there is one, with OXIDE_DEVICE=cuda"
        )

    def launch(
        self, function: CpuFunction, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, stream: CpuStream
    ) -> None:
        """Launches a kernel. Its blocks run on as many threads as are worth waking. Raises ``DriverError`` for a launch
        beyond the device's limits."""
        check_handle(stream, CpuStream)
        blocks = check_launch(function, grid, block, shared_bytes, stream)
        if function.persistent:
            blocks = min(blocks, self._threads)
            grid, block = (blocks, 1, 1), (function.persistent, 1, 1)
        seed = 0 if self._seeds is None else self._seeds.getrandbits(32) | 1  # draws the order of the launch's threads
        if function.sanitized is not None:
            from oxide.driver.cpu.sanitizer import SanitizedLaunch

            if function.cooperative:
                check_fits(stream.device, grid, block)  # now: the worker that binds the launch can no longer refuse it
            launch = SanitizedLaunch(
                function.sanitized,
                lambda words: function.bind(grid, block, shared_bytes, words, seed),
                self._scheduler.block_order,
                self._heaps[stream.device].tracked,
                grid,
                block,
                shared_bytes,
                params,
            )
            self._submit(stream, Task(f"launch {function.entry}", launch, kernel=True))
            return
        launched = function.launch(grid, block, shared_bytes, params, seed, blocks)
        if Tracking.wanted:
            noted = Task("note what a kernel may write", lambda: note_launch(self._heaps, params), measured=False)
            self._submit(stream, noted)
        self._submit(stream, launched)

    # Graphs

    def begin_capture(self, stream: CpuStream) -> None:
        self._check_open()
        check_idle(stream).captured = [CapturedPart(())]

    def capture_after(self, stream: CpuStream, parts: Sequence[int]) -> None:
        """Begins another part of the capture. Raises ``DriverError`` outside a capture, and for parts that have not
        begun."""
        captured = check_handle(stream, CpuStream).captured
        if captured is None:
            raise driver_error("CUDA_ERROR_ILLEGAL_STATE", f"a part of a capture on {stream!r}, where none was begun")
        check_recordable(stream)
        if len(captured) == 1 and not captured[0].items and not captured[0].begun:
            captured.clear()
        if any(not 0 <= part < len(captured) for part in parts):
            raise driver_error(
                "CUDA_ERROR_INVALID_VALUE",
                f"a part of a capture on {stream!r} after the parts {tuple(parts)}, and {len(captured)} have begun",
            )
        captured.append(CapturedPart(tuple(parts), begun=True))

    def conditionals(self, device: int) -> str | None:
        """Returns None: this device's graphs hold conditionals."""
        self._check_device(device)
        return None

    def begin_conditional(
        self, stream: CpuStream, kind: ConditionalKind, flag: int, stop: int
    ) -> tuple[CpuStream, ...]:
        """Begins a conditional in the capture. Raises ``DriverError`` outside a capture, and for addresses outside the
        device's memory."""
        if check_handle(stream, CpuStream).captured is None:
            raise driver_error("CUDA_ERROR_ILLEGAL_STATE", f"a conditional on {stream!r}, where no capture was begun")
        check_recordable(stream)
        heap = self._heaps[stream.device]
        heap.check("the flag of a conditional,", flag, 4)
        if stop:
            heap.check("the fault record of a conditional,", stop, 4)
        bodies = [CpuStream(stream.device, high=stream.high) for _ in range(2 if kind == "if-else" else 1)]
        for body in bodies:
            body.captured = [CapturedPart(())]
        stream.conditional = OpenConditional(kind, flag, stop, tuple(bodies))
        return stream.conditional.bodies

    def end_conditional(self, stream: CpuStream) -> None:
        """Ends the conditional that was begun on the stream. Raises ``DriverError`` if there is none."""
        captured, opened = check_handle(stream, CpuStream).captured, stream.conditional
        if captured is None or opened is None:
            raise driver_error(
                "CUDA_ERROR_ILLEGAL_STATE", f"the end of a conditional on {stream!r}, where none was begun"
            )
        stream.conditional = None
        bodies = [self.end_capture(body) for body in opened.bodies]
        for body in opened.bodies:
            body.destroyed = True
        if opened.kind == "while" and bodies[0].is_empty:
            raise driver_error("CUDA_ERROR_INVALID_VALUE", f"a loop on {stream!r} whose body is empty would never end")
        captured[-1].items.append(conditional(opened, bodies))

    def end_capture(self, stream: CpuStream) -> CpuGraph:
        """Ends the capture. Raises ``DriverError`` if no capture was begun on the stream, or if a conditional of the
        capture has not ended."""
        parts = check_handle(stream, CpuStream).captured
        if parts is None:
            raise driver_error(
                "CUDA_ERROR_ILLEGAL_STATE", f"the end of a capture on {stream!r}, where none was begun; begin one first"
            )
        stream.captured = None
        opened, stream.conditional = stream.conditional, None
        if opened is not None:
            raise driver_error(
                "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
                f"the end of a capture on {stream!r} inside its conditional; end the conditional first",
            )
        return CpuGraph(stream.device, parts)

    def launch_graph(self, graph: CpuGraph, stream: CpuStream) -> None:
        """Submits the recorded items. The items of a part run in order. Parts that may run at the same time run on
        streams of their own."""
        check_handle(graph, CpuGraph)
        check_idle(stream)
        if graph.device != stream.device:
            raise driver_error(
                "CUDA_ERROR_INVALID_HANDLE",
                f"{graph!r} cannot run on {stream!r}, of another device; launch it on cpu:{graph.device}",
            )
        clock = self._clock
        renewed = recorded if clock is None else lambda item: clock.note(item.renewed())
        graph.launch(stream, self._scheduler.submit, renewed)

    def destroy_graph(self, graph: CpuGraph) -> None:
        """Destroys the graph; launches already submitted still run."""
        if not self._closed:
            check_handle(graph, CpuGraph).destroyed = True

    # Host functions

    def launch_host_function(self, function: Callable[[], None], stream: CpuStream) -> None:
        self._submit(check_idle(stream), python_call(function))

    def call(self, what: str, function: Callable[[int], Ranges], stream: CpuStream) -> None:
        address = self.stream_address(stream)

        def run() -> None:
            for start, nbytes in function(address):
                self.expose(start, nbytes)

        self._submit(stream, Task(what, run))

    def launch_native_host_function(self, function: int, argument: int, stream: CpuStream) -> None:
        self._submit(check_idle(stream), native_call(function, argument))
        if self._driven:  # the function may wake a waiter that makes no more queries
            self._scheduler.synchronize(stream)

    # Other libraries' streams and memory

    def foreign_stream(self, device: int, address: int) -> CpuStream:
        """Raises ``DriverError``: no other library has streams of this device."""
        self._check_device(device)
        raise driver_error(
            "CUDA_ERROR_INVALID_HANDLE",
            f"stream {address:#x} of another library on cpu:{device}; a CPU device has none: pass stream=None",
        )

    def adopt(self, address: int, nbytes: int) -> int:
        """Lets work use memory that another library allocated. Returns the number of the device on which this driver
        allocated the memory, 0 if another library did."""
        self._check_open()
        device = 0
        if self._devices > 1:
            device = next((index for index, heap in enumerate(self._heaps) if heap.contains(address, nbytes)), 0)
        self._heaps[device].adopt(address, nbytes)
        return device

    def disown(self, address: int, nbytes: int) -> None:
        for heap in self._heaps:
            if heap.disown(address, nbytes):
                return

    def expose(self, address: int, nbytes: int) -> None:
        if Tracking.wanted:
            for heap in self._heaps:
                heap.wrote(address, nbytes, None)

    def clock(self) -> CpuClock:
        """Returns a clock. The threads note its times as they run the work."""
        if self._clock is not None:
            raise DeviceError("the CPU driver has a clock already; close it first")
        self._clock = CpuClock(partial(setattr, self, "_clock", None))
        return self._clock

    def close(self) -> None:
        """Waits for submitted work and ends the threads. May be called again.

        Later submissions raise ``DriverError``. Memory that is still allocated stays valid, for example the memory of a
        NumPy array that ``d2h`` returned or that views a box. It can still be freed. Memory that is never freed returns
        to the system when neither the driver nor any object on the memory is referenced any more.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._scheduler.close()
        except BaseException:
            self._closed = False
            raise
        for heap in (*self._heaps, self._host):
            heap.end()

    # For tests

    @property
    def live_allocations(self) -> LiveAllocations:
        """Returns the memory that is not freed yet. Memory counts as freed once its stream has run the free."""
        held = [heap.held for heap in self._heaps]
        host_bytes, host_count = self._host.held
        return LiveAllocations(
            sum(nbytes for nbytes, _ in held), sum(count for _, count in held), host_bytes, host_count
        )

    def pending(self) -> tuple[CpuStream, ...]:
        """Returns the streams whose first item could run now: the high-priority streams, then the others. Each of the
        two groups is in the order in which the first items were submitted. Available only in step mode."""
        return self._steps().pending()

    def step(self, stream: CpuStream | None = None) -> bool:
        """Runs one item, of ``stream`` if that is given. Returns ``False`` if no item can run. Available only in step
        mode."""
        return self._steps().step(stream)

    def run_until_idle(self) -> None:
        """Runs items until none can run. Available only in step mode."""
        self._steps().run_until_idle()

    # Helpers

    def _steps(self) -> StepScheduler:
        if not isinstance(self._scheduler, StepScheduler):
            raise driver_error(
                "CUDA_ERROR_ILLEGAL_STATE", "stepping a CPU driver that runs by itself; make it with step=True"
            )
        return self._scheduler

    def _submit(self, stream: CpuStream, item: Task | BlockRange) -> None:
        """Hands an item to the scheduler, or to the capture that the stream is in."""
        if stream.captured is None:
            if self._clock is not None:
                self._clock.note(item)
            self._scheduler.submit(stream, item)
        else:
            check_recordable(stream)
            stream.captured[-1].items.append(item)

    def _note_look(self) -> None:
        """Counts a query that found work unfinished, and sleeps at every ``_LOOKS``-th.

        A polling thread must release the GIL now and then, or the worker that it waits for gets the GIL only 5 ms
        later. The thread sleeps instead of calling ``sched_yield``: a thread that yields loses the rest of its time
        slice, 3 ms on Linux, so 64 waits would hold up an event loop for 0.2 s (docs/performance.md).
        """
        self._looks += 1
        if self._looks % _LOOKS == 0:
            sleep(1e-6)  # 50 to 60 µs, by the kernel's timer

    def _check_device(self, device: int) -> None:
        self._check_open()
        if not 0 <= device < self._devices:
            raise driver_error(
                "CUDA_ERROR_INVALID_DEVICE",
                f"device {device} was asked for; there are {self._devices} CPU devices, from 0 "
                "(OXIDE_CPU_DEVICES sets how many)",
            )

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error()


@final
class _RunDriver(CpuDriver):
    """A driver for one run. It marks submitted work as the run's, and shares all state with ``driver``."""

    __slots__ = ("_run",)

    def __init__(self, driver: CpuDriver, run: Droppable) -> None:
        self.__dict__ = driver.__dict__  # without ``_drop``: it ends no threads, as the shared driver continues
        self._run = run

    def _submit(self, stream: CpuStream, item: Task | BlockRange) -> None:
        item.droppable = self._run
        super()._submit(stream, item)
