"""NumPy's functions of scalars in kernels: ``np.exp(x)`` is ``math.exp(x)``. For NumPy's functions of complex numbers,
see ``complex_functions.py``.

Most are functions of ``math`` with another name. The others follow NumPy where ``math`` differs: ``np.floor`` returns a
float, and ``np.maximum`` returns NaN if either argument is NaN.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

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


def floor(x: float) -> float:
    """Returns the greatest whole number that is not above ``x``, as a float."""
    _only_in_a_kernel("floor")


def ceil(x: float) -> float:
    """Returns the least whole number that is not below ``x``, as a float."""
    _only_in_a_kernel("ceil")


def trunc(x: float) -> float:
    """Returns ``x`` without its fraction, as a float."""
    _only_in_a_kernel("trunc")


def rint(x: float) -> float:
    """Returns the nearest whole number as a float; if two are equally near, the even one."""
    _only_in_a_kernel("rint")


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


ROUNDING = (floor, ceil, trunc, rint)
"""Functions without a body here: the front end lowers calls of them."""

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


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"np.{name} of a kernel has a meaning only there")
