"""``oxide profile``: shows which kernels take the time, or prints commands for NVIDIA's profilers."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from oxide.commands.output import FINDINGS, check_output, complain, console, say
from oxide.commands.running import (
    Arguments,
    AsModule,
    File,
    Program,
    checked_program,
    print_traceback,
    run_as_main,
    with_device,
)


def profile(
    file: File,
    arguments: Arguments = None,
    as_module: AsModule = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, or one GPU as cuda:1")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="OUT.json", help="write a timeline as well")] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="OUT.json", help="write the table as JSON as well")
    ] = None,
    ncu: Annotated[bool, typer.Option("--ncu", help="print the commands for Nsight Compute; run nothing")] = False,
    nsys: Annotated[bool, typer.Option("--nsys", help="print the commands for Nsight Systems; run nothing")] = False,
) -> None:
    """Runs a program and prints a table of its kernels and copies: count, total, mean, p99, bytes and share.

    The options stand before FILE. The table is printed on standard output after the program's own. The exit status is
    the program's.

    \b
    Examples:
      oxide profile main.py --epochs 3
      oxide profile --trace out.json --json table.json main.py
      oxide profile --ncu main.py       which commands show a kernel's slow lines?
      oxide profile --nsys main.py      which commands show the whole program's timeline?
    """
    program = checked_program("profile", file, arguments, as_module)
    if ncu or nsys:
        say("\n".join([*(ncu_recipe(program) if ncu else []), *(nsys_recipe(program) if nsys else [])]))
        return
    chosen: dict[str, str] = {}
    with_device("profile", device, chosen)
    os.environ.update(chosen)
    for option, out in (("--trace", trace), ("--json", as_json)):
        check_output("profile", option, out)
    raise typer.Exit(_profiled(program, trace, as_json))


def _profiled(program: Program, trace: Path | None, as_json: Path | None) -> int:
    import oxide

    recording: Any = contextlib.nullcontext() if trace is None else oxide.trace(trace.absolute())
    table = None if as_json is None else as_json.absolute()  # the program may change the current folder
    with recording, oxide.profile() as profiled:
        status = _status_of(program)
    sys.stdout.flush()
    console().print(str(profiled))
    if table is not None:
        table.write_text(profiled.to_json(), encoding="utf-8")
    return status


def _status_of(program: Program) -> int:
    """Runs a program in this process as ``__main__``. Returns its exit status. Prints the traceback of its error."""
    try:
        run_as_main(program)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except KeyboardInterrupt:
        complain("profile", "interrupted; the table is of what ran until then")
        return 130
    except BaseException as error:
        print_traceback(error, __file__)
        return FINDINGS
    return 0


def ncu_recipe(program: Program) -> list[str]:
    """Returns the commands that show the slow lines of kernels with Nsight Compute."""
    command = shlex.join(
        ["env", "OXIDE_DEVICE=cuda", "ncu", "--set", "full", "--import-source", "yes", "-f", "-o", program.stem]
    )
    chosen = "--kernel-name regex:NAME --launch-skip 0 --launch-count 1"
    return [
        "# Nsight Compute: one launch of one kernel, with its source lines. NAME is the kernel's name in Python.",
        "# --launch-skip 10 takes the eleventh launch; nothing is profiled if the kernel runs fewer times.",
        f"{command} {chosen} {shlex.join(program.command)}",
        f"ncu --import {shlex.quote(program.stem)}.ncu-rep --page details",
        f"ncu --import {shlex.quote(program.stem)}.ncu-rep --page source --csv",
    ]


def nsys_recipe(program: Program) -> list[str]:
    """Returns the commands that show the timeline of a program with Nsight Systems."""
    out = shlex.quote(program.stem)
    return [
        "# Nsight Systems: the whole program, with the kernels inside of graphs and the NVTX ranges of operations.",
        f"env OXIDE_DEVICE=cuda nsys profile --trace=cuda,nvtx,osrt --cuda-graph-trace=node -f true -o {out} "
        f"{shlex.join(program.command)}",
        f"nsys stats --report cuda_gpu_kern_sum,cuda_gpu_mem_time_sum {out}.nsys-rep",
    ]
