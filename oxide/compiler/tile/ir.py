"""The tile IR: values with static shapes, in regions of structured control flow.

A region is a list of nodes in program order. A node without axes is a scalar. Nodes have no side effects, except those
of ``EFFECTS``. A variable that a loop or a branch assigns is a ``Cell``: a place that is written at the end of the body
and read by nodes ``cell``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, final

from oxide.language.types import ScalarType

__all__ = ["EFFECTS", "SCATTERS", "Cell", "Node", "Region", "Site"]

ATOMICS: Final = ("atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor")
"""The operations that change elements of a tensor that other programs may change too."""
SCATTERS: Final = ("scatter", *ATOMICS)
"""The operations that write elements at given indices."""
EFFECTS: Final = frozenset(("store", *SCATTERS, "assert", "print", "for", "while", "if"))
"""The operations that do something else than to compute a value."""


@final
@dataclass(frozen=True, slots=True)
class Site:
    """A place at which a launch can fail: an ``assert`` with its message ``what``, or an access of ``tensor`` with an
    index of ``axis``."""

    line: int
    what: str
    tensor: str | None
    axis: int


@final
@dataclass(eq=False, slots=True)
class Node:
    """One operation and its result.

    ``index`` numbers the nodes in program order, those in the body of a loop before the loop itself. ``weak`` is
    ``int``, ``float`` or ``bool`` for a scalar that takes the type of what it meets, as a Python literal does.
    """

    op: str
    inputs: tuple[Node, ...]
    dtype: ScalarType
    shape: tuple[int, ...]
    index: int
    line: int
    region: Region
    detail: Any = None
    weak: type | None = None
    users: list[Node] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Returns the number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        sources = ", ".join(f"%{each.index}" for each in self.inputs)
        detail = "" if self.detail is None or isinstance(self.detail, list) else f" {self.detail}"
        return f"%{self.index} = {self.op}({sources}){detail}: {self.dtype.name}{list(self.shape)}"


@final
@dataclass(eq=False, slots=True)
class Cell:
    """A variable that a loop or a branch assigns. ``starts`` is its value before, and ``ends`` has its value at the end
    of the body, or of each branch."""

    name: str
    dtype: ScalarType
    shape: tuple[int, ...]
    starts: Node | None
    ends: list[Node] = field(default_factory=list)
    ends_loop: bool = False
    """True for the variable whose truth after a turn ends its loop."""

    def __repr__(self) -> str:
        return self.name


@final
@dataclass(eq=False, slots=True)
class Region:
    """A sequence of nodes: the whole program, or the body of a loop or of a branch."""

    outer: Region | None
    nodes: list[Node] = field(default_factory=list)

    def enclosing(self) -> Iterator[Region]:
        """Iterates over the region and those around it, from the inside."""
        region: Region | None = self
        while region is not None:
            yield region
            region = region.outer
