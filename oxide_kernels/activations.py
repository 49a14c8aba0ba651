"""Activation functions, element by element, four elements a thread: that reaches the memory's bandwidth."""

from __future__ import annotations

import math
from collections.abc import Callable

from oxide import DisjointSlice, Slice, device, f32, kernel, thread


@kernel(block=256, items_per_thread=4)
def relu(input: Slice[f32], output: DisjointSlice[f32]) -> None:
    """``output = max(0, input)``, float32; NaN stays NaN. Both may be the same buffer."""
    _by_fours(relu_of, input, output)


@device
def relu_of(x: f32) -> f32:
    """0 for a negative number, else the number."""
    return f32(0.0) if x < f32(0.0) else x


@kernel(block=256, items_per_thread=4)
def gelu(input: Slice[f32], output: DisjointSlice[f32]) -> None:
    """``output = input * Φ(input)``, float32, Φ the normal distribution's. Both may be the same buffer."""
    _by_fours(gelu_of, input, output)


@kernel(block=256, items_per_thread=4)
def silu(input: Slice[f32], output: DisjointSlice[f32]) -> None:
    """``output = input * sigmoid(input)``, float32. Both may be the same buffer."""
    _by_fours(silu_of, input, output)


@kernel(block=256, items_per_thread=4)
def sigmoid(input: Slice[f32], output: DisjointSlice[f32]) -> None:
    """``output = 1 / (1 + exp(-input))``, float32. Both may be the same buffer."""
    _by_fours(sigmoid_of, input, output)


@device
def _by_fours(f: Callable[[f32], f32], input: Slice[f32], output: DisjointSlice[f32]) -> None:
    """``output = f(input)`` for a thread's four elements: as one vector where both buffers begin on its boundary."""
    first, length, out = 4 * thread.index_1d().get(), len(output), output.unchecked_mut
    if first + 4 <= length and input.is_aligned(4) and output.is_aligned(4):
        a, b, c, d = input.load4(first)
        out.store4(first, f(a), f(b), f(c), f(d))
    else:
        for i in range(first, min(first + 4, length)):
            out[i] = f(input[i])


@device
def silu_of(x: f32) -> f32:
    """``x`` times the logistic function of it."""
    return x * sigmoid_of(x)


@device
def gelu_of(x: f32) -> f32:
    """``x`` times the probability that a normal number is less than it."""
    return f32(0.5) * x * (f32(1) + math.erf(x * f32(math.sqrt(0.5))))


@device
def sigmoid_of(x: f32) -> f32:
    """The logistic function; 0 and 1 far out, as the exponential is infinite or 0 there."""
    return f32(1) / (f32(1) + math.exp(-x))
