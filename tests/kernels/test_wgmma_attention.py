"""Attention by whole warpgroups, by itself: on a GPU ``attention`` takes it on Hopper alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import bf16, d2h, f16, h2d
from oxide_kernels.wgmma_attention import STEP, WIDTHS, config_of, kernel_of
from tests.kernels.test_attention import causal, close, random, reference

pytestmark = pytest.mark.usefixtures("hopper")


def attended(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    batch, heads, queries, width = q.shape
    kv_heads, keys = k.shape[1:3]
    rows = h2d(np.ascontiguousarray(q).reshape(-1, width))
    stacks = [h2d(np.ascontiguousarray(each).reshape(-1, keys, width)) for each in (k, v)]
    out = h2d(np.full((batch * heads * queries, width), np.nan, np.float32).astype(q.dtype))
    config = config_of(width, queries, heads * batch, is_causal, 3)
    kind = f16 if q.dtype == np.float16 else bf16
    aligned = not is_causal or (keys - queries) % STEP == 0
    launch = kernel_of(kind, width, is_causal, aligned)[config](
        rows, *stacks, batch, heads, kv_heads, queries, keys, width**-0.5, out
    )
    return launch.last().and_then(d2h).sync().reshape(q.shape)


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "shape",
    [
        # batch, heads, heads of keys, queries, keys
        (1, 1, 1, 1, 128),
        (1, 2, 1, 300, 384),
        (2, 4, 2, 129, 256),
        (1, 1, 1, 600, 512),
        (1, 1, 1, 128, 384),
        (1, 1, 1, 384, 256),
        (1, 3, 3, 65, 640),
        (1, 1, 1, 1, 1),
        (1, 2, 2, 17, 100),
        (1, 4, 2, 200, 200),
        (2, 2, 1, 130, 257),
        (1, 1, 1, 300, 129),
    ],
)
def test_attention_by_warpgroups_beside_float64(shape: tuple[int, ...], width: int, is_causal: bool) -> None:
    batch, heads, kv_heads, queries, keys = shape
    dtype = bf16 if queries == 300 else f16
    q = random(batch, heads, queries, width, dtype=dtype)
    k, v = (random(batch, kv_heads, keys, width, dtype=dtype) for _ in range(2))
    seen = causal(queries, keys) if is_causal else True
    assert close(attended(q, k, v, is_causal), reference(q, k, v, seen=seen))


def test_a_nan_stays_in_its_head_and_its_block() -> None:
    q, k, v = (random(1, 3, 512, 64) for _ in range(3))
    k[0, 1, 300], v[0, 1, 300] = np.nan, np.nan
    result = attended(q, k, v, True)
    assert np.isnan(result[0, 1, 300:]).all()
    assert np.isfinite(result[0, [0, 2]]).all()
    assert np.isfinite(result[0, 1, :192]).all()  # they read two tiles of keys, which have no NaN


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_nan_beyond_a_heads_last_key_is_another_heads(is_causal: bool) -> None:
    q, k, v = (random(1, 2, 100, 64) for _ in range(3))
    k[0, 1], v[0, 1] = np.nan, np.nan
    assert np.isfinite(attended(q, k, v, is_causal)[0, 0]).all()


def test_weights_of_one_and_zero_are_exact() -> None:
    """Each query sees one key far above the others: the output is that key's value, bit for bit."""
    places = np.random.default_rng(1).permutation(256)
    k = np.zeros((1, 1, 256, 64), np.float16)
    k[0, 0, np.arange(256), np.arange(256) % 64] = 64 * (1 + np.arange(256) // 64)
    q = 64 * np.sign(k[:, :, places]) * (1 + np.arange(256) // 64)[None, None, places, None]
    q = q.astype(np.float16)
    v = random(1, 1, 256, 64)
    scores = q[0, 0].astype(np.float64) @ k[0, 0].astype(np.float64).T / 8
    best = scores.argmax(axis=1)
    assert (np.sort(scores, axis=1)[:, -1] - np.sort(scores, axis=1)[:, -2]).min() > 200
    assert np.array_equal(attended(q, k, v, False)[0, 0], v[0, 0, best])
