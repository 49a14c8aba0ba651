"""``python -m examples.async_mlp.train_digits``: trains the network and writes ``weights.npz``.

The training takes NumPy two seconds on one core.

The network has one hidden layer of 127 units with dropout. It is trained with softmax cross-entropy, and with AdamW at
a learning rate that falls to zero. One image in five is moved by a pixel. The settings were chosen on other splits of
the images than the split for which accuracy is stated. The seed is fixed: the same NumPy and BLAS give the same file.
Other versions differ in the last digits, and training amplifies such differences.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import digits
from .digits import Images
from .pipeline import Float32Array

HIDDEN = 127
EPOCHS = 150
BATCH = 64
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
DROPOUT = 0.3
MOVED = 0.2
SEED = 0

Array = NDArray[np.float64]


def main() -> None:
    """Trains the network, writes the weights and prints the accuracy."""
    training, held_out = digits.load_images()
    w0, w1 = train(training)
    np.savez(digits.WEIGHTS, w0=w0, w1=w1)
    print(f"{digits.WEIGHTS.name}: {digits.WEIGHTS.stat().st_size} bytes")
    print(f"training {accuracy(training, w0, w1):.2%}, held out {accuracy(held_out, w0, w1):.2%}")


def train(images: Images) -> tuple[Float32Array, Float32Array]:
    """Returns W0 ``(65, 128)`` and W1 ``(128, 10)``. The last row of each holds the biases. The last hidden unit is
    always 1."""
    random = np.random.default_rng(SEED)
    pixels = images.pixels.astype(np.float64)
    one_hot = np.eye(10)[images.labels]
    w0 = random.normal(0.0, np.sqrt(2 / pixels.shape[1]), (pixels.shape[1], HIDDEN))
    w1 = random.normal(0.0, np.sqrt(1 / HIDDEN), (HIDDEN + 1, 10))
    optimizers = (_AdamW(w0), _AdamW(w1))
    for epoch in range(EPOCHS):
        rate = LEARNING_RATE * (1 - epoch / EPOCHS)
        order = random.permutation(len(images))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            gradients = _gradients(_moved(pixels[chosen], random), one_hot[chosen], w0, w1, random)
            for optimizer, gradient in zip(optimizers, gradients, strict=True):
                optimizer.step(gradient, rate)

    # A 128th hidden unit that is always 1: its input weights are 0, and its bias is 1.
    constant = np.zeros((pixels.shape[1], 1))
    constant[-1] = 1.0
    return np.concatenate([w0, constant], axis=1).astype(np.float32), w1.astype(np.float32)


def accuracy(images: Images, w0: Float32Array, w1: Float32Array) -> float:
    """Returns the fraction of images whose label has the highest score."""
    return float((digits.reference_scores(images.pixels, w0, w1).argmax(axis=1) == images.labels).mean())


def _gradients(pixels: Array, one_hot: Array, w0: Array, w1: Array, random: np.random.Generator) -> tuple[Array, Array]:
    hidden = np.maximum(0.0, pixels @ w0)
    hidden *= (random.random(hidden.shape) >= DROPOUT) / (1 - DROPOUT)
    hidden_and_one = np.concatenate([hidden, np.ones((len(hidden), 1))], axis=1)
    scores = hidden_and_one @ w1
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    error = (exponentials / exponentials.sum(axis=1, keepdims=True) - one_hot) / len(pixels)
    hidden_error = (error @ w1[:-1].T) * (hidden > 0) / (1 - DROPOUT)
    return pixels.T @ hidden_error, hidden_and_one.T @ error


def _moved(pixels: Array, random: np.random.Generator) -> Array:
    moved = pixels.copy()
    padded = np.pad(pixels[:, :64].reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    for image in np.flatnonzero(random.random(len(pixels)) < MOVED):
        top, left = ((0, 1), (2, 1), (1, 0), (1, 2))[random.integers(4)]
        moved[image, :64] = padded[image, top : top + 8, left : left + 8].ravel()
    return moved


class _AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter). Updates one array in place."""

    def __init__(self, weights: Array) -> None:
        self.weights = weights
        self.mean = np.zeros_like(weights)
        self.square = np.zeros_like(weights)
        self.steps = 0

    def step(self, gradient: Array, rate: float) -> None:
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean = self.mean / (1 - 0.9**self.steps)
        square = self.square / (1 - 0.999**self.steps)
        self.weights -= rate * (mean / (np.sqrt(square) + 1e-8) + WEIGHT_DECAY * self.weights)


if __name__ == "__main__":
    main()
