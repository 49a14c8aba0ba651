"""The nodes of a plan: recorded driver calls and conditionals, each with the memory that it reads and writes.

A recording lists its calls in the order of the program. Their data asks for less: a call runs after the last write of
the memory that it reads, and after all earlier uses of the memory that it writes. The rest may run side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

from oxide.runtime.device.memory import Allocation

if TYPE_CHECKING:
    from oxide.compiler.specialization import Specialization
    from oxide.driver.base import ConditionalKind
    from oxide.runtime.device.launch_places import LaunchPlace


@final
class Launched:
    """The kernel of a recorded launch, and its arguments without references to boxes.

    ``values`` are those of ``Specialization.pack``: for a slice its address and lengths. ``allocations`` has the memory
    of each parameter's box, None for other parameters. ``contiguous`` tells whether all boxes are contiguous. ``place``
    is where in the operation the launch is.
    """

    __slots__ = ("allocations", "contiguous", "place", "special", "values")

    def __init__(
        self,
        special: Specialization,
        values: tuple[Any, ...],
        allocations: tuple[Allocation | None, ...],
        place: LaunchPlace | None,
        *,
        contiguous: bool = True,
    ) -> None:
        self.special = special
        self.values = values
        self.allocations = allocations
        self.place = place
        self.contiguous = contiguous


@final
class Node:
    """A recorded driver call: ``method(*arguments, stream)``. ``kernel`` is the name of the kernel that it launches, or
    "". ``launched`` is None for other calls, and for launches of the runtime's own. A node without declared memory is
    ordered with all others."""

    __slots__ = ("arguments", "kernel", "launched", "method", "reads", "writes")

    def __init__(
        self,
        method: str,
        arguments: tuple[Any, ...],
        kernel: str,
        reads: Sequence[Allocation],
        writes: Sequence[Allocation],
        launched: Launched | None = None,
    ) -> None:
        self.method = method
        self.arguments = arguments
        self.kernel = kernel
        self.reads = tuple(reads)
        self.writes = tuple(writes)
        self.launched = launched


@final
class Conditional:
    """Nodes that run as a flag on the device says: a loop, or one or two branches. ``kind`` and ``flag``, an address,
    are those of ``Driver.begin_conditional``; each of ``bodies`` is a plan of its own. ``own`` is the memory that was
    made for the bodies: what one run of a body leaves in it, the next does not need.

    A conditional may leave memory that its bodies write as it was, so it also counts as reading that memory.
    """

    __slots__ = ("bodies", "flag", "kind", "memory", "own", "reads", "writes")

    def __init__(
        self,
        kind: ConditionalKind,
        flag: int,
        memory: Allocation,
        bodies: Sequence[Sequence[PlanNode]],
        own: Sequence[Allocation],
    ) -> None:
        """Makes a conditional. ``memory`` is the flag's allocation."""
        self.kind = kind
        self.flag = flag
        self.memory = memory
        self.bodies = tuple([tuple(body) for body in bodies])
        self.own = tuple(own)
        self.find_uses()

    def find_uses(self) -> None:
        """Computes ``reads`` and ``writes``, after a change of the nodes."""
        nodes = [node for body in self.bodies for node in body]
        writes = [allocation for node in nodes for allocation in node.writes]
        reads = [allocation for node in nodes for allocation in node.reads]
        self.writes: tuple[Allocation, ...] = tuple(dict.fromkeys(writes))
        self.reads: tuple[Allocation, ...] = tuple(dict.fromkeys([self.memory, *reads, *writes]))


PlanNode: TypeAlias = Node | Conditional


_NAMES = {"fill": "fill", "copy_to_host": "d2h", "copy_on_device": "copy on the device"}


def name_of(node: PlanNode) -> str:
    """Returns what a node is, for messages: its kernel, or what it does."""
    if isinstance(node, Conditional):
        return node.kind
    return node.kernel or _NAMES.get(node.method, node.method)


@final
class _Uses:
    """The uses of one allocation so far: its last write, and the reads since."""

    __slots__ = ("reads", "write")

    def __init__(self) -> None:
        self.write: int | None = None
        self.reads: list[int] = []


def dependencies(nodes: Sequence[PlanNode]) -> list[tuple[int, ...]]:
    """Returns for each node the earlier nodes that it must run after, by number. A node that another of them runs after
    is left out."""
    return _Order(nodes).after


def predecessors(nodes: Sequence[PlanNode]) -> list[int]:
    """Returns for each node all nodes that run before it: a set as the bits of an int."""
    return _Order(nodes).before


@final
class _Order:
    """The order of nodes: ``after`` and ``before`` are the results of ``dependencies`` and ``predecessors``."""

    __slots__ = ("after", "before")

    def __init__(self, nodes: Sequence[PlanNode]) -> None:
        self.after: list[tuple[int, ...]] = []
        self.before: list[int] = []
        uses: dict[Allocation, _Uses] = {}
        ends: set[int] = set()  # nodes that no node runs after yet
        barrier: int | None = None  # the last node without declared memory
        for number, node in enumerate(nodes):
            after: set[int] = set()
            if not node.reads and not node.writes:
                after |= ends
                barrier = number
            elif barrier is not None:
                after.add(barrier)
            _add_uses(after, uses, number, node)
            reached = 0
            for earlier in after:
                reached |= self.before[earlier]
            kept = tuple(sorted([earlier for earlier in after if not reached >> earlier & 1]))
            for earlier in kept:
                reached |= 1 << earlier
            self.after.append(kept)
            self.before.append(reached)
            ends.difference_update(kept)
            ends.add(number)


def _add_uses(after: set[int], uses: dict[Allocation, _Uses], number: int, node: PlanNode) -> None:
    """Adds the nodes whose uses of memory come before a node's, and records the node's own uses."""
    for allocation in node.reads:
        known = uses.get(allocation)
        if known is None:
            known = uses[allocation] = _Uses()
        if known.write is not None:
            after.add(known.write)
    for allocation in node.writes:
        known = uses.get(allocation)
        if known is None:
            known = uses[allocation] = _Uses()
        if known.reads:
            after.update(known.reads)
        elif known.write is not None:
            after.add(known.write)
    for allocation in node.reads:
        uses[allocation].reads.append(number)
    for allocation in node.writes:
        known = uses[allocation]
        known.write = number
        known.reads = []


@final
class Part:
    """Nodes that run one after another, as one piece of a plan: ``nodes`` by number, after the parts ``after``."""

    __slots__ = ("after", "nodes")

    def __init__(self, after: tuple[int, ...], first: int) -> None:
        self.after = after
        self.nodes = [first]


def parts(after: Sequence[tuple[int, ...]]) -> list[Part]:
    """Returns the parts of a plan, given the ``dependencies`` of its nodes. A node joins the part of the node before it
    if it runs after that node alone, and no other node runs directly after that node."""
    followers = [0] * len(after)
    for earlier in after:
        for number in earlier:
            followers[number] += 1
    found: list[Part] = []
    of: list[int] = []  # the part of each node
    for number, earlier in enumerate(after):
        if earlier == (number - 1,) and followers[number - 1] == 1:
            found[-1].nodes.append(number)
        else:
            found.append(Part(tuple(dict.fromkeys([of[node] for node in earlier])), number))
        of.append(len(found) - 1)
    return found


def ends_of(pieces: Sequence[Part]) -> tuple[int, ...]:
    """Returns the parts that no part runs after, by number."""
    followed = {number for part in pieces for number in part.after}
    return tuple([number for number in range(len(pieces)) if number not in followed])
