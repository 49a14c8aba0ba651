"""``copy_async``, ``commit`` and ``wait``.

A copy is a call of a primitive. The call passes the number of bytes that are inside the source; the primitive fills the
rest with zeros. The primitive needs addresses that are multiples of the number of copied bytes. A slice does not
guarantee this, so at other addresses the elements are copied one by one.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import signature

from oxide.compiler.frontend.lowering.common import mark_unchecked
from oxide.compiler.frontend.lowering.primitives import register
from oxide.compiler.frontend.lowering.registry import lowering_registry, value_if
from oxide.compiler.frontend.lowering.shared import check_index, is_shared, locate
from oxide.compiler.frontend.lowering.slices import SliceType, check_indices, element_of
from oxide.compiler.frontend.lowering.types import display
from oxide.compiler.frontend.lowering.vectors import address_bits, aligned, end_of
from oxide.compiler.primitives.table import NONE, Primitive, returning
from oxide.language.tensor.fragments import commit, copy_async, wait

from ..primitives import call_primitive, site
from .fragments import constant
from .rules import BYTE_POINTER, VOID, emitted, typed

_NARROW = ir.IntType(32)
_SIZES = (4, 8, 16)


@typed(copy_async)
def _copy_async(array: Any, index: Any, source: Any, source_index: Any, count: Any) -> Any:
    if not is_shared(array):
        return f"tensor.copy_async copies to a SharedArray, not to {display(array)}"
    if not (isinstance(source, SliceType) and source.kind == "slice"):
        return f"tensor.copy_async copies from a Slice, a Slice2 or a Slice3, not from {display(source)}"
    if source.dtype != array.dtype:
        kinds = f"{display(source.dtype)}, and {array.shown} of {display(array.dtype)}"
        return f"tensor.copy_async: {source.parameter} has elements of {kinds}; the two are the same"
    if not isinstance(count, types.IntegerLiteral):
        return f"tensor.copy_async: the count is a constant, not {display(count)}"
    size = _bytes_of(array.dtype)
    if count.literal_value * size not in _SIZES:
        fitting = ", ".join(str(each // size) for each in _SIZES if each >= size)
        return (
            f"tensor.copy_async copies 4, 8 or 16 bytes, and {count.literal_value} elements of "
            f"{display(array.dtype)} take {count.literal_value * size}; the count is one of {fitting}"
        )
    moved, row = int(count.literal_value) * size, array.shape[-1] * size
    if array.ndim > 1 and row % moved:
        return f"tensor.copy_async needs rows of a multiple of {moved} bytes, and those of {array.shown} have {row}"
    place, source_place = types.unliteral(index), types.unliteral(source_index)
    if not check_index(array, place) or not check_indices(source, source_place):
        return ""
    return signature(types.none, array, place, source, source_place, count)


def _bytes_of(dtype: Any) -> int:
    return 1 if isinstance(dtype, types.Boolean) else int(dtype.bitwidth) // 8


@lowering_registry.lower(copy_async, types.Any, types.Any, types.Any, types.Any, types.Any)
def _lower_copy_async(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array, index_type, source, source_index_type, count_type = sig.args
    count, size = int(count_type.literal_value), _bytes_of(array.dtype)
    moved = count * size
    inside, offset = locate(context, builder, array, index_type, args[1])
    end_type, end = end_of(builder, index_type, args[1], constant(count - 1))
    inside = builder.and_(inside, locate(context, builder, array, end_type, end)[0])
    problem = f"tensor.copy_async(…) needs an index of {array.shown} that is a multiple of {count}"
    bits = builder.mul(offset, constant(size))
    good = builder.and_(inside, aligned(builder, bits, moved, "tensor.copy_async()", problem))
    place = site(builder, "tensor.copy_async()")
    data, source_offset, places = element_of(context, builder, source, args[2], source_index_type, args[3])
    *rows, (column, length) = places
    within = ir.Constant(ir.IntType(1), 1)
    for part, axis_length in rows:
        within = builder.and_(within, builder.icmp_unsigned("<", part, axis_length))
    address_low = address_bits(context, builder, source, data, source_offset, column, length, count)
    is_multiple = builder.icmp_unsigned("==", builder.and_(address_low, constant(moved - 1)), constant(0))
    is_easy = builder.and_(is_multiple, builder.icmp_signed(">=", column, constant(0)))
    target = builder.gep(args[0], [offset])
    zero = context.data_model_manager[array.dtype].as_data(builder, context.get_constant_null(array.dtype))

    def element(step: Any) -> Any:
        """Returns an element of the source, or a zero if it is outside of the source."""
        there = builder.and_(within, builder.icmp_unsigned("<", builder.add(column, step), length))

        def load() -> Any:
            loaded = builder.load(builder.gep(data, [builder.add(source_offset, step)]))
            mark_unchecked(builder, loaded)
            return loaded

        return value_if(builder, there, load, zero)

    with builder.if_then(good, likely=True), builder.if_else(is_easy, likely=True) as (then, otherwise):
        with then:
            left = builder.sub(length, column)
            whole = builder.icmp_signed(">=", left, constant(count))
            none = builder.icmp_signed("<=", left, constant(0))
            inside_row = builder.select(whole, constant(count), builder.select(none, constant(0), left))
            elements = builder.select(within, inside_row, constant(0))
            taken = builder.trunc(builder.mul(elements, constant(size)), _NARROW)
            addresses = [builder.bitcast(each, BYTE_POINTER) for each in (target, builder.gep(data, [source_offset]))]
            copy = call_primitive(builder, VOID, f"oxide.tensor.copy_async.{moved}", (*addresses, taken), place)
            mark_unchecked(builder, copy)  # the copy reads only bytes inside the source
        with otherwise:
            for step in map(constant, range(count)):
                builder.store(element(step), builder.gep(target, [step]))
    return context.get_dummy_value()


register(Primitive(commit, returning(NONE), has_site=True))


@typed(wait)
def _wait(groups: Any) -> Any:
    if not isinstance(groups, types.IntegerLiteral) or groups.literal_value < 0:
        return f"tensor.wait takes a constant number of groups, 0 or more, not {display(groups)}"
    return signature(types.none, groups)


@lowering_registry.lower(wait, types.Any)
def _lower_wait(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return emitted(context, builder, f"oxide.tensor.wait.{sig.args[0].literal_value}", "tensor.wait()")
