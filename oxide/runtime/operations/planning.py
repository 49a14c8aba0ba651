"""Plans without a graph: each run of an operation is recorded first, as nodes, and the nodes are then submitted.

The recording is the same as for a graph: each node has the memory that it uses. ``op.fused()`` merges the launches of
elementwise kernels among the nodes. ``planned`` submits independent parts to several streams, which the policy picks.
The parts are submitted in the order of the program, and the run ends after all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

from oxide.driver.lanes import lanes_of
from oxide.errors import LaunchError
from oxide.native import Given, caused
from oxide.runtime.device.launch_places import add_note_once
from oxide.runtime.device.scheduling import picked_stream, require_stream
from oxide.runtime.device.stream import Stream
from oxide.runtime.operations.fusing import Known, fuse
from oxide.runtime.operations.graph import discard
from oxide.runtime.operations.operation import Depiction, DeviceOperation, Spec
from oxide.runtime.plan.nodes import Conditional, Node, Part, PlanNode, dependencies, name_of, parts
from oxide.runtime.plan.reuse import share_memory
from oxide.runtime.submission.capture import NotRecordable, Recording
from oxide.runtime.submission.nesting import raise_if_nested
from oxide.runtime.submission.submission import ExecutionContext

T = TypeVar("T")

_UPLOAD = "upload"
"""The ``method`` of nodes that are uploads and not calls of the driver. Such a node's one argument is a function that
submits the upload."""


@final
class Planned(DeviceOperation[T]):
    """The operation that ``planned`` and ``op.fused()`` return. ``fuses`` merges launches of elementwise kernels,
    ``branches`` uses several streams."""

    def __init__(self, source: DeviceOperation[T], *, fuses: bool, branches: bool) -> None:
        self._source = source
        self._fuses = fuses
        self._branches = branches
        self._known: Known = {}
        super().__init__(source)
        self.place_as(source)

    def execute(self, context: ExecutionContext) -> T:
        if context.recording is not None:
            return self._record(context)
        recording = Recording(context.stream, allocates=True, outer=context)
        inner = context.part(recording)
        inner.visible = context.visible
        try:
            with recording:
                result = self._record(inner)
        except NotRecordable:
            return self._run_eagerly(context)
        finally:
            context.absorb(inner)
        nodes: list[PlanNode] = [
            Node(_UPLOAD, (function,), "", (), () if written is None else (written,))
            for function, written in zip(recording.at_launch, recording.uploads, strict=True)
        ]
        nodes += recording.nodes
        if self._branches:
            _submit(context, nodes, parts(dependencies(nodes)))
        else:
            for number, node in enumerate(nodes):
                _submit_node(context, number, node)
        return result

    def _run_eagerly(self, context: ExecutionContext) -> T:
        """Runs the operation as without a plan, with one difference: the source of an ``unzip`` runs once in each run,
        and not once for all runs."""
        outer = context.renewed
        context.renewed = {} if outer is None else outer
        try:
            return self._source.run(context)
        finally:
            context.renewed = outer

    def _record(self, context: ExecutionContext) -> T:
        recording = context.recording
        assert recording is not None
        first = len(recording.nodes)
        result = self._source.run(context)
        if self._fuses and not recording.explains:
            fuse(context, first, self._known)
        return result

    def whereabouts(self) -> None:
        return None

    def spec(self) -> Spec:
        return self._source.spec()

    def depict(self) -> Depiction:
        lines = ("elementwise launches merged",) if self._fuses else ("branches on several streams",)
        return "join", "fused" if self._fuses else "planned", lines, (("", self._source),)


def planned(operation: Given[DeviceOperation[T]]) -> DeviceOperation[T]:
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
    recording = Recording(require_stream(stream), allocates=True, rehearses=True, explains=True)
    context = ExecutionContext(stream, recording)
    try:
        with recording:
            context.keep(operation.run(context))  # the program would hold the result
            recording.results.clear()
            before = _listed(recording.nodes)
            report = fuse(context)
            after = _listed(recording.nodes)
            pieces = parts(dependencies(recording.nodes))
            memory = share_memory(recording.nodes, recording.made, context.timeline)
    except BaseException as error:
        raise_if_nested(error, operation)
        raise
    finally:
        discard(context)
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


def _listed(nodes: Sequence[PlanNode], indent: str = "  ") -> list[str]:
    """Returns a line for each node: its number, its name, and the numbers of the nodes that it runs after. The lines of
    a conditional's bodies follow the line of the conditional."""
    lines = []
    for number, (node, after) in enumerate(zip(nodes, dependencies(nodes), strict=True), 1):
        follows = f", after {', '.join([str(earlier + 1) for earlier in after])}" if after else ""
        lines.append(f"{indent}{number} {name_of(node)}{follows}")
        if isinstance(node, Conditional):
            names = ("body",) if node.kind == "while" else ("then", "otherwise")
            for name, body in zip(names, node.bodies, strict=False):
                lines += [f"{indent}  {name}:", *_listed(body, indent + "    ")]
    return lines


def _submit(context: ExecutionContext, nodes: list[PlanNode], pieces: list[Part]) -> None:
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
        if not isinstance(error, Exception):
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
    reads, writes = list(node.reads), list(node.writes)
    submitted = False
    call: Any = getattr(context.driver, node.method)
    with context.submission_lock:
        context.begin(reads, writes)
        try:
            call(*node.arguments, context.timeline.handle)
            submitted = True
        except LaunchError as error:
            raise caused(LaunchError(f"kernel {node.kernel}: {error}"), None) from None
        finally:
            context.end(reads, writes, submitted=submitted)
