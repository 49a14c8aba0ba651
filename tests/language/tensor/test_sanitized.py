"""Tensor operations under the sanitizer: their accesses are checked, and race like others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    DisjointSlice2,
    LaunchConfig,
    SanitizerError,
    SharedArray,
    Slice2,
    d2h,
    f16,
    f32,
    h2d,
    i64,
    kernel,
    tensor,
    thread,
    unroll,
    warp,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver

RANDOM = np.random.default_rng(13)
BOTH = ("memory", "race")


@pytest.fixture(autouse=True)
def _on_the_cpu_device() -> Any:
    with use_driver(CpuDriver()):
        yield


def gemm(*, waits: bool = True, meets: bool = True, meets_again: bool = True) -> Any:
    """Returns a kernel of 4 warps that multiplies by shared tiles, with or without each of its meetings."""

    @kernel(sanitize=BOTH)
    def multiply(a: Slice2[f16], b: Slice2[f16], c: DisjointSlice2[f32]) -> None:
        left = SharedArray((32, 16 + 8), f16)
        right = SharedArray((16, 32 + 8), f16)
        x = tensor.FragmentA((16, 16), f16)
        y = tensor.FragmentB((16, 16), f16)
        z = tensor.Accumulator((16, 16), f32)
        t = thread.index_1d().get()
        row, column = warp.warp_id() // 2 * 16, warp.warp_id() % 2 * 16
        for k in range(0, a.shape[1], 16):
            place = t % 64 * 8
            if t < 64:
                tensor.copy_async(left, (place // 16, place % 16), a, (place // 16, k + place % 16), 8)
            else:
                tensor.copy_async(right, (place // 32, place % 32), b, (k + place // 32, place % 32), 8)
            tensor.commit()
            if waits:
                tensor.wait(0)
            if meets:
                thread.sync_threads()
            tensor.ldmatrix(x, left, (row, 0))
            tensor.ldmatrix(y, right, (0, column))
            tensor.mma(z, x, y)
            if meets_again:
                thread.sync_threads()
        tensor.store(c.scatter, (row, column), z)

    return multiply


def run(made: Any, k: int = 48) -> tuple[Any, Any]:
    a, b = (RANDOM.integers(-3, 4, shape).astype(np.float16) for shape in ((32, k), (k, 32)))
    result = made[LaunchConfig(1, 128)](h2d(a), h2d(b), zeros((32, 32))).last().and_then(d2h).sync()
    return result, a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.nightly
def test_a_right_kernel_has_no_report_and_the_right_result() -> None:
    for k in (48, 40, 5):
        result, expected = run(gemm(), k)
        assert np.array_equal(result, expected)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["meets", "meets_again"])
def test_a_missing_barrier_is_a_race_of_the_copy_and_ldmatrix(missing: str) -> None:
    with pytest.raises(SanitizerError, match=r"race.*a SharedArray"):
        run(gemm(**{missing: False}))


@pytest.mark.slow
@pytest.mark.parametrize("meets", [False, True])
def test_a_read_of_a_copy_before_the_wait_is_a_race_whatever_barriers_there_are(meets: bool) -> None:
    with pytest.raises(SanitizerError) as caught:
        run(gemm(waits=False, meets=meets))
    assert "a read of a SharedArray" in str(caught.value)
    assert "is in a race: no tensor.wait orders it" in str(caught.value)
    assert "an asynchronous copy to a SharedArray" in str(caught.value)


def pipelined(groups: int, stages: int, *, meets: bool = True) -> Any:
    """Returns a kernel whose copies are two steps ahead, with a wait that leaves ``groups`` groups under way."""
    first = groups == 1

    @kernel(sanitize=BOTH)
    def sums(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        staged = SharedArray((stages, 64, 4), f32)
        t = thread.index_1d().get()
        for k in range(2):
            tensor.copy_async(staged, (k, t, 0), x, (k * 64 + t, 0), 4)
            tensor.commit()
        for k in range(x.shape[0] // 64):
            if first:
                tensor.wait(1)
            else:
                tensor.wait(2)
            if meets:
                thread.sync_threads()
            total = f32(0.0)
            for i in unroll(range(4)):
                total += staged[k % stages, 63 - t, i]
            y.scatter[k, t] = total
            tensor.copy_async(staged, ((k + 2) % stages, t, 0), x, ((k + 2) * 64 + t, 0), 4)
            tensor.commit()

    return sums


def run_pipelined(made: Any) -> None:
    x = RANDOM.integers(-9, 10, (64 * 7, 4)).astype(np.float32)
    result = made[LaunchConfig(1, 64)](h2d(x), zeros((7, 64))).last().and_then(d2h).sync()
    assert np.array_equal(result, x.sum(1).reshape(7, 64)[:, ::-1])


def test_a_pipeline_that_waits_for_enough_groups_is_clean() -> None:
    run_pipelined(pipelined(1, 3))


def test_a_wait_for_too_few_groups_is_found() -> None:
    with pytest.raises(SanitizerError, match=r"no tensor.wait orders it"):
        run_pipelined(pipelined(2, 3))


def test_a_stage_that_is_copied_to_while_others_read_it_is_found() -> None:
    with pytest.raises(SanitizerError, match=r"an asynchronous copy to a SharedArray.* in a race"):
        run_pipelined(pipelined(1, 2))


def test_a_wait_without_a_barrier_is_found() -> None:
    with pytest.raises(SanitizerError, match="race: no barrier or atomic orders it"):
        run_pipelined(pipelined(1, 3, meets=False))


def test_a_copy_that_no_thread_has_waited_for_does_not_outlast_its_block() -> None:
    @kernel(sanitize=BOTH, partial=True)
    def leave(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        tile = SharedArray((32, 4), f32)
        t = thread.thread_idx.x
        if thread.block_idx.x % 2 == 0:
            tensor.copy_async(tile, (t, 0), x, (t, 0), 4)
            tensor.commit()
        else:
            tile[t, 0] = 1.0
            y.scatter[thread.block_idx.x, t] = tile[t, 0]

    x = np.ones((32, 4), np.float32)
    leave[LaunchConfig(6, 32)](h2d(x), zeros((6, 32))).sync()


def test_ldmatrix_of_what_none_has_written_is_reported() -> None:
    @kernel(sanitize=BOTH)
    def read(rows: i64, y: DisjointSlice2[f32]) -> None:
        tile = SharedArray((16, 16), f16)
        a = tensor.FragmentA((16, 16), f16)
        for i in range(rows):
            if warp.lane_id() < 16:
                tile[i, warp.lane_id()] = f16(1.0)
        thread.sync_threads()
        tensor.ldmatrix(a, tile, (0, 0))
        y.scatter[warp.lane_id(), 0] = f32(a[0])

    read[LaunchConfig(1, 32)](16, zeros((32, 1))).sync()
    with pytest.raises(SanitizerError, match="finds memory that nothing has written"):
        read[LaunchConfig(1, 32)](15, zeros((32, 1))).sync()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [8, 16, 24])
def test_stmatrix_writes_each_row_once(columns: int) -> None:
    @kernel(sanitize=BOTH)
    def write(meets: i64, y: DisjointSlice2[f32]) -> None:
        tile = SharedArray((16, 24), f16)
        c = tensor.Accumulator((16, columns), f16)
        c.fill(2.0)
        tensor.stmatrix(tile, (0, 0), c)
        if meets:
            warp.sync()
        for i in unroll(range(len(c))):
            y.scatter[c.row(i), c.column(i)] = f32(tile[15 - c.row(i), c.column(i)])

    result = write[LaunchConfig(1, 32)](1, zeros((16, columns))).last().and_then(d2h).sync()
    assert (result == 2).all()
    with pytest.raises(SanitizerError, match="race"):
        write[LaunchConfig(1, 32)](0, zeros((16, columns))).sync()


def test_load_and_store_are_accesses_of_their_elements() -> None:
    @kernel(sanitize=BOTH)
    def move(meets: i64, x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        tile = SharedArray((16, 8), f32)
        c = tensor.Accumulator((16, 8), f32)
        tensor.load(c, x, (0, 0))
        tensor.store(tile, (0, 0), c)
        if meets:
            warp.sync()
        d = tensor.FragmentB((8, 16), f32)
        tensor.load(d, tile, (0, 0), transposed=True)
        tensor.store(y.scatter, (0, 0), d)

    x = RANDOM.standard_normal((16, 8)).astype(np.float32)
    result = move[LaunchConfig(1, 32)](1, h2d(x), zeros((8, 16))).last().and_then(d2h).sync()
    assert np.array_equal(result, x.T)
    with pytest.raises(SanitizerError, match="race"):
        move[LaunchConfig(1, 32)](0, h2d(x), zeros((8, 16))).sync()
