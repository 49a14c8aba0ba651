"""The tile IR: values with static shapes, in regions of structured control flow.

A region is a list of nodes in program order. A node without axes is a scalar. Only nodes whose operation is in
``EFFECTS`` have side effects. A variable that a loop or a branch assigns is a ``Cell``. The cell is written at the end
of the loop's body or of each branch. Nodes with the operation ``cell`` read it.

``oxide/language/promotion.py`` has the rule for the types of arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, final

from oxide.language.promotion import Operand
from oxide.language.types import SCALARS, ScalarType

__all__ = ["DTYPES", "EFFECTS", "REDUCTIONS", "SCATTERS", "Cell", "Node", "Region", "Site"]

ATOMICS: Final = ("atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor")
"""The operations that change elements of a tensor atomically, because other programs may change the same elements."""
SCATTERS: Final = ("scatter", *ATOMICS)
"""The operations that write elements at given indices."""
REDUCTIONS: Final = ("sum", "max", "min", "argmax", "argmin")
"""The operations that leave out axes: those in the node's ``detail``."""
EFFECTS: Final = frozenset(("store", *SCATTERS, "assert", "print", "for", "while", "if"))
"""The operations with side effects."""


@final
@dataclass(frozen=True, slots=True)
class Site:
    """A place at which a launch can fail: an ``assert``, or an access of ``tensor`` along ``axis``. ``what`` is the
    message of the assert, or the tensor's name."""

    line: int
    what: str
    tensor: str | None
    axis: int


@final
@dataclass(eq=False, slots=True)
class Node:
    """One operation and its result.

    ``index`` numbers the nodes in program order. The nodes of a loop's body come before the loop itself. ``weak`` is
    ``int``, ``float`` or ``bool`` for a scalar that behaves like a Python literal, which takes the type of the other
    operand, and ``Place`` for a place.
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

    @property
    def operand(self) -> Operand:
        """Returns the type of the node as an operand of arithmetic."""
        literal = self.op == "constant" and self.weak is int
        return Operand(self.dtype, self.weak, self.detail if literal else None)

    def __repr__(self) -> str:
        sources = ", ".join(f"%{each.index}" for each in self.inputs)
        detail = "" if self.detail is None or isinstance(self.detail, list) else f" {self.detail}"
        return f"%{self.index} = {self.op}({sources}){detail}: {self.dtype.name}{list(self.shape)}"


@final
@dataclass(eq=False, slots=True)
class Cell:
    """A variable that a loop or a branch assigns. ``starts`` is its value before the loop, or None for a branch.
    ``ends`` has its value at the end of the loop's body, or of each branch."""

    name: str
    dtype: ScalarType
    shape: tuple[int, ...]
    starts: Node | None
    ends: list[Node] = field(default_factory=list)
    ends_loop: bool = False
    """True for the flag of a loop: the loop ends after an iteration that leaves the flag true."""

    def __repr__(self) -> str:
        return self.name


@final
@dataclass(eq=False, slots=True)
class Region:
    """A sequence of nodes: the whole program, or the body of a loop or of a branch."""

    outer: Region | None
    nodes: list[Node] = field(default_factory=list)

    def enclosing(self) -> Iterator[Region]:
        """Iterates over this region and the regions around it, the innermost first."""
        region: Region | None = self
        while region is not None:
            yield region
            region = region.outer


# Types

DTYPES = tuple(scalar for scalar in SCALARS.values() if scalar.kind != "c")
"""The types of a tile's elements."""

# The types are looked up by name, because a static type checker takes the attributes of `types` for Python's types.
BOOL, I32, I64, U64, F32, F64 = (SCALARS[name] for name in ("bool_", "i32", "i64", "u64", "f32", "f64"))
