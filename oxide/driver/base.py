"""The Driver protocol: the runtime's interface to a device.

To the runtime, devices differ only in their driver. ``Driver`` is the core that every driver has. A *capability*, such
as ``driver.graphs``, is what some drivers have: the driver itself, as it has the capability's methods too, or None. A
driver is flat: plain methods over opaque handles. So a thin wrapper (``Wrapper``) can record its calls or inject
failures, and the runtime has one code path. Three rules hold for every method:

- **A method blocks only if its docstring says so.** Work is submitted to a stream, which runs its work in order.
- **Any thread may call any method**, at any time, on any handle that has not been destroyed.
- **A failure raises** ``DriverError``, ``OutOfMemoryError`` or ``DeviceLostError`` and submits nothing. A failure of
  submitted work is raised by the calls that observe it: ``query_*`` and ``synchronize_*``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast, final

from oxide.errors import DeviceError

if TYPE_CHECKING:
    from oxide.driver.sanitizing import Sanitized

StreamHandle: TypeAlias = Any
EventHandle: TypeAlias = Any
FunctionHandle: TypeAlias = Any
GraphHandle: TypeAlias = Any
Ranges: TypeAlias = Sequence[tuple[int, int]]  # addresses and numbers of bytes

Dim3: TypeAlias = tuple[int, int, int]

StreamPriority: TypeAlias = Literal["normal", "high"]
"""The priority of a stream. CUDA's default priority is its lowest, so there is no priority below ``"normal"``."""

ConditionalKind: TypeAlias = Literal["if", "if-else", "while"]
"""The kind of a conditional in a graph. An ``"if-else"`` has two bodies, the other kinds have one."""

# The limits of CUDA devices since compute capability 3.0. The CPU device has the same limits.
MAX_THREADS_PER_BLOCK: Final = 1024
MAX_BLOCK: Final = (1024, 1024, 64)
MAX_GRID: Final = (2**31 - 1, 65535, 65535)
MAX_SHARED_BYTES: Final = 227 * 1024
MAX_BLOCKS_PER_CLUSTER: Final = 8
"""The largest cluster that every GPU with clusters can run."""


@dataclass(frozen=True, slots=True)
class Target:
    """The kind of code that a device executes.

    ``kind`` picks the back end. ``arch`` is a GPU architecture such as ``sm_90``, or a CPU's name. ``features`` is the
    back end's own feature string. If ``seeded``, each launch may choose the order in which a block's threads run.
    """

    kind: Literal["ptx", "native"]
    arch: str
    features: str = ""
    seeded: bool = False


def capability_of(arch: str) -> int:
    """Returns the compute capability of a CUDA architecture: 90 for ``sm_90`` and for ``sm_90a``. Raises ``ValueError``
    for any other text."""
    kind, _, number = arch.partition("_")
    if kind != "sm":
        raise ValueError(f"{arch} is no CUDA architecture")
    return int(number[:-1] if number.endswith(("a", "f")) else number)


COOPERATIVE_ENTRY = "oxide_run_cooperative"
"""The entry of a native kernel whose threads synchronise across the grid. It takes the longer launch record
``COOPERATIVE``. Each call runs a range of blocks to the next grid barrier (``cpu/streams.py``)."""


LOOP_FREE_ENTRY = "oxide_run_loop_free_blocks"
"""The entry of a native kernel whose threads do not loop, recurse or synchronise across the grid."""


BINARY_MAGIC: Final = (b"\x7fELF", b"\x50\xed\x55\xba")
"""The first bytes of a cubin and of a fatbin."""


