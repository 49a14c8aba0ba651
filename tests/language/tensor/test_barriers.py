"""``tensor.Barrier``, ``load_tile`` and ``wgmma`` together: rings of buffers, phases, deadlocks, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    ArgumentError,
    BarrierError,
    BoundsError,
    DisjointSlice,
    DisjointSlice2,
    KernelAssertionError,
    LaunchConfig,
    LaunchError,
    SanitizerError,
    SharedArray,
    Slice2,
    Slice3,
    bf16,
    d2h,
    devices,
    f16,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    tensor,
    thread,
    unroll,
    warp,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import seeded_driver, use_driver
from oxide_kernels.mma_products import Form
from oxide_kernels.wgmma_plans import Plan
from oxide_kernels.wgmma_products import THREADS, kernel_of
from tests.pairs import every_pair

RANDOM = np.random.default_rng(7)


def product_kernel(dtype: Any, out_dtype: Any, width: int = 256, a_turned: bool = False, b_turned: bool = True) -> Any:
    """The library's kernel for Hopper, which takes alpha, a, b, beta and c."""
    form = Form(dtype, dtype, out_dtype, None, a_turned, b_turned, None, False, True, True)
    return kernel_of(form, Plan(width))


@kernel(partial=True)
def ring(steps: i64, y: DisjointSlice[i32]) -> None:
    """The first warp's first thread passes numbers to two other warps through three buffers."""
    buffers = SharedArray(3, i32)
    full = tensor.Barrier(3, 1)
    empty = tensor.Barrier(3, 2)
    if thread.thread_idx.x == 0:
        for step in range(steps):
            empty.wait(step % 3, step // 3 - 1)
            buffers[step % 3] = i32(step * step)
            full.arrive(step % 3)
    elif thread.thread_idx.x >= 32:
        total = i32(0)
        for step in range(steps):
            full.wait(step % 3, step // 3)
            total += buffers[step % 3]
            warp.sync()
            if warp.lane_id() == 0:
                empty.arrive(step % 3)
        y.scatter[thread.thread_idx.x - 32] = total


def passed(steps: int) -> Any:
    return ring[LaunchConfig(1, 96)](steps, zeros(64, np.int32)).last().and_then(d2h).sync()


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7, 20])
def test_a_ring_of_buffers_passes_all_numbers_in_order(steps: int) -> None:
    assert (passed(steps) == sum(step * step for step in range(steps))).all()


def test_a_ring_works_in_any_order_of_threads() -> None:
    for seed in range(1, 9):
        with use_driver(seeded_driver(seed)):
            assert (passed(11) == 385).all()


def test_one_lane_polls_while_the_others_are_at_a_warp_operation() -> None:
    @kernel(partial=True)
    def mixed(y: DisjointSlice[i32]) -> None:
        ready = tensor.Barrier(1, 1)
        if thread.thread_idx.x == 40:
            ready.arrive(0)
        if thread.thread_idx.x < 32:
            if thread.thread_idx.x == 5:
                ready.wait(0, 0)
            y.scatter[thread.thread_idx.x] = i32(warp.reduce_add(i32(1)))

    for seed in range(1, 6):
        with use_driver(seeded_driver(seed)):
            assert (mixed[LaunchConfig(1, 64)](zeros(32, np.int32)).last().and_then(d2h).sync() == 32).all()


def test_a_wait_that_cannot_end_is_reported_with_its_place_and_what_is_missing() -> None:
    @kernel(partial=True)
    def stuck(y: DisjointSlice[i32]) -> None:
        barrier = tensor.Barrier(2, 3)
        if thread.thread_idx.x == 0:
            barrier.expect(1, 256)
        barrier.wait(1, 0)

    with use_driver(CpuDriver()), pytest.raises(BarrierError) as caught:
        stuck[LaunchConfig(1, 64)](zeros(1, np.int32)).sync()
    assert (
        "for phase 0 of a Barrier, which cannot end: the Barrier is in phase 0, which still waits for 2 arrivals and "
        "256 bytes of copies, and no thread of the block can go on"
    ) in str(caught.value)


