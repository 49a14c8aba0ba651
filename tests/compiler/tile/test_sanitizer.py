"""Tile kernels under the CPU device's sanitizer: races between programs are found, and the examples have none."""

from __future__ import annotations

import importlib
import os

import numpy as np
import pytest

import oxide
from oxide import f16, f32, h2d, i32, tile, zeros
from oxide.compiler.tile import tile_source as source
from oxide.compiler.tile.lowering.state import Lowering

from .test_tensor_cores import check, product

pytestmark = pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") == "cuda", reason="the sanitizer is the CPU device's")


@pytest.fixture(autouse=True)
def sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_SANITIZE", "memory,race")


def test_programs_that_scatter_to_one_element_race() -> None:
    @tile.kernel
    def collide(z: tile.Target[f32, 1], w: tile.Partition[f32, 1]) -> None:
        tile.scatter(z, tile.arange(4) * 0 + 2, tile.ones(4))
        w.store(tile.zeros(4))

    with pytest.raises(oxide.SanitizerError, match=r"race: a write to z by block \(1, 0, 0\).*element 2"):
        collide(zeros(8), zeros(16).partition(4)).sync()


def test_a_program_that_reads_what_another_one_writes_races() -> None:
    @tile.kernel
    def shifted(z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]) -> None:
        z.store(x.load(z.index[0] + 1, z.tile_shape))

    x = h2d(np.arange(64, dtype=np.float32)).sync()
    with pytest.raises(oxide.SanitizerError, match="race"):
        shifted(x.partition(8), x).sync()


def test_atomic_additions_and_own_tiles_do_not() -> None:
    @tile.kernel
    def counted(z: tile.Target[i32, 1], w: tile.Partition[f32, 2]) -> None:
        tile.atomic_add(z, tile.arange(4), 1)
        w.store(w.load().T.sum(axis=0)[:, None] + tile.cumsum(w.load(), 1))

    counted(zeros(4, i32), zeros((9, 7)).partition((4, 4))).sync()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add", "softmax", "layer_norm", "gemm", "attention", "stencil", "kmeans", "topk"])
def test_the_examples_are_clean(name: str) -> None:
    importlib.reload(importlib.import_module(f"examples.tiles.{name}")).main()


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_pipeline_of_a_gpu_waits_for_its_copies(
    capability: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "simulated", capability)
    kernel = product(f16, f32, warps=4, stages=stages, turned=(False, False))
    check(kernel, f16, f32, (66, 72, 300), (64, 64), 64)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_values_that_go_through_shared_memory_are_complete(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "simulated", capability)

    @tile.kernel(warps=4)
    def moved(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2]) -> None:
        v = tile.load_like(x, z)
        for k in range(3):
            v = v.T.reshape(z.tile_shape) + tile.sum(v, axis=1)[:, None] * k + tile.cumsum(v, 0)
        z.store(v - tile.max(tile.sort(v), axis=1, keepdims=True))

    moved(zeros((9, 40)).partition((4, 256)), h2d(np.ones((9, 40), np.float32))).sync()
    moved(zeros((9, 40)).partition((8, 32)), h2d(np.ones((9, 40), np.float32))).sync()


def test_a_barrier_that_is_missing_in_the_code_of_a_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_CACHE", "0")  # other tests must not find this code
    monkeypatch.setattr(source, "simulated", 90)
    monkeypatch.setattr(Lowering, "barrier", lambda self: None)
    kernel = product(f16, f32, warps=4, stages=2, turned=(False, False))
    with pytest.raises(oxide.SanitizerError, match="is in a race: no barrier"):
        check(kernel, f16, f32, (66, 72, 300), (64, 64), 64)
