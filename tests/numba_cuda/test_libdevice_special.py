"""libdevice's special functions and functions on bits, against series in decimal numbers."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice, libdevicefuncs

from oxide import kernel
from oxide.compiler.cpu.libdevice import libm
from oxide.compiler.ir import known_functions
from tests.numba_cuda.launching import launch

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211707")


def erf(x: Decimal) -> Decimal:
    """The series at 0, with the digits that its terms cancel besides those asked for."""
    with localcontext() as context:
        context.prec = 80 + int(x * x)
        term, total, n = x, x, 0
        while abs(term) > Decimal(10) ** (-60 - int(x * x)):
            n += 1
            term *= -x * x / n
            total += term / (2 * n + 1)
        return total * 2 / pi(context.prec).sqrt()


def pi(digits: int) -> Decimal:
    """Machin's formula."""
    with localcontext() as context:
        context.prec = digits + 10
        return 4 * (4 * arctangent(5) - arctangent(239))


def arctangent(inverse: int) -> Decimal:
    """Of 1 / ``inverse``."""
    with localcontext() as context:
        term = total = Decimal(1) / inverse
        n = 0
        while abs(term) > Decimal(10) ** -context.prec:
            n += 1
            term /= -inverse * inverse
            total += term / (2 * n + 1)
        return total


def erfc(x: Decimal) -> Decimal:
    with localcontext() as context:
        context.prec = 80 + int(x * x)
        return 1 - erf(x)


def sine(x: float, quarters: int) -> Decimal:
    """Of pi times (x + quarters / 2)."""
    with localcontext() as context:
        context.prec = 60
        turn = (Fraction(x) + Fraction(quarters, 2)) % 2
        angle = Decimal(turn.numerator) / Decimal(turn.denominator) * PI
        term = total = angle
        for n in range(1, 60):
            term *= -angle * angle / (2 * n * (2 * n + 1))
            total += term
        return total


def units(found: float, exact: Decimal, dtype: Any) -> float:
    """How far off, in units in the last place; of floats that are as small as can be, in those."""
    if abs(exact) > Decimal(float(np.finfo(dtype).max)):
        return 0.0 if math.isinf(found) else math.inf
    return float(abs(Decimal(float(found)) - exact) / Decimal(float(np.spacing(abs(dtype(float(exact)))))))


@kernel
def of_doubles(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i, 0], out[i, 1] = libdevice.sinpi(x[i]), libdevice.cospi(x[i])
        out[i, 2], out[i, 3] = libdevice.sincospi(x[i])
        out[i, 4], out[i, 5] = libdevice.erfcx(x[i]), libdevice.normcdf(x[i])
        out[i, 6], out[i, 7], out[i, 8] = libdevice.erfinv(x[i]), libdevice.erfcinv(x[i]), libdevice.normcdfinv(x[i])


@kernel
def of_floats(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i, 0], out[i, 1] = libdevice.sinpif(x[i]), libdevice.cospif(x[i])
        out[i, 2], out[i, 3] = libdevice.sincospif(x[i])
        out[i, 4], out[i, 5] = libdevice.erfcxf(x[i]), libdevice.normcdff(x[i])
        out[i, 6], out[i, 7], out[i, 8] = libdevice.erfinvf(x[i]), libdevice.erfcinvf(x[i]), libdevice.normcdfinvf(x[i])


KINDS = pytest.mark.parametrize(("function", "dtype"), [(of_doubles, np.float64), (of_floats, np.float32)])


