"""``attention``: computes ``softmax(scale * q @ k.T) @ v`` for many heads, without a matrix of scores in memory.

The host checks shapes and dtypes and picks the kernel. There is no backward pass.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oxide import ArgumentError, DeviceBox, DeviceOperation, LaunchConfig, bf16, bool_, f16, f32

from . import mma_attention, wgmma_attention
from .mma_attention import MOST_WIDTH, Form
from .operand_checks import require_apart, require_same_shape
from .operands import Operand, with_boxes

_KINDS: tuple[Any, ...] = (f16, bf16)
_TYPES: dict[np.dtype[Any], Any] = {kind.dtype: kind for kind in _KINDS}
_MASKS: dict[np.dtype[Any], Any] = {np.dtype(bool): bool_, np.dtype(np.float32): f32}
_TAKE = {4: "(batch, heads, tokens, head size)", 3: "(tokens, heads, head size)"}


def attention(
    q: Operand,
    k: Operand,
    v: Operand,
    output: Operand,
    *,
    causal: bool = False,
    mask: Operand | None = None,
    lengths: Operand | None = None,
    cu_seqlens: Operand | None = None,
    scale: float | None = None,
) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``output = softmax(scale * q @ k.T) @ v`` for each head. Yields q, k, v and output.

    The operands are contiguous boxes of f16 or bf16, or operations that yield them. ``q`` and ``output`` have shape
    (batch, heads, queries, head size), ``k`` and ``v`` (batch, kv_heads, keys, head size). The head size is from 1 to
    256; multiples of 16 are fastest. ``heads`` is a multiple of ``kv_heads``: ``heads / kv_heads`` heads of queries
    share one head of keys and values (grouped queries). Scores, exponentials and sums are f32.

    ``scale`` is a positive number, by default ``1 / sqrt(head size)``. With ``causal``, query number i sees the keys up
    to number ``i + keys - queries``, so that the last query sees all keys. ``lengths`` has an i32 for each batch: the
    number of keys that the batch's queries see. The keys after them are padding and are not read. ``mask`` has shape
    (queries, keys), (batch, queries, keys) or (batch, heads, queries, keys), where batch and heads may be 1. The mask's
    elements are bools, true where a query sees a key, or f32 numbers, which are added to the scaled scores. A query
    that sees no key gets zeros. Elements of ``v`` that are not finite may make results NaN even for queries that do not
    see them, because 0 * inf is NaN. They do not change results of another sequence, head or batch. Padding changes no
    result.

    With ``cu_seqlens``, sequences of different lengths are packed without padding: ``q`` and ``output`` have shape
    (tokens, heads, head size), ``k`` and ``v`` (tokens, kv_heads, head size). ``cu_seqlens`` has i32 elements. Sequence
    i has the tokens from number ``cu_seqlens[i]`` to before ``cu_seqlens[i + 1]``, and these numbers are clamped to the
    number of tokens. ``cu_seqlens`` cannot be combined with ``mask`` or ``lengths``. Tokens that belong to no sequence
    are not written.

    The online softmax is that of FlashAttention 2. A GPU needs compute capability 8.0. There is no backward pass.
    Raises ``ValueError`` for shapes that do not match, and ``ArgumentError`` for a wrong dtype, layout or scale, and if
    the output shares memory with another operand.
    """
    given = {"mask": mask, "lengths": lengths, "cu_seqlens": cu_seqlens}
    present = {name: operand for name, operand in given.items() if operand is not None}
    if "cu_seqlens" in present and len(present) > 1:
        raise ArgumentError(
            f"attention: cu_seqlens does not go with {'mask' if mask is not None else 'lengths'}: it says itself which "
            "keys a query sees"
        )

    def attended(
        q: DeviceBox, k: DeviceBox, v: DeviceBox, out: DeviceBox, *more: DeviceBox
    ) -> DeviceOperation[tuple[Any, ...]]:
        named = dict(zip(present, more, strict=True))
        for name, box in {"q": q, "k": k, "v": v, "output": out, **named}.items():
            if not box.is_contiguous:
                raise ArgumentError(
                    f"attention: {name} is a view with strides of {box.strides} bytes; it has to be contiguous: "
                    "dup(view) makes such a box"
                )
        launch = _launch_of(q, k, v, out, causal, scale, **named)
        return launch.map(lambda _: (q, k, v, out))

    return with_boxes(attended, q, k, v, output, *present.values())


