"""``tensor.SharedTiles`` and ``tensor.load_tile``.

A tile is rows of 128 bytes in the 128-byte swizzle; ``swizzled`` is the one definition of that order. A call
``void oxide.tensor.load_tile.<axes>.<type>.<rows>.<columns>(ptr tile, ptr data, i64 planes, i64 rows, i64 columns,
i64 plane, i64 row, i64 column, ptr barrier, i32 site)`` begins a copy. A slice of two axes is plane 0 of one. The type
``tf32`` stands for f32 that the copy rounds. The GPU's back end gives the call the tensor map of the parameter that
``data`` is.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import core_models, register_model
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.source.fragments import BITS, DEPTHS
from oxide.language.tensor.tiles import SharedTiles, load_tile

from ..primitives import call_primitive, site
from ..registry import bound, lowering_registry, note, note_first, parameters, proxy, typing_registry
from ..shaped import ShapedSliceType
from ..shared import static_memory
from ..slices import axes_in_bounds, axis_sites, element_index, in_bounds, load_inside
from ..types import display
from ..vectors import aligned
from .barriers import BarrierType, barrier_at

_BYTE_POINTER = ir.IntType(8).as_pointer()
_WORD = ir.IntType(64)
_VOID = ir.VoidType()

ROW_BYTES = 128
_ELEMENTS = tuple(name for name in DEPTHS if BITS[name] <= 32)
_ALIGNMENT = 1024
"""The period of the 128-byte swizzle: eight rows. The hardware derives a row's number from its address."""
_MOST_ROWS = 256
_PART_BYTES = 16
"""The bytes that stay together in the swizzle, and of which a copied tile's first column is a multiple."""


class TilesType(types.Type):  # type: ignore[misc]
    """``count`` tiles of ``rows`` by ``columns`` elements in shared memory, swizzled."""

    def __init__(self, count: int, rows: int, columns: int, dtype: Any) -> None:
        self.count = count
        self.rows = rows
        self.columns = columns
        self.dtype = dtype
        self.bytes = BITS[display(dtype)] // 8
        super().__init__(f"SharedTiles({count}, ({rows}, {columns}), {display(dtype)})")

    @property
    def tile_bytes(self) -> int:
        """The bytes of one tile."""
        return self.rows * ROW_BYTES


@register_model(TilesType)
class TilesModel(core_models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _BYTE_POINTER)


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
        if name not in _ELEMENTS:
            note_first(f"tensor.SharedTiles has elements of {', '.join(_ELEMENTS)}, not {name}")
            return None
        number, rows, columns = (each.literal_value for each in (count, *sides))
        if number < 1 or not 8 <= rows <= _MOST_ROWS or rows % 8:
            note_first(f"tensor.SharedTiles has at least one tile, of 8 to {_MOST_ROWS} rows, a multiple of 8")
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


@typing_registry.register_global(operator.getitem)
class TilesGetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 2 or not isinstance(args[0], TilesType):
            return None
        kind, index = args
        parts = list(index) if isinstance(index, types.BaseTuple) else []
        if len(parts) != 3 or not all(isinstance(types.unliteral(part), types.Integer) for part in parts):
            note(f"the index of {kind.name} is a tile's number, a row and a column, all integers")
            return None
        return signature(kind.dtype, kind, types.unliteral(index))


@lowering_registry.lower(operator.getitem, TilesType, types.Any)
def _lower_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    parts = [
        element_index(builder, part_type, part)
        for part_type, part in zip(sig.args[1], cgutils.unpack_tuple(builder, args[1]), strict=True)
    ]
    lengths = [_WORD(length) for length in (kind.count, kind.rows, kind.columns)]
    inside = axes_in_bounds(builder, list(zip(parts, lengths, strict=True)), axis_sites(builder, str(kind.name), 3))
    number, row, column = parts
    first = builder.mul(builder.add(builder.mul(number, lengths[1]), row), lengths[2])
    elements = builder.bitcast(args[0], context.get_data_type(kind.dtype).as_pointer())
    offset = builder.add(first, swizzled(builder, row, column, kind.bytes))
    return load_inside(context, builder, kind.dtype, elements, offset, inside)


