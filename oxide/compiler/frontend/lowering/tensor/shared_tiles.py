"""``tensor.SharedTiles``, and copies of tiles between slices of one to five axes and shared memory.

The tiles have rows of 128 bytes and the 128-byte swizzle of the GPU's copy engine. ``swizzled`` is the front end's only
definition of the swizzle.

``void oxide.tensor.load_tile.<axes>.<type>.<sides>.<order>(ptr tile, ptr data, i64 lengths…, i64 places…, ptr barrier,
i32 site)`` begins the copy of a tile from the array at ``data``. The sides are the tile's length on each axis, such as
``1x64x32``. The order is ``swizzled`` for ``SharedTiles`` and ``plain`` for a ``SharedArray``. The type ``tf32`` stands
for f32 elements that the copy rounds to tf32. The name of a copy to several blocks of a cluster ends with
``.multicast``, and the call has the mask of these blocks, an ``i32``, before the barrier.

``void oxide.tensor.store_tile.<axes>.<type>.<sides>.<order>(ptr tile, ptr data, i64 lengths…, i64 places…, i32 site)``
begins the copy of a tile to the array at ``data``. In both calls, ``data`` is the address of a kernel parameter. The
GPU's back end gives each call the tensor map of this parameter.

``oxide.tensor.fence_stores``, ``oxide.tensor.commit_stores`` and ``oxide.tensor.wait_stores.<groups>.<all|read>`` take
only the site.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import signature

from oxide.compiler.frontend.lowering.common import primitive, readable, writable
from oxide.compiler.ir.primitives import MULTICAST
from oxide.compiler.primitives.table import NONE, Primitive, returning
from oxide.compiler.source.fragment_layouts import BITS, DEPTHS
from oxide.language.tensor.hopper import SharedTiles, commit_stores, fence_stores, load_tile, store_tile, wait_stores

from ..common import axes_in_bounds, axis_sites, element_index, in_bounds, index_parts
from ..primitives import register, site
from ..registry import lowering_registry, note, proxy
from ..shared import is_shared, static_memory
from ..slices import SliceType, lengths_of
from ..types import display
from ..vectors import aligned
from .barriers import BarrierType, barrier_at, checked_mask
from .rules import BYTE_POINTER, emitted, is_integer, typed

_WORD = ir.IntType(64)

ROW_BYTES = 128
_ELEMENTS = tuple(name for name in DEPTHS if BITS[name] <= 32)
_SWIZZLE_ALIGNMENT = 1024
"""The alignment of the tiles in bytes. It is the period of the 128-byte swizzle, eight rows, because the hardware
derives the number of a row from the row's address."""
_MOST_SIDE = 256
_PART_BYTES = 16
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


primitive(TilesType, lambda kind: BYTE_POINTER)


@typed(SharedTiles, "tensor.SharedTiles takes a count, a shape and a dtype, as in SharedTiles(4, (128, 64), bf16)")
def _make(count: Any, shape: Any, dtype: Any) -> Any:
    sides = list(shape) if isinstance(shape, types.BaseTuple) else []
    if len(sides) != 2 or not all(isinstance(each, types.IntegerLiteral) for each in (count, *sides)):
        return "tensor.SharedTiles: the count and the two sides of the shape are constants"
    element = dtype.dtype if isinstance(dtype, types.NumberClass) else None
    name = display(element or dtype)
    if name not in _ELEMENTS:
        return f"tensor.SharedTiles has elements of {', '.join(_ELEMENTS)}, not {name}"
    number, rows, columns = (each.literal_value for each in (count, *sides))
    if number < 1 or not 8 <= rows <= _MOST_SIDE or rows % 8:
        return f"tensor.SharedTiles has at least one tile, of 8 to {_MOST_SIDE} rows, a multiple of 8"
    needed = ROW_BYTES * 8 // BITS[name]
    if columns != needed:
        return f"a row of tensor.SharedTiles has {ROW_BYTES} bytes, {needed} elements of {name}, not {columns}"
    return signature(TilesType(number, rows, columns, element), count, shape, dtype)


