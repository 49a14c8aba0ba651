"""``unroll``: a loop written out, one copy of its body for each round.

Where each round's number is a constant, a ``LocalArray`` can live in registers, and the instructions of different
rounds can overlap. The compiler unrolls short loops by itself; this is CUDA's ``#pragma unroll`` for the others::

    for i in unroll(range(8)):
        sums[i] += x[i] * y
"""

from __future__ import annotations


def unroll(numbers: range) -> range:
    """The same loop, unrolled in full where the number of rounds is known to the compiler, else as it is."""
    return numbers
