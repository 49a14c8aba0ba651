"""``row``, ``col`` and ``tile`` of a ``Slice2``: views that are checked against the lengths of the slice's own axes.

The views have the types of ``views.py``. The checks here are shorter than the checks there, because the numbers of rows
and columns are known and the product of both fits in 64 bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.typing.templates import AttributeTemplate

from .primitives import site
from .registry import lowering_registry, note, proxy, typing_registry
from .slices import SliceType
from .views import GREATEST, Column, Row, Tile, indices

_WORD = ir.IntType(64)
_ZERO = ir.Constant(_WORD, 0)


class _OfASlice:
    this: Any

    def whole(self) -> str:
        return str(self.this.parameter)


class ShapedRow(_OfASlice, Row):
    key = "oxide.shaped.row"
    parameters: tuple[str, ...] = ("i",)


class ShapedColumn(_OfASlice, Column):
    key = "oxide.shaped.col"
    parameters: tuple[str, ...] = ("j",)


class ShapedTile(_OfASlice, Tile):
    key = "oxide.shaped.tile"


_VIEWS = {"row": ShapedRow, "col": ShapedColumn, "tile": ShapedTile}


@typing_registry.register_attr
class ShapedSliceViews(AttributeTemplate):  # type: ignore[misc]
    key = SliceType

    def generic_resolve(self, kind: Any, name: str) -> Any:
        if name not in _VIEWS:
            return None
        if kind.kind != "slice" or kind.ndim != 2:
            note(f"{kind.parameter} is a {kind.shown}, which has no .{name}: only a Slice2 has")
            return None
        return types.BoundFunction(_VIEWS[name], kind)


@lowering_registry.lower("oxide.shaped.row", SliceType, types.Integer)
def _lower_row(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    [i] = indices(builder, sig, args)
    data, (rows, cols) = _matrix(context, builder, sig, args)
    view = _line(context, builder, sig, i, rows, axis=0)
    view.data = builder.gep(data, [builder.mul(i, cols)])
    view.count = builder.select(view.valid, cols, _ZERO)
    return view._getvalue()


@lowering_registry.lower("oxide.shaped.col", SliceType, types.Integer)
def _lower_column(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    [j] = indices(builder, sig, args)
    data, (rows, cols) = _matrix(context, builder, sig, args)
    view = _line(context, builder, sig, j, cols, axis=1)
    view.data = builder.gep(data, [j])
    view.count = builder.select(view.valid, rows, _ZERO)
    view.stride = cols
    return view._getvalue()


def _line(context: Any, builder: Any, sig: Any, index: Any, length: Any, axis: int) -> Any:
    """Returns the view of a row or column with its validity and the fault that it reports, but without its data, its
    count and its stride."""
    view = proxy(context, builder, sig.return_type)
    view.valid = builder.icmp_unsigned("<", index, length)
    view.bad_index, view.bad_length = index, length
    view.site = site(builder, sig.args[0].parameter, axis=axis)
    return view


@lowering_registry.lower("oxide.shaped.tile", SliceType, *[types.Integer] * 4)
def _lower_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    row, col, rows, cols = indices(builder, sig, args)
    data, (height, width) = _matrix(context, builder, sig, args)
    down, across = _within(builder, row, rows, height), _within(builder, col, cols, width)
    tile = proxy(context, builder, sig.return_type)
    tile.data = builder.gep(data, [builder.add(builder.mul(row, width), col)])
    tile.valid = builder.and_(down, across)
    tile.rows, tile.cols = builder.select(tile.valid, rows, _ZERO), builder.select(tile.valid, cols, _ZERO)
    tile.stride = width
    tile.bad_index = builder.select(down, _outside(builder, col, cols), _outside(builder, row, rows))
    tile.bad_length = builder.select(down, width, height)
    sites = [site(builder, sig.args[0].parameter, axis=axis) for axis in (0, 1)]
    tile.site = builder.select(down, sites[1], sites[0])
    return tile._getvalue()


def _matrix(context: Any, builder: Any, sig: Any, args: Any) -> tuple[Any, list[Any]]:
    view = proxy(context, builder, sig.args[0], args[0])
    return view.data, cgutils.unpack_tuple(builder, view.shape)


def _within(builder: Any, first: Any, count: Any, length: Any) -> Any:
    """Returns whether ``[first, first + count)`` is within an axis. The sum, which may overflow, is not computed. The
    length of the axis must not be negative."""
    return builder.and_(
        builder.icmp_unsigned("<=", count, length),
        builder.icmp_unsigned("<=", first, builder.sub(length, count)),
    )


def _outside(builder: Any, first: Any, count: Any) -> Any:
    """Returns the index that a fault reports: ``count`` if it is negative, else ``first`` if ``first`` is negative,
    else the last index of the range, at most 2**63 - 1."""
    least = builder.select(builder.icmp_signed("<", count, _ZERO), count, first)
    last = builder.sub(builder.add(first, count), ir.Constant(_WORD, 1))
    last = builder.select(builder.icmp_signed("<", last, _ZERO), GREATEST, last)
    return builder.select(builder.icmp_signed("<", least, _ZERO), least, last)
