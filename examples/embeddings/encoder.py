"""BERT's encoder for packed sequences: embeddings, layers of attention and a perceptron, the mean of each sequence.

A batch is a matrix with a row for each token of all sequences, without padding. ``Layout`` says which rows belong to
which sequence. Every step is an operation of oxide; no code here depends on the device. All numbers are f32. The module
``half`` has the encoder in f16, for tensor cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from oxide import DeviceBox, DeviceOperation, LaunchConfig, empty, h2d, zip
from oxide_kernels import gelu, matmul_packed, pack

from . import kernels
from .layout import Layout

Rows = DeviceOperation[DeviceBox]
Step = DeviceOperation[Any]
L = TypeVar("L")
N = TypeVar("N")


def in_order(steps: Iterable[Step]) -> Step:
    """Returns the operation that runs the steps one after another: each step may read what earlier steps wrote."""
    return reduce(lambda before, step: before.and_then(lambda _: step), steps)


def layers_of(
    weights: Mapping[str, Any], linear_of: Callable[..., L], norm_of: Callable[[str], N]
) -> Iterator[tuple[L, L, N, L, L, N]]:
    """Yields the parts of each layer, in the order of ``Layer``'s fields. ``linear_of`` gets the names of the weights
    whose products are computed as one product; ``norm_of`` gets the name of a norm's weights."""
    count = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    for name in (f"encoder.layer.{number}" for number in range(count)):
        yield (
            linear_of(*(f"{name}.attention.self.{part}" for part in ("query", "key", "value"))),
            linear_of(f"{name}.attention.output.dense"),
            norm_of(f"{name}.attention.output.LayerNorm"),
            linear_of(f"{name}.intermediate.dense"),
            linear_of(f"{name}.output.dense"),
            norm_of(f"{name}.output.LayerNorm"),
        )


@final
@dataclass(frozen=True, slots=True)
class Linear:
    """The weights of ``x @ weight.T + bias``. ``weight`` is packed (``oxide_kernels.pack``). ``outputs`` is the number
    of columns of the result."""

    weight: DeviceBox
    bias: DeviceBox
    outputs: int

    def __call__(self, x: DeviceBox, rows: DeviceBox) -> Step:
        """Returns the operation that computes the outputs of each row."""
        return matmul_packed(x, self.weight, rows, bias=self.bias)


