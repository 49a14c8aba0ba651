"""Plans without a graph: an operation is recorded at each run, and then submitted to several streams.

The work of the operation is recorded as a graph's is, into nodes with the memory that they use. Independent parts then
go to streams of their own, which the policy picks, in the order of the program. The run ends after all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, final

from oxide.driver.lanes import lanes_of
from oxide.errors import LaunchError
from oxide.native import Given, caused
from oxide.runtime.device.scheduling import picked_stream
from oxide.runtime.operations.operation import Depiction, DeviceOperation, Spec
from oxide.runtime.plan.nodes import Node, Part, dependencies, parts
from oxide.runtime.submission.capture import Recording
from oxide.runtime.submission.submission import ExecutionContext

T = TypeVar("T")

_UPLOAD = "upload"
"""The ``method`` of nodes that are no calls of the driver. Their one argument is a function that submits an upload."""


@final
class Planned(DeviceOperation[T]):
    """The operation that ``planned`` returns."""

    def __init__(self, source: DeviceOperation[T]) -> None:
        self._source = source
        super().__init__(source)
        self.place_as(source)

    def execute(self, context: ExecutionContext) -> T:
        if context.recording is not None:
            return self._source.run(context)
        recording = Recording(context.stream, allocates=True, outer=context)
        inner = ExecutionContext(context.stream, recording)
        inner.visible, inner.place, inner.levels = context.visible, context.place, context.levels
        try:
            with recording:
                result = self._source.run(inner)
        finally:
            context.absorb(inner)
        nodes = [
            Node(_UPLOAD, (function,), "", (), (written,))
            for function, written in zip(recording.at_launch, recording.uploads, strict=True)
        ]
        nodes += recording.nodes
        _submit(context, nodes, parts(dependencies(nodes)))
        return result

    def whereabouts(self) -> None:
        return None

    def spec(self) -> Spec:
        return self._source.spec()

    def depict(self) -> Depiction:
        return "join", "planned", ("branches on several streams",), (("", self._source),)


def planned(operation: Given[DeviceOperation[T]]) -> DeviceOperation[T]:
    """Returns the operation with its independent parts on several streams, which the policy picks: the parts of a
    ``zip``, and stages that share no written box. An eager run keeps them on one stream; a graph has branches anyway.

    Each run records the operation first, so functions of ``and_then`` and ``map`` must not run operations themselves
    (``GraphError``), as in a capture. Raises ``TypeError`` for anything but an operation.
    """
    if not isinstance(operation, DeviceOperation):
        raise TypeError(f"planned takes an operation, not {type(operation).__name__}")
    return Planned(operation)


def _submit(context: ExecutionContext, nodes: list[Node], pieces: list[Part]) -> None:
    """Submits nodes to the context's stream and to others. If it raises, the run still ends after what was
    submitted."""
    lanes = lanes_of([part.after for part in pieces])
    contexts = [context]
    start = context.timeline.advance()
    ends: list[int] = []  # of each part, a position on its stream
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
                _submit_node(here, nodes[number])
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
    """Returns a context on another stream for a part of a run, ordered after the run's work so far."""
    inner = ExecutionContext(picked_stream(context.runtime.policy, context.device), None, context.visible)
    inner.place, inner.levels, inner.traced = context.place, context.levels, context.traced
    if inner.timeline is not context.timeline:
        inner.timeline.wait_for(context.timeline, start, "a part of the plan on another stream")
    return inner


def _submit_node(context: ExecutionContext, node: Node) -> None:
    if node.method == _UPLOAD:
        upload: Callable[[ExecutionContext], None] = node.arguments[0]
        upload(context)
        return
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