def stuck_after_copies(announced: int, *, by_all: bool) -> str:
    """Returns the error of a kernel that copies 1,024 bytes and waits for phase 0."""

    @kernel(partial=True)
    def stuck(x: Slice2[f32], y: DisjointSlice[f32]) -> None:
        tile, full = SharedArray((8, 32), f32, 128), tensor.Barrier(1, 1)
        if by_all or thread.thread_idx.x == 0:
            full.expect(0, announced)
            tensor.load_tile(tile, None, x, (0, 0), full, 0)
        full.wait(0, 0)

    with use_driver(CpuDriver()), pytest.raises(BarrierError) as caught:
        stuck[LaunchConfig(1, 32)](zeros((8, 32)), zeros(1)).sync()
    return str(caught.value)


def test_copies_of_more_than_was_announced_are_reported() -> None:
    assert "and 24 bytes more have been copied than Barrier.expect has announced" in stuck_after_copies(
        1000, by_all=False
    )


def test_a_wait_for_a_phase_long_past_says_that_too_many_have_arrived() -> None:
    assert "more threads have arrived, or called expect, than the number of arrivals" in stuck_after_copies(
        1024, by_all=True
    )


@kernel(partial=True)
def copy_of_a_stack(x: Slice3[f16], plane: i64, row: i64, column: i64, y: DisjointSlice2[f32]) -> None:
    tiles = tensor.SharedTiles(1, (64, 64), f16)
    full = tensor.Barrier(1, 1)
    if thread.thread_idx.x == 0:
        full.expect(0, 8192)
        tensor.load_tile(tiles, 0, x, (plane, row, column), full, 0)
    full.wait(0, 0)
    for i in range(64):
        y.scatter[i, thread.thread_idx.x] = f32(tiles[0, i, thread.thread_idx.x])


@pytest.mark.parametrize("plane", [0, 1, 4, 5, -1, 2**40])
@pytest.mark.parametrize("at", [(0, 0), (-3, -8), (60, 8)])
def test_a_copied_tile_of_a_stack_ends_where_its_matrix_ends(plane: int, at: tuple[int, int]) -> None:
    x = RANDOM.integers(1, 2000, (5, 70, 24))
    y = (
        copy_of_a_stack[LaunchConfig(1, 64)](h2d(x.astype(np.float16)), plane, *at, zeros((64, 64)))
        .last()
        .and_then(d2h)
        .sync()
    )
    rows, cols = (np.arange(64) + start for start in at)
    inside = ((rows >= 0) & (rows < 70))[:, None] & ((cols >= 0) & (cols < 24))[None, :] & (0 <= plane < 5)
    expected = np.where(inside, x[plane % 5][np.clip(rows, 0, 69)][:, np.clip(cols, 0, 23)], 0)
    assert np.array_equal(y, expected)


@kernel(partial=True)
def copy_of_a_matrix(x: Slice2[f16], row: i64, column: i64, y: DisjointSlice2[f32]) -> None:
    tiles = tensor.SharedTiles(2, (64, 64), f16)
    full = tensor.Barrier(1, 1)
    if thread.thread_idx.x == 0:
        full.expect(0, 8192)
        tensor.load_tile(tiles, 1, x, (row, column), full, 0)
    full.wait(0, 0)
    for i in range(64):
        y.scatter[i, thread.thread_idx.x] = f32(tiles[1, i, thread.thread_idx.x])


@pytest.mark.parametrize("columns", [8, 64, 72])
@pytest.mark.parametrize("at", [(0, 0), (-3, -8), (60, 56), (-64, 0), (3, 64), (1000, 0), (2**40, -(2**40))])
def test_a_copied_tile_has_each_element_where_it_belongs(columns: int, at: tuple[int, int]) -> None:
    x = np.arange(1, 70 * columns + 1, dtype=np.int64).reshape(70, columns) % 2000 + 1
    y = (
        copy_of_a_matrix[LaunchConfig(1, 64)](h2d(x.astype(np.float16)), *at, zeros((64, 64)))
        .last()
        .and_then(d2h)
        .sync()
    )
    rows, cols = (np.arange(64) + start for start in at)
    inside = ((rows >= 0) & (rows < 70))[:, None] & ((cols >= 0) & (cols < columns))[None, :]
    expected = np.where(inside, x[np.clip(rows, 0, 69)][:, np.clip(cols, 0, columns - 1)], 0)
    assert np.array_equal(y, expected)


