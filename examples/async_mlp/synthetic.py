"""The synthetic model and batches, each given by a short formula, and a check of the results in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from oxide import Arc, h2d, spawn

from . import pipeline
from .pipeline import EPSILONS, NAIVE, Float32Array, Kernels

_FLOAT32 = np.dtype(np.float32)
RELATIVE_ERROR = 1e-6
"""The largest error of a right result: the norm of its difference from the reference, divided by the reference's."""


@dataclass(frozen=True, slots=True)
class Model:
    """The weights on the host, in the same type as on the device: ``w0`` is ``(dim, dim)``, ``w1`` is ``(dim,)``."""

    w0: NDArray[Any]
    w1: NDArray[Any]

    @classmethod
    def of(cls, dim: int, dtype: np.dtype[Any] = _FLOAT32) -> Model:
        """Returns the model ``w0[i] = ((i % 7) - 3) / 100``, with the flat index ``i``, and ``w1[i] = ((i % 5) - 2) /
        100``, rounded to float32 and then to ``dtype``."""
        w0 = (np.arange(dim * dim) % 7 - 3) * 0.01
        w1 = (np.arange(dim) % 5 - 2) * 0.01
        return cls(*(each.astype(np.float32).astype(dtype) for each in (w0.reshape(dim, dim), w1)))


def input_batch(dim: int, number: int) -> Float32Array:
    """Returns the batch ``((i + 37 * number) % 13) / 10``, with the flat index ``i``: ``(dim, dim)``, float32."""
    values = (np.arange(dim * dim) + 37 * number) % 13 * 0.1
    return values.reshape(dim, dim).astype(np.float32)


def verdict(model: Model, batch: NDArray[Any], result: NDArray[Any], kernels: Kernels = NAIVE) -> str:
    """Returns ``ReLU OK`` for a right result, and ``ReLU FAILED`` if a value is negative or not finite, as no ReLU
    gives it. Otherwise returns ``MISMATCH`` with the relative error."""
    if not np.all(np.isfinite(result)) or np.any(result < 0):
        return "ReLU FAILED"
    reference, allowed = reference_and_allowance(model, batch, kernels)
    error = float(np.linalg.norm(result.astype(np.float64) - reference))
    if error <= allowed:
        return "ReLU OK"
    size = float(np.linalg.norm(reference))
    return f"MISMATCH relative error {error / size if size > 0 else math.inf:.3g}"


def reference_and_allowance(
    model: Model, batch: NDArray[Any], kernels: Kernels = NAIVE
) -> tuple[NDArray[np.float64], float]:
    """Returns the result in float64, and the allowed norm of a result's error.

    The library's kernels round the hidden layer and the result to their dtype; one ε of the dtype is allowed for both
    together. They round each addition to float32, and add several products at once, so that half an ε for each addition
    is not enough: one ε is allowed. These ε are multiplied by the norm of the sums of the terms' magnitudes, since the
    terms may cancel.

    For the naive kernels the allowed norm is ``RELATIVE_ERROR`` times the norm of the result. If the last sum cancels
    to less than 1/32 of its terms (at dim 35 to exactly 0, at 512 to 1/170), float32 has too few digits for this. Then
    the allowed norm is one float32 ε times the norm of the terms.
    """
    wide, w0, w1 = (each.astype(np.float64) for each in (batch, model.w0, model.w1))
    hidden = wide @ w0
    reference = np.maximum(0.0, hidden @ w1)
    if kernels.library:
        rounding = EPSILONS[kernels.dtype] + 2 * len(w1) * EPSILONS["f32"]
        return reference, rounding * float(np.linalg.norm(np.abs(wide) @ np.abs(w0) @ np.abs(w1)))
    size = float(np.linalg.norm(reference))
    terms = float(np.linalg.norm(np.abs(hidden) @ np.abs(w1)))
    if size > terms / 32:
        return reference, RELATIVE_ERROR * size
    return reference, EPSILONS["f32"] * terms


async def run(dim: int, batches: int, kernels: Kernels = NAIVE) -> bool:
    """Uploads the model, runs all batches at once and prints each result. Returns whether all were right."""
    model = Model.of(dim, kernels.element)
    print("\n=== Async MLP Pipeline ===\n")
    print("Allocating model weights...")
    w0 = await h2d(model.w0).arc()
    w1 = await h2d(model.w1).arc()
    print(f"  W0: {dim}x{dim} on device (Arc refcount={Arc.strong_count(w0)})")
    print(f"  W1: {dim} on device (Arc refcount={Arc.strong_count(w1)})\n")

    inputs = [input_batch(dim, number).astype(kernels.element) for number in range(batches)]
    network = partial(pipeline.mlp, kernels=kernels) if kernels.library else pipeline.mlp
    await pipeline.prepare(kernels, lambda: network(inputs[0], w0.clone(), w1.clone()))
    correct = True
    async with trio.open_nursery() as nursery:
        handles = [spawn(nursery, network(batch, w0.clone(), w1.clone())) for batch in inputs]
        print(f"Launched {batches} batches concurrently, awaiting results...\n")
        for number, handle in enumerate(handles):
            result = (await handle).astype(np.float32)
            judged = verdict(model, inputs[number], result, kernels)
            correct = correct and judged == "ReLU OK"
            head = format_values(result[:8])
            print(f"Batch {number}: {result.size} elements, first {min(8, dim)} = {head} [{judged}]")
    print("\nSUCCESS: All batches completed." if correct else "\nFAILED: a batch is wrong, see above.")
    return correct


def format_values(values: Iterable[np.float32]) -> str:
    """Formats numbers with up to six significant digits, as many as a float32 guarantees: ``[0.00208, 0.0]``."""
    return "[" + ", ".join(repr(float(f"{value:.6g}")) for value in values) + "]"
