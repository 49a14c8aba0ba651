"""The buffers of ``wgmma_products`` and ``wgmma_split_products``: a ring in shared memory that holds parts of the
operands.

A buffer holds the parts of a tile's operands for one step along k. If an operand is contiguous along k, the buffer
holds 128 bytes of each of its rows. Any other operand is held in panels: a panel has a row of 64 elements for each
position along k. TMA fills the buffer, with zeros outside of the matrices, and warpgroups multiply its contents. Blocks
of a cluster may share the columns of ``b``: each block copies a part of these columns to all blocks.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from oxide import Slice2, Slice3, device, f32, i64, tensor, thread, unroll

from .mma_products import Form

_ROW_BYTES = 128
_PANEL = 64
"""The number of elements in a row of a panel."""


class Buffers(NamedTuple):
    """The constants of a ring of buffers, and the device functions that use it."""

    array: Any
    """The type of a kernel's parameters ``a`` and ``b``: ``Slice2``, or ``Slice3`` for stacks of matrices."""
    depth: int
    """The number of positions along k that a buffer holds."""
    halves: int
    """2 for operands that ``data_movement.split`` has split in two, with both parts side by side in a row. 1 for all
    others."""
    stages: int
    """The number of buffers."""
    a_count: int
    b_count: int
    """The number of tiles of ``b`` in shared memory, in all buffers together; ``a_count`` is that of ``a``."""
    a_rows: int
    b_rows: int
    """The number of rows of a tile of ``b`` in shared memory; ``a_rows`` is that of ``a``. A tile has a row of
    ``depth`` elements for each of its rows or columns of the result or, as a panel, a row of 64 elements for each
    position along k."""
    fetch: Any
    """``(stage, first, product, row, col, a, b, a_tiles, b_tiles, full)`` begins the copies to buffer ``stage``: the
    positions along k from ``first`` on, for the tile at ``row`` and ``col`` of matrix ``product``."""
    multiply: Any
    """``(total, stage, half, a_tiles, b_tiles)`` begins the calling warpgroup's products of buffer ``stage``. ``half``
    selects 64 of the tile's rows."""
    release: Any
    """``(stage, empty)`` tells the producers of the cluster that the calling warpgroup has read buffer ``stage``."""


@functools.cache
def buffers_of(
    form: Form, rows: int, columns: int, nbytes: int, *, blocks: int = 1, stacked: bool = False, even: bool = False
) -> Buffers:
    """Returns the ring of buffers for tiles of ``rows`` by ``columns`` elements of a product. The ring takes up to
    ``nbytes`` bytes of shared memory. ``blocks`` is the number of blocks of a cluster, which share the columns of
    ``b``. With ``even`` the number of buffers is even.

    Operands of 8 or 32 bits must be contiguous along k: ``a_turned`` must be false, and ``b_turned`` true. An ``exact``
    form of f32 takes operands that ``data_movement.split`` made.
    """
    splits = form.exact and form.a is f32
    promotes, rounds = form.exact, form.a is f32 and not splits
    depth, halves = _ROW_BYTES // int(form.a.dtype.itemsize), 2 if splits else 1
    a_turned, b_turned = form.a_turned, form.b_turned
    b_by_rows = not b_turned
    # An operand that is not contiguous along k is held in panels of 64 elements.
    a_panels, a_rows = (rows // _PANEL, depth) if a_turned else (1, rows)
    b_panels, b_rows = (1, columns) if b_turned else (-(-columns // _PANEL), depth)
    # Each block of a cluster copies, for all blocks, some of b's panels or, if b is contiguous along k, some of its
    # rows.
    own_panels, own_rows = (1, columns // blocks) if b_turned else (b_panels // blocks, b_rows)
    a_each, b_each = a_panels * halves, b_panels * halves * b_rows // own_rows
    b_half, every = b_each // halves, (1 << blocks) - 1
    stage_bytes = (a_each * a_rows + b_each * own_rows) * _ROW_BYTES
    stages = nbytes // stage_bytes // (2 if even else 1) * (2 if even else 1)

    @device
    def place_in(operand: Any, product: i64, row: i64, col: i64) -> Any:
        """Returns the index of the element at ``row`` and ``col`` of an operand, for matrix ``product`` of a stack. An
        operand that has only one matrix is used for all products."""
        return (min(product, operand.shape[0] - 1), row, col) if stacked else (row, col)

    @device
    def fetch_b(stage: i64, at: i64, product: i64, first: i64, col: i64, b: Any, b_tiles: Any, full: Any) -> None:
        """Begins to copy this block's part of the columns of ``b`` to the tiles in shared memory, from tile ``at``
        on."""
        rank = tensor.cluster.rank() if blocks > 1 else 0
        for panel in unroll(range(own_panels)):
            part = rank * own_panels + panel
            place = place_in(b, product, col + part * own_rows, first)
            if b_by_rows:
                place = place_in(b, product, first, col + part * _PANEL)
            if blocks > 1:
                tensor.load_tile(b_tiles, at + part, b, place, full, stage, tf32=rounds, multicast=every)
            else:
                tensor.load_tile(b_tiles, at + part, b, place, full, stage, tf32=rounds)

    @device
    def fetch(
        stage: i64, first: i64, product: i64, row: i64, col: i64, a: Any, b: Any, a_tiles: Any, b_tiles: Any, full: Any
    ) -> None:
        full.expect(stage, stage_bytes)
        for half in unroll(range(halves)):
            of_a, of_b = first + half * (a.shape[-1] // 2), first + half * (b.shape[-1] // 2)
            for panel in unroll(range(a_panels)):
                place = place_in(a, product, row, of_a)
                if a_turned:
                    place = place_in(a, product, first, row + panel * _PANEL)
                at = stage * a_each + half * a_panels + panel
                tensor.load_tile(a_tiles, at, a, place, full, stage, tf32=rounds)
            fetch_b(stage, stage * b_each + half * b_half, product, of_b, col, b, b_tiles, full)

    @device
    def multiply(total: Any, stage: i64, half: i64, a_tiles: Any, b_tiles: Any) -> None:
        at = stage * b_each
        if splits:  # the product of both small parts is left out: it is below f32's precision
            tensor.wgmma(total, a_tiles, (2 * stage + 1, half * 64), b_tiles, at, add=False)
            tensor.wgmma(total, a_tiles, (2 * stage, half * 64), b_tiles, at + b_half)
            tensor.wgmma(total, a_tiles, (2 * stage, half * 64), b_tiles, at)
        elif promotes:  # each buffer's sum begins at 0, and the kernel adds it to the total
            tensor.wgmma(total, a_tiles, (stage, half * 64), b_tiles, at, add=False)
        elif a_turned:
            tensor.wgmma(total, a_tiles, (stage * a_panels + half, 0), b_tiles, at, True, b_by_rows)
        else:
            tensor.wgmma(total, a_tiles, (stage, half * 64), b_tiles, at, False, b_by_rows)

    @device
    def release(stage: i64, empty: Any) -> None:
        number = thread.thread_idx.x % 128
        if blocks > 1:
            if number < blocks:
                empty.arrive(stage, number)
        elif number == 0:
            empty.arrive(stage)

    return Buffers(
        array=Slice3 if stacked else Slice2,
        depth=depth,
        halves=halves,
        stages=stages,
        a_count=stages * a_each,
        b_count=stages * b_each,
        a_rows=a_rows,
        b_rows=own_rows,
        fetch=fetch,
        multiply=multiply,
        release=release,
    )