@final
@dataclass(frozen=True, slots=True)
class Norm:
    """The weights of a layer norm."""

    weight: DeviceBox
    bias: DeviceBox
    epsilon: float

    def __call__(self, a: DeviceBox, b: DeviceBox, rows: DeviceBox) -> Step:
        """Returns the launch that computes the layer norm of ``a + b``."""
        launch = kernels.add_and_normalise[LaunchConfig(-(-a.shape[0] // 8), 8)]
        return launch(a, b, self.weight, self.bias, self.epsilon, rows)


@final
@dataclass(frozen=True, slots=True)
class Space:
    """The boxes that all layers of a batch share. Each has a row for each token."""

    x: DeviceBox
    """The input of a layer. At its end, the layer's output, which is the next layer's input."""
    y: DeviceBox
    """The output of the attention's norm, which is the perceptron's input."""
    products: DeviceBox
    """Queries, keys and values."""
    attended: DeviceBox
    change: DeviceBox
    """The output of the attention or the perceptron, before it is added to the input."""
    inner: DeviceBox


@final
@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: attention and a perceptron, each followed by the norm of its sum with its input."""

    queries_keys_values: Linear
    after_attention: Linear
    attention_norm: Norm
    inner: Linear
    outer: Linear
    norm: Norm

    def __call__(self, tokens: DeviceBox, space: Space) -> list[Step]:
        """Returns the operations that replace each row of ``space.x`` by the layer's output for it."""
        return [
            self.queries_keys_values(space.x, space.products),
            attention(space.products, tokens, space.attended),
            self.after_attention(space.attended, space.change),
            self.attention_norm(space.x, space.change, space.y),
            self.inner(space.y, space.inner),
            gelu(space.inner, space.inner),
            self.outer(space.inner, space.change),
            self.norm(space.y, space.change, space.x),
        ]


def attention(products: DeviceBox, tokens: DeviceBox, rows: DeviceBox) -> Step:
    """Returns the launch that computes the attention of each token to its own sequence."""
    threads = rows.shape[0] * (rows.shape[1] // kernels.HEAD)
    launch = kernels.attend[LaunchConfig(-(-threads // 8), 8)]
    return launch(products, tokens, 1 / math.sqrt(kernels.HEAD), rows)


@final
class Encoder:
    """The encoder with its weights on the device.

    ``weights`` are named and shaped as in Hugging Face's ``BertModel``, float32. Heads have 32 elements. Raises
    ``ValueError`` if the number of columns is no multiple of 32.
    """

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], epsilon: float = 1e-12) -> None:
        self._weights = weights
        self._epsilon = epsilon
        places = (
            weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
        )
        self.width = places.shape[1]
        self.longest = min(len(places), kernels.LONGEST)
        if self.width % kernels.HEAD:
            raise ValueError(f"the encoder has {self.width} columns, which are no heads of {kernels.HEAD} elements")
        self._words = h2d(weights["embeddings.word_embeddings.weight"]).sync()
        self._places = h2d(np.ascontiguousarray(places)).sync()
        self._norm = self._norm_of("embeddings.LayerNorm")
        self._nothing = empty((0, self.width)).sync()
        self._layers = [Layer(*parts) for parts in layers_of(weights, self._linear_of, self._norm_of)]
        del self._weights

    def __call__(self, layout: Layout) -> Rows:
        """Returns the operation that yields a row of unit length for each sequence of the layout. The operation reads
        the layout's arrays when it runs."""
        return layout.upload().and_then(lambda boxes: self._vectors(*boxes))

    def _vectors(self, tokens: DeviceBox, sequences: DeviceBox) -> Rows:
        count, width = tokens.shape[1], self.width
        inner = max(layer.inner.outputs for layer in self._layers)
        columns = (width, width, 3 * width, width, width, inner)
        space: DeviceOperation[Any] = zip(*(empty((count, each)) for each in columns))
        return space.and_then(lambda boxes: self._in_space(Space(*boxes), tokens, sequences))

    def _in_space(self, space: Space, tokens: DeviceBox, sequences: DeviceBox) -> Rows:
        pieces = space.x.size // kernels.LANES
        embed = kernels.look_up[LaunchConfig.for_num_elems(pieces, 8)]
        steps: list[Step] = [
            embed(self._words, self._places, tokens, space.change),
            self._norm(space.change, self._nothing, space.x),
        ]
        for layer in self._layers:
            steps += layer(tokens, space)
        shape = (sequences.shape[1], self.width)
        average = kernels.average[LaunchConfig.for_num_elems(shape[0] * shape[1])]
        unit = kernels.to_unit_length[LaunchConfig.for_num_elems(shape[0], 8)]
        return (
            in_order(steps)
            .and_then(lambda _: empty(shape).and_then(lambda means: average(space.x, sequences, means)).last())
            .and_then(lambda means: empty(shape).and_then(lambda units: unit(means, units)).last())
        )

    def _linear_of(self, *names: str) -> Linear:
        weight = np.concatenate([self._weights[f"{name}.weight"] for name in names])
        bias = np.concatenate([self._weights[f"{name}.bias"] for name in names])
        return Linear(h2d(pack(np.ascontiguousarray(weight.T))).sync(), h2d(bias).sync(), len(bias))

    def _norm_of(self, name: str) -> Norm:
        weight, bias = (h2d(self._weights[f"{name}.{part}"]).sync() for part in ("weight", "bias"))
        return Norm(weight, bias, self._epsilon)
