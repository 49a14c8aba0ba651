"""Converts the types of unannotated arguments to numba's types, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support

from oxide.compiler.signature.untyped_arguments import (
    ArgumentType,
    ArrayType,
    EnumType,
    NoneType,
    NumberType,
    RecordType,
    TupleType,
    of_box,
)
from oxide.errors import CompileError
from oxide.language.types import of_dtype


def numba_type(kind: ArgumentType) -> Any:
    """Returns numba's type for an argument type. Raises ``CompileError`` for a dtype that numba does not know."""
    match kind:
        case NumberType(dtype):
            return _of_dtype(dtype)
        case ArrayType(dtype, ndim, strided):
            return types.Array(_of_dtype(dtype), ndim, "A" if strided else "C")
        case RecordType(dtype):
            return _of_dtype(dtype)
        case TupleType(elements, made_of):
            return types.BaseTuple.from_types([numba_type(element) for element in elements], made_of)
        case NoneType():
            return types.none
        case EnumType(made_of, value):
            integer = issubclass(made_of, int)
            return (types.IntEnumMember if integer else types.EnumMember)(made_of, numba_type(value))


def argument_type(kind: Any) -> ArgumentType:
    """Returns the argument type for numba's type. Raises ``CompileError`` for a type that a launch cannot pass."""
    if isinstance(kind, types.Array):
        return ArrayType(_dtype(kind.dtype), kind.ndim)
    if isinstance(kind, types.Record):
        return of_box(_dtype(kind), 0)
    if isinstance(kind, types.BaseTuple):
        made_of = getattr(kind, "instance_class", tuple)
        return TupleType(tuple(argument_type(element) for element in kind), made_of)
    if isinstance(kind, types.EnumMember):
        return EnumType(kind.instance_class, argument_type(kind.dtype))
    return NoneType() if kind == types.none else NumberType(_dtype(kind))


def _dtype(kind: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(numpy_support.as_dtype(kind))
        return found
    except Exception:
        raise CompileError(f"an argument of numba's type {kind} cannot be passed to a kernel") from None


def _of_dtype(dtype: np.dtype[Any]) -> Any:
    scalar = of_dtype(dtype)
    if scalar is not None and scalar.numpys is None:  # numba's own type for this dtype needs a CUDA C++ library
        raise CompileError(
            f"kernels cannot use the dtype {dtype} for a parameter without an annotation; annotate it, as in "
            f"Slice[{scalar.name}]"
        )
    try:
        return numpy_support.from_dtype(dtype)
    except Exception as error:
        raise CompileError(f"kernels cannot use the dtype {dtype}: {error}") from None
