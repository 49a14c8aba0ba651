"""Tile kernels against the same function run by NumPy, on random inputs and odd sizes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import oxide
from oxide import bf16, bool_, d2h, f16, f32, f64, h2d, i8, i32, i64, tile, u8, u32, u64, zeros

from . import reference

RNG = np.random.default_rng(5)


def numbers(shape: Any, dtype: Any = f32) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return RNG.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        low = -100 if kind.kind == "i" else 0
        return RNG.integers(low, 100, shape).astype(kind)
    return RNG.standard_normal(shape).astype(kind)


def check(kernel: Any, output: NDArray[Any], tiles: tuple[int, ...], *inputs: Any, error: float = 0.0) -> NDArray[Any]:
    """Runs a kernel on the device and by NumPy, and compares. The output's neighbours in memory stay as they are."""
    padded = np.full(output.size + 64, 77).astype(output.dtype)
    padded[32:-32] = output.reshape(-1)
    whole = h2d(padded).sync()
    box = whole[32 : 32 + output.size].reshape(output.shape)
    given = [h2d(each).sync() if isinstance(each, np.ndarray) else each for each in inputs]
    kernel(box.partition(tiles), *given).sync()
    found = oxide.d2h(whole).sync()
    assert (found[:32] == padded[0]).all()
    assert (found[-32:] == padded[0]).all()
    result: NDArray[Any] = found[32:-32].reshape(output.shape)
    expected = output.copy()
    reference.run(
        kernel,
        reference.Partition(expected, tiles),
        *(reference.Tensor(each) if isinstance(each, np.ndarray) else each for each in inputs),
    )
    if error:
        wide, ref = result.astype(np.float64), expected.astype(np.float64)
        assert np.linalg.norm(wide - ref) <= error * np.linalg.norm(ref)
    else:
        np.testing.assert_array_equal(result, expected)
    return result


@tile.kernel(warps=1)
def beside(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], weight: tile.Tensor[f32, 1]):
    rows, columns = z.tile_shape
    i, j = z.index
    left, above = x.load((i, j - 1), (rows, columns)), x.load((i - 1, j), (rows, columns))
    v = tile.load_like(x, z)
    z.store(left + 2 * above + 4 * v + 8 * weight.load(j, columns) + 16 * weight.load(j + 1, columns))


@tile.kernel
def at(z: tile.Partition[i64, 2], x: tile.Tensor[i64, 1], y: tile.Tensor[i64, 2], i: i64, n: tile.Constant[int]):
    row, column = y.load((i, 0), (n, 16), padding=-1), y.load((0, i), (16, n), padding=-1)
    z.store(tile.cat((x.load(i, n, padding=-1)[:, None] + tile.zeros((n, 16), i64), row, column.T), 1))


