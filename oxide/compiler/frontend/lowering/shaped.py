"""Slices of two to five axes: ``Slice2``, ``DisjointSlice2``, ``AtomicSlice2``, ``Slice3`` and so on.

Such a slice is a pointer and the length of each axis, also as a kernel parameter. ``a[row, col]`` is one check for each
axis, and one access at ``row * cols + col``. If the checks hold, this offset cannot wrap, because the number of
elements fits in 64 bits.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from oxide.compiler.signature.signature import shown

from .common import attribute, check_value, has_length, optional, same_form, structure
from .primitives import site
from .registry import lowering_registry, note, proxy, typing_registry
from .slices import (
    ONLY_WRITTEN,
    RefType,
    SliceType,
    axes_in_bounds,
    axis_sites,
    element_index,
    load_inside,
    takes_thread_index,
)
from .thread import GridIndexType, ThreadIndexType, global_index, grid_index, index_number
from .tiles import GetRemainder, GetTile, lower_get_remainder, lower_get_tile
from .types import display
from .unchecked import load_unchecked, mark_unchecked

_WORD = ir.IntType(64)


class ShapedSliceType(types.Type):  # type: ignore[misc]
    """The type of a slice with ``ndim`` axes that is the kernel parameter ``parameter``, or of a form of this slice.

    ``kind`` is ``"slice"``, ``"disjoint"``, ``"atomic"``, ``"scatter"``, ``"unchecked"``, ``"unchecked_mut"``,
    ``"streaming"`` or ``"streaming_mut"``. ``tile`` holds the sides of the tiles of the slice's layout. It is () if the
    slice has no layout.
    """

    def __init__(self, kind: str, dtype: Any, ndim: int, parameter: str, tile: tuple[int, ...] = ()) -> None:
        self.kind = kind
        self.dtype = dtype
        self.ndim = ndim
        self.parameter = parameter
        self.tile = tile
        if kind.startswith(("unchecked", "streaming")):
            first, _, mutable = kind.partition("_")
            self.shown = f"{first.capitalize()}{mutable.capitalize()}Slice{ndim}[{display(dtype)}]"
        elif kind == "scatter":
            self.shown = f"Scatter{ndim}[{display(dtype)}]"
        else:
            self.shown = shown("tiles" if tile else kind, display(dtype), tile, ndim)  # type: ignore[arg-type]
        super().__init__(f"{self.shown} {parameter}")

    @property
    def mutable(self) -> bool:
        return self.kind == "disjoint"

    @property
    def flat(self) -> SliceType:
        """Returns the type of the slice's ``flat``: a slice of one axis, with all elements in row-major order."""
        return SliceType(self.dtype, self.mutable, self.parameter, self.tile)

    def is_like(self, other: ShapedSliceType) -> bool:
        """Returns whether the two types are equal except for the names of their parameters."""
        mine = self.kind, self.dtype, self.ndim, self.tile
        return mine == (other.kind, other.dtype, other.ndim, other.tile)

    def unify(self, context: Any, other: Any) -> Any:
        if isinstance(other, ShapedSliceType) and self.is_like(other):
            names = sorted({*self.parameter.split("|"), *other.parameter.split("|")})
            return ShapedSliceType(self.kind, self.dtype, self.ndim, "|".join(names), self.tile)
        return None

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.safe if isinstance(other, ShapedSliceType) and self.is_like(other) else None


