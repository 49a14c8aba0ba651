"""Describes the matrices in memory that ``ldmatrix``, ``load``, ``store`` and ``stmatrix`` copy: checks their types,
and finds their addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from llvmlite import ir
from numba.cuda import cgutils, types

from oxide.compiler.frontend.lowering.common import axes_in_bounds, axis_sites, index_parts
from oxide.compiler.frontend.lowering.registry import note, note_first, proxy
from oxide.compiler.frontend.lowering.shared import BlockArrayType, check_index
from oxide.compiler.frontend.lowering.slices import SliceType, check_indices
from oxide.compiler.frontend.lowering.types import display
from oxide.compiler.source.fragment_layouts import Layout

from .fragments import WORD, FragmentType, constant
from .shared_tiles import TilesType, takes_index


def is_shared(kind: Any) -> bool:
    """Returns whether a type is that of a static shared array."""
    return isinstance(kind, BlockArrayType) and kind.kind == "SharedArray"


def name_of(kind: Any) -> str:
    """Returns the name of an array for messages: the parameter's name, or a shared array's type."""
    if isinstance(kind, TilesType):
        return str(kind.name)
    return str(kind.parameter if isinstance(kind, SliceType) else kind.shown)


def is_slice(kind: Any, *kinds: str) -> bool:
    """Returns whether a type is a slice of two axes or more, of one of the ``kinds``."""
    return isinstance(kind, SliceType) and kind.ndim > 1 and kind.kind in kinds


def extent(layout: Layout, transposed: bool) -> tuple[int, int]:
    """Returns the number of rows and the number of columns that a fragment's matrix takes in an array."""
    return (layout.columns, layout.rows) if transposed else (layout.rows, layout.columns)


def is_matrix(function: str, array: Any, index: Any, fragment: FragmentType, transposed: bool) -> bool:
    """Returns whether an index into an array can be the place of a matrix. If not, adds a note with the reason."""
    name, axes = name_of(array), len(array.shape) if isinstance(array, TilesType) else array.ndim
    if not 2 <= axes <= 3:
        note(f"tensor.{function}: {name} has {axes} axis; a matrix is in the last two axes of an array")
        return False
    if isinstance(array, TilesType):
        if not takes_index(array, index):
            return False
    elif isinstance(array, SliceType):
        if not check_indices(array, index):
            return False
    elif not check_index(array, index):
        return False
    rows, columns = extent(fragment.layout, transposed)
    if not isinstance(array, SliceType) and (array.shape[-2] < rows or array.shape[-1] < columns):
        whole = f"{rows} rows and {columns} columns"
        note(f"tensor.{function}: {fragment.shown} takes {whole} of the array, which is smaller: {name}")
        return False
    return True


def same_dtype(function: str, array: Any, fragment: FragmentType) -> bool:
    """Returns whether an array and a fragment have elements of the same type. If not, adds a note."""
    if array.dtype == fragment.dtype:
        return True
    kinds = f"{name_of(array)} has elements of {display(array.dtype)}, and {fragment.shown} of {fragment.layout.dtype}"
    note(f"tensor.{function}: {kinds}; the two are the same")
    return False


def is_constant_truth(function: str, given: Any) -> bool:
    """Returns whether the argument ``transposed`` is a constant. If not, adds a note."""
    if isinstance(given, types.BooleanLiteral):
        return True
    # numba tries a second time without the values of constants, so only the note of the first time has the reason.
    note_first(f"tensor.{function}: transposed is the constant True or False, not {display(given)}")
    return False


@final
@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in an array. ``data`` is the address of the array's first element. ``offset`` is the offset of the
    matrix's first element, and ``stride`` the offset from one row to the next. ``row`` and ``column`` are the indices
    of the matrix's first row and column. ``inside`` is whether the whole matrix is inside the array; it is None if this
    is not checked."""

    data: Any
    offset: Any
    stride: Any
    row: Any
    column: Any
    inside: Any


def locate_matrix(
    context: Any, builder: Any, kind: Any, value: Any, index_type: Any, index: Any, rows: int, columns: int
) -> Matrix:
    """Emits the bounds checks of a matrix, for the first and the last element on each axis, and returns the matrix.
    Slices accessed without checks get none."""
    parts = index_parts(builder, index_type, index)
    if isinstance(kind, SliceType):
        view = proxy(context, builder, kind, value)
        data, lengths = view.data, cgutils.unpack_tuple(builder, view.shape)
    else:
        data, lengths = value, [ir.Constant(WORD, length) for length in kind.shape]
    if isinstance(kind, TilesType):
        data = builder.bitcast(value, context.get_data_type(kind.dtype).as_pointer())
    inside = None
    if not isinstance(kind, SliceType) or kind.kind in ("slice", "scatter"):
        places = axis_sites(builder, name_of(kind), len(parts))
        row, column = parts[-2:]
        last = [*parts[:-2], builder.add(row, constant(rows - 1)), builder.add(column, constant(columns - 1))]
        first_inside = axes_in_bounds(builder, list(zip(parts, lengths, strict=True)), places)
        last_inside = axes_in_bounds(builder, list(zip(last, lengths, strict=True)), places)
        inside = builder.and_(first_inside, last_inside)
    offset = None
    for part, length in zip(parts, lengths, strict=True):
        offset = part if offset is None else builder.add(builder.mul(offset, length), part)
    return Matrix(data, offset, lengths[-1], parts[-2], parts[-1], inside)
