"""Boxes of the floats that NumPy does not have, with the dtypes of ``ml_dtypes``: in and out, views, kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import oxide
from oxide import (
    DeviceBox,
    DisjointSlice,
    DisjointSlice2,
    Kernel,
    Slice,
    Slice2,
    arange,
    bf16,
    d2h,
    dup,
    empty,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    full,
    h2d,
    kernel,
    memcpy,
    ones,
    pinned_empty,
    randn,
    thread,
    u16,
    zeros,
)
from oxide.errors import ArgumentError
from oxide.language.types import ScalarType

SCALARS: dict[Any, Any] = {
    bf16: ml_dtypes.bfloat16,
    f8e4m3: ml_dtypes.float8_e4m3fn,
    f8e5m2: ml_dtypes.float8_e5m2,
}
SIZES = (0, 1, 31, 1_000_003)

narrow = pytest.mark.parametrize("scalar", list(SCALARS), ids=str)


def numbers(scalar: Any, size: int) -> np.ndarray:
    return np.random.default_rng(size).uniform(-4, 4, size).astype(np.float32).astype(SCALARS[scalar])


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.dtype == expected.dtype and np.array_equal(bits(found), bits(expected))


def doubling(scalar: Any) -> Kernel:
    @kernel(block=128)
    def double(x: Slice[scalar], y: DisjointSlice[scalar]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = x[i.get()] * 2

    return double


@narrow
def test_the_dtype_is_that_of_ml_dtypes(scalar: Any) -> None:
    assert scalar.dtype == np.dtype(scalar) == np.dtype(SCALARS[scalar])
    assert oxide.language.types.of_dtype(np.dtype(SCALARS[scalar])) is scalar
    assert scalar(1.5).dtype == scalar.dtype
    assert repr(scalar(1.5)) == "1.5"


def test_importing_oxide_and_kernels_without_such_types_does_not_load_ml_dtypes() -> None:
    program = (
        "import sys, numpy, oxide\n"
        "box = oxide.zeros(3).sync()\n"
        "oxide.d2h(box).sync(), oxide.ones(3, 'i4').sync(), oxide.randn(0, 1, 3).sync()\n"
        "print('ml_dtypes' in sys.modules)"
    )
    environment = {**os.environ, "OXIDE_DEVICE": "cpu"}  # CUDA's own packages load it
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@narrow
@pytest.mark.parametrize("size", SIZES)
def test_what_goes_in_comes_out(scalar: Any, size: int) -> None:
    array = numbers(scalar, size)
    box = h2d(array).sync()
    assert (box.dtype, box.shape) == (scalar.dtype, (size,))
    assert same(d2h(box).sync(), array)
    assert same(d2h(dup(box)).sync(), array)
    assert same(box.host_view() if box.device.kind == "cpu" else array, array)
    written = memcpy(empty(size, scalar).sync(), array).sync()
    assert same(d2h(written).sync(), array)
    assert same(d2h(memcpy(empty(size, scalar).sync(), box)).sync(), array)
    pinned = pinned_empty(size, scalar)
    pinned[...] = array
    assert same(d2h(h2d(pinned)).sync(), array)


@narrow
@pytest.mark.parametrize("size", SIZES)
def test_a_kernel_reads_and_writes_them(scalar: Any, size: int) -> None:
    array = numbers(scalar, size)
    found = doubling(scalar)(h2d(array), zeros(size, scalar)).last().and_then(d2h).sync()
    assert same(found, (array.astype(np.float32) * 2).astype(SCALARS[scalar]))


@narrow
def test_a_kernel_takes_the_bits_too(scalar: Any) -> None:
    array = numbers(scalar, 100)
    double = doubling(scalar)
    expected = (array.astype(np.float32) * 2).astype(SCALARS[scalar])
    for given, out in ((bits(array), bits(array).dtype), (array, bits(array).dtype), (bits(array), array.dtype)):
        found = double(h2d(given), zeros(100, out)).last().and_then(d2h).sync()
        assert found.dtype == out
        assert np.array_equal(bits(found), bits(expected))


@narrow
def test_a_box_of_another_dtype_is_refused_by_name(scalar: Any) -> None:
    name = np.dtype(SCALARS[scalar]).name
    with pytest.raises(ArgumentError, match=f"double, parameter x: expected a device buffer of {name}, got a box"):
        doubling(scalar)(h2d(np.zeros(3, np.float16)), zeros(3, scalar)).sync()
    with pytest.raises(ArgumentError, match=f"got a box of {name}"):
        doubling(f32)(h2d(numbers(scalar, 3)), zeros(3)).sync()


@narrow
def test_boxes_are_made_of_numbers(scalar: Any) -> None:
    dtype = SCALARS[scalar]
    assert same(d2h(zeros((2, 3), scalar)).sync(), np.zeros((2, 3), dtype))
    assert same(d2h(zeros((2, 3), dtype)).sync(), np.zeros((2, 3), dtype))
    assert same(d2h(ones(5, scalar)).sync(), np.ones(5, dtype))
    assert same(d2h(full(5, 0.3, scalar)).sync(), np.full(5, 0.3, dtype))
    assert same(d2h(full(5, dtype(1.5), scalar)).sync(), np.full(5, 1.5, dtype))
    assert d2h(full(5, dtype(1.5), f32)).sync().tolist() == [1.5] * 5
    assert same(d2h(arange(9, scalar)).sync(), np.arange(9, dtype=np.float32).astype(dtype))
    drawn = np.random.default_rng(7).normal(0, 1, 50)
    assert same(d2h(randn(0, 1, 50, scalar, seed=7)).sync(), scalar.dtype.type(0) + rounded(drawn, scalar))
    with pytest.raises(OverflowError, match=f"is too large for {np.dtype(dtype).name}"):
        full(5, 1e40, scalar)
    with pytest.raises(TypeError, match="give a real number"):
        full(5, 1j, scalar)
    assert np.isnan(d2h(full(2, float("nan"), scalar)).sync().astype(np.float32)).all()


def rounded(values: np.ndarray, scalar: Any) -> np.ndarray:
    """Rounds float64 to nearest, ties to even, by exact search among all numbers of the type."""
    every = np.arange(2 ** (8 * scalar.dtype.itemsize), dtype=f"u{scalar.dtype.itemsize}").view(scalar.dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = every.astype(np.float64)
    every, wide = every[np.isfinite(wide)], wide[np.isfinite(wide)]
    order = np.argsort(wide, kind="stable")
    every, wide = every[order], wide[order]
    above = np.clip(np.searchsorted(wide, values), 1, len(wide) - 1)
    low, high = wide[above - 1], wide[above]
    even = bits(every)[above] % 2 == 0
    up = (high - values < values - low) | ((high - values == values - low) & even)
    return np.where(up, every[above], every[above - 1])


@narrow
def test_the_host_rounds_once(scalar: Any) -> None:
    every = np.arange(2 ** (8 * scalar.dtype.itemsize), dtype=f"u{scalar.dtype.itemsize}").view(scalar.dtype)
    with np.errstate(invalid="ignore"):
        wide = np.unique(every.astype(np.float64))
    wide = wide[np.isfinite(wide)]
    ties = (wide[:-1] + wide[1:]) / 2
    values = np.concatenate([wide, ties, np.nextafter(ties, -np.inf), np.nextafter(ties, np.inf)])
    assert np.array_equal(scalar(values).astype(np.float64), rounded(values, scalar).astype(np.float64))
    for value in values[:: max(1, len(values) // 500)].tolist():
        assert float(scalar(value)) == float(rounded(np.array([value]), scalar)[0])


@narrow
def test_boxes_have_views(scalar: Any) -> None:
    array = numbers(scalar, 24).reshape(4, 6)
    box = h2d(array).sync()
    for view, expected in (
        (box[1], array[1]),
        (box[1:3], array[1:3]),
        (box[:, 2], array[:, 2]),
        (box.T, array.T),
        (box.reshape(2, 12), array.reshape(2, 12)),
    ):
        assert view.dtype == scalar.dtype
        assert same(d2h(view).sync(), np.ascontiguousarray(expected))
    memcpy(box[:, 2], array[:, 3]).sync()
    assert same(np.ascontiguousarray(d2h(box).sync()[:, 2]), np.ascontiguousarray(array[:, 3]))
    assert np.dtype(SCALARS[scalar]).name in repr(box)
    with pytest.raises(TypeError, match="d2h"):
        np.asarray(box)


def test_slices_of_two_axes() -> None:
    for scalar, dtype in SCALARS.items():

        @kernel(block=(16, 4))
        def turned(x: Slice2[scalar], y: DisjointSlice2[scalar]) -> None:
            element = y.get_mut(thread.index_2d(y.shape[1]))
            row, col = thread.index_2d_row(), thread.index_2d_col()
            if element is not None:
                element.value = x[col, row]

        array = numbers(scalar, 35 * 21).reshape(35, 21)
        found = turned(h2d(array), zeros((21, 35), dtype)).last().and_then(d2h).sync()
        assert same(found, np.ascontiguousarray(array.T))


@narrow
def test_scalars_of_the_type_are_arguments(scalar: Any) -> None:
    dtype = SCALARS[scalar]

    @kernel(block=32)
    def put(a: scalar, b: f32, c: f64, y: DisjointSlice[f64]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = f64(a) + f64(b) + c

    value = dtype(1.25)
    for given in (value, np.array(value)):
        assert put(given, value, value, zeros(1, f64)).last().and_then(d2h).sync().tolist() == [3.75]
    with pytest.raises(ArgumentError, match="holds magnitudes up to"):
        put(1e39, 0.0, 0.0, zeros(1, f64))


@narrow
def test_numbers_outside_the_kernel_have_their_type(scalar: Any) -> None:
    factor = SCALARS[scalar](1.5)
    table = np.array([0.5, 1.5, 3.0], SCALARS[scalar])

    @kernel(block=32)
    def scaled(x: Slice[scalar], y: DisjointSlice[f64]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = f64(x[i.get()] * factor * table[i.get() % 3])

    array = numbers(scalar, 33)
    found = scaled(h2d(array), zeros(33, f64)).last().and_then(d2h).sync()
    once = (array.astype(np.float32) * np.float32(factor)).astype(array.dtype)
    twice = (once.astype(np.float32) * np.tile(table, 11).astype(np.float32)).astype(array.dtype)
    assert found.tolist() == twice.astype(np.float64).tolist()


@narrow
def test_a_function_captures_numbers_of_the_type(scalar: Any) -> None:
    factor = SCALARS[scalar](1.5)

    @kernel(block=32)
    def mapped(f: Callable[[scalar], scalar], x: Slice[scalar], y: DisjointSlice[scalar]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = f(x[i.get()])

    array = numbers(scalar, 33)
    found = mapped(lambda v: v * factor, h2d(array), zeros(33, scalar)).last().and_then(d2h).sync()
    assert same(found, (array.astype(np.float32) * np.float32(factor)).astype(array.dtype))


T = TypeVar("T", f16, bf16, f32)
U = TypeVar("U", u16, bf16)


@kernel(block=32)
def copied(x: Slice[T], y: DisjointSlice[T]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[thread.index_1d().get()] * 2


@kernel(block=32)
def either(x: Slice[U], y: DisjointSlice[U]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[thread.index_1d().get()] * 2


def test_a_type_variable_takes_the_type_of_the_box() -> None:
    array = np.array([1.5, 3], ml_dtypes.bfloat16)
    assert copied(h2d(array), zeros(2, bf16)).last().and_then(d2h).sync().tolist() == [3, 6]
    found = copied(h2d(array.view(np.uint16)), zeros(2, u16)).last().and_then(d2h).sync()
    assert found.view(ml_dtypes.bfloat16).tolist() == [3, 6]
    assert either(h2d(array), zeros(2, bf16)).last().and_then(d2h).sync().tolist() == [3, 6]
    integers = either(h2d(array.view(np.uint16)), zeros(2, u16)).last().and_then(d2h).sync()
    assert integers.tolist() == (array.view(np.uint16) * np.uint16(2)).tolist()


@narrow
def test_dlpack_carries_the_type(scalar: Any) -> None:
    array = numbers(scalar, 10)
    box = h2d(array).sync()
    again = oxide.from_dlpack(box)
    assert isinstance(again, DeviceBox)
    assert again.dtype == scalar.dtype
    assert again.ptr == box.ptr
    assert same(d2h(again).sync(), array)


@narrow
def test_no_array_interface_has_a_type_for_them(scalar: Any) -> None:
    box = h2d(numbers(scalar, 10)).sync()
    assert not hasattr(box, "__cuda_array_interface__")


@narrow
def test_an_unannotated_parameter_refuses_them(scalar: Any) -> None:
    @kernel(block=32)
    def untyped(x, y) -> None:  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        y[i] = x[i]

    name = np.dtype(SCALARS[scalar]).name
    with pytest.raises(oxide.CompileError, match=f"cannot use the dtype {name}"):
        untyped[1, 32](h2d(numbers(scalar, 10)), zeros(10, f32)).sync()


@narrow
def test_an_interpreted_kernel_gives_the_same(scalar: Any, device: str) -> None:
    if device == "cuda":
        pytest.skip("the interpreter and the sanitizer are the CPU device's")
    array = numbers(scalar, 100)
    double = doubling(scalar)
    compiled = double(h2d(array), zeros(100, scalar)).last().and_then(d2h).sync()
    interpreted = double.interpret(h2d(array), zeros(100, scalar)).last().and_then(d2h).sync()
    assert same(compiled, interpreted)


@pytest.mark.slow
@narrow
def test_the_sanitizer_sees_their_accesses(scalar: Any, device: str) -> None:
    if device == "cuda":
        pytest.skip("the interpreter and the sanitizer are the CPU device's")

    @kernel(block=64, sanitize=("memory", "race"))
    def shifted(x: Slice[scalar], y: DisjointSlice[scalar]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = x[i.get() + 1]

    array = numbers(scalar, 65)
    found = shifted(h2d(array), zeros(64, scalar)).last().and_then(d2h).sync()
    assert same(found, array[1:])
    with pytest.raises(oxide.BoundsError, match=r"x\[64\] is outside x"):
        shifted(h2d(array[:64]), zeros(64, scalar)).last().and_then(d2h).sync()


def test_scalar_types_are_equal_by_name() -> None:
    assert bf16 == ScalarType("bf16")
    assert len({bf16, f16, f32, u16}) == 4