class PlaceRefType(types.Type):  # type: ignore[misc]
    """The type of a value that is a ``Ref`` to this thread's element of a ``DisjointSlice2``, or None. The ``Ref``
    gives the element by row and column."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(f"Ref[{display(dtype)}] by row and column")


structure(
    ShapedSliceType,
    members=lambda kind: [("data", types.CPointer(kind.dtype)), ("shape", types.UniTuple(types.int64, kind.ndim))],
)
same_form(ShapedSliceType)
structure(
    PlaceRefType,
    members=lambda kind: [
        ("data", types.CPointer(kind.dtype)),
        *((name, types.int64) for name in ("row", "rows", "col", "cols")),
        *((name, types.int32) for name in ("row_site", "col_site")),
    ],
)


@has_length(ShapedSliceType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.extract_value(proxy(context, builder, sig.args[0], args[0]).shape, 0)


# Elements by their indices


@typing_registry.register_global(operator.getitem)
class ShapedSliceGetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not (len(args) == 2 and isinstance(args[0], ShapedSliceType)):
            return None
        kind, index = args
        if kind.kind in ("disjoint", "atomic"):
            _note_without_brackets(kind)
            return None
        if kind.kind == "scatter":
            note(ONLY_WRITTEN.format(name=kind.parameter))
            return None
        if kind.kind.startswith("streaming"):
            _note_vectors_only(kind)
            return None
        return signature(kind.dtype, kind, types.unliteral(index)) if check_indices(kind, index) else None


@typing_registry.register_global(operator.setitem)
class ShapedSliceSetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not (len(args) == 3 and isinstance(args[0], ShapedSliceType)):
            return None
        kind, index, value = args
        if kind.kind in ("disjoint", "atomic"):
            _note_without_brackets(kind)
            return None
        if kind.kind.startswith("streaming"):
            _note_vectors_only(kind)
            return None
        if kind.kind not in ("unchecked_mut", "scatter"):
            note(
                f"{kind.parameter} is a {kind.shown}, which is read-only; declare an output as DisjointSlice{kind.ndim}"
            )
            return None
        if not (check_value(kind.dtype, value) and check_indices(kind, index)):
            return None
        return signature(types.none, kind, types.unliteral(index), types.unliteral(value))


def _note_without_brackets(kind: ShapedSliceType) -> None:
    name = kind.parameter
    if kind.kind == "atomic":
        axes = ", ".join("ijk"[: kind.ndim])
        note(
            f"{name} is an AtomicSlice{kind.ndim}, which has no [...]: another thread could come between; use "
            f"{name}.load(({axes})), {name}.fetch_add(({axes}), x) and their like"
        )
        return
    index = f"index_2d({name}.shape[1])" if kind.ndim == 2 else "index_1d()"
    note(
        f"{name} is a {kind.shown}, which has no [...]: another thread could use the same index. Write c_elem = "
        f"{name}.get_mut(thread.{index}), test that it is not None, and use c_elem.value; for computed indices that no "
        f"other thread has, write {name}.scatter[{', '.join('ijk'[: kind.ndim])}] = value"
    )


def _note_vectors_only(kind: ShapedSliceType) -> None:
    axes = ", ".join("ijk"[: kind.ndim])
    note(f"{kind.parameter} is a {kind.shown} here, which has vectors only, as load4(({axes}))")


def check_indices(kind: ShapedSliceType, index: Any) -> bool:
    """Returns whether the type of an index fits a slice: it must have an integer for each axis. If not, adds a note
    with the reason."""
    if isinstance(index, types.Optional):
        return False  # numba tries again with the type without None
    name, parts = kind.parameter, list(index) if isinstance(index, types.BaseTuple) else [index]
    if kind.ndim > 3:
        what = "read by tensor.load_tile, and one by one" if kind.kind == "slice" else "written by tensor.store_tile"
        note(
            f"{name} is a {kind.shown}, which has too many axes for an index: its elements are {what}"
            + (f" through {name}.flat" if kind.kind == "slice" else "")
        )
        return False
    if isinstance(index, ThreadIndexType):
        note(f"{name}[…] takes an integer for each axis, not a ThreadIndex")
        return False
    if len(parts) != kind.ndim:
        axes = ", ".join("ijk"[: kind.ndim])
        note(f"{name} is a {kind.shown}, which has {kind.ndim} axes, and the index {len(parts)}: write {name}[{axes}]")
        return False
    for part in parts:
        if not isinstance(types.unliteral(part), types.Integer):
            note(
                f"{name}[…] takes integers, not {display(part)}; convert the index, as in i64(…); note that / gives a "
                "float and // an integer"
            )
            return False
    return True


def element_of(
    context: Any, builder: Any, kind: Any, value: Any, index_type: Any, index: Any
) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Returns a slice's pointer, an element's offset in row-major order, and a list with the index and the length of
    each axis."""
    view = proxy(context, builder, kind, value)
    parts = [
        element_index(builder, part_type, part)
        for part_type, part in zip(index_type, cgutils.unpack_tuple(builder, index), strict=True)
    ]
    lengths = cgutils.unpack_tuple(builder, view.shape)
    offset = None
    for part, length in zip(parts, lengths, strict=True):
        offset = part if offset is None else builder.add(builder.mul(offset, length), part)
    return view.data, offset, list(zip(parts, lengths, strict=True))


