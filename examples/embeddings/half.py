"""The encoder in f16, for GPUs with tensor cores. It also runs on the CPU device, which emulates tensor cores slowly.

A layer is seven launches: four of ``oxide_kernels.matmul``, which also computes bias, gelu and sum, one of attention,
and two of norms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from oxide import DeviceBox, DeviceOperation, LaunchConfig, empty, f16, h2d, zip
from oxide_kernels import layer_norm, matmul

from . import half_kernels as kernels
from .encoder import Rows, Step, in_order, layers_of
from .kernels import HEAD
from .layout import Layout


@final
@dataclass(frozen=True, slots=True)
class Linear:
    """The weights of ``x @ weight.T + bias``."""

    weight: DeviceBox
    bias: DeviceBox


@final
@dataclass(frozen=True, slots=True)
class Norm:
    """The weights of a layer norm."""

    weight: DeviceBox
    bias: DeviceBox


@final
@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of a layer: attention and a perceptron, and the norms of their sums with their inputs."""

    queries_keys_values: Linear
    after_attention: Linear
    attention_norm: Norm
    inner: Linear
    outer: Linear
    norm: Norm


@final
@dataclass(frozen=True, slots=True)
class _Space:
    """The boxes that all layers of a batch share. Each has a row for each token."""

    sums: DeviceBox
    """The sum of the input and the output of an attention or a perceptron. Its norm is computed in place."""
    products: DeviceBox
    """Queries, keys and values."""
    attended: DeviceBox
    inner: DeviceBox


@final
class HalfEncoder:
    """The encoder with its weights on the device, in f16.

    ``weights`` are named and shaped as in Hugging Face's ``BertModel``, float16 or float32. Heads have 32 elements.
    Raises ``ValueError`` if the number of columns is no multiple of 32, or above 768.
    """

    def __init__(self, weights: Mapping[str, NDArray[Any]], epsilon: float = 1e-12) -> None:
        self._weights = weights
        self._epsilon = epsilon
        places = weights["embeddings.position_embeddings.weight"].astype(np.float32)
        places += weights["embeddings.token_type_embeddings.weight"][0]
        self.width = places.shape[1]
        if self.width % HEAD or self.width > kernels.MOST_WIDTH:
            raise ValueError(
                f"the encoder has {self.width} columns; in f16 it takes heads of {HEAD} elements, at most "
                f"{kernels.MOST_WIDTH} in all"
            )
        self._words = _on_device(weights["embeddings.word_embeddings.weight"])
        self._places = _on_device(places)
        self._norm = self._norm_of("embeddings.LayerNorm")
        self._layers = [Layer(*parts) for parts in layers_of(weights, self._linear_of, self._norm_of)]
        del self._weights

    def __call__(self, layout: Layout) -> Rows:
        """Returns the operation that yields a row of unit length, f32, for each sequence of the layout. The operation
        reads the layout's arrays when it runs."""
        return layout.upload().and_then(lambda boxes: self.vectors(*boxes))

    def vectors(self, tokens: DeviceBox, sequences: DeviceBox) -> Rows:
        """Returns the operation that yields a row of unit length, f32, for each sequence of a layout on the device."""
        count, width = tokens.shape[1], self.width
        inner = max(layer.inner.weight.shape[0] for layer in self._layers)
        space: DeviceOperation[Any] = zip(
            *(empty((count, columns), f16) for columns in (width, 3 * width, width, inner))
        )
        return space.and_then(lambda boxes: self._in_space(_Space(*boxes), tokens, sequences))

    def _in_space(self, space: _Space, tokens: DeviceBox, sequences: DeviceBox) -> Rows:
        count, norm = tokens.shape[1], self._norm
        embed = kernels.look_up[LaunchConfig.for_num_elems(count * self.width // 2)]
        steps: list[Step] = [embed(self._words, self._places, tokens, space.sums)]
        for layer in self._layers:
            steps += self._steps(layer, norm, tokens, space)
            norm = layer.norm
        shape = sequences.shape[1], self.width
        launch = kernels.pool_of(self.width)[LaunchConfig(max(1, shape[0]), 32 * kernels.POOL_WARPS)]
        pool = partial(launch, space.sums, norm.weight, norm.bias, self._epsilon, sequences)
        return in_order(steps).and_then(lambda _: empty(shape).and_then(pool).last())

    def _steps(self, layer: Layer, norm: Norm, tokens: DeviceBox, space: _Space) -> list[Step]:
        """Returns the launches of a layer. They find the sums of the previous layer in ``space.sums``, apply ``norm``
        to them, and leave the layer's own sums there."""
        sums = space.sums

        def normalised(norm: Norm) -> Step:
            return layer_norm(sums, norm.weight, norm.bias, sums, self._epsilon)

        def product(linear: Linear, c: DeviceBox, activation: str | None = None) -> Step:
            return matmul(sums, linear.weight.T, c, bias=linear.bias, activation=activation)

        def added(inputs: DeviceBox, linear: Linear) -> Step:
            return matmul(inputs, linear.weight.T, sums, beta=1, bias=linear.bias)

        return [
            normalised(norm),
            product(layer.queries_keys_values, space.products),
            attention(space.products, tokens, space.attended),
            added(space.attended, layer.after_attention),
            normalised(layer.attention_norm),
            product(layer.inner, space.inner, "gelu"),
            added(space.inner, layer.outer),
        ]

    def _linear_of(self, *names: str) -> Linear:
        weight = np.concatenate([self._weights[f"{name}.weight"] for name in names])
        bias = np.concatenate([self._weights[f"{name}.bias"] for name in names])
        return Linear(_on_device(weight), _on_device(bias))

    def _norm_of(self, name: str) -> Norm:
        return Norm(*(_on_device(self._weights[f"{name}.{part}"]) for part in ("weight", "bias")))


def attention(products: DeviceBox, tokens: DeviceBox, attended: DeviceBox) -> Step:
    """Returns the launch that computes the attention of each token to its own sequence."""
    count, width = attended.shape
    blocks = -(-count // kernels.QUERIES) * (width // HEAD)
    launch = kernels.attend[LaunchConfig(max(1, blocks), kernels.ATTEND_THREADS)]
    return launch(products, tokens, 1 / math.sqrt(HEAD), attended)


def _on_device(array: NDArray[Any]) -> DeviceBox:
    return h2d(np.ascontiguousarray(array, np.float16)).sync()
