"""Kernels in Triton, as peers. Imported only where Triton is installed.

The pointers have no annotations: Triton compiles those too, and knows its own types only. ``matmul`` and ``attention``
have the schemes of Triton's tutorials, tuned over the configurations here."""

from typing import Any

import triton
import triton.language as tl


@triton.jit
def add(a, b, c, size: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, size)
    tl.store(c + offsets, tl.load(a + offsets) + tl.load(b + offsets))


def _suited(configs: list[Any], arguments: dict[str, Any], **_: Any) -> list[Any]:
    """Returns the configurations to try: large tiles for large results. Each takes a second to compile."""
    if min(arguments["m"], arguments["n"]) < 2048:
        return configs
    return [each for each in configs if each.kwargs["M"] * each.kwargs["N"] >= 128 * 128]


@triton.autotune(
    configs=[
        triton.Config({"M": m, "N": n, "K": k}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in (
            (128, 256, 64, 8, 3),
            (128, 256, 64, 8, 4),
            (128, 128, 64, 8, 4),
            (128, 128, 64, 4, 4),
            (256, 128, 64, 8, 3),
            (64, 256, 64, 4, 4),
            (128, 64, 64, 4, 4),
            (64, 64, 64, 4, 5),
            (64, 128, 64, 4, 4),
            (32, 64, 128, 4, 4),
            (32, 32, 128, 4, 5),
        )
    ],
    key=["m", "n", "k", "a_row", "b_row"],  # the strides tell the layouts
    prune_configs_by={"early_config_prune": _suited},
)
@triton.jit
def matmul(a, b, c, m, n, k, a_row, a_column, b_row, b_column, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    """A product of f16 or bf16 with f32 sums, tile after tile in groups of 8 rows of tiles."""
    down, across = tl.cdiv(m, M), tl.cdiv(n, N)
    block = tl.program_id(0)
    group = block // (8 * across)
    height = min(down - group * 8, 8)
    row = group * 8 + block % (8 * across) % height
    column = block % (8 * across) // height
    rows, columns, inner = row * M + tl.arange(0, M), column * N + tl.arange(0, N), tl.arange(0, K)
    a_at = a + (rows % m)[:, None] * a_row + inner[None, :] * a_column
    b_at = b + inner[:, None] * b_row + (columns % n)[None, :] * b_column
    total = tl.zeros((M, N), tl.float32)
    for step in range(tl.cdiv(k, K)):
        left = tl.load(a_at, inner[None, :] < k - step * K, 0.0)
        right = tl.load(b_at, inner[:, None] < k - step * K, 0.0)
        total = tl.dot(left, right, total)
        a_at += K * a_column
        b_at += K * b_row
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), inside)


@triton.autotune(
    configs=[
        triton.Config({"M": m, "N": n}, num_warps=warps, num_stages=stages)
        for m, n, warps, stages in (
            (128, 128, 8, 2),
            (128, 128, 8, 3),
            (128, 64, 4, 3),
            (128, 64, 8, 3),
            (64, 64, 4, 3),
            (64, 128, 4, 3),
        )
    ],
    key=["tokens", "D", "CAUSAL"],
)
@triton.jit
def attention(q, k, v, out, tokens, scale, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Attention of a number of tokens that the tiles divide, heads one after another, by an online softmax."""
    first, head = tl.program_id(0) * M, tl.program_id(1).to(tl.int64) * tokens * D
    rows, width = first + tl.arange(0, M), tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + width[None, :])
    greatest = tl.full((M,), float("-inf"), tl.float32)
    sums = tl.zeros((M,), tl.float32)
    total = tl.zeros((M, D), tl.float32)
    factor = scale * 1.4426950408889634
    whole = first if CAUSAL else tokens
    for begin in range(0, whole // N * N, N):
        keys = begin + tl.arange(0, N)
        s = tl.dot(query, tl.trans(tl.load(k + head + keys[:, None] * D + width[None, :])))
        top = tl.maximum(greatest, tl.max(s, 1) * factor)
        p = tl.exp2(s * factor - top[:, None])
        kept = tl.exp2(greatest - top)
        sums = sums * kept + tl.sum(p, 1)
        total = tl.dot(
            p.to(v.dtype.element_ty), tl.load(v + head + keys[:, None] * D + width[None, :]), total * kept[:, None]
        )
        greatest = top
    if CAUSAL:
        for begin in range(whole // N * N, first + M, N):
            keys = begin + tl.arange(0, N)
            s = tl.dot(query, tl.trans(tl.load(k + head + keys[:, None] * D + width[None, :])))
            s = tl.where(keys[None, :] <= rows[:, None], s * factor, float("-inf"))
            top = tl.maximum(greatest, tl.max(s, 1))
            p = tl.exp2(s - top[:, None])
            kept = tl.exp2(greatest - top)
            sums = sums * kept + tl.sum(p, 1)
            values = tl.load(v + head + keys[:, None] * D + width[None, :])
            total = tl.dot(p.to(v.dtype.element_ty), values, total * kept[:, None])
            greatest = top
    tl.store(out + head + rows[:, None] * D + width[None, :], (total / sums[:, None]).to(out.dtype.element_ty))


@triton.autotune(configs=[triton.Config({}, num_warps=warps) for warps in (1, 2, 4, 8, 16)], key=["columns"])
@triton.jit
def softmax(x, y, columns, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """The softmax of a row in each program."""
    at = tl.arange(0, WIDTH)
    row = tl.program_id(0).to(tl.int64) * columns
    v = tl.load(x + row + at, at < columns, float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row + at, e / tl.sum(e, 0), at < columns)


@triton.autotune(configs=[triton.Config({}, num_warps=warps) for warps in (1, 2, 4, 8, 16)], key=["columns"])
@triton.jit
def layer_norm(x, weight, bias, y, columns, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """The layer normalisation of a row in each program."""
    at = tl.arange(0, WIDTH)
    row = tl.program_id(0).to(tl.int64) * columns
    v = tl.load(x + row + at, at < columns, 0.0)
    centred = tl.where(at < columns, v - tl.sum(v, 0) / columns, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + 1e-5)
    w, b = tl.load(weight + at, at < columns, 0.0), tl.load(bias + at, at < columns, 0.0)
    tl.store(y + row + at, centred * scale * w + b, at < columns)


@triton.jit
def march(x, steps, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """x[i] = x[i] * 0.999 + 0.001, again and again."""
    at = tl.arange(0, block)
    value = tl.load(x + at)
    for _ in range(steps):
        value = value * 0.999 + 0.001
    tl.store(x + at, value)
