"""The Driver protocol: everything the runtime asks of a device, and the whole difference between two devices.

A driver is flat: plain methods over opaque handles, so that a recording, a failing or a stepping
driver is a thin wrapper, and the runtime above has one path. Three rules hold for every method:

- **Nothing but the methods that say so blocks.** Work is submitted to a stream and runs in order there.
- **Any thread may call any method**, at any time, on any handle that has not been destroyed.
- **A failure raises** ``DriverError``, ``OutOfMemoryError`` or ``DeviceLostError`` and submits nothing.
  A failure of submitted work is raised by the calls that observe it: ``query_*`` and ``synchronize_*``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, final

if TYPE_CHECKING:
    from oxide.driver.sanitizing import Sanitized

StreamHandle: TypeAlias = Any
EventHandle: TypeAlias = Any
FunctionHandle: TypeAlias = Any
GraphHandle: TypeAlias = Any

Dim3: TypeAlias = tuple[int, int, int]

# The limits of every CUDA device since compute capability 3.0, which the CPU device shares.
MAX_THREADS_PER_BLOCK: Final = 1024
MAX_BLOCK: Final = (1024, 1024, 64)
MAX_GRID: Final = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True, slots=True)
class Target:
    """What the compiler must produce for a device: ``kind`` picks the back end, ``arch`` is ``sm_90`` or a CPU's name,
    ``features`` the back end's own feature string. ``seeded`` code runs a block's threads in an order that each launch
    may choose."""

    kind: Literal["ptx", "native"]
    arch: str
    features: str = ""
    seeded: bool = False


COOPERATIVE_ENTRY = "oxide_run_cooperative"
"""The entry of a native kernel whose threads meet across the grid: its launch record is longer, and the driver calls it
as ``cpu/cooperative.py`` does."""


LOOP_FREE_ENTRY = "oxide_run_loop_free_blocks"
"""The entry of a native kernel whose threads neither loop nor recurse, nor meet across the grid."""


@dataclass(frozen=True, slots=True)
class Code:
    """Machine code for one kernel: PTX text or a native object file, and the symbol to launch. A sanitized kernel's
    comes with what the CPU device needs to run it."""

    target: Target
    entry: str
    image: bytes
    sanitized: Sanitized | None = None

    @property
    def cooperative(self) -> bool:
        """Whether all blocks have to be on the device at once, since threads meet across the grid.

        The code says so itself, wherever it was kept: its entry's name on the CPU, and the use of the workspace that a
        cooperative launch has on a GPU.
        """
        return self.entry == COOPERATIVE_ENTRY if self.target.kind == "native" else b"%envreg1" in self.image

    @property
    def loop_free(self) -> bool:
        """Whether a block of native code ends soon, whatever its arguments are and memory holds."""
        return self.entry == LOOP_FREE_ENTRY


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is. Memory in bytes."""

    name: str
    target: Target
    multiprocessors: int
    memory: int
    max_threads_per_block: int
    max_block: Dim3
    max_grid: Dim3


