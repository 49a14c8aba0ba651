"""``c64`` and ``c128`` in kernels: NumPy's results, the places where they are used, and what is refused."""

from __future__ import annotations

import cmath
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from numba import cuda

import oxide
from oxide import (
    BoundsError,
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    Kernel,
    LaunchConfig,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
    Slice3,
    Tiles,
    c64,
    c128,
    d2h,
    device,
    f16,
    f32,
    f64,
    full,
    h2d,
    i16,
    i32,
    i64,
    kernel,
    ones,
    thread,
    u8,
    zeros,
)
from oxide.errors import ArgumentError, LaunchError, SanitizerError
from tests.compiler.assembler import assembled, needs_ptxas

SIZES = (0, 1, 31, 33, 1003)
BOTH = pytest.mark.parametrize("kind", [c64, c128], ids=str)
SPECIAL = (0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan)
T = TypeVar("T")
S = TypeVar("S")


def random_numbers(size: Any, kind: Any, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (generator.normal(size=size) + 1j * generator.normal(size=size)).astype(kind.dtype)


def special_numbers(kind: Any) -> np.ndarray:
    return np.array([complex(real, imag) for real in SPECIAL for imag in SPECIAL], kind.dtype)


def epsilon(kind: Any) -> float:
    return float(np.finfo(kind.dtype).eps)


def assert_near(found: Any, expected: Any, kind: Any, ulps: float, sizes: Any = None) -> None:
    """Compares with a tolerance relative to the numbers' magnitudes, or to ``sizes``."""
    expected = np.asarray(expected)
    scale = np.abs(expected) if sizes is None else sizes
    assert found.dtype == kind.dtype
    assert (np.abs(found - expected) <= ulps * epsilon(kind) * scale).all()


def mapped(function: Any, x: np.ndarray, result: Any) -> np.ndarray:
    """Returns what a function gives for each number, as elements of type ``result``."""
    found: np.ndarray = d2h(mapping(function, h2d(x), zeros(x.size, result)).last()).sync()
    return found


@kernel(block=128)
def mapping(function: Callable[..., Any], x: Slice[T], out: DisjointSlice[S]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = function(x[index.get()])


def assert_same_numbers(found: np.ndarray, expected: np.ndarray) -> None:
    """Both parts are equal; all NaNs are."""
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.real, expected.real)
    np.testing.assert_array_equal(found.imag, expected.imag)


@functools.cache
def arithmetic(kind: Any) -> Kernel:
    @kernel(block=128)
    def compute(
        a: Slice[kind],  # type: ignore[valid-type]
        b: Slice[kind],  # type: ignore[valid-type]
        total: DisjointSlice[kind],  # type: ignore[valid-type]
        difference: DisjointSlice[kind],  # type: ignore[valid-type]
        product: DisjointSlice[kind],  # type: ignore[valid-type]
        quotient: DisjointSlice[kind],  # type: ignore[valid-type]
        equal: DisjointSlice2[i32],
    ) -> None:
        index = thread.index_1d()
        i = index.get()
        element = total.get_mut(index)
        if element is not None:
            element.value = a[i] + b[i]
        element = difference.get_mut(index)
        if element is not None:
            element.value = a[i] - b[i]
        element = product.get_mut(index)
        if element is not None:
            element.value = a[i] * b[i]
        element = quotient.get_mut(index)
        if element is not None:
            element.value = a[i] / b[i]
        if i < len(a):
            equal.scatter[i, 0] = a[i] == b[i]
            equal.scatter[i, 1] = a[i] != b[i]

    return compute


def computed(a: np.ndarray, b: np.ndarray, kind: Any) -> list[np.ndarray]:
    outputs = [zeros(a.size, kind) for _ in range(4)]
    return [d2h(box).sync() for box in arithmetic(kind)(h2d(a), h2d(b), *outputs, zeros((a.size, 2), i32)).sync()[2:]]


@BOTH
@pytest.mark.parametrize("size", SIZES)
def test_arithmetic_is_numpys(kind: Any, size: int) -> None:
    a, b = random_numbers(size, kind, 1), random_numbers(size, kind, 2)
    b[::5] = a[::5]
    total, difference, product, quotient, equal = computed(a, b, kind)
    assert_same_numbers(total, a + b)
    assert_same_numbers(difference, a - b)
    assert_near(product, a * b, kind, 2)
    assert_near(quotient, a / b, kind, 4)
    np.testing.assert_array_equal(equal, np.stack([a == b, a != b], 1))


@BOTH
def test_special_values_are_numpys_and_a_division_by_zero_does_not_raise(kind: Any) -> None:
    numbers = special_numbers(kind)
    a, b = np.repeat(numbers, numbers.size), np.tile(numbers, numbers.size)
    total, difference, product, quotient, equal = computed(a, b, kind)
    with np.errstate(all="ignore"):
        for found, expected in ((total, a + b), (difference, a - b), (product, a * b), (quotient, a / b)):
            assert_same_numbers(found, expected)
    np.testing.assert_array_equal(equal, np.stack([a == b, a != b], 1))


def test_a_quotient_does_not_overflow_where_it_is_finite() -> None:
    a = np.array([1e30 + 1e30j, 3e38 - 1j, 1e-30 + 2e-30j], np.complex64)
    b = np.array([2e30 - 1e30j, 1e38 + 1e38j, 1e-30j], np.complex64)
    quotient = computed(a, b, c64)[3]
    assert np.isfinite(quotient).all()
    assert_near(quotient, a.astype(complex) / b.astype(complex), c64, 4)


@pytest.mark.slow
@BOTH
def test_signs_parts_and_conjugates(kind: Any) -> None:
    numbers = np.concatenate([random_numbers(33, kind), special_numbers(kind)])
    swapped = np.stack([numbers.imag, numbers.real], 1).view(kind.dtype).ravel()
    assert_same_numbers(mapped(lambda z: +z, numbers, kind), numbers)
    assert_same_numbers(mapped(lambda z: complex(z.imag, z.real), numbers, kind), swapped)
    assert_same_numbers(mapped(lambda z: np.real(z), numbers, kind), numbers.real.astype(kind.dtype))
    negative = mapped(lambda z: -z, numbers, kind)
    assert_same_numbers(negative, -numbers)
    assert_same_signs(negative.imag, (-numbers).imag)
    for conjugate in (mapped(lambda z: z.conjugate(), numbers, kind), mapped(lambda z: np.conj(z), numbers, kind)):
        assert_same_numbers(conjugate, numbers.conj())
        assert_same_signs(conjugate.imag, numbers.conj().imag)


def assert_same_signs(found: Any, expected: Any) -> None:
    """Compares signs, zeros' too, but not those of NaNs, which the GPU chooses."""
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known])