@dataclass(frozen=True, slots=True)
class Code:
    """Machine code for one kernel: PTX text or a native object file, and the symbol to launch.

    ``array_bytes`` is the size of the ``SharedArray``s of PTX in dynamic shared memory, where the memory that a launch
    asks for follows them. It is 0 if they fit in static shared memory. ``sanitized`` is the data that the CPU device
    needs to run a sanitized kernel.

    If ``persistent`` is not 0, the kernel's blocks have ``persistent`` threads, and the block size of a launch is
    ignored. Each of these blocks does the work of several blocks of the launch's grid, which extends along x only. The
    driver launches at most as many blocks as the device holds at once.

    ``foreign`` code comes from another compiler, for a CUDA device: PTX, a cubin or a fatbin, with any number of
    kernels. Its ``entry`` only names the code in messages.
    """

    target: Target
    entry: str
    image: bytes
    array_bytes: int = 0
    sanitized: Sanitized | None = None
    persistent: int = 0
    foreign: bool = False

    @property
    def is_binary(self) -> bool:
        """Returns whether this is foreign code in binary form: a cubin or a fatbin, not PTX."""
        return self.foreign and self.image.startswith(BINARY_MAGIC)

    @property
    def cooperative(self) -> bool:
        """Returns True if threads synchronise across the grid, so that all blocks must be resident at once.

        This is read from the code itself, because the code may come from a cache: native code has the entry
        ``COOPERATIVE_ENTRY``, and PTX uses the workspace of a cooperative launch (``%envreg1``).
        """
        return self.entry == COOPERATIVE_ENTRY if self.target.kind == "native" else b"%envreg1" in self.image

    @property
    def dependent(self) -> bool:
        """Returns True if the PTX itself waits for the earlier kernels of its stream, so that the kernel may begin
        before they have ended. This is read from the code, as ``cooperative`` is."""
        return self.target.kind == "ptx" and b"griddepcontrol.wait" in self.image

    @property
    def loop_free(self) -> bool:
        """Returns True if every block of the native code ends soon, whatever the arguments and the contents of
        memory."""
        return self.entry == LOOP_FREE_ENTRY


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Properties of a device. ``memory`` is in bytes."""

    name: str
    target: Target
    multiprocessors: int
    memory: int
    max_threads_per_block: int
    max_block: Dim3
    max_grid: Dim3
    version: str = ""
    """The driver's version, such as 13.0; "" on the CPU device."""


@final
@dataclass(frozen=True, slots=True)
class KernelResources:
    """The GPU resources of a kernel, as ``Kernel.resources()`` returns them.

    ``registers`` and ``local_bytes`` are per thread. Local memory holds values that did not fit in registers, and
    arrays indexed by a variable. ``spill_bytes`` is the part of local memory to which the assembler spilled registers,
    None if the assembler does not report it. ``shared_bytes`` is for a block's ``SharedArray``s,
    ``dynamic_shared_bytes`` for its ``DynamicSharedArray``s. ``constant_bytes`` is for the kernel's constants.
    ``blocks_per_multiprocessor`` is the number of blocks of ``block`` threads that are resident on a multiprocessor at
    once, 0 if not even one fits. ``occupancy`` is the number of warps of these blocks, as a fraction of the most warps
    that a multiprocessor can hold.
    """

    registers: int
    local_bytes: int
    spill_bytes: int | None
    shared_bytes: int
    constant_bytes: int
    max_threads_per_block: int
    block: int
    dynamic_shared_bytes: int
    blocks_per_multiprocessor: int
    occupancy: float