@pytest.mark.parametrize("n", [4, 16])
@pytest.mark.usefixtures("code")
def test_a_tile_whose_place_does_not_fit_64_bits_is_outside(n: int) -> None:
    x, y = np.arange(100, 110), np.arange(256).reshape(16, 16)
    steps = range(-2, 3)
    far = {sign * 2**64 // n // part + step for sign in (-1, 1) for part in (1, 2, 4) for step in steps}
    far |= {(2**63 - 1) // n, -(2**63), 2**63 - 1, 0, -1, 1}
    for i in sorted(each for each in far if -(2**63) <= each < 2**63):
        z = zeros((n, 48), i64).partition((n, 48))
        found = d2h(at(z, h2d(x), h2d(y), i, n).first().unpartition()).sync()
        places = [i * n + k for k in range(n)]
        column = [[x[p] if 0 <= p < 10 else -1] * 16 for p in places]
        both = [[*(y[p] if 0 <= p < 16 else [-1] * 16), *(y[:, p] if 0 <= p < 16 else [-1] * 16)] for p in places]
        assert (found == np.concatenate([column, both], 1)).all(), i


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (3, 511), (4, 512), (5, 513), (9, 1023), (8, 1536), (2, 130)])
def test_many_elements_a_thread_at_every_edge(shape: tuple[int, int], code: int) -> None:
    x, weight = numbers(shape), numbers(shape[1])
    rows, columns = (-(-length // size) * size for length, size in zip(shape, (4, 512), strict=True))
    around = np.zeros((rows + 4, columns + 1024), np.float32)
    around[4 : 4 + shape[0], 512 : 512 + shape[1]] = x
    behind = np.zeros(columns + 512, np.float32)
    behind[: shape[1]] = weight
    m, n = shape
    expected = (
        around[4 : 4 + m, :n] + 2 * around[:m, 512 : 512 + n] + 4 * x + 8 * behind[:n] + 16 * behind[512 : 512 + n]
    )
    padded = np.full(x.size + 64, 77, np.float32)
    whole = h2d(padded).sync()
    beside(whole[32 : 32 + x.size].reshape(shape).partition((4, 512)), h2d(x), h2d(weight)).sync()
    found = oxide.d2h(whole).sync()
    assert (found[:32] == 77).all()
    assert (found[32 + x.size :] == 77).all()
    np.testing.assert_allclose(found[32 : 32 + x.size].reshape(shape), expected, rtol=1e-5, atol=1e-5)


@tile.kernel(warps=2)
def by_sums(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], y: tile.Tensor[f32, 2]) -> None:
    sums = y.load((z.index[0], 0), (8, 32)).sum(axis=1)
    z.store(tile.load_like(x, z) * sums[:, None])


@pytest.mark.usefixtures("code")
def test_tiles_of_equal_rows_and_other_columns() -> None:
    x, y = (RNG.integers(-9, 9, shape).astype(np.float32) for shape in ((16, 128), (16, 32)))
    check(by_sums, np.zeros((16, 128), np.float32), (8, 128), x, y)


@tile.kernel
def add(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], y: tile.Tensor[f32, 2]) -> None:
    z.store(tile.load_like(x, z) + tile.load_like(y, z))


SHAPES = [
    ((32, 32), (4, 4)),
    ((33, 31), (8, 16)),
    ((1, 1), (4, 4)),
    ((100, 7), (3, 5)),
    ((0, 8), (4, 4)),
    ((5, 1003), (1, 128)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "tiles"), SHAPES)
def test_add(shape: tuple[int, int], tiles: tuple[int, int]) -> None:
    check(add, numbers(shape), tiles, numbers(shape), numbers(shape))


def test_the_line_of_the_book() -> None:
    async def main() -> NDArray[Any]:
        x, y = await h2d(np.ones((32, 32), np.float32)), await h2d(np.full((32, 32), 2, np.float32))
        z = await add(zeros((32, 32)).partition((4, 4)), x, y).first().unpartition()
        return await oxide.d2h(z)

    assert (trio.run(main) == 3).all()


def test_a_million_and_three() -> None:
    x = numbers(1000003)
    check(double, np.zeros_like(x)[:1003], (256,), x[:1003])
    z = double(zeros(1000003).partition(1024), h2d(x)).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(z, x * 2)


@tile.kernel
def double(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]) -> None:
    z.store(x.load(z.index, z.tile_shape) * 2)


@tile.kernel
def softmax(y: tile.Partition2[f32], x: tile.Tensor2[f32]) -> None:
    v = tile.load_like(x, y, padding=float("-inf"))
    e = tile.exp(v - tile.max(v, axis=1, keepdims=True))
    y.store(e / e.sum(axis=1)[:, None])


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "tiles"), [((100, 50), (4, 64)), ((31, 33), (1, 33)), ((7, 1000), (2, 1000))])
def test_softmax(shape: tuple[int, int], tiles: tuple[int, int]) -> None:
    found = check(softmax, np.zeros(shape, np.float32), tiles, numbers(shape), error=1e-6)
    assert np.allclose(found.sum(1), 1, atol=1e-5)


