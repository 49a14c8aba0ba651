"""Arrays from outside of a kernel: NumPy arrays, which are constant memory, and device arrays.

The elements of a NumPy array are copied into the kernel at compile time. The kernel reads them as ``TABLE[i]`` or
``TABLE[row, column]``, and an index is checked as an index of a shared array is. A device array is a hidden parameter
(``Captured`` in ``signature``): lowered code gets its address from a call of ``oxide.captured.N``, where N is the
object's ``id``."""

from __future__ import annotations

import operator
from hashlib import blake2b
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.typing.templates import AbstractTemplate

from oxide.compiler.ir.parameters import CAPTURED
from oxide.compiler.signature.untyped_arguments import Captured, captured
from oxide.language.types import of_dtype

from .common import Named, address, has_length, readable, same_form
from .primitives import call_primitive
from .registry import lowering_registry, note, session, typing_registry
from .shared import check_index, element_of_array
from .types import NUMBA_TYPES, HalfType, display, numba_type

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


# Constant memory


class ConstantArrayType(Named, types.Type):  # type: ignore[misc]
    """The type of a constant array. ``parameter`` is the kernel's name for the array. The type does not contain the
    array's elements."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, parameter: str | None = None) -> None:
        self.shape = shape
        self.ndim = len(shape)
        self.dtype = dtype
        name = f"constant array of {' x '.join(map(str, shape))} {display(dtype)}"
        self.shown = self.parameter = parameter or name
        super().__init__(f"{parameter}, {name}" if parameter else name)

    def renamed(self, parameter: str) -> ConstantArrayType:
        return ConstantArrayType(self.shape, self.dtype, parameter)


address(ConstantArrayType)
same_form(ConstantArrayType)
readable(ConstantArrayType, check_index, element_of_array)


def constant_array_type(array: np.ndarray[Any, Any]) -> ConstantArrayType | None:
    """Returns the type of an array that ``compiler.check`` has accepted, or None for an unsupported dtype."""
    scalar = of_dtype(array.dtype)
    if scalar is None:
        return None
    return ConstantArrayType(array.shape, NUMBA_TYPES[scalar.name], session().constants.get(id(array)))


@lowering_registry.lower_constant(ConstantArrayType)
def _lower_constant_array(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    element = context.get_data_type(kind.dtype)
    if isinstance(kind.dtype, HalfType):
        array = array.view(f"u{array.itemsize}")
    numbers = [
        context.get_constant_generic(builder, kind.dtype, number)
        if isinstance(number, complex)
        else ir.Constant(element, _plain(number))
        for number in np.ravel(array, order="C").tolist()
    ]
    constant = ir.Constant(ir.ArrayType(element, len(numbers)), numbers)
    return builder.bitcast(constant_of(builder, "oxide.constant", constant), element.as_pointer())


def constant_of(builder: Any, name: str, constant: Any) -> Any:
    """Returns a global variable with the given constant as its content. The variable's name contains a hash of the
    content, because all modules of a kernel are linked into one."""
    name = f"{name}.{blake2b(str(constant).encode(), digest_size=8).hexdigest()}"
    known = builder.module.globals.get(name)
    return known or cgutils.global_constant(builder.module, name, constant)


def _plain(number: int | float | bool) -> int | float:
    return int(number) if isinstance(number, bool) else number


@has_length(ConstantArrayType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return context.get_constant(types.int64, sig.args[0].shape[0])


@typing_registry.register_global(operator.setitem)
class ConstantArraySetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if args and isinstance(args[0], ConstantArrayType):
            shown = args[0].shown
            note(f"{shown}, outside the kernel, is a constant in it, and read-only; write to a DisjointSlice parameter")
        return None