@BOTH
def test_the_magnitude_neither_overflows_nor_underflows(kind: Any) -> None:
    largest = float(np.finfo(kind.dtype).max) / 2
    numbers = np.concatenate([random_numbers(1003, kind), special_numbers(kind), [complex(largest, largest)]])
    numbers = numbers.astype(kind.dtype)
    found = mapped(lambda z: abs(z), numbers, f32 if kind is c64 else f64)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, np.abs(numbers), rtol=2 * epsilon(kind))


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, -1, -2, -5, 40])
def test_a_whole_power_is_numpys(kind: Any, exponent: int) -> None:
    numbers = random_numbers(257, kind)

    @kernel(block=64)
    def powers(
        z: Slice[kind],  # type: ignore[valid-type]
        n: i32,
        constant: DisjointSlice[kind],  # type: ignore[valid-type]
        variable: DisjointSlice[kind],  # type: ignore[valid-type]
    ) -> None:
        index = thread.index_1d()
        element = constant.get_mut(index)
        if element is not None:
            element.value = z[index.get()] ** exponent
        element = variable.get_mut(index)
        if element is not None:
            element.value = pow(z[index.get()], n)

    constant, variable = (
        d2h(box).sync() for box in powers(h2d(numbers), exponent, zeros(257, kind), zeros(257, kind)).sync()[2:]
    )
    assert_same_numbers(constant, variable)
    assert_near(constant, numbers**exponent, kind, 4 + 2 * abs(exponent))


@BOTH
def test_powers_of_zero_are_numpys(kind: Any) -> None:
    zero = np.zeros(1, kind.dtype)
    with np.errstate(all="ignore"):
        for exponent in (0, 1, 2, -1, -2):
            assert_same_numbers(mapped(lambda z: z**exponent, zero, kind), zero**exponent)  # noqa: B023 - called at once


# Types


