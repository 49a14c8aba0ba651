"""One step of data-parallel training, as an operation.

The network is that of ``async_mlp``'s digits: ``scores = relu(pixels @ w0) @ w1``, with softmax cross-entropy. Every
device has the weights and a share of the batch. The step computes the gradients of the shares, adds them up with
``all_reduce``, and subtracts them from the weights of every device. So all devices keep the same weights, and these are
the weights that one device would have with the whole batch.

The gradient of ``w1`` is known first. Its ``all_reduce`` runs while the devices compute the gradient of ``w0``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import oxide
from oxide import (
    CudaGraph,
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    DisjointSlice2,
    Slice,
    Slice2,
    empty,
    f32,
    fast,
    h2d,
    i32,
    kernel,
    thread,
)
from oxide_kernels import ops

Float32Array = NDArray[np.float32]


@kernel(block=(16, 16))
def softmax_gradient(scale: f32, scores: Slice2[f32], labels: Slice[i32], gradient: DisjointSlice2[f32]) -> None:
    """Computes ``gradient = scale * (softmax(scores) - one_hot(labels))``, row by row."""
    index = thread.index_2d()
    element = gradient.get_mut(index)
    if element is not None:
        row, column = index.row, index.column
        largest = scores[row, 0]
        for other in range(1, scores.shape[1]):
            largest = max(largest, scores[row, other])
        total = 0.0
        for other in range(scores.shape[1]):
            total += fast.exp(scores[row, other] - largest)
        share = fast.exp(scores[row, column] - largest) / total
        element.value = scale * (share - (1.0 if labels[row] == column else 0.0))


@kernel(block=256, requires=("len(hidden) == len(gradient)",))
def relu_gradient(hidden: Slice[f32], gradient: DisjointSlice[f32]) -> None:
    """Sets the gradient to 0 where the hidden layer is 0."""
    index = thread.index_1d()
    element = gradient.get_mut(index)
    if element is not None and hidden[index.get()] <= 0:
        element.value = 0.0


@kernel(block=256, requires=("len(weights) == len(gradient)",))
def descend(rate: f32, gradient: Slice[f32], weights: DisjointSlice[f32]) -> None:
    """Computes ``weights -= rate * gradient``."""
    index = thread.index_1d()
    element = weights.get_mut(index)
    if element is not None:
        element.value -= rate * gradient[index.get()]


@dataclass(frozen=True, slots=True)
class Replica:
    """The weights of one device: ``w0``, ``(pixels, hidden)``, and ``w1``, ``(hidden, classes)``."""

    device: oxide.Device
    w0: DeviceBox
    w1: DeviceBox


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a batch that one device computes: ``pixels``, ``(rows, pixels)``, and ``labels``, i32, on the
    device."""

    pixels: DeviceBox
    labels: DeviceBox


def replicas(devices: Sequence[oxide.Device], w0: Float32Array, w1: Float32Array) -> list[Replica]:
    """Uploads the weights to each device."""
    made = []
    for device in devices:
        first, second = oxide.zip(h2d(w0), h2d(w1)).on(device).sync()
        made.append(Replica(device, first, second))
    return made


