"""``ldmatrix``, ``load``, ``store`` and ``stmatrix``: copies of matrices between memory and fragments.

``load`` and ``store`` are plain loads and stores of this lane's elements. ``ldmatrix`` and ``stmatrix`` are calls of
primitives. Each call moves up to four blocks of 8 rows of 16 bytes, and lane l passes the address of row ``l % 8`` of
block ``l // 8``. If a matrix is out of bounds, the lane passes addresses as if the matrix began at the array's first
element, so that all lanes can execute ``ldmatrix`` together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.typing.templates import signature

from oxide.compiler.frontend.lowering.common import axes_in_bounds, axis_sites, check_value, index_parts, mark_unchecked
from oxide.compiler.frontend.lowering.primitives import call_primitive, site
from oxide.compiler.frontend.lowering.registry import lowering_registry, proxy
from oxide.compiler.frontend.lowering.shared import check_index, is_shared
from oxide.compiler.frontend.lowering.slices import SliceType, check_indices
from oxide.compiler.frontend.lowering.types import display
from oxide.compiler.frontend.lowering.vectors import aligned
from oxide.compiler.source.fragment_layouts import BITS, Layout
from oxide.language.tensor.fragments import ldmatrix, load, stmatrix, store

from .fragments import WORD, FragmentType, constant, element_at, lane_of, lane_share, whole_warp
from .rules import BYTE_POINTER, VOID, typed
from .shared_tiles import TilesType, swizzled, takes_index

_ROW_BYTES = 16


def _typed(function: Any, problem: Callable[..., str | None]) -> None:
    """Registers the typing of a function with the parameters ``fragment``, ``array``, ``index`` and, in some functions,
    ``transposed``. ``problem`` returns the reason why it refuses the arguments, or None."""
    name = function.__name__
    names = tuple(inspect.signature(function).parameters)

    @typed(function)
    def rule(*kinds: Any) -> Any:
        given = dict(zip(names, kinds, strict=True))
        fragment, transposed = given["fragment"], given.get("transposed", types.literal(False))
        index = given["index"] = types.unliteral(given["index"])
        if not isinstance(fragment, FragmentType):
            return f"tensor.{name}: the fragment is a {display(fragment)}; declare one, as FragmentA((16, 16), bf16)"
        if not isinstance(transposed, types.BooleanLiteral):
            return f"tensor.{name}: transposed is the constant True or False, not {display(transposed)}"
        found = problem(name, fragment, given["array"], index, transposed.literal_value)
        return signature(types.none, *given.values()) if found is None else found


# Matrices in memory


def _name_of(kind: Any) -> str:
    """Returns the name of an array for messages: the parameter's name, or a shared array's type."""
    if isinstance(kind, TilesType):
        return str(kind.name)
    return str(kind.parameter if isinstance(kind, SliceType) else kind.shown)


def _is_slice(kind: Any, *kinds: str) -> bool:
    """Returns whether a type is a slice of two axes or more, of one of the ``kinds``."""
    return isinstance(kind, SliceType) and kind.ndim > 1 and kind.kind in kinds


def _extent(layout: Layout, transposed: bool) -> tuple[int, int]:
    """Returns the number of rows and the number of columns that a fragment's matrix takes in an array."""
    return (layout.columns, layout.rows) if transposed else (layout.rows, layout.columns)


def _matrix_problem(function: str, array: Any, index: Any, fragment: FragmentType, transposed: bool) -> str | None:
    """Returns why an index into an array cannot be the place of a matrix, "" if the reason is noted already, or
    None."""
    name, axes = _name_of(array), len(array.shape) if isinstance(array, TilesType) else array.ndim
    if not 2 <= axes <= 3:
        return f"tensor.{function}: {name} has {axes} axis; a matrix is in the last two axes of an array"
    check = takes_index if isinstance(array, TilesType) else check_index
    if not (check_indices if isinstance(array, SliceType) else check)(array, index):
        return ""
    rows, columns = _extent(fragment.layout, transposed)
    if not isinstance(array, SliceType) and (array.shape[-2] < rows or array.shape[-1] < columns):
        whole = f"{rows} rows and {columns} columns"
        return f"tensor.{function}: {fragment.shown} takes {whole} of the array, which is smaller: {name}"
    return None


