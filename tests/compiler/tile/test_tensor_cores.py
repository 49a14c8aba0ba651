"""Products of tiles: on tensor cores as a GPU runs them, simulated thread by thread, and by vectors on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from oxide import CompileError, bf16, d2h, f8e4m3, f16, f32, f64, h2d, i8, i32, i64, tile, u8, zeros
from oxide.compiler.tile.tile_source import TileSource
from tests.pairs import every_pair

RNG = np.random.default_rng(3)


def numbers(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return RNG.integers(-9 if kind.kind == "i" else 0, 9, shape).astype(kind)
    return RNG.standard_normal(shape).astype(kind)


def plan(kernel: Any, capability: int, **given: Any) -> Any:
    source: TileSource = kernel.specialize(**given).description.tile
    return source.planned(capability)[0]


def product(kind: Any, sums: Any, *, warps: int, stages: int, turned: tuple[bool, bool], tf32: bool = False) -> Any:
    a_turned, b_turned = turned

    @tile.kernel(warps=warps, stages=stages)
    def multiplied(
        c: tile.Partition[sums, 2],  # type: ignore[valid-type]
        a: tile.Tensor[kind, 2],  # type: ignore[valid-type]
        b: tile.Tensor[kind, 2],  # type: ignore[valid-type]
        depth: i32,
        bk: tile.Constant[int],
    ) -> None:
        row, column = c.index
        rows, columns = c.tile_shape
        acc = tile.zeros((rows, columns), sums)
        for k in range(tile.cdiv(depth, bk)):
            x = a.load((k, row), (bk, rows)).T if a_turned else a.load((row, k), (rows, bk))
            y = b.load((column, k), (columns, bk)).T if b_turned else b.load((k, column), (bk, columns))
            acc = tile.mma(x, y, acc, tf32=tf32)
        c.store(acc)

    return multiplied


def check(kernel: Any, kind: Any, sums: Any, sizes: tuple[int, int, int], tiles: tuple[int, int], bk: int,
          turned: tuple[bool, bool] = (False, False), error: float = 1e-6) -> None:  # fmt: skip
    m, n, k = sizes
    a, b = numbers((m, k), kind), numbers((k, n), kind)
    given = [np.ascontiguousarray(x.T) if flip else x for x, flip in zip((a, b), turned, strict=True)]
    padded = h2d(np.full(m * n + 128, 5).astype(np.dtype(sums))).sync()
    out = padded[64 : 64 + m * n].reshape(m, n)
    kernel(out.partition(tiles), h2d(given[0]), h2d(given[1]), k, bk).sync()
    whole = d2h(padded).sync()
    assert (whole[:64] == 5).all()
    assert (whole[-64:] == 5).all()
    found = whole[64:-64].reshape(m, n).astype(np.float64)
    wide = np.int64 if np.dtype(sums).kind in "iu" else np.float64
    expected = (a.astype(wide) @ b.astype(wide)).astype(np.float64)
    assert np.linalg.norm(found - expected) <= error * max(1e-30, float(np.linalg.norm(expected)))


@pytest.mark.slow
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("plan", "a_turned", "b_turned"),
    every_pair([(4, 3, (64, 64)), (8, 2, (64, 128)), (1, 1, (16, 24))], (False, True), (False, True)),
)
def test_16_bit_floats(plan: tuple[int, int, tuple[int, int]], a_turned: bool, b_turned: bool) -> None:
    (warps, stages, tiles), turned = plan, (a_turned, b_turned)
    kernel = product(f16, f32, warps=warps, stages=stages, turned=turned)
    for sizes in ((65, 72, 136), (33, 31, 70)):
        check(kernel, f16, f32, sizes, tiles, 64, turned)


@pytest.mark.slow
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("turned", [(False, False), (True, True)], ids=["nn", "tt"])
@pytest.mark.parametrize(
    ("kind", "sums", "error", "tf32"),
    [(i8, i32, 0.0, False), (u8, i32, 0.0, False), (f8e4m3, f32, 1e-3, False), (f32, f32, 2e-3, True),
     (f64, f64, 1e-14, False), (i64, i64, 0.0, False), (f32, f32, 1e-6, False)],
    ids=["i8", "u8", "f8", "tf32", "f64", "i64", "f32"],
)  # fmt: skip
def test_other_types(kind: Any, sums: Any, error: float, tf32: bool, turned: tuple[bool, bool]) -> None:
    kernel = product(kind, sums, warps=2, stages=2, turned=turned, tf32=tf32)
    check(kernel, kind, sums, (33, 48, 70), (32, 32), 32, turned, error)


@pytest.mark.slow
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(("warps", "stages"), [(4, 1), (4, 2), (4, 3), (8, 3)])
@pytest.mark.parametrize("columns", [128, 72, 71])  # by the copy engine or asynchronous copies; 71: element by element
def test_operands_at_places_that_do_not_fit_64_bits(warps: int, stages: int, columns: int) -> None:
    @tile.kernel(warps=warps, stages=stages)
    def far(c: tile.Partition[f32, 2], a: tile.Tensor[bf16, 2], b: tile.Tensor[bf16, 2], turns: i64, step: i64) -> None:
        row, column = c.index
        acc = tile.zeros((64, 64), f32)
        for k in range(turns):
            acc = tile.mma(a.load((row, k * step), (64, 64)), b.load((k * step, column), (64, 64)), acc)
        c.store(acc)

    a, b = numbers((64, columns), bf16), numbers((columns, columns), bf16)
    expected = a[:, :64].astype(np.float64) @ b[:64].astype(np.float64)
    for step in (2**58, -(2**58), 2**57, 2**32, -(2**26)):
        c = zeros((64, columns)).partition((64, 64))
        found = d2h(far(c, h2d(a), h2d(b), 3, step).first().unpartition()).sync()
        assert np.abs(found - expected).max() < 1e-3, step


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("k", [0, 1, 300])
def test_long_pipelines(k: int) -> None:
    for stages in (2, 3, 5):
        check(product(bf16, f32, warps=4, stages=stages, turned=(False, False)), bf16, f32, (64, 64, k), (64, 64), 64)


@pytest.mark.usefixtures("code")
def test_operands_with_fewer_parts_than_threads() -> None:
    kernel = product(f16, f32, warps=4, stages=2, turned=(False, False))
    check(kernel, f16, f32, (48, 32, 48), (16, 32), 16)


@tile.kernel(warps=4, stages=2)
def chained(o: tile.Partition[f16, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2], c: tile.Tensor[f16, 2]) -> None:
    rows, width = o.tile_shape
    left = a.load((o.index[0], 0), (rows, 64))
    total = tile.zeros((rows, width))
    norm = tile.zeros(rows)
    for j in range(tile.cdiv(b.shape[0], 32)):
        s = left @ b.load((j, 0), (32, 64)).T
        inside = j * 32 + tile.arange(32) < b.shape[0]
        p = tile.where(inside, tile.abs(s.astype(f32)), 0)
        norm = norm + p.sum(axis=1)
        total = tile.mma(p.astype(f16), c.load((j, 0), (32, width)), total * 0.5)
    o.store((total / norm[:, None]).astype(f16))


@pytest.mark.slow
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(("m", "n"), [(64, 64), (70, 33)])
def test_a_product_of_a_product(m: int, n: int) -> None:
    a, b, c = numbers((m, 64), f16), numbers((n, 64), f16), numbers((n, 48), f16)
    found = chained(zeros((m, 48), f16).partition((64, 48)), h2d(a), h2d(b), h2d(c)).first().unpartition()
    total, norm = np.zeros((m, 48)), np.zeros(m)
    for j in range(-(-n // 32)):
        rows = slice(32 * j, 32 * j + 32)
        p = np.abs((a.astype(np.float64) @ b[rows].astype(np.float64).T).astype(np.float16).astype(np.float64))
        norm += p.sum(1)
        total = total * 0.5 + p @ c[rows].astype(np.float64)
    expected = total / norm[:, None]
    assert np.linalg.norm(found.to_host().sync() - expected) < 2e-3 * np.linalg.norm(expected)


@tile.kernel(warps=4)
def doubled(o: tile.Partition[f32, 2], a: tile.Tensor[f16, 2]) -> None:
    x = a.load((0, 0), (64, 64))
    o.store(tile.mma((x @ x) * 2, x, tile.zeros(o.tile_shape)))


@pytest.mark.usefixtures("code")
def test_a_left_operand_computed_from_a_product() -> None:
    a = RNG.integers(-2, 3, (64, 64)).astype(np.float16)
    found = doubled(zeros((64, 64)).partition((64, 64)), h2d(a)).first().unpartition().to_host().sync()
    wide = a.astype(np.float64)
    np.testing.assert_array_equal(found, 2 * wide @ wide @ wide)


@tile.kernel(warps=4)
def used_twice(o: tile.Partition[f32, 2], a: tile.Tensor[f16, 2]) -> None:
    x = a.load((0, 0), (64, 64))
    y = x @ x.T
    z = tile.mma(x.T, x, y.astype(f32) * 2)
    o.store(z + x.astype(f32).sum(axis=0) + z.T + tile.cumsum(z, 1))


@pytest.mark.slow
@pytest.mark.usefixtures("code")
def test_operands_and_results_with_other_uses() -> None:
    a = RNG.integers(-3, 4, (64, 64)).astype(np.float16)  # their products are whole numbers: none is rounded to f16
    found = used_twice(zeros((64, 64)).partition((64, 64)), h2d(a)).first().unpartition().to_host().sync()
    wide = a.astype(np.float64)
    z = wide.T @ wide + 2 * (wide @ wide.T).astype(np.float16).astype(np.float64)
    expected = z + wide.sum(0) + z.T + z.cumsum(1)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


@tile.kernel(warps=4, stages=3)
def computed_operand(o: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2]) -> None:
    acc = tile.zeros(o.tile_shape)
    for k in range(tile.cdiv(a.shape[1], 64)):
        x = a.load((o.index[0], k), (o.tile_shape[0], 64))
        acc = tile.mma((x * 2 + x).astype(f16), b.load((k, o.index[1]), (64, o.tile_shape[1])), acc)
    o.store(acc)


@pytest.mark.nightly
@pytest.mark.usefixtures("code")
def test_an_operand_that_is_computed_in_each_turn() -> None:
    a, b = numbers((70, 300), f16), numbers((300, 72), f16)
    found = computed_operand(zeros((70, 72)).partition((64, 64)), h2d(a), h2d(b)).first().unpartition()
    left = a * np.float16(2) + a
    expected = left.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(found.to_host().sync() - expected) < 1e-6 * np.linalg.norm(expected)


@tile.kernel(warps=4)
def read_before_written(o: tile.Partition[f16, 2], a: tile.Tensor[f16, 2]) -> None:
    x = o.load()
    o.store(tile.zeros(o.tile_shape, f16))
    y = x @ a.load((0, 0), (64, 64))
    o.store(y.astype(f16))


@pytest.mark.slow
@pytest.mark.usefixtures("code")
def test_an_operand_is_what_it_was_before_a_store() -> None:
    x, a = numbers((64, 64), f16), numbers((64, 64), f16)
    found = read_before_written(h2d(x).sync().partition((64, 64)), h2d(a)).first().unpartition().to_host().sync()
    expected = x.astype(np.float64) @ a.astype(np.float64)
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


def test_the_plan_of_a_product_on_hopper() -> None:
    kernel = product(bf16, f32, warps=8, stages=4, turned=(False, False))
    found = plan(kernel, 90, c=(128, 256), bk=64)
    (one,) = found.products.values()
    assert one.wgmma
    assert one.in_place
    (pipeline,) = found.pipelines.values()
    assert len(pipeline.loads) == 2
    assert plan(kernel, 80, c=(128, 128), bk=64).products.keys()
    assert not plan(kernel, 75, c=(64, 64), bk=32).products


def test_the_sums_of_an_iteration_are_awaited_in_the_next() -> None:
    ptx = product(bf16, f32, warps=8, stages=4, turned=(False, False)).ptx((9, 0), c=(128, 256), bk=64)
    assert ptx.count("wgmma.wait_group.sync.aligned 1;") == 1, "in the loop"
    assert ptx.count("wgmma.wait_group.sync.aligned 0;") == 1, "after it"


@tile.kernel(warps=4, stages=2)
def narrowed(c: tile.Partition[f16, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2]) -> None:
    acc = tile.zeros(c.tile_shape)
    for k in range(tile.cdiv(a.shape[1], 64)):
        acc = tile.mma(a.load((c.index[0], k), (64, 64)), b.load((k, c.index[1]), (64, 64)), acc)
    c.store(acc.astype(f16))


def test_a_result_is_stored_by_way_of_the_memory_of_the_operands() -> None:
    said = narrowed.explain((8, 0), c=(64, 64))
    assert f"128 threads a program, {2 * 2 * 64 * 64 * 2} bytes of shared memory" in said


def test_without_stages_there_are_as_many_as_fit() -> None:
    @tile.kernel(warps=8)
    def multiplied(
        c: tile.Partition[bf16, 2], a: tile.Tensor[bf16, 2], b: tile.Tensor[bf16, 2], bk: tile.Constant[int]
    ) -> None:
        acc = tile.zeros(c.tile_shape)
        for k in range(tile.cdiv(a.shape[1], bk)):
            x, y = a.load((c.index[0], k), (c.tile_shape[0], bk)), b.load((k, c.index[1]), (bk, c.tile_shape[1]))
            acc = tile.mma(x, y, acc)
        c.store(acc.astype(bf16))

    for bk, stages in ((64, 3), (128, 2)):
        (pipeline,) = plan(multiplied, 90, c=(128, 256), bk=bk).pipelines.values()
        assert pipeline.stages == stages
    assert not plan(multiplied, 90, c=(128, 256), bk=256).pipelines
    (pipeline,) = plan(multiplied, 89, c=(128, 256), bk=64).pipelines.values()
    assert pipeline.stages == 2, "these GPUs have 99 KiB for a block"
    fixed = tile.kernel(warps=8, stages=3)(multiplied.function)
    with pytest.raises(CompileError, match="its tiles take 295296 bytes of a block's memory at once"):
        fixed.ptx(c=(128, 256), bk=128)


def test_explain_says_why_a_product_is_computed_by_threads() -> None:
    kernel = product(f32, f32, warps=4, stages=2, turned=(False, False))
    said = kernel.explain(c=(64, 64), bk=32)
    assert "by threads, because operands of f32 are multiplied exactly; tf32=True allows tensor cores" in said
    odd = product(f16, f32, warps=4, stages=2, turned=(False, False)).explain(c=(40, 64), bk=32)
    assert "by threads, because a result of shape (40, 64) is no multiple of (16, 8)" in odd
    good = product(f16, f32, warps=4, stages=3, turned=(False, False)).explain(c=(64, 64), bk=64)
    assert "wgmma, operands in shared memory, added to the loop's variable in place" in good
    assert "a pipeline of 3 stages: a.load" in good


@tile.kernel(warps=4, stages=2)
def again(o: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2], times: i32) -> None:
    acc = tile.zeros(o.tile_shape)
    for turn in range(times):
        for k in range(turn, tile.cdiv(a.shape[1], 64)):
            x = a.load((o.index[0], k), (o.tile_shape[0], 64))
            acc = tile.mma(x, b.load((k, o.index[1]), (64, o.tile_shape[1])), acc)
        acc = acc + 1
    o.store(acc)


@pytest.mark.slow
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("k", [64, 328])
def test_a_pipeline_in_a_loop_goes_on_where_it_was(k: int) -> None:
    a, b = numbers((70, k), f16), numbers((k, 72), f16)
    found = again(zeros((70, 72)).partition((64, 64)), h2d(a), h2d(b), 4).first().unpartition().to_host().sync()
    expected = sum(a[:, 64 * t :].astype(np.float64) @ b[64 * t :].astype(np.float64) for t in range(4)) + 4
    # Each sum is added to once for 16 products, and tensor cores cut f32 off at the last bit, all to one side.
    cut_off = (4 * -(-k // 16) + 4) * 2.0**-23
    assert np.linalg.norm(found - expected) < cut_off * np.linalg.norm(expected)


@tile.kernel(warps=4, stages=3)
def placed_by_a_reduction(
    o: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2], order: tile.Tensor[i32, 1]
) -> None:
    acc = tile.zeros(o.tile_shape)
    places = order.load((0,), (8,))
    for k in range(tile.cdiv(a.shape[1], 64)):
        place = tile.max(places) - k
        acc = tile.mma(a.load((o.index[0], place), (64, 64)), b.load((place, o.index[1]), (64, 64)), acc)
    o.store(acc)


@pytest.mark.slow
@pytest.mark.usefixtures("code")
def test_loads_at_a_place_that_a_reduction_gives_are_no_pipeline() -> None:
    """The threads share the work of a reduction, so its result is not there for a later iteration."""
    a, b = numbers((64, 192), f16), numbers((192, 64), f16)
    order = np.array([0, 2, 1, 0, 0, 0, 0, 0], np.int32)
    given = zeros((64, 64)).partition((64, 64)), h2d(a), h2d(b), h2d(order)
    found = placed_by_a_reduction(*given).first().unpartition().to_host().sync()
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(found - expected) < 16 * 2.0**-23 * np.linalg.norm(expected)
    assert not plan(placed_by_a_reduction, 90, o=(64, 64)).pipelines


@pytest.mark.slow
@pytest.mark.usefixtures("code")
def test_an_operand_without_elements_is_zeros() -> None:
    check(product(f16, f32, warps=4, stages=2, turned=(False, False)), f16, f32, (64, 64, 0), (64, 64), 64)
    out, a, b = zeros((64, 64)), h2d(np.ones((64, 64), np.float16)), h2d(np.ones((0, 64), np.float16))
    assert not again(out.partition((64, 64)), a, b, 0).first().unpartition().to_host().sync().any()
    found = again(zeros((64, 64)).partition((64, 64)), a, b, 1).first().unpartition().to_host().sync()
    assert (found == 1).all()


def test_explain_says_how_tiles_are_copied() -> None:
    kernel = product(bf16, f32, warps=4, stages=2, turned=(False, False))
    assert "TMA copies" in kernel.explain(c=(64, 64), bk=64)
    assert "cp.async copies, because a row of a's tile has 64 bytes" in kernel.explain(c=(64, 64), bk=32)
    assert "cp.async copies, because tiles are copied by TMA on Hopper" in kernel.explain((8, 0), c=(64, 64), bk=64)
    tall = kernel.explain(c=(512, 16), bk=64)
    assert "a tile of a has 512 rows" in tall
