"""The f16 encoder's kernels, each beside float64, at sizes around those of tiles and warps."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.embeddings import half_kernels as kernels
from examples.embeddings.half import attention
from examples.embeddings.layout import Layout
from oxide import LaunchConfig, d2h, empty, f16, h2d

RANDOM = np.random.default_rng(4)
BOUND = 1e-3
"""The rounding of operands and results to f16, with a margin."""


def random(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float16)


def close(found: Any, expected: Any) -> bool:
    error = np.linalg.norm(found.astype(np.float64) - expected)
    return bool(error <= BOUND * np.linalg.norm(expected) and np.isfinite(found).all())


def norm(x: Any, scale: Any, shift: Any) -> Any:
    x = x.astype(np.float64)
    x = x - x.mean(1, keepdims=True)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-12) * scale + shift


def gelu(x: Any) -> Any:
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


@pytest.mark.parametrize("tile", kernels.TILES)
@pytest.mark.parametrize("with_gelu", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 32, 2), (31, 64, 18), (33, 96, 96), (130, 384, 70)])
def test_a_product_of_normalised_rows(
    tile: kernels.Tile, with_gelu: bool, rows: int, inputs: int, outputs: int
) -> None:
    a, b = random(rows, inputs) * np.float16(3) + np.float16(1), random(outputs, inputs)
    scale, shift, bias = 1 + random(inputs), random(inputs), random(outputs)
    launch = kernels.normalised_product(inputs, tile, with_gelu)[kernels.config_of(tile, rows, outputs)]
    boxes = (h2d(each) for each in (b, bias))
    done = launch(
        h2d(a), h2d(scale), h2d(shift), 1e-12, *boxes, empty((rows, inputs), f16), empty((rows, outputs), f16)
    ).sync()
    x = norm(a, scale.astype(np.float64), shift.astype(np.float64))
    assert close(d2h(done[-2]).sync(), x)
    expected = x @ b.astype(np.float64).T + bias
    assert close(d2h(done[-1]).sync(), gelu(expected) if with_gelu else expected)


@pytest.mark.parametrize("tile", kernels.TILES)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 8, 2), (31, 96, 18), (33, 384, 96), (130, 1000, 70)])
def test_a_product_added_to_rows(tile: kernels.Tile, rows: int, inputs: int, outputs: int) -> None:
    a, b, bias, x = random(rows, inputs), random(outputs, inputs), random(outputs), random(rows, outputs)
    launch = kernels.added_product(tile)[kernels.config_of(tile, rows, outputs)]
    found = launch(*(h2d(each) for each in (a, b, bias, x)), empty((rows, outputs), f16)).last().and_then(d2h).sync()
    assert close(found, a.astype(np.float64) @ b.astype(np.float64).T + bias + x)


@pytest.mark.parametrize(
    "lengths",
    [[1], [31], [33, 1, 30], [64, 64], [65, 63, 130, 2], [1] * 70, [200, 3, 16, 16, 17], [7, 512]],
)
def test_attention_sees_its_own_sequence_only(lengths: list[int]) -> None:
    count, heads = sum(lengths), 3
    width = heads * kernels.HEAD
    products = random(count, 3 * width)
    layout = Layout(count, len(lengths))
    layout.fill([np.zeros(length, np.int32) for length in lengths])
    tokens, _ = layout.upload().sync()
    found = attention(h2d(products).sync(), tokens, empty((count, width), f16).sync()).last().and_then(d2h).sync()
    first, expected = 0, np.empty((count, width))
    for length in lengths:
        own = products[first : first + length].astype(np.float64).reshape(length, 3, heads, kernels.HEAD)
        q, k, v = own.transpose(1, 2, 0, 3)
        scores = np.exp(q @ k.transpose(0, 2, 1) / math.sqrt(kernels.HEAD))
        rows = scores / scores.sum(2, keepdims=True) @ v
        expected[first : first + length] = rows.transpose(1, 0, 2).reshape(length, width)
        first += length
    assert close(found, expected)


@pytest.mark.parametrize("width", [32, 96, 384])
def test_rows_are_normalised_averaged_and_divided_by_their_length(width: int) -> None:
    lengths = [1, 31, 3, 9, 8]
    rows, scale, shift = random(sum(lengths), width), 1 + random(width), random(width)
    layout = Layout(sum(lengths), len(lengths))
    layout.fill([np.zeros(length, np.int32) for length in lengths])
    launch = kernels.pool_of(width)[LaunchConfig(len(lengths), 32 * kernels.POOL_WARPS)]
    operands = (h2d(each) for each in (rows, scale, shift))
    sequences, units = h2d(layout.sequences), empty((len(lengths), width))
    found = launch(*operands, 1e-12, sequences, units).last().and_then(d2h).sync()
    normal = norm(rows, scale.astype(np.float64), shift.astype(np.float64))
    means = np.array([part.mean(0) for part in np.split(normal, np.cumsum(lengths)[:-1])])
    assert found.dtype == np.float32
    assert np.abs(found - means / np.linalg.norm(means, axis=1, keepdims=True)).max() < 1e-5


@pytest.mark.parametrize("rows", [1, 32, 256, 1024, 5000])
def test_tiles_are_large_where_there_are_enough_of_them(rows: int) -> None:
    tile = kernels.tile_of(rows, 1152)
    larger = kernels.TILES[: kernels.TILES.index(tile)]
    assert all(-(-rows // each.rows) * -(-1152 // each.columns) < 132 for each in larger)
    assert tile == kernels.TILES[-1] or kernels.config_of(tile, rows, 1152).grid[0] >= 132


SANITIZED = """
from examples.embeddings.half import HalfEncoder
from examples.embeddings.layout import Layout
from oxide import d2h
from tests.examples.test_embeddings import random_weights, sequences

lengths = [1, 31, 33, 7]
layout = Layout(sum(lengths) + 2, len(lengths) + 1)
layout.fill(sequences(lengths))
d2h(HalfEncoder(random_weights(0))(layout)).sync()
"""


def test_the_sanitizer_says_nothing_of_a_batch() -> None:
    found = subprocess.run(
        [sys.executable, "-c", SANITIZED],
        env={**os.environ, "OXIDE_DEVICE": "cpu", "OXIDE_SANITIZE": "memory,race", "OXIDE_INTERPRET": ""},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("kernel", "products"),
    [
        *((kernels.normalised_product(384, tile, True), 24 * tile.columns // 16) for tile in kernels.TILES),
        *((kernels.added_product(tile), 8 * tile.columns // 16) for tile in kernels.TILES),
        (kernels.attend, 2 * 8 + 4 * 4),
    ],
)
def test_on_a_gpu_products_are_on_tensor_cores_and_sums_in_registers(kernel: Any, products: int) -> None:
    text = kernel.ptx(cc=(9, 0))
    assert len(re.findall(r"mma\.sync\S*m16n8k16", text)) == products
    assert ".local" not in text
    assert "cp.async" in text