def swizzled(builder: Any, row: Any, column: Any, size: int) -> Any:
    """Returns the place in its row of a column's element, which has ``size`` bytes."""
    return builder.xor(column, builder.mul(builder.and_(row, _WORD(7)), _WORD(_PART_BYTES // size)))


@typing_registry.register_global(load_tile)
class LoadTile(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        names = ("tiles", "number", "source", "index", "barrier", "at")
        given = bound((*names, "tf32"), args, kws, optional=1)
        if given is None:
            note_first(f"tensor.load_tile takes ({', '.join(names)}, tf32), the last optional")
            return None
        tiles, source, index, barrier = (given[name] for name in ("tiles", "source", "index", "barrier"))
        if not isinstance(tiles, TilesType) or not isinstance(barrier, BarrierType):
            note_first(
                "tensor.load_tile copies to tensor.SharedTiles and counts in a tensor.Barrier; it got "
                f"{display(tiles)} and {display(barrier)}"
            )
            return None
        if not isinstance(source, ShapedSliceType) or source.kind != "slice" or source.ndim > 3:
            note_first(f"tensor.load_tile copies from a Slice2 or Slice3, not from {display(source)}")
            return None
        if source.dtype != tiles.dtype:
            note_first(
                f"{source.parameter} is {source.shown}, and the tiles are {tiles.name}: the types must be the same"
            )
            return None
        parts = list(index) if isinstance(index, types.BaseTuple) else []
        numbers = (*parts, given["number"], given["at"])
        if len(parts) != source.ndim or not all(isinstance(types.unliteral(each), types.Integer) for each in numbers):
            place = "a row and a column" if source.ndim == 2 else "a matrix's number, a row and a column"
            note_first(f"tensor.load_tile: the index is {place}, and the numbers are integers")
            return None
        rounds = given.get("tf32", types.literal(False))
        if isinstance(rounds, types.Omitted):
            rounds = types.literal(rounds.value)
        if not isinstance(rounds, types.BooleanLiteral) or (rounds.literal_value and display(tiles.dtype) != "f32"):
            note_first("tensor.load_tile: tf32 is a constant, and True only for tiles of f32")
            return None
        kinds = [tiles, given["number"], source, index, barrier, given["at"]]
        found = signature(types.none, *map(types.unliteral, kinds), rounds)
        return found.replace(pysig=parameters(*names, tf32=False))


@lowering_registry.lower(load_tile, TilesType, types.Any, types.Any, types.Any, BarrierType, types.Any, types.Any)
def _lower_load_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    tiles, number_type, source, index_types, barrier, at_type, rounds = sig.args
    inside, address = tile_at(builder, tiles, args[0], number_type, args[1])
    counted, waiting = barrier_at(builder, barrier, args[4], at_type, args[5])
    matrix = proxy(context, builder, source, args[2])
    place = [
        element_index(builder, kind, part)
        for kind, part in zip(index_types, cgutils.unpack_tuple(builder, args[3]), strict=True)
    ]
    data = builder.bitcast(matrix.data, _BYTE_POINTER)
    lengths = [builder.extract_value(matrix.shape, axis) for axis in range(source.ndim)]
    if source.ndim == 2:
        place, lengths = [_WORD(0), *place], [_WORD(1), *lengths]
    dtype = "tf32" if rounds.literal_value else display(tiles.dtype)
    symbol = f"oxide.tensor.load_tile.{source.ndim}.{dtype}.{tiles.rows}.{tiles.columns}"
    where = site(builder, "tensor.load_tile()")
    plane, row, column = place
    # The engine ends a GPU's context at any other column. The copy itself is made, as threads may wait for its bytes.
    part = _PART_BYTES // tiles.bytes
    problem = f"the first column of the tile is no multiple of {part} elements, {_PART_BYTES} bytes"
    offset = builder.mul(column, _WORD(tiles.bytes))
    good = aligned(builder, offset, _PART_BYTES, "tensor.load_tile()", problem)
    even = builder.select(good, column, builder.and_(column, _WORD(-part)))
    with builder.if_then(builder.and_(inside, counted), likely=True):
        call_primitive(builder, _VOID, symbol, (address, data, *lengths, plane, row, even, waiting), where)
    return context.get_dummy_value()


def tile_at(builder: Any, kind: Any, memory: Any, index_type: Any, index: Any, count: int = 1) -> tuple[Any, Any]:
    """Returns whether ``count`` tiles from a number on are inside, and the address of the first."""
    number = element_index(builder, index_type, index)
    inside = in_bounds(builder, number, _WORD(kind.count - count + 1), site(builder, str(kind.name)))
    return inside, builder.gep(memory, [builder.mul(number, _WORD(kind.tile_bytes))])
