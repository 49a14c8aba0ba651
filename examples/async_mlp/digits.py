"""Handwritten digits: scikit-learn's 1797 images of 8×8 pixels through a network trained beforehand.

``weights.npz`` has the weights that ``train_digits`` trained on three quarters of the images. Accuracy is stated for
the other quarter, which the training never saw. The biases are the weights of an extra input column of ones and of an
extra hidden unit that is always 1. So both layers are plain matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trio
from numpy.typing import NDArray

from oxide import h2d, spawn

from . import pipeline
from .pipeline import EPSILONS, NAIVE, Float32Array, Kernels

BATCH = 64
WEIGHTS = Path(__file__).with_name("weights.npz")
INSTALL_HINT = "--data digits needs scikit-learn for its images: pip install 'oxide-gpu[digits]', or make digits"


@dataclass(frozen=True, slots=True)
class Images:
    """Images and their digits. ``pixels`` is ``(n, 65)`` float32: 64 pixels from 0 to 1, and a 1. ``labels`` is
    ``(n,)``, from 0 to 9."""

    pixels: Float32Array
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, chosen: NDArray[np.bool_]) -> Images:
        """Returns the chosen images, in order."""
        return Images(self.pixels[chosen], self.labels[chosen])


def load_images() -> tuple[Images, Images]:
    """Returns the images to train on, and the images held out: every fourth image, 450 of 1797. Downloads nothing.
    Raises ``ModuleNotFoundError`` without scikit-learn."""
    from sklearn.datasets import load_digits

    found = load_digits()
    ones = np.ones((len(found.target), 1))
    everything = Images(
        np.concatenate([found.data / 16.0, ones], axis=1).astype(np.float32), found.target.astype(np.int64)
    )
    held_out = np.arange(len(everything)) % 4 == 0
    return everything.where(~held_out), everything.where(held_out)


def load_weights() -> tuple[Float32Array, Float32Array]:
    """Returns W0 ``(65, hidden)`` and W1 ``(hidden, 10)``, float32."""
    with np.load(WEIGHTS) as arrays:
        return arrays["w0"], arrays["w1"]


def reference_scores(pixels: Float32Array, w0: Float32Array, w1: Float32Array) -> NDArray[np.float64]:
    """Computes the network in float64 NumPy. Returns a score for each class, ``(n, 10)``."""
    hidden = np.maximum(0.0, pixels.astype(np.float64) @ w0.astype(np.float64))
    return hidden @ w1.astype(np.float64)


def rounding(pixels: Float32Array, w0: Float32Array, w1: Float32Array, kernels: Kernels) -> NDArray[np.float64] | float:
    """Returns, for each image, the smallest difference of two scores that exceeds the rounding errors of the kernels'
    dtype, ``(n,)``; 0 for f32. The image, both weights, the hidden layer and the scores are each rounded by up to half
    an ε of the sum of the terms' magnitudes, and two scores are compared: 5 ε in all."""
    if kernels.dtype == "f32":
        return 0.0
    terms = np.abs(pixels).astype(np.float64) @ np.abs(w0) @ np.abs(w1)
    most: NDArray[np.float64] = 5 * EPSILONS[kernels.dtype] * terms.max(axis=1)
    return most


async def classify(images: Images, kernels: Kernels = NAIVE) -> NDArray[np.int64]:
    """Returns the predicted digit of each image, ``(n,)``. Batches of 64 images, the last one shorter, are all in
    flight at once."""
    w0, w1 = (weights.astype(kernels.element) for weights in load_weights())
    w0_on_device = await h2d(w0).arc()
    w1_on_device = await h2d(w1).arc()
    pixels = images.pixels.astype(kernels.element)
    await pipeline.prepare(
        kernels,
        lambda: pipeline.classifier(pixels[:BATCH], w0_on_device.clone(), w1_on_device.clone(), kernels),
    )
    async with trio.open_nursery() as nursery:
        handles = [
            spawn(
                nursery,
                pipeline.classifier(pixels[start : start + BATCH], w0_on_device.clone(), w1_on_device.clone(), kernels),
            )
            for start in range(0, len(images), BATCH)
        ]
        scores = [await handle for handle in handles]
    predicted: NDArray[np.int64] = np.concatenate(scores).argmax(axis=1)
    return predicted


async def run(kernels: Kernels = NAIVE) -> bool:
    """Classifies every image, and prints the accuracy of each held-out batch and of all images. Returns whether every
    prediction equals that of the float64 reference. A different prediction also counts as equal if its score in the
    reference is below the best one by no more than ``rounding``."""
    trained_on, held_out = load_images()
    print("\n=== Handwritten digits ===\n")
    print(f"{len(trained_on) + len(held_out)} images: {len(trained_on)} were trained on, {len(held_out)} held out")
    print(f"Held out, in batches of {BATCH}:\n")

    predicted = await classify(held_out, kernels)
    right = predicted == held_out.labels
    for number, start in enumerate(range(0, len(held_out), BATCH)):
        batch = right[start : start + BATCH]
        print(f"Batch {number}: {batch.size} images, {batch.sum()} right, accuracy {batch.mean():.2%}")
    print(f"\nHeld-out accuracy: {right.mean():.2%} ({right.sum()} of {right.size})")

    predicted_training = await classify(trained_on, kernels)
    right_training = predicted_training == trained_on.labels
    print(f"Training accuracy: {right_training.mean():.2%} ({right_training.sum()} of {right_training.size})\n")

    weights = load_weights()
    pixels = np.concatenate([held_out.pixels, trained_on.pixels])
    scores = reference_scores(pixels, *weights)
    found = np.concatenate([predicted, predicted_training])
    short = scores.max(axis=1) - np.take_along_axis(scores, found[:, None], axis=1)[:, 0]
    differing = int((short > rounding(pixels, *weights, kernels)).sum())
    if differing:
        print(f"FAILED: {differing} predictions differ from the NumPy reference.")
        return False
    print("SUCCESS: Every prediction equals the NumPy reference's.")
    return True
