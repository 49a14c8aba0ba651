"""``python -m examples.data_parallel``: trains on all devices of one process, or with several processes, each on one
device.

``OXIDE_DEVICE=cpu OXIDE_CPU_DEVICES=2 python -m examples.data_parallel`` drives two devices from one process.
``python -m oxide launch -n 2 -m examples.data_parallel`` starts two processes. Afterwards rank 0 trains once more, on
its device alone, and prints how much the weights differ. Exits with 1 if they differ by more than 1e-6.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import oxide
from examples.async_mlp import digits
from oxide import collectives, d2h

from .training import Float32Array, Replica, replicas, shares, step

Weights = tuple[NDArray[np.float32], NDArray[np.float32]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains with these command-line arguments. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.data_parallel", allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=60, help="steps of gradient descent (%(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="images in a batch, over all devices (%(default)s)")
    parser.add_argument("--hidden", type=int, default=128, help="units of the hidden layer (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.5, help="the learning rate (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        training, held_out = digits.load_images()
    except ModuleNotFoundError:
        parser.error(digits.INSTALL_HINT)
    if min(options.steps, options.batch, options.hidden) < 1 or options.batch > len(training):
        parser.error(f"--steps, --batch and --hidden are 1 or more, and --batch at most {len(training)}")
    random = np.random.default_rng(0)
    start = (
        random.normal(0, 0.1, (training.pixels.shape[1], options.hidden)).astype(np.float32),
        random.normal(0, 0.1, (options.hidden, 10)).astype(np.float32),
    )
    batches = [random.choice(len(training), options.batch, replace=False) for _ in range(options.steps)]
    if "RANK" in os.environ:
        group = collectives.join_group()
    else:
        group = collectives.local_group()  # all devices
    with group:
        where = ", ".join(device.label for device in group.devices)
        print(f"rank{'s' * (len(group.ranks) > 1)} {_listed(group.ranks)} of {group.size} on {where}", flush=True)
        weights = _train(group, training, batches, start, options.rate)
    if 0 not in group.ranks:
        return 0
    scores = digits.reference_scores(held_out.pixels, *weights)
    right = float(np.mean(scores.argmax(axis=1) == held_out.labels))
    print(f"{options.steps} steps of {options.batch} images; {right:.1%} of {len(held_out)} held-out images are right")
    alone = _train(None, training, batches, start, options.rate, group.devices[0])
    differences = [
        float(np.linalg.norm(together - single) / np.linalg.norm(single))
        for together, single in zip(weights, alone, strict=True)
    ]
    print(f"the weights differ from those of one device by {max(differences):.1e}, relative to their norm")
    return 0 if max(differences) <= 1e-6 else 1


def _train(
    group: collectives.Group | None,
    images: digits.Images,
    batches: list[NDArray[np.int64]],
    start: tuple[Float32Array, Float32Array],
    rate: float,
    device: oxide.Device | None = None,
) -> Weights:
    """Trains one step on each batch, with the group or, if it is None, on ``device`` alone. Returns the weights."""
    if group is None:
        assert device is not None
        devices, ranks, size = [device], [0], 1
    else:
        devices, ranks, size = list(group.devices), list(group.ranks), group.size
    here: list[Replica] = replicas(devices, *start)
    for chosen in batches:
        parts = shares(devices, images.pixels[chosen], images.labels[chosen], ranks, size).sync()
        step(group, here, parts, len(chosen), rate).sync()
    first, second = oxide.zip(d2h(here[0].w0), d2h(here[0].w1)).on(here[0].device).sync()
    return first, second


def _listed(ranks: Sequence[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"


if __name__ == "__main__":
    sys.exit(main())
