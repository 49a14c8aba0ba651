"""``tensor.wgmma`` and ``load_tile`` for elements of 8 and 32 bits: exact sums, roundings, the bound of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    DisjointSlice2,
    Slice2,
    d2h,
    f8e4m3,
    f8e5m2,
    f32,
    h2d,
    i8,
    i32,
    i64,
    kernel,
    tensor,
    thread,
    u8,
    unroll,
    zeros,
)
from tests.compiler.assembler import assembled, needs_ptxas

RANDOM = np.random.default_rng(5)
KINDS: list[tuple[Any, Any, Any]] = [
    (f32, f32, f32),
    (f8e4m3, f8e4m3, f32),
    (f8e5m2, f8e5m2, f32),
    (f8e4m3, f8e5m2, f32),
    (i8, i8, i32),
    (u8, u8, i32),
    (i8, u8, i32),
    (u8, i8, i32),
]
IDS = ["-".join(map(str, kind)) for kind in KINDS]


def product(kind: tuple[Any, Any, Any], n: int, in_registers: bool = False, rounds: bool = False) -> Any:
    """Returns a kernel of one warpgroup: ``d = c + a @ b.T`` for ``a`` of 64 rows and ``b`` of ``n``."""
    a_type, b_type, c_type = kind
    width = 128 // a_type.dtype.itemsize
    height = -(-n // 8) * 8

    @kernel(block=128)
    def multiply(
        a: Slice2[a_type],  # type: ignore[valid-type]
        b: Slice2[b_type],  # type: ignore[valid-type]
        c: Slice2[c_type],  # type: ignore[valid-type]
        d: DisjointSlice2[c_type],  # type: ignore[valid-type]
    ) -> None:
        left, right = tensor.SharedTiles(1, (64, width), a_type), tensor.SharedTiles(1, (height, width), b_type)
        full = tensor.Barrier(1, 1)
        weights = tensor.FragmentA((16, width), a_type)
        total = tensor.Accumulator((16, n), c_type)
        warp_row = i64(thread.thread_idx.x // 32) * 16
        for i in unroll(range(len(total))):
            total[i] = c[warp_row + total.row(i), total.column(i)]
        for step in range((a.shape[1] + (width - 1)) // width):
            thread.sync_threads()
            if thread.thread_idx.x == 0:
                full.expect(0, 128 * (64 + height))
                tensor.load_tile(left, 0, a, (0, step * width), full, 0, tf32=rounds)
                tensor.load_tile(right, 0, b, (0, step * width), full, 0, tf32=rounds)
            full.wait(0, step)
            if in_registers:
                for i in unroll(range(len(weights))):
                    weights[i] = left[0, warp_row + weights.row(i), weights.column(i)]
                tensor.wgmma(total, weights, None, right, 0)
            else:
                tensor.wgmma(total, left, (0, 0), right, 0)
            tensor.wait_wgmma(total)
        for i in unroll(range(len(total))):
            d.scatter[warp_row + total.row(i), total.column(i)] = total[i]

    return multiply


def multiplied(made: Any, a: Any, b: Any, c: Any) -> Any:
    return made[1, 128](h2d(a), h2d(b), h2d(c), zeros(c.shape, c.dtype)).last().and_then(d2h).sync()


@pytest.mark.slow
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("n", "in_registers"), [(8, True), (24, False), (80, True), (256, False)])
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_exact_sums_are_exact(kind: tuple[Any, Any, Any], n: int, in_registers: bool) -> None:
    """The steps are one and a half tiles: the rest of the second is outside of the matrices, so zeros."""
    a_type, b_type, c_type = kind
    k = 192 // a_type.dtype.itemsize
    integers = c_type is i32
    a, b = (
        RANDOM.integers(np.iinfo(each.dtype).min, np.iinfo(each.dtype).max + 1, (rows, k))
        if integers
        else RANDOM.integers(-3, 4, (rows, k))
        for each, rows in ((a_type, 64), (b_type, n))
    )
    c = RANDOM.integers(-1000, 1000, (64, n))
    found = multiplied(
        product(kind, n, in_registers), a.astype(a_type.dtype), b.astype(b_type.dtype), c.astype(c_type.dtype)
    )
    assert np.array_equal(found, c + a @ b.T)


@pytest.mark.slow
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("kind", KINDS[:4], ids=IDS[:4])
def test_other_sums_are_within_the_bound(kind: tuple[Any, Any, Any]) -> None:
    a_type, b_type, _ = kind
    k = 4096 // a_type.dtype.itemsize
    a, b = (
        RANDOM.standard_normal((rows, k)).astype(np.float32).astype(each.dtype)
        for each, rows in ((a_type, 64), (b_type, 64))
    )
    found = multiplied(product(kind, 64), a, b, np.zeros((64, 64), np.float32))
    wide = [truncated(each) if a_type is f32 else each.astype(np.float64) for each in (a, b)]
    bound = k * (2.0**-23 if a_type is f32 else 2.0**-13) * (np.abs(wide[0]) @ np.abs(wide[1]).T)
    assert (np.abs(found - wide[0] @ wide[1].T) <= bound).all()


def truncated(x: Any) -> Any:
    """Returns numbers without the 13 bits that tf32 does not have."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


@pytest.mark.usefixtures("hopper")
def test_a_copy_rounds_to_tf32_with_ties_to_even() -> None:
    @kernel(block=32, partial=True)
    def copied(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        tiles, full = tensor.SharedTiles(1, (64, 32), f32), tensor.Barrier(1, 1)
        if thread.thread_idx.x == 0:
            full.expect(0, 8192)
            tensor.load_tile(tiles, 0, x, (0, 0), full, 0, tf32=True)
        full.wait(0, 0)
        for i in range(64):
            y.scatter[i, thread.thread_idx.x] = tiles[0, i, thread.thread_idx.x]

    bits = RANDOM.integers(0, 1 << 32, (64, 32), dtype=np.uint32)
    bits[:16] = bits[:16] & np.uint32(0xFFFFE000) | np.uint32(0x1000)  # halfway between two numbers
    bits[16:20] = RANDOM.integers(0x7F7FE000, 0x7F800001, (4, 32))  # the largest, and infinity
    bits[20:24] = RANDOM.integers(0, 1 << 23, (4, 32))  # subnormal
    x = bits.view(np.float32)
    copies = copied[1, 32](h2d(x), zeros((64, 32))).last().and_then(d2h).sync()
    wide = bits.astype(np.int64)
    rounded = (wide + 0xFFF + (wide >> 13 & 1) & 0xFFFFE000).astype(np.uint32)
    same = copies.view(np.uint32) == np.where(np.isfinite(x), rounded, bits)
    assert (same | np.isnan(x)).all(), [hex(each) for each in bits[~same]][:5]
    assert np.isnan(copies[np.isnan(x)]).all()


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_ptxas_takes_each_product(kind: tuple[Any, Any, Any], in_registers: bool) -> None:
    report = assembled(product(kind, 64, in_registers).ptx(cc=(9, 0)), (9, 0))
    assert "serializ" not in report
