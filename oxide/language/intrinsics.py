"""Machine instructions that have no Python operator: bit operations, wide products, saturation, fused multiply-add.

The names are CUDA's: ``popc`` is ``__popc``, and ``mulhi`` is ``__mulhi``, ``__umulhi``, ``__mul64hi`` or
``__umul64hi``, depending on the arguments' type. Integers have 32 or 64 bits, and a result has the arguments' type
unless stated otherwise. These are declarations: the compiler gives them their meaning inside a kernel, on both devices.
"""

from __future__ import annotations

from typing import TypeVar

from . import primitives

T = TypeVar("T", int, float)


@primitives.function
def popc(x: int) -> int:
    """Returns the number of set bits of ``x``, an ``i32``."""


@primitives.function
def clz(x: int) -> int:
    """Returns the number of clear bits above the highest set bit, an ``i32``. If ``x`` is 0, returns the number of its
    bits."""


@primitives.function
def ffs(x: int) -> int:
    """Returns the position of the lowest set bit, counted from 1, an ``i32``. If ``x`` is 0, returns 0."""


@primitives.function
def brev(x: int) -> int:
    """Returns ``x`` with its bits in reverse order."""


@primitives.function
def mulhi(a: int, b: int) -> int:
    """Returns the upper half of the double-width product. Both arguments must have the same type."""


@primitives.function
def saturating_add(a: int, b: int) -> int:
    """Returns ``a + b``, or the type's least or greatest number if the sum does not fit. ``a`` and ``b`` must have the
    same type."""


@primitives.function
def saturating_sub(a: int, b: int) -> int:
    """Returns ``a - b``, or the type's least or greatest number if the difference does not fit. ``a`` and ``b`` must
    have the same type."""


@primitives.function
def saturate(x: float) -> float:
    """Returns ``x``, an ``f32`` or ``f64``, clamped to [0, 1]. If ``x`` is a NaN, returns 0. CUDA's name is
    ``__saturatef``."""


@primitives.function
def fma(a: float, b: float, c: float) -> float:
    """Returns ``a * b + c``, rounded once: an ``f32`` if all arguments are ``f32``, else an ``f64``."""


@primitives.function
def fmax(a: float, b: float) -> float:
    """Returns the greater of two floats. If one is a NaN, returns the other. This is C's ``fmax``, one instruction on a
    GPU. The built-in ``max`` has Python's semantics instead."""


@primitives.function
def fmin(a: float, b: float) -> float:
    """Returns the lesser of two floats. If one is a NaN, returns the other. This is C's ``fmin``."""


@primitives.function
def rsqrt(x: float) -> float:
    """Returns ``1 / sqrt(x)``. For an ``f32`` the error is at most 2 units in the last place."""


@primitives.function
def to_bits(x: float) -> int:
    """Returns the bits of an ``f32`` as a ``u32``, or of an ``f64`` as a ``u64``. CUDA's name is ``__float_as_uint``;
    ``to_bits`` is Rust's."""


@primitives.function
def from_bits(bits: int) -> float:
    """Returns the float with the given bits: an ``f32`` for a ``u32`` or ``i32``, an ``f64`` for a ``u64`` or
    ``i64``."""
