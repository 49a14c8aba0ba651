"""``FragmentA``, ``FragmentB`` and ``Accumulator``: per-thread arrays that LLVM puts in registers.

A fragment is the address of a variable on the stack. The fragment's type contains its shape, so the fragment itself is
one pointer, in a kernel's variables and in a device function's parameters. The primitives of ``mma`` take these
addresses.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.frontend.lowering.common import (
    address,
    check_value,
    element_index,
    has_length,
    in_bounds,
    methods,
    readable,
    writable,
)
from oxide.compiler.frontend.lowering.primitives import call, call_primitive, site
from oxide.compiler.frontend.lowering.registry import (
    bound,
    lowering_registry,
    note,
    note_first,
    parameters,
    typing_registry,
)
from oxide.compiler.frontend.lowering.types import NUMBA_TYPES, display
from oxide.compiler.source.fragment_layouts import ELEMENTS, Layout
from oxide.language.tensor.fragments import Accumulator, FragmentA, FragmentB, convert

BYTES = ir.IntType(8).as_pointer()
WORD = ir.IntType(64)
_NARROW = ir.IntType(32)
_ALIGNMENT = 16


class FragmentType(types.Type):  # type: ignore[misc]
    """The type of a fragment."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.dtype = NUMBA_TYPES[layout.dtype]
        super().__init__(f"{layout.kind}(({layout.rows}, {layout.columns}), {layout.dtype})")

    @property
    def shown(self) -> str:
        return str(self.name)


address(FragmentType)