def axes_inside(builder: Any, kind: Any, places: list[tuple[Any, Any]]) -> Any:
    """Returns whether each index is within its axis. If not, the emitted code records a fault for the first axis whose
    index is outside."""
    return axes_in_bounds(builder, places, axis_sites(builder, kind.parameter, kind.ndim))


@lowering_registry.lower(operator.getitem, ShapedSliceType, types.BaseTuple)
def _lower_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    data, offset, places = element_of(context, builder, kind, args[0], sig.args[1], args[1])
    if kind.kind != "slice":
        return load_unchecked(context, builder, kind.dtype, builder.gep(data, [offset]))
    return load_inside(context, builder, kind.dtype, data, offset, axes_inside(builder, kind, places))


@lowering_registry.lower(operator.setitem, ShapedSliceType, types.BaseTuple, types.Any)
def _lower_setitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    data, offset, places = element_of(context, builder, kind, args[0], sig.args[1], args[1])
    value = context.cast(builder, args[2], sig.args[2], kind.dtype)
    if kind.kind == "scatter":
        with builder.if_then(axes_inside(builder, kind, places), likely=True):
            context.pack_value(builder, kind.dtype, value, builder.gep(data, [offset]))
        return context.get_dummy_value()
    stored = context.data_model_manager[kind.dtype].as_data(builder, value)
    mark_unchecked(builder, builder.store(stored, builder.gep(data, [offset])))
    return context.get_dummy_value()


# Attributes


@typing_registry.register_attr
class ShapedSliceAttributes(AttributeTemplate):  # type: ignore[misc]
    key = ShapedSliceType

    def resolve_shape(self, kind: Any) -> Any:
        return types.UniTuple(types.int64, kind.ndim)

    def resolve_dtype(self, kind: Any) -> Any:
        return types.NumberClass(kind.dtype) if isinstance(kind.dtype, types.Number | types.Boolean) else None

    def resolve_flat(self, kind: Any) -> Any:
        if kind.kind != "slice":
            note(f"{kind.parameter} is a {kind.shown}, which has no .flat: only a Slice{kind.ndim} to read has")
            return None
        return kind.flat

    def resolve_unchecked(self, kind: Any) -> Any:
        if kind.kind != "slice":
            note(f"{kind.parameter} is a {kind.shown}, which has no .unchecked")
            return None
        return ShapedSliceType("unchecked", kind.dtype, kind.ndim, kind.parameter)

    def resolve_unchecked_mut(self, kind: Any) -> Any:
        if not kind.mutable:
            note(f"{kind.parameter} is a {kind.shown}, which has no .unchecked_mut")
            return None
        return ShapedSliceType("unchecked_mut", kind.dtype, kind.ndim, kind.parameter)

    def resolve_scatter(self, kind: Any) -> Any:
        if not kind.mutable:
            note(f"{kind.parameter} is a {kind.shown}, which has no .scatter")
            return None
        return ShapedSliceType("scatter", kind.dtype, kind.ndim, kind.parameter)

    def resolve_get_mut(self, kind: Any) -> Any:
        if not kind.mutable:
            note(f"{kind.parameter} is a {kind.shown}; only a DisjointSlice{kind.ndim} has get_mut")
            return None
        return types.BoundFunction(GetTile if kind.tile else GetPlace, kind)

    def resolve_get_remainder(self, kind: Any) -> Any:
        if not kind.tile:
            note(f"{kind.parameter} is a {kind.shown}: only an output with a layout, as Tiles(4), has a remainder")
            return None
        return types.BoundFunction(GetRemainder, kind)


