"""The bytes of a thread's own arrays: as many as a CUDA thread has, and a ``CompileError`` beyond, on either device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda, float64

from oxide import Array, CompileError, DisjointSlice, LocalArray, d2h, device, f64, i64, kernel, thread, zeros
from oxide.compiler.ir.primitives import LOCAL_LIMIT
from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver
from tests.source_lines import line_of

MOST = LOCAL_LIMIT // 8
HALF = MOST // 2
ABOVE_HALF = HALF + 1
PART = MOST // 10


def too_much(total: int) -> str:
    return f"its LocalArrays take {total} bytes together, and a thread has 524288; make them smaller"


def on_cpu(launch: Callable[..., Any], size: int) -> list[float]:
    """What a launch makes of zeros. On the CPU device: a GPU sets memory aside for as many threads as it has room for,
    and an H100 has no 139 GB for 512 KiB each."""
    with use_driver(CpuDriver()):
        return list(launch(zeros(size, np.float64)).last().and_then(d2h).sync())


def test_all_that_a_thread_has_is_taken() -> None:
    @kernel
    def last(y: DisjointSlice[f64]) -> None:
        mine = LocalArray(MOST, f64)
        index = thread.index_1d()
        for i in range(MOST):
            mine[i] = f64(index.get() + i)
        element = y.get_mut(index)
        if element is not None:
            element.value = mine[MOST - 1 - index.get()]

    @kernel
    def last_after_a_barrier(y: DisjointSlice[f64]) -> None:
        mine = LocalArray(MOST, f64)
        index = thread.index_1d()
        for i in range(MOST):
            mine[i] = f64(index.get() + i)
        thread.sync_threads()
        element = y.get_mut(index)
        if element is not None:
            element.value = mine[MOST - 1 - index.get()]

    for each in (last, last_after_a_barrier):
        assert on_cpu(each[2, 2], 4) == [MOST - 1] * 4


@pytest.mark.parametrize("count", [MOST + 1, 1_100_000, 2**62])
def test_one_array_of_more_is_a_compile_error_at_its_line(count: int) -> None:
    @kernel
    def large(y: DisjointSlice[f64]) -> None:
        mine = LocalArray(count, f64)  # too large
        y.unchecked_mut[0] = mine[len(y)]

    with pytest.raises(CompileError, match=too_much(8 * count)) as caught:
        large.specialize()
    assert str(caught.value).startswith(f"{__file__}:{line_of(large.function, 'too large')}: kernel large: ")


def test_numba_cudas_arrays_count_too() -> None:
    @kernel
    def large(y):  # type: ignore[no-untyped-def]
        mine = cuda.local.array((MOST, 2), float64)
        y[0] = mine[int(y[0]), 0]

    with pytest.raises(CompileError, match=too_much(2 * LOCAL_LIMIT)):
        large.specialize(y=Array[f64, 1])


def test_arrays_count_together_and_those_of_device_functions_for_each_call() -> None:
    @device
    def part(n: i64) -> f64:
        mine = LocalArray(PART, f64)
        mine[n] = 1.0
        return mine[n // 2]

    @kernel
    def two_arrays(y: DisjointSlice[f64]) -> None:
        a, b = LocalArray(HALF, f64), LocalArray(ABOVE_HALF, f64)
        y.unchecked_mut[0] = a[len(y)] + b[len(y)]

    @kernel
    def six_calls(y: DisjointSlice[f64]) -> None:
        mine = LocalArray(HALF, f64)
        n = len(y)
        y.unchecked_mut[0] = mine[n] + part(n) + part(n) + part(n) + part(n) + part(n) + part(n)

    @kernel
    def five_calls(y: DisjointSlice[f64]) -> None:
        mine = LocalArray(HALF, f64)
        n = len(y)
        y.unchecked_mut[0] = mine[n] + part(n) + part(n) + part(n) + part(n) + part(n)

    with pytest.raises(CompileError, match=too_much(LOCAL_LIMIT + 8)):
        two_arrays.specialize()
    with pytest.raises(CompileError, match=too_much(8 * (HALF + 6 * PART))):
        six_calls.specialize()
    assert on_cpu(five_calls[1, 1], 2) == [0, 0]


def test_arrays_are_named_alike_whatever_was_compiled_before() -> None:
    def made() -> Any:
        @kernel
        def k(y: DisjointSlice[f64]) -> None:
            a, b = LocalArray(3, f64), LocalArray(300, f64)
            y.unchecked_mut[0] = a[len(y)] + b[len(y)]

        return k.llvm_ir()

    first = [line for line in made().splitlines() if "alloca" in line]
    assert first == [line for line in made().splitlines() if "alloca" in line]
