"""``Vec2``, ``Vec3`` and ``Vec4``: their arithmetic, their memory, what launches take for them, and a ray tracer."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest

import oxide
from oxide import (
    BoundsError,
    DisjointSlice,
    DisjointSlice2,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
    Tiles,
    Vec2,
    Vec3,
    Vec4,
    bool_,
    d2h,
    device,
    f16,
    f32,
    f64,
    h2d,
    i32,
    i64,
    kernel,
    ones,
    thread,
    u8,
    u32,
    value,
    zeros,
)
from oxide.errors import ArgumentError, CompileError, SanitizerError
from oxide.language.types import SCALARS

T = TypeVar("T")
F = TypeVar("F", f32, f64)

SIZES = (1, 31, 257)
UP = Vec3(0.0, 1.0, 0.0)
Color = Vec4[f32]
WAYS = ("compiled", "interpreted")


def in_way(way: str, of: Any) -> Any:
    return of if way == "compiled" else of.interpret


def ran(way: str, of: Any, *args: Any) -> Any:
    """Returns the last argument of a launch as a NumPy array."""
    return in_way(way, of)(*args).last().and_then(d2h).sync()


def relative(found: Any, expected: Any) -> float:
    scale = np.maximum(np.abs(expected), 1.0)
    return float(np.max(np.abs(found - expected) / scale, initial=0.0))


# Arithmetic


@kernel(block=64)
def arithmetic(a: Slice[Vec3[F]], b: Slice[Vec3[F]], s: F, out: DisjointSlice[Vec3[F]]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        v, w = a[i.get()], b[i.get()]
        total = v + w * 2.0 - v / w + s * v - (3 - w)
        total -= -v % 0.75
        total += abs(v - w) + v**2 + 1.0 / w
        element.value = total + Vec3(0.5, 1, v.x) + (v // 0.25) + min(v, w) + max(v, 0.5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 4e-6), (np.float64, 1e-14)])
def test_arithmetic_is_that_of_each_component(size: int, dtype: Any, most: float, way: str) -> None:
    random = np.random.default_rng(size)
    a, b = (random.uniform(0.3, 2.0, (size, 3)).astype(dtype) for _ in range(2))
    found = ran(way, arithmetic, h2d(a), h2d(b), 1.5, zeros((size, 3), dtype))
    v, w = a.astype(float), b.astype(float)
    first = np.stack([np.full(size, 0.5), np.ones(size), v[:, 0]], 1)
    expected = v + w * 2 - v / w + 1.5 * v - (3 - w) - np.mod(-v, 0.75) + abs(v - w) + v**2 + 1 / w
    expected += first + v // 0.25 + np.minimum(v, w) + np.maximum(v, 0.5)
    assert relative(found, expected) < most


@kernel(block=64)
def of_integers(a: Slice[Vec2[T]], b: Slice[Vec2[T]], out: DisjointSlice[Vec2[T]]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        v, w = a[i.get()], b[i.get()]
        bits = ((v & w) | (w ^ 3)) + (v << 2) + (w >> 1)
        element.value = (v + w) * v - w // 3 + v % 5 + bits + v**3 + ~v - -w


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_wrap_in_their_type(dtype: Any, way: str) -> None:
    random = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    v, w = (random.integers(limits.min, limits.max, (63, 2), dtype, endpoint=True) for _ in range(2))
    found = ran(way, of_integers, h2d(v), h2d(w), zeros((63, 2), dtype))
    with np.errstate(all="ignore"):
        bits = ((v & w) | (w ^ 3)) + (v << 2) + (w >> 1)
        expected = (v + w) * v - w // 3 + v % 5 + bits + v**3 + ~v - -w
    np.testing.assert_array_equal(found, expected)


def copy_of(vector: Any, scalar: Any) -> Any:
    """Returns a kernel that copies vectors of a scalar type."""
    kind = vector[scalar]

    def copy(a: Slice[kind], out: DisjointSlice[kind]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        element = out.get_mut(i)
        if element is not None:
            element.value = a[i.get()]

    return kernel(block=64)(copy)


@pytest.mark.parametrize("scalar", SCALARS.values(), ids=str)
def test_vectors_of_every_scalar_type(scalar: Any) -> None:
    for vector in (Vec2, Vec3, Vec4) if scalar.name in ("f32", "u8", "c64") else (Vec3,):
        width = len(vector._fields)
        data = np.arange(31 * width).reshape(31, width) % 2 if scalar is bool_ else np.arange(31.0 * width) % 100
        array = data.reshape(31, width).astype(scalar.dtype)
        found = ran("compiled", copy_of(vector, scalar), h2d(array), zeros((31, width), scalar.dtype))
        np.testing.assert_array_equal(found, array)


@device
def inside(v: Any, low: Any, high: Any) -> Any:
    return (v >= low).all() and (v < high).all() and v != low


@kernel(block=64)
def comparing(a: Slice[Vec3[f32]], b: Slice[Vec3[f32]], out: DisjointSlice[i32]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        v, w = a[i.get()], b[i.get()]
        found = 0
        if inside(v, Vec3(0.1, 0.1, 0.1), 0.9):
            found += 1
        if (v < w).any():
            found += 2
        if v == w:
            found += 4
        if v != w:
            found += 8
        if ((v <= w) & (v > 0.5)).any():
            found += 16
        element.value = found


@pytest.mark.parametrize("way", WAYS)
def test_comparisons_give_one_bool_or_a_vector_of_bools(way: str) -> None:
    random = np.random.default_rng(2)
    a, b = random.random((257, 3), np.float32), random.random((257, 3), np.float32)
    b[::3] = a[::3]
    a[5], b[6] = np.nan, np.nan
    found = ran(way, comparing, h2d(a), h2d(b), zeros(257, np.int32))
    low = np.float32(0.1)
    within = (a >= low).all(1) & (a < np.float32(0.9)).all(1) & ~(a == low).all(1)
    expected = within + 2 * (a < b).any(1) + 4 * (a == b).all(1) + 8 * (a != b).any(1)
    expected = expected + 16 * ((a <= b) & (a > 0.5)).any(1)
    np.testing.assert_array_equal(found, expected)


@kernel(block=64)
def methods(a: Slice[Vec3[F]], b: Slice[Vec3[F]], out: DisjointSlice[Vec3[F]], sizes: DisjointSlice[Vec2[F]]) -> None:
    i = thread.index_1d()
    element, size = out.get_mut(i), sizes.get_mut(i)
    if element is not None and size is not None:
        v, w = a[i.get()], b[i.get()]
        size.value = Vec2(v.dot(w), w.length())
        element.value = v.cross(w) + v.normalize() + v.min(w) - w.max(0.25) + (-v).abs() + v.fma(w, 2.0) + UP


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 4e-6), (np.float64, 1e-14)])
def test_methods(dtype: Any, most: float, way: str) -> None:
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((129, 3)).astype(dtype) for _ in range(2))
    out, sizes = zeros((129, 3), dtype).sync(), zeros((129, 2), dtype).sync()
    in_way(way, methods)(h2d(a), h2d(b), out, sizes).sync()
    v, w = a.astype(float), b.astype(float)
    lengths = np.sqrt((v * v).sum(1, keepdims=True))
    expected = np.cross(v, w) + v / lengths + np.minimum(v, w) - np.maximum(w, 0.25) + abs(v) + v * w + 2 + [0, 1, 0]
    assert relative(d2h(out).sync(), expected) < most
    assert relative(d2h(sizes).sync(), np.stack([(v * w).sum(1), np.sqrt((w * w).sum(1))], 1)) < most


@kernel(block=64)
def narrow(a: Slice[Vec2[f16]], out: DisjointSlice[Vec2[f32]]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        element.value = a[i.get()] * 1.1 + 2


@kernel(block=64)
def places(step: f32, out: DisjointSlice[Vec2[f32]]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        total = Vec2(0.0, 0.0)
        for k in range(3):
            total += Vec2(i.get(), k) * step
        element.value = total


@pytest.mark.parametrize("way", WAYS)
def test_numbers_of_python_and_places_take_the_type_that_they_meet(way: str) -> None:
    a = np.random.default_rng(4).random((33, 2)).astype(np.float16)
    found = ran(way, narrow, h2d(a), zeros((33, 2)))
    np.testing.assert_array_equal(found, (a * np.float16(1.1) + np.float16(2)).astype(np.float32))
    step, counted = np.float32(0.1), np.arange(33, dtype=np.float32)
    found = ran(way, places, float(step), zeros((33, 2)))
    assert relative(found, np.stack([3 * counted * step, np.full(33, 3 * step)], 1)) < 1e-6
    assert "double" not in places.llvm_ir()


@kernel
def product_and_sum(a: Slice[Vec3[f32]], s: f32, out: DisjointSlice[Vec3[f32]]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        v = a[i.get()]
        element.value = v * s - element.value


def test_a_product_fuses_into_a_sum_as_with_scalars() -> None:
    assert product_and_sum.ptx().count("fma.rn.f32") == 3
    a, b = np.random.default_rng(5).random((2, 33, 3), np.float32)
    results = []
    for way in WAYS:
        out = h2d(b).sync()
        in_way(way, product_and_sum[1, 64])(h2d(a), 0.3, out).sync()
        results.append(d2h(out).sync())
    np.testing.assert_array_equal(*results)


# Components


@kernel(block=64)
def by_parts(a: Slice[Vec4[f32]], which: i32, out: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        v = a[i.get()]
        x, y, z, w = v
        total = x + 2.0 * v.y + 3.0 * v[2] + (4 * len(v)) * w
        for k in range(len(v)):
            total += v[k] * y
        for each in v:
            total += each
        element.value = total + z * v[which]


@pytest.mark.parametrize("way", WAYS)
def test_components_have_names_and_places(way: str) -> None:
    a = np.random.default_rng(6).random((65, 4), np.float32)
    found = ran(way, by_parts, h2d(a), 3, zeros(65))
    x, y, z, w = a.astype(float).T
    sums = a.astype(float).sum(1)
    assert relative(found, x + 2 * y + 3 * z + 16 * w + sums * y + sums + z * w) < 2e-6
    for wrong in (4, -1):
        with pytest.raises(BoundsError, match=rf"Vec4\[f32\]\[{wrong}\] is outside Vec4\[f32\], which has 4 elements"):
            ran(way, by_parts, h2d(a), wrong, zeros(65))


# Memory


@kernel
def turned(
    a: Slice[Vec4[f32]], b: Slice[Vec2[f64]], c: Slice[Vec4[u8]], d: Slice[Vec3[f32]], out: DisjointSlice[Vec4[f32]]
) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        j = i.get()
        element.value = a[j] + f32(b[j].x) + c[j] + d[j].y


def test_a_vector_of_16_bytes_is_one_access() -> None:
    loads = [line for line in turned.ptx().splitlines() if "ld.global" in line]
    found = " ".join(loads)
    assert "ld.global.v4.b32" in found
    assert "ld.global.v2.b64" in found or found.count("ld.global.b64") == 1  # of the second, only x is used
    assert found.count("ld.global") == 4, "of the last, only y is loaded"
    assert turned.ptx().count("st.global.v4.b32") >= 1


@kernel(block=64)
def arrays(a: Slice[Vec3[f32]], out: DisjointSlice[Vec3[f32]]) -> None:
    shared = SharedArray(64, Vec3[f32])
    own = LocalArray((2, 2), Vec2[i32])
    i = thread.index_1d()
    t = thread.thread_idx.x
    shared[t] = a[i.get()] if i.get() < len(a) else Vec3(0.0, 0.0, 0.0)
    for k in range(2):
        own[k, 1] = Vec2(k, t)
    thread.sync_threads()
    element = out.get_mut(i)
    if element is not None:
        pair = own[t % 2, 1] + own[0, 0]
        element.value = shared[63 - t] + Vec3(pair.x, pair.y, 1)


@pytest.mark.parametrize("way", WAYS)
def test_shared_and_local_arrays(way: str) -> None:
    a = np.random.default_rng(7).random((64, 3), np.float32)
    found = ran(way, arrays, h2d(a), zeros((64, 3)))
    t = np.arange(64)
    np.testing.assert_allclose(found, a[::-1] + np.stack([t % 2, t, np.ones(64)], 1), rtol=1e-6)


@kernel(block=(16, 8))
def inverted(image: Slice2[Vec3[u8]], out: DisjointSlice2[Vec3[u8]]) -> None:
    element = out.get_mut(thread.index_2d(out.shape[1]))
    if element is not None:
        element.value = 255 - image[thread.index_2d_row(), thread.index_2d_col()]


@pytest.mark.parametrize("way", WAYS)
def test_an_image_is_a_matrix_of_vectors(way: str) -> None:
    image = np.random.default_rng(8).integers(0, 256, (17, 23, 3), np.uint8)
    found = ran(way, inverted, h2d(image), zeros(image.shape, np.uint8))
    np.testing.assert_array_equal(found, 255 - image)


@kernel(block=64)
def all_forms(
    a: Slice[Vec2[f32]], b: Slice2[Vec2[f32]], out: DisjointSlice[Vec2[f32]], tiled: DisjointSlice[Vec2[f32], Tiles(2)]
) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        total = Vec2(0.0, 0.0)
        for v in a:
            total += v
        for v in b.row(1):
            total += v
        out.scatter[i.get()] = total + a.unchecked[0] + b.flat[1]
    tile = tiled.get_mut(i)
    if tile is not None:
        for k in range(2):
            tile[k] = tile[k] + Vec2(k, 1)


@pytest.mark.parametrize("way", WAYS)
def test_loops_views_tiles_and_scattered_stores(way: str) -> None:
    a, b = np.random.default_rng(9).random((8, 2), np.float32), np.ones((2, 5, 2), np.float32)
    out, tiled = zeros((8, 2)).sync(), ones((8, 2)).sync()
    in_way(way, all_forms)(h2d(a), h2d(b), out, tiled).sync()
    np.testing.assert_allclose(d2h(out).sync(), np.tile(a.sum(0) + 5 + a[0] + 1, (8, 1)), rtol=1e-6)
    np.testing.assert_array_equal(d2h(tiled).sync(), np.tile([[1, 2], [2, 2]], (4, 1)))


def test_an_index_outside_is_a_fault() -> None:
    @kernel(block=32)
    def at(a: Slice[Vec3[f32]], n: i64, out: DisjointSlice[Vec3[f32]]) -> None:
        element = out.get_mut(thread.index_1d())
        if element is not None:
            element.value = a[n]

    for way in WAYS:
        np.testing.assert_array_equal(ran(way, at, ones((5, 3)), 4, zeros((1, 3))), [[1, 1, 1]])
        with pytest.raises(BoundsError, match=r"a\[5\] is outside a, which has 5 elements"):
            ran(way, at, ones((5, 3)), 5, zeros((1, 3)))


@kernel(block=32, sanitize=("memory",))
def unchecked(a: Slice[Vec3[f32]], n: i64, out: DisjointSlice[Vec3[f32]]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = a.unchecked[n]


def test_the_sanitizer_knows_the_elements(device: str) -> None:
    if device == "cuda":
        pytest.skip("the sanitizer is the CPU device's")
    np.testing.assert_array_equal(ran("compiled", unchecked, ones((5, 3)), 4, zeros((1, 3))), [[1, 1, 1]])
    with pytest.raises(SanitizerError, match="a has 5 elements of 12 bytes; this is byte 60, element 5"):
        ran("compiled", unchecked, ones((5, 3)), 5, zeros((1, 3)))


# Parameters and functions


class Camera(NamedTuple):
    eye: Vec3[f32]
    zoom: f32


@device
def mirrored(v: Vec3[f32], normal: Vec3[f32]) -> Vec3[f32]:
    return v - 2.0 * v.dot(normal) * normal


@kernel(block=32)
def seen(
    camera: Camera, shift: Vec3[f32], color: Color, function: Callable[..., Any], out: DisjointSlice[Vec3[f32]]
) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = function(mirrored(camera.eye * camera.zoom + shift, UP)) * color.w


@pytest.mark.parametrize("way", WAYS)
def test_vectors_are_passed_to_kernels_and_functions(way: str) -> None:
    offset = 3.0
    given = Camera(Vec3(1.0, 2.0, 3.0), 2.0), Vec3[f32](1, 1, 1), Color(0, 0, 0, 2)
    found = ran(way, seen, *given, lambda v: v + offset, zeros((2, 3)))
    np.testing.assert_array_equal(found, [[12, -4, 20]] * 2)
    with pytest.raises(ArgumentError, match=r"shift is Vec3\[f32\], the argument is 1 \(int\); pass Vec3\[f32\]"):
        seen(given[0], 1, given[2], lambda v: v, zeros((2, 3)))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"shift.z is f32, the argument is 1e\+60"):
        seen(given[0], Vec3(1.0, 1.0, 1e60), given[2], lambda v: v, zeros((2, 3)))
    with pytest.raises(
        CompileError, match=r"mirrored: parameter v is Vec3\[f32\] and the value is Vec3\[i32\]|declared|v is"
    ):
        seen(*given, lambda v: mirrored(v.x, v), zeros((2, 3)))


def test_a_constant_vector_is_part_of_the_kernel() -> None:
    def adding(constant: Any) -> Any:
        @kernel(block=32)
        def add(out: DisjointSlice[Vec2[f32]]) -> None:
            element = out.get_mut(thread.index_1d())
            if element is not None:
                element.value = element.value + constant

        return add

    for constant in (Vec2(1, 2), Vec2(3.0, 4.5), Vec2[f32](5, 6)):
        np.testing.assert_array_equal(ran("compiled", adding(constant), zeros((1, 2))), [tuple(constant)])


# Boxes


@kernel(block=64)
def scaled(a: Slice[Vec3[F]], s: F, out: DisjointSlice[Vec3[F]]) -> None:
    assert len(a) == len(out)
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        element.value = a[i.get()] * s


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_generic_kernel_takes_boxes_and_operations(dtype: Any) -> None:
    a = np.random.default_rng(10).random((130, 3)).astype(dtype)
    np.testing.assert_array_equal(ran("compiled", scaled, h2d(a).sync(), 2.0, zeros((130, 3), dtype).sync()), a * 2)
    np.testing.assert_array_equal(ran("compiled", scaled, h2d(a), 2.0, zeros((130, 3), dtype)), a * 2)
    boxes = h2d(a.reshape(13, 10, 3)), zeros((130, 3), dtype)
    np.testing.assert_array_equal(ran("compiled", scaled, boxes[0], 2.0, boxes[1]), a * 2)
    found = ran("compiled", scaled, h2d(a.reshape(13, 10, 3)), 2.0, zeros((13, 10, 3), dtype))
    np.testing.assert_array_equal(found.reshape(130, 3), a * 2)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((120,), r"a box of shape \(120,\): the last axis of Slice\[Vec3\[f32\]\] is that of the vectors, and has 3"),
        ((40, 4), r"a box of shape \(40, 4\): the last axis of Slice\[Vec3\[f32\]\] is that of the vectors, and has 3"),
        ((), r"a box of shape \(\): the last axis"),
    ],
)
def test_a_box_with_another_last_axis_is_refused(shape: tuple[int, ...], said: str) -> None:
    def plain(a: Slice[Vec3[f32]], out: DisjointSlice[f32]) -> None:
        element = out.get_mut(thread.index_1d())
        if element is not None:
            element.value = a[0].x

    for box in (zeros(shape), zeros(shape).sync()):
        with pytest.raises(ArgumentError, match=said):
            kernel(block=32)(plain)(box, zeros(1).sync()).sync()


def test_a_box_of_other_axes_elements_or_addresses_is_refused() -> None:
    image, out = zeros((4, 3), np.uint8).sync(), zeros((4, 5, 3), np.uint8).sync()
    with pytest.raises(ArgumentError, match=r"Slice2\[Vec3\[u8\]\] takes one of 3 axes, of which the last is that of"):
        inverted(image, out)
    with pytest.raises(ArgumentError, match="a box of float32; convert the data before the upload"):
        inverted(zeros((4, 5, 3)).sync(), out)
    copy = copy_of(Vec4, f32)
    flat = zeros(41).sync()
    shifted = flat[1:].reshape(10, 4)
    for box in (shifted, value(shifted)):
        with pytest.raises(
            ArgumentError, match=r"no multiple of 16, where the vectors of Slice\[Vec4\[f32\]\] begin; dup"
        ):
            copy(box, zeros((10, 4)).sync()).sync()
    copy(flat[:40].reshape(10, 4)[1:], zeros((9, 4)).sync()).sync()
    with pytest.raises(ArgumentError, match="share memory, and two threads could write the same element"):
        different_sizes(out, out.reshape(-1))


@kernel(block=32)
def different_sizes(a: DisjointSlice[Vec3[u8]], b: DisjointSlice[u8]) -> None:
    i = thread.index_1d()
    one, other = a.get_mut(i), b.get_mut(i)
    if one is not None and other is not None:
        one.value = Vec3(other.value, 1, 2)


def test_fewer_threads_than_vectors_are_told() -> None:
    with pytest.warns(RuntimeWarning, match="reach 32 of the 40 elements of parameter out"):
        ran("compiled", copy_of(Vec3, f32)[1, 32], zeros((40, 3)).sync(), zeros((40, 3)).sync())


# What is refused


@kernel(block=32)
def mapping(function: Callable[..., Any], a: Slice[Vec3[T]], out: DisjointSlice[Vec3[f32]]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        element.value = function(a[i.get()])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda v: v.w, "a Vec3[f32] has x, y, z and the methods abs, all, any, cross, dot, fma"),
        (lambda v: v[3], "the index 3 of a Vec3[f32] is outside: it has 0 to 2"),
        (lambda v: v[-1], "the index -1 of a Vec3[f32] does not count from the end in a kernel: write 2"),
        (lambda v: v[0.5], "the index of a Vec3[f32] is an integer, not 0.5"),
        (lambda v: 1.0, "the element is Vec3[f32] and the value is f64"),
        (lambda v: v.x, "the element is Vec3[f32] and the value is f32"),
        (lambda v: Vec2(v.x, v.y), "the element is Vec3[f32] and the value is Vec2[f32]"),
        (lambda v: v + Vec2(1, 2), "+ of Vec3[f32] and Vec2[i64]: vectors of different lengths do not meet"),
        (lambda v: Vec3(v.x, 1), "Vec3(…) takes 3 numbers, x, y, z, and got 2"),
        (lambda v: Vec3(v, 1, 2), "Vec3(…) takes numbers, and x is Vec3[f32]"),
        (lambda v: v if v < 1 else -v, "a Vec3[bool_] is neither true nor false: write any() or all()"),
        (lambda v: v if v == 1.0 else -v, "== of Vec3[f32] and f64: it compares two vectors; compare a component"),
        (lambda v: v if v.any() else -v, ".any() is of a vector of bools, as (a < b) is, not of a Vec3[f32]"),
        (lambda v: v.cross(1.0), ".cross of a Vec3[f32] takes a Vec3, not f64"),
        (lambda v: Vec2(1, 2).cross(v), "a Vec2[i64] has x, y and the methods abs, all, any, dot, fma"),
        (lambda v: v.dot(), ".dot of a Vec3[f32] takes one vector"),
        (lambda v: f32(v), "f32(…) takes one number, not a Vec3[f32]"),
        (lambda v: math.sqrt(v), "math.sqrt(...) is not defined for Vec3[f32]"),
        (lambda v: (v < 1) + (v > 2), "+ of bools: write |, & or ^"),
        (lambda v: v and -v, "a Vec3[f32] is neither true nor false"),
    ],
)
def test_what_vectors_do_not_have_is_refused(function: Any, said: str) -> None:
    with pytest.raises(CompileError) as caught:
        mapping(function, h2d(np.zeros((1, 3), np.float32)), zeros((1, 3)))
    assert said in str(caught.value)


def test_numbers_keep_their_rules_in_vectors() -> None:
    def said(function: Any, dtype: Any) -> str:
        with pytest.raises(CompileError) as caught:
            mapping(function, h2d(np.zeros((1, 3), dtype)), zeros((1, 3)))
        return str(caught.value)

    assert "no integer type holds both" in said(lambda v: v + Vec3[i64](1, 2, 3), np.uint64)
    assert "300 does not fit in u8" in said(lambda v: v + 300, np.uint8)

    def counts(v: Any) -> Any:
        total = Vec3(0, 0, 0)
        for _ in range(3):
            total += v
        return total

    said_of = said(counts, np.uint8)
    assert (
        "total begins as a vector of integer literals and takes the type Vec3[u8], in which a sum soon wraps" in said_of
    )
    assert "write total: Vec3[i32] = …" in said_of

    @kernel(block=32)
    def counted(a: Slice[Vec3[u8]], out: DisjointSlice[Vec3[i32]]) -> None:
        element = out.get_mut(thread.index_1d())
        if element is not None:
            total: Vec3[i32] = Vec3(0, 0, 0)
            for v in a:
                total = total + v
            element.value = total

    a = np.random.default_rng(13).integers(0, 256, (50, 3), np.uint8)
    for way in WAYS:
        np.testing.assert_array_equal(ran(way, counted, h2d(a), zeros((1, 3), np.int32))[0], a.sum(0))


def test_statements_that_change_a_vector_are_refused() -> None:
    def said(function: Any) -> str:
        with pytest.raises(CompileError) as caught:
            kernel(block=32)(function).ptx()
        return str(caught.value)

    def a_component(a: Slice[Vec3[f32]]) -> None:
        v = a[0]
        v.x = 1.0

    def by_place(a: Slice[Vec3[f32]]) -> None:
        v = a[0]
        v[0] = 1.0  # type: ignore[index]

    def of_an_element(out: DisjointSlice[Vec3[f32]]) -> None:
        element = out.get_mut(thread.index_1d())
        if element is not None:
            element.value.x = 1.0

    def of_an_input(a: Slice[Vec3[f32]]) -> None:
        a[0] = Vec3(1.0, 2.0, 3.0)  # type: ignore[index]

    def unpacked(a: Slice[Vec3[f32]]) -> None:
        _x, _y = a[0]

    def narrowed(a: Slice[Vec3[f32]], out: DisjointSlice[Vec3[i32]]) -> None:
        element = out.get_mut(thread.index_1d())
        if element is not None:
            element.value = a[0]  # type: ignore[assignment]

    for changed in (a_component, by_place, of_an_element):
        assert "a Vec3[f32] does not change: make another one, as in Vec3[f32](…)" in said(changed)
    assert "a is a Slice[Vec3[f32]], which is read-only" in said(of_an_input)
    assert "the value has 3 elements, and here it becomes 2" in said(unpacked)
    assert "the element is Vec3[i32] and the value is Vec3[f32]; convert it, as in Vec3[i32](v.x" in said(narrowed)


def test_wrong_annotations_are_refused() -> None:
    def said(**annotations: Any) -> str:
        def wrong(a: Any) -> None:
            pass

        wrong.__annotations__ = annotations
        with pytest.raises(CompileError) as caught:
            kernel(block=32)(wrong)
        return str(caught.value)

    assert "parameter a is annotated Vec3; say of what, as in Vec3[f32]" in said(a=Vec3)
    assert "say of what the vectors are, as in Vec3[f32]" in said(a=Slice[Vec3])  # type: ignore[type-arg]
    assert "an AtomicSlice has scalars, not vectors" in said(a=oxide.AtomicSlice[Vec2[f32]])
    assert "a is Vec3[T], and a vector that is passed has components of one known type" in said(a=Vec3[T])
    with pytest.raises(TypeError, match=r"Vec3\[…\] takes one of i8 i16"):
        Vec3[float]


# On the host


def test_vectors_are_values_on_the_host() -> None:
    v, w = Vec3(1.0, 2.0, 3.0), Vec3[f32](0.5, 0.25, 2)
    assert (v.x, v[1], len(v), tuple(v)) == (1.0, 2.0, 3, (1.0, 2.0, 3.0))
    assert repr(v) == "Vec3(1.0, 2.0, 3.0)"
    assert v == Vec3(1, 2, 3) != Vec3(1, 2, 4)
    assert hash(v) == hash(Vec3(1, 2, 3))
    assert v + 1 == Vec3(2, 3, 4) == 1 + v
    assert 2 - v == Vec3(1, 0, -1)
    assert v * w == Vec3(0.5, 0.5, 6)
    assert type((v * w).x) is np.float32
    assert np.float32(2) * w == w * 2 == Vec3(1, 0.5, 4)
    assert -v == Vec3(-1, -2, -3)
    assert abs(-v) == v == (-v).abs()
    assert (v < 4).all()
    assert pickle.loads(pickle.dumps(w)) == w
    assert Vec3(x=1, y=2.5, z=3) == Vec3(1.0, 2.5, 3.0)


def test_comparisons_and_methods_on_the_host() -> None:
    v, w = Vec3(1.0, 2.0, 3.0), Vec3[f32](0.5, 4, 2)
    assert (v < w) == Vec3(False, True, False)
    assert (v < w).any()
    assert not (v < w).all()
    assert v.dot(w) == 14.5
    assert type(w.length()) is np.float32
    assert Vec2(3, 4).length() == 5
    assert Vec2(3.0, 4.0).normalize() == Vec2(0.6, 0.8)
    assert Vec3(1, 0, 0).cross(Vec3(0, 1, 0)) == Vec3(0, 0, 1)
    assert v.min(w) == Vec3(0.5, 2, 2)
    assert v.max(2.5) == Vec3(2.5, 2.5, 3)
    assert w.fma(w, 1) == Vec3(1.25, 17, 5)
    assert math.isnan(Vec2[f32](0, 0).normalize().x)


def test_what_a_vector_on_the_host_refuses() -> None:
    v = Vec3(1.0, 2.0, 3.0)
    with pytest.raises(AttributeError, match="a Vec3 does not change: make another one"):
        v.x = 2.0
    with pytest.raises(TypeError, match="unsupported operand"):
        v + Vec2(1.0, 2.0)  # type: ignore[operator]
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(v < 1)
    with pytest.raises(TypeError, match=r"Vec3\(…\) takes 3 numbers, x, y, z"):
        Vec3(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="the components of a vector are numbers"):
        Vec2("a", "b")
    with pytest.raises(TypeError, match=r"Vec3.min takes vectors of its length and numbers, not str"):
        v.min("a")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_on_the_host_rounds_once(dtype: Any) -> None:
    random = np.random.default_rng(11)
    a, b, c = (random.standard_normal((200, 2)).astype(dtype) for _ in range(3))
    c = (-a * b * dtype(1 + 1e-6)).astype(dtype)
    out = zeros((200, 2), dtype)
    found = ran("interpreted", fused, h2d(a), h2d(b), h2d(c), out)
    host = [Vec2(*x).fma(Vec2(*y), Vec2(*z)) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(np.array([tuple(each) for each in host], dtype), found)


@kernel(block=64)
def fused(a: Slice[Vec2[F]], b: Slice[Vec2[F]], c: Slice[Vec2[F]], out: DisjointSlice[Vec2[F]]) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        element.value = a[i.get()].fma(b[i.get()], c[i.get()])


def test_the_dtype_of_a_vector_is_a_subarray() -> None:
    assert oxide.dtype_of(Vec3[f32]) == np.dtype((np.float32, (3,)))
    assert np.zeros(5, oxide.dtype_of(Vec2[u32])).shape == (5, 2)
    assert oxide.dtype_of(f64) == np.float64
    with pytest.raises(TypeError, match="is no dtype"):
        oxide.dtype_of("nothing")
    assert repr(Vec3[f32]) == "Vec3[f32]"
    assert Vec3[f32] == Vec3[f32] != Vec3[f64]


# A ray tracer


@device
def sky(direction: Vec3[f32]) -> Vec3[f32]:
    t = 0.5 * (direction.y + 1.0)
    return (1.0 - t) * Vec3(1.0, 1.0, 1.0) + t * Vec3(0.5, 0.7, 1.0)


@kernel(block=(16, 8))
def trace(centers: Slice[Vec3[f32]], radii: Slice[f32], light: Vec3[f32], image: DisjointSlice2[Vec3[f32]]) -> None:
    pixel = image.get_mut(thread.index_2d(image.shape[1]))
    if pixel is None:
        return
    height, width = image.shape
    column, row = thread.index_2d_col(), thread.index_2d_row()
    origin = Vec3(0.0, 0.0, 2.0)
    direction = Vec3(f32(column) / width - 0.5, f32(row) / height - 0.5, -1.0).normalize()
    nearest, normal = f32(1e30), Vec3[f32](0, 0, 0)
    for k in range(len(centers)):
        away = origin - centers[k]
        half = away.dot(direction)
        square = half * half - away.dot(away) + radii[k] * radii[k]
        if square > 0.0:
            distance = -half - math.sqrt(square)
            if 0.001 < distance < nearest:
                nearest = distance
                normal = (away + direction * distance) / radii[k]
    if nearest < 1e30:
        pixel.value = 0.5 * (normal + 1.0) * max(normal.dot(light), 0.1)
    else:
        pixel.value = sky(direction)


def traced(centers: Any, radii: Any, light: Any, height: int, width: int) -> Any:
    """Computes the tracer's image in f64."""
    row, column = np.mgrid[:height, :width]
    direction = np.stack([column / width - 0.5, row / height - 0.5, np.full(row.shape, -1.0)], -1)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    nearest, normal = np.full(row.shape, 1e30), np.zeros(direction.shape)
    for center, radius in zip(centers.astype(float), radii.astype(float), strict=True):
        away = np.array([0.0, 0.0, 2.0]) - center
        half = direction @ away
        square = half * half - away @ away + radius * radius
        distance = -half - np.sqrt(np.maximum(square, 0))
        hit = (square > 0) & (distance > 0.001) & (distance < nearest)
        nearest = np.where(hit, distance, nearest)
        there = (away + direction * distance[..., None]) / radius
        normal = np.where(hit[..., None], there, normal)
    t = 0.5 * (direction[..., 1:2] + 1)
    lit = 0.5 * (normal + 1) * np.maximum(normal @ light, 0.1)[..., None]
    return np.where(nearest[..., None] < 1e30, lit, (1 - t) * 1.0 + t * np.array([0.5, 0.7, 1.0]))


@pytest.mark.parametrize(("way", "height", "width"), [("compiled", 97, 131), ("interpreted", 11, 13)])
def test_a_ray_tracer_of_spheres(way: str, height: int, width: int) -> None:
    random = np.random.default_rng(12)
    centers = random.uniform(-1, 1, (7, 3)).astype(np.float32)
    radii = random.uniform(0.2, 0.5, 7).astype(np.float32)
    light = Vec3(1.0, 2.0, 3.0).normalize()
    found = ran(way, trace, h2d(centers), h2d(radii), light, zeros((height, width, 3)))
    expected = traced(centers, radii, np.array(tuple(light)), height, width)
    error = np.abs(found - expected).max(-1)
    # At the edge of a sphere, the last bits decide whether a ray meets it, and which of two it meets first.
    assert (error > 1e-3).mean() < 2e-3
    assert np.median(error) < 1e-6
