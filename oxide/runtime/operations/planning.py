"""Plans without a graph: each run of an operation is recorded first, as nodes, and the nodes are then submitted.

The recording is the same as for a graph: each node has the memory that it uses. ``op.fused()`` merges the launches of
elementwise kernels among the nodes. ``planned`` submits independent parts to several streams, which the policy picks.
The parts are submitted in the order of the program, and the run ends after all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, final

from oxide.driver.base import lanes_of
from oxide.errors import LaunchError
from oxide.host.locks import is_interrupt
from oxide.runtime.awaiting.loading import compiled_beside
from oxide.runtime.devices.fault_records import add_note_once
from oxide.runtime.devices.scheduling import picked_stream, require_stream
from oxide.runtime.operations.captured_graph import Recorded, discard, record
from oxide.runtime.operations.fusing import Known, fuse
from oxide.runtime.operations.operation import Depiction, DeviceOperation, Spec, done
from oxide.runtime.ordering.stream import Stream
from oxide.runtime.plan.nodes import Conditional, Node, Part, PlanNode, dependencies, name_of, parts
from oxide.runtime.plan.reuse import share_memory
from oxide.runtime.submission.capture import NotRecordable, Recording
from oxide.runtime.submission.stops import Unknown
from oxide.runtime.submission.submission import ExecutionContext
from oxide.runtime.submission.walk import Frame

T = TypeVar("T")

_BEGIN: Final = 0  # the states of a planned operation: its source has not begun;
_PLANS: Final = 1  # the source is recorded, in a recording of this run;
_FUSED: Final = 2  # what was recorded is fused, too;
_RECORDED: Final = 3  # the source is recorded, as a part of another recording;
_DONE: Final = 4  # and that part is fused
_ENDED: Final = 5  # what was recorded is submitted, or nothing can be recorded: the source goes on without a plan

_UPLOAD = "upload"
"""The ``method`` of nodes that are uploads and not calls of the driver. Such a node's one argument is a function that
submits the upload."""


@final
class Planned(Recorded[T]):
    """The operation that ``planned`` and ``op.fused()`` return. ``fuses`` merges launches of elementwise kernels,
    ``branches`` uses several streams.

    The plan ends before the first function of the program that is to see the data of a recorded copy to the host: what
    is recorded is submitted, and the rest runs without a plan."""

    _recording, _recorded = (_PLANS, _FUSED), _ENDED

    def __init__(self, source: DeviceOperation[T], *, fuses: bool, branches: bool) -> None:
        self._source = source
        self._parts = (source,)
        self._fuses = fuses
        self._branches = branches
        self._known: Known = {}
        super().__init__(source)
        self.place_as(source)

    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None:
        context = frame.context
        if frame.at == _BEGIN:
            recording = context.recording
            if recording is not None:  # a part of what is recorded
                frame.at, frame.data = _RECORDED, len(recording.nodes)
            else:
                recording = Recording(context.stream, outer=context)
                frame.inner = context.part(recording)
                frame.inner.visible = context.visible
                frame.at, frame.data, frame.place, frame.results = _PLANS, recording, context.place, context.renewed
                recording.__enter__()
            return self._source
        if frame.at == _RECORDED and self._fuses and context.recording is not None:
            if not context.recording.explains:
                self._fuse(frame, context, min(frame.data, len(context.recording.nodes)), _DONE)
        elif frame.at in self._recording:
            self._submit(frame)
            context.renewed = frame.results
        elif frame.at == _ENDED:
            context.renewed = frame.results
        frame.result = result
        return None

    def end_plan(self, frame: Frame) -> None:
        """Submits what is recorded. From now on the operation runs without a plan."""
        self._submit(frame)
        # The sources of an ``unzip`` that were recorded are not run again.
        frame.context.renewed = {operation: done(result) for operation, result in frame.data.results.items()}

    def _fuse(self, frame: Frame, context: ExecutionContext, first: int, state: int) -> None:
        """Fuses what is recorded, in ``context`` from node ``first`` on, and then sets the frame's state."""

        def work() -> None:
            fuse(context, first, self._known)
            frame.at = state

        compiled_beside(work)  # fused kernels may have to be compiled

    def _submit(self, frame: Frame) -> None:
        context, recording = frame.context, frame.data
        if self._fuses and frame.at == _PLANS:
            self._fuse(frame, frame.inner, 0, _FUSED)
        self._leave_recording(frame)
        nodes: list[PlanNode] = [
            Node(_UPLOAD, (function,), "", (), () if written is None else (written,))
            for function, written in recording.at_launch.items()
        ]
        nodes += recording.nodes
        if self._branches:
            _submit_branches(context, nodes, parts(dependencies(nodes)))
        else:
            for number, node in enumerate(nodes):
                _submit_node(context, number, node)
        if recording.downloads:
            context.wait_for_joined()
            assert context.copies is not None
            context.copies.submitted(context.timeline, context.timeline.advance())

    def fail(self, frame: Frame, error: BaseException) -> DeviceOperation[Any] | None:
        context = frame.context
        was_recording = frame.at in self._recording
        super().fail(frame, error)
        if was_recording and isinstance(error, NotRecordable):
            # Runs as without a plan, with one difference: the source of an ``unzip`` runs once in each run, and not
            # once for all runs.
            frame.inner, context.place = context, frame.place
            if context.renewed is None:
                context.renewed = {}
            if context.copies is not None:
                context.copies.recorded = 0
            return self._source
        if frame.at == _ENDED:
            context.renewed = frame.results
        return None

    def spec(self) -> Spec:
        return self._source.spec()

    def depict(self) -> Depiction:
        lines = ("elementwise launches merged",) if self._fuses else ("branches on several streams",)
        return "join", "fused" if self._fuses else "planned", lines, (("", self._source),)


