"""Splits a batch's rows into equal shares, one for each device. All devices work at the same time.

The weights are uploaded once, and ``to_device`` copies them to the other devices, directly where the hardware can. The
pipeline of each share is placed on its device with ``on``. ``gather`` starts all pipelines and waits for them. A
pipeline does not depend on the number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import oxide
from oxide import Arc, DeviceBox, DeviceOperation, LaunchConfig, d2h, gather, h2d, to_device, zeros
from oxide_kernels import relu, sgemm_naive

Float32Array = NDArray[np.float32]

TILE = 16


def layers(batch: Float32Array, weights: Arc[DeviceBox], depth: int) -> DeviceOperation[Float32Array]:
    """Computes ``depth`` layers ``x = max(0, x @ W)``: ``batch`` is ``(rows, n)``, W ``(n, n)``; yields ``(rows,
    n)``."""
    rows, n = batch.shape
    matmul = sgemm_naive[LaunchConfig(grid=(-(-n // TILE), -(-rows // TILE)), block=(TILE, TILE))]

    def layer(buffers: tuple[DeviceBox, DeviceBox]) -> DeviceOperation[tuple[DeviceBox, DeviceBox]]:
        inputs, outputs = buffers
        product: DeviceOperation[DeviceBox] = matmul(rows, n, n, 1.0, inputs, weights, 0.0, outputs).last()
        rectified = product.and_then(lambda box: relu[LaunchConfig.for_num_elems(box.size)](box, box))
        return rectified.map(lambda _: (outputs, inputs))

    state: DeviceOperation[tuple[DeviceBox, DeviceBox]] = oxide.zip(h2d(batch), zeros(batch.shape))
    for _ in range(depth):
        state = state.and_then(layer)
    return state.first().and_then(d2h)


async def spread(weights: Float32Array, devices: Sequence[int]) -> list[Arc[DeviceBox]]:
    """Uploads the weights to the first device and copies them to all. Returns them for each device, in order."""
    first = await h2d(weights).on(devices[0])
    copies = await gather(*(to_device(first, device) for device in devices))
    return [Arc(copy) for copy in copies]


async def run_split(
    batch: Float32Array, weights: Sequence[Arc[DeviceBox]], devices: Sequence[int], depth: int
) -> Float32Array:
    """Runs a batch split over ``devices``. Returns its result, ``(rows, n)``. ``weights[i]`` must be on
    ``devices[i]``."""
    shares = np.array_split(batch, len(devices))
    results = await gather(
        *(
            layers(share, copy, depth).on(device)
            for share, copy, device in zip(shares, weights, devices, strict=True)
            if len(share)
        )
    )
    return np.concatenate(results)


def reference(batch: Float32Array, weights: Float32Array, depth: int) -> NDArray[np.float64]:
    """Computes the layers in float64 NumPy."""
    state = batch.astype(np.float64)
    for _ in range(depth):
        state = np.maximum(0.0, state @ weights.astype(np.float64))
    return state


def make_batch(rows: int, n: int) -> tuple[Float32Array, Float32Array]:
    """Returns a batch ``(rows, n)`` and weights ``(n, n)``. They are the same in every run. The weights are scaled so
    that the numbers neither grow nor vanish from layer to layer."""
    rng = np.random.default_rng(0)
    batch = rng.random((rows, n), np.float32)
    weights = (rng.standard_normal((n, n)) * np.sqrt(2.0 / n)).astype(np.float32)
    return batch, weights
