"""The synthetic model and batches, each given by a short formula, and the check of results by float64 arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import trio
from numpy.typing import NDArray

from oxide import Arc, h2d, spawn

from . import pipeline
from .pipeline import Float32Array

RELATIVE_ERROR = 1e-6
"""The largest distance of a result from the reference that counts as right, as a ratio of norms."""


@dataclass(frozen=True, slots=True)
class Model:
    """The weights on the host, float32: ``w0`` is ``(dim, dim)``, ``w1`` is ``(dim,)``."""

    w0: Float32Array
    w1: Float32Array

    @classmethod
    def of(cls, dim: int) -> Model:
        """Returns the model ``w0[i] = ((i % 7) - 3) / 100``, with the flat index ``i``, and ``w1[i] = ((i % 5) - 2) /
        100``."""
        w0 = (np.arange(dim * dim) % 7 - 3) * 0.01
        w1 = (np.arange(dim) % 5 - 2) * 0.01
        return cls(w0.reshape(dim, dim).astype(np.float32), w1.astype(np.float32))


def input_batch(dim: int, number: int) -> Float32Array:
    """Returns the batch ``((i + 37 * number) % 13) / 10``, with the flat index ``i``: ``(dim, dim)``, float32."""
    values = (np.arange(dim * dim) + 37 * number) % 13 * 0.1
    return values.reshape(dim, dim).astype(np.float32)


def verdict(model: Model, batch: Float32Array, result: Float32Array) -> str:
    """Returns ``ReLU OK`` for a right result, ``ReLU FAILED`` for a value that no ReLU gives, and otherwise
    ``MISMATCH``."""
    if not np.all(np.isfinite(result)) or np.any(result < 0):
        return "ReLU FAILED"
    reference, allowed = reference_and_allowance(model, batch)
    error = float(np.linalg.norm(result.astype(np.float64) - reference))
    if error <= allowed:
        return "ReLU OK"
    size = float(np.linalg.norm(reference))
    return f"MISMATCH relative error {error / size if size > 0 else math.inf:.3g}"


def reference_and_allowance(model: Model, batch: Float32Array) -> tuple[NDArray[np.float64], float]:
    """Returns the result in float64, and the allowed norm of a float32 result's error.

    The allowed norm is ``RELATIVE_ERROR`` times that of the result. If the last sum cancels to less than 1/32 of its
    terms (at dim 35 to exactly 0, at 512 to 1/170), no float32 sum has that many digits. The allowed norm is then one
    float32 ε times that of the terms.
    """
    hidden = batch.astype(np.float64) @ model.w0.astype(np.float64)
    w1 = model.w1.astype(np.float64)
    reference = np.maximum(0.0, hidden @ w1)
    size = float(np.linalg.norm(reference))
    terms = float(np.linalg.norm(np.abs(hidden) @ np.abs(w1)))
    if size > terms / 32:
        return reference, RELATIVE_ERROR * size
    return reference, float(np.finfo(np.float32).eps) * terms


async def run(dim: int, batches: int) -> bool:
    """Uploads the model, runs all batches at once and prints each result. Returns whether all were right."""
    model = Model.of(dim)
    print("\n=== Async MLP Pipeline ===\n")
    print("Allocating model weights...")
    await pipeline.prepare()
    w0 = await h2d(model.w0).arc()
    w1 = await h2d(model.w1).arc()
    print(f"  W0: {dim}x{dim} on device (Arc refcount={Arc.strong_count(w0)})")
    print(f"  W1: {dim} on device (Arc refcount={Arc.strong_count(w1)})\n")

    inputs = [input_batch(dim, number) for number in range(batches)]
    correct = True
    async with trio.open_nursery() as nursery:
        handles = [spawn(nursery, pipeline.mlp(batch, w0.clone(), w1.clone())) for batch in inputs]
        print(f"Launched {batches} batches concurrently, awaiting results...\n")
        for number, handle in enumerate(handles):
            result = await handle
            judged = verdict(model, inputs[number], result)
            correct = correct and judged == "ReLU OK"
            head = format_values(result[:8])
            print(f"Batch {number}: {result.size} elements, first {min(8, dim)} = {head} [{judged}]")
    print("\nSUCCESS: All batches completed." if correct else "\nFAILED: a batch is wrong, see above.")
    return correct


def format_values(values: Iterable[np.float32]) -> str:
    """Formats numbers with up to six significant digits, all that a float32 guarantees: ``[0.00208, 0.0]``."""
    return "[" + ", ".join(repr(float(f"{value:.6g}")) for value in values) + "]"
