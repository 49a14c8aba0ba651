"""``tensor.load_tile`` and ``tensor.store_tile``: copies of tiles between slices of one to five axes and shared memory.

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
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.ir.primitives import MULTICAST
from oxide.compiler.primitives.table import NONE, Primitive, returning
from oxide.compiler.source.fragment_layouts import BITS
from oxide.language.tensor.shared_tiles import commit_stores, fence_stores, load_tile, store_tile, wait_stores

from ..common import element_index, in_bounds, index_parts
from ..primitives import call_primitive, register, site
from ..registry import bound, lowering_registry, note_first, parameters, proxy, typing_registry
from ..slices import SliceType, lengths_of
from ..types import display
from ..vectors import aligned
from .barriers import BarrierType, barrier_at
from .cluster import checked_mask
from .fragments import constant
from .matrices import is_shared
from .shared_tiles import ELEMENTS, MOST_SIDE, PART_BYTES, TilesType, tile_at

_BYTE_POINTER = ir.IntType(8).as_pointer()
_VOID = ir.VoidType()
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


def _is_tile(function: str, kind: Any, number: Any, array: Any) -> bool:
    """Returns whether a type in shared memory can be the tile of a copy from or to an array. If not, adds a note with
    the reason."""
    name, axes = f"tensor.{function}", _axes(array)
    if not isinstance(kind, TilesType) and not is_shared(kind):
        note_first(f"{name} copies tensor.SharedTiles or a SharedArray, not {display(kind)}")
        return False
    if array.dtype != kind.dtype:
        shown = getattr(kind, "shown", kind.name)
        note_first(f"{array.parameter} is {_shown(array)}, and the tiles are {shown}: the types must be the same")
        return False
    numbered = not isinstance(number, types.NoneType)
    if isinstance(kind, TilesType):
        if axes == 1 or not numbered:
            what = "a Slice of one axis is copied to a SharedArray" if numbered else "tiles have a number"
            note_first(f"{name}: {what}")
            return False
        return True
    if display(kind.dtype) not in ELEMENTS:
        note_first(f"{name} copies elements of {', '.join(ELEMENTS)}, not {display(kind.dtype)}")
        return False
    if numbered and kind.ndim == 1:
        note_first(
            f"{name}: the number of a tile is an index of the first axis of {kind.shown}, which has no other; "
            "write None for the whole array"
        )
        return False
    tile = _Tile(kind, numbered, axes)
    row = tile.own[-1] * BITS[display(kind.dtype)] // 8
    if len(tile.own) > axes or max(tile.own) > MOST_SIDE or row % PART_BYTES:
        note_first(
            f"{name}: a tile has at most the axes of {array.parameter}, {axes}, sides up to {MOST_SIDE}, and rows "
            f"of a multiple of {PART_BYTES} bytes; this one, of {kind.shown}, is {tile.own}"
        )
        return False
    if (kind.alignment or 0) < _ALIGNMENT or (numbered and tile.bytes % _ALIGNMENT):
        note_first(
            f"{name}: each tile begins at a multiple of {_ALIGNMENT} bytes: declare SharedArray(shape, dtype, "
            f"{_ALIGNMENT}), with tiles of a multiple of {_ALIGNMENT} bytes if there are several"
        )
        return False
    return True


def _axes(array: Any) -> int:
    return array.ndim if isinstance(array, SliceType) else 1


def _shown(array: Any) -> str:
    return str(getattr(array, "shown", None) or f"Slice[{display(array.dtype)}]")


def _takes(function: str, array: Any, index: Any, *numbers: Any) -> bool:
    """Returns whether an index has one integer for each axis of an array, and whether each of ``numbers`` is an integer
    or None. If not, adds a note with the reason."""
    parts = list(index) if isinstance(index, types.BaseTuple) else [index]
    numbers = tuple(each for each in numbers if not isinstance(each, types.NoneType))
    if len(parts) == _axes(array) and all(
        isinstance(types.unliteral(each), types.Integer) for each in (*parts, *numbers)
    ):
        return True
    places = {1: "an integer", 2: "a row and a column", 3: "a matrix's number, a row and a column"}
    place = places.get(_axes(array), f"{_axes(array)} integers")
    note_first(f"tensor.{function}: the index is {place}, and the numbers are integers")
    return False


_LOAD = ("tiles", "number", "source", "index", "barrier", "at")


@typing_registry.register_global(load_tile)
class LoadTile(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound((*_LOAD, "tf32", "multicast"), args, kws, optional=2)
        if given is None:
            note_first(f"tensor.load_tile takes ({', '.join(_LOAD)}, tf32, multicast), the last two optional")
            return None
        tiles, source, barrier = (given[name] for name in ("tiles", "source", "barrier"))
        if not isinstance(barrier, BarrierType):
            note_first(f"tensor.load_tile counts in a tensor.Barrier; it got {display(barrier)}")
            return None
        if not _is_slice(source):
            note_first(f"tensor.load_tile copies from a Slice of one to five axes, not from {display(source)}")
            return None
        if not _is_tile("load_tile", tiles, given["number"], source):
            return None
        if not _takes("load_tile", source, given["index"], given["number"], given["at"]):
            return None
        rounds = given.get("tf32", types.literal(False))
        if isinstance(rounds, types.Omitted):
            rounds = types.literal(rounds.value)
        if not isinstance(rounds, types.BooleanLiteral) or (rounds.literal_value and display(tiles.dtype) != "f32"):
            note_first("tensor.load_tile: tf32 is a constant, and True only for tiles of f32")
            return None
        mask = given.get("multicast", types.none)
        if isinstance(mask, types.Omitted):
            mask = types.none
        if not isinstance(types.unliteral(mask), types.Integer | types.NoneType):
            note_first(
                "tensor.load_tile: multicast is an integer, a bit for each block of the cluster, not "
                f"{display(types.unliteral(mask))}"
            )
            return None
        kinds = [types.unliteral(given[name]) for name in _LOAD]
        found = signature(types.none, *kinds, rounds, types.unliteral(mask))
        return found.replace(pysig=parameters(*_LOAD, tf32=False, multicast=None))


def _is_slice(kind: Any) -> bool:
    return isinstance(kind, SliceType) and kind.kind == "slice"


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
    where = site(builder, "tensor.load_tile()")
    with builder.if_then(there, likely=True):
        call_primitive(builder, _VOID, symbol, (address, *copied, *mask, waiting), where)
    return context.get_dummy_value()


_STORE = ("target", "index", "tiles", "number")


@typing_registry.register_global(store_tile)
class StoreTile(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound(_STORE, args, kws)
        if given is None:
            note_first(f"tensor.store_tile takes ({', '.join(_STORE)})")
            return None
        target = given["target"]
        if not (isinstance(target, SliceType) and target.kind in ("scatter", "unchecked_mut")):
            note_first(
                "tensor.store_tile copies to the scatter of a DisjointSlice of one to five axes, as c.scatter, not to "
                f"{display(target)}"
            )
            return None
        if not _is_tile("store_tile", given["tiles"], given["number"], target):
            return None
        if not _takes("store_tile", target, given["index"], given["number"]):
            return None
        kinds = [types.unliteral(given[name]) for name in _STORE]
        return signature(types.none, *kinds).replace(pysig=parameters(*_STORE))


@lowering_registry.lower(store_tile, *[types.Any] * 4)
def _lower_store_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    target, index_type, tiles, number_type = sig.args
    tile = _Tile(tiles, not isinstance(number_type, types.NoneType), _axes(target))
    inside, address = _address(builder, tiles, tile, args[2], number_type, args[3])
    copied = _array(context, builder, "store_tile", target, args[0], index_type, args[1])
    symbol = f"oxide.tensor.store_tile.{_axes(target)}.{display(tiles.dtype)}.{tile.symbol}"
    where = site(builder, "tensor.store_tile()")
    with builder.if_then(builder.and_(inside, _is_after_the_beginning(builder, copied)), likely=True):
        call_primitive(builder, _VOID, symbol, (address, *copied), where)
    return context.get_dummy_value()


def _is_after_the_beginning(builder: Any, copied: tuple[Any, ...]) -> Any:
    """Returns whether all indices of a store's tile are at least 0. For a negative index, the emitted code records a
    fault and makes no copy, because the GPU's copy engine would fail and destroy the CUDA context."""
    places = copied[len(copied) // 2 + 1 :]
    signs = functools.reduce(builder.or_, places)
    problem = "the tile begins before the output: no number of the index of a store may be negative"
    return aligned(builder, builder.lshr(signs, constant(63)), 2, "tensor.store_tile()", problem)


def _address(builder: Any, kind: Any, tile: _Tile, memory: Any, number_type: Any, number: Any) -> tuple[Any, Any]:
    """Returns whether the number of a tile is in bounds, and the tile's address."""
    if tile.swizzled:
        return tile_at(builder, kind, memory, number_type, number)
    first = builder.bitcast(memory, _BYTE_POINTER)
    if isinstance(number_type, types.NoneType):
        return ir.Constant(ir.IntType(1), 1), first
    place = element_index(builder, number_type, number)
    inside = in_bounds(builder, place, constant(tile.count), site(builder, kind.shown))
    return inside, builder.gep(first, [builder.mul(place, constant(tile.bytes))])


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
    part = PART_BYTES // size
    problem = f"the first column of the tile is no multiple of {part} elements, {PART_BYTES} bytes"
    offset = builder.mul(column, constant(size))
    good = aligned(builder, offset, PART_BYTES, f"tensor.{function}()", problem)
    even = builder.select(good, column, builder.and_(column, constant(-part)))
    return (builder.bitcast(view.data, _BYTE_POINTER), *lengths, *places, even)


for _function in (fence_stores, commit_stores):
    register(Primitive(_function, returning(NONE), has_site=True))


@typing_registry.register_global(wait_stores)
class WaitStores(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound(("groups", "read"), args, kws, optional=2)
        if given is None:
            note_first("tensor.wait_stores takes (groups, read), both optional")
            return None
        values = []
        for name, usual in (("groups", 0), ("read", False)):
            kind = given.get(name, types.literal(usual))
            values.append(types.literal(kind.value) if isinstance(kind, types.Omitted) else kind)
        groups, read = values
        known = isinstance(groups, types.IntegerLiteral) and 0 <= groups.literal_value <= _MOST_GROUPS
        if not known or not isinstance(read, types.BooleanLiteral):
            note_first(f"tensor.wait_stores: groups is a constant from 0 to {_MOST_GROUPS}, and read is True or False")
            return None
        return signature(types.none, groups, read).replace(pysig=parameters(groups=0, read=False))


@lowering_registry.lower(wait_stores, types.Any, types.Any)
def _lower_wait_stores(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    groups, read = (kind.literal_value for kind in sig.args)
    symbol = f"oxide.tensor.wait_stores.{groups}.{'read' if read else 'all'}"
    call_primitive(builder, _VOID, symbol, (), site(builder, "tensor.wait_stores()"))
    return context.get_dummy_value()
