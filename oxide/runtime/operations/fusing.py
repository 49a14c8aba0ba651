"""Fusion: merges recorded launches of elementwise kernels into launches of fused kernels.

A launch joins a *chain* of earlier launches if it accesses one of their arrays, if its arrays have as many elements as
theirs, and if the compiler can fuse its kernel with theirs (``oxide.compiler.fusion.fusion``). Nodes may change places
where their data allows it, so the launches of a chain need not follow each other in the program. An array that is not
needed after its chain is neither read nor written, and fills and copies that only prepare it are left out.

Two kinds of launches join kernels that are not elementwise. A chain becomes the *prologue* of the one kernel that needs
its results, and is computed where that kernel reads them. A launch becomes the *epilogue* of the kernel whose result it
takes, if that kernel declares a form of itself that computes both (``Kernel.followed_by``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from oxide.compiler.elementwise import ITEMS
from oxide.compiler.fusion.fusion import BLOCK
from oxide.compiler.signature.signature import Parameter
from oxide.driver import sanitizing
from oxide.host.messages import byte_count
from oxide.runtime.devices.fault_records import fused_place
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.operations.chain import (
    ALIGNMENT,
    Chain,
    Piece,
    arrays_of,
    bytes_of,
    is_written,
    launch_of,
    launched_by,
    overlap_in_part,
    reason_against,
    sizes_of,
)
from oxide.runtime.plan.nodes import Conditional, Node, PlanNode, dependencies
from oxide.runtime.plan.reuse import observed
from oxide.runtime.submission.submission import ExecutionContext

_MOST_KNOWN = 16  # the most results that an operation keeps


@final
@dataclass(slots=True)
class FusionReport:
    """A report on a fusion. ``before`` and ``after`` are the numbers of launches. ``lines`` has a line of text for each
    chain and for each launch that stayed alone."""

    before: int = 0
    after: int = 0
    saved: int = 0  # bytes that are no longer read or written
    lines: list[str] = field(default_factory=list)

    def add(self, other: FusionReport) -> None:
        """Adds the report on a conditional's body. ``saved`` counts one run of the body, however often the body
        runs."""
        self.before += other.before
        self.after += other.after
        self.saved += other.saved
        self.lines += other.lines

    def __str__(self) -> str:
        saved = [f"memory traffic saved: {byte_count(self.saved)} a run"] if self.saved else []
        return "\n".join([f"launches: {self.before} -> {self.after}", *saved, *self.lines])


Known: TypeAlias = dict[Any, list[Piece]]
"""The results of earlier fusions of an operation, by the keys of ``_key``."""


def fuse(context: ExecutionContext, first: int = 0, known: Known | None = None) -> FusionReport | None:
    """Fuses the nodes of the context's recording from number ``first`` on. Only the recording and the program's boxes
    may refer to the recording's memory. Raises the errors of compiling and loading.

    If ``known`` has the result of a fusion of equal nodes, applies that result and returns None. Otherwise returns a
    report, and adds the result to ``known`` if it can be applied again.
    """
    recording = context.recording
    assert recording is not None
    nodes = recording.nodes[first:]
    seen = observed(recording.nodes, recording.made)
    free = {allocation for allocation, kept in zip(recording.made, seen, strict=True) if not kept}
    key = None if known is None else _key(nodes, free)
    if known is not None and key is not None:
        pieces = known.get(key)
        if pieces is not None:
            recording.nodes[first:] = [_built(context, nodes, piece) for piece in pieces]
            return None
    pass_ = _Pass(context, nodes, free)
    pass_.run()
    remaining = pass_.remaining()
    recording.nodes[first:] = [node for _, node in remaining]
    if known is not None and key is not None and pass_.repeatable:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[key] = [piece for piece, _ in remaining]
    return pass_.report


def _key(nodes: Sequence[PlanNode], free: set[Allocation]) -> Any:
    """Returns a key of everything that a fusion depends on: the kernels, the sizes, and which arguments and which
    memory are the same. Returns None if there are conditionals, or if arrays overlap in part, because the fusion then
    depends on addresses too."""
    arrays: dict[tuple[int, int], int] = {}
    memory: dict[Allocation, int] = {}
    found: list[Any] = []
    for node in nodes:
        if not isinstance(node, Node):
            return None
        used = [memory.setdefault(each, len(memory)) for each in (*node.reads, *node.writes)]
        launched = node.launched
        if node.method != "launch" or launched is None:
            found.append((node.method, len(node.reads), *used))
            continue
        bound = [-1 if array is None else arrays.setdefault(array, len(arrays)) for array in arrays_of(launched)]
        shapes = [value[1:] for value, number in zip(launched.values, bound, strict=True) if number >= 0]
        _, grid, block, *_ = node.arguments
        found.append((launched.special, grid, block, launched.contiguous, *bound, *shapes, len(node.reads), *used))
    if overlap_in_part(arrays):
        return None
    return tuple(found), tuple([each in free for each in memory]), sanitizing.requested()


def _built(context: ExecutionContext, nodes: Sequence[PlanNode], piece: Piece) -> PlanNode:
    """Makes the node that a piece describes."""
    special = piece.special
    if special is None:
        return nodes[piece.numbers[0]]
    members = [launched_by(nodes[number]) for number in piece.numbers]
    values = [members[member].values[place] for member, place in piece.sources]
    allocations = [members[member].allocations[place] for member, place in piece.sources]
    reads: list[Allocation] = []
    writes: list[Allocation] = []
    for parameter, allocation in zip(special.parameters, allocations, strict=True):
        if allocation is not None:
            (reads if parameter.kind == "slice" else writes).append(allocation)
    fusion = special.description.fusion
    assert fusion is not None
    first, places = 0, []
    for member, source in zip(members, fusion.sources, strict=True):
        places.append((first, member.place))
        first += len(source.sites)
    sizes = (max(1, -(-piece.size // (ITEMS * BLOCK))), 1, 1), (BLOCK, 1, 1), 0
    place = fused_place(places)
    return launch_of(context, special, special.kernel.name, sizes, place, values, allocations, reads, writes)


@final
class _Pass:
    """One fusion of a plan's nodes. Places the nodes one by one in an order that their data allows. Launches that can
    be fused with each other are first collected in the open chain. When no other launch can join it, the chain is
    closed and placed. A node is ready when each node that it must run after has been placed or is in the open chain.
    ``free`` is the memory that only the nodes can reach."""

    def __init__(self, context: ExecutionContext, nodes: Sequence[PlanNode], free: set[Allocation]) -> None:
        self.report = FusionReport()
        self._context = context
        self._free = free
        self.repeatable = True  # False once a launch was replaced in a way that pieces do not describe
        self._unjoined: dict[Node, list[str]] = {}  # why an epilogue or a prologue did not join a launch
        self._joined: set[Node] = set()  # the launches of kernels with an epilogue
        self._nodes = nodes = self._with_epilogues([self._with_bodies(node, nodes) for node in nodes])
        self._placed: list[tuple[Piece, PlanNode]] = []
        self._after = dependencies(nodes)
        self._waits = [len(earlier) for earlier in self._after]
        self._followers: list[list[int]] = [[] for _ in nodes]
        for number, earlier in enumerate(self._after):
            for before in earlier:
                self._followers[before].append(number)
        self._reasons = [reason_against(node) for node in nodes]
        self._ready = [number for number, waits in enumerate(self._waits) if not waits]
        self._chain: Chain | None = None
        self._refused: dict[int, str] = {}  # why a launch did not join the last chain that it was tried with

    def run(self) -> None:
        """Places all nodes, in an order that their data allows."""
        while self._ready:
            self._ready.sort()
            number = self._next()
            if number is None:
                number = self._closed_into()
                if number is not None:
                    self._placed_at(number)
                continue
            node = self._nodes[number]
            if self._reasons[number] is None:
                assert isinstance(node, Node)
                if self._chain is None:
                    self._chain = Chain()
                self._chain.add(number, node)
            else:
                self._place(number)
            self._placed_at(number)
        self._close()

    def _placed_at(self, number: int) -> None:
        """Records that a ready node has been placed or has joined the open chain. Nodes that waited for it may become
        ready."""
        self._ready.remove(number)
        for follower in self._followers[number]:
            self._waits[follower] -= 1
            if not self._waits[follower]:
                self._ready.append(follower)

    def remaining(self) -> list[tuple[Piece, PlanNode]]:
        """Returns the placed nodes without the fills and copies whose result is not used: no later node uses the memory
        that they write, and the program cannot reach it."""
        used: set[Allocation] = set()
        kept: list[tuple[Piece, PlanNode]] = []
        for piece, node in reversed(self._placed):
            prepares = isinstance(node, Node) and node.method in ("fill", "copy_on_device") and bool(node.writes)
            if prepares and all(each in self._free and each not in used for each in node.writes):
                continue
            used.update(node.reads, node.writes)
            kept.append((piece, node))
        kept.reverse()
        return kept

    def _next(self) -> int | None:
        """Returns the ready node to place or to add next; None if the open chain must be closed first. Nodes that
        cannot be fused come first, unless they must run after a launch of the chain."""
        chain = self._chain
        for number in self._ready:
            if self._reasons[number] is not None and (chain is None or not chain.has(self._after[number])):
                return number
        names = None if chain is None else chain.names
        for number in self._ready:
            if self._reasons[number] is not None:
                continue
            if chain is None:
                return number
            node = self._nodes[number]
            assert isinstance(node, Node)
            apart = chain.reason_against(node)
            if apart is None:
                self._refused.pop(number, None)
                return number
            self._refused[number] = f"kernel {node.kernel} is not fused with {names}: {apart}"
        return None

    def _place(self, number: int) -> None:
        node = self._nodes[number]
        self._placed.append((Piece((number,)), node))
        if isinstance(node, Node) and node.method == "launch":
            self.report.before += 1
            self.report.after += 1
            if node not in self._joined:
                reasons = [str(self._reasons[number]), *self._unjoined.get(node, ())]
                self.report.lines.append(f"kernel {node.kernel} is not fused: {'; '.join(reasons)}")

    def _closed_into(self) -> int | None:
        """Places the open chain: as the prologue of a ready launch, if that is possible, else as a launch of its own.
        Returns the number of the ready launch; None in the second case."""
        chain = self._chain
        assert chain is not None
        for number in self._ready:
            node = self._nodes[number]
            if not isinstance(node, Node) or node.launched is None or not chain.has(self._after[number]):
                continue
            if self._reasons[number] is None or not chain.computes_for(node):
                continue
            later = self._later(number)
            made = chain.before(node, self._context, [each for each in self._free if each not in later])
            if isinstance(made, str):
                self._unjoined.setdefault(node, []).append(f"{chain.names} cannot be its prologue: {made}")
                continue
            self._chain = None
            self._merged([*chain.nodes, node], made)
            self._placed.append((Piece((number,)), made))
            self.repeatable = False
            return number
        self._close()
        return None

    def _later(self, besides: int | None = None) -> set[Allocation]:
        """Returns the memory that is used by nodes that are neither placed nor in the open chain. Ignores the node with
        the number ``besides``, if that is given."""
        ready = set(self._ready)
        unplaced = [
            node
            for number, node in enumerate(self._nodes)
            if number != besides and (self._waits[number] or number in ready)
        ]
        return _memory_of(unplaced)

    def _merged(self, nodes: Sequence[Node], made: Node) -> None:
        """Adds to the report that the launches ``nodes`` became the launch ``made``."""
        saved = sum([_traffic(node) for node in nodes]) - _traffic(made)
        report = self.report
        report.before += len(nodes)
        report.after += 1
        report.saved += saved
        report.lines.append(
            f"{' + '.join([node.kernel for node in nodes])}: {len(nodes)} launches -> 1, "
            f"{byte_count(saved)} of memory traffic saved"
        )

    def _with_bodies(self, node: PlanNode, nodes: Sequence[PlanNode]) -> PlanNode:
        """Returns ``node``, one of ``nodes``. If it is a conditional, returns a new one, in whose bodies the launches
        are fused. Inside a body, memory is free only if it was allocated for the bodies, and if no other body and no
        other node except a fill uses it. The content of any other memory may be needed outside the body, or by its next
        run."""
        if not isinstance(node, Conditional):
            return node
        others = [each for each in nodes if each is not node]
        # Fills are left out: they only write the zeros that a loop's memory begins with.
        elsewhere = _memory_of([each for each in others if not (isinstance(each, Node) and each.method == "fill")])
        bodies: list[list[PlanNode]] = []
        for body in node.bodies:
            free = self._free.intersection(node.own) - elsewhere
            for other in node.bodies:
                if other is not body:
                    free -= _memory_of(other)
            pass_ = _Pass(self._context, body, free)
            pass_.run()
            bodies.append([found for _, found in pass_.remaining()])
            self.report.add(pass_.report)
        self.repeatable = False
        return Conditional(node.kind, node.flag, node.memory, bodies, node.own)

    def _with_epilogues(self, nodes: Sequence[PlanNode]) -> list[PlanNode]:
        """Returns the nodes with each pair of a launch and its epilogue replaced by one launch."""
        found = list(nodes)
        for node in nodes:
            if not isinstance(node, Node) or node.launched is None or reason_against(node) is None:
                continue
            following = _following(node, found)
            if following is None or reason_against(following) is not None:
                continue
            made = self._with_epilogue(node, following, found)
            if isinstance(made, str):
                self._unjoined.setdefault(node, []).append(f"{following.kernel} cannot be its epilogue: {made}")
                continue
            self._merged([node, following], made)
            self.report.before -= 1  # ``_place`` or ``_close`` counts the launch again
            self.report.after -= 1
            self._joined.add(made)
            self.repeatable = False
            found[found.index(following)] = made
            found.remove(node)
        return found

    def _with_epilogue(self, node: Node, following: Node, nodes: Sequence[PlanNode]) -> Node | str:
        """Returns a launch of a single kernel that computes what ``node`` and then ``following`` compute. If there is
        no such kernel, returns the reason as text."""
        launched, epilogue = launched_by(node), launched_by(following)
        kernel = launched.special.kernel
        if kernel.followed_by is None:
            return "it has no form with an epilogue"
        if not launched.contiguous:
            return "an argument is a strided view"
        form = kernel.followed_by(epilogue.special.kernel)
        if isinstance(form, str):
            return form
        arrays, outer = arrays_of(launched), arrays_of(epilogue)
        (result,) = [place for place, each in enumerate(launched.special.parameters) if is_written(each)]
        if len(outer) != 2 or outer[0] is None or outer[0] != arrays[result] or outer[1] is None:
            return "it computes other elements than those of the result"
        memory, output = launched.allocations[result], epilogue.allocations[1]
        assert memory is not None
        assert output is not None
        if outer[1] != outer[0]:
            later = nodes[nodes.index(following) + 1 :]
            if memory not in self._free or any(_uses(each, memory) for each in later):
                return "the result itself is needed, too"
            if output is memory or output in node.reads:
                return "it writes memory that is read"
            if (outer[0][0] - outer[1][0]) % ALIGNMENT:
                return "its output begins at another alignment"
        special = form.specialization(launched.special.parameters)
        values = list(launched.values)
        values[result] = (outer[1][0], *launched.values[result][1:])
        allocations = list(launched.allocations)
        allocations[result] = output
        writes = [output if each is memory else each for each in node.writes]
        name = f"{node.kernel}+{following.kernel}"
        place, sizes = launched.place, sizes_of(node)
        return launch_of(self._context, special, name, sizes, place, values, allocations, node.reads, writes)

    def _close(self) -> None:
        """Places the open chain, if there is one, as one launch."""
        chain, self._chain = self._chain, None
        if chain is None:
            return
        later = self._later()
        if len(chain.nodes) == 1:
            (node,), (number,) = chain.nodes, chain.numbers
            self.report.before += 1
            self.report.after += 1
            self._placed.append((Piece((number,)), node))
            reason = self._refused.get(number)
            self.report.lines.append(reason or f"kernel {node.kernel} is not fused: no other launch can join it")
            return
        piece = chain.fused([each for each in self._free if each not in later])
        made = _built(self._context, self._nodes, piece)
        assert isinstance(made, Node)
        self._merged(chain.nodes, made)
        self._placed.append((piece, made))


def _following(node: Node, nodes: Sequence[PlanNode]) -> Node | None:
    """Returns the next node that uses the result of ``node``, if that node is a launch of the program and ``node`` can
    be moved to right before it; else None."""
    for later in nodes[nodes.index(node) + 1 :]:
        used = (*later.reads, *later.writes)
        if any(each in used for each in node.writes):
            return later if isinstance(later, Node) and later.launched is not None else None
        if not used or any(each in later.writes for each in node.reads):
            return None
    return None


def _memory_of(nodes: Sequence[PlanNode]) -> set[Allocation]:
    return {allocation for node in nodes for allocation in (*node.reads, *node.writes)}


def _uses(node: PlanNode, memory: Allocation) -> bool:
    return memory in node.reads or memory in node.writes


def _traffic(node: Node) -> int:
    """Returns the memory traffic of a launch: the bytes of its slices, of which each is either read or written once.
    Leaves out arrays that a prologue computes."""
    assert node.launched is not None
    total = 0
    for parameter, value in zip(node.launched.special.parameters, node.launched.values, strict=True):
        if isinstance(parameter, Parameter) and parameter.kind in ("slice", "disjoint") and value[0] >= ALIGNMENT:
            total += bytes_of(parameter, value)
    return total
