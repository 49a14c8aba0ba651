"""``f8e4m3`` and ``f8e5m2`` in kernels: every bit pattern, rounding and saturation, arithmetic, arrays, refusals."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np
import pytest

from oxide import (
    AtomicSlice,
    DisjointSlice,
    Kernel,
    LocalArray,
    SharedArray,
    Slice,
    bf16,
    bool_,
    c64,
    d2h,
    device,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u64,
    warp,
    zeros,
)
from oxide.errors import ArgumentError, CompileError
from oxide.language import narrow
from tests.elementwise import binary, run, unary


@device
def same(p: Any) -> Any:
    return p


@device
def negated(p: Any) -> Any:
    return -p


@device
def size(p: Any) -> Any:
    return abs(p)


@device
def added(p: Any, q: Any) -> Any:
    return p + q


@device
def subtracted(p: Any, q: Any) -> Any:
    return p - q


@device
def multiplied(p: Any, q: Any) -> Any:
    return p * q


@device
def divided(p: Any, q: Any) -> Any:
    return p / q


@device
def floored(p: Any, q: Any) -> Any:
    return p // q


@device
def rest(p: Any, q: Any) -> Any:
    return p % q


@device
def polynomial(p: Any, q: Any) -> Any:
    return max(p, q) * p + q - 0.3 * q


GREATEST = {f8e4m3: 448.0, f8e5m2: 57344.0}
LEAST = {f8e4m3: 2.0**-9, f8e5m2: 2.0**-16}
EVERY = np.arange(256, dtype=np.uint8)
NAN = 0x7F

of_8_bits = pytest.mark.parametrize("scalar", list(GREATEST), ids=str)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


@functools.cache
def table(scalar: Any) -> tuple[np.ndarray, np.ndarray]:
    """The finite numbers of the type that are not negative, and the bits of each."""
    wide = EVERY[:128].view(scalar.dtype).astype(np.float64)
    return wide[np.isfinite(wide)], EVERY[:128][np.isfinite(wide)]


def expected_bits(values: Any, scalar: Any) -> np.ndarray:
    """Rounds float64 to nearest, ties to even, saturating, by search in the table of all numbers."""
    numbers, codes = table(scalar)
    values = np.asarray(values, np.float64)
    size = np.minimum(np.abs(values), numbers[-1])
    above = np.clip(np.searchsorted(numbers, np.nan_to_num(size)), 1, len(numbers) - 1)
    low, high = size - numbers[above - 1], numbers[above] - size
    up = (high < low) | ((high == low) & (codes[above] % 2 == 0))
    found = np.where(up, codes[above], codes[above - 1]) | (np.signbit(values).astype(np.uint8) << 7)
    return np.where(np.isnan(values), NAN, found).astype(np.uint8)


def interesting(scalar: Any) -> np.ndarray:
    """Every number, every tie, their neighbours in float64 and float32, and what is beyond."""
    numbers, _ = table(scalar)
    ties = np.concatenate([(numbers[:-1] + numbers[1:]) / 2, [numbers[1] / 2]])
    exact = np.concatenate([numbers, ties])
    near = [np.nextafter(exact, side) for side in (-np.inf, np.inf)]
    single = [np.nextafter(exact.astype(np.float32), np.float32(side)).astype(np.float64) for side in (-1e38, 1e38)]
    far = GREATEST[scalar] * np.array([1.0001, 1.0357, 1.04, 1.07, 1.2, 2, 1e30])
    size = np.concatenate([exact, *near, *single, far, [1e-30, 1e-45, 5e-324, np.inf, np.nan, 3.4e38]])
    return np.concatenate([size, -size])


def test_the_reference_is_ml_dtypes_where_that_rounds_once_and_does_not_saturate() -> None:
    for scalar in GREATEST:
        values = interesting(scalar).astype(np.float32)
        values = values[np.abs(values) <= GREATEST[scalar]]
        assert np.array_equal(expected_bits(values, scalar), bits(values.astype(scalar.dtype)))


@pytest.mark.slow
@of_8_bits
@pytest.mark.parametrize("wide", [f32, f64, f16, bf16], ids=str)
def test_every_bit_pattern_widens_exactly_and_comes_back(scalar: Any, wide: Any) -> None:
    numbers = EVERY.view(scalar.dtype)
    found = run(unary(wide, scalar, wide), numbers, dtype=wide.dtype)
    expected = numbers.astype(wide.dtype)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
    back = bits(run(unary(scalar, wide, scalar), found, dtype=scalar.dtype))
    with np.errstate(invalid="ignore"):
        assert np.array_equal(back, expected_bits(expected.astype(np.float64), scalar))
    finite = np.isfinite(numbers.astype(np.float32))
    assert np.array_equal(back[finite], EVERY[finite])


@of_8_bits
@pytest.mark.parametrize("wide", [f32, f64], ids=str)
def test_conversions_round_to_nearest_even_and_saturate(scalar: Any, wide: Any) -> None:
    drawn = np.random.default_rng(3).normal(0, 1, 20_000) * 2.0 ** np.random.default_rng(4).integers(-20, 20, 20_000)
    with np.errstate(over="ignore"):
        values = np.concatenate([interesting(scalar), drawn]).astype(wide.dtype)
    found = bits(run(unary(scalar, wide, scalar), values, dtype=scalar.dtype))
    assert np.array_equal(found, expected_bits(values, scalar))
    stored = bits(run(unary(same, wide, scalar), values, dtype=scalar.dtype))
    assert np.array_equal(stored, found)
    assert np.array_equal(bits(scalar(values)), found)
    assert [narrow.encoded(scalar.name, narrow.rounded(scalar.name, float(value))) for value in values[:2000]] == (
        found[:2000].tolist()
    )


@of_8_bits
@pytest.mark.parametrize("wide", [f16, bf16], ids=str)
def test_every_16_bit_float_converts(scalar: Any, wide: Any) -> None:
    values = np.arange(2**16, dtype=np.uint16).view(wide.dtype)
    found = bits(run(unary(scalar, wide, scalar), values, dtype=scalar.dtype))
    with np.errstate(invalid="ignore"):
        expected = expected_bits(values.astype(np.float64), scalar)
    assert np.array_equal(found, expected)


@pytest.mark.slow
@of_8_bits
@pytest.mark.parametrize("kind", [i32, i64, u8, u64], ids=str)
def test_integers_are_rounded_once(scalar: Any, kind: Any) -> None:
    limits = np.iinfo(kind.dtype)
    ties = [m + d for m in (17, 18, 19, 34, 36, 72, 76, 416, 448, 464, 480, 20480, 45056, 57344) for d in (-1, 0, 1)]
    ties += [2**53 + 1, 2**60 + 1, -(2**60) - 1, -17, -19, -500, 0, 1, limits.min, limits.max]
    values = np.array([n for n in ties if limits.min <= n <= limits.max], kind.dtype)
    found = bits(run(unary(scalar, kind, scalar), values, dtype=scalar.dtype))
    assert np.array_equal(found, expected_bits(values.astype(np.float64), scalar))
    assert np.array_equal(bits(scalar(values)), found)


def test_a_conversion_saturates_where_ml_dtypes_overflows() -> None:
    values = np.array([500, -1e9, np.inf, np.nan], np.float32)
    assert np.isnan(values.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)).all()
    assert f8e4m3(values).tolist()[:3] == [448, -448, 448]
    assert f8e5m2(values * 1000).tolist()[:3] == [57344, -57344, 57344]
    assert bits(f8e4m3(values))[3] == bits(f8e5m2(values))[3] == NAN


@pytest.mark.slow
@of_8_bits
def test_arithmetic_is_rounded_once(scalar: Any) -> None:
    a, b = (each.ravel().view(scalar.dtype) for each in np.meshgrid(EVERY, EVERY))
    x, y = a.astype(np.float32), b.astype(np.float32)
    with np.errstate(all="ignore"):
        for function, expected in (
            (added, x + y),
            (subtracted, x - y),
            (multiplied, x * y),
            (divided, x / y),
        ):
            found = bits(run(binary(function, scalar), a, b))
            assert np.array_equal(found, expected_bits(expected, scalar))
        compared = run(binary_bool(scalar), a, b, dtype=np.bool_)
        assert np.array_equal(compared, x < y)


def binary_bool(scalar: Any) -> Kernel:
    @kernel(block=128)
    def less(a: Slice[scalar], b: Slice[scalar], y: DisjointSlice[bool_]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = a[i.get()] < b[i.get()]

    return less


@pytest.mark.slow
@of_8_bits
def test_signs_keep_the_bits(scalar: Any) -> None:
    numbers = EVERY.view(scalar.dtype)
    assert np.array_equal(bits(run(unary(negated, scalar), numbers)), EVERY ^ 0x80)
    assert np.array_equal(bits(run(unary(size, scalar), numbers)), EVERY & 0x7F)
    assert np.array_equal(bits(run(unary(same, scalar), numbers)), EVERY)


@of_8_bits
def test_a_literal_takes_the_type_and_two_types_give_an_f32(scalar: Any) -> None:
    other = f8e5m2 if scalar is f8e4m3 else f8e4m3
    numbers = np.random.default_rng(1).uniform(0.3, 4, 200).astype(np.float32).astype(scalar.dtype)
    wide = numbers.astype(np.float32)

    @kernel(block=64)
    def met(x: Slice[scalar], y: DisjointSlice[f64], z: DisjointSlice[f64], w: DisjointSlice[f64]) -> None:
        i = thread.index_1d()
        first, second, third = y.get_mut(i), z.get_mut(i), w.get_mut(i)
        if first is not None and second is not None and third is not None:
            v = x[i.get()]
            first.value = f64(1.7 * v)
            second.value = f64(v * other(1.25))
            total = 0.0
            for _ in range(3):
                total += v
            third.value = f64(total)

    outs = [zeros(200, f64) for _ in range(3)]
    y, z, w = (d2h(box).sync() for box in met(h2d(numbers), *outs).sync()[1:])
    assert (2 * numbers).dtype == scalar.dtype  # by ml_dtypes too
    assert (numbers * numbers.astype(np.float32).astype(other.dtype)).dtype == np.float32
    literal = scalar(1.7).astype(np.float32)
    assert np.array_equal(y, scalar(wide * literal).astype(np.float64))
    assert np.array_equal(z, (wide * np.float32(1.25)).astype(np.float64))
    total = scalar(scalar(wide + wide).astype(np.float32) + wide)
    assert np.array_equal(w, total.astype(np.float64))


@pytest.mark.slow
@of_8_bits
def test_arrays_of_a_block_and_vectors_hold_them(scalar: Any) -> None:
    @kernel(block=64)
    def through(x: Slice[scalar], y: DisjointSlice[scalar]) -> None:
        shared = SharedArray((64,), scalar)
        local = LocalArray((4,), scalar)
        t = thread.thread_idx.x
        a, b, c, d = x.load4(4 * t)
        local[0], local[1], local[2], local[3] = d, c, b, a
        for k in range(4):
            shared[t] = local[k]
            thread.sync_threads()
            y.scatter[4 * t + k] = shared[63 - t]
            thread.sync_threads()

    numbers = EVERY.view(scalar.dtype)
    found = through[1, 64](h2d(numbers), zeros(256, scalar)).last().and_then(d2h).sync()
    expected = EVERY.reshape(64, 4)[::-1, ::-1].ravel()
    assert np.array_equal(bits(found), expected)


@pytest.mark.slow
@of_8_bits
def test_interpreted_kernels_give_the_same_numbers(scalar: Any, device: str) -> None:
    if device == "cuda":
        pytest.skip("the interpreter runs on the CPU device")
    finite = np.isfinite(EVERY.view(scalar.dtype).astype(np.float32))
    numbers = EVERY[finite].view(scalar.dtype)
    others = np.roll(numbers, 77)
    for function in (added, divided, floored, rest, polynomial):
        made = binary(function, scalar)
        compiled = run(made, numbers, others)
        interpreted = made.interpret(h2d(numbers), h2d(others), zeros(numbers.size, scalar)).last().and_then(d2h).sync()
        np.testing.assert_array_equal(compiled.astype(np.float32), interpreted.astype(np.float32))
        assert np.array_equal(bits(compiled) == NAN, bits(interpreted) == NAN)


@of_8_bits
def test_scalar_arguments_are_rounded_and_those_that_do_not_fit_are_refused(scalar: Any) -> None:
    @kernel(block=32)
    def put(a: scalar, y: DisjointSlice[scalar]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = a

    for number in (0.1, -3.3, 0.0, -0.0, 1, True, np.float32(0.3), np.float64(1.0624999), LEAST[scalar], np.nan):
        found = put(number, zeros(1, scalar)).last().and_then(d2h).sync()
        assert bits(found)[0] == expected_bits([float(number)], scalar)[0]
    for exact in EVERY[:128].view(scalar.dtype):
        if np.isinf(np.float32(exact)) or np.isfinite(np.float32(exact)):
            assert put(exact, zeros(1, scalar)).last().and_then(d2h).sync()[0] == exact
    with pytest.raises(ArgumentError, match=f"{scalar.name} holds magnitudes up to {GREATEST[scalar]:.6g}"):
        put(GREATEST[scalar] * 1.1, zeros(1, scalar))


def test_atomics_and_shuffles_refuse_them() -> None:
    with pytest.raises(CompileError, match=r"an AtomicSlice has elements of i32 .* not f8e4m3"):

        @kernel
        def sums(x: AtomicSlice[f8e4m3]) -> None:
            x.fetch_add(0, 1)

    @kernel
    def shared_sums(y: DisjointSlice[f32]) -> None:
        shared = SharedArray((4,), f8e5m2)
        shared.fetch_add(0, f8e5m2(1))

    with pytest.raises(CompileError, match=r"atomics take i32 .* and SharedArray\(4, f8e5m2\) has elements of f8e5m2"):
        shared_sums.specialize()

    @kernel
    def shuffled(y: DisjointSlice[f32]) -> None:
        warp.shuffle_down(f8e4m3(1), 1)

    with pytest.raises(CompileError):
        shuffled.specialize()


@of_8_bits
def test_the_gpu_converts_with_its_own_instructions_where_it_has_them(scalar: Any) -> None:
    kind = scalar.name.removeprefix("f8")
    for capability in ((9, 0), (8, 9)):
        assert f"cvt.rn.satfinite.{kind}x2.f32" in unary(scalar, f32, scalar).ptx(cc=capability)
        assert f"cvt.rn.f16x2.{kind}x2" in unary(f32, scalar, f32).ptx(cc=capability)
    assert "satfinite" not in unary(scalar, f32, scalar).ptx(cc=(8, 0))
    assert "x2" not in unary(f32, scalar, f32).ptx(cc=(8, 0)).split(".entry")[1]


T = TypeVar("T", f8e4m3, f8e5m2, f32)


@kernel(block=64)
def doubled(x: Slice[T], y: DisjointSlice[T]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = x[i.get()] + x[i.get()]


@of_8_bits
def test_a_type_variable_takes_the_type_of_the_box_and_no_ambiguous_bits(scalar: Any) -> None:
    numbers = np.array([1.5, 3, 0.25], np.float32).astype(scalar.dtype)
    assert doubled(h2d(numbers), zeros(3, scalar)).last().and_then(d2h).sync().tolist() == [3, 6, 0.5]
    with pytest.raises(ArgumentError, match="T is one of f8e4m3, f8e5m2, f32; the argument is u8"):
        doubled(h2d(bits(numbers)), zeros(3, u8)).sync()


class Scales(NamedTuple):
    first: f8e4m3
    second: f8e5m2


@of_8_bits
def test_tuples_and_complex_numbers_take_them(scalar: Any) -> None:
    @kernel(block=32)
    def scaled(scales: Scales, x: scalar, y: DisjointSlice[c64]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = c64(scales.first * scales.second, x)

    found = scaled(Scales(1.125, ml_dtypes.float8_e5m2(1.25)), 2.5, zeros(1, c64)).last().and_then(d2h).sync()
    assert found.tolist() == [1.125 * 1.25 + 2.5j]


@of_8_bits
def test_an_infinity_of_a_box_is_copied_and_a_computed_one_saturates(scalar: Any) -> None:
    if scalar is f8e5m2:
        infinite = np.array([np.inf, -np.inf], scalar.dtype)
        assert run(unary(same, scalar), infinite).tolist() == [np.inf, -np.inf]
        assert run(unary(negated, scalar), infinite).tolist() == [-np.inf, np.inf]
        assert run(unary(f32, scalar, f32), infinite, dtype=np.float32).tolist() == [np.inf, -np.inf]
    largest = np.full(3, GREATEST[scalar], scalar.dtype)
    assert run(binary(added, scalar), largest, largest).tolist() == largest.tolist()
    zero = np.zeros(3, scalar.dtype)
    assert run(binary(divided, scalar), largest, zero).tolist() == largest.tolist()
