"""Indices modulo a small power of two: LLVM's vectoriser reads past their end (llvm/llvm-project#225086)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    DisjointSlice,
    LocalArray,
    Slice,
    d2h,
    h2d,
    i8,
    i16,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u16,
    u32,
    u64,
    zeros,
)

LENGTH = 300


def masked(kind: Any, unchecked: bool) -> Any:
    @kernel(block=1, unchecked=unchecked)
    def by_and(first: kind, x: Slice[i32], y: DisjointSlice[i32]) -> None:
        total = i32(0)
        for i in range(kind(len(y))):
            total += x[(first & kind(28)) + (i & kind(3))]
        y.scatter[0] = total

    return by_and


def reduced(kind: Any, unchecked: bool) -> Any:
    @kernel(block=1, unchecked=unchecked)
    def by_remainder(first: kind, x: Slice[i32], y: DisjointSlice[i32]) -> None:
        total, base = i32(0), first % kind(32) // kind(4) * kind(4)
        for i in range(kind(len(y))):
            total += x[base + i % kind(4)]
        y.scatter[0] = total

    return by_remainder


def buffered(kind: Any, unchecked: bool) -> Any:
    @kernel(block=1, unchecked=unchecked)
    def through_a_buffer(first: kind, x: Slice[i32], y: DisjointSlice[i32]) -> None:
        buffer = LocalArray(LENGTH, i32)
        for i in range(kind(LENGTH)):
            buffer[i] = x[(first & kind(28)) + (i & kind(3))]
        total = i32(0)
        for i in range(LENGTH):
            total += buffer[i]
        y.scatter[0] = total

    return through_a_buffer


@pytest.mark.slow
@pytest.mark.parametrize("unchecked", [False, True])
@pytest.mark.parametrize("kind", [i32, u32, i64, u64], ids=str)
@pytest.mark.parametrize("made", [masked, reduced, buffered])
def test_a_masked_index_stays_below_its_mask(made: Any, kind: Any, unchecked: bool) -> None:
    x = np.arange(1000, dtype=np.int32)
    y = made(kind, unchecked)[1, 1](9, h2d(x), zeros(LENGTH, np.int32)).last().and_then(d2h).sync()
    assert y[0] == (8 + np.arange(LENGTH) % 4).sum()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [i8, u8, i16, u16], ids=str)
def test_a_shortened_index_wraps_around(kind: Any) -> None:
    @kernel(block=1, unchecked=True)
    def shortened(first: i32, x: Slice[i32], y: DisjointSlice[i32]) -> None:
        total = i32(0)
        for i in range(i32(len(y))):
            total += x[(first & 0xFF00) + i32(kind(i))]
        y.scatter[0] = total

    y = shortened[1, 1](256, h2d(np.arange(70000, dtype=np.int32)), zeros(1000, np.int32)).last().and_then(d2h).sync()
    assert y[0] == (256 + np.arange(1000).astype(kind.dtype).astype(int)).sum()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4, 32, 65536])
def test_a_remainder_of_negative_numbers_is_pythons(size: int) -> None:
    @kernel(block=32)
    def rest(x: Slice[i32], y: DisjointSlice[i32]) -> None:
        for i in range(len(y)):
            y.scatter[i] = i32(x[i] % i32(size))

    x = np.random.default_rng(3).integers(-(2**31), 2**31, 999, dtype=np.int32)
    y = rest[1, 1](h2d(x), zeros(999, np.int32)).last().and_then(d2h).sync()
    assert np.array_equal(y, x % np.int32(size))


def test_a_number_that_llvm_masks_and_that_is_shortened_has_a_name_for_each() -> None:
    """LLVM names its mask after the shortened number, as ``.22.mask``."""

    @kernel
    def both(y: DisjointSlice[i64]) -> None:
        index = thread.index_1d()
        i = index.get()
        e = y.get_mut(index)
        if e is not None:
            v = u64(i8(min(i32(1), i32(i))))
            e.value = ~((u8(v) + u16(v)) & (-i))

    y = both[1, 4](zeros(4, np.int64)).last().and_then(d2h).sync()
    assert y.tolist() == [~((2 * min(1, i)) & -i) for i in range(4)]
