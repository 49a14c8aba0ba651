"""Values of several named numbers, of which vectors are those of one type: their form, their conversion, their memory.

A composite is numba's named tuple (``ComponentsType``), so that fields, constant indices and unpacking are those of
tuples. In memory, fields lie as NumPy aligns them. A vector of 2, 4, 8 or 16 bytes is one access, which each launch has
made possible (``Parameter.alignment``); any other is loaded and stored by component, and a structure by field, so that
LLVM drops the loads of fields that are not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model

from .registry import lowering_registry
from .types import ComponentsType, HalfType, StructuredType

_PLACE: Final = ir.IntType(32)
_WIDEST: Final = 16


register_model(ComponentsType)(core_models.UniTupleModel)
register_model(StructuredType)(core_models.TupleModel)


def components(builder: Any, kind: Any, value: Any) -> list[Any]:
    """Returns a vector's components or a structure's fields."""
    return [builder.extract_value(value, place) for place in range(kind.count)]


def packed(builder: Any, kind: Any, parts: Iterable[Any], context: Any) -> Any:
    """Returns the vector of the given components, or the structure of the given fields."""
    value = ir.Constant(context.get_value_type(kind), ir.Undefined)
    for place, part in enumerate(parts):
        value = builder.insert_value(value, part, place)
    return value


@lowering_registry.lower_cast(ComponentsType, ComponentsType)
def _cast(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    if source == target:
        return value
    parts = [context.cast(builder, part, source.dtype, target.dtype) for part in components(builder, source, value)]
    return packed(builder, target, parts, context)


# Memory


def alignment_of(context: Any, dtype: Any) -> int:
    """Returns the alignment of an element of memory."""
    if isinstance(dtype, StructuredType):
        return dtype.structure.alignment
    element = context.get_data_type(dtype)
    size = int(context.get_abi_sizeof(element))
    if isinstance(dtype, ComponentsType) and _is_one_access(context, dtype):
        return size
    return int(context.get_abi_alignment(element))


def _is_one_access(context: Any, kind: Any) -> bool:
    size = int(context.get_abi_sizeof(context.get_data_type(kind)))
    real = isinstance(kind.dtype, types.Number | HalfType | types.Boolean) and not isinstance(kind.dtype, types.Complex)
    return real and size <= _WIDEST and size & (size - 1) == 0


def load_element(
    context: Any, builder: Any, dtype: Any, address: Any, mark: Any = None, alignment: int | None = None
) -> Any:
    """Returns the number, the vector or the structure at an address. ``mark(instruction)`` is called with each load.
    ``alignment`` is that of the address, if it is not that of an element."""
    if not isinstance(dtype, StructuredType | ComponentsType):
        loaded = builder.load(address)
        if alignment is not None:
            loaded.align = alignment
        if mark is not None:
            mark(loaded)
        return context.data_model_manager[dtype].from_data(builder, loaded)
    alignment = alignment or alignment_of(context, dtype)
    if (
        isinstance(dtype, ComponentsType)
        and _is_one_access(context, dtype)
        and alignment >= alignment_of(context, dtype)
    ):
        model = context.data_model_manager[dtype.dtype]
        vector = ir.VectorType(model.get_data_type(), dtype.count)
        loaded = builder.load(builder.bitcast(address, vector.as_pointer()))
        loaded.align = alignment
        if mark is not None:
            mark(loaded)
        parts = [builder.extract_element(loaded, _PLACE(place)) for place in range(dtype.count)]
        return packed(builder, dtype, [model.from_data(builder, part) for part in parts], context)
    found = [
        load_element(context, builder, kind, where, mark, aligned)
        for kind, where, aligned in _parts(context, builder, dtype, address, alignment)
    ]
    return packed(builder, dtype, found, context)


def store_element(
    context: Any,
    builder: Any,
    dtype: Any,
    value: Any,
    address: Any,
    mark: Any = None,
    alignment: int | None = None,
) -> None:
    """Stores a number, a vector or a structure at an address. ``mark(instruction)`` is called with each store."""
    if not isinstance(dtype, StructuredType | ComponentsType):
        storing = builder.store(context.data_model_manager[dtype].as_data(builder, value), address)
        if alignment is not None:
            storing.align = alignment
        if mark is not None:
            mark(storing)
        return
    alignment = alignment or alignment_of(context, dtype)
    parts = components(builder, dtype, value)
    if (
        isinstance(dtype, ComponentsType)
        and _is_one_access(context, dtype)
        and alignment >= alignment_of(context, dtype)
    ):
        model = context.data_model_manager[dtype.dtype]
        vector = ir.VectorType(model.get_data_type(), dtype.count)
        stored = ir.Constant(vector, ir.Undefined)
        for place, part in enumerate(parts):
            stored = builder.insert_element(stored, model.as_data(builder, part), _PLACE(place))
        storing = builder.store(stored, builder.bitcast(address, vector.as_pointer()))
        storing.align = alignment
        if mark is not None:
            mark(storing)
        return
    places = _parts(context, builder, dtype, address, alignment)
    for part, (kind, where, aligned) in zip(parts, places, strict=True):
        store_element(context, builder, kind, part, where, mark, aligned)


def _parts(context: Any, builder: Any, dtype: Any, address: Any, alignment: int) -> list[tuple[Any, Any, int]]:
    """Returns the type, the address and the alignment of each field or component."""
    element = context.get_data_type(dtype)
    found = []
    for place, kind in enumerate(dtype):
        offset = _offset(context, element, place)
        aligned = math.gcd(alignment, offset) if offset else alignment
        found.append((kind, builder.gep(address, [_PLACE(0), _PLACE(place)]), aligned))
    return found


def _offset(context: Any, element: Any, place: int) -> int:
    if isinstance(element, ir.ArrayType):
        return place * int(context.get_abi_sizeof(element.element))
    offset = 0
    for number, member in enumerate(element.elements):
        step = int(context.get_abi_alignment(member))
        offset = -(-offset // step) * step
        if number == place:
            break
        offset += int(context.get_abi_sizeof(member))
    return offset


def leaves(builder: Any, kind: Any, value: Any) -> list[Any]:
    """Returns the numbers of a structure or a vector in the order of memory. Returns any other value alone."""
    if not isinstance(kind, StructuredType | ComponentsType):
        return [value]
    parts = zip(kind, components(builder, kind, value), strict=True)
    return [leaf for inner, part in parts for leaf in leaves(builder, inner, part)]


def of_leaves(context: Any, builder: Any, kind: Any, values: Iterator[Any]) -> Any:
    """Returns the structure, the vector or the number that ``leaves`` has taken apart."""
    if not isinstance(kind, StructuredType | ComponentsType):
        return next(values)
    return packed(builder, kind, [of_leaves(context, builder, inner, values) for inner in kind], context)
