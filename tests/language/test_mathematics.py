"""``math``, ``oxide.intrinsics`` and ``oxide.fast`` in kernels, against float64 on the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxide import (
    DisjointSlice,
    Slice,
    d2h,
    f16,
    f32,
    f64,
    fast,
    h2d,
    i32,
    i64,
    intrinsics,
    kernel,
    thread,
    u32,
    u64,
    zeros,
)
from oxide.compiler.ptx import libdevice
from oxide.errors import CompileError
from tests.elementwise import binary, run, unary

SIZES = (0, 1, 31, 32, 33, 1025, 1_000_003)


def ulps(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error in units in the last place of the found type, where the expected number is finite."""
    rounded = expected.astype(found.dtype)
    finite = np.isfinite(rounded)
    assert np.array_equal(np.isnan(found), np.isnan(rounded))
    assert np.array_equal(found[~finite], rounded[~finite], equal_nan=True)
    error = np.abs(found[finite].astype(np.float64) - expected[finite]) / np.spacing(np.abs(rounded[finite]))
    return float(error.max(initial=0))


ANY, POSITIVE, UNIT, ABOVE_ONE = (-8.0, 8.0), (1e-3, 30.0), (-0.999, 0.999), (1.001, 50.0)
_ANYWHERE = """sin cos tan atan sinh cosh tanh asinh exp exp2 expm1 erf erfc cbrt fabs degrees radians floor ceil
trunc"""
_OF_POSITIVE = "log log2 log10 log1p sqrt gamma lgamma"
UNARY: dict[str, tuple[float, float]] = {
    **dict.fromkeys(_ANYWHERE.split(), ANY),
    **dict.fromkeys(_OF_POSITIVE.split(), POSITIVE),
    **dict.fromkeys(("asin", "acos", "atanh"), UNIT),
    "acosh": ABOVE_ONE,
}


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number_are_right_to_a_few_units_in_the_last_place(name: str, dtype: Any) -> None:
    low, high = UNARY[name]
    x = np.random.default_rng(7).uniform(low, high, 1025).astype(dtype.dtype)
    function = getattr(math, name)
    expected = np.array([float(function(float(value))) for value in x])
    # lgamma passes through 0 at 1 and 2, where its relative error is not bounded.
    if name == "lgamma":
        assert np.allclose(run(unary(function, dtype), x), expected, rtol=2e-6, atol=2e-6)
    else:
        assert ulps(run(unary(function, dtype), x), expected) <= (10 if name == "gamma" else 5)


BINARY: dict[str, tuple[float, float]] = {
    **dict.fromkeys(["atan2", "copysign", "fmod", "hypot", "remainder"], ANY),
    "pow": (0.1, 6.0),
}


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers_are_right_to_a_few_units_in_the_last_place(name: str, dtype: Any) -> None:
    low, high = BINARY[name]
    random = np.random.default_rng(8)
    a, b = (random.uniform(low, high, 1025).astype(dtype.dtype) for _ in range(2))
    function = getattr(math, name)
    expected = np.array([function(float(x), float(y)) for x, y in zip(a, b, strict=True)])
    assert ulps(run(binary(function, dtype), a, b), expected) <= 8


@pytest.mark.parametrize("size", SIZES)
def test_mathematics_covers_every_size(size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    assert ulps(run(unary(math.exp, f32), x), np.exp(x.astype(np.float64))) <= 3


def test_the_classes_of_numbers() -> None:
    x = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, 1e-45], np.float32)
    for function, of_numpy in ((math.isnan, np.isnan), (math.isinf, np.isinf), (math.isfinite, np.isfinite)):
        for dtype in (f32, f64):
            values = x.astype(dtype.dtype)
            assert run(unary(function, dtype, i32), values, dtype=np.int32).tolist() == of_numpy(values).tolist()


@kernel(block=64)
def take_apart(x: Slice[f64], fraction: DisjointSlice[f64], whole: DisjointSlice[f64], put: DisjointSlice[f64]) -> None:
    i = thread.index_1d()
    first, second, third = fraction.get_mut(i), whole.get_mut(i), put.get_mut(i)
    if first is not None and second is not None and third is not None:
        a, b = math.modf(x[i.get()])
        first.value = a
        second.value = b
        mantissa, exponent = math.frexp(x[i.get()])
        third.value = math.ldexp(mantissa, exponent + 1)