@tile.kernel
def layer_norm(
    y: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], weight: tile.Tensor[f32, 1], bias: tile.Tensor[f32, 1], n: i32
) -> None:
    columns = y.tile_shape[1]
    v = tile.load_like(x, y)
    inside = tile.arange(columns) < n
    mean = v.sum(axis=1) / n
    centred = tile.where(inside, v - mean[:, None], 0.0)
    scale = tile.rsqrt((centred * centred).sum(axis=1) / n + 1e-5)
    y.store((centred * scale[:, None] * weight.load(0, columns) + bias.load(0, columns)).astype(f32))


def test_layer_norm() -> None:
    x, weight, bias = numbers((33, 100)), numbers(100), numbers(100)
    found = check(layer_norm, np.zeros_like(x), (4, 128), x, weight, bias, np.int32(100), error=1e-5)
    wide = x.astype(np.float64)
    ref = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * weight + bias
    assert np.linalg.norm(found - ref) < 1e-5 * np.linalg.norm(ref)


@tile.kernel
def matmul(
    c: tile.Partition[f16, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2], bk: tile.Constant[int] = 64
) -> None:
    row, column = c.index
    rows, columns = c.tile_shape
    acc = tile.zeros((rows, columns), f32)
    for k in range(tile.cdiv(a.shape[1], bk)):
        acc = tile.mma(a.load((row, k), (rows, bk)), b.load((k, column), (bk, columns)), acc)
    c.store(acc.astype(f16))


@tile.kernel
def matmul_f32(c: tile.Partition[f32, 2], a: tile.Tensor[f32, 2], b: tile.Tensor[f32, 2]) -> None:
    acc = tile.zeros(c.tile_shape)
    for k in range(tile.cdiv(a.shape[1], 16)):
        acc = acc + a.load((c.index[0], k), (c.tile_shape[0], 16)) @ b.load((k, c.index[1]), (16, c.tile_shape[1]))
    c.store(acc)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (33, 31, 100), (1, 1, 1), (40, 100, 130), (32, 32, 0)])
def test_matmul(m: int, n: int, k: int) -> None:
    check(
        matmul,
        np.zeros((m, n), np.float16),
        (32, 32),
        numbers((m, k), f16),
        numbers((k, n), f16),
        error=1e-3 if k else 0,
    )
    check(matmul_f32, np.zeros((m, n), np.float32), (8, 24), numbers((m, k)), numbers((k, n)), error=1e-6 if k else 0)


@tile.kernel
def integers(c: tile.Partition[i32, 2], a: tile.Tensor[i8, 2], b: tile.Tensor[i8, 2]) -> None:
    one, two = a.load((c.index[0], 0), (16, 32)), b.load((0, c.index[1]), (32, 16))
    c.store(tile.mma(one, two, tile.zeros((16, 16), i32)))


def test_products_of_integers_are_exact() -> None:
    check(integers, np.zeros((20, 40), np.int32), (16, 16), numbers((20, 31), i8), numbers((31, 40), i8))