@lowering_registry.lower_getattr(ShapedSliceType, "shape")
def _lower_shape(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return proxy(context, builder, kind, value).shape


@lowering_registry.lower_getattr(ShapedSliceType, "dtype")
def _lower_dtype(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@lowering_registry.lower_getattr(ShapedSliceType, "unchecked")
@lowering_registry.lower_getattr(ShapedSliceType, "unchecked_mut")
@lowering_registry.lower_getattr(ShapedSliceType, "scatter")
def _lower_unchecked(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return value


@lowering_registry.lower_getattr(ShapedSliceType, "flat")
def _lower_flat(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    view = proxy(context, builder, kind, value)
    flat = proxy(context, builder, kind.flat)
    flat.data, length = view.data, None
    for size in cgutils.unpack_tuple(builder, view.shape):
        length = size if length is None else builder.mul(length, size)
    flat.length = length
    return flat._getvalue()


# This thread's element


class GetPlace(AbstractTemplate):  # type: ignore[misc]
    key = "oxide.shaped.get_mut"

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        output = self.this
        if not takes_thread_index(f"{output.parameter}.get_mut", args, kws):
            return None
        if not isinstance(args[0], GridIndexType):
            return signature(RefType(output.dtype), *args, recvr=output)
        if output.ndim != 2:
            note(f"{output.parameter} is a {output.shown}: take its ThreadIndex from thread.index_1d()")
            return None
        return signature(PlaceRefType(output.dtype), *args, recvr=output)


@lowering_registry.lower("oxide.shaped.get_mut", ShapedSliceType, ThreadIndexType)
def _lower_get_mut(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, index_type = sig.args
    view = proxy(context, builder, kind, args[0])
    ref = proxy(context, builder, sig.return_type)
    ref.data = view.data
    if not isinstance(index_type, GridIndexType):
        ref.index = index_number(context, builder, index_type, args[1])
        ref.length = proxy(context, builder, kind.flat, _lower_flat(context, builder, kind, args[0])).length
        ref.site = site(builder, kind.parameter)
        return ref._getvalue()
    # The launch has two axes, so no two threads have the same row and column. The width of the index does not matter.
    ref.row, ref.col = global_index(builder, "y"), global_index(builder, "x")
    ref.rows, ref.cols = cgutils.unpack_tuple(builder, view.shape)
    ref.row_site, ref.col_site = axis_sites(builder, kind.parameter, kind.ndim)
    return ref._getvalue()


@optional(PlaceRefType)
def _lower_is_not_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    ref = proxy(context, builder, sig.args[0], args[0])
    rows = builder.icmp_unsigned("<", ref.row, ref.rows)
    return builder.and_(rows, builder.icmp_unsigned("<", ref.col, ref.cols))


def _place(builder: Any, ref: Any) -> tuple[Any, Any]:
    """Returns whether a Ref's element is in bounds, and the element's offset. For an element out of bounds, the emitted
    code records a fault."""
    places = [(ref.row, ref.rows), (ref.col, ref.cols)]
    inside = axes_in_bounds(builder, places, [ref.row_site, ref.col_site])
    return inside, builder.add(builder.mul(ref.row, ref.cols), ref.col)


@attribute(PlaceRefType, "value", lambda kind: kind.dtype)
def _lower_ref_get(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    ref = proxy(context, builder, kind, value)
    inside, offset = _place(builder, ref)
    return load_inside(context, builder, kind.dtype, ref.data, offset, inside)


@lowering_registry.lower_setattr(PlaceRefType, "value")
def _lower_ref_set(context: Any, builder: Any, sig: Any, args: Any) -> None:
    kind, value_type = sig.args
    ref = proxy(context, builder, kind, args[0])
    value = context.cast(builder, args[1], value_type, kind.dtype)
    inside, offset = _place(builder, ref)
    with builder.if_then(inside, likely=True):
        context.pack_value(builder, kind.dtype, value, builder.gep(ref.data, [offset]))


# Tiles


def _lower_tiled(lower: Any) -> Any:
    def lower_flat(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        """Lowers a tile as a tile of the flat slice. The distance between rows comes from the slice's shape, not from
        the index."""
        kind, index_type = sig.args
        index = args[1]
        if isinstance(index_type, GridIndexType) and kind.ndim == 2:
            grid = proxy(context, builder, grid_index, index)
            grid.width = builder.extract_value(proxy(context, builder, kind, args[0]).shape, 1)
            index = grid._getvalue()
        flat = signature(sig.return_type, kind.flat, index_type)
        return lower(context, builder, flat, (_lower_flat(context, builder, kind, args[0]), index))

    return lower_flat


lowering_registry.lower("oxide.slice.get_tile", ShapedSliceType, ThreadIndexType)(_lower_tiled(lower_get_tile))
lowering_registry.lower("oxide.slice.get_remainder", ShapedSliceType, ThreadIndexType)(
    _lower_tiled(lower_get_remainder)
)
