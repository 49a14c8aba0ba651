"""Device arrays from outside of a kernel; see ``Captured`` in ``signature``. Lowered code gets the address of such an
array from a call of ``oxide.captured.N``, where N is the object's ``id``."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types

from oxide.compiler.ir.captured import CAPTURED
from oxide.compiler.signature.untyped_arguments import Captured, captured

from .argument_types import numba_type
from .primitives import call_primitive
from .registry import lowering_registry, session

_ADDRESS = ir.IntType(8).as_pointer()


class Outside:
    """A captured array in numba's IR, in the place of the object itself."""

    __cuda_array_interface__ = None  # numba takes other global arrays for read-only

    def __init__(self, found: Captured) -> None:
        self.found = found
        self._numba_type_ = numba_type(found.type)


def outside(value: Any, name: str) -> Any:
    """Returns the value of a name from outside of the kernel, as numba's IR has it."""
    found = captured(value, name)
    return value if found is None else Outside(found)


def type_of(value: Any) -> Any:
    """Returns numba's type of a captured array. Returns None for any other object."""
    if isinstance(value, Outside):
        return value._numba_type_
    found = captured(value, "")
    return None if found is None else numba_type(found.type)


@lowering_registry.lower_constant(types.Array)
def _lower_constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    found = value.found if isinstance(value, Outside) else captured(value, "an array from outside")
    if found is None:
        return context.make_constant_array(builder, kind, value)
    session().captured[id(found.value)] = found
    address = call_primitive(builder, _ADDRESS, f"{CAPTURED}{id(found.value)}", ())
    array = context.make_array(kind)(context, builder)

    def numbers(given: tuple[int, ...]) -> list[Any]:
        return [context.get_constant(types.intp, each) for each in given]

    context.populate_array(
        array,
        data=builder.bitcast(address, array.data.type),
        shape=numbers(found.shape),
        strides=numbers(found.strides),
        itemsize=context.get_constant(types.intp, found.type.dtype.itemsize),
        meminfo=None,
    )
    return array._getvalue()
