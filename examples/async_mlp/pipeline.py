"""The two networks as lazy pipelines of device operations, one pipeline for each batch.

The weights go to the device once, as ``Arc``s; each batch clones the reference, not the memory. The structure (shared
weights, ``zip`` of an upload and two buffers, kernels in a row, a download) is that of the ``async_mlp`` example of
NVIDIA's cuda-oxide. Building a pipeline runs nothing: a program runs it by awaiting it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import oxide
import oxide_kernels
from oxide import Arc, DeviceBox, DeviceOperation, LaunchConfig, bf16, d2h, empty, f16, f32, h2d
from oxide_kernels import matvec_naive, relu, sgemm_naive

Float32Array = NDArray[np.float32]
DTYPES: dict[str, Any] = {"f32": f32, "f16": f16, "bf16": bf16}
EPSILONS = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""Maps each dtype to the distance from 1 to its next larger number."""

TILE = 16
"""A block of a matrix product has ``TILE × TILE`` threads, one for each element of the result."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of a network's layers, and the type of all numbers on the device. The kernels are naive kernels, or
    the library's kernels on tensor cores. The naive kernels are of f32. Sums are computed in f32 for every type."""

    library: bool = False
    dtype: str = "f32"

    @property
    def element(self) -> np.dtype[Any]:
        """Returns NumPy's dtype of the numbers on the device."""
        element: np.dtype[Any] = DTYPES[self.dtype].dtype
        return element

    def product(
        self, left: DeviceBox, right: Arc[DeviceBox], out: DeviceBox, rectified: bool = False
    ) -> DeviceOperation[DeviceBox]:
        """Computes ``out = left @ right``, or ``max(0, left @ right)``; yields ``out``."""
        if self.library:
            precision = "high" if self.dtype == "f32" else None
            activation = "relu" if rectified else None
            return oxide_kernels.matmul(left, right, out, activation=activation, precision=precision).last()
        (rows, inner), columns = left.shape, right.value.shape[1]
        config = LaunchConfig(grid=(-(-columns // TILE), -(-rows // TILE)), block=(TILE, TILE))
        done: DeviceOperation[DeviceBox] = sgemm_naive[config](rows, columns, inner, 1.0, left, right, 0.0, out).last()
        return done.and_then(rectify) if rectified else done

    def by_vector(self, matrix: DeviceBox, vector: Arc[DeviceBox], out: DeviceBox) -> DeviceOperation[DeviceBox]:
        """Computes ``out = matrix @ vector``; yields ``out``."""
        rows, columns = matrix.shape
        launch = oxide_kernels.matvec if self.library else matvec_naive[LaunchConfig.for_num_elems(rows)]
        return launch(rows, columns, matrix, vector, out).last()


NAIVE = Kernels()


async def prepare(kernels: Kernels, network: Callable[[], DeviceOperation[Any]]) -> None:
    """Compiles the kernels of a network in a thread, because a first launch would stall the event loop. ``network``
    makes the operation: the library chooses its kernels by the shapes of the operands."""
    if kernels.library:
        await oxide.prepare(network)
    else:
        await oxide.prepare(sgemm_naive, matvec_naive, lambda: relu.specialize(T=f32))


def mlp(
    batch: NDArray[Any], w0: Arc[DeviceBox], w1: Arc[DeviceBox], kernels: Kernels = NAIVE
) -> DeviceOperation[NDArray[Any]]:
    """Computes ``max(0, (batch @ W0) @ w1)``: ``batch`` is ``(rows, k)``, W0 ``(k, n)``, w1 ``(n,)``; yields
    ``(rows,)``. All are of the kernels' dtype."""
    return forward(h2d(batch), len(batch), w0, w1, kernels).and_then(d2h)


def forward(
    batch: DeviceOperation[DeviceBox], rows: int, w0: Arc[DeviceBox], w1: Arc[DeviceBox], kernels: Kernels = NAIVE
) -> DeviceOperation[DeviceBox]:
    """Computes ``mlp`` for a batch on the device, and yields a box on the device. So it can be captured as a graph."""
    columns = w0.value.shape[1]

    def hidden_layer(buffers: tuple[DeviceBox, DeviceBox, DeviceBox]) -> DeviceOperation[tuple[DeviceBox, DeviceBox]]:
        inputs, hidden, output = buffers
        return kernels.product(inputs, w0, hidden).map(lambda product: (product, output))

    def output_layer(buffers: tuple[DeviceBox, DeviceBox]) -> DeviceOperation[DeviceBox]:
        hidden, output = buffers
        return kernels.by_vector(hidden, w1, output)

    return (
        oxide.zip(batch, empty((rows, columns), kernels.element), empty(rows, kernels.element))
        .and_then(hidden_layer)
        .and_then(output_layer)
        .and_then(rectify)
    )


def classifier(
    batch: NDArray[Any], w0: Arc[DeviceBox], w1: Arc[DeviceBox], kernels: Kernels = NAIVE
) -> DeviceOperation[NDArray[Any]]:
    """Computes ``max(0, batch @ W0) @ W1``: ``batch`` is ``(rows, k)``, W0 ``(k, n)``, W1 ``(n, classes)``; yields a
    score for each class, ``(rows, classes)``. All are of the kernels' dtype."""
    rows = len(batch)

    def hidden_layer(buffers: tuple[DeviceBox, DeviceBox, DeviceBox]) -> DeviceOperation[tuple[DeviceBox, DeviceBox]]:
        inputs, hidden, scores = buffers
        return kernels.product(inputs, w0, hidden, rectified=True).map(lambda rectified: (rectified, scores))

    def output_layer(buffers: tuple[DeviceBox, DeviceBox]) -> DeviceOperation[DeviceBox]:
        hidden, scores = buffers
        return kernels.product(hidden, w1, scores)

    hidden = empty((rows, w0.value.shape[1]), kernels.element)
    scores = empty((rows, w1.value.shape[1]), kernels.element)
    return oxide.zip(h2d(batch), hidden, scores).and_then(hidden_layer).and_then(output_layer).and_then(d2h)


def rectify(buffer: DeviceBox) -> DeviceOperation[DeviceBox]:
    """Computes ``buffer = max(0, buffer)``, in place; yields ``buffer``."""
    return relu[LaunchConfig.for_num_elems(buffer.size)](buffer, buffer).last()