def _dtype_problem(function: str, array: Any, fragment: FragmentType) -> str | None:
    """Returns the reason if an array and a fragment have elements of different types."""
    if array.dtype == fragment.dtype:
        return None
    kinds = f"{_name_of(array)} has elements of {display(array.dtype)}, and {fragment.shown} of {fragment.layout.dtype}"
    return f"tensor.{function}: {kinds}; the two are the same"


@final
@dataclass(frozen=True, slots=True)
class _Matrix:
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


def _locate_matrix(
    context: Any, builder: Any, kind: Any, value: Any, index_type: Any, index: Any, rows: int, columns: int
) -> _Matrix:
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
        places = axis_sites(builder, _name_of(kind), len(parts))
        row, column = parts[-2:]
        last = [*parts[:-2], builder.add(row, constant(rows - 1)), builder.add(column, constant(columns - 1))]
        first_inside = axes_in_bounds(builder, list(zip(parts, lengths, strict=True)), places)
        last_inside = axes_in_bounds(builder, list(zip(last, lengths, strict=True)), places)
        inside = builder.and_(first_inside, last_inside)
    offset = None
    for part, length in zip(parts, lengths, strict=True):
        offset = part if offset is None else builder.add(builder.mul(offset, length), part)
    return _Matrix(data, offset, lengths[-1], parts[-2], parts[-1], inside)


# Elements, one by one


def _load_problem(name: str, fragment: FragmentType, array: Any, index: Any, transposed: bool) -> str | None:
    if not is_shared(array) and not _is_slice(array, "slice", "unchecked"):
        return f"tensor.{name} reads a SharedArray, a Slice2 or a Slice3, not {display(array)}"
    problem = _matrix_problem(name, array, index, fragment, transposed)
    return _dtype_problem(name, array, fragment) if problem is None else problem


def _store_problem(name: str, fragment: FragmentType, array: Any, index: Any, transposed: bool) -> str | None:
    if _is_slice(array, "disjoint"):
        return (
            f"tensor.{name}: {array.parameter} is a {array.shown}, where another thread could use the same index; "
            f"store in {array.parameter}.scatter, if no other thread has these elements"
        )
    if not is_shared(array) and not _is_slice(array, "scatter", "unchecked_mut"):
        return f"tensor.{name} writes a SharedArray, or the scatter of a DisjointSlice2 or 3, not {display(array)}"
    problem = _matrix_problem(name, array, index, fragment, False)
    return "" if problem is None and not check_value(array.dtype, fragment.dtype) else problem


_typed(load, _load_problem)
_typed(store, _store_problem)


def _elements(builder: Any, layout: Layout, matrix: _Matrix, transposed: bool) -> list[Any]:
    """Returns the offsets of this lane's elements in an array."""
    row, column = lane_share(builder, layout)[:: -1 if transposed else 1]
    first = builder.add(builder.add(matrix.offset, builder.mul(row, matrix.stride)), column)
    offsets = []
    for number in range(layout.length):
        rows, columns = layout.place(0, number)[:: -1 if transposed else 1]
        below = builder.mul(matrix.stride, constant(rows))
        offsets.append(builder.add(first, builder.add(below, constant(columns))))
    return offsets