def results(function: Any, dtype: Any, values: Any) -> tuple[Any, Any]:
    x = np.asarray(values, dtype)
    return x, launch(function, -(-len(x) // 64), 64, x, np.zeros((len(x), 9), dtype))[-1]


@pytest.mark.nightly
@KINDS
def test_sines_of_half_turns(function: Any, dtype: Any) -> None:
    random = np.random.default_rng(1)
    x, out = results(function, dtype, [*random.normal(0, 3, 200), *10.0 ** random.uniform(-300, 15, 60) % 1e30, 0.75])
    for value, found in zip(x, out, strict=True):
        for column, quarters in ((0, 0), (1, 1), (2, 0), (3, 1)):
            assert units(found[column], sine(float(value), quarters), dtype) < 4, (value, column)


@KINDS
def test_sines_of_half_turns_are_exact_where_they_are_whole(function: Any, dtype: Any) -> None:
    given = [0, -0.0, 1, -1, 2, 0.5, 1.5, -0.5, 2.5, 1e30, math.inf, -math.inf, math.nan]
    _, out = results(function, dtype, given)
    zeros = [0, 1, 2, 3, 4, 9]
    np.testing.assert_array_equal(out[:, 0], [0, 0, 0, 0, 0, 1, -1, -1, 1, 0, *[math.nan] * 3])
    np.testing.assert_array_equal(out[:, 1], [1, 1, -1, -1, 1, 0, 0, 0, 0, 1, *[math.nan] * 3])
    np.testing.assert_array_equal(np.signbit(out[zeros, 0][:2]), [False, True])


@pytest.mark.slow
@KINDS
def test_scaled_error_functions_are_right_to_the_last_places(function: Any, dtype: Any) -> None:
    random = np.random.default_rng(2)
    x, out = results(
        function, dtype, [*random.uniform(-9, 27, 40), *random.normal(0, 1, 40), 19.999, 20.001, -26.5, 1e-12, 0.0]
    )
    for value, found in zip(x, out[:, 4], strict=True):
        with localcontext() as context:
            context.prec = 60
            square = Decimal(float(value)) ** 2
            assert units(found, square.exp() * erfc(Decimal(float(value))), dtype) < 12, value
    large, found = results(function, dtype, [1e3, 1e8, 1e30])
    assert np.allclose(found[:, 4], 1 / (np.sqrt(np.pi) * large.astype(np.float64)), rtol=1e-6)


@KINDS
def test_the_normal_distribution_is_right_to_the_last_places(function: Any, dtype: Any) -> None:
    random = np.random.default_rng(3)
    lowest = -37 if dtype is np.float64 else -12.9
    x, out = results(function, dtype, [*random.uniform(lowest, 9, 40), *random.normal(0, 1, 40), lowest, 0.0])
    for value, found in zip(x, out[:, 5], strict=True):
        with localcontext() as context:
            context.prec = 60
            z = -Decimal(float(value)) / Decimal(2).sqrt()
            exact = erfc(z) / 2
        assert units(found, exact, dtype) < 12, value


@pytest.mark.slow
@KINDS
def test_the_inverses_of_error_functions(function: Any, dtype: Any) -> None:
    random, tiny = np.random.default_rng(4), float(np.finfo(dtype).tiny)
    given = [*random.uniform(0, 2, 60), *10.0 ** random.uniform(math.log10(tiny), 0, 60), 0.5, 1.5, 0.25, tiny]
    x, out = results(function, dtype, [*given, *(1 - np.array([1e-3, 1e-6])), *(1 + np.array([1e-3, 1e-6]))])
    tolerance = 16 * float(np.finfo(dtype).eps)
    for value, (of_erf, of_erfc, of_cdf) in zip(x, out[:, 6:], strict=True):
        y = Decimal(float(value))
        for found, off in (
            (of_erf, lambda z, y=y: erf(z) - y),
            (of_erfc, lambda z, y=y: y - erfc(z)),
            (-of_cdf / math.sqrt(2), lambda z, y=y: 2 * y - erfc(z)),
        ):
            if not math.isfinite(found):
                continue
            z = Decimal(float(found))
            with localcontext() as context:
                context.prec = 60
                slope = (-z * z).exp() * 2 / PI.sqrt()
                error = off(z) / slope
            assert abs(error) <= tolerance * max(abs(float(z)), float(np.finfo(dtype).tiny)), (value, found)
    assert (np.isfinite(out[:, 6]) == (x < 1)).all()
    assert np.isfinite(out[:, 7]).all()
    assert (np.isfinite(out[:, 8]) == (x < 1)).all()
    _, negative = results(function, dtype, -x)
    np.testing.assert_array_equal(negative[:, 6], -out[:, 6])


@KINDS
def test_the_ends_of_special_functions(function: Any, dtype: Any) -> None:
    inf, nan = math.inf, math.nan
    _, out = results(function, dtype, [0.0, 1.0, 2.0, -1.0, 3.0, inf, -inf, nan])
    np.testing.assert_array_equal(out[5:, 4], [0, inf, nan])
    np.testing.assert_array_equal(out[5:, 5], [1, 0, nan])
    np.testing.assert_array_equal(out[:, 6], [0, inf, nan, -inf, nan, nan, nan, nan])
    np.testing.assert_array_equal(out[[0, 1, 2, 3, 4, 7], 7], [inf, 0, -inf, nan, nan, nan])
    np.testing.assert_array_equal(out[[0, 1, 2, 3, 4, 7], 8], [-inf, inf, nan, nan, nan, nan])


@kernel
def bits(a, b, s, permuted, halves, x, narrow, saturated, widened):
    i = cuda.grid(1)
    if i < a.size:
        permuted[i] = libdevice.byte_perm(a[i], b[i], s[i])
        narrow[i] = libdevice.float2half_rn(x[i])
        saturated[i] = libdevice.saturatef(x[i])
        widened[i] = libdevice.half2float(halves[i])


def test_bytes_halves_and_saturation() -> None:
    random, count = np.random.default_rng(5), 500
    a, b, s = random.integers(-(2**31), 2**31, (3, count)).astype(np.int32)
    halves = random.integers(0, 2**16, count).astype(np.uint16).view(np.int16)
    x = (random.normal(size=count) * 10.0 ** random.integers(-8, 6, count)).astype(np.float32)
    x[:8] = np.inf, -np.inf, np.nan, 0.5, 1, -0.0, 65520, 1e-8
    results = launch(
        bits, 8, 64, a, b, s, np.zeros_like(a), halves, x, np.zeros_like(halves), *np.zeros((2, count), np.float32)
    )
    permuted, narrow, saturated, widened = results[3], results[6], results[7], results[8]
    for i in range(count):
        whole = (int(b[i]) & 0xFFFFFFFF) << 32 | int(a[i]) & 0xFFFFFFFF
        wanted = sum((whole >> 8 * (int(s[i]) >> 4 * place & 7) & 255) << 8 * place for place in range(4))
        assert int(permuted[i]) & 0xFFFFFFFF == wanted
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(narrow.view(np.float16)[number], expected[number])
    assert np.isnan(narrow.view(np.float16)[~number]).all()
    np.testing.assert_array_equal(saturated, np.where(np.isnan(x), 0, np.clip(x, 0, 1)))
    np.testing.assert_array_equal(widened, halves.view(np.float16).astype(np.float32))


class Module:
    """A module that leaves functions open, as much of one as ``libm`` looks at."""

    def __init__(self, names: list[str]) -> None:
        self.functions = {name: Function(name) for name in names}


class Function:
    is_declaration = True

    def __init__(self, name: str) -> None:
        self.name = name


def test_all_of_libdevice_has_a_counterpart_that_llvm_takes_alone_and_together() -> None:
    found = [name for name in libdevicefuncs.functions if known_functions.definition(name) is None]
    assert len(libdevicefuncs.functions) > 300
    halves = "\ndeclare float @oxide.f16.widen(i16)\ndeclare i16 @oxide.f16.narrow(float)"
    for names in [*([name] for name in found), found]:
        llvm.parse_assembly(libm.definitions("k", Module(names)) + halves).verify()
