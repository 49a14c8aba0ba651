"""The buffers of ``wgmma_products`` and ``wgmma_split_products``: a ring in shared memory of parts of two matrices.

A buffer holds one step along k of a tile's operands. An operand in order along k has 128 bytes of each of its rows. A
transposed operand has panels of 64 columns, with a row for each position along k. TMA fills the buffer, with zeros
outside of the matrices. Warpgroups multiply its contents. Blocks of a cluster may share the columns of ``b``: each
block copies a part of these columns to all blocks.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from oxide import Slice2, Slice3, device, f32, i64, tensor, thread, unroll

from .mma_products import Form

_ROW_BYTES = 128
_PANEL = 64
"""The elements of a panel's row, for a transposed operand."""


class Buffers(NamedTuple):
    """The constants of a ring, and the device functions for it."""

    array: Any
    """The type of a parameter with an operand: ``Slice2``, or ``Slice3`` for stacks of matrices."""
    depth: int
    """The number of positions along k that a buffer holds."""
    halves: int
    """2 for operands that are split into two parts, one behind the other in a row. 1 for all others."""
    stages: int
    """The number of buffers."""
    a_count: int
    b_count: int
    """The numbers of tiles in shared memory, in all buffers together."""
    a_rows: int
    b_rows: int
    """The rows of a tile in shared memory: along the result with ``depth`` elements each, or along k with 64 elements
    each."""
    fetch: Any
    """``(stage, first, product, row, col, a, b, a_tiles, b_tiles, full)`` begins the copies of a buffer: the positions
    along k from ``first`` on, for the tile at a row and a column."""
    multiply: Any
    """``(total, stage, half, a_tiles, b_tiles)`` begins a warpgroup's multiplications of a buffer. ``half`` selects 64
    of the tile's rows."""
    release: Any
    """``(stage, empty)`` tells the producers of the cluster that the calling warpgroup has read a buffer."""


@functools.cache
def buffers_of(
    form: Form, rows: int, columns: int, nbytes: int, *, blocks: int = 1, stacked: bool = False, even: bool = False
) -> Buffers:
    """Returns the ring of buffers for tiles of a product, which takes up to ``nbytes``. ``blocks`` is the number of
    blocks of a cluster, which share the columns of ``b``. With ``even`` the number of buffers is even.

    Operands of 8 or 32 bits must be contiguous along k: ``a`` itself, and ``b`` transposed. An ``exact`` form of f32
    takes operands that ``data_movement.split`` made.
    """
    splits = form.exact and form.a is f32
    promotes, rounds = form.exact, form.a is f32 and not splits
    depth, halves = _ROW_BYTES // int(form.a.dtype.itemsize), 2 if splits else 1
    a_turned, b_turned = form.a_turned, form.b_turned
    b_by_rows = not b_turned
    # A tile with rows of products is made of panels of 64 elements.
    a_panels, a_rows = (rows // _PANEL, depth) if a_turned else (1, rows)
    b_panels, b_rows = (1, columns) if b_turned else (-(-columns // _PANEL), depth)
    # Each block of a cluster copies some of the panels for all, or some of the rows of b turned.
    own_panels, own_rows = (1, columns // blocks) if b_turned else (b_panels // blocks, b_rows)
    a_each, b_each = a_panels * halves, b_panels * halves * b_rows // own_rows
    b_half, every = b_each // halves, (1 << blocks) - 1
    stage_bytes = (a_each * a_rows + b_each * own_rows) * _ROW_BYTES
    stages = nbytes // stage_bytes // (2 if even else 1) * (2 if even else 1)

    @device
    def place_in(operand: Any, product: i64, row: i64, col: i64) -> Any:
        """Returns the index of an element of an operand. ``product`` is the matrix's number in a stack. An operand with
        one matrix is used for all products."""
        return (min(product, operand.shape[0] - 1), row, col) if stacked else (row, col)

    @device
    def fetch_b(stage: i64, at: i64, product: i64, first: i64, col: i64, b: Any, b_tiles: Any, full: Any) -> None:
        """Begins to copy this block's part of b's columns into the shared tiles of b, from tile ``at`` on."""
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
        if splits:  # the product of the small parts is below f32's precision
            tensor.wgmma(total, a_tiles, (2 * stage + 1, half * 64), b_tiles, at, add=False)
            tensor.wgmma(total, a_tiles, (2 * stage, half * 64), b_tiles, at + b_half)
            tensor.wgmma(total, a_tiles, (2 * stage, half * 64), b_tiles, at)
        elif promotes:  # the sums of a form that promotes begin with each buffer
            tensor.wgmma(total, a_tiles, (stage, half * 64), b_tiles, at, add=False)
        elif a_turned:
            tensor.wgmma(total, a_tiles, (stage * a_panels + half, 0), b_tiles, at, True, b_by_rows)
        else:
            tensor.wgmma(total, a_tiles, (stage, half * 64), b_tiles, at, False, b_by_rows)

    @device
    def release(stage: i64, empty: Any) -> None:
        number = i64(thread.thread_idx.x % 128)
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
