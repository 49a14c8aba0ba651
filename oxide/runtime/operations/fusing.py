"""Fusion: merges recorded launches of elementwise kernels into launches of fused kernels.

A launch joins a *chain* of earlier ones if it accesses one of their arrays, if its arrays have as many elements as
theirs, and if the compiler can fuse its kernel with theirs (``oxide.compiler.fusion``). The order of the nodes is free
where their data leaves it free, so the launches of a chain need not follow each other in the program. Arrays that
nothing needs after a chain are neither read nor written, and what only prepares them is left out.

Two kinds of launches join kernels that are not elementwise. A chain becomes the *prologue* of the one kernel that needs
its results, and is computed where that kernel reads them. A launch becomes the *epilogue* of the kernel whose result it
takes, if that kernel declares a form of itself that computes both (``Kernel.followed_by``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

from oxide.compiler.elementwise.accesses import ITEMS
from oxide.compiler.fusion import (
    BLOCK,
    NotFused,
    Stage,
    fused,
    own_accesses,
    reads_of,
    reason_against,
    reason_apart,
    with_prologue,
)
from oxide.compiler.signature.signature import Parameter
from oxide.driver import sanitizing
from oxide.messages import byte_count
from oxide.runtime.awaiting.loading import loaded_function
from oxide.runtime.device.launch_places import fused_place
from oxide.runtime.device.memory import Allocation
from oxide.runtime.plan.nodes import Conditional, Launched, Node, PlanNode, dependencies
from oxide.runtime.plan.reuse import observed
from oxide.runtime.submission.submission import ExecutionContext

if TYPE_CHECKING:
    from oxide.compiler.specialization import Specialization

_MOST_KNOWN = 16  # results that an operation keeps

_MOST_STAGES = 16
"""The most launches that become one: more take long to compile, and save little of what is left."""


@final
class FusionReport:
    """What a fusion did, in words: ``lines`` has one for each chain and for each launch that stayed alone."""

    __slots__ = ("after", "before", "lines", "saved")

    def __init__(self) -> None:
        self.before = 0
        self.after = 0
        self.saved = 0  # bytes that are no longer read or written
        self.lines: list[str] = []

    def add(self, other: FusionReport) -> None:
        """Adds the report of a body. What it saves, it saves in each run of the body."""
        self.before += other.before
        self.after += other.after
        self.saved += other.saved
        self.lines += other.lines

    def __str__(self) -> str:
        saved = [f"memory traffic saved: {byte_count(self.saved)} a run"] if self.saved else []
        return "\n".join([f"launches: {self.before} -> {self.after}", *saved, *self.lines])


@final
class Piece:
    """A node of a plan after fusion: the node before it of number ``numbers[0]``, or the launch of the fused kernel
    ``special`` for several. ``sources`` tells for each of its arguments which launch, by its place in ``numbers``, has
    it as which argument. ``size`` is the number of elements."""

    __slots__ = ("numbers", "size", "sources", "special")

    def __init__(
        self,
        numbers: tuple[int, ...],
        special: Specialization | None = None,
        sources: tuple[tuple[int, int], ...] = (),
        size: int = 0,
    ) -> None:
        self.numbers = numbers
        self.special = special
        self.sources = sources
        self.size = size


Known: TypeAlias = dict[Any, list[Piece]]
"""The results of earlier fusions of an operation, by what they depend on."""


def fuse(context: ExecutionContext, first: int = 0, known: Known | None = None) -> FusionReport | None:
    """Fuses the nodes of the context's recording from number ``first`` on. Nothing but the recording and the boxes of
    the program may refer to its memory. Raises what compiling and loading raise.

    If ``known`` has the result for such nodes, applies it and returns None. Otherwise adds the result to it.
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
    """Returns all that a fusion depends on: kernels, sizes, and which arguments and memory are the same. None if it
    also depends on addresses, as arrays overlap in part, and for conditionals."""
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
        bound = [-1 if array is None else arrays.setdefault(array, len(arrays)) for array in _arrays_of(launched)]
        shapes = [value[1:] for value, number in zip(launched.values, bound, strict=True) if number >= 0]
        _, grid, block, *_ = node.arguments
        found.append((launched.special, grid, block, launched.contiguous, *bound, *shapes, len(node.reads), *used))
    spans = sorted(arrays)
    if any(start + size > after for (start, size), (after, _) in itertools.pairwise(spans)):
        return None
    return tuple(found), tuple([each in free for each in memory]), sanitizing.requested()


