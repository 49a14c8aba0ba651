"""Chains: launches of elementwise kernels that become one launch, or the prologue of another launch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from oxide.compiler.fusion.fusion import (
    NotFused,
    Stage,
    fused,
    own_accesses,
    reads_of,
    reason_apart,
    with_prologue,
)
from oxide.compiler.fusion.fusion import reason_against as kernels_reason
from oxide.compiler.signature.signature import Parameter
from oxide.runtime.awaiting.loading import ready_function
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.memory.memory import number_of_elements
from oxide.runtime.plan.nodes import Launched, Node, PlanNode
from oxide.runtime.submission.submission import ExecutionContext

if TYPE_CHECKING:
    from oxide.compiler.kernel.specialization import Specialization
    from oxide.driver.base import Dim3
    from oxide.runtime.devices.fault_records import LaunchPlace

_MOST_STAGES = 16
"""The most launches that become one. More would take long to compile and save little further memory traffic."""


ALIGNMENT = 256
"""The largest alignment of memory that a kernel may test for. For an array that a prologue computes, a launch passes
the array's address modulo this number: the kernel may still test its alignment, but never accesses it."""


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """A node of a plan after fusion: one unchanged node, or the launch of the fused kernel ``special``, which replaces
    several launches. ``numbers`` has the number that the unchanged node had before the fusion, or those of the replaced
    launches. ``sources`` has a pair for each argument of the fused kernel: the launch that the argument comes from, as
    an index into ``numbers``, and the place of the argument in that launch. ``size`` is the number of elements of each
    array."""

    numbers: tuple[int, ...]
    special: Specialization | None = None
    sources: tuple[tuple[int, int], ...] = ()
    size: int = 0


@final
class Chain:
    """Launches that become one launch: ``nodes``, whose numbers in the plan are ``numbers``. The arguments of these
    launches are numbered, too, and an array that is passed several times has one number. The keys of ``_arrays`` are
    pairs of an array's address and its size in bytes, the values are the arrays' numbers. ``_values``, ``_allocations``
    and ``_sources`` are indexed by an argument's number: they have its value, its memory, and its pair as in
    ``Piece.sources``."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.nodes: list[Node] = []
        self._stages: list[Stage] = []
        self._size = 0  # the number of elements
        self._shape: tuple[int, ...] | None = None  # the shape of the arrays, if they are matrices
        self._arrays: dict[tuple[int, int], int] = {}
        self._values: list[Any] = []
        self._sources: list[tuple[int, int]] = []
        self._allocations: list[Allocation | None] = []

    @property
    def names(self) -> str:
        return ", ".join([node.kernel for node in self.nodes])

    def has(self, numbers: Sequence[int]) -> bool:
        return any(number in self.numbers for number in numbers)

    def reason_against(self, node: Node) -> str | None:
        """Returns why a launch cannot join the chain; None if it can."""
        if len(self.nodes) == _MOST_STAGES:
            return f"{_MOST_STAGES} launches are the most that become one"
        launched = launched_by(node)
        (shape,) = _shapes(launched)
        if math.prod(shape) != self._size:
            return f"its arrays have {math.prod(shape)} elements, theirs {self._size}"
        if len(shape) == 2 and self._shape is not None and shape != self._shape:
            return f"its arrays have the shape {shape}, theirs {self._shape}"
        arrays = arrays_of(launched)
        if all(array is None or array not in self._arrays for array in arrays):
            return "it accesses none of their arrays"
        for array, value in zip(arrays, launched.values, strict=True):
            if array is None:
                continue
            known = self._arrays.get(array)
            if known is None and self._overlaps(array):
                return "an array overlaps another in part"
            if known is not None and _are_two_shapes(value, self._values[known]):
                return "an array has two shapes"
        return reason_apart((*self._stages, Stage(launched.special, self._bound(launched))))

    def add(self, number: int, node: Node) -> None:
        """Adds a launch at the end."""
        launched = launched_by(node)
        bound = self._bound(launched)
        for place, (value_number, array) in enumerate(zip(bound, arrays_of(launched), strict=True)):
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
        """Returns the launch of the fused kernel as a piece. ``unneeded`` is memory whose content nothing uses after
        the chain."""
        dead = [number for number, each in enumerate(self._allocations) if each is not None and each in unneeded]
        try:
            made = fused(self._stages, dead)
        except NotFused:  # no later work needs any result
            made = fused(self._stages)
        sources = tuple([self._sources[number] for number in made.arguments])
        return Piece(tuple(self.numbers), made.kernel.specialize(), sources, self._size)

    def computes_for(self, node: Node) -> bool:
        """Returns whether one of a launch's arguments is an array that the chain writes."""
        written = self._written()
        return any(array is not None and array in written for array in arrays_of(launched_by(node)))

    def _written(self) -> dict[tuple[int, int], int]:
        """Returns the arrays that the chain's launches write, as keys of a dict, and their numbers as its values."""
        numbers: set[int] = set()
        for stage in self._stages:
            own = own_accesses(stage.special)
            for parameter, number in zip(stage.special.parameters, stage.values, strict=True):
                if parameter.name in own and own[parameter.name].writes:
                    numbers.add(number)
        return {array: number for array, number in self._arrays.items() if number in numbers}

    def before(self, node: Node, context: ExecutionContext, unneeded: Sequence[Allocation]) -> Node | str:
        """Returns the launch of ``node`` with the chain as its prologue: its kernel computes the chain's results where
        ``node``'s kernel reads them. If there can be no such kernel, returns the reason as text. ``unneeded`` is memory
        whose content nothing uses after ``node``."""
        launched, written = launched_by(node), self._written()
        special, arrays = launched.special, arrays_of(launched)
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
            if is_written(parameter):
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
            values[place] = (address % ALIGNMENT, *lengths)
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
        name, at, sizes = made_special.kernel.name, launched.place, sizes_of(node)
        return launch_of(context, made_special, name, sizes, at, values, allocations, reads_of_it, node.writes)

    def _bound(self, launched: Launched) -> tuple[int, ...]:
        """Returns for each parameter of a launch the number of its argument in the chain. Arguments that are new to the
        chain get the next numbers."""
        following = len(self._sources)
        new: dict[tuple[int, int], int] = {}
        found: list[int] = []
        for array in arrays_of(launched):
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


