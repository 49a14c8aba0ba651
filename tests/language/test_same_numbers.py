"""Arithmetic and conversions have one result: on both devices, in every version of a kernel, to the last bit.

References are NumPy's IEEE 754 operations and exact integers and fractions, so a run with ``--device cuda`` holds a GPU
to the same bits as the CPU device. NaNs are equal whatever their bits.
"""

from __future__ import annotations

import math
import operator
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numba import cuda

from oxide import (
    AtomicSlice,
    DisjointSlice,
    Kernel,
    LaunchConfig,
    Slice,
    Tiles,
    bf16,
    bool_,
    d2h,
    device,
    f16,
    f32,
    f64,
    fast,
    h2d,
    i8,
    i16,
    i32,
    i64,
    intrinsics,
    kernel,
    thread,
    u8,
    u16,
    u32,
    u64,
    zeros,
)
from tests.elementwise import binary, run, unary
from tests.language.test_half_precision import to_bits, to_numbers

RNG = np.random.default_rng(18)
FLOATS: dict[str, Any] = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
INTEGERS: dict[str, Any] = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
}
SCALARS = {"f16": f16, "bf16": bf16, "f32": f32, "f64": f64, "i8": i8, "i16": i16, "i32": i32, "i64": i64} | {
    "u8": u8,
    "u16": u16,
    "u32": u32,
    "u64": u64,
    "bool_": bool_,
}


def numbers(name: str, count: int = 4001) -> np.ndarray:
    """Random bits: numbers of every magnitude, subnormal ones, infinities and NaNs, and for integers the extremes and
    what is near to them."""
    if name == "bool_":
        return RNG.integers(0, 2, count).astype(np.bool_)
    if name in INTEGERS:
        limits = np.iinfo(INTEGERS[name])
        some = RNG.integers(limits.min, limits.max, count, dtype=INTEGERS[name], endpoint=True)
        some[::3] >>= RNG.integers(0, limits.bits, some[::3].size).astype(some.dtype)
        edges = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1]
        some[: len(edges)] = edges
        return some
    kind = FLOATS[name]
    some = RNG.integers(0, 256, count * np.dtype(kind).itemsize, dtype=np.uint8).view(kind)
    ordinary = some[1::2].size
    some[1::2] = stored(RNG.standard_normal(ordinary) * 2.0 ** RNG.integers(-4, 40, ordinary), name)
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 1.5, 2.5, 127.5, 255.5, -128.7, 65504, 65520]
    edges += [sign * 2.0**n for n in (7, 8, 15, 16, 31, 32, 63, 64) for sign in (1, -1)]
    some[: len(edges)] = stored(edges, name)
    return some


def stored(values: Any, name: str) -> np.ndarray:
    """float64 numbers as those of another float type, rounded once."""
    with np.errstate(all="ignore"):
        return to_bits(values, bf16) if name == "bf16" else np.asarray(values, np.float64).astype(FLOATS[name])


def wide(values: np.ndarray, name: str) -> np.ndarray:
    """The numbers in a type in which an operation can be rounded before it is rounded to their own."""
    with np.errstate(all="ignore"):
        return to_numbers(values, bf16) if name == "bf16" else values.astype(np.float64) if name == "f16" else values


def assert_same_bits(found: np.ndarray, expected: np.ndarray, name: str, *inputs: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    bits = f"u{expected.dtype.itemsize}"
    same = found.view(bits) == expected.view(bits)
    if name in FLOATS:
        same |= np.isnan(wide(found, name)) & np.isnan(wide(expected, name))
    wrong = np.flatnonzero(~same)
    shown = [(*(given[at] for given in inputs), found[at], expected[at]) for at in wrong[:5]]
    assert not wrong.size, f"{wrong.size} differ, as (inputs, found, expected): {shown}"


# Arithmetic


def arithmetic(scalar: Any) -> Kernel:
    @kernel(block=128)
    def compute(
        a: Slice[scalar],  # type: ignore[valid-type]
        b: Slice[scalar],  # type: ignore[valid-type]
        total: DisjointSlice[scalar],  # type: ignore[valid-type]
        difference: DisjointSlice[scalar],  # type: ignore[valid-type]
        product: DisjointSlice[scalar],  # type: ignore[valid-type]
        quotient: DisjointSlice[scalar],  # type: ignore[valid-type]
    ) -> None:
        i = thread.index_1d()
        c, d, e, f = total.get_mut(i), difference.get_mut(i), product.get_mut(i), quotient.get_mut(i)
        if c is not None and d is not None and e is not None and f is not None:
            x, y = a[i.get()], b[i.get()]
            c.value, d.value, e.value, f.value = x + y, x - y, x * y, x / y

    return compute


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOATS)
def test_sums_products_and_quotients_are_rounded_once(name: str) -> None:
    a, b = numbers(name), RNG.permutation(numbers(name))
    found = arithmetic(SCALARS[name])(h2d(a), h2d(b), *outputs(a.size, *[name] * 4)).sync()[2:]
    for operation, result in zip((operator.add, operator.sub, operator.mul, operator.truediv), found, strict=True):
        with np.errstate(all="ignore"):
            expected = stored(operation(wide(a, name), wide(b, name)), name)
        assert_same_bits(d2h(result).sync(), expected, name, a, b)


