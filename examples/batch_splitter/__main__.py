"""``python -m examples.batch_splitter --devices 2``: runs the same batch on 1, 2, 4, … devices.

Exits with 0 when every result is right, 1 when one is wrong and 2 when the options cannot be met.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

import numpy as np
import trio

import oxide
from oxide import init_device_contexts

from . import splitter


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the example with these command-line arguments. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if min(options.devices, options.rows, options.dim, options.depth) < 1:
        parser.error("--devices, --rows, --dim and --depth must be 1 or more")
    if options.device is not None:
        os.environ["OXIDE_DEVICE"] = options.device
    os.environ.setdefault("OXIDE_CPU_DEVICES", str(options.devices))  # as many CPU devices as requested
    try:
        init_device_contexts(0, options.devices)
    except oxide.DeviceError as error:
        parser.error(str(error))
    for device in oxide.devices()[: options.devices]:
        print(f"Device: {device.label} ({device.name})")
    return 0 if trio.run(run, options.devices, options.rows, options.dim, options.depth) else 1


async def run(most: int, rows: int, dim: int, depth: int) -> bool:
    """Runs the same batch on 1, 2, 4, … and ``most`` devices. Returns whether every result is right."""
    batch, weights = splitter.make_batch(rows, dim)
    print(f"\n{rows} rows through {depth} layers of {dim}×{dim}\n")
    expected = splitter.reference(batch, weights, depth)
    right = True
    for count in sorted({*(1 << power for power in range(most.bit_length())), most}):
        devices = range(count)
        copies = await splitter.spread(weights, devices)
        await splitter.run_split(batch[:count], copies, devices, depth)  # compiles and loads the kernels
        start = time.perf_counter()
        result = await splitter.run_split(batch, copies, devices, depth)
        milliseconds = (time.perf_counter() - start) * 1e3
        error = float(np.max(np.abs(result - expected)) / max(float(np.max(np.abs(expected))), 1e-30))
        right = right and result.shape == expected.shape and error < 1e-4
        print(f"{count} device{'s' * (count > 1)}: {milliseconds:.1f} ms, relative error {error:.1e}")
    print("\nSUCCESS: Every result is right." if right else "\nFAILED: A result differs from NumPy's.")
    return right


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.batch_splitter",
        description="One batch split over several devices, GPUs or CPU devices.",
        allow_abbrev=False,
    )
    parser.add_argument("--devices", type=int, default=2, help="how many to split over (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="their kind; CUDA if there is any, else the CPU")
    parser.add_argument("--rows", type=int, default=1024, help="rows of the batch (%(default)s)")
    parser.add_argument("--dim", type=int, default=128, help="columns of the batch (%(default)s)")
    parser.add_argument("--depth", type=int, default=4, help="layers (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
