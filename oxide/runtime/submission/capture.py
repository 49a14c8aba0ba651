"""What a graph records while an operation runs through a capture, and what a capture refuses.

An operation that is captured executes as ever, in an ``ExecutionContext`` whose driver is a ``Recording``: its
launches, copies and fills are noted and not submitted, its allocations are made at once, on the graph's stream, and
belong to the graph. Only then does the driver's own capture run, on a stream that nobody else knows, over the noted
calls and nothing else. So no allocation, event or query of the runtime's can fall into it, other tasks and threads may
use every stream meanwhile, and a Python error in the middle leaves nothing half captured.

The price: what another library puts into ``ctx.stream.handle`` would not be seen, so a capture refuses to name it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from oxide.errors import GraphError
from oxide.runtime.device.fault_records import CURSOR_BYTES, RECORD_BYTES
from oxide.runtime.device.memory import Allocation
from oxide.runtime.device.places import identity

if TYPE_CHECKING:
    from oxide.compiler.specialization import Specialization
    from oxide.driver.base import Dim3, Driver, FunctionHandle, StreamHandle
    from oxide.runtime.device.address_ranges import Known
    from oxide.runtime.device.places import Place
    from oxide.runtime.submission.stream import Stream
    from oxide.runtime.submission.submission import ExecutionContext

# Of the task or the thread, as its context is: others run operations meanwhile.
_current: Final[ContextVar[Recording | None]] = ContextVar("oxide_capture", default=None)


@final
class Recording:
    """Notes what would be submitted. ``allocates`` says whether operations may make boxes, which the graph then owns.

    To operations it is the driver, with the methods that a graph can hold.
    """

    def __init__(self, stream: Stream, *, allocates: bool) -> None:
        self.stream = stream
        self.allocates = allocates
        self.is_open = True  # who makes it closes it, whatever is raised: an interrupt may keep __exit__ from running
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.at_launch: list[Callable[[ExecutionContext], None]] = []
        self.reads: dict[Allocation, None] = {}
        self.writes: dict[Allocation, None] = {}
        self.known: list[Known | None] = []  # of those that other libraries know: the graph uses them
        self.kernels: dict[int, tuple[Specialization, dict[object, Place | None]]] = {}
        self.fault_record: Allocation | None = None
        self.results: dict[object, Any] = {}
        self._before: Recording | None = None

    def __enter__(self) -> Recording:
        refuse_in_capture("capturing a graph")
        before = _current.get()
        self._before = before if before is not None and before.is_open else None  # an interrupt may leave a closed one
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False
        _current.set(self._before)

    # What contexts use

    def note_uses(self, reads: list[Allocation], writes: list[Allocation]) -> None:
        """The graph reads and writes these; each launch is ordered by it."""
        self.reads.update(dict.fromkeys(reads))
        self.writes.update(dict.fromkeys(writes))
        self.known += [allocation.known_to_others() for allocation in (*reads, *writes)]

    def fault_address(self, specialization: Specialization, place: Place | None) -> int:
        """Where the graph's kernels report a fault: device memory. Behind the record is the cursor, by which the end
        of each launch carries a record that was claimed on to the host, and zeroes it."""
        if self.fault_record is None:
            self.fault_record = Allocation(self.stream._timeline, RECORD_BYTES + CURSOR_BYTES)
            self.fault_record.obtain()
            self.writes[self.fault_record] = None
        self.kernels.setdefault(specialization.kernel_id, (specialization, {}))[1][identity(place)] = place
        return self.fault_record.address

    def require_allocation(self, what: str) -> None:
        """Raises ``GraphError`` where the graph may own no memory."""
        if not self.allocates:
            raise GraphError(
                f"{what} cannot be allocated inside CudaGraph.scope: a graph goes on using the addresses it was "
                f"recorded with. Make the box before the scope and fill it inside, with memcpy or a kernel; or capture "
                f"the whole operation with op.graph(), which keeps the boxes it makes"
            )

    def once(self, operation: object, record: Callable[[], Any]) -> Any:
        """What ``record()`` gives, which is called for the first who asks for ``operation`` in this capture."""
        if operation not in self.results:
            self.results[operation] = record()
        return self.results[operation]

    def so_far(self) -> tuple[int, int, int]:
        """How much was recorded, for ``rewind``."""
        return len(self.calls), len(self.at_launch), len(self.results)

    def rewind(self, calls: int, at_launch: int, results: int) -> None:
        """Forgets what an operation that failed had recorded."""
        del self.calls[calls:]
        del self.at_launch[at_launch:]
        while len(self.results) > results:
            self.results.popitem()

    # What operations use, as the driver

    def launch(
        self, function: FunctionHandle, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, stream: StreamHandle
    ) -> None:
        self.calls.append(("launch", (function, grid, block, shared_bytes, params)))

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        self.calls.append(("copy_to_device", (destination, source, nbytes)))

    def copy_to_host(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        self.calls.append(("copy_to_host", (destination, source, nbytes)))

    def copy_on_device(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        self.calls.append(("copy_on_device", (destination, source, nbytes)))

    def fill(self, address: int, pattern: bytes, count: int, stream: StreamHandle) -> None:
        self.calls.append(("fill", (address, pattern, count)))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise GraphError(
            f"{name} cannot be captured: a graph holds kernel launches, copies on one device and fills. "
            f"Run it before the graph, or between its launches with graph.update(op)"
        )

    # The driver's own capture

    def replay_into(self, driver: Driver, stream: StreamHandle) -> None:
        """Submits what was noted, and last what reports a fault to the host."""
        for method, arguments in self.calls:
            getattr(driver, method)(*arguments, stream)
        if self.fault_record is not None:
            record = self.fault_record.address
            driver.report(record, record + RECORD_BYTES, RECORD_BYTES, stream)


def refuse_in_capture(what: str, stream: Stream | None = None) -> None:
    """Raises ``GraphError`` inside a capture of this task's or thread's; with ``stream``, if it captures that one."""
    recording = _current.get()
    if recording is not None and recording.is_open and (stream is None or recording.stream is stream):
        raise GraphError(
            f"{what} is not possible while a graph is captured"
            + (f" on thread {threading.current_thread().name}" if stream is None else " on the stream")
            + ": nothing runs before the graph is launched. Do it before the capture or after it; "
            "inside CudaGraph.scope, hand operations to record"
        )
