"""Kernels that apply a function to each element, made of the function and of types: what a function gives is tested
with them over whole arrays at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import DisjointSlice, Kernel, Slice, d2h, h2d, kernel, thread, zeros


def unary(function: Any, dtype: Any, result: Any = None, **options: Any) -> Kernel:
    """``y[i] = function(x[i])``; the result is of the operand's type if nothing else is said."""
    out = dtype if result is None else result

    @kernel(block=128, **options)
    def apply(x: Slice[dtype], y: DisjointSlice[out]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = function(x[i.get()])

    return apply


def binary(function: Any, dtype: Any, second: Any = None, **options: Any) -> Kernel:
    """``y[i] = function(a[i], b[i])``; ``b`` is of the type of ``a`` and ``y`` if nothing else is said."""
    other = dtype if second is None else second

    @kernel(block=128, **options)
    def apply(a: Slice[dtype], b: Slice[other], y: DisjointSlice[dtype]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = function(a[i.get()], b[i.get()])

    return apply


def run(k: Kernel, *inputs: np.ndarray, dtype: Any = None) -> np.ndarray:
    """What the kernel gives for arrays of one length: an array of the first one's dtype if nothing else is said."""
    boxes = [h2d(values) for values in inputs]
    found: np.ndarray = k(*boxes, zeros(inputs[0].size, dtype or inputs[0].dtype)).last().and_then(d2h).sync()
    return found
