"""Pictures of operations before they run, and of captured graphs: makes the ``Picture`` objects that ``oxide.pictures``
draws.

Before the run, a picture shows what the operations say of themselves (``DeviceOperation.depict``). A stage that a
function will make is shown as that function. The picture of a captured graph is complete: it shows all calls, and the
memory that each call reads and writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from oxide.host.messages import byte_count
from oxide.runtime.devices.scheduling import placed_number
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.memory.memory import Arc, DeviceBox, Partition, number_of_elements
from oxide.runtime.operations.new_boxes import describe
from oxide.runtime.operations.operation import BoxSpec, DeviceOperation
from oxide.runtime.plan.nodes import Conditional, dependencies

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oxide.pictures import Picture, Sketch
    from oxide.runtime.plan.nodes import Node, PlanNode
    from oxide.runtime.submission.capture import Recording

_MOST = 250  # the most nodes of a picture: more are unreadable, and take seconds to place


def launch_lines(grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int) -> tuple[str, ...]:
    """Returns the lines of text that describe a launch's configuration in its node."""
    lines = f"grid {_by_axes(grid)}, block {_by_axes(block)}"
    return (lines, f"{byte_count(shared_bytes)} of shared memory") if shared_bytes else (lines,)


def _by_axes(sizes: tuple[int, ...]) -> str:
    axes = list(sizes)
    while len(axes) > 1 and axes[-1] == 1:
        axes.pop()
    return "x".join(map(str, axes))


def picture_of(operation: DeviceOperation[Any]) -> Picture:
    """Returns the picture of an operation before it runs: the implementation of ``op.picture()``."""
    return _Recipe(operation).picture()


