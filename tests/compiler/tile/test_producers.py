"""Programs whose copies a warpgroup of its own makes, and whose blocks compute one program after another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import oxide
from examples.tiles import gemm
from oxide import bf16, d2h, f16, f32, h2d, i32, tile, zeros
from oxide.compiler.tile import tile_source as source
from oxide.compiler.tile.lowering import pipelines
from oxide.compiler.tile.lowering.state import Lowering

from .test_tensor_cores import numbers, plan


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    if oxide.devices()[0].kind == "cpu":
        monkeypatch.setattr(source, "simulated", 90)


def wide(array: Any) -> Any:
    return array.astype(np.float64)


def close(found: Any, expected: Any, error: float) -> bool:
    return bool(np.linalg.norm(wide(found) - expected) <= error * np.linalg.norm(expected))


@pytest.mark.slow
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("warps", "tiles"), [(4, (64, 64)), (4, (128, 32)), (8, (128, 64)), (8, (256, 64))])
@pytest.mark.parametrize("sizes", [(520, 200, 136), (300, 70, 33), (1, 8, 8)])
def test_blocks_compute_one_program_after_another(warps: int, tiles: tuple[int, int], sizes: Any) -> None:
    m, n, k = sizes
    kernel = tile.kernel(warps=warps, stages=3)(gemm.matmul.function)
    a, b = numbers((m, k), bf16), numbers((k, n), bf16)
    padded = h2d(np.full(m * n + 256, 5).astype(np.dtype(bf16))).sync()
    out = padded[128 : 128 + m * n].reshape(m, n)
    kernel(out.partition(tiles), h2d(a), h2d(b)).sync()
    whole = d2h(padded).sync()
    assert (wide(whole[:128]) == 5).all()
    assert (wide(whole[-128:]) == 5).all()
    assert close(whole[128:-128].reshape(m, n), wide(a) @ wide(b), 4e-3)
    assert plan(kernel, 90, c=tiles).producer or tiles[1] < 64, "the rows of b's tile are too short for TMA"


@tile.kernel(warps=4, stages=3)
def two_loops(
    c: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2], d: tile.Tensor[f16, 2], first: i32
) -> None:
    row, column = c.index
    acc = tile.zeros(c.tile_shape)
    for k in range(row + 1):
        acc = tile.mma(a.load((row, k), (64, 64)), b.load((k, column), (64, 64)), acc)
    acc = acc * 2
    for k in range(tile.cdiv(a.shape[1], 64) - 1, first, -1):
        acc = tile.mma(a.load((row, k), (64, 64)), d.load((column, k), (64, 64)).T, acc)
    c.store(acc - acc.sum(axis=0) / 64 + acc.T)


@pytest.mark.nightly
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("width", [256, 250])
def test_two_pipelines_and_values_that_other_warps_compute(width: int) -> None:
    assert plan(two_loops, 90, c=(64, 64)).producer
    rows = 320
    a, b, d = numbers((rows, width), f16), numbers((width, 128), f16), numbers((128, width), f16)
    found = two_loops(zeros((rows, 128)).partition((64, 64)), h2d(a), h2d(b), h2d(d), 1).first().unpartition()
    expected = np.zeros((rows, 128))
    for row in range(0, rows, 64):
        for column in range(0, 128, 64):
            left, up, across = wide(a[row : row + 64]), slice(0, row + 64), slice(128, None)
            acc = 2 * (left[:, up] @ wide(b[up, column : column + 64]))
            acc += left[:, across] @ wide(d[column : column + 64, across]).T
            expected[row : row + 64, column : column + 64] = acc - acc.sum(0) / 64 + acc.T
    assert close(found.to_host().sync(), expected, 1e-5)


@pytest.mark.usefixtures("hopper")
def test_operands_without_elements() -> None:
    kernel = tile.kernel(warps=4, stages=3)(gemm.matmul.function)
    a, b = np.ones((300, 0), np.float16).astype(bf16.dtype), np.ones((0, 200), np.float16).astype(bf16.dtype)
    out = h2d(np.ones((300, 200), np.float32).astype(bf16.dtype)).sync()
    kernel(out.partition((64, 64)), h2d(a), h2d(b)).sync()
    assert not wide(d2h(out).sync()).any()
    assert kernel(zeros((0, 200), bf16).partition((64, 64)), h2d(a[:0]), h2d(b)).first().unpartition().sync().size == 0


# The choice

TILES = (64, 64)


@tile.kernel(warps=4, stages=3)
def stored_before(c: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2]) -> None:
    c.store(tile.ones(c.tile_shape))
    acc = tile.zeros(c.tile_shape)
    for k in range(tile.cdiv(a.shape[1], 64)):
        acc = tile.mma(a.load((c.index[0], k), (64, 64)), b.load((k, c.index[1]), (64, 64)), acc)
    c.store(acc)


@tile.kernel(warps=4, stages=3)
def checked(c: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2]) -> None:
    assert a.shape[1] == b.shape[0]
    acc = tile.zeros(c.tile_shape)
    for k in range(tile.cdiv(a.shape[1], 64)):
        acc = tile.mma(a.load((c.index[0], k), (64, 64)), b.load((k, c.index[1]), (64, 64)), acc)
    c.store(acc)


@tile.kernel(warps=4, stages=3)
def listed(
    c: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2], lengths: tile.Tensor[i32, 1]
) -> None:
    acc = tile.zeros(c.tile_shape)
    for k in range(tile.gather(lengths, c.index[0])):
        acc = tile.mma(a.load((c.index[0], k), (64, 64)), b.load((k, c.index[1]), (64, 64)), acc)
    c.store(acc)


@tile.kernel(warps=4, stages=3)
def again(c: tile.Partition[f32, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2]) -> None:
    acc = tile.zeros(c.tile_shape)
    for _ in range(2):
        for k in range(tile.cdiv(a.shape[1], 64)):
            acc = tile.mma(a.load((c.index[0], k), (64, 64)), b.load((k, c.index[1]), (64, 64)), acc)
    c.store(acc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (stored_before, "line {} writes a tensor before the last pipeline's end"),
        (checked, "line {} has assert"),
        (listed, "a tile's place is computed from tensors or variables in the loop at line {}"),
        (again, "tiles are loaded again and again in the loop at line {}"),
        (tile.kernel(warps=4, stages=2)(again.function), "tiles are loaded again and again in the loop at line {}"),
    ],
)
def test_explain_says_why_there_is_no_producer(kernel: Any, why: str) -> None:
    said = kernel.explain(c=TILES)
    before, after = why.split("{}")
    assert f"the warps that compute also make the copies, because {before}" in said
    assert after in said
    assert ".setmaxnreg" not in kernel.ptx(c=TILES)


def test_explain_says_that_there_is_one() -> None:
    kernel = tile.kernel(warps=8, stages=4)(gemm.matmul.function)
    sentence = "128 more threads make the copies, and blocks compute one program after another"
    assert sentence in kernel.explain(c=gemm.TILE)
    assert sentence not in kernel.explain((8, 0), c=TILES)
    alone = "because no wgmma, in place and with both operands loaded in three or more stages, is alone"
    assert alone in tile.kernel(warps=8, stages=2)(gemm.matmul.function).explain(c=gemm.TILE)
    assert "because there are more than 8 warps" in tile.kernel(warps=16, stages=3)(gemm.matmul.function).explain(
        c=(256, 256)
    )


@pytest.mark.nightly
def test_the_producer_leaves_its_registers_to_eight_warps() -> None:
    eight = tile.kernel(warps=8, stages=4)(gemm.matmul.function).ptx(c=gemm.TILE)
    assert ".maxntid 384" in eight
    assert "setmaxnreg.dec.sync.aligned.u32 56;" in eight
    assert "setmaxnreg.inc.sync.aligned.u32 224;" in eight
    four = tile.kernel(warps=4, stages=4)(gemm.matmul.function).ptx(c=(64, 256))
    assert ".maxntid 256" in four
    assert "setmaxnreg" not in four
    # The rows of a warp's lines are written without the other warps.
    assert eight.count("bar.sync") == 1


# What is needed


def faulty(sizes: tuple[int, int, int] = (200, 136, 520)) -> None:
    m, n, k = sizes
    a, b = numbers((m, k), bf16), numbers((k, n), bf16)
    kernel = tile.kernel(warps=4, stages=3)(gemm.matmul.function)
    kernel(zeros((m, n), bf16).partition((64, 64)), h2d(a), h2d(b)).sync()


@pytest.mark.skipif(oxide.devices()[0].kind != "cpu", reason="the sanitizer is the CPU device's")
class TestSanitized:
    @pytest.fixture(autouse=True)
    def sanitized(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OXIDE_SANITIZE", "memory,race")
        monkeypatch.setenv("OXIDE_CACHE", "0")
        monkeypatch.setattr(source, "simulated", 90)

    @pytest.mark.nightly
    def test_nothing_is_found(self) -> None:
        faulty()
        faulty((200, 133, 70))
        test_two_pipelines_and_values_that_other_warps_compute(256)

    def test_a_producer_that_does_not_wait_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipelines.EngineRing, "_wait_until_read", lambda ring, copied, stage, turn: None)
        with pytest.raises(oxide.errors.BarrierError, match="waits for 1 arrivals and 0 bytes of copies"):
            faulty()

    @pytest.mark.nightly
    def test_rows_that_are_written_before_the_warp_has_met_are_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Lowering, "sync_warp", lambda self: None)
        with pytest.raises(oxide.SanitizerError, match="race"):
            faulty()

    @pytest.mark.nightly
    def test_copies_by_threads_that_have_not_met_are_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Lowering, "meet", lambda self: None)
        with pytest.raises(oxide.SanitizerError, match="race"):
            faulty((200, 133, 70))


# The launch


def test_a_gpu_gets_as_many_blocks_as_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.driver")
    from oxide.driver.cuda import launches

    class Calls:
        CUresult = SimpleNamespace(CUDA_SUCCESS=0)
        asked: tuple[Any, ...] = ()

        def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, *given: Any) -> tuple[int, int]:
            self.asked += given
            return 0, {1000: 1, 2000: 0}.get(given[-1], 2)

    calls = Calls()
    monkeypatch.setattr(launches, "driver", calls)
    properties = SimpleNamespace(multiprocessor_count=132)
    monkeypatch.setattr(launches.core, "Device", lambda number: SimpleNamespace(properties=properties))
    function: Any = SimpleNamespace(device=0, handle="handle", persistent=384, resident={})

    def sizes(blocks: int, shared_bytes: int) -> Any:
        return launches.persistent_sizes(function, (blocks, 1, 1), shared_bytes)

    assert sizes(512, 1000) == ((132, 1, 1), (384, 1, 1))
    assert sizes(512, 0) == ((264, 1, 1), (384, 1, 1))
    assert sizes(100, 1000) == ((100, 1, 1), (384, 1, 1))
    assert sizes(100, 2000) == ((1, 1, 1), (384, 1, 1)), "the launch will fail, and say why"
    assert calls.asked == ("handle", 384, 1000, "handle", 384, 0, "handle", 384, 2000), "each asked once"


@pytest.mark.gpu
def test_resources_are_those_of_whole_blocks() -> None:
    found = tile.kernel(warps=8, stages=4)(gemm.matmul.function).resources(c=gemm.TILE)
    assert found.block == 384
    assert found.blocks_per_multiprocessor == 1
    assert found.spill_bytes == 0
