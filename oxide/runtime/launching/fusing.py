"""Merges consecutive launches of elementwise kernels into launches of fused kernels.

A launch joins the launches before it if it accesses one of their arrays, if its arrays have as many elements as theirs,
and if the compiler can fuse its kernel with theirs (``oxide.compiler.fusion``). Arrays that nothing needs after the
fused launch are neither read nor written, so their memory may be left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

from oxide.compiler.elementwise.accesses import ITEMS
from oxide.compiler.fusion import (
    BLOCK,
    Fusion,
    NotFused,
    Stage,
    fused,
    own_accesses,
    reason_against,
)
from oxide.compiler.signature.signature import Parameter
from oxide.compiler.specialization import Specialization
from oxide.runtime.device.memory import Allocation
from oxide.runtime.launching.launch_config import LaunchConfig

__all__ = ["FusibleLaunch", "fuse"]


@final
class FusibleLaunch:
    """A launch with all its arguments known. ``values`` are those of ``Specialization.pack``: for a slice its address
    and lengths, for any other parameter its words. ``allocations`` has the memory of each slice, and None for any other
    parameter. ``contiguous`` says whether all slices are contiguous."""

    __slots__ = ("allocations", "config", "contiguous", "special", "values")

    def __init__(
        self,
        special: Specialization,
        values: tuple[Any, ...],
        allocations: tuple[Allocation | None, ...],
        config: LaunchConfig,
        contiguous: bool = True,
    ) -> None:
        self.special = special
        self.values = values
        self.allocations = allocations
        self.config = config
        self.contiguous = contiguous


def fuse(
    launches: Sequence[FusibleLaunch], needed: Callable[[Allocation, int], bool]
) -> tuple[list[FusibleLaunch], list[str]]:
    """Returns the launches that remain, in order, and the reasons why launches were not fused, in words.

    ``needed`` tells whether the content of some memory is needed after the launch with a certain index.
    """
    result: list[FusibleLaunch] = []
    reasons: list[str] = []
    chain: _Chain | None = None
    for index, launch in enumerate(launches):
        name = launch.special.kernel.name
        reason = _reason_against(launch)
        if reason is None and chain is not None:
            apart = chain.reason_against(launch)
            if apart is None:
                chain.add(launch)
                continue
            reasons.append(f"kernel {name} is not fused with {chain.names}: {apart}")
        elif reason is not None:
            reasons.append(f"kernel {name} is not fused: {reason}")
        if chain is not None:
            result.append(chain.launch(needed, index - 1))
        chain = None
        if reason is None:
            chain = _Chain()
            chain.add(launch)
        else:
            result.append(launch)
    if chain is not None:
        result.append(chain.launch(needed, len(launches) - 1))
    return result, reasons


def _reason_against(launch: FusibleLaunch) -> str | None:
    """Returns why a launch is not fused with any other, or None."""
    found = reason_against(launch.special)
    if found is not None:
        return found
    if not launch.contiguous:
        return "an argument is a strided view"
    shapes = _shapes(launch)
    if len(shapes) != 1:
        return f"its arrays have different shapes: {', '.join(map(str, sorted(shapes)))}"
    (shape,) = shapes
    grid, block = launch.config.grid, launch.config.block
    threads = [grid[axis] * block[axis] for axis in range(3)]
    threads[0] *= launch.special.description.items_per_thread[0]
    if threads[len(shape) :] != [1, 1, 1][len(shape) :]:
        return "its launch has more axes than its arrays"
    if any(threads[axis] < length for axis, length in enumerate(reversed(shape))):
        return "its launch has fewer threads than its arrays have elements"
    return None


def _shapes(launch: FusibleLaunch) -> set[tuple[int, ...]]:
    """Returns the shapes of the slices of which threads access only their own elements."""
    own = own_accesses(launch.special)
    return {
        tuple(value[1:])
        for parameter, value in zip(launch.special.parameters, launch.values, strict=True)
        if parameter.name in own
    }


@final
class _Chain:
    """Launches that become one. ``_numbers`` has the number of each array, by its address and size, and ``_values`` and
    ``_allocations`` have the value and the memory of each number."""

    __slots__ = ("_allocations", "_launches", "_numbers", "_shape", "_size", "_stages", "_values")

    def __init__(self) -> None:
        self._launches: list[FusibleLaunch] = []
        self._stages: list[Stage] = []
        self._size = 0  # the number of elements
        self._shape: tuple[int, ...] | None = None  # the shape of matrices
        self._numbers: dict[tuple[int, int], int] = {}
        self._values: list[Any] = []
        self._allocations: list[Allocation | None] = []

    @property
    def names(self) -> str:
        """Returns the names of the kernels."""
        return ", ".join([launch.special.kernel.name for launch in self._launches])

    def reason_against(self, launch: FusibleLaunch) -> str | None:
        """Returns why a launch does not join the chain, or None."""
        (shape,) = _shapes(launch)
        if math.prod(shape) != self._size:
            return f"its arrays have {math.prod(shape)} elements, theirs {self._size}"
        if len(shape) == 2 and self._shape is not None and shape != self._shape:
            return f"its arrays have the shape {shape}, theirs {self._shape}"
        arrays = _arrays(launch)
        if all(array is None or array not in self._numbers for array in arrays):
            return "it accesses none of their arrays"
        for array in arrays:
            if array is not None and array not in self._numbers and self._overlaps(array):
                return "an array overlaps another in part"
        try:
            _ = Fusion((*self._stages, Stage(launch.special, self._bound(launch))), frozenset()).values
        except NotFused as error:
            return error.reason
        return None

    def add(self, launch: FusibleLaunch) -> None:
        """Adds a launch at the end."""
        bound = self._bound(launch)
        for number, array, value, allocation in zip(
            bound, _arrays(launch), launch.values, launch.allocations, strict=True
        ):
            if number < len(self._values):
                if array is not None and len(value) > len(self._values[number]):
                    self._values[number] = value  # the same elements, here as a matrix
            else:
                self._values.append(value)
                self._allocations.append(allocation)
                if array is not None:
                    self._numbers[array] = number
        self._launches.append(launch)
        self._stages.append(Stage(launch.special, bound))
        (shape,) = _shapes(launch)
        self._size = math.prod(shape)
        if len(shape) == 2:
            self._shape = shape

    def launch(self, needed: Callable[[Allocation, int], bool], last: int) -> FusibleLaunch:
        """Returns the launch of the fused kernel, or the only launch. ``last`` is the index of the last launch."""
        if len(self._launches) == 1:
            return self._launches[0]
        dead = [
            number
            for number, allocation in enumerate(self._allocations)
            if allocation is not None and not needed(allocation, last)
        ]
        try:
            made = fused(self._stages, dead)
        except NotFused:  # nothing needs any result
            made = fused(self._stages)
        return FusibleLaunch(
            made.kernel.specialize(),
            tuple([self._values[number] for number in made.arguments]),
            tuple([self._allocations[number] for number in made.arguments]),
            LaunchConfig.for_num_elems(-(-self._size // ITEMS), BLOCK),
        )

    def _bound(self, launch: FusibleLaunch) -> tuple[int, ...]:
        """Returns the number of the value of each parameter. New values get the next numbers."""
        following = len(self._values)
        new: dict[tuple[int, int], int] = {}
        found: list[int] = []
        for array in _arrays(launch):
            known = None if array is None else self._numbers.get(array, new.get(array))
            if known is None:
                known, following = following, following + 1
                if array is not None:
                    new[array] = known
            found.append(known)
        return tuple(found)

    def _overlaps(self, array: tuple[int, int]) -> bool:
        start, size = array
        return any(start < other + length and other < start + size for other, length in self._numbers)


def _arrays(launch: FusibleLaunch) -> list[tuple[int, int] | None]:
    """Returns the address and the size in bytes of each slice, and None for any other parameter and for a slice without
    elements."""
    found: list[tuple[int, int] | None] = []
    for parameter, value in zip(launch.special.parameters, launch.values, strict=True):
        if isinstance(parameter, Parameter) and parameter.kind in ("slice", "disjoint"):
            size = parameter.dtype.itemsize
            for length in value[1:]:
                size *= length
            found.append((value[0], size))
        else:
            found.append(None)
    return found