def outputs(size: int, *names: str) -> list[Any]:
    """Memory for numbers of each type; of a bf16 that of its bits."""
    return [zeros(size, u16 if name == "bf16" else SCALARS[name]) for name in names]


@pytest.mark.parametrize("name", FLOATS)
def test_roots_are_rounded_once(name: str) -> None:
    a = numbers(name)
    with np.errstate(all="ignore"):
        expected = stored(np.sqrt(wide(a, name)), name)
    assert_same_bits(run(unary(math.sqrt, SCALARS[name]), a), expected, name, a)


def fused(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` rounded once; the numbers are finite."""
    kind = type(a)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return a * b + c
    return nearest(exact, kind)


def nearest(exact: Fraction, kind: Any) -> Any:
    """The nearest number to a fraction, ties to even, of f32 or f64."""
    if kind is np.float64:
        return kind(exact.numerator / exact.denominator)
    guess = kind(exact.numerator / exact.denominator)
    around = (np.nextafter(guess, kind(-math.inf)), guess, np.nextafter(guess, kind(math.inf)))
    return min(around, key=lambda n: (abs(Fraction(float(n)) - exact), int(n.view(np.uint32)) & 1))


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_fma_is_rounded_once(name: str) -> None:
    kind = FLOATS[name]
    a, b, c = (RNG.standard_normal(997).astype(kind) for _ in range(3))
    c[::2] = -(a * b)[::2]  # what is left is the product's rounding error

    @kernel(block=128)
    def apply(
        a: Slice[SCALARS[name]], b: Slice[SCALARS[name]], c: Slice[SCALARS[name]], y: DisjointSlice[SCALARS[name]]
    ) -> None:  # type: ignore[misc, valid-type]
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = intrinsics.fma(a[i.get()], b[i.get()], c[i.get()])

    expected = np.array([fused(*three) for three in zip(a, b, c, strict=True)])
    assert_same_bits(run(apply, a, b, c), expected, name, a, b, c)


# Conversions


def converted(value: Any, target: str) -> Any:
    """What the book says: integers wrap, a float becomes the nearest integer towards zero that there is."""
    kind = INTEGERS[target]
    limits = np.iinfo(kind)
    if isinstance(value, int):
        return kind((value - int(limits.min)) % 2**limits.bits + int(limits.min))
    if math.isnan(value):
        return kind(0)
    return kind(min(max(value if math.isinf(value) else int(value), int(limits.min)), int(limits.max)))


@pytest.mark.slow
@pytest.mark.parametrize("source", SCALARS)
def test_every_conversion_is_that_of_the_book(source: str) -> None:
    given = SCALARS[source]

    @kernel(block=128)
    def convert(
        x: Slice[given],  # type: ignore[valid-type]
        to_i8: DisjointSlice[i8],
        to_i16: DisjointSlice[i16],
        to_i32: DisjointSlice[i32],
        to_i64: DisjointSlice[i64],
        to_u8: DisjointSlice[u8],
        to_u16: DisjointSlice[u16],
        to_u32: DisjointSlice[u32],
        to_u64: DisjointSlice[u64],
        to_f16: DisjointSlice[f16],
        to_bf16: DisjointSlice[bf16],
        to_f32: DisjointSlice[f32],
        to_f64: DisjointSlice[f64],
        to_bool: DisjointSlice[bool_],
    ) -> None:
        i = thread.index_1d()
        a, b, c, d = to_i8.get_mut(i), to_i16.get_mut(i), to_i32.get_mut(i), to_i64.get_mut(i)
        e, f, g, h = to_u8.get_mut(i), to_u16.get_mut(i), to_u32.get_mut(i), to_u64.get_mut(i)
        p, q, r, s = to_f16.get_mut(i), to_bf16.get_mut(i), to_f32.get_mut(i), to_f64.get_mut(i)
        t = to_bool.get_mut(i)
        if a is not None and b is not None and c is not None and d is not None:
            v = x[i.get()]
            a.value, b.value, c.value, d.value = i8(v), i16(v), i32(v), i64(v)
            if e is not None and f is not None and g is not None and h is not None:
                e.value, f.value, g.value, h.value = u8(v), u16(v), u32(v), u64(v)
            if p is not None and q is not None and r is not None and s is not None:
                p.value, q.value, r.value, s.value = f16(v), bf16(v), f32(v), f64(v)
            if t is not None:
                t.value = bool_(v)

    x = numbers(source, 997)
    names = (*INTEGERS, *FLOATS, "bool_")
    found = dict(zip(names, convert(h2d(x), *outputs(x.size, *names)).sync()[1:], strict=True))
    plain = [float(v) for v in wide(x, source)] if source in FLOATS else [int(v) for v in x]
    for target, kind in INTEGERS.items():
        expected = np.array([converted(v, target) for v in plain], kind)
        assert_same_bits(d2h(found[target]).sync(), expected, target, x)
    for target in FLOATS:
        expected = stored_once(plain, target)
        assert_same_bits(d2h(found[target]).sync(), expected, target, x)
    np.testing.assert_array_equal(d2h(found["bool_"]).sync(), np.array([v != 0 for v in plain]))


def stored_once(values: list[Any], name: str) -> np.ndarray:
    """Integers and doubles as the nearest numbers of a float type, ties to even, by way of no other type."""
    digits, least, largest = {
        "f16": (11, -14, 15),
        "bf16": (8, -126, 127),
        "f32": (24, -126, 127),
        "f64": (53, -1022, 1023),
    }[name]
    result = []
    for value in values:
        if isinstance(value, float) and (value == 0 or not math.isfinite(value)):
            result.append(value)
            continue
        exact = Fraction(value)
        power = least
        if abs(exact) >= Fraction(2) ** least:
            power = max(least, abs(exact).numerator.bit_length() - exact.denominator.bit_length() - 1)
            power += abs(exact) >= Fraction(2) ** (power + 1)
        unit = Fraction(2) ** (power - digits + 1)
        rounded = round(exact / unit) * unit
        overflow = abs(rounded) >= Fraction(2) ** (largest + 1)
        result.append(math.copysign(math.inf if overflow else float(abs(rounded)), value))
    return stored(result, name)


# Integers


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_unary_operators_keep_an_integers_type(name: str) -> None:
    scalar = SCALARS[name]
    as_wide = i64 if name[0] == "i" else u64  # what a wider result would show in

    @kernel(block=128)
    def apply(x: Slice[scalar], y: DisjointSlice[as_wide, Tiles(6)]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        tile = y.get_mut(i)
        if tile is not None:
            v = x[i.get()]
            negated = -v
            tile[0] = negated
            tile[1] = -negated
            tile[2] = +v
            tile[3] = ~v
            tile[4] = abs(v)
            tile[5] = -abs(-v)

    x = numbers(name)
    found = apply(h2d(x), zeros(6 * x.size, as_wide)).last().and_then(d2h).sync().reshape(-1, 6)
    with np.errstate(over="ignore"):
        negated = (0 - x).astype(x.dtype)
        last = (0 - np.where(negated < 0, x, negated)).astype(x.dtype)
        expected = [negated, x, x, ~x, np.where(x < 0, negated, x), last]
    for place, numbers_expected in enumerate(expected):
        assert np.array_equal(found[:, place], numbers_expected.astype(found.dtype)), place


@pytest.mark.slow
@pytest.mark.parametrize("name", ["i8", "i16", "i32", "i64"])
def test_the_least_integer_is_its_own_absolute_value_and_that_is_negative(name: str) -> None:
    scalar = SCALARS[name]

    @kernel(block=128)
    def questions(x: Slice[scalar], y: DisjointSlice[i64]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            v = x[i.get()]
            size, negated = abs(v), -v
            found = 0
            if size < scalar(0):
                found += 1
            if (v if v >= scalar(0) else -v) < scalar(0):
                found += 2
            if v < scalar(0) and negated < scalar(0):
                found += 4
            if scalar(v + 1) < v:
                found += 8
            if scalar(scalar(v * 2) // 2) != v:
                found += 16
            if scalar(v - 1) > v:
                found += 32
            if scalar(size + size) < size:
                found += 64
            if max(v, scalar(-v)) < scalar(0):
                found += 128
            if size // scalar(2) < scalar(0):
                found += 256
            if size % scalar(8) < scalar(0):
                found += 512
            if i64(size) < 0:
                found += 1024
            if size >> scalar(1) < scalar(0):
                found += 2048
            element.value = found

    x = numbers(name)

    def expected(v: int) -> int:
        bits = np.iinfo(INTEGERS[name]).bits

        def wrap(n: int) -> int:
            return (n + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)

        size, negated = wrap(abs(v)), wrap(-v)
        answers = (
            size < 0,
            size < 0,
            v < 0 and negated < 0,
            wrap(v + 1) < v,
            wrap(v * 2) // 2 != v,
            wrap(v - 1) > v,
            wrap(size + size) < size,
            max(v, negated) < 0,
            size // 2 < 0,
            False,  # Python's remainder has the divisor's sign
            size < 0,
            size >> 1 < 0,
        )
        return sum(2**place for place, answer in enumerate(answers) if answer)

    found = run(questions, x, dtype=np.int64)
    wanted = np.array([expected(int(v)) for v in x])
    assert np.array_equal(found, wanted), [(x[n], found[n], wanted[n]) for n in np.flatnonzero(found != wanted)[:5]]


@pytest.mark.parametrize("scalar", [i64, u64, f64], ids=str)
def test_elements_of_eight_bytes_are_read_and_written_whole_on_a_gpu(scalar: Any) -> None:
    @kernel
    def copy(x: Slice[scalar], y: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = x[i.get()] + x[i.get()]

    accesses = re.findall(r"\b(?:ld|st)\.global\.\S*", copy.ptx())
    assert sum("64" in access for access in accesses) >= 2
    before_faults = copy.ptx().split("ret;")[0]
    assert not re.search(r"\b(?:ld|st)\.global\.b32", before_faults)


# Contraction: the rule is in ``oxide/compiler/frontend/lowering/total_builder.py``


@kernel(block=64)
def determinants(a: Slice[f32], b: Slice[f32], c: Slice[f32], d: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        k = i.get()
        element.value = a[k] * d[k] - b[k] * c[k]


@pytest.mark.parametrize("size", [1, 31, 448, 461, 1000003])
def test_equal_elements_have_equal_results_in_every_block(size: int) -> None:
    a, b, c, d = np.float32(0.1), np.float32(0.3), np.float32(0.7), np.float32(2.1)
    given = [np.full(size, value) for value in (a, b, c, d)]
    expected = fused(a, d, -(b * c))
    assert expected != a * d - b * c  # else nothing is tested
    assert np.array_equal(run(determinants, *given), np.full(size, expected))


@device
def product(a: f32, b: f32) -> f32:
    return a * b


@device
def plus(a: f32, b: f32) -> f32:
    return a + b


def forms(a: Slice[f32], b: Slice[f32], c: Slice[f32], d: Slice[f32], e: Slice[f64], y: DisjointSlice[f32]) -> None:
    i = thread.index_2d(16)
    element = y.get_mut(i)
    if element is not None:
        n, p, q, r, s = thread.index_2d_col(), a[0], b[0], c[0], d[0]
        named = p * q
        if n == 0:
            element.value = p * q + r
        elif n == 1:
            element.value = r + p * q
        elif n == 2:
            element.value = p * q - r
        elif n == 3:
            element.value = r - p * q
        elif n == 4:
            element.value = p * q + r * s
        elif n == 5:
            element.value = p * q - r * s
        elif n == 6:
            element.value = named + r
        elif n == 7:
            element.value = product(p, q) + r
        elif n == 8:
            element.value = plus(p * q, r)
        elif n == 9:
            element.value = r
            element.value += p * q
        elif n == 10:
            element.value = r
            element.value -= p * q
        elif n == 11:
            element.value = -(p * q) + r
        elif n == 12:
            element.value = f32(p * q + e[0])
        elif n == 13:
            element.value = p * q * s + r
        elif n == 14:
            element.value = p * q + (r if s > r else s)
        else:
            element.value = (r if s > r else s) + p * q


def form_references(fuse: bool) -> tuple[list[np.float32], tuple[np.ndarray, ...]]:
    p, q, s = np.float32(1.1), np.float32(1.3), np.float32(2.7)
    r = np.float32(-(p * q))  # so that a fused sum is the product's rounding error, and another is 0
    wide = np.float64(r)
    both = fused if fuse else lambda a, b, c: a * b + c
    expected = [
        both(p, q, r),
        both(p, q, r),
        both(p, q, -r),
        both(-p, q, r),
        both(p, q, r * s),
        both(p, q, -(r * s)),
        p * q + r,
        p * q + r,
        p * q + r,
        both(p, q, r),
        both(-p, q, r),
        -(p * q) + r,
        np.float32(np.float64(p * q) + wide),
        both(p * q, s, r),
        p * q + r,
        both(p, q, r),
    ]
    return expected, tuple(np.array([value]) for value in (p, q, r, s, wide))


@pytest.mark.slow
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("options", [{}, {"unchecked": True}, {"sanitize": "memory"}], ids=str)
def test_a_product_written_as_an_operand_of_a_sum_is_fused_and_no_other(fuse: bool, options: Any) -> None:
    expected, given = form_references(fuse)
    k = kernel(fma=fuse, **options)(forms)
    found = k[LaunchConfig(grid=(1, 1), block=(16, 1))](*map(h2d, given), zeros(16)).last().and_then(d2h).sync()
    assert found.tolist() == [float(value) for value in expected]
    assert found[0] != found[6] or not fuse


@pytest.mark.parametrize("fuse", [True, False])
def test_adopted_kernels_follow_the_same_rule(fuse: bool) -> None:
    @cuda.jit
    def sums(a, b, c, y):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < y.size:
            y[i] = a[i] * b[i] + c[i]

    a, b = (RNG.standard_normal(461).astype(np.float32) for _ in range(2))
    c = -(a * b)
    result = kernel(fma=fuse)(sums)[8, 64](h2d(a), h2d(b), h2d(c), zeros(461)).last().and_then(d2h).sync()
    expected = np.array([fused(*three) for three in zip(a, b, c, strict=True)]) if fuse else np.zeros(461, np.float32)
    assert_same_bits(result, expected, "f32", a, b, c)


def test_ptx_leaves_nothing_to_contract_to_the_driver() -> None:
    for fuse in (True, False):
        ptx = kernel(fma=fuse)(forms).ptx()
        assert re.search(r"\bmul\.rn\.f32", ptx)
        assert not re.search(r"\b(?:add|sub|mul)\.(?:f16|bf16|f32|f64|f16x2|bf16x2)\b", ptx)
        assert bool(re.search(r"\bfma\.rn\.f32", ptx)) == fuse
    for scalar in (f16, bf16):
        ptx = arithmetic(scalar).ptx()
        assert re.search(r"\bmul\.rn\.(?:f16|bf16|f32)\b", ptx)
        assert not re.search(r"\b(?:add|sub|mul)\.(?:f16|bf16|f32)\b", ptx)


def test_fastmath_leaves_the_choice_to_the_compiler() -> None:
    text = kernel(fastmath=True)(forms).llvm_ir()
    assert "fmul reassoc" in text
    assert "@llvm.fma" not in text


@pytest.mark.parametrize(
    "function",
    [intrinsics.rsqrt, math.exp, math.exp2, math.tanh, math.erf, math.log, math.log2, math.log10],
    ids=lambda function: function.__name__,
)
def test_functions_of_equal_elements_are_equal_in_every_block(function: Any) -> None:
    for value in RNG.uniform(0.1, 9.0, 7).astype(np.float32):
        assert len(set(run(unary(function, f32), np.full(461, value)).tolist())) == 1


def test_approximate_quotients_of_equal_elements_are_equal_in_every_block() -> None:
    for a, b in RNG.uniform(0.1, 9.0, (7, 2)).astype(np.float32):
        assert len(set(run(binary(fast.divide, f32), np.full(461, a), np.full(461, b)).tolist())) == 1


def test_negations_that_a_gpus_assembler_loses_are_made() -> None:
    @kernel(block=128)
    def apply(
        a: Slice[u8],
        b: Slice[i16],
        c: Slice[i32],
        shorts: DisjointSlice[i16],
        words: DisjointSlice[i32],
        products: DisjointSlice[u16],
    ) -> None:
        i = thread.index_1d()
        first, second, third = shorts.get_mut(i), words.get_mut(i), products.get_mut(i)
        if first is not None and second is not None and third is not None:
            k = i.get()
            first.value = max(-i16(a[k]), min(b[k], i16(1)), b[k])
            second.value = min(i32(intrinsics.ffs(c[k])), -c[k], c[k])
            third.value = u16(u16(b[k]) * (-i8(a[k])))

    a, b, c = numbers("u8"), numbers("i16"), numbers("i32")
    found = apply(h2d(a), h2d(b), h2d(c), *outputs(a.size, "i16", "i32", "u16")).sync()[3:]
    shorts = np.maximum(np.maximum(-a.astype(np.int16), np.minimum(b, 1)), b)
    with np.errstate(over="ignore"):
        lowest = np.array([(int(v) & -int(v)).bit_length() for v in c], np.int32)
        words = np.minimum(np.minimum(lowest, -c), c)
        products = (b.astype(np.uint16) * (-a.view(np.int8)).astype(np.uint16)).astype(np.uint16)
    for name, result, expected in zip(("i16", "i32", "u16"), found, (shorts, words, products), strict=True):
        assert_same_bits(d2h(result).sync(), expected, name, a, b, c)
    assert not re.search(r"\b(?:neg\.s(?:16|32)|abs\.s)", apply.ptx())


def test_extremes_of_short_integers_compare_as_they_are() -> None:
    """ptxas took the comparison of the upper half of a word, which is always true, for the lower half's."""

    @kernel(block=128)
    def apply(a: Slice[i16], b: Slice[u16], shorts: DisjointSlice[i16], words: DisjointSlice[u16]) -> None:
        i = thread.index_1d()
        first, second = shorts.get_mut(i), words.get_mut(i)
        if first is not None and second is not None:
            least, most = max(a[i.get()], i16(0)), min(b[i.get()], u16(300))
            first.value = i16(17) if least == 0 else least
            second.value = u16(23) if most != 300 else most

    a, b = numbers("i16"), numbers("u16")
    shorts, words = (d2h(box).sync() for box in apply(h2d(a), h2d(b), *outputs(a.size, "i16", "u16")).sync()[2:])
    np.testing.assert_array_equal(shorts, np.where(a <= 0, 17, a))
    np.testing.assert_array_equal(words, np.where(b < 300, 23, 300))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_extremes_with_a_constant_zero_have_pythons_sign(name: str) -> None:
    scalar = SCALARS[name]
    memory = "f64" if name == "f64" else "f32"

    @kernel(block=32)
    def apply(x: Slice[SCALARS[memory]], y: DisjointSlice[SCALARS[memory]]) -> None:  # type: ignore[misc]
        i = thread.index_1d().get()
        if 8 * i + 8 <= len(y):
            number = scalar(x[i]) * scalar(1.5)
            y.unchecked_mut[8 * i] = min(scalar(0.0), number)
            y.unchecked_mut[8 * i + 1] = min(number, scalar(0.0))
            y.unchecked_mut[8 * i + 2] = max(scalar(0.0), number)
            y.unchecked_mut[8 * i + 3] = max(number, scalar(0.0))
            y.unchecked_mut[8 * i + 4] = min(scalar(-0.0), number)
            y.unchecked_mut[8 * i + 5] = min(number, scalar(-0.0))
            y.unchecked_mut[8 * i + 6] = max(scalar(-0.0), number)
            y.unchecked_mut[8 * i + 7] = max(number, scalar(-0.0))

    x = np.resize([0.0, -0.0, 2.0, -2.0, math.inf, -math.inf], 6 * 64)  # whole blocks too
    found = apply(h2d(x.astype(FLOATS[memory])), *outputs(8 * x.size, memory)).last().and_then(d2h).sync()
    x *= 1.5
    expected = [f(*pair) for v in x.tolist() for z in (0.0, -0.0) for f in (min, max) for pair in ((z, v), (v, z))]
    assert [str(v) for v in found.tolist()] == [str(v) for v in expected]


@pytest.mark.parametrize(("narrow", "wide"), [("f32", "f64"), ("f16", "f32"), ("bf16", "f64")])
def test_extremes_of_widened_numbers_with_a_constant_zero_have_pythons_sign(narrow: str, wide: str) -> None:
    """LLVM compared the narrow numbers and selected the zero of the opposite comparison."""
    given, scalar = SCALARS[narrow], SCALARS[wide]

    @kernel(block=32)
    def apply(x: Slice[f32], y: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d().get()
        if 4 * i + 4 <= len(y):
            number = scalar(given(x[i]))
            y.unchecked_mut[4 * i] = min(number, scalar(0.0))
            y.unchecked_mut[4 * i + 1] = max(number, scalar(-0.0))
            y.unchecked_mut[4 * i + 2] = min(scalar(0.0), number)
            y.unchecked_mut[4 * i + 3] = max(scalar(-0.0), number)

    x = np.resize([0.0, -0.0, 2.0, -2.0, math.inf, -math.inf], 6 * 64).astype(np.float32)
    found = apply(h2d(x), *outputs(4 * x.size, wide)).last().and_then(d2h).sync()
    expected = [v for n in x.tolist() for v in (min(n, 0.0), max(n, -0.0), min(0.0, n), max(-0.0, n))]
    assert [str(v) for v in found.tolist()] == [str(v) for v in expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_a_number_held_between_0_and_1_is_1_if_it_is_none(name: str) -> None:
    """ptxas took it for a saturation, which makes 0 of NaN."""
    scalar = SCALARS[name]
    memory = "f64" if name == "f64" else "f32"

    @kernel(block=32)
    def apply(x: Slice[SCALARS[memory]], y: DisjointSlice[SCALARS[memory]], z: DisjointSlice[u8]) -> None:  # type: ignore[misc]
        i = thread.index_1d().get()
        if 5 * i + 5 <= len(y) and i < len(z):
            number = scalar(x[i]) * scalar(1.5)
            y.unchecked_mut[5 * i] = max(min(scalar(1.0), number), scalar(0.0))
            y.unchecked_mut[5 * i + 1] = max(scalar(-0.0), min(scalar(1.0), number))
            y.unchecked_mut[5 * i + 2] = min(max(scalar(0.0), number), scalar(1.0))
            y.unchecked_mut[5 * i + 3] = max(scalar(0.0), min(number, scalar(1.0)))
            y.unchecked_mut[5 * i + 4] = max(min(number, scalar(1.0)), scalar(-0.0))
            z.unchecked_mut[i] = u8(min(scalar(1.0), number))

    x = np.array([math.nan, -math.nan, 0.0, -0.0, 0.5, 2.0, -2.0, math.inf, -math.inf])
    boxes = apply(h2d(x.astype(FLOATS[memory])), *outputs(5 * x.size, memory), *outputs(x.size, "u8")).sync()[1:]
    found, bytes_ = (d2h(box).sync().tolist() for box in boxes)
    expected: list[float] = []
    for v in (1.5 * x).tolist():
        expected += [max(min(1.0, v), 0.0), max(-0.0, min(1.0, v)), min(max(0.0, v), 1.0)]
        expected += [max(0.0, min(v, 1.0)), max(min(v, 1.0), -0.0)]
    assert [str(v) for v in found] == [str(v) for v in expected]
    assert bytes_ == [1, 1, 0, 0, 0, 1, 0, 1, 0]


def test_a_division_of_128_bits_has_its_function() -> None:
    """LLVM makes one of a product's upper half that a loop takes, and calls a function that no library need have."""

    @kernel(block=32)
    def apply(a: u32, b: Slice[u64], y: DisjointSlice[u64]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            v, w = divmod(u64(a << 2), max(b[i.get()], u64(1)))
            for _ in range(2, 3):
                v = min(w, intrinsics.mulhi(w, v))
            element.value = v

    b = np.concatenate([numbers("u64"), numbers("u32").astype(np.uint64), np.arange(33, dtype=np.uint64)])
    for a in (0, 1, 2**31 + 5, 2**32 - 1):
        found = apply(a, h2d(b), *outputs(b.size, "u64")).last().and_then(d2h).sync()
        parts = [divmod(a << 2, max(int(divisor), 1)) for divisor in b]
        assert found.tolist() == [min(w, (w * v) >> 64) for v, w in parts]


@pytest.mark.parametrize("kind", [f16, bf16])
def test_halves_that_are_stored_together_are_without_their_signs(kind: Any) -> None:
    """ptxas lost the mask of a number that was converted, where the result is stored as the lower half of a word."""

    @kernel(block=128)
    def apply(a: Slice[f32], halves: DisjointSlice[kind]) -> None:
        i = 2 * thread.index_1d().get()
        if i + 1 < len(halves):
            halves.unchecked_mut.store2(i, abs(kind(a[i])), kind(a[i + 1]))

    a = RNG.standard_normal(2 * 128 * 3).astype(np.float32)
    expected = np.stack([np.abs(a[::2]), a[1::2]], axis=1).reshape(-1)
    found = d2h(apply[3, 128](h2d(a), zeros(a.size, np.float16 if kind is f16 else np.uint16)).sync()[1]).sync()
    as_floats = found.astype(np.float32) if kind is f16 else (found.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(as_floats, expected, rtol=2**-8)


def test_upper_halves_of_products_less_a_long_integer_are_exact() -> None:
    @kernel(block=128)
    def apply(a: Slice[u32], b: Slice[u32], c: Slice[i64], y: DisjointSlice[i64], z: DisjointSlice[i64]) -> None:
        i = thread.index_1d()
        first, second = y.get_mut(i), z.get_mut(i)
        if first is not None and second is not None:
            k = i.get()
            first.value = intrinsics.mulhi(a[k], b[k]) - c[k]
            second.value = intrinsics.mulhi(u32(47), intrinsics.brev(a[k])) - (c[k] << 32)

    a, c = numbers("u32"), numbers("i64")
    a = np.resize(a, c.size)
    b = np.random.default_rng(9).permutation(a)
    c[::2] <<= 32  # whose lower half is 0
    brev = np.array([int(f"{v:032b}"[::-1], 2) for v in a.tolist()], np.int64)
    found = apply(h2d(a), h2d(b), h2d(c), *outputs(a.size, "i64", "i64")).sync()[3:]
    with np.errstate(over="ignore"):
        first = (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.int64) - c
        second = (brev * 47 >> 32) - (c << 32)
    for result, expected in zip(found, (first, second), strict=True):
        assert_same_bits(d2h(result).sync(), expected, "i64", a, b, c)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["i32", "u32", "i64", "u64"])
def test_integers_that_end_in_zeros_are_infinite_as_f16_where_they_are_large(name: str) -> None:
    scalar = SCALARS[name]

    @kernel(block=128)
    def infinite(x: Slice[scalar], y: DisjointSlice[i64]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            number = (x[i.get()] & scalar(7)) << 20
            direct, single, double = f16(number), f16(f32(number)), f16(f64(number))
            element.value += 1 if math.isinf(f32(direct)) else 0
            element.value += 1 if math.isinf(f32(single)) else 0
            element.value += 1 if math.isinf(f32(double)) else 0

    x = np.arange(1, 1000).astype(INTEGERS[name])
    y = infinite(h2d(x), zeros(x.size, i64)).last().and_then(d2h).sync()
    assert np.array_equal(y, np.where(x % 8, 3, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"])
def test_shifts_by_any_amount_are_pythons_in_the_type_of_the_left_operand(name: str) -> None:
    scalar = SCALARS[name]

    @kernel(block=128)
    def apply(
        x: Slice[scalar],  # type: ignore[valid-type]
        amounts: Slice[i64],
        y: DisjointSlice[u64],
        z: DisjointSlice[i64],
    ) -> None:
        i = thread.index_1d()
        left, right = y.get_mut(i), z.get_mut(i)
        if left is not None and right is not None:
            k = i.get()
            left.value = u64(x[k] << amounts[k])
            right.value = i64(x[k] >> amounts[k])

    amounts = [0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 2**32 - 1, 2**32, 2**32 + 3, 3 * 2**40, 2**63 - 1]
    x = np.repeat(np.random.default_rng(9).permutation(numbers(name))[:200], len(amounts))
    by = np.resize(np.array(amounts), x.size)
    y, z = apply(h2d(x), h2d(by), *outputs(x.size, "u64", "i64")).sync()[2:]
    pairs = list(zip(x.tolist(), by.tolist(), strict=True))
    shifted = np.array([(v << n) % 2**64 if n < 64 else 0 for v, n in pairs], np.uint64).astype(scalar.dtype)
    np.testing.assert_array_equal(d2h(y).sync(), shifted.astype(np.uint64))
    assert d2h(z).sync().tolist() == [((v >> n) + 2**63) % 2**64 - 2**63 for v, n in pairs]


def test_shifts_of_what_may_be_outside_are_pythons() -> None:
    """The read is a branch, as the threads of a kernel with atomics go on after a fault; LLVM shifts behind it."""

    @kernel(block=128)
    def apply(x: Slice[u64], amounts: Slice[i64], seen: AtomicSlice[u32], y: DisjointSlice[u64]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            seen.fetch_add(0, u32(1))
            element.value = (x[i.get()] >> amounts[i.get()]) + (u64(1) >> amounts[i.get()])

    amounts = np.array([0, 1, 63, 64, 2**32, 2**32 + 1, 2**63 - 1])
    x = RNG.integers(0, 2**64, amounts.size, np.uint64)
    y = apply(h2d(x), h2d(amounts), zeros(1, u32), *outputs(x.size, "u64")).last().and_then(d2h).sync()
    assert y.tolist() == [(int(v) >> int(n)) + (1 >> int(n)) if n < 64 else 0 for v, n in zip(x, amounts, strict=True)]


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_remainders_of_floats_are_exact(name: str) -> None:
    a, b = numbers(name), RNG.permutation(numbers(name))
    scalar = SCALARS[name]

    @kernel(block=128)
    def apply(a: Slice[scalar], b: Slice[scalar], y: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = a[i.get()] % b[i.get()]

    with np.errstate(all="ignore"):
        remainder = np.fmod(a, b)
        other_sign = (remainder != 0) & (np.signbit(remainder) != np.signbit(b))
        expected = np.where(other_sign, remainder + b, np.where(remainder == 0, np.copysign(remainder, b), remainder))
    assert_same_bits(run(apply, a, b), expected.astype(a.dtype), name, a, b)


def test_a_remainder_of_zero_and_a_nan_is_a_nan() -> None:
    """LLVM takes a product with infinity for a number that is not 0, and so ``fmod`` of it for no NaN."""

    @kernel(block=32)
    def apply(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = math.fmod(f32(0.0), x[i.get()] * f32(math.inf))

    x = np.array([math.nan, 1.0, 0.0, -2.0], np.float32)
    assert_same_bits(run(apply, x), np.array([math.nan, 0, math.nan, 0], np.float32), "f32", x)
