"""Clusters of blocks: ranks, barriers, other blocks' shared memory, remote arrivals, tiles copied to many blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxide import (
    BarrierError,
    BoundsError,
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    DynamicSharedArray,
    Kernel,
    LaunchConfig,
    LaunchError,
    SanitizerError,
    SharedArray,
    Slice,
    Slice2,
    bf16,
    d2h,
    devices,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    memcpy,
    tensor,
    thread,
    unroll,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.runtime.launching.launch import KernelLaunches
from oxide.testing import seeded_driver, use_driver
from tests.compiler.assembler import assembled, needs_ptxas

RANDOM = np.random.default_rng(11)


@kernel(cluster=4)
def met(y: DisjointSlice[i32]) -> None:
    """Each block's first thread arrives at the Barrier of each."""
    barrier = tensor.Barrier(1, 4)
    tensor.cluster.meet()
    if thread.thread_idx.x < 4:
        barrier.arrive(0, thread.thread_idx.x)
    barrier.wait(0, 0)
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = i32(tensor.cluster.rank())
    tensor.cluster.meet()


def test_blocks_meet_before_they_arrive_at_each_others_barriers() -> None:
    y = met[8, 32](zeros(256, np.int32)).last().and_then(d2h).sync()
    assert np.array_equal(y, np.arange(256) // 32 % 4)
    assert "barrier.cluster.arrive.relaxed;" in met.ptx()


@kernel(cluster=2)
def mirrored(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """Each block writes what the other block of its cluster has read, in reverse."""
    mine = SharedArray(64, f32)
    i = thread.index_1d()
    t = thread.thread_idx.x
    mine[t] = x[i.get()]
    tensor.cluster.sync()
    other = tensor.cluster.remote(mine, tensor.cluster.rank() ^ 1)
    out = y.get_mut(i)
    if out is not None:
        out.value = other[63 - t] + f32(1000 * tensor.cluster.rank())
    tensor.cluster.sync()


def of_mirrored(blocks: int) -> None:
    x = RANDOM.random(64 * blocks, np.float32)
    y = mirrored[blocks, 64](h2d(x), zeros(64 * blocks)).last().and_then(d2h).sync()
    expected = x.reshape(-1, 2, 64)[:, ::-1, ::-1] + np.float32([[[0], [1000]]])
    assert np.array_equal(y, expected.reshape(-1))


@pytest.mark.parametrize("blocks", [2, 4, 34])
def test_a_block_reads_the_other_blocks_shared_memory(blocks: int) -> None:
    of_mirrored(blocks)


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_cluster_works_in_any_order_of_threads(seed: int) -> None:
    with use_driver(seeded_driver(seed)):
        of_mirrored(4)


@kernel(cluster=(2, 2, 2), partial=True)
def ranked(y: DisjointSlice[i32]) -> None:
    """Each block writes its rank, and the sum of its cluster's numbers, which the blocks add in the first's memory."""
    total = SharedArray(1, i32)
    block = thread.block_idx.x + 4 * (thread.block_idx.y + 2 * thread.block_idx.z)
    if thread.thread_idx.x == 0:
        total[0] = 0
    tensor.cluster.sync()
    first = tensor.cluster.remote(total, 0)
    if thread.thread_idx.x == 0:
        first.fetch_add(0, i32(block))
    tensor.cluster.sync()
    if thread.thread_idx.x == 0:
        y.scatter[3 * block] = i32(tensor.cluster.rank())
        y.scatter[3 * block + 1] = first[0]
        y.scatter[3 * block + 2] = i32(tensor.cluster.size())
    tensor.cluster.sync()


def test_ranks_count_x_first_and_atomics_reach_another_block() -> None:
    y = ranked[(4, 2, 4), 32](zeros(3 * 32, np.int32)).last().and_then(d2h).sync().reshape(4, 2, 4, 3)
    z, down, x = np.mgrid[:4, :2, :4]
    assert np.array_equal(y[..., 0], x % 2 + 2 * (down % 2) + 4 * (z % 2))
    numbers = (x + 4 * (down + 2 * z)).reshape(2, 2, 1, 2, 2, 2)
    sums = numbers.sum((1, 3, 5), keepdims=True) + 0 * numbers
    assert np.array_equal(y[..., 1], sums.reshape(4, 2, 4))
    assert (y[..., 2] == 8).all()


@kernel(cluster=4, partial=True)
def passed_around(rounds: i64, y: DisjointSlice[i32]) -> None:
    """A number goes round the blocks of a cluster: each adds 1, writes it to the next and arrives there."""
    box = SharedArray(1, i32)
    ready = tensor.Barrier(1, 1)
    rank = tensor.cluster.rank()
    if thread.thread_idx.x == 0:
        box[0] = 0
    tensor.cluster.sync()
    following = tensor.cluster.remote(box, (rank + 1) % 4)
    if thread.thread_idx.x == 0:
        for step in range(rounds):
            if rank != 0 or step != 0:
                ready.wait(0, step - (1 if rank == 0 else 0))
            following[0] = box[0] + 1
            ready.arrive(0, (rank + 1) % 4)
        if rank == 0:
            ready.wait(0, rounds - 1)
            y.scatter[thread.block_idx.x // 4] = box[0]
    tensor.cluster.sync()


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2, 9])
def test_arrivals_at_another_blocks_barrier_pass_a_number_around(rounds: int) -> None:
    y = passed_around[12, 32](rounds, zeros(3, np.int32)).last().and_then(d2h).sync()
    assert (y == 4 * rounds).all()


@kernel(cluster=2)
def shared_product(a: Slice2[bf16], b: Slice2[bf16], c: DisjointSlice2[f32]) -> None:
    """Each block multiplies 64 rows of a by the transpose of 64 rows of b, which the first block copies to both."""
    left, right = tensor.SharedTiles(2, (64, 64), bf16), tensor.SharedTiles(2, (64, 64), bf16)
    full, empty = tensor.Barrier(2, 1), tensor.Barrier(2, 2)
    rank, first = tensor.cluster.rank(), thread.block_idx.x * 64
    steps = (a.shape[1] + 63) // 64
    tensor.cluster.sync()
    if thread.thread_idx.x >= 128:
        if thread.thread_idx.x == 128:
            for step in range(steps):
                empty.wait(step % 2, step // 2 - 1)
                full.expect(step % 2, 2 * 64 * 128)
                tensor.load_tile(left, step % 2, a, (first, step * 64), full, step % 2)
                if rank == 0:
                    tensor.load_tile(right, step % 2, b, (0, step * 64), full, step % 2, multicast=3)
    else:
        total = tensor.Accumulator((16, 64), f32)
        for step in range(steps):
            full.wait(step % 2, step // 2)
            tensor.wgmma(total, left, (step % 2, 0), right, step % 2)
            tensor.wait_wgmma(total)
            if thread.thread_idx.x < 2:
                empty.arrive(step % 2, thread.thread_idx.x)
        for i in unroll(range(32)):
            row = first + thread.thread_idx.x // 32 * 16 + total.row(i)
            if row < c.shape[0]:
                c.scatter[row, total.column(i)] = total[i]
    tensor.cluster.sync()


def of_shared_product(m: int, k: int) -> None:
    a, b = RANDOM.integers(-3, 4, (m, k)), RANDOM.integers(-3, 4, (64, k))
    boxes = [h2d(each.astype(bf16.dtype)) for each in (a, b)]
    blocks = -(-m // 128) * 2
    c = shared_product[LaunchConfig(blocks, 160)](*boxes, zeros((m, 64))).last().and_then(d2h).sync()
    assert np.array_equal(c, a @ b.T)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "k"), [(128, 64), (100, 200), (300, 8)])
def test_one_copy_fills_the_tiles_of_both_blocks(m: int, k: int) -> None:
    of_shared_product(m, k)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_copies_to_many_blocks_work_in_any_order_of_threads(seed: int) -> None:
    with use_driver(seeded_driver(seed)):
        of_shared_product(128, 136)


def test_a_launch_in_a_graph_has_its_clusters() -> None:
    x, y = h2d(RANDOM.random(256, np.float32)).sync(), zeros(256).sync()
    graph = mirrored[4, 64](x, y).graph()
    for _ in range(2):
        new = RANDOM.random(256, np.float32)
        memcpy(x, new).sync()
        graph.launch().sync()
        expected = new.reshape(-1, 2, 64)[:, ::-1, ::-1] + np.float32([[[0], [1000]]])
        assert np.array_equal(d2h(y).sync(), expected.reshape(-1))


def test_blocks_that_have_returned_are_not_waited_for() -> None:
    @kernel(cluster=2, partial=True)
    def alone(y: DisjointSlice[i32]) -> None:
        if tensor.cluster.rank() == 0:
            tensor.cluster.sync()
            if thread.thread_idx.x == 0:
                y.scatter[thread.block_idx.x // 2] = i32(1)

    assert (alone[6, 64](zeros(3, np.int32)).last().and_then(d2h).sync() == 1).all()


def test_a_kernel_without_other_blocks_needs_no_cluster_words() -> None:
    @kernel(cluster=2, block=32)
    def doubled(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        out = y.get_mut(i)
        if out is not None:
            out.value = 2.0 * x[i.get()]

    x = RANDOM.random(33 * 3, np.float32)
    for count in (1, 33, 65, 99):
        assert np.array_equal(doubled(h2d(x[:count]), zeros(count)).last().and_then(d2h).sync(), 2 * x[:count])


@pytest.mark.parametrize("grid", [1, 3, (4, 2)])
def test_a_grid_of_parts_of_clusters_is_refused(grid: Any) -> None:
    @kernel(cluster=(2, 4), partial=True)
    def any_kernel(y: DisjointSlice[i32]) -> None:
        y.scatter[0] = i32(1)

    with pytest.raises(LaunchError) as caught:
        any_kernel[grid, 32](zeros(1, np.int32))
    message = str(caught.value)
    assert (
        "kernel any_kernel has clusters of (2, 4, 1) blocks, and each axis of the grid is a multiple of theirs"
        in message
    )
    whole = {1: (2, 4, 1), 3: (4, 4, 1), (4, 2): (4, 4, 1)}[grid]
    assert message.endswith(f"launch {whole}")


@pytest.mark.parametrize(
    ("cluster", "found"),
    [
        (0, "cluster is 0; "),
        (9, "cluster is 9, 9 blocks; "),
        ((2, 2, 4), "cluster is (2, 2, 4), 16 blocks; "),
        ((1, 1, 1, 2), "cluster is (1, 1, 1, 2); "),
        ("2", "cluster is '2'; "),
        (True, "cluster is True; "),
    ],
)
def test_an_impossible_cluster_is_refused(cluster: Any, found: str) -> None:
    with pytest.raises(CompileError) as caught:

        @kernel(cluster=cluster)
        def refused(y: DisjointSlice[i32]) -> None: ...

    assert f"kernel refused: {found}give one to three numbers of blocks of at least 1, whose product is at most 8" in (
        str(caught.value)
    )


REFUSED = {
    "tensor.cluster.remote(own)": (
        "tensor.cluster.remote takes a shared array and a block's rank in the cluster, an integer"
    ),
    "tensor.cluster.remote(own, 0.5)": (
        "tensor.cluster.remote takes a shared array and a block's rank in the cluster, an integer"
    ),
    "tensor.cluster.remote(local, 0)": (
        "tensor.cluster.remote takes a SharedArray or DynamicSharedArray of this block, not LocalArray(4, f32)"
    ),
    "tensor.cluster.remote(tiles, 0)": (
        "tensor.cluster.remote takes a SharedArray or DynamicSharedArray of this block, not SharedTiles(1, (64, 64), "
        "bf16)"
    ),
    "tensor.cluster.remote(tensor.cluster.remote(own, 0), 0)": (
        "tensor.cluster.remote takes a SharedArray or DynamicSharedArray of this block, not SharedArray((16, 64), "
        "bf16) of another block"
    ),
    "tensor.ldmatrix(left, tensor.cluster.remote(own, 0), (0, 0))": "tensor.ldmatrix",
    "full.arrive(0, 0.5)": "tensor.Barrier.arrive: rank is an integer, not f64",
    "full.arrive()": "tensor.Barrier.arrive takes (index, rank), the last optional",
    "tensor.load_tile(tiles, 0, x, (0, 0), full, 0, multicast=0.5)": (
        "tensor.load_tile: multicast is an integer, a bit for each block of the cluster, not f64"
    ),
}


def compiled(statement: str, path: Path, options: str = "(cluster=2)") -> str:
    """Returns the error of a kernel with a statement in line 11, or the kernel's PTX."""
    path.write_text(
        "from oxide import LocalArray, SharedArray, Slice2, bf16, f32, kernel, tensor, thread\n\n"
        f"@kernel{options}\n"
        "def refused(x: Slice2[bf16]):\n"
        "    tiles = tensor.SharedTiles(1, (64, 64), bf16)\n"
        "    own = SharedArray((16, 64), bf16)\n"
        "    local = LocalArray(4, f32)\n"
        "    left = tensor.FragmentA((16, 16), bf16)\n"
        "    full = tensor.Barrier(1, 1)\n"
        "    local[0] = 1.0\n"
        f"    {statement}\n",
        encoding="utf-8",
    )
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    try:
        return str(scope["refused"].ptx(cc=(9, 0)))
    except CompileError as error:
        return str(error)


@pytest.mark.parametrize("statement", REFUSED)
def test_a_mistake_has_one_clear_sentence(statement: str, tmp_path: Path) -> None:
    message = compiled(statement, tmp_path / "refused.py")
    assert REFUSED[statement] in message
    assert "refused.py:11" in message


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("tensor.cluster.sync()", "tensor.cluster.sync()"),
        ("full.arrive(0, 1)", "tensor.cluster.size()"),
        ("local[0] = f32(tensor.cluster.rank())", "tensor.cluster.rank()"),
        ("tensor.load_tile(tiles, 0, x, (0, 0), full, 0, multicast=1)", "tensor.cluster.size()"),
    ],
)
def test_reaching_other_blocks_needs_a_cluster(statement: str, what: str, tmp_path: Path) -> None:
    message = compiled(statement, tmp_path / "refused.py", options="")
    assert "refused.py:11" in message
    assert (
        f"kernel refused: {what} reaches other blocks of a cluster, and the kernel has none: declare "
        "@kernel(cluster=2), the number of its blocks"
    ) in message


def test_the_whole_grid_and_clusters_exclude_each_other(tmp_path: Path) -> None:
    message = compiled("thread.sync_grid()", tmp_path / "refused.py")
    assert "refused.py:11: kernel refused: thread.sync_grid() needs all blocks at once" in message


def test_a_gpu_without_clusters_refuses_them() -> None:
    with pytest.raises(CompileError, match=r"tensor\.cluster needs compute capability 9\.0, and this code is for 8\.9"):
        mirrored.ptx(cc=(8, 9))


def test_a_gpu_without_clusters_refuses_the_option_alone() -> None:
    @kernel(cluster=(2, 1))
    def grouped(y: DisjointSlice[i32]) -> None:
        y.get_mut(thread.index_1d())

    with pytest.raises(CompileError, match=r"cluster=\(2, 1, 1\) needs compute capability 9.0, and this code is for"):
        grouped.ptx(cc=(8, 0))
    assert ".reqnctapercluster 2, 1, 1" in grouped.ptx(cc=(9, 0))


def test_the_ptx_has_the_instructions_of_the_isa() -> None:
    ptx = shared_product.ptx()
    for text in (
        ".explicitcluster",
        ".reqnctapercluster 2, 1, 1",
        ".target sm_90a",
        ", %cluster_ctarank;",
        "barrier.cluster.arrive;",
        "barrier.cluster.wait;",
        "mbarrier.try_wait.parity.shared::cta.b64 done, [",
        "mapa.shared::cluster.u32 a, %",
        "mbarrier.arrive.shared::cluster.b64 _, [a];",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%",
    ):
        assert text in ptx
    assert "mapa.u64" in mirrored.ptx()
    # Only a kernel that writes other blocks' memory has to pass on what its threads wrote.
    ptx = passed_around.ptx()
    assert "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [" in ptx
    assert "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [a];" in ptx


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("made", [mirrored, ranked, passed_around, shared_product])
def test_the_assembler_takes_the_ptx(made: Any) -> None:
    assert "registers" in assembled(made.ptx())


def test_an_outside_rank_or_mask_is_a_fault_and_nothing_is_done() -> None:
    @kernel(cluster=2, partial=True)
    def outside(rank: i64, mask: i64, x: Slice2[bf16], y: DisjointSlice[f32]) -> None:
        own = SharedArray(32, f32)
        tiles = tensor.SharedTiles(1, (8, 64), bf16)
        full = tensor.Barrier(1, 1)
        t = thread.thread_idx.x
        own[t] = f32(t)
        tensor.cluster.sync()
        y.scatter[thread.block_idx.x * 32 + t] = tensor.cluster.remote(own, rank)[t]
        if t == 0:
            full.arrive(0, rank)
            if mask != 0:
                tensor.load_tile(tiles, 0, x, (0, 0), full, 0, multicast=mask)
        tensor.cluster.sync()

    x = h2d(np.zeros((8, 64), bf16.dtype)).sync()
    for rank, mask in ((2, 0), (-1, 0), (0, 4), (0, -1)):
        with pytest.raises(BoundsError) as caught:
            outside[2, 32](rank, mask, x, zeros(64)).sync()
        error = caught.value
        assert (error.index, error.length) == ((rank, 2) if mask == 0 else (mask, 4))
        assert error.parameter == ("tensor.cluster.remote()" if mask == 0 else "tensor.load_tile()")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_sanitizer_has_nothing_to_say_of_right_kernels(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_SANITIZE", "memory,race")
    with use_driver(CpuDriver() if seed is None else seeded_driver(seed)):
        x = RANDOM.random(256, np.float32)
        again = Kernel(mirrored.function, launches=KernelLaunches(), cluster=2, names=globals())
        y = again[4, 64](h2d(x), zeros(256)).last().and_then(d2h).sync()
        expected = x.reshape(-1, 2, 64)[:, ::-1, ::-1] + np.float32([[[0], [1000]]])
        assert np.array_equal(y, expected.reshape(-1))
        around = Kernel(passed_around.function, launches=KernelLaunches(), cluster=4, partial=True, names=globals())
        assert (around[8, 32](5, zeros(2, np.int32)).last().and_then(d2h).sync() == 20).all()
        product = Kernel(shared_product.function, launches=KernelLaunches(), cluster=2, names=globals())
        a, b = RANDOM.integers(-3, 4, (128, 136)), RANDOM.integers(-3, 4, (64, 136))
        boxes = [h2d(each.astype(bf16.dtype)) for each in (a, b)]
        c = product[LaunchConfig(2, 160)](*boxes, zeros((128, 64))).last().and_then(d2h).sync()
        assert np.array_equal(c, a @ b.T)


def exchanged(kinds: str | tuple[str, ...], mistake: str) -> Any:
    """Two blocks write each other's memory and read their own, with a mistake."""
    meets_first, meets_again = mistake != "no first meeting", mistake != "no second meeting"
    outside, all_written = mistake == "an element outside", mistake != "an element not written"

    @kernel(cluster=2, sanitize=kinds, unchecked=outside, partial=True)
    def swap(n: i64, y: DisjointSlice[f32]) -> None:
        own = SharedArray(32, f32)
        t = thread.thread_idx.x
        if not meets_first:
            own[t] = 0.0
        else:
            tensor.cluster.sync()
        other = tensor.cluster.remote(own, 1 - tensor.cluster.rank())
        if all_written or t < 31:
            other[t + n] = f32(t)
        if meets_again:
            tensor.cluster.sync()
        y.scatter[thread.block_idx.x * 32 + t] = own[t]
        tensor.cluster.sync()

    return swap


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "kinds", "told"),
    [
        ("none", ("memory", "race"), None),
        ("no first meeting", "race", "is in a race"),
        ("no second meeting", "race", "is in a race"),
        ("an element not written", "memory", "uninitialized: a read of a SharedArray"),
        ("an element outside", "memory", "out-of-bounds: a write to another block's array"),
    ],
)
@pytest.mark.parametrize("seed", [None, 3])
def test_mistakes_with_another_blocks_memory_are_found(mistake: str, kinds: Any, told: str | None, seed: Any) -> None:
    with use_driver(CpuDriver() if seed is None else seeded_driver(seed)):
        launch = exchanged(kinds, mistake)[4, 32](int(mistake == "an element outside"), zeros(128)).last().and_then(d2h)
        if told is None:
            assert np.array_equal(launch.sync().reshape(4, 32), np.tile(np.arange(32, dtype=np.float32), (4, 1)))
        else:
            with pytest.raises(SanitizerError, match=told):
                launch.sync()


def arrived(mistake: str) -> Any:
    """A block copies to another's tile and arrives there; the other gives it back, with a mistake."""
    waits_full, waits_empty = mistake != "no wait for the tile", mistake != "no wait for a free tile"
    steps = 2 if waits_full else 1

    @kernel(cluster=2, sanitize="race", partial=True)
    def filled(x: Slice2[bf16], y: DisjointSlice[f32]) -> None:
        tile = tensor.SharedTiles(1, (8, 64), bf16)
        full, empty = tensor.Barrier(1, 1), tensor.Barrier(1, 1)
        rank, t = tensor.cluster.rank(), thread.thread_idx.x
        tensor.cluster.sync()
        if t == 0:
            for step in range(steps):
                if rank == 1:
                    full.expect(0, 1024)
                    if waits_full:
                        full.wait(0, step)
                    y.scatter[2 * (thread.block_idx.x // 2) + step] = f32(tile[0, 3, 5])
                    empty.arrive(0, 0)
                else:
                    if waits_empty:
                        empty.wait(0, step - 1)
                    tensor.load_tile(tile, 0, x, (step, 0), full, 0, multicast=2)
        tensor.cluster.sync()

    return filled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "error", "told"),
    [
        ("none", None, ""),
        ("no wait for the tile", SanitizerError, "race"),
        ("no wait for a free tile", BarrierError, "which cannot end"),
    ],
)
def test_mistakes_with_tiles_of_other_blocks_are_found(mistake: str, error: Any, told: str) -> None:
    x = RANDOM.integers(-9, 9, (10, 64)).astype(bf16.dtype)
    with use_driver(CpuDriver()):
        launch = arrived(mistake)[4, 32](h2d(x), zeros(4)).last().and_then(d2h)
        if error is None:
            assert np.array_equal(launch.sync(), x[[3, 4, 3, 4], 5].astype(np.float32))
        else:
            with pytest.raises(error, match=told):
                launch.sync()


def test_a_block_that_waits_for_one_that_cannot_come_is_reported() -> None:
    @kernel(cluster=2, partial=True)
    def stuck(y: DisjointSlice[i32]) -> None:
        ready = tensor.Barrier(1, 1)
        tensor.cluster.sync()
        if tensor.cluster.rank() == 0:
            ready.wait(0, 0)
        tensor.cluster.sync()

    with use_driver(CpuDriver()), pytest.raises(BarrierError) as caught:
        stuck[2, 64](zeros(1, np.int32)).sync()
    assert "for phase 0 of a Barrier, which cannot end: the Barrier is in phase 0" in str(caught.value)


def test_an_interpreted_kernel_with_clusters_is_refused() -> None:
    if devices()[0].kind != "cpu":
        pytest.skip("the interpreter runs on the CPU device")
    with pytest.raises(LaunchError, match=r"tensor\.cluster\.sync\(…\) cannot be interpreted; launch it compiled"):
        mirrored[2, 64].interpret(zeros(128), zeros(128)).sync()


def test_threads_of_a_block_at_different_barriers_are_reported() -> None:
    @kernel(cluster=2, partial=True)
    def apart(y: DisjointSlice[i32]) -> None:
        if thread.thread_idx.x < 32:
            tensor.cluster.sync()
        else:
            thread.sync_threads()

    with use_driver(CpuDriver()), pytest.raises(BarrierError):
        apart[2, 64](zeros(1, np.int32)).sync()


def test_dynamic_shared_memory_of_another_block_is_reached() -> None:
    @kernel(cluster=2, partial=True)
    def swapped(y: DisjointSlice[i64]) -> None:
        own = DynamicSharedArray(i64)
        t = thread.thread_idx.x
        tensor.cluster.sync()
        tensor.cluster.remote(own, 1 - tensor.cluster.rank())[t] = thread.block_idx.x * 100 + t
        tensor.cluster.sync()
        y.scatter[thread.block_idx.x * 32 + t] = own[t]

    y = swapped[LaunchConfig(4, 32, shared_mem_bytes=256)](zeros(128, np.int64)).last().and_then(d2h).sync()
    assert np.array_equal(y.reshape(4, 32), np.array([1, 0, 3, 2])[:, None] * 100 + np.arange(32))