@tile.kernel
def mixed(z: tile.Partition[f64, 2], x: tile.Tensor[i32, 2], y: tile.Tensor[f32, 2], h: tile.Tensor[f16, 2]) -> None:
    a, b, c = tile.load_like(x, z), tile.load_like(y, z), tile.load_like(h, z)
    weak = b * 2 + c
    z.store(a * b + weak + a // 7 - a % 5 + (a / 3) + (b // 0.5) + b % 0.25)


def test_types_promote_as_in_numpy() -> None:
    x, y, h = numbers((9, 17), i32), numbers((9, 17)), numbers((9, 17), f16)
    check(mixed, np.zeros((9, 17)), (4, 8), x, y, h)


@tile.kernel
def bits(z: tile.Partition[i32, 1], x: tile.Tensor[i32, 1], y: tile.Tensor[u8, 1], w: tile.Tensor[u32, 1]) -> None:
    a = tile.load_like(x, z)
    b = tile.load_like(y, z).astype(i32)
    c = tile.load_like(w, z).astype(i32)
    flags = (a > 3) & (b < 50) | ~(c == 7)
    z.store(
        tile.where(flags, (a << 3) ^ (b >> 1), -a | c)
        + flags.astype(i32)
        + tile.abs(a)
        + tile.maximum(a, b) * tile.minimum(a, c)
    )


@tile.function
def compared(x, y):
    return (
        (x < y).astype(i64) + 2 * (x <= y) + 4 * (x > y) + 8 * (x >= y) + 16 * (x == y) + 32 * (x != y)
        + 64 * (y < x).astype(i64) + 128 * (y <= x) + 256 * (y > x) + 512 * (y >= x) + 1024 * (y == x) + 2048 * (y != x)
    )  # fmt: skip


def edges(kind: Any) -> NDArray[Any]:
    low, high = int(np.iinfo(kind.dtype).min), int(np.iinfo(kind.dtype).max)
    exact = 2**53 % high  # an f64 holds 2**53, and not its successor
    return np.array([low, low + 1, 0, 1, 44, 99, exact, exact + 1, 2**63 % high, high - 1, high], kind.dtype)


@pytest.mark.parametrize("kind", [i8, u8, i32, u32, i64, u64], ids=lambda kind: kind.name)
def test_integers_are_compared_with_literals_that_they_cannot_hold(kind: Any) -> None:
    for number in (
        -(2**70),
        -(2**63),
        -(2**31) - 1,
        -129,
        -1,
        255,
        256,
        300,
        2**31,
        2**53 + 1,
        2**63,
        2**64 - 1,
        2**64,
    ):

        @tile.kernel
        def with_literal(z: tile.Partition[i64, 1], x: tile.Tensor[kind, 1]):
            z.store(compared(tile.load_like(x, z), number))  # noqa: B023 - compiled in this turn

        check(with_literal, np.zeros(11, np.int64), (11,), edges(kind))


@pytest.mark.parametrize("kind", [i8, u8, u32, u64], ids=lambda kind: kind.name)
def test_integers_are_compared_with_places_and_counters_that_they_cannot_hold(kind: Any) -> None:
    @tile.kernel
    def with_place(z: tile.Partition[i64, 1], x: tile.Tensor[kind, 1], w: tile.Tensor[kind, 1]):
        v = tile.load_like(x, z)
        total = compared(v, w.shape[0])
        for i in range(-129, 300, 428):
            total += compared(v, i)
        z.store(total)

    check(with_place, np.zeros(11, np.int64), (11,), edges(kind), np.zeros(300, kind.dtype))


@pytest.mark.parametrize("kind", [i8, i32, i64, u8, u32], ids=lambda kind: kind.name)
def test_u64_and_signed_integers_are_compared_exactly(kind: Any) -> None:
    @tile.kernel
    def mixed(z: tile.Partition[i64, 2], x: tile.Tensor[kind, 1], y: tile.Tensor[u64, 1]):
        z.store(compared(x.load(0, 11)[:, None], y.load(0, 11)[None, :]))

    check(mixed, np.zeros((11, 11), np.int64), (11, 11), edges(kind), edges(u64))


def test_literals_that_only_u64_holds() -> None:
    @tile.kernel
    def mixed(z: tile.Partition[u64, 1], x: tile.Tensor[u64, 1]):
        v = tile.load_like(x, z) * 0xBF58476D1CE4E5B9 + u64(2**63)
        last = 2**64 - 1
        for _ in range(3):
            v, last = v ^ last, last // 3
        z.store(v)

    x = edges(u64)
    found = d2h(mixed(zeros(11, u64).partition(11), h2d(x)).first().unpartition()).sync()
    right = [(int(each) * 0xBF58476D1CE4E5B9 + 2**63) % 2**64 for each in x]
    assert found.tolist() == [each ^ (2**64 - 1) ^ (2**64 - 1) // 3 ^ (2**64 - 1) // 9 for each in right]


def test_bits() -> None:
    check(bits, numbers(100, i32), (32,), numbers(100, i32), numbers(100, u8), numbers(100, u32))


@tile.kernel
def moved(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], y: tile.Tensor[f32, 3]) -> None:
    a = x.load(z.index, (6, 4))
    b = a.T.reshape(3, 8).transpose().reshape((4, 6)).T
    c = y.load((0, 0, 0), (2, 3, 4)).transpose((2, 0, 1)).reshape(4, 6)
    d = tile.cat((a[:3], c.T[:3]) if False else (b.reshape(12, 2), c.reshape(12, 2)), axis=1)
    e = (
        tile.broadcast_to(d.sum(axis=1)[None, :6], (4, 6))
        if False
        else tile.broadcast_to(d.sum(axis=0)[None, :], (6, 4))
    )
    z.store(a + b + c.T + e + tile.arange(4, f32) * tile.arange(6, f32)[:, None])


def test_movement() -> None:
    check(moved, np.zeros((13, 9), np.float32), (6, 4), numbers((13, 9)), numbers((2, 3, 4)), error=1e-6)


@tile.kernel
def reduced(z: tile.Partition[f32, 3], x: tile.Tensor[f32, 3], total: tile.Constant[bool] = False) -> None:
    a = tile.load_like(x, z)
    b = a.max(axis=1, keepdims=True) + a.min(axis=(0, 2)).reshape(1, a.shape[1], 1) + tile.sum(a, axis=0)
    c = a.argmax(axis=2)[:, :, None] + a.argmin(axis=0)
    z.store((b + c.astype(f32) + tile.cumsum(a, axis=1) + a.sum() + tile.max(a) * 2).astype(f32))


@pytest.mark.slow
@pytest.mark.parametrize("tiles", [(2, 3, 4), (4, 1, 8), (1, 5, 33)])
def test_reductions(tiles: tuple[int, int, int]) -> None:
    check(reduced, np.zeros((5, 6, 40), np.float32), tiles, numbers((5, 6, 40)), error=1e-6)


@tile.kernel
def sums(z: tile.Partition[i64, 1], x: tile.Tensor[i8, 2], y: tile.Tensor[bool_, 2]) -> None:
    a = x.load((tile.program_id(0), 0), (8, 40))
    b = y.load((tile.program_id(0), 0), (8, 40))
    z.store(
        a.sum(axis=1) + b.sum(axis=1) * 1000 + a.max(axis=1) + a.argmin(axis=1) + tile.cumsum(b, axis=1).max(axis=1)
    )


def test_sums_of_integers_are_wide() -> None:
    check(sums, np.zeros(20, np.int64), (8,), numbers((20, 37), i8), numbers((20, 37), bool_))


@tile.kernel
def long_rows(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 2]) -> None:
    z.store(x.load((z.index[0], 0), (64, 8192)).sum(axis=1))


