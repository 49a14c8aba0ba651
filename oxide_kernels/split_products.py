"""The last step of a matrix product whose sums were made in parts of k: the parts are added, and the result made.

A product with few tiles and a large k would leave most multiprocessors idle. So its k is divided, each part gives a
matrix of sums in f32, and this kernel adds them. The scheme is called split-k.
"""

from __future__ import annotations

import functools
from typing import Any

from oxide import DisjointSlice2, Kernel, LaunchConfig, Slice, Slice3, f32, i64, kernel, thread

from .mma_products import Form, factor_of, finisher

_THREADS = 256


def config_of(elements: int) -> LaunchConfig:
    """Returns the launch for a result of so many elements."""
    return LaunchConfig(-(-elements // _THREADS), _THREADS)


@functools.cache
def kernel_of(form: Form) -> Kernel:
    """Returns the kernel of a form: ``activation(alpha * parts.sum(0) + beta * c + bias)``. Its parameters are alpha,
    the parts, the scales of a and b, the bias, beta and c, as in ``mma_products``; the parts stand for what the form
    does not have. The launch is ``config_of``'s."""
    bias_type: Any = f32 if form.bias is None else form.bias
    out_dtype: Any = form.output
    finished, factor = finisher(form), factor_of(form)

    @kernel(block=_THREADS, unchecked=True)  # the index is below the length, and the host has compared the shapes
    def add_parts(
        alpha: f32,
        parts: Slice3[f32],
        a_scale: Slice[f32],
        b_scale: Slice[f32],
        bias: Slice[bias_type],
        beta: f32,
        c: DisjointSlice2[out_dtype],
    ) -> None:
        out, place = c.unchecked_mut, i64(thread.block_idx.x) * _THREADS + i64(thread.thread_idx.x)
        if place < c.shape[0] * c.shape[1]:
            row, column = place // c.shape[1], place % c.shape[1]
            total = f32(0)
            for part in range(parts.shape[0]):
                total += parts[part, row, column]
            scales = a_scale, b_scale
            out[row, column] = out_dtype(finished(total, factor(alpha, scales), scales, bias, beta, c, row, column))

    return add_parts
