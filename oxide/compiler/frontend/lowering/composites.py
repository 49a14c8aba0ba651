"""Values of several named numbers, of which vectors are those of one type: their form, their conversion, their memory.

A composite is numba's named tuple (``ComponentsType``), so that fields, constant indices and unpacking are those of
tuples. In memory, fields lie as NumPy aligns them. A vector of 2, 4, 8 or 16 bytes is one access, which each launch has
made possible (``Parameter.alignment``); any other is loaded and stored by component.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model

from .registry import lowering_registry
from .types import ComponentsType, HalfType

_PLACE: Final = ir.IntType(32)
_WIDEST: Final = 16


register_model(ComponentsType)(core_models.UniTupleModel)


def components(builder: Any, kind: Any, value: Any) -> list[Any]:
    """Returns a vector's components."""
    return [builder.extract_value(value, place) for place in range(kind.count)]


def packed(builder: Any, kind: Any, parts: Iterable[Any], context: Any) -> Any:
    """Returns the vector of the given components."""
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
    element = context.get_data_type(dtype)
    size = int(context.get_abi_sizeof(element))
    if isinstance(dtype, ComponentsType) and _is_one_access(context, dtype):
        return size
    return int(context.get_abi_alignment(element))


def _is_one_access(context: Any, kind: Any) -> bool:
    size = int(context.get_abi_sizeof(context.get_data_type(kind)))
    real = isinstance(kind.dtype, types.Number | HalfType | types.Boolean) and not isinstance(kind.dtype, types.Complex)
    return real and size <= _WIDEST and size & (size - 1) == 0


def load_element(context: Any, builder: Any, dtype: Any, address: Any, mark: Any = None) -> Any:
    """Returns the number or the vector at an address. ``mark(instruction)`` is called with each load."""
    mark = mark or (lambda access: None)
    if not isinstance(dtype, ComponentsType):
        loaded = builder.load(address)
        mark(loaded)
        return context.data_model_manager[dtype].from_data(builder, loaded)
    model = context.data_model_manager[dtype.dtype]
    if _is_one_access(context, dtype):
        vector = ir.VectorType(model.get_data_type(), dtype.count)
        loaded = builder.load(builder.bitcast(address, vector.as_pointer()))
        loaded.align = alignment_of(context, dtype)
        mark(loaded)
        parts = [builder.extract_element(loaded, _PLACE(place)) for place in range(dtype.count)]
        return packed(builder, dtype, [model.from_data(builder, part) for part in parts], context)
    places = [_part(builder, address, place) for place in range(dtype.count)]
    return packed(builder, dtype, [load_element(context, builder, dtype.dtype, each, mark) for each in places], context)


def store_element(context: Any, builder: Any, dtype: Any, value: Any, address: Any, mark: Any = None) -> None:
    """Stores a number or a vector at an address. ``mark(instruction)`` is called with each store."""
    mark = mark or (lambda access: None)
    if not isinstance(dtype, ComponentsType):
        mark(builder.store(context.data_model_manager[dtype].as_data(builder, value), address))
        return
    model = context.data_model_manager[dtype.dtype]
    parts = components(builder, dtype, value)
    if _is_one_access(context, dtype):
        vector = ir.VectorType(model.get_data_type(), dtype.count)
        stored = ir.Constant(vector, ir.Undefined)
        for place, part in enumerate(parts):
            stored = builder.insert_element(stored, model.as_data(builder, part), _PLACE(place))
        storing = builder.store(stored, builder.bitcast(address, vector.as_pointer()))
        storing.align = alignment_of(context, dtype)
        mark(storing)
        return
    for place, part in enumerate(parts):
        store_element(context, builder, dtype.dtype, part, _part(builder, address, place), mark)


def _part(builder: Any, address: Any, place: int) -> Any:
    return builder.gep(address, [_PLACE(0), _PLACE(place)])
