"""``load2`` … ``store4``, and ``is_aligned``.

A vector access is one load or store of an LLVM vector type. Each back end turns it into its widest instruction. The
bounds of the first and of the last element are checked as two accesses, so that they can be proved like any other
access. The alignment is checked by the low bits of the address. If the index is a multiple of the vector's size, LLVM
reduces this check to one test of the slice. An access without bounds checks still has the check of its alignment, which
costs nothing where a kernel tests ``is_aligned`` first.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.ir.recognise import bounds_check

from .common import axis_sites, check_value, index_parts, mark_unchecked, methods
from .primitives import call_primitive, site
from .registry import lowering_registry, note, proxy, value_if
from .shared import BlockArrayType, check_index, locate
from .slices import SliceType, axes_inside, element_of, lengths_of, note_read_only
from .types import display

_WORD = ir.IntType(64)
_SITE = ir.IntType(32)
_BIT = ir.IntType(1)
_WIDEST = 16
_METHODS = {"load2": 2, "load4": 4, "store2": 2, "store4": 4}


class IsAligned(AbstractTemplate):  # type: ignore[misc]
    key = "oxide.slice.is_aligned"
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if (
            len(args) != 1
            or kws
            or not isinstance(args[0], types.IntegerLiteral)
            or args[0].literal_value not in (2, 4)
        ):
            note(f"{self.this.parameter}.is_aligned takes 2 or 4, the number of elements of a vector, as a constant")
            return None
        return signature(types.boolean, *args, recvr=self.this)


@lowering_registry.lower("oxide.slice.is_aligned", SliceType, types.Any)
def _lower_is_aligned(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, count = sig.args
    view = proxy(context, builder, kind, args[0])
    if kind.ndim > 1:
        length = lengths_of(builder, kind, view)[-1]
        return _rows_aligned(context, builder, kind, view.data, length, int(count.literal_value))
    return _begins_aligned(context, builder, kind, view.data, int(count.literal_value))


def _rows_aligned(context: Any, builder: Any, kind: Any, data: Any, length: Any, count: int) -> Any:
    """Returns whether every row begins at an aligned address. The first row must be aligned, and ``length``, the number
    of elements in a row, must be a multiple of ``count``, the number of elements in a vector."""
    within = builder.and_(length, ir.Constant(_WORD, count - 1))
    multiple = builder.icmp_unsigned("==", within, ir.Constant(_WORD, 0))
    return builder.and_(_begins_aligned(context, builder, kind, data, count), multiple)


def _begins_aligned(context: Any, builder: Any, kind: Any, data: Any, count: int) -> Any:
    below = ir.Constant(_WORD, _alignment(context, kind.dtype, count) - 1)
    return builder.icmp_unsigned("==", builder.and_(builder.ptrtoint(data, _WORD), below), ir.Constant(_WORD, 0))


def _make_template(name: str) -> Any:
    count, is_store = _METHODS[name], name.startswith("store")

    class Method(AbstractTemplate):  # type: ignore[misc]
        key = f"oxide.vector.{name}"

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            kind = self.this
            if len(args) != 1 + (count if is_store else 0) or kws:
                note(f".{name} takes an index{f' and {count} values' if is_store else ''}, by position")
                return None
            if not isinstance(kind.dtype, types.Number) or isinstance(kind.dtype, types.Complex):
                note(f".{name} moves real numbers, not {display(kind.dtype)}")
                return None
            index, *values = (types.unliteral(argument) for argument in args)
            if not check_index(kind, index):
                return None
            if not all(check_value(kind.dtype, value) for value in args[1:]):
                return None
            result = types.none if is_store else types.UniTuple(kind.dtype, count)
            return signature(result, index, *values, recvr=kind)

    return Method


def _has_vectors(kind: Any, name: str) -> bool:
    if kind.kind in ("atomic", "scatter"):
        return False
    if kind.kind == "LocalArray":
        note(f"a LocalArray is in registers and has no .{name}; read and write it with [...]")
        return False
    if kind.kind == "disjoint":
        shown = kind.parameter
        note(
            f"{shown} is a {kind.shown}, which has no .{name}: another thread could use the same index. Reach this "
            f"thread's elements with {shown}.get_mut(…), or, where you know better, use "
            f"{shown}.unchecked_mut.{name}(…)"
        )
        return False
    if name.startswith("store") and kind.kind in ("slice", "unchecked", "streaming"):
        note_read_only(kind)
        return False
    return True


methods(SliceType, BlockArrayType, has=_has_vectors, **{name: _make_template(name) for name in _METHODS})
methods(SliceType, has=lambda kind, name: kind.kind in ("slice", "disjoint"), is_aligned=IsAligned)


def _lower_load(kind: Any, name: str) -> None:
    @lowering_registry.lower(f"oxide.vector.{name}", kind, types.Any)
    def lower_load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        dtype, count = sig.args[0].dtype, _METHODS[name]
        element = context.get_data_type(dtype)
        vector = ir.VectorType(element, count)
        checked, address = _locate(context, builder, sig, args, name)
        zeros = ir.Constant(vector, [context.get_constant_null(dtype)] * count)

        def load() -> Any:
            loaded = builder.load(builder.bitcast(address, vector.as_pointer()))
            loaded.align = _alignment(context, dtype, count)
            _mark(builder, sig.args[0], loaded)
            return loaded

        loaded = value_if(builder, checked, load, zeros)
        elements = [builder.extract_element(loaded, ir.Constant(_SITE, place)) for place in range(count)]
        model = context.data_model_manager[dtype]
        return context.make_tuple(builder, sig.return_type, [model.from_data(builder, element) for element in elements])


def _lower_store(kind: Any, name: str) -> None:
    count = _METHODS[name]

    @lowering_registry.lower(f"oxide.vector.{name}", kind, *([types.Any] * (1 + count)))
    def lower_store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        dtype = sig.args[0].dtype
        vector = ir.VectorType(context.get_data_type(dtype), count)
        model = context.data_model_manager[dtype]
        stored = ir.Constant(vector, ir.Undefined)
        for place, (value, value_type) in enumerate(zip(args[2:], sig.args[2:], strict=True)):
            element = model.as_data(builder, context.cast(builder, value, value_type, dtype))
            stored = builder.insert_element(stored, element, ir.Constant(_SITE, place))
        checked, address = _locate(context, builder, sig, args, name)
        with builder.if_then(checked, likely=True):
            storing = builder.store(stored, builder.bitcast(address, vector.as_pointer()))
            storing.align = _alignment(context, dtype, count)
            _mark(builder, sig.args[0], storing)
        return context.get_dummy_value()


def _mark(builder: Any, kind: Any, access: Any) -> None:
    """Marks a load or store as unchecked or as streaming, by the kind of the accessed slice. The streaming mark is a
    hint that a back end may ignore, and nothing else in the IR depends on it."""
    if kind.kind.startswith(("unchecked", "streaming")):
        mark_unchecked(builder, access)
    if kind.kind.startswith("streaming"):
        access.set_metadata("oxide.streaming", builder.module.add_metadata([_BIT(1)]))


for _kind in (SliceType, BlockArrayType):
    for _name in ("load2", "load4"):
        _lower_load(_kind, _name)
    for _name in ("store2", "store4"):
        _lower_store(_kind, _name)


def _locate(context: Any, builder: Any, sig: Any, args: Any, name: str) -> tuple[Any, Any]:
    """Emits the checks of the bounds and of the alignment of a vector access. Returns whether the vector may be loaded
    or stored, and the address of its first element."""
    kind, index_type = sig.args[:2]
    last = ir.Constant(_WORD, _METHODS[name] - 1)
    alignment = _alignment(context, kind.dtype, _METHODS[name])
    index = length = None
    if isinstance(kind, BlockArrayType):
        inside, offset = locate(context, builder, kind, index_type, args[1])
        what, data = kind.name, args[0]
        end_type, end = end_of(builder, index_type, args[1], last)
        inside = builder.and_(inside, locate(context, builder, kind, end_type, end)[0])
    else:
        what, inside = kind.parameter, None
        data, offset, places = element_of(context, builder, kind, args[0], index_type, args[1])
        index, length = places[-1]
        if kind.kind == "slice":
            place = axis_sites(builder, kind.parameter, kind.ndim)[-1]
            others = [word for pair in places[:-1] for word in pair]
            inside = axes_inside(builder, kind, places)
            end = builder.add(index, last)
            reached = call_primitive(builder, _BIT, bounds_check(kind.ndim), (end, length, place, *others))
            inside = builder.and_(inside, reached)
    bits = address_bits(context, builder, kind, data, offset, index, length, _METHODS[name])
    problem = (
        f"{what}.{name}(…) needs an address that is a multiple of {alignment} bytes; test is_aligned(…) first, and "
        f"give it an index that is a multiple of {_METHODS[name]}"
    )
    if inside is None:
        return aligned(builder, bits, alignment, what, problem), builder.gep(data, [offset])
    checked = value_if(builder, inside, lambda: aligned(builder, bits, alignment, what, problem), ir.Constant(_BIT, 0))
    return checked, builder.gep(data, [offset])


def address_bits(
    context: Any, builder: Any, kind: Any, data: Any, offset: Any, index: Any, length: Any, count: int
) -> Any:
    """Returns a number whose low bits are those of an element's address. The number is a sum, so that LLVM can drop the
    terms that are multiples of the alignment. For a slice with several axes, ``index`` and ``length`` belong to the
    last axis."""
    # Shared arrays begin at a multiple of 16 bytes, so their base address is left out.
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    bits = builder.mul(offset, ir.Constant(_WORD, size))
    if not isinstance(kind, BlockArrayType):
        bits = builder.add(builder.ptrtoint(data, _WORD), bits)
    if isinstance(kind, SliceType) and kind.ndim > 1:
        # If the rows are aligned, the low bits of ``index * size`` are those of the address. This form shows LLVM that
        # the check always holds where the kernel has tested is_aligned(…).
        rows_aligned = _rows_aligned(context, builder, kind, data, length, count)
        bits = builder.select(rows_aligned, builder.mul(index, ir.Constant(_WORD, size)), bits)
    return bits


def aligned(builder: Any, bits: Any, alignment: int, what: str, problem: str) -> Any:
    """Returns whether an address is a multiple of ``alignment``. If it is not, the emitted code records a fault."""
    low_bits = builder.and_(bits, ir.Constant(_WORD, alignment - 1))
    return call_primitive(builder, _BIT, "oxide.aligned", (low_bits,), site(builder, what, problem))


def end_of(builder: Any, index_type: Any, index: Any, last: Any) -> tuple[Any, Any]:
    """Returns the type and the value of the index of a vector's last element.

    ``index`` is the index of the first element. ``last`` is the distance from the first to the last element on the last
    axis. All axes of the returned index have 64 bits."""
    parts = index_parts(builder, index_type, index)
    parts[-1] = builder.add(parts[-1], last)
    if not isinstance(index_type, types.BaseTuple):
        return types.int64, parts[0]
    return types.UniTuple(types.int64, len(parts)), cgutils.pack_array(builder, parts)


def _alignment(context: Any, dtype: Any, count: int) -> int:
    return int(min(_WIDEST, count * context.get_abi_sizeof(context.get_data_type(dtype))))