def test_modf_frexp_and_ldexp_take_numbers_apart() -> None:
    x = np.random.default_rng(9).uniform(-1e6, 1e6, 33)
    fraction, whole, put = (
        take_apart(h2d(x), zeros(33, f64), zeros(33, f64), zeros(33, f64)).map(lambda r: r[1:]).sync()
    )
    expected = np.modf(x)
    assert np.array_equal(d2h(fraction).sync(), expected[0])
    assert np.array_equal(d2h(whole).sync(), expected[1])
    assert np.array_equal(d2h(put).sync(), 2 * x)


@kernel(block=64)
def powers(n: i32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        v = x[i.get()]
        a, b = divmod(v, f32(0.75))
        element.value = v**2 + v**n + pow(v, f32(1.5)) + a + b + round(v) + math.log(v, f32(3.0))


def test_powers_divmod_round_and_logarithms_to_a_base() -> None:
    x = np.random.default_rng(10).uniform(0.5, 4, 1025).astype(np.float32)
    found = powers(3, h2d(x), zeros(1025)).last().and_then(d2h).sync()
    v = x.astype(np.float64)
    expected = v**2 + v**3 + v**1.5 + v // 0.75 + v % 0.75 + np.round(v) + np.log(v) / np.log(3)
    assert np.allclose(found, expected, rtol=2e-6)


def test_round_takes_ties_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999, 1e10], np.float64)
    for dtype in (f32, f64):
        values = x.astype(dtype.dtype)
        assert run(unary(round, dtype, i64), values, dtype=np.int64).tolist() == [round(float(v)) for v in values]


def test_single_precision_stays_single_precision() -> None:
    for function in (math.sin, math.exp, math.pow, math.hypot):
        k = (binary if function in (math.pow, math.hypot) else unary)(function, f32)
        assert "double" not in k.llvm_ir()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [i32, u32, i64, u64], ids=str)
def test_the_bits_of_integers(dtype: Any) -> None:
    bits = dtype.dtype.itemsize * 8
    raw = np.random.default_rng(11).integers(0, 2**bits - 1, 1025, dtype=np.uint64)
    raw[:4] = 0, 1, 2 ** (bits - 1), 2**bits - 1
    raw[4:100] >>= np.arange(96, dtype=np.uint64) % bits
    x = raw.astype(f"u{bits // 8}").view(dtype.dtype)
    numbers = [int(value) for value in raw]
    counted: dict[Any, Callable[[int], int]] = {
        intrinsics.popc: int.bit_count,
        intrinsics.clz: lambda n: bits - n.bit_length(),
        intrinsics.ffs: lambda n: (n & -n).bit_length(),
    }
    for function, expected in counted.items():
        found = run(unary(function, dtype, i32), x, dtype=np.int32)
        assert found.tolist() == [expected(number) for number in numbers]
    reversed_bits = run(unary(intrinsics.brev, dtype), x).view(f"u{bits // 8}")
    assert reversed_bits.tolist() == [int(f"{number:0{bits}b}"[::-1], 2) for number in numbers]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [i32, u32, i64, u64], ids=str)
def test_wide_products_and_saturation(dtype: Any) -> None:
    limits = np.iinfo(dtype.dtype)
    random = np.random.default_rng(12)
    a, b = (random.integers(limits.min, limits.max, 1025, dtype=dtype.dtype, endpoint=True) for _ in range(2))
    a[:2], b[:2] = (limits.min, limits.max), (limits.min, limits.max)
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    width = limits.bits

    def held(number: int) -> int:
        return max(int(limits.min), min(int(limits.max), number))

    assert run(binary(intrinsics.mulhi, dtype), a, b).tolist() == [(x * y) >> width for x, y in pairs]
    assert run(binary(intrinsics.saturating_add, dtype), a, b).tolist() == [held(x + y) for x, y in pairs]
    assert run(binary(intrinsics.saturating_sub, dtype), a, b).tolist() == [held(x - y) for x, y in pairs]


