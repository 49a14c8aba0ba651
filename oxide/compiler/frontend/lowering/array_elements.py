"""``x[index]`` and ``x[index] = value`` of arrays: their types, and accesses whose index is checked."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, signature

from .common import check_value
from .registry import lowering_registry, typing_registry
from .slices import load_inside

Locate: TypeAlias = Callable[[Any, Any, Any, Any, Any, Any], tuple[Any, Any, Any]]
"""Emits the check of an index. It takes the context, the builder, the array's type and value, and the index's type and
value. It returns whether the index is in bounds, the address of the first element, and the offset of the element."""


def readable(kind: Any, accepts: Callable[[Any, Any], bool], locate: Locate) -> None:
    """Makes ``x[index]`` an element, if ``accepts(kind, index)`` accepts the index's type. Out of bounds it is 0."""

    @typing_registry.register_global(operator.getitem)
    class GetItem(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], kind) and accepts(*args):
                return signature(args[0].dtype, args[0], types.unliteral(args[1]))
            return None

    @lowering_registry.lower(operator.getitem, kind, types.Any)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, index = sig.args
        inside, data, offset = locate(context, builder, array, args[0], index, args[1])
        return load_inside(context, builder, array.dtype, data, offset, inside)


def writable(kind: Any, accepts: Callable[[Any, Any], bool], locate: Locate) -> None:
    """Allows ``x[index] = value`` for a value that an element can hold, if ``accepts(kind, index)`` accepts the index's
    type. Out of bounds nothing is written."""

    @typing_registry.register_global(operator.setitem)
    class SetItem(AbstractTemplate):  # type: ignore[misc]
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if not (len(args) == 3 and isinstance(args[0], kind) and accepts(*args[:2])):
                return None
            if not check_value(args[0].dtype, args[2]):
                return None
            return signature(types.none, *map(types.unliteral, args))

    @lowering_registry.lower(operator.setitem, kind, types.Any, types.Any)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, index, value_type = sig.args
        value = context.cast(builder, args[2], value_type, array.dtype)
        inside, data, offset = locate(context, builder, array, args[0], index, args[1])
        with builder.if_then(inside, likely=True):
            context.pack_value(builder, array.dtype, value, builder.gep(data, [offset]))
        return context.get_dummy_value()