def _declared(declaration: Any) -> None:
    name = declaration.__name__

    @typing_registry.register_global(declaration)
    class Fragment(AbstractTemplate):  # type: ignore[misc]
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            given = bound(("shape", "dtype"), args, kws)
            if given is None:
                note(f"{name} takes a shape and a dtype, as in {name}((16, 16), bf16)")
                return None
            layout = _layout(name, given["shape"], given["dtype"])
            if layout is None:
                return None
            return signature(FragmentType(layout), given["shape"], given["dtype"]).replace(
                pysig=parameters("shape", "dtype")
            )

    @lowering_registry.lower(declaration, types.Any, types.Any)
    def lower_fragment(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.return_type
        element = context.get_data_type(kind.dtype)
        whole = ir.ArrayType(element, kind.layout.length)
        memory = cgutils.alloca_once(builder, whole, name="fragment")
        memory.align = _ALIGNMENT
        builder.store(ir.Constant(whole, None), memory)  # zeros, each time that the declaration is executed
        return builder.bitcast(memory, element.as_pointer())


for _declaration in (FragmentA, FragmentB, Accumulator):
    _declared(_declaration)


def _layout(name: str, shape: Any, dtype: Any) -> Layout | None:
    """Returns the layout that a declaration asks for. If the declaration is wrong, adds a note and returns None."""
    parts = list(shape) if isinstance(shape, types.BaseTuple) else [shape]
    if len(parts) != 2 or not all(isinstance(part, types.IntegerLiteral) for part in parts):
        # numba tries a second time without the values of constants, so only the note of the first time has the reason.
        note_first(f"the shape of {name} is a pair of constants, the rows and the columns of the warp's matrix")
        return None
    element = display(dtype.dtype) if isinstance(dtype, types.NumberClass) else ""
    allowed = ELEMENTS[name]
    if element not in allowed:
        note(f"the dtype of {name} is one of {', '.join(allowed)}; it is {element or display(dtype)}")
        return None
    rows, columns = (int(part.literal_value) for part in parts)
    layout = Layout(name, rows, columns, element)
    height, width = layout.tile
    if rows < 1 or columns < 1 or rows % height or columns % width:
        note(
            f"the shape of {name}(({rows}, {columns}), {element}) is no multiple of its instruction's: with {element} "
            f"it is a multiple of {height} rows and a multiple of {width} columns"
        )
        return None
    return layout


@has_length(FragmentType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return ir.Constant(WORD, sig.args[0].layout.length)


def _takes_index(kind: FragmentType, index: Any) -> bool:
    if isinstance(types.unliteral(index), types.Integer):
        return True
    note(
        f"an index of {kind.shown} is an integer, the number of this lane's element, not {display(index)}; .row(i) and "
        ".column(i) say where element i is in the matrix"
    )
    return False


def _locate(
    context: Any, builder: Any, kind: FragmentType, value: Any, index_type: Any, index: Any
) -> tuple[Any, Any, Any]:
    number = element_index(builder, index_type, index)
    place = site(builder, kind.shown)
    return in_bounds(builder, number, ir.Constant(WORD, kind.layout.length), place), value, number


readable(FragmentType, _takes_index, _locate)
writable(FragmentType, _takes_index, _locate)


class _Place(AbstractTemplate):  # type: ignore[misc]
    """The base class of the templates that type ``row`` and ``column``."""

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 1 or kws:
            note(f".{self.key.rpartition('.')[2]} of {self.this.shown} takes the number of an element")
            return None
        if not _takes_index(self.this, args[0]):
            return None
        return signature(types.int64, types.unliteral(args[0]), recvr=self.this)


class _Row(_Place):
    key = "oxide.fragment.row"


class _Column(_Place):
    key = "oxide.fragment.column"


class _Fill(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True
    key = "oxide.fragment.fill"

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 1 or kws:
            note(f".fill of {self.this.shown} takes one value")
            return None
        if not check_value(self.this.dtype, args[0]):
            return None
        return signature(types.none, types.unliteral(args[0]), recvr=self.this)


methods(FragmentType, row=_Row, column=_Column, fill=_Fill)


@lowering_registry.lower("oxide.fragment.fill", FragmentType, types.Any)
def _lower_fill(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    value = context.cast(builder, args[1], sig.args[1], kind.dtype)
    for index in range(kind.layout.length):
        context.pack_value(builder, kind.dtype, value, element_at(builder, args[0], index))
    return context.get_dummy_value()


@typing_registry.register_global(convert)
class Convert(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound(("fragment", "accumulator"), args, kws)
        if given is None:
            note_first("tensor.convert takes (fragment, accumulator)")
            return None
        kinds = list(given.values())
        to, source = (kind.layout if isinstance(kind, FragmentType) else None for kind in kinds)
        if (
            to is None
            or source is None
            or to.kind == "FragmentB"
            or to.dtype not in ("f16", "bf16")
            or (source.kind, source.dtype) != ("Accumulator", "f32")
            or (to.rows, to.columns) != (source.rows, source.columns)
        ):
            note_first(
                "tensor.convert rounds an Accumulator of f32 to a FragmentA or Accumulator of f16 or bf16 with the "
                f"same shape; it got {display(kinds[0])} and {display(kinds[1])}"
            )
            return None
        return signature(types.none, *kinds).replace(pysig=parameters("fragment", "accumulator"))


@lowering_registry.lower(convert, FragmentType, FragmentType)
def _lower_convert(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    to, _ = sig.args
    for index in range(0, to.layout.length, 2):
        pair = [builder.load(element_at(builder, args[1], index + i)) for i in range(2)]
        word = call(builder, f"oxide.{to.layout.dtype}.narrow_pair", _NARROW, *pair)
        address = builder.bitcast(element_at(builder, args[0], index), _NARROW.as_pointer())
        builder.store(word, address, align=4)
    return context.get_dummy_value()


@lowering_registry.lower("oxide.fragment.row", FragmentType, types.Integer)
def _lower_row(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _place(builder, sig, args, 0)


@lowering_registry.lower("oxide.fragment.column", FragmentType, types.Integer)
def _lower_column(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _place(builder, sig, args, 1)


def _place(builder: Any, sig: Any, args: Any, axis: int) -> Any:
    """Returns the row (``axis`` 0) or the column (``axis`` 1) of an element, as ``Layout.place`` does. The result is
    the row or column of the lane's first element plus one term for each digit of the element's number. The digits are
    the row and the column of the tile, the word, and the position in the word."""
    layout = sig.args[0].layout
    index = element_index(builder, sig.args[1], args[1])
    height, width = layout.tile

    def digit(step: int, count: int) -> Any:
        return builder.urem(builder.udiv(index, constant(step)), constant(count))

    words, across = layout.tile_length // layout.word, layout.tiles[1]
    tile_row, tile_column = digit(layout.tile_length * across, layout.tiles[0]), digit(layout.tile_length, across)
    within = digit(1, layout.word)
    if layout.kind == "FragmentB":
        terms = [(tile_column, width)]
        if axis == 0:
            terms = [(tile_row, height), (digit(layout.word, words), 4 * layout.word), (within, 1)]
    else:
        terms = [(tile_row, height), (digit(layout.word, min(words, 2)), 8)]
        if axis == 1:
            terms = [(tile_column, width), (digit(2 * layout.word, max(words // 2, 1)), 4 * layout.word), (within, 1)]
    place = lane_share(builder, layout)[axis]
    for number, size in terms:
        place = builder.add(place, builder.mul(number, constant(size)))
    return place


def constant(number: int) -> Any:
    """Returns a 64-bit integer constant."""
    return ir.Constant(WORD, number)


def lane_of(builder: Any) -> Any:
    """Returns the number of this lane in its warp, as a 64-bit integer."""
    return builder.zext(call_primitive(builder, _NARROW, "llvm.nvvm.read.ptx.sreg.laneid", ()), WORD)


def lane_share(builder: Any, layout: Layout) -> tuple[Any, Any]:
    """Returns the row and the column of this lane's first element."""
    lane = lane_of(builder)
    group = builder.lshr(lane, constant(2))
    thread = builder.mul(builder.and_(lane, constant(3)), constant(layout.word))
    return (thread, group) if layout.kind == "FragmentB" else (group, thread)


def element_at(builder: Any, fragment: Any, index: int) -> Any:
    """Returns the address of an element whose number is known at compile time."""
    return builder.gep(fragment, [constant(index)])
