"""The two networks as lazy pipelines of device operations, one pipeline a batch.

The weights go to the device once, as ``Arc``s; each batch clones the reference, not the memory. The structure (shared
weights, ``zip`` of an upload and two buffers, kernels in a row, a download) is that of the ``async_mlp`` example of
NVIDIA's cuda-oxide. Building a pipeline runs nothing: a program runs it by awaiting it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import oxide
from oxide import Arc, DeviceBox, DeviceOperation, LaunchConfig, d2h, empty, f32, h2d
from oxide_kernels import matvec_naive, relu, sgemm_naive

Float32Array = NDArray[np.float32]

TILE = 16
"""A block of a matrix product has ``TILE × TILE`` threads, one for each element of the result."""


async def prepare() -> None:
    """Compiles the kernels in a thread, because a first launch would stall the event loop."""
    await oxide.prepare(sgemm_naive, matvec_naive, lambda: relu.specialize(T=f32))


def mlp(batch: Float32Array, w0: Arc[DeviceBox], w1: Arc[DeviceBox]) -> DeviceOperation[Float32Array]:
    """Computes ``max(0, (batch @ W0) @ w1)``: ``batch`` is ``(rows, k)``, W0 ``(k, n)``, w1 ``(n,)``; yields
    ``(rows,)``."""
    return forward(h2d(batch), len(batch), w0, w1).and_then(d2h)


def forward(
    batch: DeviceOperation[DeviceBox], rows: int, w0: Arc[DeviceBox], w1: Arc[DeviceBox]
) -> DeviceOperation[DeviceBox]:
    """Does ``mlp`` for a batch on the device, and yields a box. So a graph can be captured of it."""
    columns = w0.value.shape[1]

    def hidden_layer(buffers: tuple[DeviceBox, DeviceBox, DeviceBox]) -> DeviceOperation[tuple[DeviceBox, DeviceBox]]:
        inputs, hidden, output = buffers
        return matmul(inputs, w0, hidden).map(lambda product: (product, output))

    def output_layer(buffers: tuple[DeviceBox, DeviceBox]) -> DeviceOperation[DeviceBox]:
        hidden, output = buffers
        config = LaunchConfig.for_num_elems(rows)
        return matvec_naive[config](rows, columns, hidden, w1, output).last()

    return (
        oxide.zip(batch, empty((rows, columns)), empty(rows))
        .and_then(hidden_layer)
        .and_then(output_layer)
        .and_then(rectify)
    )


def classifier(batch: Float32Array, w0: Arc[DeviceBox], w1: Arc[DeviceBox]) -> DeviceOperation[Float32Array]:
    """Computes ``max(0, batch @ W0) @ W1``: ``batch`` is ``(rows, k)``, W0 ``(k, n)``, W1 ``(n, classes)``; yields a
    score for each class, ``(rows, classes)``."""
    rows = len(batch)

    def hidden_layer(buffers: tuple[DeviceBox, DeviceBox, DeviceBox]) -> DeviceOperation[tuple[DeviceBox, DeviceBox]]:
        inputs, hidden, scores = buffers
        return matmul(inputs, w0, hidden).and_then(rectify).map(lambda rectified: (rectified, scores))

    def output_layer(buffers: tuple[DeviceBox, DeviceBox]) -> DeviceOperation[DeviceBox]:
        hidden, scores = buffers
        return matmul(hidden, w1, scores)

    return (
        oxide.zip(h2d(batch), empty((rows, w0.value.shape[1])), empty((rows, w1.value.shape[1])))
        .and_then(hidden_layer)
        .and_then(output_layer)
        .and_then(d2h)
    )


def matmul(left: DeviceBox, right: Arc[DeviceBox], product: DeviceBox) -> DeviceOperation[DeviceBox]:
    """Computes ``product = left @ right``; yields ``product``."""
    rows, inner = left.shape
    columns = right.value.shape[1]
    config = LaunchConfig(grid=(-(-columns // TILE), -(-rows // TILE)), block=(TILE, TILE))
    return sgemm_naive[config](rows, columns, inner, 1.0, left, right, 0.0, product).last()


def rectify(buffer: DeviceBox) -> DeviceOperation[DeviceBox]:
    """Computes ``buffer = max(0, buffer)``, in place; yields ``buffer``."""
    return relu[LaunchConfig.for_num_elems(buffer.size)](buffer, buffer).last()
