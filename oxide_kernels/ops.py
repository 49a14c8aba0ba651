"""The library's kernels in a form that allocates the output: ``ops.softmax(x)`` yields a new box.

An operand is a box, an ``Arc`` of a box, or an operation that yields a box. So calls can be nested::

    probabilities = ops.softmax(ops.relu(h2d(x)))

The functions have the names of those in ``oxide_kernels``, and take the same dtypes and raise the same errors. Sizes
that ``oxide_kernels`` takes as parameters follow from the boxes' shapes here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from oxide import DeviceBox, DeviceOperation, dup, empty, i64, u32, zeros

from . import activations, data_movement, gemm, reductions, rows, scans, vector
from .accumulators import total_dtype
from .attention import attention as attend_into
from .histograms import histogram as count_into
from .matrix_products import matmul as multiply
from .matrix_products import result_of
from .matrix_vector import matvec as multiply_into
from .operand_checks import require_integers, require_same_shape
from .operands import Operand, with_boxes

Result = DeviceOperation[DeviceBox]


def relu(x: Operand) -> Result:
    """Yields ``max(0, x)``, of the shape of ``x``."""
    return _like(activations.relu, x)


def gelu(x: Operand) -> Result:
    """Yields ``x * Φ(x)``, of the shape of ``x``."""
    return _like(activations.gelu, x)


def silu(x: Operand) -> Result:
    """Yields ``x * sigmoid(x)``, of the shape of ``x``."""
    return _like(activations.silu, x)


def sigmoid(x: Operand) -> Result:
    """Yields ``1 / (1 + exp(-x))``, of the shape of ``x``."""
    return _like(activations.sigmoid, x)


def axpy(a: float, x: Operand, y: Operand) -> Result:
    """Yields ``a * x + y``, of the shape of both. Raises ``ValueError`` if the shapes differ."""

    def added(x: DeviceBox, y: DeviceBox) -> Result:
        require_same_shape("axpy", x=x, y=y)
        return dup(y).and_then(lambda result: vector.axpy(a, x, result)).last()

    return with_boxes(added, x, y)


def reduce_sum(x: Operand) -> Result:
    """Yields the sum of all elements, a box without axes: i64 or u64 for integers, otherwise of the dtype of ``x``."""
    return _number(reductions.reduce_sum, lambda x: total_dtype(x.dtype), x)


def reduce_max(x: Operand) -> Result:
    """Yields the greatest element, a box without axes of the dtype of ``x``."""
    return _number(reductions.reduce_max, lambda x: x.dtype, x)


def argmax(x: Operand) -> Result:
    """Yields the index of the first greatest element, an i64 box without axes. Indices count elements in the order of
    memory."""
    return _number(reductions.argmax, lambda x: i64, x)


def dot(a: Operand, b: Operand) -> Result:
    """Yields the sum of the products of corresponding elements, a box without axes. Its dtype is that of
    ``reduce_sum``'s result."""

    def product(a: DeviceBox, b: DeviceBox) -> Result:
        require_same_shape("dot", a=a, b=b)
        return _number(reductions.dot, lambda a: total_dtype(a.dtype), a, b)

    return with_boxes(product, a, b)


def inclusive_scan(x: Operand) -> Result:
    """Yields the running sums in the order of memory, in the shape of ``x``."""
    return _like(scans.inclusive_scan, x)


def exclusive_scan(x: Operand) -> Result:
    """Yields for each element the sum of all elements before it in the order of memory, in the shape of ``x``."""
    return _like(scans.exclusive_scan, x)


def softmax(x: Operand) -> Result:
    """Yields the softmax of each row, along the last axis."""

    def weighed(x: DeviceBox) -> Result:
        rows.shape_of("softmax", x)
        return _like(rows.softmax, x)

    return with_boxes(weighed, x)


def layer_norm(x: Operand, weight: Operand, bias: Operand, eps: float = 1e-5) -> Result:
    """Yields each row (along the last axis) normalised to mean 0 and variance 1, times ``weight`` and plus ``bias``."""

    def scaled(x: DeviceBox, w: DeviceBox, b: DeviceBox) -> Result:
        rows.shape_of("layer_norm", x, weight=w, bias=b)
        return empty(x.shape, x.dtype).and_then(lambda result: rows.layer_norm(x, w, b, result, eps)).last()

    return with_boxes(scaled, x, weight, bias)


def rms_norm(x: Operand, weight: Operand, eps: float = 1e-5) -> Result:
    """Yields each row (along the last axis) normalised to a mean square of 1, times ``weight``."""

    def scaled(x: DeviceBox, w: DeviceBox) -> Result:
        rows.shape_of("rms_norm", x, weight=w)
        return empty(x.shape, x.dtype).and_then(lambda result: rows.rms_norm(x, w, result, eps)).last()

    return with_boxes(scaled, x, weight)


def transpose(x: Operand) -> Result:
    """Yields the transpose of a matrix. Raises ``ValueError`` for a box that does not have two axes."""

    def turned(x: DeviceBox) -> Result:
        if len(x.shape) != 2:
            raise ValueError(f"transpose: the input has shape {x.shape}; it needs two axes")
        m, n = x.shape
        return empty((n, m), x.dtype).and_then(lambda result: data_movement.transpose(m, n, x, result)).last()

    return with_boxes(turned, x)


