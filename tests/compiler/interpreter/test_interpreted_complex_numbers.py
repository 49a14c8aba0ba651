"""Interpreted kernels of complex numbers, and functions of tuples, have the bits of compiled ones."""

from __future__ import annotations

import cmath
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest

from oxide import (
    DisjointSlice,
    DisjointSlice2,
    Kernel,
    LocalArray,
    SharedArray,
    Slice,
    c64,
    c128,
    d2h,
    device,
    f32,
    f64,
    full,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    zeros,
)

S = TypeVar("S")
T = TypeVar("T")
BOTH = pytest.mark.parametrize("kind", [c64, c128], ids=str)
PARTS = (0.0, -0.0, 1.0, -2.5, 1e-30, 3e38, math.inf, -math.inf, math.nan)
FACTORS = np.array([1 + 2j, -0.5j], np.complex64)
TURN = 0.1 - 0.3j


def numbers(kind: Any) -> np.ndarray[Any, Any]:
    """Returns random numbers and all pairs of special parts."""
    generator = np.random.default_rng(3)
    random = generator.normal(size=40) + 1j * generator.normal(size=40)
    special = [complex(real, imag) for real in PARTS for imag in PARTS]
    return np.concatenate([random, special]).astype(kind.dtype)


def parts(found: np.ndarray[Any, Any]) -> list[str]:
    """Returns the bits of each part. All NaNs are one."""
    reals = found.view(found.real.dtype).ravel().tolist()
    return [float(each).hex() for each in reals]


def same(launch: Any, *arguments: Callable[[], Any]) -> np.ndarray[Any, Any]:
    """Compares the last argument after a compiled and an interpreted launch, and returns it."""
    compiled, interpreted = (
        d2h(way(*[argument() for argument in arguments]).last()).sync() for way in (launch, launch.interpret)
    )
    assert parts(interpreted) == parts(compiled)
    return compiled  # type: ignore[no-any-return]


@functools.cache
def arithmetic(kind: Any) -> Kernel:
    @kernel(block=32)
    def computed(
        a: Slice[kind],  # type: ignore[valid-type]
        b: Slice[kind],  # type: ignore[valid-type]
        n: i32,
        out: DisjointSlice2[kind],  # type: ignore[valid-type]
    ) -> None:
        i = thread.index_1d().get()
        if i < len(a):
            out.scatter[i, 0] = a[i] + b[i]
            out.scatter[i, 1] = a[i] - b[i]
            out.scatter[i, 2] = a[i] * b[i] + a[i]
            out.scatter[i, 3] = a[i] / b[i]
            out.scatter[i, 4] = a[i] ** 3 - pow(b[i], n)
            out.scatter[i, 5] = complex(abs(a[i]), b[i].real * b[i].real + b[i].imag)
            out.scatter[i, 6] = -a[i] if a[i] == b[i] else +a[i].conjugate()
            total = 0j
            for factor in FACTORS:
                total = total * 1j + factor * a[i] + 2 - TURN
            out.scatter[i, 7] = total / 3 if total else 1
            out.scatter[i, 8] = 1j / a[i] * 0.5
            total += n
            out.scatter[i, 9] = total

    return computed


@pytest.mark.slow
@BOTH
def test_arithmetic_has_the_same_bits(kind: Any) -> None:
    a = numbers(kind)
    b = np.roll(a, 7)
    b[::5] = a[::5]
    same(arithmetic(kind), lambda: h2d(a), lambda: h2d(b), lambda: -2, lambda: zeros((a.size, 10), kind))


@kernel(block=32)
def mapping(function: Callable[..., Any], x: Slice[T], out: DisjointSlice[S]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = function(x[index.get()])


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    "function",
    [
        lambda z: cmath.exp(z),
        lambda z: cmath.log(z),
        lambda z: cmath.sqrt(z),
        lambda z: cmath.rect(cmath.polar(z)[0], cmath.phase(z)),
        lambda z: complex(cmath.isnan(z), cmath.isinf(z)) + np.conj(z),
    ],
    ids=["exp", "log", "sqrt", "rect", "tests"],
)
def test_functions_of_cmath_have_the_same_bits(kind: Any, function: Any) -> None:
    z = numbers(kind)
    same(mapping, lambda: function, lambda: h2d(z), lambda: zeros(z.size, kind))


