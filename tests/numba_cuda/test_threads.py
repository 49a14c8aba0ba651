"""numba-cuda's intrinsics of threads, warps, blocks and atomics, each against NumPy on both devices."""

from __future__ import annotations

import os
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda

from oxide import BarrierError, CompileError, kernel
from tests.numba_cuda.launching import launch

RNG = np.random.default_rng(6)
FULL = 0xFFFFFFFF


@pytest.mark.nightly
def test_the_position_of_a_thread_in_one_two_and_three_dimensions() -> None:
    @kernel
    def positions(one, two, three):
        i = cuda.grid(1)
        if cuda.threadIdx.y == 0 and cuda.threadIdx.z == 0 and cuda.blockIdx.y == 0 and cuda.blockIdx.z == 0:
            one[i] = i + cuda.gridsize(1)
        x, y = cuda.grid(2)
        if cuda.threadIdx.z == 0 and cuda.blockIdx.z == 0:
            width, height = cuda.gridsize(2)
            two[x, y] = x * height + y + width
        x, y, z = cuda.grid(3)
        three[x, y, z] = cuda.blockIdx.x + 10 * cuda.blockDim.y + 100 * cuda.gridDim.z + 1000 * cuda.threadIdx.z

    one, two, three = launch(
        positions, (2, 3, 2), (4, 2, 2), np.zeros(8, int), np.zeros((8, 6), int), np.zeros((8, 6, 4), int)
    )
    np.testing.assert_array_equal(one, np.arange(8) + 8)
    np.testing.assert_array_equal(two, np.arange(48).reshape(8, 6) + 8)
    x, _, z = np.indices((8, 6, 4))
    np.testing.assert_array_equal(three, x // 4 + 20 + 200 + 1000 * (z % 2))


@pytest.mark.parametrize("block", [1, 31, 32, 33, 256, 1000])
def test_a_block_reduces_through_shared_memory(block: int) -> None:
    @kernel
    def total(x, out):
        shared = cuda.shared.array(1024, numba.float64)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        shared[t] = x[i] if i < x.shape[0] else 0.0
        cuda.syncthreads()
        step = 512
        while step > 0:
            if t < step and t + step < cuda.blockDim.x:
                shared[t] += shared[t + step]
            cuda.syncthreads()
            step //= 2
        if t == 0:
            out[cuda.blockIdx.x] = shared[0]

    x = RNG.random(3 * block - block // 2)
    _, out = launch(total, 3, block, x, np.zeros(3))
    parts = [x[k * block : (k + 1) * block].sum() for k in range(3)]
    np.testing.assert_allclose(out, parts)


def test_dynamic_shared_memory_is_as_long_as_the_launch_says() -> None:
    @kernel
    def reverse(x, lengths):
        words = cuda.shared.array(0, numba.int32)
        t = cuda.threadIdx.x
        words[t] = x[t]
        cuda.syncthreads()
        x[t] = words[cuda.blockDim.x - 1 - t]
        if t == 0:
            lengths[0] = len(words)

    x, lengths = launch(reverse, 1, 48, np.arange(48, dtype=np.int32), np.zeros(1, int), shared=48 * 4)
    np.testing.assert_array_equal(x, np.arange(48)[::-1])
    assert lengths[0] == 48


PAIR = np.dtype([("key", np.int32), ("weight", np.float64)], align=True)
PAIR_TYPE = numba.from_dtype(PAIR)


def test_shared_and_local_arrays_of_several_axes_and_of_records() -> None:
    @kernel
    def use(out, keys):
        tile = cuda.shared.array((4, 8), dtype=numba.float32)
        pairs = cuda.shared.array(32, dtype=PAIR_TYPE)
        mine = cuda.local.array((2, 2), dtype=numba.int64)
        i, j = cuda.threadIdx.x, cuda.threadIdx.y
        t = i * 8 + j
        tile[i, j] = t
        pairs[t].key = t
        pairs[t].weight = 0.5 * t
        for a in range(2):
            for b in range(2):
                mine[a, b] = a + 10 * b + t
        cuda.syncthreads()
        out[i, j] = tile[3 - i, 7 - j] + mine[1, 1] + tile.shape[1]
        keys[t] = pairs[31 - t].key + pairs[31 - t].weight

    out, keys = launch(use, 1, (4, 8), np.zeros((4, 8)), np.zeros(32))
    t = np.arange(32).reshape(4, 8)
    np.testing.assert_array_equal(out, 31 - t + 11 + t + 8)
    np.testing.assert_array_equal(keys, 1.5 * (31 - np.arange(32)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "complex128"])
def test_a_large_local_array_of_any_type_begins_with_zeros(dtype: str) -> None:
    kind = getattr(numba, dtype)

    @kernel
    def use(out):
        mine = cuda.local.array((3, 333), dtype=kind)
        t = cuda.grid(1)
        before = mine[2, t]
        mine[2, t] = t
        cuda.syncthreads()
        out[t] = before + mine[2, t] + mine[1, 332]

    out = launch(use, 2, 33, np.zeros(66, dtype))
    np.testing.assert_array_equal(out, np.arange(66).astype(dtype))


def test_the_counting_barriers_see_every_thread_of_the_block() -> None:
    @kernel
    def count(x, out):
        t = cuda.threadIdx.x
        out[t, 0] = cuda.syncthreads_count(x[t])
        out[t, 1] = cuda.syncthreads_and(np.int32(x[t] < 5))
        out[t, 2] = cuda.syncthreads_and(np.int32(t != 69))
        out[t, 3] = cuda.syncthreads_or(np.int32(t == 69))
        out[t, 4] = cuda.syncthreads_or(np.int32(x[t] == 5))

    x = RNG.integers(0, 5, 70).astype(np.int32)
    _, out = launch(count, 1, 70, x, np.zeros((70, 5), np.int32))
    assert (out[:, 0] == np.count_nonzero(x)).all()
    np.testing.assert_array_equal(out[:, 1:] != 0, np.tile([True, False, True, False], (70, 1)))


@pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") == "cuda", reason="a GPU hangs there, or goes on")
def test_threads_that_wait_at_two_barriers_are_reported_with_their_lines() -> None:
    @kernel
    def divergent(x):
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
        else:
            x[0] = 1
            cuda.syncthreads()

    with pytest.raises(BarrierError, match=r"syncthreads\(\) at .*test_threads.py:\d+ and others"):
        launch(divergent, 1, 8, np.zeros(1))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_shuffles_read_the_lane_that_they_name(dtype: Any) -> None:
    @kernel
    def shuffle(x, out):
        t = cuda.grid(1)
        v = x[t]
        out[t, 0] = cuda.shfl_sync(FULL, v, 5)
        out[t, 1] = cuda.shfl_up_sync(FULL, v, 3)
        out[t, 2] = cuda.shfl_down_sync(FULL, v, 2)
        out[t, 3] = cuda.shfl_xor_sync(FULL, v, 9)

    x = (RNG.random(64) * 2**30).astype(dtype)
    _, out = launch(shuffle, 2, 32, x, np.zeros((64, 4), dtype))
    lane = np.arange(64) % 32
    base = np.arange(64) - lane
    np.testing.assert_array_equal(out[:, 0], x[base + 5])
    np.testing.assert_array_equal(out[:, 1], x[np.where(lane < 3, base + lane, base + lane - 3)])
    np.testing.assert_array_equal(out[:, 2], x[np.where(lane > 29, base + lane, base + lane + 2)])
    np.testing.assert_array_equal(out[:, 3], x[base + (lane ^ 9)])


def test_lanes_vote_and_match() -> None:
    @kernel
    def vote(x, out):
        t = cuda.threadIdx.x
        out[t, 0] = cuda.all_sync(FULL, x[t] < 9)
        out[t, 1] = cuda.any_sync(FULL, x[t] == 3)
        out[t, 2] = cuda.eq_sync(FULL, x[t] < 9)
        out[t, 3] = np.uint32(cuda.ballot_sync(FULL, x[t] & 1))
        out[t, 4] = np.uint32(cuda.match_any_sync(FULL, x[t]))
        _, agreed = cuda.match_all_sync(FULL, x[t])
        out[t, 5] = agreed
        cuda.syncwarp()
        out[t, 6] = np.uint32(cuda.activemask())
        out[t, 7] = cuda.lanemask_lt()
        out[t, 8] = cuda.laneid
        out[t, 9] = cuda.warpsize

    for x in (RNG.integers(0, 9, 32).astype(np.int32), np.full(32, 3, np.int32), np.arange(32, dtype=np.int32)):
        _, out = launch(vote, 1, 32, x, np.zeros((32, 10), np.int64))
        assert (out[:, 0] == (x < 9).all()).all()
        assert (out[:, 1] == (x == 3).any()).all()
        assert (out[:, 2] == (np.unique(x < 9).size == 1)).all()
        bits = 1 << np.arange(32)
        assert (out[:, 3] == bits[x % 2 == 1].sum()).all()
        np.testing.assert_array_equal(out[:, 4], [bits[x == each].sum() for each in x])
        assert (out[:, 5] == (np.unique(x).size == 1)).all()
        assert (out[:, 6] == FULL).all()
        np.testing.assert_array_equal(out[:, 7], bits - 1)
        np.testing.assert_array_equal(out[:, 8], np.arange(32))
        assert (out[:, 9] == 32).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_atomics_on_integers_lose_no_update(dtype: Any) -> None:
    @kernel
    def update(x, cells):
        i = cuda.grid(1)
        if i < x.size:
            cuda.atomic.add(cells, 0, x[i])
            cuda.atomic.sub(cells, 1, x[i])
            cuda.atomic.max(cells, 2, x[i])
            cuda.atomic.min(cells, 3, x[i])
            cuda.atomic.and_(cells, 4, x[i])
            cuda.atomic.or_(cells, 5, x[i])
            cuda.atomic.xor(cells, 6, x[i])
            cuda.atomic.cas(cells, 7, 0, i + 1)

    x = RNG.integers(1, 2**20, 1000).astype(dtype)
    start = np.array([0, 0, 0, 2**30, 2**21 - 1, 0, 0, 0], dtype)
    _, cells = launch(update, 4, 256, x, start)
    assert cells[0] == x.sum().astype(dtype)
    assert cells[1] == (0 - x.sum()).astype(dtype)
    assert cells[2] == x.max()
    assert cells[3] == x.min()
    assert cells[4] == np.bitwise_and.reduce(x) & (2**21 - 1)
    assert cells[5] == np.bitwise_or.reduce(x)
    assert cells[6] == np.bitwise_xor.reduce(x)
    assert 1 <= cells[7] <= 1000


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_atomics_on_floats_and_their_nans(dtype: Any) -> None:
    @kernel
    def update(x, cells, old):
        i = cuda.grid(1)
        if i < x.size:
            cuda.atomic.add(cells, 0, x[i])
            cuda.atomic.sub(cells, 1, x[i])
            cuda.atomic.max(cells, 2, x[i])
            cuda.atomic.min(cells, 3, x[i])
            cuda.atomic.nanmax(cells, 4, x[i])
            cuda.atomic.nanmin(cells, 5, x[i])
            cuda.atomic.max(cells, 6, x[i])
        if i == 0:
            old[0] = cuda.atomic.max(cells, 7, dtype(np.nan))

    x = RNG.integers(-1000, 1000, 500).astype(dtype)
    start = np.array([0, 0, -5000, 5000, np.nan, np.nan, np.nan, 3], dtype)
    _, cells, old = launch(update, 2, 256, x, start, np.zeros(1, dtype))
    np.testing.assert_array_equal(cells[:6], [x.sum(), -x.sum(), x.max(), x.min(), x.max(), x.min()])
    assert np.isnan(cells[6])  # a NaN that is there stays,
    assert cells[7] == old[0] == 3  # and one that is given changes nothing


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_atomic_increment_and_decrement_wrap_at_their_bound(dtype: Any) -> None:
    @kernel
    def count(cells):
        cuda.atomic.inc(cells, 0, 9)
        cuda.atomic.dec(cells, 1, 9)
        cuda.atomic.exch(cells, 2, 5)

    cells = launch(count, 1, 33, np.array([0, 0, 0], dtype))
    assert cells.tolist() == [33 % 10, (0 - 33) % 10, 5]


def test_atomics_in_shared_memory_and_on_several_axes() -> None:
    @kernel
    def histogram(x, out):
        counts = cuda.shared.array(10, numba.int32)
        t = cuda.threadIdx.x
        if t < 10:
            counts[t] = 0
        cuda.syncthreads()
        i = cuda.grid(1)
        if i < x.size:
            cuda.atomic.add(counts, x[i], 1)
        cuda.syncthreads()
        if t < 10:
            cuda.atomic.add(out, (t // 5, t % 5), counts[t])

    x = RNG.integers(0, 10, 1025)
    _, out = launch(histogram, 9, 128, x, np.zeros((2, 5), np.int32))
    np.testing.assert_array_equal(out.reshape(-1), np.bincount(x, minlength=10))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_integer_intrinsics_are_pythons_bit_operations(dtype: Any) -> None:
    @kernel
    def bits(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i, 0] = cuda.popc(x[i])
            out[i, 1] = cuda.clz(x[i])
            out[i, 2] = cuda.ffs(x[i])
            out[i, 3] = cuda.brev(x[i])
            out[i, 4] = cuda.selp(x[i] > 5, x[i], dtype(1))
            cuda.threadfence()
            cuda.threadfence_block()
            cuda.threadfence_system()
            cuda.nanosleep(20)

    size = 8 * np.dtype(dtype).itemsize
    x = np.concatenate([[0, 1, 2**size - 1], RNG.integers(0, 2 ** (size - 1), 30)]).astype(dtype)
    _, out = launch(bits, 2, 32, x, np.zeros((33, 5), np.uint64))
    texts = [f"{int(each):0{size}b}" for each in x]
    np.testing.assert_array_equal(out[:, 0], [text.count("1") for text in texts])
    np.testing.assert_array_equal(out[:, 1], [len(text) - len(text.lstrip("0")) for text in texts])
    np.testing.assert_array_equal(out[:, 2], [text[::-1].find("1") + 1 for text in texts])
    np.testing.assert_array_equal(out[:, 3], np.array([int(text[::-1], 2) for text in texts], np.uint64))
    np.testing.assert_array_equal(out[:, 4], np.where(x > 5, x, 1))


def test_the_grid_synchronises_through_cooperative_groups() -> None:
    @kernel
    def steps(x):
        grid = cuda.cg.this_grid()
        i = cuda.grid(1)
        n = cuda.gridsize(1)
        for _ in range(3):
            left = x[(i + 1) % n]
            grid.sync()
            x[i] = left + 1
            grid.sync()

    x = launch(steps, 4, 16, np.arange(64))
    np.testing.assert_array_equal(x, np.roll(np.arange(64), -3) + 3)


def test_numba_cudas_functions_in_a_kernel_of_slices() -> None:
    from oxide import DisjointSlice, Slice, f32, thread

    @kernel
    def smooth(x: Slice[f32], out: DisjointSlice[f32]) -> None:
        shared = cuda.shared.array(64, numba.float32)
        t = cuda.threadIdx.x
        index = thread.index_1d()
        shared[t] = x[index.get()]
        cuda.syncthreads()
        element = out.get_mut(index)
        if element is not None:
            element.value = shared[63 - t] + cuda.shfl_sync(FULL, shared[t], 0)

    x = RNG.random(64).astype(np.float32)
    _, out = launch(smooth, 1, 64, x, np.zeros(64, np.float32))
    np.testing.assert_array_equal(out, x[::-1] + x[np.arange(64) // 32 * 32])


def test_an_array_whose_shape_is_no_constant_is_a_compile_error() -> None:
    @kernel
    def wrong(n, out):
        shared = cuda.shared.array(n, numba.float32)
        out[0] = shared[0]

    with pytest.raises(CompileError, match=r"test_threads.py:\d+"):
        launch(wrong, 1, 1, 5, np.zeros(1))


def test_print_writes_a_line_for_each_thread(capfd: pytest.CaptureFixture[str]) -> None:
    @kernel
    def say(x):
        i = cuda.grid(1)
        print("thread", i, x[i], i > 0, (i, (x[i],)), cuda.blockIdx)

    launch(say, 1, 2, np.array([0.5, 1.5]))
    lines = sorted(capfd.readouterr().out.split("\n"))
    assert lines[1:] == [
        "thread 0 0.500000 False (0, (0.500000,)) (0, 0, 0)",
        "thread 1 1.500000 True (1, (1.500000,)) (0, 0, 0)",
    ]


@pytest.mark.usefixtures("uncached")
def test_print_of_more_items_than_a_gpu_takes_shows_the_format_and_warns(capfd: pytest.CaptureFixture[str]) -> None:
    @kernel
    def say(x):
        print(
            x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10], x[11], x[12], x[13], x[14], x[15], x[16],
            x[17], x[18], x[19], x[20], x[21], x[22], x[23], x[24], x[25], x[26], x[27], x[28], x[29], x[30], x[31],
            x[32],
        )  # fmt: skip

    with pytest.warns(RuntimeWarning, match="cannot print more than 32 items"):
        launch(say, 1, 1, np.arange(33))
    assert capfd.readouterr().out == " ".join(["%lld"] * 33) + "\n"


def test_print_of_as_many_items_as_a_gpu_takes_shows_them(capfd: pytest.CaptureFixture[str]) -> None:
    @kernel
    def say(x):
        print(
            x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10], x[11], x[12], x[13], x[14], x[15], x[16],
            x[17], x[18], x[19], x[20], x[21], x[22], x[23], x[24], x[25], x[26], x[27], x[28], x[29], x[30], x[31],
        )  # fmt: skip

    launch(say, 1, 1, np.arange(32))
    assert capfd.readouterr().out == " ".join(map(str, range(32))) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("meets", [False, True])
def test_the_address_of_an_array_is_a_multiple_of_its_alignment(meets: bool, large: bool) -> None:
    count = 20_000 if large else 32

    @kernel
    def places(y):
        before = cuda.shared.array(shape=(1,), dtype=np.uint8)
        values = cuda.shared.array(shape=(count,), dtype=np.float32, alignment=1024)
        before[0] = 1
        values[0] = 1.0
        if meets:
            cuda.syncthreads()
        y[cuda.blockIdx.x] = values.ctypes.data

    found = launch(places, 4, 1, np.zeros(4, np.int64))
    assert found.all()
    assert not (found % 1024).any()