@pytest.mark.parametrize("other", [u8, i16, i32, i64, f16, f32, f64, c64, c128], ids=str)
@BOTH
def test_an_operation_with_another_type_has_numpys_type(kind: Any, other: Any) -> None:
    @kernel(block=32)
    def compared(z: kind, x: Slice[other], out: DisjointSlice[i32]) -> None:  # type: ignore[valid-type]
        element = out.get_mut(thread.index_1d())
        if element is not None:
            # The product has more digits than an f32.
            element.value = i32(f64((z * x[0]).real) == f64(z.real) * 127)

    number = np.array([127], other.dtype)
    is_exact = int(d2h(compared(1 + 2.0**-23, h2d(number), zeros(1, i32)).last()).sync()[0])
    assert bool(is_exact) == (np.result_type(kind.dtype, other.dtype) == np.complex128)


def test_literals_take_the_type_that_they_meet() -> None:
    @kernel(block=32)
    def turned(
        z: Slice[c64], x: Slice[f32], out: DisjointSlice[c64], second: DisjointSlice[c64], third: DisjointSlice[c64]
    ) -> None:
        index = thread.index_1d()
        i = index.get()
        element = out.get_mut(index)
        if element is not None:
            element.value = z[i] * 1j + (2 - 0.5j) - 3
        element = second.get_mut(index)
        if element is not None:
            element.value = x[i] * 1j + complex(x[i], 1)
        element = third.get_mut(index)
        if element is not None:
            turn = 1j
            total = 0j
            for _ in range(3):
                total = total * turn + z[i]
            element.value = total

    z, x = random_numbers(33, c64), np.arange(33, dtype=np.float32)
    out = [d2h(box).sync() for box in turned(h2d(z), h2d(x), *[zeros(33, c64)] * 3).sync()[2:]]
    assert_near(out[0], z * 1j + (2 - 0.5j) - 3, c64, 2, np.abs(z) + 4)
    assert_near(out[1], x * 1j + x + 1j, c64, 2)
    assert_near(out[2], (z * 1j + z) * 1j + z, c64, 8, np.abs(z))
    assert ".f64" not in turned.ptx(cc=(9, 0))


def test_literals_alone_are_pythons_numbers() -> None:
    @kernel(block=32)
    def constants(out: DisjointSlice[c128]) -> None:
        element = out.get_mut(thread.index_1d())
        if element is not None:
            number = 0.1j
            element.value = number * number + complex(1, 2) / 3

    assert d2h(constants(zeros(1, c128)).last()).sync()[0] == pytest.approx(0.1j * 0.1j + (1 + 2j) / 3, rel=1e-15)


def test_conversions_and_truth() -> None:
    @kernel(block=32)
    def converted(z: Slice[c128], out: DisjointSlice2[c64], truth: DisjointSlice2[i32]) -> None:
        row = thread.index_1d().get()
        if row < len(z):
            out.scatter[row, 0] = c64(z[row])
            out.scatter[row, 1] = c64(z[row].real, i32(2))
            out.scatter[row, 2] = c64(row)
            out.scatter[row, 3] = complex(f32(z[row].real), f32(z[row].imag))
            out.scatter[row, 4] = z[row]
            truth.scatter[row, 0] = bool(z[row])
            truth.scatter[row, 1] = 1 if z[row] else 0

    z = np.array([1 / 3 + 2j / 3, 0, 1j, math.nan], np.complex128)
    found, truth = (d2h(box).sync() for box in converted(h2d(z), zeros((4, 5), c64), zeros((4, 2), i32)).sync()[1:])
    single = z.astype(np.complex64)
    expected = [single, z.real.astype(np.float32) + np.complex64(2j), np.arange(4, dtype=np.complex64), single, single]
    assert_same_numbers(found, np.stack(expected, 1))
    np.testing.assert_array_equal(truth, np.stack([z != 0] * 2, 1))


def test_on_the_host_they_make_numpys_numbers() -> None:
    assert c64(1, 2).dtype == np.complex64  # type: ignore[attr-defined]
    assert (c64(1, 2), c128(1j), np.dtype(c64), np.dtype(c128)) == (1 + 2j, 1j, np.complex64, np.complex128)
    with pytest.raises(TypeError, match=r"c64\(\.\.\.\) takes one or two numbers"):
        c64(1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"f32\(\.\.\.\) takes one number"):
        f32(1, 2)  # type: ignore[call-arg]


# Where they are used


