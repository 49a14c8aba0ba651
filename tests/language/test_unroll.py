"""``unroll``: the loop is written out, and means what it meant."""

from __future__ import annotations

import numpy as np
import pytest

from oxide import (
    CompileError,
    DisjointSlice,
    LocalArray,
    Slice,
    d2h,
    device,
    f32,
    h2d,
    i64,
    kernel,
    thread,
    unroll,
    zeros,
)

ROUNDS = 24


@device
def sum_of(x: LocalArray[f32]) -> f32:
    total = f32(0)
    for i in unroll(range(ROUNDS)):
        total += x[i]
    return total


@kernel(block=32)
def sums(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        held = LocalArray(ROUNDS, f32)
        for i in unroll(range(ROUNDS)):
            for j in unroll(range(1)):
                held[i + j] = x.unchecked[index.get() * ROUNDS + i] * f32(i)
        element.value = sum_of(held)


def test_arrays_whose_every_index_is_unrolled_are_in_registers() -> None:
    ptx = sums.ptx()
    assert ".local" not in ptx
    assert ptx.count("fma.rn.f32") + ptx.count("mul.rn.f32") >= ROUNDS - 2


def test_an_unrolled_loop_means_what_it_meant() -> None:
    x = np.random.default_rng(1).standard_normal((40, ROUNDS)).astype(np.float32)
    found = sums(h2d(x), zeros(40)).last().and_then(d2h).sync()
    np.testing.assert_allclose(found, (x.astype(np.float64) * np.arange(ROUNDS)).sum(1), rtol=1e-4, atol=1e-4)


def test_steps_continue_break_and_a_number_of_rounds_that_is_not_known() -> None:
    @kernel
    def count(n: i64, y: DisjointSlice[f32]) -> None:
        total = 0
        for i in unroll(range(10, 0, -3)):
            if i == 7:
                continue
            total += i
        for i in unroll(range(2, n, 2)):
            if i > 8:
                break
            total += 100 * i
        y.unchecked_mut[0] = f32(total)

    for n in (0, 3, 100):
        expected = 10 + 4 + 1 + 100 * sum(i for i in range(2, n, 2) if i <= 8)
        assert count[1, 1](n, zeros(1)).last().and_then(d2h).sync()[0] == expected


def test_unroll_takes_a_range() -> None:
    @kernel
    def over_a_number(y: DisjointSlice[f32]) -> None:
        for _ in unroll(8):  # type: ignore[arg-type]
            pass

    with pytest.raises(CompileError, match=r"unroll takes a range"):
        over_a_number.specialize()


def test_on_the_host_it_is_the_range() -> None:
    assert unroll(range(3)) == range(3)
