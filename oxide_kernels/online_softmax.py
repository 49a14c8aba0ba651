"""The online softmax of attention, for a warp that holds 16 queries' scores of some keys in an ``Accumulator``.

Four lanes share two rows of scores. For each of its two rows, a lane keeps the greatest score of the whole row so far,
and the sum of the exponentials of its own scores relative to the greatest. When a greater score appears, the sum is
rescaled to be relative to this score. The scheme is that of Milakov and Gimelshein (2018), as FlashAttention uses it.
"""

from __future__ import annotations

import math
from typing import Any

from oxide import device, f32, fast, intrinsics, unroll, warp

LOG2_E = math.log2(math.e)

_MOST_EXPONENT = 4096.0
"""The greatest exponent that is computed by one multiply-add. It is rounded by up to 2**-12."""


@device
def begin(greatest: Any, sums: Any) -> None:
    """Initialises a lane's state before the first keys. ``greatest`` and ``sums`` are ``LocalArray(2, f32)``s with an
    element for each of the lane's two rows."""
    for half in unroll(range(2)):
        greatest[half] = f32(-math.inf)
        sums[half] = f32(0)


@device
def weigh(s: Any, greatest: Any, sums: Any, kept: Any, factor: f32) -> None:
    """Replaces scores by their exponentials, ``2 ** (factor * (score - greatest))``, and adds these to the sums. Each
    earlier sum is first scaled by a factor, which is stored in ``kept``. The caller must scale the output by ``kept``
    (``rescale``). The sum of a row stays 0 until the row has a score above -inf. No finite score is too great: a
    product with ``factor`` may overflow, but a difference of scores only to -inf, whose exponential is 0."""
    for half in unroll(range(2)):
        top = greatest[half]
        for i in unroll(range(2 * half, len(s), 4)):
            top = intrinsics.fmax(top, intrinsics.fmax(s[i], s[i + 1]))
        top = intrinsics.fmax(top, warp.shuffle_xor(top, 1))
        top = intrinsics.fmax(top, warp.shuffle_xor(top, 2))
        base = top * factor
        if abs(base) > f32(_MOST_EXPONENT):  # or infinite, as before the row's first score above -inf
            base = f32(0)
            if top > f32(-math.inf):
                greatest[half] -= top
                for i in unroll(range(2 * half, len(s), 4)):
                    for j in unroll(range(2)):
                        s[i + j] -= top
        kept[half] = fast.exp2(intrinsics.fma(greatest[half], factor, -base))
        greatest[half] = top
        total = sums[half] * kept[half]
        for i in unroll(range(2 * half, len(s), 4)):
            for j in unroll(range(2)):
                s[i + j] = fast.exp2(intrinsics.fma(s[i + j], factor, -base))
                total += s[i + j]
        sums[half] = total


@device
def rescale(o: Any, kept: Any) -> None:
    """Multiplies each row of the output ``o`` by the row's factor in ``kept``."""
    for i in unroll(range(len(o))):
        o[i] *= kept[i % 4 // 2]


@device
def shares(sums: Any, factors: Any) -> None:
    """Computes the factor by which each row of the output must finally be multiplied: 1 divided by the sum of the row's
    exponentials in all lanes, or 0 if the sum is 0."""
    for half in unroll(range(2)):
        total = sums[half]
        total += warp.shuffle_xor(total, 1)
        total += warp.shuffle_xor(total, 2)
        factors[half] = f32(0) if total == f32(0) else f32(1) / total
