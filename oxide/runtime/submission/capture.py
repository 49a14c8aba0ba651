"""Graph capture: records what an operation submits, and refuses what a graph cannot hold.

A captured operation executes like any other, but the driver of its ``ExecutionContext`` is a ``Recording``. Its
launches, copies and fills are recorded and not submitted. Its allocations are made at once, on the graph's stream, and
belong to the graph. The driver's own capture runs only afterwards, on a stream that no other code knows, and captures
nothing but the recorded calls. So no allocation, event or query of the runtime can fall into the capture. Other tasks
and threads may use every stream meanwhile. A Python error in the operation leaves no half-made capture in the driver.

The price: work that another library submits to ``ctx.stream.handle`` would be missed, so a capture refuses to give the
handle.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, final

from oxide.driver.base import CAPABILITIES
from oxide.errors import GraphError, LaunchError
from oxide.runtime.devices.fault_records import CURSOR_BYTES, RECORD_BYTES, add_note_once, identity
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.ordering.stream import Capture, current_capture, refuse_in_capture
from oxide.runtime.plan.nodes import Conditional, Launched, Node, Part, PlanNode, dependencies, ends_of, name_of, parts
from oxide.runtime.submission.stops import PlanEnds, Unknown

if TYPE_CHECKING:
    from oxide.compiler.kernel.specialization import Specialization
    from oxide.driver.base import (
        ConditionalKind,
        Dim3,
        FunctionHandle,
        GraphHandle,
        Graphs,
        Ranges,
        StreamHandle,
    )
    from oxide.runtime.devices.fault_records import LaunchPlace
    from oxide.runtime.memory.allocation import Known
    from oxide.runtime.memory.memory import DeviceBox
    from oxide.runtime.ordering.stream import Stream

T = TypeVar("T")


class NotRecordable(Exception):
    """Raised, while a run is recorded, by an operation that cannot be recorded: a conditional, which needs a graph; a
    collective; an operation on another device; or a shared operation, whose source would run before the work that has
    been recorded. The run is then executed without a recording."""


@final
class InterpretedInGraphError(LaunchError):
    """Raised for an interpreted launch in a capture. A ``while_loop`` or ``cond`` that is run outside a graph makes a
    graph of its own. If this error ends the capture of that graph, the host decides instead."""


class LaunchHook:
    """A function of ``Recording.at_launch`` that is also told how each launch of the graph went."""

    @abstractmethod
    def captured(self, graph: GraphHandle, graphs: Graphs) -> None:
        """Called when the graph is made. The hook may destroy the graph, if it refuses all launches from then on."""

    @abstractmethod
    def __call__(self, context: Any) -> None:
        """Called before the graph is launched."""

    @abstractmethod
    def launched(self, error: BaseException | None) -> None:
        """Called after the graph was launched, or with the error that kept it from being launched."""


@final
@dataclass(eq=False)
class Recording:
    """Records the work that operations submit, instead of running it. With ``allocates``, operations may make boxes,
    which the graph then owns. ``outer`` is the context of a run that will submit the work itself; None for a graph.
    ``of_run`` is True for a graph that is a part of a run and not the program's own. ``rehearses`` is True if no graph
    will be made. ``explains`` is True if the recording will be fused as a whole, to compare it with the program: until
    then, no part of it is fused.

    Operations use the recording as their driver. It has only those methods of a driver whose work a graph can hold.
    """

    stream: Stream
    allocates: bool = True
    _: KW_ONLY
    outer: Any = None
    of_run: bool = False
    rehearses: bool = False
    explains: bool = False

    def __post_init__(self) -> None:
        self.is_open = True  # closed by its creator whatever is raised, as an interrupt may prevent __exit__
        self.nodes: list[PlanNode] = []  # the graph's nodes, or those of the body that is being recorded
        self.bodies: tuple[str, ...] = ()  # the bodies that are being recorded, as errors name them
        # What each launch calls before the graph, with the memory that it uploads to, None if it uploads nothing.
        self.at_launch: dict[Callable[[Any], None], Allocation | None] = {}
        self.downloads: list[tuple[int, int]] = []  # the ends of the host memory that copies fill
        self.made: list[Allocation] = []  # the memory that operations allocated
        self.inputs: dict[int, DeviceBox] = {}  # the declared inputs, by number
        self.known: list[Known | None] = []  # entries of ``AddressRanges``, kept alive with the graph
        self.kernels: dict[int, tuple[Specialization, dict[object, LaunchPlace | None]]] = {}
        self.fault_record: Allocation | None = None
        self.results: dict[object, Any] = {}
        self._before: Capture | None = None
        self._using: tuple[list[Allocation], list[Allocation]] = ([], [])
        self.kernel = ""  # the name of the kernel of the next launch
        self.launched: Launched | None = None  # the next launch, if the program makes it and not the runtime

    def __enter__(self) -> Recording:
        if not self.of_run:
            refuse_in_capture("capturing a graph")
        before = current_capture.get()
        # An interrupt may leave a closed capture in the variable.
        self._before = before if before is not None and before.is_open else None
        current_capture.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.is_open = False
        current_capture.set(self._before)

    def suspend(self) -> None:
        """Ends the effect of ``__enter__`` while the walk of the recorded run has stopped."""
        current_capture.set(self._before)

    # Used by contexts

    def note_uses(self, reads: list[Allocation], writes: list[Allocation]) -> None:
        """Records that the graph reads and writes these allocations. Each launch of the graph is ordered by these uses.
        The calls that are recorded from now until ``uses_noted`` are the work that uses the allocations."""
        self._using = (reads, writes)
        self.known += [allocation.known_to_others() for allocation in (*reads, *writes)]

    def uses_noted(self) -> None:
        """Ends the work to which the allocations of ``note_uses`` belong."""
        self._using = ([], [])

    def fault_address(self, specialization: Specialization, place: LaunchPlace | None) -> int:
        """Returns the address of the record in device memory in which the graph's kernels report faults. The 8 bytes
        after the record are the *cursor*, the address of a page's next record. At the end of each launch, the device
        copies the record, if a kernel claimed it, to this address, and zeroes the record."""
        if self.fault_record is None:
            self.fault_record = Allocation(self.stream._timeline, RECORD_BYTES + CURSOR_BYTES)
            self.fault_record.obtain()
        self.kernels.setdefault(specialization.kernel_id, (specialization, {}))[1][identity(place)] = place
        return self.fault_record.address

    def require_allocation(self, what: str) -> None:
        """Raises ``GraphError`` if the graph may not own memory."""
        if not self.allocates:
            raise GraphError(
                f"{what} cannot be allocated inside CudaGraph.scope: a graph goes on using the addresses it was "
                f"recorded with. Make the box before the scope and fill it inside, with memcpy or a kernel; or capture "
                f"the whole operation with op.graph(), which keeps the boxes it makes"
            )

    # Bodies of conditionals

    def begin_body(self, what: str, nodes: list[PlanNode]) -> tuple[list[PlanNode], tuple[str, ...], int]:
        """Begins to record the body of a conditional, whose nodes are appended to ``nodes``. ``what`` names the body in
        errors. Returns what ``end_body`` takes. Results that are kept in ``results`` meanwhile are forgotten then: work
        outside the body cannot use them, because the body may run many times or never. Raises ``NotRecordable`` in the
        recording of a run."""
        if self.outer is not None:
            raise NotRecordable
        outer = self.nodes, self.bodies, len(self.results)
        self.nodes, self.bodies = nodes, (*self.bodies, what)
        return outer

    def end_body(self, outer: tuple[list[PlanNode], tuple[str, ...], int]) -> None:
        """Ends the body that ``begin_body`` began."""
        self.nodes, self.bodies, known = outer
        while len(self.results) > known:
            self.results.popitem()

    def conditional(
        self, kind: ConditionalKind, flag: DeviceBox, bodies: list[list[PlanNode]], own: list[Allocation]
    ) -> None:
        """Records a conditional: ``flag``, a box of one i32, decides which of the bodies run. ``own`` is the memory
        that was allocated for the bodies."""
        self.note_uses([flag._allocation], [])
        self.uses_noted()
        self.nodes.append(Conditional(kind, flag.ptr, flag._allocation, bodies, own))

    def so_far(self) -> tuple[int, int, int]:
        """Returns the current lengths of the recording, for ``rewind``."""
        return len(self.nodes), len(self.at_launch), len(self.results)

    def rewind(self, nodes: int, at_launch: int, results: int) -> None:
        """Removes everything that a failed operation had recorded, given the lengths that ``so_far`` returned before
        it."""
        del self.nodes[nodes:]
        for kept, length in ((self.at_launch, at_launch), (self.results, results)):
            while len(kept) > length:
                kept.popitem()

    # Used by operations, as the driver

    def launch(
        self, function: FunctionHandle, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, stream: StreamHandle
    ) -> None:
        self._note("launch", (function, grid, block, shared_bytes, params))

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        self._note("copy_to_device", (destination, source, nbytes))

    def copy_to_host(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        if self.bodies:
            raise GraphError(
                f"d2h cannot be part of {self.bodies[-1]}: that runs on the device alone, as often as the flag says. "
                f"Copy the result afterwards: while_loop(flag, body).and_then(d2h)"
            )
        self.downloads.append((destination, destination + nbytes))
        self._note("copy_to_host", (destination, source, nbytes))

    def copy_on_device(self, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        self._note("copy_on_device", (destination, source, nbytes))

    def fill(self, address: int, pattern: bytes, count: int, stream: StreamHandle) -> None:
        self._note("fill", (address, pattern, count))

    def call(self, what: str, function: Callable[[int], Ranges], stream: StreamHandle) -> None:
        self.nodes.append(Node("call", (what, function), what, *self._using))

    def _note(self, method: str, arguments: tuple[Any, ...]) -> None:
        kernel, launched = (self.kernel, self.launched) if method == "launch" else ("", None)
        self.launched = None
        self.nodes.append(Node(method, arguments, kernel, *self._using, launched))

    def refuse(self, message: str, kind: type[Exception] = GraphError) -> NoReturn:
        """Refuses what a graph cannot hold: raises ``kind``, or ``NotRecordable`` in the recording of a run."""
        if self.outer is not None:
            raise NotRecordable
        raise kind(message)

    def needs_data(self, context: Any, stage: str) -> NoReturn:
        """Refuses a function of the program that would see the data of recorded copies; ``stage`` describes it. In the
        recording of a run, has the recorded part submitted instead."""
        if self.outer is not None:
            raise PlanEnds(context)
        if self.rehearses:
            raise Unknown
        raise GraphError(
            f"{stage} comes behind a copy to the host, and cannot be captured: a capture runs nothing, so the function "
            f"would see an array that is not filled. Capture the operation without it, and have it called after each "
            f"launch: graph.launch().map(f)"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in CAPABILITIES:
            self.refuse(
                f"{name} cannot be captured: a graph holds kernel launches, copies on one device and fills. "
                f"Run it before the graph, or between its launches with graph.update(op)"
            )
        return self

    # The driver's own capture

    def replay_into(self, graphs: Graphs, stream: StreamHandle) -> None:
        """Submits the recorded calls to ``stream``, which the driver is capturing: each call after those that its data
        depends on. At the end of the graph comes the call that reports a fault to the host."""
        pieces = self._replay(graphs, stream, self.nodes)
        if self.fault_record is not None:
            if len(pieces) > 1:
                graphs.capture_after(stream, ends_of(pieces))
            record = self.fault_record.address
            graphs.report(record, record + RECORD_BYTES, RECORD_BYTES, stream)

    def _replay(self, graphs: Graphs, stream: StreamHandle, nodes: Sequence[PlanNode]) -> list[Part]:
        pieces = parts(dependencies(nodes))
        for piece in pieces:
            if len(pieces) > 1:
                graphs.capture_after(stream, piece.after)
            for number in piece.nodes:
                node = nodes[number]
                try:
                    if isinstance(node, Conditional):
                        self._replay_conditional(graphs, stream, node)
                    else:
                        getattr(graphs, node.method)(*node.arguments, stream)
                except Exception as error:
                    add_note_once(error, f"in node {number + 1} of the graph, {name_of(node)}")
                    raise
        return pieces

    def _replay_conditional(self, graphs: Graphs, stream: StreamHandle, node: Conditional) -> None:
        """Submits a conditional. A fault ends a loop, which might otherwise run for ever: the kernel that failed may be
        the one that sets the flag."""
        record = self.fault_record
        stop = record.address if record is not None and node.kind == "while" else 0
        streams = graphs.begin_conditional(stream, node.kind, node.flag, stop)
        for body, nodes in zip(streams, node.bodies, strict=True):
            pieces = self._replay(graphs, body, nodes)
            if len(pieces) > 1:  # the driver ends the body with work of its own, after all parts
                graphs.capture_after(body, ends_of(pieces))
        graphs.end_conditional(stream)