@lowering_registry.lower(load, *[types.Any] * 4)
def _lower_load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, array, index_type, flag = sig.args
    transposed = flag.literal_value
    rows, columns = _extent(kind.layout, transposed)
    matrix = _locate_matrix(context, builder, array, args[1], index_type, args[2], rows, columns)
    model = context.data_model_manager[kind.dtype]

    def move() -> None:
        for number, offset in enumerate(_elements(builder, kind.layout, matrix, transposed)):
            loaded = builder.load(builder.gep(matrix.data, [offset]))
            mark_unchecked(builder, loaded)  # the check of the whole matrix covers this element
            builder.store(loaded, element_at(builder, args[0], number))

    if matrix.inside is None:
        move()
        return context.get_dummy_value()
    with builder.if_else(matrix.inside, likely=True) as (then, otherwise):
        with then:
            move()
        with otherwise:
            zero = model.as_data(builder, context.get_constant_null(kind.dtype))
            for number in range(kind.layout.length):
                builder.store(zero, element_at(builder, args[0], number))
    return context.get_dummy_value()


@lowering_registry.lower(store, types.Any, types.Any, types.Any)
def _lower_store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array, index_type, kind = sig.args
    layout = kind.layout
    matrix = _locate_matrix(context, builder, array, args[0], index_type, args[1], layout.rows, layout.columns)
    source, target = context.data_model_manager[kind.dtype], context.data_model_manager[array.dtype]

    def move() -> None:
        for number, offset in enumerate(_elements(builder, layout, matrix, False)):
            value = source.from_data(builder, builder.load(element_at(builder, args[2], number)))
            stored = target.as_data(builder, context.cast(builder, value, kind.dtype, array.dtype))
            mark_unchecked(builder, builder.store(stored, builder.gep(matrix.data, [offset])))

    if matrix.inside is None:
        move()
    else:
        with builder.if_then(matrix.inside, likely=True):
            move()
    return context.get_dummy_value()


# Blocks of 8 rows of 16 bytes


def _block_problem(name: str, fragment: FragmentType, array: Any, index: Any, transposed: bool) -> str | None:
    layout, shown = fragment.layout, fragment.shown
    other = "load" if name == "ldmatrix" else "store"
    if not is_shared(array) and not isinstance(array, TilesType):
        way = "reads" if name == "ldmatrix" else "writes"
        return (
            f"tensor.{name} {way} a SharedArray or SharedTiles, not {display(array)}; tensor.{other} takes slices too"
        )
    if name == "ldmatrix" and layout.kind == "Accumulator":
        return f"tensor.ldmatrix loads a FragmentA or a FragmentB, not {shown}; tensor.load takes every fragment"
    if name == "stmatrix" and (layout.kind == "FragmentB" or BITS[layout.dtype] != 16):
        return (
            f"tensor.stmatrix stores a FragmentA or an Accumulator of f16 or bf16, not {shown}; tensor.store takes "
            "every fragment"
        )
    if not layout.is_of_blocks:
        return f"tensor.{name} moves elements of 8, 16 or 32 bits, not those of {shown}; use tensor.{other}"
    problem = _matrix_problem(name, array, index, fragment, transposed)
    problem = _dtype_problem(name, array, fragment) if problem is None else problem
    if problem is not None:
        return problem
    if _is_turned(layout, transposed) and BITS[layout.dtype] != 16:
        instead = "read it from its transpose, with transposed=True, or " if layout.kind == "FragmentB" else ""
        return (
            f"tensor.{name} cannot turn elements of {layout.dtype}, which have no 16 bits: {instead}use tensor.{other}"
        )
    row = array.shape[-1] * BITS[layout.dtype] // 8
    if row % _ROW_BYTES:
        return (
            f"tensor.{name} needs rows of a multiple of 16 bytes, and those of {array.shown} have {row}; make them "
            f"longer by {(-row % _ROW_BYTES) * 8 // BITS[layout.dtype]}"
        )
    return None


_typed(ldmatrix, _block_problem)
_typed(stmatrix, _block_problem)


def _is_turned(layout: Layout, transposed: bool) -> bool:
    """Returns whether the instruction must transpose the blocks. The fragment of a right operand already has the layout
    of the operand's transpose."""
    return transposed != (layout.kind == "FragmentB")