def planned(operation: DeviceOperation[T]) -> DeviceOperation[T]:
    """Returns the operation with its independent parts on several streams, which the policy picks. Two parts, for
    example of a ``zip``, are independent if neither writes a box that the other uses. Without ``planned``, a run keeps
    all parts on one stream; the parts of a graph may run at the same time in any case.

    Each run records the operation first, so functions of ``and_then`` and ``map`` must not run operations themselves
    (``GraphError``), as in a capture. The source of an ``unzip`` runs once in each run. An operation that has a
    ``cond``, a ``while_loop``, a ``shared()`` that has not run, a collective, parts on several devices, the launch of a
    graph, a ``memcpy`` from a host array, declared uses or an interpreted kernel runs as it does without ``planned``,
    and its functions may then be called twice. Raises ``TypeError`` for anything but an operation.
    """
    if not isinstance(operation, DeviceOperation):
        raise TypeError(f"planned takes an operation, not {type(operation).__name__}")
    return Planned(operation, fuses=False, branches=True)


def explanation(operation: DeviceOperation[Any], stream: Stream) -> str:
    """Returns the text of ``op.explain()``."""
    operation.consume()
    recording = Recording(require_stream(stream), rehearses=True, explains=True)
    context = ExecutionContext(stream, recording)

    def work() -> str:
        with suppress(Unknown):  # what depends on a function that sees host data is not known
            context.keep(operation.run(context))  # the program would hold the result
        recording.results.clear()
        before = _listed(recording.nodes)
        report = fuse(context)
        after = _listed(recording.nodes)
        pieces = parts(dependencies(recording.nodes))
        memory = share_memory(recording.nodes, recording.made, context.timeline)
        lanes = len(set(lanes_of([part.after for part in pieces])))
        lines = [
            str(report),
            f"memory of its own boxes: {memory}",
            f"streams that its branches can use: {lanes}",
            "before:",
            *before,
            "after:",
            *after,
        ]
        return "\n".join(lines)

    text = record(context, operation, work)
    discard(context)
    return text


def _listed(nodes: Sequence[PlanNode], indent: str = "  ") -> list[str]:
    """Returns a line for each node: its number, its name, and the numbers of the nodes that it runs after. The lines of
    a conditional's bodies follow the line of the conditional."""
    lines = []
    for number, (node, after) in enumerate(zip(nodes, dependencies(nodes), strict=True), 1):
        follows = f", after {', '.join([str(earlier + 1) for earlier in after])}" if after else ""
        lines.append(f"{indent}{number} {name_of(node)}{follows}")
        if isinstance(node, Conditional):
            for name, body in zip(node.labels, node.bodies, strict=False):
                lines += [f"{indent}  {name}:", *_listed(body, indent + "    ")]
    return lines


def _submit_branches(context: ExecutionContext, nodes: list[PlanNode], pieces: list[Part]) -> None:
    """Submits the nodes of a plan to the context's stream and to others. If this raises, the run still ends after the
    nodes that were submitted."""
    lanes = lanes_of([part.after for part in pieces])
    contexts = [context]
    start = context.timeline.advance()
    ends: list[int] = []  # the end of each part, as a position on its stream
    try:
        for part, lane in zip(pieces, lanes, strict=True):
            if lane == len(contexts):
                contexts.append(_beside(context, start))
            here = contexts[lane]
            for before in part.after:
                other = contexts[lanes[before]].timeline
                if other is not here.timeline:
                    here.timeline.wait_for(other, ends[before], "a part of the plan on another stream")
            for number in part.nodes:
                _submit_node(here, number, nodes[number])
            ends.append(here.timeline.advance())
    except BaseException as error:
        if is_interrupt(error):
            for here in contexts[1:]:
                here.interrupted()
        raise
    finally:
        for here in contexts[1:]:
            context.join(here)


def _beside(context: ExecutionContext, start: int) -> ExecutionContext:
    """Returns a context for a part of a run, on a stream that the policy picks. The part is ordered after the run's
    work up to position ``start``."""
    inner = context.part(None, picked_stream(context.runtime.policy, context.device), context.visible)
    if inner.timeline is not context.timeline:
        inner.timeline.wait_for(context.timeline, start, "a part of the plan on another stream")
    return inner


def _submit_node(context: ExecutionContext, number: int, node: PlanNode) -> None:
    assert isinstance(node, Node)  # a conditional raises ``NotRecordable`` when a run is recorded
    try:
        if node.method == _UPLOAD:
            upload: Callable[[ExecutionContext], None] = node.arguments[0]
            upload(context)
        else:
            _submit_call(context, node)
    except Exception as error:
        add_note_once(error, f"in node {number + 1} of the plan, {name_of(node)}")
        raise


def _submit_call(context: ExecutionContext, node: Node) -> None:
    call: Any = getattr(context.driver, node.method)
    with context.submission_lock, context.ordered(list(node.reads), list(node.writes)):
        try:
            call(*node.arguments, context.timeline.handle)
        except LaunchError as error:
            raise LaunchError(f"kernel {node.kernel}: {error}") from None
