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


@pytest.mark.parametrize("count", [0, 1, 33])
def test_the_rows_of_words_and_places_are_added(count: int) -> None:
    words, places = random(50, 96), random(40, 96)
    tokens = np.stack([RANDOM.integers(0, most, count) for most in (50, 40, 1, 1)]).astype(np.int32)
    launch = kernels.look_up[LaunchConfig.for_num_elems(count * 48)]
    boxes = (h2d(each) for each in (words, places, tokens))
    found = launch(*boxes, empty((count, 96), f16)).last().and_then(d2h).sync()
    assert close(found, words[tokens[0]].astype(np.float64) + places[tokens[1]])


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


@pytest.mark.slow
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


SANITIZED = """
import numpy as np
from examples.embeddings import half_kernels as kernels
from examples.embeddings.half import attention
from examples.embeddings.kernels import HEAD
from examples.embeddings.layout import Layout
from oxide import LaunchConfig, d2h, empty, f16, h2d

lengths = [1, 31, 33, 7]
count, made = sum(lengths) + 2, len(lengths) + 1
layout = Layout(count, made)
layout.fill([np.arange(length, dtype=np.int32) for length in lengths])
tokens, sequences = layout.upload().sync()
weights = h2d(np.ones((40, 3 * HEAD), np.float16)).sync()
products, attended = empty((count, 3 * HEAD), f16).sync(), empty((count, HEAD), f16).sync()
kernels.look_up[LaunchConfig.for_num_elems(count * 3 * HEAD // 2)](weights, weights, tokens, products).sync()
attention(products, tokens, attended).sync()
scale = weights.reshape(-1)[:HEAD]
pool = kernels.pool_of(HEAD)[LaunchConfig(made, 32 * kernels.POOL_WARPS)]
rows = pool(attended, scale, scale, 1e-12, sequences, empty((made, HEAD)).sync()).last().and_then(d2h).sync()
assert np.abs((rows * rows).sum(1) - 1).max() < 1e-5
"""


@pytest.mark.nightly
def test_the_sanitizer_says_nothing_of_the_kernels() -> None:
    found = subprocess.run(
        [sys.executable, "-c", SANITIZED],
        env={**os.environ, "OXIDE_DEVICE": "cpu", "OXIDE_SANITIZE": "memory,race", "OXIDE_INTERPRET": ""},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == 0, found.stderr


def test_on_a_gpu_attention_is_on_tensor_cores_and_its_sums_in_registers() -> None:
    text = kernels.attend.ptx(cc=(9, 0))
    assert len(re.findall(r"mma\.sync\S*m16n8k16", text)) == 2 * 8 + 4 * 4
    assert ".local" not in text
    assert "cp.async" in text
