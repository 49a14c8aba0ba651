"""``a.unchecked[i]``: a read without a bounds check."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from .common import structure
from .registry import lowering_registry, note, proxy, typing_registry
from .slices import SliceType, element_index, elements
from .types import display


class UncheckedSliceType(types.Type):  # type: ignore[misc]
    """The type of ``unchecked``: the read-only slice parameter ``parameter``, accessed without bounds checks."""

    def __init__(self, dtype: Any, parameter: str) -> None:
        self.dtype = dtype
        self.parameter = parameter
        super().__init__(f"UncheckedSlice[{display(dtype)}] {parameter}")


structure(UncheckedSliceType, members=elements)


@typing_registry.register_attr
class UncheckedAttribute(AttributeTemplate):  # type: ignore[misc]
    key = SliceType

    def resolve_unchecked(self, kind: Any) -> Any:
        if kind.mutable:
            note(f"{kind.parameter} is a {kind.shown}, which has no .unchecked: write through {kind.parameter}.get_mut")
            return None
        return UncheckedSliceType(kind.dtype, kind.parameter)


@lowering_registry.lower_getattr(SliceType, "unchecked")
def _lower_unchecked(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return value


@typing_registry.register_global(operator.getitem)
class UncheckedGetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not (len(args) == 2 and isinstance(args[0], UncheckedSliceType)):
            return None
        kind, index = args
        if not isinstance(index, types.Integer):
            note(f"{kind.parameter}.unchecked[…] takes an integer, not {display(index)}")
            return None
        return signature(kind.dtype, kind, types.unliteral(index))


@lowering_registry.lower(operator.getitem, UncheckedSliceType, types.Integer)
def lower_unchecked_read(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Returns the element at an index, without a bounds check."""
    kind = sig.args[0]
    view = proxy(context, builder, kind, args[0])
    index = element_index(builder, sig.args[1], args[1])
    return load_unchecked(context, builder, kind.dtype, builder.gep(view.data, [index]))


def load_unchecked(context: Any, builder: Any, dtype: Any, address: Any) -> Any:
    """Returns the element at an address. The load is marked as having no bounds check of its own."""
    loaded = builder.load(address)
    mark_unchecked(builder, loaded)
    return context.data_model_manager[dtype].from_data(builder, loaded)


def mark_unchecked(builder: Any, access: Any) -> None:
    """Marks a load or store as having no bounds check of its own. Only the verifier of the IR reads this mark."""
    access.set_metadata("oxide.unchecked", builder.module.add_metadata([ir.Constant(ir.IntType(1), 1)]))
