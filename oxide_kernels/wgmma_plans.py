"""The plans of ``wgmma_products`` and ``wgmma_split_products``: how a product is divided among the blocks of a GPU."""

from __future__ import annotations

import functools
from typing import NamedTuple

from oxide import f32

from .mma_products import Form

WIDTHS = (256, 192, 128, 64, 32)
"""The widths of tiles."""

_EXACT_WIDTHS = (192, 128, 64, 32)
"""The widths of tiles if sums are made in f32, in addition to the sums of ``wgmma``: with wider tiles a thread has too
few registers."""

_HALVED_WIDTHS = (128, 64, 32)
"""The widths of tiles for operands that are split in two."""


_FAR_BEYOND_L2 = 160e6
"""The bytes of operands of which the L2 cache of an H100, 50 MB, holds less than a third."""


class Plan(NamedTuple):
    """The tiles of a product, and the blocks that compute them."""

    width: int
    """The width of tiles."""
    together: bool = False
    """True if both warpgroups of a block compute one tile of 128 rows. False if each computes every second tile of 64
    rows."""
    cluster: int = 1
    """The number of blocks in a cluster. They share the columns of ``b``, of which each copies a part for all. Their
    tiles are one below the other."""
    parts: int = 0
    """The number of blocks that compute one tile of 64 rows, each for a part of k; 0 if a tile belongs to one block.
    The two warpgroups of a block alternate in the steps along k."""
    swapped: bool = False
    """True if the transpose is computed: the columns of the result are the rows of a tile. Only with parts."""

    @property
    def high(self) -> int:
        """Returns the number of rows that a cluster's tiles have together."""
        return self.cluster * (128 if self.together else 64)

    def tiles(self, products: int, m: int, n: int) -> int:
        """Returns the number of tiles, each computed by one cluster, in the given number of m×n results."""
        high, wide = (n, m) if self.swapped else (m, n)
        return products * -(-high // self.high) * -(-wide // self.width)

    def blocks(self, products: int, m: int, n: int, multiprocessors: int) -> int:
        """Returns the number of blocks of a launch for ``products`` results of m×n elements."""
        tiles = self.tiles(products, m, n)
        return tiles * self.parts or self.cluster * min(multiprocessors // self.cluster, tiles)


def widths_of(form: Form) -> tuple[int, ...]:
    """Returns the tile widths that a plan for a product of this form may use."""
    return _HALVED_WIDTHS if form.exact and form.a is f32 else _EXACT_WIDTHS if form.exact else WIDTHS


@functools.lru_cache(maxsize=1024)
def plan_of(
    form: Form, products: int, m: int, n: int, k: int, aligned: tuple[bool, bool], multiprocessors: int
) -> Plan:
    """Returns the plan with the least expected time. Results are cached. ``aligned`` says, for each operand, whether
    its rows in memory begin at multiples of 128 bytes."""
    widths = widths_of(form)
    # Sums that are made in f32 leave the tensor cores idle, unless the other warpgroup multiplies meanwhile. And tiles
    # of 64 rows of tf32 reach 0.81 of the speed of those of 128 rows.
    ways = [True] if form.exact or form.a is f32 else [False, True]
    plans = [Plan(width, together) for width in widths for together in ways]
    plans += [Plan(width, True, 2) for width in widths if form.b_turned or width % 128 == 0]
    # Wider tiles in parts were slower in all that was measured.
    parted = ((64, 1), (32, 1), (32, 2), (32, 4), (32, 8))
    plans += [Plan(width, parts=parts, swapped=swapped) for width, parts in parted for swapped in (False, True)]
    return min(plans, key=lambda plan: _nanoseconds(form, plan, products, m, n, k, aligned, multiprocessors))


def _nanoseconds(
    form: Form, plan: Plan, products: int, m: int, n: int, k: int, aligned: tuple[bool, bool], multiprocessors: int
) -> float:
    """Returns the approximate time of a plan on an H100.

    A launch takes 3.2 µs, with clusters 0.3 to 0.8 more. A step multiplies 128 bytes of each row of a tile's operands:
    64 rows and a column take 1.25 ns, or 1.4 at the clock that the power allows for long, or 1.5 in turns if most
    operands come from beyond the L2 cache: tiles of 64 rows read them more often. At n = 8192, 636 TFLOPS in turns and
    670 together, cuBLAS 642; without a limit of power 715, 766 and 776. The copy of a row takes 1.1 ns, or 0.85 in
    parts, and twice as long if the row is in two lines of memory. A warpgroup waits at least 0.12 µs for
    a step, or 0.1 in parts, and 1.5 ns for each block that reads equal rows. The L2 cache delivers the operands at 6.3
    TB/s. It delivers all tiles in parts at 18.4 TB/s, or at 9.2 TB/s if rows are multiples of 8 KB apart. The end of a
    tile takes 4.6 ns a column and 64 rows, which counts only once if the warpgroups alternate between tiles. In parts,
    the next tile begins 2.5 µs later.
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
    # The GPU has places for 120 blocks in clusters of four: parts of it have 18 multiprocessors.
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
