"""``ldmatrix``, ``load``, ``store`` and ``stmatrix``: copies of matrices between memory and fragments.

``load`` and ``store`` are plain loads and stores of this lane's elements. ``ldmatrix`` and ``stmatrix`` are calls of
primitives. Each call moves up to four blocks of 8 rows of 16 bytes, and lane l passes the address of row ``l % 8`` of
block ``l // 8``. If a matrix is out of bounds, the lane passes addresses as if the matrix began at the array's first
element, so that all lanes can execute ``ldmatrix`` together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.frontend.lowering.common import check_value, mark_unchecked
from oxide.compiler.frontend.lowering.primitives import call_primitive, site
from oxide.compiler.frontend.lowering.registry import bound, first_parameters, lowering_registry, note, typing_registry
from oxide.compiler.frontend.lowering.types import display
from oxide.compiler.frontend.lowering.vectors import aligned
from oxide.compiler.source.fragment_layouts import BITS, Layout
from oxide.language.tensor.copies import ldmatrix, load, stmatrix, store

from .fragments import BYTES, FragmentType, constant, element_at, lane_of, lane_share
from .matrices import (
    Matrix,
    extent,
    is_constant_truth,
    is_matrix,
    is_shared,
    is_slice,
    locate_matrix,
    name_of,
    same_dtype,
)
from .mma import whole_warp
from .shared_tiles import TilesType, swizzled

_VOID = ir.VoidType()
_ROW_BYTES = 16


def _typed(function: Any, problem: Callable[..., bool]) -> None:
    """Registers the typing of a function with the parameters ``fragment``, ``array``, ``index`` and, in some functions,
    ``transposed``. ``problem`` adds a note and returns True if it refuses the arguments."""
    name = function.__name__
    names = tuple(inspect.signature(function).parameters)

    @typing_registry.register_global(function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            given = bound(names, args, kws, optional=len(names) - 3)
            if given is None:
                note(f"tensor.{name} takes {', '.join(names[:3])}" + " and transposed" * (len(names) > 3))
                return None
            fragment, array, index = (given[each] for each in ("fragment", "array", "index"))
            if not isinstance(fragment, FragmentType):
                note(f"tensor.{name}: the fragment is a {display(fragment)}; declare one, as FragmentA((16, 16), bf16)")
                return None
            plain = types.unliteral(index)
            transposed = given.get("transposed")
            if transposed is not None and not is_constant_truth(name, transposed):
                return None
            if problem(name, fragment, array, plain, _truth(transposed)):
                return None
            every = [plain if each == "index" else given[each] for each in names[: len(given)]]
            return signature(types.none, *every).replace(pysig=first_parameters(function, len(given)))


def _truth(transposed: Any) -> bool:
    return transposed is not None and bool(transposed.literal_value)


# Elements, one by one


def _load_problem(name: str, fragment: FragmentType, array: Any, index: Any, transposed: bool) -> bool:
    if not is_shared(array) and not is_slice(array, "slice", "unchecked"):
        note(f"tensor.{name} reads a SharedArray, a Slice2 or a Slice3, not {display(array)}")
        return True
    return not (is_matrix(name, array, index, fragment, transposed) and same_dtype(name, array, fragment))


def _store_problem(name: str, fragment: FragmentType, array: Any, index: Any, transposed: bool) -> bool:
    if is_slice(array, "disjoint"):
        note(
            f"tensor.{name}: {array.parameter} is a {array.shown}, where another thread could use the same index; "
            f"store in {array.parameter}.scatter, if no other thread has these elements"
        )
        return True
    if not is_shared(array) and not is_slice(array, "scatter", "unchecked_mut"):
        note(f"tensor.{name} writes a SharedArray, or the scatter of a DisjointSlice2 or 3, not {display(array)}")
        return True
    return not (is_matrix(name, array, index, fragment, False) and check_value(array.dtype, fragment.dtype))


_typed(load, _load_problem)
_typed(store, _store_problem)


def _elements(builder: Any, layout: Layout, matrix: Matrix, transposed: bool) -> list[Any]:
    """Returns the offsets of this lane's elements in an array."""
    row, column = lane_share(builder, layout)[:: -1 if transposed else 1]
    first = builder.add(builder.add(matrix.offset, builder.mul(row, matrix.stride)), column)
    offsets = []
    for number in range(layout.length):
        rows, columns = layout.place(0, number)[:: -1 if transposed else 1]
        below = builder.mul(matrix.stride, constant(rows))
        offsets.append(builder.add(first, builder.add(below, constant(columns))))
    return offsets