@final
@dataclass(frozen=True, slots=True)
class KernelResources:
    """What a kernel takes of a GPU: what ``Kernel.resources()`` gives.

    ``registers`` and ``local_bytes`` are a thread's; local memory is what did not fit in registers, and arrays indexed
    by a variable. ``spill_bytes`` is how much of it the assembler spilled registers to, None where it does not say.
    ``shared_bytes`` is a block's static shared memory, ``constant_bytes`` the kernel's constants.
    ``blocks_per_multiprocessor`` is how many blocks of ``block`` threads with ``dynamic_shared_bytes`` of dynamic
    shared memory are resident at once, 0 if not even one fits; ``occupancy`` is the warps that they are, as a fraction
    of the most that a multiprocessor holds.
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
    """Names the work of one run. Once ``dropped`` is set, its work that has not started never will."""

    dropped: bool


class Driver(Protocol):
    """One kind of device. ``name`` is what ``OXIDE_DEVICE`` calls it, ``drops_work`` says that ``for_run`` has an
    effect."""

    name: str
    drops_work: bool

    def for_run(self, run: Droppable) -> Driver:
        """This driver for what one run submits: launches, copies, fills and host functions that are submitted through
        the result are skipped where they have not started when ``run.dropped`` is set. What is not work keeps its
        place: events are recorded and waited for, memory is freed. Where ``drops_work`` is False it is this driver."""

    # Devices

    def device_count(self) -> int:
        """How many devices there are, from 0."""

    def device_info(self, device: int) -> DeviceInfo: ...

    # Streams: in-order queues of work

    def create_stream(self, device: int) -> StreamHandle: ...

    def destroy_stream(self, stream: StreamHandle) -> None:
        """Gives the stream up; work already submitted to it still runs."""

    def synchronize_stream(self, stream: StreamHandle) -> None:
        """Blocks, with the GIL released, until all that was submitted has run."""

    def query_stream(self, stream: StreamHandle) -> bool:
        """Whether all that was submitted has run."""

    def stream_address(self, stream: StreamHandle) -> int:
        """The number other libraries know the stream by (a ``CUstream``)."""

    # Events: a point in a stream

    def create_event(self, device: int, *, timing: bool) -> EventHandle: ...

    def destroy_event(self, event: EventHandle) -> None: ...

    def record_event(self, event: EventHandle, stream: StreamHandle) -> None:
        """Moves the event to the end of what the stream holds now. An event may be recorded again; a wait
        submitted before that keeps waiting for the point it was submitted with."""

    def query_event(self, event: EventHandle) -> bool:
        """Whether the point last recorded has been passed; True if none ever was."""

    def synchronize_event(self, event: EventHandle) -> None:
        """Blocks, with the GIL released, until the point last recorded has been passed."""

    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        """What is submitted to the stream from now on runs after the event's point; blocks nobody."""

    def elapsed_ms(self, start: EventHandle, end: EventHandle) -> float:
        """Milliseconds between two passed events that were created with ``timing``."""

    # Memory: addresses are plain integers, sizes are bytes and never 0

    def allocate(self, nbytes: int, stream: StreamHandle) -> int:
        """Device memory, 256-byte aligned, uninitialised, usable by work submitted to the stream from now on."""

    def free(self, address: int, stream: StreamHandle) -> None:
        """Gives device memory back once the stream has run what it holds now."""

    def allocate_host(self, nbytes: int) -> int:
        """Page-locked host memory that every device can read and write at the same address."""

    def free_host(self, address: int) -> None:
        """Gives page-locked memory back at once: no work in flight may use it. May block until the device is idle."""

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        """From page-locked host memory; it must stay until the stream has passed the copy."""

    def copy_to_host(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        """Into page-locked host memory."""

    def copy_on_device(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None: ...

    def copy_peer(
        self,
        destination: int,
        destination_device: int,
        source: int,
        source_device: int,
        nbytes: int,
        stream: StreamHandle,
    ) -> None:
        """From one device's memory to another's: directly where the hardware can, else through the host."""

    def fill(self, address: int, pattern: bytes, count: int, stream: StreamHandle) -> None:
        """Writes ``pattern`` (1, 2, 4 or 8 bytes) ``count`` times."""

    def report(self, record: int, cursor: int, nbytes: int, stream: StreamHandle) -> None:
        """If the first 4 bytes of ``record`` are not all 0, copies it, ``nbytes`` (a multiple of 8) of the stream's
        device's memory, to the page-locked host memory whose address the 8 bytes at ``cursor`` hold, and zeroes it. In
        any case the address at ``cursor``, in device memory too, grows by ``nbytes``.

        At the end of a graph: each launch reports into memory of its own, and the host submits nothing for that."""

    # Code

    def load(self, device: int, code: Code) -> FunctionHandle:
        """Makes code launchable on a device. The handle keeps it loaded; its ``reports`` says whether the code may use
        the fault record whose address its parameters end with. May block until the device is idle."""

    def resources(self, function: FunctionHandle, code: Code, threads: int, shared_bytes: int) -> KernelResources:
        """What a kernel that was loaded from ``code`` takes, in blocks of ``threads`` threads with ``shared_bytes`` of
        dynamic shared memory. Raises ``DeviceError`` where the device has no such resources."""

    def launch(
        self,
        function: FunctionHandle,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        params: bytes,
        stream: StreamHandle,
    ) -> None:
        """Runs a kernel. ``params`` are its parameters as a C structure, each naturally aligned.

        Raises ``LaunchError`` where the blocks of a cooperative kernel cannot all be on the device at once."""

    # Graphs: a stream's work, recorded once and submitted as one piece again and again

    def begin_capture(self, stream: StreamHandle) -> None:
        """From now on launches, copies, fills and reports submitted to the stream are recorded and not run. Until
        ``end_capture``, on the same thread, the stream takes nothing else. Other streams and threads are as ever."""

    def end_capture(self, stream: StreamHandle) -> GraphHandle:
        """Ends what ``begin_capture`` began, whatever came of it: the stream is usable again even if this raises."""

    def launch_graph(self, graph: GraphHandle, stream: StreamHandle) -> None:
        """Submits what was recorded, in order, to a stream of the same device. Memory that it uses must stay."""

    def destroy_graph(self, graph: GraphHandle) -> None:
        """Gives a graph up that no work in flight uses."""

    # Host functions: run in stream order, on a thread of the driver's

    def launch_host_function(self, function: Callable[[], None], stream: StreamHandle) -> None:
        """Calls Python. The function must not call the driver. What it raises goes to ``sys.unraisablehook``."""

    def launch_native_host_function(self, function: int, argument: int, stream: StreamHandle) -> None:
        """Calls the C function ``void function(void *argument)`` without ever taking the GIL."""

    # What other libraries own

    def foreign_stream(self, device: int, address: int) -> StreamHandle:
        """The handle of a stream that another library made, by its number (1 is CUDA's legacy default stream, 2 the
        calling thread's). Its maker destroys it."""

    def adopt(self, address: int, nbytes: int) -> int:
        """Lets work use device memory that another library allocated; returns the device whose memory it is."""

    def disown(self, address: int, nbytes: int) -> None:
        """Undoes one ``adopt``."""

    def close(self) -> None:
        """Ends the driver at interpreter exit: waits for its work, then gives everything back."""
