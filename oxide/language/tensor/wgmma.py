"""Products of warpgroups: ``wgmma`` multiplies tiles in shared memory, and four warps hold the result in registers.

A warpgroup is four consecutive warps. The number of its first warp in the block is a multiple of 4. Together the warps
hold 64 rows of the product. Each warp holds 16 rows, in an ``Accumulator((16, n), f32)`` or an accumulator of i32. The
products run asynchronously: the threads continue immediately, and ``wait_wgmma`` waits for the products. The terms are
those of the PTX ISA. A GPU needs exactly compute capability 9.0: only Hopper has the instructions.

These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import Any

from oxide.language import primitives

from .fragments import Accumulator, FragmentA
from .shared_tiles import SharedTiles


@primitives.function
def wgmma(
    accumulator: Accumulator[Any],
    a: SharedTiles[Any] | FragmentA[Any],
    a_index: tuple[int, int] | None,
    b: SharedTiles[Any],
    b_number: int,
    a_transposed: bool = False,
    b_transposed: bool = False,
    add: bool = True,
) -> None:
    """Begins to add the product of 64 rows of a tile of ``a`` and a tile of ``b`` to the warpgroup's accumulators.

    ``a_index`` has the number of a tile of ``a`` and the number of the first of the 64 rows in it, a multiple of 8. The
    tile of ``b`` holds the transpose of the right operand B: its n rows are B's columns. n is the number of the
    accumulator's columns, a multiple of 8 up to 256. If the tiles of ``b`` have fewer than n rows, n / rows consecutive
    tiles from ``b_number`` on are used, for example tiles that the blocks of a cluster have copied. The types are those
    of ``mma``: f16, bf16, f32 or 8-bit floats with an accumulator of f32, or i8 and u8 with an accumulator of i32,
    whose n is 8, 24 or a multiple of 16. f32 is taken as tf32: the low 13 bits are ignored. ``load_tile(…, tf32=True)``
    rounds to tf32 instead. The rounding errors are those of ``mma``.

    With ``a_transposed`` a tile of ``a`` holds the transpose of the left operand: it has a row for each of 64 positions
    along k, and the second number of ``a_index`` must be 0. With ``b_transposed`` the tiles of ``b`` hold B itself: n /
    64 tiles from ``b_number`` on, each with 64 of B's columns and a row for each of 64 positions along k. Both options
    are for elements of 16 bits.

    The left operand may be in registers instead: each warp passes a ``FragmentA`` of its 16 rows as ``a``, with as many
    columns as a tile of ``b`` has positions along k. ``a_index`` is then None. So the result of one product can be the
    left operand of the next, such as the weights in attention.

    With ``add=False`` the product replaces the accumulators' earlier values.

    All threads of the warpgroup make the call together. Until ``wait_wgmma`` no thread may read or write the
    accumulators, or write the tiles or the fragment. The CPU device's sanitizer reports a thread that breaks this rule
    (``sanitize="race"``).
    """


@primitives.function
def wait_wgmma(accumulator: Accumulator[Any], pending: int = 0) -> None:
    """Waits for the warpgroup's calls of ``wgmma``, except for the last ``pending`` calls, which may still run.
    ``pending`` is a constant.

    After a wait with ``pending=0``, the given accumulator may be read. Any other accumulator needs a wait of its own.
    All threads of the warpgroup make the call together.
    """


@primitives.function
def increase_registers(count: int) -> None:
    """Takes registers from the block's pool until each thread of the warp has ``count``, a multiple of 8 from 24 to
    256.

    All warps of a warpgroup make the call. They wait until other warps have given up enough registers. The kernel must
    declare its ``block``: each thread begins with the registers that it can have in a block of this size, and a launch
    may not have more threads. Does nothing on the CPU device.
    """


@primitives.function
def decrease_registers(count: int) -> None:
    """Gives up registers to the block's pool, so that each thread of the warp keeps ``count``, a multiple of 8 from 24
    to 256. All warps of a warpgroup make the call. Does nothing on the CPU device."""