def _move_blocks(context: Any, builder: Any, name: str, given: dict[str, Any], kinds: dict[str, Any]) -> None:
    kind, array = kinds["fragment"], kinds["array"]
    layout, transposed = kind.layout, kinds["transposed"].literal_value
    rows, columns = _extent(layout, transposed)
    matrix = _locate_matrix(context, builder, array, given["array"], kinds["index"], given["index"], rows, columns)
    per_row = _ROW_BYTES * 8 // BITS[layout.dtype]
    bits = builder.mul(matrix.column, constant(BITS[layout.dtype] // 8))
    problem = (
        f"tensor.{name}(…) needs a column of {_name_of(array)} that is a multiple of {per_row}, so that rows begin at "
        "multiples of 16 bytes"
    )
    good = builder.and_(matrix.inside, aligned(builder, bits, _ROW_BYTES, f"tensor.{name}()", problem))
    place = site(builder, f"tensor.{name}()", whole_warp(name))
    lane = lane_of(builder)
    row = builder.and_(lane, constant(7))
    digits = [builder.and_(builder.lshr(lane, constant(shift)), constant(1)) for shift in (3, 4)]
    zero = constant(0)
    first = builder.select(good, matrix.offset, zero)
    if isinstance(array, TilesType):  # ``first`` becomes the offset of the row, because the swizzle changes the column
        first_row, first_column = (builder.select(good, each, zero) for each in (matrix.row, matrix.column))
        first = builder.sub(first, first_column)

    def move() -> None:
        number = 0
        while number < layout.blocks:
            count = next(size for size in (4, 2, 1) if number + size <= layout.blocks)
            origins = [layout.block(number + each)[:: -1 if transposed else 1] for each in range(count)]
            down, across = (_share(builder, digits, [origin[axis] for origin in origins]) for axis in (0, 1))
            down = builder.add(row, down)
            if isinstance(array, TilesType):
                across = builder.add(first_column, across)
                across = swizzled(builder, builder.add(first_row, down), across, array.bytes)
            offset = builder.add(builder.add(first, builder.mul(down, matrix.stride)), across)
            symbol = f"oxide.tensor.{name}.x{count}{'.trans' * _is_turned(layout, transposed)}"
            addresses = builder.gep(matrix.data, [offset]), element_at(builder, given["fragment"], number * layout.word)
            call_primitive(
                builder, VOID, symbol, tuple(builder.bitcast(each, BYTE_POINTER) for each in addresses), place
            )
            number += count

    if name == "ldmatrix":
        move()
        return
    with builder.if_then(good, likely=True):
        move()


def _share(builder: Any, digits: list[Any], numbers: list[int]) -> Any:
    """Returns the element of ``numbers`` at the position whose binary digits are ``digits``, the lowest first.
    ``numbers`` has one, two or four elements. The emitted code is a sum of products, which LLVM shares between the
    calls for one fragment."""
    share = constant(numbers[0])
    if len(numbers) > 1:
        share = builder.add(share, builder.mul(digits[0], constant(numbers[1] - numbers[0])))
    if len(numbers) > 2:
        share = builder.add(share, builder.mul(digits[1], constant(numbers[2] - numbers[0])))
        rest = numbers[3] - numbers[2] - numbers[1] + numbers[0]
        share = builder.add(share, builder.mul(builder.and_(*digits), constant(rest)))
    return share


def _lower_blocks(function: Any) -> None:
    names = tuple(inspect.signature(function).parameters)

    @lowering_registry.lower(function, *[types.Any] * 4)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given, kinds = dict(zip(names, args, strict=True)), dict(zip(names, sig.args, strict=True))
        _move_blocks(context, builder, function.__name__, given, kinds)
        return context.get_dummy_value()


_lower_blocks(ldmatrix)
_lower_blocks(stmatrix)
