"""``get_mut``: the element of an output that belongs to a thread, a ``Ref``, or its tile, a ``TileRef``.

A ``Ref`` is a pointer, an index and a length, or for an output of several axes that is reached by row and column, an
index and a length for each axis. The test of a ``Ref`` for None and its bounds check are the same comparison, so LLVM
drops the check where the program has tested the ``Ref``.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core import errors
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from oxide.compiler.signature.signature import ROWS, alignment_of

from .common import (
    attribute,
    axes_in_bounds,
    axis_sites,
    check_axes,
    has_length,
    in_bounds,
    index_parts,
    load_inside,
    optional,
    readable,
    structure,
    writable,
)
from .composites import store_element
from .primitives import call, site
from .registry import lowering_registry, note, proxy, typing_registry
from .slices import SliceType, count_of, lower_flat, note_read_only
from .thread import (
    GridIndexType,
    PlaceIndexType,
    ThreadIndexType,
    axes_of,
    global_index,
    grid_index,
    index_number,
    places,
)
from .types import PLACE, OfElements, display


class RefType(OfElements, types.Type):  # type: ignore[misc]
    """The type of a value that is a ``Ref`` to an element of an output, or None. The element is given by its place
    along each of ``axes`` axes, or for one axis by its place in the whole output."""

    def __init__(self, dtype: Any, axes: int) -> None:
        self.dtype = dtype
        self.axes = axes
        super().__init__(f"Ref[{display(dtype)}]{f' of {axes} axes' if axes > 1 else ''}")


def _members(kind: Any) -> list[tuple[str, Any]]:
    words = [(f"{word}{axis}", types.int64) for axis in range(kind.axes) for word in ("index", "length")]
    sites = [(f"site{axis}", types.int32) for axis in range(kind.axes)]
    return [("data", types.CPointer(kind.dtype)), *words, *sites]


structure(RefType, members=_members)


def _parts(kind: Any, ref: Any, word: str) -> list[Any]:
    """Returns the ``index``, the ``length`` or the ``site`` of each axis of a ``Ref``."""
    return [getattr(ref, f"{word}{axis}") for axis in range(kind.axes)]


class GetMut(AbstractTemplate):  # type: ignore[misc]
    key = "oxide.slice.get_mut"

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        output = self.this
        if not takes_thread_index(f"{output.parameter}.get_mut", args, kws):
            return None
        axes = axes_of(args[0])
        flat = output.ndim == 1 and not isinstance(args[0], PlaceIndexType)
        if axes not in (1, output.ndim) and not flat:
            note(f"{output.parameter} is a {output.shown}: take its ThreadIndex from {_index_of(output.ndim)}")
            return None
        return signature(RefType(output.dtype, 1 if flat else axes), *args, recvr=output)


def _index_of(ndim: int) -> str:
    """Returns the calls that give the ``ThreadIndex`` of an output with ``ndim`` axes."""
    if ndim == 1:
        return "thread.index_1d(), or as a matrix from thread.index_2d(width)"
    return f"thread.index_{ndim}d() or thread.index_1d()" if ndim < 4 else "thread.index_1d()"


def takes_thread_index(name: str, args: tuple[Any, ...], kws: Any) -> bool:
    """Returns whether a call has one argument, a ``ThreadIndex``. If not, adds a note with the reason."""
    if len(args) != 1 or kws:
        note(f"{name} takes one ThreadIndex")
        return False
    if isinstance(args[0], types.Optional):
        return False  # numba tries again with the type without None
    if not isinstance(args[0], ThreadIndexType):
        note(
            f"{name} takes a ThreadIndex, not {display(args[0])}: only thread.index_1d() "
            "and thread.index_2d(width) give numbers that no two threads share"
        )
        return False
    return True


@lowering_registry.lower("oxide.slice.get_mut", SliceType, ThreadIndexType)
def _lower_get_mut(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, index_type = sig.args
    view = proxy(context, builder, kind, args[0])
    ref = proxy(context, builder, sig.return_type)
    ref.data = view.data
    if sig.return_type.axes == 1:
        ref.index0 = index_number(context, builder, index_type, args[1])
        ref.length0 = count_of(builder, kind, view)
        ref.site0 = site(builder, kind.parameter)
        return ref._getvalue()
    # The launch has no further axes, so no two threads have the same places. The width of the index does not matter.
    words = {
        "index": places(builder, kind.ndim),
        "length": cgutils.unpack_tuple(builder, view.shape),
        "site": axis_sites(builder, kind.parameter, kind.ndim),
    }
    for word, values in words.items():
        for axis, value in enumerate(values):
            setattr(ref, f"{word}{axis}", value)
    return ref._getvalue()


@optional(RefType)
def _lower_ref_is_there(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    ref = proxy(context, builder, kind, args[0])
    pairs = zip(_parts(kind, ref, "index"), _parts(kind, ref, "length"), strict=True)
    return functools.reduce(builder.and_, [builder.icmp_unsigned("<", *pair) for pair in pairs])


def _place(builder: Any, kind: Any, ref: Any) -> tuple[Any, Any]:
    """Returns whether a Ref's element is in bounds, and the element's offset. For an element out of bounds, the emitted
    code records a fault."""
    pairs = list(zip(_parts(kind, ref, "index"), _parts(kind, ref, "length"), strict=True))
    inside = axes_in_bounds(builder, pairs, _parts(kind, ref, "site"))
    offset = pairs[0][0]
    for index, length in pairs[1:]:
        offset = builder.add(builder.mul(offset, length), index)
    return inside, offset


@attribute(RefType, "value", lambda kind: kind.dtype)
def _lower_ref_get(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    ref = proxy(context, builder, kind, value)
    inside, offset = _place(builder, kind, ref)
    return load_inside(context, builder, kind.dtype, ref.data, offset, inside)


@lowering_registry.lower_setattr(RefType, "value")
def _lower_ref_set(context: Any, builder: Any, sig: Any, args: Any) -> None:
    kind, value_type = sig.args
    ref = proxy(context, builder, kind, args[0])
    value = context.cast(builder, args[1], value_type, kind.dtype)
    inside, offset = _place(builder, kind, ref)
    with builder.if_then(inside, likely=True):
        store_element(context, builder, kind.dtype, value, builder.gep(ref.data, [offset]))


# ``TileRef`` and ``MatrixTileRef``: a thread's tile of a ``DisjointSlice`` with a layout
#
# A whole tile carries a pointer to its first element and, like a ``Ref``, an index and a limit. If a tile is only
# partly inside the output, the part inside is its *remainder*. A remainder carries its size instead of an index and a
# limit, and the size 0 means None. The position of an element in a tile is compared with the tile's size. The size of a
# whole tile is a constant, so LLVM removes this comparison for a constant position and in a loop over the tile.
#
# No overflow goes undetected. With ``Tiles(n)``, the thread's index itself is compared with the number of whole tiles,
# not its product with n. With ``RowMajorTiles(r, c)``, ``index_2d`` limits the row to 2**26 and the width to 2**36, and
# the sides of a tile are at most 2**16. Only the product for the end of the tile's last row could exceed 63 bits; it is
# computed with an overflow bit.

_WORD = ir.IntType(64)
_ZERO, _ONE, _NONE = (ir.Constant(_WORD, number) for number in (0, 1, -1))


class TileRefType(OfElements, types.Type):  # type: ignore[misc]
    """The type of a value that is a tile of the output parameter ``parameter``, or None. If ``partial``, the tile is a
    remainder."""

    def __init__(self, dtype: Any, tile: tuple[int, ...], parameter: str, partial: bool) -> None:
        self.dtype = dtype
        self.tile = tile
        self.parameter = parameter
        self.partial = partial
        kind = "RowRef" if tile == ROWS else "TileRef" if len(tile) == 1 else "MatrixTileRef"
        self.what = f"a {'row' if tile == ROWS else 'remainder' if partial else 'tile'} of {parameter}"
        super().__init__(f"{kind}[{display(dtype)}] {self.what}, {tile}")


structure(
    TileRefType,
    members=lambda kind: [
        ("data", types.CPointer(kind.dtype)),
        ("width", types.int64),
        *((name, types.int64) for name in (("rows", "cols") if kind.partial else ("index", "limit"))),
        ("site", types.int32),
    ],
)


class GetTile(AbstractTemplate):  # type: ignore[misc]
    key = "oxide.slice.get_tile"
    name = "get_mut"
    partial = False

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        output = self.this
        if not takes_thread_index(f"{output.parameter}.{self.name}", args, kws):
            return None
        if output.tile == ROWS and (self.partial or axes_of(args[0]) > 1):
            problem = "are whole and have no remainder"
            if not self.partial:
                problem = "each belong to one thread: take its ThreadIndex from thread.index_1d()"
            note(f"{output.parameter} is a {output.shown}, whose rows {problem}")
            return None
        places = isinstance(args[0], PlaceIndexType)
        if len(output.tile) == 1 and places:
            note(
                f"{output.parameter} is a {output.shown}, whose tiles are numbered: take its ThreadIndex from "
                "thread.index_1d(), or from thread.index_2d(width), with the width in tiles"
            )
            return None
        if len(output.tile) == 2 and not (isinstance(args[0], GridIndexType) or (places and output.ndim == 2)):
            note(
                f"{output.parameter} is a {output.shown}, whose tiles have a row and a column: take its ThreadIndex "
                "from thread.index_2d(width), with the width in elements"
            )
            return None
        kind = TileRefType(output.dtype, output.tile, output.parameter, self.partial)
        return signature(kind, *args, recvr=output)


class GetRemainder(GetTile):
    key = "oxide.slice.get_remainder"
    name = "get_remainder"
    partial = True


@typing_registry.register_attr
class OutputAttributes(AttributeTemplate):  # type: ignore[misc]
    key = SliceType

    def resolve_get_mut(self, kind: Any) -> Any:
        if kind.kind == "slice":
            note_read_only(kind)
        return types.BoundFunction(GetTile if kind.tile else GetMut, kind) if kind.mutable else None

    def resolve_get_remainder(self, kind: Any) -> Any:
        if not kind.tile:
            note(f"{kind.parameter} is a {kind.shown}: only an output with a layout, as Tiles(4), has a remainder")
            return None
        return types.BoundFunction(GetRemainder, kind)


def _of_flat(lower: Any) -> Any:
    """Lowers a tile of an output as a tile of the flat slice. For an output of two axes, the distance between rows
    comes from the slice's shape, not from the index."""

    def lower_flat_one(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, index_type = sig.args
        if kind.ndim == 1 or kind.tile == ROWS:
            return lower(context, builder, sig, args)
        index = args[1]
        if isinstance(index_type, GridIndexType | PlaceIndexType) and kind.ndim == 2:
            grid = proxy(context, builder, grid_index)
            grid.number = _ZERO  # an index without a width is never None
            if isinstance(index_type, GridIndexType):
                grid.number = index_number(context, builder, index_type, index)
            grid.width = builder.extract_value(proxy(context, builder, kind, args[0]).shape, 1)
            index, index_type = grid._getvalue(), grid_index
        flat = signature(sig.return_type, kind.flat, index_type)
        return lower(context, builder, flat, (lower_flat(context, builder, kind, args[0]), index))

    return lower_flat_one


@lowering_registry.lower("oxide.slice.get_tile", SliceType, ThreadIndexType)
@_of_flat
def _lower_get_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Returns this thread's tile of an output."""
    output, kind = sig.args[0], sig.return_type
    whole = proxy(context, builder, output, args[0])
    tile = proxy(context, builder, kind)
    _assume_aligned(context, builder, kind, whole.data)
    if kind.tile == ROWS:
        tile.index = index_number(context, builder, sig.args[1], args[1])
        tile.limit, tile.width = cgutils.unpack_tuple(builder, whole.shape)
        tile.site = ir.Constant(ir.IntType(32), 0)  # not used: see ``_row_in_bounds``
        first = builder.mul(tile.index, tile.width)  # it does not wrap for a row that is there
    elif len(kind.tile) == 1:
        size = ir.Constant(_WORD, kind.tile[0])
        tile.index = index_number(context, builder, sig.args[1], args[1])
        tile.limit = builder.udiv(whole.length, size)
        tile.width = size
        tile.site = site(builder, f"the tiles of {kind.parameter}")
        first = builder.mul(tile.index, size)
    else:
        rows, cols = (ir.Constant(_WORD, side) for side in kind.tile)
        grid = proxy(context, builder, sig.args[1], args[1])
        row = builder.mul(global_index(builder, "y"), rows)
        col = builder.mul(global_index(builder, "x"), cols)
        product = builder.umul_with_overflow(builder.add(row, rows), grid.width)
        across = builder.icmp_unsigned("<=", builder.add(col, cols), grid.width)
        good = builder.and_(
            builder.and_(builder.icmp_signed(">=", grid.number, _ZERO), across),
            builder.not_(builder.extract_value(product, 1)),
        )
        # The index of the tile's last element. It is below the length exactly if the whole tile is inside.
        tile.index = builder.select(good, builder.sub(builder.extract_value(product, 0), _ONE), _NONE)
        tile.limit = whole.length
        tile.width = grid.width
        tile.site = site(builder, kind.parameter)
        first = builder.add(builder.mul(row, grid.width), col)
    tile.data = builder.gep(whole.data, [first])
    return tile._getvalue()


@lowering_registry.lower("oxide.slice.get_remainder", SliceType, ThreadIndexType)
@_of_flat
def _lower_get_remainder(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Returns the part of this thread's tile that is inside the output. The result is None in the kernel if the whole
    tile is inside, or if no part of it is."""
    output, kind = sig.args[0], sig.return_type
    whole = proxy(context, builder, output, args[0])
    tile = proxy(context, builder, kind)
    if len(kind.tile) == 1:
        size = ir.Constant(_WORD, kind.tile[0])
        number = index_number(context, builder, sig.args[1], args[1])
        # Only the first thread without a whole tile has a remainder. The remainder begins at the first element that is
        # in no whole tile, so no product of the thread's index is needed.
        last = builder.icmp_signed("==", number, builder.udiv(whole.length, size))
        count = builder.urem(whole.length, size)
        first = builder.sub(whole.length, count)
        tile.rows = _ONE
        tile.cols = builder.select(last, count, _ZERO)
        tile.width = size
    else:
        rows, cols = (ir.Constant(_WORD, side) for side in kind.tile)
        width = proxy(context, builder, sig.args[1], args[1]).width
        row = builder.mul(global_index(builder, "y"), rows)
        col = builder.mul(global_index(builder, "x"), cols)
        # With a width of 0, index_2d returns None, and the quotient is not used.
        divisor = builder.select(builder.icmp_signed("==", width, _ZERO), _ONE, width)
        height = _rest(builder, builder.udiv(whole.length, divisor), row, rows)
        breadth = _rest(builder, width, col, cols)
        some = builder.and_(builder.icmp_signed(">", height, _ZERO), builder.icmp_signed(">", breadth, _ZERO))
        short = builder.or_(builder.icmp_signed("<", height, rows), builder.icmp_signed("<", breadth, cols))
        # If index_2d returned None, the remainder is None too: the column is not below the width, or the row not below
        # the height.
        there = builder.and_(some, short)
        tile.rows = builder.select(there, height, _ZERO)
        tile.cols = builder.select(there, breadth, _ZERO)
        tile.width = width
        first = builder.add(builder.mul(row, width), col)
    tile.data = builder.gep(whole.data, [first])
    tile.site = site(builder, kind.what)
    return tile._getvalue()


def _rest(builder: Any, length: Any, first: Any, most: Any) -> Any:
    """Returns ``length - first``, but at most ``most``. The result is 0 or negative if ``first`` is at or beyond the
    end."""
    rest = builder.sub(length, first)
    return builder.select(builder.icmp_signed("<", rest, most), rest, most)


def _assume_aligned(context: Any, builder: Any, kind: Any, data: Any) -> None:
    """Tells LLVM the alignment of an output, so that tiles are loaded and stored as vectors. Each launch has checked
    this alignment (``Parameter.alignment``)."""
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    alignment = alignment_of(kind.tile, size)
    if alignment > size:
        low = builder.and_(builder.ptrtoint(data, _WORD), ir.Constant(_WORD, alignment - 1))
        call(builder, "llvm.assume", ir.VoidType(), builder.icmp_unsigned("==", low, _ZERO))


# None


@optional(TileRefType)
def _lower_tile_is_there(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    tile = proxy(context, builder, sig.args[0], args[0])
    if sig.args[0].partial:
        return builder.icmp_signed("!=", tile.cols, _ZERO)
    return builder.icmp_unsigned("<", tile.index, tile.limit)


# Elements


def check_position(kind: Any, position: Any) -> None:
    """Refuses a constant position outside of the tile. ``position`` is a number, or a tuple with a number for each
    axis."""
    parts = position if isinstance(position, tuple) else (position,)
    if kind.tile == ROWS and isinstance(position, int) and position < 0:
        note(f"the index {position} of {kind.what} does not count from the end in a kernel: write len(…) - {-position}")
        raise errors.TypingError("position outside the row")
    if len(parts) != len(kind.tile) or kind.tile == ROWS:
        return  # ``_is_position`` refuses the position
    for part, side in zip(parts, kind.tile, strict=True):
        if isinstance(part, int) and not 0 <= part < side:
            shape = kind.tile[0] if len(kind.tile) == 1 else kind.tile
            note(f"position {position} is outside {kind.what}: a tile is {shape}, and positions begin at 0")
            raise errors.TypingError("position outside the tile")


def _is_position(kind: Any, position: Any) -> bool:
    return check_axes(kind.what, len(kind.tile), position)


def _locate(
    context: Any, builder: Any, kind: Any, value: Any, position_type: Any, position: Any
) -> tuple[Any, Any, Any]:
    """Returns whether the tile is not None and a position is inside it, the address of the tile's first element, and
    the offset of the element at the position. If the first is false, the emitted code records a fault."""
    tile = proxy(context, builder, kind, value)
    numbers = index_parts(builder, position_type, position)
    if kind.tile == ROWS:
        return _row_in_bounds(builder, kind, tile, numbers[0], axes=2), tile.data, numbers[0]
    whole = ir.Constant(ir.IntType(1), 1) if kind.partial else in_bounds(builder, tile.index, tile.limit, tile.site)
    axes = list(zip(numbers, _sides(kind, tile), strict=True))
    inside = builder.and_(whole, axes_in_bounds(builder, axes, axis_sites(builder, kind.what, len(axes))))
    offset = numbers[0] if len(numbers) == 1 else builder.add(builder.mul(numbers[0], tile.width), numbers[1])
    return inside, tile.data, offset


readable(TileRefType, _is_position, _locate)
writable(TileRefType, _is_position, _locate)


def _row_in_bounds(builder: Any, kind: Any, tile: Any, position: Any, *, axes: int) -> Any:
    """Returns whether a row is there and, for two axes, whether a position is inside it. If not, the emitted code
    records a fault with the row and the position as the indices of the output."""
    places = [(tile.index, tile.limit), (position, tile.width)]
    return axes_in_bounds(builder, places, axis_sites(builder, kind.parameter, 2)[:axes])


def _sides(kind: Any, tile: Any) -> list[Any]:
    if kind.partial:
        return [tile.cols] if len(kind.tile) == 1 else [tile.rows, tile.cols]
    if kind.tile == ROWS:
        return [tile.width]
    return [ir.Constant(_WORD, side) for side in kind.tile]


# Sizes


@has_length(TileRefType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    tile = proxy(context, builder, sig.args[0], args[0])
    _report_none(builder, sig.args[0], tile)
    return _sides(sig.args[0], tile)[0]


@typing_registry.register_attr
class TileAttributes(AttributeTemplate):  # type: ignore[misc]
    key = TileRefType

    def resolve_shape(self, kind: Any) -> Any:
        if len(kind.tile) == 1:
            note(f"{kind.what} has no shape: its size is len(…)")
            return None
        return types.UniTuple(PLACE, 2)


@lowering_registry.lower_getattr(TileRefType, "shape")
def _lower_shape(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    tile = proxy(context, builder, kind, value)
    _report_none(builder, kind, tile)
    return context.make_tuple(builder, types.UniTuple(PLACE, 2), _sides(kind, tile))


def _report_none(builder: Any, kind: Any, tile: Any) -> None:
    """Emits the check that a tile in use is not None. The check records a fault if the tile is None. LLVM drops the
    check where the program has tested the tile."""
    if kind.partial:
        in_bounds(builder, _ZERO, tile.cols, tile.site)
    elif kind.tile == ROWS:
        _row_in_bounds(builder, kind, tile, _ZERO, axes=1)
    else:
        in_bounds(builder, tile.index, tile.limit, tile.site)