def _lower_load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, array = sig.args[:2]
    transposed = len(sig.args) > 3 and _truth(sig.args[3])
    rows, columns = extent(kind.layout, transposed)
    matrix = locate_matrix(context, builder, array, args[1], sig.args[2], args[2], rows, columns)
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


for _count in (3, 4):
    lowering_registry.lower(load, *[types.Any] * _count)(_lower_load)


@lowering_registry.lower(store, types.Any, types.Any, types.Any)
def _lower_store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array, index_type, kind = sig.args
    layout = kind.layout
    matrix = locate_matrix(context, builder, array, args[0], index_type, args[1], layout.rows, layout.columns)
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


def _block_problem(name: str, fragment: FragmentType, array: Any, index: Any, transposed: bool) -> bool:
    """Returns whether the arguments of ``ldmatrix`` or ``stmatrix`` are refused. If so, adds a note with the reason."""
    layout, shown = fragment.layout, fragment.shown
    other = "load" if name == "ldmatrix" else "store"
    if not is_shared(array) and not isinstance(array, TilesType):
        way = "reads" if name == "ldmatrix" else "writes"
        note(f"tensor.{name} {way} a SharedArray or SharedTiles, not {display(array)}; tensor.{other} takes slices too")
        return True
    if name == "ldmatrix" and layout.kind == "Accumulator":
        note(f"tensor.ldmatrix loads a FragmentA or a FragmentB, not {shown}; tensor.load takes every fragment")
        return True
    if name == "stmatrix" and (layout.kind == "FragmentB" or BITS[layout.dtype] != 16):
        note(
            f"tensor.stmatrix stores a FragmentA or an Accumulator of f16 or bf16, not {shown}; tensor.store takes "
            "every fragment"
        )
        return True
    if not layout.is_of_blocks:
        note(f"tensor.{name} moves elements of 8, 16 or 32 bits, not those of {shown}; use tensor.{other}")
        return True
    if not (is_matrix(name, array, index, fragment, transposed) and same_dtype(name, array, fragment)):
        return True
    if _is_turned(layout, transposed) and BITS[layout.dtype] != 16:
        instead = "read it from its transpose, with transposed=True, or " if layout.kind == "FragmentB" else ""
        note(
            f"tensor.{name} cannot turn elements of {layout.dtype}, which have no 16 bits: {instead}use tensor.{other}"
        )
        return True
    row = array.shape[-1] * BITS[layout.dtype] // 8
    if row % _ROW_BYTES:
        note(
            f"tensor.{name} needs rows of a multiple of 16 bytes, and those of {array.shown} have {row}; make them "
            f"longer by {(-row % _ROW_BYTES) * 8 // BITS[layout.dtype]}"
        )
        return True
    return False


_typed(ldmatrix, _block_problem)
_typed(stmatrix, _block_problem)


def _is_turned(layout: Layout, transposed: bool) -> bool:
    """Returns whether the instruction must transpose the blocks. The fragment of a right operand already has the layout
    of the operand's transpose."""
    return transposed != (layout.kind == "FragmentB")


def _move_blocks(context: Any, builder: Any, name: str, given: dict[str, Any], kinds: dict[str, Any]) -> None:
    kind, array = kinds["fragment"], kinds["array"]
    layout, transposed = kind.layout, _truth(kinds.get("transposed"))
    rows, columns = extent(layout, transposed)
    matrix = locate_matrix(context, builder, array, given["array"], kinds["index"], given["index"], rows, columns)
    per_row = _ROW_BYTES * 8 // BITS[layout.dtype]
    bits = builder.mul(matrix.column, constant(BITS[layout.dtype] // 8))
    problem = (
        f"tensor.{name}(…) needs a column of {name_of(array)} that is a multiple of {per_row}, so that rows begin at "
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
            call_primitive(builder, _VOID, symbol, tuple(builder.bitcast(each, BYTES) for each in addresses), place)
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

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given, kinds = dict(zip(names, args, strict=False)), dict(zip(names, sig.args, strict=False))
        _move_blocks(context, builder, function.__name__, given, kinds)
        return context.get_dummy_value()

    for count in (3, 4):
        lowering_registry.lower(function, *[types.Any] * count)(lower)


_lower_blocks(ldmatrix)
_lower_blocks(stmatrix)
