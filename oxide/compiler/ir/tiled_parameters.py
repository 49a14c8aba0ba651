"""Finds, in the portable IR, the parameters that ``tensor.load_tile`` copies from and ``store_tile`` copies to.

A GPU's copy engine reads a description of each array, which is made at the launch. So the array must be a parameter of
the kernel, and its rows must begin at multiples of 16 bytes. A launch checks the rows on both devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.parameters import word_types
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.values import Call
from oxide.compiler.signature.signature import Closed, Parameter
from oxide.compiler.source.fragment_layouts import BITS
from oxide.compiler.source.source import located_in

from .primitives import MULTICAST
from .verifier import LOAD_TILE, STORE_TILE

TILE_COPIES = (LOAD_TILE, STORE_TILE)
"""The prefixes of the primitives that copy tiles."""

MOST_AXES = 5
"""The most axes of an array whose tiles can be copied."""


@final
@dataclass(frozen=True, slots=True)
class TileCopy:
    """A copy of a tile, as its primitive's name describes it. ``sides`` has the tile's length along each axis, and
    ``dtype`` is the type of its elements. The copy goes to shared memory, or from shared memory if ``stores`` is true.
    ``swizzled`` says whether the tile is swizzled in shared memory. With ``many`` the copy goes to several blocks. With
    ``optional`` the kernel skips the copy for arrays that the engine cannot read."""

    dtype: str
    sides: tuple[int, ...]
    swizzled: bool
    stores: bool
    many: bool
    optional: bool = False

    @classmethod
    def of(cls, symbol: str) -> TileCopy:
        """Returns the copy that a primitive makes, parsed from its name."""
        stores = symbol.startswith(STORE_TILE)
        name = symbol.removesuffix(MULTICAST).removeprefix(STORE_TILE if stores else LOAD_TILE)
        _, dtype, sides, order, *more = name.split(".")
        many = symbol.endswith(MULTICAST)
        return cls(dtype, tuple(map(int, sides.split("x"))), order == "swizzled", stores, many, more == ["optional"])

    @property
    def axes(self) -> int:
        return len(self.sides)

    @property
    def itemsize(self) -> int:
        """Returns the bytes of an element."""
        return BITS["f32" if self.dtype == "tf32" else self.dtype] // 8

    @property
    def bytes(self) -> int:
        """Returns the bytes of a tile."""
        return math.prod(self.sides) * self.itemsize


def copied_parameters(kernel: PortableKernel, module: Module, signature: tuple[Closed, ...]) -> list[tuple[Call, int]]:
    """Returns the copies of tiles in ``module``, each with the number of the parameter that it copies from or to.
    ``module`` is the kernel's module or an edited copy of it.

    Raises ``CompileError`` for a copy from or to a slice that is not a parameter of the kernel.
    """
    if not any(symbol.startswith(TILE_COPIES) for symbol in module.functions):
        return []
    slices: dict[int, int] = {}
    count = 1  # the first argument is the context
    for number, parameter in enumerate(signature):
        if isinstance(parameter, Parameter) and parameter.kind in ("slice", "disjoint"):
            slices[count] = number
        count += len(word_types((parameter,)))
    function = module.functions[kernel.symbol]
    found = []
    for call in [call for each in module.defined for call in each.calls if call.called.startswith(TILE_COPIES)]:
        data, site = call.arguments[2], call.arguments[-1]
        place = function.arguments.index(data) if data in function.arguments else -1
        if place not in slices:
            where = kernel.sites[site.integer or 0]
            raise located_in(
                where.file,
                where.line,
                f"kernel {kernel.name}: {where.parameter.removesuffix('()')} copies "
                f"{'to' if call.called.startswith(STORE_TILE) else 'from'} a slice that is a parameter of the kernel "
                "itself; this one is chosen while the kernel runs",
            )
        found.append((call, slices[place]))
    return found


def tiled_parameters(kernel: PortableKernel, signature: tuple[Closed, ...]) -> tuple[int, ...]:
    """Returns the numbers of the parameters that a kernel copies tiles from or to."""
    return tuple(sorted({number for _, number in copied_parameters(kernel, kernel.module, signature)}))
