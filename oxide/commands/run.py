"""``oxide run``: runs a program on a chosen device, sanitized, seeded, traced or interpreted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from oxide.commands.output import check_output, refuse
from oxide.commands.running import (
    Arguments,
    AsModule,
    File,
    checked_program,
    with_device,
    with_sanitizer,
)


def run(
    file: File,
    arguments: Arguments = None,
    as_module: AsModule = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, or one GPU as cuda:1")] = None,
    sanitize: Annotated[
        str | None, typer.Option(help="memory, race or memory,race: the CPU device's sanitizer in every kernel")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="the CPU device's schedule, drawn from this number")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="OUT.json", help="write a timeline of the run")] = None,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="run kernels as plain Python, for debuggers and print")
    ] = False,
    numba_cuda: Annotated[
        bool, typer.Option("--numba-cuda", help="let numba.cuda, which the program imports, be oxide.numba_cuda")
    ] = False,
) -> None:
    """Runs a program as Python does, with options for the device. The options stand before FILE.

    FILE runs as __main__ in this process, with its arguments, standard streams and exit status. --sanitize, --seed and
    --interpret are of the CPU device: with one of them and no --device, that is the device.

    \b
    Examples:
      oxide run main.py
      oxide run --device cuda:1 main.py --epochs 3
      oxide run --sanitize=memory,race main.py
      oxide run --device cpu --seed 7 main.py
      oxide run --trace out.json -m examples.async_mlp --dim 256
      oxide run --device cpu --numba-cuda simulation.py
    """
    program = checked_program("run", file, arguments, as_module)
    environment: dict[str, str] = {}
    with_sanitizer("run", sanitize, environment)
    if seed is not None:
        if seed < 0:
            refuse("run", f"--seed {seed}: give a whole number of 0 or more")
        environment["OXIDE_SEED"] = str(seed)
    if interpret:
        environment["OXIDE_INTERPRET"] = "1"
    if environment:
        options = (("--sanitize", sanitize), ("--seed", seed), ("--interpret", interpret or None))
        option = next(name for name, given in options if given is not None)
        if device is not None and device != "cpu":
            refuse("run", f"{option} is of the CPU device, and --device is {device}; leave one of them out")
        environment["OXIDE_DEVICE"] = "cpu"
    with_device("run", device, environment)
    if trace is not None:
        check_output("run", "--trace", trace)
        environment["OXIDE_TRACE"] = str(trace)
    sys.stdout.flush()
    # Replaces this process, so that signals, streams, tracebacks and the exit status are the program's own.
    command = program.command
    if numba_cuda:
        command = [sys.executable, "-m", "oxide.commands.hosted", "numba-cuda", *program.words]
    os.execve(sys.executable, command, {**os.environ, **environment})
