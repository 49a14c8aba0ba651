"""NumPy's functions of scalars in kernels: ``np.exp(x)`` is ``math.exp(x)``. For NumPy's functions of complex numbers,
see ``complex_functions.py``.

Most are functions of ``math`` with another name. The others follow NumPy where ``math`` differs: ``np.floor`` returns a
float, and ``np.maximum`` returns NaN if either argument is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from oxide.compiler.signature.device_function import device
from oxide.language import intrinsics

from . import complex_functions

_SAME = """cbrt copysign cos cosh degrees exp exp2 expm1 fabs fmod hypot isfinite isinf isnan ldexp log log10 log1p log2
nextafter radians sin sinh sqrt tan tanh"""
_RENAMED = {
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "deg2rad": "radians",
    "rad2deg": "degrees",
}


def _rounding(name: str) -> Callable[[float], float]:
    def function(x: float) -> float:
        raise TypeError(f"np.{name} of a kernel has a meaning only there")

    function.__name__ = function.__qualname__ = name
    return function


ROUNDING = floor, ceil, trunc, rint = tuple(map(_rounding, ("floor", "ceil", "trunc", "rint")))
"""Functions that round to a whole number, which is a float. They have no body here: the front end lowers calls."""


@device
def maximum(a: Any, b: Any) -> Any:
    return a if a >= b or a != a else b


@device
def minimum(a: Any, b: Any) -> Any:
    return a if a <= b or a != a else b


@device
def clip(x: Any, low: Any, high: Any) -> Any:
    return minimum(maximum(x, low), high)


@device
def where(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y


@device
def square(x: Any) -> Any:
    return x * x


FUNCTIONS: dict[Any, Any] = {
    **{getattr(np, name): getattr(math, name) for name in _SAME.split()},
    **{getattr(np, name): getattr(math, other) for name, other in _RENAMED.items()},
    **{getattr(np, function.__name__): function for function in ROUNDING},
    np.abs: abs,
    np.fmax: intrinsics.fmax,
    np.fmin: intrinsics.fmin,
    np.maximum: maximum,
    np.minimum: minimum,
    np.clip: clip,
    np.where: where,
    np.square: square,
}
"""Maps each of NumPy's functions of real numbers to the function that a kernel calls for it."""

_ALL = {**FUNCTIONS, **complex_functions.FUNCTIONS, **complex_functions.NUMPY}


def in_kernels(value: Any) -> Any:
    """Returns the function that a kernel calls for a function of NumPy or ``cmath``. Returns any other object
    unchanged."""
    return _ALL.get(value, value) if isinstance(value, _KINDS) else value


_KINDS: tuple[type, ...] = tuple({type(function) for function in _ALL})