def test_the_sum_of_a_long_row_is_that_of_several_partial_sums() -> None:
    """Added one after the other, these numbers have a sum that is wrong by six times as much."""
    check(long_rows, np.zeros(64, np.float32), (64,), np.full((64, 8192), 0.1, np.float32), error=1e-5)


@tile.kernel
def loops(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], n: i32, step: i64) -> None:
    a = tile.load_like(x, z)
    total, i = 0.0, 0
    previous = a
    for k in range(0, n, step):
        total += a * k
        previous, a = a, previous + 0.5
        i += 1
    while i > 3:
        i = i - 2
        total = total - i
        if i == 5:
            a = a * 2
        else:
            total = total + 1
    for part in tile.static_range(3):
        a = a + part * (previous if part else 1.0)
    for down in range(5, -5, -2):
        a += down
    z.store((total + a + i).astype(f32))


@pytest.mark.parametrize(("n", "step"), [(0, 1), (1, 1), (10, 3), (20, 2)])
def test_loops(n: int, step: int) -> None:
    check(loops, np.zeros(50, np.float32), (16,), numbers(50), np.int32(n), np.int64(step), error=1e-6)


@tile.function
def gelu(x, scale=0.5):  # type: ignore[no-untyped-def]
    return scale * x * (1 + tile.erf(x * 0.7071067811865476))


@tile.kernel
def helped(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], power: tile.Constant[int] = 2) -> None:
    z.store(gelu(tile.load_like(x, z)) ** power)