class Transform(NamedTuple):
    factor: c64
    offset: c128
    times: i32


def test_parameters_tuples_and_defaults() -> None:
    @kernel(block=32, requires=("t.times >= 1", "p[1] >= 0"))
    def transformed(
        before: u8, t: Transform, p: tuple[c64, i64, c128], out: DisjointSlice[c128], z: c64 = 1 + 2j, w: c128 = 3
    ) -> None:
        element = out.get_mut(thread.index_1d())
        if element is not None:
            factor, _, last = p
            element.value = t.factor * t.offset + t.times + factor * last + z * w + before

    given = Transform(2j, 1 - 1j, 5), (np.complex64(1 + 1j), 0, np.array(2j))
    found = d2h(transformed(7, *given, zeros(2, c128)).sync()[3]).sync()
    np.testing.assert_array_equal(found, 2j * (1 - 1j) + 5 + (1 + 1j) * 2j + (1 + 2j) * 3 + 7)
    changed = transformed(7, *given, zeros(1, c128), np.float32(2), True).sync()
    assert d2h(changed[3]).sync()[0] == 2j * (1 - 1j) + 5 + (1 + 1j) * 2j + 2 + 7
    with pytest.raises(LaunchError, match=r"t\.times >= 1"):
        transformed(7, Transform(2j, 1, 0), given[1], zeros(1, c128))


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("1", r"parameter z is c64, the argument is str '1'; pass a number"),
        (None, r"parameter z is c64, the argument is NoneType None; pass a number"),
        (np.ones(3), r"parameter z is c64, the argument is ndarray"),
        (1e300j, r"parameter z\.imag is f32, the argument is 1e\+300 \(float\); f32 holds magnitudes up to 3\.4e38"),
    ],
)
def test_a_wrong_argument_is_refused(argument: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        filled(argument, zeros(1, c64))
    with pytest.raises(ArgumentError, match="complex64"):
        filled(1j, zeros(1, c128))


@kernel(block=32)
def filled(z: c64, out: DisjointSlice[c64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = z


@pytest.mark.parametrize("number", [1j, 2, True, 0.5, complex("nan+infj"), np.complex128(1j), np.int8(-1)])
def test_a_parameter_takes_every_number(number: Any) -> None:
    assert_same_numbers(d2h(filled(number, zeros(3, c64)).last()).sync(), np.full(3, number, np.complex64))
    awaited = filled(oxide.value(number), zeros(1, c64)).last()
    assert_same_numbers(d2h(awaited).sync(), np.full(1, number, np.complex64))


def test_slices_of_several_axes() -> None:
    @kernel
    def sums(a: Slice3[c64], b: Slice2[c128], out: DisjointSlice2[c64]) -> None:
        index = thread.index_2d(out.shape[1])
        element = out.get_mut(index)
        if element is not None:
            row, column = thread.index_2d_row(), thread.index_2d_col()
            total = 0j
            for layer in range(a.shape[0]):
                total += a[layer, row, column]
            element.value = total + c64(b[row, column])

    a, b = random_numbers((3, 5, 7), c64), random_numbers((5, 7), c128)
    launch = sums[LaunchConfig((1, 1, 1), (8, 8, 1))]
    found = d2h(launch(h2d(a), h2d(b), zeros((5, 7), c64)).last()).sync()
    assert_near(found, (a.sum(0) + b.astype(np.complex64)), c64, 8, np.abs(a).sum(0) + np.abs(b))


def test_loops_views_tiles_and_unchecked_reads() -> None:
    @kernel(block=32)
    def rows(a: Slice2[c64], out: DisjointSlice[c64, Tiles(2)]) -> None:
        index = thread.index_1d()
        tile = out.get_mut(index)
        flat = a.flat
        if tile is not None:
            total = 0j
            for z in a.row(index.get()):
                total += z
            tile[0] = total
            total = c64(0)
            for j in range(len(flat)):
                total += flat.unchecked[j] - flat[j]
            for j, z in enumerate(flat):
                total += z * f32(j)
            tile[1] = total

    a = random_numbers((32, 33), c64)
    found = d2h(rows(h2d(a), zeros(64, c64)).last()).sync().reshape(32, 2)
    size = float(np.abs(a).sum()) * a.size
    assert_near(found[:, 0], a.sum(1), c64, 33, np.abs(a).sum(1))
    assert_near(found[:, 1], np.full(32, (a.ravel() * np.arange(a.size)).sum()), c64, 8, size)


def test_a_complex_name_takes_literals_and_a_conditional_expression_numbers_of_both_types() -> None:
    @kernel(block=32)
    def chosen(x: f32, n: i32, out: DisjointSlice[c64]) -> None:
        element = out.get_mut(thread.index_1d())
        if element is not None:
            z = c64(x, 1)
            if n > 0:
                z = c64(x)
            if n > 1:
                z = 2
            if n > 2:
                z = 1j
            element.value = n if n > 3 else z

    found = [d2h(chosen(1.5, n, zeros(1, c64)).last()).sync()[0] for n in range(5)]
    assert found == [1.5 + 1j, 1.5, 2, 1j, 4]


def test_a_name_is_not_complex_on_one_path_and_real_on_another() -> None:
    @kernel(block=32)
    def chosen(x: f32, n: i32, out: DisjointSlice[c64]) -> None:
        element = out.get_mut(thread.index_1d())
        if element is not None:
            z = c64(x, 1)
            if n > 0:
                z = x
            element.value = z

    with pytest.raises(CompileError, match=r"z is c64 in line \d+ and f32 in line \d+, and both reach what follows"):
        chosen.specialize()


WEIGHTS = np.array([1j, 2, 3 - 1j], np.complex64)
FACTOR = np.complex64(2 - 1j)


@device
def squared(z: c64, by: c128 = 2j) -> c64:
    return z * z * by


def test_shared_and_local_memory_device_functions_and_constants() -> None:
    @kernel(block=32)
    def reversed_blocks(a: Slice[c64], out: DisjointSlice[c64]) -> None:
        shared = SharedArray(32, c64)
        mine = LocalArray(2, c128)
        index = thread.index_1d()
        lane = thread.thread_idx.x
        if index.get() < len(a):
            shared[lane] = a[index.get()]
        thread.sync_threads()
        mine[0] = shared[31 - lane]
        mine[1] = 1j
        element = out.get_mut(index)
        if element is not None:
            element.value = squared(mine[0]) * WEIGHTS[index.get() % 3] * FACTOR + mine[1]

    a = random_numbers(96, c64)
    back = a.reshape(3, 32)[:, ::-1].ravel()
    expected = back * back * 2j * WEIGHTS[np.arange(96) % 3] * FACTOR + 1j
    found = d2h(reversed_blocks(h2d(a), zeros(96, c64)).last()).sync()
    assert_near(found, expected, c64, 8, np.abs(expected) + 1)


def test_generic_kernels_and_lambdas_that_capture_complex_numbers() -> None:
    @kernel(block=64)
    def scaled(f: Callable[[T], T], x: Slice[T], scale: T, out: DisjointSlice[T]) -> None:
        index = thread.index_1d()
        element = out.get_mut(index)
        if element is not None:
            element.value = f(x[index.get()]) * scale  # type: ignore[operator]

    for kind in (c64, c128):
        x = random_numbers(33, kind)
        for factor, offset in ((np.complex64(2j), 1 - 1j), (np.complex64(1), 3j)):
            box = scaled(lambda z, factor=factor: z * factor + offset, h2d(x), 2j, zeros(33, kind)).last()  # noqa: B023
            expected = (x * factor + kind(offset)) * kind(2j)
            assert_near(d2h(box).sync(), expected, kind, 8, np.abs(x) * 4 + 8)


@BOTH
def test_boxes(kind: Any) -> None:
    x = random_numbers((5, 7), kind)
    assert_same_numbers(d2h(h2d(x)).sync(), x)
    assert_same_numbers(d2h(full((3, 5), 1 - 2j, kind)).sync(), np.full((3, 5), 1 - 2j, kind.dtype))
    assert_same_numbers(d2h(full(1003, 2 + 2j, kind)).sync(), np.full(1003, 2 + 2j, kind.dtype))
    assert_same_numbers(d2h(ones(3, kind)).sync(), np.ones(3, kind.dtype))
    assert_same_numbers(d2h(oxide.arange(4, kind)).sync(), np.arange(4, dtype=kind.dtype))
    box = h2d(x).sync()
    assert oxide.from_dlpack(box).dtype == kind.dtype
    with pytest.raises(TypeError, match="randn: complex"):
        oxide.randn(0, 1, 3, kind)


# cmath


def functions_of(kind: Any) -> Kernel:
    real = f32 if kind is c64 else f64

    @kernel(block=128)
    def compute(
        z: Slice[kind],  # type: ignore[valid-type]
        out: DisjointSlice2[kind],  # type: ignore[valid-type]
        reals: DisjointSlice2[real],
    ) -> None:
        i = thread.index_1d().get()
        if i < len(z):
            out.scatter[i, 0] = cmath.exp(z[i])
            out.scatter[i, 1] = cmath.log(z[i])
            out.scatter[i, 2] = cmath.sqrt(z[i])
            size, angle = cmath.polar(z[i])
            out.scatter[i, 3] = cmath.rect(size, angle)
            reals.scatter[i, 0] = size
            reals.scatter[i, 1] = cmath.phase(z[i])
            reals.scatter[i, 2] = f32(cmath.isnan(z[i]))
            reals.scatter[i, 3] = f32(cmath.isinf(z[i]))
            reals.scatter[i, 4] = f32(cmath.isfinite(z[i]))

    return compute


@pytest.mark.slow
@BOTH
def test_functions_of_cmath(kind: Any) -> None:
    z = np.concatenate([random_numbers(1003, kind), 1 + random_numbers(100, kind) * kind(1e-3)])
    real = f32 if kind is c64 else f64
    launch = functions_of(kind)(h2d(z), zeros((z.size, 4), kind), zeros((z.size, 5), real))
    out, reals = (d2h(box).sync() for box in launch.sync()[1:])
    wide = z.astype(np.clongdouble)
    for found, expected in zip(out.T, (np.exp(wide), np.log(wide), np.sqrt(wide), wide), strict=True):
        assert (np.abs(found - expected) <= 6 * epsilon(kind) * np.abs(expected)).all()
    np.testing.assert_allclose(reals[:, 0], np.abs(z), rtol=4 * epsilon(kind))
    np.testing.assert_allclose(reals[:, 1], np.angle(z), rtol=4 * epsilon(kind))
    np.testing.assert_array_equal(reals[:, 2:], np.broadcast_to([0, 0, 1], (z.size, 3)))


def test_special_values_of_cmath_are_numpys() -> None:
    parts = (*SPECIAL, 1e300, 1e-300, 5e-324, 709.9, 1.7e308)
    z = np.array([complex(real, imag) for real in parts for imag in parts])
    launch = functions_of(c128)(h2d(z), zeros((z.size, 4), c128), zeros((z.size, 5), f64))
    out, reals = (d2h(box).sync() for box in launch.sync()[1:])
    with np.errstate(all="ignore"):
        for found, expected in zip(out.T, (np.exp(z), np.log(z), np.sqrt(z)), strict=False):
            for one, other in ((found.real, expected.real), (found.imag, expected.imag)):
                np.testing.assert_allclose(one, other, rtol=1e-14)
                numbers = ~np.isnan(other)
                unsigned = (expected == 0) & np.isinf(z.real)  # Annex G leaves these signs open
                np.testing.assert_array_equal(
                    np.signbit(one)[numbers & ~unsigned], np.signbit(other)[numbers & ~unsigned]
                )
    np.testing.assert_array_equal(reals[:, 2:], np.stack([np.isnan(z), np.isinf(z), np.isfinite(z)], 1))


def test_functions_of_cmath_take_real_numbers() -> None:
    x = np.array([-4, 0.5, 3], np.float32)
    found = mapped(lambda x: cmath.sqrt(x) + cmath.exp(x * 0), x, c64)
    assert_near(found, np.sqrt(x.astype(complex)) + 1, c64, 4)


# Code


@kernel
def mandelbrot(counts: DisjointSlice2[i32], limit: i32, corner: c64, step: f32) -> None:
    index = thread.index_2d(counts.shape[1])
    element = counts.get_mut(index)
    if element is not None:
        c = corner + step * c64(f32(thread.index_2d_col()), f32(thread.index_2d_row()))
        z = 0j
        count = 0
        while count < limit and z.real * z.real + z.imag * z.imag < f32(4):
            z = z * z + c
            count += 1
        element.value = i32(count)


def test_a_mandelbrot_set_of_c64_computes_no_f64() -> None:
    launch = mandelbrot[LaunchConfig((3, 3, 1), (16, 16, 1))]
    found = d2h(launch(zeros((33, 47), i32), 50, -2 - 1j, 1 / 16).first()).sync()
    column, row = np.meshgrid(np.arange(47), np.arange(33))
    c = (-2 - 1j + (column + 1j * row) / 16).astype(np.complex64)
    z, expected = np.zeros_like(c), np.zeros(c.shape, np.int32)
    for _ in range(50):
        inside = z.real**2 + z.imag**2 < 4
        expected += inside
        z = np.where(inside, z * z + c, z)
    assert (found == expected).mean() > 0.99  # a point on the edge may leave a step earlier
    assert found.max() == 50
    assert ".f64" not in mandelbrot.ptx(cc=(9, 0))


@needs_ptxas
@BOTH
def test_the_assembler_takes_the_code(kind: Any) -> None:
    ptx = arithmetic(kind).ptx(cc=(9, 0))
    assert (".f64" in ptx) == (kind is c128)
    assert "0 bytes spill stores" in assembled(ptx, (9, 0))
    assembled(mandelbrot.ptx(cc=(9, 0)))


@cuda.jit(device=True)
def cubed(z):  # type: ignore[no-untyped-def]
    return z * z * z


def test_a_literal_is_a_complex128_in_a_function_of_numba_cuda() -> None:
    @kernel(block=32)
    def cubes(z: c64, out: DisjointSlice[c128]) -> None:
        index = thread.index_1d()
        element = out.get_mut(index)
        if element is not None:
            element.value = cubed(0.1j) if index.get() == 0 else cubed(z)

    assert_near(d2h(cubes(2j, zeros(2, c128)).last()).sync(), [0.1j**3, -8j], c128, 4)


# Faults, the sanitizer and print


def test_an_index_outside_is_a_fault() -> None:
    @kernel(block=32)
    def shifted(a: Slice[c64], by: i64, out: DisjointSlice[c64]) -> None:
        index = thread.index_1d()
        element = out.get_mut(index)
        if element is not None:
            element.value = a[index.get() + by]

    a = random_numbers(33, c64)
    with pytest.raises(BoundsError, match="shifted") as caught:
        shifted(h2d(a), 1, zeros(33, c64)).sync()
    assert (caught.value.parameter, caught.value.index, caught.value.length) == ("a", 33, 33)
    assert_same_numbers(d2h(shifted(h2d(a), 0, zeros(33, c64)).last()).sync(), a)


def test_the_sanitizer_finds_a_race_of_complex_elements(device: str) -> None:
    if device == "cuda":
        pytest.skip("the sanitizer is the CPU device's")

    @kernel(block=32, sanitize=("memory", "race"))
    def racing(a: Slice[c128], step: i32, out: DisjointSlice[c128]) -> None:
        shared = SharedArray(32, c128)
        index = thread.index_1d()
        lane = thread.thread_idx.x
        shared[lane // step] = a[index.get()]
        thread.sync_threads()
        element = out.get_mut(index)
        if element is not None:
            element.value = shared[lane // step]

    a = random_numbers(32, c128)
    assert_same_numbers(d2h(racing(h2d(a), 1, zeros(32, c128)).last()).sync(), a)
    with pytest.raises(SanitizerError, match="race"):
        racing(h2d(a), 2, zeros(32, c128)).sync()


def test_print_shows_both_parts(capfd: pytest.CaptureFixture[str]) -> None:
    @kernel(block=1)
    def shown(z: c64, w: c128) -> None:
        print("numbers", z, w, 1j)

    shown[LaunchConfig((1, 1, 1), (1, 1, 1))](1 - 2j, 0.5j).sync()
    assert "numbers (1.000000-2.000000j) (0.000000+0.500000j) (0.000000+1.000000j)" in capfd.readouterr().out


@kernel(block=64)
def halved(x: Slice[c64], y: DisjointSlice[c64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        total = 0.0
        total += x[index.get()] * 0.5
        element.value = total + 2 * (0.1 + 1j)


def test_python_floats_take_the_type_of_a_complex_number_that_they_meet() -> None:
    assert ".f64" not in halved.ptx(cc=(9, 0))
    x = np.arange(5).astype(np.complex64) * np.complex64(1 - 2j)
    found = d2h(halved(h2d(x), zeros(5, c64)).sync()[1]).sync()
    np.testing.assert_allclose(found, x * 0.5 + np.complex64(0.2 + 2j), rtol=1e-6)