def launched_by(node: PlanNode) -> Launched:
    assert isinstance(node, Node)
    assert node.launched is not None
    return node.launched


def arrays_of(launched: Launched) -> list[tuple[int, int] | None]:
    """Returns for each parameter the address and the size in bytes if it is a slice, else None."""
    found: list[tuple[int, int] | None] = []
    for parameter, value in zip(launched.special.parameters, launched.values, strict=True):
        if isinstance(parameter, Parameter) and parameter.kind in ("slice", "disjoint"):
            found.append((value[0], bytes_of(parameter, value)))
        else:
            found.append(None)
    return found


def reason_against(node: PlanNode) -> str | None:
    """Returns why a node cannot be fused with any other node; None if it can. Only the reasons for launches are ever
    shown."""
    if not isinstance(node, Node) or node.method != "launch":
        return "it is no launch"
    launched = node.launched
    if launched is None:
        return "the runtime launches it for itself"
    found = kernels_reason(launched.special)
    if found is not None:
        return found
    if not launched.contiguous:
        return "an argument is a strided view"
    shapes = _shapes(launched)
    if len(shapes) != 1:
        return f"its arrays have different shapes: {', '.join(map(str, sorted(shapes)))}"
    (shape,) = shapes
    if overlap_in_part({array for array in arrays_of(launched) if array is not None}):
        return "its arrays overlap in part"
    values: dict[tuple[int, int], tuple[int, ...]] = {}
    for array, value in zip(arrays_of(launched), launched.values, strict=True):
        if array is not None and _are_two_shapes(value, values.setdefault(array, value)):
            return "an array has two shapes"
    _, grid, block, *_ = node.arguments
    threads = [grid[axis] * block[axis] for axis in range(3)]
    threads[0] *= launched.special.description.items_per_thread[0]
    if threads[len(shape) :] != [1, 1, 1][len(shape) :]:
        return "its launch has more axes than its arrays"
    if any(threads[axis] < length for axis, length in enumerate(reversed(shape))):
        return "its launch has fewer threads than its arrays have elements"
    return None


def _are_two_shapes(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Returns whether the values of two slices of the same memory have different shapes of two axes or more. The fused
    kernel gets one value for both."""
    return len(one) > 2 and len(other) > 2 and one[1:] != other[1:]


def _shapes(launched: Launched) -> set[tuple[int, ...]]:
    """Returns the different shapes among the slices in which each thread accesses only its own elements."""
    own = own_accesses(launched.special)
    return {
        tuple(value[1:])
        for parameter, value in zip(launched.special.parameters, launched.values, strict=True)
        if parameter.name in own
    }


def bytes_of(parameter: Parameter, value: tuple[int, ...]) -> int:
    """Returns the size of a slice in bytes. ``value`` is its address and its lengths."""
    nbytes: int = parameter.components * parameter.dtype.itemsize * number_of_elements(value[1:])
    return nbytes


def overlap_in_part(arrays: Iterable[tuple[int, int]]) -> bool:
    """Returns whether any two of the arrays overlap. Each is given by its address and its size in bytes, and no two are
    equal."""
    return any(start + size > after for (start, size), (after, _) in itertools.pairwise(sorted(arrays)))


def is_written(parameter: Any) -> bool:
    return isinstance(parameter, Parameter) and parameter.kind == "disjoint"


def launch_of(
    context: ExecutionContext,
    special: Specialization,
    name: str,
    sizes: tuple[Dim3, Dim3, int],
    place: LaunchPlace | None,
    values: Sequence[Any],
    allocations: Sequence[Allocation | None],
    reads: Sequence[Allocation],
    writes: Sequence[Allocation],
) -> Node:
    """Returns the launch of a kernel. ``sizes`` are the grid, the block and the bytes of shared memory. ``place`` is
    the place of the launch in the operation."""
    outer = context.place
    function = ready_function(special, context.device)
    context.keep(function)
    context.place = place
    try:
        params = special.pack(values, context.fault_address(special) if function.reports else 0)
    finally:
        context.place = outer
    launched = Launched(special, tuple(values), tuple(allocations), place)
    return Node("launch", (function, *sizes, params), name, reads, writes, launched)


def sizes_of(launch: Node) -> tuple[Dim3, Dim3, int]:
    """Returns the grid, the block and the bytes of shared memory of a launch."""
    _, grid, block, shared_bytes, _ = launch.arguments
    return grid, block, shared_bytes
