"""Fusion: merges recorded launches of elementwise kernels into launches of fused kernels.

A launch joins a *chain* of earlier ones if it accesses one of their arrays, if its arrays have as many elements as
theirs, and if the compiler can fuse its kernel with theirs (``oxide.compiler.fusion``). The order of the nodes is free
where their data leaves it free, so the launches of a chain need not follow each other in the program. Arrays that
nothing needs after a chain are neither read nor written, and what only prepares them is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

from oxide.compiler.elementwise.accesses import ITEMS
from oxide.compiler.fusion import BLOCK, NotFused, Stage, fused, own_accesses, reason_against, reason_apart
from oxide.compiler.signature.signature import Parameter
from oxide.driver import sanitizing
from oxide.messages import byte_count
from oxide.runtime.awaiting.loading import loaded_function
from oxide.runtime.device.launch_places import fused_place
from oxide.runtime.device.memory import Allocation
from oxide.runtime.plan.nodes import Launched, Node, PlanNode, dependencies
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
    if known is not None and key is not None:
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
        self._nodes = nodes
        self._free = free
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
                self._close()
                continue
            self._ready.remove(number)
            node = self._nodes[number]
            if self._reasons[number] is None:
                assert isinstance(node, Node)
                if self._chain is None:
                    self._chain = _Chain()
                self._chain.add(number, node)
            else:
                self._place(number)
            for follower in self._followers[number]:
                self._waits[follower] -= 1
                if not self._waits[follower]:
                    self._ready.append(follower)
        self._close()

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
            self.report.lines.append(f"kernel {node.kernel} is not fused: {self._reasons[number]}")

    def _close(self) -> None:
        """Places the open chain as one launch."""
        chain, self._chain = self._chain, None
        if chain is None:
            return
        unplaced = [node for number, node in enumerate(self._nodes) if self._waits[number] or number in self._ready]
        later = {allocation for node in unplaced for allocation in (*node.reads, *node.writes)}
        report = self.report
        report.before += len(chain.nodes)
        report.after += 1
        if len(chain.nodes) == 1:
            (node,), (number,) = chain.nodes, chain.numbers
            self._placed.append((Piece((number,)), node))
            reason = self._refused.get(number)
            report.lines.append(reason or f"kernel {node.kernel} is not fused: no other launch can join it")
            return
        piece = chain.fused([each for each in self._free if each not in later])
        made = _built(self._context, self._nodes, piece)
        assert isinstance(made, Node)
        saved = sum([_traffic(node) for node in chain.nodes]) - _traffic(made)
        report.saved += saved
        report.lines.append(
            f"{' + '.join([node.kernel for node in chain.nodes])}: {len(chain.nodes)} launches -> 1, "
            f"{byte_count(saved)} of memory traffic saved"
        )
        self._placed.append((piece, made))


def _traffic(node: Node) -> int:
    """Returns the bytes of a launch's arrays, each counted once for a read and once for a write."""
    assert node.launched is not None
    total = 0
    for parameter, value in zip(node.launched.special.parameters, node.launched.values, strict=True):
        if isinstance(parameter, Parameter) and parameter.kind in ("slice", "disjoint"):
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
    address and size. For each number, ``_sources`` tells which launch has the value as which argument, ``_axes`` how
    many axes it has there, and ``_allocations`` its memory."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.nodes: list[Node] = []
        self._stages: list[Stage] = []
        self._size = 0  # the number of elements
        self._shape: tuple[int, ...] | None = None  # the shape of matrices
        self._arrays: dict[tuple[int, int], int] = {}
        self._axes: list[int] = []
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
            axes = 0 if array is None else len(launched.values[place]) - 1
            source = len(self.nodes), place
            if value_number < len(self._sources):
                if axes > self._axes[value_number]:  # the same elements, here as a matrix
                    self._axes[value_number], self._sources[value_number] = axes, source
            else:
                self._axes.append(axes)
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
        start, size = array
        return any(start < other + length and other < start + size for other, length in self._arrays)


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