def _built(context: ExecutionContext, nodes: Sequence[PlanNode], piece: Piece) -> PlanNode:
    """Returns the node of a piece."""
    special = piece.special
    if special is None:
        return nodes[piece.numbers[0]]
    members = [_launched(nodes[number]) for number in piece.numbers]
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
    place, outer = fused_place(places), context.place
    function = loaded_function(special, context.device)
    context.keep(function)
    context.place = place
    try:
        params = special.pack(values, context.fault_address(special) if function.reports else 0)
    finally:
        context.place = outer
    grid = (max(1, -(-piece.size // (ITEMS * BLOCK))), 1, 1)
    launched = Launched(special, tuple(values), tuple(allocations), place)
    return Node("launch", (function, grid, (BLOCK, 1, 1), 0, params), special.kernel.name, reads, writes, launched)


@final
class _Pass:
    """One fusion. ``free`` is the memory that only the nodes can reach. A node is ready when the nodes that it runs
    after have been placed, or are in the open chain."""

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
        self._reasons = [_reason_against(node) for node in nodes]
        self._ready = [number for number, waits in enumerate(self._waits) if not waits]
        self._chain: _Chain | None = None
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
                    self._chain = _Chain()
                self._chain.add(number, node)
            else:
                self._place(number)
            self._placed_at(number)
        self._close()

    def _placed_at(self, number: int) -> None:
        """Notes that a ready node is placed or in the open chain."""
        self._ready.remove(number)
        for follower in self._followers[number]:
            self._waits[follower] -= 1
            if not self._waits[follower]:
                self._ready.append(follower)

    def remaining(self) -> list[tuple[Piece, PlanNode]]:
        """Returns the placed nodes without those that only write memory that no node uses any more."""
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
        cannot be fused come first, as long as they do not run after the chain."""
        chain = self._chain
        for number in self._ready:
            if self._reasons[number] is not None and (chain is None or not chain.has(self._after[number])):
                return number
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
            self._refused[number] = f"kernel {node.kernel} is not fused with {chain.names}: {apart}"
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
        """Places the open chain: as the prologue of a ready launch, if that is possible, else alone. Returns the number
        of that launch, or None."""
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
        """Returns the memory of the nodes that are neither placed nor in the open chain, except for one."""
        unplaced = [
            node
            for number, node in enumerate(self._nodes)
            if number != besides and (self._waits[number] or number in self._ready)
        ]
        return {allocation for node in unplaced for allocation in (*node.reads, *node.writes)}

    def _merged(self, nodes: Sequence[Node], made: Node) -> None:
        """Reports that some launches became one."""
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
        """Returns one of the nodes, if it is a conditional with the launches of each body fused. What is written to
        memory that others use is needed by the next run of the body, too."""
        if not isinstance(node, Conditional):
            return node
        elsewhere = {
            allocation
            for other in nodes
            if other is not node and not (isinstance(other, Node) and other.method == "fill")  # zeros for a loop
            for allocation in (*other.reads, *other.writes)
        }
        bodies: list[list[PlanNode]] = []
        for body in node.bodies:
            others = {
                allocation
                for other in node.bodies
                if other is not body
                for inner in other
                for allocation in (*inner.reads, *inner.writes)
            }
            free = {each for each in node.own if each in self._free} - elsewhere - others
            pass_ = _Pass(self._context, body, free)
            pass_.run()
            bodies.append([found for _, found in pass_.remaining()])
            self.report.add(pass_.report)
        self.repeatable = False
        return Conditional(node.kind, node.flag, node.memory, bodies, node.own)

    def _with_epilogues(self, nodes: Sequence[PlanNode]) -> list[PlanNode]:
        """Returns the nodes, with one launch for each launch and its epilogue."""
        found = list(nodes)
        for node in nodes:
            if not isinstance(node, Node) or node.launched is None or _reason_against(node) is None:
                continue
            following = _following(node, found)
            if following is None or _reason_against(following) is not None:
                continue
            made = self._with_epilogue(node, following, found)
            if isinstance(made, str):
                self._unjoined.setdefault(node, []).append(f"{following.kernel} cannot be its epilogue: {made}")
                continue
            self._merged([node, following], made)
            self.report.before -= 1  # it is counted once more where it is placed
            self.report.after -= 1
            self._joined.add(made)
            self.repeatable = False
            found[found.index(following)] = made
            found.remove(node)
        return found

    def _with_epilogue(self, node: Node, following: Node, nodes: Sequence[PlanNode]) -> Node | str:
        """Returns the launch of the kernel that computes what ``node`` and then ``following`` compute, or why there is
        none."""
        launched, epilogue = _launched(node), _launched(following)
        kernel = launched.special.kernel
        if kernel.followed_by is None:
            return "it has no form with an epilogue"
        if not launched.contiguous:
            return "an argument is a strided view"
        form = kernel.followed_by(epilogue.special.kernel)
        if isinstance(form, str):
            return form
        arrays, outer = _arrays_of(launched), _arrays_of(epilogue)
        (result,) = [place for place, each in enumerate(launched.special.parameters) if _is_written(each)]
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
            if (outer[0][0] - outer[1][0]) % _ALIGNMENT:
                return "its output begins at another alignment"
        special = form.specialization(launched.special.parameters)
        values = list(launched.values)
        values[result] = (outer[1][0], *launched.values[result][1:])
        allocations = list(launched.allocations)
        allocations[result] = output
        writes = [output if each is memory else each for each in node.writes]
        name = f"{node.kernel}+{following.kernel}"
        return _launch_of(self._context, special, name, node, values, allocations, node.reads, writes)

    def _close(self) -> None:
        """Places the open chain as one launch."""
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


_ALIGNMENT = 256
"""The alignment of memory that a kernel may test: an address is passed modulo this number."""


def _following(node: Node, nodes: Sequence[PlanNode]) -> Node | None:
    """Returns the launch that uses a launch's result next, if the launch may run right before it."""
    for later in nodes[nodes.index(node) + 1 :]:
        used = (*later.reads, *later.writes)
        if any(each in used for each in node.writes):
            return later if isinstance(later, Node) and later.launched is not None else None
        if not used or any(each in later.writes for each in node.reads):
            return None
    return None


def _uses(node: PlanNode, memory: Allocation) -> bool:
    return memory in node.reads or memory in node.writes


def _is_written(parameter: Any) -> bool:
    return isinstance(parameter, Parameter) and parameter.kind == "disjoint"


def _launch_of(
    context: ExecutionContext,
    special: Specialization,
    name: str,
    of: Node,
    values: Sequence[Any],
    allocations: Sequence[Allocation | None],
    reads: Sequence[Allocation],
    writes: Sequence[Allocation],
) -> Node:
    """Returns the launch of a kernel instead of another one, with the grid, blocks and shared memory of that one."""
    place, outer = _launched(of).place, context.place
    function = loaded_function(special, context.device)
    context.keep(function)
    context.place = place
    try:
        params = special.pack(values, context.fault_address(special) if function.reports else 0)
    finally:
        context.place = outer
    _, grid, block, shared, _ = of.arguments
    launched = Launched(special, tuple(values), tuple(allocations), place)
    return Node("launch", (function, grid, block, shared, params), name, reads, writes, launched)


def _traffic(node: Node) -> int:
    """Returns the bytes of a launch's arrays, each counted once for a read and once for a write."""
    assert node.launched is not None
    total = 0
    for parameter, value in zip(node.launched.special.parameters, node.launched.values, strict=True):
        if isinstance(parameter, Parameter) and parameter.kind in ("slice", "disjoint") and value[0] >= _ALIGNMENT:
            size = parameter.dtype.itemsize
            for length in value[1:]:
                size *= length
            total += size
    return total


def _reason_against(node: PlanNode) -> str | None:
    """Returns why a node is not fused with any other, or None. The text is of use for launches only."""
    if not isinstance(node, Node) or node.method != "launch":
        return "it is no launch"
    launched = node.launched
    if launched is None:
        return "the runtime launches it for itself"
    found = reason_against(launched.special)
    if found is not None:
        return found
    if not launched.contiguous:
        return "an argument is a strided view"
    shapes = _shapes(launched)
    if len(shapes) != 1:
        return f"its arrays have different shapes: {', '.join(map(str, sorted(shapes)))}"
    (shape,) = shapes
    spans = sorted({array for array in _arrays_of(launched) if array is not None})
    if any(start + size > after for (start, size), (after, _) in itertools.pairwise(spans)):
        return "its arrays overlap in part"
    _, grid, block, *_ = node.arguments
    threads = [grid[axis] * block[axis] for axis in range(3)]
    threads[0] *= launched.special.description.items_per_thread[0]
    if threads[len(shape) :] != [1, 1, 1][len(shape) :]:
        return "its launch has more axes than its arrays"
    if any(threads[axis] < length for axis, length in enumerate(reversed(shape))):
        return "its launch has fewer threads than its arrays have elements"
    return None


def _shapes(launched: Launched) -> set[tuple[int, ...]]:
    """Returns the shapes of the slices of which threads access only their own elements."""
    own = own_accesses(launched.special)
    return {
        tuple(value[1:])
        for parameter, value in zip(launched.special.parameters, launched.values, strict=True)
        if parameter.name in own
    }


@final
class _Chain:
    """Launches that become one: ``numbers`` and ``nodes`` are theirs. ``_arrays`` has the number of each array, by its
    address and size. For each number, ``_values`` has the value, ``_sources`` tells which launch has it as which
    argument, and ``_allocations`` has its memory."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.nodes: list[Node] = []
        self._stages: list[Stage] = []
        self._size = 0  # the number of elements
        self._shape: tuple[int, ...] | None = None  # the shape of matrices
        self._arrays: dict[tuple[int, int], int] = {}
        self._values: list[Any] = []
        self._sources: list[tuple[int, int]] = []
        self._allocations: list[Allocation | None] = []

    @property
    def names(self) -> str:
        """Returns the names of the kernels."""
        return ", ".join([node.kernel for node in self.nodes])

    def has(self, numbers: Sequence[int]) -> bool:
        """Returns whether one of these nodes is in the chain."""
        return any(number in self.numbers for number in numbers)

    def reason_against(self, node: Node) -> str | None:
        """Returns why a launch does not join the chain, or None."""
        launched = _launched(node)
        (shape,) = _shapes(launched)
        if math.prod(shape) != self._size:
            return f"its arrays have {math.prod(shape)} elements, theirs {self._size}"
        if len(shape) == 2 and self._shape is not None and shape != self._shape:
            return f"its arrays have the shape {shape}, theirs {self._shape}"
        if len(self.nodes) == _MOST_STAGES:
            return f"{_MOST_STAGES} launches are the most that become one"
        arrays = _arrays_of(launched)
        if all(array is None or array not in self._arrays for array in arrays):
            return "it accesses none of their arrays"
        for array in arrays:
            if array is not None and array not in self._arrays and self._overlaps(array):
                return "an array overlaps another in part"
        return reason_apart((*self._stages, Stage(launched.special, self._bound(launched))))

    def add(self, number: int, node: Node) -> None:
        """Adds a launch at the end."""
        launched = _launched(node)
        bound = self._bound(launched)
        for place, (value_number, array) in enumerate(zip(bound, _arrays_of(launched), strict=True)):
            value, source = launched.values[place], (len(self.nodes), place)
            if value_number < len(self._sources):
                if array is not None and len(value) > len(self._values[value_number]):
                    # the same elements, here as a matrix
                    self._values[value_number], self._sources[value_number] = value, source
            else:
                self._values.append(value)
                self._sources.append(source)
                self._allocations.append(launched.allocations[place])
                if array is not None:
                    self._arrays[array] = value_number
        self.numbers.append(number)
        self.nodes.append(node)
        self._stages.append(Stage(launched.special, bound))
        (shape,) = _shapes(launched)
        self._size = math.prod(shape)
        if len(shape) == 2:
            self._shape = shape

    def fused(self, unneeded: Sequence[Allocation]) -> Piece:
        """Returns the launch of the fused kernel. ``unneeded`` is memory whose content nothing uses afterwards."""
        dead = [number for number, each in enumerate(self._allocations) if each is not None and each in unneeded]
        try:
            made = fused(self._stages, dead)
        except NotFused:  # nothing needs any result
            made = fused(self._stages)
        sources = tuple([self._sources[number] for number in made.arguments])
        return Piece(tuple(self.numbers), made.kernel.specialize(), sources, self._size)

    def computes_for(self, node: Node) -> bool:
        """Returns whether a launch has an array that the chain writes as an argument."""
        written = self._written()
        return any(array is not None and array in written for array in _arrays_of(_launched(node)))

    def _written(self) -> dict[tuple[int, int], int]:
        """Returns the arrays that the stages write, with their numbers."""
        numbers: set[int] = set()
        for stage in self._stages:
            own = own_accesses(stage.special)
            for parameter, number in zip(stage.special.parameters, stage.values, strict=True):
                if parameter.name in own and own[parameter.name].writes:
                    numbers.add(number)
        return {array: number for array, number in self._arrays.items() if number in numbers}

    def before(self, node: Node, context: ExecutionContext, unneeded: Sequence[Allocation]) -> Node | str:
        """Returns the launch of a kernel that computes the chain where it reads the chain's results, or the reason why
        there is none. ``unneeded`` is memory whose content nothing uses after ``node``."""
        launched, written = _launched(node), self._written()
        special, arrays = launched.special, _arrays_of(launched)
        if not launched.contiguous:
            return "an argument is a strided view"
        if any(self._allocations[number] not in unneeded for number in written.values()):
            return "other launches or the program need the result, too"
        _, grid, block, *_ = node.arguments
        spread = [f"ctaid.{axis}" for axis, count in zip("xyz", grid, strict=True) if count > 1]
        spread += [f"tid.{axis}" for axis, count in zip("xyz", block, strict=True) if count > 1]
        computed: list[int] = []
        for place, (parameter, array) in enumerate(zip(special.parameters, arrays, strict=True)):
            if array is None:
                if launched.allocations[place] in self._allocations and launched.allocations[place] is not None:
                    return f"it accesses the memory of {parameter.name} in other ways than as a slice"
                continue
            if _is_written(parameter):
                if self._overlaps(array):
                    return f"it writes {parameter.name}, which is an array of theirs"
                continue
            if array not in written:
                if any(_overlap(array, each) for each in written):
                    return f"{parameter.name} overlaps the result in part"
                continue
            reads = reads_of(special, parameter.name)
            if isinstance(reads, str):
                return reads
            same = [register for register in spread if register not in reads.registers]
            if same and reads.loads:
                return f"threads with different {same[0]} read the same elements of {parameter.name}"
            computed.append(place)
        following = len(self._values)
        bound = tuple(
            [
                written[array] if place in computed and array is not None else following + place
                for place, array in enumerate(arrays)
            ]
        )
        aligned: set[int] = set()
        if all(launched.values[place][0] % 16 == 0 for place in computed):
            aligned.update([number for (address, _), number in self._arrays.items() if address % 16 == 0])
        made = with_prologue(self._stages, Stage(special, bound), aligned)
        if isinstance(made, str):
            return made
        values, allocations = list(launched.values), list(launched.allocations)
        dropped = [allocations[place] for place in computed]
        for place in computed:
            address, *lengths = values[place]
            values[place] = (address % _ALIGNMENT, *lengths)
            allocations[place] = None
        inputs = made.arguments[len(values) :]
        values += [self._values[number] for number in inputs]
        allocations += [self._allocations[number] for number in inputs]
        reads_of_it = [each for each in node.reads if each not in dropped or each in allocations]
        reads_of_it += [
            each
            for each in [self._allocations[number] for number in inputs]
            if each is not None and each not in reads_of_it
        ]
        made_special = made.kernel.specialize()
        return _launch_of(
            context, made_special, made_special.kernel.name, node, values, allocations, reads_of_it, node.writes
        )

    def _bound(self, launched: Launched) -> tuple[int, ...]:
        """Returns the number of the value of each parameter. New values get the next numbers."""
        following = len(self._sources)
        new: dict[tuple[int, int], int] = {}
        found: list[int] = []
        for array in _arrays_of(launched):
            known = None if array is None else self._arrays.get(array, new.get(array))
            if known is None:
                known, following = following, following + 1
                if array is not None:
                    new[array] = known
            found.append(known)
        return tuple(found)

    def _overlaps(self, array: tuple[int, int]) -> bool:
        return any(_overlap(array, each) for each in self._arrays)


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


def _launched(node: PlanNode) -> Launched:
    assert isinstance(node, Node)
    assert node.launched is not None
    return node.launched


def _arrays_of(launched: Launched) -> list[tuple[int, int] | None]:
    """Returns the address and the size in bytes of each slice, and None for any other parameter and for a slice without
    elements."""
    found: list[tuple[int, int] | None] = []
    for parameter, value in zip(launched.special.parameters, launched.values, strict=True):
        if isinstance(parameter, Parameter) and parameter.kind in ("slice", "disjoint"):
            size = parameter.dtype.itemsize
            for length in value[1:]:
                size *= length
            found.append((value[0], size))
        else:
            found.append(None)
    return found