def shares(
    devices: Sequence[oxide.Device], pixels: Float32Array, labels: NDArray[Any], ranks: Sequence[int], size: int
) -> DeviceOperation[Any]:
    """Uploads to each device its share of a batch. On n ranks the batch is divided into n parts whose sizes differ by
    at most one row, and rank r gets part r. Yields a tuple of ``Share``s."""
    bounds = [rank * len(pixels) // size for rank in range(size + 1)]
    uploads = []
    for rank, device in zip(ranks, devices, strict=True):
        part = slice(bounds[rank], bounds[rank + 1])
        both = oxide.zip(h2d(pixels[part]), h2d(labels[part].astype(np.int32)))
        uploads.append(both.map(lambda boxes: Share(*boxes)).on(device))
    return oxide.zip(*uploads)


@dataclass(frozen=True, slots=True)
class Front:
    """The results of the first half of a step on one device: the hidden layer, and the gradients of the scores
    (``scores``) and of ``w1``."""

    hidden: DeviceBox
    scores: DeviceBox
    w1: DeviceBox


def front(replica: Replica, part: Share, batch: int) -> DeviceOperation[Front]:
    """Computes the first half of a step on one device's share, up to the gradient of ``w1``."""

    def gradients(hidden: DeviceBox) -> DeviceOperation[Front]:
        def of_scores(scores: DeviceBox) -> DeviceOperation[DeviceBox]:
            return softmax_gradient(1 / batch, scores, part.labels, empty(scores.shape)).last()

        def of_w1(scores: DeviceBox) -> DeviceOperation[Front]:
            product = ops.matmul(hidden.T, scores, precision="high")
            return product.map(lambda w1: Front(hidden, scores, w1))

        return ops.matmul(hidden, replica.w1, precision="high").and_then(of_scores).and_then(of_w1)

    return ops.matmul(part.pixels, replica.w0, activation="relu", precision="high").and_then(gradients)


def back(replica: Replica, part: Share, front: Front) -> DeviceOperation[DeviceBox]:
    """Computes the second half of a step on one device's share: the gradient of ``w0``."""

    def masked(gradient: DeviceBox) -> DeviceOperation[DeviceBox]:
        return relu_gradient(flat(front.hidden), flat(gradient)).map(lambda _: gradient)

    through = ops.matmul(front.scores, replica.w1.T, precision="high").and_then(masked)
    return through.and_then(lambda gradient: ops.matmul(part.pixels.T, gradient, precision="high"))


def flat(box: DeviceBox) -> DeviceBox:
    """Returns a box of one axis with the same elements."""
    return box.reshape(box.size)


def update(replica: Replica, w0: DeviceBox, w1: DeviceBox, rate: float) -> DeviceOperation[Any]:
    """Subtracts ``rate`` times the gradients ``w0`` and ``w1`` from one device's weights. Yields the weights."""
    first = descend(rate, flat(w0), flat(replica.w0)).map(lambda _: replica.w0)
    return oxide.zip(first, descend(rate, flat(w1), flat(replica.w1)).map(lambda _: replica.w1))


def step(
    group: oxide.collectives.Group | None, here: Sequence[Replica], parts: Sequence[Share], batch: int, rate: float
) -> DeviceOperation[Any]:
    """Builds one step of gradient descent on a batch of ``batch`` rows. ``parts`` are the shares of the devices of this
    process. Without a group, one replica computes the whole batch. Yields the weights."""

    def backs(fronts: Sequence[Front]) -> DeviceOperation[Any]:
        return on_each(here, [back(*each) for each in zip(here, parts, fronts, strict=True)])

    def updates(w0: Sequence[DeviceBox], w1: Sequence[DeviceBox]) -> DeviceOperation[Any]:
        return on_each(here, [update(*each, rate) for each in zip(here, w0, w1, strict=True)])

    fronts = on_each(here, [front(replica, part, batch) for replica, part in zip(here, parts, strict=True)])
    return together(group, fronts, backs, updates)


def captured_step(
    group: oxide.collectives.Group | None, here: Sequence[Replica], parts: Sequence[Share], batch: int, rate: float
) -> Callable[[], DeviceOperation[Any]]:
    """Captures each device's work before, between and after the collectives into three graphs. Returns a function that
    builds the step, which launches these graphs. The boxes of ``parts`` may be filled anew before each step."""

    def captured(operations: list[DeviceOperation[Any]]) -> tuple[list[CudaGraph[Any]], list[Any]]:
        graphs = [each.on(replica.device).graph() for each, replica in zip(operations, here, strict=True)]
        return graphs, [graph.take_output() for graph in graphs]

    def launches(graphs: list[CudaGraph[Any]], outputs: Sequence[Any]) -> DeviceOperation[Any]:
        return on_each(here, [graph.launch() for graph in graphs]).map(lambda _: tuple(outputs))

    first, fronts = captured([front(replica, part, batch) for replica, part in zip(here, parts, strict=True)])
    second, w0 = captured([back(*each) for each in zip(here, parts, fronts, strict=True)])
    last, weights = captured(
        [update(replica, g0, done.w1, rate) for replica, g0, done in zip(here, w0, fronts, strict=True)]
    )

    def build() -> DeviceOperation[Any]:
        return together(
            group, launches(first, fronts), lambda _: launches(second, w0), lambda *_: launches(last, weights)
        )

    return build


def together(
    group: oxide.collectives.Group | None,
    fronts: DeviceOperation[Any],
    backs: Callable[[Sequence[Front]], DeviceOperation[Any]],
    updates: Callable[[Sequence[DeviceBox], Sequence[DeviceBox]], DeviceOperation[Any]],
) -> DeviceOperation[Any]:
    """Builds a step from its three parts, each on all devices of this process, with the collectives between the
    parts."""

    def reduced(gradients: Sequence[DeviceBox]) -> DeviceOperation[tuple[DeviceBox, ...]]:
        if group is None:
            return oxide.value(tuple(gradients))
        done: DeviceOperation[Any] = group.all_reduce(*gradients)
        return done.map(lambda boxes: boxes if isinstance(boxes, tuple) else (boxes,))

    def rest(done: Sequence[Front]) -> DeviceOperation[Any]:
        return oxide.zip(reduced([each.w1 for each in done]), backs(done).and_then(reduced))

    return fronts.and_then(rest).and_then(lambda gradients: updates(gradients[1], gradients[0]))


def on_each(here: Sequence[Replica], operations: Sequence[DeviceOperation[Any]]) -> DeviceOperation[Any]:
    """Runs an operation on each replica's device, and yields the tuple of results."""
    return oxide.zip(*[each.on(replica.device) for each, replica in zip(operations, here, strict=True)])


def step_of_numpy(
    w0: NDArray[Any], w1: NDArray[Any], pixels: NDArray[Any], labels: NDArray[Any], rate: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the weights after one step, by NumPy in float64."""
    w0, w1, pixels = w0.astype(np.float64), w1.astype(np.float64), pixels.astype(np.float64)
    hidden = np.maximum(pixels @ w0, 0)
    scores = hidden @ w1
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    shares /= len(labels)
    back = (shares @ w1.T) * (hidden > 0)
    return w0 - rate * pixels.T @ back, w1 - rate * hidden.T @ shares
