"""Random numbers that follow from a seed and a counter: Philox 4x32-10 (Salmon and others, 2011).

There is no state: ``uniform(seed, i)`` is the same number in every thread, launch and program, on every device. A
kernel takes the place of an element as counter, or that and the number of a step, as in ``step * n + place``. Equal
seeds and counters give equal numbers, and two functions of one counter use the same words, so each draw needs its own
counter. ``tile.rand(seed, counters)`` gives the numbers of ``uniform``.

``seed`` and ``i`` are integers of any type. Both count modulo 2**64.
"""

from __future__ import annotations

from . import primitives


@primitives.function
def bits(seed: int, i: int) -> int:
    """Returns 32 random bits, a ``u32``: word 0 of the four that Philox 4x32-10 gives for the key ``seed`` and the
    counter ``i``."""


@primitives.function
def bits4(seed: int, i: int) -> tuple[int, int, int, int]:
    """Returns all four words of Philox 4x32-10 for the key ``seed`` and the counter ``i``: four ``u32`` of 32
    independent random bits, for the work of one. Word 0 is ``bits(seed, i)``."""


@primitives.function
def uniform(seed: int, i: int) -> float:
    """Returns an ``f32`` from 0 up to 1, 1 excluded: the upper 24 bits of word 0 times 2**-24."""


@primitives.function
def normal(seed: int, i: int) -> float:
    """Returns a normally distributed ``f32`` of mean 0 and variance 1, by Box and Muller's method.

    With a and b, words 0 and 1 of the counter, it is sqrt(-2 ln u) cos(2 pi b / 2**32), where u is (a + 1/2) / 2**32 as
    an ``f32``. It is within 4 units in the last place of that, and its magnitude is at most 6.77. Each of its
    operations has one result, so it is the same number on every device, whatever the options of the kernel.
    """


@primitives.function
def integers(seed: int, i: int, low: int, high: int) -> int:
    """Returns an integer from ``low`` up to ``high``, ``high`` excluded, as an ``i64``. Returns ``low`` if there is
    none.

    It is the upper half of the product of ``high - low`` and 64 random bits: word 1 above word 0. The probability of
    each integer differs from 1 / (high - low) by less than 2**-64.
    """