@final
class _Recipe:
    """Makes the picture of an operation before its run. An operation that is used twice becomes one node."""

    def __init__(self, operation: DeviceOperation[Any]) -> None:
        from oxide.pictures import Sketch  # here: all programs that capture import this module, and few draw

        self._operation = operation
        self._sketch = Sketch()
        self._drawn: dict[int, tuple[int, str]] = {}  # by id: the node, and the part of its result that is passed on
        self._kept: list[Any] = []  # keeps drawn objects alive, so that their ids are not reused
        self._chosen = self._nearest()
        self._further: int | None = None  # the one node that stands for all operations left out
        self._devices: dict[int, str] = {}  # the device of each operation's node, by the node
        self._crossed = False  # whether a result flows from an operation to one that is placed elsewhere

    def picture(self) -> Picture:
        """Draws each operation after its inputs, and returns the picture. Works without recursion, because a chain may
        have thousands of stages."""
        pending: list[tuple[DeviceOperation[Any], str, bool]] = [(self._operation, "", False)]
        while pending:
            operation, device, expanded = pending.pop()
            if id(operation) in self._drawn:
                continue
            if operation._placed:
                device = f"device {placed_number(operation._placement)}"
            if expanded:
                self._draw(operation, device)
                continue
            pending.append((operation, device, True))
            for _, given in reversed(operation.depict()[3]):
                if isinstance(given, DeviceOperation) and id(given) in self._chosen:
                    pending.append((given, device, False))
        passed = self._drawn[id(self._operation)][1]
        result = ", ".join(filter(None, (passed, _flowing(self._operation))))
        notes = [f"Yields {result}."] if result else []
        notes.append("On one stream, which the policy picks when it runs, but for what is placed on a device.")
        if any(node.kind == "unknown" for node in self._sketch.picture("").nodes):
            notes.append("Dashed box: a function that makes the next operation at the run; a captured graph has it.")
        if self._crossed:
            notes.append(
                "Dashed edge: the stream of one device waits for that of another, unless the two are the same."
            )
        return self._sketch.picture(repr(self._operation), tuple(notes))

    def _nearest(self) -> set[int]:
        """Returns the ids of the operations to draw: all, or if there are too many, those nearest to the result."""
        chosen = {id(self._operation): None}
        level = [self._operation]
        while level and len(chosen) < _MOST:
            following = []
            for operation in level:
                for _, given in operation.depict()[3]:
                    if isinstance(given, DeviceOperation) and id(given) not in chosen and len(chosen) < _MOST:
                        chosen[id(given)] = None
                        following.append(given)
            level = following
        return set(chosen)

    def _draw(self, operation: DeviceOperation[Any], device: str) -> None:
        kind, title, lines, inputs = operation.depict()
        if not kind:  # no node: passes on a part of its input
            ((_, source),) = inputs
            key, passed = self._key(source)
            self._drawn[id(operation)] = key, ", ".join(filter(None, (passed, title)))
            return
        named: Any = kind
        key = self._sketch.node(named, title, lines, device)
        self._drawn[id(operation)] = key, ""
        self._devices[key] = device
        for name, given in inputs:
            source, passed = self._key(given)
            what = ", ".join(filter(None, (passed, _flowing(given))))
            crosses = self._devices.get(source, device) != device
            self._crossed = self._crossed or crosses
            label = f"{name}: {what}" if name and what else name or what
            self._sketch.edge(source, key, label, "wait" if crosses else "data")

    def _key(self, given: Any) -> tuple[int, str]:
        """Returns the node of an input, and a text that says which part of the node's result is passed on, or "". Draws
        boxes, arrays and other values at their first use."""
        plain = given.value if isinstance(given, Arc) else given
        found = self._drawn.get(id(plain))
        if found is not None:
            return found
        if isinstance(plain, DeviceOperation):  # it is left out: see ``_nearest``
            if self._further is None:
                self._further = self._sketch.node("unknown", "earlier operations", (f"only {_MOST} are drawn",))
            return self._further, ""
        self._kept.append(plain)
        if isinstance(plain, Partition):
            key, passed = self._key(plain.box)[0], f"in tiles of {'x'.join(map(str, plain.tile_shape))}"
        elif isinstance(plain, DeviceBox):
            where = f"{byte_count(plain.nbytes)} on {plain.device.label}"
            key, passed = self._sketch.node("memory", "box", (describe(plain.shape, plain.dtype), where)), ""
        elif isinstance(plain, np.ndarray):
            lines = (describe(plain.shape, plain.dtype), byte_count(plain.nbytes))
            key, passed = self._sketch.node("host", "array", lines), ""
        else:
            key, passed = self._sketch.node("host", type(plain).__name__), ""
        self._drawn[id(plain)] = key, passed
        return key, passed


def _flowing(given: Any) -> str:
    """Returns a text that describes the result of ``given``, as far as it is known before the run. Returns "" if
    nothing is known of the result, or if ``given`` is not an operation."""
    spec = given.spec() if isinstance(given, DeviceOperation) else None
    if isinstance(spec, BoxSpec):
        nbytes = number_of_elements(spec.shape) * spec.dtype.itemsize
        return f"{describe(spec.shape, spec.dtype)}, {byte_count(nbytes)}"
    return f"a tuple of {len(spec)}" if isinstance(spec, tuple) else ""


@final
class RecordedWork:
    """The work of a captured graph: its nodes, and the allocations that uploads fill before each launch."""

    def __init__(self, recording: Recording) -> None:
        self._nodes = recording.nodes
        self._uploads = [allocation for allocation in recording.at_launch.values() if allocation is not None]

    def summary(self) -> str:
        """Returns the numbers of launches and copies as text."""
        kinds = _kinds(self._nodes)
        counted = [
            _counted(kinds.count("launch"), "launch", "launches"),
            _counted(sum(kind.startswith("copy") for kind in kinds) + len(self._uploads), "copy", "copies"),
        ]
        loops, choices = kinds.count("while"), sum(kind.startswith("if") for kind in kinds)
        counted += [_counted(loops, "loop", "loops")] if loops else []
        counted += [_counted(choices, "choice", "choices")] if choices else []
        return ", ".join(counted)

    def picture(self, title: str, notes: tuple[str, ...]) -> Picture:
        """Returns the picture of the work."""
        from oxide.pictures import Sketch

        sketch = Sketch()
        written: dict[int, int] = {}  # by an allocation's id: the drawn node that wrote it last
        for allocation in self._uploads:
            written[id(allocation)] = sketch.node(
                "copy", "h2d", ("host to device, at each launch", byte_count(allocation.nbytes))
            )
        _draw_nodes(sketch, self._nodes, written)
        return sketch.picture(title, notes)


