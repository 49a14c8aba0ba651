"""The words of tile kernels that reach single elements, order elements or make numbers, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import oxide
from oxide import CompileError, bf16, d2h, f8e4m3, f8e5m2, f16, f32, f64, h2d, i8, i32, i64, tile, u32, u64, zeros
from oxide.compiler.primitives.random_numbers import philox
from oxide.language.types import ScalarType

RNG = np.random.default_rng(7)
pytestmark = pytest.mark.usefixtures("code")


def numbers(shape: Any, dtype: Any = f32) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return RNG.integers(-50 if kind.kind == "i" else 0, 50, shape).astype(kind)
    return RNG.standard_normal(shape).astype(kind)


@tile.kernel
def picked(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], rows: tile.Tensor[i32, 1], n: i32) -> None:
    row = rows.load(z.index[0], z.tile_shape[0])[:, None]
    column = (z.index[1] * z.tile_shape[1] + tile.arange(z.tile_shape[1]))[None, :]
    z.store(tile.gather(x, (row, column), mask=column < n, padding=-1))


@pytest.mark.slow
def test_gather_of_two_axes() -> None:
    x, rows = numbers((50, 37)), RNG.integers(0, 50, 33).astype(np.int32)
    found = picked(zeros((33, 37)).partition((8, 16)), h2d(x), h2d(rows), 30).first().unpartition().to_host().sync()
    expected = np.where(np.arange(37) < 30, x[rows], -1)
    np.testing.assert_array_equal(found, expected)


def test_an_index_outside_of_an_axis_is_a_fault_of_that_axis() -> None:
    x, rows = numbers((50, 37)), np.full(33, 3, np.int32)
    rows[20] = 50
    with pytest.raises(oxide.BoundsError) as caught:
        picked(zeros((33, 37)).partition((8, 16)), h2d(x), h2d(rows), 30).sync()
    error = caught.value
    assert (error.parameter, error.axis, error.index, error.length) == ("x", 0, 50, 50)
    assert error.shape == (50, 37)


@tile.kernel
def permuted(z: tile.Target[i64, 1], where: tile.Partition[i32, 1], n: i32) -> None:
    number = where.index[0] * where.tile_shape[0] + tile.arange(where.tile_shape[0])
    tile.scatter(z, where.load(), number, mask=number < n)


@pytest.mark.parametrize("n", [1, 31, 33, 100])
def test_scatter(n: int) -> None:
    order = RNG.permutation(n).astype(np.int32)
    whole = h2d(np.full(n + 64, 7, np.int64)).sync()
    permuted(whole[32 : 32 + n], h2d(order).sync().partition(32), n).sync()
    found = d2h(whole).sync()
    assert (found[:32] == 7).all()
    assert (found[32 + n :] == 7).all()
    np.testing.assert_array_equal(found[32 : 32 + n], np.argsort(order))


@pytest.mark.slow
def test_a_scatter_outside_is_a_fault_and_writes_nothing_there() -> None:
    order = np.array([0, 1, 5], np.int32)
    whole = h2d(np.zeros(20, np.int64)).sync()
    with pytest.raises(oxide.BoundsError) as caught:
        permuted(whole[8:11], h2d(order).sync().partition(4), 3).sync()
    assert (caught.value.parameter, caught.value.index, caught.value.length) == ("z", 5, 3)
    assert d2h(whole).sync()[11:].sum() == 0


@tile.kernel
def histogram(counts: tile.Target[i32, 1], weights: tile.Target[f32, 1], x: tile.Partition[i32, 1], n: i32) -> None:
    inside = x.index[0] * x.tile_shape[0] + tile.arange(x.tile_shape[0]) < n
    v = x.load()
    tile.atomic_add(counts, v, 1, mask=inside)
    tile.atomic_add(weights, v, v.astype(f32) * 0.5, mask=inside)


@pytest.mark.slow
def test_atomic_add() -> None:
    x = RNG.integers(0, 10, 1003).astype(np.int32)
    done = histogram(zeros(10, i32), zeros(10), h2d(x).sync().partition(128), 1003).sync()
    expected = np.bincount(x, minlength=10)
    np.testing.assert_array_equal(d2h(done[0]).sync(), expected)
    np.testing.assert_allclose(d2h(done[1]).sync(), expected * np.arange(10) * 0.5)


ATOMICS: dict[str, Any] = {
    "add": (np.add, 0), "max": (np.maximum, 3), "min": (np.minimum, 3), "and": (np.bitwise_and, -1),
    "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0),
}  # fmt: skip


def changed(how: str, dtype: ScalarType) -> tile.TileKernel:
    """Returns a kernel that changes elements of a target by an atomic operation."""
    word = getattr(tile, f"atomic_{how}")

    @tile.kernel
    def change(target: tile.Target[dtype, 1], x: tile.Partition[dtype, 1], places: tile.Tensor[i64, 1]) -> None:  # type: ignore[valid-type]
        word(target, tile.load_like(places, x), x.load(), mask=tile.load_like(places, x, padding=-1) >= 0)

    return change


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [i32, i64, u32, u64, f32, f64, f16, bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("how", ATOMICS)
def test_atomic_operations(how: str, dtype: ScalarType) -> None:
    if (dtype.kind == "f" and how in ("and", "or", "xor")) or (dtype in (f16, bf16) and how != "add"):
        with pytest.raises(CompileError, match=f"atomic_{how} changes elements of i32 i64 u32 u64"):
            changed(how, dtype).specialize(x=(64,))
        return
    function, start = ATOMICS[how]
    numpys = np.dtype(dtype)
    x = RNG.integers(0 if dtype.kind == "u" else -9, 9, 503).astype(numpys)
    x[7] = np.array(-5 if dtype.kind == "f" else 2**31 + 9).astype(np.int64).astype(numpys)
    places = RNG.integers(0, 10, 503)
    places[::7] = -1
    target = np.full(12, start).astype(numpys)
    found = changed(how, dtype)(h2d(target), h2d(x).sync().partition(64), h2d(places)).first().to_host().sync()
    expected = target.copy()
    function.at(expected, places[places >= 0], x[places >= 0])
    np.testing.assert_array_equal(found, expected)


@tile.kernel
def ordered(
    z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], down: tile.Constant[bool], axis: tile.Constant[int]
) -> None:
    z.store(tile.sort(tile.load_like(x, z), axis=axis, descending=down))


@pytest.mark.slow
@pytest.mark.parametrize(("down", "axis"), [(False, -1), (True, -1), (False, 0)])
@pytest.mark.parametrize("shape", [(4, 33), (7, 1), (5, 64)])
def test_sort(shape: tuple[int, int], down: bool, axis: int) -> None:
    x = numbers(shape)
    x[0, 0], x[1, 0] = np.nan, -0.0
    z = zeros(shape).partition(shape)
    found = ordered(z, h2d(x), down, axis).first().unpartition().to_host().sync()
    expected = np.sort(x, axis=axis)
    np.testing.assert_array_equal(found, np.flip(expected, axis) if down else expected)


@pytest.mark.parametrize(("length", "padded"), [(64, 64), (65, 128)])
def test_a_sort_takes_the_memory_of_the_next_power_of_two(length: int, padded: int) -> None:
    said = ordered.explain((8, 0), z=(16, length), down=False, axis=-1)
    assert f"{16 * padded * (4 + 4)} bytes of shared memory" in said, "a number and its index for each element"


@tile.kernel
def largest(
    values: tile.Partition[i8, 2], places: tile.Partition[i64, 2], x: tile.Tensor[i8, 2], n: tile.Constant[int]
) -> None:
    v, i = tile.topk(x.load((values.index[0], 0), (values.tile_shape[0], n), padding=-128), values.tile_shape[1])
    values.store(v)
    places.store(i)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(33, 1), (100, 7), (16, 16)])
def test_topk_takes_the_first_of_equal_elements(n: int, k: int) -> None:
    x = numbers((9, n), i8)
    values, places, _, _ = largest(
        zeros((9, k), i8).partition((4, k)), zeros((9, k), i64).partition((4, k)), h2d(x), n
    ).sync()
    order = np.argsort(-x.astype(int), 1, kind="stable")[:, :k]
    np.testing.assert_array_equal(d2h(places.box).sync(), order)
    np.testing.assert_array_equal(d2h(values.box).sync(), np.take_along_axis(x, order, 1))


@tile.kernel
def drawn(z: tile.Partition[f32, 1], seed: i64) -> None:
    z.store(tile.rand(seed, z.index[0] * z.tile_shape[0] + tile.arange(z.tile_shape[0])))


@pytest.mark.slow
def test_rand_is_philox() -> None:
    seed = 0x123456789ABCDEF
    found = drawn(zeros(100).partition(32), seed).first().unpartition().to_host().sync()
    words = [philox((seed % 2**32, seed >> 32), (n, 0, 0, 0))[0] for n in range(100)]
    np.testing.assert_array_equal(found, (np.array(words) >> 8).astype(np.float32) * np.float32(2**-24))


@tile.kernel
def fibonacci(z: tile.Partition[i64, 1], n: i32) -> None:
    pair = (tile.zeros(4, i64), tile.ones(4, i64))
    count = (0, (1, 2))
    for k in range(n):
        pair = (pair[1], pair[0] + pair[1])
        count = (count[0] + 1, (count[1][1], count[1][0]))
        if k > 2:
            pair = (pair[0] + 0, pair[1])
    z.store(pair[0] + count[0] * 1000 + count[1][0] * 100000)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_tuples_are_carried_through_loops(n: int) -> None:
    found = fibonacci(zeros(4, i64).partition(4), n).first().unpartition().to_host().sync()
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    assert (found == a + n * 1000 + (2 if n % 2 else 1) * 100000).all()


FLOATS: list[Any] = [f8e4m3, f8e5m2, bf16, f16]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_narrow_floats(kind: Any) -> None:
    @tile.kernel
    def halved(z: tile.Partition[kind, 1], y: tile.Partition[f32, 1], x: tile.Tensor[kind, 1]) -> None:  # type: ignore[valid-type]
        v = tile.load_like(x, z)
        z.store(v * 0.5 + v)
        y.store(v.astype(f32))

    x = (RNG.standard_normal(100) * 4).astype(np.dtype(kind))
    z, y, _ = halved(zeros(100, kind).partition(32), zeros(100).partition(32), h2d(x)).sync()
    wide = x.astype(np.float32)
    half = (wide * np.float32(0.5)).astype(np.dtype(kind)).astype(np.float32)
    np.testing.assert_array_equal(d2h(y.box).sync(), wide)
    np.testing.assert_array_equal(
        d2h(z.box).sync().astype(np.float32), (half + wide).astype(x.dtype).astype(np.float32)
    )


@tile.kernel
def padded(z: tile.Partition[f64, 1], x: tile.Tensor[f64, 1]) -> None:
    left = x.load(z.index[0] - 1, z.tile_shape, padding=-1.5)
    z.store(left + x.load(z.index[0] + 1, z.tile_shape, padding=2))


def test_padding_on_both_sides() -> None:
    x = numbers(10, f64)
    found = padded(zeros(10, f64).partition(4), h2d(x)).first().unpartition().to_host().sync()
    left = np.concatenate([np.full(4, -1.5), x])[:10]
    right = np.concatenate([x[4:], np.full(6, 2.0)])[:10]
    np.testing.assert_array_equal(found, left + right)


@pytest.mark.slow
def test_a_program_prints_scalars_and_tiles(capfd: pytest.CaptureFixture[str]) -> None:
    @tile.kernel
    def shown(z: tile.Partition[f32, 1], n: i32) -> None:
        print("n", n, "100%", z.index[0])
        print("z", z.load() + 0.5)
        z.store(tile.zeros(z.tile_shape))

    shown(zeros(3).partition(3), 7).sync()
    out = capfd.readouterr().out
    assert out == "n 7 100% 0\nz (3,) of f32 in program (0):\n  [0:3] 0.5 0.5 0.5\n"


@tile.kernel
def first_extremes(
    z: tile.Partition[i64, 1], y: tile.Partition[i64, 1], x: tile.Tensor[f32, 2], n: tile.Constant[int]
) -> None:
    v = x.load((z.index[0], 0), (z.tile_shape[0], n))
    z.store(tile.argmax(v, 1))
    y.store(tile.argmin(v, 1) + tile.argmax(v[:, :].reshape(-1)) * 10000)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 64), (1, 2048), (16, 32), (2, 100)])
def test_argmax_takes_the_first_of_equal_elements_and_a_nan(shape: tuple[int, int]) -> None:
    x = RNG.integers(-3, 3, shape).astype(np.float32)
    for nan in (False, True):
        if nan:
            x[0, [3, 20]] = np.nan
        z, y = zeros(shape[0], i64).partition(shape[0]), zeros(shape[0], i64).partition(shape[0])
        done = first_extremes(z, y, h2d(x), shape[1]).sync()
        np.testing.assert_array_equal(d2h(done[0].box).sync(), x.argmax(1))
        np.testing.assert_array_equal(d2h(done[1].box).sync(), x.argmin(1) + x.argmax() * 10000)
