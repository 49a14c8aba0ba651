"""``tensor.SharedTiles``: tiles in shared memory, with rows of 128 bytes and the 128-byte swizzle of the GPU's copy
engine.

``swizzled`` is the front end's only definition of the swizzle. ``tile_copies.py`` fills the tiles.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.frontend.lowering.common import primitive, readable, writable
from oxide.compiler.source.fragment_layouts import BITS, DEPTHS
from oxide.language.tensor.shared_tiles import SharedTiles

from ..common import axes_in_bounds, axis_sites, element_index, in_bounds, index_parts
from ..primitives import site
from ..registry import bound, lowering_registry, note, note_first, parameters, typing_registry
from ..shared import static_memory
from ..types import display

_BYTE_POINTER = ir.IntType(8).as_pointer()
_WORD = ir.IntType(64)

ROW_BYTES = 128
ELEMENTS = tuple(name for name in DEPTHS if BITS[name] <= 32)
_ALIGNMENT = 1024
"""The alignment of the tiles in bytes. It is the period of the 128-byte swizzle, eight rows, because the hardware
derives the number of a row from the row's address."""
MOST_SIDE = 256
PART_BYTES = 16
"""The number of consecutive bytes that the swizzle keeps together. The first column of a copied tile must be at a
multiple of this number of bytes."""


class TilesType(types.Type):  # type: ignore[misc]
    """The type of ``count`` swizzled tiles of ``rows`` by ``columns`` elements in shared memory. ``bytes`` is the size
    of an element."""

    def __init__(self, count: int, rows: int, columns: int, dtype: Any) -> None:
        self.count = count
        self.rows = rows
        self.columns = columns
        self.dtype = dtype
        self.bytes = BITS[display(dtype)] // 8
        super().__init__(f"SharedTiles({count}, ({rows}, {columns}), {display(dtype)})")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Returns the number of tiles, and the number of rows and of columns of each tile."""
        return self.count, self.rows, self.columns

    @property
    def tile_bytes(self) -> int:
        """Returns the size of one tile in bytes."""
        return self.rows * ROW_BYTES


primitive(TilesType, lambda kind: _BYTE_POINTER)


@typing_registry.register_global(SharedTiles)
class MakeTiles(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        names = ("count", "shape", "dtype")
        given = bound(names, args, kws)
        if given is None:
            note_first("tensor.SharedTiles takes a count, a shape and a dtype, as in SharedTiles(4, (128, 64), bf16)")
            return None
        count, shape, dtype = (given[name] for name in names)
        sides = list(shape) if isinstance(shape, types.BaseTuple) else []
        if len(sides) != 2 or not all(isinstance(each, types.IntegerLiteral) for each in (count, *sides)):
            note_first("tensor.SharedTiles: the count and the two sides of the shape are constants")
            return None
        element = dtype.dtype if isinstance(dtype, types.NumberClass) else None
        name = display(element or dtype)
        if name not in ELEMENTS:
            note_first(f"tensor.SharedTiles has elements of {', '.join(ELEMENTS)}, not {name}")
            return None
        number, rows, columns = (each.literal_value for each in (count, *sides))
        if number < 1 or not 8 <= rows <= MOST_SIDE or rows % 8:
            note_first(f"tensor.SharedTiles has at least one tile, of 8 to {MOST_SIDE} rows, a multiple of 8")
            return None
        needed = ROW_BYTES * 8 // BITS[name]
        if columns != needed:
            note_first(f"a row of tensor.SharedTiles has {ROW_BYTES} bytes, {needed} elements of {name}, not {columns}")
            return None
        found = signature(TilesType(number, rows, columns, element), count, shape, dtype)
        return found.replace(pysig=parameters(*names))


@lowering_registry.lower(SharedTiles, types.Any, types.Any, types.Any)
def _lower_make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.return_type
    return static_memory(builder, kind.count * kind.tile_bytes, _ALIGNMENT)


def takes_index(kind: Any, index: Any) -> bool:
    parts = list(index) if isinstance(index, types.BaseTuple) else []
    if len(parts) == 3 and all(isinstance(types.unliteral(part), types.Integer) for part in parts):
        return True
    note(f"the index of {kind.name} is a tile's number, a row and a column, all integers")
    return False


def _element(context: Any, builder: Any, kind: Any, value: Any, index_type: Any, index: Any) -> tuple[Any, Any, Any]:
    """Returns whether an index is in bounds, the address of the tiles' first element, and the offset of the indexed
    element from that address."""
    parts = index_parts(builder, index_type, index)
    lengths = [_WORD(length) for length in kind.shape]
    inside = axes_in_bounds(builder, list(zip(parts, lengths, strict=True)), axis_sites(builder, str(kind.name), 3))
    number, row, column = parts
    first = builder.mul(builder.add(builder.mul(number, lengths[1]), row), lengths[2])
    elements = builder.bitcast(value, context.get_data_type(kind.dtype).as_pointer())
    return inside, elements, builder.add(first, swizzled(builder, row, column, kind.bytes))


readable(TilesType, takes_index, _element)
writable(TilesType, takes_index, _element)


def swizzled(builder: Any, row: Any, column: Any, size: int) -> Any:
    """Returns the swizzled column of the element at a row and a column. ``size`` is the size of an element in bytes."""
    return builder.xor(column, builder.mul(builder.and_(row, _WORD(7)), _WORD(PART_BYTES // size)))


def tile_at(builder: Any, kind: Any, memory: Any, index_type: Any, index: Any, count: int = 1) -> tuple[Any, Any]:
    """Returns whether the ``count`` tiles from number ``index`` on exist, and the address of the first of these
    tiles."""
    number = element_index(builder, index_type, index)
    inside = in_bounds(builder, number, _WORD(kind.count - count + 1), site(builder, str(kind.name)))
    return inside, builder.gep(memory, [builder.mul(number, _WORD(kind.tile_bytes))])
