"""``MatrixView``, ``VectorView`` and ``TileView``. Loops over them are in ``view_loops.py``.

Every view of a ``MatrixView`` is a rectangle, and ``_rectangle`` checks whether the rectangle is inside the matrix.
``shaped_views.py`` checks the views of a ``Slice2`` axis by axis instead. A view carries what a loop over it needs: a
pointer, a count and a stride. It also carries whether it is valid, and the fault to report if it is not. LLVM drops the
validity and the fault where the program has tested the view for None. An invalid view has the count 0, so a program
that uses it without a test reads nothing.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.language.views import MatrixView

from .common import (
    attribute,
    axes_in_bounds,
    axis_sites,
    element_index,
    has_length,
    in_bounds,
    index_parts,
    load_inside,
    methods,
    optional,
    same_form,
    structure,
)
from .primitives import site
from .registry import lowering_registry, note, proxy, typing_registry
from .slices import SliceType
from .types import display

_WORD = ir.IntType(64)
GREATEST = ir.Constant(_WORD, 2**63 - 1)


class MatrixViewType(types.Type):  # type: ignore[misc]
    """The type of a ``MatrixView`` of the slice parameter ``parameter``."""

    def __init__(self, dtype: Any, parameter: str) -> None:
        self.dtype = dtype
        self.parameter = parameter
        super().__init__(f"MatrixView[{display(dtype)}] {parameter}")

    def unify(self, context: Any, other: Any) -> Any:
        if isinstance(other, MatrixViewType) and other.dtype == self.dtype:
            return MatrixViewType(self.dtype, _both(self.parameter, other.parameter))
        return None

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.safe if isinstance(other, MatrixViewType) and other.dtype == self.dtype else None


class VectorViewType(types.IterableType):  # type: ignore[misc]
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

    def unify(self, context: Any, other: Any) -> Any:
        if isinstance(other, VectorViewType) and other.dtype == self.dtype:
            both = _both(self.parameter, other.parameter)
            return VectorViewType(self.dtype, both, self.contiguous and other.contiguous)
        return None

    def can_convert_to(self, context: Any, other: Any) -> Any:
        if isinstance(other, VectorViewType) and other.dtype == self.dtype:
            return Conversion.safe if self.contiguous or not other.contiguous else None
        return None


class TileViewType(types.IterableType):  # type: ignore[misc]
    """The type of a ``TileView`` or None."""

    def __init__(self, dtype: Any, parameter: str) -> None:
        self.dtype = dtype
        self.parameter = parameter
        super().__init__(f"TileView[{display(dtype)}] {parameter}")

    @property
    def iterator_type(self) -> Any:
        return TileIteratorType(self)

    def unify(self, context: Any, other: Any) -> Any:
        if isinstance(other, TileViewType) and other.dtype == self.dtype:
            return TileViewType(self.dtype, _both(self.parameter, other.parameter))
        return None

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.safe if isinstance(other, TileViewType) and other.dtype == self.dtype else None


class VectorIteratorType(types.IteratorType):  # type: ignore[misc]
    """The type of an iterator over one view or, if ``zipped``, over several views in lockstep."""

    def __init__(self, vectors: tuple[VectorViewType, ...], zipped: bool = False) -> None:
        self.vectors = vectors
        self.zipped = zipped
        super().__init__(f"{'zip_exact' if zipped else 'iterator'}({', '.join(str(vector) for vector in vectors)})")

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
    def yield_type(self) -> Any:
        return VectorViewType(self.tile.dtype, self.tile.parameter, contiguous=True)


REPORT = [("valid", types.boolean), ("bad_index", types.int64), ("bad_length", types.int64), ("site", types.int32)]


structure(
    MatrixViewType,
    members=lambda kind: [("data", types.CPointer(kind.dtype)), ("length", types.int64), ("stride", types.int64)],
)
structure(
    VectorViewType,
    members=lambda kind: [
        ("data", types.CPointer(kind.dtype)),
        *((name, types.int64) for name in (("count",) if kind.contiguous else ("count", "stride"))),
        *REPORT,
    ],
)
structure(
    TileViewType,
    members=lambda kind: [
        ("data", types.CPointer(kind.dtype)),
        *((name, types.int64) for name in ("rows", "cols", "stride")),
        *REPORT,
    ],
)
same_form(MatrixViewType, TileViewType)


@lowering_registry.lower_cast(VectorViewType, VectorViewType)
def _cast_vector(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    if source.contiguous == target.contiguous:
        return value
    view = proxy(context, builder, source, value)
    return vector(context, builder, target, view.data, view.count, ir.Constant(_WORD, 1), view)


# Making views


@typing_registry.register_global(MatrixView)
class MakeMatrixView(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 2 or kws:
            note("MatrixView takes a Slice and a stride, by position")
            return None
        matrix, stride = args
        if not isinstance(matrix, SliceType) or (matrix.kind, matrix.ndim) != ("slice", 1):
            note(f"MatrixView takes a Slice to read from, not {display(matrix)}")
            return None
        if not _integers("the stride of a MatrixView", (stride,)):
            return None
        return signature(MatrixViewType(matrix.dtype, matrix.parameter), matrix, types.unliteral(stride))


@lowering_registry.lower(MatrixView, SliceType, types.Integer)
def _lower_matrix_view(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    whole = proxy(context, builder, sig.args[0], args[0])
    view = proxy(context, builder, sig.return_type)
    view.data, view.length = whole.data, whole.length
    view.stride = element_index(builder, sig.args[1], args[1])
    return view._getvalue()


class _Part(AbstractTemplate):  # type: ignore[misc]
    parameters: tuple[str, ...]

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        name = self.key.rpartition(".")[2]
        if len(args) != len(self.parameters) or kws:
            note(f"{name} of {self.whole()} takes {', '.join(self.parameters)}, by position")
            return None
        if not _integers(f"what {name} of {self.whole()} takes", args):
            return None
        return signature(self.result(self.this), *map(types.unliteral, args), recvr=self.this)

    def whole(self) -> str:
        return "a MatrixView"

    def result(self, matrix: Any) -> Any:
        raise NotImplementedError


class Row(_Part):
    key = "oxide.matrix_view.row"
    parameters: tuple[str, ...] = ("i", "k")

    def result(self, matrix: Any) -> Any:
        return VectorViewType(matrix.dtype, matrix.parameter, contiguous=True)


class Column(_Part):
    key = "oxide.matrix_view.col"
    parameters: tuple[str, ...] = ("j", "k")

    def result(self, matrix: Any) -> Any:
        return VectorViewType(matrix.dtype, matrix.parameter, contiguous=False)


class Tile(_Part):
    key = "oxide.matrix_view.tile"
    parameters = ("row", "col", "rows", "cols")

    def result(self, matrix: Any) -> Any:
        return TileViewType(matrix.dtype, matrix.parameter)


methods(MatrixViewType, row=Row, col=Column, tile=Tile)


@lowering_registry.lower("oxide.matrix_view.row", MatrixViewType, types.Integer, types.Integer)
def _lower_row(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    i, k = indices(builder, sig, args)
    tile = _rectangle(context, builder, sig.args[0], args[0], i, ir.Constant(_WORD, 0), ir.Constant(_WORD, 1), k)
    return vector(context, builder, sig.return_type, tile.data, tile.cols, None, tile)


@lowering_registry.lower("oxide.matrix_view.col", MatrixViewType, types.Integer, types.Integer)
def _lower_column(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    j, k = indices(builder, sig, args)
    tile = _rectangle(context, builder, sig.args[0], args[0], ir.Constant(_WORD, 0), j, k, ir.Constant(_WORD, 1))
    return vector(context, builder, sig.return_type, tile.data, tile.rows, tile.stride, tile)


@lowering_registry.lower("oxide.matrix_view.tile", MatrixViewType, *[types.Integer] * 4)
def _lower_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _rectangle(context, builder, sig.args[0], args[0], *indices(builder, sig, args))._getvalue()


def _rectangle(context: Any, builder: Any, kind: Any, value: Any, row: Any, col: Any, rows: Any, cols: Any) -> Any:
    """Returns a tile of a matrix. The tile is valid if its columns are within [0, stride] and its last element is
    before the matrix's length.

    No overflow goes undetected. The columns are checked without a sum: ``cols <= stride`` and ``col <= stride - cols``.
    If ``row`` and ``rows`` are not negative, their sum is under 2**64, and its product with the stride is computed with
    an overflow bit. For valid columns, ``col + cols`` is under 2**63; it is compared with the length minus this
    product.
    """
    matrix = proxy(context, builder, kind, value)
    zero, one = ir.Constant(_WORD, 0), ir.Constant(_WORD, 1)
    across = builder.and_(
        builder.and_(builder.icmp_signed(">=", matrix.stride, zero), builder.icmp_unsigned("<=", cols, matrix.stride)),
        builder.icmp_unsigned("<=", col, builder.sub(matrix.stride, cols)),
    )
    none = builder.icmp_signed("==", rows, zero)
    forward = builder.and_(builder.icmp_signed(">=", row, zero), builder.icmp_signed(">=", rows, zero))
    product = builder.umul_with_overflow(builder.sub(builder.add(row, rows), one), matrix.stride)
    skipped, overflow = builder.extract_value(product, 0), builder.extract_value(product, 1)
    end = builder.add(col, cols)
    down = builder.and_(
        builder.and_(builder.not_(overflow), builder.icmp_unsigned("<=", skipped, matrix.length)),
        builder.icmp_unsigned("<=", end, builder.sub(matrix.length, skipped)),
    )
    valid = builder.and_(across, builder.and_(forward, builder.or_(none, down)))

    tile = proxy(context, builder, TileViewType(kind.dtype, kind.parameter))
    tile.data = builder.gep(matrix.data, [builder.add(builder.mul(row, matrix.stride), col)])
    tile.rows, tile.cols = builder.select(valid, rows, zero), builder.select(valid, cols, zero)
    tile.stride = matrix.stride
    tile.valid = valid
    # The index that a fault reports: the column or the element that is outside, or the argument that is negative.
    least = builder.select(builder.icmp_signed("<", cols, zero), cols, col)
    column = builder.select(builder.icmp_signed("<", least, zero), least, builder.sub(end, one))
    last = builder.sub(builder.add(skipped, end), one)
    far = builder.or_(overflow, builder.icmp_signed("<", builder.or_(skipped, last), zero))
    last = builder.select(far, GREATEST, last)
    negative = builder.select(builder.icmp_signed("<", row, zero), row, rows)
    element = builder.select(forward, last, negative)
    width = builder.select(builder.icmp_signed("<", matrix.stride, zero), zero, matrix.stride)
    tile.bad_index = builder.select(across, element, column)
    tile.bad_length = builder.select(across, matrix.length, width)
    tile.site = builder.select(across, site(builder, kind.parameter), site(builder, f"a row of {kind.parameter}"))
    return tile


def vector(context: Any, builder: Any, kind: Any, data: Any, count: Any, stride: Any, source: Any) -> Any:
    """Returns a vector view that has the validity and the fault report of the view ``source``."""
    view = proxy(context, builder, kind)
    view.data, view.count = data, count
    if not kind.contiguous:
        view.stride = stride
    for name, _ in REPORT:
        setattr(view, name, getattr(source, name))
    return view._getvalue()


# None


@optional(VectorViewType, TileViewType)
def _lower_is_not_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return proxy(context, builder, sig.args[0], args[0]).valid


def report_none(builder: Any, view: Any) -> None:
    """Emits the check that a view in use is not None. The check records a fault if the view is None. LLVM drops the
    check where the program has tested the view."""
    with builder.if_then(builder.not_(view.valid), likely=False):
        in_bounds(builder, view.bad_index, view.bad_length, view.site)


# Elements


@has_length(VectorViewType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = proxy(context, builder, sig.args[0], args[0])
    report_none(builder, view)
    return view.count


@has_length(TileViewType)
def _lower_rows(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = proxy(context, builder, sig.args[0], args[0])
    report_none(builder, view)
    return view.rows


@attribute(TileViewType, "shape", lambda kind: types.UniTuple(types.int64, 2))
def _lower_shape(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    view = proxy(context, builder, kind, value)
    report_none(builder, view)
    return context.make_tuple(builder, types.UniTuple(types.int64, 2), (view.rows, view.cols))


@typing_registry.register_global(operator.getitem)
class ViewGetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 2 or not isinstance(args[0], VectorViewType | TileViewType):
            return None
        kind, index = args
        parts = list(index) if isinstance(index, types.BaseTuple) else [index]
        axes = 1 if isinstance(kind, VectorViewType) else 2
        shown = f"a view of {kind.parameter}"
        if len(parts) != axes:
            note(f"{shown} has {axes} {'axis' if axes == 1 else 'axes'}, and the index {len(parts)}")
            return None
        if not _integers(f"an index of {shown}", parts):
            return None
        return signature(kind.dtype, kind, types.unliteral(index))


@lowering_registry.lower(operator.getitem, VectorViewType, types.Integer)
def _lower_vector_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    view = proxy(context, builder, kind, args[0])
    index = element_index(builder, sig.args[1], args[1])
    inside = in_bounds(builder, index, view.count, site(builder, f"a view of {kind.parameter}"))
    return load_inside(context, builder, kind.dtype, view.data, offset_of(builder, kind, view, index), inside)


@lowering_registry.lower(operator.getitem, TileViewType, types.BaseTuple)
def _lower_tile_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    view = proxy(context, builder, kind, args[0])
    i, j = index_parts(builder, sig.args[1], args[1])
    places = axis_sites(builder, f"a tile of {kind.parameter}", 2)
    inside = axes_in_bounds(builder, [(i, view.rows), (j, view.cols)], places)
    offset = builder.add(builder.mul(i, view.stride), j)
    return load_inside(context, builder, kind.dtype, view.data, offset, inside)


@typing_registry.register_global(operator.setitem)
class ViewSetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) == 3 and isinstance(args[0], VectorViewType | TileViewType):
            note(f"a view of {args[0].parameter} is read-only, as the slice is; declare an output as DisjointSlice[…]")
        return None


def offset_of(builder: Any, kind: Any, view: Any, index: Any) -> Any:
    return index if kind.contiguous else builder.mul(index, view.stride)


def indices(builder: Any, sig: Any, args: Any) -> list[Any]:
    """Returns the arguments after the first one, the matrix, as signed 64-bit numbers."""
    return [element_index(builder, kind, value) for kind, value in zip(sig.args[1:], args[1:], strict=True)]


def _integers(what: str, given: Any) -> bool:
    """Returns whether all types are integers. If not, adds a note that names the first type that is not an integer."""
    for kind in given:
        if not isinstance(types.unliteral(kind), types.Integer):
            note(f"{what} is an integer, not {display(kind)}; convert it, as in i64(…)")
            return False
    return True


def _both(first: str, second: str) -> str:
    return "|".join(sorted({*first.split("|"), *second.split("|")}))