def _kinds(nodes: Iterable[PlanNode]) -> list[str]:
    """Returns the method of each call and the kind of each conditional, including those inside bodies."""
    kinds: list[str] = []
    for node in nodes:
        if isinstance(node, Conditional):
            kinds.append(node.kind)
            for body in node.bodies:
                kinds += _kinds(body)
        else:
            kinds.append(node.method)
    return kinds


def _draw_nodes(sketch: Sketch, nodes: Sequence[PlanNode], written: dict[int, int]) -> list[int]:
    """Draws the nodes of a plan or of a body. Returns the drawn nodes that depend on no other of these nodes.
    ``written`` maps the id of an allocation to the drawn node that wrote the allocation last; before the first write,
    to the node that depicts the allocation."""
    keys: list[int] = []
    first: list[int] = []
    for node, after in zip(nodes, dependencies(nodes), strict=True):
        if isinstance(node, Conditional):
            key = _draw_conditional(sketch, node, written)
            sources: dict[int, Allocation] = {}
        else:
            reads, writes = node.reads, node.writes
            for allocation in (*reads, *writes):
                if id(allocation) not in written and (node.method == "launch" or allocation in reads):
                    written[id(allocation)] = sketch.node("memory", "box", (_memory_text(allocation),))
            key = _call_node(sketch, node)
            used = dict.fromkeys((*reads, *writes))
            sources = {written[id(allocation)]: allocation for allocation in used if id(allocation) in written}
            for source, allocation in sources.items():
                sketch.edge(source, key, _memory_text(allocation))
            for allocation in writes:
                written[id(allocation)] = key
        for earlier in after:
            if keys[earlier] not in sources:
                sketch.edge(keys[earlier], key, kind="order")
        if not after:
            first.append(key)
        keys.append(key)
    return first


def _draw_conditional(sketch: Sketch, node: Conditional, written: dict[int, int]) -> int:
    """Draws a conditional, and its bodies with edges from the conditional. Returns the conditional's own node."""
    flag = node.memory
    if id(flag) not in written:
        written[id(flag)] = sketch.node("memory", "box", (_memory_text(flag),))
    key = sketch.node("graph", "while" if node.kind == "while" else "if", ("the flag is not 0",))
    sketch.edge(written[id(flag)], key, "flag")
    for label, body in zip(node.labels, node.bodies, strict=False):
        for first in _draw_nodes(sketch, body, written):
            sketch.edge(key, first, label, kind="order")
    return key


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


def _call_node(sketch: Sketch, node: Node) -> int:
    method, arguments = node.method, node.arguments
    if method == "launch":
        _, grid, block, shared_bytes, _ = arguments
        return sketch.node("launch", node.kernel, launch_lines(grid, block, shared_bytes))
    if method == "fill":
        _, pattern, count = arguments
        return sketch.node("memory", "full" if any(pattern) else "zeros", (byte_count(len(pattern) * count),))
    if method == "call":
        return sketch.node("copy", node.kernel, ("collective",))
    title, where = {
        "copy_to_device": ("h2d", "host to device"),
        "copy_to_host": ("d2h", "device to host"),
        "copy_on_device": ("copy", "on the device"),
    }[method]
    return sketch.node("copy", title, (where, byte_count(arguments[2])))


def _memory_text(allocation: Allocation) -> str:
    if allocation.dtype is None:
        return byte_count(allocation.nbytes)
    return f"{describe(allocation.shape, allocation.dtype)}, {byte_count(allocation.nbytes)}"
