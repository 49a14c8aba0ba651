"""``oxide trace``: prints what devices ran in a recorded timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from oxide.commands.output import refuse, say


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
    from oxide.tracing.trace_file import HOST

    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    slices = [event for event in events if event["ph"] == "X" and event["pid"] != HOST and event["cat"] != "wait"]
    nodes = any(each["cat"] == "node" for each in slices)
    profile = Profile({})
    for each in slices:
        if "state" not in each["args"] and not (nodes and each["cat"] == "graph"):  # its nodes are counted instead
            device = names[each["pid"]].removeprefix("device ")
            profile.add(each["name"], each["cat"], device, round(1000 * each["dur"]), each["args"].get("bytes"))
    return str(profile)
