"""The plans of ``wgmma_products`` and ``wgmma_split_products``: how a product is divided among the blocks of a GPU."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from oxide import f32

from .mma_products import Form

WIDTHS = (256, 192, 128, 64, 32)
"""The widths of tiles."""

_EXACT_WIDTHS = (192, 128, 64, 32)
"""Those of sums that are made in f32, apart from the instructions': with wider tiles a thread has too few registers."""

_HALVED_WIDTHS = (128, 64, 32)
"""Those of operands that are split in two, and of tiles whose sums are added in shared memory."""


class Plan(NamedTuple):
    """The tiles of a product, and the blocks that compute them."""

    width: int
    """The width of tiles."""
    together: bool = False
    """True if both warpgroups of a block compute one tile of 128 rows, false if they take turns with tiles of 64."""
    cluster: int = 1
    """The number of blocks that share the columns of ``b``: each copies a part for all. Their tiles are one below the
    other."""
    parts: int = 0
    """If not 0, so many blocks compute a tile of 64 rows, each a part of k, whose steps the warpgroups take in turn."""
    swapped: bool = False
    """True if the transpose is computed: the columns of the result are the rows of a tile. Only with parts."""

    @property
    def high(self) -> int:
        """Returns the rows of the tiles of a cluster."""
        return self.cluster * (128 if self.together else 64)

    def tiles(self, products: int, m: int, n: int) -> int:
        """Returns the number of clusters' tiles of so many m×n results."""
        high, wide = (n, m) if self.swapped else (m, n)
        return products * -(-high // self.high) * -(-wide // self.width)

    def blocks(self, products: int, m: int, n: int, multiprocessors: int) -> int:
        """Returns the number of blocks of a launch for so many m×n results."""
        tiles = self.tiles(products, m, n)
        return tiles * self.parts or self.cluster * min(multiprocessors // self.cluster, tiles)


def widths_of(form: Form) -> tuple[int, ...]:
    """Returns the widths of tiles of a form."""
    return _HALVED_WIDTHS if form.exact and form.a is f32 else _EXACT_WIDTHS if form.exact else WIDTHS


def plan_of(
    form: Form, products: int, m: int, n: int, k: int, aligned: tuple[bool, bool], multiprocessors: int
) -> Plan:
    """Returns the plan with which products take least time. ``aligned`` says of each operand whether its rows in memory
    begin at multiples of 128 bytes."""
    widths = widths_of(form)
    # Sums that are made in f32 leave the tensor cores idle, unless the other warpgroup multiplies meanwhile.
    plans = [Plan(width, together) for width in widths for together in ([True] if form.exact else [False, True])]
    plans += [Plan(width, True, 2) for width in widths if form.b_turned or width >= 128]
    plans += itertools.starmap(Plan, itertools.product(_HALVED_WIDTHS, [False], [1], [1, 2, 4, 8], [False, True]))
    return min(plans, key=lambda plan: _microseconds(form, plan, products, m, n, k, aligned, multiprocessors))


def _microseconds(
    form: Form, plan: Plan, products: int, m: int, n: int, k: int, aligned: tuple[bool, bool], multiprocessors: int
) -> float:
    """Returns about the time of a plan on an H100.

    A launch takes 3.2 µs, with clusters 0.3 to 0.8 more. A step multiplies 128 bytes of each row of a tile's operands:
    64 rows and a column take 1.4 ns, at the clock that the power allows, and the copy of a row 1.1 ns, twice that if it
    is in two lines of memory. A warpgroup waits 0.12 µs at least for a step. The L2 cache gives the operands at
    5.5 TB/s. The end of a tile takes 4.6 ns a column and 64 rows, which counts once if the warpgroups take turns."""
    halves, splits = 2 if plan.together else 1, form.exact and form.a is f32
    a_aligned, b_aligned = reversed(aligned) if plan.swapped else aligned
    steps = -(-k * form.a.dtype.itemsize // 128)
    rows = 64 * halves * (1 if a_aligned else 2) + plan.width / plan.cluster * (1 if b_aligned else 2)
    multiplied, copied = 1.4 * halves * plan.width * (3 if splits else 1), 1.1 * rows * (2 if splits else 1)
    tiles, end = plan.tiles(products, m, n), 4.6 * halves * plan.width
    if plan.parts:
        # The GPU has places for 120 blocks in clusters of four: parts of it have 18 multiprocessors.
        rounds = -(
            -tiles // (multiprocessors // plan.parts if plan.parts < 4 else multiprocessors * 10 // 11 // plan.parts)
        )
        steps, ends = -(-steps // plan.parts), rounds * end
        step = max(multiplied, copied, 60)
    else:
        rounds = -(-tiles // (multiprocessors // plan.cluster))
        ends = end * (rounds if plan.together else 1)
        step = max(multiplied, copied, 120)
    read = products * (m + n) * k * form.a.dtype.itemsize / 5500
    starts = 3200 + (300 if plan.parts > 1 else 800 if plan.cluster > 1 else 0)
    return float(starts + max(rounds * steps * step, read) + ends)
