"""Machine instructions without a Python operator: bits, wide products, saturation, fused multiply-add.

The names are CUDA's: ``popc`` is ``__popc``, ``mulhi`` is ``__mulhi`` or ``__umul64hi`` by its arguments' type.
Integers are 32- or 64-bit, and a result has the arguments' type unless stated otherwise. These are declarations: the
compiler gives them their meaning inside a kernel, on both devices.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

T = TypeVar("T", int, float)


def popc(x: int) -> int:
    """Returns the number of set bits of ``x``, an ``i32``."""
    _only_in_a_kernel("popc")


def clz(x: int) -> int:
    """Returns the number of clear bits above the highest set bit, an ``i32``; the width of ``x`` for 0."""
    _only_in_a_kernel("clz")


def ffs(x: int) -> int:
    """Returns the position of the lowest set bit, counted from 1, an ``i32``; 0 for 0."""
    _only_in_a_kernel("ffs")


def brev(x: int) -> int:
    """Returns ``x`` with its bits in reverse order."""
    _only_in_a_kernel("brev")


def mulhi(a: int, b: int) -> int:
    """Returns the upper half of the double-width product. Both arguments must have the same type."""
    _only_in_a_kernel("mulhi")


def saturating_add(a: int, b: int) -> int:
    """Returns ``a + b``, or the type's least or greatest number if the sum does not fit. ``a`` and ``b`` must have the
    same type."""
    _only_in_a_kernel("saturating_add")


def saturating_sub(a: int, b: int) -> int:
    """Returns ``a - b``, or the type's least or greatest number if the difference does not fit. ``a`` and ``b`` must
    have the same type."""
    _only_in_a_kernel("saturating_sub")


def saturate(x: float) -> float:
    """Returns ``x``, an ``f32`` or ``f64``, clamped to [0, 1]; 0 for a NaN. CUDA's name is ``__saturatef``."""
    _only_in_a_kernel("saturate")


def fma(a: float, b: float, c: float) -> float:
    """Returns ``a * b + c``, rounded once: an ``f32`` if all arguments are ``f32``, else an ``f64``."""
    _only_in_a_kernel("fma")


def fmax(a: float, b: float) -> float:
    """Returns the greater of two floats; if one is a NaN, the other one. This is C's ``fmax``, one instruction on a
    GPU. The built-in ``max`` has Python's semantics."""
    _only_in_a_kernel("fmax")


def fmin(a: float, b: float) -> float:
    """Returns the lesser of two floats; if one is a NaN, the other one. This is C's ``fmin``."""
    _only_in_a_kernel("fmin")


def rsqrt(x: float) -> float:
    """Returns ``1 / sqrt(x)``; for an ``f32`` to within 2 units in the last place."""
    _only_in_a_kernel("rsqrt")


def to_bits(x: float) -> int:
    """Returns the bits of an ``f32`` as ``u32``, of an ``f64`` as ``u64``: CUDA's ``__float_as_uint``, Rust's name."""
    _only_in_a_kernel("to_bits")


def from_bits(bits: int) -> float:
    """Returns the ``f32`` with the bits of a ``u32`` or ``i32``, or the ``f64`` with those of a ``u64`` or ``i64``."""
    _only_in_a_kernel("from_bits")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"intrinsics.{name} has a meaning only inside a @kernel, where the compiler gives it one")
