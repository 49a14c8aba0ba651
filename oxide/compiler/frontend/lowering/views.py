"""``row``, ``col`` and ``tile`` of a ``Slice2``: views that are checked once, loops over them, and ``zip_exact``.

A view carries what a loop over it needs: a pointer, a count and a stride. It also carries whether it is valid, and the
fault to report if it is not. LLVM drops the validity and the fault where the program has tested the view for None. An
invalid view has the count 0, so a program that uses it without a test reads nothing.

A loop over a view counts down to 0, as a loop over a ``range`` does, so that the loop analyses recognise it. The loop
needs no checks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.imputils import RefType as Ownership
from numba.cuda.core.imputils import iternext_impl
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.language.views import zip_exact

from .common import (
    Named,
    are_integers,
    attribute,
    axes_in_bounds,
    axis_sites,
    check_axes,
    element_index,
    has_length,
    in_bounds,
    index_parts,
    load_unchecked,
    methods,
    optional,
    readable,
    same_form,
    structure,
)
from .debug import lower_failure
from .primitives import site
from .registry import lowering_registry, note, proxy, typing_registry
from .slices import SliceType
from .types import PLACE, display

_WORD = ir.IntType(64)
_ZERO, _ONE = ir.Constant(_WORD, 0), ir.Constant(_WORD, 1)
_GREATEST = ir.Constant(_WORD, 2**63 - 1)


class VectorViewType(Named, types.IterableType):  # type: ignore[misc]
    """The type of a value that is a ``VectorView`` or None. The elements of a row are contiguous, so the view of a row
    has no stride."""

    def __init__(self, dtype: Any, parameter: str, contiguous: bool) -> None:
        self.dtype = dtype
        self.parameter = parameter
        self.contiguous = contiguous
        super().__init__(f"VectorView[{display(dtype)}] {parameter} {'row' if contiguous else 'column'}")

    @property
    def iterator_type(self) -> Any:
        return VectorIteratorType((self,))

    def renamed(self, parameter: str) -> VectorViewType:
        return VectorViewType(self.dtype, parameter, self.contiguous)

    def unify(self, context: Any, other: Any) -> Any:
        if isinstance(other, VectorViewType) and self.contiguous and not other.contiguous:  # numba tries both orders
            return other.unify(context, VectorViewType(self.dtype, self.parameter, contiguous=False))
        return super().unify(context, other)

    def can_convert_to(self, context: Any, other: Any) -> Any:
        if isinstance(other, VectorViewType) and other.dtype == self.dtype:
            return Conversion.safe if self.contiguous or not other.contiguous else None
        return None


class TileViewType(Named, types.IterableType):  # type: ignore[misc]
    """The type of a ``TileView`` or None."""

    def __init__(self, dtype: Any, parameter: str) -> None:
        self.dtype = dtype
        self.parameter = parameter
        super().__init__(f"TileView[{display(dtype)}] {parameter}")

    @property
    def iterator_type(self) -> Any:
        return TileIteratorType(self)

    def renamed(self, parameter: str) -> TileViewType:
        return TileViewType(self.dtype, parameter)


class VectorIteratorType(types.IteratorType):  # type: ignore[misc]
    """The type of an iterator over one view or, if ``zipped``, over several views in lockstep."""

    def __init__(self, vectors: tuple[VectorViewType, ...], zipped: bool = False) -> None:
        self.vectors = vectors
        self.zipped = zipped
        super().__init__(f"{'zip_exact' if zipped else 'iterator'}({', '.join(str(vector) for vector in vectors)})")

    @property
    def key(self) -> Any:
        return self.zipped, self.vectors

    @property
    def yield_type(self) -> Any:
        elements = [vector.dtype for vector in self.vectors]
        return types.BaseTuple.from_types(elements) if self.zipped else elements[0]


class TileIteratorType(types.IteratorType):  # type: ignore[misc]
    """The type of an iterator over the rows of a tile."""

    def __init__(self, tile: TileViewType) -> None:
        self.tile = tile
        super().__init__(f"iterator({tile})")

    @property
    def key(self) -> Any:
        return self.tile

    @property
    def yield_type(self) -> Any:
        return VectorViewType(self.tile.dtype, self.tile.parameter, contiguous=True)


_REPORT = [("valid", types.boolean), ("bad_index", types.int64), ("bad_length", types.int64), ("site", types.int32)]
_COUNTERS = [("index", types.CPointer(types.int64)), ("left", types.CPointer(types.int64))]


structure(
    VectorViewType,
    members=lambda kind: [
        ("data", types.CPointer(kind.dtype)),
        *((name, types.int64) for name in (("count",) if kind.contiguous else ("count", "stride"))),
        *_REPORT,
    ],
)
structure(
    TileViewType,
    members=lambda kind: [
        ("data", types.CPointer(kind.dtype)),
        *((name, types.int64) for name in ("rows", "cols", "stride")),
        *_REPORT,
    ],
)
structure(
    VectorIteratorType,
    members=lambda kind: [*_COUNTERS, *((f"view{number}", vector) for number, vector in enumerate(kind.vectors))],
)
structure(TileIteratorType, members=lambda kind: [*_COUNTERS, ("tile", kind.tile)])
same_form(TileViewType)


@lowering_registry.lower_cast(VectorViewType, VectorViewType)
def _cast__vector(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    if source.contiguous == target.contiguous:
        return value
    view = proxy(context, builder, source, value)
    return _vector(context, builder, target, view.data, view.count, _ONE, view)


# Making views


def _view(name: str, parameters: tuple[str, ...], result: Callable[[SliceType], Any]) -> Any:
    """Returns the typing of a method that makes a view. ``result`` returns the view's type."""

    class View(AbstractTemplate):  # type: ignore[misc]
        key = f"oxide.slice.{name}"

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            shown = f"{name} of {self.this.parameter}"
            if len(args) != len(parameters) or kws:
                note(f"{shown} takes {', '.join(parameters)}, by position")
                return None
            if not are_integers(f"what {shown} takes", args):
                return None
            return signature(result(self.this), *map(types.unliteral, args), recvr=self.this)

    return View


