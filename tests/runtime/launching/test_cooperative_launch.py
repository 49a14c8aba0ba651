"""``thread.sync_grid()``: what blocks write before it, all see after; launches that cannot be are refused."""

from __future__ import annotations

import numpy as np
import pytest

import oxide
from oxide import (
    AtomicSlice,
    BarrierError,
    CompileError,
    DisjointSlice,
    LaunchConfig,
    LaunchError,
    SharedArray,
    Slice,
    d2h,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u32,
    zeros,
)
from oxide.testing import step_driver, use_driver
from tests.runtime.grid_of_neighbours import neighbours, summed

SHAPES = [(1, 1), (1, 32), (2, 33), (7, 64), (40, 100), (9, 1024)]


@kernel
def total_in_one_launch(x: Slice[i64], partial: AtomicSlice[i64], out: DisjointSlice[i64]) -> None:
    """The sum of x, a part of it in each block, shared memory and both barriers in use."""
    shared = SharedArray(1, i64)
    t, index = thread.thread_idx.x, thread.index_1d()
    if t == 0:
        shared[0] = 0
    thread.sync_threads()
    i = index.get()
    while i < len(x):
        shared.fetch_add(0, x[i])
        i += thread.grid_dim.x * thread.block_dim.x
    thread.sync_threads()
    if t == 0:
        partial.store(thread.block_idx.x, shared[0])
    thread.sync_grid()
    total = i64(0)
    for block in range(thread.grid_dim.x):
        total += partial.load(block)
    elem = out.get_mut(index)
    if elem is not None:
        elem.value = total + shared[0] * 0


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "threads"), SHAPES)
def test_what_was_written_before_the_barrier_is_seen_by_all_after_it(blocks: int, threads: int) -> None:
    x = np.random.default_rng(blocks).integers(0, 1009, blocks * threads).astype(np.int32)
    result = neighbours[blocks, threads](3, h2d(x), zeros(x.size, i32)).sync()[1]
    np.testing.assert_array_equal(d2h(result).sync(), summed(x, 6))


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "threads"), SHAPES)
def test_blocks_keep_their_shared_memory_over_the_grid_s_barrier(blocks: int, threads: int) -> None:
    x = np.random.default_rng(blocks).integers(-1000, 1000, 3001)
    out = total_in_one_launch[blocks, threads](h2d(x), zeros(blocks, i64), zeros(blocks * threads, i64)).last()
    np.testing.assert_array_equal(d2h(out).sync(), [x.sum()] * (blocks * threads))


def test_a_grid_of_three_axes_meets_too() -> None:
    @kernel
    def count(arrived: AtomicSlice[u32], seen: AtomicSlice[u32]) -> None:
        arrived.fetch_add(0, 1)
        thread.sync_grid()
        if arrived.load(0) == 2 * 3 * 4 * 5 * 2 * 2:
            seen.fetch_add(0, 1)

    boxes = count[LaunchConfig((2, 3, 4), (5, 2, 2))](zeros(1, u32), zeros(1, u32)).sync()
    assert d2h(boxes[1]).sync().tolist() == [480]


def test_launches_in_flight_together_do_not_share_a_barrier() -> None:
    x = np.arange(128, dtype=np.int32)
    launches = [neighbours[4, 32](rounds, h2d(x), zeros(128, i32)) for rounds in (1, 5, 2, 9, 3)]
    futures = [oxide.zip(launch, oxide.value(i)) for i, launch in enumerate(launches)]
    for rounds, future in zip((1, 5, 2, 9, 3), futures, strict=True):
        ((_, result, _), _) = future.sync()
        np.testing.assert_array_equal(d2h(result).sync(), summed(x, 2 * rounds))


def test_a_graph_with_a_cooperative_launch_runs_again_and_again() -> None:
    x = np.arange(96, dtype=np.int32)
    box, scratch = h2d(x).sync(), zeros(96, i32).sync()
    graph = neighbours[3, 32](2, box, scratch).graph()
    steps = int(not np.array_equal(d2h(box).sync(), x)) * 4
    for _ in range(3):
        graph.launch().sync()
        steps += 4
        np.testing.assert_array_equal(d2h(box).sync(), summed(x, steps))


