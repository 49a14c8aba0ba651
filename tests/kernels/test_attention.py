"""``attention``: every form beside float64, odd sizes, what a query may not see, and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from oxide import ArgumentError, DeviceBox, DeviceOperation, bf16, d2h, dup, empty, f16, h2d
from oxide_kernels import attention, ops

RANDOM = np.random.default_rng(23)
BOUNDS = {np.dtype(np.float16): 6e-4, bf16.dtype: 5e-3}
"""The rounding of the weights and of the result, with a margin."""


def random(*shape: int, dtype: Any = f16) -> Any:
    return RANDOM.standard_normal(shape).astype(dtype.dtype)


def reference(q: Any, k: Any, v: Any, scale: float | None = None, seen: Any = True, added: Any = 0.0) -> Any:
    """Returns attention in float64. A query that sees no key gets zeros."""
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], 1) for each in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale) + added
    scores = np.where(seen, scores, -np.inf)
    greatest = scores.max(-1, keepdims=True, initial=-1e300)
    weights = np.exp(scores - greatest)
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300) @ v


def found(operation: DeviceOperation[DeviceBox]) -> Any:
    return operation.and_then(d2h).sync()


def close(result: Any, expected: Any) -> bool:
    error = np.linalg.norm(result.astype(np.float64) - expected)
    return bool(error <= BOUNDS[result.dtype] * np.linalg.norm(expected))


def causal(queries: int, keys: int) -> Any:
    return np.arange(keys) <= np.arange(queries)[:, None] + keys - queries


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "is_causal"),
    [
        # batch, heads, heads of keys, queries, keys, head size; each size is a kernel of its own
        ((1, 1, 1, 1, 1, 32), False),
        ((2, 4, 2, 15, 17, 40), True),
        ((1, 2, 1, 129, 129, 64), False),
        ((1, 2, 1, 129, 129, 64), True),
        ((1, 3, 3, 33, 200, 128), False),
        ((1, 3, 3, 33, 200, 128), True),
        ((1, 1, 1, 70, 31, 256), True),
        ((2, 2, 2, 16, 16, 1), False),
        ((1, 2, 2, 65, 64, 7), True),
        ((1, 8, 1, 1, 300, 96), False),
    ],
)
def test_attention_beside_float64(shape: tuple[int, ...], is_causal: bool) -> None:
    batch, heads, kv_heads, queries, keys, size = shape
    dtype = bf16 if queries == 129 else f16
    q = random(batch, heads, queries, size, dtype=dtype)
    k, v = (random(batch, kv_heads, keys, size, dtype=dtype) for _ in range(2))
    seen = causal(queries, keys) if is_causal else True
    result = found(ops.attention(h2d(q), h2d(k), h2d(v), causal=is_causal))
    assert result.dtype == q.dtype
    assert close(result, reference(q, k, v, seen=seen))


@pytest.mark.nightly
@pytest.mark.parametrize("shape", [(1, 0, 4, 16), (0, 2, 4, 16)])
def test_no_heads_and_no_batches(shape: tuple[int, ...]) -> None:
    assert found(ops.attention(*(h2d(random(*shape)) for _ in range(3)))).shape == shape


@pytest.mark.nightly
@pytest.mark.parametrize("is_causal", [False, True])
def test_no_queries_and_no_keys(is_causal: bool) -> None:
    k = h2d(random(1, 2, 5, 16))
    assert found(ops.attention(h2d(random(1, 2, 0, 16)), k, k, causal=is_causal)).shape == (1, 2, 0, 16)
    none = h2d(random(1, 2, 0, 16))
    assert not found(ops.attention(h2d(random(1, 2, 5, 16)), none, none, causal=is_causal)).any()


@pytest.mark.parametrize("scale", [0.01, 2, np.float32(0.5)])
def test_a_scale(scale: float) -> None:
    q, k, v = (random(1, 2, 40, 32) for _ in range(3))
    assert close(found(ops.attention(h2d(q), h2d(k), h2d(v), scale=scale)), reference(q, k, v, float(scale)))


@pytest.mark.nightly
def test_great_scores_do_not_overflow() -> None:
    q, k, v = 100 * random(1, 1, 20, 64), 100 * random(1, 1, 150, 64), random(1, 1, 150, 64)
    result = found(ops.attention(h2d(q), h2d(k), h2d(v)))
    assert close(result, reference(q, k, v))


@pytest.mark.parametrize("great", [1e6, 1e19, 1.3e19, 1.8e19])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_softmax_of_any_finite_scores(great: float, sign: int) -> None:
    q, k, v = (random(1, 1, 3, 16, dtype=bf16), random(1, 1, 150, 16, dtype=bf16), random(1, 1, 150, 16, dtype=bf16))
    q[..., 0], k[..., 0] = sign * great, great
    q[..., 1:] = k[..., 1:] = 0
    k[..., 70, 0] = 1.01 * great  # the only key that counts, or the only one that does not
    assert close(found(ops.attention(h2d(q), h2d(k), h2d(v), scale=1)), reference(q, k, v, 1.0))


def test_masks_of_great_numbers() -> None:
    least = np.finfo(np.float32).min
    q, k, v = random(1, 2, 7, 16), random(1, 2, 200, 16), random(1, 2, 200, 16)
    mask = np.zeros((7, 200), np.float32)
    mask[1] = least
    mask[2], mask[2, 150] = -3e38, -2.5e38
    mask[3, :80], mask[3, 80:150] = -np.inf, least
    mask[4, :150] = least
    mask[5] = -1e9
    mask[6], mask[6, 1:] = -least, least
    scores = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / 4).astype(np.float32) + mask
    scores = scores.astype(np.float64)  # rounded to f32, as the mask's scale demands
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    result = found(ops.attention(h2d(q), h2d(k), h2d(v), mask=h2d(mask)))
    for row in range(7):
        assert close(result[:, :, row], expected[:, :, row]), row


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(33, 50), (2, 33, 50), (1, 33, 50), (2, 1, 33, 50), (1, 4, 33, 50), (2, 4, 33, 50)])
@pytest.mark.parametrize("of_truth", [True, False])
def test_masks(shape: tuple[int, ...], of_truth: bool) -> None:
    q, k, v = random(2, 4, 33, 16), random(2, 2, 50, 16), random(2, 2, 50, 16)
    mask = RANDOM.random(shape) < 0.6 if of_truth else RANDOM.standard_normal(shape).astype(np.float32)
    mask[..., 5, :] = False if of_truth else -np.inf
    whole = mask[:, None] if mask.ndim == 3 else mask
    result = found(ops.attention(h2d(q), h2d(k), h2d(v), mask=h2d(mask)))
    assert close(result, reference(q, k, v, **({"seen": whole} if of_truth else {"added": whole})))
    assert not result[:, :, 5].any()


def test_a_mask_and_causal() -> None:
    q, k, v = (random(1, 1, 70, 16) for _ in range(3))
    mask = RANDOM.random((70, 70)) < 0.5
    result = found(ops.attention(h2d(q), h2d(k), h2d(v), mask=h2d(mask), causal=True))
    assert close(result, reference(q, k, v, seen=mask & causal(70, 70)))


@pytest.mark.nightly
@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths_hide_the_padding(is_causal: bool) -> None:
    q, k, v = random(4, 2, 70, 32), random(4, 2, 70, 32), random(4, 2, 70, 32)
    lengths = np.array([70, 1, 0, 33], np.int32)
    seen = np.arange(70) < lengths[:, None, None, None]
    if is_causal:
        seen = seen & causal(70, 70)
    expected = reference(q, k, v, seen=seen)
    for batch, length in enumerate(lengths):  # what is not seen does not count, whatever it is
        k[batch, :, length:], v[batch, :, length:] = np.nan, np.inf
    given = [h2d(each) for each in (q, k, v)]
    assert close(found(ops.attention(*given, lengths=h2d(lengths), causal=is_causal)), expected)


@pytest.mark.nightly
def test_lengths_outside_of_the_keys_are_clamped() -> None:
    q, k, v = (random(2, 1, 20, 16) for _ in range(3))
    lengths = h2d(np.array([-5, 2**31 - 1], np.int32))
    expected = reference(q, k, v, seen=np.array([False, True])[:, None, None, None])
    assert close(found(ops.attention(h2d(q), h2d(k), h2d(v), lengths=lengths)), expected)


@pytest.mark.nightly
@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences(is_causal: bool) -> None:
    ends = [0, 1, 1, 65, 200, 231]
    q, k, v = random(231, 4, 32), random(231, 2, 32), random(231, 2, 32)
    k[150], v[150] = np.nan, np.nan  # of the fourth sequence alone
    starts = h2d(np.array(ends, np.int32))
    result = found(ops.attention(h2d(q), h2d(k), h2d(v), cu_seqlens=starts, causal=is_causal))
    for begin, end in itertools.pairwise(ends):
        parts = [each[begin:end].swapaxes(0, 1)[None] for each in (q, k, v)]
        own = result[begin:end].swapaxes(0, 1)[None]
        if begin == 65:
            assert np.isnan(own[:, :, 150 - begin :]).all()
        elif end > begin:
            assert close(own, reference(*parts, seen=causal(end - begin, end - begin) if is_causal else True))


@pytest.mark.nightly
def test_sequences_that_lie_outside_are_clamped() -> None:
    q = random(100, 1, 16)
    operands = [h2d(q) for _ in range(3)]
    result = found(ops.attention(*operands, cu_seqlens=h2d(np.array([-7, 40, 20, 2**31 - 1], np.int32))))
    part = q[:40].swapaxes(0, 1)[None]
    assert close(result[:20].swapaxes(0, 1)[None], reference(part, part, part)[:, :, :20])
    part = q[20:].swapaxes(0, 1)[None]
    assert close(result[40:].swapaxes(0, 1)[None], reference(part, part, part)[:, :, 20:])
    assert not found(ops.attention(*operands, cu_seqlens=h2d(np.array([5], np.int32)))).any()


def test_a_nan_stays_in_its_head() -> None:
    q, k, v = (random(1, 3, 40, 16) for _ in range(3))
    k[0, 1, 7] = np.nan
    result = found(ops.attention(h2d(q), h2d(k), h2d(v)))
    assert np.isnan(result[0, 1]).all()
    assert np.isfinite(result[0, [0, 2]]).all()


def test_the_form_with_an_output() -> None:
    q, k, v = (h2d(random(1, 2, 40, 16)).sync() for _ in range(3))
    out = empty(q.shape, f16).sync()
    yielded = attention(q, k, v, out).sync()
    assert [each is given for each, given in zip(yielded, (q, k, v, out), strict=True)] == [True] * 4
    expected = reference(*(d2h(each).sync() for each in (q, k, v)))
    assert close(d2h(out).sync(), expected)


def boxes(*shapes: tuple[int, ...], dtype: Any = f16) -> list[DeviceBox]:
    return [empty(shape, dtype).sync() for shape in shapes]


def test_what_is_refused() -> None:
    q, k = boxes((2, 4, 8, 16), (2, 2, 8, 16))

    def refuse(error: type[Exception], message: str, *operands: Any, **more: Any) -> None:
        with pytest.raises(error, match=message):
            ops.attention(*operands, **more).sync()

    refuse(ValueError, r"q has shape \(4, 8\); without cu_seqlens it is \(batch, heads, tok", *boxes(*[(4, 8)] * 3))
    wide = boxes(*[(1, 1, 4, 257)] * 3)
    refuse(ValueError, "the head size is from 1 to 256, not 257", *wide)
    refuse(ValueError, "k has shape .* and q|v has shape", q, k, boxes((2, 2, 9, 16))[0])
    refuse(ValueError, "the batch and the head size must be the same", q, *boxes((1, 2, 8, 16), (1, 2, 8, 16)))
    refuse(ValueError, "q has 4 heads, and k 3; the heads of q are a mul", q, *boxes((2, 3, 8, 16), (2, 3, 8, 16)))
    refuse(ArgumentError, "q has dtype float32; q, k, v and the output are", *boxes(*[q.shape] * 3, dtype=np.float32))
    refuse(ArgumentError, "k has dtype bfloat16, and q float16", q, *boxes(k.shape, k.shape, dtype=bf16))
    refuse(ArgumentError, "scale is 0; it is a positive number", q, k, k, scale=0)
    refuse(ArgumentError, "scale is 'x'; it is a positive number", q, k, k, scale="x")
    refuse(ArgumentError, "mask has dtype float64; it is of bools or f32", q, k, k, mask=boxes((8, 8), dtype=float)[0])
    masks = boxes((8, 9), (3, 8, 8), (2, 3, 8, 8), (8,), dtype=bool)
    for mask in masks:
        refuse(ValueError, r"mask has shape .*; here it is \(8, 8\), \(2, 8, 8\) or \(2, 4, 8, 8\)", q, k, k, mask=mask)
    refuse(ArgumentError, "lengths has dtype int64; it is of i32", q, k, k, lengths=boxes((2,), dtype=np.int64)[0])
    refuse(ValueError, r"lengths has shape \(3,\); it is \(2,\)", q, k, k, lengths=boxes((3,), dtype=np.int32)[0])
    starts = boxes((3,), dtype=np.int32)[0]
    refuse(ValueError, r"q has shape .*; with cu_seqlens it is \(tokens, heads, head s", q, k, k, cu_seqlens=starts)
    refuse(ArgumentError, "cu_seqlens does not go with mask", q, k, k, cu_seqlens=starts, mask=masks[0])
    refuse(ArgumentError, "cu_seqlens does not go with lengths", q, k, k, cu_seqlens=starts, lengths=starts)
    packed = boxes((8, 2, 16), (8, 1, 16), (8, 1, 16))
    refuse(ValueError, r"cu_seqlens has shape \(0,\)", *packed, cu_seqlens=boxes((0,), dtype=np.int32)[0])
    refuse(ValueError, "the tokens and the head size", packed[0], *boxes((9, 1, 16), (9, 1, 16)), cu_seqlens=starts)
    views = [dup(box).map(lambda box: box[:, :, ::2]) for box in (q, k, k)]
    refuse(ArgumentError, "q is a view with strides .*; it has to be contiguous: dup", *views)
    with pytest.raises(ArgumentError, match=r"attention: the output .* shares memory with q"):
        attention(q, q, q, q).sync()
