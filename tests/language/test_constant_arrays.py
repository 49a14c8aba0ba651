"""NumPy arrays outside a kernel as its constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, Kernel, Slice, d2h, h2d, i64, kernel, thread, zeros
from oxide.errors import BoundsError, CompileError
from oxide.language.types import of_dtype

SIZES = (0, 1, 31, 32, 33, 1025, 1_000_003)
COEFFICIENTS = np.array([[0.5, -1.25, 3.0], [2.0, 0.1, -7.0]])
DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?")


def lookup(table: np.ndarray, dtype: Any) -> Kernel:
    @kernel(block=128)
    def look_up(indices: Slice[i64], y: DisjointSlice[dtype]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = table[indices[i.get()] % len(table)]

    return look_up


@pytest.mark.slow
@pytest.mark.parametrize("code", DTYPES)
def test_a_constant_array_gives_its_elements(code: str) -> None:
    table = (np.random.default_rng(1).standard_normal(257) * 100).astype(code)
    indices = np.random.default_rng(2).integers(0, 10_000, 1025)
    found = lookup(table, of_dtype(table.dtype))(h2d(indices), zeros(1025, table.dtype)).last().and_then(d2h).sync()
    assert np.array_equal(found, table[indices % 257])


@pytest.mark.parametrize("size", SIZES)
def test_every_size_of_launch_reads_it(size: int) -> None:
    table = np.arange(32, dtype=np.float32)[::-1]
    indices = np.arange(size)
    found = lookup(table, of_dtype(table.dtype))(h2d(indices), zeros(size)).last().and_then(d2h).sync()
    assert np.array_equal(found, table[indices % 32])


@kernel(block=64)
def polynomial(y: DisjointSlice[i64], row: i64, column: i64) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = i64(COEFFICIENTS[row, column] * 100)


def test_axes_are_indexed_and_checked_one_by_one() -> None:
    assert polynomial(zeros(3, i64), 1, 2).first().and_then(d2h).sync().tolist() == [-700] * 3
    for row, column, axis in ((2, 0, 0), (0, 3, 1), (-1, 0, 0)):
        with pytest.raises(BoundsError, match=rf"index -?\d+ of axis {axis} is outside COEFFICIENTS"):
            polynomial(zeros(3, i64), row, column).sync()


def test_it_is_frozen_when_the_kernel_is_compiled() -> None:
    table = np.arange(4.0)
    k = lookup(table, of_dtype(table.dtype))
    k.specialize()
    table[:] = 9
    assert k(h2d(np.arange(4)), zeros(4, np.float64)).last().and_then(d2h).sync().tolist() == [0, 1, 2, 3]


def test_on_a_gpu_it_is_in_constant_memory() -> None:
    text = polynomial.ptx()
    assert ".const .align" in text
    assert "ld.const" in text


def test_what_cannot_be_a_constant_is_refused() -> None:
    for table, reason in (
        (np.zeros(20_000, np.float32), "80000 bytes, and a constant array at most 65536: pass it as a Slice"),
        (np.zeros((0,)), "1 to 3 axes, none empty"),
        (np.zeros(3, np.clongdouble), "is an array of complex256"),
    ):
        with pytest.raises(CompileError, match=reason):
            lookup(table, i64).specialize()

    table = np.arange(4.0)

    @kernel
    def writing(n: i64) -> None:
        table[n] = 1.0

    with pytest.raises(CompileError, match="is a constant in it, and read-only"):
        writing.specialize()
