"""The plans of ``wgmma_products`` and ``wgmma_split_products``: how a product is divided among the blocks of a GPU.

The two warpgroups of a block multiply *together* if they compute one tile, or *in turns* if they alternate between
tiles. A tile is computed *in parts* if the warpgroups of one or more blocks share it, each for some of the steps along
k."""

from __future__ import annotations

import functools
from typing import NamedTuple

from oxide import f32

from .mma_products import Form

WIDTHS = (256, 192, 128, 64, 32)
"""The widths that a tile may have."""

_EXACT_WIDTHS = (192, 128, 64, 32)
"""The widths that a tile may have if the sums of ``wgmma`` are added in f32 outside of the tensor cores. With wider
tiles a thread has too few registers for both sums."""

_HALVED_WIDTHS = (128, 64, 32)
"""The widths that a tile may have for f32 operands that are split in two."""


_FAR_BEYOND_L2 = 160e6
"""The size in bytes beyond which most of the operands do not fit into L2: the 50 MB of an H100 hold less than a third
of them."""


class Plan(NamedTuple):
    """The tiles of a product, and the blocks that compute them."""

    width: int
    """The width of tiles."""
    together: bool = False
    """True if both warpgroups of a block compute one tile of 128 rows. False if each warpgroup computes every second
    tile, of 64 rows."""
    cluster: int = 1
    """The number of blocks in a cluster. The tiles of these blocks are one below the other, so they need the same
    columns of ``b``. Each block copies a part of these columns to all blocks."""
    parts: int = 0
    """For a plan in parts, the number of blocks that compute one tile of 64 rows, each for a range of k. The two
    warpgroups of such a block alternate in the steps along k. 0 for other plans."""
    swapped: bool = False
    """True if the transpose of the result is computed, so that columns of the result are rows of a tile. Only for plans
    in parts."""

    @property
    def high(self) -> int:
        """Returns the total number of rows of a cluster's tiles."""
        return self.cluster * (128 if self.together else 64)

    def tiles(self, products: int, m: int, n: int) -> int:
        """Returns the number of tiles in ``products`` results of m×n elements. The tiles of a cluster count as one."""
        high, wide = (n, m) if self.swapped else (m, n)
        return products * -(-high // self.high) * -(-wide // self.width)

    def blocks(self, products: int, m: int, n: int, multiprocessors: int) -> int:
        """Returns the number of blocks of a launch for ``products`` results of m×n elements."""
        tiles = self.tiles(products, m, n)
        return tiles * self.parts or self.cluster * min(multiprocessors // self.cluster, tiles)


def widths_of(form: Form) -> tuple[int, ...]:
    """Returns the widths that a tile may have in a product of this form."""
    return _HALVED_WIDTHS if form.exact and form.a is f32 else _EXACT_WIDTHS if form.exact else WIDTHS


@functools.lru_cache(maxsize=1024)
def plan_of(
    form: Form, products: int, m: int, n: int, k: int, aligned: tuple[bool, bool], multiprocessors: int
) -> Plan:
    """Returns the plan with the least expected time. Results are cached. ``aligned`` tells, for each operand, whether
    its rows in memory begin at multiples of 128 bytes."""
    widths = widths_of(form)
    # Only together: while one warpgroup adds sums in f32, the other keeps the tensor cores busy. And tiles of tf32 with
    # 64 rows reach only 0.81 of the speed of tiles with 128 rows.
    ways = [True] if form.exact or form.a is f32 else [False, True]
    plans = [Plan(width, together) for width in widths for together in ways]
    plans += [Plan(width, True, 2) for width in widths if form.b_turned or width % 128 == 0]
    # In parts, wider tiles were slower in all measurements.
    parted = ((64, 1), (32, 1), (32, 2), (32, 4), (32, 8))
    plans += [Plan(width, parts=parts, swapped=swapped) for width, parts in parted for swapped in (False, True)]
    return min(plans, key=lambda plan: _nanoseconds(form, plan, products, m, n, k, aligned, multiprocessors))


def _nanoseconds(
    form: Form, plan: Plan, products: int, m: int, n: int, k: int, aligned: tuple[bool, bool], multiprocessors: int
) -> float:
    """Returns the approximate time of a plan on an H100, from these measurements.

    - A launch takes 3.2 µs. Clusters add 0.3 µs in parts, and otherwise 0.8 µs.
    - A step multiplies 128 bytes along k. It takes 1.25 ns for each column of a tile and each 64 rows. It takes 1.4 ns
      in long products, where the limit of power lowers the clock. It takes 1.5 ns in long products if the warpgroups
      multiply in turns and most operands are not in the L2 cache, because tiles of 64 rows read the operands more
      often. For n = 8192, in TFLOPS: 636 in turns, 670 together, 642 for cuBLAS; without a limit of power 715, 766 and
      776.
    - The copy of a row of 128 bytes takes 1.1 ns, or 0.85 ns in parts. It takes twice as long if the row is in two
      lines of memory.
    - A step takes at least 0.12 µs, or 0.1 µs in parts, and at least 1.5 ns for each block that reads the same rows.
    - The L2 cache delivers the operands at 6.3 TB/s. In parts, it delivers the tiles of all blocks at 18.4 TB/s, or at
      9.2 TB/s if the rows of an operand are a multiple of 8 KB apart.
    - The epilogue of a tile takes 4.6 ns for each column and each 64 rows. In turns, only the last epilogue counts: the
      others are hidden behind products. In parts, each further tile of a block begins 2.5 µs later.
    """
    halves, splits, itemsize = 2 if plan.together else 1, form.exact and form.a is f32, form.a.dtype.itemsize
    a_aligned, b_aligned = reversed(aligned) if plan.swapped else aligned
    high, wide = (n, m) if plan.swapped else (m, n)
    steps, parts = -(-k * itemsize // 128), max(plan.parts, 1)
    rows = 64 * halves * (1 if a_aligned else 2) + plan.width / plan.cluster * (1 if b_aligned else 2)
    operands = products * (m + n) * k * itemsize
    column = 1.25 if 2.0 * products * m * n * k < 6e10 else 1.4 if plan.together or operands < _FAR_BEYOND_L2 else 1.5
    rows *= (2 if splits else 1) * (0.85 if plan.parts else 1.1)
    step = max(column * halves * plan.width * (3 if splits else 1), rows)
    tiles, end = plan.tiles(products, m, n), 4.6 * halves * plan.width
    least = operands / 6300
    # In clusters of four or more, an H100 runs only 120 blocks at once: multiprocessors are in groups of up to 18, and
    # a cluster runs within one group.
    places = (multiprocessors if max(parts, plan.cluster) < 4 else multiprocessors * 10 // 11) // parts // plan.cluster
    rounds = -(-tiles // places)
    sharers = min(max(-(-high // plan.high), -(-wide // plan.width)), places)
    step = max(step, 102 if plan.parts else 120, 1.5 * sharers)
    if plan.parts:
        read = tiles * steps * (64 + plan.width) * 128
        least = max(least, read / (18400 if k * itemsize % 8192 else 9200))
        ends = rounds * end + 2500 * (rounds - 1)
    else:
        ends = end * (rounds if plan.together else 1)
    starts = 3200 + (300 if parts > 1 else 800 if plan.cluster > 1 else 0)
    return float(starts + max(rounds * -(-steps // parts) * step, least) + ends)
