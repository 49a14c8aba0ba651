"""The outside objects that a kernel may name: the language's functions and types, numbers, arrays and modules.

``check`` resolves the names in a kernel. This file decides which objects a kernel can use, and returns the error for
any other object.
"""

from __future__ import annotations

import math
from random import Random
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from oxide.compiler.signature.device_function import DeviceFunction
from oxide.host.messages import written
from oxide.language import (  # noqa: F401 - each declares its functions
    atomic,
    debug,
    fast,
    intrinsics,
    primitives,
    random,
    tensor,
    thread,
    warp,
)
from oxide.language.shared import DynamicSharedArray, LocalArray, SharedArray
from oxide.language.structures import is_named_tuple, problem_of
from oxide.language.types import ScalarType, of_dtype, of_narrow_scalar
from oxide.language.unroll import unroll
from oxide.language.vectors import VECTORS, Vector, VectorType
from oxide.language.views import zip_exact

from . import advice, numpy_functions

LARGEST = 2**64 - 1
"""The largest integer in a kernel, a u64."""
LEAST = -(2**63)
"""The least integer in a kernel, an i64."""

_BUILTINS = {range, len, min, max, abs, int, float, complex, bool, type, round, divmod, pow, print}
_CLASSES = {SharedArray, DynamicSharedArray, LocalArray, *VECTORS.values()}
_MATH = {getattr(math, name) for name in advice.MATHEMATICS if hasattr(math, name)}
_TENSOR = {getattr(tensor, name) for name in tensor.__all__}
_LANGUAGE = frozenset(
    _BUILTINS | {*numpy_functions.ROUNDING, unroll, zip_exact} | primitives.FUNCTIONS | _CLASSES | _TENSOR | _MATH
)
_CONSTANT_BYTES = 64 * 1024  # the size of a GPU's constant memory


def is_of_the_language(value: Any) -> bool:
    """Returns whether a value is a function or a type of the kernel language."""
    return isinstance(value, BuiltinFunctionType | FunctionType | type) and value in _LANGUAGE


def is_numbas(value: Any) -> bool:
    """Returns whether an object belongs to numba-cuda: a function, a type, or the result of ``numba.cuda.jit``."""
    if isinstance(value, ModuleType):
        return False
    home = getattr(value if isinstance(value, type | FunctionType) else type(value), "__module__", "")
    return isinstance(home, str) and home.partition(".")[0] == "numba"


def is_dtype(value: Any) -> bool:
    """Returns whether an object is a dtype as numba-cuda's functions, and nothing else, take it."""
    return isinstance(value, str | np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))


def is_usable(value: Any) -> bool:
    """Returns whether a kernel can name the object. The caller must have excluded numba-cuda's objects."""
    if isinstance(value, int):
        return LEAST <= value <= LARGEST
    if isinstance(value, np.ndarray):
        return _problem_with_array(value) is None
    if of_narrow_scalar(value) is not None:
        return True
    made_of = value if isinstance(value, type) else type(value)
    if is_named_tuple(made_of):
        return problem_of(made_of) is None
    return is_of_the_language(value) or isinstance(
        value,
        ScalarType
        | VectorType
        | Vector
        | DeviceFunction
        | ModuleType
        | thread.Coordinates
        | atomic.Ordering
        | atomic.Scope
        | float
        | complex
        | np.integer
        | np.inexact
        | np.bool_,
    )


def refusal(shown: str, value: Any) -> str:
    """Returns the reason why an object is not usable, and advice. ``shown`` is the kernel's name for it."""
    if isinstance(value, int):
        return f"{shown} is {written(value)}, which does not fit in 64 bits"
    if isinstance(value, np.ndarray):
        return f"{shown} {_problem_with_array(value)}"
    if is_named_tuple(value):
        return f"{shown} is no structure that kernels can make: {problem_of(value)}"
    if value is thread.ThreadIndex:
        return "a ThreadIndex comes only from thread.index_1d(), thread.index_2d() and thread.index_3d()"
    if value is math.fsum:
        return f"{shown} keeps a list of sums, which kernels cannot: add in f64"
    if isinstance(getattr(value, "__self__", None), Random):
        return f"{shown} has a state, which threads cannot share: use oxide.random, as in random.uniform(seed, i)"
    if getattr(value, "__module__", None) == "math" and isinstance(value, BuiltinFunctionType):
        names = ", ".join(sorted(function.__name__ for function in _MATH))
        return f"{shown} is not supported in kernels; of math there are {names}"
    if getattr(value, "__module__", None) == "cmath" and isinstance(value, BuiltinFunctionType):
        names = ", ".join(sorted(function.__name__ for function in numpy_functions.CMATH))
        return f"{shown} is not supported in kernels; of cmath there are {names}"
    return advice.of_value(shown, value, called=callable(value))


def _problem_with_array(array: np.ndarray[Any, Any]) -> str | None:
    if of_dtype(array.dtype) is None:
        return f"is an array of {array.dtype}; constant arrays are of oxide's scalar types"
    if not 1 <= array.ndim <= 3 or array.size == 0:
        return f"has shape {array.shape}; constant arrays have 1 to 3 axes, none empty"
    if array.nbytes > _CONSTANT_BYTES:
        return f"has {array.nbytes} bytes, and a constant array at most {_CONSTANT_BYTES}: pass it as a Slice"
    if type(array) is not np.ndarray:
        from oxide.host.host_arrays import masked  # imported here: few programs have a masked array

        if (found := masked(array)) is not None:
            return (
                f"is {found}, and kernels know no masks; name array.filled(x), which has x in place of what is masked"
            )
    return None
