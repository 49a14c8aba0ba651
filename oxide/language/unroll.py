"""``unroll``: unrolls a loop, one copy of its body for each iteration.

If each iteration's number is a constant, a ``LocalArray`` can live in registers, and the instructions of different
iterations can overlap. The compiler unrolls short loops by itself. ``unroll`` is for longer loops, like CUDA's
``#pragma unroll``::

    for i in unroll(range(8)):
        sums[i] += x[i] * y
"""

from __future__ import annotations


def unroll(numbers: range) -> range:
    """Returns ``numbers`` unchanged. A loop over the result is fully unrolled if the compiler knows the number of
    iterations."""
    return numbers
