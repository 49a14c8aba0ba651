"""The encoder in f16, for GPUs with tensor cores. It runs on the CPU device too, which emulates them slowly.

A small batch waits for launches more than for products, so a layer is five kernels of ``half_kernels``: the product for
queries, keys and values, attention, the product after it, and the two of the perceptron. Norms, biases, gelu and sums
with a layer's input are parts of them. A large batch is bound by products: it uses ``matmul`` of ``oxide_kernels``, the
fastest one for many rows, with norms between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from oxide import DeviceBox, DeviceOperation, LaunchConfig, empty, f16, h2d
from oxide_kernels import layer_norm, matmul

from . import half_kernels as kernels
from .layout import Layout

Rows = DeviceOperation[DeviceBox]

MOST_FUSED_ROWS = 2048
"""The most rows of a batch that is computed with few kernels."""


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
class HalfEncoder:
    """The encoder with its weights on the device, in f16.

    ``weights`` are named and shaped as in Hugging Face's ``BertModel``, float16 or float32. Heads have 32 elements.
    ``fused_rows`` is the most rows, tokens of all sequences, that are computed with few kernels. Raises ``ValueError``
    for another shape.
    """

    def __init__(
        self, weights: Mapping[str, NDArray[Any]], epsilon: float = 1e-12, fused_rows: int = MOST_FUSED_ROWS
    ) -> None:
        self._weights = weights
        self._epsilon = epsilon
        self._fused_rows = fused_rows
        places = weights["embeddings.position_embeddings.weight"].astype(np.float32)
        places += weights["embeddings.token_type_embeddings.weight"][0]
        self.longest, self.width = places.shape
        if self.width % kernels.HEAD or self.width > kernels.MOST_WIDTH:
            raise ValueError(
                f"the encoder has {self.width} columns; in f16 it takes heads of {kernels.HEAD} elements, at most "
                f"{kernels.MOST_WIDTH} in all"
            )
        self._words = _on_device(weights["embeddings.word_embeddings.weight"])
        self._places = _on_device(places)
        self._norm = self._norm_of("embeddings.LayerNorm")
        count = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
        self._layers = [self._layer_of(f"encoder.layer.{number}") for number in range(count)]
        del self._weights

    def __call__(self, layout: Layout) -> Rows:
        """Returns the operation that computes a row of unit length, f32, for each sequence of the layout. It reads the
        layout's arrays when it runs."""
        return layout.upload().and_then(lambda boxes: self._rows(*boxes))

    def _rows(self, tokens: DeviceBox, sequences: DeviceBox) -> Rows:
        count = tokens.shape[1]
        embed = kernels.look_up[LaunchConfig.for_num_elems(count * self.width // 2)]
        rows = (
            empty((count, self.width), f16).and_then(lambda rows: embed(self._words, self._places, tokens, rows)).last()
        )
        norm = self._norm
        layer_of = self._fused if count <= self._fused_rows else self._plain
        for layer in self._layers:
            rows = rows.and_then(partial(layer_of, layer, norm, tokens))
            norm = layer.norm
        shape = (sequences.shape[1], self.width)
        pool = kernels.pool_of(self.width)[LaunchConfig(max(1, shape[0]), 32 * kernels.POOL_WARPS)]
        return rows.and_then(
            lambda rows: (
                empty(shape)
                .and_then(lambda units: pool(rows, norm.weight, norm.bias, self._epsilon, sequences, units))
                .last()
            )
        )

    # A layer takes the sums of the layer before it, whose norm it is given, and yields its own sums.

    def _fused(self, layer: Layer, norm: Norm, tokens: DeviceBox, sums: DeviceBox) -> Rows:
        """Returns the operation of a layer as five kernels."""

        def added(x: DeviceBox, linear: Linear, inputs: DeviceBox) -> Rows:
            shape = x.shape
            tile = kernels.tile_of(*shape)
            launch = kernels.added_product(tile)[kernels.config_of(tile, *shape)]
            return empty(shape, f16).and_then(lambda sums: launch(inputs, linear.weight, linear.bias, x, sums)).last()

        def perceptron(sums: DeviceBox) -> Rows:
            return self._normalised(layer.attention_norm, layer.inner, True, sums).and_then(
                lambda made: added(made[0], layer.outer, made[1])
            )

        return (
            self._normalised(norm, layer.queries_keys_values, False, sums)
            .and_then(lambda made: attention(made[1], tokens).and_then(partial(added, made[0], layer.after_attention)))
            .and_then(perceptron)
        )

    def _normalised(
        self, norm: Norm, linear: Linear, with_gelu: bool, sums: DeviceBox
    ) -> DeviceOperation[tuple[DeviceBox, DeviceBox]]:
        """Returns the operation that yields the norm of each row, and the product of that."""
        shape = sums.shape[0], linear.weight.shape[0]
        tile = kernels.tile_of(*shape)
        launch = kernels.normalised_product(self.width, tile, with_gelu)[kernels.config_of(tile, *shape)]
        return empty(sums.shape, f16).and_then(
            lambda x: (
                empty(shape, f16)
                .and_then(
                    lambda c: launch(sums, norm.weight, norm.bias, self._epsilon, linear.weight, linear.bias, x, c)
                )
                .map(lambda done: (done[-2], done[-1]))
            )
        )

    def _plain(self, layer: Layer, norm: Norm, tokens: DeviceBox, sums: DeviceBox) -> Rows:
        """Returns the operation of a layer as products and norms of the library, the norms and sums in place."""

        def normalised(norm: Norm, sums: DeviceBox) -> Rows:
            return layer_norm(sums, norm.weight, norm.bias, sums, self._epsilon).last()

        def product(linear: Linear, activation: str | None, x: DeviceBox) -> Rows:
            return (
                empty((x.shape[0], linear.weight.shape[0]), f16)
                .and_then(lambda c: matmul(x, linear.weight.T, c, bias=linear.bias, activation=activation))
                .last()
            )

        def added(x: DeviceBox, linear: Linear, inputs: DeviceBox) -> Rows:
            return matmul(inputs, linear.weight.T, x, beta=1, bias=linear.bias).last()

        def perceptron(x: DeviceBox) -> Rows:
            return product(layer.inner, "gelu", x).and_then(partial(added, x, layer.outer))

        def attended(x: DeviceBox) -> Rows:
            return (
                product(layer.queries_keys_values, None, x)
                .and_then(lambda products: attention(products, tokens))
                .and_then(partial(added, x, layer.after_attention))
            )

        return (
            normalised(norm, sums)
            .and_then(attended)
            .and_then(partial(normalised, layer.attention_norm))
            .and_then(perceptron)
        )

    def _layer_of(self, name: str) -> Layer:
        attention = f"{name}.attention"
        return Layer(
            self._linear_of(*(f"{attention}.self.{part}" for part in ("query", "key", "value"))),
            self._linear_of(f"{attention}.output.dense"),
            self._norm_of(f"{attention}.output.LayerNorm"),
            self._linear_of(f"{name}.intermediate.dense"),
            self._linear_of(f"{name}.output.dense"),
            self._norm_of(f"{name}.output.LayerNorm"),
        )

    def _linear_of(self, *names: str) -> Linear:
        weight = np.concatenate([self._weights[f"{name}.weight"] for name in names])
        bias = np.concatenate([self._weights[f"{name}.bias"] for name in names])
        if weight.shape[1] % 8 or weight.shape[0] % 2:
            raise ValueError(
                f"{names[0]} has weights of shape {weight.shape}; in f16 it takes a multiple of 8 inputs and an even "
                "number of outputs"
            )
        return Linear(_on_device(weight), _on_device(bias))

    def _norm_of(self, name: str) -> Norm:
        return Norm(*(_on_device(self._weights[f"{name}.{part}"]) for part in ("weight", "bias")))


def attention(products: DeviceBox, tokens: DeviceBox) -> Rows:
    """Returns the operation that computes the attention of each token to its own sequence."""
    count, width = products.shape[0], products.shape[1] // 3
    blocks = -(-count // kernels.QUERIES) * (width // kernels.HEAD)
    launch = kernels.attend[LaunchConfig(max(1, blocks), kernels.ATTEND_THREADS)]
    scale = 1 / math.sqrt(kernels.HEAD)
    return empty((count, width), f16).and_then(lambda rows: launch(products, tokens, scale, rows)).last()


def _on_device(array: NDArray[Any]) -> DeviceBox:
    return h2d(np.ascontiguousarray(array, np.float16)).sync()