def test_functions() -> None:
    x = numbers(100)
    found = helped(zeros(100).partition(32), h2d(x)).first().unpartition().to_host().sync()
    from math import erf

    wide = x.astype(np.float64)
    ref = (0.5 * wide * (1 + np.vectorize(erf)(wide * 0.7071067811865476))) ** 2
    assert np.linalg.norm(found - ref) < 1e-6 * np.linalg.norm(ref)


@tile.kernel
def gathered(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], at: tile.Tensor[i32, 1]) -> None:
    z.store(tile.gather(x, tile.load_like(at, z)))


def test_gather() -> None:
    x = numbers(1000)
    at = RNG.integers(0, 1000, 77).astype(np.int32)
    check(gathered, np.zeros(77, np.float32), (32,), x, at)
    at[40] = 1000
    with pytest.raises(oxide.BoundsError) as caught:
        gathered(zeros(77).partition(32), h2d(x), h2d(at)).sync()
    assert (caught.value.index, caught.value.length, caught.value.parameter) == (1000, 1000, "x")


@tile.kernel
def asserting(z: tile.Partition[f32, 1], n: i32) -> None:
    assert n > 3, "n is too small"
    z.store(tile.ones(z.tile_shape))


def test_assert() -> None:
    assert (asserting(zeros(9).partition(4), 4).first().unpartition().to_host().sync() == 1).all()
    with pytest.raises(oxide.KernelAssertionError, match="n is too small"):
        asserting(zeros(9).partition(4), 3).sync()


@tile.kernel
def in_place(z: tile.Partition[f32, 2]) -> None:
    a = z.load()
    z.store(a.T)
    z.store(z.load() + a)


def test_stores_come_after_the_loads_before_them() -> None:
    check(in_place, numbers((16, 16)), (8, 8))


@tile.kernel
def twice(z: tile.Partition[f32, 1], w: tile.Partition[i64, 1], x: tile.Tensor[f32, 1]) -> None:
    v = tile.load_like(x, z)
    z.store(v + 1)
    w.store((v * 10).astype(i64))


def test_two_partitions() -> None:
    x = numbers(100)
    z, w, _ = twice(zeros(100).partition(32), zeros(100, i64).partition(32), h2d(x)).sync()
    np.testing.assert_array_equal(oxide.d2h(z.unpartition()).sync(), x + 1)
    np.testing.assert_array_equal(oxide.d2h(w.box).sync(), (x * 10).astype(np.int64))


NARROW: list[Any] = [f16, bf16]


@tile.kernel
def halves(z: tile.Partition[f16, 1], x: tile.Tensor[f16, 1]) -> None:
    v = tile.load_like(x, z)
    z.store(v * v + 0.1 - v / 3)


@tile.kernel
def brains(z: tile.Partition[bf16, 1], x: tile.Tensor[bf16, 1]) -> None:
    v = tile.load_like(x, z)
    z.store(v * v + v - tile.where(v > 0, v, -v))


def test_narrow_floats_are_rounded_after_each_operation() -> None:
    check(halves, np.zeros(100, np.float16), (32,), numbers(100, f16))
    check(brains, np.zeros(100, np.dtype(bf16)), (32,), numbers(100, bf16))


def test_graphs_and_operations() -> None:
    x = numbers((8, 8))
    box = h2d(x).sync()
    graph = add(zeros((8, 8)).partition((2, 2)), box, box).first().unpartition().graph()
    graph.launch().sync()
    np.testing.assert_array_equal(oxide.d2h(graph.take_output()).sync(), x + x)
    late = oxide.with_context(lambda _: zeros((8, 8))).partition((4, 4))
    found = add(late, oxide.with_context(lambda _: h2d(x)), box).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(found, x + x)
    np.testing.assert_array_equal(h2d(x).reshape(4, 16).to_host().sync(), x.reshape(4, 16))


def test_what_a_kernel_says_of_itself() -> None:
    special = add.specialize(z=(4, 4))
    assert "ptx" not in special.llvm_ir()
    assert ".visible .entry add" in special.ptx()
    assert repr(add).startswith("<tile kernel add(z: tile.Partition[f32, 2]")


