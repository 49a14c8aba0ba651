"""``FragmentA``, ``FragmentB`` and ``Accumulator``, per-thread arrays that LLVM puts in registers, and their products.

A fragment is the address of a variable on the stack. The fragment's type contains its shape, so the fragment itself is
one pointer, in a kernel's variables and in a device function's parameters. The primitives of ``mma`` take these
addresses.

A fragment may have several tiles. ``mma`` then calls a primitive for each tile of the accumulator and each step along
k. All calls of one step come before all calls of the next step, so that consecutive instructions add to different
accumulators.
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
from oxide.compiler.frontend.lowering.primitives import call, call_primitive, register, site
from oxide.compiler.frontend.lowering.registry import lowering_registry, note
from oxide.compiler.frontend.lowering.types import NUMBA_TYPES, display
from oxide.compiler.ir.half import TF32
from oxide.compiler.primitives import table
from oxide.compiler.source.fragment_layouts import ELEMENTS, PRODUCTS, Layout, instruction
from oxide.compiler.source.typings import Signature
from oxide.language.tensor.fragments import Accumulator, FragmentA, FragmentB, convert, mma, tf32

from .rules import BYTE_POINTER, VOID, typed

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

    @typed(declaration, f"{name} takes a shape and a dtype, as in {name}((16, 16), bf16)")
    def rule(shape: Any, dtype: Any) -> Any:
        parts = list(shape) if isinstance(shape, types.BaseTuple) else [shape]
        if len(parts) != 2 or not all(isinstance(part, types.IntegerLiteral) for part in parts):
            return f"the shape of {name} is a pair of constants, the rows and the columns of the warp's matrix"
        element = display(dtype.dtype) if isinstance(dtype, types.NumberClass) else ""
        allowed = ELEMENTS[name]
        if element not in allowed:
            return f"the dtype of {name} is one of {', '.join(allowed)}; it is {element or display(dtype)}"
        rows, columns = (int(part.literal_value) for part in parts)
        layout = Layout(name, rows, columns, element)
        height, width = layout.tile
        if rows < 1 or columns < 1 or rows % height or columns % width:
            return (
                f"the shape of {name}(({rows}, {columns}), {element}) is no multiple of its instruction's: with "
                f"{element} it is a multiple of {height} rows and a multiple of {width} columns"
            )
        return signature(FragmentType(layout), shape, dtype)

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


@typed(convert)
def _convert(fragment: Any, accumulator: Any) -> Any:
    to, source = (kind.layout if isinstance(kind, FragmentType) else None for kind in (fragment, accumulator))
    if (
        to is None
        or source is None
        or to.kind == "FragmentB"
        or to.dtype not in ("f16", "bf16")
        or (source.kind, source.dtype) != ("Accumulator", "f32")
        or (to.rows, to.columns) != (source.rows, source.columns)
    ):
        return (
            "tensor.convert rounds an Accumulator of f32 to a FragmentA or Accumulator of f16 or bf16 with the same "
            f"shape; it got {display(fragment)} and {display(accumulator)}"
        )
    return signature(types.none, fragment, accumulator)


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


# Products


@typed(mma, "tensor.mma takes an Accumulator, a FragmentA and a FragmentB, as in tensor.mma(c, a, b)")
def _mma(c: Any, a: Any, b: Any) -> Any:
    for name, kind, found in (("c", "Accumulator", c), ("a", "FragmentA", a), ("b", "FragmentB", b)):
        if not isinstance(found, FragmentType) or found.layout.kind != kind:
            return f"{name} of tensor.mma(c, a, b) is a{'n' * (kind[0] == 'A')} {kind}, not {display(found)}"
    problem = _product_problem(c.layout, a.layout, b.layout)
    if problem is not None:
        return f"tensor.mma({c.shown}, {a.shown}, {b.shown}): {problem}"
    return signature(types.none, c, a, b)


def _product_problem(c: Layout, a: Layout, b: Layout) -> str | None:
    """Returns the reason why fragments cannot be multiplied. Returns None if they can be."""
    allowed = PRODUCTS.get((a.dtype, b.dtype))
    if allowed is None:
        return f"the operands are of one type, or of two of 8 bits of one kind; they are of {a.dtype} and {b.dtype}"
    if c.dtype not in allowed:
        return f"operands of {a.dtype} add to an Accumulator of {' or '.join(allowed)}; it is of {c.dtype}"
    if a.columns != b.rows:
        return f"a has {a.columns} columns and b {b.rows} rows; the two are the same"
    if (c.rows, c.columns) != (a.rows, b.columns):
        return f"the product has shape ({a.rows}, {b.columns}), and c ({c.rows}, {c.columns})"
    return None


def whole_warp(name: str) -> str:
    """Returns the message of the fault that is recorded if only some lanes of the warp call a function."""
    return (
        f"tensor.{name}(…) needs all 32 lanes of the warp at this call, and some have returned, do not exist, or make "
        "another call"
    )


@lowering_registry.lower(mma, FragmentType, FragmentType, FragmentType)
def _lower_mma(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    c, a, b = (kind.layout for kind in sig.args)
    symbol = f"oxide.tensor.mma.{instruction(a, b, c)}"
    place = site(builder, "tensor.mma()", whole_warp("mma"))
    (rows, depth), columns = a.tiles, b.tiles[1]
    for k in range(depth):
        for row in range(rows):
            for column in range(columns):
                tiles = (row * columns + column, row * depth + k, k * columns + column)
                addresses = [
                    builder.bitcast(element_at(builder, fragment, tile * layout.tile_length), BYTE_POINTER)
                    for fragment, tile, layout in zip(args, tiles, (c, a, b), strict=True)
                ]
                call_primitive(builder, VOID, symbol, tuple(addresses), place)
    return context.get_dummy_value()


def _typed_tf32(name: str, kinds: tuple[str, ...]) -> Signature | str:
    if kinds[0] in ("f32", table.OPEN):
        return Signature(("f32",), "f32")
    return f"{name} takes an f32, not {table.shown(kinds)}; convert it, as in f32(x)"


register(table.Primitive(tf32, _typed_tf32, TF32))