@device
def turned(z, by: c64):
    return z * by


class Wave(NamedTuple):
    amplitude: c64
    count: i32


@kernel(block=4)
def of_all_kinds(wave: Wave, z: c128, pair: tuple[f32, c64], f: Callable[[c64], c64], out: DisjointSlice[c128]) -> None:
    index = thread.index_1d()
    here = thread.thread_idx.x
    shared = SharedArray(4, c64)
    local = LocalArray(2, c128)
    shared[here] = wave.amplitude * here
    thread.sync_threads()
    local[1] = local[0] + turned(z, pair[1])
    element = out.get_mut(index)
    if element is not None:
        element.value = shared[3 - here] + local[1] * pair[0] - f(wave.count) + c64(1e-9 + z.real, i64(2))


def test_parameters_tuples_captured_numbers_and_arrays_have_the_same_bits() -> None:
    factor, offset = np.complex64(0.3 + 0.7j), 2.5
    found = same(
        of_all_kinds,
        lambda: Wave(1 / 3 - 0.1j, 7),
        lambda: 0.1 + 0.2j,
        lambda: (0.3, 1.7j),
        lambda: lambda w: w * factor + offset,
        lambda: full(6, 1, c128),
    )
    assert np.isfinite(found).all()
    assert len(set(found.tolist())) == 4


def test_print_shows_both_parts(capfd: pytest.CaptureFixture[str]) -> None:
    @kernel(block=1)
    def shown(z: c64) -> None:
        print("numbers", z, 1j, z == 1 - 2j)

    for launch in (shown[1, 1], shown[1, 1].interpret):
        launch(1 - 2j).sync()
        assert capfd.readouterr().out == "numbers (1.000000-2.000000j) (0.000000+1.000000j) True\n"


class Point(NamedTuple):
    x: f32
    y: f32


@kernel(block=32)
def of_tuples(p: Point, q: tuple[f32, f64], x: Slice[f32], out: DisjointSlice2[f64]) -> None:
    i = thread.index_1d().get()
    if i < len(x):
        out.scatter[i, 0] = math.dist((x[i], x[0]), (1.0, 2))
        out.scatter[i, 1] = math.dist(p, (x[i], x[i] * 3))
        out.scatter[i, 2] = math.dist(p, q)
        out.scatter[i, 3] = math.prod((x[i], 0.1, p.x))
        out.scatter[i, 4] = math.prod(q) * math.prod((x[i],))
        out.scatter[i, 5] = math.hypot(x[i], 0.3, p.y)


def test_functions_of_tuples_have_the_same_bits() -> None:
    x = np.random.default_rng(1).normal(size=33).astype(np.float32)
    same(of_tuples, lambda: Point(0.1, 0.2), lambda: (0.3, 0.4), lambda: h2d(x), lambda: zeros((33, 6), f64))


@kernel(block=32)
def compiled_functions(x: Slice[f32], tolerance: f32, out: DisjointSlice2[f32]) -> None:
    i = thread.index_1d().get()
    if i < len(x):
        exponent = 0.3
        out.scatter[i, 0] = x[i] ** exponent
        out.scatter[i, 1] = x[i] ** math.inf
        out.scatter[i, 2] = math.atan2(x[i], exponent)
        out.scatter[i, 3] = 2 * math.isclose(x[i], exponent, abs_tol=tolerance) + math.isclose(x[i], 1, rel_tol=0.5)


def test_python_floats_take_the_type_that_they_meet_in_compiled_functions() -> None:
    x = np.abs(np.random.default_rng(2).normal(size=99)).astype(np.float32)
    same(compiled_functions, lambda: h2d(x), lambda: 0.1, lambda: zeros((99, 4)))
