"""``python -m examples.async_mlp``: runs the example on synthetic batches or on handwritten digits.

Exits with 0 when every result is right, 1 when one is wrong and 2 when the options cannot be met.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NoReturn

import trio

import oxide
from oxide import StreamPoolRoundRobin, init_device_contexts

from . import digits, synthetic
from .pipeline import DTYPES, Kernels


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints one line instead of the usage text, and exits with 2."""
        self.exit(2, f"async_mlp: {message} (see --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the example with these command-line arguments. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.data == "digits" and (options.dim is not None or options.batches is not None):
        parser.error("--data digits takes neither --dim nor --batches: its images have 64 pixels and come in 64s")
    if options.dtype != "f32" and options.kernels == "naive":
        parser.error(f"--dtype {options.dtype} needs --kernels library: the naive kernels are of f32")
    kernels = Kernels(options.kernels == "library", options.dtype)
    if options.device is not None:
        os.environ["OXIDE_DEVICE"] = options.device
    try:
        init_device_contexts(policy=StreamPoolRoundRobin(options.streams))
    except oxide.DeviceError as error:
        parser.error(str(error))
    device = oxide.devices()[0]
    print(f"Device: {device.label} ({device.name})")
    if kernels.library:
        print(f"Kernels: library, {kernels.dtype}")

    try:
        with nullcontext() if options.trace is None else oxide.trace(options.trace):
            if options.data == "digits":
                return 0 if trio.run(digits.run, kernels) else 1
            return 0 if trio.run(synthetic.run, options.dim or 64, options.batches or 4, kernels) else 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        parser.error(digits.INSTALL_HINT)
    except oxide.TraceError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m examples.async_mlp",
        description="A two-layer network over batches that are all in flight at once, on a GPU or on the CPU.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="where to run it; a CUDA device if there is one, else the CPU"
    )
    parser.add_argument("--dim", type=_count(32768), help="rows and columns of a batch and of W0 (64)")
    parser.add_argument("--batches", type=_count(1 << 20), help="how many pipelines to spawn (4)")
    parser.add_argument("--streams", type=_count(1024), default=4, help="streams they take turns on (%(default)s)")
    parser.add_argument(
        "--data",
        choices=("synthetic", "digits"),
        default="synthetic",
        help="made-up numbers (%(default)s), or scikit-learn's handwritten digits and a trained network",
    )
    parser.add_argument(
        "--kernels",
        choices=("naive", "library"),
        default="naive",
        help="one thread for each element (%(default)s), or the library's products on tensor cores",
    )
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), default="f32", help="the numbers on the device, with --kernels library (f32)"
    )
    parser.add_argument("--trace", metavar="FILE", help="write a timeline of the run, for ui.perfetto.dev, to FILE")
    return parser


def _count(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            count = int(text)
        except ValueError:
            count = 0
        if not 1 <= count <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {most}, not {text!r}")
        return count

    return parse


if __name__ == "__main__":
    sys.exit(main())
