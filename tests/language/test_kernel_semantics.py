"""Kernels compiled for the host compute what Python and NumPy compute."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxide import (
    CompileError,
    DisjointSlice,
    Slice,
    bool_,
    device,
    f32,
    f64,
    i8,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u32,
    u64,
)
from oxide.compiler.kernel.kernel import Kernel
from tests.compiler.native_runner import fault_of, run, run_blocks

SIZES = (0, 1, 31, 33, 1000003)


def axpy_of(dtype: Any) -> Kernel:
    @kernel
    def axpy(a: dtype, x: Slice[dtype], y: DisjointSlice[dtype]):
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = a * x[index.get()] + element.value

    return axpy


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [i32, i64, u32, u64, i8, u8, f32, f64])
def test_axpy_equals_numpy_for_every_dtype_and_size(dtype: Any, size: int) -> None:
    generator = np.random.default_rng(size)
    x = generator.integers(0, 20, size).astype(dtype.dtype)
    y = generator.integers(0, 20, size).astype(dtype.dtype)
    expected = (3 * x.astype(np.float64) + y).astype(dtype.dtype)
    run(axpy_of(dtype), size, 3, x, y, block=256)
    np.testing.assert_array_equal(y, expected)


def binary(operation: Callable[[Any, Any], Any], left: Any, right: Any, result: Any) -> Kernel:
    f = device(operation)

    @kernel
    def apply(a: Slice[left], b: Slice[right], c: DisjointSlice[result]):
        index = thread.index_1d()
        element = c.get_mut(index)
        if element is not None:
            element.value = f(a[index.get()], b[index.get()])

    return apply


def floor_divide(a, b):  # type: ignore[no-untyped-def]
    return a // b


def remainder(a, b):  # type: ignore[no-untyped-def]
    return a % b


def shift_left(a, b):  # type: ignore[no-untyped-def]
    return a << b


def shift_right(a, b):  # type: ignore[no-untyped-def]
    return a >> b


def bits(a, b):  # type: ignore[no-untyped-def]
    return ((a & b) | (a ^ ~b)) + -a


def add(a, b):  # type: ignore[no-untyped-def]
    return a + b


def subtract(a, b):  # type: ignore[no-untyped-def]
    return a - b


def multiply(a, b):  # type: ignore[no-untyped-def]
    return a * b


def divide(a, b):  # type: ignore[no-untyped-def]
    return a / b


def ternary(a, b):  # type: ignore[no-untyped-def]
    return a if a < b else b


def builtins(a, b):  # type: ignore[no-untyped-def]
    return max(a, b) - min(a, b) + abs(a)


def logic(a, b):  # type: ignore[no-untyped-def]
    if (a < b and not (a == 3 or b == 3)) or (a >= 10 and b != 2) or a > b * 4 or a <= -20:
        return 1
    return 0


INTEGER_OPERATIONS = [
    floor_divide, remainder, bits, add, subtract, multiply, ternary, builtins, logic,
]  # fmt: skip


def pairs() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    values = np.array([-21, -7, -3, -1, 1, 2, 3, 10, 25], np.int64)
    a, b = np.meshgrid(values, values)
    return a.ravel().copy(), b.ravel().copy()


@pytest.mark.slow
@pytest.mark.parametrize("operation", INTEGER_OPERATIONS, ids=lambda f: f.__name__)
def test_integer_operators_have_pythons_semantics(operation: Callable[[Any, Any], Any]) -> None:
    a, b = pairs()
    expected = [operation(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    for dtype in (i64, i32):
        c = np.zeros(a.size, dtype.dtype)
        run(binary(operation, dtype, dtype, dtype), a.size, a.astype(dtype.dtype), b.astype(dtype.dtype), c)
        np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("operation", [shift_left, shift_right], ids=lambda f: f.__name__)
def test_shifts_have_pythons_semantics(operation: Callable[[Any, Any], Any]) -> None:
    a, _ = pairs()
    b = np.arange(a.size) % 12
    c = np.zeros(a.size, np.int64)
    run(binary(operation, i64, i64, i64), a.size, a, b, c)
    np.testing.assert_array_equal(c, [operation(int(x), int(y)) for x, y in zip(a, b, strict=True)])


def test_a_shift_by_the_width_or_more_shifts_every_bit_out() -> None:
    a = np.array([5, -5, 5, -5], np.int64)
    b = np.array([64, 64, 1000, -1], np.int64)
    c = np.ones(4, np.int64)
    run(binary(shift_left, i64, i64, i64), 4, a, b, c)
    np.testing.assert_array_equal(c, 0)
    run(binary(shift_right, i64, i64, i64), 4, a, b, c)
    np.testing.assert_array_equal(c, [0, -1, 0, -1])


@pytest.mark.slow
@pytest.mark.parametrize("operation", [add, subtract, multiply, divide, floor_divide, remainder, ternary, builtins])
def test_float_operators_have_pythons_semantics(operation: Callable[[Any, Any], Any]) -> None:
    a, b = (values.astype(np.float64) / 4 for values in pairs())
    c = np.zeros(a.size)
    run(binary(operation, f64, f64, f64), a.size, a, b, c)
    np.testing.assert_allclose(c, [operation(float(x), float(y)) for x, y in zip(a, b, strict=True)], rtol=1e-15)


def test_dividing_two_integers_gives_a_float() -> None:
    a, b = pairs()
    c = np.zeros(a.size)
    run(binary(divide, i32, i32, f64), a.size, a.astype(np.int32), b.astype(np.int32), c)
    np.testing.assert_array_equal(c, a / b)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [i8, i32, i64, u8, u32, u64])
def test_dividing_by_zero_gives_zero_and_the_process_lives(dtype: Any) -> None:
    least = np.iinfo(dtype.dtype).min
    a = np.array([7, least, 0], dtype.dtype)
    b = np.zeros(3, dtype.dtype)
    for operation in (floor_divide, remainder):
        c = np.ones(3, dtype.dtype)
        run(binary(operation, dtype, dtype, dtype), 3, a, b, c)
        np.testing.assert_array_equal(c, 0)


@pytest.mark.parametrize("dtype", [i32, i64])
def test_dividing_the_least_integer_by_minus_one_does_not_kill_the_process(dtype: Any) -> None:
    a = np.array([np.iinfo(dtype.dtype).min], dtype.dtype)
    b = np.array([-1], dtype.dtype)
    c = np.ones(1, dtype.dtype)
    run(binary(remainder, dtype, dtype, dtype), 1, a, b, c)
    assert c[0] == 0
    run(binary(floor_divide, dtype, dtype, dtype), 1, a, b, c)


def test_a_float_out_of_range_becomes_the_nearest_integer() -> None:
    @kernel
    def convert(x: Slice[f64], y: DisjointSlice[i64]):
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = i64(x[index.get()])

    x = np.array([1e300, -1e300, np.nan, 2.9, -2.9])
    y = np.ones(5, np.int64)
    run(convert, 5, x, y)
    np.testing.assert_array_equal(y, [2**63 - 1, -(2**63), 0, 2, -2])


def test_a_u64_and_a_place_add_up_to_an_index_when_one_is_converted() -> None:
    @kernel
    def refused(k: u64, x: Slice[i32], y: DisjointSlice[i32]):
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[index.get() + k]

    with pytest.raises(CompileError, match=r"i64 \+ u64: no integer type holds both; convert one, as in i64\(x\)"):
        refused.specialize()

    @kernel
    def offset(m: u32, n: u32, k: u64, x: Slice[i32], y: DisjointSlice[i32]):
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[m * n + index.get() + i64(k) - 1]

    x = np.arange(20, dtype=np.int32)
    y = np.zeros(4, np.int32)
    run(offset, 4, 3, 4, 2, x, y)
    np.testing.assert_array_equal(y, [13, 14, 15, 16])


def loops(n, start, stop, step):  # type: ignore[no-untyped-def]
    total = 0
    for i in range(n):
        if i == 3:
            continue
        if i > 20:
            break
        for j in range(start, stop, step):
            total += i * j
    while total > 100:
        total -= 7
        total //= 2
    return total


@pytest.mark.parametrize("bounds", [(0, 10, 3), (10, -5, -2), (5, 5, 1), (3, 9, -1), (-4, 4, 1)])
@pytest.mark.parametrize("n", [0, 1, 8, 50])
def test_loops_run_as_in_python(n: int, bounds: tuple[int, int, int]) -> None:
    f = device(loops)

    @kernel
    def run_loops(n: u32, start: i32, stop: i32, step: i32, y: DisjointSlice[i64]):
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = f(n, start, stop, step)

    y = np.zeros(1, np.int64)
    run(run_loops, 1, n, *bounds, y)
    assert y[0] == loops(n, *bounds)


def test_device_functions_nest_and_take_slices_and_references() -> None:
    @device
    def twice(x):  # type: ignore[no-untyped-def]
        return x + x

    @device
    def element_sum(a, i):  # type: ignore[no-untyped-def]
        return twice(a[i]) + len(a)

    @device
    def put(c, index, value):  # type: ignore[no-untyped-def]
        element = c.get_mut(index)
        if element is None:
            return
        element.value += value

    @kernel
    def combine(a: Slice[f32], b: Slice[f32], c: DisjointSlice[f32]):
        index = thread.index_1d()
        if index.get() < len(a):
            put(c, index, element_sum(a, index.get()) + element_sum(b, 0))

    a, b = np.arange(5, dtype=np.float32), np.full(3, 10, np.float32)
    c = np.ones(9, np.float32)
    run(combine, 32, a, b, c)
    np.testing.assert_array_equal(c, [29 + 2 * i for i in range(5)] + [1] * 4)


def test_math_that_is_one_instruction_equals_pythons() -> None:
    def compute(x, y):  # type: ignore[no-untyped-def]
        return (
            math.sqrt(abs(x)) + math.floor(x) - math.ceil(y) + math.fabs(y) + math.copysign(x, y)
            + min(x, y, 0.5) + max(x, 1.5) + math.pi + int(x) + (1 if bool(y) else 0)
        )  # fmt: skip

    a, b = (values.astype(np.float64) / 4 for values in pairs())
    for dtype, tolerance in ((f64, 1e-15), (f32, 1e-6)):
        c = np.zeros(a.size, dtype.dtype)
        run(binary(compute, dtype, dtype, dtype), a.size, a.astype(dtype.dtype), b.astype(dtype.dtype), c)
        expected = [compute(float(x), float(y)) for x, y in zip(a, b, strict=True)]
        np.testing.assert_allclose(c, expected, rtol=tolerance, atol=10 * tolerance)


def test_bools_are_parameters_elements_and_values() -> None:
    @kernel
    def flip(flag: bool_, x: Slice[bool_], y: DisjointSlice[bool_]):
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = bool_(x[index.get()]) != flag

    x = np.array([True, False, True])
    for flag in (True, False):
        y = np.zeros(3, np.bool_)
        run(flip, 3, flag, x, y)
        np.testing.assert_array_equal(y, x != flag)


@pytest.mark.nightly
@pytest.mark.parametrize("waits", [False, True])
def test_scalars_of_any_sizes_come_before_a_slice(waits: bool) -> None:
    for first, second, third in itertools.product((u8, f32, i64), repeat=3):

        @kernel
        def add(a: first, b: second, x: Slice[i64], c: third, y: DisjointSlice[i64]):
            index = thread.index_1d()
            if waits:
                thread.sync_threads()
            element = y.get_mut(index)
            if element is not None:
                element.value = i64(a) + 10 * i64(b) + 100 * i64(c) + x[index.get()]

        y = np.zeros(5, np.int64)
        run(add, 5, 1, 2, np.arange(5) * 1000, 3, y)
        np.testing.assert_array_equal(y, np.arange(5) * 1000 + 321)


def test_each_thread_knows_its_coordinates() -> None:
    @kernel
    def locate(n: u32, y: DisjointSlice[i64]):
        row, col = thread.index_2d_row(), thread.index_2d_col()
        element = y.get_mut(thread.index_2d(n))
        if element is not None:
            x = thread.block_idx.x * thread.block_dim.x + thread.thread_idx.x
            yy = thread.block_idx.y * thread.block_dim.y + thread.thread_idx.y
            if x == col and yy == row and thread.grid_dim.z == 1 and thread.thread_idx.z == 0:
                element.value = row * 1000 + col

    y = np.full((7, 11), -1, np.int64)
    record = run_blocks(locate, (3, 2, 1), (4, 5, 1), 11, y)
    assert fault_of(locate, record) is None
    np.testing.assert_array_equal(y, np.arange(7)[:, None] * 1000 + np.arange(11))


def test_a_range_of_blocks_runs_those_blocks_only() -> None:
    @kernel
    def mark(y: DisjointSlice[i32]):
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = 1

    y = np.zeros(40, np.int32)
    run_blocks(mark, (10, 1, 1), (4, 1, 1), y, first=3, end=5)
    np.testing.assert_array_equal(np.flatnonzero(y), np.arange(12, 20))


@pytest.mark.parametrize("width", [2**36, 2**40, 2**63, 2**64 - 1])
def test_a_width_that_could_wrap_gives_no_index(width: int) -> None:
    @kernel
    def count(n: u64, y: DisjointSlice[i32]):
        index = thread.index_2d(n)
        if index is not None:
            element = y.get_mut(index)
            if element is not None:
                element.value = 1

    y = np.zeros(16, np.int32)
    run_blocks(count, (2, 2, 1), (4, 4, 1), width, y)
    assert not y.any()


def test_a_negative_width_gives_no_index() -> None:
    @kernel
    def count(n: i32, y: DisjointSlice[i32]):
        index = thread.index_2d(n)
        if index is None:
            return
        element = y.get_mut(index)
        if element is not None:
            element.value = 1

    y = np.zeros(16, np.int32)
    run_blocks(count, (2, 2, 1), (4, 4, 1), -3, y)
    assert not y.any()
    run_blocks(count, (2, 2, 1), (4, 4, 1), 3, y)
    assert y.sum() == 16


def test_an_index_beyond_32_bits_does_not_wrap() -> None:
    @kernel
    def probe(m: u32, n: u32, x: Slice[i32], y: DisjointSlice[i32]):
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[m * n]

    x, y = np.ones(8, np.int32), np.ones(1, np.int32)
    record = run_blocks(probe, (1, 1, 1), (1, 1, 1), 2**31, 2, x, y)
    fault = fault_of(probe, record)
    assert fault is not None
    assert fault.index == 2**32
    assert y[0] == 1  # the thread left


def test_a_condition_may_be_evaluated_among_the_arguments_of_a_function() -> None:
    @kernel
    def chosen(x: Slice[i64], y: DisjointSlice[i64]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            v = x[index.get()]
            element.value = (
                max(v, i64(2) if v > 1 else i64(3)) + abs(v if v < 0 and v > -9 else -v) + math.gcd(v or 4, 6)
            )

    x, y = np.arange(-12, 13), np.zeros(25, np.int64)
    run(chosen, 25, x, y)
    expected = [
        max(v, 2 if v > 1 else 3) + abs(v if v < 0 and v > -9 else -v) + math.gcd(v or 4, 6) for v in x.tolist()
    ]
    np.testing.assert_array_equal(y, expected)