class Droppable(Protocol):
    """One run of an operation. Once ``dropped`` is set, the run's work that has not started yet is skipped."""

    dropped: bool


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work that a device has run. ``begun`` and ``ended`` are nanoseconds of ``time.perf_counter_ns``.

    ``name`` is the device's name for the work, such as the name of a graph's kernel, or "" if the device gives none.
    """

    begun: int
    ended: int
    name: str = ""


class Clock(Protocol):
    """Measures when a device runs submissions, for traces. ``Timing.clock`` makes a clock.

    ``source`` is the way in which the clock measures: ``"workers"`` (the CPU device's threads note the time),
    ``"events"`` (timing events in the streams) or ``"CUPTI"``.
    """

    source: str

    def begin(self, stream: StreamHandle) -> Any:
        """Begins to measure the calling thread's next submission to ``stream``: one launch, copy, fill, report, or
        graph. Returns a token for the other methods."""

    def end(self, token: Any, stream: StreamHandle) -> None:
        """Ends the measurement that ``begin`` began. Call it also if the submission failed."""

    def collect(self, *, final: bool) -> None:
        """Collects the times that the devices have reported so far. Call it before ``spans``. ``final`` is True if all
        work has ended."""

    def spans(self, token: Any) -> list[Span] | None:
        """Returns the pieces of work that the device ran for a submission, in order; a graph may have several. Returns
        None if the submission had not ended at the last ``collect``, or was dropped. Once a list is returned, the token
        is used up."""

    def forget(self, token: Any) -> None:
        """Gives up a token whose submission failed or was dropped."""

    def close(self) -> None:
        """Ends all measuring. Call it once every token is used up or given up."""


class Graphs(Protocol):
    """Records a stream's work once, and submits it as a whole again and again."""

    def begin_capture(self, stream: StreamHandle) -> None:
        """Starts to record launches, copies, fills and reports submitted to the stream, instead of running them.

        No other work may be submitted to the stream until ``end_capture``, which must be called on the same thread.
        Other streams and threads are not affected.
        """

    def capture_after(self, stream: StreamHandle, parts: Sequence[int]) -> None:
        """Begins another part of the capture on the stream. The work of the part runs in order. It runs after the
        given parts, and may run at the same time as all other parts.

        Parts have the numbers 0, 1, … in the order in which they begin. A capture without a call of this method is one
        part. In a capture of several parts, each part begins with a call, the first part too.
        """

    def conditionals(self, device: int) -> str | None:
        """Prepares a device for conditionals in captures. Returns None, or the reason why the device's graphs cannot
        hold conditionals. May load code, which may block until the device is idle."""

    def begin_conditional(
        self, stream: StreamHandle, kind: ConditionalKind, flag: int, stop: int
    ) -> tuple[StreamHandle, ...]:
        """Begins a conditional in the capture on the stream. Returns a stream for each body, on which the body is
        captured. Call ``conditionals`` first.

        ``flag`` is the address of an i32 in the device's memory. ``"if"`` runs its body if the flag is not 0.
        ``"if-else"`` runs the first body if the flag is not 0, else the second. ``"while"`` reads the flag before each
        iteration, and runs its body again and again until the flag is 0. If ``stop`` is not 0, it is the address of a
        fault record, and a loop also ends once the record is claimed.

        A body's stream takes launches, copies on the device, fills, further parts and conditionals. ``stream`` itself
        takes no work until ``end_conditional``.
        """

    def end_conditional(self, stream: StreamHandle) -> None:
        """Ends the conditional on the stream and the captures of its bodies, and destroys the bodies' streams. Raises
        ``DriverError`` for a loop whose body is empty."""

    def end_capture(self, stream: StreamHandle) -> GraphHandle:
        """Ends a capture and returns its graph. Ends a failed capture too: the stream is usable again even if this
        raises. If a conditional of the capture has not ended, ends the captures of its bodies too."""

    def launch_graph(self, graph: GraphHandle, stream: StreamHandle) -> None:
        """Submits the recorded work to a stream of the same device. Parts run at the same time where ``capture_after``
        allows it. The memory that the work uses must stay allocated."""

    def destroy_graph(self, graph: GraphHandle) -> None:
        """Destroys a graph. No launch of the graph may be in flight."""

    def report(self, record: int, cursor: int, nbytes: int, stream: StreamHandle) -> None:
        """Copies a claimed fault record to the host and advances the cursor.

        ``record`` and ``cursor`` are addresses in the memory of the stream's device. The 8 bytes at ``cursor`` are an
        address in page-locked host memory. The record is claimed if its first 4 bytes are not all 0. If so, its
        ``nbytes`` bytes are copied to that address, and the record is zeroed. In any case ``nbytes`` is added to the
        address at ``cursor``. ``nbytes`` is a multiple of 8.

        A graph of kernels that may fail ends with a report. So each launch of the graph reports to memory of its own,
        without another submission.
        """


class Peers(Protocol):
    """Copies between the memories of devices."""

    def copy_peer(
        self,
        destination: int,
        destination_device: int,
        source: int,
        source_device: int,
        nbytes: int,
        stream: StreamHandle,
    ) -> None:
        """Copies from one device's memory to another's: directly if the hardware can, else through the host."""


class Runs(Protocol):
    """Skips the work of runs that were dropped."""

    def for_run(self, run: Droppable) -> Driver:
        """Returns a driver for the submissions of one run.

        Launches, copies, fills and host functions submitted through the returned driver are skipped if ``run.dropped``
        is set before they start. Everything else still happens: events are recorded and waited for, memory is freed.
        """


class Sharing(Protocol):
    """Uses other libraries' streams and memory."""

    def foreign_stream(self, device: int, address: int) -> StreamHandle:
        """Returns a handle for another library's stream, given the stream's number (1 is CUDA's legacy default stream,
        2 the calling thread's default stream). The library that created the stream destroys it."""

    def adopt(self, address: int, nbytes: int) -> int:
        """Lets work use device memory that another library allocated. Returns the number of the memory's device."""

    def disown(self, address: int, nbytes: int) -> None:
        """Undoes one call of ``adopt``."""


class Sanitizer(Protocol):
    """Finds accesses of memory that is not initialised."""

    def expose(self, address: int, nbytes: int) -> None:
        """Notes that the host or another library may write device memory of this driver from now on, unseen. The
        sanitizer counts it as written."""


class Timing(Protocol):
    """Measures when the device runs work."""

    def elapsed_ms(self, start: EventHandle, end: EventHandle) -> float:
        """Returns the milliseconds between two events, both created with ``timing`` and passed by their streams."""

    def clock(self) -> Clock:
        """Returns a clock that measures when the devices run submissions. It measures until it is closed. Raises
        ``DeviceError`` if the driver has a clock already."""


class Driver(Protocol):
    """The interface to one kind of device. ``name`` is the device's name in ``OXIDE_DEVICE``."""

    name: str

    # Capabilities

    @property
    def graphs(self) -> Graphs | None: ...
    @property
    def peers(self) -> Peers | None: ...
    @property
    def runs(self) -> Runs | None: ...
    @property
    def sharing(self) -> Sharing | None: ...
    @property
    def sanitizer(self) -> Sanitizer | None: ...
    @property
    def timing(self) -> Timing | None: ...

    # Devices

    def device_count(self) -> int:
        """Returns the number of devices. They are numbered from 0."""

    def device_info(self, device: int) -> DeviceInfo: ...

    # Streams: in-order queues of work

    def create_stream(self, device: int, priority: StreamPriority = "normal") -> StreamHandle:
        """Creates a stream. The device prefers kernels of ``"high"`` streams. It does not preempt a running kernel."""

    def destroy_stream(self, stream: StreamHandle) -> None:
        """Destroys the stream; work already submitted to it still runs."""

    def synchronize_stream(self, stream: StreamHandle) -> None:
        """Blocks, with the GIL released, until all submitted work has run."""

    def query_stream(self, stream: StreamHandle) -> bool:
        """Returns whether all submitted work has run."""

    def stream_address(self, stream: StreamHandle) -> int:
        """Returns the number by which other libraries know the stream (a ``CUstream``)."""

    # Events: a point in a stream

    def create_event(self, device: int, *, timing: bool) -> EventHandle: ...

    def destroy_event(self, event: EventHandle) -> None: ...

    def record_event(self, event: EventHandle, stream: StreamHandle) -> None:
        """Records the event at the current end of the stream.

        An event may be recorded again. Waits submitted before the new recording still wait for the earlier point.
        """

    def query_event(self, event: EventHandle) -> bool:
        """Returns whether the stream has passed the event's latest recording; True if the event was never recorded."""

    def synchronize_event(self, event: EventHandle) -> None:
        """Blocks, with the GIL released, until the stream has passed the event's latest recording."""

    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        """Makes work submitted to the stream from now on wait for the event's latest recording. Does not block."""

    # Memory: addresses are plain integers, sizes are bytes and never 0

    def allocate(self, nbytes: int, stream: StreamHandle) -> int:
        """Allocates device memory, 256-byte aligned and uninitialised, for work submitted to the stream from now on."""

    def free(self, address: int, stream: StreamHandle) -> None:
        """Frees device memory once all work now in the stream has run."""

    def allocate_host(self, nbytes: int) -> int:
        """Allocates page-locked host memory that every device can read and write at the same address."""

    def free_host(self, address: int) -> None:
        """Frees page-locked memory at once: no work in flight may use it. May block until the device is idle."""

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        """Copies from page-locked host memory, which must stay allocated until the stream has passed the copy."""

    def copy_to_host(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        """Copies into page-locked host memory."""

    def copy_on_device(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None: ...

    def fill(self, address: int, pattern: bytes, count: int, stream: StreamHandle) -> None:
        """Writes ``pattern`` (1, 2, 4, 8 or 16 bytes) ``count`` times. The address must be a multiple of the pattern's
        size, or of 8 for a pattern of 16 bytes."""

    # Code

    def load(self, device: int, code: Code) -> FunctionHandle:
        """Loads code for launches on a device. May block until the device is idle.

        The handle keeps the code loaded. Its ``reports`` is True if the code may use the fault record, whose address is
        the last parameter. The handle of foreign code cannot be launched itself. Its ``kernels`` maps the name of each
        kernel to a handle, and its ``parameters`` maps the name to a tuple of ``KernelParameter``. Raises
        ``DriverError`` for foreign code unless the device is a CUDA device.
        """

    def resources(self, function: FunctionHandle, code: Code, threads: int, shared_bytes: int) -> KernelResources:
        """Returns the resources of a kernel loaded from ``code``, for blocks of ``threads`` threads with
        ``shared_bytes`` of dynamic shared memory. Raises ``DeviceError`` if the device has no such resources."""

    def launch(
        self,
        function: FunctionHandle,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        params: bytes,
        stream: StreamHandle,
    ) -> None:
        """Launches a kernel. ``params`` are the kernel's parameters as a C structure, each naturally aligned.

        Raises ``LaunchError`` if the blocks of a cooperative kernel cannot all be resident at once.
        """

    # Host functions: run in stream order, on one of the driver's threads

    def launch_host_function(self, function: Callable[[], None], stream: StreamHandle) -> None:
        """Submits a call of a Python function. The function must not call the driver. Its exceptions go to
        ``sys.unraisablehook``."""

    def call(self, what: str, function: Callable[[int], Ranges], stream: StreamHandle) -> None:
        """Submits a collective, which no other method can express. ``what`` names it in messages and traces.

        A CUDA device calls ``function(address)`` at once, even in a capture, with the address of the stream. A function
        for a CUDA device submits another library's work to the stream and does nothing else. The CPU device calls
        ``function(address)`` in stream order on a worker thread. A function for the CPU device does the work itself,
        and returns the memory that it has written. It may block, and must not raise.
        """

    def launch_native_host_function(self, function: int, argument: int, stream: StreamHandle) -> None:
        """Submits a call of the C function ``void function(void *argument)``, which never takes the GIL."""

    def close(self) -> None:
        """Closes the driver at interpreter exit: waits for its work, then frees everything."""


class WholeDriver(Driver, Graphs, Peers, Runs, Sharing, Sanitizer, Timing, Protocol):
    """A driver with every capability."""


CAPABILITIES: Final = {
    "graphs": Graphs,
    "peers": Peers,
    "runs": Runs,
    "sharing": Sharing,
    "sanitizer": Sanitizer,
    "timing": Timing,
}

_T = TypeVar("_T")


def provided(capability: _T | None, what: str) -> _T:
    """Returns a driver's capability. Raises ``DeviceError`` if the driver lacks it."""
    if capability is None:
        raise DeviceError(f"this operation needs {what}, which the device's driver does not have")
    return capability


@final
class Own:
    """A capability of a driver that has the capability's methods."""

    def __get__(self, driver: _T, kind: object) -> _T:
        return driver


if TYPE_CHECKING:
    _Any: Any  # has every method of the protocol and of its capabilities
else:
    _Any = object


class Wrapper(_Any):  # type: ignore[misc]
    """The base of drivers that stand in for another one, ``inner``, and have its capabilities."""

    def __init__(self, inner: Driver) -> None:
        self.inner = cast("WholeDriver", inner)  # calls come for the capabilities that it has

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet
            raise AttributeError(name)
        return getattr(self.inner, name)


def _own_if_inner_has(name: str) -> property:
    return property(lambda wrapper: None if getattr(wrapper.inner, name) is None else wrapper)


for _name in CAPABILITIES:
    setattr(Wrapper, _name, _own_if_inner_has(_name))


def lanes_of(after: Sequence[Sequence[int]]) -> list[int]:
    """Returns the lane of each part of a graph (``Graphs.capture_after``). A lane is a sequence of parts for one
    stream. ``after`` has, for each part, the numbers of the earlier parts that it runs after. Lanes are numbered in the
    order in which they begin.

    A part joins the lane of a part that it runs after, if that part is still the last of its lane. Otherwise the part
    begins a new lane. So a lane waits for another lane only where one of its parts runs after a part of the other lane.
    """
    found: list[int] = []
    continued: set[int] = set()
    count = 0
    for earlier in after:
        before = next((number for number in earlier if number not in continued), None)
        if before is None:
            found.append(count)
            count += 1
        else:
            continued.add(before)
            found.append(found[before])
    return found