@pytest.mark.usefixtures("cpu_only")
def test_a_stepping_device_runs_a_cooperative_launch_in_one_step() -> None:
    with use_driver(step_driver()):
        x = np.arange(96, dtype=np.int32)
        result = neighbours[3, 32](2, h2d(x), zeros(96, i32)).sync()[1]
        np.testing.assert_array_equal(d2h(result).sync(), summed(x, 4))
        with pytest.raises(BarrierError, match="others of the grid have returned"):
            some_return[4, 32](40, zeros(1, f32)).sync()


@pytest.mark.parametrize("threads", [1, 1024])
def test_a_grid_that_does_not_fit_is_refused_with_both_numbers_and_harms_nothing(threads: int) -> None:
    x, scratch = h2d(np.arange(64, dtype=np.int32)).sync(), zeros(64, i32).sync()
    launch = neighbours[10_000, threads](1, x, scratch)
    with pytest.raises(
        LaunchError, match=rf"kernel neighbours: .*10000 blocks of {threads} threads.* holds \d+ of them"
    ):
        launch.sync()
    neighbours[2, 32](1, x, scratch).sync()
    np.testing.assert_array_equal(d2h(x).sync(), summed(np.arange(64), 2))


def test_a_kernel_that_syncs_the_grid_has_no_assert() -> None:
    @kernel
    def asserting(x: Slice[f32]) -> None:
        assert len(x) > 3
        thread.sync_grid()

    with pytest.raises(CompileError, match=r"asserting uses thread\.sync_grid\(\), so it has no assert"):
        asserting.specialize()


def test_a_kernel_that_syncs_the_grid_has_no_step_that_could_be_zero() -> None:
    @kernel
    def stepping(step: i32, x: Slice[f32]) -> None:
        for _ in range(3, 0, -1):
            thread.sync_grid()
        for _ in range(0, 3, step):
            thread.sync_grid()

    with pytest.raises(
        CompileError, match=r"stepping uses thread\.sync_grid\(\), so it has no range\(\.\.\.\) with a s"
    ):
        stepping.specialize()


def test_sync_grid_takes_no_arguments() -> None:
    @kernel
    def wrong(x: Slice[f32]) -> None:
        thread.sync_grid(1)  # type: ignore[call-arg]

    with pytest.raises(CompileError, match=r"thread\.sync_grid\(\) takes no arguments; the call has 1"):
        wrong.specialize()


@pytest.fixture
def cpu_only(device: str) -> None:
    if device != "cpu":
        pytest.skip("a GPU does not tell")


@kernel
def some_return(first: u32, x: Slice[f32]) -> None:
    if thread.index_1d().get() >= first:
        return
    thread.sync_grid()


@kernel
def two_places(x: Slice[f32]) -> None:
    if thread.block_idx.x == 0:
        thread.sync_grid()
    else:
        thread.sync_grid()


@kernel
def block_and_grid(x: Slice[f32]) -> None:
    if thread.thread_idx.x == 0:
        thread.sync_threads()
    else:
        thread.sync_grid()


@pytest.mark.usefixtures("cpu_only")
@pytest.mark.parametrize("first", [1, 31, 32, 64, 100])
def test_a_thread_that_has_returned_is_a_fault_and_no_hang(first: int) -> None:
    with pytest.raises(BarrierError, match=r"wait in sync_grid\(\) at .*, and others of the grid have returned"):
        some_return[4, 32](first, zeros(1, f32)).sync()
    some_return[4, 32](128, zeros(1, f32)).sync()


@pytest.mark.usefixtures("cpu_only")
def test_blocks_at_different_barriers_are_a_fault_that_names_both() -> None:
    with pytest.raises(
        BarrierError, match=r"some threads wait in sync_grid\(\) at .* others in sync_grid\(\)"
    ) as caught:
        two_places[3, 32](zeros(1, f32)).sync()
    (_, first), (_, second) = caught.value.places
    assert second - first == 2


@pytest.mark.usefixtures("cpu_only")
def test_a_block_barrier_beside_the_grid_s_is_a_fault() -> None:
    with pytest.raises(BarrierError, match="some threads wait in sync_"):
        block_and_grid[2, 32](zeros(1, f32)).sync()
