"""``mma``: products of fragments on tensor cores, and ``tf32``, the rounding of their f32 operands."""

from __future__ import annotations

from typing import Any

from oxide.language import primitives

from .fragments import Accumulator, FragmentA, FragmentB


@primitives.function
def mma(c: Accumulator[Any], a: FragmentA[Any], b: FragmentB[Any]) -> None:
    """Adds the matrix product of ``a`` and ``b`` to ``c``.

    All 32 lanes of the warp make the call together. If some lanes cannot make it, the CPU device reports a
    ``KernelAssertionError``, and on a GPU the result is undefined. The elements of ``a`` and ``b`` have one type,
    except that i8 may be combined with u8, and f8e4m3 with f8e5m2. f32 operands are taken as tf32: the low 13 bits of
    each element are ignored. To round elements instead, call ``tf32`` first.

    Products of two elements of f16, bf16, tf32 and 8-bit floats are exact. For an element of an f32 accumulator, let S
    be the sum of the magnitudes of its k products and of its earlier value. The element's error is at most ``2 * k *
    2**-24 * S``. An f16 accumulator is rounded once more for each tile along k. For 8-bit floats a GPU keeps fewer bits
    of a sum, and the error is at most ``k * 2**-13 * S``. Integer accumulators wrap modulo 2**32. A GPU needs compute
    capability 8.0, and 8.9 for 8-bit floats.
    """


@primitives.function
def tf32(x: float) -> float:
    """Returns an f32 rounded to tf32, to nearest with ties away from zero: the low 13 bits of the result are 0.

    This is PTX's ``cvt.rna.tf32.f32``: 10 bits of fraction with f32's range. The largest numbers become infinite.
    """