def _has_views(kind: Any, name: str) -> bool:
    if kind.kind == "slice" and kind.ndim == 2:
        return True
    note(f"{kind.parameter} is a {kind.shown}, which has no .{name}: only a Slice2 has")
    return False


methods(
    SliceType,
    has=_has_views,
    row=_view("row", ("i",), lambda kind: VectorViewType(kind.dtype, kind.parameter, contiguous=True)),
    col=_view("col", ("j",), lambda kind: VectorViewType(kind.dtype, kind.parameter, contiguous=False)),
    tile=_view("tile", ("row", "col", "rows", "cols"), lambda kind: TileViewType(kind.dtype, kind.parameter)),
)


@lowering_registry.lower("oxide.slice.row", SliceType, types.Integer)
def _lower_row(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    [i] = _indices(builder, sig, args)
    data, (rows, cols) = _matrix(context, builder, sig, args)
    view = _line(context, builder, sig, i, rows, axis=0)
    view.data = builder.gep(data, [builder.mul(i, cols)])
    view.count = builder.select(view.valid, cols, _ZERO)
    return view._getvalue()


@lowering_registry.lower("oxide.slice.col", SliceType, types.Integer)
def _lower_column(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    [j] = _indices(builder, sig, args)
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


@lowering_registry.lower("oxide.slice.tile", SliceType, *[types.Integer] * 4)
def _lower_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    row, col, rows, cols = _indices(builder, sig, args)
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
    last = builder.sub(builder.add(first, count), _ONE)
    last = builder.select(builder.icmp_signed("<", last, _ZERO), _GREATEST, last)
    return builder.select(builder.icmp_signed("<", least, _ZERO), least, last)


def _indices(builder: Any, sig: Any, args: Any) -> list[Any]:
    """Returns the arguments after the first one, the slice, as signed 64-bit numbers."""
    return [element_index(builder, kind, value) for kind, value in zip(sig.args[1:], args[1:], strict=True)]


def _vector(context: Any, builder: Any, kind: Any, data: Any, count: Any, stride: Any, source: Any) -> Any:
    """Returns a vector view that has the validity and the fault report of the view ``source``."""
    view = proxy(context, builder, kind)
    view.data, view.count = data, count
    if not kind.contiguous:
        view.stride = stride
    for name, _ in _REPORT:
        setattr(view, name, getattr(source, name))
    return view._getvalue()


# None


@optional(VectorViewType, TileViewType)
def _lower_is_not_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return proxy(context, builder, sig.args[0], args[0]).valid


def _report_none(builder: Any, view: Any) -> None:
    """Emits the check that a view in use is not None. The check records a fault if the view is None. LLVM drops the
    check where the program has tested the view."""
    with builder.if_then(builder.not_(view.valid), likely=False):
        in_bounds(builder, view.bad_index, view.bad_length, view.site)


# Elements


@has_length(VectorViewType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = proxy(context, builder, sig.args[0], args[0])
    _report_none(builder, view)
    return view.count


@has_length(TileViewType)
def _lower_rows(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = proxy(context, builder, sig.args[0], args[0])
    _report_none(builder, view)
    return view.rows


@attribute(TileViewType, "shape", lambda kind: types.UniTuple(PLACE, 2))
def _lower_shape(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    view = proxy(context, builder, kind, value)
    _report_none(builder, view)
    return context.make_tuple(builder, types.UniTuple(PLACE, 2), (view.rows, view.cols))


def _is_index_of_vector(kind: Any, index: Any) -> bool:
    return check_axes(f"a view of {kind.parameter}", 1, index)


def _is_index_of_tile(kind: Any, index: Any) -> bool:
    return check_axes(f"a view of {kind.parameter}", 2, index)


def _locate_in_vector(
    context: Any, builder: Any, kind: Any, value: Any, index_type: Any, index: Any
) -> tuple[Any, Any, Any]:
    view = proxy(context, builder, kind, value)
    [number] = index_parts(builder, index_type, index)
    inside = in_bounds(builder, number, view.count, site(builder, f"a view of {kind.parameter}"))
    return inside, view.data, _offset_of(builder, kind, view, number)


def _locate_in_tile(
    context: Any, builder: Any, kind: Any, value: Any, index_type: Any, index: Any
) -> tuple[Any, Any, Any]:
    view = proxy(context, builder, kind, value)
    i, j = index_parts(builder, index_type, index)
    places = axis_sites(builder, f"a tile of {kind.parameter}", 2)
    inside = axes_in_bounds(builder, [(i, view.rows), (j, view.cols)], places)
    return inside, view.data, builder.add(builder.mul(i, view.stride), j)


readable(VectorViewType, _is_index_of_vector, _locate_in_vector)
readable(TileViewType, _is_index_of_tile, _locate_in_tile)


@typing_registry.register_global(operator.setitem)
class ViewSetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) == 3 and isinstance(args[0], VectorViewType | TileViewType):
            note(f"a view of {args[0].parameter} is read-only, as the slice is; declare an output as DisjointSlice[…]")
        return None


def _offset_of(builder: Any, kind: Any, view: Any, index: Any) -> Any:
    return index if kind.contiguous else builder.mul(index, view.stride)


# Loops


@lowering_registry.lower("getiter", VectorViewType)
def _lower_iterate__vector(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = proxy(context, builder, sig.args[0], args[0])
    _report_none(builder, view)
    return _iterator(context, builder, sig.return_type, view.count, view0=args[0])


@lowering_registry.lower("getiter", TileViewType)
def _lower_iterate_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = proxy(context, builder, sig.args[0], args[0])
    _report_none(builder, view)
    return _iterator(context, builder, sig.return_type, view.rows, tile=args[0])


@lowering_registry.lower("getiter", VectorIteratorType)
@lowering_registry.lower("getiter", TileIteratorType)
def _lower_iterate_iterator(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return args[0]


@typing_registry.register_global(zip_exact)
class ZipExact(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not 2 <= len(args) <= 4 or kws:
            note("zip_exact takes two to four views, by position")
            return None
        wrong = [argument for argument in args if not isinstance(argument, VectorViewType)]
        if wrong:
            note(f"zip_exact takes rows and columns, as a.row(i) of a Slice2, not {display(wrong[0])}")
            return None
        return signature(VectorIteratorType(tuple(args), zipped=True), *args)


@lowering_registry.lower(zip_exact, types.VarArg(types.Any))
def _lower_zip(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    views = [proxy(context, builder, kind, value) for kind, value in zip(sig.args, args, strict=True)]
    valid = equal = ir.Constant(ir.IntType(1), 1)
    for view in views:
        _report_none(builder, view)
        valid = builder.and_(valid, view.valid)
        equal = builder.and_(equal, builder.icmp_signed("==", view.count, views[0].count))
    with builder.if_then(builder.and_(valid, builder.not_(equal)), likely=False):
        lower_failure(builder, ("zip_exact got views of different lengths",))
    count = builder.select(equal, views[0].count, _ZERO)
    members = {f"view{number}": value for number, value in enumerate(args)}
    return _iterator(context, builder, sig.return_type, count, **members)


def _iterator(context: Any, builder: Any, kind: Any, count: Any, **members: Any) -> Any:
    iterator = proxy(context, builder, kind)
    iterator.index = cgutils.alloca_once(builder, _WORD)
    iterator.left = cgutils.alloca_once(builder, _WORD)
    builder.store(_ZERO, iterator.index)
    builder.store(count, iterator.left)
    for name, value in members.items():
        setattr(iterator, name, value)
    return iterator._getvalue()


@lowering_registry.lower("iternext", VectorIteratorType)
@iternext_impl(Ownership.BORROWED)
def _lower_next_element(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> Any:
    kind = sig.args[0]
    iterator = proxy(context, builder, kind, args[0])
    with _next(builder, iterator, result) as index:
        elements = []
        for number, vector in enumerate(kind.vectors):
            view = proxy(context, builder, vector, getattr(iterator, f"view{number}"))
            place = builder.gep(view.data, [_offset_of(builder, vector, view, index)])
            # The load needs no check, because the view's length bounds the loop.
            elements.append(load_unchecked(context, builder, vector.dtype, place))
        result.yield_(context.make_tuple(builder, kind.yield_type, elements) if kind.zipped else elements[0])


@lowering_registry.lower("iternext", TileIteratorType)
@iternext_impl(Ownership.BORROWED)
def _lower_next_row(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> Any:
    kind = sig.args[0]
    iterator = proxy(context, builder, kind, args[0])
    tile = proxy(context, builder, kind.tile, iterator.tile)
    with _next(builder, iterator, result) as index:
        data = builder.gep(tile.data, [builder.mul(index, tile.stride)])
        result.yield_(_vector(context, builder, kind.yield_type, data, tile.cols, None, tile))


@contextmanager
def _next(builder: Any, iterator: Any, result: Any) -> Iterator[Any]:
    """Emits the code that advances an iterator if an element is left. Yields the element's index, for the code that
    produces the element."""
    left = builder.load(iterator.left)
    more = builder.icmp_signed(">", left, _ZERO)
    result.set_valid(more)
    with builder.if_then(more):
        index = builder.load(iterator.index)
        yield index
        builder.store(builder.sub(left, _ONE), iterator.left)
        builder.store(builder.add(index, _ONE), iterator.index)