def gather(table: Operand, indices: Operand) -> Result:
    """Yields ``table[indices]``: a row of the table for each index. Indices are i32 or i64. Raises ``ValueError`` for a
    table without axes."""

    def rows_of(table: DeviceBox, indices: DeviceBox) -> Result:
        if not table.shape:
            raise ValueError("gather: the table has no axes, so no rows")
        row = table.shape[1:]
        width = math.prod(row)
        made = empty((*indices.shape, *row), table.dtype)
        return made.and_then(lambda result: data_movement.gather(width, table, indices, result)).last()

    return with_boxes(rows_of, table, indices)


def histogram(values: Operand, bins: int) -> Result:
    """Yields the number of occurrences of each number from 0 to ``bins - 1``: u32, of shape (bins,)."""
    require_integers("histogram", bins=bins)
    return with_boxes(lambda x: zeros(bins, u32).and_then(lambda counts: count_into(x, counts)).last(), values)


def matvec(matrix: Operand, vector: Operand) -> Result:
    """Yields ``matrix @ vector``. Raises ``ValueError`` for shapes that do not match."""

    def product(a: DeviceBox, x: DeviceBox) -> Result:
        if len(a.shape) != 2 or x.shape != a.shape[1:]:
            raise ValueError(f"matvec: a matrix of shape {a.shape} does not go with a vector of shape {x.shape}")
        m, n = a.shape
        return empty(m, a.dtype).and_then(lambda result: multiply_into(m, n, a, x, result)).last()

    return with_boxes(product, matrix, vector)


def matmul(
    a: Operand,
    b: Operand,
    bias: Operand | None = None,
    activation: str | None = None,
    out_dtype: Any = None,
    precision: str | None = None,
    a_scale: Operand | None = None,
    b_scale: Operand | None = None,
) -> Result:
    """Yields ``activation(a @ b + bias)``, computed on tensor cores. The docstring of ``oxide_kernels.matmul``
    describes the dtypes that can be combined, the scales and the errors. ``out_dtype`` is the result's dtype. By
    default it is the matrices' dtype, but i32 for integers of 8 bits and bf16 for floats of 8 bits."""
    given = {"bias": bias, "a_scale": a_scale, "b_scale": b_scale}
    present = {name: operand for name, operand in given.items() if operand is not None}

    def product(a: DeviceBox, b: DeviceBox, *more: DeviceBox) -> Result:
        shape, dtype = result_of(a, b, out_dtype)
        named: dict[str, Any] = dict(zip(present, more, strict=True))

        def into(c: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
            return multiply(a, b, c, activation=activation, precision=precision, **named)

        return empty(shape, dtype).and_then(into).last()

    return with_boxes(product, a, b, *present.values())


def attention(
    q: Operand,
    k: Operand,
    v: Operand,
    causal: bool = False,
    mask: Operand | None = None,
    lengths: Operand | None = None,
    cu_seqlens: Operand | None = None,
    scale: float | None = None,
) -> Result:
    """Yields ``softmax(scale * q @ k.T) @ v`` for each head, of the shape of ``q``. The docstring of
    ``oxide_kernels.attention`` describes the shapes and dtypes that can be combined, and the errors. With
    ``cu_seqlens``, the result for tokens that belong to no sequence is 0."""
    given = {"mask": mask, "lengths": lengths, "cu_seqlens": cu_seqlens}
    present = {name: operand for name, operand in given.items() if operand is not None}

    def attended(q: DeviceBox, k: DeviceBox, v: DeviceBox, *more: DeviceBox) -> Result:
        made = (empty if cu_seqlens is None else zeros)(q.shape, q.dtype)
        named = dict(zip(present, more, strict=True))
        return made.and_then(lambda result: attend_into(q, k, v, result, causal=causal, scale=scale, **named)).last()

    return with_boxes(attended, q, k, v, *present.values())


def sgemm_tiled(a: Operand, b: Operand, alpha: float = 1.0) -> Result:
    """Yields ``alpha * a @ b``. Raises ``ValueError`` for shapes that do not match."""

    def product(a: DeviceBox, b: DeviceBox) -> Result:
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
            raise ValueError(f"sgemm_tiled: matrices of shapes {a.shape} and {b.shape} have no product")
        (m, k), n = a.shape, b.shape[1]
        return empty((m, n)).and_then(lambda c: gemm.sgemm_tiled(m, n, k, alpha, a, b, 0.0, c)).last()

    return with_boxes(product, a, b)


def _number(
    function: Callable[..., DeviceOperation[Any]], dtype: Callable[[DeviceBox], Any], *operands: Operand
) -> Result:
    """Returns the operation that runs ``function(*boxes, output)`` and yields the output, a new box without axes. Its
    dtype is ``dtype(first box)``."""

    def made(*boxes: DeviceBox) -> Result:
        return empty((), dtype(boxes[0])).and_then(lambda result: function(*boxes, result)).last()

    return with_boxes(made, *operands)


def _like(function: Callable[[DeviceBox, DeviceBox], DeviceOperation[Any]], x: Operand) -> Result:
    """Returns the operation that runs ``function(x, output)`` and yields the output, a new box of the shape and dtype
    of ``x``."""
    return with_boxes(lambda x: empty(x.shape, x.dtype).and_then(lambda result: function(x, result)).last(), x)