@kernel(block=64)
def fused(a: Slice[f32], b: Slice[f32], c: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = intrinsics.fma(a[i.get()], b[i.get()], c[i.get()])


def test_fma_rounds_once() -> None:
    random = np.random.default_rng(13)
    a, b = (random.uniform(1, 2, 1025).astype(np.float32) for _ in range(2))
    c = -(a * b)  # what is left is the rounding error of the product, which two roundings would lose
    found = fused(h2d(a), h2d(b), h2d(c), zeros(1025)).last().and_then(d2h).sync()
    assert np.array_equal(found, (a.astype(np.float64) * b + c).astype(np.float32))
    assert np.any(found != 0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, f32, f64], ids=str)
def test_fmax_and_fmin_of_a_nan_and_a_number_are_the_number(dtype: Any) -> None:
    numbers = np.array([np.nan, -np.inf, -2, 0, 3.5, np.inf], dtype.dtype)
    a, b = np.repeat(numbers, 6), np.tile(numbers, 6)
    for function, expected in ((intrinsics.fmax, np.fmax(a, b)), (intrinsics.fmin, np.fmin(a, b))):
        np.testing.assert_array_equal(run(binary(function, dtype), a, b), expected)


def test_saturate_clips_to_the_unit_interval_and_rsqrt_is_one_over_the_root() -> None:
    x = np.array([-1, 0, 0.25, 1, 7, np.nan, np.inf], np.float32)
    assert run(unary(intrinsics.saturate, f32), x).tolist() == [0, 0, 0.25, 1, 1, 0, 1]
    for dtype in (f32, f64):
        values = np.random.default_rng(14).uniform(1e-3, 1e3, 1025).astype(dtype.dtype)
        assert ulps(run(unary(intrinsics.rsqrt, dtype), values), 1 / np.sqrt(values.astype(np.float64))) <= 3


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "signed", "unsigned"), [(f32, i32, u32), (f64, i64, u64)], ids=str)
def test_the_bits_of_floats_and_back(dtype: Any, signed: Any, unsigned: Any) -> None:
    size = dtype.dtype.itemsize
    x = np.random.default_rng(15).integers(0, 2**63, 1025, dtype=np.uint64).astype(f"u{size}").view(dtype.dtype)
    x[:6] = 0, -0.0, np.inf, np.nan, np.finfo(dtype.dtype).smallest_subnormal, -1
    bits = x.view(unsigned.dtype)
    assert run(unary(intrinsics.to_bits, dtype, unsigned), x, dtype=unsigned.dtype).tolist() == bits.tolist()
    for integer in (signed, unsigned):
        found = run(unary(intrinsics.from_bits, integer, dtype), bits.view(integer.dtype), dtype=dtype.dtype)
        assert found.view(unsigned.dtype).tolist() == bits.tolist()


def test_bits_are_of_floats_of_32_and_64_bits() -> None:
    with pytest.raises(CompileError, match="to_bits takes an f32 or f64, not i32"):
        unary(intrinsics.to_bits, i32).ptx()
    with pytest.raises(CompileError, match="from_bits takes 32- and 64-bit integers, not f32"):
        unary(intrinsics.from_bits, f32).ptx()


