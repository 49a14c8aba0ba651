"""``oxide profile`` and ``oxide trace``: show which kernels take the time, of a program or in a recorded timeline."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from oxide.commands.output import FINDINGS, check_output, complain, console, refuse, say
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
) -> None:
    """Runs a program and prints a table of its kernels and copies: count, total, mean, p99, bytes and share.

    The options stand before FILE. The table is printed on standard output after the program's own. The exit status is
    the program's.

    \b
    Examples:
      oxide profile main.py --epochs 3
      oxide profile --trace out.json --json table.json main.py
    """
    program = checked_program("profile", file, arguments, as_module)
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


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="written by oxide.trace or `oxide run --trace`")],
) -> None:
    """Prints a table of a timeline's kernels and copies: count, total, mean, p99, bytes and share.

    ui.perfetto.dev shows the timeline itself.

    \b
    Examples:
      oxide run --trace out.json main.py
      oxide trace out.json
    """
    if file.is_dir():
        refuse("trace", f"{file} is a folder; name a timeline that oxide.trace wrote")
    try:
        say(_table(json.loads(file.read_text(encoding="utf-8"))["traceEvents"]))
    except OSError as error:
        refuse("trace", f"the trace {file} cannot be read: {error.strerror}")
    except json.JSONDecodeError as error:
        refuse(
            "trace",
            f"{file} is no trace of oxide's, or only the beginning of one, as a program leaves it that a signal ends: "
            f"{error}",
        )
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        refuse("trace", f"{file} is no trace of oxide's: it has not the events that oxide.trace writes")


def _table(events: list[dict[str, Any]]) -> str:
    from oxide.tracing.profiles import Profile  # imported here, as the other commands do not need it
    from oxide.tracing.traces import HOST

    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    slices = [event for event in events if event["ph"] == "X" and event["pid"] != HOST and event["cat"] != "wait"]
    nodes = any(each["cat"] == "node" for each in slices)
    profile = Profile({})
    for each in slices:
        if "state" not in each["args"] and not (nodes and each["cat"] == "graph"):  # its nodes are counted instead
            device = names[each["pid"]].removeprefix("device ")
            profile.add(each["name"], each["cat"], device, round(1000 * each["dur"]), each["args"].get("bytes"))
    return str(profile)