def test_a_tile_that_begins_between_multiples_of_16_bytes_is_a_fault() -> None:
    @kernel(partial=True)
    def copy(x: Slice2[f16], column: i64, y: DisjointSlice[f32]) -> None:
        tiles = tensor.SharedTiles(1, (64, 64), f16)
        full = tensor.Barrier(1, 1)
        if thread.thread_idx.x == 0:
            full.expect(0, 8192)
            tensor.load_tile(tiles, 0, x, (0, column), full, 0)
        full.wait(0, 0)
        y.scatter[thread.thread_idx.x] = f32(tiles[0, 0, thread.thread_idx.x])

    x = h2d(np.ones((64, 64), np.float16)).sync()
    assert (copy[LaunchConfig(1, 64)](x, 0, zeros(64)).last().and_then(d2h).sync() == 1).all()
    for column in (5, -5, 60):
        with pytest.raises(KernelAssertionError, match="the first column of the tile is no multiple of 8 elements"):
            copy[LaunchConfig(1, 64)](x, column, zeros(64)).sync()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1, 7, 12])
def test_rows_that_begin_between_multiples_of_16_bytes_are_refused_at_the_launch(columns: int) -> None:
    made = product_kernel(f16, f32, 64)
    a, b, c = np.ones((4, columns), np.float16), np.ones((4, columns), np.float16), zeros((4, 4))
    with pytest.raises(ArgumentError, match="parameter a: expected a matrix whose rows begin at multiples of 16 bytes"):
        made[LaunchConfig(1, THREADS)](1.0, *[h2d(x).sync() for x in (a, b, a, a, a)], 0.0, 4, c.sync())
    with pytest.raises(ArgumentError, match="parameter a: expected a matrix whose rows begin at multiples of 16 bytes"):
        made[LaunchConfig(1, THREADS)](1.0, *[h2d(x) for x in (a, b, a, a, a)], 0.0, 4, c).sync()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "a_transposed", "dtype"),
    every_pair(  # tiles of rows of products have 64 columns
        [(8, False), *((n, b_transposed) for n in (64, 128, 256) for b_transposed in (False, True))],
        (False, True),
        (f16, bf16),
    ),
)
def test_a_product_of_integers_is_exact(columns: tuple[int, bool], a_transposed: bool, dtype: Any) -> None:
    n, b_transposed = columns
    panels, b_rows = (n // 64, 64) if b_transposed else (1, n)
    nbytes = (64 + panels * b_rows) * 128

    @kernel(partial=True)
    def multiply(a: Slice2[dtype], b: Slice2[dtype], y: DisjointSlice2[f32]) -> None:  # type: ignore[valid-type]
        left = tensor.SharedTiles(1, (64, 64), dtype)
        right = tensor.SharedTiles(panels, (b_rows, 64), dtype)
        full = tensor.Barrier(1, 1)
        total = tensor.Accumulator((16, n), f32)
        if thread.thread_idx.x == 0:
            full.expect(0, nbytes)
            tensor.load_tile(left, 0, a, (0, 0), full, 0)
            for panel in range(panels):
                tensor.load_tile(right, panel, b, (0, panel * 64), full, 0)
        full.wait(0, 0)
        tensor.wgmma(total, left, (0, 0), right, 0, a_transposed, b_transposed)
        tensor.wait_wgmma(total, 0)
        for i in range(len(total)):
            y.scatter[thread.thread_idx.x // 32 * 16 + total.row(i), total.column(i)] = total[i]

    a, b = RANDOM.integers(-4, 5, (64, 64)), RANDOM.integers(-4, 5, (64, n) if b_transposed else (n, 64))
    if dtype is f16:
        given = [h2d(each.astype(np.float16)) for each in (a, b)]
    else:
        given = [h2d((each.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)) for each in (a, b)]
    y = multiply[LaunchConfig(1, 128)](*given, zeros((64, n))).last().and_then(d2h).sync()
    assert np.array_equal(y, (a.T if a_transposed else a) @ (b if b_transposed else b.T))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right_tiles", "n", "dtype"),
    every_pair([(16, True), (64, False), (64, True), (128, True), (256, True)], (8, 64, 128), (f16, bf16)),
)
def test_a_left_operand_in_registers(right_tiles: tuple[int, bool], n: int, dtype: Any) -> None:
    depth, b_transposed = right_tiles
    panels, b_rows = (-(-n // 64), depth) if b_transposed else (1, n)

    @kernel(partial=True)
    def multiply(a: Slice2[dtype], b: Slice2[dtype], y: DisjointSlice2[f32]) -> None:  # type: ignore[valid-type]
        left = tensor.FragmentA((16, depth), dtype)
        right = tensor.SharedTiles(panels, (b_rows, 64), dtype)
        full = tensor.Barrier(1, 1)
        total = tensor.Accumulator((16, n), f32)
        if thread.thread_idx.x == 0:
            full.expect(0, panels * b_rows * 128)
            for panel in range(panels):
                tensor.load_tile(right, panel, b, (0, panel * 64), full, 0)
        tensor.load(left, a, (thread.thread_idx.x // 32 * 16, 0))
        full.wait(0, 0)
        tensor.wgmma(total, left, None, right, 0, b_transposed=b_transposed)
        tensor.wait_wgmma(total)
        tensor.wgmma(total, left, None, right, 0, b_transposed=b_transposed)
        tensor.wait_wgmma(total)
        for i in range(len(total)):
            y.scatter[thread.thread_idx.x // 32 * 16 + total.row(i), total.column(i)] = total[i]

    a, b = RANDOM.integers(-4, 5, (64, depth)), RANDOM.integers(-4, 5, (depth, n) if b_transposed else (n, depth))
    given = [h2d(each.astype(dtype.dtype)) for each in (a, b)]
    y = multiply[LaunchConfig(1, 128)](*given, zeros((64, n))).last().and_then(d2h).sync()
    assert np.array_equal(y, 2 * a @ (b if b_transposed else b.T))


@kernel(partial=True)
def chain(a: Slice2[f16], b: Slice2[f16], c: Slice2[f16], y: DisjointSlice2[f32]) -> None:
    left, middle = tensor.SharedTiles(1, (128, 64), f16), tensor.SharedTiles(1, (64, 64), f16)
    right = tensor.SharedTiles(1, (64, 64), f16)
    full = tensor.Barrier(1, 1)
    if thread.thread_idx.x == 0:
        full.expect(0, (128 + 64 + 64) * 128)
        tensor.load_tile(left, 0, a, (0, 0), full, 0)
        tensor.load_tile(middle, 0, b, (0, 0), full, 0)
        tensor.load_tile(right, 0, c, (0, 0), full, 0)
    full.wait(0, 0)
    own = i64(thread.thread_idx.x // 128 * 64)
    first, second = tensor.Accumulator((16, 64), f32), tensor.Accumulator((16, 64), f32)
    weights = tensor.FragmentA((16, 64), f16)
    tensor.wgmma(first, left, (0, own), middle, 0)
    tensor.wait_wgmma(first)
    for i in unroll(range(32)):
        weights[i] = f16(first[i])
    again = tensor.Accumulator((16, 64), f32)
    again.fill(100.0)
    tensor.wgmma(again, left, (0, own), middle, 0, add=False)
    tensor.wgmma(second, weights, None, right, 0, b_transposed=True)
    tensor.wait_wgmma(again, 1)
    tensor.wait_wgmma(second)
    for i in unroll(range(32)):
        row = own + i64(thread.thread_idx.x // 32 % 4) * 16 + first.row(i)
        y.scatter[row, first.column(i)] = second[i] + again[i]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_product_is_the_left_operand_of_the_next(seed: int | None) -> None:
    """Two warpgroups with tiles of their own; the second product is on its way together with the next first one."""
    a, b, c = (RANDOM.integers(-2, 3, (n, 64)) for n in (128, 64, 64))
    given = [h2d(each.astype(np.float16)) for each in (a, b, c)]
    operation = chain[LaunchConfig(1, 256)](*given, zeros((128, 64))).last().and_then(d2h)
    if seed is None:
        y = operation.sync()
    else:
        if devices()[0].kind != "cpu":
            pytest.skip("the schedule is the CPU device's")
        with use_driver(seeded_driver(seed)):
            y = operation.sync()
    assert np.array_equal(y, a @ b.T @ c + a @ b.T)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(128, 256, 64), (1, 8, 8), (130, 264, 72), (304, 520, 200)])
def test_the_warpgroup_product_is_within_rounding_of_float64(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for seed in (None, 3):
        with use_driver(CpuDriver() if seed is None else seeded_driver(seed)):
            a, b = (RANDOM.standard_normal(sides).astype(np.float16) for sides in ((m, k), (n, k)))
            made = product_kernel(f16, f32)
            c = (
                made[LaunchConfig(2, THREADS)](1.0, *[h2d(x) for x in (a, b, a, a, a)], 0.0, m, zeros((m, n)))
                .last()
                .and_then(d2h)
                .sync()
            )
            exact = a.astype(np.float64) @ b.astype(np.float64).T
            bound = k * 2.0**-23 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T) + 1e-9
            assert (np.abs(c - exact) <= bound).all()


def exchange(waits: bool, kinds: str) -> Any:
    @kernel(sanitize=kinds, partial=True)
    def pass_on(y: DisjointSlice[i32]) -> None:
        cell = SharedArray(1, i32)
        ready = tensor.Barrier(1, 1)
        if thread.thread_idx.x == 0:
            cell[0] = 7
            ready.arrive(0)
        if thread.thread_idx.x == 32:
            if waits:
                ready.wait(0, 0)
            y.scatter[0] = cell[0]

    return pass_on


def test_the_sanitizer_finds_a_missing_wait_and_accepts_a_barrier() -> None:
    with use_driver(CpuDriver()):
        for kinds in ("race", "memory"):
            result = exchange(True, kinds)[LaunchConfig(1, 64)](zeros(1, np.int32)).last().and_then(d2h).sync()
            assert result[0] == 7
        with pytest.raises(SanitizerError, match="race"):
            exchange(False, "race")[LaunchConfig(1, 64)](zeros(1, np.int32)).sync()


def test_an_interpreted_kernel_with_barriers_is_refused() -> None:
    if devices()[0].kind != "cpu":
        pytest.skip("the interpreter runs on the CPU device")
    with pytest.raises(LaunchError, match=r"tensor\.Barrier\(…\) cannot be interpreted; launch it compiled"):
        ring[LaunchConfig(1, 96)].interpret(1, zeros(64, np.int32)).sync()


def buffered(mistake: str) -> Any:
    """A product of 64 rows and columns in two buffers, with a mistake of the producer or of the warpgroup."""
    waits_full, waits_empty = mistake != "no wait for a copy", mistake != "no wait for a free buffer"
    late, early = int(mistake == "the phase before"), mistake == "a buffer given back before its product"
    other = 2 if mistake == "a tile that is not there" else 0

    @kernel(block=160, sanitize="race", partial=True)
    def product(a: Slice2[f16], b: Slice2[f16], c: DisjointSlice2[f32]) -> None:
        left, right = tensor.SharedTiles(2, (64, 64), f16), tensor.SharedTiles(2, (64, 64), f16)
        full, empty = tensor.Barrier(2, 1), tensor.Barrier(2, 1)
        steps = a.shape[1] // 64
        if thread.thread_idx.x >= 128:
            if thread.thread_idx.x == 128:
                for step in range(steps):
                    if waits_empty:
                        empty.wait(step % 2, step // 2 - 1)
                    full.expect(step % 2, 2 * 64 * 128)
                    tensor.load_tile(left, step % 2, a, (0, step * 64), full, step % 2)
                    tensor.load_tile(right, step % 2, b, (0, step * 64), full, step % 2)
        else:
            total = tensor.Accumulator((16, 64), f32)
            for step in range(steps):
                if waits_full:
                    full.wait(step % 2, step // 2 - late)
                if early and thread.thread_idx.x == 0:
                    empty.arrive(step % 2)
                tensor.wgmma(total, left, (step % 2, 0), right, step % 2 + other)
                tensor.wait_wgmma(total)
                if not early and thread.thread_idx.x == 0:
                    empty.arrive(step % 2)
            for i in unroll(range(32)):
                c.scatter[thread.thread_idx.x // 32 * 16 + total.row(i), total.column(i)] = total[i]

    return product


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "error", "told"),
    [
        ("none", None, ""),
        ("no wait for a copy", SanitizerError, "race"),
        ("no wait for a free buffer", BarrierError, "which cannot end"),
        ("the phase before", BarrierError, "for phase -1 of a Barrier, which cannot end"),
        ("a buffer given back before its product", SanitizerError, "race"),
        ("a tile that is not there", BoundsError, r"SharedTiles\(2, \(64, 64\), f16\)"),
    ],
)
def test_mistakes_with_buffers_are_found(mistake: str, error: Any, told: str) -> None:
    a, b = (RANDOM.integers(-3, 4, (64, 320)) for _ in range(2))
    given = [h2d(each.astype(np.float16)) for each in (a, b)]
    with use_driver(CpuDriver()):
        launch = buffered(mistake)[LaunchConfig(1, 160)](*given, zeros((64, 64))).last().and_then(d2h)
        if error is None:
            assert np.array_equal(launch.sync(), a @ b.T)
        else:
            with pytest.raises(error, match=told):
                launch.sync()
