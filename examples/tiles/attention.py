"""Attention in one kernel: a program computes some queries of one head, and iterates over the keys with a running
softmax.

The scores never leave the registers: they are reduced along their rows in registers, and become the left operand of the
second product (FlashAttention 2).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oxide import DeviceOperation, bf16, d2h, f32, h2d, i32, tile, zeros


@tile.kernel(warps=8, stages=2, fastmath=True)
def attention(
    out: tile.Partition2[bf16],
    q: tile.Tensor2[bf16],
    k: tile.Tensor2[bf16],
    v: tile.Tensor2[bf16],
    tokens: i32,
    scale: f32,
    bn: tile.Constant[int] = 64,
) -> None:
    row, _ = out.index
    rows, width = out.tile_shape
    blocks = tokens // bn
    first = row * rows // tokens * blocks  # the head's first block of keys
    query = q.load((row, 0), (rows, width))
    best, total = tile.full(rows, -math.inf), tile.zeros(rows)
    acc = tile.zeros((rows, width))
    for j in range(blocks):
        keys = k.load((first + j, 0), (bn, width))
        scores = tile.mma(query, keys.T, tile.zeros((rows, bn)))
        highest = tile.maximum(best, tile.max(scores, axis=1) * scale)
        weights = tile.exp2(scores * scale - highest[:, None])  # with fastmath, each exponent is one multiply-add
        kept = tile.exp2(best - highest)
        total = total * kept + tile.sum(weights, axis=1)
        acc = tile.mma(weights.astype(bf16), v.load((first + j, 0), (bn, width)), acc * kept[:, None])
        best = highest
    out.store(acc / total[:, None])


def apply(q: Any, k: Any, v: Any, *, rows: int = 128, bn: int = 64) -> DeviceOperation[Any]:
    """Returns the operation that computes attention for boxes of shape (heads, tokens, width). The number of tokens
    must be a multiple of ``rows`` and of ``bn``."""
    heads, tokens, width = q.shape
    if tokens % rows or tokens % bn:
        raise ValueError(f"{tokens} tokens are no multiple of {rows} queries and {bn} keys")
    out = zeros((heads * tokens, width), bf16).partition((rows, width))
    flat = [each.reshape(heads * tokens, width) for each in (q, k, v)]
    scale = math.log2(math.e) / math.sqrt(width)
    return attention(out, *flat, tokens, scale, bn).first().unpartition().reshape(heads, tokens, width)


def main() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((4, 256, 64)).astype(np.dtype(bf16)) for _ in range(3))
    found = d2h(apply(*(h2d(each).sync() for each in (q, k, v)))).sync().astype(np.float64)
    expected = reference(q, k, v)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    print(f"attention: 4 heads, 256 tokens of width 64, relative error {error:.1e}")


def reference(q: Any, k: Any, v: Any) -> Any:
    """Computes attention with NumPy in float64."""
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    scores = np.exp(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]))
    return scores / scores.sum(-1, keepdims=True) @ v


if __name__ == "__main__":
    main()
