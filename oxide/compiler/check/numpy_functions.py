"""NumPy's functions of scalars and Python's ``cmath`` in kernels: ``np.exp(x)`` is ``math.exp(x)``.

Most are functions of ``math`` with another name. The others follow NumPy where ``math`` differs: ``np.floor`` returns a
float, and ``np.maximum`` returns NaN if either argument is NaN.

The functions of complex numbers compute in the precision of the argument. They take a c64 or c128, and real numbers
too. Special values have the results of C's Annex G and of Python, but no function raises: ``cmath.log(0j)`` is
``-inf``.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from oxide.compiler.signature.device_function import device, plain_function
from oxide.language import intrinsics
from oxide.language.types import SCALAR_TYPES

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


# Functions of complex numbers


@device
def exp(z: Any) -> Any:
    w = complex(z)
    x, y = w.real, w.imag
    zero, size = type(x)(0), math.exp(x)
    if y == zero:
        return complex(size, y)
    if math.isfinite(y):
        if math.isinf(size) and math.isfinite(x):
            # The exponential overflows, but its products with cosine and sine may not.
            root = math.exp(x * type(x)(0.5))
            return complex(root * math.cos(y) * root, root * math.sin(y) * root)
        return complex(size * math.cos(y), size * math.sin(y))
    if math.isinf(x):
        return complex(x, y - y) if x > zero else complex(size, math.copysign(size, y))
    return complex(y - y, y - y)


@device
def log(z: Any) -> Any:
    w = complex(z)
    x, y = abs(w.real), abs(w.imag)
    angle = math.atan2(w.imag, w.real)
    one, half = type(x)(1), type(x)(0.5)
    size = math.hypot(x, y)
    if size > half and size < one + one:
        # Near 1, the rounding error of the size would dominate its logarithm.
        greater, less = max(x, y), min(x, y)
        return complex(half * math.log1p((greater - one) * (greater + one) + less * less), angle)
    is_small = size > type(x)(0) and size < type(x)(1e-30)
    if is_small or (math.isinf(size) and math.isfinite(x) and math.isfinite(y)):
        # Scaling keeps the size of a large number finite, and that of a small number normal.
        factor = type(x)(2.0**60) if is_small else half
        return complex(math.log(math.hypot(factor * x, factor * y)) - math.log(factor), angle)
    return complex(math.log(size), angle)


@device
def sqrt(z: Any) -> Any:
    w = complex(z)
    x, y = w.real, w.imag
    zero, half = type(x)(0), type(x)(0.5)
    if math.isinf(y):
        return complex(abs(y), y)
    if math.isnan(x):
        return complex(x, x)
    if math.isinf(x):
        if x > zero:
            return complex(x, y if math.isnan(y) else math.copysign(zero, y))
        return complex(y if math.isnan(y) else zero, math.copysign(x, y))
    if math.isnan(y):
        return complex(y, y)
    if x == zero and y == zero:
        return complex(zero, y)
    # Scaling keeps the sum of size and real part finite, and the parts of a small number normal.
    is_small = max(abs(x), abs(y)) < type(x)(1e-30)
    factor = type(x)(2.0**60) if is_small else type(x)(0.0625)
    back = type(x)(2.0**-30) if is_small else type(x)(4)
    a, b = abs(x) * factor, abs(y) * factor
    root = math.sqrt(half * (a + math.hypot(a, b)))
    other = half * b / root * back
    root = root * back
    if x >= zero:
        return complex(root, math.copysign(other, y))
    return complex(other, math.copysign(root, y))


@device
def phase(z: Any) -> Any:
    w = complex(z)
    return math.atan2(w.imag, w.real)


@device
def polar(z: Any) -> Any:
    w = complex(z)
    return abs(w), math.atan2(w.imag, w.real)


@device
def rect(r: Any, phi: Any) -> Any:
    return complex(r * math.cos(phi), r * math.sin(phi))


@device
def isfinite(z: Any) -> Any:
    return math.isfinite(z.real) and math.isfinite(z.imag)


@device
def isinf(z: Any) -> Any:
    return math.isinf(z.real) or math.isinf(z.imag)


@device
def isnan(z: Any) -> Any:
    return math.isnan(z.real) or math.isnan(z.imag)


@device
def conjugate(z: Any) -> Any:
    return z.conjugate()


@device
def real(z: Any) -> Any:
    return z.real


@device
def imag(z: Any) -> Any:
    return z.imag


CMATH: dict[Any, Any] = {
    cmath.exp: exp,
    cmath.isfinite: isfinite,
    cmath.isinf: isinf,
    cmath.isnan: isnan,
    cmath.log: log,
    cmath.phase: phase,
    cmath.polar: polar,
    cmath.rect: rect,
    cmath.sqrt: sqrt,
}
"""Maps each function of ``cmath`` to the function that a kernel calls for it."""

_NUMPY_COMPLEX: dict[Any, Any] = {np.conjugate: conjugate, np.real: real, np.imag: imag, np.angle: phase}
"""Maps each of NumPy's functions of complex numbers to the function that a kernel calls for it."""

NUMPY: dict[Any, Any] = {
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

_ALL = {**NUMPY, **CMATH, **_NUMPY_COMPLEX}


def in_kernels(value: Any) -> Any:
    """Returns the function that a kernel calls for one of NumPy or ``cmath``, the device function for a program's
    Python function, and any other object unchanged."""
    if type(value) is FunctionType and (called := plain_function(value)) is not None:
        return called
    return _ALL.get(value, value) if isinstance(value, _KINDS) else value


def called_in_kernels(value: Any) -> Any:
    """Does what ``in_kernels`` does for an object that a kernel calls. Returns the scalar type for one of NumPy, as
    ``np.uint32(5)`` is ``u32(5)``."""
    return SCALAR_TYPES.get(value, value) if isinstance(value, type) else in_kernels(value)


_KINDS: tuple[type, ...] = tuple({type(function) for function in _ALL})