WRONG: list[tuple[Any, str]] = [
    (lambda x: add(x, x, x), r"parameter z is tile.Partition\[f32, 2\], the argument is a box; pass box.partition"),
    (lambda x: add(zeros((4, 4)), x, x), r"the argument is an operation that yields a box; pass box.partition"),
    (lambda x: add(x.partition((2, 2)), x.partition((2, 2)), x), "pass its box, partition.unpartition"),
    (lambda x: add(x.partition((2, 2)), np.ones((4, 4)), x), "the argument is ndarray; pass a box, as h2d"),
    (lambda x: add(x.partition((2, 2)), zeros(3).sync(), x), r"the argument has shape \(3,\); pass a box of 2 axes"),
    (lambda x: add(x.partition((2, 2)), x), "missing a required argument: 'y'"),
    (lambda x: add(x.partition((2, 2)), x, x, w=1), "got an unexpected keyword argument 'w'"),
    (lambda x: matmul(x.partition((2, 2)), x, x, bk=0.5), r"bk is a tile.Constant\[int\], not 0.5"),
    (lambda x: add(x[1:].partition((2, 2)), x, x[1:]), "overlap in memory and are not one box"),
    (
        lambda x: twice(zeros(8).sync().partition(4), zeros(8, i64).sync().partition(2), zeros(8).sync()),
        "z has 2 tiles and w has 4; a kernel runs once for each tile",
    ),
]


@pytest.mark.parametrize(("launch", "problem"), WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_wrong_arguments_are_refused_before_anything_runs(launch: Any, problem: str) -> None:
    with pytest.raises(oxide.ArgumentError, match=problem):
        launch(zeros((4, 4)).sync())


def test_arcs_and_the_tensor_that_is_written_are_arguments() -> None:
    x = h2d(np.ones((8, 8), np.float32)).sync()
    shared = zeros((8, 8)).arc().sync()
    found = add(shared.value.partition((4, 4)), h2d(np.ones((8, 8), np.float32)).arc(), x).first().unpartition()
    assert (found.to_host().sync() == 2).all()
    late = add(zeros((8, 8)).arc().partition((4, 4)), x, x).first().unpartition()
    assert (late.to_host().sync() == 2).all()
    assert (add(x.partition((4, 4)), x, x).first().unpartition().to_host().sync() == 2).all()


def test_inspect_shows_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    from oxide.__main__ import main

    assert main(["inspect", "examples.tiles.softmax:softmax", "y=(4, 1024)"]) == 0
    assert "registers, one for each row, by shuffles" in capsys.readouterr().out
    assert main(["inspect", "examples.tiles.softmax:softmax", "y=(4, 1024)", "--ptx"]) == 0
    assert ".visible .entry softmax" in capsys.readouterr().out
    assert main(["inspect", "examples.tiles.softmax:softmax"]) == 2
    assert "give the tile shape of y" in capsys.readouterr().err


@tile.kernel(warps=4)
def any_and_all(some: tile.Partition[bool_, 1], every: tile.Partition[bool_, 1], x: tile.Tensor[f32, 2]) -> None:
    positive = x.load((0, 0), (2, 2048)) > 0
    some.store(tile.max(positive, axis=1))
    every.store(tile.min(positive, axis=1))


def test_bools_of_a_row_that_warps_share() -> None:
    x = np.full((2, 2048), -1, np.float32)
    x[0, 1500] = x[1] = 1
    some, every, _ = any_and_all(zeros(2, bool_).partition(2), zeros(2, bool_).partition(2), h2d(x)).sync()
    np.testing.assert_array_equal(d2h(some.box).sync(), [True, True])
    np.testing.assert_array_equal(d2h(every.box).sync(), [False, True])
    ptx = any_and_all.ptx(some=(2,), every=(2,))
    assert re.search(r"\.shared \.align \d+ \.b8 \S+\[\d+\];", ptx)
    assert not re.search(r"\.shared \.align \d+ \.b8 [^\[]+;", ptx)  # an array without elements
