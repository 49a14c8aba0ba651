"""The PTX of tile kernels through NVIDIA's assembler, with the registers that it takes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from examples.tiles import add, attention, gemm, kmeans, layer_norm, softmax, stencil, topk
from tests.compiler.assembler import assembled, needs_ptxas

from . import test_words as words

pytestmark = needs_ptxas

KERNELS: list[tuple[Any, dict[str, Any]]] = [
    (words.picked, {"z": (8, 16)}),
    (words.permuted, {"where": 32}),
    (words.histogram, {"x": 128}),
    (words.ordered, {"z": (4, 33), "down": True, "axis": -1}),
    (words.largest, {"values": (4, 7), "places": (4, 7), "n": 100}),
    (words.drawn, {"z": 32}),
    (words.fibonacci, {"z": 4}),
    (words.padded, {"z": 4}),
    (add.add, {"z": (32, 128)}),
    (softmax.softmax, {"y": (4, 1024)}),
    (layer_norm.layer_norm, {"y": (2, 2048)}),
    (stencil.step, {"later": (16, 64)}),
    (kmeans.assign, {"nearest": 64, "k": 16, "width": 8}),
    (topk.topk, {"values": (4, 5), "columns": (4, 5), "width": 512}),
    (gemm.matmul, {"c": (64, 64)}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "given"), KERNELS, ids=[kernel.name for kernel, _ in KERNELS])
@pytest.mark.parametrize("cc", [(7, 5), (8, 0), (9, 0), (10, 0)])
def test_ptx_assembles(kernel: Any, given: dict[str, Any], cc: tuple[int, int]) -> None:
    assert "registers" in assembled(kernel.ptx(cc, **given), cc)


HOPPER: list[tuple[Any, dict[str, Any]]] = [
    (gemm.matmul, {"c": gemm.TILE}),
    (attention.attention, {"out": (128, 128)}),
    (attention.attention, {"out": (128, 64)}),
    (softmax.softmax, {"y": (1, 8192)}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "given"), HOPPER, ids=[f"{kernel.name} {given}" for kernel, given in HOPPER])
def test_nothing_is_spilled_and_no_wgmma_is_serialised(kernel: Any, given: dict[str, Any]) -> None:
    ptx = kernel.ptx(**given)
    said = assembled(ptx)
    assert "0 bytes spill stores" in said
    assert "serialized" not in said
    if kernel.name != "softmax":
        assert "wgmma.mma_async" in ptx
        assert "cp.async.bulk.tensor.2d" in ptx
    if kernel.name == "attention":  # no zeros that the scores are added to, and no code for denormals
        assert re.search(r"wgmma\.mma_async[^;]*, 0, 1, 1, 0, 0;", ptx)
        assert "ex2.approx.f32" not in ptx


def test_rows_are_loaded_as_vectors() -> None:
    ptx = softmax.softmax.ptx(y=(4, 1024))
    assert len(re.findall(r"ld\.global\.v4", ptx)) == 8
    assert len(re.findall(r"st\.global\.v4", ptx)) == 8
