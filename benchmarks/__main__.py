"""``python -m benchmarks``: oxide beside what one would use instead, measured on this machine.

    python -m benchmarks                        every group, on the GPU if there is one
    python -m benchmarks launch completion      some groups
    python -m benchmarks --quick                small sizes: do all contenders still give right results?
    python -m benchmarks --redraw h100/run.json page and plots of a run on another machine

Exits with 1 if a contender gave a wrong result or a group broke, and never because of a time. Figures that oxide is
held to are printed as PASS or FAIL at the end of a full run.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

GROUPS = {
    "launch": "what submitting a kernel costs",
    "completion": "from submission to result, and what waiting costs",
    "trace": "what a trace costs while it runs",
    "pipeline": "async_mlp, batches a second",
    "conditional": "a loop that the device ends, conjugate gradients",
    "kernels": "oxide_kernels by themselves",
    "library": "oxide_kernels beside torch, cuBLAS and CuPy",
    "startup": "from process start to the last line",
    "cpu": "the CPU device",
}
RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the groups asked for; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.redraw is not None:
        return _redraw(parser, options.redraw)
    device = options.device or _default_device()
    os.environ["OXIDE_DEVICE"] = device
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # an empty kernel is meant to be small
    from benchmarks import report
    from benchmarks.harness import Session, progress
    from oxide import DeviceError

    session = Session(device, quick=options.quick, seconds=options.seconds)
    try:
        machine = report.describe()
    except DeviceError as error:
        parser.error(str(error))
    name = options.name or re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-")
    folder = None if options.quick and options.output is None else options.output or RESULTS
    if folder is not None and (refusal := report.refusal(folder, name)):
        parser.error(refusal)
    print(f"{machine['device']}, driver {machine['driver']}, Python {machine['python']}")
    begun = time.perf_counter()
    for number, group in enumerate(options.groups or GROUPS, 1):
        session.group = group
        seen = len(session.comparisons)
        print(f"\n[{number}/{len(options.groups or GROUPS)}] {group}: {GROUPS[group]}", flush=True)
        try:
            import_module(f"benchmarks.{group}").run(session)
        except Exception as error:
            session.errors[group] = f"{type(error).__name__}: {error}"
            progress("")
            print(f"BROKEN: {session.errors[group]}")
        for comparison in session.comparisons[seen:]:
            print(report.table(comparison), flush=True)
    if options.quick:
        print("\nOf sizes this small: whether results are right, not how fast anything is.")
    elif session.claims:
        print(f"\n{report.claims(session)}")
    print(f"\n{time.perf_counter() - begun:.0f} s")
    if folder is not None:
        for line in report.write(session, machine, folder / name, plots=options.plots):
            print(line)
    if any(comparison.wrong for comparison in session.comparisons):
        print("WRONG RESULTS, see above", file=sys.stderr)
    if session.errors:
        print(f"BROKEN: {', '.join(session.errors)}, see above", file=sys.stderr)
    return int(session.wrong)


def _redraw(parser: argparse.ArgumentParser, files: Sequence[Path]) -> int:
    from benchmarks import report

    for file in files:
        try:
            lines = report.redraw(file)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        for line in lines:
            print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="oxide beside what one would use instead, measured on this machine.",
        epilog="groups: " + "; ".join(f"{name}: {text}" for name, text in GROUPS.items()),
    )
    parser.add_argument(
        "groups", nargs="*", metavar="group", type=_group, help="groups to run; all of them if none is named"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few turns; writes only to --output")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="a CUDA device if there is one, else the CPU device")
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=4.0,
        help="time for one comparison, about (%(default)s); more turns, less noise",
    )
    parser.add_argument("--output", type=Path, help="folder for the run's own folder (benchmarks/results)")
    parser.add_argument("--name", help="the name of the run's folder (the device's)")
    parser.add_argument("--plots", action="store_true", help="draw plots, too (needs matplotlib)")
    parser.add_argument(
        "--redraw",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="measure nothing: write the page and the plots of earlier runs beside their JSON",
    )
    return parser


def _group(name: str) -> str:
    if name not in GROUPS:
        raise argparse.ArgumentTypeError(f"there is no group {name!r}; there are {', '.join(GROUPS)}")
    return name


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time to measure for, in seconds")
    return seconds


def _default_device() -> str:
    from oxide.driver.cuda.probe import available

    return os.environ.get("OXIDE_DEVICE") or ("cuda" if available() else "cpu")


if __name__ == "__main__":
    sys.exit(main())
