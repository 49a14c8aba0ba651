"""Arrays, numbers and functions as numba-cuda has them: its promotions, its unchecked arrays, its device functions."""

from __future__ import annotations

import cmath
import math
import operator
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda

from oxide import Array, CompileError, device, i64, kernel
from tests.numba_cuda.launching import launch

RNG = np.random.default_rng(7)
TABLE = RNG.random((3, 4)).astype(np.float32)
SCALE = 2.5


def binary(function: Any) -> Any:
    @kernel
    def apply(x, y, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = function(x[i], y[i])

    return apply


@device
def remainder_and_quotient(x, y):
    return x % y + 1000 * (x // y)


@pytest.mark.slow
@pytest.mark.parametrize("left", [np.int32, np.uint32, np.int64, np.uint64, np.float32])
@pytest.mark.parametrize("right", [np.int32, np.uint64, np.float64])
def test_numbers_of_two_types_are_promoted_as_numpy_promotes_them(left: Any, right: Any) -> None:
    x = RNG.integers(0, 1000, 65).astype(left)
    y = RNG.integers(1, 1000, 65).astype(right)
    for function in (operator.add, operator.sub, operator.mul, operator.truediv):
        expected = function(x, y)
        *_, out = launch(binary(function), 3, 32, x, y, np.zeros(65, expected.dtype))
        np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("exponents", [np.int64, np.int8, np.uint64])
@pytest.mark.parametrize("bases", [np.int64, np.int32, np.uint8, np.uint64])
def test_a_power_of_integers_is_exact_modulo_2_to_the_64(bases: Any, exponents: Any) -> None:
    def held(dtype: Any, *numbers: int) -> list[int]:
        return [each for each in numbers if np.iinfo(dtype).min <= each <= np.iinfo(dtype).max]

    x = held(bases, -(2**63), -3, -1, 0, 1, 3, 7, 2**31 - 1, 2**62 + 1, 2**64 - 1)
    y = held(exponents, 0, 1, 2, 39, 127, 70_000, 2**62 + 1, 2**64 - 1)
    pairs = np.array([(a, b) for a in x for b in y], object)
    for power in (operator.pow, pow):
        given = pairs[:, 0].astype(bases), pairs[:, 1].astype(exponents)
        *_, out = launch(binary(power), 3, 32, *given, np.zeros(len(pairs), np.uint64))
        assert out.tolist() == [pow(a, b, 2**64) for a, b in pairs.tolist()]


def test_a_negative_power_of_an_integer_is_truncated_and_of_0_the_least_number() -> None:
    x, y = np.array([-1, -1, 1, 2, 0]), np.array([-1, -2, -3, -1, -1])
    *_, out = launch(binary(operator.pow), 1, 32, x, y, np.zeros(5, np.int64))
    assert out.tolist() == [-1, 1, 1, 0, -(2**63)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integer_division_rounds_down_and_by_zero_gives_zero(dtype: Any) -> None:
    x = np.array([7, -7, 7, -7, 5, 0, -5], dtype)
    y = np.array([3, 3, -3, -3, 0, 0, 0], dtype)
    *_, quotient = launch(binary(operator.floordiv), 1, 32, x, y, np.zeros(7, dtype))
    *_, modulo = launch(binary(operator.mod), 1, 32, x, y, np.zeros(7, dtype))
    assert quotient.tolist() == [2, -3, -3, 2, 0, 0, 0]
    assert modulo[:4].tolist() == [1, 2, -2, -1]
    *_, both = launch(binary(remainder_and_quotient), 1, 32, x[:4], y[:4], np.zeros(4, dtype))
    assert both.tolist() == [2001, -2998, -3002, 1999]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_integer_division_of_the_largest_numbers_and_of_many_is_numpys(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    edges = [limits.min, limits.min + 1, limits.min // 2, 0, 1, 2, 3, 257, 2**31 - 1, limits.max - 1, limits.max]
    if limits.min:
        edges += [-1, -2, -257]
    many = RNG.integers(limits.min, limits.max, 1001, dtype, endpoint=True)
    x = np.concatenate([np.repeat(np.array(edges, dtype), len(edges)), many, many])
    y = np.concatenate([np.tile(np.array(edges, dtype), len(edges)), many[::-1], many[::-1] >> 23])
    with np.errstate(divide="ignore", over="ignore"):
        quotients, remainders = x // y, x % y
    quotients[y == 0] = remainders[y == 0] = 0
    if dtype is np.int64:  # numba-cuda's result; NumPy's is the least number, also of an int32 in numba's 64 bits
        quotients[(x == limits.min) & (y == dtype(-1))] = 0
    for function, expected in ((operator.floordiv, quotients), (operator.mod, remainders)):
        *_, out = launch(binary(function), -(-x.size // 32), 32, x, y, np.zeros(x.size, dtype))
        np.testing.assert_array_equal(out, expected)


@device
def next_place(x, y):
    return (x + 1) % y


@device
def place_before(x, y):
    return (x - 1) % y


@pytest.mark.slow
@pytest.mark.parametrize("function", [next_place, place_before])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_a_step_around_a_ring_is_a_remainder_of_any_number(function: Any, dtype: Any) -> None:
    ends = [1, 2, 3, 7, 255, np.iinfo(dtype).max]
    ends += [0] if dtype is np.uint32 else [0, -1, -2, -7, np.iinfo(dtype).min]
    places = sorted({n + d for n in ends for d in (-2, -1, 0, 1, 2) if np.iinfo(dtype).min <= n + d})
    places = [each for each in places if each + 1 <= np.iinfo(dtype).max and each - 1 >= np.iinfo(dtype).min]
    step = 1 if function is next_place else -1
    x, y = (np.array(each, dtype) for each in zip(*[(i, n) for i in places for n in ends], strict=True))
    *_, out = launch(binary(function), -(-x.size // 32), 32, x, y, np.zeros(x.size, np.int64))
    assert [int(each) for each in out] == [
        (int(i) + step) % int(n) if n else 0 for i, n in zip(x.tolist(), y.tolist(), strict=True)
    ]


def test_a_step_around_a_ring_divides_only_at_the_ring_s_end() -> None:
    @kernel
    def probe(table, out):
        place = cuda.grid(1)
        while table[place] != 0:
            place = (place + 1) % table.shape[0]
        out[0] = place

    ptx = probe.specialize(table=Array[i64, 1], out=Array[i64, 1]).ptx((9, 0))
    assert str(-(2**63)) not in ptx  # no case of the least number by -1
    loop = ptx[ptx.index("$L__BB0_") :]
    assert loop.index("setp.lt.s64") < loop.index("rem.s64")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_compute_as_numpys(dtype: Any) -> None:
    @kernel
    def compute(z, w, out):
        i = cuda.grid(1)
        if i < z.size:
            out[i, 0] = z[i] * w[i] + z[i].conjugate()
            out[i, 1] = z[i] / w[i]
            out[i, 2] = abs(z[i])
            out[i, 3] = cmath.exp(z[i])
            out[i, 4] = z[i].real - w[i].imag
            out[i, 5] = z[i] ** 2

    z = (RNG.random(40) + 1j * RNG.random(40)).astype(dtype)
    w = (RNG.random(40) + 1 + 1j * RNG.random(40)).astype(dtype)
    *_, out = launch(compute, 2, 32, z, w, np.zeros((40, 6), dtype))
    expected = np.stack([z * w + z.conj(), z / w, abs(z), np.exp(z), z.real - w.imag, z**2], 1)
    np.testing.assert_allclose(out, expected, rtol=1e-5 if dtype == np.complex64 else 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_math_and_numpy_and_libdevice(dtype: Any) -> None:
    @kernel
    def compute(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i, 0] = math.sin(x[i]) + np.cos(x[i])
            out[i, 1] = math.exp(x[i]) * np.log(x[i])
            out[i, 2] = x[i] ** 3 + x[i] ** 0.5
            out[i, 3] = math.log(x[i]) + math.erf(x[i])
            out[i, 4] = cuda.libdevice.atan2(float(x[i]), 2.0)
            out[i, 5] = cuda.fma(x[i], x[i], x[i]) + cuda.cbrt(x[i])
            out[i, 6] = min(x[i], 0.5) + max(x[i], 0.25) + abs(-x[i]) + round(x[i])

    x = (RNG.random(100) + 0.01).astype(dtype)
    _, out = launch(compute, 4, 32, x, np.zeros((100, 7)))
    w = x.astype(np.float64)
    erf = np.array([math.erf(each) for each in w])
    expected = np.stack(
        [
            np.sin(w) + np.cos(w),
            np.exp(w) * np.log(w),
            w**3 + np.sqrt(w),
            np.log(w) + erf,
            np.arctan2(w, 2),
            w * w + w + np.cbrt(w),
            np.minimum(w, 0.5) + np.maximum(w, 0.25) + w + np.round(w),
        ],
        1,
    )
    np.testing.assert_allclose(out, expected, rtol=1e-5 if dtype == np.float32 else 1e-13, atol=1e-6)


def test_half_precision_numbers_compute_as_numpys() -> None:
    @kernel
    def compute(x, y, out, flags):
        i = cuda.grid(1)
        if i < x.size:
            out[i, 0] = x[i] + y[i] * x[i]
            out[i, 1] = cuda.fp16.hfma(x[i], y[i], x[i])
            out[i, 2] = cuda.fp16.hsqrt(x[i])
            out[i, 3] = -x[i] / y[i]
            out[i, 4] = np.float16(i)
            flags[i] = x[i] < y[i]

    x, y = (RNG.random((2, 50)) + 0.1).astype(np.float16)
    _, _, out, flags = launch(compute, 2, 32, x, y, np.zeros((50, 5), np.float16), np.zeros(50, bool))
    wide = x.astype(np.float64) * y + x
    expected = [x + y * x, wide.astype(np.float16), np.sqrt(x), -x / y, np.arange(50, dtype=np.float16)]
    np.testing.assert_allclose(out, np.stack(expected, 1), rtol=2e-3)
    np.testing.assert_array_equal(out[:, 1], expected[1])
    np.testing.assert_array_equal(flags, x < y)


def test_half_precision_has_a_truth_value_and_is_rounded() -> None:
    @kernel
    def compute(x, out):
        i = cuda.grid(1)
        if x[i]:
            out[i, 0] = 1
        while x[i] and out[i, 1] < 3:
            out[i, 1] += 1
        out[i, 2] = np.bool_(x[i]) + 2 * (not x[i])
        out[i, 3] = round(x[i])
        out[i, 4] = round(x[i], 1)

    x = np.array([0.0, -0.0, 1.5, 2.625, -70.25, 6e-8, np.inf], np.float16)
    _, out = launch(compute, 1, x.size, x, np.zeros((x.size, 5)))
    truth = x != 0
    np.testing.assert_array_equal(out[:, 0], truth)
    np.testing.assert_array_equal(out[:, 1], 3 * truth)
    np.testing.assert_array_equal(out[:, 2], np.where(truth, 1, 2))
    np.testing.assert_array_equal(out[:-1, 3], np.round(x[:-1].astype(float)))
    np.testing.assert_array_equal(out[:, 4], np.float32([round(float(v), 1) for v in x]))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_bits_are_reversed_over_the_width_of_the_integer(dtype: Any) -> None:
    @kernel
    def reverse(x, out):
        i = cuda.grid(1)
        out[i] = cuda.brev(x[i])

    x = np.array([1, 2, 127, 0x7FFF0001, np.iinfo(dtype).max], dtype)
    bits = 8 * x.itemsize
    _, out = launch(reverse, 1, x.size, x, np.zeros(x.size, np.uint64))
    assert out.tolist() == [int(f"{int(value):0{bits}b}"[::-1], 2) for value in x]


def test_slices_views_and_iteration() -> None:
    @kernel
    def use(x, out):
        row = x[1]
        column = x[:, 2]
        part = x[1:3, ::2]
        part[0, 0] = -1
        total = 0.0
        for value in row:
            total += value
        out[0] = total
        out[1] = column[-1]
        out[2] = part.shape[0] * 10 + part.shape[1]
        out[3] = x.size + x.ndim + x.strides[0]
        out[4] = x.reshape(x.size)[5]
        out[5] = x.T[2, 1]
        out[6:9] = 4
        out[9] = len(x) + x.flat[19]

    x = RNG.random((4, 5))
    changed, out = launch(use, 1, 1, x, np.zeros(10))
    x[1, 0] = -1
    np.testing.assert_array_equal(changed, x)
    expected = [x[1].sum(), x[-1, 2], 23, 20 + 2 + 40, x.reshape(-1)[5], x[1, 2], 4, 4, 4, 4 + x[-1, -1]]
    np.testing.assert_allclose(out, expected)


def test_whole_loops_branches_and_tuples() -> None:
    @kernel
    def use(x, out):
        found = -1
        for k, value in enumerate(x):
            if value > 100:
                found = k
                break
            if value < 0:
                continue
            out[0] += value
        i = 0
        while True:
            i += 2
            if i > 9:
                break
        pair = (found, i)
        a, b = pair
        out[1], out[2] = a, b
        for k, (u, v) in enumerate(zip(x[:2], x[2:4])):  # noqa: B905 - numba knows no strict
            out[3] += k + u * v
        for k in range(10, 0, -3):
            out[4] += k
        out[5] = 1 if (not found or i == 10) and x[0] != 3 else 2

    x = np.array([1, -2, 3, 200, 5])
    _, out = launch(use, 1, 1, x, np.zeros(6, np.int64))
    assert out.tolist() == [4, 3, 10, 1 * 3 + 1 + -2 * 200, 10 + 7 + 4 + 1, 1]


def test_module_arrays_and_numbers_are_constants() -> None:
    offset = 3

    @kernel
    def use(out):
        i, j = cuda.grid(2)
        constant = cuda.const.array_like(TABLE)
        if i < 3 and j < 4:
            out[i, j] = SCALE * constant[i, j] + TABLE[i, 3 - j] + offset

    out = launch(use, 1, (4, 4), np.zeros((3, 4)))
    np.testing.assert_allclose(out, SCALE * TABLE + TABLE[:, ::-1] + offset, rtol=1e-6)


@cuda.jit(device=True)
def clamp(x, low, high=1.0):
    return min(max(x, low), high)


@cuda.jit(device=True, inline="always")
def twice(x):
    return 2 * x


@cuda.jit(device=True)
def factorial(n):
    if n <= 1:
        return 1
    return n * factorial(n - 1)


@numba.njit
def both(x):
    return x + 1, x * 2


def test_device_functions_of_every_kind() -> None:
    def plus(n):
        @cuda.jit(device=True)
        def inner(x):
            return x + n

        return inner

    plus_five = plus(5)

    @kernel
    def use(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i, 0] = clamp(x[i], 0.25)
            out[i, 1] = twice(x[i]) + plus_five(x[i])
            out[i, 2] = factorial(i % 10)
            a, b = both(x[i])
            out[i, 3] = a * b

    x = RNG.random(33) * 2
    _, out = launch(use, 2, 32, x, np.zeros((33, 4)))
    factorials = [math.factorial(i % 10) for i in range(33)]
    np.testing.assert_allclose(out, np.stack([x.clip(0.25, 1), 3 * x + 5, factorials, (x + 1) * 2 * x], 1))


def test_a_device_function_of_numba_is_still_numbas_afterwards() -> None:
    assert clamp.py_func(3.0, 0.0) == 1.0
    assert not clamp.overloads


def test_an_index_outside_is_not_looked_at_and_a_negative_one_counts_from_the_end() -> None:
    @kernel
    def last(x, out):
        out[0] = x[-1] + x[-2, 1]

    x = RNG.random((3, 2))
    with pytest.raises(CompileError, match=r"test_arrays_and_numbers.py:\d+"):
        launch(last, 1, 1, x, np.zeros(1))  # a row and a number

    @kernel
    def corner(x, out):
        out[0] = x[-1, -2] + x[-2, 1]

    assert launch(corner, 1, 1, x, np.zeros(1))[1][0] == x[-1, -2] + x[-2, 1]


def test_what_a_kernel_cannot_do_is_a_compile_error_at_its_line() -> None:
    @kernel
    def allocates(out):
        copied = out.copy()
        out[0] = copied[0]

    @kernel
    def calls_the_host(out):
        out[0] = open("x")  # noqa: SIM115

    for wrong in (allocates, calls_the_host):
        with pytest.raises(CompileError, match=r"\.py:\d+: .*(open|allocated|allocate)"):
            launch(wrong, 1, 1, np.zeros(2))


def test_a_function_of_numpy_that_numba_cuda_lacks_is_refused_by_name() -> None:
    @kernel
    def root(out):
        out[0] = np.sqrt(out[0])

    with pytest.raises(CompileError, match=r"np\.sqrt is not supported in kernels: use math\.sqrt"):
        launch(root, 1, 1, np.zeros(1))


def test_an_array_that_would_have_to_be_allocated_is_refused() -> None:
    @kernel
    def copies(x):
        x[1:3] = x[0:2]

    with pytest.raises(CompileError, match="a kernel allocates nothing"):
        launch(copies, 1, 1, np.zeros(4))


def test_inline_ptx_is_for_gpus() -> None:
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    @intrinsic
    def clock(context):  # numba's way to define one
        def lower(context, builder, sig, args):
            asm = ir.InlineAsm(ir.FunctionType(ir.IntType(32), []), "mov.u32 $0, %clock;", "=r", side_effect=True)
            return builder.call(asm, [])

        return numba.types.int32(), lower

    @kernel
    def timed(out):
        out[0] = clock()

    from oxide import Array, i32

    special = timed.specialize(out=Array[i32, 1])  # type: ignore[valid-type]
    assert "%clock" in special.ptx()
    with pytest.raises(CompileError, match="inline PTX, which only a GPU runs"):
        special.native_asm()