@lowering_registry.lower(SharedTiles, types.Any, types.Any, types.Any)
def _lower_make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.return_type
    return static_memory(builder, kind.count * kind.tile_bytes, _SWIZZLE_ALIGNMENT)


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
    return builder.xor(column, builder.mul(builder.and_(row, _WORD(7)), _WORD(_PART_BYTES // size)))


def tile_at(builder: Any, kind: Any, memory: Any, index_type: Any, index: Any, count: int = 1) -> tuple[Any, Any]:
    """Returns whether the ``count`` tiles from number ``index`` on exist, and the address of the first of these
    tiles."""
    number = element_index(builder, index_type, index)
    inside = in_bounds(builder, number, _WORD(kind.count - count + 1), site(builder, str(kind.name)))
    return inside, builder.gep(memory, [builder.mul(number, _WORD(kind.tile_bytes))])


# Copies

_ALIGNMENT = 128
"""The alignment of an unswizzled tile in shared memory, in bytes."""
_MOST_GROUPS = 7


class _Tile:
    """Describes the tiles in shared memory that are copied from or to a slice of ``axes`` axes. ``own`` has the sides
    of a tile. ``sides`` has a side for each axis of the slice: sides of 1, followed by ``own``. ``count`` is the number
    of tiles, and ``bytes`` the size of one tile. ``numbered`` is whether the call selects a tile by its number."""

    def __init__(self, kind: Any, numbered: bool, axes: int) -> None:
        self.swizzled = isinstance(kind, TilesType)
        if self.swizzled:
            own, self.count = (kind.rows, kind.columns), kind.count
        else:
            own, self.count = (kind.shape[1:], kind.shape[0]) if numbered else (kind.shape, 1)
        self.own = own
        self.sides = (1,) * (axes - len(own)) + own
        self.bytes = math.prod(own) * BITS[display(kind.dtype)] // 8

    @property
    def symbol(self) -> str:
        return f"{'x'.join(map(str, self.sides))}.{'swizzled' if self.swizzled else 'plain'}"


def _problem(function: str, kind: Any, number: Any, array: Any, index: Any, *numbers: Any) -> str | None:
    """Returns why a type in shared memory cannot be the tile of a copy from or to an array at an index, or None. Each
    of ``numbers`` is an integer too."""
    name, axes = f"tensor.{function}", _axes(array)
    if not isinstance(kind, TilesType) and not is_shared(kind):
        return f"{name} copies tensor.SharedTiles or a SharedArray, not {display(kind)}"
    if array.dtype != kind.dtype:
        shown = getattr(kind, "shown", kind.name)
        return f"{array.parameter} is {_shown(array)}, and the tiles are {shown}: the types must be the same"
    numbered = not isinstance(number, types.NoneType)
    if isinstance(kind, TilesType):
        if axes == 1 or not numbered:
            what = "a Slice of one axis is copied to a SharedArray" if numbered else "tiles have a number"
            return f"{name}: {what}"
    elif display(kind.dtype) not in _ELEMENTS:
        return f"{name} copies elements of {', '.join(_ELEMENTS)}, not {display(kind.dtype)}"
    elif numbered and kind.ndim == 1:
        return (
            f"{name}: the number of a tile is an index of the first axis of {kind.shown}, which has no other; "
            "write None for the whole array"
        )
    else:
        tile = _Tile(kind, numbered, axes)
        row = tile.own[-1] * BITS[display(kind.dtype)] // 8
        if len(tile.own) > axes or max(tile.own) > _MOST_SIDE or row % _PART_BYTES:
            return (
                f"{name}: a tile has at most the axes of {array.parameter}, {axes}, sides up to {_MOST_SIDE}, and rows "
                f"of a multiple of {_PART_BYTES} bytes; this one, of {kind.shown}, is {tile.own}"
            )
        if (kind.alignment or 0) < _ALIGNMENT or (numbered and tile.bytes % _ALIGNMENT):
            return (
                f"{name}: each tile begins at a multiple of {_ALIGNMENT} bytes: declare SharedArray(shape, dtype, "
                f"{_ALIGNMENT}), with tiles of a multiple of {_ALIGNMENT} bytes if there are several"
            )
    parts = list(index) if isinstance(index, types.BaseTuple) else [index]
    if len(parts) != axes or not all(map(is_integer, (*parts, *numbers, *[number] * numbered))):
        places = {1: "an integer", 2: "a row and a column", 3: "a matrix's number, a row and a column"}
        place = places.get(axes, f"{axes} integers")
        return f"{name}: the index is {place}, and the numbers are integers"
    return None


def _axes(array: Any) -> int:
    return array.ndim if isinstance(array, SliceType) else 1


def _shown(array: Any) -> str:
    return str(getattr(array, "shown", None) or f"Slice[{display(array.dtype)}]")


@typed(load_tile)
def _load_tile(
    tiles: Any, number: Any, source: Any, index: Any, barrier: Any, at: Any, tf32: Any, multicast: Any
) -> Any:
    if not isinstance(barrier, BarrierType):
        return f"tensor.load_tile counts in a tensor.Barrier; it got {display(barrier)}"
    if not (isinstance(source, SliceType) and source.kind == "slice"):
        return f"tensor.load_tile copies from a Slice of one to five axes, not from {display(source)}"
    problem = _problem("load_tile", tiles, number, source, index, at)
    if problem is not None:
        return problem
    if not isinstance(tf32, types.BooleanLiteral) or (tf32.literal_value and display(tiles.dtype) != "f32"):
        return "tensor.load_tile: tf32 is a constant, and True only for tiles of f32"
    mask = types.unliteral(multicast)
    if not isinstance(mask, types.Integer | types.NoneType):
        return f"tensor.load_tile: multicast is an integer, a bit for each block of the cluster, not {display(mask)}"
    kinds = map(types.unliteral, (tiles, number, source, index, barrier, at))
    return signature(types.none, *kinds, tf32, mask)


@lowering_registry.lower(load_tile, types.Any, *[types.Any] * 3, BarrierType, *[types.Any] * 3)
def _lower_load_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    tiles, number_type, source, index_type, barrier, at_type, rounds, mask_type = sig.args
    tile = _Tile(tiles, not isinstance(number_type, types.NoneType), _axes(source))
    inside, address = _address(builder, tiles, tile, args[0], number_type, args[1])
    counted, waiting = barrier_at(builder, barrier, args[4], at_type, args[5])
    copied = _array(context, builder, "load_tile", source, args[2], index_type, args[3])
    dtype = "tf32" if rounds.literal_value else display(tiles.dtype)
    symbol = f"oxide.tensor.load_tile.{_axes(source)}.{dtype}.{tile.symbol}"
    there = builder.and_(inside, counted)
    mask: tuple[Any, ...] = ()
    if not isinstance(mask_type, types.NoneType):
        named, bits = checked_mask(builder, mask_type, args[7], "tensor.load_tile()")
        there, mask, symbol = builder.and_(there, named), (bits,), symbol + MULTICAST
    with builder.if_then(there, likely=True):
        return emitted(context, builder, symbol, "tensor.load_tile()", address, *copied, *mask, waiting)


@typed(store_tile)
def _store_tile(target: Any, index: Any, tiles: Any, number: Any) -> Any:
    if not (isinstance(target, SliceType) and target.kind in ("scatter", "unchecked_mut")):
        return (
            "tensor.store_tile copies to the scatter of a DisjointSlice of one to five axes, as c.scatter, not to "
            f"{display(target)}"
        )
    problem = _problem("store_tile", tiles, number, target, index)
    return problem or signature(types.none, *map(types.unliteral, (target, index, tiles, number)))


@lowering_registry.lower(store_tile, *[types.Any] * 4)
def _lower_store_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    target, index_type, tiles, number_type = sig.args
    tile = _Tile(tiles, not isinstance(number_type, types.NoneType), _axes(target))
    inside, address = _address(builder, tiles, tile, args[2], number_type, args[3])
    copied = _array(context, builder, "store_tile", target, args[0], index_type, args[1])
    symbol = f"oxide.tensor.store_tile.{_axes(target)}.{display(tiles.dtype)}.{tile.symbol}"
    with builder.if_then(builder.and_(inside, _is_after_the_beginning(builder, copied)), likely=True):
        return emitted(context, builder, symbol, "tensor.store_tile()", address, *copied)


def _is_after_the_beginning(builder: Any, copied: tuple[Any, ...]) -> Any:
    """Returns whether all indices of a store's tile are at least 0. For a negative index, the emitted code records a
    fault and makes no copy, because the GPU's copy engine would fail and destroy the CUDA context."""
    places = copied[len(copied) // 2 + 1 :]
    signs = functools.reduce(builder.or_, places)
    problem = "the tile begins before the output: no number of the index of a store may be negative"
    return aligned(builder, builder.lshr(signs, _WORD(63)), 2, "tensor.store_tile()", problem)


def _address(builder: Any, kind: Any, tile: _Tile, memory: Any, number_type: Any, number: Any) -> tuple[Any, Any]:
    """Returns whether the number of a tile is in bounds, and the tile's address."""
    if tile.swizzled:
        return tile_at(builder, kind, memory, number_type, number)
    first = builder.bitcast(memory, BYTE_POINTER)
    if isinstance(number_type, types.NoneType):
        return ir.Constant(ir.IntType(1), 1), first
    place = element_index(builder, number_type, number)
    inside = in_bounds(builder, place, _WORD(tile.count), site(builder, kind.shown))
    return inside, builder.gep(first, [builder.mul(place, _WORD(tile.bytes))])


def _array(
    context: Any, builder: Any, function: str, kind: Any, value: Any, index_type: Any, index: Any
) -> tuple[Any, ...]:
    """Returns the primitive's arguments for the array of a copy: the array's address, the lengths of its axes, and the
    indices of the tile's first element. If the last index is not at a multiple of 16 bytes, the emitted code records a
    fault."""
    view = proxy(context, builder, kind, value)
    lengths = lengths_of(builder, kind, view)
    *places, column = index_parts(builder, index_type, index)
    # At any other column, the GPU's copy engine would fail and destroy the CUDA context. After the fault, a copy at the
    # column rounded down is still made, because threads may wait for its bytes.
    size = BITS[display(kind.dtype)] // 8
    part = _PART_BYTES // size
    problem = f"the first column of the tile is no multiple of {part} elements, {_PART_BYTES} bytes"
    offset = builder.mul(column, _WORD(size))
    good = aligned(builder, offset, _PART_BYTES, f"tensor.{function}()", problem)
    even = builder.select(good, column, builder.and_(column, _WORD(-part)))
    return (builder.bitcast(view.data, BYTE_POINTER), *lengths, *places, even)


for _function in (fence_stores, commit_stores):
    register(Primitive(_function, returning(NONE), has_site=True))


@typed(wait_stores)
def _wait_stores(groups: Any, read: Any) -> Any:
    known = isinstance(groups, types.IntegerLiteral) and 0 <= groups.literal_value <= _MOST_GROUPS
    if not known or not isinstance(read, types.BooleanLiteral):
        return f"tensor.wait_stores: groups is a constant from 0 to {_MOST_GROUPS}, and read is True or False"
    return signature(types.none, groups, read)


@lowering_registry.lower(wait_stores, types.Any, types.Any)
def _lower_wait_stores(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    groups, read = (kind.literal_value for kind in sig.args)
    symbol = f"oxide.tensor.wait_stores.{groups}.{'read' if read else 'all'}"
    return emitted(context, builder, symbol, "tensor.wait_stores()")