FAST: dict[str, tuple[float, float]] = {
    "exp": (-5, 5), "exp10": (-2, 2), "log": (0.1, 9), "log2": (0.1, 9), "log10": (0.1, 9),
    "sin": (-3, 3), "cos": (-3, 3), "tan": (-1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FAST)
def test_fast_functions_are_near(name: str) -> None:
    x = np.random.default_rng(15).uniform(*FAST[name], 1025).astype(np.float32)
    v = x.astype(np.float64)
    expected = 10**v if name == "exp10" else getattr(np, name)(v)
    assert np.allclose(run(unary(getattr(fast, name), f32), x), expected, rtol=1e-5, atol=2e-6)


@kernel(block=128, fastmath=True)
def fast_tanh(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = math.tanh(x[i.get()]) + math.exp(x[i.get()])


def test_fastmath_takes_the_fast_functions_on_both_devices() -> None:
    x = np.random.default_rng(18).uniform(-3, 3, 1025).astype(np.float32)
    found = fast_tanh(h2d(x), zeros(1025)).last().and_then(d2h).sync()
    assert np.allclose(found, np.tanh(x.astype(np.float64)) + np.exp(x.astype(np.float64)), rtol=1e-3, atol=1e-3)
    if libdevice.find_libdevice() is not None:
        assert "tanh.approx.f32" in fast_tanh.ptx()
        assert "tanh.approx.f32" not in fast_tanh.ptx(cc=(7, 0))


def test_fast_pow_and_divide_are_near() -> None:
    a, b = (np.random.default_rng(seed).uniform(0.5, 4, 1025).astype(np.float32) for seed in (16, 17))
    assert np.allclose(run(binary(fast.pow, f32), a, b), a.astype(np.float64) ** b, rtol=2e-5)
    assert np.allclose(run(binary(fast.divide, f32), a, b), a.astype(np.float64) / b, rtol=1e-6)


def test_fast_exp2_is_near_and_one_instruction() -> None:
    x = np.concatenate([np.random.default_rng(19).uniform(-120, 120, 1021), [-np.inf, np.inf, 0, -0.0]])
    x = x.astype(np.float32)
    assert np.allclose(run(unary(fast.exp2, f32), x), np.exp2(x.astype(np.float64)), rtol=3e-7, atol=0)
    assert np.isnan(run(unary(fast.exp2, f32), np.full(1, np.nan, np.float32))).all()
    assert "ex2.approx.ftz.f32" in unary(fast.exp2, f32).ptx()


def test_fast_reciprocal_is_near_and_one_instruction() -> None:
    x = np.concatenate([np.random.default_rng(20).uniform(-1e6, 1e6, 1021), [-np.inf, np.inf, 1e-30, 1e30]])
    x = x.astype(np.float32)
    assert np.allclose(run(unary(fast.reciprocal, f32), x), 1 / x.astype(np.float64), rtol=1.5e-7, atol=0)
    found = run(unary(fast.reciprocal, f32), np.array([np.nan, 0, -0.0], np.float32))
    np.testing.assert_array_equal(found, [np.nan, np.inf, -np.inf])
    assert "rcp.approx.ftz.f32" in unary(fast.reciprocal, f32).ptx()


def test_a_fast_function_of_a_double_is_refused() -> None:
    with pytest.raises(CompileError, match=r"fast\.exp approximates for f32, not f64; use math's function"):
        unary(fast.exp, f64).specialize()


def test_integers_of_two_types_are_refused_where_their_bits_count() -> None:
    @kernel
    def mixed(a: i32, b: i64, y: DisjointSlice[i64]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = intrinsics.mulhi(a, b)

    with pytest.raises(CompileError, match=r"intrinsics\.mulhi takes integers of one type, not i32 and i64"):
        mixed.specialize()


def test_on_a_gpu_single_instructions_need_no_libdevice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libdevice, "find_libdevice", lambda: None)
    for function in (math.sqrt, math.floor, math.fabs, math.isnan, intrinsics.rsqrt):
        assert ".visible .entry" in unary(function, f32).ptx()
    for function in (intrinsics.popc, intrinsics.brev):
        assert ".visible .entry" in unary(function, u32, i32 if function is intrinsics.popc else u32).ptx()


def test_without_libdevice_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_CACHE", "0")  # which may hold the kernel from when there was one
    monkeypatch.setattr(libdevice, "find_libdevice", lambda: None)
    k = unary(math.sin, f32)
    with pytest.raises(CompileError, match=r"kernel apply calls sinf, which need.*pip install nvidia-nvvm"):
        k.ptx()
    assert "sinf" in k.native_asm()  # and the CPU device needs none


@pytest.mark.skipif(libdevice.find_libdevice() is None, reason="no libdevice: pip install oxide-gpu[math]")
def test_libdevice_is_linked_into_ptx_and_nothing_of_it_that_is_not_called() -> None:
    text = unary(math.sin, f64).ptx()
    assert "__nvvm_reflect" not in text
    assert "__nv_sin" not in text.replace("__nv_sinternal", "")
    assert len(text) < 40_000
    assert "ex2.approx" in unary(math.exp, f32).ptx()
    assert "sin.approx" in unary(fast.sin, f32).ptx()


def test_libdevice_is_looked_for_in_cuda_home_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    file = tmp_path / "nvvm" / "libdevice" / "libdevice.10.bc"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert libdevice.find_libdevice() == file
