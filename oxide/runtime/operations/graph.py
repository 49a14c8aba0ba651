"""CUDA graphs: an operation is captured once and launched many times, each launch as one submission.

Launching a graph costs the host a few µs however many kernels it holds. In exchange everything in it is fixed: the
kernels, their scalar arguments and the addresses. Only the *contents* of the buffers change between launches. A capture
runs nothing but the sources of shared operations. Names and semantics are those of cuda-async's ``CudaGraph``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, final

import numpy as np

from oxide.errors import GraphError
from oxide.host import core
from oxide.host.core import Dropping, submit_at_once
from oxide.host.messages import written
from oxide.runtime.devices.runtime import Device
from oxide.runtime.devices.scheduling import require_stream
from oxide.runtime.memory.memory import Arc, DeviceBox, Partition
from oxide.runtime.operations.captured_graph import (
    Captured,
    Source,
    accepted,
    arrived,
    discard,
    instantiate,
    record,
)
from oxide.runtime.operations.operation import Depiction, DeviceOperation, OfArguments, filled
from oxide.runtime.ordering.stream import Stream
from oxide.runtime.plan.reuse import GraphMemory
from oxide.runtime.submission.capture import Recording
from oxide.runtime.submission.staging import ReadingAtSubmission
from oxide.runtime.submission.submission import ExecutionContext, Submission
from oxide.runtime.submission.walk import Frame, Submittable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from oxide.pictures import Picture
    from oxide.runtime.devices.fault_records import Report
    from oxide.runtime.ordering.timeline import Timeline

T = TypeVar("T")
U = TypeVar("U")


@final
class CudaGraph(Generic[T]):
    """A captured operation. ``op.graph()``, ``op.graph_on(stream)`` and ``CudaGraph.scope(stream)`` make one.

    The graph keeps every buffer that it uses, whether it was given the buffer or made it during the capture, until the
    graph is closed or dropped *and* the device is past its last launch. A launch is ordered with all other operations
    that use the buffers that the graph reads and writes, whatever streams these operations run on.

    ``h2d`` inside a captured operation reads its array again at each launch: the submitting thread copies the array at
    submission, whatever its size (about 0.15 ms for a MiB). ``d2h`` inside a captured operation yields one array, which
    every launch fills again. Functions given to ``and_then`` and ``map`` are called once, at the capture. A kernel's
    fault is raised by the launch in which it happened.
    """

    def __init__(
        self, stream: Stream, captured: Captured, output: T, again: Callable[[Stream], CudaGraph[T]] | None = None
    ) -> None:
        self.stream = stream
        self._captured: Captured | None = captured
        self._again = again  # captures the operation again, for ``instances``; None for a scope's graph
        self._output: T | None = output
        self._taken = False
        # Updates whose faults no launch has taken over yet, each with its own reports.
        self._updates: deque[tuple[Submission[Any], list[Report]]] = deque()
        self._passed_on: list[Report] = []
        self._updated: tuple[Timeline, int] | None = None  # the end of the last update: later launches run after it

    def take_output(self) -> T:
        """Returns the result of the captured operation: handles that launches fill. The result can be taken once, so
        that the graph keeps no host array that its user has dropped.

        Host arrays are filled by launches, too: an output that may have some can be taken once the first launch has
        completed. Raises ``GraphError`` before that, and for a second call.
        """
        captured = self._require_open()
        if self._taken:
            raise GraphError("take_output: the graph's output was taken before; keep what the first call returned")
        if captured.fills_host and not _is_handle(self._output):
            first = captured.first
            if first is None or not first[0].passed(first[1]):
                raise GraphError(
                    "take_output: the output has host arrays, and no launch has filled them yet. Take it when the "
                    "first launch has completed, as after await graph.launch() or graph.launch().sync()"
                )
        return self._take()

    def _take(self) -> T:
        """Returns the output, perhaps before it is filled, for launches that yield it."""
        self._taken = True
        output, self._output = self._output, None
        return cast(T, output)

    def update(self, operation: DeviceOperation[U]) -> U:
        """Runs ``operation`` on the graph's stream and returns its result at once, in flight. The operation can write
        new inputs, for example with ``memcpy(box, array)``. Host arrays have been read when ``update`` returns,
        whatever their size. Later launches run after the operation and use its results. A fault of the operation's
        kernels is raised by the next launch, and by ``graph.stream.synchronize()``. Raises ``GraphError`` once the
        graph is closed.
        """
        if not isinstance(operation, DeviceOperation):
            raise TypeError(
                f"graph.update takes an operation, not {type(operation).__name__}; memcpy(box, array) makes one that "
                f"fills a box of the graph's"
            )
        operation.consume()
        self._require_open()
        passed_on: list[Report] = []
        self._passed_on = passed_on
        with ReadingAtSubmission():
            submission: Submission[U] = submit_at_once(operation, self.stream, "graph.update")
        self._updated = self.stream._timeline, submission.mark.position
        self.stream._adopt(submission)
        # At each update: drops finished updates, so that the next launch does not get their reports and their
        # page-locked memory is reused.
        while self._updates and self._updates[0][0].finished_well():
            self._updates.popleft()
        if submission.faults:  # empty if the update launched no kernels
            # An update that launches the graph has taken over the reports of earlier updates. They are not passed on
            # again: the list would grow with every update.
            own = [report for report in submission.faults if report not in passed_on]
            if own:
                self._updates.append((submission, own))
        return submission.result_in_flight

    def launch(self, *inputs: ArrayLike | DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]) -> GraphLaunch:
        """Returns an operation that fills the graph's inputs and runs the graph once, on any stream of the graph's
        device.

        For each ``oxide.input`` of the captured operation, in the order of their declaration, ``inputs`` has an array,
        a box, or an operation that yields a box. An array is read until the run has completed: do not change it before.
        Raises ``TypeError`` or ``ValueError`` for a wrong number of arguments, dtype or shape, and ``DeviceError`` for
        a box of another device.

        Launches of one graph run one after the other. As part of an operation on another device, the launch still runs
        on the graph's device. If the graph is closed, raises ``GraphError``: here, or when the operation runs if the
        graph was closed in between.
        """
        captured = self._captured or self._require_open()
        sources = accepted(captured.inputs, inputs, self.device) if inputs or captured.inputs else ()
        return GraphLaunch(self, self.stream.device, sources)

    def instances(self, n: int) -> GraphInstances[T]:
        """Captures the operation ``n - 1`` more times. Returns this graph and the new ones, whose launches take turns.

        Each has its own buffers and its own output, so ``n`` launches may be in flight at once, and the upload of one
        overlaps the work of another. The functions of ``and_then`` and ``map`` are called again at each capture. Raises
        ``GraphError`` for a graph that a scope recorded or whose output was taken, and ``TypeError`` or ``ValueError``
        for a wrong ``n``.
        """
        self._require_open()
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise TypeError(f"instances({written(n)}): the number of graphs is an int")
        if n < 1:
            raise ValueError(f"instances({written(n)}): ask for 1 graph or more")
        if self._again is None:
            raise GraphError("instances: a graph that a scope recorded cannot be captured again; use op.graph()")
        if self._taken:
            raise GraphError(
                "instances: the graph's output was taken before, by take_output or by instances itself; capture another"
            )
        again = self._again
        return GraphInstances([self, *[again(self.device.new_stream()) for _ in range(int(n) - 1)]])

    def close(self) -> None:
        """Releases the graph and its buffers. Launches in flight still complete. May be called again."""
        self._captured = self._output = self._again = None

    @property
    def closed(self) -> bool:
        """Returns whether the graph was closed."""
        return self._captured is None

    @property
    def _fills_host(self) -> bool:
        """Returns whether each launch fills host arrays. False for a closed graph."""
        return self._captured is not None and self._captured.fills_host

    @property
    def device(self) -> Device:
        """Returns the graph's device."""
        return self.stream.device

    @staticmethod
    def scope(stream: Stream) -> GraphScope:
        """Returns a scope that records operations one by one: ``with CudaGraph.scope(stream) as s: s.record(op)``, and
        then ``s.graph``.

        Inside the scope, nothing is allocated on the device and nothing runs: see ``GraphScope``.
        """
        return GraphScope(require_stream(stream))

    def __enter__(self) -> CudaGraph[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CudaGraph cannot be pickled or copied; instances(n) makes several of one operation")

    def __repr__(self) -> str:
        return f"<oxide.CudaGraph {'closed' if self.closed else 'on ' + self.device.label}>"

    def picture(self) -> Picture:
        """Returns the picture of the graph's launches, copies and boxes: ``oxide.pictures.svg(graph)`` draws it. Raises
        ``GraphError`` if the graph was closed."""
        captured = self._require_open()
        reads, writes = len(captured._reads), len(captured._writes) - bool(captured._record)
        notes = (
            f"Captured on {self.stream._timeline.label}. What no edge orders may run side by side. "
            "Dotted: an order without data, as a box is written that an earlier node used.",
            "Each launch waits for earlier uses of its boxes, on any stream. "
            f"Boxes: {reads} only read, {writes} written.",
        )
        return captured.work.picture(f"CudaGraph on {self.device.label}: {captured.work.summary()}", notes)

    def memory(self) -> GraphMemory:
        """Returns the device memory that the graph's own boxes take. Boxes that the program cannot reach any more share
        memory if all uses of one come before all uses of the other. Raises ``GraphError`` if the graph was closed."""
        return self._require_open().memory

    def summary(self) -> str:
        """Returns a line on the graph's work, such as ``2 launches, 1 copy``."""
        return "closed" if self._captured is None else self._captured.work.summary()

    def _repr_html_(self) -> str | None:
        """Returns the picture, which notebooks show; None for a closed graph."""
        from oxide.pictures.drawing import drawn

        return None if self.closed else drawn(self)

    def _follow_updates(self, context: ExecutionContext) -> None:
        """Orders a launch after the earlier updates and makes it report their faults. If the launch's submission fails,
        the next launch reports them."""
        if self._updated is not None:
            context.timeline.wait_for(*self._updated, "an update of the graph")
        while self._updates:
            try:
                taken = self._updates.popleft()
            except IndexError:  # another thread's launch took it
                break
            context.if_given_up(partial(self._updates.append, taken))
            _, reports = taken
            context.watch_faults(reports)
            self._passed_on += reports

    def _require_open(self) -> Captured:
        captured = self._captured
        if captured is None:
            raise GraphError("the graph was closed, and its buffers may be gone; capture the operation again")
        return captured


def _is_handle(output: object) -> bool:
    """Returns whether an output has no host arrays: whether it is a box, None, or a tuple of such."""
    if isinstance(output, tuple):
        return all(map(_is_handle, output))
    plain = output.value if isinstance(output, Arc) else output
    return plain is None or isinstance(plain, (DeviceBox, Partition, int, float, str))


@final
class GraphScope(Dropping):
    """A scope that records operations into a graph, in order. ``CudaGraph.scope(stream)`` makes one; ``graph`` is its
    result.

    Launches, ``memcpy``, ``d2h`` and combinations of them can be recorded. Three things raise a ``GraphError`` that
    says why: an operation that makes boxes; running an operation (``sync``, ``await``, …) in the task or thread that
    records; and using the stream. If an exception leaves the ``with`` block, there is no graph, and the stream stays
    usable.
    """

    def __init__(self, stream: Stream) -> None:
        self._recording = Recording(stream, allocates=False)
        self._drop = partial(setattr, self._recording, "is_open", False)
        self._context = ExecutionContext(stream, self._recording)
        self._inside = False
        self._graph: CudaGraph[None] | None = None

    def __enter__(self) -> GraphScope:
        if not self._recording.is_open:
            raise GraphError("the scope was used before; make a new one with CudaGraph.scope(stream)")
        self._recording.stream.device.raise_if_lost()
        self._recording.__enter__()
        self._inside = True
        return self

    def record(self, operation: DeviceOperation[U]) -> U:
        """Records the work of ``operation`` and returns its result: handles, filled when the graph is launched.

        An operation that raises records nothing.
        """
        recording = self._recording
        if not isinstance(operation, DeviceOperation):
            raise TypeError(f"record takes an operation, not {type(operation).__name__}")
        operation.consume()
        if not self._inside:
            raise GraphError("record works inside its scope: the graph is made when the with block ends")
        before = recording.so_far()
        try:
            return operation.run(self._context)
        except BaseException:
            recording.rewind(*before)
            raise

    @property
    def graph(self) -> CudaGraph[None]:
        """Returns the graph. Raises ``GraphError`` inside the scope, and after a scope that ended with an exception."""
        if self._graph is None:
            raise GraphError(
                "the graph is there when the scope has ended"
                if self._recording.is_open
                else "the scope ended with an exception, so there is no graph"
            )
        return self._graph

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._inside = False
        self._recording.__exit__(kind, error, trace)
        if error is not None:
            discard(self._context)
        else:
            self._graph = _finish(self._context, self._recording, None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a GraphScope cannot be pickled or copied; CudaGraph.scope(stream) makes another")


@final
class GraphLaunch(core.GraphLaunch, DeviceOperation[None]):
    __slots__ = ()

    _called = "graph launch"

    @property
    def _parts(self) -> tuple[Any, ...]:  # type: ignore[override]
        return tuple([source for source in self._sources if isinstance(source, DeviceOperation)])

    @property
    def _composed(self) -> bool:  # type: ignore[override]
        return bool(self._sources) and bool(self._parts)

    def _execute_slowly(self, context: ExecutionContext) -> None:
        submit_launch(context, self._graph, self._sources, self._sources)

    def step(self, frame: Frame, result: Any) -> Submittable[Any] | None:
        if not frame.at:
            require_launch(frame.context, self._graph)  # before its sources are submitted
        return super().step(frame, result)

    def finish(self, context: ExecutionContext, results: list[Any]) -> None:
        submit_launch(context, self._graph, self._sources, filled(self._sources, results))

    def copies_to_host(self) -> bool:
        return self._graph._fills_host

    def title(self) -> object:
        return self

    def depict(self) -> Depiction:
        return "graph", "launch of a graph", (self._graph.summary(),), tuple([("", each) for each in self._sources])

    def __repr__(self) -> str:
        return f"<oxide launch of {self._graph!r}>"


def require_launch(context: ExecutionContext, graph: CudaGraph[Any]) -> Captured:
    """Returns what a graph has captured. Raises ``GraphError`` if it cannot be launched in this context."""
    captured = graph._require_open()
    if context.recording is not None:
        context.recording.refuse(
            "the launch of a graph cannot be captured into another; record the operations themselves"
        )
    return captured


def submit_launch(
    context: ExecutionContext, graph: CudaGraph[Any], sources: tuple[Source, ...], given: Sequence[Any]
) -> None:
    """Submits one launch of a graph. ``given`` are ``sources`` with results in place of the operations."""
    captured = require_launch(context, graph)
    ready = [
        arrived(number, captured.inputs[number], found, graph.device) if isinstance(source, DeviceOperation) else found
        for number, (source, found) in enumerate(zip(sources, given, strict=True))
    ]
    graph._follow_updates(context)
    captured.launch(context, ready)


@final
class GraphInstances(Generic[T]):
    """A sequence of graphs of one operation, each with its own buffers, which ``CudaGraph.instances`` returns. The end
    of its ``with`` block closes all the graphs."""

    def __init__(self, graphs: list[CudaGraph[T]]) -> None:
        self._graphs = tuple(graphs)
        self._outputs = tuple([graph._take() for graph in graphs])
        self._turns = itertools.count()

    def launch(self, *inputs: ArrayLike | DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]) -> InstanceLaunch[T]:
        """Returns an operation that launches the next of the graphs with these inputs, as ``CudaGraph.launch`` does,
        and yields that graph's output. The output is filled again when that graph's turn comes again: ``n`` launches
        later."""
        first = self._graphs[0]
        return InstanceLaunch(self, accepted(first._require_open().inputs, inputs, first.device))

    def close(self) -> None:
        """Closes all graphs."""
        for graph in self._graphs:
            graph.close()

    def next_of(self) -> tuple[CudaGraph[T], T]:
        """Returns the graph whose turn it is, with its output, and passes the turn to the next graph."""
        turn = next(self._turns) % len(self._graphs)
        return self._graphs[turn], self._outputs[turn]

    def __len__(self) -> int:
        return len(self._graphs)

    def __getitem__(self, number: int) -> CudaGraph[T]:
        return self._graphs[number]

    def __iter__(self) -> Iterator[CudaGraph[T]]:
        return iter(self._graphs)

    def __enter__(self) -> GraphInstances[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("GraphInstances cannot be pickled or copied; instances(n) makes others")

    def __repr__(self) -> str:
        return f"<oxide.GraphInstances {len(self._graphs)} of {self._graphs[0]!r}>"


@final
class InstanceLaunch(OfArguments[T]):
    """The operation that ``GraphInstances.launch`` returns. Each run takes the next graph."""

    def __init__(self, instances: GraphInstances[T], sources: tuple[Source, ...]) -> None:
        self._instances = instances
        super().__init__(*sources)
        self._placed, self._placement = True, instances[0].device

    def step(self, frame: Frame, result: Any) -> Submittable[Any] | None:
        if not frame.at:
            require_launch(frame.context, self._instances[0])
        return super().step(frame, result)

    def submit(self, context: ExecutionContext, *arguments: Any) -> T:
        graph, output = self._instances.next_of()
        submit_launch(context, graph, self._arguments, arguments)
        return output

    def copies_to_host(self) -> bool:
        return self._instances[0]._fills_host

    def depict(self) -> Depiction:
        lines = (f"one of {len(self._instances)}", self._instances[0].summary())
        return "graph", "launch of a graph", lines, tuple([("", each) for each in self._arguments])


def capture(operation: DeviceOperation[T], stream: Stream, *, fuse: bool = False) -> CudaGraph[T]:
    """Captures ``operation`` into a graph: the implementation of ``op.graph_on(stream)``."""
    recording = Recording(require_stream(stream))
    context = ExecutionContext(stream, recording)

    def work() -> T:
        output = operation.run(context)
        recording.results.clear()  # they refer to boxes
        if fuse:
            from oxide.runtime.operations.fusing import fuse as merge  # imported here, as few captures need it

            merge(context)
        return output

    output = record(context, operation, work)
    return _finish(context, recording, output, partial(capture, operation, fuse=fuse))


def _finish(
    context: ExecutionContext,
    recording: Recording,
    output: T,
    again: Callable[[Stream], CudaGraph[T]] | None = None,
) -> CudaGraph[T]:
    """Makes the graph of a recording, and waits for the work that ran outside the graph: sources of shared
    operations."""
    context.runtime.reclaimer.sweep()  # frees earlier graphs, even if nothing was run in between
    try:
        captured = instantiate(context, recording, [*context.kept, output])
        mark = context.timeline.mark()
        mark.synchronize()
    except BaseException:
        discard(context)
        raise
    for report in context.faults:
        report.raise_fault()
    return CudaGraph(context.stream, captured, output, again)
