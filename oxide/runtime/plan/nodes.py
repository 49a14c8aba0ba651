"""The nodes of a plan: recorded driver calls and conditionals, each with the memory that it reads and writes.

A recording lists its calls in the order of the program. Their data requires less order: a call must run after the last
write of the memory that it reads, and after all earlier uses of the memory that it writes. Calls that this rule does
not order may run at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from oxide.runtime.memory.allocation import Allocation

if TYPE_CHECKING:
    from oxide.compiler.kernel.specialization import Specialization
    from oxide.driver.base import ConditionalKind
    from oxide.runtime.devices.fault_records import LaunchPlace


@final
@dataclass(slots=True, eq=False)
class Launched:
    """The kernel of a recorded launch, and its arguments, stored without references to boxes.

    ``values`` are the values that ``Specialization.pack`` takes: for a slice, its address and lengths. ``allocations``
    has the memory of each parameter's box, and None for a parameter without a box. ``contiguous`` is True if all boxes
    are contiguous. ``place`` is the place of the launch in the operation, for error messages.
    """

    special: Specialization
    values: tuple[Any, ...]
    allocations: tuple[Allocation | None, ...]
    place: LaunchPlace | None
    contiguous: bool = True


@final
@dataclass(slots=True, eq=False)
class Node:
    """A recorded driver call: ``method(*arguments, stream)``. ``kernel`` is the name of the kernel if the call is a
    launch, else "". ``launched`` is None for other calls, and for launches that the runtime makes for itself. A node
    that declares no memory runs after all earlier nodes and before all later ones."""

    method: str
    arguments: tuple[Any, ...]
    kernel: str
    reads: Sequence[Allocation]
    writes: Sequence[Allocation]
    launched: Launched | None = None

    def __post_init__(self) -> None:
        self.reads, self.writes = tuple(self.reads), tuple(self.writes)


@final
@dataclass(slots=True, eq=False)
class Conditional:
    """A loop, or a choice of one or two branches. Each loop body or branch is a body of nodes, and a flag on the device
    decides whether it runs. ``kind`` and ``flag`` (the flag's address) are arguments of ``Driver.begin_conditional``.
    Each of ``bodies`` is a plan of its own. ``own`` is the memory that was allocated for the bodies: no run of a body
    needs the content that an earlier run left in it.

    A body may not run, and the memory that it writes then keeps its content. So a conditional counts as reading all
    memory that its bodies write.
    """

    kind: ConditionalKind
    flag: int
    memory: Allocation
    """The flag's."""
    bodies: Sequence[Sequence[PlanNode]]
    own: Sequence[Allocation]
    reads: Sequence[Allocation] = ()
    writes: Sequence[Allocation] = ()

    def __post_init__(self) -> None:
        self.find_uses()

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the bodies' names. A choice may have the first of its two alone."""
        return ("body",) if self.kind == "while" else ("then", "otherwise")

    def find_uses(self) -> None:
        """Computes ``reads`` and ``writes``, after a change of the nodes."""
        nodes = [node for body in self.bodies for node in body]
        writes = [allocation for node in nodes for allocation in node.writes]
        reads = [allocation for node in nodes for allocation in node.reads]
        self.writes = tuple(dict.fromkeys(writes))
        self.reads = tuple(dict.fromkeys([self.memory, *reads, *writes]))


PlanNode: TypeAlias = Node | Conditional


_NAMES = {"fill": "fill", "copy_to_host": "d2h", "copy_on_device": "copy on the device"}


def name_of(node: PlanNode) -> str:
    """Returns a node's name for messages: its kernel's name, or a name for its work."""
    if isinstance(node, Conditional):
        return node.kind
    return node.kernel or _NAMES.get(node.method, node.method)


@final
@dataclass(slots=True)
class _Uses:
    """The uses of one allocation so far, by the numbers of nodes: its last write, and the reads since that write."""

    write: int | None = None
    reads: list[int] = field(default_factory=list)


def dependencies(nodes: Sequence[PlanNode]) -> list[tuple[int, ...]]:
    """Returns for each node the numbers of the earlier nodes that it must run after. If two of these already run one
    after the other, only the later one is listed."""
    return _order(nodes)[0]


def predecessors(nodes: Sequence[PlanNode]) -> list[int]:
    """Returns for each node the set of all nodes that must run before it, as the bits of an int."""
    return _order(nodes)[1]


def _order(nodes: Sequence[PlanNode]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Returns the results of ``dependencies`` and ``predecessors``."""
    all_after: list[tuple[int, ...]] = []
    before: list[int] = []
    uses: defaultdict[Allocation, _Uses] = defaultdict(_Uses)
    ends: set[int] = set()  # the nodes so far that no other node runs after
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
            reached |= before[earlier]
        kept = tuple(sorted([earlier for earlier in after if not reached >> earlier & 1]))
        for earlier in kept:
            reached |= 1 << earlier
        all_after.append(kept)
        before.append(reached)
        ends.difference_update(kept)
        ends.add(number)
    return all_after, before


def _add_uses(after: set[int], uses: defaultdict[Allocation, _Uses], number: int, node: PlanNode) -> None:
    """Adds to ``after`` the earlier nodes whose uses of memory must come before those of ``node``, and records the uses
    of ``node``, which has the number ``number``."""
    for allocation in node.reads:
        write = uses[allocation].write
        if write is not None:
            after.add(write)
    for allocation in node.writes:
        known = uses[allocation]
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
class Part(NamedTuple):
    """A part of a plan: nodes that run one after another. ``nodes`` has their numbers. The part runs after the parts
    whose numbers ``after`` has."""

    after: tuple[int, ...]
    nodes: list[int]


def parts(after: Sequence[tuple[int, ...]]) -> list[Part]:
    """Returns the parts of a plan, given the ``dependencies`` of its nodes. Node n joins the part of node n - 1 if node
    n - 1 is the only one that it runs directly after, and no other node runs directly after node n - 1."""
    followers = [0] * len(after)
    for earlier in after:
        for number in earlier:
            followers[number] += 1
    found: list[Part] = []
    of: list[int] = []  # the number of the part of each node
    for number, earlier in enumerate(after):
        if earlier == (number - 1,) and followers[number - 1] == 1:
            found[-1].nodes.append(number)
        else:
            found.append(Part(tuple(dict.fromkeys([of[node] for node in earlier])), [number]))
        of.append(len(found) - 1)
    return found


def ends_of(pieces: Sequence[Part]) -> tuple[int, ...]:
    """Returns the numbers of the parts that no other part runs after."""
    followed = {number for part in pieces for number in part.after}
    return tuple([number for number in range(len(pieces)) if number not in followed])
