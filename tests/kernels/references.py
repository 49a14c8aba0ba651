"""What the kernel library is to give, in NumPy: float64 in, float64 out; rows are along the last axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from oxide import device

Array = np.ndarray[Any, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    exact: Array = powers / powers.sum(-1, keepdims=True)
    return exact


def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float = 1e-5) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    exact: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * weight + bias
    return exact


def rms_norm(x: Array, weight: Array, epsilon: float = 1e-5) -> Array:
    exact: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight
    return exact


IDENTITY = 1 << 16


@device
def compose(f: Any, g: Any) -> Any:
    """Two affine maps x -> a*x + b modulo 2**16, each as a << 16 | b, the first one first: an operator for reductions
    and scans that is associative and not commutative, whose identity is ``IDENTITY``."""
    a = (f >> 16) * (g >> 16) & 0xFFFF
    b = (g >> 16) * (f & 0xFFFF) + (g & 0xFFFF) & 0xFFFF
    return a << 16 | b