def _launch_of(
    q: DeviceBox,
    k: DeviceBox,
    v: DeviceBox,
    out: DeviceBox,
    causal: bool,
    scale: float | None,
    mask: DeviceBox | None = None,
    lengths: DeviceBox | None = None,
    cu_seqlens: DeviceBox | None = None,
) -> DeviceOperation[tuple[Any, ...]]:
    axes = 4 if cu_seqlens is None else 3
    for name, box in {"q": q, "k": k, "v": v}.items():
        if len(box.shape) != axes:
            with_or_without = "without" if cu_seqlens is None else "with"
            raise ValueError(
                f"attention: {name} has shape {box.shape}; {with_or_without} cu_seqlens it is {_TAKE[axes]}"
            )
    require_same_shape("attention", k=k, v=v)
    require_same_shape("attention", q=q, output=out)
    *batches, heads, queries, width = q.shape if axes == 4 else (q.shape[1], q.shape[0], q.shape[2])
    *kv_batches, kv_heads, keys, kv_width = k.shape if axes == 4 else (k.shape[1], k.shape[0], k.shape[2])
    if batches != kv_batches or width != kv_width or (axes == 3 and queries != keys):
        same = "the batch and the head size" if axes == 4 else "the tokens and the head size"
        raise ValueError(f"attention: q has shape {q.shape}, and k {k.shape}; {same} must be the same")
    if not 1 <= width <= MOST_WIDTH:
        raise ValueError(f"attention: q has shape {q.shape}; the head size is from 1 to {MOST_WIDTH}, not {width}")
    if (kv_heads == 0) != (heads == 0) or (kv_heads and heads % kv_heads):
        raise ValueError(
            f"attention: q has {heads} heads, and k {kv_heads}; the heads of q are a multiple of those of k"
        )
    dtype = _TYPES.get(q.dtype)
    for name, box in {"q": q, "k": k, "v": v, "output": out}.items():
        if dtype is None or box.dtype != q.dtype:
            raise ArgumentError(
                f"attention: {name} has dtype {box.dtype}"
                + (f", and q {q.dtype}" if dtype is not None else "")
                + "; q, k, v and the output are all f16 or all bf16"
            )
    inputs = {"q": q, "k": k, "v": v, "mask": mask, "lengths": lengths, "cu_seqlens": cu_seqlens}
    require_apart("attention", out, None, **{name: given for name, given in inputs.items() if given is not None})
    factor = _scale_of(scale, width)
    batch = batches[0] if batches else 1
    mask_batch, mask_head = _mask_steps(mask, batch, heads, queries, keys)
    numbers = lengths if cu_seqlens is None else cu_seqlens
    _check_numbers("lengths", lengths, batch)
    _check_numbers("cu_seqlens", cu_seqlens, None)
    form = Form(
        dtype=dtype,
        width=-(-width // 16) * 16,
        causal=bool(causal),
        mask=None if mask is None else _MASKS[mask.dtype],
        lengths=lengths is not None,
        packed=cu_seqlens is not None,
        pairs=width % 2 == 0 and out.ptr % 4 == 0,
    )
    rows = [box.reshape(box.size // width, width) for box in (q, k, v)]
    result = out.reshape(out.size // width, width)
    if all(each is None for each in (mask, lengths, cu_seqlens)) and _has_wgmma(rows, result):
        multiprocessors = out.device.info.multiprocessors
        aligned = (keys - queries) % wgmma_attention.STEP == 0
        chosen = wgmma_attention.kernel_of(dtype, width, bool(causal), aligned or not causal)
        config = wgmma_attention.config_of(width, queries, heads * batch, bool(causal), multiprocessors)
        stacks = (box.reshape(batch * kv_heads, keys, width) for box in (k, v))
        whole: DeviceOperation[tuple[Any, ...]] = chosen[config](
            rows[0], *stacks, batch, heads, kv_heads, queries, keys, factor, result
        )
        return whole
    tiles = -(-queries // mma_attention.QUERIES)
    if cu_seqlens is not None:  # each sequence may end within a tile, so it may need one tile more
        tiles = queries // mma_attention.QUERIES + cu_seqlens.size - 1
    config = LaunchConfig(max(1, tiles * heads * batch), mma_attention.THREADS)
    flat = q.reshape(q.size)
    launch: DeviceOperation[tuple[Any, ...]] = mma_attention.kernel_of(form)[config](
        *rows,
        flat if mask is None else mask.reshape(mask.size),
        mask_batch,
        mask_head,
        flat if numbers is None else numbers,
        heads,
        kv_heads,
        queries,
        keys,
        factor,
        result,
    )
    return launch


def _has_wgmma(rows: list[DeviceBox], out: DeviceBox) -> bool:
    """Returns whether the kernel of ``wgmma_attention`` can compute the result. It needs compute capability 9.0, a head
    size in ``WIDTHS``, and rows that the copy engine can read."""
    return (
        out.device.info.target.arch == "sm_90"
        and out.shape[1] in wgmma_attention.WIDTHS
        and all(box.size > 0 and box.ptr % 16 == 0 for box in rows)
        and out.ptr % 4 == 0
    )


def _scale_of(scale: float | None, width: int) -> float:
    if scale is None:
        return 1 / math.sqrt(width)
    if not (isinstance(scale, int | float | np.number) and math.isfinite(scale) and scale > 0):
        raise ArgumentError(f"attention: scale is {scale!r:.80}; it is a positive number")
    return float(scale)


def _mask_steps(mask: DeviceBox | None, batch: int, heads: int, queries: int, keys: int) -> tuple[int, int]:
    """Returns two distances in elements: from a batch's masks to the next batch's, and from a head's mask to the next
    head's. A distance is 0 if all batches, or all heads, share one mask. Without a mask both are 0."""
    if mask is None:
        return 0, 0
    if mask.dtype not in _MASKS:
        raise ArgumentError(f"attention: mask has dtype {mask.dtype}; it is of bools or f32")
    *leading, rows, columns = (1, 1, *mask.shape) if mask.ndim == 2 else mask.shape if mask.ndim > 2 else (0, 0, 0, 0)
    batches, per_head = leading if len(leading) == 2 else (*leading, 1) if len(leading) == 1 else (0, 0)
    if (rows, columns) != (queries, keys) or batches not in (1, batch) or per_head not in (1, heads):
        raise ValueError(
            f"attention: mask has shape {mask.shape}; here it is {(queries, keys)}, {(batch, queries, keys)} or "
            f"{(batch, heads, queries, keys)}, where batch and heads may be 1"
        )
    matrix = queries * keys
    return (0 if batches == 1 else matrix * per_head), (0 if per_head == 1 else matrix)


def _check_numbers(name: str, box: DeviceBox | None, batch: int | None) -> None:
    """Raises an error unless the box has i32 elements along one axis: exactly ``batch`` elements or, if ``batch`` is
    None, at least one."""
    if box is None:
        return
    if box.dtype != np.int32:
        raise ArgumentError(f"attention: {name} has dtype {box.dtype}; it is of i32")
    if box.ndim != 1 or (box.size != batch if batch is not None else box.size == 0):
        expected = f"({batch},), a number for each batch" if batch is not None else "(sequences + 1,)"
        raise ValueError(f"attention: {name} has shape {box.shape}; it is {expected}")
